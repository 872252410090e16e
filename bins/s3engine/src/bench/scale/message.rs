//! What the bench and its worker processes say to each other: one line of JSON each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::config::Settings;

use super::run::{Register, Registrations};

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Become the host service.
    Serve(Box<Site>),
    /// Become a client, or an engine by itself, and get all that the work needs.
    Prepare(Box<Task>),
    /// Make small GETs, all workers at once.
    Probe,
    /// Read. What ends before `Count` does not count.
    Go,
    /// What ends from here on counts.
    Count,
    /// The window is over: end what is under way, and tell.
    Stop,
    /// The same at once: what is under way is given up.
    Cut,
    /// To the host service: tell what it has used so far.
    Tell,
}

/// What an engine has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Means {
    /// The fabric's name, or why there is none.
    pub(crate) fabric: Result<String, String>,
    /// What brings bytes from plain sockets into memory. None: the host service's.
    pub(crate) driver: Option<String>,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// All is there.
    Ready(Means),
    /// How long small GETs took.
    Probed(Times),
    /// What the window brought since the last one.
    Sample {
        bytes: u64,
        ops: u64,
    },
    Done(Box<Count>),
    /// What the host service has used so far.
    Used(Used),
    /// It cannot go on.
    Failed(String),
}

/// Where the objects are, and who reads them how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) settings: Settings,
    pub(crate) url: String,
    /// The host service's socket; workers without one have engines of their own.
    pub(crate) socket: Option<PathBuf>,
    /// Bytes of a slab, and of all.
    pub(crate) slab_bytes: u64,
    pub(crate) pool_bytes: u64,
}

/// What one worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) site: Site,
    /// Which worker it is: from 0.
    pub(crate) nth: usize,
    pub(crate) clients: usize,
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    pub(crate) size: u64,
    /// The GPU whose memory the bytes land in, by its UUID; host memory where absent.
    pub(crate) gpu: Option<String>,
    pub(crate) policy: String,
    pub(crate) register: Register,
    pub(crate) bucket: String,
    pub(crate) keys: Vec<String>,
}

/// What a process has used since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Used {
    /// Seconds of processor time.
    pub(crate) cpu: f64,
    pub(crate) registrations: Registrations,
    /// Bytes by rail, where the fabric has some.
    pub(crate) rails: BTreeMap<String, u64>,
}

/// What a worker has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Operations that ended within the window.
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    /// Processor time within the window.
    pub(crate) cpu: f64,
    /// By path.
    pub(crate) bytes: BTreeMap<String, u64>,
    pub(crate) paths: BTreeMap<String, u64>,
    pub(crate) reasons: BTreeMap<String, u64>,
    pub(crate) fell_back: BTreeMap<String, u64>,
    pub(crate) latency: Times,
    pub(crate) first_byte: Times,
    pub(crate) queue: Times,
    pub(crate) registration: Times,
    pub(crate) transfer: Times,
    /// By slab: operations, and the sum of their rates in GB/s.
    pub(crate) slabs: BTreeMap<u32, (u64, f64)>,
    /// In the worker's whole life.
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    /// From the barrier to the end of the last GET, failed ones included: what the server counts meanwhile.
    pub(crate) all_bytes: u64,
    pub(crate) all_rdma_bytes: u64,
    /// Of an engine of its own.
    pub(crate) registrations: Registrations,
    /// Bytes by rail within the window, of the same.
    pub(crate) rails: BTreeMap<String, u64>,
}

impl Count {
    /// Adds what another thread or worker has seen in the same window.
    pub(crate) fn merge(&mut self, other: Count) {
        self.ops += other.ops;
        self.seconds = self.seconds.max(other.seconds);
        self.cpu += other.cpu;
        add(&mut self.bytes, other.bytes);
        add(&mut self.paths, other.paths);
        add(&mut self.reasons, other.reasons);
        add(&mut self.fell_back, other.fell_back);
        self.latency.merge(other.latency);
        self.first_byte.merge(other.first_byte);
        self.queue.merge(other.queue);
        self.registration.merge(other.registration);
        self.transfer.merge(other.transfer);
        for (slab, (ops, rates)) in other.slabs {
            let sums = self.slabs.entry(slab).or_default();
            *sums = (sums.0 + ops, sums.1 + rates);
        }
        self.failed += other.failed;
        self.first_error = self.first_error.take().or(other.first_error);
        self.all_bytes += other.all_bytes;
        self.all_rdma_bytes += other.all_rdma_bytes;
        self.registrations.add(other.registrations);
        add(&mut self.rails, other.rails);
    }
}

/// What was added to counts since they were `before`.
pub(crate) fn added(
    before: &BTreeMap<String, u64>,
    mut now: BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    for (name, count) in &mut now {
        *count -= before.get(name).copied().unwrap_or(0).min(*count);
    }
    now
}

pub(crate) fn add(sums: &mut BTreeMap<String, u64>, others: BTreeMap<String, u64>) {
    for (name, count) in others {
        *sums.entry(name).or_default() += count;
    }
}

/// Times in microseconds with how often each came: a histogram on its way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times(Vec<(u64, u64)>);

impl From<&Histogram<u64>> for Times {
    fn from(times: &Histogram<u64>) -> Self {
        let all = times.iter_recorded();
        Self(
            all.map(|one| (one.value_iterated_to(), one.count_at_value()))
                .collect(),
        )
    }
}

impl Times {
    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Adds them to a histogram.
    pub(crate) fn add_to(&self, times: &mut Histogram<u64>) {
        for &(time, count) in &self.0 {
            times.saturating_record_n(time, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_arrive_as_they_were_recorded() {
        let mut times = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).unwrap();
        for time in [1, 7, 7, 1500, 90_000, 3_000_000_000] {
            times.record(time).unwrap();
        }
        let line = serde_json::to_string(&Times::from(&times)).unwrap();
        let mut heard = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).unwrap();
        serde_json::from_str::<Times>(&line)
            .unwrap()
            .add_to(&mut heard);
        assert_eq!(heard, times);
    }
}

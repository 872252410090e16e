//! What the completions of a measurement add up to.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use s3engine::{BytesByPath, Completion, Error, ErrorKind};

/// An hour in microseconds: longer times count as that.
const LONGEST: u64 = 3_600_000_000;

/// What the completions of one thread, or of all, add up to.
#[derive(Clone)]
pub(crate) struct Tally {
    /// GETs that ended within the window.
    pub(crate) gets: u64,
    pub(crate) by_path: BytesByPath,
    /// GETs by path, and by reason.
    pub(crate) paths: BTreeMap<&'static str, u64>,
    pub(crate) reasons: BTreeMap<&'static str, u64>,
    /// Microseconds from submission.
    pub(crate) latency: Histogram<u64>,
    pub(crate) first_byte: Histogram<u64>,
    pub(crate) queued: Histogram<u64>,
    pub(crate) registered: Histogram<u64>,
    /// GETs that failed, within the window or not.
    pub(crate) failed: u64,
    pub(crate) first_error: Option<Error>,
}

impl Tally {
    pub(crate) fn new() -> Result<Self, CreationError> {
        let times = Histogram::new_with_bounds(1, LONGEST, 3)?;
        Ok(Self {
            gets: 0,
            by_path: BytesByPath::default(),
            paths: BTreeMap::new(),
            reasons: BTreeMap::new(),
            latency: times.clone(),
            first_byte: times.clone(),
            queued: times.clone(),
            registered: times,
            failed: 0,
            first_error: None,
        })
    }

    /// Counts a completion; it must have brought `size` bytes. Failures count whenever they happen, successes
    /// only within the window. Returns whether it was a success.
    pub(crate) fn add(&mut self, completion: &Completion, size: u64, in_window: bool) -> bool {
        let short = || {
            let kind = ErrorKind::Truncated {
                received: completion.bytes(),
                expected: size,
            };
            Error::new("GET", "", "", kind)
        };
        let error = match completion.error() {
            Some(error) => Some(error.clone()),
            None => (completion.bytes() != size).then(short),
        };
        if let Some(error) = error {
            self.fail(error);
            return false;
        }
        if in_window {
            self.count(completion);
        }
        true
    }

    /// Counts a failure.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed += 1;
        self.first_error.get_or_insert(error);
    }

    fn count(&mut self, completion: &Completion) {
        self.gets += 1;
        let bytes = completion.bytes_by_path();
        self.by_path.rdma += bytes.rdma;
        self.by_path.http += bytes.http;
        self.by_path.cache += bytes.cache;
        *self.paths.entry(completion.path().as_str()).or_default() += 1;
        *self
            .reasons
            .entry(completion.reason().as_str())
            .or_default() += 1;
        let stages = completion.stages();
        record(&mut self.latency, Some(stages.done));
        record(&mut self.first_byte, stages.first_byte);
        record(&mut self.queued, stages.queued);
        record(&mut self.registered, stages.registered);
    }

    /// Adds what another thread counted.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.gets += other.gets;
        self.by_path.rdma += other.by_path.rdma;
        self.by_path.http += other.by_path.http;
        self.by_path.cache += other.by_path.cache;
        for (path, count) in other.paths {
            *self.paths.entry(path).or_default() += count;
        }
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        // All have the same bounds, so adding cannot fail.
        let _ = self.latency.add(other.latency);
        let _ = self.first_byte.add(other.first_byte);
        let _ = self.queued.add(other.queued);
        let _ = self.registered.add(other.registered);
        self.failed += other.failed;
        if let Some(error) = other.first_error {
            self.first_error.get_or_insert(error);
        }
    }

    /// The share of bytes that went by RDMA, where there were any.
    pub(crate) fn rdma_share(&self) -> Option<f64> {
        let total = self.by_path.total();
        (total > 0).then(|| self.by_path.rdma as f64 / total as f64)
    }
}

fn record(times: &mut Histogram<u64>, time: Option<Duration>) {
    if let Some(time) = time {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        times.saturating_record(us.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let mut all = Tally::new().unwrap();
        for nth in 1..=3 {
            let mut one = Tally::new().unwrap();
            one.gets = nth;
            one.by_path.http = 10 * nth;
            one.by_path.rdma = 30 * nth;
            one.reasons.insert("ok", nth);
            record(&mut one.latency, Some(Duration::from_micros(nth)));
            one.fail(Error::new("GET", "b", nth.to_string(), ErrorKind::Deadline));
            all.merge(one);
        }
        assert_eq!((all.gets, all.failed, all.reasons["ok"]), (6, 3, 6));
        assert_eq!(all.rdma_share(), Some(0.75));
        assert_eq!((all.latency.len(), all.latency.max()), (3, 3));
        assert_eq!(all.first_error.unwrap().key(), "1");
    }

    #[test]
    fn the_longest_and_the_shortest_time_are_recorded() {
        let mut times = Tally::new().unwrap().latency;
        record(&mut times, Some(Duration::ZERO));
        record(&mut times, Some(Duration::from_secs(1 << 40)));
        record(&mut times, None);
        assert_eq!(times.len(), 2);
        assert_eq!(Tally::new().unwrap().rdma_share(), None);
    }
}

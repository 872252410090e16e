//! What was measured, and its JSON form (`schema` 1).

use std::thread;

use hdrhistogram::Histogram;
use s3engine::Engine;
use serde_json::{Value, json};

use crate::bench::floor::{Floor, Kind};
use crate::bench::memory::MemoryKind;
use crate::bench::rows::Row;
use crate::bench::tally::Tally;
use crate::bench::window::Window;
use crate::gpus::Gpu;

/// One measured row: its rounds, each beside its floor, and what their completions add up to.
pub(crate) struct Run {
    pub(crate) row: Row,
    pub(crate) rounds: Vec<Round>,
    pub(crate) tally: Tally,
    pub(crate) registrations: Registrations,
}

/// One window, and the floor measured right after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) window: Window,
    /// Bytes of the GETs that ended within the window.
    pub(crate) bytes: u64,
    pub(crate) floor: Option<Floor>,
}

impl Round {
    fn gb_per_s(&self) -> f64 {
        self.window.gb_per_s(self.bytes)
    }

    /// The rate as a share of the floor's.
    fn vs_floor(&self) -> Option<f64> {
        let floor = self.floor.filter(|floor| floor.gb_per_s > 0.0)?;
        (self.bytes > 0).then(|| self.gb_per_s() / floor.gb_per_s)
    }

    /// Processor time as a multiple of the floor's. Only where the floor's work is the client's: one-sided
    /// writes cost the server.
    fn cpu_vs_floor(&self) -> Option<f64> {
        let floor = self.floor.filter(|floor| floor.kind == Kind::Recv)?;
        let least = floor.cpu_s_per_gib.filter(|cpu| *cpu > 0.0)?;
        Some(self.window.cpu_s_per_gib(self.bytes)? / least)
    }
}

/// Registrations that a run made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registrations {
    pub(crate) count: u64,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
}

impl Registrations {
    /// All since the engine started.
    pub(crate) fn of(engine: &Engine) -> Self {
        let ledger = engine.pool().stats().ledger;
        Self {
            count: ledger.registered,
            failed: ledger.failed,
            seconds: ledger.time.as_secs_f64(),
        }
    }

    /// Those after `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count - earlier.count,
            failed: self.failed - earlier.failed,
            seconds: (self.seconds - earlier.seconds).max(0.0),
        }
    }
}

/// Medians over the rounds: a ratio is taken round by round, so that a machine whose speed drifts does not
/// decide it.
impl Run {
    pub(crate) fn seconds(&self) -> f64 {
        self.rounds.iter().map(|round| round.window.seconds).sum()
    }

    pub(crate) fn gb_per_s(&self) -> f64 {
        self.median(|round| Some(round.gb_per_s())).unwrap_or(0.0)
    }

    pub(crate) fn cpu_s_per_gib(&self) -> Option<f64> {
        self.median(|round| round.window.cpu_s_per_gib(round.bytes))
    }

    pub(crate) fn vs_floor(&self) -> Option<f64> {
        self.median(Round::vs_floor)
    }

    pub(crate) fn cpu_vs_floor(&self) -> Option<f64> {
        self.median(Round::cpu_vs_floor)
    }

    pub(crate) fn floor(&self) -> Option<Floor> {
        let floor = self.rounds.iter().find_map(|round| round.floor)?;
        Some(Floor {
            gb_per_s: self.median(|round| Some(round.floor?.gb_per_s))?,
            cpu_s_per_gib: self.median(|round| round.floor?.cpu_s_per_gib),
            ..floor
        })
    }

    fn median(&self, figure: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let mut figures: Vec<f64> = self.rounds.iter().filter_map(figure).collect();
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        match figures.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(figures[middle]),
            _ => Some((figures[middle - 1] + figures[middle]) / 2.0),
        }
    }
}

/// Where and with what it was measured.
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) endpoint: String,
    /// The fabric's name, or why there is none.
    pub(crate) fabric: Result<String, String>,
    /// What brings bytes from plain sockets into memory, and why no other does. None: the host service's.
    pub(crate) driver: Option<String>,
    /// The server that was started for this, in words.
    pub(crate) simulator: Option<String>,
    /// Whether the server is known to be a simulated one.
    pub(crate) simulated: bool,
    /// The socket of the host service that it was measured through.
    pub(crate) service: Option<String>,
    pub(crate) memory: MemoryKind,
    pub(crate) gpus: Vec<Gpu>,
}

impl Place {
    pub(crate) fn cores() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }
}

/// The whole report.
pub(crate) fn json(place: &Place, runs: &[Run]) -> Value {
    json!({
        "schema": 1,
        "host": { "name": place.host, "cores": Place::cores(), "gpus": place.gpus },
        "engine": {
            "version": env!("CARGO_PKG_VERSION"),
            "fabric": place.fabric.as_ref().ok(),
            "no_fabric": place.fabric.as_ref().err(),
            "driver": place.driver,
        },
        "server": place.simulator,
        "service": place.service,
        "runs": runs.iter().map(|run| run_json(place, run)).collect::<Vec<_>>(),
    })
}

fn run_json(place: &Place, run: &Run) -> Value {
    let (row, tally) = (&run.row, &run.tally);
    let seconds = run.seconds();
    let bytes = tally.by_path;
    json!({
        "mode": if place.service.is_some() { "service" } else { "embedded" },
        "processes": 1,
        "threads": row.threads,
        "in_flight": row.in_flight,
        "object_size": row.size.0,
        "memory": place.memory.to_string(),
        "policy": row.policy.as_str(),
        "endpoint": place.endpoint,
        "simulated": place.simulated,
        "rounds": run.rounds.len(),
        "seconds": seconds,
        "gb_per_s": run.gb_per_s(),
        "ops_per_s": tally.gets as f64 / seconds.max(1e-9),
        "rdma_share": tally.rdma_share(),
        "completions": tally.paths,
        "reasons": tally.reasons,
        "bytes": { "rdma": bytes.rdma, "http": bytes.http, "cache": bytes.cache },
        "failed": tally.failed,
        "first_error": tally.first_error.as_ref().map(ToString::to_string),
        "registrations": {
            "count": run.registrations.count,
            "failed": run.registrations.failed,
            "seconds": run.registrations.seconds,
        },
        "latency_us": quantiles(&tally.latency),
        "first_byte_us": quantiles(&tally.first_byte),
        "stages_us": {
            "queued": quantiles(&tally.queued),
            "registered": quantiles(&tally.registered),
            "first_byte": quantiles(&tally.first_byte),
            "done": quantiles(&tally.latency),
        },
        "cpu_s_per_gib": run.cpu_s_per_gib(),
        "floor": run.floor().map(|floor| json!({
            "kind": floor.kind.as_str(),
            "workers": floor.workers,
            "gb_per_s": floor.gb_per_s,
            "cpu_s_per_gib": floor.cpu_s_per_gib,
        })),
        "vs_floor": run.vs_floor(),
        "cpu_vs_floor": run.cpu_vs_floor(),
    })
}

fn quantiles(times: &Histogram<u64>) -> Value {
    if times.is_empty() {
        return Value::Null;
    }
    json!({
        "p50": times.value_at_quantile(0.5),
        "p90": times.value_at_quantile(0.9),
        "p99": times.value_at_quantile(0.99),
        "max": times.max(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gpus;
    use crate::size::Size;
    use s3engine::Policy;

    /// A run of 2 GB/s in two seconds, against a floor of 4 GB/s.
    pub(crate) fn run() -> Run {
        let mut tally = Tally::new().unwrap();
        tally.gets = 4;
        tally.by_path.rdma = 4_000_000_000;
        tally.paths.insert("rdma", 4);
        tally.reasons.insert("ok", 4);
        tally.latency.record(20).unwrap();
        Run {
            row: Row {
                policy: Policy::RequireRdma,
                size: Size(8 << 20),
                threads: 1,
                in_flight: 8,
            },
            rounds: vec![round(2.0, 4.0)],
            tally,
            registrations: Registrations::default(),
        }
    }

    /// 4 GB in so many seconds, beside a floor of memory copies.
    fn round(seconds: f64, floor: f64) -> Round {
        Round {
            window: Window { seconds, cpu: 1.0 },
            bytes: 4_000_000_000,
            floor: Some(Floor {
                kind: Kind::Memcpy,
                workers: 2,
                gb_per_s: floor,
                cpu_s_per_gib: Some(0.1),
            }),
        }
    }

    fn place() -> Place {
        Place {
            host: "h".into(),
            endpoint: "http://e".into(),
            fabric: Ok("loopback".into()),
            driver: Some("uring".into()),
            simulator: Some("s3sim".into()),
            simulated: true,
            service: None,
            memory: MemoryKind::Gpu(1),
            gpus: vec![gpus::tests::gpu()],
        }
    }

    #[test]
    fn a_simulated_result_says_so() {
        let json = json(&place(), &[run()]);
        assert_eq!(json["schema"], 1);
        let gpu = &json["host"]["gpus"][0];
        assert_eq!(
            (&gpu["index"], &gpu["numa_node"]),
            (&json!(0), &Value::Null)
        );
        let run = &json["runs"][0];
        assert_eq!(run["simulated"], true);
        assert_eq!(run["memory"], "cuda:1");
        assert_eq!(
            (&run["mode"], &run["processes"]),
            (&json!("embedded"), &json!(1))
        );
    }

    #[test]
    fn ratios_are_to_the_floor_and_processor_time_only_to_one_of_the_client() {
        let mut run = run();
        assert_eq!((run.gb_per_s(), run.vs_floor()), (2.0, Some(0.5)));
        assert_eq!(run.cpu_vs_floor(), None);
        run.rounds[0].floor = run.rounds[0].floor.map(|floor| Floor {
            kind: Kind::Recv,
            ..floor
        });
        assert!(run.cpu_vs_floor().is_some());
        run.rounds[0].floor = None;
        assert_eq!((run.vs_floor(), run.cpu_vs_floor()), (None, None));
        assert!(run.floor().is_none());
    }

    #[test]
    fn of_several_rounds_the_median_ratio_counts_not_the_ratio_of_medians() {
        let mut run = run();
        // Rates 4, 2, 1 beside floors 4, 8, 1.
        run.rounds = vec![round(1.0, 4.0), round(2.0, 8.0), round(4.0, 1.0)];
        assert_eq!((run.gb_per_s(), run.vs_floor()), (2.0, Some(1.0)));
        assert_eq!(run.floor().unwrap().gb_per_s, 4.0);
        assert_eq!(run.seconds(), 7.0);
        run.rounds.truncate(2);
        assert_eq!(run.vs_floor(), Some(0.625));
    }

    #[test]
    fn a_run_without_results_has_no_quantiles() {
        let mut empty = run();
        empty.tally = Tally::new().unwrap();
        let json = json(&place(), &[empty]);
        assert_eq!(json["runs"][0]["latency_us"], Value::Null);
        assert_eq!(json["runs"][0]["rdma_share"], Value::Null);
    }
}

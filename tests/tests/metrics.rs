//! What is counted agrees with what completions and the server say. Alone in its process, since a recorder
//! of metrics is for all of it.

use std::collections::HashMap;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use s3engine::{Get, Policy, Timeouts};
use s3engine_pool::RegisterError;
use s3engine_tests::{FailingFabric, Failure, Rig, wait_until};
use s3sim::{Action, Kind, Rule};

const KEY: &str = "300KiB-m";
const SIZE: u64 = 300 << 10;

/// Everything counted so far, by name and labels: counters and gauges by value, histograms by number.
#[derive(Default)]
struct Counted(HashMap<String, f64>);

impl Counted {
    /// Adds what has come since the last time: a snapshot takes counters and histograms away.
    fn update(&mut self, snapshotter: &Snapshotter) {
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let key = key.key();
            let mut name = key.name().to_owned();
            for label in key.labels() {
                name.push_str(&format!(" {}={}", label.key(), label.value()));
            }
            let entry = self.0.entry(name).or_default();
            match value {
                DebugValue::Counter(count) => *entry += count as f64,
                DebugValue::Gauge(gauge) => *entry = gauge.into_inner(),
                DebugValue::Histogram(values) => *entry += values.len() as f64,
            }
        }
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

#[test]
fn metrics_say_what_completions_say_and_gauges_return_to_zero() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let mut counted = Counted::default();

    let decline = Rule::new(Action::DeclineWithBody)
        .only(Kind::Rdma)
        .skip(1)
        .count(1);
    let silent = Rule::new(Action::NeverAnswer).key("*-silent");
    let busy = Rule::new(Action::SlowDown { retry_after: None })
        .only(Kind::Http)
        .count(1);
    let rig = Rig::with([decline, silent, busy], |builder, _| {
        builder.timeouts(Timeouts {
            rdma_base: Duration::from_millis(500),
            ..Timeouts::default()
        })
    });
    rig.get_whole(Policy::PreferRdma, KEY);
    rig.get_whole(Policy::PreferRdma, KEY);
    rig.get_whole(Policy::Http, KEY);
    rig.get_whole(Policy::RequireRdma, "300KiB-silent");
    rig.get(Policy::Http, Get::new("bench", "missing"));
    rig.assert_drains();

    let refused = RegisterError {
        errno: Some(12),
        text: "no".into(),
    };
    let failing = Rig::with([], |builder, folder| {
        builder.rdma(FailingFabric::of(folder, Failure::Register(refused)))
    });
    failing.get_whole(Policy::PreferRdma, KEY);
    failing.assert_drains();

    let gets = [
        ("rdma", "ok", 1.0),
        ("http", "server-declined", 1.0),
        ("http", "policy", 1.0),
        ("none", "rdma-timeout", 1.0),
        ("none", "http-error", 1.0),
        ("http", "registration-failed", 1.0),
    ];
    let gets = gets.map(|(path, reason, count)| {
        (
            format!("s3engine_gets_total path={path} reason={reason}"),
            count,
        )
    });
    let size = SIZE as f64;
    let others = [
        ("s3engine_bytes_total path=rdma reason=ok", size),
        (
            "s3engine_bytes_total path=http reason=server-declined",
            size,
        ),
        ("s3engine_bytes_total path=http reason=policy", size),
        ("s3engine_retries_total reason=http-error", 1.0),
        (
            "s3engine_registration_failures_total fabric=failing cause=errno-12",
            1.0,
        ),
        ("s3engine_get_seconds path=rdma", 1.0),
        ("s3engine_get_seconds path=none", 2.0),
        ("s3engine_quarantined_slots_total", 2.0),
        ("s3engine_in_flight_gets", 0.0),
        ("s3engine_in_flight_requests", 0.0),
        ("s3engine_in_flight_bytes", 0.0),
        ("s3engine_pool_leased_bytes", 0.0),
        ("s3engine_pool_quarantined_bytes", 0.0),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    // A gauge falls just after the completion that tells of it was taken.
    wait_until("the gauges are at rest", || {
        counted.update(&snapshotter);
        counted.get("s3engine_in_flight_gets") == 0.0
            && counted.get("s3engine_in_flight_requests") == 0.0
            && counted.get("s3engine_in_flight_bytes") == 0.0
    });
    for (name, value) in gets.into_iter().chain(others) {
        assert!(counted.0.contains_key(&name), "{name} is not counted");
        assert_eq!(counted.get(&name), value, "{name}");
    }
    assert_eq!(rig.sim.counters().rdma_read_bytes, SIZE);
}

//! What is counted agrees with what completions told, over a part of the conformance suite. Alone in its process,
//! since a recorder of metrics is for all of it.

use std::collections::HashMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use s3engine::{Path, Reason};
use s3engine_tests::conformance::{self, Embedded};

/// What was counted, by name and labels: counters and gauges.
fn counted(snapshotter: &Snapshotter) -> HashMap<String, f64> {
    let mut counted = HashMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels = key.labels().map(|label| format!(" {}", label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(_) => continue,
        };
        counted.insert(name, value);
    }
    counted
}

fn assert_same(name: &str, told: &HashMap<(Path, Reason), u64>, counted: &HashMap<String, f64>) {
    for (&(path, reason), &count) in told {
        let name = format!("{name} {path} {reason}");
        assert_eq!(counted.get(&name), Some(&(count as f64)), "{name}");
    }
    let of_name = counted.keys().filter(|key| key.starts_with(name));
    assert_eq!(of_name.count(), told.len(), "{name}: {told:?} {counted:?}");
}

#[test]
fn every_get_and_every_byte_is_counted_once_under_its_path_and_reason() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    // The host has ended when it has told.
    let told = conformance::told(&Embedded::with_loopback());
    let counted = counted(&snapshotter);
    assert_same("s3engine_gets_total", &told.gets, &counted);
    assert_same("s3engine_bytes_total", &told.bytes, &counted);
    for gauge in [
        "s3engine_in_flight_gets",
        "s3engine_in_flight_requests",
        "s3engine_pool_leased_bytes",
        "s3engine_pool_quarantined_bytes",
    ] {
        assert_eq!(counted[gauge], 0.0, "{gauge}");
    }
}

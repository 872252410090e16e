use super::*;
use crate::bench::scale::run::{Cause, Mode, Stopped};
use crate::bench::scale::sample::report;

fn of_host(name: &str, started: &str) -> Report {
    let mut report = report();
    report.hosts[0].name = name.into();
    report.started = started.into();
    for run in &mut report.runs {
        run.host = name.into();
    }
    report
}

fn two() -> [Report; 2] {
    [
        of_host("a", "2026-08-14T11:02:05Z"),
        of_host("b", "2026-08-14T13:02:06.5+02:00"),
    ]
}

#[test]
fn rows_of_each_host_stay_and_a_sum_is_added() {
    let mut parts = two();
    parts[1].runs[0].latency_us.p99 = 77_000_000;
    parts[1].runs[0].stopped = Stopped::Duration;
    let merged = merge(&parts, false).unwrap();
    let (a, b) = (&parts[0].runs, &parts[1].runs);
    assert_eq!(merged.runs[..16], a[..]);
    assert_eq!(merged.runs[16..32], b[..]);
    let sums = &merged.runs[32..];
    assert_eq!(sums.len(), 16);
    let sum = &sums[0];
    assert_eq!((&*sum.host, sum.processes), (ALL, 2));
    assert_eq!(sum.gb_per_s, a[0].gb_per_s * 2.0);
    assert_eq!(sum.bytes["rdma"], a[0].bytes["rdma"] * 2);
    assert_eq!((sum.ops, sum.latency_us.p99), (a[0].ops * 2, 77_000_000));
    assert_eq!(sum.latency_us.p50, a[0].latency_us.p50);
    assert_eq!((sum.stopped, sum.scale), (Stopped::Duration, Some(1.0)));
    assert!((sum.cpu_s_per_gib.unwrap() - 0.11).abs() < 1e-9);
    assert_eq!(sum.rdma_share_server, None);
    assert_eq!(sum.rails.keys().collect::<Vec<_>>(), ["a/lo", "b/lo"]);
    assert_eq!(sum.line_rate_gb_per_s, Some(2.0));
    let workers = |run: &Run| run.slabs.iter().map(|slab| slab.worker).max();
    assert_eq!((workers(&sums[3]), sums[3].workers.len()), (Some(15), 16));

    // The share of all bytes: of the row with eight processes, 67 % of each host's.
    assert_eq!(sums[3].rdma_share, a[3].rdma_share);
    assert_eq!(
        sums[3].fell_back["rdma-timeout"],
        a[3].fell_back["rdma-timeout"] * 2
    );
    assert_eq!((merged.hosts.len(), merged.verdicts.len()), (2, 2));
    assert_eq!(merged.verdicts[0].mode, Mode::PerProcess);
    assert_eq!(merged.verdicts[0].cause, Cause::PerClientCost);
    let evidence = &merged.verdicts[0].evidence[0];
    assert!(evidence.contains("(all hosts, 16 x 2, "), "{evidence}");
    assert_eq!(merged.started, "2026-08-14T11:02:05Z");
}

#[test]
fn shares_are_weighted_by_bytes() {
    let mut parts = two();
    for (report, (rdma, http)) in parts.iter_mut().zip([(900, 100), (0, 1000)]) {
        let bytes = [("rdma".to_owned(), rdma), ("http".to_owned(), http)];
        report.runs[0].bytes = bytes.into_iter().collect();
    }
    let merged = merge(&parts, false).unwrap();
    assert_eq!(merged.runs[32].rdma_share, Some(0.45));
}

#[test]
fn one_simulator_for_all_hosts_has_one_line_rate() {
    let mut parts = two();
    for run in parts.iter_mut().flat_map(|report| &mut report.runs) {
        run.endpoint = "http://10.0.0.5:9000".into();
    }
    let merged = merge(&parts, false).unwrap();
    assert_eq!(merged.runs[32].line_rate_gb_per_s, Some(1.0));
}

#[test]
fn what_ran_at_another_time_or_version_is_refused_unless_told() {
    let mut parts = two();
    parts[1].started = "2026-08-14T11:02:08Z".into();
    let error = merge(&parts, false).unwrap_err();
    assert!(
        error.starts_with("b began 3.0s after a, longer than the shortest window of 2.0 s"),
        "{error}"
    );
    assert!(merge(&parts, true).is_ok());
    // Where windows begin counts, not when the program began.
    for report in &mut parts {
        report.start_at = Some("2026-08-14T11:03:00Z".into());
    }
    assert!(merge(&parts, false).is_ok());
    parts[0].start_at = Some("soon".into());
    let error = merge(&parts, false).unwrap_err();
    assert!(
        error.starts_with("a: \"soon\" is no RFC 3339 time"),
        "{error}"
    );

    let mut parts = two();
    parts[1].engine.version = "0.2.0".into();
    let error = merge(&parts, false).unwrap_err();
    assert!(error.contains("versions 0.1.0 and 0.2.0"), "{error}");
    assert!(merge(&parts, true).is_ok());
}

#[test]
fn a_host_twice_and_merged_files_are_refused_whatever_is_told() {
    let [a, b] = two();
    for anyhow in [false, true] {
        let error = merge(&[a.clone(), b.clone(), a.clone()], anyhow).unwrap_err();
        assert_eq!(error, "two files are of the same host, a");
        let merged = merge(&[a.clone(), b.clone()], anyhow).unwrap();
        let error = merge(&[merged, of_host("c", &a.started)], anyhow).unwrap_err();
        assert!(error.contains("merged already"), "{error}");
    }
}

#[test]
fn cases_that_a_host_lacks_have_no_sum_and_settings_are_told_by_host() {
    let mut parts = two();
    parts[1].runs.remove(0);
    parts[1].settings.insert("rails".into(), 4.into());
    let merged = merge(&parts, false).unwrap();
    assert_eq!(merged.runs.len(), 16 + 15 + 15);
    assert_eq!(merged.runs[31].processes, 4);
    assert_eq!(merged.settings["duration"], "10s");
    assert_eq!(
        merged.settings["rails"],
        serde_json::json!({"a": null, "b": 4})
    );
}

#[test]
fn a_file_without_a_host_is_told_so() {
    let mut parts = two();
    parts[1].hosts.clear();
    let error = merge(&parts, true).unwrap_err();
    assert_eq!(
        error,
        "file 2 of those given names no host: `hosts` is empty"
    );
}

/// The files of both in a folder, and what merges them.
fn written(folder: &std::path::Path, parts: &[Report]) -> MergeArgs {
    let write = |(nth, part): (usize, &Report)| {
        let path = folder.join(format!("{nth}.json"));
        std::fs::write(&path, serde_json::to_vec(part).unwrap()).unwrap();
        path
    };
    MergeArgs {
        files: parts.iter().enumerate().map(write).collect(),
        output: folder.join("all.json"),
        html: Some(folder.join("all.html")),
        anyhow: false,
    }
}

#[test]
fn a_file_is_written_by_one_and_never_one_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let good = || written(folder.path(), &two());
    let same = MergeArgs {
        html: Some(good().output),
        ..good()
    };
    let read = MergeArgs {
        output: good().files[1].clone(),
        ..good()
    };
    for args in [same, read] {
        assert_eq!(run(&args).unwrap_err().code(), 2);
    }
    run(&good()).unwrap();
    assert_eq!(Report::read(&good().output).unwrap().hosts.len(), 2);
    assert_eq!(Report::read(&good().files[1]).unwrap(), two()[1]);
}

#[test]
fn names_in_files_are_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = two();
    for part in &mut parts {
        part.hosts[0].name = "\u{1b}[2J".into();
    }
    let error = run(&written(folder.path(), &parts)).unwrap_err();
    assert_eq!(
        error.to_string(),
        r"two files are of the same host, \u{1b}[2J"
    );
}

//! The table of `bench scale`: a line for each row, as it is measured, and the verdicts.

use std::collections::BTreeMap;

use crate::size::Size;

use super::figures;
use super::run::{Run, Stopped, Verdict};

/// Columns: heading, width, whether texts begin at the left.
const COLUMNS: [(&str, usize, bool); 16] = [
    ("mode", 11, true),
    ("policy", 12, true),
    ("procs x thr", 11, false),
    ("size", 8, false),
    ("GB/s", 6, false),
    ("+start", 6, false),
    ("scale", 5, false),
    ("RDMA", 5, false),
    ("(server)", 8, false),
    ("fell back", 20, true),
    ("p50", 8, false),
    ("p99", 8, false),
    ("small", 8, false),
    ("reg", 4, false),
    ("CPU-s/GiB", 9, false),
    ("window", 8, false),
];

/// The line of headings.
pub(crate) fn headings() -> String {
    line(&COLUMNS.map(|(heading, _, _)| heading.to_owned()))
}

/// The line of one run.
pub(crate) fn row(run: &Run) -> String {
    let share =
        |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
    let server = match run.share_differs {
        true => format!("{} !", share(run.rdma_share_server)),
        false => share(run.rdma_share_server),
    };
    let window = match run.stopped {
        Stopped::Stable => format!("{:.1} s", run.seconds),
        Stopped::Duration => format!("{:.1} s *", run.seconds),
        Stopped::Interrupted => "cut".into(),
        Stopped::WorkerLost => "lost".into(),
    };
    line(&[
        run.mode.to_string(),
        run.policy.clone(),
        format!("{} x {}", run.processes, run.threads),
        Size(run.object_size).to_string(),
        format!("{:.2}", run.gb_per_s),
        format!("{:.2}", run.gb_per_s_with_start),
        run.scale.map_or("-".into(), |scale| format!("{scale:.2}")),
        share(run.rdma_share),
        server,
        fell_back(&run.fell_back, run.ops),
        time(run.latency_us.p50),
        time(run.latency_us.p99),
        time(run.stages_us.control.p50),
        run.registrations.count.to_string(),
        run.cpu_s_per_gib
            .map_or("-".into(), |cpu| format!("{cpu:.3}")),
        window,
    ])
}

/// What the columns mean that do not say so themselves.
pub(crate) const LEGEND: &str = "\
GB/s: 10^9 bytes in the window; +start: the start of processes included; scale: against fewest processes; small: p50 of
GETs of 64 KiB at the same number in flight; (server): RDMA share by the server's counters, ! if they differ from what
completions say; window: its length, * if it did not become stable
";

/// A line for each verdict, and its evidence.
pub(crate) fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for (nth, verdict) in verdicts.iter().enumerate() {
        let lead = if nth == 0 { "verdict" } else { "" };
        text += &format!("{lead:<8} {}: {}", verdict.mode, verdict.cause.words());
        if let Some(then) = verdict.then {
            text += &format!(", then {}", then.words());
        }
        text += "\n";
        for evidence in &verdict.evidence {
            text += &format!("{:<8} - {evidence}\n", "");
        }
    }
    text
}

fn fell_back(counts: &BTreeMap<String, u64>, ops: u64) -> String {
    let mut most: Vec<_> = counts.iter().collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    match most.first() {
        None => "-".into(),
        Some((reason, _)) => {
            let all: u64 = counts.values().sum();
            let more = if most.len() > 1 { ", .." } else { "" };
            format!(
                "{:.0} % {reason}{more}",
                all as f64 * 100.0 / ops.max(1) as f64
            )
        }
    }
}

/// Microseconds, if there are any.
fn time(us: u64) -> String {
    match us {
        0 => "-".into(),
        us => figures::time(us as f64),
    }
}

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let padded = cells
        .iter()
        .zip(COLUMNS)
        .map(|(cell, (_, width, left))| match left {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
}

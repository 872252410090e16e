//! From the rows to what holds them back: one verdict for each mode. Pure.

use crate::bench::scale::figures::{count, percent, rate, row};
use crate::bench::scale::rules::{self, Finding, Series};
use crate::bench::scale::run::{Cause, Mode, Run, Stopped, Verdict};

type Rule = fn(&Series<'_>) -> Option<Finding>;

/// The first that sees something names the cause: from what shows one fault alone to what several could lead to, and
/// then to what is no fault.
const RULES: [(Cause, Rule); 8] = [
    (Cause::MemoryDistance, rules::memory_distance),
    (Cause::Registration, rules::registration),
    (Cause::PerClientCost, rules::per_client_cost),
    (Cause::ControlLatency, rules::control_latency),
    (Cause::Registration, rules::registration_in_start),
    (Cause::TimeoutFallback, rules::timeout_fallback),
    (Cause::LineRate, rules::line_rate),
    (Cause::ClientCpu, rules::client_cpu),
];

impl Cause {
    /// For people; the JSON has other names.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Cause::LineRate => "line rate",
            Cause::Registration => "registration of memory",
            Cause::ControlLatency => "control latency",
            Cause::PerClientCost => "per-client server cost",
            Cause::TimeoutFallback => "timeout fallback",
            Cause::MemoryDistance => "distance of memory from the network card",
            Cause::ClientCpu => "processors of this host",
            Cause::Undetermined => "undetermined",
        }
    }
}

/// A verdict for each mode that has rows.
pub(crate) fn judge(runs: &[Run]) -> Vec<Verdict> {
    let mut modes: Vec<Mode> = Vec::new();
    for run in runs {
        if !modes.contains(&run.mode) {
            modes.push(run.mode);
        }
    }
    modes.into_iter().map(|mode| of_mode(runs, mode)).collect()
}

fn of_mode(runs: &[Run], mode: Mode) -> Verdict {
    let series = Series::of(runs, mode);
    let mut seen = RULES.iter().filter_map(|(cause, rule)| {
        let found = series.iter().filter_map(rule);
        let strongest = found.max_by(|a, b| a.strength.total_cmp(&b.strength))?;
        Some((*cause, strongest.evidence))
    });
    let (cause, first) = match seen.next() {
        Some((cause, evidence)) => (cause, vec![evidence]),
        None => (Cause::Undetermined, looked_at(&series)),
    };
    let mut verdict = Verdict {
        mode,
        cause,
        then: None,
        evidence: first,
    };
    for (other, evidence) in seen.filter(|(other, _)| *other != cause) {
        if other == Cause::TimeoutFallback {
            verdict.then = Some(other);
            verdict.evidence.push(evidence);
        } else {
            let text = format!("also {}: {evidence}", other.words());
            verdict.evidence.push(text);
        }
    }
    let of_mode = runs.iter().filter(|run| run.mode == mode);
    verdict.evidence.extend(of_mode.filter_map(broken));
    verdict
}

/// What makes a row doubtful.
fn broken(run: &Run) -> Option<String> {
    if run.stopped == Stopped::WorkerLost {
        return Some(format!(
            "a worker ended before its time: not judged ({})",
            row(run)
        ));
    }
    if run.failed == 0 {
        return None;
    }
    let why = run.first_error.as_deref().unwrap_or("no error was kept");
    let failed = count(run.failed, "operation");
    Some(format!("{failed} failed ({}); the first: {why}", row(run)))
}

/// Where no rule sees anything: what they saw, in the series whose operations are mostly bytes.
fn looked_at(series: &[Series<'_>]) -> Vec<String> {
    let largest = series.iter().max_by_key(|one| one.fewest().object_size);
    let Some(run) = largest.map(Series::most).filter(|run| run.ops > 0) else {
        return vec!["nothing to judge: no operation ended well in any whole row".into()];
    };
    let share = |share: Option<f64>| share.map_or("not known".into(), percent);
    let line = match (rules::line_share(run), run.line_rate_gb_per_s) {
        (Some(share), Some(line)) => format!("{} of {}", percent(share), rate(line)),
        _ => "not known (--line-rate tells it)".into(),
    };
    vec![
        format!(
            "no rule sees a cause; looked at {}: {}",
            row(run),
            rate(run.gb_per_s)
        ),
        format!("share of the line rate: {line}"),
        format!(
            "of an operation, registration: {}, a small GET: {}",
            share(rules::registration_share(run)),
            share(rules::control_share(run))
        ),
        format!(
            "no answer in time: {} of operations",
            percent(rules::timeouts(run))
        ),
        format!(
            "processors busy: {}, by workers and service {}",
            percent(run.host_busy),
            percent(run.client_busy)
        ),
    ]
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;

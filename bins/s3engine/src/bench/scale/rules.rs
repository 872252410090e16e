//! What in the rows shows which cause. Pure: each rule looks at one series and says what it saw, in words.
//!
//! A row at the line rate is held back by nothing else, so that rules about rates pass it over; and time spent on a
//! busy processor is nobody's latency.

use crate::bench::scale::figures::{count, percent, rate, ratio, row, time};
use crate::bench::scale::run::{Mode, Quantiles, Run, SlabRate, Stopped};

/// Of the line rate: what framing, headers and the gaps between blocks leave of a full wire.
const LINE: f64 = 0.9;
/// Of the best row: rows at the line rate differ by less.
const STEADY: f64 = 0.8;
/// Of operations: fewer timeouts than these happen to healthy servers.
const TIMEOUTS: f64 = 0.02;
/// Of the mean operation, and of the start: memory registered once costs next to nothing.
const REGISTRATION: f64 = 0.2;
/// With the start against without: where it matters more than that, people wait for the start.
const START: f64 = 0.5;
/// Of the median operation: a large object should be mostly its bytes.
const CONTROL: f64 = 0.4;
/// Below that an operation is mostly its request on any server; 16 times what the probes read.
const LARGE: u64 = 1 << 20;
/// Seconds: as long as any window has to be before it can be stable.
const CUT: f64 = 1.0;
/// What is growth and what noise.
const GROWTH: f64 = 1.5;
/// Against fewer clients: more than this is growth.
const FLAT: f64 = 1.1;
/// Slow memory against fast.
const FAR: f64 = 0.6;
/// Of all slabs: fewer are outliers, no group.
const GROUP: f64 = 0.2;
/// Slabs of fewer operations, and rows of fewer slabs, tell nothing.
const SLAB_OPS: u64 = 3;
const SLABS: usize = 4;
/// How much of the variance of (the logarithms of) rates two groups must explain; cutting one even spread in two
/// explains three quarters.
const EXPLAINED: f64 = 0.85;
/// Of the processors, by the workers and the service alone: all that the other work of a transfer leaves.
const OWN_BUSY: f64 = 0.75;
/// Of the processors, by anybody.
const HOST_BUSY: f64 = 0.9;
/// Small GETs in a second: one processor does more, so that fewer are not its fault.
const SMALL_GETS: f64 = 500.0;
/// Of an operation's time, by threads that were ready and had no processor: its time then says nothing of the server.
const STARVED: f64 = 0.25;

/// What a rule saw.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// How much of the time or of the rate it is: compares what one rule sees in several series.
    pub(crate) strength: f64,
    pub(crate) evidence: String,
}

/// Rows that differ in their processes and threads only.
pub(crate) struct Series<'a> {
    /// By processes, fewest first. Never empty.
    pub(crate) runs: Vec<&'a Run>,
    /// The same cases in the other mode.
    pub(crate) beside: Vec<&'a Run>,
}

impl<'a> Series<'a> {
    /// The series of one mode. Rows that lack a worker's part, or were cut before they told anything, are of none.
    pub(crate) fn of(runs: &'a [Run], mode: Mode) -> Vec<Self> {
        let whole = |run: &&Run| match run.stopped {
            Stopped::WorkerLost => false,
            Stopped::Interrupted => run.seconds >= CUT,
            Stopped::Stable | Stopped::Duration => true,
        };
        let mut all: Vec<Self> = Vec::new();
        for run in runs.iter().filter(whole).filter(|run| run.mode == mode) {
            match all.iter_mut().find(|series| alike(series.runs[0], run)) {
                Some(series) => series.runs.push(run),
                None => all.push(Self {
                    runs: vec![run],
                    beside: Vec::new(),
                }),
            }
        }
        for series in &mut all {
            series.runs.sort_by_key(|run| (run.processes, run.threads));
            let first = series.runs[0];
            let others = runs.iter().filter(whole);
            let others = others.filter(|run| run.mode != mode && alike(first, run));
            series.beside = others.collect();
        }
        all
    }

    pub(crate) fn fewest(&self) -> &'a Run {
        self.runs[0]
    }

    pub(crate) fn most(&self) -> &'a Run {
        self.runs[self.runs.len() - 1]
    }

    /// The rows that something may hold back: below the line rate, and not waiting for timeouts.
    fn held_back(&self) -> impl Iterator<Item = &'a Run> {
        let free = |run: &&Run| line_share(run).is_none_or(|share| share < LINE);
        let runs = self.runs.iter().copied().filter(free);
        runs.filter(|run| timeouts(run) < TIMEOUTS)
    }

    /// The row to hold `run` against: of fewer clients, with as many operations in flight in all if there is one,
    /// else with as many threads.
    fn fewer_clients(&self, run: &Run) -> Option<&'a Run> {
        let fewer = |other: &&Run| clients(other) < clients(run);
        let fewer = || self.runs.iter().copied().filter(fewer);
        let equal_load = fewer().find(|other| streams(other) == streams(run));
        equal_load.or_else(|| fewer().find(|other| other.threads == run.threads))
    }
}

fn alike(a: &Run, b: &Run) -> bool {
    let load = |run: &Run| (run.clients_per_process, run.in_flight, run.object_size);
    let how = |run: &Run| (run.register, run.simulated);
    let texts = |a: &Run, b: &Run| {
        (&a.host, &a.policy, &a.memory, &a.model) == (&b.host, &b.policy, &b.memory, &b.model)
    };
    load(a) == load(b) && how(a) == how(b) && texts(a, b)
}

/// Clients that the server sees.
fn clients(run: &Run) -> usize {
    match run.mode {
        Mode::Shared => 1,
        Mode::PerProcess => run.processes.saturating_mul(run.clients_per_process),
    }
}

/// Operations in flight in all.
fn streams(run: &Run) -> usize {
    let queues = run.processes.saturating_mul(run.threads);
    queues.saturating_mul(run.in_flight)
}

pub(crate) fn line_share(run: &Run) -> Option<f64> {
    ratio(run.gb_per_s, run.line_rate_gb_per_s?)
}

/// The share of operations that did not get their answer in time.
pub(crate) fn timeouts(run: &Run) -> f64 {
    let of = |counts: &std::collections::BTreeMap<String, u64>| {
        counts.get("rdma-timeout").copied().unwrap_or(0)
    };
    let late = of(&run.fell_back).max(of(&run.reasons));
    let reasons = run
        .reasons
        .values()
        .fold(0, |sum: u64, n| sum.saturating_add(*n));
    ratio(late as f64, run.ops.max(reasons) as f64).unwrap_or(0.0)
}

pub(crate) fn registration_share(run: &Run) -> Option<f64> {
    ratio(run.stages_us.registration.mean, run.latency_us.mean)
}

pub(crate) fn control_share(run: &Run) -> Option<f64> {
    let control = run.stages_us.control.p50;
    ratio(control as f64, run.latency_us.p50 as f64).filter(|_| control > 0)
}

/// Whether operations wait for something else than a processor.
fn waits(run: &Run) -> bool {
    if run.cpu_wait_us >= STARVED * run.latency_us.mean {
        return false;
    }
    let small_gets = ratio(streams(run) as f64 * 1e6, run.stages_us.control.p50 as f64);
    run.host_busy < HOST_BUSY || small_gets.is_some_and(|each_second| each_second < SMALL_GETS)
}

fn strongest(findings: impl Iterator<Item = Finding>) -> Option<Finding> {
    findings.max_by(|a, b| a.strength.total_cmp(&b.strength))
}

/// Some slabs get much less than others.
pub(crate) fn memory_distance(series: &Series<'_>) -> Option<Finding> {
    let telling: Vec<_> = series
        .held_back()
        .map(|run| (run, telling_slabs(run)))
        .filter(|(_, slabs)| slabs.len() >= SLABS)
        .collect();
    let found = telling.iter().filter_map(|(run, slabs)| {
        let rates: Vec<_> = slabs.iter().map(|slab| slab.gb_per_s_per_op).collect();
        let groups = two_groups(&rates)?;
        let (slow, fast) = slabs.split_at(groups.slow);
        let in_both = |slab: &&SlabRate| fast.iter().any(|other| other.worker == slab.worker);
        // Between workers, a busy host's scheduler makes such differences as well.
        if run.host_busy >= HOST_BUSY && !slow.iter().any(in_both) {
            return None;
        }
        let evidence = format!(
            "{} of {} slabs get {} an operation, the others {} ({})",
            groups.slow,
            rates.len(),
            rate(groups.slow_mean),
            rate(groups.fast_mean),
            row(run)
        );
        let strength = 1.0 - groups.slow_mean / groups.fast_mean;
        Some(Finding { strength, evidence })
    });
    let found: Vec<_> = found.collect();
    // What is so in one row and not in most others is chance.
    let usual = found.len() * 2 >= telling.len();
    usual.then(|| strongest(found.into_iter())).flatten()
}

/// By their rates.
fn telling_slabs(run: &Run) -> Vec<&SlabRate> {
    let tells = |slab: &&SlabRate| {
        slab.ops >= SLAB_OPS && slab.gb_per_s_per_op.is_finite() && slab.gb_per_s_per_op > 0.0
    };
    let mut slabs: Vec<_> = run.slabs.iter().filter(tells).collect();
    slabs.sort_by(|a, b| a.gb_per_s_per_op.total_cmp(&b.gb_per_s_per_op));
    slabs
}

struct Groups {
    slow: usize,
    slow_mean: f64,
    fast_mean: f64,
}

/// The cut of sorted rates that explains most of their variance, if it leaves two groups apart.
fn two_groups(rates: &[f64]) -> Option<Groups> {
    let logs: Vec<_> = rates.iter().map(|rate| rate.ln()).collect();
    let variance = |part: &[f64]| {
        let mean = mean(part);
        part.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
    };
    let within = |cut: usize| variance(&logs[..cut]) + variance(&logs[cut..]);
    let best = (1..rates.len()).min_by(|a, b| within(*a).total_cmp(&within(*b)))?;
    let explained = 1.0 - ratio(within(best), variance(&logs))?;
    let (slow, fast) = rates.split_at(best);
    let least = slow.len().min(fast.len()) as f64 / rates.len() as f64;
    let apart = mean(slow) <= FAR * mean(fast);
    (explained >= EXPLAINED && least >= GROUP && apart).then(|| Groups {
        slow: best,
        slow_mean: mean(slow),
        fast_mean: mean(fast),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Operations wait for the registration of their memory.
pub(crate) fn registration(series: &Series<'_>) -> Option<Finding> {
    strongest(series.held_back().filter_map(|run| {
        let strength = registration_share(run).filter(|share| *share >= REGISTRATION)?;
        let evidence = format!(
            "registration is {} of the mean operation: {} of {} ({}; {})",
            percent(strength),
            time(run.stages_us.registration.mean),
            time(run.latency_us.mean),
            count(run.registrations.count, "registration"),
            row(run)
        );
        Some(Finding { strength, evidence })
    }))
}

/// The start waits for it, and matters.
pub(crate) fn registration_in_start(series: &Series<'_>) -> Option<Finding> {
    strongest(series.runs.iter().filter_map(|run| {
        let kept = ratio(run.gb_per_s_with_start, run.gb_per_s).filter(|kept| *kept < START)?;
        // Clients register beside each other; each waits for its own.
        let of_each = run.registrations.seconds / clients(run).max(1) as f64;
        let strength = ratio(of_each, run.start_seconds)?.min(1.0);
        let evidence = format!(
            "in the start: registration is {} of {:.1} s until all were ready ({}), and the start leaves {} of the rate ({})",
            percent(strength),
            run.start_seconds,
            count(run.registrations.count, "registration"),
            percent(kept),
            row(run)
        );
        (strength >= REGISTRATION).then_some(Finding { strength, evidence })
    }))
}

/// More clients get less in all, at a greater cost of each request.
pub(crate) fn per_client_cost(series: &Series<'_>) -> Option<Finding> {
    strongest(series.runs.iter().filter_map(|run| {
        let fewer = series.fewer_clients(run)?;
        let fall = ratio(fewer.ops_per_s, run.ops_per_s)?;
        let probed = [fewer, run].map(|run| run.stages_us.control.p50 > 0);
        let (of, what): (fn(&Run) -> &Quantiles, _) = match probed {
            [true, true] => (|run| &run.stages_us.control, "a small GET"),
            _ => (|run| &run.latency_us, "a GET"),
        };
        // At equal load: more in flight must wait longer for each other at any server.
        let load = ratio(streams(run) as f64, streams(fewer) as f64)?;
        let growth = ratio(of(run).p50 as f64, of(fewer).p50 as f64)? / load;
        let shared = series.beside.iter().find(|other| {
            run.mode == Mode::PerProcess
                && (other.processes, other.threads) == (run.processes, run.threads)
        });
        let ahead = shared.and_then(|shared| ratio(shared.ops_per_s, run.ops_per_s));
        let ahead = ahead.filter(|ahead| *ahead >= GROWTH);
        let falls = fall >= GROWTH || ahead.is_some() && fall * FLAT >= 1.0;
        if !falls || growth < GROWTH || !waits(run) {
            return None;
        }
        let mut evidence = format!(
            "time of {what} grows from {} with {} to {} with {}, {growth:.1} times as much at the same number in flight in all; operations a second go from {:.0} to {:.0} ({})",
            time(of(fewer).p50 as f64),
            count(clients(fewer) as u64, "client"),
            time(of(run).p50 as f64),
            count(clients(run) as u64, "client"),
            fewer.ops_per_s,
            run.ops_per_s,
            row(run)
        );
        if let (Some(shared), Some(_)) = (shared, ahead) {
            evidence += &format!(
                "; the same threads through one service get {:.0}",
                shared.ops_per_s
            );
        }
        let strength = 1.0 - 1.0 / fall.max(ahead.unwrap_or(1.0));
        Some(Finding { strength, evidence })
    }))
}

/// Requests take long whatever they carry, however few ask.
pub(crate) fn control_latency(series: &Series<'_>) -> Option<Finding> {
    let fewest = series.fewest();
    let run = series
        .held_back()
        .find(|run| run.processes == fewest.processes)?;
    let strength = control_share(run).filter(|share| *share >= CONTROL)?;
    if run.object_size < LARGE || !waits(run) {
        return None;
    }
    let mut evidence = format!(
        "a small GET takes {} where a whole one takes {}, already with {} ({})",
        time(run.stages_us.control.p50 as f64),
        time(run.latency_us.p50 as f64),
        match run.processes {
            1 => "1 process".to_owned(),
            number => format!("{number} processes"),
        },
        row(run)
    );
    if series.most().processes == run.processes {
        evidence += "; whether it grows with clients was not measured";
    }
    Some(Finding {
        strength: strength.min(1.0),
        evidence,
    })
}

/// Answers come too late.
pub(crate) fn timeout_fallback(series: &Series<'_>) -> Option<Finding> {
    strongest(series.runs.iter().filter_map(|run| {
        let strength = timeouts(run);
        let evidence = format!(
            "{} of operations had no answer by RDMA in time ({})",
            percent(strength),
            row(run)
        );
        (strength >= TIMEOUTS).then_some(Finding { strength, evidence })
    }))
}

/// The wire is full, and stays so with more processes.
pub(crate) fn line_rate(series: &Series<'_>) -> Option<Finding> {
    let best = series.runs.iter().copied();
    let best = best.max_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s))?;
    let stays = series.most().gb_per_s >= STEADY * best.gb_per_s;
    let strength = line_share(best).filter(|share| *share >= LINE && stays)?;
    let evidence = format!(
        "{} of {} ({}; {})",
        rate(best.gb_per_s),
        rate(best.line_rate_gb_per_s?),
        percent(strength),
        row(best)
    );
    Some(Finding { strength, evidence })
}

/// The processors of the host are busy.
pub(crate) fn client_cpu(series: &Series<'_>) -> Option<Finding> {
    strongest(series.held_back().filter_map(|run| {
        let (strength, whose) = if run.client_busy >= OWN_BUSY {
            (run.client_busy, "the workers and the service use")
        } else if run.simulated && run.host_busy >= HOST_BUSY {
            (
                run.host_busy,
                "the workers and the simulator share this host and, with all else on it, use",
            )
        } else {
            return None;
        };
        let evidence = format!(
            "{whose} {} of its processors ({})",
            percent(strength),
            row(run)
        );
        Some(Finding { strength, evidence })
    }))
}

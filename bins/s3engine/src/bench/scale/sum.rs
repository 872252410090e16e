//! Rows of several hosts that ran together, as one row. Pure.
//!
//! Rates, operations and bytes add up. Quantiles do not: the row has the worst host's, which the whole cannot exceed.

use std::collections::BTreeMap;

use crate::bench::scale::figures::ratio;
use crate::bench::scale::run::{Quantiles, Registrations, Run, SlabRate, Stages, Stopped};

/// The host of the rows that are sums.
pub(crate) const ALL: &str = "all";

/// Whether rows of two hosts are of the same case.
pub(crate) fn alike(a: &Run, b: &Run) -> bool {
    alike_but_for_processes(a, b) && a.processes == b.processes
}

fn alike_but_for_processes(a: &Run, b: &Run) -> bool {
    let load = |run: &Run| (run.threads, run.clients_per_process, run.in_flight);
    let how = |run: &Run| (run.mode, run.object_size, run.register);
    (load(a), how(a)) == (load(b), how(b)) && (&a.policy, &a.memory) == (&b.policy, &b.memory)
}

/// The row of all hosts. At least one is given.
pub(crate) fn sum(parts: &[&Run]) -> Run {
    let counts = |get: fn(&Run) -> &BTreeMap<String, u64>| add(parts, get);
    let rates = |get: fn(&Run) -> f64| parts.iter().map(|run| get(run)).sum::<f64>();
    let most = |get: fn(&Run) -> f64| parts.iter().map(|run| get(run)).fold(0.0, f64::max);
    let bytes = counts(|run| &run.bytes);
    let of_path = |path: &str| bytes.get(path).copied().unwrap_or(0);
    let moved = bytes.values().copied().fold(0, u64::saturating_add);
    let any = |get: fn(&Run) -> bool| parts.iter().any(|run| get(run));
    Run {
        host: ALL.into(),
        processes: parts
            .iter()
            .fold(0, |sum, run| sum.saturating_add(run.processes)),
        simulated: any(|run| run.simulated),
        seconds: most(|run| run.seconds),
        stopped: worst(parts),
        start_seconds: most(|run| run.start_seconds),
        gb_per_s: rates(|run| run.gb_per_s),
        gb_per_s_with_start: rates(|run| run.gb_per_s_with_start),
        ops: whole(parts, |run| run.ops),
        ops_per_s: rates(|run| run.ops_per_s),
        scale: None,
        rdma_share: ratio(of_path("rdma") as f64, moved as f64),
        // Each host saw the server's counters count all hosts: to add them up would count bytes several times.
        rdma_share_server: None,
        rdma_bytes_server: None,
        rdma_bytes_client: whole(parts, |run| run.rdma_bytes_client),
        rdma_ops_server: None,
        share_differs: false,
        rdma_clients_server: parts.iter().filter_map(|run| run.rdma_clients_server).max(),
        completions: counts(|run| &run.completions),
        reasons: counts(|run| &run.reasons),
        fell_back: counts(|run| &run.fell_back),
        bytes,
        failed: whole(parts, |run| run.failed),
        first_error: parts.iter().find_map(|run| run.first_error.clone()),
        registrations: Registrations {
            count: whole(parts, |run| run.registrations.count),
            failed: whole(parts, |run| run.registrations.failed),
            seconds: rates(|run| run.registrations.seconds),
        },
        latency_us: quantiles(parts, |run| &run.latency_us),
        first_byte_us: quantiles(parts, |run| &run.first_byte_us),
        stages_us: Stages {
            queue: quantiles(parts, |run| &run.stages_us.queue),
            registration: quantiles(parts, |run| &run.stages_us.registration),
            control: quantiles(parts, |run| &run.stages_us.control),
            transfer: quantiles(parts, |run| &run.stages_us.transfer),
        },
        cpu_s_per_gib: cpu(parts),
        host_busy: most(|run| run.host_busy),
        cpu_wait_us: most(|run| run.cpu_wait_us),
        client_busy: most(|run| run.client_busy),
        rails: rails(parts),
        slabs: slabs(parts),
        line_rate_gb_per_s: line_rate(parts),
        workers: parts.iter().flat_map(|run| run.workers.clone()).collect(),
        samples: Vec::new(),
        ..parts[0].clone()
    }
}

/// Tells each row how it scales against the one with fewest processes.
pub(crate) fn scale(rows: &mut [Run]) {
    let scales: Vec<_> = rows
        .iter()
        .map(|row| {
            let same = rows
                .iter()
                .filter(|other| alike_but_for_processes(row, other));
            let fewest = same.min_by_key(|other| other.processes)?;
            ratio(row.gb_per_s, fewest.gb_per_s)
        })
        .collect();
    for (row, scale) in rows.iter_mut().zip(scales) {
        row.scale = scale;
    }
}

fn whole(parts: &[&Run], get: fn(&Run) -> u64) -> u64 {
    parts
        .iter()
        .map(|run| get(run))
        .fold(0, u64::saturating_add)
}

fn add(parts: &[&Run], get: fn(&Run) -> &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::<String, u64>::new();
    for (name, count) in parts.iter().flat_map(|run| get(run)) {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
    sums
}

/// One that is not whole makes the sum so.
fn worst(parts: &[&Run]) -> Stopped {
    let order = [Stopped::WorkerLost, Stopped::Interrupted, Stopped::Duration];
    let of = |stopped: &Stopped| parts.iter().any(|run| run.stopped == *stopped);
    order.into_iter().find(of).unwrap_or(Stopped::Stable)
}

/// The greatest of each; means by operations.
fn quantiles(parts: &[&Run], get: fn(&Run) -> &Quantiles) -> Quantiles {
    let most = |of: fn(&Quantiles) -> u64| parts.iter().map(|run| of(get(run))).max();
    let ops = |run: &Run| run.ops as f64;
    let weighted = parts
        .iter()
        .map(|run| get(run).mean * ops(run))
        .sum::<f64>();
    Quantiles {
        p50: most(|of| of.p50).unwrap_or(0),
        p90: most(|of| of.p90).unwrap_or(0),
        p99: most(|of| of.p99).unwrap_or(0),
        max: most(|of| of.max).unwrap_or(0),
        mean: ratio(weighted, parts.iter().map(|run| ops(run)).sum()).unwrap_or(0.0),
    }
}

/// By bytes; none where a host's is not known.
fn cpu(parts: &[&Run]) -> Option<f64> {
    let bytes = |run: &Run| run.bytes.values().map(|bytes| *bytes as f64).sum::<f64>();
    let seconds = parts
        .iter()
        .map(|run| Some(run.cpu_s_per_gib? * bytes(run)));
    let seconds: Option<f64> = seconds.sum();
    ratio(seconds?, parts.iter().map(|run| bytes(run)).sum())
}

/// Rails of two hosts often have the same name.
fn rails(parts: &[&Run]) -> BTreeMap<String, u64> {
    let of = |run: &Run| -> Vec<_> {
        let named = |(rail, bytes): (&String, &u64)| (format!("{}/{rail}", run.host), *bytes);
        run.rails.iter().map(named).collect()
    };
    parts.iter().flat_map(|run| of(run)).collect()
}

/// Workers are counted on from host to host.
fn slabs(parts: &[&Run]) -> Vec<SlabRate> {
    let mut slabs = Vec::new();
    let mut before = 0_usize;
    for run in parts {
        let worker = |slab: &SlabRate| before.saturating_add(slab.worker);
        slabs.extend(run.slabs.iter().map(|slab| SlabRate {
            worker: worker(slab),
            ..*slab
        }));
        before = before.saturating_add(run.workers.len());
    }
    slabs
}

/// What all of them can take; of one simulator that all of them read from, what it gives.
fn line_rate(parts: &[&Run]) -> Option<f64> {
    let rates = parts.iter().map(|run| run.line_rate_gb_per_s);
    let own = ["127.", "localhost", "[::1]"].map(|host| format!("http://{host}"));
    let elsewhere = |run: &Run| !own.iter().any(|own| run.endpoint.starts_with(own));
    if parts.iter().any(|run| run.simulated && elsewhere(run)) {
        return rates.flatten().max_by(f64::total_cmp);
    }
    rates.sum()
}

//! From what processes said to the figures of a row.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use s3engine::Policy;

use super::args::ScaleArgs;
use super::cases::Case;
use super::load::times;
use super::measure::Measured;
use super::message::{Count, Times, Used};
use super::run::{Host, Quantiles, Run, Sample, SlabRate, Stages, WorkerRate};
use super::site::Server;

/// The figures of a row. What compares it with others is not among them.
pub(crate) fn run(
    case: &Case,
    args: &ScaleArgs,
    server: &Server,
    host: &Host,
    measured: &Measured,
) -> Run {
    let mut all = Count::default();
    for count in &measured.counts {
        all.merge(count.clone());
    }
    let seconds = all.seconds.max(1e-9);
    let bytes: u64 = all.bytes.values().sum();
    let gb = bytes as f64 / 1e9;
    let cpu = all.cpu + measured.service.as_ref().map_or(0.0, |used| used.cpu);
    let told = measured.server.as_ref().and_then(|told| told.as_ref().ok());
    let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
    let rdma = all.bytes.get("rdma").copied().unwrap_or(0);
    let probe = quantiles(&measured.probed);
    let fabric = measured.means.fabric.as_deref().ok();
    Run {
        host: host.name.clone(),
        mode: case.mode,
        processes: case.processes,
        threads: args.threads,
        clients_per_process: args.clients_per_process,
        in_flight: args.in_flight,
        object_size: case.size,
        buffer_size: case.size,
        memory: args.memory().to_string(),
        register: case.register,
        policy: case.policy.to_string(),
        endpoint: server.url.clone(),
        simulated: server.is_simulated(fabric),
        model: server.model.clone(),
        seconds: all.seconds,
        stopped: measured.stopped,
        start_seconds: measured.start_seconds,
        gb_per_s: gb / seconds,
        gb_per_s_with_start: gb / (seconds + measured.start_seconds),
        ops: all.ops,
        ops_per_s: all.ops as f64 / seconds,
        scale: None,
        rdma_share: share(rdma, bytes),
        rdma_share_server: told.and_then(|told| share(told.bytes, all.all_bytes)),
        rdma_bytes_server: told.map(|told| told.bytes),
        rdma_bytes_client: all.all_rdma_bytes,
        rdma_ops_server: told.map(|told| told.ops),
        share_differs: told.is_some_and(|told| told.bytes != all.all_rdma_bytes),
        rdma_clients_server: told.and_then(|told| told.clients),
        completions: all.paths.clone(),
        reasons: all.reasons.clone(),
        fell_back: all.fell_back.clone(),
        bytes: all.bytes.clone(),
        failed: all.failed,
        first_error: all.first_error.clone(),
        registrations: match &measured.service {
            Some(used) => used.registrations,
            None => all.registrations,
        },
        latency_us: quantiles([&all.latency]),
        first_byte_us: quantiles([&all.first_byte]),
        stages_us: Stages {
            queue: quantiles([&all.queue]),
            registration: quantiles([&all.registration]),
            control: probe,
            transfer: quantiles([&all.transfer]),
        },
        cpu_s_per_gib: (bytes > 0).then(|| cpu / (bytes as f64 / (1_u64 << 30) as f64)),
        host_busy: measured.host_busy,
        cpu_wait_us: measured.cpu_wait * 1e6 / all.ops.max(1) as f64,
        client_busy: (cpu / seconds / host.cores.max(1) as f64).min(1.0),
        rails: rails(&all, measured.service.as_ref())
            .unwrap_or_else(|| one_rail(fabric, case.policy, rdma)),
        slabs: slabs(&measured.counts),
        line_rate_gb_per_s: server.line_rate.or_else(|| host.line_rate()),
        workers: measured.counts.iter().map(worker).collect(),
        samples: samples(measured),
    }
}

/// What went by each, of a fabric that has several.
fn rails(all: &Count, service: Option<&Used>) -> Option<BTreeMap<String, u64>> {
    let rails = service.map_or(&all.rails, |used| &used.rails);
    (!rails.is_empty()).then(|| rails.clone())
}

/// Other fabrics have one rail, by their own name.
fn one_rail(fabric: Option<&str>, policy: Policy, bytes: u64) -> BTreeMap<String, u64> {
    let fabric = fabric.filter(|_| policy != Policy::Http);
    fabric
        .map(|fabric| (fabric.to_owned(), bytes))
        .into_iter()
        .collect()
}

fn slabs(counts: &[Count]) -> Vec<SlabRate> {
    let of_worker = |(worker, count): (usize, &Count)| {
        let slabs = count.slabs.iter();
        let rate = move |(&slab, &(ops, rates)): (&u32, &(u64, f64))| SlabRate {
            worker,
            slab,
            ops,
            gb_per_s_per_op: rates / ops.max(1) as f64,
        };
        slabs.map(rate).collect::<Vec<_>>()
    };
    counts.iter().enumerate().flat_map(of_worker).collect()
}

fn worker(count: &Count) -> WorkerRate {
    let bytes: u64 = count.bytes.values().sum();
    WorkerRate {
        gb_per_s: bytes as f64 / 1e9 / count.seconds.max(1e-9),
        ops: count.ops,
        p99_us: quantiles([&count.latency]).p99,
    }
}

fn samples(measured: &Measured) -> Vec<Sample> {
    let mut at_s = 0.0;
    let sample = |block: &super::steady::Block| {
        at_s += block.seconds;
        Sample {
            at_s,
            bytes: block.bytes,
            ops: block.ops,
        }
    };
    measured.blocks.iter().map(sample).collect()
}

fn quantiles<'a>(all: impl IntoIterator<Item = &'a Times>) -> Quantiles {
    let mut sum: Histogram<u64> = times();
    for one in all {
        one.add_to(&mut sum);
    }
    if sum.is_empty() {
        return Quantiles::default();
    }
    Quantiles {
        p50: sum.value_at_quantile(0.5),
        p90: sum.value_at_quantile(0.9),
        p99: sum.value_at_quantile(0.99),
        max: sum.max(),
        mean: sum.mean(),
    }
}

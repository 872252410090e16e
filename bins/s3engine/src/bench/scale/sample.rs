//! Rows that nobody measured, for tests: what a server of a given kind would do to clients that keep a number of GETs
//! in flight.

use std::collections::BTreeMap;

use serde_json::json;

use crate::bench::scale::run::*;
use crate::bench::scale::verdict;

/// What the server, the fabric and the host are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) line_gb_per_s: f64,
    /// The least time of a request.
    pub(crate) op_us: f64,
    /// Of each request, the time that the server does nothing else, for each client.
    pub(crate) client_us: f64,
    /// Of each operation, one at a time.
    pub(crate) register_us: f64,
    /// The least time of an operation into every second slab.
    pub(crate) far_us: f64,
}

/// Nothing holds back but the wire.
pub(crate) const HEALTHY: World = World {
    line_gb_per_s: 1.0,
    op_us: 300.0,
    client_us: 0.0,
    register_us: 0.0,
    far_us: 0.0,
};

pub(crate) const THREADS: usize = 2;
const IN_FLIGHT: usize = 4;

/// A row of `processes`, each with two threads of four GETs in flight.
pub(crate) fn run(world: World, mode: Mode, processes: usize, object_size: u64) -> Run {
    let streams = (processes * THREADS * IN_FLIGHT) as f64;
    let clients = if mode == Mode::Shared { 1 } else { processes };
    let one_at_a_time = world.client_us * clients as f64;
    let wire = |bytes: f64| bytes / world.line_gb_per_s / 1e3;
    // In a closed loop an operation takes the longest of: its own time, and its turn at what serves one at a time.
    let takes = |bytes: f64, own: f64, turn: f64| {
        (world.op_us + own + wire(bytes)).max(streams * wire(bytes).max(turn))
    };
    let size = object_size as f64;
    let control = takes(65_536.0, 0.0, one_at_a_time);
    let registration = streams * world.register_us;
    let near = takes(size, 0.0, one_at_a_time) + registration;
    let far = near.max(world.far_us);
    let latency = (near + far) / 2.0;
    let ops_per_s = streams * 1e6 / latency;
    let (seconds, start) = (2.0, 0.4);
    let gb_per_s = ops_per_s * size / 1e9;
    let ops = (ops_per_s * seconds) as u64;
    let slab = |at: usize| SlabRate {
        worker: at / 2 % processes,
        slab: at as u32 % 2,
        ops: 1 + ops / (2 * processes as u64),
        gb_per_s_per_op: size / 1e3 / if at.is_multiple_of(2) { near } else { far },
    };
    let one = |us: f64| Quantiles {
        p50: us as u64,
        p90: (us * 1.1) as u64,
        p99: (us * 1.3) as u64,
        max: (us * 1.7) as u64,
        mean: us,
    };
    Run {
        host: "node7".into(),
        mode,
        processes,
        threads: THREADS,
        clients_per_process: 1,
        in_flight: IN_FLIGHT,
        object_size,
        buffer_size: object_size,
        memory: "host".into(),
        register: Register::Once,
        policy: "prefer-rdma".into(),
        endpoint: "http://127.0.0.1:9000".into(),
        simulated: true,
        model: Some("none".into()),
        seconds,
        stopped: Stopped::Stable,
        start_seconds: start,
        gb_per_s,
        gb_per_s_with_start: gb_per_s * seconds / (seconds + start),
        ops,
        ops_per_s,
        scale: None,
        rdma_share: Some(1.0),
        rdma_share_server: Some(1.0),
        rdma_bytes_server: Some(ops * object_size),
        rdma_bytes_client: ops * object_size,
        rdma_ops_server: Some(ops),
        share_differs: false,
        rdma_clients_server: Some(clients as u64),
        completions: BTreeMap::from([("rdma".into(), ops)]),
        reasons: BTreeMap::from([("ok".into(), ops)]),
        fell_back: BTreeMap::new(),
        bytes: BTreeMap::from([("rdma".into(), ops * object_size)]),
        failed: 0,
        first_error: None,
        registrations: Registrations {
            count: 2 * processes as u64,
            failed: 0,
            seconds: 0.002 * processes as f64,
        },
        latency_us: one(latency),
        first_byte_us: one(control),
        stages_us: Stages {
            queue: one(latency * 0.01),
            registration: one(registration),
            control: one(control),
            transfer: one(latency * 0.99 - registration),
        },
        cpu_s_per_gib: Some(0.11),
        host_busy: 0.5,
        cpu_wait_us: 5.0,
        client_busy: 0.2,
        rails: BTreeMap::from([("lo".into(), ops * object_size)]),
        slabs: (0..2 * processes).map(slab).collect(),
        line_rate_gb_per_s: Some(world.line_gb_per_s),
        workers: vec![
            WorkerRate {
                gb_per_s: gb_per_s / processes as f64,
                ops: ops / processes as u64,
                p99_us: (latency * 1.3) as u64,
            };
            processes
        ],
        samples: vec![Sample {
            at_s: 0.1,
            bytes: ops * object_size / 20,
            ops: ops / 20,
        }],
    }
}

/// As many GETs late as given, and gone by HTTP.
pub(crate) fn late(mut run: Run, share: f64) -> Run {
    let late = (run.ops as f64 * share) as u64;
    let on_time = run.ops - late;
    run.completions = BTreeMap::from([("rdma".into(), on_time), ("http".into(), late)]);
    run.reasons = BTreeMap::from([("ok".into(), on_time), ("rdma-timeout".into(), late)]);
    run.fell_back = BTreeMap::from([("rdma-timeout".into(), late)]);
    let (rdma, http) = (on_time * run.object_size, late * run.object_size);
    run.bytes = BTreeMap::from([("rdma".into(), rdma), ("http".into(), http)]);
    let share = rdma as f64 / (rdma + http) as f64;
    (run.rdma_share, run.rdma_share_server) = (Some(share), Some(share));
    run
}

/// Both modes, 1 to 8 processes.
pub(crate) fn sweep(world: World, sizes: &[u64]) -> Vec<Run> {
    let mut runs = Vec::new();
    for mode in [Mode::PerProcess, Mode::Shared] {
        for &size in sizes {
            runs.extend([1, 2, 4, 8].map(|processes| run(world, mode, processes, size)));
        }
    }
    runs
}

/// Of a server that takes its time for each client, and is late with eight.
pub(crate) fn report() -> Report {
    let world = World {
        client_us: 9_000.0,
        ..HEALTHY
    };
    let mut runs = sweep(world, &[8 << 20, 32 << 20]);
    for run in &mut runs {
        run.model = Some("per-client-cost".into());
        if run.mode == Mode::PerProcess && run.processes == 8 {
            *run = late(run.clone(), 0.33);
        }
    }
    for first in [0, 4, 8, 12] {
        for at in first..first + 4 {
            runs[at].scale = Some(runs[at].gb_per_s / runs[first].gb_per_s);
        }
    }
    Report {
        schema: SCHEMA,
        kind: Report::KIND.into(),
        started: "2026-08-14T11:02:05Z".into(),
        start_at: None,
        interrupted: false,
        hosts: vec![Host {
            name: "node7".into(),
            cores: 256,
            memory_bytes: 2 << 40,
            kernel: "6.8.0".into(),
            devices: vec![Device {
                name: "mlx5_0".into(),
                port: 1,
                gbit_per_s: 400.0,
            }],
            gpus: Vec::new(),
        }],
        engine: Build {
            version: "0.1.0".into(),
            fabric: Some("loopback".into()),
            no_fabric: None,
            driver: Some("uring".into()),
        },
        settings: BTreeMap::from([
            ("duration".into(), json!("10s")),
            ("bucket".into(), json!("</script><b>&amp;")),
        ]),
        verdicts: verdict::judge(&runs),
        runs,
    }
}

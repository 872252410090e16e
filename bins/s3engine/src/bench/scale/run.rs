//! What `bench scale` measured, as its JSON has it (`schema` 1, see docs/bench-scale.md).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gpus::Gpu;

/// The version of the JSON.
pub(crate) const SCHEMA: u32 = 1;

/// A whole report: of one host, or merged of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// `scale`: other benches write other runs.
    pub(crate) kind: String,
    /// When it began, RFC 3339.
    pub(crate) started: String,
    /// When its first timed window was to begin, where that was asked for.
    pub(crate) start_at: Option<String>,
    /// Whether it was ended by a signal before all was measured.
    pub(crate) interrupted: bool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) engine: Build,
    /// The flags and settings that it ran with.
    pub(crate) settings: BTreeMap<String, Value>,
    pub(crate) runs: Vec<Run>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// A machine that ran workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// What the kernel lists under `/sys/class/infiniband`.
    pub(crate) devices: Vec<Device>,
    /// Reports from before there was CUDA memory have none.
    #[serde(default)]
    pub(crate) gpus: Vec<Gpu>,
}

/// A port of a network device that can do RDMA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) port: u32,
    pub(crate) gbit_per_s: f64,
}

/// The program that measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Build {
    pub(crate) version: String,
    pub(crate) fabric: Option<String>,
    /// Why there is no fabric.
    pub(crate) no_fabric: Option<String>,
    /// What brings bytes from plain sockets into memory.
    #[serde(default)]
    pub(crate) driver: Option<String>,
}

/// Who owns the memory and the connections.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// One host service, and every process a client of it.
    Shared,
    /// Each process by itself.
    PerProcess,
}

impl Mode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Shared => "shared",
            Mode::PerProcess => "per-process",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// When memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Register {
    /// When it is first used.
    Once,
    /// For each GET anew.
    PerOp,
}

/// Why a timed window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stopped {
    /// Its rate no longer changed.
    Stable,
    /// It took as long as it may.
    Duration,
    /// A signal came.
    Interrupted,
    /// A worker ended before its time; its part is missing.
    WorkerLost,
}

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
    pub(crate) mean: f64,
}

/// Where the time of an operation went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// Until it was admitted.
    pub(crate) queue: Quantiles,
    /// Until the registration of its memory was known.
    pub(crate) registration: Quantiles,
    /// What a small GET takes by the same path, at the same number in flight: the request without the bytes.
    pub(crate) control: Quantiles,
    /// From the registration to the end.
    pub(crate) transfer: Quantiles,
}

/// Registrations made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Registrations {
    pub(crate) count: u64,
    pub(crate) failed: u64,
    /// In them, all together.
    pub(crate) seconds: f64,
}

impl Registrations {
    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.failed += other.failed;
        self.seconds += other.seconds;
    }
}

/// What single operations into one slab got.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlabRate {
    /// Which worker process: from 0.
    pub(crate) worker: usize,
    pub(crate) slab: u32,
    pub(crate) ops: u64,
    /// The mean rate of one operation, once its memory was registered.
    pub(crate) gb_per_s_per_op: f64,
}

/// One worker process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerRate {
    pub(crate) gb_per_s: f64,
    pub(crate) ops: u64,
    pub(crate) p99_us: u64,
}

/// What all workers moved in one block of the timed window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Where the block ended, from the start of the window.
    pub(crate) at_s: f64,
    pub(crate) bytes: u64,
    pub(crate) ops: u64,
}

/// One case, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) host: String,
    pub(crate) mode: Mode,
    pub(crate) processes: usize,
    /// In each process.
    pub(crate) threads: usize,
    pub(crate) clients_per_process: usize,
    /// In each thread.
    pub(crate) in_flight: usize,
    pub(crate) object_size: u64,
    pub(crate) buffer_size: u64,
    pub(crate) memory: String,
    pub(crate) register: Register,
    pub(crate) policy: String,
    pub(crate) endpoint: String,
    pub(crate) simulated: bool,
    /// The simulator's model.
    pub(crate) model: Option<String>,
    /// Of the timed window.
    pub(crate) seconds: f64,
    pub(crate) stopped: Stopped,
    /// From the start of the first process to the last one's being ready.
    pub(crate) start_seconds: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) gb_per_s_with_start: f64,
    pub(crate) ops: u64,
    pub(crate) ops_per_s: f64,
    /// Against the run with fewest processes that is the same otherwise.
    pub(crate) scale: Option<f64>,
    /// The share of bytes by RDMA, as completions say.
    pub(crate) rdma_share: Option<f64>,
    /// The same as the server counted it, from before the first GET of the warm-up to after the last one.
    pub(crate) rdma_share_server: Option<f64>,
    pub(crate) rdma_bytes_server: Option<u64>,
    /// In the same time, as completions say.
    pub(crate) rdma_bytes_client: u64,
    pub(crate) rdma_ops_server: Option<u64>,
    /// Whether the server counted other bytes than completions say, though nobody else read from it.
    pub(crate) share_differs: bool,
    /// Clients that the server has seen by RDMA, in its life.
    pub(crate) rdma_clients_server: Option<u64>,
    /// Operations by path, of the timed window.
    pub(crate) completions: BTreeMap<String, u64>,
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Operations that fell back, by the reason of the first fallback.
    pub(crate) fell_back: BTreeMap<String, u64>,
    /// By path.
    pub(crate) bytes: BTreeMap<String, u64>,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) registrations: Registrations,
    pub(crate) latency_us: Quantiles,
    pub(crate) first_byte_us: Quantiles,
    pub(crate) stages_us: Stages,
    /// Processor time of workers and service, not of a simulator.
    pub(crate) cpu_s_per_gib: Option<f64>,
    /// The share of all the host's processors that was busy, whoever used them.
    pub(crate) host_busy: f64,
    /// Microseconds for each operation that threads of all these processes, a simulator's too, were ready to run and
    /// waited for a processor.
    pub(crate) cpu_wait_us: f64,
    /// The share that workers and service used.
    pub(crate) client_busy: f64,
    /// Bytes by rail.
    pub(crate) rails: BTreeMap<String, u64>,
    pub(crate) slabs: Vec<SlabRate>,
    /// The most that the way to the server can carry, where it is known.
    pub(crate) line_rate_gb_per_s: Option<f64>,
    pub(crate) workers: Vec<WorkerRate>,
    pub(crate) samples: Vec<Sample>,
}

/// What holds back the runs of one mode, and what shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) mode: Mode,
    pub(crate) cause: Cause,
    /// What the first cause leads to.
    pub(crate) then: Option<Cause>,
    pub(crate) evidence: Vec<String>,
}

/// What can hold transfers back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
    /// The wire is full: nothing is wrong.
    LineRate,
    /// Registering memory.
    Registration,
    /// What each request costs before a byte moves.
    ControlLatency,
    /// What each client costs the server.
    PerClientCost,
    /// Answers that come too late, so that bytes go by HTTP.
    TimeoutFallback,
    /// Some memory is further from the network card than other.
    MemoryDistance,
    /// The processors of this host.
    ClientCpu,
    /// None of these shows.
    Undetermined,
}

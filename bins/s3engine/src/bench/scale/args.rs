//! The flags of `bench scale`, and which of them go together.

use std::path::PathBuf;

use clap::Args;
use s3engine::Policy;

use crate::bench::memory::MemoryKind;
use crate::bench::rows::KeyTemplate;
use crate::cli::Common;
use crate::config::Settings;
use crate::exit::Failure;
use crate::size::Size;
use crate::span::Span;

use super::measure::unix_now;
use super::run::{Mode, Register};

pub(crate) const HELP: &str = "\
Each row is one case: so many worker processes start, build all they need, and read each buffer full once; they then
measure what a small GET costs, meet at a barrier, and read objects again and again. A window ends when it is stable:
when the rates of its last ten blocks (of 100 ms, or longer, with 20 operations at least) all lie within 7.5 % of their
mean; not before one second, and after --duration in any case. `docs/bench-scale.md` has the figures' definitions.

Without --endpoint everything runs on this host against a simulator, and says so. Examples:
  s3engine bench scale
  s3engine bench scale --endpoint http://aistor:9000 --procs 1,2,4,8 --threads 8 --size 64MiB,768MiB \\
    --server-metrics http://aistor-1:9000,http://aistor-2:9000 --json node7.json --html node7.html
  s3engine bench scale --model per-client-cost
  s3engine bench compare before.json after.json";

/// Read the same objects by more and more processes, with one host service and without, and say what holds them back.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ScaleArgs {
    /// Numbers of worker processes
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,2,4"
    )]
    pub(crate) procs: Vec<usize>,

    /// Threads in each process, each with a queue of its own
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) threads: usize,

    /// GETs in flight in each thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) in_flight: usize,

    /// Sizes of objects
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "1MiB,8MiB"
    )]
    pub(crate) size: Vec<Size>,

    /// shared: one host service, N clients; per-process: N engines by themselves
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "per-process,shared"
    )]
    pub(crate) mode: Vec<Mode>,

    /// Policies: require-rdma, prefer-rdma, http [default: what --rdma says, else prefer-rdma]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,

    /// Engines or sessions in each process, which its threads share
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) clients_per_process: usize,

    /// When memory is registered; per-op is for per-process rows, since a host service registers once
    #[arg(long, value_name = "WHEN", default_value = "once")]
    pub(crate) register: Register,

    /// How long the answer to an RDMA request may take before the bytes go by HTTP [as --rdma-timeout]
    #[arg(long, value_name = "TIME")]
    pub(crate) control_timeout: Option<Span>,

    /// Where the bytes land: host, or the memory of a GPU: cuda[:N], or process by process of all: cuda:all
    #[arg(long, value_name = "KIND", default_value = "host")]
    pub(crate) memory: MemoryKind,

    /// Which GPU each process has, with --memory cuda: the same one, or one each in turn
    #[arg(long, value_name = "HOW")]
    pub(crate) gpus: Option<Gpus>,

    /// Network devices to use, by name or address: the same as --rdma-device
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) rails: Vec<String>,

    /// The longest window of a row
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) duration: Span,

    /// How long a row runs before its window
    #[arg(long, value_name = "TIME", default_value = "300ms")]
    pub(crate) warmup: Span,

    /// Where the server counts its RDMA bytes (host and port, or the whole URL)
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) server_metrics: Vec<String>,

    /// What the way to the server can carry in a second, where the network devices do not say
    #[arg(long, value_name = "SIZE")]
    pub(crate) line_rate: Option<Size>,

    /// The simulator's model, by name or as a file: see `s3engine sim --help`
    #[arg(long, value_name = "NAME|FILE", default_value = "none")]
    pub(crate) model: String,

    /// Faults of the simulator (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,

    /// When the first window begins, in seconds since 1970: for several hosts at once. Every window then takes
    /// --duration, and begins --slot after the one before it
    #[arg(long, value_name = "SECONDS")]
    pub(crate) start_at: Option<f64>,

    /// From one window to the next, with --start-at [default: --duration and 20 s]
    #[arg(long, value_name = "TIME")]
    pub(crate) slot: Option<Span>,

    /// The bucket
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub(crate) bucket: String,

    /// Keys of the objects
    #[arg(long, value_name = "TEXT", default_value = "bench/{size}-{index}")]
    pub(crate) key_template: KeyTemplate,

    /// Objects of each size, read in turn
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) objects: usize,

    /// Write all figures to a file as JSON; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// In seconds.
const DAY: f64 = 86_400.0;

/// Which GPU each process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Gpus {
    /// All have the same one
    Same,
    /// Each has the next one of all
    Spread,
}

impl ScaleArgs {
    /// What memory the processes take in turn.
    pub(crate) fn memory(&self) -> MemoryKind {
        match (self.memory, self.gpus) {
            (MemoryKind::Gpu(_), Some(Gpus::Spread)) => MemoryKind::AllGpus,
            (memory, _) => memory,
        }
    }

    /// Refuses what cannot be meant, and what this build cannot do.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let numbers = [
            self.threads,
            self.in_flight,
            self.clients_per_process,
            self.objects,
        ];
        if !numbers
            .iter()
            .chain(&self.procs)
            .all(|n| (1..=4096).contains(n))
        {
            let text = "processes, threads, clients, GETs in flight and objects are numbers from 1 to 4096";
            return usage(text.into());
        }
        if self.clients_per_process > self.threads {
            return usage("--clients-per-process: more clients than threads to use them".into());
        }
        if self.size.iter().any(|size| size.0 < 1 << 10) {
            return usage("--size: objects of at least 1 KiB".into());
        }
        match (self.memory, self.gpus) {
            (MemoryKind::Host, Some(_)) => {
                let text = "--gpus says which GPU each process has: it needs --memory cuda";
                return usage(text.into());
            }
            (MemoryKind::AllGpus, Some(Gpus::Same)) => {
                return usage(
                    "--gpus same: one GPU is meant, and --memory cuda:all are all".into(),
                );
            }
            _ => {}
        }
        if self.register == Register::PerOp && !self.mode.contains(&Mode::PerProcess) {
            return usage(
                "--register per-op needs --mode per-process: a host service registers once".into(),
            );
        }
        if self.line_rate.is_some_and(|rate| rate.0 == 0) {
            return usage("--line-rate: a rate of 0 carries nothing".into());
        }
        if settings.service.is_some() {
            return usage(
                "--service: `bench scale` starts the host service that it measures".into(),
            );
        }
        if settings.endpoint.is_some() && (self.model != "none" || self.faults.is_some()) {
            return usage("--model and --faults are the simulator's: leave --endpoint out".into());
        }
        if let Err(error) = s3sim::Model::load(&self.model) {
            return usage(format!("--model: {error}"));
        }
        if self.slot.is_some() && self.start_at.is_none() {
            return usage("--slot needs --start-at".into());
        }
        match self.start_at.map(|at| at - unix_now()) {
            None | Some(0.0..=DAY) => {}
            Some(ahead) if (-DAY..0.0).contains(&ahead) => {
                return usage(format!("--start-at: that was {:.0} s ago", -ahead));
            }
            Some(_) => {
                let text =
                    "--start-at: seconds since 1970, within a day, such as $(date +%s -d '+1 min')";
                return usage(text.into());
            }
        }
        Ok(())
    }
}

//! The server of a whole bench, and the host service of a row.

use s3engine::Policy;
use tempfile::TempDir;

use crate::bench::report::Place;
use crate::bench::simulator::{Options, Simulator};
use crate::config::{FabricChoice, Settings};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::server_metrics::{Counters, Servers};
use crate::size::Size;

use super::args::ScaleArgs;
use super::cases::Case;
use super::message::Site;
use super::run::{Mode, Register};

/// No slab is smaller.
const LEAST_SLAB: u64 = 2 << 20;

/// A slab unless a setting says else.
const SLAB: u64 = 64 << 20;

/// The server that is read from.
pub(crate) struct Server {
    /// What workers are told, but for the memory.
    settings: Settings,
    pub(crate) url: String,
    pub(crate) simulator: Option<Simulator>,
    /// Where it counts.
    metrics: Servers,
    /// What the way to it carries in a second, in 10^9 bytes, if a flag or a model says so.
    pub(crate) line_rate: Option<f64>,
    pub(crate) model: Option<String>,
    /// Why the server's counters are not known, where they were asked for.
    pub(crate) untold: Option<String>,
    /// For sockets of host services, and what the loopback fabric needs.
    folder: TempDir,
}

impl Server {
    pub(crate) fn of(
        args: &ScaleArgs,
        settings: &Settings,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let mut settings = settings.clone();
        settings.rdma_timeout = args.control_timeout.or(settings.rdma_timeout);
        if !args.rails.is_empty() {
            settings.rdma_device = Some(args.rails.join(","));
        }
        let folder = tempfile::Builder::new().prefix("s3engine-bench-").tempdir();
        let folder = folder.map_err(|source| Failure::Output {
            doing: "make a folder in",
            output: std::env::temp_dir().display().to_string(),
            source,
        })?;
        let servers = Servers::of(&args.server_metrics);
        let mut metrics =
            servers.map_err(|why| Failure::Usage(format!("--server-metrics: {why}")))?;
        let (url, simulator) = match settings.endpoint.clone() {
            Some(url) => (url, None),
            None => {
                if settings.fabric != Some(FabricChoice::Off) {
                    settings.fabric = Some(FabricChoice::Loopback);
                }
                // The simulator's own; a region for another endpoint would not fit it.
                (settings.region, settings.addressing) = (None, None);
                settings.anonymous = Some(true);
                // Else the loopback folder is that of all simulators of this user.
                let loopback = folder.path().join("loopback");
                let loopback = settings.loopback_dir.get_or_insert(loopback).clone();
                let simulator = Simulator::start(
                    &Options {
                        threads: Place::cores().min(16),
                        bucket: &args.bucket,
                        loopback_dir: Some(&loopback),
                        model: Some(&args.model),
                        faults: args.faults.as_deref(),
                    },
                    interrupt,
                )?;
                metrics.add(simulator.url().to_owned());
                (simulator.url().to_owned(), Some(simulator))
            }
        };
        let mut server = Self {
            settings,
            url,
            simulator,
            metrics,
            line_rate: args.line_rate.map(|Size(bytes)| bytes as f64 / 1e9),
            model: None,
            untold: None,
            folder,
        };
        match (server.counters(), &server.simulator) {
            (None, _) => {}
            (Some(Ok(told)), _) => {
                server.model = told.model;
                server.line_rate = server.line_rate.or(told.line_rate.map(|rate| rate / 1e9));
            }
            // Without its model and its line rate its rows would say less than they must.
            (Some(Err(why)), Some(_)) => return Err(Failure::Other(why)),
            (Some(Err(why)), None) => {
                // Asked for each row, it would keep each of them waiting.
                server.metrics = Servers::default();
                server.untold = Some(why);
            }
        }
        Ok(server)
    }

    /// What GETs allow where no flag of the bench says it.
    pub(crate) fn policy(&self) -> Policy {
        self.settings.policy()
    }

    /// What the server has counted so far, where it is asked.
    pub(crate) fn counters(&self) -> Option<Result<Counters, String>> {
        (!self.metrics.is_empty()).then(|| self.metrics.read())
    }

    /// Whether what is measured is no storage system and no wire.
    pub(crate) fn is_simulated(&self, fabric: Option<&str>) -> bool {
        self.simulator.is_some() || fabric == Some("loopback")
    }

    /// What the processes of a row are told. `nth` tells its socket from others.
    pub(crate) fn site(&self, args: &ScaleArgs, case: &Case, nth: usize) -> Site {
        let memory = Memory::of(args, &self.settings, case);
        Site {
            settings: self.settings.clone(),
            url: self.url.clone(),
            socket: match case.mode {
                Mode::Shared => Some(self.folder.path().join(format!("{nth}.sock"))),
                Mode::PerProcess => None,
            },
            slab_bytes: memory.slab,
            pool_bytes: memory.pool,
        }
    }
}

/// The memory of one owner in a row.
struct Memory {
    slab: u64,
    pool: u64,
}

impl Memory {
    fn of(args: &ScaleArgs, settings: &Settings, case: &Case) -> Self {
        let per_process = (args.threads * args.in_flight) as u64;
        let (buffers, clients) = match case.mode {
            // Each engine may get all threads of its process.
            Mode::PerProcess => (per_process.div_ceil(args.clients_per_process as u64), 1),
            Mode::Shared => (
                per_process * case.processes as u64,
                (case.processes * args.clients_per_process) as u64,
            ),
        };
        let size = case.size.next_multiple_of(4096);
        let own = size.next_multiple_of(LEAST_SLAB);
        let slab = match (case.register, settings.slab_size) {
            // Registered by itself.
            (Register::PerOp, _) => own,
            (Register::Once, Some(Size(slab))) => slab.max(own),
            (Register::Once, None) => SLAB.max(own),
        };
        let slabs = buffers.div_ceil(slab / size) + clients;
        let pool = slab.saturating_mul(slabs + 2);
        Self {
            slab,
            pool: settings.pool_size.map_or(pool, |Size(size)| size),
        }
    }
}

//! What is measured against: a simulator that is started for it, an endpoint, or a host service.

use std::path::PathBuf;

use s3engine::topology::Topology;
use s3engine::{Credentials, Engine};

use crate::bench::BenchArgs;
use crate::bench::report::Place;
use crate::bench::simulator::{self, Simulator};
use crate::config::{FabricChoice, Settings};
use crate::exit::Failure;
use crate::gpus;
use crate::interrupt::Interrupt;
use crate::via::{self, Via};

/// The server that is measured against.
pub(super) struct Server {
    /// Settings, with what a simulator makes of them.
    pub(super) settings: Settings,
    pub(super) url: String,
    pub(super) credentials: Credentials,
    pub(super) simulator: Option<Simulator>,
    /// The host service that is measured, and its socket.
    pub(super) service: Option<(Engine, PathBuf)>,
    /// Threads that serve, where they are known; else as many as this host has cores.
    pub(super) threads: usize,
}

impl Server {
    pub(super) fn of(
        args: &BenchArgs,
        settings: &Settings,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let threads = Place::cores().min(16);
        // Not by default: what is measured is this program, unless that is asked for.
        if settings.service.is_some()
            && let Via::Service(engine, socket) = via::choose(settings, &args.common.settings)?
        {
            return Ok(Self {
                settings: settings.clone(),
                url: engine.endpoint().to_string(),
                credentials: Credentials::anonymous(),
                simulator: None,
                service: Some((engine, socket)),
                threads,
            });
        }
        if let Some(url) = &settings.endpoint {
            return Ok(Self {
                settings: settings.clone(),
                url: url.clone(),
                credentials: settings.credentials()?,
                simulator: None,
                service: None,
                threads,
            });
        }
        let mut settings = settings.clone();
        if settings.fabric != Some(FabricChoice::Off) {
            settings.fabric = Some(FabricChoice::Loopback);
        }
        // The simulator's own; a region for another endpoint would not fit it.
        (settings.region, settings.addressing) = (None, None);
        let folder = settings.loopback_dir.as_deref();
        let options = simulator::Options {
            threads,
            bucket: &args.bucket,
            loopback_dir: folder,
            model: None,
            faults: None,
        };
        let simulator = Simulator::start(&options, interrupt)?;
        let credentials = if settings.anonymous == Some(true) {
            Credentials::anonymous()
        } else {
            Simulator::credentials().map_err(|error| Failure::Other(error.to_string()))?
        };
        Ok(Self {
            settings,
            url: simulator.url().to_owned(),
            credentials,
            simulator: Some(simulator),
            service: None,
            threads,
        })
    }

    pub(super) fn place(&self, args: &BenchArgs, engine: &Engine) -> Place {
        let host = rustix::system::uname();
        let loopback = self.settings.fabric == Some(FabricChoice::Loopback)
            || engine.fabric() == Ok("loopback");
        Place {
            host: host.nodename().to_string_lossy().into_owned(),
            endpoint: engine.endpoint().to_string(),
            fabric: engine.fabric().map(str::to_owned).map_err(str::to_owned),
            driver: engine.driver().map(ToString::to_string),
            simulator: self.simulator.as_ref().map(|_| {
                format!(
                    "s3sim, a child process on this host with {} threads",
                    self.threads
                )
            }),
            simulated: self.simulator.is_some() || loopback,
            service: self
                .service
                .as_ref()
                .map(|(_, socket)| socket.display().to_string()),
            memory: args.memory,
            // Where there is no CUDA there are none.
            gpus: gpus::seen(&Topology::read()).unwrap_or_default(),
        }
    }
}

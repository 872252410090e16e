//! What the suite holds to its rules: hosts. A new host, or an engine with a new fabric, implements [`Host`].

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::Duration;

use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{ConnectOptions, Engine, Limits, Memory, PoolOptions, Rdma, Timeouts};
use s3sim::{Sim, SimOptions};
use tempfile::TempDir;

use crate::rig::{PATIENCE, credentials, cufile, loopback, quick_builder, s3rdma};
use crate::{FailingFabric, Failure};

/// What a host knows of fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricIs {
    /// Switched off.
    Off,
    /// Looked for, and not there.
    NotFound,
    /// There, and cannot start.
    Broken,
    /// Ready to move bytes.
    Ready,
}

/// How long a host waits for servers that say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tempo {
    /// Not long: silence is a fault of the case.
    Brisk,
    /// Longer than any case takes.
    Patient,
}

/// Bytes of one request, by HTTP and by RDMA.
pub const PART: u64 = 64 << 10;
/// Smaller GETs go by HTTP where the policy leaves the choice.
pub const THRESHOLD: u64 = 8 << 10;
/// How long a brisk host waits for an answer.
pub const SILENCE: Duration = Duration::from_millis(1500);
/// Longer than a brisk host waits, with room for a slow machine.
pub const LATE: Duration = Duration::from_millis(3500);

/// A simulator, and what a host must know to serve GETs from it.
pub struct Site {
    /// The server.
    pub sim: Sim,
    /// How patient the host is to be.
    pub tempo: Tempo,
    /// What is to go wrong in its fabric.
    pub failure: Option<Failure>,
    folder: TempDir,
}

impl Site {
    /// A simulator with a folder of its own for the loopback fabric.
    pub fn new(tempo: Tempo, failure: Option<Failure>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = SimOptions {
            threads: 2,
            loopback_folder: Some(folder.path().join("loopback")),
            ..SimOptions::default()
        };
        let sim = Sim::start(options).expect("the simulator starts");
        Self {
            sim,
            tempo,
            failure,
            folder,
        }
    }

    /// Where the loopback fabric's sockets are.
    pub fn fabric_folder(&self) -> PathBuf {
        self.folder.path().join("loopback")
    }

    /// For files of the host's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The bounds of a request.
    pub fn timeouts(&self) -> Timeouts {
        let wait = match self.tempo {
            Tempo::Brisk => SILENCE,
            Tempo::Patient => PATIENCE,
        };
        Timeouts {
            first_byte: wait,
            stall: wait,
            rdma_base: wait,
            rdma_min_rate: 1 << 30,
            ..Timeouts::default()
        }
    }

    /// A pool with room for a whole batch of cases, twice.
    pub fn pool(&self) -> PoolOptions {
        PoolOptions {
            slab_bytes: 4 << 20,
            max_bytes: Some(160 << 20),
            max_cuda_bytes: Some(160 << 20),
            // Cases are judged by what they do, not by how fast a busy machine confirms.
            revoke_timeout: Duration::from_secs(10),
            ..PoolOptions::default()
        }
    }
}

/// A host that runs.
pub struct Running {
    /// Its engine, or the client's end of one.
    pub engine: Engine,
    /// What must live as long as the engine: the service's process, for one.
    pub keep: Box<dyn Any>,
}

/// Somebody who carries out GETs.
pub trait Host: Sync {
    /// As a line about a case names it.
    fn name(&self) -> &str;

    /// What its engines know of fabrics.
    fn fabric(&self) -> FabricIs;

    /// Where its callers have their buffers.
    fn memory(&self) -> Memory {
        Memory::Host
    }

    /// Starts it over a site, with parts of [`PART`] bytes and the threshold [`THRESHOLD`]. `None`: it cannot
    /// break its fabric as the site asks.
    fn start(&self, site: &Site) -> Option<Running>;
}

/// The engine in the caller's own process.
pub struct Embedded {
    name: &'static str,
    fabric: FabricIs,
    rdma: Box<dyn Fn(&Site) -> Rdma + Send + Sync>,
    /// Whether it can break its fabric as a site asks.
    can_fail: bool,
}

impl Embedded {
    /// With the loopback fabric.
    pub fn with_loopback() -> Self {
        Self {
            name: "embedded loopback",
            fabric: FabricIs::Ready,
            rdma: Box::new(|site| match &site.failure {
                None => Rdma::Loopback(loopback(&site.fabric_folder())),
                Some(failure) => FailingFabric::of(&site.fabric_folder(), failure.clone()),
            }),
            can_fail: true,
        }
    }

    /// With the fabric of MinIO's library, over a stand-in for that.
    pub fn with_s3rdma() -> Self {
        Self {
            name: "embedded s3rdma",
            fabric: FabricIs::Ready,
            rdma: Box::new(|site| {
                let library = s3rdma_standin::copied(site.folder());
                s3rdma(&library.loopback(&site.fabric_folder()), &["mlx5_0"])
            }),
            can_fail: false,
        }
    }

    /// With the fabric of NVIDIA's library, over a stand-in for that, which the program `prober` tries.
    pub fn with_cufile(prober: &str) -> Self {
        let prober = prober.to_owned();
        Self {
            name: "embedded cufile",
            fabric: FabricIs::Ready,
            rdma: Box::new(move |site| {
                let library = cufile_standin::copied(site.folder());
                cufile(&library.loopback(&site.fabric_folder()), &prober)
            }),
            can_fail: false,
        }
    }

    /// Looking for a fabric where there is none.
    pub fn without_fabric() -> Self {
        Self {
            name: "embedded without a fabric",
            fabric: FabricIs::NotFound,
            rdma: Box::new(|_| Rdma::FirstOf(Vec::new())),
            can_fail: false,
        }
    }

    /// With fabrics switched off.
    pub fn switched_off() -> Self {
        Self {
            name: "embedded with RDMA off",
            fabric: FabricIs::Off,
            rdma: Box::new(|_| Rdma::Off),
            can_fail: false,
        }
    }

    /// With a fabric that cannot start.
    pub fn with_broken_fabric() -> Self {
        Self {
            name: "embedded with a broken fabric",
            fabric: FabricIs::Broken,
            rdma: Box::new(|site| {
                let file = site.folder().join("file");
                std::fs::write(&file, "a file where a folder should be").expect("a file");
                Rdma::Loopback(loopback(&file))
            }),
            can_fail: false,
        }
    }
}

impl Host for Embedded {
    fn name(&self) -> &str {
        self.name
    }

    fn fabric(&self) -> FabricIs {
        self.fabric
    }

    fn start(&self, site: &Site) -> Option<Running> {
        if site.failure.is_some() && !self.can_fail {
            return None;
        }
        let limits = Limits {
            requests: 1024,
            ..Limits::default()
        };
        let sim = &site.sim;
        let builder = quick_builder(&sim.url())
            .credentials(credentials(sim.access_key(), sim.secret_key()))
            .rdma((self.rdma)(site))
            .pool(site.pool())
            .timeouts(site.timeouts())
            .limits(limits)
            .part_sizes(PART, PART)
            .rdma_threshold(THRESHOLD);
        Some(Running {
            engine: builder.build().expect("the engine starts"),
            keep: Box::new(()),
        })
    }
}

/// A client of the host service, which has such an engine.
pub struct Served {
    name: &'static str,
    engine: Embedded,
}

impl Served {
    /// By a service with the loopback fabric.
    pub fn with_loopback() -> Self {
        Self {
            name: "served loopback",
            engine: Embedded::with_loopback(),
        }
    }

    /// By a service with the fabric of MinIO's library.
    pub fn with_s3rdma() -> Self {
        Self {
            name: "served s3rdma",
            engine: Embedded::with_s3rdma(),
        }
    }

    /// By a service with the fabric of NVIDIA's library.
    pub fn with_cufile(prober: &str) -> Self {
        Self {
            name: "served cufile",
            engine: Embedded::with_cufile(prober),
        }
    }

    /// By a service that has no fabric.
    pub fn without_fabric() -> Self {
        Self {
            name: "served without a fabric",
            engine: Embedded::without_fabric(),
        }
    }
}

impl Host for Served {
    fn name(&self) -> &str {
        self.name
    }

    fn fabric(&self) -> FabricIs {
        self.engine.fabric()
    }

    fn start(&self, site: &Site) -> Option<Running> {
        let owner = self.engine.start(site)?;
        let socket = site.folder().join("service").join("s3engine.sock");
        let options = ServiceOptions {
            socket: socket.clone(),
            endpoints: vec![("main".to_owned(), owner.engine.clone())],
            allow: Vec::new(),
            rules: Vec::new(),
            client_headers: Vec::new(),
            caps: Caps {
                slab_bytes: 4 << 20,
                ..Caps::default()
            },
        };
        let service = Service::start(options).expect("the service starts");
        let client = Engine::connect(&socket, ConnectOptions::default());
        Some(Running {
            engine: client.expect("the service is there"),
            keep: Box::new((service, owner.keep)),
        })
    }
}

/// A host whose callers have their buffers in the memory of the first CUDA device.
pub struct IntoCuda<H> {
    name: String,
    host: H,
}

impl<H: Host> IntoCuda<H> {
    /// Otherwise as that host.
    pub fn new(host: H) -> Self {
        let name = format!("{} into CUDA", host.name());
        Self { name, host }
    }
}

impl<H: Host> Host for IntoCuda<H> {
    fn name(&self) -> &str {
        &self.name
    }

    fn fabric(&self) -> FabricIs {
        self.host.fabric()
    }

    fn memory(&self) -> Memory {
        Memory::cuda(0).expect("a CUDA device")
    }

    fn start(&self, site: &Site) -> Option<Running> {
        self.host.start(site)
    }
}

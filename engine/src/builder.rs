//! How an engine is described, checked and started.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use s3engine_pool::topology::Topology;
use s3engine_pool::{FabricId, Memory, Pool, PoolError, PoolOptions, Process, Registrar};
use s3engine_s3::Policy;
use s3engine_s3::checksum::Mode;
use s3engine_s3::credentials::Credentials;
use s3engine_s3::endpoint::Endpoint;
use s3engine_s3::fabric::Fabric;
use s3engine_s3::network::{Network, TlsError};
use s3engine_s3::open_files;
use s3engine_s3::rdma::Queued;
use s3engine_s3::retry::{RetryBudget, RetryPolicy};
use s3engine_s3::timeouts::Timeouts;
use s3engine_s3::upstream::Upstream;
use tokio_util::sync::CancellationToken;

use crate::driver::{ChosenDriver, Driver};
use crate::engine::{Core, Engine, Inner};
use crate::fabrics::{self, Rdma};
use crate::in_flight::{InFlight, Limits};
use crate::open::Objects;
use crate::report::Warnings;
use crate::route::FabricState;
use crate::service::Access;
use crate::tenant::Tenant;
use crate::worker::Workers;

/// Where an engine's threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On a host of several NUMA nodes spread over them, so that bytes are received near to the memory that they are
    /// for. On other hosts wherever the kernel has them run.
    #[default]
    Auto,
    /// Wherever the kernel has them run.
    Off,
}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The pool's settings or memory.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The engine beside which it was to be built is a client of the host service.
    #[error("only an engine of this process has memory that another one can share")]
    Beside,
    /// TLS cannot be spoken as asked for.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// io_uring is asked for, and cannot be used.
    #[error("io_uring cannot be used: {0}")]
    Driver(#[source] io::Error),
    /// A thread could not be started.
    #[error("starting the engine's threads: {0}")]
    Threads(#[source] io::Error),
    /// A setting outside its range.
    #[error("{setting} is {value}, which is not between {least} and {most}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
}

/// Describes an [`Engine`].
#[must_use = "call build to start the engine"]
pub struct EngineBuilder {
    endpoint: Endpoint,
    credentials: Credentials,
    pool: PoolOptions,
    rdma: Rdma,
    policy: Policy,
    checksum: Mode,
    limits: Limits,
    adaptive: bool,
    timeouts: Timeouts,
    retry: RetryPolicy,
    deadline: Duration,
    rdma_threshold: u64,
    http_part: u64,
    rdma_part: u64,
    threads: Option<usize>,
    placement: Placement,
    driver: Option<Driver>,
    network: Network,
    beside: Option<Engine>,
    ready: Vec<(Memory, u64)>,
}

impl EngineBuilder {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            credentials: Credentials::anonymous(),
            pool: PoolOptions::default(),
            rdma: Rdma::Auto,
            policy: Policy::default(),
            checksum: Mode::default(),
            limits: Limits::default(),
            adaptive: true,
            timeouts: Timeouts::default(),
            retry: RetryPolicy::default(),
            // Longer than any transfer that still moves should take; a bound against the unforeseen.
            deadline: Duration::from_secs(3600),
            rdma_threshold: 64 << 10,
            http_part: 8 << 20,
            rdma_part: 256 << 20,
            threads: None,
            placement: Placement::default(),
            driver: None,
            network: Network::default(),
            beside: None,
            ready: Vec::new(),
        }
    }

    /// Who signs the requests. Nobody, by default.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// The pool of memory.
    pub fn pool(mut self, options: PoolOptions) -> Self {
        self.pool = options;
        self
    }

    /// The fabric.
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// What GETs allow that say nothing themselves.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// What GETs ask of the object's checksum that say nothing themselves. When offered, by default.
    pub fn checksum(mut self, mode: Mode) -> Self {
        self.checksum = mode;
        self
    }

    /// How much may be under way at once.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the endpoint is given fewer requests than the limits allow while it refuses them, or while fewer bring
    /// as much, and more again afterwards. It is, by default.
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// How long the phases of a request may take.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// When and how often a request is tried again.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// How long a GET may take that says nothing itself, everything included. One hour by default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Under `prefer-rdma`, GETs of fewer bytes go by HTTP. 64 KiB by default.
    pub fn rdma_threshold(mut self, bytes: u64) -> Self {
        self.rdma_threshold = bytes;
        self
    }

    /// Bytes of one request by HTTP and by RDMA. 8 MiB and 256 MiB by default.
    pub fn part_sizes(mut self, http: u64, rdma: u64) -> Self {
        (self.http_part, self.rdma_part) = (http, rdma);
        self
    }

    /// Threads that move bytes, and as many again that serve queues, GETs of up to 256 KiB and a share of the larger ones.
    /// As many as there are processors, at most 16, by default.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Where those threads run.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// What brings bytes from plain sockets into memory. io_uring where it can be used, and epoll elsewhere, by default.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// How the servers are reached: trust, proxies, where connections begin.
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Uses the memory, the fabric, the limits and the driver of an engine of this process, for another endpoint: a host
    /// has one owner of memory, and bounds what is under way as a whole. What was said to [`pool`](Self::pool),
    /// [`rdma`](Self::rdma), [`limits`](Self::limits) and [`driver`](Self::driver) is not used then.
    pub fn beside(mut self, engine: &Engine) -> Self {
        self.beside = Some(engine.clone());
        self
    }

    /// Has so many bytes of this memory made, and registered with the fabric, before the engine is there: several slabs at
    /// once. Nothing, by default: memory is made and registered as it is asked for.
    pub fn ready(mut self, memory: Memory, bytes: u64) -> Self {
        self.ready.push((memory, bytes));
        self
    }

    /// Starts the engine.
    pub fn build(self) -> Result<Engine, BuildError> {
        self.check()?;
        let upstream = Upstream::new(self.endpoint, self.credentials, self.timeouts, self.network)?;
        let threads = self.threads.unwrap_or_else(|| {
            thread::available_parallelism()
                .map_or(1, usize::from)
                .min(16)
        });
        let shared = match &self.beside {
            Some(engine) => Shared::of(&engine.embedded().ok_or(BuildError::Beside)?.core),
            None => {
                let driver = ChosenDriver::find(self.driver).map_err(BuildError::Driver)?;
                Shared::new(self.rdma, self.pool, self.limits, driver)?
            }
        };
        let Shared {
            fabric,
            fabric_state,
            fabric_detail,
            pool,
            in_flight,
            driver,
        } = shared;
        for (memory, bytes) in self.ready {
            let ready = pool.prepare(memory, bytes)?;
            tracing::info!(%memory, ?ready, "memory is ready");
        }
        let nodes = match self.placement {
            Placement::Auto => Topology::read().usable_nodes(),
            Placement::Off => Vec::new(),
        };
        let (workers, posts) = Workers::new(threads, &nodes);
        let share = in_flight.share(NonZeroU32::MIN, Limits::NONE);
        if self.adaptive {
            in_flight.adapt(&upstream.endpoint().to_string());
        }
        let core = Core {
            process: Process::current(),
            upstream,
            retry: self.retry,
            retry_budget: RetryBudget::new(self.retry.budget),
            fabric,
            pool: pool.clone(),
            fabric_state,
            fabric_detail,
            policy: self.policy,
            checksum: self.checksum,
            deadline: self.deadline,
            rdma_threshold: self.rdma_threshold,
            http_part: self.http_part,
            rdma_part: self.rdma_part,
            tenant: Tenant::new(None, pool, share, Access::All, None),
            in_flight,
            queued: Queued::default(),
            warnings: Warnings::default(),
            objects: Objects::new(),
            workers,
            driver,
            stop: CancellationToken::new(),
        };
        Ok(Engine::from_inner(
            Inner::start(core, posts).map_err(BuildError::Threads)?,
        ))
    }

    fn check(&self) -> Result<(), BuildError> {
        let within = |setting, value: u64, least, most| {
            let fine = (least..=most).contains(&value);
            fine.then_some(()).ok_or(BuildError::Setting {
                setting,
                value,
                least,
                most,
            })
        };
        within("the HTTP part size", self.http_part, 64 << 10, 5 << 30)?;
        within(
            "the RDMA part size",
            self.rdma_part,
            64 << 10,
            u64::from(u32::MAX),
        )?;
        let times = self.timeouts;
        for (setting, time) in [
            ("the connect timeout in seconds", times.connect),
            ("the first-byte timeout in seconds", times.first_byte),
            ("the stall timeout in seconds", times.stall),
            ("the RDMA timeout in seconds", times.rdma_base),
            ("the longest backoff in seconds", self.retry.cap),
        ] {
            within(setting, time.as_secs(), 0, 86_400)?;
        }
        within(
            "the number of attempts",
            self.retry.max_attempts.into(),
            1,
            1000,
        )?;
        within("the bytes of a stall", times.stall_bytes, 0, 1 << 30)?;
        within(
            "the number of threads",
            self.threads.unwrap_or(1) as u64,
            1,
            1024,
        )?;
        within(
            "the number of requests in flight",
            self.limits.requests as u64,
            1,
            1 << 20,
        )?;
        within(
            "the number of bytes in flight",
            self.limits.bytes,
            1 << 20,
            1 << 43,
        )?;
        within(
            "the deadline in seconds",
            self.deadline.as_secs().max(1),
            1,
            365 * 86_400,
        )
    }
}

/// What engines beside each other have together.
struct Shared {
    fabric: Option<(Arc<dyn Fabric>, FabricId)>,
    fabric_state: FabricState,
    fabric_detail: String,
    pool: Pool,
    in_flight: InFlight,
    driver: ChosenDriver,
}

impl Shared {
    fn new(
        rdma: Rdma,
        pool: PoolOptions,
        limits: Limits,
        driver: ChosenDriver,
    ) -> Result<Self, BuildError> {
        let found = fabrics::find(rdma);
        let registrars = found
            .fabric
            .iter()
            .map(|fabric| Arc::clone(fabric) as Arc<dyn Registrar>)
            .collect();
        let pool = Pool::with_fabrics(pool, registrars)?;
        if found.fabric.is_none() {
            tracing::info!(detail = found.detail, "no fabric");
        }
        Ok(Self {
            fabric: found.fabric.zip(pool.fabric(0)),
            fabric_state: found.state,
            fabric_detail: found.detail,
            pool,
            in_flight: InFlight::new(Limits {
                requests: affordable(limits.requests),
                ..limits
            }),
            driver,
        })
    }

    fn of(core: &Core) -> Self {
        Self {
            fabric: core.fabric.clone(),
            fabric_state: core.fabric_state,
            fabric_detail: core.fabric_detail.clone(),
            pool: core.pool.clone(),
            in_flight: core.in_flight.beside(),
            driver: core.driver.clone(),
        }
    }
}

/// Each request has a connection, and each connection is an open file.
fn affordable(requests: usize) -> usize {
    let connections = open_files::connections();
    if requests > connections {
        tracing::warn!(
            requests,
            connections,
            "the limit of open files allows fewer requests: raise it (ulimit -n, LimitNOFILE)"
        );
    }
    requests.min(connections)
}

//! MinIO's `libs3rdma`: dynamically connected transport to servers that speak the token protocol.
//!
//! ```text
//! slab segment ── register ──> the rail nearest to it ── token ──> request from the rail's address
//!                              (another one, once, when that is down)
//! ```
//!
//! - One client of the library for each rail, since a client of several chooses the rail by itself, and not by where
//!   the memory is.
//! - A segment is registered by one rail; segments that are near to several spread over them. Another rail registers
//!   it when that one is down: once, and not for each request.
//! - Each rail's calls are made by two threads of its own: one registers, which takes long, one makes tokens.
//! - The library registers through `nvidia_peermem` only, so that device memory has to be of cuMemAlloc.

mod library;
mod rail;
mod segment;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use s3engine_pool::cuda::CudaKind;
use s3engine_pool::topology::{Relation, Topology};
use s3engine_pool::{
    Process, RegisterError, Registrar, RegistrationHandle, RevokeError, Segment as PoolSegment,
};

use self::library::Library;
use self::rail::{Device, RailClient};
use self::segment::Segment;
use super::probe::{self, Depth, Vendor};
use super::{Fabric, Named, Naming, OpenError, Rail, TokenError, Transfer, named};

/// What a token can say, and the library refuses more.
const LIMIT: u64 = u32::MAX as u64;

/// How the fabric starts.
#[derive(Clone, Debug)]
pub struct S3rdmaOptions {
    /// The library, where it is not to be found by its name.
    pub file: Option<PathBuf>,
    /// Names or addresses of the devices to use. All with a port that is up, where none is named.
    pub devices: Vec<String>,
    /// The program that tries the library first: one that answers to `probe-library`, as `s3engine` does. By default this
    /// program if it is `s3engine`, else one of that name beside it or on the path; where there is none, the library is
    /// loaded untried.
    pub prober: Option<PathBuf>,
    /// How long a call into the library may take, and trying it.
    pub call_timeout: Duration,
    /// How long a rail that the library thinks broken is not used.
    pub cool_down: Duration,
}

impl Default for S3rdmaOptions {
    fn default() -> Self {
        Self {
            file: None,
            devices: Vec::new(),
            prober: None,
            call_timeout: Duration::from_secs(10),
            cool_down: Duration::from_secs(30),
        }
    }
}

/// The version of a library.
pub(super) fn version(library: Option<&Path>) -> Result<String, OpenError> {
    Ok(Library::load(library)?.version().to_owned())
}

/// The fabric.
#[derive(Debug)]
pub struct S3rdma {
    vendor: &'static Library,
    topology: Topology,
    rails: Arc<[RailClient]>,
    segments: DashMap<u64, Arc<Segment>>,
    next: AtomicU64,
    process: Process,
}

impl S3rdma {
    /// Loads the library, once it has been tried in a process of its own, and starts a client for each rail. Rails that
    /// do not start are left out, and told; at least one must.
    pub fn open(options: &S3rdmaOptions) -> Result<Self, OpenError> {
        let prober = options.prober.clone().or_else(probe::find_prober);
        if let Some(prober) = prober {
            // Only how that ends counts: on the devices that are asked for it may start all the same.
            let what = (Vendor::S3rdma, Depth::Host);
            let library = options.file.as_deref();
            probe::tried(&prober, what, library, options.call_timeout)?;
        }
        Self::open_untried(options)
    }

    /// The same, of a library that may do anything.
    pub(super) fn open_untried(options: &S3rdmaOptions) -> Result<Self, OpenError> {
        let library = Library::load(options.file.as_deref())?;
        let topology = Topology::read();
        let devices = devices(&options.devices, &topology);
        let mut rails = Vec::new();
        let mut refused = Vec::new();
        for device in devices {
            let name = Arc::clone(&device.name);
            match RailClient::start(library, device, options) {
                Ok(rail) => rails.push(rail),
                Err(why) => {
                    tracing::warn!(
                        fabric = "s3rdma",
                        rail = &*name,
                        why,
                        "the rail is not used"
                    );
                    refused.push(format!("{name}: {why}"));
                }
            }
        }
        if rails.is_empty() {
            let text = format!(
                "libs3rdma {} starts on no device: {}",
                library.version(),
                refused.join("; ")
            );
            return Err(OpenError::Failed { text });
        }
        Ok(Self {
            vendor: library,
            topology,
            rails: rails.into(),
            segments: DashMap::new(),
            // Processes that start together do not all begin with the same rail.
            next: AtomicU64::new(rand::random::<u16>().into()),
            process: Process::current(),
        })
    }

    /// The library's version.
    pub fn version(&self) -> &str {
        self.vendor.version()
    }

    /// The rails that memory is to be registered by, the best first: up, near, and not the same for all that are
    /// equally near each time, as the turn has it.
    fn order(&self, segment: &PoolSegment<'_>, turn: u64) -> Vec<usize> {
        let gpu = segment.cuda.map(|memory| memory.gpu().pci());
        let gpu = gpu.and_then(|address| Some(self.topology.device(address.parse().ok()?)));
        let distance = |rail: &RailClient| {
            let nic = rail.pci(&self.topology);
            let both = gpu.as_ref().zip(nic.as_ref());
            let relation = both.map(|(gpu, nic)| self.topology.relation(gpu, nic));
            relation.unwrap_or(Relation::Unknown)
        };
        let count = self.rails.len();
        let turn = turn as usize % count;
        let mut order: Vec<_> = (0..self.rails.len()).collect();
        order.sort_by_cached_key(|&nth| {
            let rail = &self.rails[nth];
            let after = (nth + count - turn) % count;
            (rail.is_down().is_some(), distance(rail), after)
        });
        order
    }

    async fn name(
        &self,
        segment: Arc<Segment>,
        address: u64,
        len: u64,
    ) -> Result<Named, TokenError> {
        let mut whys = Vec::new();
        for &nth in &segment.order {
            let rail = &self.rails[nth];
            if let Some(why) = rail.is_down() {
                whys.push(format!("{}: {why}", rail.name()));
                continue;
            }
            if let Err(why) = segment.be_registered_by(nth, rail).await {
                whys.push(format!("{}: {why}", rail.name()));
                continue;
            }
            return rail.token(&segment, address, len).await;
        }
        Err(TokenError::RailDown {
            text: format!("no rail can be used: {}", whys.join("; ")),
        })
    }
}

/// The devices that were named, or all that are up, or what the library chooses by itself where none is seen.
fn devices(wanted: &[String], topology: &Topology) -> Vec<Device> {
    let named = wanted.iter().map(|name| Device::named(name));
    let mut devices: Vec<_> = named.collect();
    if devices.is_empty() {
        let up = topology.nics.iter().filter(|nic| nic.is_up());
        devices = up.map(|nic| Device::named(&nic.name)).collect();
    }
    if devices.is_empty() {
        devices.push(Device::any());
    }
    devices
}

impl Registrar for S3rdma {
    fn name(&self) -> &'static str {
        "s3rdma"
    }

    fn segment_limit(&self) -> u64 {
        LIMIT
    }

    fn cuda_kind(&self) -> CudaKind {
        CudaKind::Legacy
    }

    fn register(&self, segment: PoolSegment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let order = self.order(&segment, handle);
        let registered = Segment::register(&segment, order, &self.rails)?;
        self.segments.insert(handle, Arc::new(registered));
        Ok(RegistrationHandle(handle))
    }

    fn revoke(&self, handle: RegistrationHandle, timeout: Duration) -> Result<(), RevokeError> {
        let Some((_, segment)) = self.segments.remove(&handle.0) else {
            let text = format!("s3rdma gave out no handle {}", handle.0);
            return Err(RevokeError { text });
        };
        segment.revoke(&self.rails, timeout)
    }
}

impl Fabric for S3rdma {
    fn token(&self, handle: RegistrationHandle, address: u64, len: u64) -> Naming<'_> {
        if len > LIMIT {
            return named(Err(TokenError::TooLong { len, limit: LIMIT }));
        }
        match self.segments.get(&handle.0) {
            Some(segment) => Box::pin(self.name(Arc::clone(&segment), address, len)),
            None => named(Err(TokenError::Provider {
                text: format!("s3rdma: handle {} is not registered", handle.0),
            })),
        }
    }

    fn rails(&self) -> Vec<Rail> {
        self.rails.iter().map(RailClient::rail).collect()
    }

    fn ended(&self, named: &Named, transfer: Transfer) {
        let of = |rail: &&RailClient| named.rail.as_ref().is_some_and(|name| name == rail.name());
        if let Some(rail) = self.rails.iter().find(of) {
            rail.ended(named, transfer);
        }
    }
}

impl Drop for S3rdma {
    fn drop(&mut self) {
        // A forked child has neither the threads that call nor anything of the cards.
        if !self.process.is_this() {
            return;
        }
        self.rails.iter().for_each(RailClient::end);
    }
}

/// An address of this host that a device was named by.
fn address(name: &str) -> Option<IpAddr> {
    name.parse().ok()
}

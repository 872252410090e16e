//! A registered segment of a slab: by which rails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use s3engine_pool::cuda::Gpu;
use s3engine_pool::{RegisterError, RevokeError, Segment as PoolSegment};
use tokio::sync::OnceCell;

use super::rail::RailClient;

/// Where kernel modules are seen that let a card reach device memory.
const PEERMEM: [&str; 2] = ["/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"];

/// A segment that at least one rail has registered.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    len: u64,
    gpu: Option<&'static Gpu>,
    /// The rails, the best first.
    pub(super) order: Vec<usize>,
    by: Arc<[ByRail]>,
}

/// What a rail has of a segment.
#[derive(Debug, Default)]
struct ByRail {
    /// Whether it was registered when that was tried.
    tried: OnceCell<Result<(), String>>,
    /// Whether its thread was ever asked to.
    asked: AtomicBool,
    /// Whether it is registered. Known to the rail's thread alone, which does one thing after the other.
    registered: AtomicBool,
    /// No registration any more.
    revoked: AtomicBool,
}

impl Segment {
    /// Registers a segment with the first rail that takes it.
    pub(super) fn register(
        segment: &PoolSegment<'_>,
        order: Vec<usize>,
        rails: &[RailClient],
    ) -> Result<Self, RegisterError> {
        let registered = Self {
            address: segment.address,
            len: segment.len,
            gpu: segment.cuda.map(|memory| memory.gpu()),
            by: rails.iter().map(|_| ByRail::default()).collect(),
            order,
        };
        let mut whys: Vec<String> = Vec::new();
        for &nth in &registered.order {
            let rail = &rails[nth];
            registered.by[nth].asked.store(true, Ordering::SeqCst);
            let (call, undo) = (
                registered.registering(nth, rail),
                registered.undoing(nth, rail),
            );
            match rail
                .registering
                .call_blocking(REGISTER, rail.registering.bound(), call, undo)
            {
                Ok(Ok(())) => {
                    rail.registered.fetch_add(1, Ordering::Relaxed);
                    let _ = registered.by[nth].tried.set(Ok(()));
                    return Ok(registered);
                }
                Ok(Err(why)) => {
                    let _ = registered.by[nth].tried.set(Err(why.clone()));
                    whys.push(format!("{}: {why}", rail.name()));
                }
                // Each of them might take as long.
                Err(hangs) => {
                    whys.push(format!("{}: {hangs}", rail.name()));
                    break;
                }
            }
        }
        let mut text = whys.join("; ");
        if registered.gpu.is_some() && !PEERMEM.iter().any(|path| Path::new(path).exists()) {
            text += "; nvidia_peermem is not loaded, and libs3rdma reaches device memory by nothing else: modprobe nvidia_peermem (docs/rdma.md)";
        }
        Err(RegisterError { errno: None, text })
    }

    /// Sees to it that a rail has it, if it never tried.
    pub(super) async fn be_registered_by(
        &self,
        nth: usize,
        rail: &RailClient,
    ) -> Result<(), String> {
        let tried = &self.by[nth].tried;
        let registering = || async {
            self.by[nth].asked.store(true, Ordering::SeqCst);
            let (call, undo) = (self.registering(nth, rail), self.undoing(nth, rail));
            let registered = rail.registering.call(REGISTER, call, undo).await;
            let registered = registered.unwrap_or_else(|hangs| Err(hangs.to_string()));
            match &registered {
                Ok(()) => {
                    rail.registered.fetch_add(1, Ordering::Relaxed);
                    metrics::counter!("s3engine_rail_takeovers_total", "rail" => rail.name().to_string()).increment(1);
                }
                Err(why) => tracing::warn!(rail = &**rail.name(), why, "no takeover of a segment"),
            }
            registered
        };
        tried.get_or_init(registering).await.clone()
    }

    /// What the rail's thread does to register it.
    fn registering(
        &self,
        nth: usize,
        rail: &RailClient,
    ) -> impl FnOnce() -> Result<(), String> + Send + 'static {
        let (library, client) = (rail.vendor, rail.client);
        let (address, len, gpu) = (self.address, self.len, self.gpu);
        let by = Arc::clone(&self.by);
        move || {
            if by[nth].revoked.load(Ordering::SeqCst) {
                return Err("the segment was revoked".to_owned());
            }
            // A card's driver finds out about device memory by the thread's context.
            let _bound = gpu.map(Gpu::bind).transpose().map_err(|e| e.to_string())?;
            library.register(client, address, len)?;
            by[nth].registered.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    /// What it does when that came too late.
    fn undoing(
        &self,
        nth: usize,
        rail: &RailClient,
    ) -> impl FnOnce(Result<(), String>) + Send + 'static {
        let (library, client, address) = (rail.vendor, rail.client, self.address);
        let by = Arc::clone(&self.by);
        move |late| {
            if late.is_ok() && by[nth].registered.swap(false, Ordering::SeqCst) {
                drop(library.deregister(client, address));
            }
        }
    }

    /// Ends all its registrations. When it returns well, no write lands any more.
    pub(super) fn revoke(
        &self,
        rails: &[RailClient],
        timeout: Duration,
    ) -> Result<(), RevokeError> {
        let mut result = Ok(());
        for (nth, rail) in rails.iter().enumerate() {
            self.by[nth].revoked.store(true, Ordering::SeqCst);
            if !self.by[nth].asked.load(Ordering::SeqCst) {
                continue;
            }
            let (library, client, address) = (rail.vendor, rail.client, self.address);
            let (gpu, by) = (self.gpu, Arc::clone(&self.by));
            let call = move || {
                if !by[nth].registered.swap(false, Ordering::SeqCst) {
                    return Ok(false);
                }
                let _bound = gpu.map(Gpu::bind).transpose().map_err(|e| e.to_string())?;
                library.deregister(client, address).map(|()| true)
            };
            let ended =
                rail.registering
                    .call_blocking("s3rdma_client_deregister", timeout, call, drop);
            let ended = ended.map_err(|hangs| hangs.to_string()).flatten();
            match ended {
                Ok(true) => drop(rail.registered.fetch_sub(1, Ordering::Relaxed)),
                Ok(false) => {}
                Err(why) => {
                    let text = format!("rail {}: {why}", rail.name());
                    result = result.and(Err(RevokeError { text }));
                }
            }
        }
        result
    }
}

const REGISTER: &str = "s3rdma_client_register";

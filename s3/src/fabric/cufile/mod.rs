//! NVIDIA's cuFile: the same transport, through the library under `libcuobjclient`.
//!
//! That is a thin class over four calls of `libcufile` which throws their codes away; who uses it is served by this
//! fabric, which makes the calls itself. cuFile chooses the rails by `cufile.json`.
//!
//! - The library loops for ever where `/proc/modules` is missing, and may hang elsewhere: it is loaded in a process of
//!   its own first, within a bound, and here only when that came back.
//! - Registering the same address twice at once crashes it: one thread registers.
//! - Device memory wants the calling thread to have the device's context.

mod code;
pub mod config;
mod library;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use s3engine_pool::cuda::{CudaKind, Gpu};
use s3engine_pool::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};

use self::library::Library;
use super::calls::Calls;
use super::probe::{self, Depth, Vendor};
use super::{Fabric, Named, Naming, OpenError, TokenError, named};
use crate::token::Token;

/// The most that it registers at once: 64 KiB less than 4 GiB.
const LIMIT: u64 = 0xffff_0000;
const REGISTER: &str = "cuFileBufRegister";
const DEREGISTER: &str = "cuFileBufDeregister";
const DESCRIBE: &str = "cuFileRDMADescStrGet";

/// How the fabric starts.
#[derive(Clone, Debug)]
pub struct CufileOptions {
    /// The library, where it is not to be found by its name.
    pub file: Option<PathBuf>,
    /// The program that tries the library: one that answers to `probe-library`, as `s3engine` does. By default this
    /// program if it is `s3engine`, else one of that name beside it or on the path.
    pub prober: Option<PathBuf>,
    /// How long a call into the library may take, and trying it.
    pub call_timeout: Duration,
    /// The kernel's list of modules, without which the library loops for ever.
    pub modules: PathBuf,
}

impl Default for CufileOptions {
    fn default() -> Self {
        Self {
            file: None,
            prober: None,
            call_timeout: Duration::from_secs(10),
            modules: "/proc/modules".into(),
        }
    }
}

/// The fabric.
#[derive(Debug)]
pub struct Cufile {
    vendor: &'static Library,
    kind: CudaKind,
    registering: Calls,
    naming: Calls,
    segments: DashMap<u64, Registered>,
    next: AtomicU64,
}

/// A registered segment.
#[derive(Clone, Copy, Debug)]
struct Registered {
    address: u64,
    gpu: Option<&'static Gpu>,
}

impl Cufile {
    /// Tries the library in a process of its own, then loads it here.
    pub fn open(options: CufileOptions) -> Result<Self, OpenError> {
        check_modules(&options.modules)?;
        let library = options.file.as_deref();
        let prober = options.prober.as_deref();
        let what = (Vendor::Cufile, Depth::Host);
        let report = probe::in_child(prober, what, library, options.call_timeout)?;
        if let Some(why) = &report.registration {
            tracing::warn!(
                fabric = "cufile",
                why,
                "the library registers no host memory"
            );
        }
        Self::open_untried(library, options.call_timeout)
    }

    /// Loads the library, which may hang: for a process of its own.
    pub(super) fn open_untried(path: Option<&Path>, bound: Duration) -> Result<Self, OpenError> {
        let library = Library::load(path)?;
        let config = config::read();
        let thread = |name| {
            Calls::start(name, bound).map_err(|error| OpenError::Failed {
                text: format!("starting a thread: {error}"),
            })
        };
        Ok(Self {
            vendor: library,
            kind: match config.values.uses_dma_buf() {
                true => CudaKind::Vmm,
                false => CudaKind::Legacy,
            },
            registering: thread("cufile-reg")?,
            naming: thread("cufile-tok")?,
            segments: DashMap::new(),
            next: AtomicU64::new(1),
        })
    }

    /// The library's version, such as 1.18.
    pub fn version(&self) -> String {
        library::shown_version(self.vendor.version())
    }

    /// The file that was loaded.
    pub fn loaded_from(&self) -> Option<PathBuf> {
        library::loaded_from()
    }

    async fn name(&self, segment: Registered, at: u64, len: u64) -> Result<Named, TokenError> {
        let provider = |text: String| TokenError::Provider { text };
        let library = self.vendor;
        let Registered { address, gpu } = segment;
        let call = move || {
            let _bound = gpu.map(Gpu::bind).transpose().map_err(|e| e.to_string())?;
            let described = library.describe(address, len, at.wrapping_sub(address));
            described.map_err(|code| code.to_string())
        };
        // What a token names is revoked with the registration.
        let text = self.naming.call(DESCRIBE, call, drop).await;
        let text = text.map_err(|hangs| provider(hangs.to_string()))?;
        let text = text.map_err(provider)?;
        // The text is most of a key to this memory: not shown.
        let token = Token::parse(&text).map_err(|error| provider(format!("cuFile: {error}")))?;
        if (token.address, u64::from(token.size)) != (at, len) {
            return Err(provider(
                "cuFile: its token names another window".to_owned(),
            ));
        }
        Ok(Named {
            token,
            rail: None,
            source: super::address_of(&token),
        })
    }
}

/// Whether the library would loop for ever.
pub fn check_modules(modules: &Path) -> Result<(), OpenError> {
    if modules.exists() {
        return Ok(());
    }
    let modules = modules.display();
    Err(OpenError::Failed {
        text: format!(
            "{} is not loaded: {modules} is missing here, as in some containers and virtual machines, and the library loops for ever where it looks for nvidia_peermem in it; \
             have {modules} mounted, or use fabric s3rdma",
            library::NAME
        ),
    })
}

impl Registrar for Cufile {
    fn name(&self) -> &'static str {
        "cufile"
    }

    fn segment_limit(&self) -> u64 {
        LIMIT
    }

    fn cuda_kind(&self) -> CudaKind {
        self.kind
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let (library, address, len) = (self.vendor, segment.address, segment.len);
        let gpu = segment.cuda.map(|memory| memory.gpu());
        let refused = |text: String| RegisterError { errno: None, text };
        let call = move || {
            let bound = gpu.map(Gpu::bind).transpose();
            let _bound = bound.map_err(|error| refused(error.to_string()))?;
            library.register(address, len).map_err(RegisterError::from)
        };
        let undo = move |late: Result<(), RegisterError>| {
            if late.is_ok() {
                let _ = library.deregister(address);
            }
        };
        let bound = self.registering.bound();
        let registered = self.registering.call_blocking(REGISTER, bound, call, undo);
        registered.map_err(|hangs| refused(hangs.to_string()))??;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.segments.insert(handle, Registered { address, gpu });
        Ok(RegistrationHandle(handle))
    }

    fn revoke(&self, handle: RegistrationHandle, timeout: Duration) -> Result<(), RevokeError> {
        let unconfirmed = |text: String| RevokeError { text };
        let Some((_, Registered { address, gpu })) = self.segments.remove(&handle.0) else {
            return Err(unconfirmed(format!(
                "cufile gave out no handle {}",
                handle.0
            )));
        };
        let library = self.vendor;
        let call = move || {
            let _bound = gpu.map(Gpu::bind).transpose().map_err(|e| e.to_string())?;
            library.deregister(address).map_err(|code| code.to_string())
        };
        let ended = self
            .registering
            .call_blocking(DEREGISTER, timeout, call, drop);
        ended
            .map_err(|hangs| hangs.to_string())
            .flatten()
            .map_err(unconfirmed)
    }
}

impl Fabric for Cufile {
    fn token(&self, handle: RegistrationHandle, address: u64, len: u64) -> Naming<'_> {
        if len > LIMIT {
            return named(Err(TokenError::TooLong { len, limit: LIMIT }));
        }
        match self.segments.get(&handle.0) {
            Some(segment) => Box::pin(self.name(*segment, address, len)),
            None => named(Err(TokenError::Provider {
                text: format!("cufile: handle {} is not registered", handle.0),
            })),
        }
    }
}

/// Of tests and of trying it: as any fabric.
pub(super) fn untried(library: Option<&Path>, bound: Duration) -> Result<Arc<Cufile>, OpenError> {
    Cufile::open_untried(library, bound).map(Arc::new)
}

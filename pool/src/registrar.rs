//! What the ledger asks of a fabric: make memory reachable for remote writes, and revoke that.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::cuda::{CudaKind, CudaMemory};
use crate::{Memory, SlabId};

/// A piece of a slab, below the fabric's registration limit, as a fabric sees it.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The slab it is part of.
    pub slab: SlabId,
    /// Its number within the slab.
    pub index: u32,
    /// What kind of memory it is.
    pub memory: Memory,
    /// Address of its first byte in this process (host or device).
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The slab's exportable descriptor, if it has one: a memfd's, or one that CUDA imports.
    pub fd: Option<BorrowedFd<'a>>,
    /// Where the segment starts within `fd`.
    pub fd_offset: u64,
    /// Bytes of the whole slab: CUDA imports no less.
    pub slab_len: u64,
    /// The slab's CUDA memory: its kind, and its dma_buf.
    pub cuda: Option<&'a CudaMemory>,
}

/// A fabric's own number for one registration. Never given out twice by one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegistrationHandle(pub u64);

/// Registers and revokes memory with one fabric. Calls may block for as long as the driver does.
pub trait Registrar: Send + Sync {
    /// The fabric's stable name, as in logs and metrics.
    fn name(&self) -> &'static str;

    /// The longest segment that one registration can cover.
    fn segment_limit(&self) -> u64;

    /// What CUDA memory it can register.
    fn cuda_kind(&self) -> CudaKind {
        CudaKind::Vmm
    }

    /// Whether each write to a device's memory is visible to every kernel that is launched after its answer, though
    /// the device promises no such order: no card's is.
    fn orders_writes(&self) -> bool {
        false
    }

    /// Makes `segment` a target for remote writes.
    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError>;

    /// Ends a registration. When this returns `Ok`, no remote write through it can land any more.
    /// Waits at most about `timeout` for whoever must confirm that.
    fn revoke(&self, handle: RegistrationHandle, timeout: Duration) -> Result<(), RevokeError>;
}

/// Why memory could not be registered, in the provider's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}{}", errno_suffix(*.errno))]
pub struct RegisterError {
    /// The system's error number, where the provider gives one.
    pub errno: Option<i32>,
    /// The provider's own text.
    pub text: String,
}

fn errno_suffix(errno: Option<i32>) -> String {
    match errno {
        Some(n) => format!(" (errno {n}: {})", std::io::Error::from_raw_os_error(n)),
        None => String::new(),
    }
}

/// Why a revocation is not known to have taken effect. The memory must not be used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revocation not confirmed: {text}")]
pub struct RevokeError {
    /// What is known about the cause.
    pub text: String,
}

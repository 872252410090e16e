//! A pool that another process owns, as [`Pool`] shows it: the same calls, answered over there.

use std::pin::Pin;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::cuda::CallersRange;
use crate::import::GiveBack;
use crate::memory::Memory;
use crate::options::{PoolError, PoolStats};
use crate::pool::Pool;
use crate::process::Process;
use crate::slots::Slots;

/// How a pool of another process is asked. Never called in a forked child.
pub trait RemotePool: Send + Sync {
    /// A slot of `len` bytes at a multiple of `align`, if there is room now. Waits for the owner's answer, for a
    /// bounded time.
    fn try_alloc(&self, len: u64, memory: Memory, align: u64) -> Result<Buffer, PoolError>;

    /// Memory of the caller's as a buffer: `len` bytes at `at` of it. [`Pool::adopt_cuda`] says what holds of it.
    fn adopt(&self, range: CallersRange, at: u64, len: u64) -> Result<Buffer, PoolError>;

    /// Forgets the caller's memory that has bytes in this range. False where a buffer of it is still about.
    fn forget(&self, address: u64, len: u64) -> Result<bool, PoolError>;

    /// Completes when after this call memory may have come back, or the owner is gone.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// What the owner said last of the pool.
    fn stats(&self) -> PoolStats;

    /// Whether `giver` is this pool's: what it leased, it takes back.
    fn is_giver(&self, giver: &dyn GiveBack) -> bool;

    /// Alignment where a request names none.
    fn align(&self) -> u64 {
        Slots::GRAIN
    }
}

/// The remote part of a handle.
pub(crate) struct Remote {
    pub(crate) process: Process,
    pub(crate) pool: Arc<dyn RemotePool>,
}

impl Pool {
    /// A handle to a pool that another process owns. What only an owner can do is an error here, or finds
    /// nothing: each call says which.
    pub fn remote(pool: Arc<dyn RemotePool>) -> Pool {
        Self::of_remote(Remote {
            process: Process::current(),
            pool,
        })
    }
}

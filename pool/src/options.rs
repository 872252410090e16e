//! What a pool is asked for, why it refuses, and what it holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cuda::{CudaCause, CudaError, Uuid};
use crate::host::HugePages;
use crate::ledger::LedgerStats;
use crate::limit::{MemoryLimit, memory_limit};
use crate::memory::{MemoryError, SLAB_ALIGN};
use crate::slab::{SlabId, SlabStats};
use crate::slots::Slots;

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes of a slab. A request for more gets a slab of its own size; near the bound, slabs are smaller.
    pub slab_bytes: u64,
    /// The most bytes ever mapped. `None`: half of what this process may use. Memory of a slab that was given
    /// up counts until this process unmaps it; a peer that is silent may hold it longer.
    pub max_bytes: Option<u64>,
    /// The most bytes ever mapped of one CUDA device. `None`: half of its memory.
    pub max_cuda_bytes: Option<u64>,
    /// The most pinned host memory that HTTP bodies are staged in on their way to one CUDA device, in chunks of 4 MiB
    /// and two of them at least. It is taken as it is needed, beside `max_bytes`, and kept as long as the pool has
    /// slabs of the device.
    pub staging_bytes: u64,
    /// Alignment of slots where a request names none: a power of two from 4 KiB to 2 MiB.
    pub align: u64,
    /// Whether to ask for huge pages.
    pub huge_pages: HugePages,
    /// The longest that a slab with quarantined slots waits for its other tokens before revocation.
    pub quarantine_max: Duration,
    /// More quarantined bytes than this are not waited for: revocation is at once.
    pub quarantine_max_bytes: u64,
    /// How long a revocation may take to be confirmed.
    pub revoke_timeout: Duration,
    /// How long memory that could not be registered is not tried again. Until then its transfers have that reason at
    /// once.
    pub registration_cool_down: Duration,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            slab_bytes: 256 << 20,
            max_bytes: None,
            max_cuda_bytes: None,
            staging_bytes: 512 << 20,
            align: 4096,
            huge_pages: HugePages::Auto,
            quarantine_max: Duration::from_secs(10),
            quarantine_max_bytes: 1 << 30,
            revoke_timeout: Duration::from_secs(2),
            registration_cool_down: Duration::from_secs(60),
        }
    }
}

/// Whose bound it is that there is no more memory within.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryBound {
    /// All clients'.
    #[default]
    Pool,
    /// The client's own.
    Client,
    /// That of the clients which are bounded together.
    Group,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryBound::Pool => "the pool",
            MemoryBound::Client => "the client's part of the pool",
            MemoryBound::Group => "the part of the pool that all clients of this user have",
        })
    }
}

/// Why the pool has no memory to give.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// All of it is leased; some of it will come back.
    #[error("{bound} is full: {len} bytes wanted, {leased} of {max_bytes} bytes in use")]
    WouldBlock {
        /// Bytes wanted.
        len: u64,
        /// Bytes leased within that bound; of a group, bytes of slabs.
        leased: u64,
        /// The bound.
        max_bytes: u64,
        /// Whose it is.
        bound: MemoryBound,
    },
    /// Nothing came back in time.
    #[error(
        "{bound} stayed full for {waited:?}: {len} bytes wanted, {leased} of {max_bytes} bytes in use"
    )]
    TimedOut {
        /// Bytes wanted.
        len: u64,
        /// Bytes leased within that bound; of a group, bytes of slabs.
        leased: u64,
        /// The bound.
        max_bytes: u64,
        /// Whose it is.
        bound: MemoryBound,
        /// How long it was waited for.
        waited: Duration,
    },
    /// More than the pool could ever give.
    #[error("{len} bytes wanted of a pool of {max_bytes} bytes")]
    TooLarge {
        /// Bytes wanted.
        len: u64,
        /// The pool's bound.
        max_bytes: u64,
    },
    /// Not a power of two from 4 KiB to 2 MiB.
    #[error("alignment {align} is not a power of two from 4096 to {SLAB_ALIGN}")]
    Alignment {
        /// The alignment asked for.
        align: u64,
    },
    /// A pool larger than this process may use.
    #[error("a pool of {max_bytes} bytes is over the memory limit of {limit}")]
    OverMemoryLimit {
        /// The bound asked for.
        max_bytes: u64,
        /// The limit and its source.
        limit: MemoryLimit,
    },
    /// A pool too small for one slab, or a slab of no bytes.
    #[error(
        "a pool needs at least {SLAB_ALIGN} bytes, and slabs of at least that: {max_bytes} and {slab_bytes} given"
    )]
    TooSmall {
        /// The bound asked for.
        max_bytes: u64,
        /// The slab size asked for.
        slab_bytes: u64,
    },
    /// This process is a forked child of the one whose pool it is.
    #[error("this pool is of the process that forked this one: make another pool here")]
    Forked,
    /// The client that asks has ended.
    #[error("client {client} has ended: it gets no memory any more")]
    Retired {
        /// Its name.
        client: Arc<str>,
    },
    /// Not one of this client's slabs, or not any more.
    #[error("slab {} is none of this client's", .slab.0)]
    UnknownSlab {
        /// The slab asked for.
        slab: SlabId,
    },
    /// The pool is another process's, who alone can do this.
    #[error("the pool is owned by another process: only there is this possible")]
    NotOwner,
    /// The process that owns the pool is gone, and with it all that it leased.
    #[error("the process that owns the pool is gone: {why}")]
    Lost {
        /// What is known about it.
        why: String,
    },
    /// The process that owns the pool said no.
    #[error("the process that owns the pool refused: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// The process that owns the pool has no memory of a device to give.
    #[error("the process that owns the pool gives no memory of {device}: {why}")]
    NoCuda {
        /// The device.
        device: Uuid,
        /// What kind of failure it was.
        cause: CudaCause,
        /// What it said.
        why: String,
    },
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<CudaError> for PoolError {
    fn from(error: CudaError) -> Self {
        PoolError::Memory(error.into())
    }
}

/// What a pool holds at a moment.
#[derive(Clone, Debug, Default)]
pub struct PoolStats {
    /// The bound.
    pub max_bytes: u64,
    /// Bytes of host memory mapped.
    pub mapped: u64,
    /// Bytes leased of all kinds of memory, quarantined ones included.
    pub leased: u64,
    /// Bytes in quarantine.
    pub quarantined: u64,
    /// Slabs made since the start.
    pub slabs_made: u64,
    /// Clients in other processes that are there, or have not given all back.
    pub clients: u64,
    /// Exports of slabs to them since the start.
    pub exports: u64,
    /// The slabs there are.
    pub slabs: Vec<SlabStats>,
    /// CUDA devices of which memory is mapped.
    pub cuda: Vec<CudaStats>,
    /// What registering has cost.
    pub ledger: LedgerStats,
}

/// What a pool has of one CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaStats {
    /// The device.
    pub device: Uuid,
    /// Bytes mapped.
    pub mapped: u64,
    /// The bound.
    pub max_bytes: u64,
}

pub(crate) fn check_align(align: u64) -> Result<(), PoolError> {
    let fine = align.is_power_of_two() && (Slots::GRAIN..=SLAB_ALIGN).contains(&align);
    fine.then_some(()).ok_or(PoolError::Alignment { align })
}

/// The pool's bound in whole slab grains, checked against what this process may use.
pub(crate) fn bound(options: &PoolOptions) -> Result<u64, PoolError> {
    let limit = memory_limit();
    let max_bytes = match (options.max_bytes, limit) {
        (Some(max_bytes), Some(limit)) if max_bytes > limit.bytes => {
            return Err(PoolError::OverMemoryLimit { max_bytes, limit });
        }
        (Some(max_bytes), _) => max_bytes,
        (None, Some(limit)) => limit.bytes / 2,
        (None, None) => 1 << 30,
    };
    let max_bytes = max_bytes - max_bytes % SLAB_ALIGN;
    if max_bytes == 0 || options.slab_bytes < SLAB_ALIGN {
        return Err(PoolError::TooSmall {
            max_bytes,
            slab_bytes: options.slab_bytes,
        });
    }
    Ok(max_bytes)
}

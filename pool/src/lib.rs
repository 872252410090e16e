//! Memory that transfers land in: allocated, populated and registered once, then leased.
//!
//! ```text
//! Pool ── Slab 0 (one memfd, one mapping)            ledger: (slab, segment, fabric) -> registration
//!      │   ├─ slot 0  generation 3  leased   ── Buffer   the caller's: read, write, submit
//!      │   ├─ slot 1  generation 1  landing  ── Landing  a transfer's: split into Windows, not readable
//!      │   ├─ slot 2  generation 7  quarantined          a server may still write: nobody's
//!      │   └─ free ranges
//!      └─ Slab 1 ...
//! ```
//!
//! Each handle of a pool is one client's: this process itself, or one in another process, which maps its slabs
//! and has its slots as buffers there:
//!
//! ```text
//! owner                                                   client
//! Pool ── for_client ── Pool ── export(slab) ── fd ────>  ImportedSlab
//!                        └──── try_alloc ── (slot, offset) ──> Buffer::imported ── drop ──> GiveBack
//!                                                         Pool::remote: asks the owner
//! ```
//!
//! - A slab is one client's from its making to its end: no other client is ever leased a byte of it.
//! - A slot is in exactly one state, and only one handle for it exists. A stale [`SlotId`] resolves to an error.
//! - A [`Window`] that was armed for remote writes and dropped before it was disarmed sends its slot to
//!   quarantine. The slot comes back only after every registration of its slab was revoked.
//! - In a forked child the pool gives nothing, its buffers cannot be reached, and nothing of the parent's is undone.
//! - The bytes of host memory that are mapped never exceed [`PoolOptions::max_bytes`], quarantined ones included;
//!   those of a CUDA device never [`PoolOptions::max_cuda_bytes`].

mod accounts;
mod adopt;
mod buffer;
mod client;
pub mod cuda;
mod filling;
mod group;
mod host;
mod import;
mod landing;
mod ledger;
mod limit;
mod memory;
mod options;
mod pool;
mod prepare;
mod process;
mod quarantine;
mod registrar;
mod remote;
mod room;
mod shared;
mod slab;
mod slots;
pub mod topology;
pub mod uring;
mod waiting;

pub use buffer::{Buffer, CopyError, OutOfBounds};
pub use client::{ClientOptions, ClientStats, Share, SlabExport};
pub use filling::Filling;
pub use group::GroupOptions;
pub use host::HugePages;
pub use import::{GiveBack, ImportError, ImportedSlab};
pub use landing::{Landing, Returning, SlotRetired, Window, WriteError};
pub use ledger::{
    FabricId, LedgerStats, Registration, RegistrationState, RegistrationUse, UnregisteredWhy,
};
pub use limit::{MemoryLimit, memory_limit};
pub use memory::{Mapping, Memory, MemoryError, Pages};
pub use options::{CudaStats, MemoryBound, PoolError, PoolOptions, PoolStats};
pub use pool::Pool;
pub use prepare::Prepared;
pub use process::Process;
pub use registrar::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};
pub use remote::RemotePool;
pub use slab::{SlabId, SlabStats};
pub use slots::{SlotId, StaleSlot};

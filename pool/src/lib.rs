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
//! - A slot is in exactly one state, and only one handle for it exists. A stale [`SlotId`] resolves to an error.
//! - A [`Window`] that was armed for remote writes and dropped before it was disarmed sends its slot to
//!   quarantine. The slot comes back only after every registration of its slab was revoked.
//! - In a forked child the pool gives nothing, its buffers cannot be reached, and nothing of the parent's is undone.
//! - The bytes mapped never exceed [`PoolOptions::max_bytes`], quarantined ones included.

mod buffer;
mod ledger;
mod limit;
mod memory;
mod options;
mod pool;
mod process;
mod quarantine;
mod registrar;
mod shared;
mod slab;
mod slots;

pub use buffer::{Buffer, Landing, OutOfBounds, Returning, SlotRetired, Window, WriteError};
pub use ledger::{
    FabricId, LedgerStats, Registration, RegistrationState, RegistrationUse, UnregisteredWhy,
};
pub use limit::{MemoryLimit, memory_limit};
pub use memory::{HugePages, Mapping, Memory, MemoryError, Pages};
pub use options::{PoolError, PoolOptions, PoolStats};
pub use pool::Pool;
pub use process::Process;
pub use registrar::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};
pub use slab::{SlabId, SlabStats};
pub use slots::{SlotId, StaleSlot};

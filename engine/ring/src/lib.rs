//! Submission and completion rings between processes that do not trust each other.
//!
//! ```text
//! region that the client writes                    region that the service writes
//! (the service maps it read-only)                  (the client maps it read-only)
//!    0  SQ tail                                       0  SQ head
//!  128  CQ head                                     128  SQ event: wake me when the SQ tail passes this
//!  256  CQ event: wake me when the CQ tail ...      256  CQ tail
//!  384  (free)                                      384  (free)
//!  512  SQE array      4n x 64 bytes                512  CQE array        2n x 32 bytes
//!  ...  key arena      n x 1728 bytes               ...  detail records   2n x 1024 bytes
//!
//!          Client ── push, submit ──> SQEs ──> Service ── take
//!          Client <── reap ── CQEs <── publish, complete ── Service
//! ```
//!
//! `n` is the queue's entries, a power of two. Everything is little-endian and at fixed places
//! ([`Sqe`], [`Cqe`], [`Detail`], [`Layout`]); [`VERSION`] names all of it, and [`accepts`] says which peers are
//! spoken to.
//!
//! Invariants:
//! - Each side believes only its private cursors. What the other side writes is copied once, and the copy is
//!   judged; nothing that it writes, at whatever time, leads out of bounds, to a panic or to undefined behaviour.
//! - A request number is in flight from push until its last completion was taken. It stands for one submission,
//!   its cancel and that of the request before, one stripe of the key arena, and two completions (one with
//!   [`CQE_MORE`], one without): with `n` numbers neither ring can overflow, in whatever order requests complete.
//!   A queue without free numbers is full, which is an error of the push and never a loss.
//! - For the same reason a side publishes what it took before it publishes what it made.
//! - Detail record `i` belongs to completion entry `i`, and is the service's again when the client's head passes it.
//! - A batch is one store of a tail, and at most one bell: only if the other side asked to be woken for an entry in it.
//!   Who wants to sleep stores the event index, fences, and looks again.
//! - A client that breaks the form ends its session ([`Ended`]); one whose request makes no sense gets an error
//!   completion ([`Meaning`]).

mod abi;
mod arena;
mod atomics;
mod bell;
#[doc(hidden)]
pub mod bench;
mod check;
mod client;
mod codes;
mod detail;
mod fuzz;
mod layout;
#[cfg(not(ring_loom))]
mod mapped;
mod options;
mod service;
mod spsc;
mod words;

#[cfg(all(test, not(ring_loom)))]
mod hostile_tests;
#[cfg(all(test, ring_loom))]
mod models;
#[cfg(all(test, not(ring_loom)))]
mod queue_tests;

pub use abi::*;
pub use arena::{MAX_ETAG, MAX_KEY, MAX_VERSION, Object, Record, RecordRef, Version};
pub use bell::{Bell, EventBell, SocketBell};
pub use check::{
    CheckedGet, CheckedOp, CheckedSqe, Destination, Limits, Malformed, Meaning, Rejected, check,
};
pub use client::{Broken, Client, Entry, GetRequest, PushError, Reaped, WaitError};
pub use codes::{
    INVALID_REQUEST, NO_CODE, Policy, checksum_mode_code, checksum_mode_name, error_code,
    error_name, path_code, path_name, reason_code, reason_name, verified_code, verified_name,
};
pub use detail::{
    DETAIL_BUDGET, DETAIL_CUT, DETAIL_ERRNO, DETAIL_OF_HEAD, DETAIL_SIZE, DETAIL_SLOT,
    DETAIL_STATUS, Detail, TextKind, UNKNOWN, record_from_bytes, record_to_bytes,
};
pub use fuzz::{fuzz_key, fuzz_sqe};
pub use layout::{BadEntries, Layout, MAX_ENTRIES, RegionTooSmall};
#[cfg(not(ring_loom))]
pub use mapped::{MapError, SharedQueue};
pub use options::Options;
pub use service::{AnnounceError, Ended, Outcome, Service, Taken, Ticket};
pub use spsc::CursorJump;
pub use words::Region;

/// The two regions of a queue within one process.
#[derive(Clone)]
pub struct Regions {
    /// What the client writes.
    pub client: Region,
    /// What the service writes.
    pub service: Region,
}

impl Regions {
    /// Zeroed heap memory for a queue.
    pub fn heap(layout: Layout) -> Regions {
        Regions {
            client: Region::heap(layout.client_bytes()),
            service: Region::heap(layout.service_bytes()),
        }
    }

    /// Both ends of a queue over these regions. To be made once.
    pub fn ends(&self, layout: Layout, start: u32) -> Result<(Client, Service), RegionTooSmall> {
        Ok((
            Client::new(&self.client, &self.service, layout, start)?,
            Service::new(&self.client, &self.service, layout, start)?,
        ))
    }
}

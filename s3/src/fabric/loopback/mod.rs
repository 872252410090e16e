//! One-sided writes between the processes of one host and one user, acting as a network card would.
//!
//! ```text
//!  client process                                       server process
//!  Loopback (Registrar + Fabric)                        Peer
//!   register ─▶ rkey ─▶ segment's descriptor
//!   token ──────────── by HTTP, in x-amz-rdma-token ───▶ window
//!   service thread ◀── socket: Hello, Fetch{rkey} ────── Link ─▶ Grant: rkey ─▶ mapping
//!                   ─── Segment, with the descriptor ──▶
//!        slab ◀════════ copies, with no help from the client ══ RemoteWindow::write
//!                    (a device's memory: the peer imports the slab, and copies to the device)
//!   revoke ─────────── Revoke{rkey} ───────────────────▶ waits for running writes, drops the mapping
//!          ◀────────── Revoked{rkey} ───────────────────
//! ```
//!
//! Invariants:
//! - A key that was revoked is never given out again, and nobody can fetch it any more.
//! - `revoke` returns `Ok` only when each peer that ever fetched the key confirmed that it writes no
//!   more, said that it unmapped everything, or is known to be a dead process.
//! - The owner never waits for a peer but in `revoke`, and there with a bound.

mod error;
mod flight;
mod folder;
mod fuzz;
mod identity;
mod link;
mod owner;
mod peer;
mod registration_cost;
mod service;
mod socket;
mod wire;

#[cfg(test)]
mod tests;

pub use error::{LoopbackError, PeerError};
pub use folder::FolderError;
#[doc(hidden)]
pub use fuzz::fuzz_message;
pub use owner::{Loopback, LoopbackOptions};
pub use peer::{Peer, PeerOptions, PeerStats, RemoteWindow};
pub use registration_cost::RegistrationCost;
pub use wire::Refusal;

//! What a client and the host service say to each other over their socket, beside the queues: who it is, memory,
//! queues, HEAD, LIST, objects to be opened.
//!
//! ```text
//! client ── Hello ──────────────────────────────> service
//!        <───────────────────── Welcome, Refused ──
//!        ── Request { id, ask } (+ descriptor) ────>        many at once,
//!        <── Answer { id, said } (+ descriptors) ──         answered in any order; 0 is what nobody asked
//! ```
//! Each is a frame: the length of a JSON text and the number of descriptors that come along, then the text.
//! A client sends a descriptor of memory that it has allocated itself, and no other.

mod frame;
mod message;

pub(crate) use frame::{Frames, LARGEST_ASKED, LARGEST_SAID, encode, send_with_fds};
pub(crate) use message::*;

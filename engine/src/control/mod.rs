//! What a client and the host service say to each other over their socket, beside the queues: who it is, memory,
//! queues, HEAD, LIST, objects to be opened.
//!
//! ```text
//! client ── Hello ──────────────────────────────> service
//!        <───────────────────── Welcome, Refused ──
//!        ── Request { id, ask } ───────────────────>        many at once,
//!        <── Answer { id, said } (+ descriptors) ──         answered in any order; 0 is what nobody asked
//! ```
//! Each is a frame: the length of a JSON text and the number of descriptors that come along, then the text.
//! Only the service sends descriptors; what a client sends of them the kernel drops, since nobody asks for them.

mod frame;
mod message;

pub(crate) use frame::{Frames, LARGEST_ASKED, LARGEST_SAID, encode, send_with_fds};
pub(crate) use message::*;

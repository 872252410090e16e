//! S3 over HTTP/1.1: one [`Client`] per thread, and answers whose bodies go straight into a window.
//!
//! ```text
//! Client ── send ──> Response ── receive ──> window        GET: check_head in between
//!   │ idle list          │
//!   └ Connection <───────┘ back only after a body that ended cleanly; dropped otherwise, which closes it
//! ```
//!
//! Bytes go from the socket to the window; only those that come with a head or between chunks are copied on the way.
//! Everything here runs on a tokio runtime of one thread.

mod answer;
mod client;
mod connection;
mod dial;
mod error_body;
mod framing;
mod fuzz;
mod head;
mod health;
mod incoming;
mod list;
mod moving;
mod race;
mod resolver;
mod response;
mod resume;
mod route;
mod signed;
mod stream;

pub(crate) use answer::check_version_id;
pub use answer::{Expected, GetPart, check_head};
pub use client::{Client, Head, Request, SendError, Stale};
pub(crate) use dial::Place;
pub use error_body::ErrorBody;
#[doc(hidden)]
pub use fuzz::fuzz_response;
pub(crate) use health::Health;
pub(crate) use resolver::Resolver;
pub use response::{Body, Received, Response};
pub use resume::Kept;
pub(crate) use route::Regions;

#[cfg(test)]
mod tests;

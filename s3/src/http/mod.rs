//! S3 over HTTP/1.1: one [`Client`] per thread, and answers whose bodies go straight into a window.
//!
//! ```text
//! Client ── send ──> Response ── receive ──> window        GET: check_head in between
//!   │ idle list          │
//!   └ Connection <───────┘ back only after a body that ended cleanly; dropped otherwise, which closes it
//! ```
//!
//! Everything here runs on a current-thread tokio runtime inside a `LocalSet`.

mod answer;
mod client;
mod connection;
mod error_body;
mod list;
mod resolver;
mod response;

pub use answer::{Expected, GetPart, check_head};
pub use client::{Client, Head, Request, SendError, Stale};
pub use error_body::ErrorBody;
pub use response::{Body, Received, Response};

#[cfg(test)]
mod tests;

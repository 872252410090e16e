//! S3 for s3engine: naming an object, signing for it, and moving its bytes over HTTP or a fabric.
//!
//! Pure rules ([`token`], `reply`, [`range`], [`list`], [`checksum`], `retry`, `timeouts`) know no I/O; what does I/O is a
//! thin layer around them and runs on the caller's current-thread runtime.
//!
//! Unsafe code is in the bindings of vendors' libraries, and nowhere else.
#![deny(unsafe_code)]

#[macro_use]
mod named;

pub mod checksum;
mod clock;
pub mod credentials;
pub mod endpoint;
pub mod error;
pub mod fabric;
pub mod http;
pub mod list;
pub mod network;
pub mod object;
pub mod open_files;
pub mod options;
pub mod outcome;
pub mod progress;
mod proxy;
pub mod range;
pub mod rdma;
mod redirect;
pub mod reply;
pub mod retry;
pub mod signing;
pub mod timeouts;
mod tls;
pub mod token;
pub mod transport;
pub mod upstream;

pub use outcome::{Path, Policy, Reason, UnknownName};

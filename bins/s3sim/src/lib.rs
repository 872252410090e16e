//! An S3 server for tests and benchmarks: synthetic objects or the files of a folder, real
//! signatures, RDMA over the loopback fabric, and faults by a script.
//!
//! ```text
//! sim         threads, runtimes, the accepting socket
//!  tls          TLS in front of that, if any
//!  connection   request heads in, answers out, faults on the wire
//!   request       a parsed head
//!   service       routes, S3's checks, faults -> Answer
//!    auth  range  listing      pure rules
//!    checksum  customer_key   what S3 keeps beside the bytes
//!    store  folder  content    where bytes come from
//!    rdma  device              GET with a token, into memory of the host or of a device
//!    model  modelled  pace     what server and network are to be like, and waiting for that
//!   answer        what goes out
//!   action  delivery   how that goes wrong
//! ```
//!
//! Everything that a client can see is simulated honestly unless a fault rule says otherwise: the
//! README beside this crate lists rules, keys and answers.
#![forbid(unsafe_code)]

mod action;
mod answer;
mod auth;
pub mod ceiling;
mod checksum;
pub mod cli;
mod connection;
pub mod content;
mod counters;
mod customer_key;
mod date;
mod delivery;
mod device;
pub mod faults;
mod folder;
#[doc(hidden)]
pub mod fuzz;
mod listing;
mod model;
mod modelled;
mod pace;
mod range;
mod rdma;
mod read_file;
mod request;
mod s3_error;
mod service;
mod sim;
mod store;
mod tls;
mod uri;

pub use checksum::{Algorithm, Checksum};
pub use counters::Counters;
pub use customer_key::CustomerKey;
pub use faults::{Action, FaultError, Faults, Garbage, Kind, Rule};
pub use model::{Model, ModelError};
pub use sim::{Sim, SimError, SimOptions};
pub use store::Listed;
pub use tls::{TlsError, TlsOptions};

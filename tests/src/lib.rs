//! What the integration tests share: a simulator with an engine over it, the rules that every completion
//! obeys, and a fabric that fails where a test wants it to.
//!
//! The suites are in `tests/`:
//! - `servers`: the simulator and two servers that share no code with this project: real files, odd names, one matrix of
//!   questions for all of them.
//! - `reasons`: each path and each reason, under each policy.
//! - `late_writes`: servers that answer late, never, or write when nobody waits any more.
//! - `parts`: GETs of several requests.
//! - `checksums`, `options`: what else is asked for with an object, and sizes and tags at the edge.
//! - `queue`: submission, completion, cancelling.
//! - `opened`: objects that are opened once and read many times.
//! - `listing`: names, page by page.
//! - `credentials`: keys that change under load, and clocks that differ.
//! - `http_faults`: everything that HTTP can do wrong.
//! - `service`, `processes`, `hostile`: clients of a host service: honest ones, ones that are killed or stopped, ones
//!   that break the rules.
//! - `client_kills`, `service_kills`: clients and services that are killed at any moment, over and over.
//! - `field`: what went wrong for others; `docs/field-reports.md` says which test is about which report.
//! - `cuda_conformance`, `cuda_invariants`, `cuda_late_writes`: as without `cuda_`, into memory of CUDA devices.
//! - `cuda_loopback`, `cuda_service`: memory of CUDA devices, with a stand-in for the driver.
//! - `cuda_adopt`, `cuda_pin`: a client's own memory of CUDA devices, and host memory that it pins, with the same.
//! - `invariants`: any fault under any policy, in any order.
//! - `metrics`: what is counted.
//! - `conformance`: every policy with every fault, shape and destination, for every host.
#![forbid(unsafe_code)]

mod any_faults;
mod canned;
pub mod conformance;
mod failing_fabric;
mod footprint;
mod holds;
mod invariants;
mod listed;
mod odd_keys;
mod owner;
mod program;
mod raw;
mod rig;
mod service_rig;
mod verb;
mod watch;

pub use any_faults::any_faults_under_any_policy;
pub use canned::{answering_server, canned_server, echoing_server, recording_server};
pub use failing_fabric::{FailingFabric, Failure};
pub use footprint::Footprint;
pub use holds::assert_holds;
pub use invariants::assert_invariants;
pub use listed::keys_and_prefixes;
pub use odd_keys::ODD_KEYS;
pub use owner::{Owner, kills, own};
pub use program::{Program, helper};
pub use raw::Raw;
pub use rig::{
    PATIENCE, Rig, block_on, credentials, cufile, drain, drivers, loopback, quick_builder, s3rdma,
    wait_until,
};
pub use service_rig::ServiceRig;
pub use verb::{Hosted, Thing, Verb, on_both_hosts};
pub use watch::{FreeMemory, contents, fill, is_untouched};

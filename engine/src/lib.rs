//! Moves S3 objects into memory: over RDMA where host and server can, over HTTP where they cannot, and
//! every completion says which of the two it was, and why.
//!
//! ```text
//! Engine ── pool ──> Buffer ──Get──> Queue ──submit──> worker threads ──> Completion { path, reason, buffer }
//! ```
//!
//! A [`Get`] names an object, a destination and a [`Policy`]. Buffers are handed over at submission and come
//! back with the completion. `docs/architecture.md` draws the life of one GET.
#![forbid(unsafe_code)]

mod builder;
mod client;
mod completion;
mod control;
mod driver;
mod engine;
mod fabrics;
mod far;
#[doc(hidden)]
pub mod fuzz;
mod get;
mod in_flight;
mod interrupt;
mod link;
mod list;
mod open;
mod operation;
mod part;
mod plan;
mod queue;
mod report;
mod request;
mod round;
mod route;
mod served;
pub mod service;
mod sink;
mod tenant;
mod under_way;
mod wire;
mod worker;

pub use builder::{BuildError, EngineBuilder, Placement};
pub use client::{ConnectError, ConnectOptions};
pub use completion::{BytesByPath, Completion, Fallback, Flags, Stages};
pub use driver::{ChosenDriver, Driver};
pub use engine::{AutoError, Engine, GetFuture};
pub use fabrics::Rdma;
pub use get::{Get, Ticket};
pub use in_flight::{Concurrency, Limits};
pub use list::Lister;
pub use open::Object;
pub use queue::{Queue, QueueFull, QueueOptions, WaitTimeout};
pub use under_way::Outstanding;

pub use s3engine_pool::{
    Buffer, CopyError, HugePages, Memory, MemoryBound, MemoryError, Pool, PoolError, PoolOptions,
    PoolStats, SlabStats, memory_limit,
};
pub use s3engine_pool::{cuda, topology};
pub use s3engine_s3::checksum::{
    Algorithm, Checksum, Mode as ChecksumMode, Offered, Sum, Tally as ChecksumTally, Unverified,
    Verified,
};
pub use s3engine_s3::credentials::{Credentials, CredentialsError};
pub use s3engine_s3::endpoint::{AddressingStyle, Endpoint, EndpointError, Origin, check_bucket};
pub use s3engine_s3::error::{Attempt, Error, ErrorKind, History, Phase};
pub use s3engine_s3::fabric::cufile::{CufileOptions, check_modules, config as cufile_config};
pub use s3engine_s3::fabric::loopback::LoopbackOptions;
pub use s3engine_s3::fabric::probe;
pub use s3engine_s3::fabric::s3rdma::S3rdmaOptions;
pub use s3engine_s3::fabric::{Fabric, OpenError, Rail};
pub use s3engine_s3::list::{ListPage, ListQuery, ListedObject};
pub use s3engine_s3::network::{
    Network, NoHost, Proxies, ProxyError, Source, TlsError, TlsOptions, TrustedHost,
};
pub use s3engine_s3::object::{ETag, ObjectInfo};
pub use s3engine_s3::options::{
    BadCustomerKey, BadHeader, CustomerKey, ExtraHeaders, RequestOptions,
};
pub use s3engine_s3::retry::RetryPolicy;
pub use s3engine_s3::timeouts::Timeouts;
pub use s3engine_s3::{Path, Policy, Reason};

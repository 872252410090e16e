//! `s3engine probe-library`: tries a vendor's RDMA library, for a process that must not hang.

use std::ffi::OsString;

use clap::Args;
use s3engine::probe;

use crate::exit::Failure;

/// Whose library, and where it is.
#[derive(Debug, Args)]
pub(crate) struct ProbeLibraryArgs {
    /// The fabric: s3rdma or cufile; the memory to register: host or all; and the library's file, if it is not found by
    /// its name
    #[arg(num_args = 1..=3)]
    arguments: Vec<OsString>,
}

/// Prints one line of JSON: what was found.
pub(crate) fn run(args: &ProbeLibraryArgs) -> Result<(), Failure> {
    probe::answer(&args.arguments).map_err(Failure::Usage)
}

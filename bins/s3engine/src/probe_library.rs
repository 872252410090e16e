//! `s3engine probe-library`: tries a vendor's RDMA library, for a process that must not hang.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::Args;
use s3engine::probe;

use crate::exit::Failure;

/// Whose library, and where it is.
#[derive(Debug, Args)]
pub(crate) struct ProbeLibraryArgs {
    /// The fabric: s3rdma or cufile; and the library's file, if it is not found by its name
    #[arg(num_args = 1..=2)]
    arguments: Vec<OsString>,
}

/// Prints one line of JSON: what was found.
pub(crate) fn run(args: &ProbeLibraryArgs) -> Result<(), Failure> {
    let line = probe::answer(&args.arguments).map_err(Failure::Usage)?;
    let said = writeln!(io::stdout(), "{line}");
    said.map_err(Failure::unwritten)
}

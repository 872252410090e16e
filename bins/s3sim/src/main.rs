//! The server as a command of its own.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    s3engine_pool::cuda::run_no_kernels();
    let args = s3sim::cli::Args::parse();
    s3sim::cli::log_to_stderr();
    match s3sim::cli::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

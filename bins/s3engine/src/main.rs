//! The s3engine command line: a thin face over the library.
#![forbid(unsafe_code)]

mod asks;
mod bench;
mod cli;
mod config;
mod connect;
mod destination;
mod doctor;
mod exit;
mod get;
mod gpus;
mod interrupt;
mod logging;
mod ls;
mod network;
mod new_file;
mod object_url;
mod outstanding;
mod probe_library;
mod progress;
mod serve;
mod server_metrics;
mod size;
mod span;
mod via;
mod wait;

use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::Parser;

use crate::bench::{BenchArgs, BenchCommand};
use crate::cli::{Cli, Command, Common};
use crate::config::{ConfigError, Settings};
use crate::exit::Failure;
use crate::interrupt::Interrupt;

fn main() -> ExitCode {
    // Nothing here computes.
    s3engine::cuda::run_no_kernels();
    if let Err(failure) = has_room_for_files() {
        failure.tell(0);
        return ExitCode::from(failure.code());
    }
    let (result, verbose) = match Cli::parse().command {
        Command::Get(args) => (
            run(&args.common, |s, i| get::run(&args, s, i)),
            args.common.verbose,
        ),
        Command::Ls(args) => (
            run(&args.common, |s, i| ls::run(&args, s, i)),
            args.common.verbose,
        ),
        Command::Bench(args) => bench(args),
        Command::Doctor(args) => (
            run(&args.common, |s, i| doctor::run(&args, s, i)),
            args.common.verbose,
        ),
        Command::Serve(args) => (serve::run(&args), args.verbose),
        Command::ProbeLibrary(args) => (probe_library::run(&args), 0),
        Command::Sim(args) => {
            s3sim::cli::log_to_stderr();
            let ran = s3sim::cli::run(*args);
            (ran.map_err(|error| Failure::Other(error.to_string())), 0)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(verbose);
            ExitCode::from(failure.code())
        }
    }
}

/// Whether this process may open a few files: libraries that everything here builds on end it else.
fn has_room_for_files() -> Result<(), Failure> {
    let opened: io::Result<Vec<_>> = (0..8).map(|_| UnixStream::pair()).collect();
    let too_few = |error| Failure::Config(ConfigError::FewFiles(error));
    opened.map(drop).map_err(too_few)
}

/// Runs the kind of bench that is asked for.
fn bench(args: BenchArgs) -> (Result<(), Failure>, u8) {
    match &args.command {
        None => (
            run(&args.common, |s, i| bench::run(&args, s, i)),
            args.common.verbose,
        ),
        Some(BenchCommand::Scale(args)) => (
            run(&args.common, |s, i| bench::scale(args, s, i)),
            args.common.verbose,
        ),
        Some(BenchCommand::Compare(args)) => (bench::compare(args), 0),
        Some(BenchCommand::Merge(args)) => (bench::merge(args), 0),
        Some(BenchCommand::Worker) => (bench::worker(), 0),
    }
}

/// Runs a command with the settings of this process, a log, and signals handled.
fn run(
    common: &Common,
    command: impl FnOnce(&Settings, &Interrupt) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let settings = Settings::load(common.settings.clone(), common.config.as_deref())?;
    let level = logging::of_verbosity(common.verbose);
    logging::start(&settings, level).map_err(Failure::Usage)?;
    let interrupt = Interrupt::install()
        .map_err(|error| Failure::Other(format!("cannot handle signals: {error}")))?;
    command(&settings, &interrupt)
}

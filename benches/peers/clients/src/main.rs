//! S3 clients side by side: the same bytes from the same server, in turns, each in a process of its own.
//!
//! ```text
//! peers ── starts ──> server                         keeps 1 GiB in memory, answers by sendfile (or TLS)
//!   │                   ^
//!   └─ round by round ──┴── worker floor, worker s3engine, ... one at a time, one line of JSON each
//! ```
//! The table has the medians over the rounds, and the medians of the ratios to the floor and to s3engine within each
//! round: absolute figures are the machine's, ratios the clients'.

mod clients;
mod floor;
mod memory;
mod python;
mod report;
mod rounds;
mod server;
mod window;
mod work;
mod wrk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::rounds::Compare;
use crate::work::Work;

#[derive(Parser)]
#[command(about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure clients in turns, and print a table
    Compare(Compare),
    /// One client, once (what `compare` starts)
    #[command(hide = true)]
    Worker(Work),
    /// The server (what `compare` starts)
    #[command(hide = true)]
    Server(server::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Compare(compare) => compare.run(),
        Command::Worker(work) => clients::run(&work),
        Command::Server(options) => server::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::config::Settings;
use crate::doctor::{self, DoctorArgs};
use crate::get::GetArgs;
use crate::ls::LsArgs;
use crate::probe_library::ProbeLibraryArgs;
use crate::serve::{self, ServeArgs};

const AFTER: &str = "\
Settings come from flags, over environment variables (named in brackets), over a TOML file of the flags' long names
(--config, S3ENGINE_CONFIG). Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; where
these are not set, from the AWS profile, a web identity, the container's agent or the instance's metadata.

SIGUSR1 tells on stderr what each outstanding request waits for (get, ls, bench).

Exit codes: 0 done, 1 S3 or transfer error, 2 usage, 3 configuration or credentials, 4 not found,
5 the policy allows no path.";

/// Moves S3 objects over RDMA where host and server can, over HTTP where they cannot, and says which and why
#[derive(Debug, Parser)]
#[command(name = "s3engine", version, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch an object into a file or to stdout
    #[command(after_help = AFTER)]
    Get(GetArgs),
    /// List the objects of a bucket
    #[command(after_help = AFTER)]
    Ls(LsArgs),
    /// Measure GETs against an endpoint, or against a simulator that it starts
    #[command(after_help = AFTER)]
    Bench(BenchArgs),
    /// Tell whether GETs would go by RDMA, and if not, why
    #[command(after_help = doctor::HELP)]
    Doctor(Box<DoctorArgs>),
    /// Own memory, connections and credentials for every process of this host
    #[command(after_help = serve::HELP)]
    Serve(Box<ServeArgs>),
    /// Try a vendor's RDMA library, for another process
    #[command(hide = true)]
    ProbeLibrary(ProbeLibraryArgs),
    /// Run the S3 simulator
    Sim(Box<s3sim::cli::Args>),
}

/// What every command that talks to an endpoint takes.
#[derive(Args, Debug)]
pub(crate) struct Common {
    #[command(flatten, next_help_heading = "Settings")]
    pub(crate) settings: Settings,

    /// File of settings (TOML) [S3ENGINE_CONFIG]
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub(crate) config: Option<PathBuf>,

    /// Say more about errors and log more; twice for debugging
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say only what went wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchCommand;
    use crate::config::Settings;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ranges_from_the_end_are_no_flags() {
        let cli = Cli::try_parse_from(["s3engine", "get", "s3://b/k", "--range", "-5"]);
        assert!(cli.is_ok());
    }

    #[test]
    fn a_line_rate_of_nothing_is_refused() {
        for (rate, refused) in [("0", true), ("0KiB", true), ("1GiB", false)] {
            let line = ["s3engine", "bench", "scale", "--line-rate", rate];
            let cli = Cli::try_parse_from(line).unwrap();
            let Command::Bench(bench) = cli.command else {
                panic!("no bench")
            };
            let Some(BenchCommand::Scale(args)) = bench.command else {
                panic!("no scale")
            };
            let checked = args.check(&Settings::default());
            let why = checked.err().map(|failure| failure.to_string());
            assert_eq!(why.is_some(), refused, "{rate}: {why:?}");
        }
    }

    #[test]
    fn secrets_have_no_flags() {
        let mut command = Cli::command();
        for sub in ["get", "ls", "bench", "doctor", "serve"] {
            let help = command
                .find_subcommand_mut(sub)
                .unwrap()
                .render_long_help()
                .to_string();
            assert!(!help.contains("--secret") && !help.contains("--access-key"));
        }
    }
}

//! The command line of the server, for its own binary and for others that host it.

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;

use crate::ceiling::{self, CeilingError};
use crate::checksum::Checksum;
use crate::content;
use crate::customer_key::CustomerKey;
use crate::faults::{self, FaultError, Rule};
use crate::model::{Model, ModelError};
use crate::read_file::read_file;
use crate::sim::{Sim, SimError, SimOptions};
use crate::store::Listed;
use crate::tls::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  s3sim                                        synthetic objects on a free port
  s3sim --listen 127.0.0.1:9000 --anonymous    then: curl http://127.0.0.1:9000/bench/64KiB -o x
  s3sim --root ./data                          the files of ./data/BUCKET/...
  s3sim --tls-cert c.pem --tls-key k.pem       with TLS
  s3sim --checksum crc64nvme                   with checksums, for who asks
  s3sim --faults faults.toml                   with faults; see the README for the rules
  s3sim --model op-latency                     as slow as a model; see the README for all of them
  s3sim --ceiling                              how fast this server is on this machine

Synthetic keys begin (after the last /) with a size: 1048576, 64KiB, 8MiB-0001, train/1GiB-x.
One line, `listening on URL`, goes to stdout; the log goes to stderr (filter: RUST_LOG).";

/// An S3 server for tests and benchmarks, with faults and the loopback RDMA fabric.
#[derive(Clone, Parser)]
#[command(name = "s3sim", version, about, after_help = EXAMPLES)]
pub struct Args {
    /// Address to listen at; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Threads that serve [default: one a core, 16 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Serve the files of this folder, whose subfolders are the buckets, instead of synthetic objects
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Bucket of synthetic objects; may be repeated
    #[arg(long = "bucket", value_name = "NAME", default_values = ["bench", "train", "test"],
          value_parser = parse_bucket)]
    pub buckets: Vec<String>,

    /// How many synthetic names listings show
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub list_count: u32,

    /// Size of each of them
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub list_size: u64,

    /// What each of their names begins with
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub list_prefix: String,

    /// One more name that listings show; may be repeated
    #[arg(long = "list-name", value_name = "KEY")]
    pub list_names: Vec<String>,

    /// Access key that signatures must be of
    #[arg(long, value_name = "KEY", default_value = "s3sim", value_parser = NonEmptyStringValueParser::new())]
    pub access_key: String,

    /// Its secret
    #[arg(
        long,
        value_name = "SECRET",
        default_value = "s3simsecret",
        hide_default_value = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub secret_key: String,

    /// Region that signatures must be for
    #[arg(long, value_name = "REGION", default_value = "us-east-1", value_parser = NonEmptyStringValueParser::new())]
    pub region: String,

    /// Serve unsigned requests too
    #[arg(long)]
    pub anonymous: bool,

    /// Script of faults (TOML)
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,

    /// Behave like this model: none, registration-contention, op-latency, per-client-cost, slow-then-timeout,
    /// far-gpu, or one that a file (TOML) describes [default: as fast as it can]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "ceiling")]
    pub model: Option<String>,

    /// Keep the versions that the fault `swap` replaces, as a versioned bucket does
    #[arg(long)]
    pub versioned: bool,

    /// Let only those read who say that they pay
    #[arg(long)]
    pub requester_pays: bool,

    /// Key of SSE-C (32 bytes in base64) that all objects are encrypted with
    #[arg(long, value_name = "BASE64")]
    pub customer_key: Option<CustomerKey>,

    /// Checksum that objects have: crc32, crc32c, crc64nvme, sha1 or sha256; with :composite, of parts of 8 MiB
    #[arg(long, value_name = "ALGORITHM")]
    pub checksum: Option<Checksum>,

    /// Speak TLS with this certificate (PEM), and those between it and the root
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Let in only clients with a certificate of one of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// End connections without the message of TLS that says so
    #[arg(long, requires = "tls_cert")]
    pub tls_truncate: bool,

    /// Seconds that the server's clock is ahead of the host's; negative where it is behind
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1_000_000_000..=3_000_000_000))]
    pub clock_offset: i64,

    /// Ignore RDMA tokens, as a server without the feature does
    #[arg(long)]
    pub no_rdma: bool,

    /// Folder of the loopback fabric [default: that of every process of this user]
    #[arg(long, value_name = "DIR")]
    pub loopback_dir: Option<PathBuf>,

    /// End when stdin ends: for parents that spawn this
    #[arg(long)]
    pub exit_with_stdin: bool,

    /// Measure how fast this server is on this machine, for so many seconds a figure, and end
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u16).range(1..=600))]
    pub ceiling: Option<u16>,
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The server could not start.
    #[error(transparent)]
    Start(#[from] SimError),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The script of faults says something unknown or impossible.
    #[error("{}: {source}", path.display())]
    Faults {
        /// The file.
        path: PathBuf,
        /// What.
        source: FaultError,
    },
    /// The model is not one.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The ceiling could not be measured.
    #[error(transparent)]
    Ceiling(#[from] CeilingError),
    /// stdout could not be written.
    #[error("cannot write to stdout: {0}")]
    Stdout(#[source] io::Error),
}

/// Runs the command: until stdin ends where that was asked for, else until the process is killed.
pub fn run(args: Args) -> Result<(), CliError> {
    if let Some(seconds) = args.ceiling {
        let threads = args
            .threads
            .map_or(SimOptions::default().threads, usize::from);
        let ceiling = ceiling::measure(threads, Duration::from_secs(seconds.into()))?;
        return print(&ceiling);
    }
    let exit_with_stdin = args.exit_with_stdin;
    let sim = Sim::start(options(args)?)?;
    print(&format_args!("listening on {}\n", sim.url()))?;
    if exit_with_stdin {
        // An error of stdin is an end of it too.
        let mut stdin = io::stdin().lock();
        let mut ignored = [0; 512];
        while matches!(stdin.read(&mut ignored), Ok(1..)) {}
        return Ok(());
    }
    loop {
        thread::park();
    }
}

/// Sends the log to stderr, filtered by `RUST_LOG` (`info` if unset).
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours())
        .with_writer(io::stderr);
    // Fails where the host of this command already has a log: then that one is used.
    let _ = log.try_init();
}

fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

fn print(text: &dyn fmt::Display) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(CliError::Stdout)
}

fn options(args: Args) -> Result<SimOptions, CliError> {
    let defaults = SimOptions::default();
    let tls = tls(&args)?;
    Ok(SimOptions {
        listen: args.listen,
        threads: args.threads.map_or(defaults.threads, usize::from),
        root: args.root,
        buckets: args.buckets,
        listed: Listed {
            count: args.list_count,
            size: args.list_size,
            prefix: args.list_prefix,
        },
        names: args.list_names,
        access_key: args.access_key,
        secret_key: args.secret_key,
        region: args.region,
        anonymous: args.anonymous,
        versioned: args.versioned,
        requester_pays: args.requester_pays,
        customer_key: args.customer_key,
        checksum: args.checksum,
        tls,
        clock_offset: args.clock_offset,
        rdma: !args.no_rdma,
        loopback_folder: args.loopback_dir,
        faults: args.faults.map_or(Ok(Vec::new()), read_faults)?,
        model: args.model.as_deref().map(Model::load).transpose()?,
    })
}

fn tls(args: &Args) -> Result<Option<TlsOptions>, CliError> {
    let (Some(certificates), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let client_ca = args.tls_client_ca.as_ref().map(|path| read(path));
    Ok(Some(TlsOptions {
        certificates: read(certificates)?.into_bytes(),
        key: read(key)?.into_bytes(),
        client_ca: client_ca.transpose()?.map(String::into_bytes),
        truncate: args.tls_truncate,
    }))
}

fn read_faults(path: PathBuf) -> Result<Vec<Rule>, CliError> {
    let text = read(&path)?;
    faults::parse(&text).map_err(|source| CliError::Faults { path, source })
}

fn read(path: &Path) -> Result<String, CliError> {
    let path = path.to_owned();
    read_file(&path).map_err(|source| CliError::Read { path, source })
}

fn parse_bucket(name: &str) -> Result<String, String> {
    match name.is_empty() || name.contains('/') {
        true => Err("a bucket has a name without /".to_owned()),
        false => Ok(name.to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let plain = !text.contains(['/', '-', '.', '_']);
    let size = content::size_of_key(text).filter(|_| plain);
    size.ok_or_else(|| "a size is digits and B, KiB, MiB, GiB, TiB or nothing".to_owned())
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_become_options() {
        let args = Args::parse_from([
            "s3sim",
            "--bucket",
            "a",
            "--bucket",
            "b",
            "--no-rdma",
            "--anonymous",
            "--threads",
            "3",
            "--list-count",
            "5",
            "--list-size",
            "64KiB",
            "--list-prefix",
            "x/",
        ]);
        let options = options(args).unwrap();
        assert_eq!(options.buckets, ["a", "b"]);
        assert_eq!(
            (options.threads, options.rdma, options.anonymous),
            (3, false, true)
        );
        assert_eq!(
            options.listed,
            Listed {
                count: 5,
                size: 65536,
                prefix: "x/".into()
            }
        );
    }

    #[test]
    fn bad_flags_are_refused() {
        for flags in [
            ["--threads", "0"],
            ["--list-size", "1MiB-x"],
            ["--listen", "x"],
            ["--x", "y"],
            ["--bucket", ""],
            ["--bucket", "a/b"],
            ["--region", ""],
            ["--access-key", ""],
            ["--secret-key", ""],
        ] {
            assert!(
                Args::try_parse_from(["s3sim"].iter().chain(&flags)).is_err(),
                "{flags:?}"
            );
        }
    }

    #[test]
    fn a_script_that_is_missing_or_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.toml");
        assert!(
            read_faults(path.clone())
                .unwrap_err()
                .to_string()
                .contains("f.toml")
        );
        std::fs::write(&path, "[[rule]]\naction = \"nothing\"").unwrap();
        let error = read_faults(path).unwrap_err().to_string();
        assert!(
            error.contains("f.toml") && error.contains("nothing"),
            "{error}"
        );
        let error = read_faults("/dev/zero".into()).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot read /dev/zero: it is longer than 1048576 bytes"
        );
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let args = Args::parse_from(["s3sim", "--secret-key", "hush"]);
        assert!(!format!("{args:?}").contains("hush"));
        assert!(!format!("{:?}", options(args).unwrap()).contains("hush"));
    }
}

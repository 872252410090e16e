//! The log: on stderr, for people or as JSON.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

/// What is logged, to be replaced while it is.
pub(crate) struct LogFilter(Box<dyn Fn(EnvFilter) -> Result<(), String>>);

impl LogFilter {
    /// Logs what `text` says from now on.
    pub(crate) fn replace(&self, text: &str) -> Result<(), String> {
        (self.0)(filter(text)?)
    }
}

/// Libraries of whom only errors are logged: what they warn of, the engine says itself.
const QUIET: [&str; 6] = [
    "aws_config",
    "aws_runtime",
    "aws_sigv4",
    "aws_smithy_http_client",
    "aws_smithy_runtime",
    "hyper_util",
];

/// What is logged where no setting says it: a command reports in words of its own.
pub(crate) fn of_verbosity(verbose: u8) -> &'static str {
    match verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    }
}

/// Starts the log.
pub(crate) fn start(settings: &Settings, default: &str) -> Result<LogFilter, String> {
    let text = settings.log_filter.as_deref().unwrap_or(default);
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(colours())
        .with_env_filter(filter(text)?);
    // The two are of different types.
    macro_rules! reloadable {
        ($log:expr) => {{
            let log = $log.with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            LogFilter(Box::new(move |filter| {
                handle.reload(filter).map_err(|error| error.to_string())
            }))
        }};
    }
    Ok(match settings.log.unwrap_or_default() {
        LogFormat::Text => reloadable!(log),
        LogFormat::Json => reloadable!(log.json()),
    })
}

fn filter(text: &str) -> Result<EnvFilter, String> {
    let filter = EnvFilter::try_new(text)
        .map_err(|error| format!("{text:?} is no filter for the log: {error}"))?;
    // At their finest levels these libraries write whole requests to the log, RDMA tokens included, and the programs
    // that give keys.
    QUIET.iter().try_fold(filter, |filter, library| {
        let quiet = format!("{library}=error").parse();
        let quiet = quiet.map_err(|error| format!("{library}: {error}"))?;
        Ok(filter.add_directive(quiet))
    })
}

fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

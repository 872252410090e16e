//! The log: on stderr, for people or as JSON.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

/// Starts the log. Without settings it says only what `verbose` asks for: a command reports in words of its own.
pub(crate) fn start(settings: &Settings, verbose: u8) -> Result<(), String> {
    let default = match verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    };
    let text = settings.log_filter.as_deref().unwrap_or(default);
    // At its finest level this library writes whole requests to the log, RDMA tokens included.
    let quiet = "aws_sigv4=warn"
        .parse()
        .map_err(|error| format!("aws_sigv4: {error}"))?;
    let filter = EnvFilter::try_new(text)
        .map_err(|error| format!("{text:?} is no filter for the log: {error}"))?
        .add_directive(quiet);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(colours());
    match settings.log.unwrap_or_default() {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

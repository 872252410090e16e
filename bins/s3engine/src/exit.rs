//! From what went wrong to one line and an exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | S3 or transfer error |
//! | 2 | usage |
//! | 3 | configuration or credentials |
//! | 4 | object or bucket not found |
//! | 5 | the policy allows no path |
//! | 128 + n | ended by signal n |

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write};

use s3engine::service::ServiceError;
use s3engine::{Attempt, BuildError, ConnectError, Error, ErrorKind, History, PoolError, Reason};
use serde_json::{Value, json};

use crate::config::ConfigError;
use crate::object_url::on_one_line;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line cannot be meant so.
    #[error("{0}")]
    Usage(String),
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine cannot start as configured.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The host service cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The host service cannot start.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A request failed.
    #[error("{}", Told(.0, Runs::Here))]
    Request(#[from] Error),
    /// The same where the host service made it.
    #[error("{}", Told(.0, Runs::InService))]
    Served(Error),
    /// The output cannot be written.
    #[error("cannot {doing} {output}: {source}")]
    Output {
        /// What was tried.
        doing: &'static str,
        /// With what.
        output: String,
        /// Why not.
        source: io::Error,
    },
    /// What was delivered is not what a second read gives.
    #[error(
        "{object}: verification failed: at offset {offset} {delivered:#04x} was delivered and HTTP reads {read:#04x}"
    )]
    Differs {
        /// The object.
        object: String,
        /// The first differing byte.
        offset: u64,
        /// What was delivered.
        delivered: u8,
        /// What the second read gave.
        read: u8,
    },
    /// A signal ended it.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// A process that measures ended before its time.
    #[error("{0}")]
    WorkerLost(String),
    /// What was told already.
    #[error("exit code {0}")]
    Told(u8),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Standard output cannot be written.
    pub(crate) fn unwritten(source: io::Error) -> Failure {
        Failure::Output {
            doing: "write to",
            output: "stdout".into(),
            source,
        }
    }

    /// The exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            // The service went while memory was asked for: no setting is to blame.
            Failure::Build(BuildError::Pool(PoolError::Lost { .. })) => 1,
            Failure::Config(_) | Failure::Build(_) | Failure::Connect(_) | Failure::Service(_) => 3,
            Failure::Request(error) | Failure::Served(error) => code_of(error),
            Failure::Output { .. }
            | Failure::Differs { .. }
            | Failure::WorkerLost(_)
            | Failure::Other(_) => 1,
            Failure::Told(code) => *code,
            Failure::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(1),
        }
    }

    /// The same where the host service made the request: what could help are settings of the service then.
    pub(crate) fn of_service(self) -> Self {
        match self {
            Failure::Request(error) => Failure::Served(error),
            other => other,
        }
    }

    /// The failed request, where it was one.
    pub(crate) fn request(&self) -> Option<&Error> {
        match self {
            Failure::Request(error) | Failure::Served(error) => Some(error),
            _ => None,
        }
    }

    /// The same for programs.
    pub(crate) fn to_json(&self) -> Value {
        let request = self.request();
        json!({
            "schema": 1,
            "error": {
                "exit_code": self.code(),
                "message": self.to_string(),
                "status": request.and_then(|error| error.status()),
                "code": request.and_then(|error| error.code()),
                "request_id": request.and_then(|error| error.request_id()),
                "host_id": request.and_then(|error| error.host_id()),
                "address": request.and_then(|error| error.address()).map(|of| of.to_string()),
                "phase": request.and_then(|error| error.phase()).map(|of| of.to_string()),
                "attempts": request.map(|error| attempts(error.history())),
                "caused_by": request.map(causes),
            },
        })
    }

    /// Tells it on stderr; `verbose` adds what led to it.
    pub(crate) fn tell(&self, verbose: u8) {
        if let Failure::Told(_) = self {
            return;
        }
        // Nobody to tell if stderr is closed.
        let _ = self.write(&mut io::stderr().lock(), verbose);
    }

    fn write(&self, out: &mut dyn Write, verbose: u8) -> io::Result<()> {
        writeln!(out, "error: {self}")?;
        match self.request() {
            Some(error) if verbose > 0 => write!(out, "{}", error.story()),
            _ => Ok(()),
        }
    }
}

/// What was tried, for programs.
fn attempts(history: &History) -> Vec<Value> {
    let told = |attempt: &Attempt| {
        json!({
            "attempt": attempt.number,
            "began_s": attempt.began.as_secs_f64(),
            "seconds": attempt.took.as_secs_f64(),
            "phase": attempt.phase.map(|phase| phase.to_string()),
            "address": attempt.address.map(|address| address.to_string()),
            "error": attempt.what,
        })
    };
    history.attempts().iter().map(told).collect()
}

/// What lies beneath an error, one text for each layer.
fn causes(error: &Error) -> Vec<String> {
    let first = StdError::source(error);
    let all = std::iter::successors(first, |&cause| cause.source());
    all.map(ToString::to_string).collect()
}

/// What the exit code says of a failed request.
fn code_of(error: &Error) -> u8 {
    /// S3's words for credentials that cannot work, as opposed to ones that may not.
    const CREDENTIALS: [&str; 7] = [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "AuthorizationHeaderMalformed",
    ];
    match error.kind() {
        ErrorKind::Config(_) | ErrorKind::Credentials(_) => 3,
        _ if error.is_not_found() => 4,
        _ if error.status() == Some(401) => 3,
        _ if error.code().is_some_and(|code| CREDENTIALS.contains(&code)) => 3,
        _ if error.reason().is_of_rdma() => 5,
        _ => 1,
    }
}

/// A failed request in words: one that only the policy kept from going by HTTP says so.
struct Told<'a>(&'a Error, Runs);

/// Whose settings the engine runs by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// This command's.
    Here,
    /// The host service's, which flags of this command do not change.
    InService,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.0;
        if code_of(error) != 5 {
            error.fmt(f)?;
            if let (ErrorKind::Credentials(_), Runs::Here) = (error.kind(), self.1) {
                return f.write_str("; --anonymous sends requests that are not signed");
            }
            return match error.code() {
                Some("RequestTimeTooSkewed") => f.write_str(
                    "\n  what helps: set this host's clock; the server's is minutes away from it",
                ),
                _ => Ok(()),
            };
        }
        let object = format!(
            "s3://{}/{}",
            on_one_line(error.bucket()),
            on_one_line(error.key())
        );
        write!(
            f,
            "{object}: RDMA required, not possible: {}",
            error.reason()
        )?;
        match error.kind() {
            ErrorKind::Rdma { detail, .. } => write!(f, "\n  {}", on_one_line(detail))?,
            _ => write!(f, "\n  {error}")?,
        }
        let help = match self.1 {
            Runs::Here => help(error.reason()),
            Runs::InService => help_at_service(error.reason()),
        };
        match help {
            Some(help) => write!(f, "\n  what helps: {help}"),
            None => Ok(()),
        }
    }
}

fn help(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::NoFabric => {
            "`s3engine doctor` tells what lacks; `--fabric loopback` is for a simulator on this host; else `--rdma prefer` or `--rdma off`"
        }
        Reason::FabricInitFailed => {
            "`s3engine doctor`, and docs/rdma.md; `--rdma prefer` goes by HTTP meanwhile"
        }
        Reason::RegistrationFailed | Reason::OverRegistrationLimit => {
            "a higher limit on locked memory, or a smaller --slab-size; `s3engine doctor` tells more"
        }
        Reason::ServerDeclined | Reason::ReplyMissing => {
            "check that RDMA is enabled on the server; `--rdma prefer` goes by HTTP"
        }
        Reason::RdmaTimeout => "a longer --rdma-timeout; `--rdma prefer` goes by HTTP",
        _ => return None,
    })
}

/// The same where what could be set is set for the host service.
fn help_at_service(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::NoFabric | Reason::FabricInitFailed => {
            "the host service has no fabric that works: see its log and its setting `fabric`; `--rdma prefer` goes by HTTP"
        }
        Reason::RegistrationFailed | Reason::OverRegistrationLimit => {
            "a higher limit on locked memory for the host service (LimitMEMLOCK), or a smaller `slab` in its [pool]"
        }
        Reason::RdmaTimeout => "`--rdma prefer` goes by HTTP; timeouts are the host service's",
        other => return help(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, code: Option<&str>) -> Failure {
        let kind = ErrorKind::Status {
            status,
            code: code.map(str::to_owned),
            message: None,
        };
        Failure::Request(Error::new("GET", "b", "k", kind))
    }

    #[test]
    fn every_kind_of_failure_has_its_code() {
        let rdma = ErrorKind::Rdma {
            reason: Reason::NoFabric,
            detail: "none".into(),
        };
        let late =
            Error::new("GET", "b", "k", ErrorKind::Deadline).with_reason(Reason::RdmaTimeout);
        for (failure, code) in [
            (Failure::Usage("u".into()), 2),
            (Failure::Config(ConfigError::NoCredentials), 3),
            (status(403, Some("AccessDenied")), 1),
            (status(403, Some("SignatureDoesNotMatch")), 3),
            (status(401, None), 3),
            (status(404, Some("NoSuchKey")), 4),
            (status(404, None), 4),
            (status(503, Some("SlowDown")), 1),
            (Failure::Request(Error::new("GET", "b", "k", rdma)), 5),
            (Failure::Request(late), 5),
            (Failure::Interrupted(2), 130),
            (Failure::Other("o".into()), 1),
        ] {
            assert_eq!(failure.code(), code, "{failure}");
        }
    }

    #[test]
    fn a_refused_path_says_why_and_what_helps() {
        let kind = ErrorKind::Rdma {
            reason: Reason::NoFabric,
            detail: "no library".into(),
        };
        let text = Failure::Request(Error::new("GET", "b", "k", kind)).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "s3://b/k: RDMA required, not possible: no-fabric");
        assert_eq!(lines[1], "  no library");
        assert!(lines[2].starts_with("  what helps: "));
    }

    #[test]
    fn a_clock_that_is_wrong_is_told_and_exits_as_other_refusals() {
        let failure = status(403, Some("RequestTimeTooSkewed"));
        assert_eq!(failure.code(), 1);
        let text = failure.to_string();
        let help = text.lines().nth(1).unwrap();
        assert!(
            help.contains("what helps: ") && help.contains("clock"),
            "{text}"
        );
    }

    #[test]
    fn without_verbose_an_error_is_one_line_and_with_it_the_causes_follow() {
        let error = Error::new("GET", "b", "k", ErrorKind::Reset("gone".into()))
            .with_source(io::Error::other("the cause"));
        let text = |verbose| {
            let mut out = Vec::new();
            Failure::Request(error.clone())
                .write(&mut out, verbose)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(0).lines().count(), 1);
        assert!(text(1).contains("caused by: the cause"));
    }
}

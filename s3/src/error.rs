//! What went wrong with a request, with every fact that helps to find out why.

mod history;
mod kind;

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use self::history::{Attempt, History};
use self::kind::Printable;
pub use self::kind::{ErrorKind, Phase};
use crate::outcome::Reason;
use crate::retry;

/// A failed request. Small to move; `Display` is one whole line, and `{:#}` all that is known: more lines with the
/// server's words, address, phase, ids, every attempt with its time, and what lies beneath.
#[derive(Clone)]
pub struct Error(Box<Facts>);

#[derive(Clone, Debug)]
struct Facts {
    operation: Cow<'static, str>,
    bucket: String,
    key: String,
    kind: ErrorKind,
    reason: Option<Reason>,
    status: Option<u16>,
    request_id: Option<String>,
    host_id: Option<String>,
    retry_after: Option<Duration>,
    endpoint: String,
    address: Option<SocketAddr>,
    phase: Option<Phase>,
    attempt: u32,
    attempts: u32,
    history: History,
    budget_spent: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `operation` ("GET") on an object, or on a bucket where `key` is empty.
    pub fn new(
        operation: impl Into<Cow<'static, str>>,
        bucket: impl Into<String>,
        key: impl Into<String>,
        kind: ErrorKind,
    ) -> Error {
        Error(Box::new(Facts {
            operation: operation.into(),
            bucket: bucket.into(),
            key: key.into(),
            kind,
            reason: None,
            status: None,
            request_id: None,
            host_id: None,
            retry_after: None,
            endpoint: String::new(),
            address: None,
            phase: None,
            attempt: 1,
            attempts: 1,
            history: History::default(),
            budget_spent: false,
            source: None,
        }))
    }

    /// The same error with another kind, where more is known of what it means.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// The same error of an operation that its HTTP method does not name.
    pub fn with_operation(mut self, operation: impl Into<Cow<'static, str>>) -> Error {
        self.0.operation = operation.into();
        self
    }

    /// Adds the endpoint's URL.
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Error {
        self.0.endpoint = endpoint.into();
        self
    }

    /// Adds the address that was talked to.
    pub fn with_address(mut self, address: Option<SocketAddr>) -> Error {
        self.0.address = address;
        self
    }

    /// Adds the phase.
    pub fn with_phase(mut self, phase: Phase) -> Error {
        self.0.phase = Some(phase);
        self
    }

    /// Adds the status of the answer.
    pub fn with_status(mut self, status: u16) -> Error {
        self.0.status = Some(status);
        self
    }

    /// Adds the server's ids of the request.
    pub fn with_ids(mut self, request_id: Option<String>, host_id: Option<String>) -> Error {
        self.0.request_id = request_id;
        self.0.host_id = host_id;
        self
    }

    /// Adds how long the server asked to wait.
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Error {
        self.0.retry_after = wait;
        self
    }

    /// Says which attempt this was, of how many allowed.
    pub fn with_attempt(mut self, attempt: u32, attempts: u32) -> Error {
        self.0.attempt = attempt;
        self.0.attempts = attempts;
        self
    }

    /// Adds what was tried.
    pub fn with_history(mut self, history: History) -> Error {
        self.0.history = history;
        self
    }

    /// Says that it is final only because all requests together have no retries left.
    pub fn with_budget_spent(mut self) -> Error {
        self.0.budget_spent = true;
        self
    }

    /// Names a more exact reason than the kind gives, such as `rdma-timeout` for a timeout.
    pub fn with_reason(mut self, reason: Reason) -> Error {
        self.0.reason = Some(reason);
        self
    }

    /// Adds the underlying error. Of a cancel or deadline, it is what was last tried.
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn with_boxed_source(mut self, source: Box<dyn StdError + Send + Sync>) -> Error {
        self.0.source = Some(Arc::from(source));
        self
    }

    /// The operation, such as `GET`.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.0.bucket
    }

    /// The key; empty for an operation on a bucket.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The HTTP status, where there was an answer.
    pub fn status(&self) -> Option<u16> {
        match &self.0.kind {
            ErrorKind::Status { status, .. } | ErrorKind::Redirect { status, .. } => Some(*status),
            ErrorKind::RangeNotSatisfiable { .. } => Some(416),
            _ => self.0.status,
        }
    }

    /// The S3 error code.
    pub fn code(&self) -> Option<&str> {
        match &self.0.kind {
            ErrorKind::Status { code, .. } | ErrorKind::Redirect { code, .. } => code.as_deref(),
            _ => None,
        }
    }

    /// The server's own words.
    pub fn message(&self) -> Option<&str> {
        match &self.0.kind {
            ErrorKind::Status { message, .. } => message.as_deref(),
            _ => None,
        }
    }

    /// The server's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// The id of the host that answered.
    pub fn host_id(&self) -> Option<&str> {
        self.0.host_id.as_deref()
    }

    /// How long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The endpoint's URL.
    pub fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    /// The address that was talked to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address
    }

    /// The phase in which it happened.
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// Which attempt it was, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// How many attempts were allowed.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// What was tried, this attempt included. Empty where nothing was.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Whether it is final only because all requests together have no retries left.
    pub fn is_budget_spent(&self) -> bool {
        self.0.budget_spent
    }

    /// What a completion gives as its reason.
    pub fn reason(&self) -> Reason {
        self.0.reason.unwrap_or(match &self.0.kind {
            ErrorKind::Modified { .. } => Reason::Modified,
            ErrorKind::BufferTooSmall { .. } => Reason::StaleBuffer,
            ErrorKind::Rdma { reason, .. } => *reason,
            ErrorKind::Service(_) => Reason::ServiceLost,
            ErrorKind::Cancelled => Reason::Cancelled,
            ErrorKind::Deadline => Reason::Deadline,
            _ => Reason::HttpError,
        })
    }

    /// Whether the object or its bucket is not there.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the same request may well succeed later.
    pub fn is_retryable(&self) -> bool {
        retry::may_pass(&self.0.kind, self.0.phase)
    }

    /// What it knows beyond its line: the further lines of `{:#}`, each of which ends with a line feed.
    pub fn story(&self) -> impl fmt::Display {
        Story(self)
    }

    fn write_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &*self.0;
        write!(f, "{} s3://{}", facts.operation, Printable(&facts.bucket))?;
        if !facts.key.is_empty() {
            write!(f, "/{}", Printable(&facts.key))?;
        }
        write!(f, ": {}", facts.kind)?;
        if let Some(id) = &facts.request_id {
            write!(f, " (request {})", Printable(id))?;
        }
        // No server has seen it.
        if let ErrorKind::Service(_) = facts.kind {
            return Ok(());
        }
        if !facts.endpoint.is_empty() {
            write!(f, " at {}", Printable(&facts.endpoint))?;
        }
        if let ErrorKind::Redirect { .. } = facts.kind
            && let Some(why) = self.source()
        {
            write!(f, ", {}", Printable(&why.to_string()))?;
        }
        if let ErrorKind::Deadline | ErrorKind::Cancelled = facts.kind
            && let Some(last) = self.source()
        {
            write!(f, ", after {last}")?;
        }
        write!(f, ", attempt {} of {}", facts.attempt, facts.attempts)?;
        match facts.budget_spent {
            true => f.write_str(", retry budget spent"),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_line(f)?;
        if f.alternate() {
            let story = Story(self).to_string();
            for line in story.lines() {
                write!(f, "\n{line}")?;
            }
        }
        Ok(())
    }
}

struct Story<'a>(&'a Error);

impl fmt::Display for Story<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.0;
        if let Some(message) = error.message() {
            writeln!(f, "  server: {}", Printable(message))?;
        }
        if let Some(address) = error.address() {
            writeln!(f, "  address: {address}")?;
        }
        if let Some(phase) = error.phase() {
            writeln!(f, "  phase: {phase}")?;
        }
        if let Some(host_id) = error.host_id() {
            writeln!(f, "  host id: {}", Printable(host_id))?;
        }
        error.history().fmt(f)?;
        let mut source = error.source();
        while let Some(cause) = source {
            writeln!(f, "  caused by: {}", Printable(&cause.to_string()))?;
            source = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, code: Option<&str>) -> ErrorKind {
        ErrorKind::Status {
            status,
            code: code.map(str::to_owned),
            message: None,
        }
    }

    #[test]
    fn an_error_is_one_whole_line() {
        let error = Error::new("GET", "train", "k", status(403, Some("AccessDenied")))
            .with_endpoint("http://10.0.0.5:9000")
            .with_ids(Some("4442587FB7D0A2F9".into()), None);
        assert_eq!(
            error.to_string(),
            "GET s3://train/k: 403 AccessDenied (request 4442587FB7D0A2F9) at http://10.0.0.5:9000, attempt 1 of 1"
        );
        assert_eq!(
            (error.status(), error.code()),
            (Some(403), Some("AccessDenied"))
        );
        assert!(!error.is_retryable());
    }

    #[test]
    fn an_error_without_an_s3_code_names_the_status() {
        let error = Error::new("HEAD", "train", "", status(404, None)).with_attempt(2, 3);
        assert_eq!(
            error.to_string(),
            "HEAD s3://train: 404 Not Found, attempt 2 of 3"
        );
        assert!(error.is_not_found());
    }

    #[test]
    fn text_from_outside_cannot_break_the_line() {
        let error = Error::new("GET", "b", "a\nb\u{1b}[31m", status(500, Some("X\r\nY")));
        assert_eq!(
            error.to_string(),
            "GET s3://b/a\\nb\\u{1b}[31m: 500 X\\r\\nY, attempt 1 of 1"
        );
    }

    #[test]
    fn r53_the_whole_story_has_every_fact_on_a_line_of_its_own() {
        let mut history = History::default();
        (1..=2).for_each(|number| history.push(history::tests::attempt(number)));
        let kind = ErrorKind::Status {
            status: 503,
            code: Some("SlowDown".into()),
            message: Some("Reduce\nyour rate".into()),
        };
        let error = Error::new("GET", "train", "k", kind)
            .with_endpoint("http://10.0.0.5:9000")
            .with_address(Some("10.0.0.5:9000".parse().unwrap()))
            .with_phase(Phase::FirstByte)
            .with_ids(Some("R1".into()), Some("H1".into()))
            .with_attempt(2, 3)
            .with_history(history)
            .with_source(std::io::Error::other("beneath"));
        let line = error.to_string();
        let whole = format!("{error:#}");
        let lines: Vec<_> = whole.lines().collect();
        assert_eq!(lines[0], line);
        assert_eq!(
            lines[1..],
            [
                "  server: Reduce\\nyour rate",
                "  address: 10.0.0.5:9000",
                "  phase: first-byte",
                "  host id: H1",
                "  attempt 1 at 0.010 s, for 0.005 s, in phase connect, at 10.0.0.5:9000: refused 1",
                "  attempt 2 at 0.020 s, for 0.005 s, in phase connect, at 10.0.0.5:9000: refused 2",
                "  caused by: beneath",
            ]
        );
        let bare = Error::new("GET", "b", "k", ErrorKind::Deadline);
        assert_eq!(bare.to_string().lines().count(), 1);
    }

    #[test]
    fn the_reason_follows_the_kind_unless_named() {
        let timeout = ErrorKind::Timeout {
            phase: Phase::FirstByte,
            after: Duration::from_secs(1),
        };
        let error = Error::new("GET", "b", "k", timeout);
        assert_eq!(error.reason(), Reason::HttpError);
        assert_eq!(
            error.with_reason(Reason::RdmaTimeout).reason(),
            Reason::RdmaTimeout
        );
        let error = Error::new(
            "GET",
            "b",
            "k",
            ErrorKind::BufferTooSmall { needed: 2, have: 1 },
        );
        assert_eq!(error.reason(), Reason::StaleBuffer);
    }
}

//! What can go wrong, and how a line says it.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::checksum::{Mismatch, Unverified};
use crate::outcome::Reason;

/// The stage of a request in which an error happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Finding the endpoint's address.
    Resolve,
    /// Opening a connection.
    Connect,
    /// Agreeing on TLS.
    Tls,
    /// Handing the request to the connection.
    Send,
    /// Waiting for the head of the answer.
    FirstByte,
    /// Receiving the body.
    Body,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Resolve => "resolve",
            Phase::Connect => "connect",
            Phase::Tls => "tls",
            Phase::Send => "send",
            Phase::FirstByte => "first-byte",
            Phase::Body => "body",
        })
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request cannot be made as configured or asked for.
    Config(String),
    /// There are no credentials to sign with: who was asked for them, and what each said.
    Credentials(String),
    /// No connection to the endpoint.
    Connect(String),
    /// The server and this client do not agree on TLS, or on who they are: another attempt would end alike.
    Tls(String),
    /// A phase took longer than allowed.
    Timeout {
        /// The phase.
        phase: Phase,
        /// How long it was allowed to take.
        after: Duration,
    },
    /// The connection broke before the answer was complete.
    Reset(String),
    /// The body ended early.
    Truncated {
        /// The bytes that arrived.
        received: u64,
        /// The bytes that the answer announced.
        expected: u64,
    },
    /// The answer is not what HTTP or S3 allows.
    Protocol(String),
    /// The server answered with an error.
    Status {
        /// The HTTP status.
        status: u16,
        /// The S3 error code.
        code: Option<String>,
        /// The server's message.
        message: Option<String>,
    },
    /// The server wants the request made elsewhere, which is never a success.
    Redirect {
        /// The HTTP status.
        status: u16,
        /// The S3 error code.
        code: Option<String>,
        /// The region of the bucket.
        region: Option<String>,
        /// The host that the server names.
        host: Option<String>,
    },
    /// The object is no longer the version that the read is bound to.
    Modified {
        /// What the read is bound to.
        expected: String,
        /// What the server has.
        found: String,
    },
    /// The answer does not fit the buffer; nothing of it was read.
    BufferTooSmall {
        /// The bytes needed.
        needed: u64,
        /// The bytes there are.
        have: u64,
    },
    /// The range begins past the end of the object.
    RangeNotSatisfiable {
        /// The size of the object.
        size: Option<u64>,
    },
    /// RDMA did not deliver.
    Rdma {
        /// Why RDMA was not possible.
        reason: Reason,
        /// What the fabric or the server said.
        detail: String,
    },
    /// CUDA did not do its part: the bytes did not reach the device.
    Cuda(String),
    /// The host service has ended, or cannot be reached.
    Service(String),
    /// The host service's rules do not allow it.
    Denied(String),
    /// The bytes do not have the object's checksum.
    Checksum(Mismatch),
    /// No checksum has shown that the bytes are right, which was required.
    NotVerified(Unverified),
    /// The caller cancelled.
    Cancelled,
    /// The caller's deadline passed.
    Deadline,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Config(text) => write!(f, "{}", Printable(text)),
            ErrorKind::Credentials(text) => write!(f, "no credentials: {}", Printable(text)),
            ErrorKind::Connect(text) => write!(f, "cannot connect: {}", Printable(text)),
            ErrorKind::Tls(text) => write!(f, "no TLS: {}", Printable(text)),
            ErrorKind::Timeout { phase, after } => {
                let what = match phase {
                    Phase::Resolve => "host name not resolved within",
                    Phase::Connect => "not connected within",
                    Phase::Tls => "no TLS session within",
                    Phase::Send => "request not sent within",
                    Phase::FirstByte => "no answer within",
                    Phase::Body => "body stalled for",
                };
                write!(f, "timeout: {what} {after:?}")
            }
            ErrorKind::Reset(text) => write!(f, "connection lost: {}", Printable(text)),
            ErrorKind::Truncated { received, expected } => {
                write!(f, "body ended after {received} of {expected} bytes")
            }
            ErrorKind::Protocol(text) => write!(f, "bad answer: {}", Printable(text)),
            ErrorKind::Status { status, code, .. } => fmt_status(f, *status, code.as_deref()),
            ErrorKind::Redirect {
                status,
                code,
                region,
                host,
            } => {
                fmt_status(f, *status, code.as_deref())?;
                f.write_str(", the bucket is served elsewhere")?;
                if let Some(region) = region {
                    write!(f, ", region {}", Printable(region))?;
                }
                if let Some(host) = host {
                    write!(f, ", host {}", Printable(host))?;
                }
                Ok(())
            }
            ErrorKind::Modified { expected, found } => {
                let (expected, found) = (Printable(expected), Printable(found));
                write!(
                    f,
                    "object changed during the transfer: expected {expected}, found {found}"
                )
            }
            ErrorKind::BufferTooSmall { needed, have } => {
                write!(f, "buffer too small: {needed} bytes needed, {have} there")
            }
            ErrorKind::RangeNotSatisfiable { size: Some(size) } => {
                write!(f, "416 InvalidRange, the object has {size} bytes")
            }
            ErrorKind::RangeNotSatisfiable { size: None } => f.write_str("416 InvalidRange"),
            ErrorKind::Rdma { reason, detail } => write!(f, "{reason}: {}", Printable(detail)),
            ErrorKind::Cuda(text) => write!(f, "CUDA: {}", Printable(text)),
            ErrorKind::Service(text) => write!(f, "host service: {}", Printable(text)),
            ErrorKind::Denied(text) => write!(f, "denied by the host service: {}", Printable(text)),
            ErrorKind::Checksum(Mismatch { expected, found }) => write!(
                f,
                "checksum {}: the object has {}, the bytes that came have {}",
                expected.algorithm(),
                expected.to_base64(),
                found.to_base64()
            ),
            ErrorKind::NotVerified(why) => {
                write!(
                    f,
                    "a checksum is required and has shown nothing: {}",
                    why.why()
                )
            }
            ErrorKind::Cancelled => f.write_str("cancelled"),
            ErrorKind::Deadline => f.write_str("deadline passed"),
        }
    }
}

impl std::error::Error for ErrorKind {}

fn fmt_status(f: &mut fmt::Formatter<'_>, status: u16, code: Option<&str>) -> fmt::Result {
    match (code, StatusCode::from_u16(status)) {
        (Some(code), _) => write!(f, "{status} {}", Printable(code)),
        (None, Ok(known)) => write!(
            f,
            "{status} {}",
            known.canonical_reason().unwrap_or("(no code)")
        ),
        (None, Err(_)) => write!(f, "{status}"),
    }
}

/// Text from outside, on one line: control characters are shown, not obeyed.
pub(super) struct Printable<'a>(pub(super) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let mut chars = part.chars();
            match chars.next_back() {
                Some(last) if last.is_control() => {
                    write!(f, "{}{}", chars.as_str(), last.escape_default())?;
                }
                _ => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

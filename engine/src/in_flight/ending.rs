//! What the end of a request tells of the endpoint: pure.

use s3engine_s3::Reason;
use s3engine_s3::error::{Error, ErrorKind, Phase};

use super::adapt::{Cause, Ending};

impl Ending {
    /// `None` where it tells nothing: the server may not even have been asked.
    pub(crate) fn of(result: Result<u64, &Error>) -> Option<Ending> {
        let error = match result {
            Ok(bytes) => return Some(Ending::Served { bytes }),
            Err(error) => error,
        };
        let refused = |cause| {
            let retry_after = error.retry_after();
            Some(Ending::Refused { cause, retry_after })
        };
        if says_slow_down(error) {
            return refused(Cause::SlowDown);
        }
        match error.kind() {
            _ if error.reason() == Reason::RdmaTimeout => refused(Cause::Timeout),
            ErrorKind::Timeout { .. } => refused(Cause::Timeout),
            // What broke off within a body had been served until then.
            ErrorKind::Truncated { .. } => Some(Ending::Answered),
            ErrorKind::Reset(_) if error.phase() == Some(Phase::Body) => Some(Ending::Answered),
            ErrorKind::Connect(_) | ErrorKind::Reset(_) => refused(Cause::Lost),
            ErrorKind::Config(_)
            | ErrorKind::Cuda(_)
            | ErrorKind::Service(_)
            | ErrorKind::Denied(_)
            | ErrorKind::Cancelled
            | ErrorKind::Deadline => None,
            _ => error.status().map(|_| Ending::Answered),
        }
    }
}

/// Answers of a server, or of what stands before it, that has too much to do. A 500 is not one of them: it may be of
/// one object.
fn says_slow_down(error: &Error) -> bool {
    const CODES: [&str; 7] = [
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    ];
    matches!(error.status(), Some(429 | 502 | 503 | 504))
        || error.code().is_some_and(|code| CODES.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn cause(error: Error) -> Option<Cause> {
        match Ending::of(Err(&error)) {
            Some(Ending::Refused { cause, .. }) => Some(cause),
            _ => None,
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new("GET", "b", "k", kind)
    }

    fn status(status: u16, code: Option<&str>) -> Error {
        error(ErrorKind::Status {
            status,
            code: code.map(str::to_owned),
            message: None,
        })
    }

    #[test]
    fn an_overload_is_told_by_the_status_or_by_the_code() {
        for code in [429, 502, 503, 504] {
            assert_eq!(cause(status(code, None)), Some(Cause::SlowDown), "{code}");
        }
        let by_code = status(400, Some("RequestLimitExceeded"));
        assert_eq!(cause(by_code), Some(Cause::SlowDown));
        let asked = Some(Duration::from_secs(3));
        let ending = Ending::of(Err(&status(503, None).with_retry_after(asked)));
        let (cause, retry_after) = (Cause::SlowDown, asked);
        assert_eq!(ending, Some(Ending::Refused { cause, retry_after }));
    }

    #[test]
    fn silence_and_broken_connections_are_told_apart() {
        let (phase, after) = (Phase::FirstByte, Duration::from_secs(1));
        let timeout = || error(ErrorKind::Timeout { phase, after });
        assert_eq!(cause(timeout()), Some(Cause::Timeout));
        assert_eq!(
            cause(timeout().with_reason(Reason::RdmaTimeout)),
            Some(Cause::Timeout)
        );
        let reset = || error(ErrorKind::Reset("reset".into()));
        for lost in [error(ErrorKind::Connect("refused".into())), reset()] {
            assert_eq!(cause(lost), Some(Cause::Lost));
        }
        let (received, expected) = (1, 2);
        let truncated = error(ErrorKind::Truncated { received, expected });
        for broken_off in [truncated, reset().with_phase(Phase::Body)] {
            assert_eq!(Ending::of(Err(&broken_off)), Some(Ending::Answered));
        }
    }

    #[test]
    fn what_an_object_is_to_blame_for_is_an_answer_and_what_nobody_was_asked_tells_nothing() {
        for answer in [
            status(404, Some("NoSuchKey")),
            status(500, None),
            status(403, None),
        ] {
            assert_eq!(Ending::of(Err(&answer)), Some(Ending::Answered));
        }
        for kind in [
            ErrorKind::Cancelled,
            ErrorKind::Deadline,
            ErrorKind::Config("x".into()),
        ] {
            assert_eq!(Ending::of(Err(&error(kind))), None);
        }
        assert_eq!(Ending::of(Ok(7)), Some(Ending::Served { bytes: 7 }));
    }
}

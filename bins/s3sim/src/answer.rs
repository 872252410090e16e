//! One answer, before it is sent: status, headers, body, and how its delivery goes wrong.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::faults::Action;
use crate::pace::Pace;
use crate::s3_error::S3Error;
use crate::store::{Object, Source};

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// What `Content-Length` says; the body's length, unless HEAD or a fault has it otherwise.
    pub length: u64,
    pub body: Body,
    /// Whether the connection ends with this answer.
    pub close: bool,
    pub delivery: Delivery,
    /// How fast the body goes out.
    pub pace: Pace,
}

/// The bytes after the head.
#[derive(Debug)]
pub(crate) enum Body {
    Bytes(Vec<u8>),
    Object {
        source: Source,
        first: u64,
        len: u64,
    },
}

/// The part of an object that an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: u64,
    pub len: u64,
    /// Whether the request named it, so that the answer is a 206.
    pub ranged: bool,
}

/// How an answer is delivered; all absent for an honest one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Nothing is sent until the client closes the connection.
    pub silent: bool,
    /// A pause before the head.
    pub delay: Duration,
    /// A pause after so many bytes of the body.
    pub pause: Option<(u64, Duration)>,
    /// Length of one piece of the body, and the pause after it.
    pub piece: Option<(u64, Duration)>,
    pub end: Option<End>,
}

/// An end of the connection that comes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Bytes of the body that are sent before; none of the answer where absent.
    pub after: Option<u64>,
    /// RST instead of FIN.
    pub reset: bool,
}

impl Answer {
    pub fn empty(status: u16) -> Answer {
        Answer::bytes(status, Vec::new())
    }

    pub fn text(status: u16, content_type: &str, text: String) -> Answer {
        Answer::bytes(status, text.into_bytes()).with("Content-Type", content_type)
    }

    pub fn error(error: &S3Error, resource: &str, request_id: &str) -> Answer {
        let xml = error.to_xml(resource, request_id);
        let mut answer = Answer::text(error.status, "application/xml", xml);
        answer.headers.extend(error.headers.iter().cloned());
        answer
    }

    /// The object's bytes in the body.
    pub fn object(object: &Object, span: Span) -> Answer {
        let status = if span.ranged { 206 } else { 200 };
        let mut answer = Answer::empty(status).about(object);
        answer.length = span.len;
        answer.body = Body::Object {
            source: object.source.clone(),
            first: span.first,
            len: span.len,
        };
        answer
            .headers
            .push(("Content-Type".into(), "binary/octet-stream".into()));
        answer.with_content_range(object, span)
    }

    fn bytes(status: u16, body: Vec<u8>) -> Answer {
        Answer {
            status,
            headers: Vec::with_capacity(12),
            length: body.len() as u64,
            body: Body::Bytes(body),
            close: false,
            delivery: Delivery::default(),
            pace: Pace::default(),
        }
    }

    /// Adds a header.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Answer {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    /// Adds what every answer about an object says.
    pub fn about(self, object: &Object) -> Answer {
        self.with("ETag", &object.etag)
            .with("Last-Modified", httpdate::fmt_http_date(object.modified))
            .with("Accept-Ranges", "bytes")
    }

    /// Adds `Content-Range` where the answer is about a part.
    pub fn with_content_range(self, object: &Object, span: Span) -> Answer {
        if !span.ranged || span.len == 0 {
            return self;
        }
        let last = span.first.saturating_add(span.len - 1);
        self.with(
            "Content-Range",
            format!("bytes {}-{last}/{}", span.first, object.size),
        )
    }

    /// Leaves the body away, as for HEAD; `Content-Length` stays.
    pub fn without_body(mut self) -> Answer {
        self.body = Body::Bytes(Vec::new());
        self
    }

    /// The text of the head.
    pub fn head(&self) -> Vec<u8> {
        let mut text = String::with_capacity(512);
        let _ = write!(text, "HTTP/1.1 {} {}\r\n", self.status, phrase(self.status));
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let date = httpdate::fmt_http_date(SystemTime::now());
        let _ = write!(text, "Date: {date}\r\nContent-Length: {}\r\n", self.length);
        text.push_str(if self.close {
            "Connection: close\r\n\r\n"
        } else {
            "\r\n"
        });
        text.into_bytes()
    }

    /// Has the fault shape how the answer goes out.
    pub fn misdeliver(mut self, fault: &Action) -> Answer {
        let delivery = &mut self.delivery;
        match *fault {
            Action::NeverAnswer => delivery.silent = true,
            Action::AnswerLate { ms } | Action::Stall { after: None, ms } => {
                delivery.delay = Duration::from_millis(ms);
            }
            Action::Stall {
                after: Some(after),
                ms,
            } => {
                delivery.pause = Some((after, Duration::from_millis(ms)));
            }
            Action::Trickle { bytes, ms } => {
                delivery.piece = Some((bytes, Duration::from_millis(ms)));
            }
            Action::Cut { after } => {
                delivery.end = Some(End {
                    after,
                    reset: false,
                })
            }
            Action::Reset { after } => delivery.end = Some(End { after, reset: true }),
            Action::WrongLength { delta } => {
                self.length = self.length.saturating_add_signed(delta);
                // All of the body, then FIN, which no header announces.
                let after = Some(u64::MAX);
                delivery.end = Some(End {
                    after,
                    reset: false,
                });
            }
            _ => {}
        }
        self
    }
}

impl Body {
    pub fn len(&self) -> u64 {
        match self {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::Object { len, .. } => *len,
        }
    }
}

impl Delivery {
    /// How much of a body of `len` bytes is sent at all.
    pub fn limit(&self, len: u64) -> u64 {
        self.end
            .and_then(|end| end.after)
            .map_or(len, |after| after.min(len))
    }

    /// Where sending stops next, after `at` bytes of a body that is sent up to `limit`; and the
    /// pause there.
    pub fn next_stop(&self, at: u64, limit: u64) -> (u64, Duration) {
        let mut stop = (limit, Duration::ZERO);
        if let Some((bytes, pause)) = self.piece
            && at.saturating_add(bytes) < limit
        {
            stop = (at + bytes, pause);
        }
        match self.pause {
            Some((after, pause)) if at < after && after <= stop.0 && after < limit => {
                (after, pause)
            }
            _ => stop,
        }
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_says_length_and_close() {
        let mut answer = Answer::text(404, "text/plain", "abc".into());
        answer.close = true;
        let head = String::from_utf8(answer.head()).unwrap();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n"));
        assert!(head.ends_with("\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn a_pause_comes_exactly_once_and_after_its_bytes() {
        let second = Duration::from_secs(1);
        let delivery = Delivery {
            pause: Some((10, second)),
            ..Delivery::default()
        };
        assert_eq!(delivery.next_stop(0, 100), (10, second));
        assert_eq!(delivery.next_stop(10, 100), (100, Duration::ZERO));
        assert_eq!(delivery.next_stop(0, 10), (10, Duration::ZERO));
    }

    proptest! {
        #[test]
        fn stops_advance_to_the_limit_and_never_beyond(
            len in 0..500_u64, piece in 1..50_u64, pause in 0..600_u64, end in 0..600_u64,
        ) {
            let tick = Duration::from_millis(1);
            let delivery = Delivery {
                piece: Some((piece, tick)),
                pause: Some((pause, tick)),
                end: Some(End { after: Some(end), reset: false }),
                ..Delivery::default()
            };
            let limit = delivery.limit(len);
            prop_assert_eq!(limit, len.min(end));
            let mut at = 0;
            while at < limit {
                let (stop, _) = delivery.next_stop(at, limit);
                prop_assert!(stop > at && stop <= limit && stop - at <= piece);
                at = stop;
            }
        }
    }
}

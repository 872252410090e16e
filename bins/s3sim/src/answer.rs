//! One answer, before it is sent: status, headers, body, and how its delivery goes wrong.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

use crate::delivery::{Delivery, Wrapping};
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
    /// Headers to tell instead, and names of headers to leave out.
    pub altered: Option<Box<Altered>>,
    /// What time it is for the server.
    pub date: SystemTime,
    /// How fast the body goes out.
    pub pace: Pace,
}

/// Headers to tell instead, and names of headers to leave out.
pub(crate) type Altered = (BTreeMap<String, String>, Vec<String>);

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
            altered: None,
            date: SystemTime::now(),
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
        let mut line = |name: &str, value: &str| {
            let _ = write!(text, "{name}: {value}\r\n");
        };
        let mut own = |name: &str, value: &str| {
            if !self.is_altered(name) {
                line(name, value);
            }
        };
        for (name, value) in &self.headers {
            own(name, value);
        }
        own("Date", &httpdate::fmt_http_date(self.date));
        match self.delivery.wrapping {
            Some(Wrapping::Chunks { .. }) => own("Transfer-Encoding", "chunked"),
            _ => own("Content-Length", &self.length.to_string()),
        }
        if self.close {
            own("Connection", "close");
        }
        for (name, value) in self.altered.iter().flat_map(|altered| &altered.0) {
            line(name, value);
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    fn is_altered(&self, name: &str) -> bool {
        self.altered.as_ref().is_some_and(|altered| {
            let mut names = altered.0.keys().chain(&altered.1);
            names.any(|other| other.eq_ignore_ascii_case(name))
        })
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

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
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

    #[test]
    fn altered_headers_replace_what_any_case_names() {
        let mut answer = Answer::text(200, "text/plain", "abc".into());
        let set = BTreeMap::from([("content-length".to_owned(), "x".to_owned())]);
        answer.altered = Some(Box::new((set, vec!["DATE".into(), "content-type".into()])));
        let head = String::from_utf8(answer.head()).unwrap();
        assert_eq!(head, "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n");
    }

    #[test]
    fn a_head_says_length_and_close() {
        let mut answer = Answer::text(404, "text/plain", "abc".into());
        answer.close = true;
        let head = String::from_utf8(answer.head()).unwrap();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n"));
        assert!(head.ends_with("\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"));
    }
}

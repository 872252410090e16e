//! The head of one HTTP/1.1 request: bounded, parsed once, owned.

/// The longest head that is read.
pub(crate) const HEAD_LIMIT: usize = 16 * 1024;

const HEADER_LIMIT: usize = 100;

/// A parsed request head.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub method: String,
    /// The path as received, still encoded.
    pub path: String,
    /// The query as received, without its `?`.
    pub query: String,
    /// Lower-case names and values as received, in order.
    pub headers: Vec<(String, String)>,
    /// Whether the client wants the connection kept.
    pub keep_alive: bool,
    /// Whether a body follows the head.
    pub has_body: bool,
}

/// What a buffer of received bytes holds.
pub(crate) enum Parsed {
    /// Not yet a whole head.
    Partial,
    /// A head, and its length in bytes.
    Complete(Box<Request>, usize),
}

/// A head that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error(
        "the request head is longer than {HEAD_LIMIT} bytes or has over {HEADER_LIMIT} headers"
    )]
    TooLong,
    #[error("the request head is not HTTP/1: {0}")]
    Malformed(httparse::Error),
    #[error("a header value is not UTF-8")]
    NotText,
    #[error("the request target is not a path")]
    Target,
    #[error("Content-Length is not a number")]
    Length,
}

/// Reads a head from the start of `buffer`.
pub(crate) fn parse(buffer: &[u8]) -> Result<Parsed, HeadError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_LIMIT];
    let mut head = httparse::Request::new(&mut headers);
    let len = match head.parse(buffer) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if buffer.len() < HEAD_LIMIT => return Ok(Parsed::Partial),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError::TooLong);
        }
        Err(error) => return Err(HeadError::Malformed(error)),
    };
    let target = head.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(HeadError::Target);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = head
        .headers
        .iter()
        .map(|h| Some((h.name, std::str::from_utf8(h.value).ok()?)));
    let headers = headers
        .map(|h| h.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())))
        .collect::<Option<Vec<_>>>()
        .ok_or(HeadError::NotText)?;
    let mut request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        keep_alive: head.version == Some(1),
        has_body: false,
    };
    request.keep_alive &= !request.header_has("connection", "close");
    request.has_body = request.body_follows()?;
    Ok(Parsed::Complete(Box::new(request), len))
}

impl Request {
    /// The value of the first header of that (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.trim())
    }

    fn header_has(&self, name: &str, word: &str) -> bool {
        let values = self.headers.iter().filter(|(n, _)| n == name);
        values
            .flat_map(|(_, v)| v.split(','))
            .any(|v| v.trim().eq_ignore_ascii_case(word))
    }

    fn body_follows(&self) -> Result<bool, HeadError> {
        let length = match self.header("content-length") {
            Some(text) => text.parse::<u64>().map_err(|_| HeadError::Length)?,
            None => 0,
        };
        Ok(length > 0 || self.header("transfer-encoding").is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(text: &str) -> (Box<Request>, usize) {
        match parse(text.as_bytes()) {
            Ok(Parsed::Complete(request, len)) => (request, len),
            Ok(Parsed::Partial) => panic!("partial"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_head_is_split_into_its_parts() {
        let text = "GET /b/a%20b?x=1&y HTTP/1.1\r\nHost: h:1\r\nX-Amz-Date:  d \r\n\r\nGET";
        let (request, len) = complete(text);
        assert_eq!(len, text.len() - 3);
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("GET", "/b/a%20b")
        );
        assert_eq!(request.query, "x=1&y");
        assert_eq!(request.header("x-amz-date"), Some("d"));
        assert!(request.keep_alive && !request.has_body);
    }

    #[test]
    fn close_and_bodies_are_noticed() {
        assert!(
            !complete("GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n")
                .0
                .keep_alive
        );
        assert!(!complete("GET / HTTP/1.0\r\n\r\n").0.keep_alive);
        assert!(
            complete("PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
                .0
                .has_body
        );
        assert!(
            complete("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
                .0
                .has_body
        );
        assert!(
            !complete("GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
                .0
                .has_body
        );
    }

    #[test]
    fn bad_heads_are_errors() {
        let error = |text: &[u8]| parse(text).err();
        assert!(matches!(
            error(b"\x16\x03\x01 hello\r\n\r\n"),
            Some(HeadError::Malformed(_))
        ));
        assert_eq!(
            error(b"GET http://h/ HTTP/1.1\r\n\r\n"),
            Some(HeadError::Target)
        );
        assert_eq!(
            error(b"GET / HTTP/1.1\r\na: \xff\r\n\r\n"),
            Some(HeadError::NotText)
        );
        assert_eq!(
            error(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"),
            Some(HeadError::Length)
        );
        assert_eq!(error(&[b'G'; HEAD_LIMIT]), Some(HeadError::TooLong));
        assert!(matches!(parse(b"GET / HT"), Ok(Parsed::Partial)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}

//! Heads of HTTP/1.1 messages: a request as bytes, an answer from bytes. Pure.

use bytes::{Buf, Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use httparse::{EMPTY_HEADER, Status};

/// The longest head of an answer.
pub(super) const LONGEST_HEAD: usize = 64 << 10;
/// The most headers of an answer.
pub(super) const MOST_HEADERS: usize = 100;

/// A request without a body, as it is sent. The headers name the host.
pub(super) fn request(method: &Method, target: &str, headers: &HeaderMap) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    bytes.extend_from_slice(method.as_str().as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(target.as_bytes());
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Of HTTP/1.0, which knows of no chunks.
    pub(super) is_old: bool,
    /// Whether the server takes another request after this answer.
    pub(super) keeps_alive: bool,
}

/// Takes the head of the answer from the beginning of what has come, and those that only tell of it before (1xx).
/// `None`: more has to come. An error says what is wrong with it.
pub(super) fn take(input: &mut BytesMut) -> Result<Option<Head>, String> {
    loop {
        let found = parse(input)?;
        let len = found.as_ref().map_or(input.len(), |(_, len)| *len);
        if len > LONGEST_HEAD {
            return Err(format!("its head is longer than {LONGEST_HEAD} bytes"));
        }
        let Some((head, len)) = found else {
            return Ok(None);
        };
        input.advance(len);
        // Nobody asked for another protocol (101); what then comes is none of this one.
        if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Some(head));
        }
    }
}

fn parse(input: &[u8]) -> Result<Option<(Head, usize)>, String> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let len = match answer.parse(input) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let code = answer.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| format!("status {code}"))?;
    // One allocation for all of them.
    let bytes = Bytes::copy_from_slice(&input[..len]);
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    for header in answer.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|e| e.to_string())?;
        let start = header.value.as_ptr() as usize - input.as_ptr() as usize;
        let value = bytes.slice(start..start + header.value.len());
        let value = HeaderValue::from_maybe_shared(value).map_err(|e| e.to_string())?;
        headers.append(name, value);
    }
    let is_old = answer.version == Some(0);
    let head = Head {
        status,
        is_old,
        keeps_alive: keeps_alive(is_old, &headers),
        headers,
    };
    Ok(Some((head, len)))
}

fn keeps_alive(is_old: bool, headers: &HeaderMap) -> bool {
    let says = |wanted: &str| {
        let values = headers.get_all(CONNECTION).into_iter();
        let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    !says("close") && (!is_old || says("keep-alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &[u8]) -> Result<Option<Head>, String> {
        take(&mut BytesMut::from(text))
    }

    fn complete(text: &str) -> Head {
        head(text.as_bytes()).unwrap().expect(text)
    }

    #[test]
    fn a_request_is_its_line_its_headers_and_an_empty_line() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("h:9000"));
        headers.insert("range", HeaderValue::from_static("bytes=0-1"));
        let target = "/b/k%20?versionId=1";
        assert_eq!(
            request(&Method::GET, target, &headers),
            b"GET /b/k%20?versionId=1 HTTP/1.1\r\nhost: h:9000\r\nrange: bytes=0-1\r\n\r\n"
        );
    }

    #[test]
    fn a_head_ends_where_its_body_begins() {
        let mut input =
            BytesMut::from("HTTP/1.1 206 Some Of It\r\nETag: \"a\"\r\netag: b\r\nx:\r\n\r\nbody");
        let head = take(&mut input).unwrap().unwrap();
        assert_eq!(head.status, StatusCode::PARTIAL_CONTENT);
        let etags: Vec<_> = head.headers.get_all("etag").iter().collect();
        assert_eq!(etags, ["\"a\"", "b"]);
        assert_eq!(head.headers["x"], "");
        assert_eq!(&input[..], b"body");
    }

    #[test]
    fn what_only_tells_of_an_answer_is_not_one() {
        let head = complete(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        );
        assert_eq!((head.status.as_u16(), head.headers.len()), (200, 0));
        assert!(
            self::head(b"HTTP/1.1 100 Continue\r\n\r\n")
                .unwrap()
                .is_none()
        );
        let other = complete("HTTP/1.1 101 Switching Protocols\r\n\r\n\x16\x03\x01");
        assert_eq!(other.status.as_u16(), 101);
    }

    #[test]
    fn a_server_says_whether_it_takes_another_request() {
        for (text, keeps) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection: Close\r\n\r\n", false),
            (
                "HTTP/1.1 200 OK\r\nconnection: x , close\r\nconnection: keep-alive\r\n\r\n",
                false,
            ),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n", true),
        ] {
            assert_eq!(complete(text).keeps_alive, keeps, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_head_is_refused() {
        for text in [
            "SSH-2.0-OpenSSH_9.9\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\nna me: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname : x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname: x\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname: a\0b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname: a\rb\r\n\r\n",
        ] {
            assert!(head(text.as_bytes()).is_err(), "{text:?}");
        }
        let many = "x: y\r\n".repeat(MOST_HEADERS + 1);
        assert!(head(format!("HTTP/1.1 200 OK\r\n{many}\r\n").as_bytes()).is_err());
        let long = "x".repeat(LONGEST_HEAD);
        let error = head(format!("HTTP/1.1 200 OK\r\nx: {long}").as_bytes()).unwrap_err();
        assert!(error.contains("65536"), "{error}");
    }

    #[test]
    fn the_beginning_of_a_head_is_no_head() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nETag: \"abcdefg\"\r\n\r\n";
        for cut in 0..text.len() {
            assert!(head(&text[..cut]).unwrap().is_none(), "{cut}");
        }
    }
}

//! Where the body of an answer ends, and which of the bytes that come are the object's. Pure.

use bytes::{Buf, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode};
use httparse::{EMPTY_HEADER, Status};

use super::answer::content_length;
use super::head::{Head, MOST_HEADERS};
use crate::error::ErrorKind;

/// The longest line that says how long a chunk is.
const LONGEST_LINE: usize = 4 << 10;
/// The most bytes of trailers, which say nothing that is needed.
const LONGEST_TRAILERS: usize = 16 << 10;

/// How the rest of a body is marked off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Pieces with their lengths before them.
    Chunks(Chunks),
    /// All until the server closes.
    UntilClose,
}

/// What comes next in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The line's end behind a chunk.
    DataEnd,
    Trailers,
    End,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// At least so many bytes of the object, one or more: first what has come already, then what the socket brings.
    Data(u64),
    /// More has to come before that can be told.
    More,
    /// Nothing.
    End,
}

impl Framing {
    /// How the answer to a request marks its body off. An error says why that cannot be told.
    pub(super) fn of(method: &Method, head: &Head) -> Result<Framing, ErrorKind> {
        let Head {
            status, headers, ..
        } = head;
        let bodiless = matches!(*status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if *method == Method::HEAD || bodiless || status.is_informational() {
            return Ok(Framing::Length(0));
        }
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next() {
            let name = coding.as_bytes().trim_ascii();
            let is_chunked = name.eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
            if !is_chunked || head.is_old {
                let text = format!("a body in Transfer-Encoding {coding:?}");
                return Err(ErrorKind::Protocol(text));
            }
            return Ok(Framing::Chunks(Chunks::Size));
        }
        let length = content_length(headers)?;
        Ok(length.map_or(Framing::UntilClose, Framing::Length))
    }

    /// Whether the connection serves another request, if it has not ended with this body.
    pub(super) fn leaves_open(self, head: &Head) -> bool {
        // With both headers, somebody in between may see the body end elsewhere.
        let is_clear =
            !matches!(self, Framing::Chunks(_)) || !head.headers.contains_key(CONTENT_LENGTH);
        let is_http = head.status != StatusCode::SWITCHING_PROTOCOLS;
        head.keeps_alive && is_clear && is_http
    }

    /// Whether the body has ended before the connection does.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunks(Chunks::End))
    }

    /// What comes next, where `input` is what has come and was not taken. Takes of it what is not the object's.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Result<Next, &'static str> {
        match self {
            Framing::Length(0) => Ok(Next::End),
            Framing::Length(left) => Ok(Next::Data(*left)),
            Framing::Chunks(chunks) => chunks.next(input),
            Framing::UntilClose if input.is_empty() => Ok(Next::More),
            Framing::UntilClose => Ok(Next::Data(input.len() as u64)),
        }
    }

    /// So many bytes of the object were taken, no more than [`next`](Self::next) has announced.
    pub(super) fn took(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        match self {
            Framing::Length(left) => *left = left.saturating_sub(bytes),
            Framing::Chunks(chunks @ Chunks::Data(_)) => chunks.took(bytes),
            Framing::Chunks(_) | Framing::UntilClose => {}
        }
    }
}

impl Chunks {
    fn next(&mut self, input: &mut BytesMut) -> Result<Next, &'static str> {
        loop {
            let (len, then) = match self {
                Chunks::Data(left) => return Ok(Next::Data(*left)),
                Chunks::End => return Ok(Next::End),
                Chunks::Size => match size(input)? {
                    Some((len, 0)) => (len, Chunks::Trailers),
                    Some((len, size)) => (len, Chunks::Data(size)),
                    None => return Ok(Next::More),
                },
                Chunks::DataEnd => match &input[..] {
                    [b'\r', b'\n', ..] => (2, Chunks::Size),
                    [] | [b'\r'] => return Ok(Next::More),
                    _ => return Err("a chunk longer than it says"),
                },
                Chunks::Trailers => match trailers(input)? {
                    Some(len) => (len, Chunks::End),
                    None => return Ok(Next::More),
                },
            };
            input.advance(len);
            *self = then;
        }
    }

    fn took(&mut self, bytes: u64) {
        if let Chunks::Data(left) = self {
            *self = match left.saturating_sub(bytes) {
                0 => Chunks::DataEnd,
                left => Chunks::Data(left),
            };
        }
    }
}

/// Length of the line at the beginning, and of the chunk behind it.
fn size(input: &[u8]) -> Result<Option<(usize, u64)>, &'static str> {
    // The parser takes a line without a digit for the last chunk.
    if input
        .first()
        .is_some_and(|first| !first.is_ascii_hexdigit())
    {
        return Err("a chunk without a size");
    }
    let found = match httparse::parse_chunk_size(input) {
        Ok(Status::Complete(found)) => Some(found),
        Ok(Status::Partial) => None,
        Err(_) => return Err("a chunk's size that is none"),
    };
    match found.map_or(input.len(), |(len, _)| len) {
        0..=LONGEST_LINE => Ok(found),
        _ => Err("a chunk's size in too long a line"),
    }
}

/// Length of the trailers at the beginning, with the empty line behind them.
fn trailers(input: &[u8]) -> Result<Option<usize>, &'static str> {
    let found = match httparse::parse_headers(input, &mut [EMPTY_HEADER; MOST_HEADERS]) {
        Ok(Status::Complete((len, _))) => Some(len),
        Ok(Status::Partial) => None,
        Err(_) => return Err("trailers that are none"),
    };
    match found.unwrap_or(input.len()) {
        0..=LONGEST_TRAILERS => Ok(found),
        _ => Err("trailers that are too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::head;
    use super::*;
    use proptest::prelude::*;

    fn of(method: &Method, text: &str) -> Result<(Framing, bool), ErrorKind> {
        let head = head::take(&mut BytesMut::from(text)).unwrap().expect(text);
        let framing = Framing::of(method, &head)?;
        Ok((framing, framing.leaves_open(&head)))
    }

    fn get(lines: &str) -> Result<(Framing, bool), ErrorKind> {
        of(&Method::GET, &format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))
    }

    #[test]
    fn the_head_says_where_the_body_ends() {
        let chunks = Framing::Chunks(Chunks::Size);
        assert_eq!(get("content-length: 7\r\n"), Ok((Framing::Length(7), true)));
        assert_eq!(get("transfer-encoding: Chunked\r\n"), Ok((chunks, true)));
        assert_eq!(get(""), Ok((Framing::UntilClose, true)));
        let closing = "content-length: 7\r\nconnection: close\r\n";
        assert_eq!(get(closing), Ok((Framing::Length(7), false)));
        let both = "content-length: 7\r\ntransfer-encoding: chunked\r\n";
        assert_eq!(get(both), Ok((chunks, false)));
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        let none = Ok((Framing::Length(0), true));
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(of(&Method::HEAD, text), none);
        for status in ["204 No Content", "304 Not Modified"] {
            let text = format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n");
            assert_eq!(of(&Method::GET, &text), none, "{status}");
        }
        let other = of(&Method::GET, "HTTP/1.1 101 Other\r\n\r\n");
        assert_eq!(other, Ok((Framing::Length(0), false)));
    }

    #[test]
    fn an_end_that_cannot_be_told_is_refused() {
        for lines in [
            "content-length: 7\r\ncontent-length: 8\r\n",
            "content-length: 7, 7\r\n",
            "content-length: +7\r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: gzip\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            assert!(get(lines).is_err(), "{lines:?}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(of(&Method::GET, old).is_err());
    }

    /// The object's bytes of what came in pieces, and whether the body has ended; or what is wrong with it.
    fn read(mut framing: Framing, pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), &'static str> {
        let (mut input, mut object) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match framing.next(&mut input)? {
                    Next::End => return Ok((object, true)),
                    Next::More => break,
                    Next::Data(len) => {
                        let there = len.min(input.len() as u64) as usize;
                        if there == 0 {
                            break;
                        }
                        object.extend_from_slice(&input.split_to(there));
                        framing.took(there);
                    }
                }
            }
        }
        Ok((object, false))
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        let long = format!("5;{}", "x".repeat(LONGEST_LINE));
        let trailers = format!("0\r\nx: {}", "y".repeat(LONGEST_TRAILERS));
        for body in [
            "\r\n",
            ";x\r\n",
            " 5\r\n",
            "-5\r\n",
            "0x5\r\n",
            "5\nabcde",
            "10000000000000000\r\n",
            "5\r\nabcdef\r\n",
            "5\r\nabcde\n0\r\n\r\n",
            "0\r\nno trailer\r\n\r\n",
            &long,
            &trailers,
        ] {
            let found = read(Framing::Chunks(Chunks::Size), &[body.as_bytes()]);
            assert!(found.is_err(), "{body:?}: {found:?}");
        }
    }

    /// A body as a server sends it, and the object in it.
    fn body() -> impl Strategy<Value = (Framing, Vec<u8>, Vec<u8>)> {
        let object = || prop::collection::vec(any::<u8>(), 0..200);
        let plain = object()
            .prop_map(|object| (Framing::Length(object.len() as u64), object.clone(), object));
        let style = (
            any::<bool>(),
            "(;[a-z=\"]{0,9})?",
            "(x: [a-z]{0,9}\r\n){0,2}",
        );
        let chunked =
            (object(), 1..50_usize, style).prop_map(|(object, each, (upper, note, trailers))| {
                let mut body = Vec::new();
                for chunk in object.chunks(each) {
                    let size = match upper {
                        true => format!("00{:X}{note}\r\n", chunk.len()),
                        false => format!("{:x} {note}\r\n", chunk.len()),
                    };
                    body.extend_from_slice(size.as_bytes());
                    body.extend_from_slice(chunk);
                    body.extend_from_slice(b"\r\n");
                }
                body.extend_from_slice(format!("0{note}\r\n{trailers}\r\n").as_bytes());
                (Framing::Chunks(Chunks::Size), body, object)
            });
        prop_oneof![plain, chunked]
    }

    /// Pieces between cuts at any places.
    fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        places
            .windows(2)
            .map(|pair| &bytes[pair[0]..pair[1]])
            .collect()
    }

    proptest! {
        #[test]
        fn a_body_in_any_pieces_is_its_object_and_ends_with_its_last_byte(
            (framing, body, object) in body(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            end in any::<prop::sample::Index>(),
        ) {
            // An empty piece at the end: a body of no bytes ends before any comes.
            let mut all = pieces(&body, &cuts);
            all.push(&[]);
            prop_assert_eq!(read(framing, &all), Ok((object.clone(), true)));

            let beginning = &body[..end.index(body.len().max(1))];
            let (found, ended) = read(framing, &pieces(beginning, &cuts)).unwrap();
            prop_assert!(object.starts_with(&found));
            prop_assert!(!ended || beginning.len() == body.len());
        }

        #[test]
        fn whatever_comes_means_the_same_in_any_pieces(
            bytes in prop_oneof!["[0-9a-f\r\n; x:]{0,60}", "([0-3]\r\n[0-3\r\n]{0,3}){0,9}"],
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let chunks = Framing::Chunks(Chunks::Size);
            let bytes = bytes.as_bytes();
            prop_assert_eq!(read(chunks, &[bytes]), read(chunks, &pieces(bytes, &cuts)));
        }
    }
}

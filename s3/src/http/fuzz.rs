//! Entry point for fuzzers: answers of any bytes, in any pieces.

use bytes::BytesMut;
use http::Method;

use super::framing::{Framing, Next};
use super::head::{self, Head};

/// What was read of an answer.
struct Answer {
    head: Head,
    framing: Framing,
    object: Vec<u8>,
    ended: bool,
    /// What came behind the head.
    rest: Vec<u8>,
}

/// Reads an answer. The first line is not of it: the method of its request, and the length of the pieces it comes in.
/// Whether it is complete.
pub fn fuzz_response(data: &[u8]) -> bool {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
        return false;
    };
    let line = String::from_utf8_lossy(&data[..end]);
    let Some((method, piece)) = line.split_once(' ') else {
        return false;
    };
    let (Ok(method), Ok(piece)) = (method.parse::<Method>(), piece.parse::<u16>()) else {
        return false;
    };
    let bytes = &data[end + 1..];
    let whole = read(&method, bytes, bytes.len());
    let pieces = read(&method, bytes, piece.into());
    let (Some(whole), Some(pieces)) = (&whole, &pieces) else {
        assert!(whole.is_none() && pieces.is_none(), "pieces matter");
        return false;
    };
    assert_eq!(whole.head.status, pieces.head.status);
    assert_eq!(whole.head.headers, pieces.head.headers);
    assert_eq!((&whole.object, whole.ended), (&pieces.object, pieces.ended));
    check(&method, whole);
    whole.ended
}

/// `None`: it is none, or its head is not complete.
fn read(method: &Method, bytes: &[u8], piece: usize) -> Option<Answer> {
    let (mut input, mut pieces) = (BytesMut::new(), bytes.chunks(piece.max(1)));
    let head = loop {
        match head::take(&mut input).ok()? {
            Some(head) => break head,
            None => input.extend_from_slice(pieces.next()?),
        }
    };
    let start = Framing::of(method, &head).ok()?;
    let mut framing = start;
    let taken = bytes.len() - input.len() - pieces.clone().map(<[u8]>::len).sum::<usize>();
    let (mut object, mut ended) = (Vec::new(), false);
    loop {
        match framing.next(&mut input).ok()? {
            Next::Data(len) if !input.is_empty() => {
                let there = len.min(input.len() as u64) as usize;
                object.extend_from_slice(&input.split_to(there));
                framing.took(there);
            }
            Next::End => {
                ended = true;
                break;
            }
            Next::Data(_) | Next::More => match pieces.next() {
                Some(piece) => input.extend_from_slice(piece),
                None => break,
            },
        }
    }
    Some(Answer {
        head,
        framing: start,
        object,
        ended: ended || start == Framing::UntilClose,
        rest: bytes[taken..].to_vec(),
    })
}

/// The object is what a simpler reading of the whole answer finds.
fn check(method: &Method, answer: &Answer) {
    let Answer {
        object,
        ended,
        rest,
        ..
    } = answer;
    match answer.framing {
        Framing::Length(len) => {
            let there = len.min(rest.len() as u64) as usize;
            assert_eq!(
                (object, *ended),
                (&rest[..there].to_vec(), there as u64 == len)
            );
        }
        Framing::UntilClose => assert_eq!(object, rest),
        Framing::Chunks(_) if *ended => assert_eq!(Some(object), chunks(rest).as_ref()),
        Framing::Chunks(_) => {}
    }
    assert!(*method != Method::HEAD || object.is_empty());
}

/// What is in the chunks, up to the one of no bytes.
fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut object = Vec::new();
    loop {
        let line = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let size = std::str::from_utf8(&rest[..digits.count()]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(object);
        }
        let chunk = rest[line + 2..].get(..size)?;
        object.extend_from_slice(chunk);
        rest = rest[line + 2 + size..].strip_prefix(b"\r\n")?;
    }
}

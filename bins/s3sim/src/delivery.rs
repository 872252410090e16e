//! How an answer goes out: whole and at once, or as a fault has it.

use std::fmt::Write;
use std::time::Duration;

use crate::action::{Action, Garbage};
use crate::answer::{Answer, Body};

const BOUNDARY: &str = "s3sim-part";

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
    /// Which byte of the body has a bit wrong.
    pub flip: Option<u64>,
    /// What the body goes out in.
    pub wrapping: Option<Wrapping>,
    /// What is sent before the head.
    pub before: Vec<u8>,
    /// What is sent after the body.
    pub after: Vec<u8>,
}

/// An end of the connection that comes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Bytes of the body that are sent before; none of the answer where absent.
    pub after: Option<u64>,
    /// RST instead of FIN.
    pub reset: bool,
}

/// What stands around the bytes of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrapping {
    Chunks { size: u64, garbage: Option<Garbage> },
    Multipart { before: String, after: String },
}

impl Delivery {
    /// How much of a body of `len` bytes is sent at all.
    pub fn limit(&self, len: u64) -> u64 {
        self.end
            .and_then(|end| end.after)
            .map_or(len, |after| after.min(len))
    }

    /// Where sending stops next, after `at` bytes of a body that is sent up to `limit`; and the
    /// pause there. A byte with a wrong bit goes out alone.
    pub fn next_stop(&self, at: u64, limit: u64) -> (u64, Duration) {
        let mut stop = (limit, Duration::ZERO);
        if let Some((bytes, pause)) = self.piece
            && at.saturating_add(bytes) < limit
        {
            stop = (at + bytes, pause);
        }
        if let Some((after, pause)) = self.pause
            && at < after
            && after <= stop.0
            && after < limit
        {
            stop = (after, pause);
        }
        match self.flip {
            Some(flip) if at < flip && flip < stop.0 => (flip, Duration::ZERO),
            Some(flip) if at == flip && flip + 1 < stop.0 => (flip + 1, Duration::ZERO),
            _ => stop,
        }
    }

    fn end_after_all(&mut self) {
        // All of the body, then FIN, which no header announces.
        self.end = Some(End {
            after: Some(u64::MAX),
            reset: false,
        });
    }
}

impl Wrapping {
    /// The body as it goes out.
    pub fn wrap(&self, body: &[u8]) -> Vec<u8> {
        match self {
            Wrapping::Multipart { before, after } => {
                [before.as_bytes(), body, after.as_bytes()].concat()
            }
            Wrapping::Chunks { size, garbage } => chunked(body, *size, *garbage),
        }
    }
}

fn chunked(body: &[u8], size: u64, garbage: Option<Garbage>) -> Vec<u8> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut out = Vec::with_capacity(body.len() + body.len() / 64 + 64);
    for (i, chunk) in body.chunks(size).enumerate() {
        let len = match (i, garbage) {
            (1, Some(Garbage::Size)) => "5z".to_owned(),
            (1, Some(Garbage::Overflow)) => format!("f{:016x}", chunk.len()),
            (_, Some(Garbage::Long)) => format!("{:x}", chunk.len() - 1),
            _ => format!("{:x}", chunk.len()),
        };
        out.extend_from_slice(len.as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    if garbage != Some(Garbage::NoEnd) {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    out
}

impl Answer {
    /// Has the fault shape how the answer goes out.
    pub fn misdeliver(mut self, fault: &Action) -> Answer {
        let delivery = &mut self.delivery;
        let wait = Duration::from_millis;
        match fault {
            Action::NeverAnswer => delivery.silent = true,
            Action::AnswerLate { ms } | Action::Stall { after: None, ms } => {
                delivery.delay = wait(*ms);
            }
            Action::Stall {
                after: Some(after),
                ms,
            } => delivery.pause = Some((*after, wait(*ms))),
            Action::Trickle { bytes, ms } => delivery.piece = Some((*bytes, wait(*ms))),
            Action::Cut { after } | Action::Reset { after } => {
                let reset = matches!(fault, Action::Reset { .. });
                let after = *after;
                delivery.end = Some(End { after, reset });
            }
            Action::WrongLength { delta } => {
                delivery.end_after_all();
                self.length = self.length.saturating_add_signed(*delta);
            }
            Action::Flip { at } => delivery.flip = self.body.position(*at),
            Action::Headers { set, drop } => {
                let mut named = set.keys().chain(drop);
                if named.any(|name| name.eq_ignore_ascii_case("content-length")) {
                    delivery.end_after_all();
                }
                self.altered = Some(Box::new((set.clone(), drop.clone())));
            }
            Action::Chunked { size, garbage } => {
                let (size, garbage) = (*size, *garbage);
                if garbage.is_some() {
                    delivery.end_after_all();
                }
                delivery.wrapping = Some(Wrapping::Chunks { size, garbage });
            }
            Action::MultipartRange => self.make_multipart(),
            Action::Trailing { text } => delivery.after = text.clone().into_bytes(),
            Action::HeaderFlood { count, bytes } => {
                let value = "x".repeat(*bytes as usize);
                let flood = (0..*count).map(|i| (format!("x-flood-{i}").into(), value.clone()));
                self.headers.splice(0..0, flood);
            }
            Action::Interim { code, count } => {
                let one = format!("HTTP/1.1 {code} Wait\r\nx-interim: 1\r\n\r\n");
                delivery.before = one.repeat(*count as usize).into_bytes();
            }
            Action::Close => self.close = true,
            _ => {}
        }
        self
    }

    /// Has the one range of the answer go out as the only part of several; an answer without a range stays.
    fn make_multipart(&mut self) {
        let is_range = |name: &str| name == "Content-Range";
        let Some(at) = self.headers.iter().position(|(name, _)| is_range(name)) else {
            return;
        };
        let (_, range) = self.headers.remove(at);
        self.headers.retain(|(name, _)| name != "Content-Type");
        let kind = format!("multipart/byteranges; boundary={BOUNDARY}");
        self.headers.push(("Content-Type".into(), kind));
        let mut before = String::new();
        let _ = write!(
            before,
            "--{BOUNDARY}\r\nContent-Type: binary/octet-stream\r\nContent-Range: {range}\r\n\r\n"
        );
        let after = format!("\r\n--{BOUNDARY}--\r\n");
        self.length += (before.len() + after.len()) as u64;
        self.delivery.wrapping = Some(Wrapping::Multipart { before, after });
    }
}

impl Body {
    /// Where in the body the object's byte at that offset is.
    fn position(&self, offset: u64) -> Option<u64> {
        match self {
            Body::Object { first, len, .. } => {
                offset.checked_sub(*first).filter(|position| position < len)
            }
            Body::Bytes(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn chunks_say_their_lengths_unless_they_lie() {
        let body = b"abcdefgh";
        let text = |garbage| String::from_utf8(chunked(body, 5, garbage)).unwrap();
        assert_eq!(text(None), "5\r\nabcde\r\n3\r\nfgh\r\n0\r\n\r\n");
        assert_eq!(text(Some(Garbage::NoEnd)), "5\r\nabcde\r\n3\r\nfgh\r\n");
        assert!(text(Some(Garbage::Size)).contains("\r\n5z\r\nfgh"));
        assert!(text(Some(Garbage::Overflow)).contains("\r\nf0000000000000003\r\n"));
        assert!(text(Some(Garbage::Long)).starts_with("4\r\nabcde\r\n2\r\nfgh"));
        assert_eq!(chunked(b"", 5, None), b"0\r\n\r\n");
    }

    proptest! {
        #[test]
        fn stops_advance_to_the_limit_and_never_beyond(
            len in 0..500_u64, piece in 1..50_u64, pause in 0..600_u64, end in 0..600_u64, flip in 0..600_u64,
        ) {
            let tick = Duration::from_millis(1);
            let delivery = Delivery {
                piece: Some((piece, tick)),
                pause: Some((pause, tick)),
                end: Some(End { after: Some(end), reset: false }),
                flip: Some(flip),
                ..Delivery::default()
            };
            let limit = delivery.limit(len);
            prop_assert_eq!(limit, len.min(end));
            let (mut at, mut flipped) = (0, false);
            while at < limit {
                let (stop, _) = delivery.next_stop(at, limit);
                prop_assert!(stop > at && stop <= limit && stop - at <= piece);
                flipped |= at == flip;
                prop_assert!(!(at..stop).contains(&flip) || stop - at == 1);
                at = stop;
            }
            prop_assert_eq!(flipped, flip < limit);
        }
    }
}

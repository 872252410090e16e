//! What a broken attempt at a part has left in its window, and how the rest is asked for and answered. Pure rules.
//!
//! ```text
//! window  0 ........ kept ............ end
//! first   [==========x                       broke off
//! next               [===============]       what is asked for: bytes kept.. of the same version
//!         [==========================]       more than that is taken too, its beginning skipped
//! ```

use std::time::Instant;

use http::header::CONTENT_RANGE;
use http::{HeaderMap, StatusCode};

use super::answer::{Expected, GetPart, check_head};
use crate::checksum::{Offered, Sum};
use crate::error::ErrorKind;
use crate::object::{ETag, ObjectInfo, Pin, text};
use crate::range::{ByteRange, ContentRange};

/// Bytes of a part that are in its window, from the beginning, and of which version they are.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    bytes: u64,
    /// Bytes of the whole part, where an answer has told.
    of: Option<u64>,
    /// The version. Its size may not be known.
    pin: Option<Pin>,
    etag: Option<ETag>,
    /// Whether any of them went through staging.
    pub(super) staged: bool,
    /// When the head of the first answer had arrived.
    pub(super) first_byte: Option<Instant>,
    /// The sum of the bytes, where one is wanted: it goes on with the next ones.
    pub(super) sum: Option<Sum>,
    /// The object's checksum, of which answers to a rest may be silent.
    checksum: Option<Offered>,
}

impl Kept {
    /// How many there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What an answer and those before it say about the object.
    pub(super) fn about(&self, info: ObjectInfo) -> ObjectInfo {
        ObjectInfo {
            checksum: self.checksum.or(info.checksum),
            ..info
        }
    }

    /// An attempt at this version of the object broke off with `bytes` in the window, of the expected ones.
    pub(super) fn keep(&mut self, info: &ObjectInfo, bytes: u64, expected: Expected) {
        // Without one of these, the rest may be another object's.
        let version = info.version_id.as_deref().filter(|id| *id != "null");
        let etag = info.etag.as_ref().filter(|etag| !etag.is_weak());
        if bytes == 0 || (version.is_none() && etag.is_none()) {
            *self = Self::default();
            return;
        }
        self.bytes = bytes;
        self.of = match expected {
            Expected::Exactly(len) => Some(len),
            Expected::UpTo(_) | Expected::EmptyObject => None,
        };
        self.pin = Pin::of(info);
        self.checksum = info.checksum;
        self.etag = etag.cloned();
    }

    /// The request for the rest of a part; `None` where there is nothing to go on from.
    ///
    /// One byte that is there is asked for again where perhaps none is missing: the answer shows the end.
    pub(super) fn rest<'a>(&'a self, part: &GetPart<'a>, window_len: u64) -> Option<GetPart<'a>> {
        let from = match self.of {
            Some(of) => self.bytes.min(of.checked_sub(1)?),
            None => self.bytes.checked_sub(1)?,
        };
        if self.bytes == 0 {
            return None;
        }
        let len = self.of.unwrap_or(window_len).checked_sub(from)?;
        let range = ByteRange::new(part.offset().checked_add(from)?, len).ok()?;
        Some(GetPart {
            range: Some(range),
            pin: part.pin.or(self.pin.as_ref()),
            if_match: part.if_match.or(self.etag.as_ref()),
            ..*part
        })
    }
}

/// Judges the head of an answer to the `rest` of a `part`: where in the window its body begins, and how long it is.
///
/// A server may send more of the part than was asked for, up to all of it, and never less or other bytes.
pub(super) fn check_rest(
    status: StatusCode,
    headers: &HeaderMap,
    (part, rest): (&GetPart<'_>, &GetPart<'_>),
    window_len: u64,
) -> Result<(u64, Expected), ErrorKind> {
    let range = match status {
        StatusCode::OK => part.range,
        StatusCode::PARTIAL_CONTENT => superset(headers, part, rest).or(rest.range),
        // The answer that broke off has told a length that the object has not, or it is another one now.
        StatusCode::RANGE_NOT_SATISFIABLE => {
            return Err(ErrorKind::Truncated {
                received: rest.offset().saturating_sub(part.offset()),
                expected: rest.end().saturating_sub(part.offset()),
            });
        }
        _ => rest.range,
    };
    let answered = GetPart { range, ..*rest };
    let at = answered.offset().saturating_sub(part.offset());
    let expected = check_head(status, headers, &answered, window_len.saturating_sub(at))?;
    Ok((at, expected))
}

/// The range of an answer that begins before the rest, within the part, and goes to its end.
fn superset(headers: &HeaderMap, part: &GetPart<'_>, rest: &GetPart<'_>) -> Option<ByteRange> {
    let found = ContentRange::parse(text(headers, &CONTENT_RANGE)?).ok()?;
    let end = rest.end();
    let within = part.offset() <= found.first && found.first < rest.offset();
    within
        .then(|| ByteRange::new(found.first, end.checked_sub(found.first)?).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Mode;
    use crate::options::NO_OPTIONS;
    use http::HeaderName;
    use proptest::prelude::*;

    const WINDOW: u64 = 100;

    fn part(range: Option<(u64, u64)>) -> GetPart<'static> {
        GetPart {
            bucket: "b",
            key: "k",
            range: range.map(|(offset, len)| ByteRange::new(offset, len).unwrap()),
            pin: None,
            if_match: None,
            checksum: Mode::default(),
            options: &NO_OPTIONS,
        }
    }

    fn info(etag: Option<&str>, size: Option<u64>) -> ObjectInfo {
        ObjectInfo {
            etag: etag.map(ETag::new),
            size,
            ..ObjectInfo::default()
        }
    }

    fn kept(bytes: u64, expected: Expected, size: Option<u64>) -> Kept {
        let mut kept = Kept::default();
        kept.keep(&info(Some("\"a\""), size), bytes, expected);
        kept
    }

    fn judge(
        status: u16,
        headers: &[(&'static str, &str)],
        part: &GetPart<'_>,
        kept: &Kept,
    ) -> Result<(u64, Expected), ErrorKind> {
        let headers = headers
            .iter()
            .chain(&[("etag", "\"a\"")])
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let rest = kept.rest(part, WINDOW).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        check_rest(status, &headers, (part, &rest), WINDOW)
    }

    #[test]
    fn r24_the_rest_begins_after_the_last_byte_and_names_the_version() {
        let part = part(Some((1000, 50)));
        let kept = kept(20, Expected::Exactly(50), Some(5000));
        let rest = kept.rest(&part, WINDOW).unwrap();
        assert_eq!(rest.range.unwrap().header_value(), "bytes=1020-1049");
        assert_eq!(rest.etag_to_match(), Some(&ETag::new("\"a\"")));
        let answer = [("content-range", "bytes 1020-1049/5000")];
        assert_eq!(
            judge(206, &answer, &part, &kept),
            Ok((20, Expected::Exactly(30)))
        );
    }

    #[test]
    fn r5_an_answer_may_carry_more_of_the_part_but_no_other_bytes() {
        let ranged = part(Some((1000, 50)));
        let of = kept(20, Expected::Exactly(50), Some(5000));
        let range = |text| judge(206, &[("content-range", text)], &ranged, &of);
        assert_eq!(
            range("bytes 1000-1049/5000"),
            Ok((0, Expected::Exactly(50)))
        );
        assert_eq!(
            range("bytes 1007-1049/5000"),
            Ok((7, Expected::Exactly(43)))
        );
        for wrong in [
            "bytes 0-49/5000",
            "bytes 999-1049/5000",
            "bytes 1021-1049/5000",
            "bytes 1000-1048/5000",
            "bytes 1020-1050/5000",
            "bytes 1000-1050/5000",
        ] {
            assert!(
                matches!(range(wrong), Err(ErrorKind::Protocol(_))),
                "{wrong}"
            );
        }
        // The whole object, where the part is that.
        let length = [("content-length", "50")];
        let of = kept(20, Expected::Exactly(50), Some(50));
        for all in [part(None), part(Some((0, 50))), part(Some((0, 99)))] {
            let judged = judge(200, &length, &all, &of);
            assert_eq!(judged, Ok((0, Expected::Exactly(50))));
        }
        assert!(judge(200, &length, &part(Some((1, 49))), &of).is_err());
    }

    #[test]
    fn another_version_is_never_gone_on_with() {
        let of = kept(20, Expected::Exactly(50), Some(5000));
        let part = part(Some((1000, 50)));
        for (status, range) in [(206, "bytes 1020-1049/5001"), (412, "bytes */5000")] {
            let judged = judge(status, &[("content-range", range)], &part, &of);
            assert!(matches!(judged, Err(ErrorKind::Modified { .. })), "{range}");
        }
        // It may be that the first answer told too much: then all is asked for again.
        for range in ["bytes */1010", "bytes */0"] {
            let judged = judge(416, &[("content-range", range)], &part, &of);
            let cut = ErrorKind::Truncated {
                received: 20,
                expected: 50,
            };
            assert_eq!(judged, Err(cut));
        }
        // Where nothing would show it, all is asked for again.
        for etag in [None, Some("W/\"a\"")] {
            let mut kept = Kept::default();
            kept.keep(&info(etag, Some(50)), 20, Expected::Exactly(50));
            assert_eq!(kept.bytes(), 0);
            assert!(kept.rest(&part, WINDOW).is_none());
        }
    }

    #[test]
    fn a_body_that_broke_at_its_end_is_asked_for_its_last_byte() {
        let of = kept(50, Expected::Exactly(50), Some(50));
        let rest = of.rest(&part(None), WINDOW).unwrap();
        assert_eq!(rest.range, ByteRange::new(49, 1).ok());
        // Of unknown length: the answer tells where it ends.
        let of = kept(50, Expected::UpTo(WINDOW), None);
        let whole = part(None);
        let rest = of.rest(&whole, WINDOW).unwrap();
        assert_eq!(rest.range, ByteRange::new(49, 51).ok());
        let range = |text| judge(206, &[("content-range", text)], &whole, &of);
        assert_eq!(range("bytes 49-49/50"), Ok((49, Expected::Exactly(1))));
        assert_eq!(range("bytes 49-69/70"), Ok((49, Expected::Exactly(21))));
        assert!(range("bytes 49-69/*").is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_joins_what_is_kept_and_ends_with_the_part(
            offset in 0..50_u64, len in 1..50_u64, bytes in 1..50_u64,
            first in 0..120_u64, last in 0..120_u64, total in 0..200_u64,
        ) {
            let part = part(Some((offset, len)));
            let kept = kept(bytes.min(len), Expected::Exactly(len), Some(total));
            let text = format!("bytes {first}-{last}/{total}");
            if let Ok((at, Expected::Exactly(body))) = judge(206, &[("content-range", &text)], &part, &kept) {
                prop_assert!(at <= kept.bytes());
                prop_assert_eq!(first, offset + at);
                prop_assert_eq!(at + body, len);
            }
        }
    }
}

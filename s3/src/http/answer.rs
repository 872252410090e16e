//! What the head of an answer to a GET must say before a byte of its body is taken. Pure rules.

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};

use crate::checksum::{Algorithm, Mode, Offered};
use crate::error::ErrorKind;
use crate::object::{ETag, ObjectInfo, Pin, text};
use crate::options::RequestOptions;
use crate::range::{ByteRange, ContentRange, unsatisfied_total};

/// One GET: an object or a range of it, and the version it must come from.
#[derive(Clone, Copy, Debug)]
pub struct GetPart<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a str,
    /// The range; `None` is the whole object.
    pub range: Option<ByteRange>,
    /// The version that an earlier answer bound the read to.
    pub pin: Option<&'a Pin>,
    /// The entity tag that the caller wants.
    pub if_match: Option<&'a ETag>,
    /// What is asked of the object's checksum.
    pub checksum: Mode,
    /// What else the request says.
    pub options: &'a RequestOptions,
}

/// How many bytes the body of an accepted answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// So many.
    Exactly(u64),
    /// The server does not say: what fits the window, if the body ends by itself.
    UpTo(u64),
    /// None: the object is empty, and the body of this 416 only says so.
    EmptyObject,
}

impl GetPart<'_> {
    /// The entity tag that `If-Match` can name. A weak one never matches, so it is not sent.
    pub(crate) fn etag_to_match(&self) -> Option<&ETag> {
        let pinned = self.pin.and_then(|pin| pin.etag.as_ref());
        pinned.or(self.if_match).filter(|etag| !etag.is_weak())
    }

    /// The version that the request can name.
    pub(crate) fn version_to_name(&self) -> Option<&str> {
        // "null" stands for objects without versions and would only ask for one more permission.
        let pinned = self.pin.and_then(|pin| pin.version_id.as_deref());
        let pinned = pinned.filter(|version| *version != "null");
        self.options.version_id.as_deref().or(pinned)
    }

    /// What the bytes of an answer are to be summed by as they pass: `len` of them, or up to the end of the body.
    pub(crate) fn sums_by(&self, info: &ObjectInfo, len: Option<u64>) -> Option<Algorithm> {
        if self.checksum == Mode::Off {
            return None;
        }
        let pinned = self.pin.and_then(|pin| pin.checksum);
        let whole = |offered: Offered| offered.whole();
        let checksum = pinned.and_then(whole).or(info.checksum.and_then(whole))?;
        let size = info.size.or(self.pin.map(|pin| pin.size));
        let is_all = self.range.is_none() || (self.offset() == 0 && len.is_some() && len == size);
        let algorithm = checksum.algorithm();
        (algorithm.joins() || is_all).then_some(algorithm)
    }

    /// The first byte of the object that is asked for.
    pub(crate) fn offset(&self) -> u64 {
        self.range.map_or(0, |range| range.offset)
    }

    /// Where it ends, for all that is known.
    pub(crate) fn end(&self) -> u64 {
        self.range
            .map_or(u64::MAX, |range| range.offset.saturating_add(range.len))
    }

    /// Whether a 416 about an object of `size` bytes means that there is nothing to read.
    pub(crate) fn is_empty_object(&self, size: Option<u64>) -> bool {
        size == Some(0) && self.offset() == 0 && self.pin.is_none_or(|pin| pin.size == 0)
    }
}

/// Judges the head of an answer to `part`: how many bytes to receive, or why none.
///
/// Nothing but the object, or the very range of it, in the version asked for and no longer than
/// the window, is accepted. An answer with an S3 error gives a [`ErrorKind::Status`] without the
/// code, which only its body knows.
pub fn check_head(
    status: StatusCode,
    headers: &HeaderMap,
    part: &GetPart<'_>,
    window_len: u64,
) -> Result<Expected, ErrorKind> {
    let expected = match status {
        StatusCode::OK => whole_object(headers, part, window_len)?,
        StatusCode::PARTIAL_CONTENT => partial(headers, part)?,
        StatusCode::PRECONDITION_FAILED if part.pin.is_some() || part.if_match.is_some() => {
            return Err(precondition_failed(part));
        }
        StatusCode::RANGE_NOT_SATISFIABLE => return unsatisfied(headers, part),
        other if other.is_success() => {
            return Err(ErrorKind::Protocol(format!(
                "status {} to a GET",
                other.as_u16()
            )));
        }
        other => {
            return Err(ErrorKind::Status {
                status: other.as_u16(),
                code: None,
                message: None,
            });
        }
    };
    let mut tags = headers.get_all(ETAG).iter();
    if let (Some(one), Some(other)) = (tags.next(), tags.next())
        && one != other
    {
        return Err(ErrorKind::Protocol("two different ETags".to_owned()));
    }
    check_version(&ObjectInfo::from_headers(status, headers), part)?;
    match expected {
        Expected::Exactly(needed) if needed > window_len => Err(ErrorKind::BufferTooSmall {
            needed,
            have: window_len,
        }),
        fits => Ok(fits),
    }
}

/// A 200: the whole object, also where a range was asked for.
fn whole_object(
    headers: &HeaderMap,
    part: &GetPart<'_>,
    window_len: u64,
) -> Result<Expected, ErrorKind> {
    let length = content_length(headers)?;
    let size = length.or(part.pin.map(|pin| pin.size));
    if length.is_none() && !is_chunked(headers) {
        let text =
            "neither Content-Length nor a chunked body: its end could not be told from a cut";
        return Err(ErrorKind::Protocol(text.to_owned()));
    }
    match (part.range, size) {
        (None, Some(size)) => Ok(Expected::Exactly(size)),
        (None, None) => Ok(Expected::UpTo(window_len)),
        (Some(range), Some(size)) if range.offset == 0 && size <= range.len => {
            Ok(Expected::Exactly(size))
        }
        (Some(range), _) => {
            let text = format!("status 200 with the whole object to a request for bytes {range}");
            Err(ErrorKind::Protocol(text))
        }
    }
}

/// A 206: the range asked for, or its beginning where the object ends within it.
fn partial(headers: &HeaderMap, part: &GetPart<'_>) -> Result<Expected, ErrorKind> {
    let several = text(headers, &CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.trim_start().to_ascii_lowercase();
        kind.starts_with("multipart/byteranges")
    });
    if several {
        let text = "several ranges (multipart/byteranges), where one was asked for".to_owned();
        return Err(ErrorKind::Protocol(text));
    }
    let found = content_range(headers)?;
    if let Some(pin) = part.pin.filter(|pin| found.last >= pin.size) {
        return Err(ErrorKind::Modified {
            expected: format!("{} bytes", pin.size),
            found: format!("a byte at {}", found.last),
        });
    }
    let len = found.len();
    let total = found.total.or(part.pin.map(|pin| pin.size));
    let to_the_end = total.is_some_and(|total| found.last.checked_add(1) == Some(total));
    let right = match part.range {
        Some(asked) => {
            found.first == asked.offset && (len == asked.len || (len < asked.len && to_the_end))
        }
        None => found.first == 0 && to_the_end,
    };
    if !right {
        let asked = part.range.map_or("the whole object".to_owned(), |range| {
            format!("bytes {range}")
        });
        let text = format!(
            "Content-Range {}-{} to a request for {asked}",
            found.first, found.last
        );
        return Err(ErrorKind::Protocol(text));
    }
    match content_length(headers)? {
        Some(length) if length != len => {
            let text = format!("Content-Length {length} with a Content-Range of {len} bytes");
            Err(ErrorKind::Protocol(text))
        }
        _ => Ok(Expected::Exactly(len)),
    }
}

/// A 416: an error, except where the object is empty and everything of it was asked for.
fn unsatisfied(headers: &HeaderMap, part: &GetPart<'_>) -> Result<Expected, ErrorKind> {
    let size = text(headers, &CONTENT_RANGE).and_then(unsatisfied_total);
    if part.is_empty_object(size) {
        return Ok(Expected::EmptyObject);
    }
    match (part.pin, size) {
        (Some(pin), Some(size)) if size != pin.size => Err(ErrorKind::Modified {
            expected: format!("{} bytes", pin.size),
            found: format!("{size} bytes"),
        }),
        _ => Err(ErrorKind::RangeNotSatisfiable { size }),
    }
}

fn precondition_failed(part: &GetPart<'_>) -> ErrorKind {
    let pinned = part.pin.and_then(|pin| pin.etag.as_ref()).or(part.if_match);
    ErrorKind::Modified {
        expected: pinned.map_or("the version read first".to_owned(), |etag| {
            format!("etag {etag}")
        }),
        found: "another (status 412)".to_owned(),
    }
}

/// A server may ignore `If-Match`, so every answer is compared as well.
fn check_version(info: &ObjectInfo, part: &GetPart<'_>) -> Result<(), ErrorKind> {
    if let Some((expected, found)) = part.pin.and_then(|pin| pin.difference(info)) {
        return Err(ErrorKind::Modified { expected, found });
    }
    if let Some(wanted) = &part.options.version_id {
        check_version_id(wanted, info)?;
    }
    match (part.if_match, &info.etag) {
        (Some(wanted), found) if found.as_ref() != Some(wanted) => Err(ErrorKind::Modified {
            expected: format!("etag {wanted}"),
            found: found
                .as_ref()
                .map_or("no etag".to_owned(), |etag| format!("etag {etag}")),
        }),
        _ => Ok(()),
    }
}

/// A server that does not know of versions answers with what it has.
pub(crate) fn check_version_id(wanted: &str, info: &ObjectInfo) -> Result<(), ErrorKind> {
    let found = info.version_id.as_deref();
    if found == Some(wanted) || (found.is_none() && wanted == "null") {
        return Ok(());
    }
    Err(ErrorKind::Modified {
        expected: format!("version {wanted}"),
        found: found.map_or("no version".to_owned(), |found| format!("version {found}")),
    })
}

fn is_chunked(headers: &HeaderMap) -> bool {
    text(headers, &TRANSFER_ENCODING)
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("chunked"))
}

pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ErrorKind> {
    let Some(length) = single(headers, &CONTENT_LENGTH)? else {
        return Ok(None);
    };
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    match length.parse() {
        Ok(length) if digits => Ok(Some(length)),
        _ => Err(ErrorKind::Protocol(format!(
            "Content-Length {length:?} is no number"
        ))),
    }
}

fn content_range(headers: &HeaderMap) -> Result<ContentRange, ErrorKind> {
    let Some(range) = single(headers, &CONTENT_RANGE)? else {
        return Err(ErrorKind::Protocol(
            "status 206 without Content-Range".to_owned(),
        ));
    };
    ContentRange::parse(range).map_err(|error| ErrorKind::Protocol(error.to_string()))
}

/// The value of a header that must not be there twice.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ErrorKind> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    match (first.map(|value| value.to_str()), second) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(ErrorKind::Protocol(format!(
            "{name} is there twice or unreadable"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::NO_OPTIONS;
    use proptest::prelude::*;

    const WINDOW: u64 = 1000;

    fn part(range: Option<(u64, u64)>) -> GetPart<'static> {
        let range = range.map(|(offset, len)| ByteRange::new(offset, len).unwrap());
        GetPart {
            bucket: "b",
            key: "k",
            range,
            pin: None,
            if_match: None,
            checksum: Mode::default(),
            options: &NO_OPTIONS,
        }
    }

    fn head(
        status: u16,
        headers: &[(&'static str, &str)],
        part: &GetPart<'_>,
    ) -> Result<Expected, ErrorKind> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        check_head(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            part,
            WINDOW,
        )
    }

    fn range(status: u16, content_range: &str, asked: (u64, u64)) -> Result<Expected, ErrorKind> {
        head(
            status,
            &[("content-range", content_range)],
            &part(Some(asked)),
        )
    }

    fn is_protocol(result: Result<Expected, ErrorKind>) -> bool {
        matches!(result, Err(ErrorKind::Protocol(_)))
    }

    #[test]
    fn a_range_is_accepted_whole_or_up_to_the_objects_end() {
        assert_eq!(
            range(206, "bytes 5-9/100", (5, 5)),
            Ok(Expected::Exactly(5))
        );
        assert_eq!(range(206, "bytes 5-9/*", (5, 5)), Ok(Expected::Exactly(5)));
        assert_eq!(
            range(206, "bytes 5-9/10", (5, 50)),
            Ok(Expected::Exactly(5))
        );
    }

    #[test]
    fn another_range_than_asked_for_is_refused() {
        for (found, asked) in [
            ("bytes 6-10/100", (5, 5)),
            ("bytes 0-4/100", (5, 5)),
            ("bytes 5-10/100", (5, 5)),
            ("bytes 5-8/100", (5, 5)),
            ("bytes 5-8/*", (5, 5)),
            ("nonsense", (5, 5)),
        ] {
            assert!(is_protocol(range(206, found, asked)), "{found}");
        }
        assert!(is_protocol(head(206, &[], &part(Some((0, 5))))));
        let both = [("content-range", "bytes 0-4/9"), ("content-length", "6")];
        assert!(is_protocol(head(206, &both, &part(Some((0, 5))))));
        let twice = [
            ("content-range", "bytes 0-4/9"),
            ("content-range", "bytes 5-9/10"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(name, value.parse().unwrap());
        }
        let asked = part(Some((0, 5)));
        assert!(is_protocol(check_head(
            StatusCode::PARTIAL_CONTENT,
            &headers,
            &asked,
            WINDOW
        )));
    }

    #[test]
    fn the_whole_object_answers_a_range_only_where_the_range_covers_it() {
        let length = [("content-length", "10")];
        assert_eq!(
            head(200, &length, &part(Some((0, 10)))),
            Ok(Expected::Exactly(10))
        );
        assert_eq!(
            head(200, &length, &part(Some((0, 99)))),
            Ok(Expected::Exactly(10))
        );
        assert!(is_protocol(head(200, &length, &part(Some((0, 9))))));
        assert!(is_protocol(head(200, &length, &part(Some((1, 10))))));
        let chunked = [("transfer-encoding", "chunked")];
        assert!(is_protocol(head(200, &chunked, &part(Some((0, 10))))));
    }

    #[test]
    fn a_whole_object_needs_an_end_that_can_be_told() {
        assert_eq!(
            head(200, &[("content-length", "0")], &part(None)),
            Ok(Expected::Exactly(0))
        );
        assert_eq!(
            head(200, &[("transfer-encoding", "chunked")], &part(None)),
            Ok(Expected::UpTo(WINDOW))
        );
        assert!(is_protocol(head(200, &[], &part(None))));
        assert!(is_protocol(head(
            200,
            &[("content-length", "+5")],
            &part(None)
        )));
        assert_eq!(
            head(206, &[("content-range", "bytes 0-9/10")], &part(None)),
            Ok(Expected::Exactly(10))
        );
        assert!(is_protocol(head(
            206,
            &[("content-range", "bytes 0-8/10")],
            &part(None)
        )));
    }

    #[test]
    fn what_does_not_fit_the_window_says_how_much_is_needed() {
        let too_small = Err(ErrorKind::BufferTooSmall {
            needed: 1001,
            have: WINDOW,
        });
        assert_eq!(
            head(200, &[("content-length", "1001")], &part(None)),
            too_small
        );
        assert_eq!(range(206, "bytes 0-1000/5000", (0, 1001)), too_small);
    }

    #[test]
    fn an_empty_object_is_told_by_a_416_at_its_beginning_only() {
        assert_eq!(range(416, "bytes */0", (0, 10)), Ok(Expected::EmptyObject));
        let past_the_end = |size| Err(ErrorKind::RangeNotSatisfiable { size });
        assert_eq!(range(416, "bytes */0", (5, 10)), past_the_end(Some(0)));
        assert_eq!(range(416, "bytes */7", (10, 10)), past_the_end(Some(7)));
        assert_eq!(range(416, "?", (0, 10)), past_the_end(None));
    }

    #[test]
    fn a_changed_object_is_seen_by_tag_size_version_or_status() {
        let pin = Pin {
            etag: Some(ETag::new("\"a\"")),
            version_id: Some("1".into()),
            size: 100,
            checksum: None,
        };
        let pinned = GetPart {
            pin: Some(&pin),
            ..part(Some((0, 10)))
        };
        let answer = |range: &str, etag: &str, version: &str| {
            let headers = [
                ("content-range", range),
                ("etag", etag),
                ("x-amz-version-id", version),
            ];
            head(206, &headers, &pinned)
        };
        assert_eq!(
            answer("bytes 0-9/100", "\"a\"", "1"),
            Ok(Expected::Exactly(10))
        );
        for changed in [
            answer("bytes 0-9/101", "\"a\"", "1"),
            answer("bytes 0-9/100", "\"b\"", "1"),
            answer("bytes 0-9/100", "\"a\"", "2"),
            head(206, &[("content-range", "bytes 0-9/100")], &pinned),
            head(412, &[], &pinned),
            head(416, &[("content-range", "bytes */0")], &pinned),
        ] {
            assert!(
                matches!(changed, Err(ErrorKind::Modified { .. })),
                "{changed:?}"
            );
        }
        // The total is left unsaid, and the range still passes the pinned object's end.
        let past_the_end = GetPart {
            pin: Some(&pin),
            ..part(Some((90, 20)))
        };
        let found = [("content-range", "bytes 90-109/*"), ("etag", "\"a\"")];
        assert!(matches!(
            head(206, &found, &past_the_end),
            Err(ErrorKind::Modified { .. })
        ));
        let etag = ETag::new("\"a\"");
        let wanted = GetPart {
            if_match: Some(&etag),
            ..part(None)
        };
        let found = [("content-length", "1"), ("etag", "\"b\"")];
        assert!(matches!(
            head(200, &found, &wanted),
            Err(ErrorKind::Modified { .. })
        ));
        assert!(matches!(
            head(412, &[], &part(None)),
            Err(ErrorKind::Status { status: 412, .. })
        ));
    }

    #[test]
    fn errors_redirects_and_odd_successes_are_never_accepted() {
        for status in [204, 202, 301, 307, 400, 403, 404, 500, 503] {
            assert!(
                head(status, &[("content-length", "0")], &part(None)).is_err(),
                "{status}"
            );
        }
    }

    #[test]
    fn a_weak_tag_is_compared_but_not_sent() {
        let pin = Pin {
            etag: Some(ETag::new("W/\"a\"")),
            version_id: Some("null".into()),
            size: 1,
            checksum: None,
        };
        let pinned = GetPart {
            pin: Some(&pin),
            ..part(None)
        };
        assert_eq!(pinned.etag_to_match(), None);
        assert_eq!(pinned.version_to_name(), None);
    }

    proptest! {
        #[test]
        fn an_accepted_range_begins_where_asked_and_fits(
            offset in 0..50_u64, len in 1..50_u64, first in 0..60_u64, last in 0..120_u64, total in 0..120_u64,
        ) {
            let text = format!("bytes {first}-{last}/{total}");
            if let Ok(Expected::Exactly(bytes)) = range(206, &text, (offset, len)) {
                prop_assert_eq!(first, offset);
                prop_assert_eq!(bytes, last - first + 1);
                prop_assert!(bytes == len || (bytes < len && last + 1 == total));
            }
        }
    }
}

//! Heads of answers to a GET over HTTP: what may be received after them.
//!
//! ```text
//! status: 206
//! content-range: bytes 5-9/100         headers; every line that is named like none of the others
//! asked-range: 5 10                    offset and length
//! asked-window: 1000
//! pin-etag: "a"                        what an earlier answer bound the read to, where a size is given
//! pin-version: v1
//! pin-size: 100
//! if-match: "a"                        what the caller wants
//! ```

use http::header::{CONTENT_RANGE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use s3engine_s3::checksum::Mode;
use s3engine_s3::http::{Expected, GetPart, check_head};
use s3engine_s3::object::{ETag, Pin};
use s3engine_s3::options::NO_OPTIONS;
use s3engine_s3::range::{ByteRange, ContentRange};

use crate::fields::Fields;

/// Judges the head that the bytes describe. Whether a body may be received after it.
pub fn http_answer(data: &[u8]) -> bool {
    let Some(fields) = Fields::of(data) else {
        return false;
    };
    let status = fields.value("status").unwrap_or(StatusCode::OK);
    let headers = headers(&fields);
    let pin = fields.value("pin-size").map(|size| Pin {
        etag: fields.text("pin-etag").map(ETag::new),
        version_id: fields.text("pin-version").map(str::to_owned),
        size,
        checksum: None,
    });
    let if_match = fields.text("if-match").map(ETag::new);
    let part = GetPart {
        bucket: "bucket",
        key: "key",
        range: fields.text("asked-range").and_then(range),
        pin: pin.as_ref(),
        if_match: if_match.as_ref(),
        checksum: Mode::default(),
        options: &NO_OPTIONS,
    };
    let window = fields.value("asked-window").unwrap_or(1000);
    let Ok(expected) = check_head(status, &headers, &part, window) else {
        return false;
    };
    match expected {
        Expected::EmptyObject => {
            let said = headers.get(CONTENT_RANGE).map(HeaderValue::as_bytes);
            assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE);
            assert!(said.is_some_and(|said| said.starts_with(b"bytes */0")));
            assert!(part.range.is_none_or(|range| range.offset == 0));
            assert!(part.pin.is_none_or(|pin| pin.size == 0));
            return true;
        }
        Expected::UpTo(most) => {
            assert_eq!((status, most), (StatusCode::OK, window));
            assert!(part.range.is_none() && part.pin.is_none());
        }
        Expected::Exactly(len) => {
            assert!(len <= window);
            check_place(len, status, &headers, &part);
        }
    }
    check_version(&headers, &part);
    true
}

/// Every line that is a header.
fn headers(fields: &Fields<'_>) -> HeaderMap {
    let of_request = ["asked-", "pin-", "if-match"];
    let lines = fields
        .all()
        .filter(|(name, _)| !of_request.iter().any(|start| name.starts_with(start)));
    lines
        .filter_map(|(name, value)| {
            let name = name.parse::<HeaderName>().ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        })
        .fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
}

fn range(text: &str) -> Option<ByteRange> {
    let (offset, len) = text.split_once(' ')?;
    ByteRange::new(offset.parse().ok()?, len.parse().ok()?).ok()
}

/// The bytes are those asked for, or fewer of them where the object ends.
fn check_place(len: u64, status: StatusCode, headers: &HeaderMap, part: &GetPart<'_>) {
    let said = headers
        .get(CONTENT_RANGE)
        .and_then(|value| ContentRange::parse(value.to_str().ok()?).ok());
    let (first, total) = match status {
        StatusCode::OK => (0, Some(len)),
        StatusCode::PARTIAL_CONTENT => {
            let said = said.expect("a part says where it is from");
            assert_eq!(said.len(), len);
            (said.first, said.total)
        }
        other => panic!("{other} with an object"),
    };
    let size = part.pin.map(|pin| pin.size);
    for size in [total, size].into_iter().flatten() {
        let end = first.checked_add(len).expect("an end that is an offset");
        assert!(end <= size, "{first} + {len} of {size}");
        let is_short = part.range.is_none_or(|asked| len < asked.len);
        assert!(end == size || !is_short, "ends before the object does");
    }
    assert_eq!(first, part.range.map_or(0, |asked| asked.offset));
    assert!(part.range.is_none_or(|asked| len <= asked.len));
}

/// The object is the one that was read before, or that the caller wants.
fn check_version(headers: &HeaderMap, part: &GetPart<'_>) {
    let said = headers.get(ETAG).map(HeaderValue::as_bytes);
    let pinned = part.pin.and_then(|pin| pin.etag.as_ref());
    for wanted in [pinned, part.if_match].into_iter().flatten() {
        assert_eq!(said, Some(wanted.as_str().as_bytes()));
    }
}

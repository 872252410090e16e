//! Entity tags: opaque, whatever is in them, and equal only to themselves.
//!
//! The first line is the tag that a read is bound to, the second the one of a later answer.

use http::header::ETAG;
use http::{HeaderMap, HeaderValue, StatusCode};
use s3engine_s3::object::{ObjectInfo, Pin};

/// Reads the two as headers of answers. Whether they are of one version.
pub fn etag(data: &[u8]) -> bool {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let mut next = || answer(lines.next().unwrap_or_default());
    let (Some(first), Some(second)) = (next(), next()) else {
        return false;
    };
    let tag = |info: &ObjectInfo| info.etag.clone();
    let pin = Pin::of(&first).expect("a size");
    // A read that is bound to no tag cannot tell versions apart by it.
    let same = pin.etag.is_none() || tag(&first) == tag(&second);
    assert_eq!(
        pin.difference(&second).is_none(),
        same,
        "{first:?} {second:?}"
    );
    assert_eq!(pin.difference(&first), None);
    same
}

/// What an answer with that tag says. `None`: it is no header's value.
fn answer(value: &[u8]) -> Option<ObjectInfo> {
    let value = HeaderValue::from_bytes(value).ok()?;
    let text = value.to_str().ok().map(str::to_owned);
    let mut headers = HeaderMap::new();
    headers.insert(ETAG, value);
    headers.insert("content-length", HeaderValue::from_static("10"));
    let info = ObjectInfo::from_headers(StatusCode::OK, &headers);
    match &info.etag {
        Some(etag) => {
            let text = text.expect("a tag is text");
            assert_eq!(etag.as_str(), text);
            assert_eq!(etag.is_weak(), text.starts_with("W/"));
        }
        // Nothing but what marks a tag off, or stands for any.
        None => {
            let text = text.unwrap_or_default();
            let marks = ['W', '/', '"', '*', ' ', '\t'];
            assert!(text.trim_matches(marks).is_empty(), "{text:?}");
        }
    }
    Some(info)
}

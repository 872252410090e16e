//! What an answer says about an object, and what later answers must agree with.

use std::fmt;
use std::time::SystemTime;

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, StatusCode};
use serde::{Deserialize, Serialize};

use crate::checksum::Offered;
use crate::range::{ContentRange, unsatisfied_total};

const VERSION_ID: HeaderName = HeaderName::from_static("x-amz-version-id");
const RDMA_REPLY: HeaderName = HeaderName::from_static("x-amz-rdma-reply");

/// An entity tag, opaque: kept as received, with its quotes and its weak prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ETag(String);

impl ETag {
    /// The tag with this text, quotes included.
    pub fn new(text: impl Into<String>) -> ETag {
        ETag(text.into())
    }

    /// What an answer says, unless it says nothing: an empty tag would be that of every object, and `*` means any.
    fn of_answer(text: &str) -> Option<ETag> {
        let is_said = !matches!(text.trim(), "" | "*" | "\"\"" | "W/\"\"" | "\"*\"");
        is_said.then(|| ETag::new(text))
    }

    /// The text as received.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a weak tag, which `If-Match` never matches.
    pub fn is_weak(&self) -> bool {
        self.0.starts_with("W/")
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an answer says about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// The entity tag.
    pub etag: Option<ETag>,
    /// The version, where the bucket keeps versions.
    pub version_id: Option<String>,
    /// The size of the whole object, however much of it the answer carries.
    pub size: Option<u64>,
    /// When it was last written.
    pub last_modified: Option<SystemTime>,
    /// Its checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Offered>,
}

impl ObjectInfo {
    /// Reads the headers of an answer with this status.
    pub fn from_headers(status: StatusCode, headers: &HeaderMap) -> ObjectInfo {
        ObjectInfo {
            etag: text(headers, &ETAG).and_then(ETag::of_answer),
            version_id: text(headers, &VERSION_ID).map(str::to_owned),
            size: whole_size(status, headers),
            last_modified: text(headers, &LAST_MODIFIED)
                .and_then(|date| httpdate::parse_http_date(date).ok()),
            checksum: Offered::of(status, headers),
        }
    }
}

/// A header's value where it is there once, as visible text.
pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn whole_size(status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    match status {
        StatusCode::PARTIAL_CONTENT => {
            ContentRange::parse(text(headers, &CONTENT_RANGE)?)
                .ok()?
                .total
        }
        StatusCode::RANGE_NOT_SATISFIABLE => unsatisfied_total(text(headers, &CONTENT_RANGE)?),
        // Where a fabric moved the bytes, the body is empty and its length says nothing.
        _ if text(headers, &RDMA_REPLY).is_some_and(|reply| reply.trim() != "501") => None,
        StatusCode::OK => text(headers, &CONTENT_LENGTH)?.parse().ok(),
        _ => None,
    }
}

/// The version that all parts of one read must come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The entity tag of the first answer.
    pub etag: Option<ETag>,
    /// The version of the first answer.
    pub version_id: Option<String>,
    /// The size of the whole object.
    pub size: u64,
    /// The object's checksum.
    pub checksum: Option<Offered>,
}

impl Pin {
    /// Binds later parts to this object, where its size is known.
    pub fn of(info: &ObjectInfo) -> Option<Pin> {
        Some(Pin {
            etag: info.etag.clone(),
            version_id: info.version_id.clone(),
            size: info.size?,
            checksum: info.checksum,
        })
    }

    /// Whether anything but its size binds later parts to the object.
    pub fn is_bound(&self) -> bool {
        let version = self
            .version_id
            .as_deref()
            .filter(|version| *version != "null");
        self.etag.is_some() || version.is_some()
    }

    /// The first fact in which a later answer differs, as (pinned, found).
    ///
    /// An answer without an entity tag cannot show that it is the pinned object, so it differs.
    pub fn difference(&self, info: &ObjectInfo) -> Option<(String, String)> {
        if let Some(pinned) = &self.etag
            && info.etag.as_ref() != Some(pinned)
        {
            let found = info
                .etag
                .as_ref()
                .map_or("no etag".to_owned(), |etag| format!("etag {etag}"));
            return Some((format!("etag {pinned}"), found));
        }
        if let (Some(pinned), Some(found)) = (&self.version_id, &info.version_id)
            && pinned != found
        {
            return Some((format!("version {pinned}"), format!("version {found}")));
        }
        match info.size {
            Some(found) if found != self.size => {
                Some((format!("{} bytes", self.size), format!("{found} bytes")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_partial_answer_gives_the_size_of_the_whole_object() {
        let headers = headers(&[
            ("content-length", "10"),
            ("content-range", "bytes 0-9/5000"),
            ("etag", "W/\"any text\""),
            ("x-amz-version-id", "v1"),
            ("last-modified", "Thu, 01 Jan 1970 00:01:00 GMT"),
        ]);
        let info = ObjectInfo::from_headers(StatusCode::PARTIAL_CONTENT, &headers);
        assert_eq!(info.size, Some(5000));
        assert_eq!(info.etag, Some(ETag::new("W/\"any text\"")));
        assert!(info.etag.unwrap().is_weak());
        assert_eq!(info.version_id.as_deref(), Some("v1"));
        assert_eq!(
            info.last_modified,
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(60))
        );
        let whole = ObjectInfo::from_headers(StatusCode::OK, &headers);
        assert_eq!(whole.size, Some(10));
    }

    #[test]
    fn a_tag_that_says_nothing_is_none() {
        for nothing in ["\"\"", "*", "W/\"\"", "\"*\"", " "] {
            let headers = headers(&[("content-length", "10"), ("etag", nothing)]);
            let info = ObjectInfo::from_headers(StatusCode::OK, &headers);
            assert_eq!(info.etag, None, "{nothing:?}");
        }
    }

    #[test]
    fn the_empty_body_of_an_rdma_answer_gives_no_size() {
        let moved = headers(&[("content-length", "0"), ("x-amz-rdma-reply", "200")]);
        assert_eq!(ObjectInfo::from_headers(StatusCode::OK, &moved).size, None);
        let declined = headers(&[("content-length", "77"), ("x-amz-rdma-reply", "501")]);
        assert_eq!(
            ObjectInfo::from_headers(StatusCode::OK, &declined).size,
            Some(77)
        );
    }

    #[test]
    fn a_pin_sees_every_kind_of_change_and_missing_tag() {
        let first = ObjectInfo {
            etag: Some(ETag::new("\"a\"")),
            version_id: Some("v1".into()),
            size: Some(10),
            last_modified: None,
            checksum: None,
        };
        let pin = Pin::of(&first).unwrap();
        assert_eq!(pin.difference(&first), None);
        // Unsaid size and version are no change.
        let terse = ObjectInfo {
            size: None,
            version_id: None,
            ..first.clone()
        };
        assert_eq!(pin.difference(&terse), None);
        for changed in [
            ObjectInfo {
                etag: Some(ETag::new("\"b\"")),
                ..first.clone()
            },
            ObjectInfo {
                etag: None,
                ..first.clone()
            },
            ObjectInfo {
                version_id: Some("v2".into()),
                ..first.clone()
            },
            ObjectInfo {
                size: Some(11),
                ..first.clone()
            },
        ] {
            assert!(pin.difference(&changed).is_some(), "{changed:?}");
        }
        assert_eq!(Pin::of(&terse), None);
    }
}

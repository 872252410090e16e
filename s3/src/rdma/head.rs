//! The head of an answer to a GET that named a window.

use std::time::Instant;

use http::{HeaderMap, StatusCode};

use super::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::http::{GetPart, Response, check_version_id};
use crate::object::ObjectInfo;
use crate::outcome::{Path, Reason};
use crate::range::ContentRange;
use crate::reply::{Expected, Reply, Verdict};
use crate::transport::Outcome;

/// The facts of an answer's head, kept while its body is read.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    content_length: Option<u64>,
    content_range: Option<ContentRange>,
    pub(super) info: ObjectInfo,
    request_id: Option<String>,
    first_byte: Instant,
}

impl Head {
    pub(super) fn of(response: &Response) -> Self {
        let headers = response.headers().clone();
        let content_range = crate::object::text(&headers, &http::header::CONTENT_RANGE)
            .and_then(|text| ContentRange::parse(text).ok());
        Self {
            status: response.status(),
            content_length: response.content_length(),
            content_range,
            info: response.info(),
            request_id: response.request_id().map(str::to_owned),
            first_byte: response.first_byte,
            headers,
        }
    }

    pub(super) fn judge(
        &self,
        dialect: &dyn Dialect,
        part: &GetPart<'_>,
        window: u64,
        error: Option<&Error>,
    ) -> Verdict {
        let said = dialect.said(&self.headers);
        let etag = part.pin.and_then(|pin| pin.etag.as_ref()).or(part.if_match);
        let reply = Reply {
            status: self.status.as_u16(),
            rdma_reply: said.reply,
            bytes_transferred: said.bytes,
            content_length: self.content_length,
            content_range: self.content_range,
            etag: self.info.etag.as_ref().map(|etag| etag.as_str()),
            s3_code: error.and_then(Error::code),
            s3_message: error.and_then(Error::message),
        };
        let offset = part.range.map_or(0, |range| range.offset);
        let total = part.pin.map(|pin| pin.size);
        let exact = match (part.range, total) {
            (Some(range), Some(total)) => Some(range.len.min(total.saturating_sub(offset))),
            (None, total) => total,
            _ => None,
        };
        let verdict = dialect.judge(
            &reply,
            &Expected {
                offset,
                window,
                exact,
                ranged: part.range.is_some(),
                etag: etag.map(|e| e.as_str()),
                total,
            },
        );
        match verdict {
            // It is not the same as none.
            Verdict::Transferred { .. } if self.has_unreadable_range() => Verdict::Unusable {
                header: "content-range",
                why: "it is not a range".into(),
                reason: Reason::BytesMismatch,
            },
            verdict => verdict,
        }
    }

    fn has_unreadable_range(&self) -> bool {
        self.content_range.is_none() && self.headers.contains_key(http::header::CONTENT_RANGE)
    }

    /// The object's size, where the whole object was asked for and is larger than the window.
    pub(super) fn larger_than(&self, part: &GetPart<'_>, window: u64) -> Option<u64> {
        let total = self.content_range.and_then(|range| range.total)?;
        (part.range.is_none() && total > window).then_some(total)
    }

    /// The judge compares tag and size; a server may ignore which version was asked for.
    pub(super) fn is_of_another_version(&self, part: &GetPart<'_>) -> bool {
        let pinned = part.pin.and_then(|pin| pin.version_id.as_ref());
        let found = self.info.version_id.as_ref();
        let wanted = part.options.version_id.as_deref();
        pinned
            .zip(found)
            .is_some_and(|(pinned, found)| pinned != found)
            || wanted.is_some_and(|wanted| check_version_id(wanted, &self.info).is_err())
    }

    pub(super) fn difference(&self, part: &GetPart<'_>) -> (String, String) {
        let pinned = part.pin.and_then(|pin| pin.difference(&self.info));
        let wanted = part.options.version_id.as_deref();
        let of_version = wanted.and_then(|wanted| check_version_id(wanted, &self.info).err());
        let of_version = of_version.and_then(|kind| match kind {
            ErrorKind::Modified { expected, found } => Some((expected, found)),
            _ => None,
        });
        pinned.or(of_version).unwrap_or_else(|| {
            let text = |etag: Option<&crate::object::ETag>| {
                etag.map_or("no etag".to_owned(), |e| format!("etag {e}"))
            };
            (text(part.if_match), text(self.info.etag.as_ref()))
        })
    }

    pub(super) fn outcome(
        self,
        path: Path,
        reason: Reason,
        bytes: u64,
        error: Option<Error>,
    ) -> Outcome {
        Outcome {
            path,
            reason,
            bytes,
            kept: 0,
            staged: false,
            sum: None,
            status: Some(self.status.as_u16()),
            info: self.info,
            request_id: self.request_id,
            registered: None,
            first_byte: Some(self.first_byte),
            error,
        }
    }
}

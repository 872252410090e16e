//! What an answer to a GET with an RDMA token means: a pure function with one order of checks.
//!
//! 1. HTTP 401, 403, 404, 412 and 416 are what they say.
//! 2. `x-amz-rdma-reply: 501` is a decline, with the object in the body or with an S3 error.
//! 3. `InvalidRDMAToken`, and a 500 that speaks of the RDMA token: the token was rejected.
//! 4. `RDMATransferFailed`: the server's fabric failed.
//! 5. Any other status than 200, 204, 206, or an S3 error code: an HTTP error.
//! 6. The reply header: there, readable, and one of 200, 204, 206.
//! 7. The number of bytes: there (a 204 says 0 by itself), readable, and the right one.
//! 8. Placement, an empty body, and the version.

use crate::outcome::Reason;
use crate::range::ContentRange;

/// Header that says whether the server used the fabric.
pub const REPLY_HEADER: &str = "x-amz-rdma-reply";
/// Header that says how many bytes the server moved.
pub const BYTES_HEADER: &str = "x-amz-rdma-bytes-transferred";

/// The parts of an answer that decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// The HTTP status.
    pub status: u16,
    /// Value of [`REPLY_HEADER`].
    pub rdma_reply: Option<&'a str>,
    /// Value of [`BYTES_HEADER`].
    pub bytes_transferred: Option<&'a str>,
    /// Length of the body, where the header says it. Where it does not, the caller still has to see that
    /// the body of a transferred answer is empty.
    pub content_length: Option<u64>,
    /// What the answer says it carries.
    pub content_range: Option<ContentRange>,
    /// The object's entity tag.
    pub etag: Option<&'a str>,
    /// The code of an S3 error, where the answer is one.
    pub s3_code: Option<&'a str>,
    /// The message of an S3 error.
    pub s3_message: Option<&'a str>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected<'a> {
    /// The first byte of the object that was asked for; 0 for a whole object.
    pub offset: u64,
    /// Bytes that the token's window can take.
    pub window: u64,
    /// Bytes that the request must give, where the object's size is known.
    pub exact: Option<u64>,
    /// Whether the request carried a `Range`.
    pub ranged: bool,
    /// The entity tag that the object must still have.
    pub etag: Option<&'a str>,
    /// The object's size, where it is known.
    pub total: Option<u64>,
}

/// What the answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server moved the bytes, and they are the ones asked for.
    Transferred {
        /// How many.
        bytes: u64,
    },
    /// The server declined explicitly.
    Declined {
        /// The body may be judged as an answer to the same request over HTTP; else the request must be
        /// repeated without the token.
        object_in_body: bool,
    },
    /// The server did not accept the token.
    TokenRejected,
    /// The server failed while moving the bytes.
    RdmaError,
    /// An HTTP or S3 error: status and code tell.
    Http,
    /// Success, with no word about RDMA: a server that does not know it.
    ReplyMissing {
        /// As for [`Verdict::Declined`].
        object_in_body: bool,
    },
    /// The server says that it used the fabric, and not for how many bytes.
    BytesMissing,
    /// Another number of bytes than asked for.
    BytesMismatch {
        /// What the server said.
        said: u64,
        /// What it had to be.
        expected: u64,
    },
    /// The object is not the version that was asked for.
    Modified,
    /// A header that is missing where it must be there, that cannot be read, or that contradicts another.
    Unusable {
        /// The header's name.
        header: &'static str,
        /// What is wrong with it.
        why: String,
        /// The closest reason.
        reason: Reason,
    },
}

impl Verdict {
    /// The reason that a completion reports for it.
    pub fn reason(&self) -> Reason {
        match self {
            Verdict::Transferred { .. } => Reason::Ok,
            Verdict::Declined { .. } => Reason::ServerDeclined,
            Verdict::TokenRejected => Reason::TokenRejected,
            Verdict::RdmaError => Reason::RdmaError,
            Verdict::Http => Reason::HttpError,
            Verdict::ReplyMissing { .. } => Reason::ReplyMissing,
            Verdict::BytesMissing => Reason::BytesMissing,
            Verdict::BytesMismatch { .. } => Reason::BytesMismatch,
            Verdict::Modified => Reason::Modified,
            Verdict::Unusable { reason, .. } => *reason,
        }
    }
}

/// Judges an answer to a GET that carried an RDMA token.
pub fn judge(reply: &Reply<'_>, expected: &Expected<'_>) -> Verdict {
    match error(reply, expected).map_or_else(|| transfer(reply, expected), Err) {
        Ok(bytes) => Verdict::Transferred { bytes },
        Err(verdict) => verdict,
    }
}

/// Steps 1 to 5: answers that are no transfer, whatever else they say.
fn error(reply: &Reply<'_>, expected: &Expected<'_>) -> Option<Verdict> {
    let code = reply.s3_code.map(str::trim).unwrap_or_default();
    match reply.status {
        412 if expected.etag.is_some() => return Some(Verdict::Modified),
        401 | 403 | 404 | 412 | 416 => return Some(Verdict::Http),
        _ => {}
    }
    if present(reply.rdma_reply) == Some("501") {
        return Some(Verdict::Declined {
            object_in_body: object_in_body(reply, expected),
        });
    }
    if code == "InvalidRDMAToken" || speaks_of_the_token(reply) {
        return Some(Verdict::TokenRejected);
    }
    if code == "RDMATransferFailed" {
        return Some(Verdict::RdmaError);
    }
    (!matches!(reply.status, 200 | 204 | 206) || reply.s3_code.is_some()).then_some(Verdict::Http)
}

/// Steps 6 to 8: the bytes that a success says it moved.
fn transfer(reply: &Reply<'_>, expected: &Expected<'_>) -> Result<u64, Verdict> {
    let code = reply_code(reply, expected)?;
    let said = bytes_said(reply, code)?;
    check_count(said, code, reply, expected)?;
    check_placement(said, code, reply, expected)?;
    if let Some(length @ 1..) = reply.content_length {
        let why = format!("{length} bytes of body beside a transfer of {said} bytes");
        return Err(unusable("content-length", why, Reason::BytesMismatch));
    }
    check_version(reply, expected)?;
    Ok(said)
}

fn reply_code(reply: &Reply<'_>, expected: &Expected<'_>) -> Result<u16, Verdict> {
    let Some(text) = present(reply.rdma_reply) else {
        return Err(Verdict::ReplyMissing {
            object_in_body: object_in_body(reply, expected),
        });
    };
    match decimal(text) {
        Some(code @ (200 | 204 | 206)) => Ok(code as u16),
        // A number says that the server knows RDMA, and that this is no success.
        Some(_) => Err(unusable(REPLY_HEADER, shown(text), Reason::RdmaError)),
        None => Err(unusable(REPLY_HEADER, shown(text), Reason::ReplyMissing)),
    }
}

fn bytes_said(reply: &Reply<'_>, code: u16) -> Result<u64, Verdict> {
    match present(reply.bytes_transferred) {
        Some(text) => {
            decimal(text).ok_or_else(|| unusable(BYTES_HEADER, shown(text), Reason::BytesMissing))
        }
        None if code == 204 => Ok(0),
        None => Err(Verdict::BytesMissing),
    }
}

fn check_count(
    said: u64,
    code: u16,
    reply: &Reply<'_>,
    expected: &Expected<'_>,
) -> Result<(), Verdict> {
    let range_len = match reply.content_range {
        Some(range) => Some(range_len(range)?),
        None => None,
    };
    // A whole object has all of its bytes: a part of it that filled the window is not the object.
    let whole = match reply
        .content_range
        .and_then(|range| range.total)
        .or(expected.total)
    {
        Some(total) if !expected.ranged => Some(total),
        _ => None,
    };
    let nothing = (code == 204).then_some(0);
    for wanted in [expected.exact, nothing, range_len, whole]
        .into_iter()
        .flatten()
    {
        if said != wanted {
            return Err(Verdict::BytesMismatch {
                said,
                expected: wanted,
            });
        }
    }
    if said > expected.window {
        return Err(Verdict::BytesMismatch {
            said,
            expected: expected.window,
        });
    }
    Ok(())
}

/// The bytes must come from the offset asked for, and be fewer than asked for only at the object's end.
fn check_placement(
    said: u64,
    code: u16,
    reply: &Reply<'_>,
    expected: &Expected<'_>,
) -> Result<(), Verdict> {
    let wrong = |why: String| Err(unusable("content-range", why, Reason::BytesMismatch));
    let Some(range) = reply.content_range else {
        let partial = code == 206 || reply.status == 206;
        return match expected.exact {
            // A server that ignores the range may fill the window from the object's start: the number
            // of bytes alone would look right.
            _ if expected.ranged && expected.offset > 0 && said > 0 && !partial => {
                wrong("missing: nothing shows that the range was honoured".into())
            }
            // No content, asked for from the start on: an empty object.
            None if code == 204 && expected.offset == 0 => Ok(()),
            None if expected.ranged && said < expected.window => {
                wrong("missing: nothing shows that the object ends here".into())
            }
            None if !expected.ranged && partial => wrong("missing in a partial answer".into()),
            _ => Ok(()),
        };
    };
    if range.first != expected.offset {
        return wrong(format!(
            "starts at {}, asked for {}",
            range.first, expected.offset
        ));
    }
    if expected.exact.is_none()
        && said < expected.window
        && range.total.is_some_and(|t| range.last + 1 != t)
    {
        return wrong(format!(
            "{said} of {} bytes, and not at the object's end",
            expected.window
        ));
    }
    Ok(())
}

fn check_version(reply: &Reply<'_>, expected: &Expected<'_>) -> Result<(), Verdict> {
    let said_total = reply.content_range.and_then(|range| range.total);
    if let (Some(known), Some(said)) = (expected.total, said_total)
        && known != said
    {
        return Err(Verdict::Modified);
    }
    match (expected.etag, present(reply.etag)) {
        (Some(known), Some(said)) if unquoted(known) != unquoted(said) => Err(Verdict::Modified),
        (Some(_), None) => {
            let why = "missing: nothing shows that it is the same version".into();
            Err(unusable("etag", why, Reason::Modified))
        }
        _ => Ok(()),
    }
}

/// Whether the body may be the object: a success, no S3 error, and not empty unless the object is.
fn object_in_body(reply: &Reply<'_>, expected: &Expected<'_>) -> bool {
    matches!(reply.status, 200 | 206)
        && reply.s3_code.is_none()
        && (reply.content_length != Some(0) || expected.exact == Some(0))
}

/// One server says in a 500's message, not by its code, that it could not read the token.
fn speaks_of_the_token(reply: &Reply<'_>) -> bool {
    reply.status == 500
        && reply
            .s3_message
            .is_some_and(|text| text.to_ascii_lowercase().contains("rdma token"))
}

/// Bytes of a range; it need not come from the parser, so nothing is assumed of its fields.
fn range_len(range: ContentRange) -> Result<u64, Verdict> {
    let ContentRange { first, last, total } = range;
    last.checked_sub(first)
        .and_then(|len| len.checked_add(1))
        .filter(|_| last < total.unwrap_or(u64::MAX))
        .ok_or_else(|| {
            let why = format!("{first}-{last} of {total:?} is no range");
            unusable("content-range", why, Reason::BytesMismatch)
        })
}

fn unusable(header: &'static str, why: String, reason: Reason) -> Verdict {
    Verdict::Unusable {
        header,
        why,
        reason,
    }
}

/// A header that is there and not empty.
fn present(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|text| !text.is_empty())
}

/// A number in plain digits: no sign, no space.
fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn unquoted(etag: &str) -> &str {
    let text = etag.trim();
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text)
}

/// A header's value for a person, of bounded length.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    format!("{start:?} is not a value it can have")
}

#[cfg(test)]
mod tests;

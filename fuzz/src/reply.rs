//! Answers to a GET with a token: the order of the checks, and what a transfer must have proved.
//!
//! ```text
//! status: 206                          what the server says
//! x-amz-rdma-reply: 206
//! x-amz-rdma-bytes-transferred: 100
//! content-length: 0
//! range: 50 149 500                    its Content-Range: first, last, and the total where it is said
//! etag: "a"
//! code: InvalidRDMAToken               its S3 error
//! message: any text
//! asked-offset: 50                     what was asked for
//! asked-window: 100
//! asked-exact: 100
//! asked-ranged: true
//! asked-etag: "a"
//! asked-total: 500
//! ```

use s3engine_s3::Reason;
use s3engine_s3::range::ContentRange;
use s3engine_s3::reply::{BYTES_HEADER, Expected, REPLY_HEADER, Reply, Verdict, judge};

use crate::fields::Fields;

/// Judges the answer that the bytes describe. Whether it is a transfer.
pub fn reply(data: &[u8]) -> bool {
    let Some(fields) = Fields::of(data) else {
        return false;
    };
    let reply = Reply {
        status: fields.value("status").unwrap_or(200),
        rdma_reply: fields.text(REPLY_HEADER),
        bytes_transferred: fields.text(BYTES_HEADER),
        content_length: fields.value("content-length"),
        content_range: fields.text("range").and_then(range),
        etag: fields.text("etag"),
        s3_code: fields.text("code"),
        s3_message: fields.text("message"),
    };
    let asked = Expected {
        offset: fields.value("asked-offset").unwrap_or(0),
        window: fields.value("asked-window").unwrap_or(0),
        exact: fields.value("asked-exact"),
        ranged: fields.value("asked-ranged").unwrap_or(false),
        etag: fields.text("asked-etag"),
        total: fields.value("asked-total"),
    };
    let verdict = judge(&reply, &asked);
    check_order(&reply, &asked, &verdict);
    check_reason(&verdict);
    match verdict {
        Verdict::Transferred { bytes } => {
            check_count(bytes, &reply, &asked);
            check_place(bytes, &reply, &asked);
            check_version(&reply, &asked);
            true
        }
        Verdict::Declined { object_in_body } | Verdict::ReplyMissing { object_in_body } => {
            let is_object = matches!(reply.status, 200 | 206) && reply.s3_code.is_none();
            assert!(is_object || !object_in_body, "{reply:?}");
            false
        }
        _ => false,
    }
}

/// The numbers of a `Content-Range`, whether they make one or not.
fn range(text: &str) -> Option<ContentRange> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    Some(ContentRange {
        first: numbers.next()??,
        last: numbers.next()??,
        total: numbers.next().flatten(),
    })
}

/// An earlier check decides, whatever a later one would say.
fn check_order(reply: &Reply<'_>, asked: &Expected<'_>, verdict: &Verdict) {
    let said = reply.rdma_reply.map(str::trim).unwrap_or_default();
    let code = reply.s3_code.map(str::trim).unwrap_or_default();
    let is_success = matches!(reply.status, 200 | 204 | 206) && reply.s3_code.is_none();
    let right = match reply.status {
        412 if asked.etag.is_some() => *verdict == Verdict::Modified,
        401 | 403 | 404 | 412 | 416 => *verdict == Verdict::Http,
        _ if said == "501" => matches!(verdict, Verdict::Declined { .. }),
        _ if code == "InvalidRDMAToken" => *verdict == Verdict::TokenRejected,
        // One server speaks of the token in a message.
        500 if *verdict == Verdict::TokenRejected => reply.s3_message.is_some(),
        _ if code == "RDMATransferFailed" => *verdict == Verdict::RdmaError,
        _ if !is_success => *verdict == Verdict::Http,
        _ if said.is_empty() => matches!(verdict, Verdict::ReplyMissing { .. }),
        _ => matches!(
            verdict,
            Verdict::Transferred { .. }
                | Verdict::BytesMissing
                | Verdict::BytesMismatch { .. }
                | Verdict::Modified
                | Verdict::Unusable { .. }
        ),
    };
    assert!(right, "{verdict:?} for {reply:?}, asked {asked:?}");
}

/// Only a transfer is fine, and nothing that the server said is taken for a cause on this side.
fn check_reason(verdict: &Verdict) {
    let reason = verdict.reason();
    let is_transfer = matches!(verdict, Verdict::Transferred { .. });
    assert_eq!(reason == Reason::Ok, is_transfer, "{verdict:?}");
    if let Verdict::Unusable { why, .. } = verdict {
        let of_server = [
            Reason::RdmaError,
            Reason::ReplyMissing,
            Reason::BytesMissing,
            Reason::BytesMismatch,
            Reason::Modified,
        ];
        assert!(of_server.contains(&reason), "{verdict:?}");
        assert!(why.len() < 500, "{} bytes of text", why.len());
    }
}

/// The server said this number, and it is what it must be.
fn check_count(bytes: u64, reply: &Reply<'_>, asked: &Expected<'_>) {
    let said = reply.rdma_reply.map(str::trim);
    assert!(matches!(said, Some(code) if matches!(code.parse(), Ok(200 | 204 | 206))));
    let is_nothing = said.and_then(|code| code.parse().ok()) == Some(204);
    match reply.bytes_transferred.map(str::trim) {
        None | Some("") => assert!(is_nothing && bytes == 0),
        Some(text) => assert_eq!(text.parse(), Ok(bytes)),
    }
    assert!(bytes == 0 || !is_nothing);
    assert!(bytes <= asked.window);
    assert!(asked.exact.is_none_or(|exact| bytes == exact));
    assert!(matches!(reply.content_length, None | Some(0)));
    let total = reply.content_range.and_then(|range| range.total);
    for total in [total, asked.total].into_iter().flatten() {
        assert!(asked.ranged || bytes == total, "{bytes} of {total}");
    }
}

/// They are the bytes from the offset on, as far as the answer says where they are from.
fn check_place(bytes: u64, reply: &Reply<'_>, asked: &Expected<'_>) {
    let Some(range) = reply.content_range else {
        // A server that ignored the range would have answered the same.
        let is_partial =
            reply.status == 206 || reply.rdma_reply.is_some_and(|code| code.trim() == "206");
        assert!(!asked.ranged || asked.offset == 0 || bytes == 0 || is_partial);
        return;
    };
    assert_eq!(range.first, asked.offset);
    assert_eq!(range.last.checked_sub(range.first), bytes.checked_sub(1));
    assert!(range.total.is_none_or(|total| range.last < total));
    if asked.exact.is_none() && bytes < asked.window {
        let total = range.total.or(asked.total);
        assert!(total.is_none_or(|total| range.last + 1 == total));
    }
}

/// It is the version asked for.
fn check_version(reply: &Reply<'_>, asked: &Expected<'_>) {
    let total = reply.content_range.and_then(|range| range.total);
    if let (Some(known), Some(said)) = (asked.total, total) {
        assert_eq!(known, said);
    }
    if let Some(known) = asked.etag {
        let bare = |etag: &str| etag.trim().trim_matches('"').to_owned();
        assert_eq!(reply.etag.map(bare), Some(bare(known)));
    }
}

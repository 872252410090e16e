//! What can go wrong with an answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::faults::Kind;

/// How a request goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
#[non_exhaustive]
pub enum Action {
    /// RDMA: 200 with `x-amz-rdma-reply: 501` and the object in the body.
    DeclineWithBody,
    /// RDMA: `x-amz-rdma-reply: 501` with an S3 error instead of the object.
    DeclineWithError,
    /// RDMA: the body, as a server without the feature answers.
    IgnoreToken,
    /// RDMA: a 2xx with no reply header, no body and no write.
    IgnoreTokenEmpty,
    /// RDMA: all is written, and another number of bytes is told: `value`, or the true one plus `delta`.
    WrongBytes {
        /// The number to tell.
        value: Option<u64>,
        /// What to add to the true number.
        delta: Option<i64>,
    },
    /// RDMA: all is written, `x-amz-rdma-bytes-transferred` is left out.
    MissingBytes,
    /// RDMA: all is written, `x-amz-rdma-reply` is left out.
    MissingReply,
    /// RDMA: 400 `InvalidRDMAToken`.
    TokenRejected,
    /// RDMA: the 500 about the token's length with which AIStor answers.
    TokenRejectedAistor,
    /// RDMA: half is written, then 500 `RDMATransferFailed`.
    RdmaTransferFailed,
    /// RDMA: all is claimed and nothing is written.
    ClaimWithoutWriting,
    /// RDMA: no answer; all is written `ms` later, whether the client still waits or not, and the
    /// connection ends.
    WriteLate {
        /// Milliseconds until the write.
        ms: u64,
    },
    /// The answer (after an RDMA write, where there is one) comes `ms` late.
    AnswerLate {
        /// Milliseconds.
        ms: u64,
    },
    /// Nothing is written and no answer comes until the client closes the connection.
    NeverAnswer,
    /// An HTTP status with an S3 error.
    Status {
        /// The status, 200 to 599.
        code: u16,
        /// The S3 error's code; without it the answer has no body.
        s3_code: Option<String>,
        /// Headers to add.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
    /// 503 `SlowDown`.
    SlowDown {
        /// Seconds to tell in `Retry-After`.
        retry_after: Option<u64>,
    },
    /// The connection ends (FIN) after so many bytes of the body; without `after`, before the answer.
    Cut {
        /// Bytes of the body that are sent.
        after: Option<u64>,
    },
    /// The connection is reset (RST) after so many bytes of the body; without `after`, before the answer.
    Reset {
        /// Bytes of the body that are sent.
        after: Option<u64>,
    },
    /// A pause of `ms` after so many bytes of the body; without `after`, before the answer.
    Stall {
        /// Bytes of the body that are sent before.
        after: Option<u64>,
        /// Milliseconds.
        ms: u64,
    },
    /// The body, or the RDMA write, comes in pieces of `bytes` with `ms` between them.
    Trickle {
        /// Bytes of one piece.
        bytes: u64,
        /// Milliseconds.
        ms: u64,
    },
    /// `Content-Length` is off by `delta`; what is sent is not, and the connection ends after it.
    WrongLength {
        /// What to add to the true length.
        delta: i64,
    },
    /// Range and bytes of the answer begin `shift` after what was asked for.
    WrongRange {
        /// Bytes; 1 unless said.
        #[serde(default = "one")]
        shift: u64,
    },
    /// The object has a new version (ETag and, where synthetic, content) from this request on.
    Swap,
    /// Somewhere else is said to have the object: a status with `Location` and the region's header.
    Redirect {
        /// 301, 302, 303, 307, 308, or 400 as for a signature of the wrong region; 307 unless said.
        #[serde(default = "temporary")]
        code: u16,
        /// What `Location` says; where it ends with its host, the request's own path and query follow.
        location: Option<String>,
        /// What `x-amz-bucket-region` and the error's `Region` say.
        region: Option<String>,
    },
    /// Headers of the honest answer are replaced or left out. Without `Content-Length` the body ends with
    /// the connection.
    Headers {
        /// Names and values to tell instead, or besides.
        #[serde(default)]
        set: BTreeMap<String, String>,
        /// Names to leave out.
        #[serde(default)]
        drop: Vec<String>,
    },
    /// One bit is wrong in the byte at this offset of the object, however it goes out.
    Flip {
        /// The offset.
        at: u64,
    },
    /// The object's checksum is of other bytes.
    WrongChecksum,
    /// `If-Match` is not looked at.
    IgnoreIfMatch {
        /// Whether the object first gets a new version.
        #[serde(default)]
        swap: bool,
    },
    /// 200 and the whole object, whatever the range.
    IgnoreRange,
    /// A range is answered as `multipart/byteranges`.
    MultipartRange,
    /// The body goes out chunked, without a length.
    Chunked {
        /// Bytes of one chunk; 64 KiB unless said.
        #[serde(default = "chunk")]
        size: u64,
        /// What is wrong with it; nothing if absent.
        garbage: Option<Garbage>,
    },
    /// An honest answer, and more bytes after it on a connection that stays.
    Trailing {
        /// The bytes; another whole answer of nothing unless said.
        #[serde(default = "second_answer")]
        text: String,
    },
    /// Many headers before those of the answer.
    HeaderFlood {
        /// How many.
        count: u32,
        /// Bytes of each value.
        bytes: u32,
    },
    /// Interim answers before the answer.
    Interim {
        /// 100 to 199; 100 unless said.
        #[serde(default = "go_on")]
        code: u16,
        /// How many; one unless said.
        #[serde(default = "one_interim")]
        count: u32,
    },
    /// `Connection: close`, and it does.
    Close,
}

/// What is wrong with a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Garbage {
    /// The second chunk's size is no number.
    Size,
    /// The second chunk's size does not fit 64 bits.
    Overflow,
    /// A chunk is longer than its size.
    Long,
    /// The connection ends before the last chunk.
    NoEnd,
}

fn one() -> u64 {
    1
}

fn temporary() -> u16 {
    307
}

fn chunk() -> u64 {
    64 << 10
}

fn second_answer() -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
}

fn go_on() -> u16 {
    100
}

fn one_interim() -> u32 {
    1
}

/// Bytes of head that the faults may add.
const FLOOD: u64 = 64 << 20;
/// The longest pause, in milliseconds: a day.
const LONGEST: u64 = 86_400_000;

impl Action {
    /// Why nothing can come of the action, where that is so.
    pub(crate) fn impossible(&self) -> Option<&'static str> {
        use Action::*;
        match self {
            WrongBytes { value, delta } if value.is_some() == delta.is_some() => {
                Some("exactly one of value and delta must be given")
            }
            Status { code, .. } if !(200..=599).contains(code) => Some("code must be 200 to 599"),
            Redirect { code, .. } if ![301, 302, 303, 307, 308, 400].contains(code) => {
                Some("code must be 301, 302, 303, 307, 308 or 400")
            }
            Interim { code, .. } if !(100..=199).contains(code) => Some("code must be 100 to 199"),
            Interim { count, .. } if *count > 1000 => Some("count must be at most 1000"),
            Status { headers, .. } | Headers { set: headers, .. } if !sendable(headers) => {
                Some("a header has characters that HTTP forbids")
            }
            Redirect {
                location, region, ..
            } if ![location, region]
                .into_iter()
                .flatten()
                .all(|v| is_value(v)) =>
            {
                Some("a header has characters that HTTP forbids")
            }
            HeaderFlood { count, bytes }
                if u64::from(*count) * (u64::from(*bytes) + 32) > FLOOD =>
            {
                Some("the headers must be at most 64 MiB")
            }
            Trickle { bytes: 0, .. } => Some("bytes must be at least 1"),
            Chunked { size: 0, .. } => Some("size must be at least 1"),
            Trickle { ms, .. } | Stall { ms, .. } | AnswerLate { ms } | WriteLate { ms }
                if *ms > LONGEST =>
            {
                Some("ms must be at most a day")
            }
            _ => None,
        }
    }

    /// Whether the action makes sense for that kind of request.
    pub(crate) fn fits(&self, kind: Kind) -> bool {
        use Action::*;
        match self {
            DeclineWithBody
            | DeclineWithError
            | IgnoreToken
            | IgnoreTokenEmpty
            | WrongBytes { .. }
            | MissingBytes
            | MissingReply
            | TokenRejected
            | TokenRejectedAistor
            | RdmaTransferFailed
            | ClaimWithoutWriting
            | WriteLate { .. } => kind == Kind::Rdma,
            Flip { .. } => matches!(kind, Kind::Rdma | Kind::Http),
            MultipartRange => kind == Kind::Http,
            Chunked { .. } => matches!(kind, Kind::Http | Kind::List),
            WrongRange { .. } | WrongChecksum | Swap | IgnoreIfMatch { .. } | IgnoreRange => {
                kind != Kind::List
            }
            AnswerLate { .. }
            | NeverAnswer
            | Status { .. }
            | SlowDown { .. }
            | Cut { .. }
            | Reset { .. }
            | Stall { .. }
            | Trickle { .. }
            | WrongLength { .. }
            | Redirect { .. }
            | Headers { .. }
            | Trailing { .. }
            | HeaderFlood { .. }
            | Interim { .. }
            | Close => true,
        }
    }
}

fn sendable(headers: &BTreeMap<String, String>) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(token);
    headers.iter().all(|(n, v)| is_name(n) && is_value(v))
}

fn is_value(text: &str) -> bool {
    text.bytes().all(|b| b >= b' ' && b != 0x7f)
}

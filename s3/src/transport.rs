//! The contract of every way to move a part of an object: a request and a window in, an [`Outcome`] out.

use std::cell::Cell;
use std::time::Instant;

use s3engine_pool::Window;

use crate::checksum::Checksum;
use crate::error::Error;
use crate::http::{Client, GetPart, Kept};
use crate::object::ObjectInfo;
use crate::outcome::{Path, Reason};

/// What became of one request.
///
/// After an outcome whose window is still armed a remote may write into it at any time: the window's slot
/// must not be used again, and dropping the window sees to that.
#[derive(Debug)]
pub struct Outcome {
    /// What carried the bytes; `None` in a failure.
    pub path: Path,
    /// Why that path, or why the failure.
    pub reason: Reason,
    /// Bytes verified to have arrived.
    pub bytes: u64,
    /// Of a failure: bytes that are there for the next attempt to go on from.
    pub kept: u64,
    /// Whether they went through staging on their way to a device.
    pub staged: bool,
    /// Where in the object they begin and what they sum up to, where the object has a checksum to compare with and a
    /// processor saw them.
    pub sum: Option<(u64, Checksum)>,
    /// The HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// The object, as the answer describes it.
    pub info: ObjectInfo,
    /// The server's id of the request.
    pub request_id: Option<String>,
    /// When the window's registration was known.
    pub registered: Option<Instant>,
    /// When the head of the answer was there.
    pub first_byte: Option<Instant>,
    /// What RDMA failed with, also where the answer's body then carried the object.
    pub error: Option<Error>,
}

impl Outcome {
    /// A failure, for the reason that the error gives.
    pub fn failed(error: Error) -> Self {
        Self {
            path: Path::None,
            reason: error.reason(),
            bytes: 0,
            kept: 0,
            staged: false,
            sum: None,
            status: error.status(),
            info: ObjectInfo::default(),
            request_id: error.request_id().map(str::to_owned),
            registered: None,
            first_byte: None,
            error: Some(error),
        }
    }
}

/// Moves one part of an object into a window.
///
/// One attempt: whether to try again, and where, is the caller's to decide from the outcome. Dropping the
/// future is safe at any point; a window that a remote may still write to is then left armed.
pub trait Transport {
    /// Performs the request.
    fn get(&self, part: &GetPart<'_>, window: &mut Window) -> impl Future<Output = Outcome>;
}

/// Bytes in the body of the response: attempts at one part, each of which goes on where the one before broke off.
pub struct HttpTransport {
    client: Client,
    kept: Cell<Kept>,
}

impl HttpTransport {
    /// Requests through `client`. The window of all of them is the same one, and nobody else's meanwhile.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            kept: Cell::default(),
        }
    }
}

impl Transport for HttpTransport {
    async fn get(&self, part: &GetPart<'_>, window: &mut Window) -> Outcome {
        let mut kept = self.kept.take();
        let received = self.client.resume(part, window, &mut kept).await;
        let bytes = kept.bytes();
        self.kept.set(kept);
        match received {
            Ok(received) => Outcome {
                path: Path::Http,
                reason: Reason::Policy,
                bytes: received.bytes,
                kept: 0,
                staged: received.staged,
                sum: received.sum.map(|sum| (part.offset(), sum)),
                status: Some(received.status),
                info: received.info,
                request_id: received.request_id,
                registered: None,
                first_byte: Some(received.first_byte),
                error: None,
            },
            Err(error) => Outcome {
                kept: bytes,
                ..Outcome::failed(error)
            },
        }
    }
}

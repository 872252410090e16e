//! The control plane of S3 over RDMA: a signed GET that names a registered window, and what the answer means.
//!
//! ```text
//! arm (registered) ── token ── signed GET ──┬─ never sent ──────────── disarm, failed
//!                                          ├─ no answer, reset, or
//!                                          │  a proxy's answer ────── left armed: ambiguous
//!                                          └─ answered ── disarm ──┬─ transferred
//!                                                                  ├─ declined or ignored, object in the body
//!                                                                  └─ failed, with its own reason
//! ```

mod dialect;
mod head;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use s3engine_pool::{FabricId, Pool, RegistrationHandle, UnregisteredWhy, Window};
use tokio::task::yield_now;

use crate::checksum::{Checksum, Sum};
use crate::error::{Error, ErrorKind};
use crate::fabric::{Fabric, Named, TokenError, Transfer};
use crate::http::{Client, GetPart, Request, Response, SendError, Stale};
use crate::object::ObjectInfo;
use crate::outcome::{Path, Reason};
use crate::progress::{Progress, Waits};
use crate::reply::{BYTES_HEADER, REPLY_HEADER, Verdict};
use crate::transport::{Outcome, Transport};

use self::dialect::{Dialect, Standard};
use self::head::Head;

pub use self::dialect::TOKEN_HEADER;

/// Bytes that servers have been asked to write and have not answered for, of all clones together.
#[derive(Clone, Debug, Default)]
pub struct Queued(Arc<AtomicU64>);

struct QueuedBytes<'a> {
    queued: &'a Queued,
    len: u64,
}

impl Queued {
    /// Bytes asked for and not answered.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, len: u64) -> (QueuedBytes<'_>, u64) {
        let total = self.0.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        (QueuedBytes { queued: self, len }, total)
    }
}

impl Drop for QueuedBytes<'_> {
    fn drop(&mut self) {
        self.queued.0.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// One-sided writes into registered memory.
#[derive(Clone)]
pub struct RdmaTransport {
    client: Client,
    fabric: Arc<dyn Fabric>,
    id: FabricId,
    pool: Pool,
    queued: Queued,
    dialect: &'static dyn Dialect,
    /// Whether an answer that carries the object in its body may deliver it.
    take_body: bool,
}

impl RdmaTransport {
    /// Requests through `client` for windows of `pool`, registered with `fabric` under `id` there.
    pub fn new(
        client: Client,
        fabric: Arc<dyn Fabric>,
        id: FabricId,
        pool: Pool,
        queued: Queued,
    ) -> Self {
        Self {
            client,
            fabric,
            id,
            pool,
            queued,
            dialect: &Standard,
            take_body: true,
        }
    }

    /// The same, refusing bytes that come by HTTP after all.
    pub fn strict(mut self) -> Self {
        self.take_body = false;
        self
    }

    /// The same, which tells where its requests are.
    pub fn watched(&self, progress: Arc<Progress>) -> Self {
        Self {
            client: self.client.watched(progress),
            ..self.clone()
        }
    }

    /// Arms the window, waiting out a revocation of its slab that is under way.
    async fn arm(&self, window: &mut Window) -> Result<RegistrationHandle, UnregisteredWhy> {
        let began = Instant::now();
        let bound = self.pool.quarantine_bound();
        // Of an attempt whose bytes came in the body: they would write over what comes now.
        window.settled().await;
        loop {
            let changed = self.pool.changed();
            match window.arm(self.id) {
                Err(UnregisteredWhy::Draining(_)) if began.elapsed() < bound => {
                    // Woken by the pool; the bound only guards against a change that came in between.
                    let _ = tokio::time::timeout(Duration::from_millis(100), changed).await;
                }
                result => return result,
            }
        }
    }

    /// Names the armed window to the server.
    async fn token(&self, part: &GetPart<'_>, window: &mut Window) -> Result<Named, Error> {
        let refused = |reason, why: String| {
            let detail = format!("fabric {}: {why}", self.fabric.name());
            self.error(part, reason, detail)
        };
        let handle = self.arm(window).await.map_err(|why| {
            let reason = match &why {
                UnregisteredWhy::OverLimit { .. } => Reason::OverRegistrationLimit,
                _ => Reason::RegistrationFailed,
            };
            refused(reason, why.to_string())
        })?;
        let named = self.fabric.token(handle, window.address(), window.len());
        named.await.map_err(|error| {
            let reason = match error {
                TokenError::TooLong { .. } => Reason::ProtocolLimit,
                TokenError::Provider { .. } => Reason::TokenFailed,
                TokenError::RailDown { .. } => Reason::RailDown,
            };
            refused(reason, error.to_string())
        })
    }

    fn error(&self, part: &GetPart<'_>, reason: Reason, detail: String) -> Error {
        self.failure(part, ErrorKind::Rdma { reason, detail })
    }

    fn failure(&self, part: &GetPart<'_>, kind: ErrorKind) -> Error {
        Error::new("GET", part.bucket, part.key, kind)
            .with_endpoint(self.client.endpoint().to_string())
    }

    /// What a request that got no answer means. The window stays armed where the server may have it.
    fn unanswered(
        &self,
        part: &GetPart<'_>,
        window: &mut Window,
        failed: SendError,
        named: &Named,
    ) -> Outcome {
        if !failed.may_have_reached_server {
            window.disarm();
            return Outcome::failed(failed.error);
        }
        let reason = match failed.error.kind() {
            ErrorKind::Timeout { .. } => {
                self.fabric.ended(named, Transfer::Failed);
                Reason::RdmaTimeout
            }
            // Of the server, or of something between.
            _ => Reason::RdmaError,
        };
        let detail = format!(
            "no answer, the server may still write: {}",
            failed.error.kind()
        );
        let address = failed.error.address();
        Outcome::failed(
            self.error(part, reason, detail)
                .with_address(address)
                .with_source(failed.error),
        )
    }

    /// There is an answer. From a server that knows of the token it says that nothing is written any more.
    async fn answered(
        &self,
        part: &GetPart<'_>,
        window: &mut Window,
        response: Response,
        (named, token): (&Named, &str),
    ) -> Outcome {
        let mut head = Head::of(&response);
        if head.status.is_success() {
            window.disarm();
            return self.succeeded(part, window, response, head).await;
        }
        let error = redacted(response.into_error().await, token);
        if is_of_a_proxy(&error) && !self.dialect.knows_of_it(&head.headers) {
            let reason = match head.status.as_u16() {
                408 | 504 => Reason::RdmaTimeout,
                _ => Reason::RdmaError,
            };
            let why = error.kind();
            let detail = format!("{why}, not the server's answer: it may still write");
            let error = self.error(part, reason, detail).with_source(error);
            return head.outcome(Path::None, reason, 0, Some(error));
        }
        window.disarm();
        if let ErrorKind::RangeNotSatisfiable { size } = error.kind()
            && part.is_empty_object(*size)
        {
            head.info.size = *size;
            return head.outcome(Path::Rdma, Reason::Ok, 0, None);
        }
        let reason = head
            .judge(self.dialect, part, window.len(), Some(&error))
            .reason();
        if reason == Reason::RdmaError {
            self.fabric.ended(named, Transfer::Failed);
        }
        let error = match reason {
            Reason::HttpError => error,
            Reason::Modified => {
                let (expected, found) = head.difference(part);
                error.with_kind(ErrorKind::Modified { expected, found })
            }
            _ => {
                let message = error.message().map(str::to_owned);
                let detail = message.unwrap_or_else(|| error.kind().to_string());
                error.with_kind(ErrorKind::Rdma { reason, detail })
            }
        };
        head.outcome(Path::None, reason, 0, Some(error))
    }

    /// A 2xx answer: the bytes are in the window, or in the body, or neither.
    async fn succeeded(
        &self,
        part: &GetPart<'_>,
        window: &mut Window,
        response: Response,
        head: Head,
    ) -> Outcome {
        let verdict = head.judge(self.dialect, part, window.len(), None);
        let reason = verdict.reason();
        let rdma = |detail: &str| ErrorKind::Rdma {
            reason,
            detail: detail.to_owned(),
        };
        let kind = match verdict {
            Verdict::Transferred { .. } if head.is_of_another_version(part) => {
                let (expected, found) = head.difference(part);
                ErrorKind::Modified { expected, found }
            }
            Verdict::Transferred { bytes } => {
                let ended = response.error(ErrorKind::Rdma {
                    reason: Reason::BytesMismatch,
                    detail: "a body beside a transfer".into(),
                });
                return match response.finish().await {
                    Some(0) => match window.make_visible(self.id) {
                        Ok(()) => {
                            let sum = sum(part, &head.info, window, bytes).await;
                            Outcome {
                                sum,
                                ..head.outcome(Path::Rdma, Reason::Ok, bytes, None)
                            }
                        }
                        Err(error) => {
                            let error = self.error(part, Reason::RdmaError, error.to_string());
                            head.outcome(Path::None, error.reason(), 0, Some(error))
                        }
                    },
                    _ => head.outcome(Path::None, ended.reason(), 0, Some(ended)),
                };
            }
            Verdict::Declined {
                object_in_body: true,
            }
            | Verdict::ReplyMissing {
                object_in_body: true,
            } if self.take_body => {
                let why = response.error(rdma("the object came in the body"));
                return match response.receive_part(part, window).await {
                    Ok(received) => Outcome {
                        staged: received.staged,
                        sum: received.sum.map(|sum| (part.offset(), sum)),
                        ..head.outcome(Path::Http, reason, received.bytes, Some(why))
                    },
                    Err(error) => head.outcome(Path::None, error.reason(), 0, Some(error)),
                };
            }
            Verdict::BytesMismatch { said, expected } => match head.larger_than(part, window.len())
            {
                Some(needed) => ErrorKind::BufferTooSmall {
                    needed,
                    have: window.len(),
                },
                None => rdma(&format!("{said} bytes transferred, {expected} expected")),
            },
            Verdict::Modified => {
                let (expected, found) = head.difference(part);
                ErrorKind::Modified { expected, found }
            }
            Verdict::Unusable { header, why, .. } => rdma(&format!("{header}: {why}")),
            Verdict::Declined { .. } => rdma("the server answered 501"),
            Verdict::ReplyMissing { .. } => rdma(&format!(
                "status {} without {REPLY_HEADER}",
                head.status.as_u16()
            )),
            Verdict::BytesMissing => rdma(&format!("no {BYTES_HEADER}")),
            Verdict::TokenRejected | Verdict::RdmaError | Verdict::Http => {
                rdma("an error in a successful answer")
            }
        };
        let error = response.error(kind);
        head.outcome(Path::None, error.reason(), 0, Some(error))
    }
}

impl Transport for RdmaTransport {
    async fn get(&self, part: &GetPart<'_>, window: &mut Window) -> Outcome {
        if let Some(progress) = self.client.progress() {
            progress.waits_for(Waits::Registration);
        }
        let named = match self.token(part, window).await {
            Ok(named) => named,
            Err(error) => {
                window.disarm();
                return Outcome::failed(error);
            }
        };
        let registered = Instant::now();
        let (_queued, total) = self.queued.add(window.len());
        let version = part
            .version_to_name()
            .map(|version| [("versionId", version)]);
        let mut headers = match part.headers(self.client.endpoint()) {
            Ok(headers) => headers,
            Err(text) => {
                window.disarm();
                return Outcome::failed(self.failure(part, ErrorKind::Config(text)));
            }
        };
        self.client.ask_for_checksum(&mut headers, part.checksum);
        let token = self.dialect.ask(&named.token, &mut headers);
        let request = Request {
            method: Method::GET,
            bucket: part.bucket,
            key: part.key,
            query: version.as_ref().map_or(&[], |query| query.as_slice()),
            headers,
            first_byte: self.client.timeouts().rdma(total),
            stale: Stale::Report,
            rail: named.source,
        };
        let outcome = match self.client.send(&request).await {
            Ok(response) => {
                self.answered(part, window, response, (&named, &token))
                    .await
            }
            Err(failed) => self.unanswered(part, window, failed, &named),
        };
        if outcome.path == Path::Rdma {
            self.fabric.ended(&named, Transfer::Done(outcome.bytes));
        }
        Outcome {
            registered: Some(registered),
            ..outcome
        }
    }
}

/// Where the bytes in a window begin and what they sum up to, where processors can read them.
async fn sum(
    part: &GetPart<'_>,
    info: &ObjectInfo,
    window: &Window,
    bytes: u64,
) -> Option<(u64, Checksum)> {
    let mut sum = Sum::new(part.sums_by(info, Some(bytes))?);
    let mut at = 0;
    while at < bytes {
        let piece = window.written(at, bytes - at)?;
        sum.update(piece);
        at += piece.len() as u64;
        // Other tasks of the thread have their turn.
        yield_now().await;
    }
    Some((part.offset(), sum.finish()))
}

/// The same error where the server did not repeat the token, which people must not see.
fn redacted(error: Error, token: &str) -> Error {
    match error.kind() {
        ErrorKind::Status {
            status,
            code,
            message: Some(message),
        } if message.contains(token) => {
            let kind = ErrorKind::Status {
                status: *status,
                code: code.clone(),
                message: Some(message.replace(token, "<token>")),
            };
            error.with_kind(kind)
        }
        _ => error,
    }
}

/// Whether an error may come from something between client and server: then it says nothing about what the
/// server is doing.
fn is_of_a_proxy(error: &Error) -> bool {
    match error.status() {
        Some(408 | 502 | 504) => true,
        Some(500..) => error.code().is_none() && error.request_id().is_none(),
        _ => false,
    }
}

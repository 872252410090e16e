//! GET by RDMA: the object goes into the client's memory, and the answer only says so.
//!
//! Copying runs on the connection's thread, a tile (1 MiB) at a time with a turn for the thread's
//! other connections in between: handing it to a pool of threads would cost two wake-ups a
//! request and gain nothing, as the copies are bound by the same cores. What may really wait,
//! connecting to a client and fetching its memory, runs on a thread that may block, once per key;
//! and so does what a device copies by itself.
//!
//! Under a model a write passes the model's line, a piece at a time.
//!
//! A window shorter than what was asked for is filled, and the answer is a 206 that names the part.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use s3engine_s3::fabric::loopback::{Peer, PeerError, PeerOptions, RemoteWindow};
use s3engine_s3::token::Token;
use tokio::task;
use tokio::time::sleep;

use crate::answer::{Answer, Span};
use crate::connection::{load_object, read_file};
use crate::counters::{Tally, add};
use crate::delivery::End;
use crate::device;
use crate::faults::Action;
use crate::modelled::Modelled;
use crate::pace::Pace;
use crate::s3_error::S3Error;
use crate::store::{Object, Source};

const REPLY: &str = "x-amz-rdma-reply";
const BYTES: &str = "x-amz-rdma-bytes-transferred";
const FILE_CHUNK: u64 = 1 << 20;
/// How many keys are remembered as fetched. Forgetting one costs a switch of threads, no more.
const KNOWN: usize = 1 << 16;

/// The server's end of the loopback fabric.
pub(crate) struct Rdma {
    peer: Arc<Peer>,
    /// Keys that were fetched, so that resolving their tokens does not wait.
    known: Mutex<HashSet<(Option<[u8; 16]>, u32)>>,
}

/// Why bytes could not be written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("cannot read the file: {0}")]
    File(#[from] io::Error),
}

impl Rdma {
    pub fn new(folder: Option<PathBuf>) -> Rdma {
        let peer = Peer::new(PeerOptions {
            folder,
            ..PeerOptions::default()
        });
        Rdma {
            peer: Arc::new(peer),
            known: Mutex::default(),
        }
    }

    /// How many distinct clients were seen.
    pub fn clients(&self) -> u64 {
        self.peer.stats().owners
    }

    /// How many there are now.
    fn connected(&self) -> u64 {
        self.peer.stats().connected
    }

    /// Answers a GET with a token.
    pub async fn answer(
        &self,
        tally: &Tally,
        (model, pace): (Option<&Modelled>, &mut Pace),
        token: &str,
        object: &Object,
        span: Span,
        fault: Option<&Action>,
    ) -> Result<Answer, S3Error> {
        if let Some(answer) = fault.and_then(|fault| without_writing(fault, object, span)) {
            return answer;
        }
        let token = Token::parse(token).map_err(|error| bad_token(error.to_string()))?;
        let key = (token.gid, token.rkey);
        let window = self.resolve(token).await?;
        let part = fit(span, window.len(), object.size)?;
        if let Some(model) = model {
            model.admit(pace, || self.connected()).await;
            model.find_slab(pace, key, &window);
        }
        match fault {
            Some(Action::ClaimWithoutWriting) => {}
            Some(Action::WriteLate { ms }) => {
                sleep(Duration::from_millis(*ms)).await;
                return Ok(write_late(tally, pace, &window, object, part).await);
            }
            Some(Action::RdmaTransferFailed) => {
                let half = part.len / 2;
                write(pace, &window, object, part.first, 0..half)
                    .await
                    .map_err(failed)?;
                return Err(failed("by a fault rule"));
            }
            Some(Action::Trickle { bytes, ms }) => trickle(
                pace,
                &window,
                object,
                part,
                (*bytes, Duration::from_millis(*ms)),
            )
            .await
            .map_err(failed)?,
            _ => write(pace, &window, object, part.first, 0..part.len)
                .await
                .map_err(failed)?,
        }
        if let Some(Action::Flip { at }) = fault {
            flip(&window, object, part, *at).await.map_err(failed)?;
        }
        add(&tally.rdma_read_ops, 1);
        add(&tally.rdma_read_bytes, part.len);
        Ok(written(object, part, fault))
    }

    /// The memory that a token names; on this thread where that needs no waiting.
    async fn resolve(&self, token: Token) -> Result<RemoteWindow, S3Error> {
        let key = (token.gid, token.rkey);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known().contains(&key);
        let resolved = if is_known {
            self.peer.window(&token)
        } else {
            let peer = self.peer.clone();
            let fetch = move || {
                let window = peer.window(&token)?;
                window.gpu().inspect(|gpu| device::prepare(gpu));
                Ok(window)
            };
            let resolved = task::spawn_blocking(fetch).await;
            resolved.map_err(|error| S3Error::new(500, "InternalError", error.to_string()))?
        };
        let mut known = known();
        match resolved {
            Ok(window) => {
                if known.len() >= KNOWN {
                    known.clear();
                }
                known.insert(key);
                Ok(window)
            }
            Err(error) => {
                known.remove(&key);
                Err(unresolved(&error))
            }
        }
    }
}

/// Answers of faults that never look at the token.
fn without_writing(fault: &Action, object: &Object, span: Span) -> Option<Result<Answer, S3Error>> {
    Some(match fault {
        Action::DeclineWithBody => Ok(Answer::object(object, span).with(REPLY, 501)),
        Action::DeclineWithError => {
            let text = "This request cannot be served by RDMA.";
            Err(S3Error::new(501, "NotImplemented", text).with(REPLY, 501))
        }
        Action::IgnoreToken => Ok(Answer::object(object, span)),
        Action::IgnoreTokenEmpty => Ok(Answer::empty(200).about(object)),
        Action::TokenRejected => Err(bad_token("by a fault rule")),
        Action::TokenRejectedAistor => {
            let text =
                "unexpected suffix on client RDMA token: got length 115, expected exactly 81";
            Err(S3Error::new(500, "InternalError", text))
        }
        _ => return None,
    })
}

/// What of the span goes into the window.
fn fit(span: Span, window: u64, size: u64) -> Result<Span, S3Error> {
    let len = span.len.min(window);
    if len == 0 && span.len > 0 {
        return Err(bad_token("the window has no room for a single byte"));
    }
    Ok(Span {
        first: span.first,
        len,
        ranged: span.ranged || len < size,
    })
}

/// The answer after all of `part` was written.
fn written(object: &Object, part: Span, fault: Option<&Action>) -> Answer {
    let status = match part {
        Span { len: 0, .. } => 204,
        Span { ranged: true, .. } => 206,
        Span { ranged: false, .. } => 200,
    };
    let mut answer = Answer::empty(status)
        .about(object)
        .with_content_range(object, part);
    if fault != Some(&Action::MissingReply) {
        answer = answer.with(REPLY, status);
    }
    match fault {
        Some(Action::MissingBytes) => answer,
        Some(Action::WrongBytes {
            value: Some(value), ..
        }) => answer.with(BYTES, value),
        Some(Action::WrongBytes {
            delta: Some(delta), ..
        }) => answer.with(BYTES, i128::from(part.len) + i128::from(*delta)),
        _ => answer.with(BYTES, part.len),
    }
}

/// Writes when nobody waits any more, counts how that went, and ends the connection.
async fn write_late(
    tally: &Tally,
    pace: &mut Pace,
    window: &RemoteWindow,
    object: &Object,
    part: Span,
) -> Answer {
    match write(pace, window, object, part.first, 0..part.len).await {
        Ok(()) => add(&tally.late_writes_landed, 1),
        Err(error) => {
            tracing::info!(%error, "a late write was refused");
            add(&tally.late_writes_refused, 1);
        }
    }
    let mut answer = Answer::empty(200);
    answer.delivery.end = Some(End {
        after: None,
        reset: false,
    });
    answer
}

/// Writes pieces of so many bytes, with pauses between them.
async fn trickle(
    pace: &mut Pace,
    window: &RemoteWindow,
    object: &Object,
    part: Span,
    (piece, pause): (u64, Duration),
) -> Result<(), WriteError> {
    let mut at = 0;
    while at < part.len {
        let end = part.len.min(at.saturating_add(piece));
        write(pace, window, object, part.first, at..end).await?;
        at = end;
        if at < part.len {
            sleep(pause).await;
        }
    }
    Ok(())
}

/// Fills a range of the window, the start of which is for the object's byte `first`.
async fn write(
    pace: &mut Pace,
    window: &RemoteWindow,
    object: &Object,
    first: u64,
    Range { start, end }: Range<u64>,
) -> Result<(), WriteError> {
    let mut at = start;
    match &object.source {
        Source::Synthetic(phase) => {
            let (first, len) = (first.saturating_add(start), end - start);
            let slices = match window.gpu() {
                None => phase.slices(first, len),
                Some(_) => phase.long_slices(first, len),
            };
            for slice in slices {
                for piece in slice.chunks(pace.piece(slice.len() as u64) as usize) {
                    pace.pass(piece.len() as u64).await;
                    put(window, at, piece).await?;
                    at += piece.len() as u64;
                }
                if at < end {
                    task::yield_now().await;
                }
            }
        }
        Source::File(file) => {
            while at < end {
                let chunk = pace.piece(FILE_CHUNK.min(end - at));
                pace.pass(chunk).await;
                let bytes = read_file(file.clone(), first.saturating_add(at), chunk).await?;
                put(window, at, bytes).await?;
                at += chunk;
            }
        }
    }
    Ok(())
}

/// Makes a bit of what was written wrong: in the object's byte at that offset, where it is in the part.
async fn flip(
    window: &RemoteWindow,
    object: &Object,
    part: Span,
    at: u64,
) -> Result<(), WriteError> {
    if (part.first..part.first.saturating_add(part.len)).contains(&at) {
        let mut byte = load_object(&object.source, at, 1).await?;
        byte[0] ^= 1;
        put(window, at - part.first, byte).await?;
    }
    Ok(())
}

/// Copies bytes into the window.
async fn put(
    window: &RemoteWindow,
    at: u64,
    bytes: impl AsRef<[u8]> + Send + 'static,
) -> Result<(), PeerError> {
    match window.gpu() {
        None => window.write(at, bytes.as_ref()),
        Some(_) => device::write(window, at, bytes).await,
    }
}

/// What cannot be resolved is the token's fault, except where the system or time is short.
fn unresolved(error: &PeerError) -> S3Error {
    match error {
        PeerError::TimedOut { .. }
        | PeerError::OwnerGone { .. }
        | PeerError::Revoked { .. }
        | PeerError::Unmappable { .. }
        | PeerError::System { .. }
        | PeerError::Folder(_) => failed(error),
        _ => bad_token(error.to_string()),
    }
}

fn bad_token(why: impl std::fmt::Display) -> S3Error {
    S3Error::new(
        400,
        "InvalidRDMAToken",
        format!("The RDMA token is not valid: {why}"),
    )
}

fn failed(why: impl std::fmt::Display) -> S3Error {
    S3Error::new(
        500,
        "RDMATransferFailed",
        format!("The RDMA transfer failed: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shorter_than_the_object_makes_a_part_of_it() {
        let whole = Span {
            first: 0,
            len: 100,
            ranged: false,
        };
        assert_eq!(fit(whole, 100, 100), Ok(whole));
        assert_eq!(fit(whole, 500, 100), Ok(whole));
        assert_eq!(
            fit(whole, 40, 100),
            Ok(Span {
                first: 0,
                len: 40,
                ranged: true
            })
        );
        let part = Span {
            first: 60,
            len: 30,
            ranged: true,
        };
        assert_eq!(
            fit(part, 10, 100),
            Ok(Span {
                first: 60,
                len: 10,
                ranged: true
            })
        );
        assert_eq!(fit(part, 0, 100).unwrap_err().code, "InvalidRDMAToken");
    }

    #[test]
    fn an_empty_object_fits_any_window() {
        let empty = Span {
            first: 0,
            len: 0,
            ranged: false,
        };
        assert_eq!(fit(empty, 0, 0), Ok(empty));
    }
}

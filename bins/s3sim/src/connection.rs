//! One connection: requests in, answers out, and the faults that happen on the wire.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::task;
use tokio::time::{sleep, timeout};

use crate::answer::{Answer, Body};
use crate::delivery::{Delivery, End};
use crate::folder;
use crate::request::{self, HEAD_LIMIT, HeadError, Parsed, Request};
use crate::s3_error::S3Error;
use crate::service::Service;
use crate::store::Source;

/// How long a connection may be silent between requests, or within a request's head.
const IDLE: Duration = Duration::from_secs(60);
/// How long a client may take nothing of an answer.
const STUCK: Duration = Duration::from_secs(60);
/// How long the fault `never-answer` waits for the client to give up.
const SILENCE: Duration = Duration::from_secs(3600);
/// How long the end of a connection waits for what the client still sends: closing with bytes
/// unread would be a reset, which can take the answer with it.
const LINGER: Duration = Duration::from_secs(1);
/// Gives the network stack time to deliver what was sent before a reset discards the rest.
const BEFORE_RESET: Duration = Duration::from_millis(10);
/// How many pieces of memory one system call sends.
const PIECES: usize = 8;
/// Bytes after which a connection lets others on its thread have their turn.
const TURN: u64 = 4 << 20;
/// How much of a file is read at once.
const FILE_CHUNK: u64 = 1 << 20;

/// What becomes of a connection after an answer.
enum After {
    Keep,
    /// Sent whole, or cut: end it in order.
    Close,
    Reset,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(service: &Service, stream: TcpStream) {
    if let Err(error) = serve_requests(service, &stream).await {
        tracing::debug!(%error, "connection ended");
    }
}

async fn serve_requests(service: &Service, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(2048);
    loop {
        let mut answer = match next_request(stream, &mut buffer).await? {
            None => return Ok(()),
            Some(Ok(request)) => service.answer(&request).await,
            Some(Err(error)) => unreadable(error),
        };
        match deliver(stream, &mut answer).await? {
            After::Keep => {}
            After::Close => return end(stream).await,
            After::Reset => {
                sleep(BEFORE_RESET).await;
                sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
                return Ok(());
            }
        }
    }
}

/// Reads one head, leaving in `buffer` what follows it; `None` at the end of the connection.
async fn next_request(
    stream: &TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Result<Box<Request>, HeadError>>> {
    let whole = async {
        loop {
            if !buffer.is_empty() {
                match request::parse(buffer) {
                    Ok(Parsed::Complete(request, len)) => {
                        buffer.drain(..len);
                        return Ok(Some(Ok(request)));
                    }
                    Ok(Parsed::Partial) => {}
                    Err(error) => return Ok(Some(Err(error))),
                }
            }
            if !receive(stream, buffer).await? {
                return Ok(None);
            }
        }
    };
    match timeout(IDLE, whole).await {
        Ok(request) => request,
        Err(_) => Ok(None),
    }
}

/// Appends what has come; false at the end.
async fn receive(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    let room = chunk.len().min(HEAD_LIMIT.saturating_sub(buffer.len()));
    loop {
        match stream.try_read(&mut chunk[..room]) {
            Ok(n) => {
                buffer.extend_from_slice(&chunk[..n]);
                return Ok(n > 0);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}

fn unreadable(error: HeadError) -> Answer {
    let (status, code) = match error {
        HeadError::TooLong => (431, "RequestHeaderSectionTooLarge"),
        _ => (400, "InvalidRequest"),
    };
    let mut answer = Answer::error(&S3Error::new(status, code, error.to_string()), "", "");
    answer.close = true;
    answer
}

/// Sends an answer, or as much of it as its faults allow.
async fn deliver(stream: &TcpStream, answer: &mut Answer) -> io::Result<After> {
    let Delivery {
        silent, delay, end, ..
    } = answer.delivery;
    if silent {
        until_closed(stream, SILENCE).await;
        return Ok(After::Close);
    }
    if !delay.is_zero() {
        sleep(delay).await;
    }
    if let Some(End { after: None, reset }) = end {
        return Ok(after_end(reset));
    }
    if let Some(wrapping) = &answer.delivery.wrapping {
        let body = load(&answer.body, 0, answer.body.len()).await?;
        answer.body = Body::Bytes(wrapping.wrap(&body));
    }
    send(stream, answer).await?;
    if let Some(End { reset, .. }) = end {
        return Ok(after_end(reset));
    }
    Ok(if answer.close {
        After::Close
    } else {
        After::Keep
    })
}

fn after_end(reset: bool) -> After {
    if reset { After::Reset } else { After::Close }
}

/// Sends head and body at the answer's pace and with the pauses of the delivery.
async fn send(stream: &TcpStream, answer: &mut Answer) -> io::Result<()> {
    let mut head = std::mem::take(&mut answer.delivery.before);
    head.extend(answer.head());
    let limit = answer.delivery.limit(answer.body.len());
    let mut at = 0;
    loop {
        let (stop, mut pause) = answer.delivery.next_stop(at, limit);
        let piece_end = at + answer.pace.piece(stop - at);
        if piece_end < stop {
            pause = Duration::ZERO;
        }
        let stop = piece_end;
        answer.pace.pass(stop - at).await;
        let after = &answer.delivery.after;
        match &answer.body {
            // In one go, so that who has all of the answer finds them there.
            body if stop == limit && !after.is_empty() => {
                let mut bytes = load(body, at, stop - at).await?;
                bytes.extend_from_slice(after);
                send_all(stream, &head, &bytes).await?;
            }
            body if answer.delivery.flip == Some(at) && stop > at => {
                let mut byte = load(body, at, stop - at).await?;
                byte[0] ^= 1;
                send_all(stream, &head, &byte).await?;
            }
            Body::Bytes(bytes) => {
                send_all(stream, &head, &bytes[at as usize..stop as usize]).await?
            }
            Body::Object {
                source: Source::Synthetic(phase),
                first,
                ..
            } => {
                let slices =
                    |sent: u64| phase.slices(first.saturating_add(at + sent), stop - at - sent);
                send_pieces(stream, &head, stop - at, slices).await?;
            }
            Body::Object {
                source: Source::File(file),
                first,
                ..
            } => {
                let first = first.saturating_add(at);
                send_file(stream, &head, file, first, stop - at).await?;
            }
        }
        head.clear();
        at = stop;
        if at == limit {
            return Ok(());
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}

async fn send_all(stream: &TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
    let rest = |sent: u64| std::iter::once(&body[sent as usize..]);
    send_pieces(stream, head, body.len() as u64, rest).await
}

/// Sends head and `len` bytes of body straight from where they are; `rest` gives the pieces of the
/// body from an offset on.
async fn send_pieces<'a, I: Iterator<Item = &'a [u8]>>(
    stream: &TcpStream,
    head: &[u8],
    len: u64,
    rest: impl Fn(u64) -> I,
) -> io::Result<()> {
    let total = head.len() as u64 + len;
    let (mut sent, mut turn) = (0, 0);
    while sent < total {
        let head_left = head.get(sent as usize..).unwrap_or_default();
        let body_sent = sent.saturating_sub(head.len() as u64);
        let mut pieces = [IoSlice::new(head_left); PIECES];
        let mut count = usize::from(!head_left.is_empty());
        for piece in rest(body_sent).take(PIECES - 1) {
            pieces[count] = IoSlice::new(piece);
            count += 1;
        }
        match stream.try_write_vectored(&pieces[..count]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (sent, turn) = (sent + n as u64, turn + n as u64),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                timeout(STUCK, stream.writable()).await??;
                turn = 0;
            }
            Err(error) => return Err(error),
        }
        if turn >= TURN {
            turn = 0;
            task::yield_now().await;
        }
    }
    Ok(())
}

/// Sends a range of a file through a buffer.
async fn send_file(
    stream: &TcpStream,
    head: &[u8],
    file: &Arc<std::fs::File>,
    first: u64,
    len: u64,
) -> io::Result<()> {
    if len == 0 {
        return send_all(stream, head, &[]).await;
    }
    let (mut head, mut at) = (head, 0);
    while at < len {
        let chunk = read_file(
            file.clone(),
            first.saturating_add(at),
            FILE_CHUNK.min(len - at),
        )
        .await?;
        send_all(stream, head, &chunk).await?;
        head = &[];
        at += chunk.len() as u64;
    }
    Ok(())
}

/// A piece of a body, in memory.
async fn load(body: &Body, at: u64, len: u64) -> io::Result<Vec<u8>> {
    match body {
        Body::Bytes(bytes) => Ok(bytes[at as usize..(at + len) as usize].to_vec()),
        Body::Object { source, first, .. } => {
            load_object(source, first.saturating_add(at), len).await
        }
    }
}

/// A piece of an object, in memory.
pub(crate) async fn load_object(source: &Source, first: u64, len: u64) -> io::Result<Vec<u8>> {
    match source {
        Source::Synthetic(phase) => {
            let slices: Vec<_> = phase.slices(first, len).collect();
            Ok(slices.concat())
        }
        Source::File(file) => read_file(file.clone(), first, len).await,
    }
}

/// Reads a piece of a file on a thread that may block.
pub(crate) async fn read_file(
    file: Arc<std::fs::File>,
    offset: u64,
    len: u64,
) -> io::Result<Vec<u8>> {
    let read = move || {
        let mut bytes = vec![0; len as usize];
        folder::read_at(&file, offset, &mut bytes)?;
        Ok(bytes)
    };
    task::spawn_blocking(read).await.map_err(io::Error::other)?
}

/// Ends the connection in order: FIN, then a short while for what the client still sends.
async fn end(stream: &TcpStream) -> io::Result<()> {
    rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write)?;
    until_closed(stream, LINGER).await;
    Ok(())
}

/// Discards what comes until the client closes, at most for `limit`.
async fn until_closed(stream: &TcpStream, limit: Duration) {
    let drained = async {
        let mut discarded = Vec::new();
        while let Ok(true) = receive(stream, &mut discarded).await {
            discarded.clear();
        }
    };
    let _ = timeout(limit, drained).await;
}

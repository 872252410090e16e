//! One HTTP/1.1 connection, and the list of those that wait for their next request.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use s3engine_pool::uring::Socket;

use super::dial::Place;
use super::head::{self, Head};
use super::stream::{Stream, Unsent};
use crate::open_files::{FilePlace, OpenFiles};
use crate::proxy::Proxy;

/// Shorter than servers keep an idle connection, so that it is rarely closed just as a request goes out.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// Bytes read at once of a head, and of lines within a body. What comes with them of a body is copied from here;
/// the others go from the socket to where they belong.
const READ: usize = 8 << 10;

/// The most bytes of heads that only tell of an answer to come (1xx), and of that answer's own.
const MOST_BEFORE: usize = 2 * head::LONGEST_HEAD;

/// An open connection. Dropping it closes it, whatever is under way.
pub(crate) struct Connection {
    stream: Stream,
    /// What has come and is not taken yet.
    input: BytesMut,
    /// Bytes that were received so far, input among them.
    received: u64,
    pub(crate) address: SocketAddr,
    /// What it was opened for.
    pub(super) place: Place,
    /// The proxy at its other end, which must be told where each request goes.
    pub(super) proxy: Option<Arc<Proxy>>,
    /// Whether it has carried a request before.
    pub(crate) reused: bool,
    /// Its place among the open files of the process.
    _file: Option<FilePlace>,
}

/// Why a request got no answer.
pub(crate) enum ExchangeError {
    /// The connection broke before any byte of the request was on its way.
    Unsent(io::Error),
    /// It broke before the head of the answer was there.
    Broken {
        error: io::Error,
        /// Nothing of an answer had come.
        silent: bool,
    },
    /// What came is no answer, as the text says.
    Malformed(String),
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        address: SocketAddr,
        place: Place,
        proxy: Option<Arc<Proxy>>,
    ) -> Connection {
        Connection {
            stream,
            input: BytesMut::new(),
            received: 0,
            address,
            place,
            proxy,
            reused: false,
            _file: None,
        }
    }

    /// The same with its place among the open files of the process.
    pub(super) fn with_file(self, file: FilePlace) -> Connection {
        let _file = Some(file);
        Connection { _file, ..self }
    }

    /// Sends a request and receives the head of its answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Head, ExchangeError> {
        self.send(request).await?;
        let mut fetched = 0;
        loop {
            let found = head::take(&mut self.input).map_err(ExchangeError::Malformed)?;
            if let Some(head) = found {
                return Ok(head);
            }
            let error = match self.fetch() {
                Ok(0) => closed(),
                // Answers that only tell of the one to come would have no end, and leave others no time.
                Ok(_) if fetched > MOST_BEFORE => {
                    let text = format!("more than {MOST_BEFORE} bytes of heads, and no answer");
                    return Err(ExchangeError::Malformed(text));
                }
                Ok(more) => {
                    fetched += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match poll_fn(|cx| self.poll_readable(cx)).await {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            let silent = self.input.is_empty();
            return Err(ExchangeError::Broken { error, silent });
        }
    }

    async fn send(&mut self, request: &[u8]) -> Result<(), ExchangeError> {
        let sent = self.stream.send(request).await;
        sent.map_err(|Unsent { error, sent }| match sent {
            0 => ExchangeError::Unsent(error),
            _ => ExchangeError::Broken {
                error,
                silent: true,
            },
        })
    }

    /// What has come and was not taken.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Adds what is there now to the input. Nothing at all: the server has closed.
    pub(super) fn fetch(&mut self) -> io::Result<usize> {
        let read = self.stream.try_read_more(&mut self.input, READ)?;
        self.received += read as u64;
        Ok(read)
    }

    /// Reads what is there now: of the input, or straight from the socket. Nothing at all: the server has closed.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            let read = self.stream.try_read(room)?;
            self.received += read as u64;
            return Ok(read);
        }
        let len = room.len().min(self.input.len());
        room[..len].copy_from_slice(&self.input[..len]);
        self.input.advance(len);
        Ok(len)
    }

    /// Ready once more may have come.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_readable(cx)
    }

    /// Has nobody but the kernel receive what comes next, where that can be.
    pub(super) fn lend(&mut self) -> io::Result<()> {
        match self.input.is_empty() {
            true => self.stream.lend(),
            false => Ok(()),
        }
    }

    /// The socket that the kernel receives from.
    pub(super) fn lent(&self) -> Option<&Socket> {
        self.stream.lent()
    }

    /// Bytes that have come, and are in no hand of this process yet: with what the kernel has put where it was told to.
    pub(super) fn come(&self) -> Option<u64> {
        Some(self.lent()?.received()?.saturating_sub(self.received))
    }

    /// The kernel has received so many.
    pub(super) fn has_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    /// Takes it back from the kernel, where that had it. Returns whether it can be used again.
    pub(super) fn take_back(&mut self) -> bool {
        // The runtime has not looked at it since.
        self.lent().is_none() || self.stream.take_back().is_ok() && self.is_quiet(true)
    }

    /// Whether the server has neither closed nor said anything that nobody asked for.
    fn is_quiet(&mut self, sure: bool) -> bool {
        self.input.is_empty() && self.stream.is_quiet(sure)
    }
}

/// The end of a connection where more was to come.
pub(super) fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server closed the connection",
    )
}

/// Connections without a request, the one used last at the end.
#[derive(Default)]
pub(crate) struct IdleConnections(RefCell<Vec<(Instant, Connection)>>);

impl IdleConnections {
    /// The connection used last that leads there and is still alive, for `sure` where a request must not be lost on it.
    pub(crate) fn take(&self, place: &Place, sure: bool) -> Option<Connection> {
        loop {
            let (since, mut connection) = {
                let mut idle = self.0.borrow_mut();
                let index = idle.iter().rposition(|(_, one)| one.place == *place)?;
                idle.remove(index)
            };
            if since.elapsed() < LONGEST_IDLE && connection.is_quiet(sure) {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was read to its end, unless its place is wanted for another one.
    pub(crate) fn put(&self, mut connection: Connection) {
        if OpenFiles::of_process().are_all_taken() {
            return;
        }
        connection.reused = true;
        let (mut idle, now) = (self.0.borrow_mut(), Instant::now());
        let is_old = |since: Instant| now.duration_since(since) >= LONGEST_IDLE;
        let old = idle.partition_point(|(since, _)| is_old(*since));
        idle.drain(..old);
        idle.push((now, connection));
    }

    /// Closes all of them.
    pub(crate) fn close(&self) {
        self.0.borrow_mut().clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

//! One HTTP/1.1 connection, and the list of those that wait for their next request.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::head::{self, Head};
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Phase};
use crate::upstream::Upstream;

/// Shorter than servers keep an idle connection, so that it is rarely closed just as a request goes out.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// Bytes read at once of a head, and of lines within a body. What comes with them of a body is copied from here;
/// the others go from the socket to where they belong.
const READ: usize = 8 << 10;

/// An open connection. Dropping it closes it, whatever is under way.
pub(crate) struct Connection {
    /// A stream of TLS would have the same uses: what it has deciphered is read without waiting.
    stream: TcpStream,
    /// What has come and is not taken yet.
    input: BytesMut,
    pub(crate) address: SocketAddr,
    /// Whether it has carried a request before.
    pub(crate) reused: bool,
}

/// Why there is no connection.
pub(crate) struct ConnectError {
    pub(crate) kind: ErrorKind,
    pub(crate) phase: Phase,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) source: Option<Box<dyn StdError + Send + Sync>>,
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
    /// Opens a connection to one of the endpoint's addresses within the bound for that, all attempts together.
    pub(crate) async fn open(upstream: &Upstream) -> Result<Connection, ConnectError> {
        let (endpoint, limit) = (upstream.endpoint(), upstream.timeouts().connect);
        let started = Instant::now();
        let addresses = match timeout(limit, upstream.resolver.addresses(endpoint)).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Err(unresolved(endpoint, error)),
            Err(_) => return Err(timed_out(Phase::Resolve, None, limit)),
        };
        let mut failed = timed_out(Phase::Connect, None, limit);
        for (index, address) in addresses.iter().enumerate() {
            // A silent address must leave time for those after it.
            let left = limit.saturating_sub(started.elapsed());
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            match timeout(share, connect(*address)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = timed_out(Phase::Connect, Some(*address), limit),
            }
        }
        Err(failed)
    }

    /// Sends a request and receives the head of its answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Head, ExchangeError> {
        self.send(request).await?;
        loop {
            let found = head::take(&mut self.input).map_err(ExchangeError::Malformed)?;
            if let Some(head) = found {
                return Ok(head);
            }
            self.input.reserve(READ);
            let error = match self.stream.read_buf(&mut self.input).await {
                Ok(0) => closed(),
                Ok(_) => continue,
                Err(error) => error,
            };
            let silent = self.input.is_empty();
            return Err(ExchangeError::Broken { error, silent });
        }
    }

    async fn send(&mut self, request: &[u8]) -> Result<(), ExchangeError> {
        let mut rest = request;
        while !rest.is_empty() {
            match self.stream.write(rest).await {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if rest.len() == request.len() => {
                    return Err(ExchangeError::Unsent(error));
                }
                Err(error) => {
                    let silent = true;
                    return Err(ExchangeError::Broken { error, silent });
                }
            }
        }
        Ok(())
    }

    /// What has come and was not taken.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Adds what is there now to the input. Nothing at all: the server has closed.
    pub(super) fn fetch(&mut self) -> io::Result<usize> {
        self.input.reserve(READ);
        self.stream.try_read_buf(&mut self.input)
    }

    /// Reads what is there now: of the input, or straight from the socket. Nothing at all: the server has closed.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            return self.stream.try_read(room);
        }
        let len = room.len().min(self.input.len());
        room[..len].copy_from_slice(&self.input[..len]);
        self.input.advance(len);
        Ok(len)
    }

    /// Ready once more may have come.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_read_ready(cx)
    }

    /// Whether the server has neither closed nor said anything that nobody asked for.
    fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = recv(&self.stream, &mut [0; 1], flags);
        self.input.is_empty() && seen.is_err_and(|error| error == Errno::AGAIN)
    }
}

async fn connect(address: SocketAddr) -> Result<Connection, ConnectError> {
    let refused = |source: io::Error| ConnectError {
        kind: ErrorKind::Connect(explain(&source)),
        phase: Phase::Connect,
        address: Some(address),
        source: Some(source.into()),
    };
    let stream = TcpStream::connect(address).await.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    Ok(Connection {
        stream,
        input: BytesMut::new(),
        address,
        reused: false,
    })
}

/// The end of a connection where more was to come.
pub(super) fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server closed the connection",
    )
}

fn explain(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            "too many open files in this process; raise its limit (ulimit -n) or lower the bytes in flight".to_owned()
        }
        Some(Errno::NFILE) => "too many open files on this host (fs.file-max)".to_owned(),
        _ => error.to_string(),
    }
}

fn unresolved(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    ConnectError {
        kind: ErrorKind::Connect(format!("host {} not found: {source}", endpoint.host())),
        phase: Phase::Resolve,
        address: None,
        source: Some(source.into()),
    }
}

fn timed_out(phase: Phase, address: Option<SocketAddr>, after: Duration) -> ConnectError {
    ConnectError {
        kind: ErrorKind::Timeout { phase, after },
        phase,
        address,
        source: None,
    }
}

/// Connections without a request, the one used last at the end.
#[derive(Default)]
pub(crate) struct IdleConnections(RefCell<Vec<(Instant, Connection)>>);

impl IdleConnections {
    /// The connection used last that is still alive.
    pub(crate) fn take(&self) -> Option<Connection> {
        loop {
            let (since, connection) = self.0.borrow_mut().pop()?;
            if since.elapsed() < LONGEST_IDLE && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn put(&self, mut connection: Connection) {
        connection.reused = true;
        let mut idle = self.0.borrow_mut();
        let old = idle.partition_point(|(since, _)| since.elapsed() >= LONGEST_IDLE);
        idle.drain(..old);
        idle.push((Instant::now(), connection));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_files_is_explained() {
        let text = explain(&io::Error::from_raw_os_error(Errno::MFILE.raw_os_error()));
        assert!(text.contains("ulimit -n"), "{text}");
    }
}

//! One HTTP/1.1 connection, and the list of those that wait for their next request.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::resolver::Resolver;
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Phase};

/// Shorter than servers keep an idle connection, so that it is rarely closed just as a request goes out.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// Bytes read at once, and the longest head of an answer. Bodies pass through it on their way to the slot: small
/// enough to stay in a core's cache meanwhile. (Against hyper's own choice of up to 400 KiB, in two runs of 5 rounds
/// each on 2 cores: processor time 14 and 21 % less for parts of 1 MiB, 3 and 4 % more for parts of 8 MiB.)
const READ_BUFFER: usize = 64 << 10;

/// An open connection. Dropping it closes it, whatever it is doing.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Empty<Bytes>>,
    pub(crate) address: SocketAddr,
    /// Whether it has carried a request before.
    pub(crate) reused: bool,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why there is no connection.
pub(crate) struct ConnectError {
    pub(crate) kind: ErrorKind,
    pub(crate) phase: Phase,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Connection {
    /// Opens a connection to one of the endpoint's addresses within `limit`, all attempts together.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        resolver: &Resolver,
        limit: Duration,
    ) -> Result<Connection, ConnectError> {
        let started = Instant::now();
        let addresses = match timeout(limit, resolver.addresses(endpoint)).await {
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

    /// Waits until it can take a request; `false`: it is closed.
    async fn ready(&mut self, limit: Duration) -> bool {
        self.sender.is_ready() || matches!(timeout(limit, self.sender.ready()).await, Ok(Ok(())))
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
    let (sender, driver) = Builder::new()
        .max_buf_size(READ_BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|source| ConnectError {
            kind: ErrorKind::Connect(source.to_string()),
            phase: Phase::Connect,
            address: Some(address),
            source: Some(source.into()),
        })?;
    let driver = tokio::task::spawn_local(async move {
        // An error that matters also reaches the request; this one is of an idle connection.
        if let Err(error) = driver.await {
            tracing::trace!(%address, %error, "connection ended");
        }
    });
    Ok(Connection {
        sender,
        address,
        reused: false,
        driver: driver.abort_handle(),
    })
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
    pub(crate) async fn take(&self, limit: Duration) -> Option<Connection> {
        loop {
            let (since, mut connection) = self.0.borrow_mut().pop()?;
            if since.elapsed() < LONGEST_IDLE && connection.ready(limit).await {
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
        if !connection.sender.is_closed() {
            idle.push((Instant::now(), connection));
        }
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

//! Connecting to one of several addresses: an address that does not answer holds up the next one only for a moment.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until};

use crate::network::Source;

/// How long an attempt may take before the next one begins beside it.
const HEAD_START: Duration = Duration::from_millis(250);

type Work = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Attempts at the addresses of a list, in its order.
pub(super) struct Race<T> {
    waiting: VecDeque<(T, SocketAddr)>,
    running: Vec<Attempt<T>>,
    source: Arc<Source>,
    rail: Option<IpAddr>,
    /// When the next one begins.
    next: Instant,
}

struct Attempt<T> {
    of: T,
    address: SocketAddr,
    since: Instant,
    work: Work,
}

/// An attempt that has ended.
pub(super) struct Ended<T> {
    pub(super) of: T,
    pub(super) address: SocketAddr,
    pub(super) socket: io::Result<TcpStream>,
}

impl<T> Race<T> {
    pub(super) fn new(
        addresses: Vec<(T, SocketAddr)>,
        source: Arc<Source>,
        rail: Option<IpAddr>,
    ) -> Race<T> {
        Race {
            waiting: addresses.into(),
            running: Vec::new(),
            source,
            rail,
            next: Instant::now(),
        }
    }

    /// The next attempt to end. None: all have.
    pub(super) async fn next(&mut self) -> Option<Ended<T>> {
        loop {
            if self.running.is_empty() || self.next <= Instant::now() {
                self.start();
            }
            if self.running.is_empty() {
                return None;
            }
            if let Some(ended) = self.wait().await {
                if ended.socket.is_err() {
                    self.next = Instant::now();
                }
                return Some(ended);
            }
        }
    }

    /// The attempts that have not ended.
    pub(super) fn left(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// The addresses that have had time to answer and have not.
    pub(super) fn silent(&self) -> impl Iterator<Item = SocketAddr> {
        let silent = |attempt: &&Attempt<T>| attempt.since.elapsed() >= HEAD_START;
        self.running
            .iter()
            .filter(silent)
            .map(|attempt| attempt.address)
    }

    fn start(&mut self) {
        if let Some((of, address)) = self.waiting.pop_front() {
            let since = Instant::now();
            let work = Box::pin(connect(address, Arc::clone(&self.source), self.rail));
            self.running.push(Attempt {
                of,
                address,
                since,
                work,
            });
            self.next = since + HEAD_START;
        }
    }

    /// The next attempt to end. None: it is time for another one.
    async fn wait(&mut self) -> Option<Ended<T>> {
        let more = !self.waiting.is_empty();
        let mut timer = pin!(sleep_until(self.next));
        poll_fn(|cx| {
            for index in 0..self.running.len() {
                if let Poll::Ready(socket) = self.running[index].work.as_mut().poll(cx) {
                    let Attempt { of, address, .. } = self.running.remove(index);
                    return Poll::Ready(Some(Ended {
                        of,
                        address,
                        socket,
                    }));
                }
            }
            match timer.as_mut().poll(cx) {
                Poll::Ready(()) if more => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

async fn connect(
    address: SocketAddr,
    source: Arc<Source>,
    rail: Option<IpAddr>,
) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if let Some(interface) = &source.interface {
        socket
            .bind_device(Some(interface.as_bytes()))
            .map_err(|error| from_here(format!("from interface {interface}: {error}"), &error))?;
    }
    // A rail's address is a preference, and of no use towards an address of another kind.
    let rail = rail.filter(|ip| ip.is_ipv4() == address.is_ipv4());
    if let Some(ip) = source.address.or(rail) {
        if ip.is_ipv4() != address.is_ipv4() {
            let text = format!("from {ip}, which is an address of another kind");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        socket
            .bind(SocketAddr::new(ip, 0))
            .map_err(|error| from_here(format!("from {ip}: {error}"), &error))?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A failure before the other side had any part in it: it has no number, as those of the system have.
fn from_here(text: String, error: &io::Error) -> io::Error {
    let help = match error.kind() {
        io::ErrorKind::PermissionDenied => " (to choose the interface takes CAP_NET_RAW here)",
        io::ErrorKind::AddrNotAvailable => " (no interface of this host has it)",
        _ => "",
    };
    io::Error::new(error.kind(), text + help)
}

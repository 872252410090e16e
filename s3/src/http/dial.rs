//! How a connection comes about, within one bound for all of it.
//!
//! ```text
//! places ── resolve ──> addresses ── race ──> socket ──┬─ (proxy: CONNECT) ── TLS ──> Connection
//!           once for    in turn, those        first    └─ plain ────────────────────> Connection
//!           all threads on the bench last     wins
//! ```

use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::head;
use super::race::Race;
use super::stream::Stream;
use crate::endpoint::Origin;
use crate::error::{ErrorKind, Phase};
use crate::network::Source;
use crate::open_files::are_lacking;
use crate::proxy::Proxy;
use crate::redirect::may_be_at;
use crate::tls;
use crate::upstream::Upstream;

/// What a connection is opened for: it serves every request that wants the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) origin: Arc<Origin>,
    /// The name that the certificate must have, where TLS is spoken.
    pub(crate) name: Option<String>,
    /// Where it begins: the same for all places of a request.
    pub(crate) source: Arc<Source>,
    /// The address of the rail that the request names, at which it begins where nothing else is said and the server
    /// has an address of that kind.
    pub(crate) rail: Option<IpAddr>,
    /// An answer has named it, and not the endpoint.
    pub(crate) foreign: bool,
}

/// Why there is no connection.
pub(crate) struct ConnectError {
    pub(crate) kind: ErrorKind,
    pub(crate) phase: Phase,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) source: Option<Box<dyn StdError + Send + Sync>>,
}

impl ConnectError {
    /// The error of the system, where it had no file for the connection.
    pub(super) fn want_of_files(&self) -> Option<&io::Error> {
        let error = self.source.as_ref()?.downcast_ref::<io::Error>()?;
        are_lacking(error).then_some(error)
    }
}

impl Place {
    /// Where requests on a bucket go at one of the endpoint's servers.
    pub(crate) fn of_bucket(upstream: &Upstream, origin: &Arc<Origin>, bucket: &str) -> Place {
        let name = origin.is_secure().then(|| {
            if upstream.endpoint().names_in_host(bucket) {
                origin.named(bucket).host()
            } else {
                origin.host()
            }
        });
        Place {
            origin: Arc::clone(origin),
            name,
            source: Arc::clone(&upstream.source),
            rail: None,
            foreign: false,
        }
    }

    /// A server that an answer has named.
    pub(crate) fn elsewhere(upstream: &Upstream, origin: Origin) -> Place {
        let foreign = !upstream
            .endpoint()
            .origins()
            .iter()
            .any(|own| **own == origin);
        Place {
            name: origin.is_secure().then(|| origin.host()),
            origin: Arc::new(origin),
            source: Arc::clone(&upstream.source),
            rail: None,
            foreign,
        }
    }
}

/// Opens a connection to one of the places, preferably the first, within the bound for that.
pub(crate) async fn open(
    upstream: &Upstream,
    places: &[Place],
) -> Result<Connection, ConnectError> {
    let limit = upstream.timeouts().connect;
    let dial = Dial {
        upstream,
        limit,
        end: Instant::now() + limit,
    };
    let ways = dial.resolve(places).await?;
    dial.connect(ways).await
}

struct Dial<'a> {
    upstream: &'a Upstream,
    limit: Duration,
    end: Instant,
}

/// A place, and the proxy before it.
#[derive(Clone)]
struct Way<'a> {
    place: &'a Place,
    proxy: Option<Arc<Proxy>>,
}

impl<'a> Dial<'a> {
    /// The addresses of all places: those that lately failed at the end.
    async fn resolve(
        &self,
        places: &'a [Place],
    ) -> Result<Vec<(Way<'a>, SocketAddr)>, ConnectError> {
        let mut found = Vec::new();
        let mut failed = self.timed_out(Phase::Resolve, None);
        for place in places {
            let proxy = self.upstream.proxies.of(&place.origin).cloned();
            let server = proxy.as_ref().map_or(&*place.origin, |proxy| &proxy.server);
            match timeout_at(self.end, self.upstream.resolver.addresses(server)).await {
                Ok(Ok(addresses)) => {
                    if place.foreign {
                        let of_place = match proxy {
                            Some(_) => place.origin.evident(),
                            None => addresses.iter().map(SocketAddr::ip).collect(),
                        };
                        self.check(place, &of_place)
                            .map_err(|kind| self.refused_redirect(kind))?;
                    }
                    let way = Way { place, proxy };
                    found.extend(addresses.into_iter().map(|address| (way.clone(), address)));
                }
                Ok(Err(error)) => failed = unresolved(server, error),
                Err(_) => failed = self.timed_out(Phase::Resolve, None),
            }
        }
        if found.is_empty() {
            return Err(failed);
        }
        let now = std::time::Instant::now();
        found.sort_by_cached_key(|(_, address)| self.upstream.health.left(*address, now));
        Ok(found)
    }

    /// Whether an answer may send requests to these addresses. Where a proxy looks names up, these are the ones that a
    /// name tells by itself.
    fn check(&self, place: &Place, addresses: &[IpAddr]) -> Result<(), ErrorKind> {
        let mut own = Vec::new();
        for origin in self.upstream.endpoint().origins() {
            own.extend(origin.evident());
            let known = self.upstream.resolver.known(origin);
            own.extend(known.iter().map(SocketAddr::ip));
        }
        let near = addresses.iter().find(|address| !may_be_at(**address, &own));
        let host = place.origin.host();
        near.map_or(Ok(()), |near| {
            let text = format!(
                "a redirect to {host}, which is at {near}, beside this host; the endpoint is not"
            );
            Err(ErrorKind::Protocol(text))
        })
    }

    fn refused_redirect(&self, kind: ErrorKind) -> ConnectError {
        ConnectError {
            kind,
            phase: Phase::Resolve,
            address: None,
            source: None,
        }
    }

    async fn connect(&self, ways: Vec<(Way<'a>, SocketAddr)>) -> Result<Connection, ConnectError> {
        let health = &self.upstream.health;
        let first = ways.first().map(|(way, _)| way.place);
        let source = first.map(|place| Arc::clone(&place.source));
        // A proxy is another way to the server.
        let rail = ways.first().filter(|(way, _)| way.proxy.is_none());
        let rail = rail.and_then(|(way, _)| way.place.rail);
        let mut race = Race::new(ways, source.unwrap_or_default(), rail);
        let mut failed = self.timed_out(Phase::Connect, None);
        while let Ok(next) = timeout_at(self.end, race.next()).await {
            let Some(ended) = next else {
                return Err(failed);
            };
            let socket = match ended.socket {
                Ok(socket) => socket,
                Err(error) => {
                    if !is_from_here(&error) {
                        health.failed(ended.address, std::time::Instant::now());
                    }
                    failed = refused(&ended.of, ended.address, error);
                    continue;
                }
            };
            // A silent server must leave time for the others.
            let left = self.end.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(1 + race.left()).unwrap_or(u32::MAX);
            match timeout(share, self.secure(&ended.of, ended.address, socket)).await {
                Ok(Ok(connection)) => {
                    health.worked(ended.address);
                    self.bench(race.silent());
                    return Ok(connection);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = self.timed_out(Phase::Tls, Some(ended.address)),
            }
            health.failed(ended.address, std::time::Instant::now());
        }
        self.bench(race.silent());
        match race.silent().last() {
            Some(address) => Err(self.timed_out(Phase::Connect, Some(address))),
            None => Err(failed),
        }
    }

    fn bench(&self, addresses: impl Iterator<Item = SocketAddr>) {
        let now = std::time::Instant::now();
        addresses.for_each(|address| self.upstream.health.failed(address, now));
    }

    /// What comes after the socket.
    async fn secure(
        &self,
        way: &Way<'_>,
        address: SocketAddr,
        mut socket: TcpStream,
    ) -> Result<Connection, ConnectError> {
        let place = way.place.clone();
        let failed = |kind, source: Option<io::Error>| ConnectError {
            kind,
            phase: Phase::Tls,
            address: Some(address),
            source: source.map(Into::into),
        };
        let Some(name) = &place.name else {
            let proxy = way.proxy.clone();
            return Ok(Connection::new(
                Stream::Plain(socket),
                address,
                place,
                proxy,
            ));
        };
        if let Some(proxy) = &way.proxy {
            let tunnel = tunnel(&mut socket, proxy, &place.origin).await;
            tunnel.map_err(|kind| ConnectError {
                phase: Phase::Connect,
                ..failed(kind, None)
            })?;
        }
        let config = self.upstream.tls.config();
        let config = config.map_err(|e| failed(ErrorKind::Config(e.to_string()), None))?;
        let server = tls::server_name(name).map_err(|e| failed(ErrorKind::Tls(e), None))?;
        match TlsConnector::from(config).connect(server, socket).await {
            Ok(stream) => {
                let (socket, session) = stream.into_inner();
                Ok(Connection::new(
                    Stream::tls(socket, session),
                    address,
                    place,
                    None,
                ))
            }
            Err(error) => {
                let kind = match tls::explain(&error, name) {
                    Some(text) => ErrorKind::Tls(text),
                    None => ErrorKind::Connect(format!("TLS handshake: {error}")),
                };
                Err(failed(kind, Some(error)))
            }
        }
    }

    fn timed_out(&self, phase: Phase, address: Option<SocketAddr>) -> ConnectError {
        ConnectError {
            kind: ErrorKind::Timeout {
                phase,
                after: self.limit,
            },
            phase,
            address,
            source: None,
        }
    }
}

/// Has a proxy connect to a server.
async fn tunnel(socket: &mut TcpStream, proxy: &Proxy, to: &Origin) -> Result<(), ErrorKind> {
    let lost = |error: io::Error| ErrorKind::Connect(format!("proxy {}: {error}", proxy.server));
    let to = to.host_and_port();
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n").into_bytes();
    if let Some(value) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    socket.write_all(&request).await.map_err(lost)?;
    let mut input = BytesMut::new();
    let answer = loop {
        let told = |text| ErrorKind::Connect(format!("proxy {}: not HTTP: {text}", proxy.server));
        if let Some(head) = head::take(&mut input).map_err(told)? {
            break head;
        }
        if socket.read_buf(&mut input).await.map_err(lost)? == 0 {
            return Err(lost(super::connection::closed()));
        }
    };
    match answer.status.as_u16() {
        // In TLS the client speaks first.
        200..300 if input.is_empty() => Ok(()),
        407 => Err(ErrorKind::Config(format!(
            "proxy {} wants another user and password than it has got (407)",
            proxy.server
        ))),
        status => Err(ErrorKind::Connect(format!(
            "proxy {} does not connect to {to}: status {status}",
            proxy.server
        ))),
    }
}

fn refused(way: &Way<'_>, address: SocketAddr, source: io::Error) -> ConnectError {
    let text = explain(&source);
    let text = match &way.proxy {
        Some(proxy) => format!("proxy {}: {text}", proxy.server),
        None => text,
    };
    ConnectError {
        kind: ErrorKind::Connect(text),
        phase: Phase::Connect,
        address: Some(address),
        source: Some(source.into()),
    }
}

/// Whether a failure says nothing about the server.
fn is_from_here(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        None => true,
        Some(errno) => [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::ADDRNOTAVAIL,
            Errno::PERM,
        ]
        .contains(&errno),
    }
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

fn unresolved(server: &Origin, source: io::Error) -> ConnectError {
    ConnectError {
        kind: ErrorKind::Connect(format!("host {} not found: {source}", server.host())),
        phase: Phase::Resolve,
        address: None,
        source: Some(source.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_files_is_explained_and_no_fault_of_the_server() {
        let error = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let text = explain(&error);
        assert!(text.contains("ulimit -n"), "{text}");
        assert!(is_from_here(&error));
        let error = io::Error::from_raw_os_error(Errno::CONNREFUSED.raw_os_error());
        assert!(!is_from_here(&error));
    }
}

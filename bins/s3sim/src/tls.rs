//! TLS in front of connections: each is a relay to a plain one, which knows nothing of it.
//!
//! ```text
//! client ══ TLS ══ relay ── TCP on this host ── connection
//! ```
//! What the plain end does the client sees: FIN as the end of TLS (or as FIN alone, where the server is to leave that
//! out), RST as RST.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{HandshakeKind, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connection;
use crate::counters::add;
use crate::service::Service;

/// The longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(20);
const CHUNK: usize = 64 << 10;

/// How a server speaks TLS.
#[derive(Clone)]
pub struct TlsOptions {
    /// Its certificate and those between that and the root, in PEM.
    pub certificates: Vec<u8>,
    /// The key of its certificate, in PEM.
    pub key: Vec<u8>,
    /// Clients must have a certificate of one of these, in PEM. Absent, none is asked for.
    pub client_ca: Option<Vec<u8>>,
    /// Whether connections end without the message that says so.
    pub truncate: bool,
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("client_ca", &self.client_ca.is_some())
            .field("truncate", &self.truncate)
            .finish_non_exhaustive()
    }
}

/// Why a server cannot speak TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Something is not in PEM.
    #[error("cannot read the {what}: {source}")]
    Pem {
        /// What.
        what: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// Certificate and key do not go together, or are of no use.
    #[error(transparent)]
    Config(#[from] rustls::Error),
    /// Clients' certificates cannot be checked.
    #[error("cannot check certificates of clients: {0}")]
    ClientCa(#[from] VerifierBuilderError),
}

/// The server's end of TLS.
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    truncate: bool,
}

impl Tls {
    pub fn new(options: &TlsOptions) -> Result<Tls, TlsError> {
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let config = match &options.client_ca {
            None => config.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(ca, "certificates of clients' authorities")? {
                    roots.add(root)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                config.with_client_cert_verifier(verifier.build()?)
            }
        };
        let key = PrivateKeyDer::from_pem_slice(&options.key);
        let what = "key";
        let key = key.map_err(|source| TlsError::Pem { what, source })?;
        let own = certificates(&options.certificates, "certificate")?;
        let mut config = config.with_single_cert(own, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            truncate: options.truncate,
        })
    }

    /// Serves a connection until it ends.
    pub async fn serve(&self, service: &Service, stream: TcpStream) {
        if let Err(error) = self.relay(service, stream).await {
            tracing::debug!(%error, "TLS ended");
        }
    }

    async fn relay(&self, service: &Service, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = stream.as_fd().try_clone_to_owned()?;
        let tls = timeout(HANDSHAKE, self.acceptor.accept(stream)).await??;
        let resumed = tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        let tally = &service.tally;
        add(
            if resumed {
                &tally.tls_resumed
            } else {
                &tally.tls_full
            },
            1,
        );
        let (near, far) = pair().await?;
        near.set_nodelay(true)?;
        let (from_client, to_client) = tokio::io::split(tls);
        let (from_server, to_server) = near.into_split();
        let relayed = async {
            let down = self.down(from_server, to_client, &socket);
            tokio::try_join!(up(from_client, to_server), down)
        };
        // An end of the relay that is an error ends the plain connection too: it is dropped here.
        let ((), relayed) = tokio::join!(connection::serve(service, far), relayed);
        relayed.map(drop)
    }

    /// What the server sends, and how it ends.
    async fn down(
        &self,
        mut from: OwnedReadHalf,
        mut to: WriteHalf<TlsStream<TcpStream>>,
        socket: &OwnedFd,
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk).await {
                Ok(0) if self.truncate => return Ok(shutdown(socket, Shutdown::Write)?),
                Ok(0) => return to.shutdown().await,
                Ok(n) => {
                    to.write_all(&chunk[..n]).await?;
                    to.flush().await?;
                }
                Err(error) => {
                    // Whoever closes the socket last resets it.
                    sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
                    return Err(error);
                }
            }
        }
    }
}

/// What the client sends, until it ends in any way.
async fn up(mut from: ReadHalf<TlsStream<TcpStream>>, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut chunk = vec![0; 4096];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        to.write_all(&chunk[..n]).await?;
    }
    to.shutdown().await
}

/// Two ends of one connection within this host.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let (far, peer) = listener.accept().await?;
    match near.local_addr()? == peer {
        true => Ok((near, far)),
        false => Err(io::Error::other("somebody else connected")),
    }
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let missing = |all: &Vec<_>| all.is_empty().then_some(pem::Error::NoItemsFound);
    let all = all.and_then(|all| missing(&all).map_or(Ok(all), Err));
    all.map_err(|source| TlsError::Pem { what, source })
}

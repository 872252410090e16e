//! TLS: whom the client believes, and what it makes of an answer that is cut.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::server::{answer, ok};
use super::{get, landing, run, whole};
use crate::checksum::Mode;
use crate::credentials::Credentials;
use crate::endpoint::{AddressingStyle, Endpoint};
use crate::error::{Error, ErrorKind, Phase};
use crate::http::Client;
use crate::network::{Network, TlsError, TlsOptions};
use crate::options::NO_OPTIONS;
use crate::timeouts::Timeouts;
use crate::upstream::Upstream;

/// What a server does once a request has arrived.
#[derive(Clone)]
pub(super) enum Step {
    /// Answers, and goes on.
    Answer(Vec<u8>),
    /// Answers, and ends the session and the connection.
    End(Vec<u8>),
    /// Answers, and closes the connection without the end of the session.
    Cut(Vec<u8>),
}

/// A CA, and what it has issued.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub(super) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate and its key in a file, for these names or, where there are none, for a client.
    fn issue(&self, file: &str, names: &[&str], expired: bool) -> (Vec<u8>, KeyPair) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let pem = certificate.pem() + &key.serialize_pem();
        std::fs::write(self.path(file), pem).unwrap();
        (certificate.der().to_vec(), key)
    }

    /// A server's side, with a certificate for these names.
    pub(super) fn server(
        &self,
        names: &[&str],
        expired: bool,
        asks_client: bool,
    ) -> Arc<ServerConfig> {
        let (certificate, key) = self.issue("server.pem", names, expired);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if asks_client {
            let mut roots = RootCertStore::empty();
            roots.add(self.issuer.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = builder
            .with_single_cert(vec![certificate.into()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// The options of a client that believes this CA.
    pub(super) fn trusted(&self) -> TlsOptions {
        TlsOptions {
            ca_bundle: Some(self.path("ca.pem")),
            ..TlsOptions::default()
        }
    }
}

pub(super) struct Server {
    pub(super) port: u16,
    /// Of each connection, how its handshake went and for which name.
    handshakes: Receiver<Result<(HandshakeKind, Option<String>), String>>,
}

impl Server {
    pub(super) fn start(config: Arc<ServerConfig>, connections: Vec<Vec<Step>>) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (told, handshakes) = channel();
        thread::spawn(move || {
            for steps in connections {
                let (socket, _) = listener.accept().unwrap();
                let (config, told) = (Arc::clone(&config), told.clone());
                thread::spawn(move || follow(socket, config, steps, |end| drop(told.send(end))));
            }
        });
        Server { port, handshakes }
    }

    fn upstream(&self, options: TlsOptions) -> Arc<Upstream> {
        upstream(&format!("https://127.0.0.1:{}", self.port), options).unwrap()
    }

    fn client(&self, options: TlsOptions) -> Client {
        Client::new(self.upstream(options))
    }

    fn handshake(&self) -> Result<(HandshakeKind, Option<String>), String> {
        self.handshakes
            .recv_timeout(Duration::from_secs(10))
            .unwrap()
    }
}

fn upstream(url: &str, tls: TlsOptions) -> Result<Arc<Upstream>, TlsError> {
    let timeouts = Timeouts {
        connect: Duration::from_secs(10),
        first_byte: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        ..Timeouts::default()
    };
    let credentials = Credentials::new("id", "hidden", None).unwrap();
    let network = Network {
        tls,
        ..Network::default()
    };
    Upstream::new(
        Endpoint::parse(url).unwrap(),
        credentials,
        timeouts,
        network,
    )
}

fn follow(
    mut socket: TcpStream,
    config: Arc<ServerConfig>,
    steps: Vec<Step>,
    told: impl Fn(Result<(HandshakeKind, Option<String>), String>),
) {
    let mut session = ServerConnection::new(config).unwrap();
    if let Err(error) = session.complete_io(&mut socket) {
        return told(Err(error.to_string()));
    }
    assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
    let name = session.server_name().map(str::to_owned);
    told(Ok((session.handshake_kind().unwrap(), name)));
    let mut reader = BufReader::new(StreamOwned::new(session, socket));
    for step in steps {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let (Step::Answer(bytes) | Step::End(bytes) | Step::Cut(bytes)) = &step;
        let stream = reader.get_mut();
        if stream
            .write_all(bytes)
            .and_then(|()| stream.flush())
            .is_err()
        {
            return;
        }
        match step {
            Step::Answer(_) => {}
            Step::End(_) => {
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
                return;
            }
            Step::Cut(_) => return,
        }
    }
    // Closing at once would race with what a test looks at after its last answer.
    let _ = reader.read(&mut [0]);
}

fn failed(server: &Server, options: TlsOptions) -> Error {
    get(&server.client(options), whole(), 16)
        .map(drop)
        .unwrap_err()
}

fn good(steps: Vec<Vec<Step>>) -> (Authority, Server) {
    let authority = Authority::new();
    let config = authority.server(&["127.0.0.1", "localhost"], false, false);
    (authority, Server::start(config, steps))
}

#[test]
fn bytes_come_through_tls_and_the_connection_serves_again() {
    // Longer than a record, and than what is read at once.
    let body: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    let chunked = [
        &answer(
            "200 OK",
            &["Transfer-Encoding: chunked", "ETag: \"a\""],
            b"",
        )[..],
        format!("{:x}\r\n", body.len()).as_bytes(),
        &body,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let (authority, server) = good(vec![vec![
        Step::Answer(ok(&body)),
        Step::Answer(ok(b"two")),
        Step::Answer(chunked),
        Step::Answer(answer("404 Not Found", &["Content-Length: 2"], b"no")),
        Step::Answer(ok(b"")),
    ]]);
    let client = server.client(authority.trusted());
    run(async {
        for expected in [&body[..], b"two", &body] {
            let (landing, mut window) = landing(300_000);
            let received = client.get(&whole(), &mut window).await.unwrap();
            drop(window);
            let buffer = landing.finish().unwrap();
            assert_eq!(received.bytes as usize, expected.len());
            assert!(buffer.as_slice().unwrap()[..expected.len()] == *expected);
            assert_eq!(client.idle_connections(), 1);
        }
        assert!(
            client
                .head("train", "k", Mode::Off, &NO_OPTIONS)
                .await
                .unwrap_err()
                .is_not_found()
        );
    });
    assert_eq!(server.handshake().unwrap().0, HandshakeKind::Full);
}

#[test]
fn certificates_that_do_not_hold_are_told_apart() {
    let authority = Authority::new();
    let one = || vec![vec![Step::Answer(ok(b"never"))]];
    let check = |server: &Server, options: TlsOptions, words: &[&str]| {
        let error = failed(server, options);
        assert!(matches!(error.kind(), ErrorKind::Tls(_)), "{error:?}");
        assert_eq!(error.phase(), Some(Phase::Tls));
        assert!(
            error.address().is_some() && !error.is_retryable(),
            "{error:?}"
        );
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    let expired = Server::start(authority.server(&["127.0.0.1"], true, false), one());
    check(&expired, authority.trusted(), &["expired", "clock"]);
    let other = Server::start(authority.server(&["minio.example"], false, false), one());
    check(
        &other,
        authority.trusted(),
        &["is for minio.example and", "not for \"127.0.0.1\""],
    );
    let server = Server::start(authority.server(&["127.0.0.1"], false, false), one());
    check(
        &server,
        Authority::new().trusted(),
        &["--ca-bundle", "AWS_CA_BUNDLE"],
    );
}

#[test]
fn a_server_without_tls_is_told_as_one() {
    let authority = Authority::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!(
        "https://127.0.0.1:{}",
        listener.local_addr().unwrap().port()
    );
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = socket.read(&mut [0; 4096]);
    });
    let client = Client::new(upstream(&url, authority.trusted()).unwrap());
    let error = get(&client, whole(), 16).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("is it an http:// endpoint?"),
        "{error}"
    );
    server.join().unwrap();
}

#[test]
fn r18_an_answer_that_is_cut_is_never_whole() {
    let length = &["Content-Length: 10", "ETag: \"a\""];
    let (authority, server) = good(vec![
        vec![Step::Cut(answer("200 OK", length, b"abc"))],
        vec![Step::End(answer("200 OK", length, b"abc"))],
    ]);
    for _ in 0..2 {
        let error = failed(&server, authority.trusted());
        let expected = ErrorKind::Truncated {
            received: 3,
            expected: 10,
        };
        assert_eq!(error.kind(), &expected, "{error:?}");
    }
}

#[test]
fn r18_a_list_that_only_the_close_ends_needs_the_end_of_the_session() {
    let list = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    let (authority, server) = good(vec![
        vec![Step::Cut(answer("200 OK", &[], list))],
        vec![Step::End(answer("200 OK", &[], list))],
    ]);
    let client = server.client(authority.trusted());
    let query = crate::list::ListQuery::default();
    let error = run(client.list("train", &query, &NO_OPTIONS)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Reset(_)), "{error:?}");
    assert!(error.to_string().contains("close_notify"), "{error}");
    assert!(
        run(client.list("train", &query, &NO_OPTIONS))
            .unwrap()
            .objects
            .is_empty()
    );
}

#[test]
fn r18_a_cut_behind_a_whole_answer_harms_nothing() {
    let (authority, server) = good(vec![
        vec![Step::Cut(ok(b"one"))],
        vec![Step::End(ok(b"two"))],
        vec![Step::Answer(ok(b"end"))],
    ]);
    let client = server.client(authority.trusted());
    run(async {
        for expected in [b"one", b"two", b"end"] {
            let (landing, mut window) = landing(16);
            assert_eq!(client.get(&whole(), &mut window).await.unwrap().bytes, 3);
            drop(window);
            assert_eq!(
                landing.finish().unwrap().as_slice().unwrap()[..3],
                *expected
            );
        }
    });
}

#[test]
fn r20_an_idle_connection_that_the_server_has_ended_is_not_used() {
    let (authority, server) = good(vec![
        vec![Step::End(ok(b"one"))],
        vec![Step::Answer(ok(b"two"))],
    ]);
    let client = server.client(authority.trusted());
    run(async {
        let (_landing, mut window) = landing(16);
        client.get(&whole(), &mut window).await.unwrap();
        // The end is on its way or there; either way the next answer is the second one's.
        client.get(&whole(), &mut window).await.unwrap();
    });
    assert_eq!(
        server
            .handshakes
            .iter()
            .take(2)
            .filter(Result::is_ok)
            .count(),
        2
    );
}

#[test]
fn a_client_certificate_is_shown_where_it_is_wanted() {
    let authority = Authority::new();
    let config = authority.server(&["127.0.0.1"], false, true);
    let one = || vec![Step::Answer(ok(b"one"))];
    let server = Server::start(config, vec![one(), one(), one()]);
    let without = failed(&server, authority.trusted());
    assert!(matches!(without.kind(), ErrorKind::Tls(_)), "{without:?}");
    assert!(without.to_string().contains("--client-cert"), "{without}");
    assert!(server.handshake().is_err());
    authority.issue("client.pem", &["client"], false);
    let with = TlsOptions {
        client_cert: Some(authority.path("client.pem")),
        ..authority.trusted()
    };
    assert_eq!(
        get(&server.client(with.clone()), whole(), 16)
            .unwrap()
            .0
            .bytes,
        3
    );
    // Another's key does not fit.
    authority.issue("other.pem", &["other"], false);
    let other = TlsOptions {
        client_key: Some(authority.path("other.pem")),
        ..with
    };
    let refused = upstream("https://h", other).err().unwrap().to_string();
    assert!(refused.starts_with("client certificate: "), "{refused}");
}

#[test]
fn sessions_are_resumed_by_the_clients_of_all_threads() {
    let (authority, server) = good(vec![vec![Step::Answer(ok(b"one"))]; 3]);
    let upstream = server.upstream(authority.trusted());
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let upstream = Arc::clone(&upstream);
        let thread = thread::spawn(move || {
            assert_eq!(get(&Client::new(upstream), whole(), 16).unwrap().0.bytes, 3);
        });
        thread.join().unwrap();
        kinds.push(server.handshake().unwrap().0);
    }
    assert_eq!(
        kinds,
        [
            HandshakeKind::Full,
            HandshakeKind::Resumed,
            HandshakeKind::Resumed
        ]
    );
}

#[test]
fn the_name_of_a_virtual_host_is_asked_for_and_checked() {
    let authority = Authority::new();
    let config = authority.server(&["train.localhost"], false, false);
    let server = Server::start(config, vec![vec![Step::Answer(ok(b"one"))]; 2]);
    let url = format!("https://localhost:{}", server.port);
    let endpoint = Endpoint::parse(&url).unwrap();
    let endpoint = endpoint.with_style(AddressingStyle::VirtualHost).unwrap();
    let network = Network {
        tls: authority.trusted(),
        ..Network::default()
    };
    let credentials = Credentials::anonymous();
    let upstream = Upstream::new(endpoint, credentials, Timeouts::default(), network).unwrap();
    let client = Client::new(upstream);
    assert_eq!(get(&client, whole(), 16).unwrap().0.bytes, 3);
    let name = server.handshake().unwrap().1;
    assert_eq!(name.as_deref(), Some("train.localhost"));
    // R51: a name with dots would not be covered, so the bucket is in the path and the name is the host's own.
    let part = crate::http::GetPart {
        bucket: "train.v1",
        ..whole()
    };
    let error = get(&client, part, 16).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("not for \"localhost\""),
        "{error}"
    );
}

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_implementation_of_tls_serves_as_well() {
    if Command::new("openssl")
        .arg("version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("skipped: there is no openssl here");
        return;
    }
    let authority = Authority::new();
    authority.issue("server.pem", &["localhost", "127.0.0.1"], false);
    std::fs::create_dir(authority.path("train")).unwrap();
    // As a file it has its own head: what -HTTP serves is sent as it is.
    let body: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    std::fs::write(authority.path("train/k"), ok(&body)).unwrap();
    let port = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let server = Command::new("openssl")
            .args([
                "s_server",
                "-quiet",
                "-HTTP",
                version,
                "-cert",
                "server.pem",
                "-port",
            ])
            .arg(port.to_string())
            .current_dir(authority.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _server = Process(server);
        let url = format!("https://127.0.0.1:{port}");
        let client = Client::new(upstream(&url, authority.trusted()).unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        let (received, bytes) = loop {
            match get(&client, whole(), 100_000) {
                Ok(got) => break got,
                Err(error) if Instant::now() > until => panic!("{version}: {error:?}"),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        };
        assert_eq!(received.bytes, 100_000, "{version}");
        assert!(bytes[..100_000] == body[..], "{version}");
    }
}

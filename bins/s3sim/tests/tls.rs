//! TLS in front of the server: what clients see of it, and how it ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use s3sim::{Action, Rule, Sim, SimOptions, TlsOptions, content};

const PATIENCE: Duration = Duration::from_secs(20);

/// An authority, and what it signed for one name: certificate and key.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn sim(&self, client_ca: Option<&Authority>, truncate: bool, faults: Vec<Rule>) -> Sim {
        let (certificates, key) = self.sign("127.0.0.1");
        let tls = TlsOptions {
            certificates: certificates.into_bytes(),
            key: key.into_bytes(),
            client_ca: client_ca.map(|ca| ca.pem.clone().into_bytes()),
            truncate,
        };
        Sim::start(SimOptions {
            anonymous: true,
            threads: 1,
            tls: Some(tls),
            faults,
            ..SimOptions::default()
        })
        .unwrap()
    }

    fn client(&self, identity: Option<(String, String)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

/// All that a server sends to one request, and how that ended.
fn ask(sim: &Sim, config: &Arc<ClientConfig>, head: &str) -> (Vec<u8>, io::Result<()>) {
    let name = sim.addr().ip().into();
    let connection = ClientConnection::new(config.clone(), name).unwrap();
    let stream = TcpStream::connect(sim.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let mut bytes = Vec::new();
    let sent = stream.write_all(format!("GET {head}\r\nHost: h\r\n\r\n").as_bytes());
    let end = sent.and_then(|()| stream.read_to_end(&mut bytes).map(drop));
    (bytes, end)
}

const CLOSED: &str = "/bench/100000 HTTP/1.1\r\nConnection: close";

fn assert_whole(bytes: &[u8]) {
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK\r\n"));
    content::verify("100000", 0, 0, &bytes[bytes.len() - 100_000..]).unwrap();
}

#[test]
fn an_object_comes_whole_and_a_second_connection_resumes() {
    let authority = Authority::new();
    let sim = authority.sim(None, false, vec![]);
    assert!(sim.url().starts_with("https://127.0.0.1:"));
    let config = authority.client(None);
    for _ in 0..2 {
        let (bytes, end) = ask(&sim, &config, CLOSED);
        assert_whole(&bytes);
        end.unwrap();
    }
    let counters = sim.counters();
    assert_eq!(
        (
            counters.tls_full,
            counters.tls_resumed,
            counters.connections
        ),
        (1, 1, 2)
    );
}

#[test]
fn an_end_may_be_missing_early_or_a_reset() {
    let authority = Authority::new();
    let config = authority.client(None);
    let sim = authority.sim(None, true, vec![]);
    let (bytes, end) = ask(&sim, &config, CLOSED);
    assert_whole(&bytes);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof);

    let cut = Rule::new(Action::Cut { after: Some(500) });
    let sim = authority.sim(None, false, vec![cut]);
    let (bytes, end) = ask(&sim, &config, CLOSED);
    assert!(end.is_ok() && bytes.len() < 2000);

    let reset = Rule::new(Action::Reset { after: Some(500) });
    let sim = authority.sim(None, false, vec![reset]);
    let (_, end) = ask(&sim, &config, CLOSED);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn who_trusts_another_authority_gets_nothing_and_the_server_lives_on() {
    let (authority, other) = (Authority::new(), Authority::new());
    let sim = authority.sim(None, false, vec![]);
    let (bytes, end) = ask(&sim, &other.client(None), CLOSED);
    assert!(bytes.is_empty() && end.is_err());
    let (bytes, _) = ask(&sim, &authority.client(None), CLOSED);
    assert_whole(&bytes);
}

#[test]
fn clients_may_have_to_show_a_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let sim = authority.sim(Some(&clients), false, vec![]);
    let (bytes, end) = ask(&sim, &authority.client(None), CLOSED);
    assert!(bytes.is_empty() && end.is_err());
    let wrong = authority.client(Some(authority.sign("client")));
    assert!(ask(&sim, &wrong, CLOSED).1.is_err());
    let known = authority.client(Some(clients.sign("client")));
    assert_whole(&ask(&sim, &known, CLOSED).0);
}

#[test]
fn what_is_no_certificate_is_refused_at_the_start() {
    let tls = TlsOptions {
        certificates: b"nothing".to_vec(),
        key: b"nothing".to_vec(),
        client_ca: None,
        truncate: false,
    };
    let options = SimOptions {
        tls: Some(tls),
        ..SimOptions::default()
    };
    let error = Sim::start(options).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot speak TLS: cannot read the key"),
        "{error}"
    );
}

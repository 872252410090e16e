//! TLS as the engine speaks it: whom it trusts, who it says it is, and what a failed handshake means.
//!
//! One configuration serves all connections of an upstream, so that a session which one thread has set up is resumed
//! by the others.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

/// Names of a certificate that an error repeats.
const NAMES_SHOWN: usize = 3;

/// Whom to trust, and who to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// A PEM file of the CAs to trust instead of the system's.
    pub ca_bundle: Option<PathBuf>,
    /// A PEM file with the certificate that servers may ask for, and those between it and its CA.
    pub client_cert: Option<PathBuf>,
    /// A PEM file with its key; without it, the key is in the same file.
    pub client_key: Option<PathBuf>,
}

/// Why TLS cannot be spoken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be used.
    #[error("{what} {}: {problem}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Nobody is trusted.
    #[error(
        "this host has no CA certificates{problem}; install them (package ca-certificates), or name a file of them \
         (--ca-bundle, AWS_CA_BUNDLE, SSL_CERT_FILE)"
    )]
    NoRoots {
        /// What was tried.
        problem: String,
    },
    /// The client's certificate and key do not belong together, or a key without a certificate.
    #[error("client certificate: {0}")]
    Identity(String),
}

/// The configuration, read when the first connection needs it.
#[derive(Debug)]
pub(crate) struct Tls {
    options: TlsOptions,
    config: OnceLock<Result<Arc<ClientConfig>, TlsError>>,
}

impl Tls {
    pub(crate) fn new(options: TlsOptions) -> Tls {
        Tls {
            options,
            config: OnceLock::new(),
        }
    }

    /// The one configuration.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let config = self
            .config
            .get_or_init(|| configure(&self.options).map(Arc::new));
        config.clone()
    }
}

fn configure(options: &TlsOptions) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Identity(error.to_string()))?
        .with_root_certificates(roots(options.ca_bundle.as_deref())?);
    let mut config = match identity(options)? {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError::Identity(error.to_string()))?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Those of the file, and no others; without one, those of the system or of SSL_CERT_FILE.
fn roots(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = file {
        for certificate in certificates("CA file", path)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable("CA file", path, error.to_string()))?;
        }
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    let (used, _) = roots.add_parsable_certificates(found.certs);
    if used > 0 {
        return Ok(roots);
    }
    let problem = found.errors.first().map(|error| format!(" ({error})"));
    Err(TlsError::NoRoots {
        problem: problem.unwrap_or_default(),
    })
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(options: &TlsOptions) -> Result<Option<Identity>, TlsError> {
    let path = match (&options.client_cert, &options.client_key) {
        (None, None) => return Ok(None),
        (Some(path), _) => path,
        (None, Some(_)) => {
            let text = "there is a key, and no certificate that it belongs to";
            return Err(TlsError::Identity(text.to_owned()));
        }
    };
    let chain = certificates("client certificate", path)?;
    let path = options.client_key.as_ref().unwrap_or(path);
    // What a mistake in the file says could repeat a part of it.
    let key = PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let problem = match error {
            rustls::pki_types::pem::Error::Io(error) => error.to_string(),
            _ => "no private key in PEM is in it".to_owned(),
        };
        unusable("client key", path, problem)
    })?;
    Ok(Some((chain, key)))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |error: rustls::pki_types::pem::Error| unusable(what, path, error.to_string());
    let found = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() {
        let problem = "no certificate in PEM is in it";
        return Err(unusable(what, path, problem.to_owned()));
    }
    Ok(found)
}

fn unusable(what: &'static str, path: &Path, problem: String) -> TlsError {
    TlsError::File {
        what,
        path: path.to_owned(),
        problem,
    }
}

/// The name that a server's certificate must have.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| format!("{host:?} is no name that a certificate can have"))
}

/// What is wrong with TLS, where that is what an error of a connection is about: another attempt would fail alike.
pub(crate) fn explain(error: &io::Error, host: &str) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(problem) => explain_certificate(problem, host),
        rustls::Error::NoCertificatesPresented => "the server has no certificate".to_owned(),
        rustls::Error::InvalidMessage(_) => {
            "the server does not answer in TLS; is it an http:// endpoint?".to_owned()
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => format!(
            "the server wants a client certificate that it accepts: {error}; see --client-cert"
        ),
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            format!("the server knows no host {host:?}: {error}")
        }
        other => other.to_string(),
    })
}

fn explain_certificate(problem: &CertificateError, host: &str) -> String {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate has expired, or this host's clock is wrong: {problem}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate is not valid yet, or this host's clock is wrong: {problem}")
        }
        CertificateError::NotValidForName => format!("the certificate is not for {host:?}"),
        CertificateError::NotValidForNameContext { presented, .. } => {
            // `DnsName("minio")`
            let bare = |name: &'_ String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let shown: Vec<_> = presented.iter().take(NAMES_SHOWN).map(bare).collect();
            let more = if presented.len() > NAMES_SHOWN { ", ..." } else { "" };
            let names = if shown.is_empty() { "nobody".to_owned() } else { shown.join(", ") };
            format!("the certificate is for {names}{more} and not for {host:?}")
        }
        // The signature is that of another CA of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the certificate is of no CA that is trusted here; name the file of its CA with --ca-bundle \
             (AWS_CA_BUNDLE)"
                .to_owned()
        }
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server shows the certificate of a CA as its own; it needs one that the CA has signed, without CA:TRUE"
                .to_owned()
        }
        other => format!("the certificate is refused: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(options: TlsOptions) -> String {
        Tls::new(options).config().unwrap_err().to_string()
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.pem");
        std::fs::write(&path, "not PEM").unwrap();
        let ca = |path: &Path| TlsOptions {
            ca_bundle: Some(path.to_owned()),
            ..TlsOptions::default()
        };
        let text = error(ca(&path));
        assert!(text.contains("empty.pem: no certificate"), "{text}");
        let text = error(ca(&folder.path().join("none.pem")));
        assert!(
            text.contains("CA file") && text.contains("none.pem"),
            "{text}"
        );
        let text = error(TlsOptions {
            ca_bundle: None,
            client_cert: None,
            client_key: Some(path),
        });
        assert!(text.contains("certificate"), "{text}");
    }

    #[test]
    fn names_are_hosts_and_addresses() {
        for host in ["minio", "a.b.example", "10.0.0.1", "::1"] {
            assert!(server_name(host).is_ok(), "{host}");
        }
        for host in ["", "a b", "a/b", "-"] {
            assert!(server_name(host).is_err(), "{host}");
        }
    }
}

//! TLS towards upstreams (RFC 7858, strict profile of RFC 8310): an upstream that does not authenticate is not queried.
//!
//! Versions 1.2 and 1.3, as in CoreDNS. Sessions are resumed: the tickets of an upstream are kept with the
//! configuration, so a connection that is opened anew costs no certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, pem};
use tokio_rustls::rustls::server::VerifierBuilderError;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::failure::Failure;
use super::io_error;
use crate::config::model;

/// Where distributions keep the authorities that a host trusts, in the order in which Go's library looks for them.
const HOST_AUTHORITIES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The TLS identity that an upstream must prove.
#[derive(Clone)]
pub(super) struct Proof {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// Why TLS options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file with certificates or a key.
    #[error("{}: {reason}; want {wanted} in PEM", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// The host has no list of authorities.
    #[error("there is none of {}; write `tls` with a file of authorities", HOST_AUTHORITIES.join(", "))]
    NoAuthorities,
    /// Certificate and key do not fit, or are not usable.
    #[error("the certificate in {} cannot be shown: {source}", .path.display())]
    Identity {
        /// The file with the certificate.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// A list of authorities that is empty.
    #[error(transparent)]
    Authorities(#[from] VerifierBuilderError),
    /// What is not understood of the library's own versions.
    #[error(transparent)]
    Protocol(#[from] rustls::Error),
    /// A name that no certificate can have.
    #[error("{name}: {source}; want a DNS name or an IP address")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        source: InvalidDnsNameError,
    },
}

impl Proof {
    /// An identity that `config`'s authorities must certify.
    ///
    /// # Errors
    /// When no certificate can have the name.
    pub(super) fn new(config: &Arc<ClientConfig>, name: &str) -> Result<Self, TlsError> {
        let named = ServerName::try_from(name.to_owned()).map_err(|source| TlsError::Name {
            name: name.to_owned(),
            source,
        })?;
        Ok(Self {
            connector: TlsConnector::from(Arc::clone(config)),
            name: named,
        })
    }

    /// Performs the TLS handshake.
    pub(super) async fn handshake(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
        let shaken = self.connector.connect(self.name.clone(), stream).await;
        shaken.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                tracing::warn!(%error, name = ?self.name, "an upstream does not prove who it is");
                Failure::Unproven
            }
            _of_the_socket => io_error::of(&error),
        })
    }
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proof")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The authorities to trust and the client certificate to present.
pub(super) fn config(plan: &model::Tls) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(verifier(plan.authorities.as_deref(), provider)?);
    let config = match &plan.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|source| TlsError::Identity {
                path: certificate.clone(),
                source,
            })?,
    };
    Ok(Arc::new(config))
}

fn verifier(
    authorities: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let path = match authorities {
        Some(path) => path,
        None => HOST_AUTHORITIES
            .iter()
            .map(Path::new)
            .find(|path| path.exists())
            .ok_or(TlsError::NoAuthorities)?,
    };
    // Unreadable certificates of a host's list are skipped; a list without a readable one is refused.
    roots.add_parsable_certificates(certificates(path)?);
    Ok(WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError::File {
        path: path.to_owned(),
        reason,
        wanted: "certificates",
    };
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match read {
        Ok(certificates) if certificates.is_empty() => Err(error("there is no certificate".to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(error(source.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        path: path.to_owned(),
        reason: source.to_string(),
        wanted: "a private key",
    })
}

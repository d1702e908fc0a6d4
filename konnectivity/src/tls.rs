//! TLS 1.2 and 1.3 by files: every certificate of a chain, one key, the authorities of the other end.

mod reloaded;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use reloaded::Reloaded;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: pem::Error },
    #[error("{}: no certificate in it", .0.display())]
    Empty(PathBuf),
    #[error("{}: {source}", path.display())]
    Use { path: PathBuf, source: rustls::Error },
    #[error("{}: {source}", path.display())]
    Verifier {
        path: PathBuf,
        source: VerifierBuilderError,
    },
    #[error(transparent)]
    Versions(#[from] rustls::Error),
}

/// A certificate's chain and its key.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub certificate: &'a Path,
    pub key: &'a Path,
}

/// For a listener whose clients show a certificate of these authorities; others get no further than the handshake. Without authorities
/// clients are asked for none.
///
/// # Errors
/// When a file cannot be used.
pub fn server(
    identity: Identity<'_>,
    client_authorities: Option<&Path>,
    alpn: &[&[u8]],
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let path = path.to_owned();
            builder.with_client_cert_verifier(verifier.map_err(|source| TlsError::Verifier { path, source })?)
        }
    };
    let mut config = builder
        .with_single_cert(certificates(identity.certificate)?, key(identity.key)?)
        .map_err(|source| TlsError::Use {
            path: identity.certificate.to_owned(),
            source,
        })?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// For a client of servers of these authorities.
///
/// # Errors
/// When a file cannot be used.
pub fn client(
    authorities: &Path,
    identity: Option<Identity<'_>>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(authorities)?);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity {
            certificate,
            key: file,
        }) => builder
            .with_client_auth_cert(certificates(certificate)?, key(file)?)
            .map_err(|source| TlsError::Use {
                path: certificate.to_owned(),
                source,
            })?,
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TlsError::Use {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::File {
        path: path.to_owned(),
        source,
    };
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        return Err(TlsError::Empty(path.to_owned()));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

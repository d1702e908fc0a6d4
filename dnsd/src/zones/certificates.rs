//! What is shown to clients whose queries are encrypted, and what they have to show. The files are read again when they
//! change: who connects then is shown what they say, and who is connected stays so.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use egret_shared::rt::task;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoClientAuth, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::config::model::{ClientAuth, Scheme, ServerTls};
use crate::upstream::TlsError;
use crate::upstream::tls::{certificates, private_key, roots};
use crate::zones::Metrics;

use super::{ActiveConfig, InvalidPlan};

/// How often it is looked whether the files changed.
const LOOK: Duration = Duration::from_secs(5);

/// The certificate of some blocks.
#[derive(Debug)]
pub struct Certificates {
    tls: ServerTls,
    scheme: Scheme,
    metrics: Arc<Metrics>,
    /// Held for a look at the pointer.
    current: RwLock<Arc<ServerConfig>>,
    /// Held while the files are read.
    seen: Mutex<FileVersion>,
}

/// When each file was written, and how long it is; nothing of one that is not there.
type FileVersion = [Option<(SystemTime, u64)>; 3];

impl Certificates {
    /// Reads the files, and reads them again when they change, as long as somebody has this.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn read(tls: &ServerTls, scheme: Scheme, metrics: &Arc<Metrics>) -> Result<Arc<Self>, TlsError> {
        let seen = seen(tls);
        let read = Arc::new(Self {
            tls: tls.clone(),
            scheme,
            metrics: Arc::clone(metrics),
            current: RwLock::new(Arc::new(server_config(tls, scheme)?)),
            seen: Mutex::new(seen),
        });
        follow(Arc::downgrade(&read));
        Ok(read)
    }

    /// Whether this is what such a block shows.
    #[must_use]
    pub fn are_of(&self, tls: &ServerTls, scheme: Scheme) -> bool {
        self.scheme == scheme && self.tls.is_like(tls)
    }

    /// The configuration of handshakes that begin now.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files if they changed. What cannot be used changes nothing, and is told once.
    pub fn look(&self) {
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = seen(&self.tls);
        if now == *last {
            return;
        }
        *last = now;
        let (origin, file) = (&self.tls.origin, self.tls.certificate.display().to_string());
        match server_config(&self.tls, self.scheme) {
            Ok(config) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                tracing::info!(origin, file, "the certificate was read again");
            }
            Err(error) => {
                self.metrics.certificate_reload_failed.increment(1);
                tracing::error!(origin, %error, "the certificate stays as it is");
            }
        }
    }
}

/// The certificates of a plan: each is read once, and those of the plan before are taken over.
pub(super) struct CertificateLoader<'a> {
    before: Option<&'a ActiveConfig>,
    metrics: &'a Arc<Metrics>,
    found: Vec<Arc<Certificates>>,
}

impl<'a> CertificateLoader<'a> {
    pub(super) const fn new(before: Option<&'a ActiveConfig>, metrics: &'a Arc<Metrics>) -> Self {
        Self {
            before,
            metrics,
            found: Vec::new(),
        }
    }

    /// What such blocks show.
    pub(super) fn get(&mut self, tls: &ServerTls, scheme: Scheme) -> Result<Arc<Certificates>, InvalidPlan> {
        let is_it = |certificates: &&Arc<Certificates>| certificates.are_of(tls, scheme);
        if let Some(found) = self.found.iter().find(is_it) {
            return Ok(Arc::clone(found));
        }
        let tables = self.before.into_iter().flat_map(ActiveConfig::encrypted_tables);
        let before = tables.filter_map(|table| table.certificates.as_ref()).find(is_it);
        let found = match before {
            Some(before) => {
                before.look();
                Arc::clone(before)
            }
            None => Certificates::read(tls, scheme, self.metrics)
                .map_err(|error| InvalidPlan::Tls(tls.origin.clone(), error))?,
        };
        self.found.push(Arc::clone(&found));
        Ok(found)
    }
}

fn follow(certificates: Weak<Certificates>) {
    drop(task::spawn("certificates", async move {
        loop {
            tokio::time::sleep(LOOK).await;
            match certificates.upgrade() {
                Some(certificates) => certificates.look(),
                None => return,
            }
        }
    }));
}

fn seen(tls: &ServerTls) -> FileVersion {
    let look = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    let authorities = tls.authorities.as_deref();
    [Some(&*tls.certificate), Some(&*tls.key), authorities].map(|path| path.and_then(look))
}

/// What the files say: TLS 1.2 and 1.3, as CoreDNS has it. A client that offers a protocol by ALPN (RFC 7301) has to offer
/// that of the scheme: what is sent by somebody who speaks another is not read as DNS. Which name it asks for makes no
/// difference. Nothing is taken before a handshake has ended (0-RTT): it could be sent again by others.
///
/// # Errors
/// When they cannot be used.
pub fn server_config(tls: &ServerTls, scheme: Scheme) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let shown = (certificates(&tls.certificate)?, private_key(&tls.key)?);
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier(tls, &provider)?)
        .with_single_cert(shown.0, shown.1)
        .map_err(|source| match source {
            rustls::Error::InconsistentKeys(_) => TlsError::OtherKey {
                key: tls.key.clone(),
                certificate: tls.certificate.clone(),
            },
            source => TlsError::Identity {
                path: tls.certificate.clone(),
                source,
            },
        })?;
    config.alpn_protocols = protocols(scheme).iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// What a client may speak, the best first, by its names in ALPN.
const fn protocols(scheme: Scheme) -> &'static [&'static [u8]] {
    match scheme {
        Scheme::Dns => &[],
        Scheme::Tls => &[b"dot"],
        Scheme::Https => &[b"h2", b"http/1.1"],
        Scheme::Quic => &[b"doq"],
    }
}

fn verifier(
    tls: &ServerTls,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let by_authorities = || -> Result<_, TlsError> {
        let roots = Arc::new(roots(tls.authorities.as_deref())?);
        Ok(WebPkiClientVerifier::builder_with_provider(
            roots,
            Arc::clone(provider),
        ))
    };
    let any = |is_mandatory| AnyCertificate {
        is_mandatory,
        provider: Arc::clone(provider),
    };
    Ok(match tls.client_auth {
        ClientAuth::Nocert => Arc::new(NoClientAuth),
        ClientAuth::Request => Arc::new(any(false)),
        ClientAuth::Require => Arc::new(any(true)),
        ClientAuth::VerifyIfGiven => by_authorities()?.allow_unauthenticated().build()?,
        ClientAuth::RequireAndVerify => by_authorities()?.build()?,
    })
}

/// Takes any certificate whose key the client has.
#[derive(Debug)]
struct AnyCertificate {
    is_mandatory: bool,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

//! TLS towards clients: what is shown to them, and what they have to show, from the files of the configuration.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoClientAuth, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::config::model::{ClientAuth, Scheme, ServerTls};
use crate::upstream::TlsError;
use crate::upstream::tls::{certificates, private_key, roots};

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

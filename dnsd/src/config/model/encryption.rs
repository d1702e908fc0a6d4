//! The scheme of a server block, and its certificates (`tls`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The scheme of a server block's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// UDP and TCP (RFC 1035).
    #[default]
    Dns,
    /// TLS (RFC 7858).
    Tls,
    /// HTTPS (RFC 8484).
    Https,
    /// QUIC (RFC 9250).
    Quic,
}

/// `tls CERT KEY [CA] { client_auth … }`: the server's certificate, and the requirements of clients'.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServerTls {
    /// Its position, for logs and errors.
    #[serde(skip)]
    pub origin: String,
    /// The certificate chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates; `None` means those of the host.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// The required client certificate.
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// The required client certificate, by the names of Go's `tls.ClientAuthType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// None, and none is requested.
    #[default]
    Nocert,
    /// Requested, optional, not verified.
    Request,
    /// Required, not verified.
    Require,
    /// Optional, verified.
    VerifyIfGiven,
    /// Required, verified.
    RequireAndVerify,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dns, Self::Tls, Self::Https, Self::Quic];
    /// The encrypted ones.
    pub const ENCRYPTED: [Self; 3] = [Self::Tls, Self::Https, Self::Quic];

    /// The text before `://`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Quic => "quic",
        }
    }

    /// The port of a key without one (plugin/pkg/transport of CoreDNS); `None` means the port of DNS.
    #[must_use]
    pub const fn default_port(self) -> Option<u16> {
        match self {
            Self::Dns => None,
            Self::Tls | Self::Quic => Some(853),
            Self::Https => Some(443),
        }
    }

    /// Whether it is encrypted.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        self != Self::Dns
    }
}

impl ServerTls {
    /// Whether both have the same certificates and requirements, whatever their position.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let Self {
            origin: _,
            certificate,
            key,
            authorities,
            client_auth,
        } = self;
        (certificate, key, authorities, client_auth)
            == (
                &other.certificate,
                &other.key,
                &other.authorities,
                &other.client_auth,
            )
    }
}

impl ClientAuth {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Nocert,
        Self::Request,
        Self::Require,
        Self::VerifyIfGiven,
        Self::RequireAndVerify,
    ];

    /// Its name in a Corefile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nocert => "nocert",
            Self::Request => "request",
            Self::Require => "require",
            Self::VerifyIfGiven => "verify_if_given",
            Self::RequireAndVerify => "require_and_verify",
        }
    }
}

//! How a server block is asked, and what it shows where that is encrypted (`tls`).

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

/// `tls CERT KEY [CA] { client_auth … }`: what is shown to clients, and what they have to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServerTls {
    /// Where it was written, for logs and errors.
    #[serde(skip)]
    pub origin: String,
    /// The certificate, and those between it and an authority, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates; `None` is those that the host trusts.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// Which certificate a client has to show.
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// Which certificate a client has to show; the names are those of Go's `tls.ClientAuthType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// None, and it is not asked for one.
    #[default]
    Nocert,
    /// It is asked for one, and need not show it. What it shows is not verified.
    Request,
    /// Any.
    Require,
    /// None, or one of the authorities'.
    VerifyIfGiven,
    /// One of the authorities'.
    RequireAndVerify,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dns, Self::Tls, Self::Https, Self::Quic];
    /// Those of which everything is encrypted.
    pub const ENCRYPTED: [Self; 3] = [Self::Tls, Self::Https, Self::Quic];

    /// As it is written before `://`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Quic => "quic",
        }
    }

    /// The port of a key that says none (plugin/pkg/transport of CoreDNS); `None` is the port of DNS.
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
    /// Whether the same is shown and asked for, wherever it was written.
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

    /// As a Corefile says it.
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

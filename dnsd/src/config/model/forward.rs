//! The upstreams of a block (`forward`).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dns::message::WireName;

use super::{Zone, go_duration};
use crate::config::model::serde_forms::{codes, name};

/// `forward FROM TO… { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Forward {
    /// Its position, for logs: `Corefile:12`.
    #[serde(skip)]
    pub origin: String,
    /// The zone that is forwarded.
    pub from: Zone,
    /// Zones below `from` that are not forwarded.
    pub except: Vec<Zone>,
    /// The upstreams; 1 to 15 (CoreDNS' limit).
    pub to: Vec<Upstream>,
    /// Always TCP, whatever the client uses.
    pub force_tcp: bool,
    /// UDP first, even for a client over TCP.
    pub prefer_udp: bool,
    /// How long an idle connection is kept.
    #[serde(with = "go_duration")]
    pub expire: Duration,
    /// The longest life of a connection, however busy; 0 means no limit (`max_age`).
    #[serde(with = "go_duration")]
    pub max_age: Duration,
    /// The most idle connections of an upstream; 0 means no limit.
    pub max_idle_connections: usize,
    /// The timeout of an attempt.
    #[serde(with = "go_duration")]
    pub read_timeout: Duration,
    /// Failed health checks in a row after which an upstream is down; 0 means never.
    pub max_fails: u32,
    /// The most attempts for a query; `None` means twice the number of upstreams, 0 until the timeout.
    pub max_connect_attempts: Option<u32>,
    /// The TLS settings of `tls://` upstreams.
    pub tls: Tls,
    /// The order of upstreams.
    pub policy: Policy,
    /// The health check of a failed upstream.
    pub health_check: HealthCheck,
    /// The most queries under way; above it REFUSED. 0 means no limit.
    pub max_concurrent: usize,
    /// Response codes after which the next `forward` of the block is tried.
    #[serde(with = "codes")]
    pub next: Vec<u8>,
    /// Whether NOERROR without an answer also does that (`next_on_nodata`).
    pub next_on_nodata: bool,
    /// Response codes after which the next upstream is tried.
    #[serde(with = "codes")]
    pub failover: Vec<u8>,
    /// SERVFAIL at once if every upstream is down; otherwise one is tried at random.
    pub fails_fast: bool,
    /// The source address of queries.
    pub source: Option<IpAddr>,
    /// The resolvers of upstreams that are written as names; empty means those of /etc/resolv.conf.
    pub resolver: Vec<SocketAddr>,
}

/// An upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Upstream {
    /// Its address.
    pub host: UpstreamHost,
    /// Its protocol.
    pub protocol: Protocol,
    /// The name in its certificate, if it follows the address (`tls://9.9.9.9%dns.quad9.net`).
    pub server_name: Option<String>,
}

/// The address of an upstream.
#[expect(clippy::large_enum_variant, reason = "a plan has few upstreams")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamHost {
    /// An address and port.
    Address(SocketAddr),
    /// Every `nameserver` of a file like /etc/resolv.conf; read when the plan is applied.
    ResolvConf(PathBuf),
    /// Every address of this name, with this port; resolved when the plan is applied.
    Name(WireName, u16),
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// UDP, and TCP where it is needed.
    Dns,
    /// TCP only (`tcp://` of the YAML file; a Corefile has `force_tcp`).
    Tcp,
    /// TLS (RFC 7858).
    Tls,
}

impl Protocol {
    /// The default port.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Dns | Self::Tcp => 53,
            Self::Tls => 853,
        }
    }
}

/// `tls CERT KEY CA`, `tls_servername NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Tls {
    /// The trusted authorities; `None` means those of the host.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the upstream's certificate.
    pub server_name: Option<String>,
}

/// The order of upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// At random (CoreDNS' default).
    Random,
    /// In turn.
    RoundRobin,
    /// The first that is up.
    Sequential,
    /// The fastest of late (only in the YAML file).
    LowestLatency,
}

/// `health_check DURATION [no_rec] [domain FQDN]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HealthCheck {
    /// How often a failed upstream is checked.
    #[serde(with = "go_duration")]
    pub interval: Duration,
    /// Whether RD is set.
    pub recursion: bool,
    /// The queried name.
    #[serde(with = "name")]
    pub domain: WireName,
}

impl Forward {
    /// The most upstreams (CoreDNS' limit).
    pub const MOST_UPSTREAMS: usize = 15;

    /// A contradiction between fields, and what is accepted.
    #[must_use]
    pub fn contradiction(&self) -> Option<(&'static str, &'static str)> {
        if self.to.is_empty() || self.to.len() > Self::MOST_UPSTREAMS {
            return Some(("the number of upstreams", "1 to 15 upstreams"));
        }
        if self.read_timeout.is_zero() {
            return Some(("no time to read", "more than nothing, as in \"2s\""));
        }
        if !self.max_age.is_zero() && self.max_age < self.expire {
            return Some(("the greatest age is below the time to expire", "as much or more"));
        }
        if self.failover.contains(&0) {
            return Some(("failover upon NOERROR, which is an answer", "other codes"));
        }
        let names = self.to.iter().any(|upstream| upstream.server_name.is_some());
        if names && self.tls.server_name.is_some() {
            return Some((
                "an upstream names its certificate, and all upstreams are said to have another",
                "one of the two",
            ));
        }
        None
    }
}

/// CoreDNS' defaults; `to` has none.
impl Default for Forward {
    fn default() -> Self {
        Self {
            origin: String::new(),
            from: Zone::root(),
            except: Vec::new(),
            to: Vec::new(),
            force_tcp: false,
            prefer_udp: false,
            expire: Duration::from_secs(10),
            max_age: Duration::ZERO,
            max_idle_connections: 0,
            read_timeout: Duration::from_secs(2),
            max_fails: 2,
            max_connect_attempts: None,
            tls: Tls::default(),
            policy: Policy::Random,
            health_check: HealthCheck::default(),
            max_concurrent: 0,
            next: Vec::new(),
            next_on_nodata: false,
            failover: Vec::new(),
            fails_fast: false,
            source: None,
            resolver: Vec::new(),
        }
    }
}

/// CoreDNS' defaults.
impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(500),
            recursion: true,
            domain: *Zone::root().apex(),
        }
    }
}

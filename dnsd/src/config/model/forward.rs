//! Whom a block asks (`forward`).

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
    /// Where it was written, for logs: `Corefile:12`.
    #[serde(skip)]
    pub origin: String,
    /// Names that it is asked for.
    pub from: Zone,
    /// Names below `from` that it is not asked for.
    pub except: Vec<Zone>,
    /// Who is asked; 1 to 15 (CoreDNS' limit).
    pub to: Vec<Upstream>,
    /// Over TCP alone, whatever the client came by.
    pub force_tcp: bool,
    /// Over UDP first, also for a client that came over TCP.
    pub prefer_udp: bool,
    /// How long a connection that nobody uses is kept.
    #[serde(with = "go_duration")]
    pub expire: Duration,
    /// How long a connection is used, however busy it is; zero means any time (`max_age`).
    #[serde(with = "go_duration")]
    pub max_age: Duration,
    /// Connections that are kept at most for each upstream; 0 means any number.
    pub max_idle_connections: usize,
    /// How long one attempt is waited for.
    #[serde(with = "go_duration")]
    pub read_timeout: Duration,
    /// Failed checks in a row after which an upstream counts as dead; 0 never.
    pub max_fails: u32,
    /// Attempts for one query at most; `None` means twice the number of upstreams, 0 until the time is up.
    pub max_connect_attempts: Option<u32>,
    /// What protects connections to `tls://` upstreams.
    pub tls: Tls,
    /// In which order.
    pub policy: Policy,
    /// How it is found out that a dead upstream lives.
    pub health_check: HealthCheck,
    /// Queries under way at most; beyond, REFUSED. 0 means any number.
    pub max_concurrent: usize,
    /// Codes upon which the next `forward` that holds the name is asked.
    #[serde(with = "codes")]
    pub next: Vec<u8>,
    /// Whether it is also asked upon NOERROR without an answer (`next_on_nodata`).
    pub next_on_nodata: bool,
    /// Codes upon which the next upstream of this one is asked.
    #[serde(with = "codes")]
    pub failover: Vec<u8>,
    /// SERVFAIL at once when every upstream counts as dead; otherwise one is tried at random.
    pub fails_fast: bool,
    /// The address that it asks from.
    pub source: Option<IpAddr>,
    /// Who is asked for the addresses of upstreams that are written as names; empty means /etc/resolv.conf's.
    pub resolver: Vec<SocketAddr>,
}

/// Someone to ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Upstream {
    /// Where.
    pub host: UpstreamHost,
    /// How.
    pub protocol: Protocol,
    /// The name that its certificate must have, where it was written behind the address (`tls://9.9.9.9%dns.quad9.net`).
    pub server_name: Option<String>,
}

/// Where an upstream is.
#[expect(clippy::large_enum_variant, reason = "a plan has few upstreams")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamHost {
    /// At this address and port.
    Address(SocketAddr),
    /// At every `nameserver` of a file like /etc/resolv.conf; read when the plan is put in force.
    ResolvConf(PathBuf),
    /// At every address of this name, and at this port; looked up when the plan is put in force.
    Name(WireName, u16),
}

/// How an upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// UDP, or TCP where it must be.
    Dns,
    /// TCP alone (`tcp://` of the YAML file; a Corefile says `force_tcp`).
    Tcp,
    /// TLS (RFC 7858).
    Tls,
}

impl Protocol {
    /// Where servers are that speak it, unless another port is written.
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
    /// Whom to trust; none means the host's own authorities.
    pub authorities: Option<PathBuf>,
    /// What to show: certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must have.
    pub server_name: Option<String>,
}

/// Who is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Any (CoreDNS' default).
    Random,
    /// Each in its turn.
    RoundRobin,
    /// The first that lives.
    Sequential,
    /// The one that answered soonest of late (only in the YAML file).
    LowestLatency,
}

/// `health_check DURATION [no_rec] [domain FQDN]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HealthCheck {
    /// How often a dead upstream is asked.
    #[serde(with = "go_duration")]
    pub interval: Duration,
    /// Whether recursion is desired.
    pub recursion: bool,
    /// What it is asked for.
    #[serde(with = "name")]
    pub domain: WireName,
}

impl Forward {
    /// The most upstreams that are written (CoreDNS' limit).
    pub const MOST_UPSTREAMS: usize = 15;

    /// What of it does not fit together, and what would be accepted.
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

/// CoreDNS', but for `to`, which must be said.
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

/// CoreDNS'.
impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(500),
            recursion: true,
            domain: *Zone::root().apex(),
        }
    }
}

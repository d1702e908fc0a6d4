//! The plan: server blocks with their zones, and the chain of each.
//!
//! A Corefile and the YAML file are lowered to it, and everything that serves is built from it. It is valid: names are
//! absolute and in lower case, numbers are in range, expressions compile.
//!
//! ```text
//!  Corefile ──▶ corefile ──┐
//!                          ├──▶ Plan ──▶ the block of a listener and a name ──▶ its chain
//!  YAML ──────▶ config ────┘
//!
//!  the chain, in CoreDNS' order (plugin.cfg of node-local-dns):
//!  bufsize ▸ errors ▸ log ▸ dns64 ▸ loadbalance ▸ cache ▸ rewrite ▸ template ▸ hosts ▸ loop ▸ forward ▸ whoami
//! ```

mod cache;
mod encryption;
mod forward;
mod nxdomain_cut;
mod plugins;
mod operations;
mod patterns;
mod upstream;
mod serde_forms;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use egret_shared::go_duration;

pub use cache::{CacheRules, Capacity, Disabled, Prefetch, Refresh, ServeStale};
pub use encryption::{ClientAuth, Scheme, ServerTls};
pub use forward::{Forward, HealthCheck, Policy, Protocol, Tls, Upstream, UpstreamHost};
pub use nxdomain_cut::{CutZone, ZoneKind};
pub use operations::{
    Bind, BindTo, Consolidate, ErrorLog, Health, LogClass, LogFormat, LogLevel, QueryLog, Reload,
};
pub use patterns::{Expression, Zone};
pub use plugins::{
    AnswerRewrite, Dns64, EdnsAction, EdnsField, Fallthrough, Hosts, LoadBalance, NameMatch, NameRewrite,
    Rewrite, RewriteRule, Template, TemplateText, TtlRange, WeightFile,
};
pub use upstream::InvalidUpstream;
pub(crate) use upstream::endpoint;

/// All server blocks, in file order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Plan {
    /// The blocks; at least one.
    #[serde(rename = "servers")]
    pub blocks: Vec<Block>,
    /// How often the file is checked; `None` without `reload`.
    pub reload: Option<Reload>,
    /// The addresses of `/health`; each block may have one.
    pub health: Vec<Health>,
    /// The addresses of metrics (`prometheus ADDRESS`), each once.
    pub prometheus: Vec<std::net::SocketAddr>,
}

/// A server block: zones, addresses, and a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Block {
    /// Its position, for logs and errors: `Corefile:12`.
    #[serde(skip)]
    pub origin: String,
    /// The zones; at least one. Of all blocks at an address and port, the longest zone that contains the name answers.
    pub zones: Vec<Zone>,
    /// Its scheme.
    pub scheme: Scheme,
    /// The port.
    pub port: u16,
    /// The addresses; empty means every address of the host, IPv4 and IPv6 (CoreDNS: no `bind`).
    pub bind: Vec<Bind>,
    /// The certificates; present if the scheme is encrypted.
    pub tls: Option<ServerTls>,
    /// The timeouts of clients' connections.
    pub timeouts: Timeouts,
    /// The UDP size for upstreams and clients, if it is limited here.
    #[serde(deserialize_with = "serde_forms::size")]
    pub bufsize: Option<u16>,
    /// Whether queries count in `coredns_dns_*`.
    pub prometheus: bool,
    /// Whether a panic ends the program, and logs have more detail (`debug`).
    pub debug: bool,
    /// The error log; `None` logs none.
    pub errors: Option<ErrorLog>,
    /// The query logs.
    pub log: Vec<QueryLog>,
    /// IPv6 addresses for IPv4-only names.
    pub dns64: Option<Dns64>,
    /// The order of addresses in an answer.
    pub loadbalance: Option<LoadBalance>,
    /// The cache.
    pub cache: Option<CacheRules>,
    /// Rewrites, in order.
    pub rewrite: Vec<Rewrite>,
    /// Templates, in order.
    pub template: Vec<Template>,
    /// Answers from a file like /etc/hosts.
    pub hosts: Option<Hosts>,
    /// Whether dnsd detects that its upstream is itself.
    #[serde(rename = "loop")]
    pub detects_loop: bool,
    /// The forwards, in order: the first whose zone contains the name.
    pub forward: Vec<Forward>,
    /// Whether `whoami` answers.
    pub whoami: bool,
}

impl Block {
    /// The plugins of the chain, by CoreDNS' names.
    pub fn plugins(&self) -> impl Iterator<Item = &'static str> {
        let has = [
            ("bufsize", self.bufsize.is_some()),
            ("prometheus", self.prometheus),
            ("errors", self.errors.is_some()),
            ("log", !self.log.is_empty()),
            ("dns64", self.dns64.is_some()),
            ("loadbalance", self.loadbalance.is_some()),
            ("cache", self.cache.is_some()),
            ("rewrite", !self.rewrite.is_empty()),
            ("template", !self.template.is_empty()),
            ("hosts", self.hosts.is_some()),
            ("loop", self.detects_loop),
            ("forward", !self.forward.is_empty()),
            ("whoami", self.whoami),
        ];
        has.into_iter()
            .filter_map(|(name, is_there)| is_there.then_some(name))
    }
}

/// Timeouts of clients' connections (`timeouts`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Timeouts {
    /// For receiving a message.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub read: Duration,
    /// For sending a message.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub write: Duration,
    /// For an idle connection.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub idle: Duration,
    /// Queries after which a TCP connection is closed (`maxtcpqueries`); `None` means no limit.
    pub queries_per_connection: Option<u32>,
}

/// CoreDNS' defaults (core/dnsserver/server.go).
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(3),
            write: Duration::from_secs(5),
            idle: Duration::from_secs(10),
            queries_per_connection: None,
        }
    }
}

/// An empty block on the port of DNS.
impl Default for Block {
    fn default() -> Self {
        Self {
            origin: String::new(),
            zones: Vec::new(),
            scheme: Scheme::Dns,
            port: 53,
            bind: Vec::new(),
            tls: None,
            timeouts: Timeouts::default(),
            bufsize: None,
            prometheus: false,
            debug: false,
            errors: None,
            log: Vec::new(),
            dns64: None,
            loadbalance: None,
            cache: None,
            rewrite: Vec::new(),
            template: Vec::new(),
            hosts: None,
            detects_loop: false,
            forward: Vec::new(),
            whoami: false,
        }
    }
}

impl Block {
    /// Whether both share a socket, as far as is known without the host's interfaces.
    #[must_use]
    pub fn shares_socket(&self, other: &Self) -> bool {
        (self.scheme, self.port) == (other.scheme, other.port) && self.shares_address(other)
    }

    /// Whether both share a socket and have different certificates.
    #[must_use]
    pub fn contradicts_tls(&self, other: &Self) -> bool {
        let differs = |own: &ServerTls, other: &ServerTls| !own.is_like(other);
        let tls = self.tls.as_ref().zip(other.tls.as_ref());
        tls.is_some_and(|(own, other)| differs(own, other)) && self.shares_socket(other)
    }

    /// Whether both share an address, as far as is known without the host's interfaces. A block without `bind` is on
    /// all of them.
    #[must_use]
    pub fn shares_address(&self, other: &Self) -> bool {
        let listens = |all: &[Bind], to| {
            all.iter()
                .any(|bind| bind.to.contains(to) && !bind.except.contains(to))
        };
        let mut mine = self.bind.iter().flat_map(|bind| &bind.to);
        self.bind.is_empty()
            || other.bind.is_empty()
            || mine.any(|to| listens(&self.bind, to) && listens(&other.bind, to))
    }
}

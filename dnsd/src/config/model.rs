//! What dnsd is to do, whatever it was written in: server blocks with their zones, and in each what answers.
//!
//! A Corefile and the YAML file are lowered to this, and all that serves is built from it. Nothing here can be
//! wrong any more: names are absolute and lower case, numbers are in their ranges, expressions compile.
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
pub(crate) mod go_duration;

use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// All server blocks, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Plan {
    /// The blocks; at least one.
    #[serde(rename = "servers")]
    pub blocks: Vec<Block>,
    /// How often the file is looked at; `None` where no block says `reload`.
    pub reload: Option<Reload>,
    /// Where `/health` is answered; every block may ask for one.
    pub health: Vec<Health>,
    /// Where metrics are answered, as the blocks say (`prometheus ADDRESS`), each once.
    pub prometheus: Vec<std::net::SocketAddr>,
}

/// A server block: zones on addresses, and what answers for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Block {
    /// Where it was written, for logs and errors: `Corefile:12`.
    #[serde(skip)]
    pub origin: String,
    /// The zones that it answers for; at least one. The longest zone that holds a name wins, among all blocks
    /// on the same address and port.
    pub zones: Vec<Zone>,
    /// How it is asked.
    pub scheme: Scheme,
    /// The port.
    pub port: u16,
    /// The addresses; empty means every address of the host, IPv4 and IPv6 (CoreDNS: no `bind`).
    pub bind: Vec<Bind>,
    /// What is shown to clients; there where the scheme is encrypted, and nowhere else.
    pub tls: Option<ServerTls>,
    /// How the clients' connections are kept.
    pub timeouts: Timeouts,
    /// The largest UDP size that is said to upstreams and honoured for clients, if it is bounded here.
    #[serde(deserialize_with = "serde_forms::size")]
    pub bufsize: Option<u16>,
    /// Whether queries are counted in `coredns_dns_*` for this block.
    pub prometheus: bool,
    /// Whether a crash is not caught and logs say more (`debug`).
    pub debug: bool,
    /// What of the errors is logged; `None` logs none.
    pub errors: Option<ErrorLog>,
    /// Which queries are logged.
    pub log: Vec<QueryLog>,
    /// IPv6 addresses for IPv4-only names.
    pub dns64: Option<Dns64>,
    /// The order of addresses in an answer.
    pub loadbalance: Option<LoadBalance>,
    /// What is kept, and for how long.
    pub cache: Option<CacheRules>,
    /// Changes of questions and answers, in order.
    pub rewrite: Vec<Rewrite>,
    /// Answers by pattern, in order.
    pub template: Vec<Template>,
    /// Answers from a file like /etc/hosts.
    pub hosts: Option<Hosts>,
    /// Whether dnsd finds out at start that its own upstream is itself.
    #[serde(rename = "loop")]
    pub detects_loop: bool,
    /// Whom it asks, in order: the first whose zone holds the name.
    pub forward: Vec<Forward>,
    /// Whether it answers who asked.
    pub whoami: bool,
}

impl Block {
    /// The directives that it has through which queries pass, by CoreDNS' names.
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

/// How connections of clients are kept (`timeouts`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Timeouts {
    /// How long a message may take to come in.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub read: Duration,
    /// How long a message may take to go out.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub write: Duration,
    /// How long a connection may be idle.
    #[serde(with = "serde_forms::a_second_to_a_day")]
    pub idle: Duration,
    /// Queries after which a TCP connection is closed (`maxtcpqueries`); `None` is any number.
    pub queries_per_connection: Option<u32>,
}

/// Those of CoreDNS (core/dnsserver/server.go).
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

/// A block that answers nothing, on the port of DNS.
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
    /// Whether both have a socket in common, as far as can be known without the interfaces of the host.
    #[must_use]
    pub fn shares_socket(&self, other: &Self) -> bool {
        (self.scheme, self.port) == (other.scheme, other.port) && self.shares_address(other)
    }

    /// Whether both have a socket in common, and one would have to show what the other does not.
    #[must_use]
    pub fn contradicts_tls(&self, other: &Self) -> bool {
        let differs = |own: &ServerTls, other: &ServerTls| !own.is_like(other);
        let tls = self.tls.as_ref().zip(other.tls.as_ref());
        tls.is_some_and(|(own, other)| differs(own, other)) && self.shares_socket(other)
    }

    /// Whether both are on some address, as far as can be known without the interfaces of the host. A block without
    /// `bind` is on all of them.
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

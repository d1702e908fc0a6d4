//! The setup of the host: interface, rules, interception. The room `host` applies it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use egret_kernel::{Family, Mark};
use egret_shared::net::IpNet;

/// The port whose queries are intercepted.
pub const INTERCEPT_PORT: u16 = 53;
/// The routing table of intercepted packets. The tables below 256 have names (`/etc/iproute2/rt_tables`).
pub const INTERCEPT_TABLE: u32 = 20_053;
/// The priority of the routing rule that leads to this table: behind `local` (0), before `main` (32766).
pub const INTERCEPT_PRIORITY: u32 = 53;

/// The setup of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSetup {
    /// The interface with the local addresses; `None` if another program creates it.
    pub interface: Option<String>,
    /// Whether rules are written.
    pub rules: bool,
    /// The parameters of the rules.
    pub settings: RuleSettings,
    /// How often interface and rules are checked.
    pub sync_interval: Duration,
    /// Whether interface and rules stay at exit.
    pub skips_teardown: bool,
}

/// Who answers pods while no dnsd is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Nobody: no query may bypass dnsd.
    None,
    /// The cluster DNS. Tracked packets are translated: to a Service by kube-proxy, others to one of these servers.
    ClusterDns {
        /// Pods or hosts, not Services: an address is translated once. For a family without any, those that the
        /// enforcer names.
        servers: Vec<SocketAddr>,
    },
}

/// The parameters of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// The addresses that dnsd serves.
    pub local_ips: Vec<IpAddr>,
    /// The port of queries.
    pub dns_port: u16,
    /// The port of probes.
    pub health_port: u16,
    /// Who answers pods while no dnsd is alive.
    pub fallback: Fallback,
    /// The interception of queries to other resolvers.
    pub intercept: Option<Interception>,
}

/// The interception of pods' queries to other resolvers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interception {
    /// The local addresses that packets are delivered to: at most one of each family. A family without one is not
    /// intercepted.
    pub to: Vec<IpAddr>,
    /// The mark of intercepted packets.
    pub mark: Mark,
    /// Destinations that are not intercepted.
    pub except: Vec<IpNet>,
}

impl Interception {
    /// The local address that packets of a family are delivered to.
    #[must_use]
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.to.iter().copied().find(|to| Family::of(*to) == family)
    }

    /// Whether intercepted packets are delivered to the sockets of this address.
    #[must_use]
    pub fn is_at(&self, address: SocketAddr) -> bool {
        address.port() == INTERCEPT_PORT && self.to.contains(&address.ip())
    }

    /// The families that are intercepted.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.to.iter().map(|to| Family::of(*to))
    }
}

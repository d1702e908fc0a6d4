//! Lowers the simple form of the configuration to a plan: one block for all names, with a cache and the upstreams.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Config, Invalid, Upstream};
use crate::config::model::{
    Bind, BindTo, Block, CacheRules, Capacity, Forward, Plan, Policy, Protocol, Timeouts, UpstreamHost, Zone,
};
use crate::dns::message::rcode;

/// The fields of the simple form.
#[derive(Clone, Debug)]
pub(super) struct SimpleForm {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) force_tcp: bool,
    pub(super) try_timeout: Duration,
    pub(super) max_negative_ttl: Duration,
}

/// A block for each port; usually one.
pub(super) fn plan(simple: &SimpleForm, config: &Config) -> Result<Plan, Invalid> {
    if simple.try_timeout > config.total_timeout {
        return Err(Invalid::Contradiction("tryTimeout is above totalTimeout"));
    }
    let mut by_port = BTreeMap::<u16, Vec<IpAddr>>::new();
    for address in &simple.listen {
        by_port.entry(address.port()).or_default().push(address.ip());
    }
    Ok(Plan {
        blocks: by_port
            .into_iter()
            .map(|(port, addresses)| block(simple, config, port, addresses))
            .collect(),
        reload: None,
        health: Vec::new(),
        prometheus: Vec::new(),
    })
}

fn block(simple: &SimpleForm, config: &Config, port: u16, addresses: Vec<IpAddr>) -> Block {
    let to = addresses.into_iter().map(BindTo::Address).collect();
    Block {
        origin: "upstreams".to_owned(),
        zones: vec![Zone::root()],
        port,
        bind: vec![Bind {
            to,
            except: Vec::new(),
        }],
        timeouts: Timeouts {
            read: config.tcp.idle,
            write: config.tcp.idle,
            idle: config.tcp.idle,
            queries_per_connection: None,
        },
        cache: Some(cache(simple, config)),
        forward: vec![forward(simple)],
        ..Block::default()
    }
}

/// A cache limited by its size alone, with the TTLs of the configuration.
fn cache(simple: &SimpleForm, config: &Config) -> CacheRules {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let (min_ttl, max_ttl) = (seconds(config.ttl.at_least), seconds(config.ttl.at_most));
    CacheRules {
        success: Capacity {
            entries: usize::MAX,
            max_ttl,
            min_ttl,
        },
        denial: Capacity {
            entries: usize::MAX,
            max_ttl: max_ttl.min(simple.max_negative_ttl),
            min_ttl: min_ttl.min(simple.max_negative_ttl),
        },
        servfail: Duration::ZERO,
        ..CacheRules::default()
    }
}

/// How a trusted resolver that a pod chose is queried.
#[must_use]
pub(super) fn to_trusted(server: IpAddr, config: &Config) -> Forward {
    forward(&SimpleForm {
        listen: Vec::new(),
        upstreams: vec![Upstream {
            address: SocketAddr::new(server, crate::config::host_setup::INTERCEPT_PORT),
            tcp_only: false,
        }],
        force_tcp: false,
        try_timeout: config.total_timeout,
        max_negative_ttl: Duration::ZERO,
    })
}

fn forward(simple: &SimpleForm) -> Forward {
    let upstream = |upstream: &Upstream| crate::config::model::Upstream {
        host: UpstreamHost::Address(upstream.address),
        protocol: if upstream.tcp_only {
            Protocol::Tcp
        } else {
            Protocol::Dns
        },
        server_name: None,
    };
    Forward {
        origin: "upstreams".to_owned(),
        to: simple.upstreams.iter().map(upstream).collect(),
        force_tcp: simple.force_tcp,
        prefer_udp: true,
        read_timeout: simple.try_timeout,
        policy: Policy::Sequential,
        failover: vec![rcode::SERVFAIL, rcode::REFUSED, rcode::NOTIMP],
        ..Forward::default()
    }
}

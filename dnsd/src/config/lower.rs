//! The simple form of the configuration as a plan: one block for all names, with a cache, that asks the upstreams.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Config, Invalid, Upstream};
use crate::message::WireName;
use crate::plan::{
    Bind, BindTo, Block, CacheRules, Capacity, Disabled, Forward, HealthCheck, Plan, Policy, Protocol,
    Timeouts, Tls, UpstreamHost, Zone,
};

/// What the simple form says about asking.
#[derive(Clone, Debug)]
pub(super) struct Simple {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) force_tcp: bool,
    pub(super) try_timeout: Duration,
    pub(super) max_negative_ttl: Duration,
}

/// A block for each port: there is one, but where somebody listens on several.
pub(super) fn plan(simple: &Simple, config: &Config) -> Result<Plan, Invalid> {
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

fn block(simple: &Simple, config: &Config, port: u16, addresses: Vec<IpAddr>) -> Block {
    let to = addresses.into_iter().map(BindTo::Address).collect();
    Block {
        origin: "upstreams".to_owned(),
        zones: vec![root()],
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
        bufsize: None,
        prometheus: false,
        debug: false,
        errors: None,
        log: Vec::new(),
        dns64: None,
        loadbalance: None,
        cache: Some(cache(simple, config)),
        rewrite: Vec::new(),
        template: Vec::new(),
        hosts: None,
        detects_loop: false,
        forward: vec![forward(simple)],
        whoami: false,
    }
}

fn root() -> Zone {
    Zone::new(WireName::parse(".").expect("the root is a name"))
}

/// Bounded in octets alone, with the TTLs of the configuration.
fn cache(simple: &Simple, config: &Config) -> CacheRules {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let (min_ttl, max_ttl) = (seconds(config.ttl.at_least), seconds(config.ttl.at_most));
    CacheRules {
        zones: Vec::new(),
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
        prefetch: None,
        serve_stale: None,
        servfail: Duration::ZERO,
        disabled: Disabled::default(),
        keep_ttl: false,
    }
}

/// How a resolver is asked that pods chose and the operator trusts.
#[must_use]
pub(super) fn to_trusted(server: IpAddr, config: &Config) -> Forward {
    forward(&Simple {
        listen: Vec::new(),
        upstreams: vec![Upstream {
            address: SocketAddr::new(server, crate::intercept::PORT),
            tcp_only: false,
        }],
        force_tcp: false,
        try_timeout: config.total_timeout,
        max_negative_ttl: Duration::ZERO,
    })
}

fn forward(simple: &Simple) -> Forward {
    let upstream = |upstream: &Upstream| crate::plan::Upstream {
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
        from: root(),
        except: Vec::new(),
        to: simple.upstreams.iter().map(upstream).collect(),
        force_tcp: simple.force_tcp,
        prefer_udp: true,
        expire: Duration::from_secs(10),
        max_age: Duration::ZERO,
        max_idle_connections: 0,
        read_timeout: simple.try_timeout,
        max_fails: 2,
        max_connect_attempts: None,
        tls: Tls::default(),
        policy: Policy::Sequential,
        health_check: HealthCheck {
            interval: Duration::from_millis(500),
            recursion: true,
            domain: WireName::parse(".").expect("the root is a name"),
        },
        max_concurrent: 0,
        next: Vec::new(),
        next_on_nodata: false,
        failover: vec![
            crate::message::rcode::SERVFAIL,
            crate::message::rcode::REFUSED,
            crate::message::rcode::NOTIMP,
        ],
        fails_fast: false,
        source: None,
        resolver: Vec::new(),
    }
}

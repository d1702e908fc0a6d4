//! Upstreams that are configured as names: resolved once, when the configuration is loaded, as in CoreDNS.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::build::InvalidForward;
use super::{Forwarder, Limits};
use crate::config::model::{Forward, Policy, Protocol, Tls, Upstream, UpstreamHost};
use crate::dns::answer::{Answer, TtlLimits};
use crate::dns::message::{Query, Section, WireName, kind};
use crate::limits::quota_key::QuotaKey;
use crate::net::Transport;
use crate::upstream::Metrics;

/// The timeout of a look-up.
const PATIENCE: Duration = Duration::from_secs(5);
/// The default file of resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The plan with the addresses of its upstreams in place of their names.
///
/// # Errors
/// When a name has no address, or no resolver can be queried.
pub async fn look_up(plan: &Forward, metrics: &Arc<Metrics>) -> Result<Forward, InvalidForward> {
    let is_name = |upstream: &Upstream| matches!(upstream.host, UpstreamHost::Name(..));
    if !plan.to.iter().any(is_name) {
        return Ok(plan.clone());
    }
    let resolver = Forwarder::new(&resolver(plan), Arc::clone(metrics))?;
    let mut to = Vec::<Upstream>::new();
    for upstream in &plan.to {
        let UpstreamHost::Name(name, port) = upstream.host else {
            to.push(upstream.clone());
            continue;
        };
        for address in addresses(plan, &resolver, name).await? {
            let found = Upstream {
                host: UpstreamHost::Address(SocketAddr::new(address, port)),
                ..upstream.clone()
            };
            if !to.contains(&found) {
                to.push(found);
            }
        }
    }
    Ok(Forward { to, ..plan.clone() })
}

/// The resolvers of names.
fn resolver(plan: &Forward) -> Forward {
    let hosts = match plan.resolver.as_slice() {
        [] => vec![UpstreamHost::ResolvConf(PathBuf::from(RESOLV_CONF))],
        written => written.iter().copied().map(UpstreamHost::Address).collect(),
    };
    let upstream = |host| Upstream {
        host,
        protocol: Protocol::Dns,
        server_name: None,
    };
    Forward {
        to: hosts.into_iter().map(upstream).collect(),
        prefer_udp: true,
        force_tcp: false,
        tls: Tls::default(),
        policy: Policy::Sequential,
        max_fails: 0,
        max_concurrent: 0,
        source: None,
        ..plan.clone()
    }
}

/// The addresses of a name, of the family of `source_address` if there is one.
async fn addresses(
    plan: &Forward,
    resolver: &Forwarder,
    name: WireName,
) -> Result<Vec<IpAddr>, InvalidForward> {
    let mut found = Vec::new();
    for kind in [kind::A, kind::AAAA] {
        let limits = Limits {
            patience: PATIENCE,
            udp_size: 1_232,
            ttl: TtlLimits {
                at_least: 0,
                at_most: u32::MAX,
            },
            quota_key: QuotaKey::OWN,
        };
        match resolver
            .ask(&Query::own(name, kind, true), Transport::Udp, &limits)
            .await
        {
            Ok(answer) => found.extend(addresses_of(answer.get(), kind)),
            Err(failure) => {
                tracing::warn!(%name, reason = failure.label(), "an upstream cannot be looked up")
            }
        }
    }
    found.retain(|address| {
        plan.source
            .is_none_or(|source| source.is_ipv4() == address.is_ipv4())
    });
    if found.is_empty() {
        return Err(InvalidForward::Name {
            origin: plan.origin.clone(),
            name: name.to_string(),
        });
    }
    Ok(found)
}

fn addresses_of(answer: &Answer, kind: u16) -> Vec<IpAddr> {
    let message = answer.message();
    let records = message.records().flatten();
    records
        .filter(|record| record.section == Section::Answer && record.kind == kind)
        .filter_map(|record| address(&message.octets()[record.data]))
        .collect()
}

fn address(data: &[u8]) -> Option<IpAddr> {
    match data.len() {
        4 => data.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        16 => data.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _other => None,
    }
}

//! Which upstreams are outside of the cluster: they are not asked for names of the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::config::environment;
use crate::config::model::{Block, UpstreamHost, Zone};
use crate::upstream::is_near;

/// The addresses inside of the cluster, beside private networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterNetwork {
    /// Services of the cluster.
    services: BTreeSet<IpAddr>,
}

impl ClusterNetwork {
    /// From the kubelet's variables `*_SERVICE_HOST`.
    #[must_use]
    pub(super) fn of_environment() -> Self {
        Self {
            services: environment::services(),
        }
    }

    /// Whether a block has an upstream outside: the host's resolvers, a name, or a public address that is no Service.
    pub(super) fn has_outside_upstream(&self, block: &Block) -> bool {
        let mut upstreams = block.forward.iter().flat_map(|forward| &forward.to);
        upstreams.any(|upstream| match &upstream.host {
            UpstreamHost::ResolvConf(_) | UpstreamHost::Name(..) => true,
            UpstreamHost::Address(address) => {
                !is_private(address.ip()) && !self.services.contains(&address.ip())
            }
        })
    }
}

/// Whether an address is private, or of documentation (RFC 5737).
fn is_private(address: IpAddr) -> bool {
    is_near(address) || matches!(address, IpAddr::V4(v4) if v4.is_documentation())
}

/// Those of `zones` that are below `above`.
pub(super) fn zones_below<'a>(
    above: &'a Zone,
    zones: impl Iterator<Item = &'a Zone> + 'a,
) -> impl Iterator<Item = &'a Zone> + 'a {
    zones.filter(move |zone| *zone != above && above.holds(zone.apex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_inside() {
        for (address, inside) in [
            ("10.96.0.10", true),
            ("172.20.0.10", true),
            ("192.168.0.1", true),
            ("169.254.169.253", true),
            ("100.64.0.10", true),
            ("127.0.0.53", true),
            ("fd00::10", true),
            ("8.8.8.8", false),
            ("100.128.0.1", false),
            ("2001:4860:4860::8888", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), inside, "{address}");
        }
    }
}

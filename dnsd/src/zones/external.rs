//! Who is outside: resolvers to which the names of the cluster are nobody's business.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::config::environment;
use crate::config::model::{Block, UpstreamHost, Zone};
use crate::upstream::is_near;

/// What is inside, besides private networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inside {
    /// Services of the cluster.
    services: BTreeSet<IpAddr>,
}

impl Inside {
    /// As the kubelet tells it: `*_SERVICE_HOST` of the environment.
    #[must_use]
    pub(super) fn of_environment() -> Self {
        Self {
            services: environment::services(),
        }
    }

    /// Whether a block asks somebody outside: the host's own resolvers, a name, or an address of the internet that
    /// is no service of the cluster.
    pub(super) fn is_left_by(&self, block: &Block) -> bool {
        let mut upstreams = block.forward.iter().flat_map(|forward| &forward.to);
        upstreams.any(|upstream| match &upstream.host {
            UpstreamHost::ResolvConf(_) | UpstreamHost::Name(..) => true,
            UpstreamHost::Address(address) => {
                !is_private(address.ip()) && !self.services.contains(&address.ip())
            }
        })
    }
}

/// Whether it is in networks that are nobody's on the internet, or in those of documentation (RFC 5737), which are in
/// nobody's cluster either.
fn is_private(address: IpAddr) -> bool {
    is_near(address) || matches!(address, IpAddr::V4(v4) if v4.is_documentation())
}

/// The zones below `above` that are kept inside, out of those that the blocks and the cluster have.
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

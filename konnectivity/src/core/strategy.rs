//! Which agent is asked for a connection.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::stream::{AgentStream, StreamId};
use crate::proto::Identifiers;

/// How an agent is chosen; those of a list are tried in turn until one finds an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Any agent.
    Default,
    /// An agent that stands for the destination's host ([`crate::proto::Identifiers::has_host`]).
    DestHost,
    /// An agent with a network that has the destination's address; the narrowest network first.
    DestCidr,
    /// An agent with `default-route=true`.
    DefaultRoute,
    /// An agent of the server's zone ([`super::Server::in_zone`]).
    Zone,
    /// Any agent, of those with the fewest connections.
    LeastLoaded,
}

/// A strategy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown proxy strategy {0:?}; there are default, destHost, destCIDR, defaultRoute, zone and leastLoaded"
)]
pub struct InvalidStrategy(String);

impl FromStr for Strategy {
    type Err = InvalidStrategy;

    fn from_str(text: &str) -> Result<Self, InvalidStrategy> {
        match text {
            "default" => Ok(Self::Default),
            "destHost" => Ok(Self::DestHost),
            "destCIDR" => Ok(Self::DestCidr),
            "defaultRoute" => Ok(Self::DefaultRoute),
            "zone" => Ok(Self::Zone),
            "leastLoaded" => Ok(Self::LeastLoaded),
            _ => Err(InvalidStrategy(text.to_owned())),
        }
    }
}

/// The stream by which an address is dialled: the newest of an agent that a strategy finds. Those of the given list were tried already.
/// Agents that drain are chosen where there is no other. `lot` chooses among equals.
pub(super) fn choose(
    (strategies, zone): (&[Strategy], Option<&str>),
    streams: &BTreeMap<StreamId, AgentStream>,
    address: &str,
    tried: &[StreamId],
    lot: u64,
) -> Option<StreamId> {
    let host = host_of(address);
    [false, true].into_iter().find_map(|draining| {
        strategies.iter().find_map(|strategy| {
            // By the agent's name, later streams replace earlier ones.
            let mut newest = BTreeMap::new();
            let usable = streams
                .iter()
                .filter(|(id, stream)| stream.is_usable(draining) && !tried.contains(id));
            let ranked =
                usable.filter_map(|(id, stream)| Some((id, stream, strategy.rank(stream, host, zone)?)));
            newest.extend(ranked.map(|(id, stream, rank)| (&stream.agent.id, (*id, rank))));
            let best = newest.values().map(|(_, rank)| *rank).min()?;
            let equals = newest.into_values().filter(|(_, rank)| *rank == best);
            let equals: Vec<StreamId> = equals.map(|(id, _)| id).collect();
            let index = usize::try_from(lot % u64::try_from(equals.len()).ok()?).ok()?;
            equals.get(index).copied()
        })
    })
}

impl Strategy {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DestCidr => "destCIDR",
            Self::DefaultRoute => "defaultRoute",
            Self::Zone => "zone",
            Self::LeastLoaded => "leastLoaded",
        }
    }

    /// Whether it finds such an agent for some destination.
    pub(super) fn may_take(self, identifiers: &Identifiers, zone: Option<&str>) -> bool {
        match self {
            Self::Default | Self::LeastLoaded => true,
            Self::DestHost => identifiers.has_hosts(),
            Self::DestCidr => identifiers.has_networks(),
            Self::DefaultRoute => identifiers.is_default_route(),
            Self::Zone => zone.is_some_and(|zone| identifiers.has_zone(zone)),
        }
    }

    /// How well the agent fits, the lowest best; none where it does not.
    fn rank(self, stream: &AgentStream, host: &str, zone: Option<&str>) -> Option<usize> {
        let identifiers = &stream.agent.identifiers;
        match self {
            Self::Default => Some(0),
            Self::DestHost => identifiers.has_host(host).then_some(0),
            Self::DestCidr => {
                let narrowest = identifiers.narrowest_network(host.parse().ok()?)?;
                Some(usize::from(u8::MAX - narrowest))
            }
            Self::DefaultRoute => identifiers.is_default_route().then_some(0),
            Self::Zone => zone.is_some_and(|zone| identifiers.has_zone(zone)).then_some(0),
            Self::LeastLoaded => Some(stream.multiplexer.connections()),
        }
    }
}

/// The host of `host:port` or `[address]:port`.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _port)| host);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bracketed.unwrap_or(host)
}

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
    /// An agent with `default-route=true`.
    DefaultRoute,
}

/// A strategy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown proxy strategy {0:?}; there are default, destHost and defaultRoute")]
pub struct InvalidStrategy(String);

impl FromStr for Strategy {
    type Err = InvalidStrategy;

    fn from_str(text: &str) -> Result<Self, InvalidStrategy> {
        match text {
            "default" => Ok(Self::Default),
            "destHost" => Ok(Self::DestHost),
            "defaultRoute" => Ok(Self::DefaultRoute),
            _ => Err(InvalidStrategy(text.to_owned())),
        }
    }
}

/// The stream by which an address is dialled: the newest of an agent that a strategy finds. Those of the given list were tried already.
/// Agents that drain are chosen where there is no other. `lot` chooses among equals.
pub(super) fn choose(
    strategies: &[Strategy],
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
            let usable = streams.iter().filter(|(id, stream)| {
                stream.is_usable(draining) && !tried.contains(id) && strategy.takes(stream, host)
            });
            newest.extend(usable.map(|(id, stream)| (&stream.agent.id, *id)));
            let count = u64::try_from(newest.len()).ok().filter(|count| *count > 0)?;
            let index = usize::try_from(lot % count).ok()?;
            newest.into_values().nth(index)
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
            Self::DefaultRoute => "defaultRoute",
        }
    }

    /// Whether it finds such an agent for some destination.
    pub(super) fn may_take(self, identifiers: &Identifiers) -> bool {
        match self {
            Self::Default => true,
            Self::DestHost => identifiers.has_hosts(),
            Self::DefaultRoute => identifiers.is_default_route(),
        }
    }

    fn takes(self, stream: &AgentStream, host: &str) -> bool {
        match self {
            Self::Default => true,
            Self::DestHost => stream.agent.identifiers.has_host(host),
            Self::DefaultRoute => stream.agent.identifiers.is_default_route(),
        }
    }
}

/// The host of `host:port` or `[address]:port`.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _port)| host);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bracketed.unwrap_or(host)
}

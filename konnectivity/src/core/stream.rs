//! An agent's stream, as the server has it.

use super::multiplexer::Multiplexer;
use crate::proto::Identifiers;

/// An agent's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(super) u64);

/// What an agent said when it opened its stream.
#[derive(Clone, Debug)]
pub struct AgentInfo {
    pub id: String,
    pub identifiers: Identifiers,
    /// Octets of a connection that it takes before it gives credit; none where it counts no credits.
    pub window: Option<u32>,
}

#[derive(Debug)]
pub(super) struct AgentStream {
    pub(super) agent: AgentInfo,
    pub(super) state: StreamState,
    pub(super) multiplexer: Multiplexer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    Draining,
    /// What its agent showed counts no longer: no connection is made by it, and what is open goes on for a while.
    Expired,
    /// Kept while somebody reads what came before.
    Gone,
}

impl AgentStream {
    pub(super) fn is_usable(&self, draining: bool) -> bool {
        match self.state {
            StreamState::Open => true,
            StreamState::Draining => draining,
            StreamState::Expired | StreamState::Gone => false,
        }
    }
}

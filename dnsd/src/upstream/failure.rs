//! Failures of forwarding, and the response code and extended error for the client.

use serde::{Deserialize, Serialize};

use crate::dns::message::rcode;

/// Why no upstream answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// No response in time.
    Timeout,
    /// No route, no listener, or the connection was closed.
    Unreachable,
    /// This host has no socket, port or memory left.
    Local,
    /// The limit of concurrent queries is reached.
    OverLimit,
    /// All upstreams are down (`failfast_all_unhealthy_upstreams`).
    AllDead,
    /// A message on a connection is not the response to its query.
    Nonsense,
    /// TLS authentication of the upstream failed.
    Unproven,
}

labels! {
    Failure: Timeout => "timeout", Unreachable => "unreachable", Local => "local", OverLimit => "over_limit",
    AllDead => "all_dead", Nonsense => "nonsense", Unproven => "unproven"
}

impl Failure {
    /// The response code for the client. Over `max_concurrent` it is REFUSED, as CoreDNS' `forward` has it.
    #[must_use]
    pub const fn rcode(self) -> u8 {
        match self {
            Self::OverLimit => rcode::REFUSED,
            Self::Timeout
            | Self::Unreachable
            | Self::Local
            | Self::AllDead
            | Self::Nonsense
            | Self::Unproven => rcode::SERVFAIL,
        }
    }

    /// The code of an Extended DNS Error (RFC 8914 §4) for the client.
    #[must_use]
    pub const fn extended_error(self) -> u16 {
        match self {
            Self::Timeout | Self::AllDead => extended::NO_REACHABLE_AUTHORITY,
            Self::Unreachable | Self::Unproven => extended::NETWORK_ERROR,
            Self::Local | Self::OverLimit => extended::NOT_READY,
            Self::Nonsense => extended::INVALID_DATA,
        }
    }
}

/// Extended DNS Errors (IANA, "Extended DNS Error Codes").
pub mod extended {
    /// The answer is older than its TTL.
    pub const STALE_ANSWER: u16 = 3;
    /// The server cannot answer at the moment.
    pub const NOT_READY: u16 = 14;
    /// The NXDOMAIN is older than its TTL.
    pub const STALE_NXDOMAIN_ANSWER: u16 = 19;
    /// No upstream answers.
    pub const NO_REACHABLE_AUTHORITY: u16 = 22;
    /// An upstream cannot be reached.
    pub const NETWORK_ERROR: u16 = 23;
    /// An upstream's message is invalid.
    pub const INVALID_DATA: u16 = 24;
}

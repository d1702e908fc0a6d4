//! Why there is no answer, as clients, operators and a successor are told.

use serde::{Deserialize, Serialize};

use crate::dns::message::rcode;
use crate::upstream::Failure;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResolveError {
    /// Upstreams gave none.
    Upstream(Failure),
    /// Nothing in the chain answers for this name.
    NoAnswer,
    /// Only somebody outside could be asked, for a name of the cluster.
    Kept,
    /// No block answers for this name here.
    NoBlock,
    /// More queries wait than may.
    Crowded,
    /// A rule made no name of the name, or nothing of the answer.
    Rewrite,
    /// A template or the hosts file says that it knows the name, and nothing of it.
    Local,
    /// Aliases lead from one lookup to the next, for too long.
    TooDeep,
    /// What upstreams are asked comes back here.
    Loop,
}

impl ResolveError {
    /// The code that the client gets.
    #[must_use]
    pub const fn rcode(self) -> u8 {
        match self {
            Self::Upstream(failure) => failure.rcode(),
            Self::NoAnswer | Self::Crowded | Self::Rewrite | Self::Local | Self::TooDeep | Self::Loop => {
                rcode::SERVFAIL
            }
            Self::Kept | Self::NoBlock => rcode::REFUSED,
        }
    }

    /// The reason that it gets (RFC 8914).
    #[must_use]
    pub const fn extended_error(self) -> u16 {
        match self {
            Self::Upstream(failure) => failure.extended_error(),
            Self::NoAnswer | Self::NoBlock => extended::NOT_AUTHORITATIVE,
            Self::Kept => extended::PROHIBITED,
            Self::Crowded => Failure::OverLimit.extended_error(),
            Self::Rewrite | Self::Local | Self::TooDeep | Self::Loop => extended::OTHER,
        }
    }

    /// The reason for people. It ends as CoreDNS' does where operators' patterns for `consolidate` look for that.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Upstream(Failure::Timeout) => "no upstream answered: i/o timeout",
            Self::Upstream(Failure::Unreachable) => "no upstream can be reached: connection refused",
            Self::Upstream(Failure::Local) => "this host has no socket or memory left",
            Self::Upstream(Failure::OverLimit) => "concurrent queries exceeded maximum",
            Self::Upstream(Failure::AllDead) => "no healthy proxies",
            Self::Upstream(Failure::Nonsense) => "an upstream's answer is no answer to the question",
            Self::Upstream(Failure::Unproven) => "tls: an upstream did not prove who it is",
            Self::NoAnswer => "no next plugin found",
            Self::Kept => "a name of the cluster, and only somebody outside could be asked",
            Self::NoBlock => "no server block answers for this name here",
            Self::Rewrite => {
                "plugin/rewrite: a rule makes no name of the name, or the answer cannot be changed"
            }
            Self::Local => {
                "plugin/hosts or plugin/template: nothing is known of the name, and nobody is asked"
            }
            Self::Loop => "plugin/loop: what upstreams are asked comes back here",
            Self::TooDeep => "aliases lead on and on",
            Self::Crowded => "more queries wait for upstreams than may",
        }
    }
}

/// Extended DNS Errors (RFC 8914 §4) of what no upstream is to blame for.
mod extended {
    /// What no other code says.
    pub(super) const OTHER: u16 = 0;
    /// The server is no authority for the name, and has nobody to ask.
    pub(super) const NOT_AUTHORITATIVE: u16 = 20;
    /// The operator does not want the question to be asked.
    pub(super) const PROHIBITED: u16 = 18;
}

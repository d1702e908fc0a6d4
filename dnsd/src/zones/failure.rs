//! Why a query cannot be resolved: the code for the client, the message for the log.

use serde::{Deserialize, Serialize};

use crate::dns::message::rcode;
use crate::upstream::Failure;

/// Why a query cannot be resolved. The numbers are part of the takeover's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResolveError {
    /// Upstreams gave no answer.
    Upstream(Failure),
    /// No plugin answers for this name.
    NoAnswer,
    /// A name of the cluster would have to be asked for outside.
    ClusterName,
    /// No block answers for this name at this address.
    NoBlock,
    /// Too many queries are pending.
    OverLimit,
    /// A rewrite rule made an invalid name or answer.
    Rewrite,
    /// A template or the hosts file covers the name, and has no answer.
    Local,
    /// The chain of aliases is too long.
    TooDeep,
    /// Queries to the upstreams come back.
    Loop,
}

impl ResolveError {
    /// The response code.
    #[must_use]
    pub const fn rcode(self) -> u8 {
        match self {
            Self::Upstream(failure) => failure.rcode(),
            Self::NoAnswer | Self::OverLimit | Self::Rewrite | Self::Local | Self::TooDeep | Self::Loop => {
                rcode::SERVFAIL
            }
            Self::ClusterName | Self::NoBlock => rcode::REFUSED,
        }
    }

    /// The extended error (RFC 8914).
    #[must_use]
    pub const fn extended_error(self) -> u16 {
        match self {
            Self::Upstream(failure) => failure.extended_error(),
            Self::NoAnswer | Self::NoBlock => extended::NOT_AUTHORITATIVE,
            Self::ClusterName => extended::PROHIBITED,
            Self::OverLimit => Failure::OverLimit.extended_error(),
            Self::Rewrite | Self::Local | Self::TooDeep | Self::Loop => extended::OTHER,
        }
    }

    /// The message for the log. It ends as CoreDNS' does, for the patterns of `consolidate`.
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
            Self::ClusterName => "a name of the cluster, and only somebody outside could be asked",
            Self::NoBlock => "no server block answers for this name here",
            Self::Rewrite => {
                "plugin/rewrite: a rule makes no name of the name, or the answer cannot be changed"
            }
            Self::Local => {
                "plugin/hosts or plugin/template: nothing is known of the name, and nobody is asked"
            }
            Self::Loop => "plugin/loop: what upstreams are asked comes back here",
            Self::TooDeep => "aliases lead on and on",
            Self::OverLimit => "more queries wait for upstreams than may",
        }
    }
}

/// Extended DNS errors (RFC 8914 §4) of dnsd itself.
mod extended {
    /// Other error.
    pub(super) const OTHER: u16 = 0;
    /// Not authoritative.
    pub(super) const NOT_AUTHORITATIVE: u16 = 20;
    /// Prohibited.
    pub(super) const PROHIBITED: u16 = 18;
}

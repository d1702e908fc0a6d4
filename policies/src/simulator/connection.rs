//! What is asked and answered.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use crate::model::Direction;
use crate::rules::Origin;

/// A connection as one of its pods sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The pod whose rules are asked.
    pub pod: PodKey,
    /// Whether it opens the connection or is asked.
    pub direction: Direction,
    /// The other end: the destination for egress, the source for ingress.
    pub peer: IpAddr,
    /// Whether the other end is the node on which the pod runs.
    pub peer_is_own_node: bool,
    /// The protocol and the destination port.
    pub protocol: Protocol,
}

/// A connection that a Service passes on, as the node sees it on which that happens: from a client that is neither a
/// pod of this node nor the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedConnection {
    /// The destination that the Service chose.
    pub destination: IpAddr,
    /// Whether that is this node.
    pub destination_is_own_node: bool,
    /// The protocol and the destination port there.
    pub protocol: Protocol,
}

/// A protocol, with the destination port where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// One that has ports.
    Port(Transport, u16),
    /// ICMP or ICMPv6: an echo, say.
    Icmp,
    /// Another.
    Other,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It goes through.
    Allow,
    /// It is dropped.
    Deny,
}

/// What a direction says, and which rule says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of it.
    pub verdict: Verdict,
    /// The word of the tier that decided: `cef`, `admin`, `np`, `baseline`; `default` where none did,
    /// `exempt` for what is never judged, `none` where that end is no pod with rules.
    pub tier: &'static str,
    /// The rule; none for isolation without a match, and where no tier decided.
    pub origin: Option<Origin>,
}

impl Decision {
    /// The policy of the rule.
    #[must_use]
    pub fn policy(&self) -> Option<&Arc<str>> {
        self.origin.as_ref().map(|origin| &origin.policy)
    }

    /// The index of the rule.
    #[must_use]
    pub fn rule(&self) -> Option<usize> {
        self.origin.as_ref().map(|origin| origin.rule)
    }

    /// The name of the rule, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&Arc<str>> {
        self.origin.as_ref()?.name.as_ref()
    }

    pub(super) const fn allow(tier: &'static str) -> Self {
        Self {
            verdict: Verdict::Allow,
            tier,
            origin: None,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEnd {
    /// Its address in this connection.
    pub address: IpAddr,
    /// What that is.
    pub kind: EndKind,
}

/// What has the address of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// A pod with an address of its own.
    Pod(PodKey),
    /// The node on which the pod at the other end runs.
    OwnNode,
    /// Anything else.
    Other,
}

/// What both ends say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionDecision {
    /// What the source's egress says.
    pub egress: Decision,
    /// What the destination's ingress says.
    pub ingress: Decision,
}

impl ConnectionDecision {
    /// Both directions must allow.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        match (self.egress.verdict, self.ingress.verdict) {
            (Verdict::Allow, Verdict::Allow) => Verdict::Allow,
            (Verdict::Deny, Verdict::Allow | Verdict::Deny) | (Verdict::Allow, Verdict::Deny) => {
                Verdict::Deny
            }
        }
    }
}

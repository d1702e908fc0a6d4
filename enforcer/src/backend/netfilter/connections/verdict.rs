//! The rules' verdict on an open flow, computed without the kernel. It is at least as wide as that of the
//! chains: expired members count as live, and members that a set could not be given count as given. So what
//! is forbidden here is forbidden.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_kernel::conntrack::{Flow, ProtocolDetail};
use egret_policies::rules::{Action, DefaultAction, Direction, PeerMatch, PodRules, PortMatch, Rule, SetId};
use egret_shared::net::Transport;

use crate::backend::netfilter::model::set_contents::SetContents;

/// What is known besides the rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evaluator<'a> {
    pub(super) sets: &'a dyn SetContents,
    /// The node's own addresses. With none, no peer is the node or the pod itself.
    pub(super) own_node: Option<&'a BTreeSet<IpAddr>>,
}

impl Evaluator<'_> {
    /// Whether a pod's rules allow a flow that it opened, or that was opened to it.
    pub(super) fn allows(&self, rules: &PodRules, direction: Direction, flow: &Flow) -> bool {
        let peer = FlowPeer::of(rules, direction, flow);
        for tier in &rules.direction(direction).tiers {
            let first = tier.rules.iter().find(|rule| self.matches(rule, &peer));
            match first.map(|rule| rule.action) {
                Some(Action::Allow) => return true,
                Some(Action::Deny) => return false,
                Some(Action::Pass) => {}
                None => match tier.default_action {
                    DefaultAction::Deny => return false,
                    DefaultAction::NextTier => {}
                },
            }
        }
        true
    }

    pub(super) fn is_of_own_node(&self, address: IpAddr) -> bool {
        self.own_node.is_some_and(|own| own.contains(&address))
    }

    fn matches(&self, rule: &Rule, peer: &FlowPeer) -> bool {
        let holds = |id: SetId| self.sets.holds(id, peer.peer, peer.transport.zip(peer.port));
        let is_peer = || match rule.peer {
            PeerMatch::Any => true,
            PeerMatch::In(id) => holds(id),
            PeerMatch::OwnNode => self.is_of_own_node(peer.peer),
            PeerMatch::Itself => self.own_node.is_some() && peer.is_own,
        };
        peer.is_at(rule.port) && !rule.except.is_some_and(holds) && is_peer()
    }
}

/// A flow as a chain of a pod sees its first packet: the destination is rewritten, the source is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FlowPeer {
    peer: IpAddr,
    /// The peer has the pod's own address.
    is_own: bool,
    transport: Option<Transport>,
    /// Where it is served.
    port: Option<u16>,
    is_icmp: bool,
}

impl FlowPeer {
    fn of(rules: &PodRules, direction: Direction, flow: &Flow) -> Self {
        let peer = match direction {
            Direction::Egress => flow.reply.source,
            Direction::Ingress => flow.original.source,
        };
        let port = match flow.reply.detail {
            ProtocolDetail::Ports { source, .. } => Some(source),
            ProtocolDetail::Icmp { .. } | ProtocolDetail::Nothing => None,
        };
        Self {
            peer,
            is_own: rules.addresses.contains(&peer),
            transport: Transport::ALL
                .into_iter()
                .find(|transport| transport.number() == flow.reply.protocol),
            port,
            is_icmp: matches!(flow.reply.detail, ProtocolDetail::Icmp { .. }),
        }
    }

    fn is_at(&self, port: PortMatch) -> bool {
        match port {
            PortMatch::Any => true,
            PortMatch::Icmp => self.is_icmp,
            PortMatch::Range(transport, range) => {
                self.transport == Some(transport) && self.port.is_some_and(|port| range.contains(port))
            }
        }
    }
}

//! Encapsulated packets from a pod to its node. The inner packet would leave an interface of the node as
//! nobody's, and no rule of the pod would judge it. So neither the exemption of the own node nor the default
//! lets them in; a rule of a policy does.
//!
//! ```text
//!  EGRET-E2-x ─ own-node exemption: to this host ─ jump EGRET-ENCAP ─ tcp ▸ return
//!             │                                                     ├ udp to a port of a tunnel ▸ goto EGRET-DENY
//!             │                                                     ├ udp, icmp, sctp ▸ return
//!             │                                                     └ any other protocol ▸ goto EGRET-DENY
//!             └ to this host ▸ goto EGRET-EA-x
//! ```

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use egret_kernel::Family;
use egret_kernel::Transport;
use egret_kernel::iptables::{Match, Protocol, Rule as Line, Target};
use egret_policies::rules::Direction;
use ipnet::Ipv6Net;

use super::conn_state;
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::names;
use crate::backend::{Action, Decider};

/// The chain that all pods share.
#[must_use]
pub fn chain(ports: &BTreeSet<u16>, family: Family) -> Vec<String> {
    let label = Label::of_no_policy(Decider::Encapsulation, Action::Deny, Direction::Egress);
    let deny = || Line::to(Target::Goto(names::deny()));
    let plain = |protocol| Line::to(Target::Return).protocol(protocol);
    let any = Protocol::any_port;
    let tunnels = ports.iter().map(|port| {
        let line = deny().protocol(Protocol::to_ports(Transport::Udp, *port..=*port));
        line.comment(&label.to_string())
    });
    [plain(any(Transport::Tcp))]
        .into_iter()
        .chain(tunnels)
        .chain(
            [
                any(Transport::Udp),
                conn_state::icmp(family),
                any(Transport::Sctp),
            ]
            .map(plain),
        )
        .chain([deny().comment(&label.to_string())])
        .map(|line| line.to_string())
        .collect()
}

/// The lines before the default that jump to it: packets that the node receives by unicast or multicast. In IPv6 the type
/// UNICAST includes addresses of this host (`match_type6` of net/netfilter/xt_addrtype.c).
pub(in crate::backend::netfilter) fn ask(family: Family) -> Vec<Line> {
    let ask = || Line::to(Target::Jump(names::encapsulation()));
    match family {
        Family::V4 => vec![ask().unless(Match::ToAnotherHost)],
        Family::V6 => {
            let groups = Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
            vec![ask().when(Match::ToThisHost), ask().destination(groups.into())]
        }
    }
}

//! Connection state checks in front of the dispatch. Every packet of every flow meets them, so there are few:
//!
//! ```text
//!  EGRET-FORWARD ─ a direction is revoked ▸ goto EGRET-REVOKED ─ which ▸ goto EGRET-DENY
//!                ├ replies ▸ return
//!                └ EGRET-FROM ─ … EGRET-E-x ─ allowed ▸ return
//!                                           ├ invalid, related ▸ goto EGRET-ER-x ─ invalid ▸ end
//!                                           │                                    ├ an error about a flow of the pod ▸ return
//!                                           │                                    ├ an error about another's ▸ end
//!                                           │                                    └ a connection that a helper expects: the pod's rules
//!                                           └ the pod's rules
//! ```

use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::iptables::{
    ChainName, ConnState, Direction as FlowDirection, Match, Protocol, Rule as Line, Target,
};
use egret_policies::rules::Direction;

use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::names;

/// The first lines: packets of revoked connections, and of removed pods, are denied in both directions.
pub(in crate::backend::netfilter) fn ends(marks: Marks) -> Line {
    Line::to(Target::Goto(names::revoked())).unless(Match::Connmark(marks.going_on()))
}

/// Which direction was revoked.
pub(in crate::backend::netfilter) fn ended(marks: Marks) -> Vec<Line> {
    let each = Direction::ALL.map(|direction| revoked(marks, direction));
    each.into_iter()
        .chain([Line::to(Target::Goto(names::deny()))])
        .collect()
}

/// The mark of a connection that is revoked in a direction.
pub(in crate::backend::netfilter) fn revoked(marks: Marks, direction: Direction) -> Line {
    Line::to(Target::Goto(names::deny())).when(Match::Connmark(marks.ended(direction)))
}

/// Replies pass: the first packet of the connection was judged.
pub(in crate::backend::netfilter) fn reply() -> Line {
    Line::to(Target::Return).tracked(&[ConnState::Established], FlowDirection::Reply)
}

/// ICMP errors about a connection pass too, path MTU among them. Other related packets open a connection that a conntrack helper
/// expects, and are judged as any other. They are rare, so they are matched in the pod's chains and not before.
pub(in crate::backend::netfilter) fn related(family: Family) -> Line {
    let line = Line::to(Target::Return).protocol(icmp(family));
    line.when(Match::ConnState(vec![ConnState::Related]))
}

/// The ICMP of a family.
pub(in crate::backend::netfilter) const fn icmp(family: Family) -> Protocol {
    match family {
        Family::V4 => Protocol::Icmp,
        Family::V6 => Protocol::IcmpV6,
    }
}

/// Replies and ICMP errors, for chains that do not look at marks.
pub(in crate::backend::netfilter) fn replies(family: Family) -> Vec<Line> {
    vec![reply(), related(family)]
}

/// Before a pod's rules: invalid and related packets go to a chain of their own.
pub(super) fn unsolicited(chain: ChainName) -> Line {
    let states = vec![ConnState::Invalid, ConnState::Related];
    Line::to(Target::Goto(chain)).when(Match::ConnState(states))
}

/// The lines of that chain. Invalid packets are denied: conntrack could neither translate nor answer them. An ICMP error of a pod
/// quotes a packet of a connection of that pod, with its address after every translation; `own` are the addresses of the pod, and
/// any other error goes to `spoofed`. With `own` = none, errors are not checked (ingress). All else is judged by the `rules`.
pub(super) fn judge_unsolicited(family: Family, own: Option<(&[IpAddr], Line)>, rules: Target) -> Vec<Line> {
    let mut lines = vec![invalid()];
    match own {
        None => lines.push(Line::to(Target::Return).protocol(icmp(family))),
        Some((own, spoofed)) => {
            for address in own {
                let about = |end| {
                    let line = Line::to(Target::Return).protocol(icmp(family));
                    line.of_flow_from(&[ConnState::Related], end, *address)
                };
                lines.extend([FlowDirection::Original, FlowDirection::Reply].map(about));
            }
            lines.push(spoofed.protocol(icmp(family)));
        }
    }
    lines.push(Line::to(rules));
    lines
}

fn invalid() -> Line {
    Line::to(Target::Drop).when(Match::ConnState(vec![ConnState::Invalid]))
}

/// Neighbour discovery (RFC 4861: 133 to 137) and listener reports (RFC 2710, RFC 3810: 130 to 132, 143) are how IPv6
/// finds its neighbours. They go to the node and are never forwarded. The source check drops what only routers send (134, 137).
pub(in crate::backend::netfilter) fn neighbours(family: Family) -> impl Iterator<Item = String> {
    const TYPES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
    let types: &[u8] = match family {
        Family::V4 => &[],
        Family::V6 => &TYPES,
    };
    types
        .iter()
        .map(|number| format!("-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN"))
}

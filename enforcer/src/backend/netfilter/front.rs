//! What stands in front of every question whose a packet is.

use egret_kernel::Family;
use egret_kernel::iptables::{ConnState, Direction as FlowDirection, Match, Rule as Line, Target};
use egret_policies::rules::Direction;
use egret_shared::switch::{Switch, is_off};

use super::marks::Marks;
use super::names;

/// In front of replies: what was revoked, or is of a pod that is gone, ends in both directions.
pub(super) fn revoked(marks: Marks, direction: Direction) -> Line {
    Line::to(Target::Goto(names::deny())).when(Match::Connmark(marks.ended(direction)))
}

/// In front of every dispatch: replies, and what is related to a flow (errors of ICMP, path MTU among them), were
/// judged with the flow's first packet.
pub(super) fn replies() -> Vec<Line> {
    let established = [ConnState::Established];
    let reply = Line::to(Target::Return).tracked(&established, FlowDirection::Reply);
    if is_off(Switch::PassErrors) {
        return vec![reply];
    }
    let related = Line::to(Target::Return).when(Match::ConnState(vec![ConnState::Related]));
    vec![reply, related]
}

/// Neighbour discovery (RFC 4861: 133 to 137) and listener reports (RFC 2710, RFC 3810: 130 to 132, 143) are how IPv6
/// finds its neighbours at all. Only towards the node: they are never forwarded.
pub(super) fn neighbours(family: Family) -> impl Iterator<Item = String> {
    const TYPES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
    let types: &[u8] = match family {
        Family::V4 => &[],
        Family::V6 if is_off(Switch::PassNeighbours) => &[],
        Family::V6 => &TYPES,
    };
    types
        .iter()
        .map(|number| format!("-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN"))
}

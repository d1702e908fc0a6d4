//! What stands in front of every question whose a packet is. Every packet of every flow meets it, so it is as short as it
//! can be:
//!
//! ```text
//!  EGRET-FORWARD ─ a direction is revoked ▸ goto EGRET-REVOKED ─ which ▸ goto EGRET-DENY
//!                ├ replies ▸ return
//!                └ EGRET-FROM ─ … EGRET-E-x ─ allowed ▸ return
//!                                           ├ invalid, related ▸ goto EGRET-BESIDE ─ invalid ▸ end
//!                                           │                                      └ related ▸ return
//!                                           └ the pod's rules
//! ```

use egret_kernel::Family;
use egret_kernel::iptables::{ConnState, Direction as FlowDirection, Match, Rule as Line, Target};
use egret_policies::rules::Direction;
use egret_shared::switch::{Switch, is_off};

use super::marks::Marks;
use super::names;

/// In front of everything: what was revoked, or is of a pod that is gone, ends in both directions.
pub(super) fn ends(marks: Marks) -> Line {
    Line::to(Target::Goto(names::revoked())).unless(Match::Connmark(marks.going_on()))
}

/// Which direction was revoked.
pub(super) fn ended(marks: Marks) -> Vec<Line> {
    let each = Direction::ALL.map(|direction| revoked(marks, direction));
    each.into_iter()
        .chain([Line::to(Target::Goto(names::deny()))])
        .collect()
}

/// What was revoked in a direction.
pub(super) fn revoked(marks: Marks, direction: Direction) -> Line {
    Line::to(Target::Goto(names::deny())).when(Match::Connmark(marks.ended(direction)))
}

/// Replies were judged with the flow's first packet.
pub(super) fn reply() -> Line {
    Line::to(Target::Return).tracked(&[ConnState::Established], FlowDirection::Reply)
}

/// So was what is related to a flow (errors of ICMP, path MTU among them). It is rare, so that it is asked where a packet
/// would be judged, and not in front.
pub(super) fn related() -> Option<Line> {
    (!is_off(Switch::PassErrors))
        .then(|| Line::to(Target::Return).when(Match::ConnState(vec![ConnState::Related])))
}

/// Both, where nothing is asked about marks.
pub(super) fn replies() -> Vec<Line> {
    std::iter::once(reply()).chain(related()).collect()
}

/// In front of a pod's rules: what opens no flow and is of none.
pub(super) fn aside() -> Line {
    if is_off(Switch::PassErrors) {
        return invalid();
    }
    let states = vec![ConnState::Invalid, ConnState::Related];
    Line::to(Target::Goto(names::beside())).when(Match::ConnState(states))
}

/// What becomes of it: what belongs to no flow could neither be translated nor answered. What is related leaves the rules.
pub(super) fn beside() -> Vec<Line> {
    vec![invalid()]
}

fn invalid() -> Line {
    Line::to(Target::Drop).when(Match::ConnState(vec![ConnState::Invalid]))
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

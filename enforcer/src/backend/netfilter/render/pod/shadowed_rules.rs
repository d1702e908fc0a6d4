//! Removes shadowed rules: an earlier rule of the list matches all their packets. Policies of several authors often
//! have the same rule for the same peers, and each would cost packets a lookup and the kernel a check at each
//! change.
//!
//! Only matches are compared, not policies. An earlier rule of the same list decides each packet of a removed rule, so verdicts,
//! counters and reasons stay the same. Rules over fixed networks of one family are not rendered in the other.

use std::collections::HashMap;

use egret_kernel::Family;
use egret_policies::rules::{PeerMatch, PortMatch, Rule, SetId};

use super::port_groups::has_all;
use crate::backend::netfilter::model::available_sets::AvailableSets;

/// The rules of a list that some packet of a family may reach.
pub(in crate::backend) fn without<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    sets: &AvailableSets,
    family: Family,
) -> Vec<&'a Rule> {
    let mut decided = Decided::new();
    let is_whole = |rule: &Rule| rule.sets().all(|id| sets.contains_key(&id));
    let is_reached = |rule: &&Rule| {
        // A rule over a missing set closes, or is not rendered: its match is not what it says.
        if !is_whole(rule) {
            return true;
        }
        if is_about_nobody(rule, sets, family) {
            return false;
        }
        let is_new = !is_decided(&decided, rule);
        if is_new {
            decided
                .entry(about(&rule.peer, rule.except))
                .or_default()
                .push(rule.port);
        }
        is_new
    };
    rules.into_iter().filter(is_reached).collect()
}

/// Whether a rule's peer is fixed networks, none of them of this family.
fn is_about_nobody(rule: &Rule, sets: &AvailableSets, family: Family) -> bool {
    let PeerMatch::In(id) = &rule.peer else {
        return false;
    };
    sets.get(id).is_some_and(|set| !set.families.has(family))
}

/// The ports that earlier rules decide, by peer and exception.
type Decided = HashMap<(PeerMatch, Option<SetId>), Vec<PortMatch>>;

fn about(peer: &PeerMatch, except: Option<SetId>) -> (PeerMatch, Option<SetId>) {
    (peer.clone(), except)
}

/// Whether one earlier rule matches whatever a rule matches.
fn is_decided(decided: &Decided, rule: &Rule) -> bool {
    let wider_peers = [&rule.peer, &PeerMatch::Any];
    let mut wider = wider_peers
        .into_iter()
        .flat_map(|peer| [about(peer, rule.except), about(peer, None)]);
    wider.any(|about| {
        let ports = decided.get(&about).into_iter().flatten();
        ports.into_iter().any(|port| has_all(*port, rule.port))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use egret_policies::rules::{Action, Origin, SetKind};
    use egret_shared::net::{PortRange, Transport};
    use proptest::prelude::*;

    use super::*;
    use crate::backend::netfilter::model::available_sets::{Available, Families};

    /// Two sets that are there, one that is not, and one that is there in the other family alone.
    const SETS: [&str; 4] = ["a", "b", "missing", "other family"];
    const FAMILY: Family = Family::V6;

    fn set(place: usize) -> SetId {
        SetId::of_content(SETS[place])
    }

    fn there() -> AvailableSets {
        let both = [set(0), set(1)].map(|id| (id, SetKind::Addresses.into()));
        let of_other = Available {
            kind: SetKind::Networks,
            families: Families::Only(Family::V4),
        };
        BTreeMap::from(both)
            .into_iter()
            .chain([(set(3), of_other)])
            .collect()
    }

    /// The sets that a packet's other end is in, whether that is the node or the pod itself, and where it goes.
    #[derive(Clone, Copy, Debug)]
    struct Packet {
        is_in: [bool; 2],
        is_to_node: bool,
        is_to_itself: bool,
        to: PortMatch,
    }

    impl Packet {
        fn is_in(self, id: SetId) -> bool {
            (0..2).any(|place| set(place) == id && self.is_in[place])
        }

        fn is_of(self, peer: &PeerMatch) -> bool {
            match peer {
                PeerMatch::Any => true,
                PeerMatch::In(id) => self.is_in(*id),
                PeerMatch::OwnNode => self.is_to_node,
                PeerMatch::Itself => self.is_to_itself,
            }
        }

        /// As it is rendered: with a set that is not there a rule allows nothing, or closes.
        fn matches(self, rule: &Rule) -> bool {
            if !rule.sets().all(|id| there().contains_key(&id)) {
                return rule.action != Action::Allow;
            }
            let is_excepted = rule.except.is_some_and(|id| self.is_in(id));
            self.is_of(&rule.peer) && !is_excepted && has_all(rule.port, self.to)
        }
    }

    fn packets() -> Vec<Packet> {
        let ports = (1..6).map(|port| to(Transport::Tcp, port, port));
        let ports: Vec<PortMatch> = ports.chain([to(Transport::Udp, 2, 2), PortMatch::Icmp]).collect();
        let bits = (0..16_u8).map(|bits| [1, 2, 4, 8].map(|bit| bits & bit != 0));
        let packet = |[a, b, is_to_node, is_to_itself]: [bool; 4], to| Packet {
            is_in: [a, b],
            is_to_node,
            is_to_itself,
            to,
        };
        bits.flat_map(|bits| ports.iter().map(move |to| packet(bits, *to)))
            .collect()
    }

    fn to(transport: Transport, first: u16, last: u16) -> PortMatch {
        PortMatch::Range(transport, PortRange::new(first, last).unwrap())
    }

    fn rule(action: Action, peer: PeerMatch, except: Option<SetId>, port: PortMatch) -> Rule {
        Rule {
            action,
            peer,
            except,
            port,
            origin: Origin {
                policy: Arc::from("NetworkPolicy/a/b"),
                rule: 0,
                name: None,
            },
            attribution: None,
        }
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let action = prop::sample::select(vec![Action::Allow, Action::Deny, Action::Pass]);
        let peer = prop_oneof![
            1 => Just(PeerMatch::Any),
            6 => (0usize..4).prop_map(|place| PeerMatch::In(set(place))),
            1 => Just(PeerMatch::OwnNode),
            1 => Just(PeerMatch::Itself),
        ];
        let except = prop::option::weighted(0.3, (0usize..4).prop_map(set));
        let port = prop_oneof![
            1 => Just(PortMatch::Any),
            1 => Just(PortMatch::Icmp),
            1 => Just(to(Transport::Udp, 2, 2)),
            5 => (1u16..5, 0u16..3).prop_map(|(first, more)| to(Transport::Tcp, first, first + more)),
        ];
        (action, peer, except, port).prop_map(|(action, peer, except, port)| rule(action, peer, except, port))
    }

    fn decides<'a>(rules: impl IntoIterator<Item = &'a Rule>, packet: Packet) -> Option<*const Rule> {
        let mut rules = rules.into_iter();
        rules.find(|rule| packet.matches(rule)).map(std::ptr::from_ref)
    }

    proptest! {
        #[test]
        fn every_packet_is_decided_by_the_same_rule(rules in prop::collection::vec(any_rule(), 0..25)) {
            let reached = without(&rules, &there(), FAMILY);
            for packet in packets() {
                prop_assert_eq!(
                    decides(reached.iter().copied(), packet),
                    decides(&rules, packet),
                    "{:?}", packet
                );
            }
        }
    }

    #[test]
    fn a_rule_is_omitted_only_if_one_earlier_rule_decides_all_its_packets() {
        let (a, b) = (PeerMatch::In(set(0)), PeerMatch::In(set(1)));
        let all = || PeerMatch::Any;
        let web = to(Transport::Tcp, 443, 443);
        let many = to(Transport::Tcp, 400, 500);
        // Two rules, and whether a packet may reach the second one.
        let rows = [
            ((a.clone(), None, web), (a.clone(), None, web), false),
            ((a.clone(), None, many), (a.clone(), None, web), false),
            ((a.clone(), None, web), (a.clone(), None, many), true),
            (
                (a.clone(), None, PortMatch::Any),
                (a.clone(), None, PortMatch::Icmp),
                false,
            ),
            (
                (a.clone(), None, PortMatch::Icmp),
                (a.clone(), None, PortMatch::Any),
                true,
            ),
            (
                (a.clone(), None, web),
                (a.clone(), None, to(Transport::Udp, 443, 443)),
                true,
            ),
            ((a.clone(), None, web), (b.clone(), None, web), true),
            ((all(), None, web), (a.clone(), None, web), false),
            ((a.clone(), None, web), (all(), None, web), true),
            ((a.clone(), None, web), (a.clone(), Some(set(1)), web), false),
            (
                (a.clone(), Some(set(1)), web),
                (a.clone(), Some(set(1)), web),
                false,
            ),
            ((a.clone(), Some(set(1)), web), (a.clone(), None, web), true),
            ((all(), Some(set(1)), web), (a.clone(), None, web), true),
            ((all(), Some(set(1)), web), (a.clone(), Some(set(1)), web), false),
            (
                (PeerMatch::In(set(2)), None, web),
                (PeerMatch::In(set(2)), None, web),
                true,
            ),
            ((all(), Some(set(2)), web), (a.clone(), None, web), true),
            ((all(), Some(set(3)), web), (a.clone(), None, web), true),
        ];
        for (first, second, is_reached) in rows {
            let rule = |(peer, except, port): (PeerMatch, Option<SetId>, PortMatch)| {
                rule(Action::Deny, peer, except, port)
            };
            let rules = [rule(first), rule(second)];
            assert_eq!(
                without(&rules, &there(), FAMILY).len() == 2,
                is_reached,
                "{rules:?}"
            );
        }
    }

    #[test]
    fn of_networks_of_the_other_family_nothing_is_said() {
        let web = to(Transport::Tcp, 443, 443);
        for action in [Action::Allow, Action::Deny, Action::Pass] {
            let about = |except| [rule(action, PeerMatch::In(set(3)), except, web)];
            let said = |except, family| without(&about(except), &there(), family).len();
            assert_eq!(
                (said(None, Family::V4), said(None, Family::V6)),
                (1, 0),
                "{action:?}"
            );
            assert_eq!(said(Some(set(1)), Family::V6), 0, "{action:?}");
            assert_eq!(
                said(Some(set(2)), Family::V6),
                1,
                "{action:?}: a set is not there, so it closes"
            );
        }
    }
}

//! Port groups: where many rules of a list match the same ports, these are matched once, in front of a chain
//! of their own. A port match costs a packet a fifth of a set lookup, and with `nft` half of it.
//!
//! ```text
//!  EGRET-E2-x ─ TCP 443 ▸ goto EGRET-EP000-x ─ all that rules say about TCP 443, in their order
//!             └ all that rules say about the rest, in their order
//! ```
//!
//! Each chain has the rules that may match there, in the order of the list, so the first match is the same rule. A rule with more
//! ports, or without ports, is in both.

use egret_policies::rules::PortMatch;
use egret_shared::net::{PortRange, Transport};

/// The least rules with the same ports for which a chain of their own pays.
const FEW: usize = 3;
/// The most port groups: all packets of the list pass the line of each.
const MOST: usize = 4;

/// Ports of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortGroup {
    transport: Transport,
    range: PortRange,
}

/// The rules of a list by what they may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortSplit<Rule> {
    /// In order: the first whose ports match judges the packet.
    pub(super) alike: Vec<(PortGroup, Vec<Rule>)>,
    pub(super) rest: Vec<Rule>,
}

impl PortGroup {
    /// The ports of a rule; none without ports, or with a protocol without ports.
    pub(super) const fn of(port: PortMatch) -> Option<Self> {
        match port {
            PortMatch::Any | PortMatch::Icmp => None,
            PortMatch::Range(transport, range) => Some(Self { transport, range }),
        }
    }

    /// As a port match of a rule.
    pub(super) const fn wanted(self) -> PortMatch {
        PortMatch::Range(self.transport, self.range)
    }

    /// Whether a rule matches all packets with these ports.
    pub(super) fn imply(self, port: PortMatch) -> bool {
        has_all(port, self.wanted())
    }

    /// Whether a rule may match a packet with these ports.
    fn may_be(self, port: PortMatch) -> bool {
        match port {
            PortMatch::Any => true,
            PortMatch::Icmp => false,
            PortMatch::Range(transport, range) => {
                let is_apart = range.last() < self.range.first() || self.range.last() < range.first();
                transport == self.transport && !is_apart
            }
        }
    }

    /// Whether a rule matches only packets with these ports.
    fn hold(self, port: PortMatch) -> bool {
        has_all(self.wanted(), port)
    }
}

/// Whether the first matches only packets that the second matches.
pub(super) fn has_all(wide: PortMatch, narrow: PortMatch) -> bool {
    match (wide, narrow) {
        (PortMatch::Any, _) | (PortMatch::Icmp, PortMatch::Icmp) => true,
        (PortMatch::Range(of, wide), PortMatch::Range(transport, narrow)) => {
            of == transport && wide.first() <= narrow.first() && narrow.last() <= wide.last()
        }
        (PortMatch::Icmp, PortMatch::Any | PortMatch::Range(..))
        | (PortMatch::Range(..), PortMatch::Any | PortMatch::Icmp) => false,
    }
}

impl<Rule: Copy> PortSplit<Rule> {
    /// Splits a list by at most four ports: those of the most rules.
    pub(super) fn of(rules: &[Rule], port: impl Fn(Rule) -> PortMatch) -> Self {
        let asked: Vec<PortMatch> = rules.iter().map(|rule| port(*rule)).collect();
        let ports = frequent(&asked);
        let each = |ports: &PortGroup| {
            let rules = rules.iter().filter(|rule| ports.may_be(port(**rule)));
            (*ports, rules.copied().collect())
        };
        let is_left = |rule: &&Rule| !ports.iter().any(|ports| ports.hold(port(**rule)));
        Self {
            rest: rules.iter().filter(is_left).copied().collect(),
            alike: ports.iter().map(each).collect(),
        }
    }
}

/// The ports of the most rules, in order, if more rules have them than would be in both chains.
fn frequent(asked: &[PortMatch]) -> Vec<PortGroup> {
    let mut sorted: Vec<PortGroup> = asked.iter().filter_map(|port| PortGroup::of(*port)).collect();
    sorted.sort_unstable();
    let gains = |ports: PortGroup, alike: usize| {
        let both = asked.iter().filter(|port| ports.may_be(**port)).count() - alike;
        alike > FEW && alike > both
    };
    let mut found: Vec<(usize, PortGroup)> = sorted
        .chunk_by(|one, other| one == other)
        .map(|alike| (alike.len(), alike[0]))
        .filter(|(alike, ports)| gains(*ports, *alike))
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found.into_iter().take(MOST).map(|(_, ports)| ports).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a packet has: none of these protocols, ICMP, or a protocol with a port.
    #[derive(Clone, Copy, Debug)]
    enum Packet {
        Other,
        Icmp,
        To(Transport, u16),
    }

    fn is_asked(port: PortMatch, packet: Packet) -> bool {
        match (port, packet) {
            (PortMatch::Any, _) | (PortMatch::Icmp, Packet::Icmp) => true,
            (PortMatch::Range(transport, range), Packet::To(of, port)) => {
                transport == of && range.contains(port)
            }
            (PortMatch::Icmp | PortMatch::Range(..), _) => false,
        }
    }

    /// The rules that match a packet in the chains, in the order in which it meets them.
    fn walk(split: &PortSplit<(usize, PortMatch)>, packet: Packet) -> Vec<usize> {
        let alike = split
            .alike
            .iter()
            .find(|(ports, _)| is_asked(ports.wanted(), packet));
        let matches = |rule: &&(usize, PortMatch)| match alike {
            Some((ports, _)) if ports.imply(rule.1) => true,
            Some(_) | None => is_asked(rule.1, packet),
        };
        let chain = alike.map_or(&split.rest, |(_, rules)| rules);
        chain.iter().filter(matches).map(|(place, _)| *place).collect()
    }

    fn range(first: u16, last: u16) -> PortRange {
        PortRange::new(first, last).unwrap()
    }

    fn transport() -> impl Strategy<Value = Transport> {
        prop::sample::select(vec![Transport::Tcp, Transport::Udp, Transport::Sctp])
    }

    /// Few ports, so that many rules are alike, and ranges lie in others.
    fn port() -> impl Strategy<Value = PortMatch> {
        prop_oneof![
            1 => Just(PortMatch::Any),
            1 => Just(PortMatch::Icmp),
            6 => (transport(), 1u16..5).prop_map(|(of, port)| PortMatch::Range(of, range(port, port))),
            3 => (transport(), 1u16..4, 0u16..3).prop_map(|(of, first, more)| PortMatch::Range(of, range(first, first + more))),
        ]
    }

    fn packets() -> Vec<Packet> {
        let transports = [Transport::Tcp, Transport::Udp, Transport::Sctp].into_iter();
        let to = transports.flat_map(|of| (1..8).map(move |port| Packet::To(of, port)));
        [Packet::Other, Packet::Icmp].into_iter().chain(to).collect()
    }

    proptest! {
        #[test]
        fn every_packet_meets_the_rules_that_match_it_in_their_order(ports in prop::collection::vec(port(), 0..60)) {
            let rules: Vec<(usize, PortMatch)> = ports.iter().copied().enumerate().collect();
            let split = PortSplit::of(&rules, |(_, port)| port);
            for packet in packets() {
                let expected: Vec<usize> =
                    rules.iter().filter(|(_, port)| is_asked(*port, packet)).map(|(place, _)| *place).collect();
                prop_assert_eq!(walk(&split, packet), expected, "{:?}", packet);
            }
        }
    }

    #[test]
    fn only_ports_of_many_rules_get_a_chain() {
        let web = PortMatch::Range(Transport::Tcp, range(443, 443));
        let names = PortMatch::Range(Transport::Udp, range(53, 53));
        let rules: Vec<(usize, PortMatch)> = [vec![web; 4], vec![names; 3], vec![PortMatch::Any; 2]]
            .concat()
            .into_iter()
            .enumerate()
            .collect();
        let split = PortSplit::of(&rules, |(_, port)| port);
        let places = |rules: &[(usize, PortMatch)]| rules.iter().map(|(place, _)| *place).collect::<Vec<_>>();
        assert_eq!(split.alike.len(), 1);
        assert_eq!(split.alike[0].0.wanted(), web);
        assert_eq!(places(&split.alike[0].1), [0, 1, 2, 3, 7, 8]);
        assert_eq!(places(&split.rest), [4, 5, 6, 7, 8]);
    }
}

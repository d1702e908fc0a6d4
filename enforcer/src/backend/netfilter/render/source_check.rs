//! The source check: what enters by a pod's interface has an address of that pod as its source, or it is dropped.
//!
//! It is in the table `raw`, before conntrack: a packet with a spoofed source opens no connection, changes the state of none, is a
//! reply to none and gets no mark.
//!
//! ```text
//!  PREROUTING ─ EGRET-SOURCE ─ -s 10.0.0.0/24 ▸ goto EGRET-SOURCE-BY ─ -s 10.0.0.0/29 ▸ goto EGRET-SRC-… ─ -s 10.0.0.2 -i veth1 ▸ return
//!                            │                                       └ goto EGRET-SOURCE-ASK             └ goto EGRET-SOURCE-ASK
//!                            └ -i veth+ ▸ goto EGRET-SOURCE-ASK ─ the node's route to the source leads here ▸ return
//!                                                               ├ -i veth1 ▸ goto EGRET-SPOOFED ─ neighbour discovery ▸ return
//!                                                               │                               └ drop
//!                                                               └ a pod that nobody knows ▸ kept out of conntrack
//! ```
//!
//! A packet from an interface where unknown pods are closed, with a source that the node does not route there, is not tracked: it has
//! no connection, so the filter table judges it as an unknown pod's.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use egret_kernel::Family;
use egret_kernel::Transport;
use egret_kernel::iptables::{ChainName, InterfacePattern, Match, Protocol, Rule as Line, Target};
use egret_policies::rules::Direction;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::chains::Chains;
use super::dispatch::by_address::{AddressRule, ChainNames, grouped};
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::denials::{Cause, Denial, Outcome};
use crate::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use crate::backend::netfilter::names;
use crate::backend::netfilter::render::nflog;
use crate::backend::{Action, Decider};

/// Above this number, addresses are compared in groups by network.
const FEW: usize = 16;

/// The chains of the table `raw`; none without interfaces of pods and without closed interfaces.
#[must_use]
pub fn chains(
    pods: &[PodAttachment],
    closed: &ClosedInterfaces,
    telling: Option<NflogSettings>,
    family: Family,
) -> Chains {
    let mut chains = BTreeMap::new();
    let pods: Vec<&PodAttachment> = pods.iter().chain(&closed.pods).collect();
    let interfaces = interfaces(&pods, closed);
    if interfaces.is_empty() {
        return Chains::new();
    }
    let own = own(&pods, family);
    let hints = (own.len() > FEW).then(|| by_network(own.clone())).flatten();
    let mut root = match hints {
        Some((lead, hints)) => {
            chains.extend(hints);
            vec![lead]
        }
        None => own.into_iter().map(|(_, line)| line).collect(),
    };
    root.extend(interfaces.into_iter().map(|pattern| ask().input(pattern)));
    chains.insert(names::source(), root);
    chains.insert(names::source_interfaces(), by_interface(&pods, closed, family));
    chains.insert(names::spoofed(), spoofed(telling, family));
    let texts = |lines: Vec<Line>| lines.iter().map(Line::to_string).collect();
    chains
        .into_iter()
        .map(|(name, lines)| (name.as_str().to_owned(), texts(lines)))
        .collect()
}

fn ask() -> Line {
    Line::to(Target::Goto(names::source_interfaces()))
}

/// Each address of a pod with the line that lets it pass on the pod's interface.
fn own(pods: &[&PodAttachment], family: Family) -> Vec<AddressRule> {
    let of_pod = |pod: &&PodAttachment| {
        let lines = |host: IpNet| {
            let line = move |port: &PodInterface| {
                let line = Line::to(Target::Return).source(host);
                (host, through(line, port))
            };
            pod.interfaces.iter().map(line).collect::<Vec<_>>()
        };
        pod.hosts(family).flat_map(lines).collect::<Vec<_>>()
    };
    pods.iter().flat_map(of_pod).collect()
}

fn through(line: Line, port: &PodInterface) -> Line {
    match port {
        PodInterface::Own(name) | PodInterface::Shared(name) => line.input(name.clone()),
        PodInterface::BridgePort { bridge, port } => {
            line.input(bridge.clone()).when(Match::BridgePortIn(port.clone()))
        }
    }
}

fn by_network(own: Vec<AddressRule>) -> Option<(Line, BTreeMap<ChainName, Vec<Line>>)> {
    let names = ChainNames {
        root: names::source_lookup(),
        of_network: names::source_lookup_of,
    };
    let (all, chains) = grouped(Direction::Egress, own, &names, &ask())?;
    let lead = Line::to(Target::Goto(names::source_lookup())).source(all);
    Some((lead, chains))
}

/// Packets with a source that is in no pod's status, by input interface. The node has routes to further addresses of a pod: those of an
/// interface that is not in its status, and those of a pod that is unknown yet. On a bridge they lead to every port, so there the port
/// decides where it is visible.
fn by_interface(pods: &[&PodAttachment], closed: &ClosedInterfaces, family: Family) -> Vec<Line> {
    let spoofed = || Line::to(Target::Goto(names::spoofed()));
    let ports = || {
        pods.iter()
            .flat_map(|pod| pod.interfaces.iter().map(move |port| (pod, port)))
    };
    let on_bridges = ports().flat_map(|(pod, port)| match port {
        PodInterface::BridgePort { bridge, .. } => {
            let others = pod
                .hosts(family)
                .map(|host| spoofed().source(host).input(bridge.clone()));
            others.chain([through(spoofed(), port)]).collect()
        }
        PodInterface::Own(_) | PodInterface::Shared(_) => Vec::new(),
    });
    let routed = Line::to(Target::Return).when(Match::FromItsRoute);
    let routed = match family {
        Family::V4 => routed,
        Family::V6 => routed.source_other_than(LINK_LOCAL.into()),
    };
    let alone = ports().filter_map(|(_, port)| match port {
        PodInterface::Own(_) => Some(through(spoofed(), port)),
        // On a bridge the address alone identifies the pod.
        PodInterface::BridgePort { .. } | PodInterface::Shared(_) => None,
    });
    let excluded = closed.excluded.iter();
    let excluded = excluded.map(|name| Line::to(Target::Return).input(name.clone()));
    let unknown = closed.interfaces.iter();
    let unknown = unknown.map(|pattern| Line::to(Target::NoTrack).input(pattern.clone()));
    on_bridges
        .chain([routed])
        .chain(alone)
        .chain(excluded)
        .chain(unknown)
        .collect()
}

const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// Drops packets with a spoofed source. A pod sends on its link before it has an address (RFC 4862, section 5.4: from
/// the unspecified address; RFC 2131, section 4.1: from 0.0.0.0) and from its link-local one; it is no router.
fn spoofed(telling: Option<NflogSettings>, family: Family) -> Vec<Line> {
    let own = || Line::to(Target::Return);
    let exceptions = match family {
        Family::V4 => vec![
            own()
                .source(Ipv4Net::new_assert([0, 0, 0, 0].into(), 32).into())
                .destination(Ipv4Net::new_assert([255; 4].into(), 32).into())
                .protocol(Protocol::to_ports(Transport::Udp, 67..=67)),
        ],
        Family::V6 => {
            let unspecified = Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128);
            let router = |kind| end().protocol(Protocol::IcmpV6Type(kind));
            vec![
                router(ROUTER_ADVERTISEMENT),
                router(REDIRECT),
                own().source(LINK_LOCAL.into()),
                own().source(unspecified.into()).protocol(Protocol::IcmpV6),
            ]
        }
    };
    let tell = telling.map(|telling| {
        let denial = Denial {
            outcome: Outcome::Denied,
            cause: Cause::SpoofedSource,
            direction: Direction::Egress,
        };
        nflog::tell(denial.prefix(), telling)
    });
    exceptions.into_iter().chain(tell).chain([end()]).collect()
}

/// RFC 4861, section 4.2.
const ROUTER_ADVERTISEMENT: u8 = 134;
/// RFC 4861, section 4.5.
const REDIRECT: u8 = 137;

fn end() -> Line {
    let label = Label::of_no_policy(Decider::SpoofedSource, Action::Deny, Direction::Egress);
    Line::to(Target::Drop).comment(&label.to_string())
}

/// A few patterns that match all checked interfaces: other packets need one comparison.
fn interfaces(pods: &[&PodAttachment], closed: &ClosedInterfaces) -> Vec<InterfacePattern> {
    let ports = pods.iter().flat_map(|pod| &pod.interfaces);
    let names = ports.map(|port| match port {
        PodInterface::Own(name)
        | PodInterface::Shared(name)
        | PodInterface::BridgePort { bridge: name, .. } => name.as_str(),
    });
    let mut names: Vec<&str> = names
        .chain(closed.interfaces.iter().map(InterfacePattern::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    let groups = names.chunk_by(|one, other| beginning(one) == beginning(other));
    groups.map(common).collect()
}

/// Names with a common prefix of this length share a pattern.
fn beginning(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

fn common(names: &[&str]) -> InterfacePattern {
    let valid = "a beginning of names of interfaces is one";
    let ([first, .., last] | [first @ last]) = names else {
        unreachable!("a group has a name");
    };
    if first == last {
        return InterfacePattern::new(*first).expect(valid);
    }
    let stem = |name: &str| name.trim_end_matches('+').to_owned();
    let (first, last) = (stem(first), stem(last));
    let alike = first
        .bytes()
        .zip(last.bytes())
        .take_while(|(one, other)| one == other);
    InterfacePattern::new(format!("{}+", &first[..alike.count()])).expect(valid)
}

#[cfg(test)]
mod tests {
    use egret_kernel::iptables::InterfaceName;

    use super::*;

    fn name(name: &str) -> InterfaceName {
        InterfaceName::new(name).unwrap()
    }

    #[test]
    fn interface_names_with_a_common_prefix_share_a_rule_and_none_is_left_out() {
        let rows: [(&[&str], &str); 5] = [
            (&["veth1"], "veth1"),
            (&["veth1", "veth12"], "veth1+"),
            (&["cali0", "cali1", "cali2"], "cali+"),
            (&["veth+", "veth1"], "veth+"),
            (&["lxc+"], "lxc+"),
        ];
        for (names, expected) in rows {
            let pattern = common(names);
            assert_eq!(pattern.as_str(), expected);
            for one in names.iter().filter(|name| !name.ends_with('+')) {
                assert!(pattern.matches(name(one).as_str()));
            }
        }
        assert_ne!(beginning("cali1"), beginning("veth1"));
        assert_eq!(beginning("lo"), "lo");
    }
}

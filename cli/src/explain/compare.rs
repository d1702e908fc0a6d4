//! A connection against one rule: which peer and which port match, or why none does.

use egret_policies::model::{Direction, Peer, Peers, Port, Ports, Rule};
use egret_policies::simulator::Protocol;
use egret_shared::net::{PortRange, Transport};

use crate::cluster::PodMember;

use super::compiled::holding;
use super::peer::{compare_peer, select};
use super::report::MatchResult;
use super::viewpoint::{Viewpoint, protocol_words};

/// Both halves of a rule: it matches where both do.
pub(super) struct RuleComparison {
    pub(super) peer: MatchResult,
    pub(super) port: MatchResult,
}

/// Compares a connection with a rule.
pub(super) fn compare(view: &Viewpoint<'_>, policy: &str, rule: &Rule) -> RuleComparison {
    match &rule.peers {
        // Policies are read as they are about one server name: a rule about others has no peer. Neither half is a near miss.
        Peers::OneOf(peers)
            if peers.is_empty() && view.asked.manifests.asks_for_server_name(policy, rule.index) =>
        {
            let other = || MatchResult::failed("the rule is about other server names");
            RuleComparison {
                peer: other(),
                port: other(),
            }
        }
        Peers::Any => RuleComparison {
            peer: MatchResult::passed("any peer"),
            port: compare_ports(view, &rule.ports, &view.peers()),
        },
        Peers::OneOf(peers) => compare_one_of(view, peers, &rule.ports, || holding(view, policy, rule.index)),
    }
}

/// A named port is looked for at the pods that the rule selects: where only a network, a node or a name
/// matches, it matches nothing.
fn compare_one_of(
    view: &Viewpoint<'_>,
    peers: &[Peer],
    ports: &Ports,
    holding: impl Fn() -> Vec<String>,
) -> RuleComparison {
    let peers = merge_networks(peers);
    let tests: Vec<(&Peer, MatchResult)> = peers
        .iter()
        .map(|peer| (peer, compare_peer(view, peer, &holding)))
        .collect();
    let is_pods = |peer: &Peer| match peer {
        Peer::Pods { .. } => true,
        Peer::Networks(_)
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. }
        | Peer::Names(_) => false,
    };
    let has_match = tests.iter().any(|(_, test)| test.matches);
    let matches_as_pod = tests.iter().any(|(peer, test)| test.matches && is_pods(peer));
    let is_meant = |pod: &&PodMember| {
        let selects = |peer: &Peer| match peer {
            Peer::Pods { namespaces, pods } => select(view, pod, namespaces, pods).is_ok(),
            _ => false,
        };
        if matches_as_pod {
            peers.iter().any(selects)
        } else {
            !has_match
        }
    };
    let pods: Vec<&PodMember> = view.peers().into_iter().filter(is_meant).collect();
    RuleComparison {
        peer: MatchResult::any_of(
            tests.into_iter().map(|(_, test)| test),
            "the rule has no peer that could match",
        ),
        port: behind_service(view, peers.contains(&Peer::ApiServer), &holding)
            .unwrap_or_else(|| compare_ports(view, ports, &pods)),
    }
}

/// A port of the API server's endpoints that is behind a port of its Service that the rule names.
fn behind_service(
    view: &Viewpoint<'_>,
    names_api_server: bool,
    holding: impl Fn() -> Vec<String>,
) -> Option<MatchResult> {
    let sets = if names_api_server { holding() } else { Vec::new() };
    let set = sets
        .into_iter()
        .find(|set| set.starts_with("the API server behind "))?;
    let asked = protocol_words(view.protocol);
    Some(MatchResult::passed(format!("{asked} is {set}")))
}

/// All networks of a rule as one: a NetworkPolicy has a peer for each.
fn merge_networks(peers: &[Peer]) -> Vec<Peer> {
    let mut networks = Vec::new();
    let mut merged = Vec::new();
    for peer in peers {
        match peer {
            Peer::Networks(list) => networks.extend(list.iter().copied()),
            Peer::Pods { .. }
            | Peer::Nodes(_)
            | Peer::NodeAddresses(_)
            | Peer::External(_)
            | Peer::ApiServer
            | Peer::Services { .. }
            | Peer::Names(_) => merged.push(peer.clone()),
        }
    }
    let has_networks = merged.len() < peers.len();
    merged.extend(has_networks.then_some(Peer::Networks(networks)));
    merged
}

fn compare_ports(view: &Viewpoint<'_>, ports: &Ports, peers: &[&PodMember]) -> MatchResult {
    let asked = protocol_words(view.protocol);
    let Ports::OneOf(ports) = ports else {
        return MatchResult::passed("any protocol and port");
    };
    if view.protocol == Protocol::Icmp && ports.contains(&Port::Icmp) {
        return MatchResult::passed("ICMP is the rule's");
    }
    if view.protocol == Protocol::Icmp {
        return MatchResult::failed("ICMP has no port, and the rule names ports");
    }
    let destinations = match view.direction {
        Direction::Ingress => &[view.subject],
        Direction::Egress => peers,
    };
    let offers: Vec<ServedPort> = ports
        .iter()
        .map(|port| ServedPort::of(port, destinations))
        .collect();
    if let Some(offer) = offers.iter().find(|offer| offer.has(view.protocol)) {
        return MatchResult::passed(if offer.words == asked {
            format!("{asked} is the rule's")
        } else {
            format!("{asked} is in {}", offer.words)
        });
    }
    let words: Vec<&str> = offers.iter().map(|offer| offer.words.as_str()).collect();
    MatchResult::failed(match words.as_slice() {
        [] => "the rule has no port that could match".to_owned(),
        [only] => format!("{asked} is not {only}"),
        several => format!("{asked} is none of {}", several.join(", ")),
    })
}

/// What a port of a rule comes to at the destination.
struct ServedPort {
    words: String,
    ranges: Vec<(Transport, PortRange)>,
}

impl ServedPort {
    fn of(port: &Port, destinations: &[&PodMember]) -> Self {
        match port {
            Port::Range(transport, range) => Self {
                words: format!("{transport}/{range}"),
                ranges: vec![(*transport, *range)],
            },
            Port::Icmp => Self {
                words: "ICMP".to_owned(),
                ranges: Vec::new(),
            },
            Port::Named { name, transport } => Self::of_name(name, *transport, destinations),
        }
    }

    /// Of several pods in whose place dnsd is asked, the first that has the port.
    fn of_name(name: &str, transport: Option<Transport>, destinations: &[&PodMember]) -> Self {
        let offers = destinations
            .iter()
            .map(|destination| Self::at(name, transport, destination));
        let best = offers.reduce(|one, other| if one.ranges.is_empty() { other } else { one });
        best.unwrap_or_else(|| Self {
            words: format!("port {name:?} (which only a pod that the rule selects can have)"),
            ranges: Vec::new(),
        })
    }

    fn at(name: &str, transport: Option<Transport>, destination: &PodMember) -> Self {
        let ranges: Vec<_> = destination
            .pod
            .ports
            .iter()
            .filter(|port| {
                port.name.as_ref() == name && transport.is_none_or(|asked| asked == port.transport)
            })
            .filter_map(|port| {
                let range = PortRange::single(port.number.get())?;
                Some((port.transport, range))
            })
            .collect();
        let served: Vec<String> = ranges
            .iter()
            .map(|(transport, range)| format!("{transport}/{range}"))
            .collect();
        let at = &destination.pod.key;
        let words = if served.is_empty() {
            format!("port {name:?} (which {at} does not have)")
        } else {
            format!("port {name:?} ({} at {at})", served.join(", "))
        };
        Self { words, ranges }
    }

    fn has(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Port(transport, port) => self
                .ranges
                .iter()
                .any(|(of, range)| *of == transport && range.contains(port)),
            Protocol::Icmp | Protocol::Other => false,
        }
    }
}

//! Every connection of a pod that rules can tell from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::model::cluster::{Entity, Pod};
use egret_policies::model::{Direction, Effect, Labels, Peer, Peers, Policy, Port, Ports, Rule, Tier};
use egret_policies::simulator::{Connection, Protocol};
use egret_shared::name::DnsName;
use egret_shared::net::{Family, IpNet, Transport};

use crate::reach::addresses::{address_of, number_of, partition};
use crate::verdict::selection::networks;

use super::asked::{peers, place, rules, selected, selectors};
use super::scene::Scene;

/// What a pod was told: an address of nobody.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) name: DnsName,
    pub(super) address: IpAddr,
}

/// Somebody at the other end.
pub(super) struct Other {
    address: IpAddr,
    is_own_node: bool,
    pub(super) who: String,
    /// What has the address.
    pub(super) entities: Vec<Entity>,
    /// The pod that it is, with the labels of its namespace.
    pod: Option<(Pod, Labels)>,
}

/// All that is asked about a pod.
pub(super) struct Points<'a> {
    subject: &'a Pod,
    pub(super) others: Vec<Other>,
    pub(super) told: Vec<Told>,
    policies: &'a [&'a Policy],
    scene: &'a Scene,
    directions: Vec<Direction>,
}

impl<'a> Points<'a> {
    pub(super) fn new(scene: &'a Scene, subject: &'a Pod, policies: &'a [&'a Policy]) -> Self {
        let told = told(scene, policies);
        Self {
            others: others(scene, subject, policies, &told),
            policies,
            scene,
            directions: directions(policies),
            subject,
            told,
        }
    }

    /// All connections with somebody. What the own node opens is never judged.
    pub(super) fn connections(&self, other: &Other) -> Vec<Connection> {
        let is_judged = |direction: &&Direction| !other.is_own_node || **direction == Direction::Egress;
        let protocols = self.protocols(other);
        let mut connections = Vec::new();
        for direction in self.directions.iter().filter(is_judged) {
            connections.extend(protocols.iter().map(|protocol| Connection {
                pod: self.subject.key.clone(),
                direction: *direction,
                peer: other.address,
                peer_is_own_node: other.is_own_node,
                protocol: *protocol,
            }));
        }
        connections
    }

    /// Rules that cannot be about somebody do not tell ports apart for him either.
    fn protocols(&self, other: &Other) -> Vec<Protocol> {
        let rules = self.policies.iter().flat_map(|policy| rules(policy));
        // What is told of places may make somebody of an address.
        let rules = rules.filter(|rule| !self.scene.common.is_empty() || other.may_match(rule));
        protocols(rules, &self.scene.pods)
    }
}

impl Other {
    fn may_match(&self, rule: &Rule) -> bool {
        let Peers::OneOf(peers) = &rule.peers else {
            return true;
        };
        peers.iter().any(|peer| match peer {
            Peer::Pods { namespaces, pods } => self.pod.as_ref().is_some_and(|(pod, namespace)| {
                selected(&BTreeSet::from([(namespaces, pods)]), namespace, &pod.labels).contains(&true)
            }),
            Peer::Networks(networks) => networks.iter().any(|network| network.contains(&self.address)),
            Peer::Nodes(_)
            | Peer::NodeAddresses(_)
            | Peer::External(_)
            | Peer::ApiServer
            | Peer::Names(_) => true,
        })
    }
}

fn others(scene: &Scene, subject: &Pod, policies: &[&Policy], told: &[Told]) -> Vec<Other> {
    let mut others = Vec::new();
    let pairs = selectors(policies.iter().copied());
    let networks: BTreeSet<IpNet> = policies.iter().flat_map(|policy| networks(policy)).collect();
    let mut seen = BTreeSet::new();
    for pod in scene.pods.iter().filter(|pod| pod.key != subject.key) {
        for address in &pod.addresses {
            let selected = selected(&pairs, &scene.labels(pod), &pod.labels);
            // What is told of places may depend on the pod.
            let key = (!scene.common.is_empty()).then_some(&pod.key);
            if !seen.insert((selected, &pod.ports, place(*address, &networks), key)) {
                continue;
            }
            others.push(Other {
                entities: scene.pod(pod),
                pod: Some((pod.clone(), scene.labels(pod))),
                ..Other::new(*address, pod.key.to_string())
            });
        }
    }
    for (address, at) in &scene.nodes {
        let names: Vec<&str> = at.names.iter().map(AsRef::as_ref).collect();
        let who = format!("node {} ({address})", names.join(" and "));
        others.extend([false, true].map(|is_own_node| Other {
            is_own_node,
            entities: at.entities.clone(),
            ..Other::new(*address, who.clone())
        }));
    }
    for address in outside(scene, policies) {
        others.push(Other::new(address, address.to_string()));
        // What the own node has besides the addresses in its status, a bridge say.
        others.push(Other {
            is_own_node: true,
            ..Other::new(address, format!("its own node at {address}"))
        });
    }
    for address in &scene.settings.dns.addresses {
        others.push(Other::new(*address, format!("dnsd ({address})")));
    }
    for Told { name, address } in told {
        others.push(Other::new(*address, format!("{name} ({address})")));
    }
    others
}

/// An address of nobody between any two borders of networks.
fn outside(scene: &Scene, policies: &[&Policy]) -> Vec<IpAddr> {
    let networks: BTreeSet<IpNet> = policies.iter().flat_map(|policy| networks(policy)).collect();
    let of_family = |family| {
        let ranges = partition(family, &networks).into_iter();
        let free = ranges.filter_map(|(first, last)| {
            let numbers = [
                first,
                last,
                first.midpoint(last),
                first.saturating_add(1).min(last),
            ];
            let mut addresses = numbers.map(|number| address_of(family, number)).into_iter();
            addresses.find(|address| is_nobodys(scene, address))
        });
        free.collect::<Vec<_>>()
    };
    Family::ALL.into_iter().flat_map(of_family).collect()
}

fn is_nobodys(scene: &Scene, address: &IpAddr) -> bool {
    !scene.of_nodes.contains(address) && scene.pods.iter().all(|pod| !pod.addresses.contains(address))
}

impl Other {
    const fn new(address: IpAddr, who: String) -> Self {
        Self {
            address,
            is_own_node: false,
            who,
            entities: Vec::new(),
            pod: None,
        }
    }
}

/// The directions of which the policies that are converted, or others of their tiers, speak.
fn directions(policies: &[&Policy]) -> Vec<Direction> {
    let speaks = |policy: &Policy, direction| {
        matches!(policy.rank.tier, Tier::Admin | Tier::Baseline)
            && !matches!(policy.effect(direction), Effect::None)
    };
    let mut directions = Direction::ALL.to_vec();
    directions.retain(|direction| policies.iter().any(|policy| speaks(policy, *direction)));
    directions
}

/// A port of each protocol between any two borders of the ports in rules, and protocols without ports.
fn protocols<'r>(rules: impl Iterator<Item = &'r Rule>, pods: &[Pod]) -> Vec<Protocol> {
    let mut starts: BTreeMap<Transport, BTreeSet<u16>> = Transport::ALL
        .into_iter()
        .map(|transport| (transport, BTreeSet::from([1])))
        .collect();
    let mut cut = |transport, first: u16, last: u16| {
        let starts = starts.entry(transport).or_default();
        starts.insert(first);
        starts.extend(last.checked_add(1));
    };
    for rule in rules {
        let Ports::OneOf(ports) = &rule.ports else {
            continue;
        };
        for port in ports {
            match port {
                Port::Range(transport, range) => cut(*transport, range.first(), range.last()),
                Port::Icmp => {}
                Port::Named { name, .. } => {
                    let served = pods.iter().flat_map(|pod| &pod.ports);
                    for port in served.filter(|port| port.name == *name) {
                        cut(port.transport, port.number.get(), port.number.get());
                    }
                }
            }
        }
    }
    let ports = starts.into_iter().flat_map(|(transport, starts)| {
        starts
            .into_iter()
            .map(move |port| Protocol::Port(transport, port))
    });
    ports.chain([Protocol::Icmp, Protocol::Other]).collect()
}

/// For each pattern a name that matches, told with an address of its own in each family.
fn told(scene: &Scene, policies: &[&Policy]) -> Vec<Told> {
    let mut names: BTreeSet<DnsName> = BTreeSet::new();
    for peer in policies.iter().flat_map(|policy| rules(policy)).flat_map(peers) {
        if let Peer::Names(patterns) = peer {
            let name = |pattern: String| pattern.replacen('*', "egret-made-up", 1).parse();
            names.extend(
                patterns
                    .iter()
                    .filter_map(|pattern| name(pattern.to_string()).ok()),
            );
        }
    }
    // Addresses for documentation (RFC 5737 and RFC 3849), and what comes behind them.
    let starts = [(Family::V4, "203.0.113.1"), (Family::V6, "2001:db8::1")];
    let addresses = starts.map(|(family, start)| {
        let start = number_of(start.parse().expect("an address"));
        let all = (0..).map(move |step| address_of(family, start + step));
        all.filter(|address| is_nobodys(scene, address))
            .take(names.len())
            .collect::<Vec<_>>()
    });
    addresses
        .iter()
        .flat_map(|of_family| names.iter().cloned().zip(of_family.iter().copied()))
        .map(|(name, address)| Told { name, address })
        .collect()
}

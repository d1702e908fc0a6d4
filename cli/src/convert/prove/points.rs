//! Every connection of a pod that rules can tell from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::memory::{Connection, Protocol};
use egret_policies::model::cluster::{Entity, Pod};
use egret_policies::model::{Direction, Peer, Policy, Port, Ports};
use egret_shared::name::DnsName;
use egret_shared::net::{Family, IpNet, Transport};

use crate::reach::addresses::{address_of, number_of, partition};
use crate::verdict::selection::networks;

use super::classes::{peers, rules};
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
}

/// All that is asked about a pod.
pub(super) struct Points<'a> {
    subject: &'a Pod,
    pub(super) others: Vec<Other>,
    pub(super) told: Vec<Told>,
    protocols: Vec<Protocol>,
}

impl<'a> Points<'a> {
    pub(super) fn new(scene: &Scene, subject: &'a Pod, policies: &[&Policy]) -> Self {
        let told = told(scene, policies);
        Self {
            others: others(scene, subject, policies, &told),
            protocols: protocols(policies, &scene.pods),
            subject,
            told,
        }
    }

    /// All connections with somebody. What the own node opens is never judged.
    pub(super) fn connections(&self, other: &Other) -> impl Iterator<Item = Connection> {
        let directions: &[Direction] = if other.is_own_node {
            &[Direction::Egress]
        } else {
            &Direction::ALL
        };
        let (address, is_own_node) = (other.address, other.is_own_node);
        directions.iter().flat_map(move |direction| {
            self.protocols.iter().map(move |protocol| Connection {
                pod: self.subject.key.clone(),
                direction: *direction,
                peer: address,
                peer_is_own_node: is_own_node,
                protocol: *protocol,
            })
        })
    }
}

fn others(scene: &Scene, subject: &Pod, policies: &[&Policy], told: &[Told]) -> Vec<Other> {
    let mut others = Vec::new();
    for pod in scene.pods.iter().filter(|pod| pod.key != subject.key) {
        for address in &pod.addresses {
            others.push(Other {
                entities: scene.pod(pod),
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
        }
    }
}

/// A port of each protocol between any two borders of the ports in rules, and protocols without ports.
fn protocols(policies: &[&Policy], pods: &[Pod]) -> Vec<Protocol> {
    let mut starts: BTreeMap<Transport, BTreeSet<u16>> = Transport::ALL
        .into_iter()
        .map(|transport| (transport, BTreeSet::from([1])))
        .collect();
    let mut cut = |transport, first: u16, last: u16| {
        let starts = starts.entry(transport).or_default();
        starts.insert(first);
        starts.extend(last.checked_add(1));
    };
    for rule in policies.iter().flat_map(|policy| rules(policy)) {
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

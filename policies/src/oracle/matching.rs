//! Whether a rule matches.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::net::{IpNet, Transport};

use crate::model::cluster::Pod;
use crate::model::{Direction, Peer, Peers, Port, Ports, Rule, Selector};
use crate::simulator::Protocol;

use super::Question;
use super::cluster::selector_holds;

impl Question<'_> {
    pub(super) fn matches(&self, subject: &Pod, rule: &Rule) -> bool {
        match &rule.peers {
            Peers::Any => {
                let pods = self.peer_pods();
                pods.iter().any(|pod| self.port_matches(subject, rule, Some(pod)))
                    || self.port_matches(subject, rule, None)
            }
            Peers::OneOf(peers) => peers.iter().any(|peer| self.peer_matches(subject, rule, peer)),
        }
    }

    fn peer_matches(&self, subject: &Pod, rule: &Rule, peer: &Peer) -> bool {
        let address = self.connection.peer.to_canonical();
        match peer {
            Peer::Pods { namespaces, pods } => self.peer_pods().into_iter().any(|other| {
                self.world.selects(namespaces, pods, other) && self.port_matches(subject, rule, Some(other))
            }),
            Peer::Networks(networks) => {
                networks.iter().any(|network| network_has(network, address))
                    && self.port_matches(subject, rule, None)
            }
            Peer::Nodes(selector) => {
                let is_node = self.world.nodes().any(|node| {
                    selector_holds(selector, &node.labels)
                        && node.addresses.iter().any(|one| one.to_canonical() == address)
                });
                is_node && self.port_matches(subject, rule, None)
            }
            Peer::NodeAddresses(selector) => {
                (self.world.is_at_node(selector, address) || self.is_selected_own_node(subject, selector))
                    && self.port_matches(subject, rule, None)
            }
            Peer::External(networks) => {
                networks.iter().any(|network| network_has(network, address))
                    && !self.world.is_of_cluster(address)
                    && self.port_matches(subject, rule, None)
            }
            Peer::ApiServer => {
                let protocol = self.connection.protocol;
                (self.world.is_at_api_server(address, protocol) && self.port_matches(subject, rule, None))
                    || self.world.is_behind_api_server(address, protocol, &rule.ports)
            }
            Peer::Services { namespace, name } => {
                self.world
                    .is_of_service(namespace.as_deref(), name.as_deref(), address)
                    && self.port_matches(subject, rule, None)
            }
            Peer::Names(patterns) => {
                let is_told = self.world.records.iter().any(|told| {
                    told.pod == subject.key
                        && told.address == address
                        && (told.until > self.now || self.is_open)
                        && patterns.iter().any(|pattern| name_fits(pattern, &told.name))
                });
                is_told
                    && !self.world.is_closed_to_names(subject, address)
                    && self.port_matches(subject, rule, None)
            }
        }
    }

    /// What the own node takes for its own, except for what is a pod's or a Service's: with IPVS the node
    /// takes the addresses of Services for its own.
    fn is_selected_own_node(&self, subject: &Pod, selector: &Selector) -> bool {
        let Some(name) = &subject.node else {
            return false;
        };
        self.connection.direction == Direction::Egress
            && self.connection.peer_is_own_node
            && selector_holds(selector, &self.world.node_labels(name))
            && !self.world.is_of_cluster(self.connection.peer.to_canonical())
    }

    /// The pod at the other end, and those in whose place dnsd is there.
    fn peer_pods(&self) -> Vec<&Pod> {
        let pod = self.world.pod_at(self.connection.peer.to_canonical());
        pod.into_iter().chain(self.pods_that_dnsd_stands_for()).collect()
    }

    /// `other` is the pod at the other end where the peer is one of pods.
    fn port_matches(&self, subject: &Pod, rule: &Rule, other: Option<&Pod>) -> bool {
        let Ports::OneOf(ports) = &rule.ports else {
            return true;
        };
        let Protocol::Port(transport, number) = self.connection.protocol else {
            return self.connection.protocol == Protocol::Icmp && ports.contains(&Port::Icmp);
        };
        let destination = match self.connection.direction {
            Direction::Egress => other,
            Direction::Ingress => Some(subject),
        };
        ports.iter().any(|port| match port {
            Port::Icmp => false,
            Port::Range(of, range) => *of == transport && range.first() <= number && number <= range.last(),
            Port::Named { name, transport: of } => {
                of.is_none_or(|of| of == transport)
                    && destination.is_some_and(|pod| serves(pod, name, transport, number))
            }
        })
    }
}

pub(super) fn serves(pod: &Pod, name: &Arc<str>, transport: Transport, number: u16) -> bool {
    pod.ports
        .iter()
        .any(|port| port.name == *name && port.transport == transport && port.number.get() == number)
}

pub(super) fn network_has(network: &IpNet, address: IpAddr) -> bool {
    let length = network.prefix_len();
    match (network.addr(), address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            length == 0 || (u32::from(base) ^ u32::from(address)) >> (32 - length) == 0
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            length == 0 || (u128::from(base) ^ u128::from(address)) >> (128 - length) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

fn name_fits(pattern: &NamePattern, name: &DnsName) -> bool {
    let (pattern, name) = (pattern.to_string(), name.to_string());
    match pattern.strip_prefix('*') {
        Some(suffix) => name.len() > suffix.len() && name.ends_with(suffix),
        None => name == pattern,
    }
}

//! Whether a rule matches.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::net::{IpNet, Transport};

use crate::memory::Protocol;
use crate::model::cluster::Pod;
use crate::model::{Direction, Peer, Peers, Port, Ports, Rule};

use super::Question;
use super::cluster::selector_holds;

impl Question<'_> {
    pub(super) fn matches(&self, subject: &Pod, rule: &Rule) -> bool {
        match &rule.peers {
            Peers::Any => self.port_matches(subject, rule, self.peer_pod()),
            Peers::OneOf(peers) => peers.iter().any(|peer| self.peer_matches(subject, rule, peer)),
        }
    }

    fn peer_matches(&self, subject: &Pod, rule: &Rule, peer: &Peer) -> bool {
        let address = self.connection.peer.to_canonical();
        match peer {
            Peer::Pods { namespaces, pods } => self.peer_pod().is_some_and(|other| {
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
            Peer::Names(patterns) => {
                let is_told = self.world.told.iter().any(|told| {
                    told.pod == subject.key
                        && told.address == address
                        && told.until > self.now
                        && patterns.iter().any(|pattern| name_fits(pattern, &told.name))
                });
                is_told && self.port_matches(subject, rule, None)
            }
        }
    }

    fn peer_pod(&self) -> Option<&Pod> {
        self.world.pod_at(self.connection.peer.to_canonical())
    }

    /// `other` is the pod at the other end where the peer is one of pods.
    fn port_matches(&self, subject: &Pod, rule: &Rule, other: Option<&Pod>) -> bool {
        let Ports::OneOf(ports) = &rule.ports else {
            return true;
        };
        let Protocol::Port(transport, number) = self.connection.protocol else {
            return false;
        };
        let destination = match self.connection.direction {
            Direction::Egress => other,
            Direction::Ingress => Some(subject),
        };
        ports.iter().any(|port| match port {
            Port::Range(of, range) => *of == transport && range.first() <= number && number <= range.last(),
            Port::Named { name, transport: of } => {
                of.is_none_or(|of| of == transport)
                    && destination.is_some_and(|pod| serves(pod, name, transport, number))
            }
        })
    }
}

fn serves(pod: &Pod, name: &Arc<str>, transport: Transport, number: u16) -> bool {
    pod.ports
        .iter()
        .any(|port| port.name == *name && port.transport == transport && port.number.get() == number)
}

fn network_has(network: &IpNet, address: IpAddr) -> bool {
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

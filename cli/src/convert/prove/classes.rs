//! Pods that policies cannot tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::{Entity, NamedPort, Pod};
use egret_policies::model::{Peer, Policy, Selector};
use egret_shared::net::{Family, IpNet};

use crate::verdict::cluster::Member;
use crate::verdict::manifests::Manifests;
use crate::verdict::selection::networks;

use super::asked::{Pair, is_dns, labels_of, peers, place, rules, selected, selectors};
use super::nodes::AtNode;

/// What policies ask about pods and nodes.
pub(super) struct Classes<'a> {
    manifests: &'a Manifests,
    dns: &'a DnsStandIn,
    pairs: BTreeSet<Pair<'a>>,
    of_nodes: BTreeSet<&'a Selector>,
    networks: BTreeSet<IpNet>,
}

/// What they find out about a pod.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PodClass {
    selected: Vec<bool>,
    is_dns: bool,
    ports: Vec<NamedPort>,
    addresses: BTreeSet<(Family, Vec<bool>)>,
}

/// What they find out about an address of a node.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NodeClass {
    selected: BTreeSet<Vec<bool>>,
    address: (Family, Vec<bool>),
}

impl<'a> Classes<'a> {
    pub(super) fn new(manifests: &'a Manifests, dns: &'a DnsStandIn, policies: &'a [Policy]) -> Self {
        let peers = policies.iter().flat_map(rules).flat_map(peers);
        let of_nodes = peers.filter_map(|peer| match peer {
            Peer::Nodes(selector) | Peer::NodeAddresses(selector) => Some(selector),
            Peer::Pods { .. } | Peer::Networks(_) | Peer::External(_) | Peer::ApiServer | Peer::Names(_) => {
                None
            }
        });
        Self {
            manifests,
            dns,
            pairs: selectors(policies),
            of_nodes: of_nodes.collect(),
            networks: policies.iter().flat_map(networks).collect(),
        }
    }

    /// Up to two pods of each class, and the number of pods for which they stand.
    pub(super) fn pods(&self) -> (Vec<Pod>, usize) {
        let mut classes: BTreeMap<PodClass, Vec<&Pod>> = BTreeMap::new();
        let members = self
            .manifests
            .members
            .values()
            .filter(|member| has_address(member));
        let mut standing_for = 0;
        for Member { pod, .. } in members {
            standing_for += 1;
            let labels = labels_of(self.manifests, pod.key.namespace());
            let class = PodClass {
                selected: selected(&self.pairs, &labels, &pod.labels),
                is_dns: is_dns(self.manifests, self.dns, pod),
                ports: pod.ports.clone(),
                addresses: pod
                    .addresses
                    .iter()
                    .map(|address| place(*address, &self.networks))
                    .collect(),
            };
            classes.entry(class).or_default().push(pod);
        }
        let pods = classes
            .into_values()
            .flat_map(|pods| pods.into_iter().take(2).cloned());
        (pods.collect(), standing_for)
    }

    /// One address of each class of nodes.
    pub(super) fn nodes(&self, nodes: BTreeMap<IpAddr, AtNode>) -> BTreeMap<IpAddr, AtNode> {
        let mut seen = BTreeSet::new();
        let is_new = |(address, at): &(IpAddr, AtNode)| {
            let selected = at.entities.iter().filter_map(|entity| match entity {
                Entity::Node(node) => Some(
                    self.of_nodes
                        .iter()
                        .map(|selector| selector.matches(&node.labels))
                        .collect(),
                ),
                _ => None,
            });
            seen.insert(NodeClass {
                selected: selected.collect(),
                address: place(*address, &self.networks),
            })
        };
        nodes.into_iter().filter(is_new).collect()
    }
}

fn has_address(member: &Member) -> bool {
    member.is_policed() && !member.pod.addresses.is_empty()
}

//! Who is there: a few pods and nodes that stand for all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::compiler::{DnsStandIn, NodeScope, Settings};
use egret_policies::model::cluster::{Entity, Namespace, Pod};
use egret_policies::model::{Enforcement, Labels, Policy, Tier};

use crate::verdict::manifests::Manifests;
use crate::verdict::selection::{DEFAULT_LABEL, Selection};

use super::asked::is_dns;
use super::classes::Classes;
use super::made_up::made_up;
use super::nodes::{AtNode, nodes};

/// Everybody whom the oracle is asked about.
pub(super) struct Scene {
    pub(super) pods: Vec<Pod>,
    /// How many pods of the manifests these stand for.
    pub(super) standing_for: usize,
    pub(super) made_up: usize,
    /// Nodes that policies can tell apart, by address.
    pub(super) nodes: BTreeMap<IpAddr, AtNode>,
    /// Addresses that are some node's.
    pub(super) of_nodes: BTreeSet<IpAddr>,
    /// What may matter to every connection.
    pub(super) common: Vec<Entity>,
    pub(super) settings: Settings,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

impl Scene {
    pub(super) fn new(manifests: &Manifests, dns: &DnsStandIn, policies: &[Policy]) -> Self {
        let classes = Classes::new(manifests, dns, policies);
        let (real, standing_for) = classes.pods();
        let (made_up, new_namespaces) = made_up(manifests, policies);
        let count = made_up.len();
        let pods: Vec<Pod> = real.into_iter().chain(made_up).collect();
        let mut namespaces = namespaces(manifests, &pods);
        namespaces.extend(new_namespaces.into_iter().map(|one| (Arc::clone(&one.name), one)));
        let nodes = nodes(manifests);
        Self {
            common: common(manifests, dns, policies),
            settings: Settings {
                dns: dns.clone(),
                ..Settings::for_scope(NodeScope::All)
            },
            of_nodes: nodes.keys().copied().collect(),
            nodes: classes.nodes(nodes),
            pods,
            standing_for,
            made_up: count,
            namespaces,
        }
    }

    /// A pod with its namespace.
    pub(super) fn pod(&self, pod: &Pod) -> Vec<Entity> {
        let namespace = self.namespaces.get(pod.key.namespace()).cloned();
        namespace
            .map(Entity::Namespace)
            .into_iter()
            .chain([Entity::Pod(pod.clone())])
            .collect()
    }

    /// The labels of a pod's namespace.
    pub(super) fn labels(&self, pod: &Pod) -> Labels {
        let namespace = self.namespaces.get(pod.key.namespace());
        namespace
            .map(|namespace| namespace.labels.clone())
            .unwrap_or_default()
    }

    /// Which of some policies are about which pods.
    pub(super) fn selection(&self, policies: &[Policy]) -> Selection {
        Selection::new(policies.to_vec(), self.namespaces.values().cloned().collect())
    }
}

/// The namespaces of some pods, also those without an object.
fn namespaces(manifests: &Manifests, pods: &[Pod]) -> BTreeMap<Arc<str>, Namespace> {
    let of_pods = pods.iter().map(|pod| Namespace {
        name: pod.key.namespace().into(),
        labels: Labels::from_iter([(DEFAULT_LABEL, pod.key.namespace())]),
        enforcement: Enforcement::Enforced,
    });
    // No conversion changes a Namespace, so what its annotation says is left out.
    let written = manifests.namespaces.iter().map(|namespace| Namespace {
        enforcement: Enforcement::Enforced,
        ..namespace.clone()
    });
    let all = of_pods.chain(written);
    all.map(|namespace| (Arc::clone(&namespace.name), namespace))
        .collect()
}

/// Services and what is told of places: they matter to ClusterEgressFirewalls and to dnsd only.
fn common(manifests: &Manifests, dns: &DnsStandIn, policies: &[Policy]) -> Vec<Entity> {
    let is_firewall = |policy: &Policy| policy.rank.tier == Tier::ClusterEgressFirewall;
    if dns.addresses.is_empty() && !policies.iter().any(is_firewall) {
        return Vec::new();
    }
    let mut common: Vec<Entity> = manifests.nodes.iter().cloned().map(Entity::Node).collect();
    common.extend(manifests.services.iter().cloned().map(Entity::Service));
    common.extend(manifests.slices.iter().cloned().map(Entity::EndpointSlice));
    common.extend(manifests.places.iter().cloned());
    let pods = manifests.members.values().map(|member| &member.pod);
    common.extend(
        pods.filter(|pod| is_dns(manifests, dns, pod))
            .cloned()
            .map(Entity::Pod),
    );
    common.extend(manifests.namespaces.iter().cloned().map(Entity::Namespace));
    common
}

//! What has the addresses of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::model::cluster::{Entity, PodLife};

use crate::verdict::manifests::Manifests;

/// What has an address of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct AtNode {
    pub(super) names: BTreeSet<Arc<str>>,
    /// Nodes, and pods of their network.
    pub(super) entities: Vec<Entity>,
}

/// What has the addresses of nodes, those among them that only pods of their network show.
pub(super) fn nodes(manifests: &Manifests) -> BTreeMap<IpAddr, AtNode> {
    let mut nodes: BTreeMap<IpAddr, AtNode> = BTreeMap::new();
    for node in &manifests.nodes {
        for address in &node.addresses {
            let at = nodes.entry(address.to_canonical()).or_default();
            at.names.insert(Arc::clone(&node.name));
            at.entities.push(Entity::Node(node.clone()));
        }
    }
    let pods = manifests.members.values().map(|member| &member.pod);
    for pod in pods.filter(|pod| pod.host_network && pod.life == PodLife::Live) {
        for address in &pod.addresses {
            let at = nodes.entry(address.to_canonical()).or_default();
            at.names.extend(pod.node.clone());
            at.entities.push(Entity::Pod(pod.clone()));
        }
    }
    nodes
}

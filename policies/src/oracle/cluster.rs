//! Who has which address, and who is selected.

use std::net::IpAddr;

use egret_shared::pod::PodKey;

use crate::compiler::NodeScope;
use crate::model::cluster::{Entity, EntityKey, Node, Pod, PodLife};
use crate::model::{Enforcement, Labels, NamespaceSelector, Policy, Requirement, Selector};

use super::World;

impl World {
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.entities.values().filter_map(|entity| match entity {
            Entity::Pod(pod) => Some(pod),
            Entity::Namespace(_)
            | Entity::Node(_)
            | Entity::Service(_)
            | Entity::EndpointSlice(_)
            | Entity::NodeAddressReport(_)
            | Entity::ApiServerAddresses(_)
            | Entity::Policy(_) => None,
        })
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.entities.values().filter_map(|entity| match entity {
            Entity::Node(node) => Some(node),
            Entity::Namespace(_)
            | Entity::Pod(_)
            | Entity::Service(_)
            | Entity::EndpointSlice(_)
            | Entity::NodeAddressReport(_)
            | Entity::ApiServerAddresses(_)
            | Entity::Policy(_) => None,
        })
    }

    /// The live pod that has this address for its own: none when a node has it; else the newest.
    pub(super) fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        let has_it = |addresses: &[IpAddr]| addresses.iter().any(|one| one.to_canonical() == address);
        let is_nodes = self.nodes().any(|node| has_it(&node.addresses))
            || self
                .pods()
                .any(|pod| pod.host_network && pod.life == PodLife::Live && has_it(&pod.addresses));
        let mut newest: Option<&Pod> = None;
        for pod in self.pods() {
            let claims = pod.life == PodLife::Live && !pod.host_network && has_it(&pod.addresses);
            let is_newer = newest.is_none_or(|other| (&pod.started, &pod.key) > (&other.started, &other.key));
            if claims && is_newer {
                newest = Some(pod);
            }
        }
        newest.filter(|_| !is_nodes)
    }

    /// Whether a policy is only asked about a pod: itself, for all pods of its namespace, or for all of the node.
    pub(super) fn is_audited(&self, policy: &Policy, pod: &Pod) -> bool {
        let namespace = EntityKey::Namespace(pod.key.namespace().into());
        let of_namespace = match self.entities.get(&namespace) {
            Some(Entity::Namespace(namespace)) => namespace.enforcement,
            Some(_) | None => Enforcement::Enforced,
        };
        let says = [self.settings.enforcement, of_namespace, policy.enforcement];
        says.contains(&Enforcement::Audited)
    }

    /// The pod of this name, if it has an address of its own.
    pub(super) fn pod_with_own_address(&self, key: &PodKey) -> Option<&Pod> {
        let pod = self.pods().find(|pod| pod.key == *key)?;
        (!self.own_addresses(pod).is_empty()).then_some(pod)
    }

    pub(super) fn own_addresses(&self, pod: &Pod) -> Vec<IpAddr> {
        pod.addresses
            .iter()
            .map(IpAddr::to_canonical)
            .filter(|address| self.pod_at(*address).is_some_and(|owner| owner.key == pod.key))
            .collect()
    }

    pub(super) fn is_local(&self, pod: &Pod) -> bool {
        match &self.settings.node {
            NodeScope::All => true,
            NodeScope::One(name) => pod.node.as_ref() == Some(name),
        }
    }

    pub(super) fn selects(&self, namespaces: &NamespaceSelector, pods: &Selector, pod: &Pod) -> bool {
        let in_namespace = match namespaces {
            NamespaceSelector::Named(name) => name.as_ref() == pod.key.namespace(),
            NamespaceSelector::Matching(selector) => {
                selector_holds(selector, &self.namespace_labels(pod.key.namespace()))
            }
        };
        in_namespace && selector_holds(pods, &pod.labels)
    }

    fn namespace_labels(&self, name: &str) -> Labels {
        for entity in self.entities.values() {
            if let Entity::Namespace(namespace) = entity
                && namespace.name.as_ref() == name
            {
                return namespace.labels.clone();
            }
        }
        Labels::from_iter([("kubernetes.io/metadata.name", name)])
    }
}

/// Whether every requirement holds.
pub(super) fn selector_holds(selector: &Selector, labels: &Labels) -> bool {
    for requirement in selector.requirements() {
        let (key, wanted) = match requirement {
            Requirement::In(key, _) | Requirement::Exists(key) => (key, true),
            Requirement::NotIn(key, _) | Requirement::DoesNotExist(key) => (key, false),
        };
        let hit = labels.iter().any(|(label, value)| {
            label == key.as_ref()
                && match requirement {
                    Requirement::In(_, values) | Requirement::NotIn(_, values) => {
                        values.iter().any(|one| one.as_ref() == value)
                    }
                    Requirement::Exists(_) | Requirement::DoesNotExist(_) => true,
                }
        });
        if hit != wanted {
            return false;
        }
    }
    true
}

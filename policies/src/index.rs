//! What the cluster holds now, and who has which address: selectors are asked here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;

use crate::model::cluster::{Namespace, Node, Pod};
use crate::model::{Labels, NamespaceSelector, Selector};

mod claims;

use claims::Claims;

/// The label that every namespace has (KEP-2161).
const DEFAULT_LABEL: &str = "kubernetes.io/metadata.name";

/// Namespaces, pods and nodes, with the owner of every address.
#[derive(Debug, Default)]
pub(crate) struct Index {
    namespaces: BTreeMap<Arc<str>, NamespaceLabels>,
    pods: BTreeMap<PodKey, Pod>,
    nodes: BTreeMap<Arc<str>, Node>,
    claims: Claims,
}

/// The labels of a namespace that has an object or pods.
#[derive(Debug)]
struct NamespaceLabels {
    labels: Labels,
    has_object: bool,
}

/// A pod that counts: it lives, is not on the node's network, and the addresses are its own.
#[derive(Debug)]
pub(crate) struct LivePod<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) namespace: &'a Labels,
    pub(crate) addresses: Vec<IpAddr>,
}

impl LivePod<'_> {
    /// Whether both selectors match.
    pub(crate) fn is_selected(&self, namespaces: &NamespaceSelector, pods: &Selector) -> bool {
        let in_namespace = match namespaces {
            NamespaceSelector::Named(name) => self.pod.key.namespace() == name.as_ref(),
            NamespaceSelector::Matching(selector) => selector.matches(self.namespace),
        };
        in_namespace && pods.matches(&self.pod.labels)
    }
}

impl Index {
    /// A pod that counts, by its key.
    pub(crate) fn live(&self, key: &PodKey) -> Option<LivePod<'_>> {
        self.pods.get(key).and_then(|pod| self.view(pod))
    }

    /// All pods that count, or those of one namespace.
    pub(crate) fn live_pods(&self, namespace: Option<&str>) -> impl Iterator<Item = LivePod<'_>> {
        let from = namespace.map_or_else(|| PodKey::new("", ""), |name| PodKey::new(name, ""));
        self.pods
            .range(from..)
            .take_while(move |(key, _)| namespace.is_none_or(|name| key.namespace() == name))
            .filter_map(|(_, pod)| self.view(pod))
    }

    /// A pod as it was told, whether or not it counts.
    pub(crate) fn pod(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key)
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A node by name.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// The pod whose address this is.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.claims.owner(address, &self.pods)
    }

    /// Puts a pod in, or with `None` takes it out; returns the pods that may look different now.
    pub(crate) fn set_pod(&mut self, key: &PodKey, pod: Option<Pod>) -> BTreeSet<PodKey> {
        let before = self.pods.remove(key);
        let mut touched = BTreeSet::from([key.clone()]);
        for pod in before.iter().chain(&pod) {
            touched.extend(self.claims.rivals(&pod.addresses));
        }
        if let Some(before) = &before {
            self.claims.withdraw_pod(before);
        }
        if let Some(pod) = pod {
            self.claims.claim_pod(&pod);
            self.namespaces
                .entry(key.namespace().into())
                .or_insert_with(|| NamespaceLabels::default_of(key.namespace()));
            self.pods.insert(key.clone(), pod);
        } else {
            self.forget_namespace(key.namespace());
        }
        touched
    }

    /// Puts a namespace in, or takes it out.
    pub(crate) fn set_namespace(
        &mut self,
        name: &Arc<str>,
        namespace: Option<Namespace>,
    ) -> BTreeSet<PodKey> {
        let entry = namespace.map_or_else(
            || NamespaceLabels::default_of(name),
            |namespace| NamespaceLabels {
                labels: namespace.labels,
                has_object: true,
            },
        );
        let before = self.namespaces.insert(Arc::clone(name), entry);
        self.forget_namespace(name);
        let after = self.namespaces.get(name).map(|now| &now.labels);
        if before.as_ref().map(|before| &before.labels) == after {
            return BTreeSet::new();
        }
        self.keys_of_namespace(name).cloned().collect()
    }

    /// Puts a node in, or takes it out; returns the pods that may have won or lost an address by it.
    pub(crate) fn set_node(&mut self, name: &Arc<str>, node: Option<Node>) -> BTreeSet<PodKey> {
        let before = self.nodes.remove(name);
        let mut touched = BTreeSet::new();
        for node in before.iter().chain(&node) {
            touched.extend(self.claims.rivals(&node.addresses));
        }
        if let Some(before) = &before {
            self.claims.withdraw_node(&before.addresses);
        }
        if let Some(node) = node {
            self.claims.claim_node(&node.addresses);
            self.nodes.insert(Arc::clone(name), node);
        }
        touched
    }

    fn view<'a>(&'a self, pod: &'a Pod) -> Option<LivePod<'a>> {
        let mut addresses = Vec::with_capacity(pod.addresses.len());
        for address in pod.addresses.iter().map(IpAddr::to_canonical) {
            if self.owner(address) == Some(&pod.key) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let namespace = &self.namespaces.get(pod.key.namespace())?.labels;
        (!addresses.is_empty()).then_some(LivePod {
            pod,
            namespace,
            addresses,
        })
    }

    fn keys_of_namespace<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a PodKey> {
        self.pods
            .range(PodKey::new(name, "")..)
            .map(|(key, _)| key)
            .take_while(move |key| key.namespace() == name)
    }

    fn forget_namespace(&mut self, name: &str) {
        let is_needed = self.namespaces.get(name).is_some_and(|known| known.has_object)
            || self.keys_of_namespace(name).next().is_some();
        if !is_needed {
            self.namespaces.remove(name);
        }
    }
}

impl NamespaceLabels {
    fn default_of(name: &str) -> Self {
        Self {
            labels: Labels::from_iter([(DEFAULT_LABEL, name)]),
            has_object: false,
        }
    }
}

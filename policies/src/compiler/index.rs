//! What the cluster holds now, and who has which address: selectors are asked here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::tree::pack_map;

use super::settings::DnsStandIn;
use crate::model::cluster::{Namespace, Node, Pod};
use crate::model::{Enforcement, Labels, NamespaceSelector, Selector};

mod claims;
mod label_index;
mod cluster_addresses;
mod dns_service;

use claims::AddressClaims;
use cluster_addresses::ClusterAddresses;
use dns_service::DnsService;
use label_index::{Candidates, LabelIndex};

/// Namespaces, pods and nodes, with the owner of every address.
#[derive(Debug, Default)]
pub(crate) struct Index {
    namespaces: BTreeMap<Arc<str>, NamespaceLabels>,
    pods: BTreeMap<PodKey, Pod>,
    nodes: BTreeMap<Arc<str>, Node>,
    claims: AddressClaims,
    /// The pods that count, with the addresses that are their own.
    live: BTreeMap<PodKey, Vec<IpAddr>>,
    by_label: LabelIndex<PodKey>,
    namespaces_by_label: LabelIndex<Arc<str>>,
    cluster_addresses: ClusterAddresses,
    dns: DnsService,
}

/// The labels of a namespace that has an object or pods.
#[derive(Debug)]
struct NamespaceLabels {
    labels: Labels,
    has_object: bool,
    enforcement: Enforcement,
}

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A pod's.
    Pod(PodKey),
    /// A node's, and of the pods on its network.
    Node(Arc<str>),
}

/// A pod that counts: it lives, is not on the node's network, and the addresses are its own.
#[derive(Debug)]
pub(crate) struct LivePod<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) namespace: &'a Labels,
    /// Of its namespace.
    pub(crate) enforcement: Enforcement,
    pub(crate) addresses: &'a [IpAddr],
}

impl LivePod<'_> {
    /// Whether both selectors match.
    pub(crate) fn is_selected(&self, namespaces: &NamespaceSelector, pods: &Selector) -> bool {
        namespaces.matches(self.pod.key.namespace(), self.namespace) && pods.matches(&self.pod.labels)
    }
}

impl Index {
    /// An index of nothing, that knows where dnsd is.
    pub(crate) fn new(dns: DnsStandIn) -> Self {
        Self {
            dns: DnsService::new(dns),
            ..Self::default()
        }
    }

    /// Has all that came so far take as little memory as it can.
    pub(crate) fn pack(&mut self) {
        pack_map(&mut self.namespaces);
        pack_map(&mut self.pods);
        pack_map(&mut self.nodes);
        pack_map(&mut self.live);
        self.claims.pack();
        self.by_label.pack();
        self.namespaces_by_label.pack();
        self.cluster_addresses.pack();
    }

    /// A pod that counts, by its key.
    pub(crate) fn live(&self, key: &PodKey) -> Option<LivePod<'_>> {
        let namespace = self.namespaces.get(key.namespace())?;
        Some(LivePod {
            addresses: self.live.get(key)?,
            pod: self.pods.get(key)?,
            namespace: &namespace.labels,
            enforcement: namespace.enforcement,
        })
    }

    /// The pods that count and that both selectors match.
    pub(crate) fn selected<'a>(
        &'a self,
        namespaces: &'a NamespaceSelector,
        pods: &'a Selector,
    ) -> impl Iterator<Item = LivePod<'a>> {
        self.candidates(namespaces, pods)
            .filter_map(|key| self.live(key))
            .filter(|pod| pod.is_selected(namespaces, pods))
    }

    /// Pods among which are all that both selectors match: those of the namespaces, or those with a label, whichever
    /// are fewer. The pods of other namespaces must not make a set of a small one dear.
    fn candidates<'a>(
        &'a self,
        namespaces: &'a NamespaceSelector,
        pods: &'a Selector,
    ) -> Box<dyn Iterator<Item = &'a PodKey> + 'a> {
        let by_label = self.by_label.candidates(pods);
        let most = by_label.as_ref().map_or(usize::MAX, Candidates::count);
        let in_namespaces = || -> Box<dyn Iterator<Item = &'a PodKey> + 'a> {
            match namespaces {
                NamespaceSelector::Named(name) => Box::new(self.keys_of_namespace(name)),
                NamespaceSelector::Matching(selector) => self.keys_of_namespaces(selector),
            }
        };
        let of_namespaces = in_namespaces().take(most).count();
        match by_label {
            Some(candidates) if most <= of_namespaces => Box::new(candidates.iter()),
            Some(_) | None => in_namespaces(),
        }
    }

    fn keys_of_namespaces<'a>(&'a self, selector: &'a Selector) -> Box<dyn Iterator<Item = &'a PodKey> + 'a> {
        let Some(candidates) = self.namespaces_by_label.candidates(selector) else {
            return Box::new(self.live.keys());
        };
        let matches = |name: &&Arc<str>| {
            let namespace = self.namespaces.get(*name);
            namespace.is_some_and(|namespace| selector.matches(&namespace.labels))
        };
        Box::new(
            candidates
                .iter()
                .filter(matches)
                .flat_map(|name| self.keys_of_namespace(name)),
        )
    }

    /// A pod as it was told, whether or not it counts.
    pub(crate) fn pod(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key)
    }

    /// A node by name.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// All pods that say that one of these addresses is theirs.
    pub(crate) fn claimants(&self, addresses: &[IpAddr]) -> BTreeSet<PodKey> {
        self.claims.claimants(addresses)
    }

    /// The pod whose address this is.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.claims.owner(address, &self.pods)
    }

    /// Whose address this is.
    pub(crate) fn address_owner(&self, address: IpAddr) -> Option<Owner> {
        let address = address.to_canonical();
        if self.is_node_address(address) {
            let mut names = self.node_names().into_iter();
            let has = |name: &Arc<str>| {
                self.addresses_of_node(name)
                    .any(|one| one.to_canonical() == address)
            };
            return names.find(has).map(Owner::Node);
        }
        self.owner(address).cloned().map(Owner::Pod)
    }

    /// Puts a pod in, or with `None` takes it out; returns the pods that may look different now.
    pub(crate) fn set_pod(&mut self, key: &PodKey, pod: Option<Pod>) -> BTreeSet<PodKey> {
        let before = self.pods.remove(key);
        let mut touched = BTreeSet::from([key.clone()]);
        for pod in before.iter().chain(&pod) {
            touched.extend(self.claims.claimants(&pod.addresses));
        }
        if let Some(before) = &before {
            self.claims.withdraw_pod(before);
            self.by_label.remove(key, &before.labels);
        }
        if let Some(pod) = pod {
            self.claims.claim_pod(&pod);
            self.by_label.insert(key, &pod.labels);
            self.remember_namespace(key.namespace());
            self.pods.insert(key.clone(), pod);
        } else {
            self.forget_namespace(key.namespace());
        }
        self.settle_addresses(&touched);
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
                enforcement: namespace.enforcement,
            },
        );
        let before = self.namespaces.remove(name);
        if let Some(before) = &before {
            self.namespaces_by_label.remove(name, &before.labels);
        }
        self.namespaces_by_label.insert(name, &entry.labels);
        self.namespaces.insert(Arc::clone(name), entry);
        self.forget_namespace(name);
        let counts = |entry: &NamespaceLabels| (entry.labels.clone(), entry.enforcement);
        if before.as_ref().map(counts) == self.namespaces.get(name).map(counts) {
            return BTreeSet::new();
        }
        self.dns.note_namespace(name);
        self.keys_of_namespace(name).cloned().collect()
    }

    /// Puts a node in, or takes it out; returns the pods that may have won or lost an address by it.
    pub(crate) fn set_node(&mut self, name: &Arc<str>, node: Option<Node>) -> BTreeSet<PodKey> {
        let before = self.nodes.remove(name);
        let mut touched = BTreeSet::new();
        for node in before.iter().chain(&node) {
            touched.extend(self.claims.claimants(&node.addresses));
        }
        if let Some(before) = &before {
            self.claims.withdraw_node(&before.addresses);
            self.cluster_addresses.count(&before.addresses, false);
        }
        if let Some(node) = node {
            self.claims.claim_node(&node.addresses);
            self.cluster_addresses.count(&node.addresses, true);
            self.nodes.insert(Arc::clone(name), node);
        }
        self.settle_addresses(&touched);
        touched
    }

    /// Finds out anew which addresses are these pods' own.
    fn settle_addresses(&mut self, keys: &BTreeSet<PodKey>) {
        for key in keys {
            let addresses = self.pods.get(key).map(|pod| self.own_addresses(pod));
            match addresses.filter(|addresses| !addresses.is_empty()) {
                Some(addresses) => self.live.insert(key.clone(), addresses),
                None => self.live.remove(key),
            };
            self.settle_dns_pod(key);
        }
    }

    fn own_addresses(&self, pod: &Pod) -> Vec<IpAddr> {
        let mut addresses = Vec::with_capacity(pod.addresses.len());
        for address in pod.addresses.iter().map(IpAddr::to_canonical) {
            if self.owner(address) == Some(&pod.key) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    fn keys_of_namespace<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a PodKey> {
        self.pods
            .range(PodKey::new(name, "")..)
            .map(|(key, _)| key)
            .take_while(move |key| key.namespace() == name)
    }

    fn remember_namespace(&mut self, name: &str) {
        if !self.namespaces.contains_key(name) {
            let entry = NamespaceLabels::default_of(name);
            let name: Arc<str> = name.into();
            self.namespaces_by_label.insert(&name, &entry.labels);
            self.namespaces.insert(name, entry);
        }
    }

    fn forget_namespace(&mut self, name: &str) {
        let is_needed = self.namespaces.get(name).is_some_and(|known| known.has_object)
            || self.keys_of_namespace(name).next().is_some();
        if !is_needed && let Some((name, entry)) = self.namespaces.remove_entry(name) {
            self.namespaces_by_label.remove(&name, &entry.labels);
        }
    }
}

impl NamespaceLabels {
    fn default_of(name: &str) -> Self {
        Self {
            labels: Labels::of_namespace_without_object(name),
            has_object: false,
            enforcement: Enforcement::Enforced,
        }
    }
}

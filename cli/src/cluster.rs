//! The cluster of the manifests, as far as probes ask for it: who has which address, and where a Service
//! leads. What policies make of it is the compiler's to say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::{EndpointSlice, Node, NodeAddressReport, Pod, PodLife, Service};
use egret_shared::pod::PodKey;

mod dns;
mod made_up_addresses;
pub mod selection;
mod service;

pub use made_up_addresses::{UsedAddresses, make_up_addresses};
pub use service::{Endpoint, ServiceRoute, UnknownPort};

/// Pods, nodes and Services.
#[derive(Debug, Default)]
pub struct Cluster {
    pods: BTreeMap<PodKey, PodMember>,
    nodes: BTreeMap<Arc<str>, Node>,
    services: BTreeMap<PodKey, Service>,
    slices: BTreeMap<PodKey, Vec<EndpointSlice>>,
    owners: HashMap<IpAddr, AddressOwner>,
    service_addresses: HashMap<IpAddr, BTreeSet<PodKey>>,
    dns: DnsStandIn,
}

/// A pod, or a workload that stands for one.
#[derive(Clone, Debug)]
pub struct PodMember {
    /// The pod, with an address if it is not on the network of a node without one.
    pub pod: Pod,
    /// Whether a Service would send connections to it.
    pub is_ready: bool,
    /// Whether its address is made up.
    pub is_made_up: bool,
}

impl PodMember {
    /// Whether policies are about it: it lives, and its addresses are its own.
    #[must_use]
    pub fn is_policed(&self) -> bool {
        self.pod.life == PodLife::Live && !self.pod.host_network
    }
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressOwner {
    Pod(PodKey),
    Nodes(BTreeSet<Arc<str>>),
}

impl Cluster {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        members: Vec<PodMember>,
        nodes: Vec<Node>,
        services: Vec<Service>,
        slices: Vec<EndpointSlice>,
    ) -> Self {
        let mut cluster = Self {
            pods: members
                .into_iter()
                .map(|member| (member.pod.key.clone(), member))
                .collect(),
            nodes: nodes
                .into_iter()
                .map(|node| (Arc::clone(&node.name), node))
                .collect(),
            services: services
                .into_iter()
                .map(|service| (service.key.clone(), service))
                .collect(),
            slices: BTreeMap::new(),
            owners: HashMap::new(),
            service_addresses: HashMap::new(),
            dns: DnsStandIn::default(),
        };
        for service in cluster.services.values() {
            for address in service.addresses.iter().chain(&service.external_addresses) {
                let services = cluster.service_addresses.entry(address.to_canonical());
                services.or_default().insert(service.key.clone());
            }
        }
        for slice in slices {
            if let Some(service) = &slice.service {
                let service = PodKey::new(slice.key.namespace(), service);
                cluster.slices.entry(service).or_default().push(slice);
            }
        }
        cluster.owners = cluster.find_owners();
        cluster
    }

    /// With what is reported of nodes: an address that no pod has is theirs, whether or not their status has it.
    #[must_use]
    pub fn with_reports<'a>(mut self, reports: impl IntoIterator<Item = &'a NodeAddressReport>) -> Self {
        for report in reports {
            for address in &report.addresses {
                let owner = self.owners.entry(address.to_canonical());
                match owner.or_insert_with(|| AddressOwner::Nodes(BTreeSet::new())) {
                    AddressOwner::Nodes(nodes) => drop(nodes.insert(Arc::clone(&report.node))),
                    AddressOwner::Pod(_) => {}
                }
            }
        }
        self
    }

    /// A pod by its key.
    #[must_use]
    pub fn member(&self, key: &PodKey) -> Option<&PodMember> {
        self.pods.get(key)
    }

    /// The live pod with a network of its own that has the address.
    #[must_use]
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodMember> {
        match self.owners.get(&address.to_canonical())? {
            AddressOwner::Pod(key) => self.pods.get(key),
            AddressOwner::Nodes(_) => None,
        }
    }

    /// Whether the address is the own node's of a pod. Where dnsd answers, the node of whoever asks does.
    #[must_use]
    pub fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        match self.owners.get(&address.to_canonical()) {
            Some(AddressOwner::Nodes(nodes)) => {
                pod.node.as_ref().is_some_and(|own| nodes.contains(own)) || self.is_dnsd(address)
            }
            Some(AddressOwner::Pod(_)) => false,
            None => self.is_dnsd(address),
        }
    }

    /// Whether two addresses are those of one node.
    #[must_use]
    pub fn is_one_node(&self, one: IpAddr, other: IpAddr) -> bool {
        match (
            self.owners.get(&one.to_canonical()),
            self.owners.get(&other.to_canonical()),
        ) {
            (Some(AddressOwner::Nodes(these)), Some(AddressOwner::Nodes(those))) => !these.is_disjoint(those),
            (Some(AddressOwner::Pod(_) | AddressOwner::Nodes(_)) | None, _) => false,
        }
    }

    /// The addresses at which a pod is reached, each family in the order of its status: those that are its
    /// own, or its node's where it uses the node's network.
    #[must_use]
    pub fn addresses(&self, member: &PodMember) -> Vec<IpAddr> {
        let pod = &member.pod;
        if !pod.host_network {
            let own = |address: &IpAddr| {
                self.pod_at(*address)
                    .is_some_and(|owner| owner.pod.key == pod.key)
            };
            return pod
                .addresses
                .iter()
                .map(IpAddr::to_canonical)
                .filter(own)
                .collect();
        }
        let of_node = pod
            .node
            .as_ref()
            .and_then(|node| self.nodes.get(node))
            .map(|node| &node.addresses);
        let shown = Some(&pod.addresses).filter(|addresses| !addresses.is_empty());
        shown
            .or(of_node)
            .into_iter()
            .flatten()
            .map(IpAddr::to_canonical)
            .collect()
    }

    /// The addresses of a node in the order of its status, then those that only pods of its network show;
    /// none for a node that nothing shows.
    #[must_use]
    pub fn addresses_of_node(&self, name: &str) -> Option<Vec<IpAddr>> {
        let node = self.nodes.get(name);
        let mut addresses: Vec<IpAddr> = node
            .into_iter()
            .flat_map(|node| node.addresses.iter().map(IpAddr::to_canonical))
            .collect();
        for (address, nodes) in self.addresses_of_nodes() {
            if nodes.contains(name) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        (node.is_some() || !addresses.is_empty()).then_some(addresses)
    }

    /// The names of the nodes that have an address.
    #[must_use]
    pub fn nodes_at(&self, address: IpAddr) -> Option<String> {
        match self.owners.get(&address.to_canonical())? {
            AddressOwner::Pod(_) => None,
            AddressOwner::Nodes(nodes) => {
                let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
                Some(names.join(" and "))
            }
        }
    }

    /// Of two live pods with one address the one that started last has it; what is a node's is no pod's.
    fn find_owners(&self) -> HashMap<IpAddr, AddressOwner> {
        let mut owners = HashMap::new();
        let mut live: Vec<&PodMember> = self.pods.values().filter(|member| member.is_policed()).collect();
        live.sort_by_key(|member| (&member.pod.started, &member.pod.key));
        for member in live {
            for address in &member.pod.addresses {
                owners.insert(address.to_canonical(), AddressOwner::Pod(member.pod.key.clone()));
            }
        }
        for (address, nodes) in self.addresses_of_nodes() {
            owners.insert(address, AddressOwner::Nodes(nodes));
        }
        owners
    }

    /// What nodes have, those addresses among them that only pods of their network show.
    fn addresses_of_nodes(&self) -> BTreeMap<IpAddr, BTreeSet<Arc<str>>> {
        let mut addresses: BTreeMap<IpAddr, BTreeSet<Arc<str>>> = BTreeMap::new();
        for node in self.nodes.values() {
            for address in &node.addresses {
                addresses
                    .entry(address.to_canonical())
                    .or_default()
                    .insert(Arc::clone(&node.name));
            }
        }
        let on_node = |member: &&PodMember| member.pod.life == PodLife::Live && member.pod.host_network;
        for member in self.pods.values().filter(on_node) {
            for address in &member.pod.addresses {
                addresses
                    .entry(address.to_canonical())
                    .or_default()
                    .extend(member.pod.node.clone());
            }
        }
        addresses
    }
}

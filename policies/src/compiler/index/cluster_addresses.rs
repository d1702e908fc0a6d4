//! Where nodes, Services and the API server are: what a ClusterEgressFirewall tells from the rest of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::net::{IpNet, PortRange, Transport};
use egret_shared::pod::PodKey;
use egret_shared::tree::pack_map;

use super::Index;
use crate::model::cluster::{EndpointSlice, Service, is_api_server};
use crate::model::subtract;

/// Node address reports, Services and declared addresses of the API server.
#[derive(Debug, Default)]
pub(super) struct ClusterAddresses {
    reports: BTreeMap<Arc<str>, Vec<IpAddr>>,
    services: BTreeMap<PodKey, Service>,
    /// Those of the API server only.
    slices: BTreeMap<PodKey, EndpointSlice>,
    api_server_addresses: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// Every address that a node has, with the number of those that have it: a bridge may look the same on
    /// all of them.
    node_addresses: BTreeMap<IpAddr, usize>,
}

fn is_of_api_server(slice: &EndpointSlice) -> bool {
    slice.key.namespace() == "default" && slice.service.as_deref() == Some("kubernetes")
}

impl ClusterAddresses {
    pub(super) fn pack(&mut self) {
        pack_map(&mut self.reports);
        pack_map(&mut self.services);
        pack_map(&mut self.node_addresses);
    }

    /// A node has these addresses no longer, or now.
    pub(super) fn count(&mut self, addresses: &[IpAddr], is_there: bool) {
        for address in addresses.iter().map(IpAddr::to_canonical) {
            let count = self.node_addresses.entry(address).or_default();
            if is_there {
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.node_addresses.remove(&address);
                }
            }
        }
    }
}

impl Index {
    /// Replaces what an agent says of its node; returns whether that is another thing than before.
    pub(crate) fn set_report(&mut self, node: &Arc<str>, addresses: Option<Vec<IpAddr>>) -> bool {
        if self.cluster_addresses.reports.get(node) == addresses.as_ref() {
            return false;
        }
        if let Some(before) = self.cluster_addresses.reports.remove(node) {
            self.cluster_addresses.count(&before, false);
        }
        if let Some(addresses) = addresses {
            self.cluster_addresses.count(&addresses, true);
            self.cluster_addresses.reports.insert(Arc::clone(node), addresses);
        }
        true
    }

    /// Puts a Service in, or takes it out; returns whether it is another one than before.
    pub(crate) fn set_service(&mut self, key: &PodKey, service: Option<Service>) -> bool {
        if self.cluster_addresses.services.get(key) == service.as_ref() {
            return false;
        }
        self.dns.set_service(key, service.as_ref());
        match service {
            Some(service) => self.cluster_addresses.services.insert(key.clone(), service),
            None => self.cluster_addresses.services.remove(key),
        };
        self.settle_dns_service(key);
        true
    }

    /// Puts endpoints in, or takes them out; returns whether the API server may be elsewhere now.
    pub(crate) fn set_slice(&mut self, key: &PodKey, slice: Option<EndpointSlice>) -> bool {
        self.dns.set_slice(key, slice.as_ref());
        let slice = slice.filter(is_of_api_server);
        if self.cluster_addresses.slices.get(key) == slice.as_ref() {
            return false;
        }
        match slice {
            Some(slice) => self.cluster_addresses.slices.insert(key.clone(), slice),
            None => self.cluster_addresses.slices.remove(key),
        };
        true
    }

    /// Replaces declared addresses; returns whether they are others than before.
    pub(crate) fn set_api_server_addresses(
        &mut self,
        name: &Arc<str>,
        addresses: Option<Vec<IpAddr>>,
    ) -> bool {
        if self.cluster_addresses.api_server_addresses.get(name) == addresses.as_ref() {
            return false;
        }
        match addresses {
            Some(addresses) => self
                .cluster_addresses
                .api_server_addresses
                .insert(Arc::clone(name), addresses),
            None => self.cluster_addresses.api_server_addresses.remove(name),
        };
        true
    }

    /// What an agent says of its node.
    pub(crate) fn report(&self, node: &str) -> &[IpAddr] {
        self.cluster_addresses
            .reports
            .get(node)
            .map_or(&[], Vec::as_slice)
    }

    /// Services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.cluster_addresses.services.values()
    }

    /// A Service.
    pub(crate) fn service(&self, key: &PodKey) -> Option<&Service> {
        self.cluster_addresses.services.get(key)
    }

    /// The names of nodes that have an object or a report.
    pub(crate) fn node_names(&self) -> BTreeSet<Arc<str>> {
        self.nodes
            .keys()
            .chain(self.cluster_addresses.reports.keys())
            .cloned()
            .collect()
    }

    /// Whether a node has an object or a report.
    pub(crate) fn knows_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name) || self.cluster_addresses.reports.contains_key(name)
    }

    /// Everything that is known of a node's addresses.
    pub(crate) fn addresses_of_node(&self, name: &str) -> impl Iterator<Item = &IpAddr> {
        let reported = self.cluster_addresses.reports.get(name);
        let in_status = self.nodes.get(name).map(|node| &node.addresses);
        reported.into_iter().chain(in_status).flatten()
    }

    /// Whether a node has this address.
    pub(crate) fn is_node_address(&self, address: IpAddr) -> bool {
        self.cluster_addresses
            .node_addresses
            .contains_key(&address.to_canonical())
    }

    /// The networks from which a node's pods get their addresses, without addresses of nodes: a bridge has
    /// one of them.
    pub(crate) fn pod_networks_of_node(&self, name: &str) -> BTreeSet<IpNet> {
        let node = self.nodes.get(name);
        let networks = node.into_iter().flat_map(|node| &node.pod_networks);
        networks
            .flat_map(|network| subtract(*network, &self.nodes_inside(network)))
            .collect()
    }

    fn nodes_inside(&self, network: &IpNet) -> Vec<IpNet> {
        let inside = self.cluster_addresses.node_addresses.range(network.network()..);
        inside
            .map(|(address, _)| *address)
            .take_while(|address| network.contains(address))
            .map(IpNet::from)
            .collect()
    }

    /// The API server's own addresses: its Service, its endpoints, and what is declared; with the other addresses of nodes
    /// on which it is, or without.
    pub(crate) fn addresses_of_api_server(&self, with_nodes: bool) -> BTreeSet<IpAddr> {
        let services = self.services().filter(|service| is_api_server(&service.key));
        let of_services = services.flat_map(|service| &service.addresses);
        let endpoints = self
            .cluster_addresses
            .slices
            .values()
            .flat_map(|slice| &slice.addresses);
        let all = of_services.chain(endpoints).chain(self.declared_api_server());
        let mut all: BTreeSet<IpAddr> = all.map(IpAddr::to_canonical).collect();
        if with_nodes {
            let behind = self
                .cluster_addresses
                .slices
                .values()
                .map(|slice| self.behind(&slice.addresses));
            all.extend(behind.flatten());
        }
        all
    }

    /// Addresses that the platform declares to be the API server's.
    pub(crate) fn declared_api_server(&self) -> impl Iterator<Item = &IpAddr> {
        self.cluster_addresses.api_server_addresses.values().flatten()
    }

    /// The API server: its Service, its endpoints, and the nodes on which those are, at every address.
    pub(crate) fn api_server(&self) -> BTreeSet<(IpAddr, Transport, NonZeroU16)> {
        let mut found = BTreeSet::new();
        for service in self.services().filter(|service| is_api_server(&service.key)) {
            for port in &service.ports {
                let each = service.addresses.iter().map(IpAddr::to_canonical);
                found.extend(each.map(|address| (address, port.transport, port.number)));
            }
        }
        for slice in self.cluster_addresses.slices.values() {
            let addresses = self.behind(&slice.addresses);
            for (_, transport, number) in &slice.ports {
                found.extend(addresses.iter().map(|address| (*address, *transport, *number)));
            }
        }
        found
    }

    /// Where connections to ports of the API server's Service come out. Slices name ports as the Service does.
    pub(crate) fn api_server_behind(
        &self,
        transport: Transport,
        range: PortRange,
    ) -> BTreeSet<(IpAddr, Transport, NonZeroU16)> {
        let services = self.services().filter(|service| is_api_server(&service.key));
        let meant = services
            .flat_map(|service| &service.ports)
            .filter(|port| port.transport == transport && range.contains(port.number.get()));
        let names: BTreeSet<&str> = meant.map(|port| port.name.as_deref().unwrap_or("")).collect();
        let mut found = BTreeSet::new();
        for slice in self.cluster_addresses.slices.values() {
            let ports = slice
                .ports
                .iter()
                .filter(|(name, of, _)| *of == transport && names.contains(name.as_deref().unwrap_or("")));
            for (_, _, number) in ports {
                let addresses = self.behind(&slice.addresses).into_iter();
                found.extend(addresses.map(|address| (address, transport, *number)));
            }
        }
        found
    }

    /// Endpoints, and all addresses of nodes that have one of them.
    fn behind(&self, endpoints: &[IpAddr]) -> BTreeSet<IpAddr> {
        let endpoints: BTreeSet<IpAddr> = endpoints.iter().map(IpAddr::to_canonical).collect();
        let mut all = endpoints.clone();
        for name in self.node_names() {
            let own = || self.addresses_of_node(&name).map(IpAddr::to_canonical);
            if own().any(|address| endpoints.contains(&address)) {
                all.extend(own());
            }
        }
        all
    }
}

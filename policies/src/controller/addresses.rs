//! Where nodes, pods, Services and the API server are, of all that the controller knows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_shared::net::{IpNet, Transport};

use super::Cluster;
use crate::model::cluster::{EndpointSlice, PodLife, is_api_server};
use crate::model::subtract;
use crate::model::{Labels, Selector};

impl Cluster<'_> {
    /// The names of nodes that a selector selects; a node without an object has no labels.
    pub(super) fn selected(&self, selector: &Selector) -> BTreeSet<String> {
        let none = Labels::default();
        let reported = self.reports.iter().map(|report| &report.node);
        let names = self.nodes.iter().map(|node| &node.name).chain(reported);
        names
            .filter(|name| {
                let node = self.nodes.iter().find(|node| node.name == **name);
                selector.matches(node.map_or(&none, |node| &node.labels))
            })
            .map(ToString::to_string)
            .collect()
    }

    /// Nodes that a selector selects and whose agents said nothing.
    pub(super) fn unreported(&self, selector: &Selector) -> Vec<String> {
        let selected = self.selected(selector).into_iter();
        selected
            .filter(|name| !self.reports.iter().any(|report| *report.node == **name))
            .collect()
    }

    /// The addresses of a node: those in its status, and where all are wanted those in its report.
    pub(super) fn addresses_of(&self, name: &str, all: bool) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.iter().filter(|node| *node.name == *name);
        let reports = self.reports.iter().filter(|report| all && *report.node == *name);
        let in_status = nodes.flat_map(|node| &node.addresses);
        let reported = reports.flat_map(|report| &report.addresses);
        in_status.chain(reported).map(IpAddr::to_canonical).collect()
    }

    fn all_of_nodes(&self) -> BTreeSet<IpAddr> {
        let in_status = self.nodes.iter().flat_map(|node| &node.addresses);
        let reported = self.reports.iter().flat_map(|report| &report.addresses);
        in_status.chain(reported).map(IpAddr::to_canonical).collect()
    }

    /// What of these networks belongs to no pod and no Service.
    pub(super) fn outside(&self, networks: &[IpNet]) -> Vec<IpNet> {
        let inside = IpNet::aggregate(&self.of_cluster());
        networks
            .iter()
            .flat_map(|network| subtract(*network, &inside))
            .collect()
    }

    fn of_cluster(&self) -> Vec<IpNet> {
        let nodes = self.all_of_nodes();
        let hosts: Vec<IpNet> = nodes.iter().copied().map(IpNet::from).collect();
        let of_pods = self.nodes.iter().flat_map(|node| &node.pod_networks);
        let networks = of_pods.flat_map(|network| {
            let inside: Vec<IpNet> = hosts
                .iter()
                .filter(|host| network.contains(*host))
                .copied()
                .collect();
            subtract(*network, &inside)
        });
        let live = self
            .pods
            .iter()
            .filter(|pod| pod.life == PodLife::Live && !pod.host_network);
        let pods = live
            .flat_map(|pod| pod.addresses.iter().map(IpAddr::to_canonical))
            .filter(|address| !nodes.contains(address));
        let services = self.services.iter().flat_map(|service| &service.addresses);
        let single = pods.chain(services.map(IpAddr::to_canonical)).map(IpNet::from);
        networks.chain(single).collect()
    }

    fn slices_of_api_server(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.slices.iter().filter(|slice| {
            slice.key.namespace() == "default" && slice.service.as_deref() == Some("kubernetes")
        })
    }

    /// Whether the API server can be found.
    pub(super) fn knows_api_server(&self) -> bool {
        let has_endpoints = self
            .slices_of_api_server()
            .any(|slice| !slice.addresses.is_empty() && !slice.ports.is_empty());
        has_endpoints && self.services.iter().any(|service| is_api_server(&service.key))
    }

    /// Where the API server is, with its ports and how that is known.
    pub(super) fn api_server(&self) -> BTreeSet<(IpAddr, Transport, u16, &'static str)> {
        let mut found = BTreeSet::new();
        for service in self.services.iter().filter(|service| is_api_server(&service.key)) {
            for port in &service.ports {
                let each = service.addresses.iter().map(IpAddr::to_canonical);
                found.extend(each.map(|address| (address, port.transport, port.number.get(), "Service")));
            }
        }
        for slice in self.slices_of_api_server() {
            for (_, transport, port) in &slice.ports {
                for endpoint in slice.addresses.iter().map(IpAddr::to_canonical) {
                    found.insert((endpoint, *transport, port.get(), "Endpoints"));
                    for other in self.beside(endpoint) {
                        found.insert((other, *transport, port.get(), "Node"));
                    }
                }
            }
        }
        found
    }

    /// The ports of the API server's Service behind which a port of its endpoints is.
    pub(super) fn ports_in_front(&self, transport: Transport, port: u16) -> BTreeSet<u16> {
        let behind = self.slices_of_api_server().flat_map(|slice| &slice.ports);
        let names: BTreeSet<&str> = behind
            .filter(|(_, of, number)| *of == transport && number.get() == port)
            .map(|(name, _, _)| name.as_deref().unwrap_or(""))
            .collect();
        let services = self.services.iter().filter(|service| is_api_server(&service.key));
        services
            .flat_map(|service| &service.ports)
            .filter(|port| port.transport == transport && names.contains(port.name.as_deref().unwrap_or("")))
            .map(|port| port.number.get())
            .collect()
    }

    /// The other addresses of the nodes that have one.
    fn beside(&self, address: IpAddr) -> BTreeSet<IpAddr> {
        let everything = Selector::everything();
        let all = self.selected(&everything).into_iter();
        let own = all.map(|name| self.addresses_of(&name, true));
        let mut beside: BTreeSet<IpAddr> = own.filter(|own| own.contains(&address)).flatten().collect();
        beside.remove(&address);
        beside
    }

    /// Addresses that are declared, with the name of the object.
    pub(super) fn declared_api_server(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.declared.iter().flat_map(|declared| {
            let each = declared.addresses.iter().map(IpAddr::to_canonical);
            each.map(|address| (address, &*declared.name))
        })
    }
}

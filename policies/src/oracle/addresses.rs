//! What is a node's, what is the cluster's, and what is the API server's.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::net::Transport;

use crate::model::cluster::{Entity, EntityKey, Pod, PodLife};
use crate::model::{Labels, Port, Ports, Selector};
use crate::simulator::Protocol;

use super::World;
use super::cluster::selector_holds;
use super::matching::network_has;

impl World {
    /// Whether one of the selected nodes has the address, in its status or in its report.
    pub(super) fn is_at_node(&self, selector: &Selector, address: IpAddr) -> bool {
        self.addresses_of_nodes()
            .any(|(node, one)| one == address && selector_holds(selector, &self.node_labels(node)))
    }

    /// A node without an object has no labels.
    pub(super) fn node_labels(&self, name: &str) -> Labels {
        match self.entities.get(&EntityKey::Node(Arc::from(name))) {
            Some(Entity::Node(node)) => node.labels.clone(),
            Some(_) | None => Labels::default(),
        }
    }

    fn addresses_of_nodes(&self) -> impl Iterator<Item = (&Arc<str>, IpAddr)> {
        let listed = self.entities.values().filter_map(|entity| match entity {
            Entity::Node(node) => Some((&node.name, &node.addresses)),
            Entity::NodeAddressReport(report) => Some((&report.node, &report.addresses)),
            _ => None,
        });
        listed.flat_map(|(name, addresses)| addresses.iter().map(move |one| (name, one.to_canonical())))
    }

    /// Whether it is a pod's or a Service's address. In the networks of pods only what no node has is.
    pub(super) fn is_of_cluster(&self, address: IpAddr) -> bool {
        let is_service = self.entities.values().any(|entity| match entity {
            Entity::Service(service) => service.addresses.iter().any(|one| one.to_canonical() == address),
            _ => false,
        });
        let is_in_pod_network = self.nodes().any(|node| {
            node.pod_networks
                .iter()
                .any(|network| network_has(network, address))
        });
        let is_pod = self
            .pod_at(address)
            .is_some_and(|pod| !pod.host_network && pod.life == PodLife::Live);
        let is_node = self.addresses_of_nodes().any(|(_, one)| one == address);
        is_service || (!is_node && (is_pod || is_in_pod_network))
    }

    /// Whether a Service of this namespace and name, where these are given, has the address.
    pub(super) fn is_of_service(&self, namespace: Option<&str>, name: Option<&str>, address: IpAddr) -> bool {
        self.entities.values().any(|entity| match entity {
            Entity::Service(service) => {
                namespace.is_none_or(|one| one == service.key.namespace())
                    && name.is_none_or(|one| one == service.key.name())
                    && service.addresses.iter().any(|one| one.to_canonical() == address)
            }
            _ => false,
        })
    }

    /// Whether the API server is reached there.
    pub(super) fn is_at_api_server(&self, address: IpAddr, protocol: Protocol) -> bool {
        self.entities.values().any(|entity| match entity {
            Entity::ApiServerAddresses(declared) => {
                declared.addresses.iter().any(|one| one.to_canonical() == address)
            }
            Entity::Service(service) if service.key.to_string() == "default/kubernetes" => {
                service.addresses.iter().any(|one| one.to_canonical() == address)
                    && service
                        .ports
                        .iter()
                        .any(|port| protocol == Protocol::Port(port.transport, port.number.get()))
            }
            Entity::EndpointSlice(slice)
                if slice.key.namespace() == "default" && slice.service.as_deref() == Some("kubernetes") =>
            {
                slice
                    .addresses
                    .iter()
                    .any(|one| self.is_same_host(one.to_canonical(), address))
                    && slice
                        .ports
                        .iter()
                        .any(|(_, transport, port)| protocol == Protocol::Port(*transport, port.get()))
            }
            _ => false,
        })
    }

    /// Whether a connection to one of these ports of the API server's Service comes out there.
    pub(super) fn is_behind_api_server(&self, address: IpAddr, protocol: Protocol, ports: &Ports) -> bool {
        let Ports::OneOf(ports) = ports else {
            return false;
        };
        let slices = self.entities.values().filter_map(|entity| match entity {
            Entity::EndpointSlice(slice)
                if slice.key.namespace() == "default" && slice.service.as_deref() == Some("kubernetes") =>
            {
                Some(slice)
            }
            _ => None,
        });
        let mut names = slices
            .filter(|slice| {
                let mut endpoints = slice.addresses.iter();
                endpoints.any(|one| self.is_same_host(one.to_canonical(), address))
            })
            .flat_map(|slice| &slice.ports)
            .filter(|(_, transport, number)| protocol == Protocol::Port(*transport, number.get()))
            .map(|(name, transport, _)| (name.as_deref().unwrap_or(""), *transport));
        names.any(|(name, transport)| self.is_port_of_api_server(name, transport, ports))
    }

    fn is_port_of_api_server(&self, name: &str, transport: Transport, ports: &[Port]) -> bool {
        let of_service = self.entities.values().flat_map(|entity| match entity {
            Entity::Service(service) if service.key.to_string() == "default/kubernetes" => {
                service.ports.as_slice()
            }
            _ => &[],
        });
        let mut meant = of_service
            .filter(|port| port.transport == transport && port.name.as_deref().unwrap_or("") == name);
        meant.any(|of_service| {
            ports.iter().any(|port| match port {
                Port::Range(of, range) => *of == transport && range.contains(of_service.number.get()),
                Port::Icmp | Port::Named { .. } => false,
            })
        })
    }

    /// Whether no name opens the address: it is a node's, the API server's or a Service's, and that was not allowed.
    pub(super) fn is_closed_to_names(&self, subject: &Pod, address: IpAddr) -> bool {
        if let Some(behind) = behind_nat64(address)
            && self.is_closed_to_names(subject, behind)
        {
            return true;
        }
        let opens = self.settings.records.names_may_open;
        let has = |all: &[IpAddr]| all.iter().any(|one| one.to_canonical() == address);
        if (!opens.node && has(&self.held)) || has(&self.own_addresses(subject)) {
            return true;
        }
        self.entities.values().any(|entity| match entity {
            Entity::Node(node) => !opens.node && has(&node.addresses),
            Entity::NodeAddressReport(report) => !opens.node && has(&report.addresses),
            Entity::Service(service) if service.key.to_string() == "default/kubernetes" => {
                !opens.api_server && has(&service.addresses)
            }
            Entity::Service(service) => has(&service.addresses),
            Entity::ApiServerAddresses(declared) => !opens.api_server && has(&declared.addresses),
            Entity::EndpointSlice(slice) => {
                let is_its =
                    slice.key.namespace() == "default" && slice.service.as_deref() == Some("kubernetes");
                let mut all = slice.addresses.iter().map(IpAddr::to_canonical);
                !opens.api_server && is_its && all.any(|one| self.is_same_host(one, address))
            }
            Entity::Pod(_) | Entity::Namespace(_) | Entity::Policy(_) => false,
        })
    }

    /// Whether they are one address, or two of one node.
    fn is_same_host(&self, one: IpAddr, other: IpAddr) -> bool {
        let nodes_at = |wanted: IpAddr| -> Vec<&Arc<str>> {
            let all = self
                .addresses_of_nodes()
                .filter(|(_, address)| *address == wanted);
            all.map(|(node, _)| node).collect()
        };
        one == other || nodes_at(one).iter().any(|node| nodes_at(other).contains(node))
    }
}

/// The IPv4 address that is written in an address below 64:ff9b::/96.
pub(super) fn behind_nat64(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let octets = address.octets();
    let is_well_known = octets[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    is_well_known.then(|| IpAddr::from([octets[12], octets[13], octets[14], octets[15]]))
}

//! Whose an address is, where that has to be found out from the whole cluster: nodes with all that is reported of
//! them, what belongs to pods and Services, and the API server.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::model::Labels;
use egret_policies::model::cluster::{Entity, Node};
use egret_policies::simulator::Protocol;
use egret_shared::net::Transport;

use super::viewpoint::{Viewpoint, protocol_words};

/// A node that has an address, and what says so.
pub(super) struct NodeAddress<'a> {
    pub(super) node: &'a Arc<str>,
    pub(super) source: AddressSource,
}

/// What says that a node has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSource {
    Status,
    Report,
    Dnsd,
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status => "its status",
            Self::Report => "NodeAddressReport",
            Self::Dnsd => "dnsd answers there",
        })
    }
}

/// The nodes that have the address at the other end; for dnsd, the own node.
pub(super) fn nodes_at<'a>(view: &Viewpoint<'a>) -> Vec<NodeAddress<'a>> {
    let manifests = &view.asked.manifests;
    let by_status = manifests.nodes.iter().map(|node| (&node.name, &node.addresses));
    let by_status = by_status.map(|(node, addresses)| (node, addresses, AddressSource::Status));
    let reported = manifests.address_reports.iter().filter_map(|place| match place {
        Entity::NodeAddressReport(report) => Some((&report.node, &report.addresses, AddressSource::Report)),
        _ => None,
    });
    let mut found: Vec<NodeAddress<'a>> = by_status
        .chain(reported)
        .filter(|(_, addresses, _)| has(addresses, view.address))
        .map(|(node, _, source)| NodeAddress { node, source })
        .collect();
    if found.is_empty() && view.is_with_own_node() {
        let own = view.subject.pod.node.as_ref();
        found.extend(own.map(|node| NodeAddress {
            node,
            source: AddressSource::Dnsd,
        }));
    }
    found
}

/// The labels of a node; one without an object has none.
pub(super) fn labels_of_node(view: &Viewpoint<'_>, name: &str) -> Labels {
    let mut nodes = view.asked.manifests.nodes.iter();
    let node = nodes.find(|node| node.name.as_ref() == name);
    node.map(|node| node.labels.clone()).unwrap_or_default()
}

/// Whose of the cluster the other end is: a pod's, a Service's, or one of the addresses that pods of a node get.
pub(super) fn of_cluster(view: &Viewpoint<'_>) -> Option<String> {
    let manifests = &view.asked.manifests;
    if let Some(pod) = view.peer {
        return Some(format!("pod {}'s", pod.pod.key));
    }
    let mut services = manifests.services.iter();
    if let Some(service) = services.find(|service| has(&service.addresses, view.address)) {
        return Some(format!("Service {}'s", service.key));
    }
    let network = |node: &Node| {
        let mut networks = node.pod_networks.iter();
        let network = networks.find(|network| network.contains(&view.address))?;
        Some(format!(
            "in {network}, the network of the pods of node {}",
            node.name
        ))
    };
    manifests.nodes.iter().find_map(network)
}

/// A way in which an address is the API server's, with the ports at which it is; none stands for all.
pub(super) struct ApiServerAddress {
    pub(super) how: String,
    ports: Option<Vec<(Transport, u16)>>,
}

impl ApiServerAddress {
    pub(super) fn has(&self, protocol: Protocol) -> bool {
        let is_asked = |(transport, port): &(Transport, u16)| protocol == Protocol::Port(*transport, *port);
        self.ports.as_ref().is_none_or(|ports| ports.iter().any(is_asked))
    }

    /// The ports in words.
    pub(super) fn ports(&self) -> String {
        let ports = self.ports.iter().flatten();
        let words: Vec<String> = ports
            .map(|(transport, port)| protocol_words(Protocol::Port(*transport, *port)))
            .collect();
        words.join(", ")
    }
}

/// All ways in which the other end is the API server's: its Service, its endpoints, the nodes on which those are, and what
/// is declared.
pub(super) fn of_api_server(view: &Viewpoint<'_>) -> Vec<ApiServerAddress> {
    let manifests = &view.asked.manifests;
    let is_kubernetes =
        |namespace: &str, name: Option<&str>| namespace == "default" && name == Some("kubernetes");
    let services = manifests.services.iter().filter(|service| {
        is_kubernetes(service.key.namespace(), Some(service.key.name()))
            && has(&service.addresses, view.address)
    });
    let services = services.map(|service| ApiServerAddress {
        how: format!("Service {}", service.key),
        ports: Some(
            service
                .ports
                .iter()
                .map(|port| (port.transport, port.number.get()))
                .collect(),
        ),
    });
    let slices = manifests.slices.iter();
    let slices = slices.filter(|slice| is_kubernetes(slice.key.namespace(), slice.service.as_deref()));
    let endpoints = slices.filter_map(|slice| {
        let ports = slice
            .ports
            .iter()
            .map(|(_, transport, port)| (*transport, port.get()));
        Some(ApiServerAddress {
            how: endpoint(view, &slice.addresses, &slice.key.to_string())?,
            ports: Some(ports.collect()),
        })
    });
    let declared = manifests.address_reports.iter().filter_map(|place| match place {
        Entity::ApiServerAddresses(declared) if has(&declared.addresses, view.address) => {
            Some(ApiServerAddress {
                how: format!("APIServerAddresses {}", declared.name),
                ports: None,
            })
        }
        _ => None,
    });
    services.chain(endpoints).chain(declared).collect()
}

/// An endpoint itself, or another address of its node.
fn endpoint(view: &Viewpoint<'_>, endpoints: &[IpAddr], slice: &str) -> Option<String> {
    if has(endpoints, view.address) {
        return Some(format!("an endpoint in EndpointSlice {slice}"));
    }
    let at_other_end = nodes_at(view);
    endpoints.iter().find_map(|endpoint| {
        let there = nodes_at(&Viewpoint {
            address: endpoint.to_canonical(),
            ..*view
        });
        let same = |other: &&NodeAddress<'_>| there.iter().any(|node| node.node == other.node);
        let node = at_other_end.iter().find(same)?;
        Some(format!(
            "an address of node {}, on which the endpoint {endpoint} is (EndpointSlice {slice})",
            node.node
        ))
    })
}

fn has(addresses: &[IpAddr], address: IpAddr) -> bool {
    addresses.iter().any(|one| one.to_canonical() == address)
}

//! What is a node's, the cluster's, the API server's, and what a firewall calls external.

use std::net::IpAddr;

use egret_policies::simulator::Protocol;
use serde_json::Value;

use super::cluster::{Labels, addresses, get, items, texts, transport};
use super::kinds::only;
use super::peers::one_of;
use super::rules::Found;
use super::{Act, Ask, Broken, PolicyReader};
use crate::ids::Id;

const KINDS: [&str; 5] = ["networks", "nodes", "apiServer", "external", "domainNames"];

impl PolicyReader<'_> {
    pub(super) fn firewall_peer(
        &self,
        item: &Value,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
        found: &mut Found<'_>,
    ) -> Result<(), Broken> {
        let one = match one_of(item, &KINDS) {
            Ok(one) => vec![one],
            Err(Broken) if only(item, &KINDS).is_ok() && self.errs(Id::E12) => KINDS
                .iter()
                .filter_map(|word| Some((*word, get(item, word)?)))
                .collect(),
            Err(Broken) => return Err(Broken),
        };
        let peer = match ask.dialled {
            Some((address, _)) if self.errs(Id::C42) => address,
            _ => ask.peer,
        };
        let ask = &Ask { peer, ..*ask };
        for (word, field) in one {
            match word {
                "networks" => {
                    for net in self.networks(field)? {
                        let is_outside = !self.is_of_cluster(peer) || self.errs(Id::E4);
                        found.places |= self.net_has(&net, peer) && is_outside;
                    }
                }
                "nodes" => {
                    only(field, &["selector", "addresses"])?;
                    let selector = get(field, "selector");
                    found.places |= match get(field, "addresses").map(Value::as_str) {
                        None | Some(Some("All")) => self.is_node(selector, ask)?,
                        Some(Some("Reported")) => self.is_reported_node(selector, peer)?,
                        Some(_) => return Err(Broken),
                    };
                }
                "external" => {
                    only(field, &[])?;
                    found.places |= self.is_external(ask);
                }
                "apiServer" => self.api_server_peer(field, action, ask, found)?,
                _ => found.names |= self.firewall_names(field, action, ask)?,
            }
        }
        Ok(())
    }

    fn api_server_peer(
        &self,
        field: &Value,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
        found: &mut Found<'_>,
    ) -> Result<(), Broken> {
        only(field, &["additionalAddresses", "additionalNames"])?;
        found.places |= self.is_api_server(ask);
        if let Some(more) = get(field, "additionalAddresses") {
            let more = more.as_array().ok_or(Broken)?;
            let read: Vec<IpAddr> = addresses(more.iter());
            if read.len() != more.len() {
                return Err(Broken);
            }
            found.places |= read.contains(&ask.peer);
        }
        if let Some(names) = get(field, "additionalNames") {
            found.names |= self.firewall_names(names, action, ask)?;
        }
        Ok(())
    }

    fn firewall_names(
        &self,
        names: &Value,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
    ) -> Result<bool, Broken> {
        match action {
            Ok(Act::Deny | Act::Pass) => Err(Broken),
            Ok(Act::Allow) | Err(Broken) => self.is_observed(names, ask),
        }
    }

    /// Everything that is no pod's and no Service's; nodes are external.
    pub(super) fn is_external(&self, ask: &Ask<'_>) -> bool {
        let is_outside = !self.is_of_cluster(ask.peer);
        let everything = Labels::default();
        let is_node = self.cluster.nodes.keys().chain(self.cluster.reports.keys());
        let mut is_node = is_node.filter(|node| self.has_address(node, ask.peer));
        is_outside || is_node.next().is_some() || self.is_taken_for_own(None, &everything, ask)
    }

    // === Nodes ===

    /// Whether one of the nodes has the address in its status.
    pub(super) fn is_reported_node(&self, selector: Option<&Value>, address: IpAddr) -> Result<bool, Broken> {
        let mut is_node = false;
        self.node_selected(selector, &Labels::default())?;
        for node in self.cluster.nodes.values() {
            is_node |= self.node_selected(selector, &node.labels)? && node.addresses.contains(&address);
        }
        Ok(is_node)
    }

    /// Whether one of the nodes has the address, known or not.
    fn is_node(&self, selector: Option<&Value>, ask: &Ask<'_>) -> Result<bool, Broken> {
        self.node_selected(selector, &Labels::default())?;
        let mut is_node = false;
        for name in self.cluster.nodes.keys().chain(self.cluster.reports.keys()) {
            let labels = self.node_labels(name);
            is_node |= self.node_selected(selector, &labels)? && self.has_address(name, ask.peer);
        }
        let own = ask.subject.node.as_deref().map(|name| self.node_labels(name));
        Ok(is_node || own.is_some_and(|labels| self.is_taken_for_own(selector, &labels, ask)))
    }

    /// What the own node takes for its own, but for what is the cluster's.
    fn is_taken_for_own(&self, selector: Option<&Value>, labels: &Labels, ask: &Ask<'_>) -> bool {
        let is_own = ask.own_node
            && ask.subject.node.is_some()
            && self.node_selected(selector, labels).unwrap_or(false);
        if !is_own {
            return false;
        }
        if self.is_service(ask.peer) {
            return self.errs(Id::C38);
        }
        !self.is_of_cluster(ask.peer) && !self.errs(Id::E5)
    }

    fn node_selected(&self, selector: Option<&Value>, labels: &Labels) -> Result<bool, Broken> {
        selector.map_or(Ok(true), |selector| self.selects(selector, labels))
    }

    fn node_labels(&self, name: &str) -> Labels {
        self.cluster
            .nodes
            .get(name)
            .map(|node| node.labels.clone())
            .unwrap_or_default()
    }

    /// Whether a node has the address, in its status or its report.
    pub(super) fn has_address(&self, node: &str, address: IpAddr) -> bool {
        let in_status = self
            .cluster
            .nodes
            .get(node)
            .is_some_and(|node| node.addresses.contains(&address));
        let in_report = || {
            let report = self.cluster.reports.get(node);
            report.is_some_and(|report| report.contains(&address))
        };
        in_status || in_report()
    }

    /// Whether no name opens it: it is a node's, a Service's or the API server's.
    pub(super) fn is_closed_to_names(&self, address: IpAddr) -> bool {
        let mut nodes = self.cluster.nodes.keys().chain(self.cluster.reports.keys());
        let mut declared = self.of_kind("APIServerAddresses").flat_map(|object| {
            let list = items(get(object, "addresses"));
            addresses(list.iter().filter_map(|item| get(item, "ip")))
        });
        let mut endpoints = self.of_kind("EndpointSlice").filter(|slice| {
            let metadata = &slice["metadata"];
            let namespace = get(metadata, "namespace").map_or("default", |name| name.as_str().unwrap_or(""));
            namespace == "default" && metadata["labels"]["kubernetes.io/service-name"] == "kubernetes"
        });
        nodes.any(|node| self.has_address(node, address))
            || self.is_service(address)
            || declared.any(|one| one == address)
            || endpoints.any(|slice| self.is_endpoint(slice, address))
    }

    // === The cluster ===

    fn is_of_cluster(&self, address: IpAddr) -> bool {
        if self.is_service(address) {
            return true;
        }
        let in_pod_network = self
            .cluster
            .nodes
            .values()
            .any(|node| node.pod_networks.iter().any(|net| net.has(address)));
        let mut nodes = self.cluster.nodes.keys().chain(self.cluster.reports.keys());
        let is_nodes = nodes.any(|node| self.has_address(node, address));
        let is_inside = in_pod_network || self.owner(address).is_some();
        is_inside && (!is_nodes || self.errs(Id::E4))
    }

    fn is_service(&self, address: IpAddr) -> bool {
        self.of_kind("Service")
            .any(|service| cluster_addresses(service).contains(&address))
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.cluster
            .others
            .iter()
            .filter(move |object| object["kind"] == kind)
    }

    // === The API server ===

    fn is_api_server(&self, ask: &Ask<'_>) -> bool {
        let mut declared = self.of_kind("APIServerAddresses");
        let is_declared = declared.any(|object| {
            let list = items(get(object, "addresses"));
            addresses(list.iter().filter_map(|item| get(item, "ip"))).contains(&ask.peer)
        });
        is_declared || self.is_kubernetes_service(ask) || self.is_kubernetes_endpoint(ask)
    }

    fn kubernetes_service(&self) -> Option<&Value> {
        self.of_kind("Service").find(|service| {
            let metadata = &service["metadata"];
            let namespace = get(metadata, "namespace")
                .and_then(Value::as_str)
                .unwrap_or("default");
            namespace == "default" && metadata["name"] == "kubernetes"
        })
    }

    fn is_kubernetes_service(&self, ask: &Ask<'_>) -> bool {
        self.kubernetes_service().is_some_and(|service| {
            let ports = items(get(&service["spec"], "ports"));
            cluster_addresses(service).contains(&ask.peer) && ports.iter().any(|port| is_port(port, ask))
        })
    }

    fn is_kubernetes_endpoint(&self, ask: &Ask<'_>) -> bool {
        self.kubernetes_ports(ask).next().is_some()
    }

    /// A rule for a port of the API server's Service is also for the port behind it, of the same name.
    pub(super) fn is_behind_api_server(&self, rule: &Value, ask: &Ask<'_>) -> Result<bool, Broken> {
        let mut peers = items(get(rule, "to")).iter();
        let is_asked = peers.any(|peer| get(peer, "apiServer").is_some());
        let (Some(service), Protocol::Port(transport, _)) = (self.kubernetes_service(), ask.protocol) else {
            return Ok(false);
        };
        let name = |port: &Value| get(port, "name").cloned();
        let names: Vec<_> = self.kubernetes_ports(ask).map(name).collect();
        for port in items(get(&service["spec"], "ports")) {
            let number = get(port, "port").and_then(Value::as_u64);
            let is_same = super::cluster::transport(get(port, "protocol")) == Some(transport);
            let number = number.and_then(|number| u16::try_from(number).ok());
            let (Some(number), true, true) = (number, is_same && is_asked, names.contains(&name(port)))
            else {
                continue;
            };
            let protocol = Protocol::Port(transport, number);
            let there = Ask {
                protocol,
                dialled: None,
                ..*ask
            };
            for item in items(get(rule, "protocols")) {
                if self.firewall_port(item, &there)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The ports of endpoints of the API server at which the other end is.
    fn kubernetes_ports(&self, ask: &Ask<'_>) -> impl Iterator<Item = &Value> {
        let slices = self.of_kind("EndpointSlice").filter(|slice| {
            let metadata = &slice["metadata"];
            let namespace = get(metadata, "namespace")
                .and_then(Value::as_str)
                .unwrap_or("default");
            namespace == "default" && metadata["labels"]["kubernetes.io/service-name"] == "kubernetes"
        });
        let ask = *ask;
        let there = slices.filter(move |slice| self.is_endpoint(slice, ask.peer));
        let ports = there.flat_map(|slice| items(get(slice, "ports")));
        ports.filter(move |port| is_port(port, &ask))
    }

    /// Whether a slice has an endpoint at the address, or at the node that has it.
    fn is_endpoint(&self, slice: &Value, address: IpAddr) -> bool {
        let ready = items(get(slice, "endpoints")).iter().filter(|endpoint| {
            let ready = get(endpoint, "conditions").and_then(|conditions| get(conditions, "ready"));
            ready.is_none_or(|ready| ready == &Value::Bool(true))
        });
        let ends: Vec<IpAddr> = ready
            .flat_map(|endpoint| texts(get(endpoint, "addresses")))
            .filter_map(|text| Some(text.parse::<IpAddr>().ok()?.to_canonical()))
            .collect();
        let mut nodes = self.cluster.nodes.keys().chain(self.cluster.reports.keys());
        ends.contains(&address)
            || nodes.any(|node| {
                self.has_address(node, address) && ends.iter().any(|end| self.has_address(node, *end))
            })
    }
}

fn is_port(port: &Value, ask: &Ask<'_>) -> bool {
    let number = get(port, "port").and_then(Value::as_u64);
    match (ask.protocol, transport(get(port, "protocol"))) {
        (Protocol::Port(asked, number_asked), Some(transport)) => {
            asked == transport && number == Some(u64::from(number_asked))
        }
        _ => false,
    }
}

pub(super) fn cluster_addresses(service: &Value) -> Vec<IpAddr> {
    let spec = &service["spec"];
    let one = get(spec, "clusterIP").into_iter();
    addresses(one.chain(items(get(spec, "clusterIPs"))))
}

//! Rules for one connection, as they would be written in each kind of policy.

use std::net::IpAddr;

use egret_policies::model::{Direction, Labels};
use egret_policies::simulator::Protocol;
use egret_shared::name::DnsName;
use egret_shared::net::IpNet;
use egret_shared::net::Transport;

use crate::cluster::PodMember;

use super::addresses::of_api_server;
use super::viewpoint::Viewpoint;

/// Labels that controllers give to pods: a policy that names them holds until the next rollout.
const OF_CONTROLLERS: [&str; 6] = [
    "pod-template-hash",
    "pod-template-generation",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
];

/// A rule of a NetworkPolicy that allows the connection.
pub(super) fn network_policy_rule(view: &Viewpoint<'_>) -> String {
    let peer = match view.peers().first() {
        Some(peer) if peer.pod.key.namespace() == view.subject.pod.key.namespace() => {
            format!("{{podSelector: {}}}", labels(&peer.pod.labels))
        }
        Some(peer) => format!("{{{}}}", selectors(peer)),
        None => format!("{{ipBlock: {{cidr: {}}}}}", host(view.address)),
    };
    let ports = match view.protocol {
        Protocol::Port(transport, port) => format!(", ports: [{{protocol: {transport}, port: {port}}}]"),
        Protocol::Icmp | Protocol::Other => String::new(),
    };
    format!("{{{}: [{peer}]{ports}}}", side(view.direction))
}

/// A spec that isolates the pod in the direction and allows nothing.
pub(super) fn isolation(view: &Viewpoint<'_>) -> String {
    let direction = match view.direction {
        Direction::Egress => "Egress",
        Direction::Ingress => "Ingress",
    };
    let subject = labels(&view.subject.pod.labels);
    format!("{{podSelector: {subject}, policyTypes: [{direction}]}}")
}

/// Which cluster-wide kind a rule is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyDialect {
    /// ClusterNetworkPolicy.
    Cluster,
    /// AdminNetworkPolicy and BaselineAdminNetworkPolicy.
    Admin,
    /// ClusterEgressFirewall, which is about what is outside of the cluster, nodes and the API server.
    Firewall,
}

/// A rule of a cluster-wide policy for the connection; none where rules of the direction cannot name the
/// other end.
pub(super) fn cluster_rule(
    view: &Viewpoint<'_>,
    dialect: PolicyDialect,
    allows: bool,
    name: Option<&DnsName>,
) -> Option<String> {
    let is_api_server = || of_api_server(view).iter().any(|way| way.has(view.protocol));
    let peer = match (view.peers().first(), view.direction, name) {
        (None, Direction::Egress, None) if dialect == PolicyDialect::Firewall && is_api_server() => {
            "{apiServer: {}}".to_owned()
        }
        (Some(_), _, _) if dialect == PolicyDialect::Firewall => return None,
        (Some(peer), _, _) => format!("{{pods: {{{}}}}}", selectors(peer)),
        (None, Direction::Ingress, _) => return None,
        (None, Direction::Egress, Some(name)) if allows => format!("{{domainNames: [{name}]}}"),
        (None, Direction::Egress, _) => format!("{{networks: [{}]}}", host(view.address)),
    };
    let action = match (allows, dialect) {
        (true, PolicyDialect::Cluster) => "Accept",
        (true, PolicyDialect::Admin | PolicyDialect::Firewall) => "Allow",
        (false, PolicyDialect::Cluster | PolicyDialect::Admin | PolicyDialect::Firewall) => "Deny",
    };
    let ports = match view.protocol {
        Protocol::Port(transport, port) => ports(dialect, transport, port),
        Protocol::Icmp if dialect == PolicyDialect::Firewall => ", protocols: [{icmp: {}}]".to_owned(),
        Protocol::Icmp | Protocol::Other => String::new(),
    };
    Some(format!(
        "{{action: {action}, {}: [{peer}]{ports}}}",
        side(view.direction)
    ))
}

fn ports(dialect: PolicyDialect, transport: Transport, port: u16) -> String {
    match dialect {
        PolicyDialect::Cluster | PolicyDialect::Firewall => {
            let transport = transport.to_string().to_lowercase();
            format!(", protocols: [{{{transport}: {{destinationPort: {{number: {port}}}}}}}]")
        }
        PolicyDialect::Admin => format!(", ports: [{{portNumber: {{protocol: {transport}, port: {port}}}}}]"),
    }
}

const fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "to",
        Direction::Ingress => "from",
    }
}

fn selectors(peer: &PodMember) -> String {
    let namespace = Labels::of_namespace_without_object(peer.pod.key.namespace());
    format!(
        "namespaceSelector: {}, podSelector: {}",
        labels(&namespace),
        labels(&peer.pod.labels)
    )
}

fn labels(labels: &Labels) -> String {
    let lasting: Vec<String> = labels
        .iter()
        .filter(|(key, _)| !OF_CONTROLLERS.contains(key))
        .map(|(key, value)| format!("{key}: {}", scalar(value)))
        .collect();
    if lasting.is_empty() {
        return "{}".to_owned();
    }
    format!("{{matchLabels: {{{}}}}}", lasting.join(", "))
}

/// A string that YAML would not read as a number, a boolean or null (YAML 1.1, which Kubernetes reads).
fn scalar(text: &str) -> String {
    const WORDS: [&str; 11] = [
        "y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan",
    ];
    let is_word = WORDS.contains(&text.to_lowercase().as_str());
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) && !is_word {
        return text.to_owned();
    }
    format!("\"{text}\"")
}

fn host(address: IpAddr) -> String {
    let network = IpNet::from(address);
    if address.is_ipv6() {
        return format!("\"{network}\"");
    }
    network.to_string()
}

//! The cluster as objects, once for everybody who enforces it: 110 pods on the node, of which three are real, and policies of which
//! most are about others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use egret_integration::{Pod, node};
use serde_json::{Value, json};

use crate::ordered_rules::Ordered;

/// Real pods: two clients, one of which stands first in every order of pods and one last, and their server.
pub(crate) const FIRST: (&str, &str) = ("a-clients", "client-a");
pub(crate) const LAST: (&str, &str) = ("z-clients", "client-z");
pub(crate) const SERVER: (&str, &str) = ("m-servers", "server");
/// Pods of the node, the real ones included.
const LOCAL: usize = 110;
/// Pods of the node that are nothing but an interface and an address.
pub(crate) const STAND_INS: usize = LOCAL - 3;
/// Namespaces of these, and of policies that are about none of the real pods.
const NAMESPACES: usize = 100;
/// Pods on other nodes in the set that has the server.
const MOST_PEER_PODS: usize = 1_000;
/// What the server listens on, and is allowed to be asked for.
pub(crate) const PORT: u16 = 7000;
/// A port that no rule allows.
pub(crate) const FORBIDDEN: u16 = 9000;

/// How big it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// All policies.
    pub(crate) policies: usize,
    /// Those that select each of the real pods.
    pub(crate) of_pod: usize,
    /// Addresses in the sets that are asked for each new connection from a client.
    pub(crate) addresses: usize,
    /// Ordered rules about the clients, in front of all policies.
    pub(crate) ordered: Option<Ordered>,
}

impl Size {
    /// What is promised for.
    pub(crate) const TARGET: Self = Self {
        policies: 1_000,
        of_pod: 5,
        addresses: 10_000,
        ordered: None,
    };

    /// As little as there can be.
    pub(crate) const SMALL: Self = Self {
        policies: 10,
        of_pod: 1,
        addresses: 100,
        ordered: None,
    };

    /// All objects.
    pub(crate) fn objects<'a>(self, real: impl Iterator<Item = &'a Pod>) -> Vec<Value> {
        let real: Vec<&Pod> = real.collect();
        let names = [FIRST.0, LAST.0, SERVER.0].map(str::to_owned);
        let namespaces = names.into_iter().chain((0..NAMESPACES).map(name_of));
        let selected = [FIRST.0, LAST.0, SERVER.0]
            .into_iter()
            .flat_map(|namespace| (0..self.of_pod).map(move |number| self.policy(namespace, number)));
        let others = (3 * self.of_pod..self.policies).map(elsewhere);
        std::iter::once(node_object())
            .chain(namespaces.map(|name| namespace(&name)))
            .chain(real.into_iter().map(real_pod))
            .chain((0..STAND_INS).map(stand_in))
            .chain((0..self.peer_pods()).map(peer_pod))
            .chain(selected)
            .chain(others)
            .chain(self.ordered.into_iter().flat_map(Ordered::policies))
            .collect()
    }

    fn peer_pods(self) -> usize {
        (self.addresses / 2).min(MOST_PEER_PODS)
    }

    /// A policy of the clients or of the server. All of them ask for the ports that are measured, and only the last allows
    /// them to each other, so all sets are looked into.
    fn policy(self, namespace: &str, number: usize) -> Value {
        let is_last = number + 1 == self.of_pod;
        let is_server = namespace == SERVER.0;
        let blocks = (self.addresses - self.peer_pods()) / self.of_pod;
        let first = number * blocks;
        let blocks = (first..first + blocks)
            .map(|number| json!({"ipBlock": {"cidr": format!("{}/32", external(number))}}));
        let allowed = if is_server {
            json!({"namespaceSelector": {"matchLabels": {"role": "clients"}}})
        } else {
            json!({"namespaceSelector": {"matchLabels": {"role": "servers"}}, "podSelector": {"matchLabels": {"app": "server"}}})
        };
        let other = json!({"podSelector": {"matchLabels": {"app": format!("other-{number}")}}});
        let peer = if is_last { allowed } else { other };
        let peers: Vec<Value> = blocks.chain([peer]).collect();
        let ports = json!([{"protocol": "TCP", "port": 7000, "endPort": 7999}, {"protocol": "UDP", "port": 7000, "endPort": 7999}]);
        let mut spec = json!({"podSelector": {}});
        if is_server {
            spec["policyTypes"] = json!(["Ingress"]);
            spec["ingress"] = json!([{"from": peers, "ports": ports}]);
        } else {
            spec["policyTypes"] = json!(["Egress"]);
            spec["egress"] = json!([{"to": peers, "ports": ports}]);
        }
        network_policy(namespace, number, &spec)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "110 pods, {} policies, {} of each pod, {} addresses",
            self.policies, self.of_pod, self.addresses
        )
    }
}

fn network_policy(namespace: &str, number: usize, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": format!("p{number:05}"), "uid": uid(3, number)}, "spec": spec,
    })
}

/// About some of the pods that only stand in, and more that are elsewhere.
fn elsewhere(number: usize) -> Value {
    let low = number % 250;
    let spec = json!({
        "podSelector": {"matchLabels": {"app": format!("a{}", number / NAMESPACES % 10)}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a1"}}}], "ports": [{"protocol": "TCP", "port": 8080}]}],
        "egress": [{
            "to": [
                {"podSelector": {"matchLabels": {"app": "a2"}}},
                {"ipBlock": {"cidr": format!("198.18.{low}.0/24"), "except": [format!("198.18.{low}.64/26")]}},
            ],
            "ports": [{"protocol": "TCP", "port": 443}],
        }],
    });
    network_policy(&name_of(number % NAMESPACES), number, &spec)
}

fn name_of(number: usize) -> String {
    format!("n{number}")
}

fn node_object() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node::NAME},
        "status": {"addresses": [{"type": "InternalIP", "address": node::ADDRESS}]},
    })
}

fn namespace(name: &str) -> Value {
    let role = name.split('-').next_back().unwrap_or(name);
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, "role": role}},
    })
}

fn real_pod(pod: &Pod) -> Value {
    let labels = json!({"app": pod.name()});
    pod_object(
        (pod.namespace(), pod.name()),
        pod.uid(),
        &labels,
        node::NAME,
        pod.address(),
    )
}

fn stand_in(number: usize) -> Value {
    let labels = json!({"app": format!("a{}", number % 10)});
    let name = format!("stand-in-{number}");
    pod_object(
        (&name_of(number % NAMESPACES), &name),
        &stand_in_uid(number),
        &labels,
        node::NAME,
        stand_in_address(number),
    )
}

/// By which its cgroup is named.
pub(crate) fn stand_in_uid(number: usize) -> String {
    uid(1, number)
}

/// Elsewhere, and allowed to the clients as the server is.
fn peer_pod(number: usize) -> Value {
    let name = format!("server-{number}");
    let address = u32::from(Ipv4Addr::new(10, 79, 0, 0)) + low(number);
    pod_object(
        (SERVER.0, &name),
        &uid(2, number),
        &json!({"app": "server"}),
        "node-2",
        Ipv4Addr::from(address).into(),
    )
}

fn pod_object(
    (namespace, name): (&str, &str),
    uid: &str,
    labels: &Value,
    node: &str,
    address: IpAddr,
) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none.example/none"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

/// Where a stand-in would be: in front of the real ones, which are so the last whose addresses are asked for.
pub(crate) fn stand_in_address(number: usize) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 75, 0, 1)) + low(number)).into()
}

/// Not one network: every third address, so that nothing can be made shorter.
fn external(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + 3 * low(number))
}

fn uid(kind: usize, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

fn low(number: usize) -> u32 {
    u32::try_from(number).expect("a bench has fewer objects")
}

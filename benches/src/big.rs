//! A big cluster as people run it, made by rule: some hundred namespaces with their own NetworkPolicies, and on top of
//! them policies of the cluster's administrators that select pods of many namespaces at once.
//!
//! Objects are either of namespaces in which the node `here` has pods, always as many, or of namespaces elsewhere, as
//! many as are asked for: so it can be measured whether those elsewhere cost anything.

use std::fmt::Write as _;

use egret_policies::api::manifest;
use egret_policies::lower::lower;
use egret_policies::model::Shared;
use egret_policies::model::cluster::Entity;

pub mod change;
mod admin;
mod part;

pub use part::Part;

/// The pods of node `here`.
pub const LOCAL: usize = 110;
/// The namespaces that these are of.
pub const NAMESPACES_HERE: usize = 100;
/// The other namespaces.
pub const NAMESPACES_ELSEWHERE: usize = 400;
/// The NetworkPolicies of the former.
const POLICIES_HERE: usize = 1_890;
/// The pods of the former; all but `LOCAL` are on other nodes.
const PODS_HERE: usize = 1_000;
/// AdminNetworkPolicies, ClusterNetworkPolicies and a BaselineAdminNetworkPolicy.
pub const ADMIN_POLICIES: usize = 100;
/// ClusterEgressFirewalls.
pub const FIREWALLS: usize = 10;
const NODES: usize = 50;
const SERVICES: usize = 1_000;

/// How much of a cluster there is besides what concerns node `here`.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    /// NetworkPolicies of namespaces of which no pod is here.
    pub policies: usize,
    /// Pods of them.
    pub pods: usize,
}

impl Elsewhere {
    /// 10,000 policies and 5,000 pods in all.
    pub const TARGET: Self = Self {
        policies: 10_000 - POLICIES_HERE - ADMIN_POLICIES - FIREWALLS,
        pods: 5_000 - PODS_HERE,
    };

    /// All policies of the cluster.
    #[must_use]
    pub const fn all_policies(self) -> usize {
        POLICIES_HERE + ADMIN_POLICIES + FIREWALLS + self.policies
    }

    /// All pods of the cluster, but the gateway.
    #[must_use]
    pub const fn all_pods(self) -> usize {
        PODS_HERE + self.pods
    }

    /// The objects as manifests, one by one: each has one document.
    pub fn manifests(self) -> impl Iterator<Item = String> {
        let namespaces = (0..NAMESPACES_HERE + NAMESPACES_ELSEWHERE).map(namespace);
        let pods_here =
            (0..PODS_HERE).map(|number| pod(number, number % NAMESPACES_HERE, number / NAMESPACES_HERE));
        let pods_elsewhere = (0..self.pods).map(|number| {
            let namespace = NAMESPACES_HERE + number % NAMESPACES_ELSEWHERE;
            pod(PODS_HERE + number, namespace, number / NAMESPACES_ELSEWHERE)
        });
        let policies_here =
            (0..POLICIES_HERE).map(|number| policy(number % NAMESPACES_HERE, number / NAMESPACES_HERE));
        let policies_elsewhere = (0..self.policies).map(|number| {
            let namespace = NAMESPACES_HERE + number % NAMESPACES_ELSEWHERE;
            policy(namespace, number / NAMESPACES_ELSEWHERE)
        });
        namespaces
            .chain((0..NODES).flat_map(|number| [node(number), report(number)]))
            .chain((0..SERVICES).map(service))
            .chain(API_SERVER.iter().map(ToString::to_string))
            .chain([GATEWAY.to_owned()])
            .chain(pods_here)
            .chain(pods_elsewhere)
            .chain(policies_here)
            .chain(policies_elsewhere)
            .chain((0..ADMIN_POLICIES).map(admin::policy))
            .chain((0..FIREWALLS).map(admin::firewall))
    }

    /// The same as the compiler takes them from a source.
    pub fn entities(self) -> impl Iterator<Item = Entity> {
        let mut shared = Shared::default();
        self.manifests()
            .flat_map(|text| entities_of(&text))
            .map(move |entity| shared.entity(entity))
    }
}

/// What a manifest stands for.
///
/// # Panics
/// When it cannot be read or there is something to say of it: a bug in the bench.
pub fn entities_of(text: &str) -> Vec<Entity> {
    let read = manifest::read(text, "bench.yaml");
    assert!(read.problems.is_empty(), "{:?}", read.problems.first());
    let lowered = read.documents.iter().map(|document| lower(&document.object));
    lowered
        .flat_map(|lowered| {
            assert!(
                lowered.diagnostics.is_empty(),
                "{:?}",
                lowered.diagnostics.first()
            );
            lowered.entities
        })
        .collect()
}

fn name_of(namespace: usize) -> String {
    if namespace < NAMESPACES_HERE {
        format!("here-{namespace}")
    } else {
        format!("elsewhere-{namespace}")
    }
}

/// A namespace by its number, with the labels by which administrators select it.
#[must_use]
pub fn namespace(number: usize) -> String {
    let env = ["prod", "stage", "dev"][number % 3];
    let name = name_of(number);
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels: {{kubernetes.io/metadata.name: {name}, team: t{}, env: {env}}}\n",
        number % 7
    )
}

/// A pod of a namespace; both families, the labels that a Deployment from a chart has, and two named ports.
#[must_use]
pub fn pod(number: usize, namespace: usize, of_namespace: usize) -> String {
    let app = (number + of_namespace) % 10;
    let node = if number < LOCAL {
        "here".to_owned()
    } else {
        format!("node-{}", number % (NODES - 1) + 1)
    };
    let (high, middle, low) = (64 + (number >> 16), number >> 8 & 255, number & 255);
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  namespace: {}\n  \
         uid: 0f8fad5b-d9cb-469f-a165-{number:012x}\n  creationTimestamp: 2026-01-01T00:00:00Z\n  \
         labels: {{app: a{app}, app.kubernetes.io/name: {}, tier: t{}, version: v{}, pod-template-hash: 7d9f8b6c54}}\n\
         spec:\n  nodeName: {node}\n  containers:\n  - name: main\n    image: registry.test/a{app}:1\n    \
         ports: [{{name: web, containerPort: 8080}}, {{name: metrics, containerPort: 9090}}]\n\
         status:\n  phase: Running\n  startTime: 2026-01-01T00:00:01Z\n  \
         podIPs: [{{ip: 10.{high}.{middle}.{low}}}, {{ip: \"fd00:{high:x}::{number:x}\"}}]\n",
        pod_name(number, of_namespace),
        name_of(namespace),
        if of_namespace == 7 {
            "prometheus".to_owned()
        } else {
            format!("a{app}")
        },
        of_namespace % 3,
        number % 4,
    )
}

fn pod_name(number: usize, of_namespace: usize) -> String {
    format!("a{}-7d9f8b6c54-{number}", (number + of_namespace) % 10)
}

fn key_of(number: usize, namespace: usize, of_namespace: usize) -> String {
    format!("{}/{}", name_of(namespace), pod_name(number, of_namespace))
}

/// The address of a local pod, by its number.
#[must_use]
pub fn address_of(number: usize) -> std::net::IpAddr {
    let octet = u8::try_from(number).expect("there are fewer than 256 local pods");
    [10, 64, 0, octet].into()
}

/// A NetworkPolicy: five rules with eight peers. The first peer of its ingress is a set of its own in every policy,
/// and the gateway is in all of them.
#[must_use]
pub fn policy(namespace: usize, number: usize) -> String {
    let app = |offset: usize| (number + offset) % 10;
    let subject = match number % 10 {
        9 => "{}".to_owned(),
        3 => "{matchExpressions: [{key: app, operator: In, values: [a3, a4]}, {key: legacy, operator: DoesNotExist}]}".to_owned(),
        app => format!("{{matchLabels: {{app: a{app}}}}}"),
    };
    let (low, name) = (namespace % 256, name_of(namespace));
    let mut text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: np-{number}, namespace: {name}}}\n\
         spec:\n  podSelector: {subject}\n  policyTypes: [Ingress, Egress]\n  egress:\n"
    );
    let team = (namespace + number) % 7;
    write!(
        text,
        "  - to:\n    - podSelector: {{matchLabels: {{app: a{}}}}}\n    \
         - namespaceSelector: {{matchLabels: {{team: t{team}, env: prod}}}}\n      podSelector: {{matchLabels: {{app: a{}}}}}\n    \
         ports: [{{port: web}}, {{protocol: TCP, port: 443}}]\n  \
         - to:\n    - ipBlock: {{cidr: 198.{}.{low}.0/24, except: [198.{}.{low}.16/28, 198.{}.{low}.128/26]}}\n    \
         - ipBlock: {{cidr: \"2001:db8:{namespace:x}::/48\"}}\n    \
         ports: [{{port: 8000, endPort: 8100}}, {{port: 5432}}]\n  \
         - to:\n    - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: kube-system}}}}\n      \
         podSelector: {{matchLabels: {{k8s-app: kube-dns}}}}\n    ports: [{{protocol: UDP, port: 53}}, {{protocol: TCP, port: 53}}]\n",
        app(1),
        app(2),
        18 + number % 2,
        18 + number % 2,
        18 + number % 2,
    )
    .expect("a String takes all text");
    write!(
        text,
        "  ingress:\n  - from:\n    - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: gateways}}}}\n      \
         podSelector: {{matchExpressions: [{{key: role, operator: In, values: [gateway, probe-{name}-{number}]}}]}}\n    \
         ports: [{{port: web}}]\n  \
         - from:\n    - podSelector: {{matchLabels: {{app: a{}}}}}\n    \
         - namespaceSelector: {{matchExpressions: [{{key: env, operator: NotIn, values: [dev]}}]}}\n      \
         podSelector: {{matchLabels: {{app.kubernetes.io/name: prometheus}}}}\n    \
         ports: [{{port: metrics}}, {{protocol: TCP, port: 9100}}]\n",
        app(3),
    )
    .expect("a String takes all text");
    text
}

/// In the peers of every NetworkPolicy.
pub const GATEWAY: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: gateway, namespace: gateways, labels: {role: gateway}}\n\
spec: {nodeName: node-1}\nstatus: {phase: Running, podIPs: [{ip: 10.63.0.1}, {ip: \"fd00:63::1\"}]}\n";

const API_SERVER: [&str; 2] = [
    "apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\n\
     spec: {clusterIPs: [10.96.0.1], ports: [{port: 443, targetPort: 6443}]}\n",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: kubernetes, namespace: default, labels: \
     {kubernetes.io/service-name: kubernetes}}\naddressType: IPv4\nendpoints: [{addresses: [192.168.0.1]}]\nports: [{port: 6443}]\n",
];

fn node_name(number: usize) -> String {
    match number {
        0 => "here".to_owned(),
        number => format!("node-{number}"),
    }
}

fn node(number: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {}, labels: {{kubernetes.io/os: linux, pool: p{}}}}}\n\
         spec: {{podCIDRs: [10.128.{number}.0/24]}}\nstatus: {{addresses: [{{type: InternalIP, address: 192.168.0.{}}}]}}\n",
        node_name(number),
        number % 5,
        number + 1,
    )
}

fn report(number: usize) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {{name: {}}}\n\
         addresses: [{{ip: 192.168.0.{}, interface: eth0}}, {{ip: 172.17.0.1, interface: docker0}}, {{ip: 10.128.{number}.1, interface: cni0}}]\n",
        node_name(number),
        number + 1,
    )
}

fn service(number: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: {}}}\n\
         spec: {{selector: {{app: a{}}}, clusterIPs: [10.97.{}.{}], ports: [{{name: web, port: 80, targetPort: web}}]}}\n",
        name_of(number % (NAMESPACES_HERE + NAMESPACES_ELSEWHERE)),
        number % 10,
        number >> 8,
        number & 255,
    )
}

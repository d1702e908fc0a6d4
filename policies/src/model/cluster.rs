//! What the cluster holds besides policies, as far as policy depends on it.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::net::{IpNet, Transport};
use egret_shared::pod::PodKey;

use super::{Enforcement, Labels, Policy, PolicyId};

/// An object that the compiler knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entity {
    /// A namespace.
    Namespace(Namespace),
    /// A pod, or a workload's template that stands for one.
    Pod(Pod),
    /// A node.
    Node(Node),
    /// A Service.
    Service(Service),
    /// Endpoints of a Service.
    EndpointSlice(EndpointSlice),
    /// What a node's agent says of its addresses.
    NodeAddressReport(NodeAddressReport),
    /// What the platform says of the API server's addresses.
    ApiServerAddresses(ApiServerAddresses),
    /// A policy of any kind.
    Policy(Policy),
}

impl Entity {
    /// What it is known by.
    #[must_use]
    pub fn key(&self) -> EntityKey {
        match self {
            Self::Namespace(namespace) => EntityKey::Namespace(Arc::clone(&namespace.name)),
            Self::Pod(pod) => EntityKey::Pod(pod.key.clone()),
            Self::Node(node) => EntityKey::Node(Arc::clone(&node.name)),
            Self::Service(service) => EntityKey::Service(service.key.clone()),
            Self::EndpointSlice(slice) => EntityKey::EndpointSlice(slice.key.clone()),
            Self::NodeAddressReport(report) => EntityKey::NodeAddressReport(Arc::clone(&report.node)),
            Self::ApiServerAddresses(declared) => EntityKey::ApiServerAddresses(Arc::clone(&declared.name)),
            Self::Policy(policy) => EntityKey::Policy(policy.id.clone()),
        }
    }
}

/// What an object is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityKey {
    /// A namespace by name.
    Namespace(Arc<str>),
    /// A pod.
    Pod(PodKey),
    /// A node by name.
    Node(Arc<str>),
    /// A Service by namespace and name.
    Service(PodKey),
    /// An EndpointSlice by namespace and name.
    EndpointSlice(PodKey),
    /// A report by the node's name.
    NodeAddressReport(Arc<str>),
    /// API server addresses by the object's name.
    ApiServerAddresses(Arc<str>),
    /// A policy.
    Policy(PolicyId),
}

impl fmt::Display for EntityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "Namespace/{name}"),
            Self::Pod(pod) => write!(f, "Pod/{pod}"),
            Self::Node(name) => write!(f, "Node/{name}"),
            Self::Service(service) => write!(f, "Service/{service}"),
            Self::EndpointSlice(slice) => write!(f, "EndpointSlice/{slice}"),
            Self::NodeAddressReport(node) => write!(f, "NodeAddressReport/{node}"),
            Self::ApiServerAddresses(name) => write!(f, "APIServerAddresses/{name}"),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}

/// A namespace. One without an object has only its default label, `kubernetes.io/metadata.name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels, the default one among them.
    pub labels: Labels,
    /// Whether policies are enforced on its pods, or only asked.
    pub enforcement: Enforcement,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// `metadata.uid`; of a static pod the one under which it runs.
    pub uid: Option<Arc<str>>,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// `status.podIPs`, in their order.
    pub addresses: Vec<IpAddr>,
    /// Whether its addresses are the node's: then it is neither subject nor peer.
    pub host_network: bool,
    /// Whether it still runs.
    pub life: PodLife,
    /// `status.startTime`, else `metadata.creationTimestamp`, as written: RFC 3339 sorts by time. Of two
    /// live pods with one address, the newer has it.
    pub started: Option<Arc<str>>,
    /// Container ports with names, of containers and sidecars (restartable init containers).
    pub ports: Vec<NamedPort>,
}

/// Whether a pod's addresses are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLife {
    /// Pending, running, unknown, or terminating: subject and peer.
    Live,
    /// Succeeded or Failed: neither, and its address may be another's.
    Terminal,
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// Its name.
    pub name: Arc<str>,
    /// Its protocol.
    pub transport: Transport,
    /// Its number.
    pub number: NonZeroU16,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// `status.addresses` of type InternalIP and ExternalIP.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_networks: Vec<IpNet>,
}

/// All addresses of a node, as its agent sees them: bridges, second interfaces and tunnels among them, but
/// neither loopback nor the virtual addresses of Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddressReport {
    /// The node.
    pub node: Arc<str>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Further addresses of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServerAddresses {
    /// The object's name.
    pub name: Arc<str>,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
}

/// A Service, as far as a probe can ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: PodKey,
    /// `spec.selector`; none for a Service with endpoints of its own.
    pub selector: Option<Labels>,
    /// `spec.clusterIPs` that are addresses.
    pub addresses: Vec<IpAddr>,
    /// `spec.externalIPs`, and those of `status.loadBalancer.ingress` that nodes take for the Service's. Whoever
    /// writes the Service chooses them, so nothing but where it is reached depends on them: they are not the cluster's.
    pub external_addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, where it has one.
    pub name: Option<Arc<str>>,
    /// Its protocol.
    pub transport: Transport,
    /// The port at the Service's address.
    pub number: NonZeroU16,
    /// The port at which every node takes connections for it.
    pub node_port: Option<NonZeroU16>,
    /// The port at the endpoints.
    pub target: TargetPort,
}

/// The port of a Service at its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// A number; the Service's own where none is written.
    Number(NonZeroU16),
    /// A container port's name, resolved for each endpoint.
    Name(Arc<str>),
}

/// Endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub key: PodKey,
    /// The name of the Service, of the label `kubernetes.io/service-name`.
    pub service: Option<Arc<str>>,
    /// The addresses of ready endpoints.
    pub addresses: Vec<IpAddr>,
    /// Port name, protocol and number; a number that is missing is left out.
    pub ports: Vec<(Option<Arc<str>>, Transport, NonZeroU16)>,
}

/// Whether a Service is the one in front of the API server.
#[must_use]
pub fn is_api_server(key: &PodKey) -> bool {
    key.namespace() == "default" && key.name() == "kubernetes"
}

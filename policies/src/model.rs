//! What a policy means, whatever kind it was written as. Nothing here is empty by accident: the three
//! empties of the API are read once, in `lower`, and have words here.

use std::fmt;
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{IpNet, PortRange, Transport};

mod selector;
mod labels;
mod network;
mod shared;
pub mod api_server;
pub mod cluster;

pub use labels::Labels;
pub use network::subtract;
pub use selector::{NAME_LABEL, NamespaceSelector, Requirement, Selector, Values};
pub use shared::Shared;

/// A policy as it was understood: one that was not understood at all isolates what it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which object it was.
    pub id: PolicyId,
    /// Where it stands in the order of evaluation.
    pub rank: Rank,
    /// The pods it is about (never hostNetwork pods).
    pub subject: Subject,
    /// What it says of connections that its pods open.
    pub egress: Effect,
    /// What it says of connections to its pods.
    pub ingress: Effect,
    /// Whether its egress is also asked about clients that are no pods.
    pub exposure: Exposure,
    /// Whether it decides, or is only asked what it would decide.
    pub enforcement: Enforcement,
}

impl Policy {
    /// What it says of a direction.
    #[must_use]
    pub const fn effect(&self, direction: Direction) -> &Effect {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    /// The rules of both directions.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.egress.rules().iter().chain(self.ingress.rules())
    }
}

/// A kind of policy object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `policy.egret.dev` ClusterEgressFirewall.
    ClusterEgressFirewall,
    /// `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy; before an AdminNetworkPolicy of its priority.
    ClusterNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` AdminNetworkPolicy.
    AdminNetworkPolicy,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
    /// `extensions/v1beta1` NetworkPolicy, the form of 2016.
    LegacyNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` BaselineAdminNetworkPolicy; behind every Baseline ClusterNetworkPolicy.
    BaselineAdminNetworkPolicy,
    /// `policy.egret.dev` APIServerEgressPolicy with its audited rules as if they denied: it is only asked.
    AuditedApiServerEgressPolicy,
    /// `policy.egret.dev` APIServerEgressPolicy.
    ApiServerEgressPolicy,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterEgressFirewall => "ClusterEgressFirewall",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::NetworkPolicy | Self::LegacyNetworkPolicy => "NetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::AuditedApiServerEgressPolicy | Self::ApiServerEgressPolicy => "APIServerEgressPolicy",
        })
    }
}

/// A policy object: `Kind/name` or `Kind/namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; none for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", self.kind, self.name),
            None => write!(f, "{}/{}", self.kind, self.name),
        }
    }
}

/// The order of evaluation in each direction; the first three may be final, the last allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// ClusterEgressFirewall: only its Deny is final.
    ClusterEgressFirewall,
    /// AdminNetworkPolicy and ClusterNetworkPolicy of tier Admin.
    Admin,
    /// NetworkPolicy: final for an isolated pod.
    NetworkPolicy,
    /// ClusterNetworkPolicy of tier Baseline, then BaselineAdminNetworkPolicy.
    Baseline,
}

impl Tier {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [
        Self::ClusterEgressFirewall,
        Self::Admin,
        Self::NetworkPolicy,
        Self::Baseline,
    ];

    /// The word for it in output and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ClusterEgressFirewall => "cef",
            Self::Admin => "admin",
            Self::NetworkPolicy => "np",
            Self::Baseline => "baseline",
        }
    }
}

/// Where a policy stands: by tier, then priority (lower is stronger), then its `PolicyId`, which puts
/// ClusterNetworkPolicy before AdminNetworkPolicy and breaks ties by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The tier.
    pub tier: Tier,
    /// 0 to 1000; `u32::MAX` for a BaselineAdminNetworkPolicy, 0 where the kind has none.
    pub priority: u32,
}

/// The two directions, as seen by the pod that a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Connections that the pod opens.
    Egress,
    /// Connections to the pod.
    Ingress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Egress, Self::Ingress];

    /// The word for it in output and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
        }
    }
}

/// The pods that a policy is about: both selectors must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Their namespaces.
    pub namespaces: NamespaceSelector,
    /// The pods themselves.
    pub pods: Selector,
}

/// What becomes of clients that are no pods, where a Service leads them to what the egress of a policy denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exposure {
    /// They are refused as a pod would be.
    Reject,
    /// They are no concern of it: every kind but ClusterEgressFirewall.
    Ignore,
}

/// Whether what a policy denies is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcement {
    /// It is.
    Enforced,
    /// It is as if it were not there, and what it would deny is told (audit).
    Audited,
}

impl Enforcement {
    /// Whether it is only asked.
    #[must_use]
    pub const fn is_audit(self) -> bool {
        matches!(self, Self::Audited)
    }
}

/// What a policy does to a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does not speak of this direction.
    None,
    /// Its rules. In the NetworkPolicy tier this isolates, whether or not there is a rule; in the others
    /// they are tried in order, the first match decides, and without one the next policy is asked.
    Rules(Arc<[Rule]>),
    /// Rules of the form of 2016: they isolate nobody. They allow where the annotation of that form isolates
    /// the namespace (a `LegacyNetworkPolicy` with `Rules`), and say nothing where it does not.
    Opens(Arc<[Rule]>),
}

impl Effect {
    /// Its rules, whether they isolate or not.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        match self {
            Self::None => &[],
            Self::Rules(rules) | Self::Opens(rules) => rules,
        }
    }
}

/// One rule: matches when a peer and a port match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its index in the list of the object.
    pub index: usize,
    /// Its name, where the kind has names.
    pub name: Option<Arc<str>>,
    /// What a match does.
    pub action: Action,
    /// The other end.
    pub peers: Peers,
    /// The destination port.
    pub ports: Ports,
}

/// What a match does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Allowed in this direction, no further rule is asked.
    Allow,
    /// Dropped.
    Deny,
    /// The rest of this tier is skipped.
    Pass,
}

/// The peers of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Every peer: pods, nodes and anything else.
    Any,
    /// These; an empty list matches nothing.
    OneOf(Arc<[Peer]>),
}

impl Peers {
    /// Those that are listed: none where every peer matches.
    #[must_use]
    pub fn listed(&self) -> &[Peer] {
        match self {
            Self::Any => &[],
            Self::OneOf(peers) => peers,
        }
    }
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Pods of the cluster (never hostNetwork pods, never terminal ones), by both selectors.
    Pods {
        /// Their namespaces.
        namespaces: NamespaceSelector,
        /// The pods themselves.
        pods: Selector,
    },
    /// Addresses; exceptions are already subtracted, so the list is what is matched and nothing else.
    Networks(Vec<IpNet>),
    /// Nodes by their labels, at the addresses in their status.
    Nodes(Selector),
    /// Nodes by their labels, at all addresses that they have: those that their agents report, those in their
    /// status, and of the own node whatever it takes for its own.
    NodeAddresses(Selector),
    /// Addresses as `Networks`, but never those of pods or Services of the cluster.
    External(Vec<IpNet>),
    /// The API server, wherever it can be reached, at its ports.
    ApiServer,
    /// Services at the addresses that the cluster gave them, before any endpoint is chosen. A pod's connection is judged
    /// behind Services, so no kind for pods has these.
    Services {
        /// Their namespace; every one where none is named.
        namespace: Option<Arc<str>>,
        /// The Service of this name; every one where none is named.
        name: Option<Arc<str>>,
    },
    /// What the subject pod was told for names that match one of these, while it is live.
    Names(Vec<NamePattern>),
}

/// The ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every protocol and port, ICMP among them.
    Any,
    /// These; an empty list matches nothing.
    OneOf(Arc<[Port]>),
}

/// A port at the destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// Ports of one protocol.
    Range(Transport, PortRange),
    /// ICMP and ICMPv6.
    Icmp,
    /// The container port of this name at the destination pod. It matches nothing where the destination
    /// is no pod.
    Named {
        /// The name.
        name: Arc<str>,
        /// The protocol that the container port must have; any where the kind does not say.
        transport: Option<Transport>,
    },
}

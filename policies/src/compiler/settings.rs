//! What the compiler is to do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;

use crate::model::Enforcement;
use crate::records::RecordSettings;

/// Which pods are compiled, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whose pods get rules.
    pub node: NodeScope,
    /// How records are kept.
    pub records: RecordSettings,
    /// What a pod that a NetworkPolicy isolates may ask of its own node.
    pub pod_to_own_node: PodToOwnNode,
    /// Where dnsd answers, and in whose place.
    pub dns: DnsStandIn,
    /// Whether policies are enforced at all, or only asked.
    pub enforcement: Enforcement,
}

impl Settings {
    /// The usual settings for a scope.
    #[must_use]
    pub fn for_scope(node: NodeScope) -> Self {
        Self {
            node,
            records: RecordSettings::default(),
            pod_to_own_node: PodToOwnNode::Allow,
            dns: DnsStandIn::default(),
            enforcement: Enforcement::Enforced,
        }
    }
}

/// dnsd in the place of the DNS Service of the cluster: what a rule for the egress of a pod says of the pods of the
/// Service at port 53, UDP and TCP, it says of these addresses at that port as well. So policies that were
/// written for kube-dns go on working, and nothing else at these addresses is opened or closed by it.
///
/// The pods of the Service are those that its selector selects in its namespace, ready or not, as long as they
/// live and have an address of their own: readiness comes and goes, and what a policy says should not. Without
/// the Service, without a selector, or without such a pod, dnsd stands for nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsStandIn {
    /// The Service.
    pub service: PodKey,
    /// The addresses at which dnsd listens; without any, nobody stands in for the Service.
    pub addresses: BTreeSet<IpAddr>,
}

impl Default for DnsStandIn {
    /// The Service of kubeadm and most others, and no address.
    fn default() -> Self {
        Self {
            service: PodKey::new("kube-system", "kube-dns"),
            addresses: BTreeSet::new(),
        }
    }
}

/// Whose pods get rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeScope {
    /// Those of one node.
    One(Arc<str>),
    /// All: for verdicts away from any node.
    All,
}

/// What a pod that a NetworkPolicy isolates for egress may ask of its own node. The documentation of
/// NetworkPolicy exempts that traffic; a Deny of another tier wins over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodToOwnNode {
    /// Everything, as the documentation says.
    Allow,
    /// Port 53 over UDP and TCP.
    Dns,
    /// Only what policies allow.
    Enforce,
}

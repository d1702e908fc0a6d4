//! What the compiler is to do.

use std::sync::Arc;

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
}

impl Settings {
    /// The usual settings for a scope.
    #[must_use]
    pub fn for_scope(node: NodeScope) -> Self {
        Self {
            node,
            records: RecordSettings::default(),
            pod_to_own_node: PodToOwnNode::Allow,
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

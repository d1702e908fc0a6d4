//! The ends of connections, as people and programs read them.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use egret_shared::pod::PodKey;

/// An end of connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Pods of a workload.
    Pods(Arc<Workload>),
    /// The node on which the pod at the other end runs.
    OwnNode,
    /// A node, for pods that run on others.
    Node(Arc<str>),
    /// Addresses that are neither a pod's nor a node's.
    Outside,
    /// Addresses of that kind which the pod was told for a name that matches this.
    Name(Arc<str>),
}

/// Pods that policies treat alike.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Their namespace.
    pub namespace: Arc<str>,
    /// The name of what they belong to, or of the only one.
    pub name: Arc<str>,
    /// The kind of what they belong to; `Pod` where that is nothing.
    pub kind: Arc<str>,
    /// The pods.
    pub pods: Arc<BTreeSet<PodKey>>,
}

impl Workload {
    const fn identity(&self) -> (&Arc<str>, &Arc<str>, &Arc<str>) {
        (&self.namespace, &self.name, &self.kind)
    }
}

impl PartialEq for Workload {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Workload {}

impl PartialOrd for Workload {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Workload {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl std::hash::Hash for Workload {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(workload) => workload.fmt(f),
            Self::OwnNode => f.write_str("own node"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Outside => f.write_str("outside"),
            Self::Name(pattern) => f.write_str(pattern),
        }
    }
}

/// The two ends of connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndPair {
    /// Who opens the connection.
    pub from: End,
    /// To whom.
    pub to: End,
}

//! Why a probe cannot be judged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::name::DnsName;
use egret_shared::net::Family;
use egret_shared::pod::PodKey;

use crate::cluster::UnknownPort;

/// Why a probe cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unjudgeable {
    /// The manifests have no such pod.
    #[error("no pod or workload {0} in the manifests")]
    UnknownPod(PodKey),
    /// It connects to nothing any more, and its address may be another's.
    #[error("pod {0} has ended (phase Succeeded or Failed)")]
    EndedPod(PodKey),
    /// It uses the network of a node that the manifests do not show.
    #[error("pod {0} has no address: it uses the network of its node, whose addresses no manifest has")]
    NoAddress(PodKey),
    /// The manifests have no such node.
    #[error("no node {0} in the manifests")]
    UnknownNode(Arc<str>),
    /// Nothing shows an address of it.
    #[error("node {0} has no address in the manifests")]
    NodeWithoutAddress(Arc<str>),
    /// Its addresses are a node's, or of a pod that started later.
    #[error("pod {0} has lost its address: a node or a pod that started later has it")]
    LostAddress(PodKey),
    /// The ends cannot speak to each other.
    #[error("no common family: {from} has {}, {to} has {}", list(.from_families), list(.to_families))]
    NoCommonFamily {
        /// The source, as the probe has it.
        from: String,
        /// Its families, as far as the probe allows them.
        from_families: BTreeSet<Family>,
        /// The destination.
        to: String,
        /// Its families.
        to_families: BTreeSet<Family>,
    },
    /// The manifests have no such Service.
    #[error("no service {0} in the manifests")]
    UnknownService(PodKey),
    /// The Service has no such port.
    #[error(transparent)]
    UnknownPort(#[from] UnknownPort),
    /// The address is that of a Service that leads nowhere.
    #[error("no endpoints")]
    NoEndpoints,
    /// Services forward by port.
    #[error("a Service forwards TCP, UDP and SCTP, not ICMP")]
    IcmpToService,
    /// Only pods are told addresses.
    #[error("{0} is no pod of the manifests, so nobody knows what it was told for a name")]
    NoResolver(String),
    /// It was told nothing.
    #[error("no record of {pod} for {name}")]
    NoRecord {
        /// The pod.
        pod: PodKey,
        /// The name.
        name: DnsName,
    },
    /// All that it was told is over by then.
    #[error("every record of {pod} for {name} is over {} s after it was learned", .at.as_secs_f64())]
    ExpiredRecords {
        /// The pod.
        pod: PodKey,
        /// The name.
        name: DnsName,
        /// When it was asked.
        at: Duration,
    },
}

fn list(families: &BTreeSet<Family>) -> String {
    if families.is_empty() {
        return "none that may be used".to_owned();
    }
    families
        .iter()
        .map(Family::to_string)
        .collect::<Vec<_>>()
        .join(" and ")
}

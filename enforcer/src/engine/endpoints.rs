//! Endpoint lookup for events: resolves both ends of denied packets. The reader of events asks for many packets at
//! once, a few times a second.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use egret_policies::compiler::{Compiler, Owner};
use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;

use super::{Engine, Phase};

/// The most names of one address in a reply.
const MAX_NAMES: usize = 8;

/// Packets to resolve. The reply is in the same order.
#[derive(Debug)]
pub struct EndpointLookup {
    /// The packets.
    pub packets: Vec<PacketEnds>,
    /// Receives the reply.
    pub reply: SyncSender<Vec<Endpoints>>,
}

/// The two ends of a denied packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketEnds {
    /// The sender.
    pub source: PacketEnd,
    /// The receiver.
    pub destination: PacketEnd,
    /// Whose policies denied it.
    pub judged_by: JudgedBy,
}

/// One end of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketEnd {
    /// The address in the packet.
    pub address: IpAddr,
    /// The node's interface at this end; none if this end is the node itself.
    pub interface: Option<String>,
    /// The cgroup of the pod at this end, where that was denied what it called or received.
    pub cgroup: Option<u64>,
}

/// Whose policies denied a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JudgedBy {
    /// The sender's.
    Sender,
    /// The receiver's.
    Receiver,
    /// One of both: the sender's if the sender is a pod of this node.
    Either,
    /// No pod's.
    NoPod,
}

/// A packet's resolved ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The pod whose policies denied it, if known.
    pub pod: Option<PodKey>,
    /// Whether that pod is the receiver.
    pub is_receiver: bool,
    /// The owner of the source address.
    pub source: Option<Owner>,
    /// The owner of the destination address.
    pub destination: Option<Owner>,
    /// Names for which the pod was given the other address; the one that expires or expired last comes first.
    pub names: Vec<Arc<DnsName>>,
}

impl Engine {
    pub(super) fn look_up_endpoints(&self, EndpointLookup { packets, reply }: EndpointLookup) {
        let endpoints = packets.iter().map(|ends| self.endpoints_of(ends)).collect();
        // The asker may have timed out.
        drop(reply.send(endpoints));
    }

    fn endpoints_of(&self, ends: &PacketEnds) -> Endpoints {
        match &self.compiler {
            Phase::Starting { compiler, .. } => self.look_up(compiler, ends),
            Phase::Running(compiler) => self.look_up(compiler, ends),
            Phase::Transition => Endpoints::default(),
        }
    }

    fn look_up<State>(&self, compiler: &Compiler<State>, ends: &PacketEnds) -> Endpoints {
        let sender = || self.pod_at(&ends.source);
        let receiver = || self.pod_at(&ends.destination);
        let sent = match ends.judged_by {
            JudgedBy::Sender | JudgedBy::Either => sender(),
            JudgedBy::Receiver | JudgedBy::NoPod => None,
        };
        let received = match ends.judged_by {
            JudgedBy::Receiver => receiver(),
            JudgedBy::Either if sent.is_none() => receiver(),
            JudgedBy::Sender | JudgedBy::Either | JudgedBy::NoPod => None,
        };
        let is_receiver = received.is_some();
        let pod = sent.or(received);
        let other = if is_receiver {
            ends.source.address
        } else {
            ends.destination.address
        };
        let names = pod
            .as_ref()
            .map(|pod| compiler.names_observed(pod, other, MAX_NAMES));
        Endpoints {
            pod,
            is_receiver,
            source: compiler.owner(ends.source.address),
            destination: compiler.owner(ends.destination.address),
            names: names.unwrap_or_default(),
        }
    }

    /// The pod behind an interface, or of a cgroup. The address alone proves nothing: a pod may forge it.
    fn pod_at(&self, end: &PacketEnd) -> Option<PodKey> {
        let backend = self.worker.backend()?;
        if let Some(cgroup) = end.cgroup {
            return backend.pod_in_cgroup(cgroup);
        }
        backend.pod_at_interface(end.interface.as_deref()?, end.address.to_canonical())
    }
}

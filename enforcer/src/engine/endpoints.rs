//! Who met whom: what is known of the two ends of a packet that was denied. Asked by who tells of them, in bulk and at
//! most some times a second.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use egret_policies::compiler::{Compiler, Owner};
use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;

use super::{Engine, Phase};

/// The most names that are told of one address.
const MAX_NAMES: usize = 8;

/// Packets about which something is asked, and where the answers go, in the same order.
#[derive(Debug)]
pub struct EndpointLookup {
    /// The packets.
    pub packets: Vec<PacketEnds>,
    /// Where the answers go.
    pub reply: SyncSender<Vec<Endpoints>>,
}

/// A packet about which something is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketEnds {
    /// Who sent it.
    pub source: PacketEnd,
    /// Who was to receive it.
    pub destination: PacketEnd,
    /// Whose policies denied it.
    pub judged_by: JudgedBy,
}

/// An end of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketEnd {
    /// The address in the packet.
    pub address: IpAddr,
    /// The interface of the node at this end; none where it is the node itself.
    pub interface: Option<String>,
}

/// Whose policies denied a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JudgedBy {
    /// The sender's.
    Sender,
    /// The receiver's.
    Receiver,
    /// Of one of both: the sender's, where the sender is a pod of this node.
    Either,
    /// No pod's.
    Nobody,
}

/// AdminQuery is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The pod whose policies denied it; none where it is not known.
    pub pod: Option<PodKey>,
    /// Whether that pod is the receiver.
    pub is_receiver: bool,
    /// Whose address the source is.
    pub source: Option<Owner>,
    /// Whose address the destination is.
    pub destination: Option<Owner>,
    /// AdminQuery the pod was told the other address for; what ended last, or has not ended, comes first.
    pub names: Vec<Arc<DnsName>>,
}

impl Engine {
    pub(super) fn look_up_endpoints(&self, EndpointLookup { packets, reply }: EndpointLookup) {
        let endpoints = packets.iter().map(|ends| self.endpoints_of(ends)).collect();
        // Who asked may have stopped waiting.
        drop(reply.send(endpoints));
    }

    fn endpoints_of(&self, ends: &PacketEnds) -> Endpoints {
        match &self.compiler {
            Phase::Starting { compiler, .. } => self.look_up(compiler, ends),
            Phase::Running(compiler) => self.look_up(compiler, ends),
            Phase::Moving => Endpoints::default(),
        }
    }

    fn look_up<State>(&self, compiler: &Compiler<State>, ends: &PacketEnds) -> Endpoints {
        let sender = || self.pod_at(&ends.source);
        let receiver = || self.pod_at(&ends.destination);
        let sent = match ends.judged_by {
            JudgedBy::Sender | JudgedBy::Either => sender(),
            JudgedBy::Receiver | JudgedBy::Nobody => None,
        };
        let received = match ends.judged_by {
            JudgedBy::Receiver => receiver(),
            JudgedBy::Either if sent.is_none() => receiver(),
            JudgedBy::Sender | JudgedBy::Either | JudgedBy::Nobody => None,
        };
        let is_receiver = received.is_some();
        let pod = sent.or(received);
        let other = if is_receiver {
            ends.source.address
        } else {
            ends.destination.address
        };
        let names = pod.as_ref().map(|pod| compiler.names_told(pod, other, MAX_NAMES));
        Endpoints {
            pod,
            is_receiver,
            source: compiler.owner(ends.source.address),
            destination: compiler.owner(ends.destination.address),
            names: names.unwrap_or_default(),
        }
    }

    /// The pod behind an interface. An address alone says nothing: anybody may write it.
    fn pod_at(&self, end: &PacketEnd) -> Option<PodKey> {
        self.worker
            .backend()?
            .pod_at_interface(end.interface.as_deref()?, end.address.to_canonical())
    }
}

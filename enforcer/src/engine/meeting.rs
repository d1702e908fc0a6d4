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
const MOST_NAMES: usize = 8;

/// Packets about which something is asked, and where the answers go, in the same order.
#[derive(Debug)]
pub struct Meetings {
    /// The packets.
    pub asked: Vec<Meeting>,
    /// Where the answers go.
    pub answer: SyncSender<Vec<Known>>,
}

/// A packet about which something is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meeting {
    /// Who sent it.
    pub source: End,
    /// Who was to receive it.
    pub destination: End,
    /// Whose policies denied it.
    pub judged: Judged,
}

/// An end of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The address in the packet.
    pub address: IpAddr,
    /// The interface of the node at this end; none where it is the node itself.
    pub interface: Option<String>,
}

/// Whose policies denied a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judged {
    /// The sender's.
    Sender,
    /// The receiver's.
    Receiver,
    /// Of one of both: the sender's, where the sender is a pod of this node.
    Either,
    /// No pod's.
    Nobody,
}

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The pod whose policies denied it; none where it is not known.
    pub pod: Option<PodKey>,
    /// Whether that pod is the receiver.
    pub is_receiver: bool,
    /// Whose address the source is.
    pub source: Option<Owner>,
    /// Whose address the destination is.
    pub destination: Option<Owner>,
    /// What the pod was told the other address for; what ended last, or has not ended, comes first.
    pub names: Vec<Arc<DnsName>>,
}

impl Engine {
    pub(super) fn meet(&self, Meetings { asked, answer }: Meetings) {
        let known = asked.iter().map(|meeting| self.known_of(meeting)).collect();
        // Who asked may have stopped waiting.
        drop(answer.send(known));
    }

    fn known_of(&self, meeting: &Meeting) -> Known {
        match &self.compiler {
            Phase::Starting { compiler, .. } => self.known_by(compiler, meeting),
            Phase::Running(compiler) => self.known_by(compiler, meeting),
            Phase::Moving => Known::default(),
        }
    }

    fn known_by<State>(&self, compiler: &Compiler<State>, meeting: &Meeting) -> Known {
        let sender = || self.pod_at(&meeting.source);
        let receiver = || self.pod_at(&meeting.destination);
        let sent = match meeting.judged {
            Judged::Sender | Judged::Either => sender(),
            Judged::Receiver | Judged::Nobody => None,
        };
        let received = match meeting.judged {
            Judged::Receiver => receiver(),
            Judged::Either if sent.is_none() => receiver(),
            Judged::Sender | Judged::Either | Judged::Nobody => None,
        };
        let is_receiver = received.is_some();
        let pod = sent.or(received);
        let other = if is_receiver {
            meeting.source.address
        } else {
            meeting.destination.address
        };
        let names = pod
            .as_ref()
            .map(|pod| compiler.names_observed(pod, other, MOST_NAMES));
        Known {
            pod,
            is_receiver,
            source: compiler.owner(meeting.source.address),
            destination: compiler.owner(meeting.destination.address),
            names: names.unwrap_or_default(),
        }
    }

    /// The pod behind an interface. An address alone says nothing: anybody may write it.
    fn pod_at(&self, end: &End) -> Option<PodKey> {
        self.hands
            .backend()?
            .pod_behind(end.interface.as_deref()?, end.address.to_canonical())
    }
}

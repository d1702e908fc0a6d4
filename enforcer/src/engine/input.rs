//! AdminQuery happens to the engine.

use std::fmt::Debug;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_shared::link::{ToDnsd, ToEnforcer};
use tokio::sync::mpsc;

use super::endpoints::EndpointLookup;
use super::report::{AdminQuery, AdminReply, SourceState};

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Objects received, changed or went.
    Cluster(Vec<Event>),
    /// How the source of objects stands; sent after the events that it includes.
    Source(SourceState),
    /// A dnsd connected.
    PeerJoined {
        /// This connection.
        peer: PeerId,
        /// AdminQuery it says it is.
        program: String,
        /// AdminQuery is to be said to it, in order.
        out: Box<dyn PeerSender>,
    },
    /// A dnsd said something.
    PeerSaid(PeerId, ToEnforcer),
    /// A connection ended.
    PeerLeft(PeerId),
    /// Links, addresses or routes changed.
    LinksChanged,
    /// Somebody else changed what is ours in the kernel.
    ChangedByOthers(String),
    /// The kernel is to be compared so often.
    SetResync(Duration),
    /// An operator asks.
    Admin(AdminRequest),
    /// Somebody tells of denied packets, and asks who met.
    LookUpEndpoints(EndpointLookup),
    /// The end.
    Stop,
}

impl Input {
    /// How many addresses a pod was told by it.
    pub(super) fn addresses(&self) -> usize {
        match self {
            Self::PeerSaid(_, ToEnforcer::Observed { observation, .. }) => observation.addresses.len(),
            _ => 0,
        }
    }
}

/// Where a dnsd hears, or what stands for it.
pub trait PeerSender: Debug + Send {
    /// Says something to it, behind what was said before. Waits for nothing.
    ///
    /// # Errors
    /// When it is gone, or has read so little that there is no room for more.
    fn send(&mut self, messages: Vec<ToDnsd>) -> Result<(), SendQueueFull>;
}

/// It does not read what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not read what it is told")]
pub struct SendQueueFull;

impl PeerSender for mpsc::Sender<Vec<ToDnsd>> {
    fn send(&mut self, messages: Vec<ToDnsd>) -> Result<(), SendQueueFull> {
        self.try_send(messages).map_err(|_full_or_gone| SendQueueFull)
    }
}

/// A connection of a dnsd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// AdminQuery an operator asks, and where the answer goes.
#[derive(Debug)]
pub struct AdminRequest {
    /// AdminQuery is asked.
    pub query: AdminQuery,
    /// Where the answer goes.
    pub reply: SyncSender<AdminReply>,
}

//! Inputs of the engine.

use std::fmt::Debug;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_shared::link::{ToDnsd, ToEnforcer};
use tokio::sync::mpsc;

use super::endpoints::EndpointLookup;
use super::networks::NetworkRequest;
use super::report::{AdminQuery, AdminReply, SourceState};

/// An event that the engine handles.
#[derive(Debug)]
pub enum Input {
    /// Objects were added, changed or deleted.
    Cluster(Vec<Event>),
    /// The state of the source; sent after the events that it covers.
    Source(SourceState),
    /// A dnsd connected.
    PeerJoined {
        /// The connection.
        peer: PeerId,
        /// The name and version that it reports.
        program: String,
        /// Sends messages to it, in order.
        out: Box<dyn PeerSender>,
    },
    /// A message of a dnsd.
    PeerMessage(PeerId, ToEnforcer),
    /// A connection ended.
    PeerLeft(PeerId),
    /// A request of the CNI plugin.
    Network(NetworkRequest),
    /// Links, addresses or routes changed.
    LinksChanged,
    /// Another program changed our rules.
    ChangedByOthers(String),
    /// The interval of comparisons changes.
    SetResync(Duration),
    /// A request of an operator.
    Admin(AdminRequest),
    /// The events' reader resolves the ends of denied packets.
    LookUpEndpoints(EndpointLookup),
    /// Stop.
    Stop,
}

impl Input {
    /// How many addresses it observes.
    pub(super) fn addresses(&self) -> usize {
        match self {
            Self::PeerMessage(_, ToEnforcer::Observed { observation, .. }) => observation.addresses.len(),
            _ => 0,
        }
    }
}

/// Sends messages to a dnsd.
pub trait PeerSender: Debug + Send {
    /// Queues messages behind earlier ones. Never blocks.
    ///
    /// # Errors
    ///
    /// When the connection is gone or its send queue is full.
    fn send(&mut self, messages: Vec<ToDnsd>) -> Result<(), SendQueueFull>;
}

/// The peer does not read, and its send queue is full.
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

/// A request of an operator, and where the reply goes.
#[derive(Debug)]
pub struct AdminRequest {
    /// What is asked.
    pub query: AdminQuery,
    /// Receives the reply.
    pub reply: SyncSender<AdminReply>,
}

//! What happens to the engine.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_shared::link::{ToDnsd, ToEnforcer};
use tokio::sync::mpsc;

use super::meeting::Meetings;
use super::report::{Answer, SourceState, What};

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Objects came, changed or went.
    Cluster(Vec<Event>),
    /// How the source of objects stands; sent after the events that it includes.
    Source(SourceState),
    /// A dnsd connected.
    PeerJoined {
        /// This connection.
        peer: PeerId,
        /// What it says it is.
        program: String,
        /// What is to be said to it, in order.
        out: mpsc::Sender<Vec<ToDnsd>>,
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
    Ask(Question),
    /// Somebody tells of denied packets, and asks who met.
    Meet(Meetings),
    /// The end.
    Stop,
}

/// A connection of a dnsd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// What an operator asks, and where the answer goes.
#[derive(Debug)]
pub struct Question {
    /// What is asked.
    pub what: What,
    /// Where the answer goes.
    pub answer: SyncSender<Answer>,
}

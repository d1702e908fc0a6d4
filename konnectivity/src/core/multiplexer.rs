//! The connections of one stream, as one of its ends sees them. Each has its own queues, so one that is not read stops no other; those with
//! something to send take turns.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use bytes::Bytes;

use super::Limits;
use crate::proto::{MAX_DATA, Packet};

/// Packets that wait to be sent beside data. Peers make us answer; one that makes us answer more than it reads is cut off.
const MAX_CONTROL: usize = 1 << 16;

/// Which end this is: it decides which packet closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Agent,
}

/// What a connection has for its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Data(Bytes),
    /// Nothing now; a wake-up tells.
    Empty,
    /// The other end closed it, and everything was read; the text is the other end's, often empty. Also of a connection that was finished here.
    End(String),
}

/// What a connection takes from its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So many octets; at none, a wake-up tells.
    Octets(usize),
    /// It is closed.
    Closed,
}

/// The peer sends so much that has to be answered, and reads none of it: the stream is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer reads no answers: {MAX_CONTROL} packets wait")]
pub struct Overloaded;

#[derive(Debug)]
pub(super) struct Multiplexer {
    side: Side,
    limits: Limits,
    /// Octets of a connection that the peer takes before it gives credit; none where it counts no credits.
    peer_window: Option<u32>,
    control: VecDeque<Packet>,
    flows: HashMap<i64, Flow>,
    /// Connections that may have something to send, in turn, each once.
    ready: VecDeque<i64>,
    /// Connections that the server closed, until the agent confirms it: their data is dropped.
    closing: HashSet<i64>,
    unread: usize,
    /// Connections of which something changed for their reader or writer.
    changed: Vec<i64>,
}

#[derive(Debug)]
struct Flow {
    unread: VecDeque<Bytes>,
    unread_octets: usize,
    /// Octets that the peer may send; with credits alone.
    granted: usize,
    /// Octets that were read and not granted again.
    owed: usize,
    unsent: VecDeque<Bytes>,
    unsent_octets: usize,
    /// Octets that may be sent.
    credit: usize,
    is_ready: bool,
    phase: Phase,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Closed here: what is queued goes out, then the close.
    Finishing,
    /// Closed by the other end, with its text: what came is still read.
    Ended(String),
}

impl Multiplexer {
    pub(super) fn new(side: Side, limits: Limits, peer_window: Option<u32>) -> Self {
        Self {
            side,
            limits,
            peer_window,
            control: VecDeque::new(),
            flows: HashMap::new(),
            ready: VecDeque::new(),
            closing: HashSet::new(),
            unread: 0,
            changed: Vec::new(),
        }
    }

    /// Adds a connection, unless its number is in use.
    #[must_use]
    pub(super) fn open(&mut self, connection: i64) -> bool {
        if self.flows.contains_key(&connection) || self.closing.contains(&connection) {
            return false;
        }
        let flow = Flow {
            unread: VecDeque::new(),
            unread_octets: 0,
            granted: octets(self.limits.window),
            owed: 0,
            unsent: VecDeque::new(),
            unsent_octets: 0,
            credit: self.peer_window.map_or(usize::MAX, octets),
            is_ready: false,
            phase: Phase::Open,
        };
        self.flows.insert(connection, flow);
        true
    }

    /// Sends a packet before any data.
    pub(super) fn send(&mut self, packet: Packet) {
        self.control.push_back(packet);
    }

    // === From the peer ===

    /// Takes data. `true` where so much of a connection is unread that the peer is to be slowed.
    pub(super) fn receive_data(&mut self, connection: i64, data: Bytes) -> Result<bool, Overloaded> {
        let Some(flow) = self.flows.get_mut(&connection) else {
            return self.refuse_unknown(connection).map(|()| false);
        };
        if flow.phase != Phase::Open {
            return Ok(false);
        }
        let counts_credits = self.peer_window.is_some();
        let is_too_much = if counts_credits {
            data.len() > flow.granted
        } else {
            flow.unread_octets + data.len() > self.limits.unread
        };
        if is_too_much {
            self.evict(connection);
            return Ok(false);
        }
        flow.granted = flow.granted.saturating_sub(data.len());
        flow.unread_octets += data.len();
        self.unread += data.len();
        flow.unread.push_back(data);
        let is_full = !counts_credits && flow.unread_octets >= self.limits.unread / 2;
        self.changed.push(connection);
        Ok(is_full)
    }

    fn refuse_unknown(&mut self, connection: i64) -> Result<(), Overloaded> {
        match self.side {
            // Once: what is on its way meanwhile is dropped.
            Side::Server if self.closing.insert(connection) => self.send(Packet::CloseRequest { connection }),
            Side::Server => {}
            Side::Agent => self.send(Packet::CloseResponse {
                error: "unrecognized connectID".to_owned(),
                connection,
            }),
        }
        self.check()
    }

    pub(super) fn check(&self) -> Result<(), Overloaded> {
        if self.control.len() > MAX_CONTROL || self.closing.len() > MAX_CONTROL {
            return Err(Overloaded);
        }
        Ok(())
    }

    pub(super) fn receive_credit(&mut self, connection: i64, more: u32) {
        if let Some(flow) = self.flows.get_mut(&connection) {
            flow.credit = flow.credit.saturating_add(octets(more));
            self.make_ready(connection);
        }
    }

    /// The server asks the agent's end to close: it is confirmed at once.
    pub(super) fn receive_close_request(&mut self, connection: i64) {
        let error = if self.flows.contains_key(&connection) {
            ""
        } else {
            "Unknown connectID"
        };
        self.send(Packet::CloseResponse {
            error: error.to_owned(),
            connection,
        });
        self.end(connection, String::new());
    }

    /// The agent closed, or confirms.
    pub(super) fn receive_close_response(&mut self, connection: i64, error: String) {
        self.closing.remove(&connection);
        self.end(connection, error);
    }

    fn end(&mut self, connection: i64, error: String) {
        let Some(flow) = self.flows.get_mut(&connection) else {
            return;
        };
        match flow.phase {
            Phase::Open => {
                flow.drop_unsent();
                flow.phase = Phase::Ended(error);
                self.changed.push(connection);
            }
            Phase::Finishing => self.remove(connection),
            Phase::Ended(_) => {}
        }
    }

    /// The stream is gone: nothing is sent any more, what came is still read.
    pub(super) fn fail(&mut self) {
        self.discard();
        let connections: Vec<_> = self.flows.keys().copied().collect();
        for connection in connections {
            self.end(connection, String::new());
        }
    }

    // === To the peer ===

    /// What is sent next: what is no data first, then of each connection in turn.
    pub(super) fn next_packet(&mut self) -> Option<Packet> {
        if let Some(packet) = self.control.pop_front() {
            return Some(packet);
        }
        while let Some(connection) = self.ready.pop_front() {
            let Some(flow) = self.flows.get_mut(&connection) else {
                continue;
            };
            flow.is_ready = false;
            if let Some(data) = flow.take_unsent() {
                self.changed.push(connection);
                self.make_ready(connection);
                return Some(Packet::Data { connection, data });
            }
            if flow.phase == Phase::Finishing && flow.unsent.is_empty() {
                self.remove(connection);
                return Some(self.close_packet(connection));
            }
        }
        None
    }

    pub(super) fn has_packets(&self) -> bool {
        !self.control.is_empty() || !self.ready.is_empty()
    }

    /// Drops what would be sent: nobody takes it.
    pub(super) fn discard(&mut self) {
        self.control.clear();
        self.closing.clear();
    }

    fn close_packet(&mut self, connection: i64) -> Packet {
        match self.side {
            Side::Server => {
                self.closing.insert(connection);
                Packet::CloseRequest { connection }
            }
            Side::Agent => Packet::CloseResponse {
                error: String::new(),
                connection,
            },
        }
    }

    fn make_ready(&mut self, connection: i64) {
        let Some(flow) = self.flows.get_mut(&connection) else {
            return;
        };
        let has_data = !flow.unsent.is_empty() && flow.credit > 0;
        let has_close = flow.unsent.is_empty() && flow.phase == Phase::Finishing;
        if (has_data || has_close) && !mem::replace(&mut flow.is_ready, true) {
            self.ready.push_back(connection);
        }
    }

    // === By the reader and the writer of a connection ===

    pub(super) fn read(&mut self, connection: i64) -> Read {
        let Some(flow) = self.flows.get_mut(&connection) else {
            return Read::End(String::new());
        };
        if let Some(data) = flow.unread.pop_front() {
            flow.unread_octets -= data.len();
            self.unread -= data.len();
            flow.owed += data.len();
            self.give_credit(connection);
            return Read::Data(data);
        }
        match &flow.phase {
            Phase::Open => Read::Empty,
            Phase::Finishing => Read::End(String::new()),
            Phase::Ended(error) => {
                let error = error.clone();
                self.remove(connection);
                Read::End(error)
            }
        }
    }

    /// By the half of the window: more often costs packets, less often lets the peer wait.
    fn give_credit(&mut self, connection: i64) {
        if self.peer_window.is_none() {
            return;
        }
        let Some(flow) = self.flows.get_mut(&connection) else {
            return;
        };
        if flow.phase != Phase::Open || flow.owed < octets(self.limits.window) / 2 {
            return;
        }
        let Ok(given) = u32::try_from(flow.owed) else {
            return;
        };
        flow.granted += mem::take(&mut flow.owed);
        self.send(Packet::Credit {
            connection,
            octets: given,
        });
    }

    pub(super) fn room(&self, connection: i64) -> Room {
        match self.flows.get(&connection) {
            Some(flow) if flow.phase == Phase::Open => {
                Room::Octets(self.limits.unsent.saturating_sub(flow.unsent_octets))
            }
            _ => Room::Closed,
        }
    }

    /// Takes octets to send, beyond the room too: the writer asked before. They are dropped where the connection is closed.
    pub(super) fn write(&mut self, connection: i64, data: Bytes) {
        if let Some(flow) = self.flows.get_mut(&connection)
            && flow.phase == Phase::Open
            && !data.is_empty()
        {
            flow.unsent_octets += data.len();
            flow.unsent.push_back(data);
            self.make_ready(connection);
        }
    }

    /// The local end is closed: what was written goes out, then the close. What came and was not read is dropped.
    pub(super) fn finish(&mut self, connection: i64) {
        let Some(flow) = self.flows.get_mut(&connection) else {
            return;
        };
        match flow.phase {
            Phase::Open => {
                self.unread -= flow.drop_unread();
                flow.phase = Phase::Finishing;
                self.make_ready(connection);
            }
            Phase::Finishing => {}
            Phase::Ended(_) => self.remove(connection),
        }
    }

    /// Closes it at once, whatever waits.
    pub(super) fn abort(&mut self, connection: i64) {
        let is_closed_there = match self.flows.get(&connection) {
            Some(flow) => matches!(flow.phase, Phase::Ended(_)),
            None => return,
        };
        self.remove(connection);
        if !is_closed_there {
            let packet = self.close_packet(connection);
            self.send(packet);
        }
    }

    /// Closes a connection that keeps too much; its reader has what it read until now, and then the end.
    pub(super) fn evict(&mut self, connection: i64) {
        self.abort(connection);
        self.changed.push(connection);
    }

    fn remove(&mut self, connection: i64) {
        if let Some(flow) = self.flows.remove(&connection) {
            self.unread -= flow.unread_octets;
            self.changed.push(connection);
        }
    }

    // === For who owns this ===

    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    pub(super) fn is_half_full(&self, connection: i64) -> bool {
        let flow = self.flows.get(&connection);
        flow.is_some_and(|flow| flow.unread_octets >= self.limits.unread / 2)
    }

    /// The connection with most octets unread.
    pub(super) fn fullest(&self) -> Option<(usize, i64)> {
        let sizes = self.flows.iter().map(|(id, flow)| (flow.unread_octets, *id));
        sizes.max().filter(|(unread, _)| *unread > 0)
    }

    pub(super) fn is_open(&self, connection: i64) -> bool {
        self.flows.contains_key(&connection)
    }

    pub(super) fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Nothing is kept: no connection, no close that waits to be confirmed.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty() && self.closing.is_empty() && self.control.is_empty()
    }

    pub(super) fn close_unknown(&mut self, connection: i64) {
        if self.closing.insert(connection) {
            self.send(Packet::CloseRequest { connection });
        }
    }

    pub(super) fn take_changed(&mut self) -> Vec<i64> {
        mem::take(&mut self.changed)
    }
}

impl Flow {
    fn take_unsent(&mut self) -> Option<Bytes> {
        let most = MAX_DATA.min(self.credit);
        let first = self.unsent.front_mut()?;
        if most == 0 {
            return None;
        }
        let data = if first.len() <= most {
            self.unsent.pop_front()?
        } else {
            first.split_to(most)
        };
        self.unsent_octets -= data.len();
        if self.credit != usize::MAX {
            self.credit -= data.len();
        }
        Some(data)
    }

    fn drop_unsent(&mut self) {
        self.unsent.clear();
        self.unsent_octets = 0;
    }

    fn drop_unread(&mut self) -> usize {
        self.unread.clear();
        mem::take(&mut self.unread_octets)
    }
}

fn octets(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

//! The server between API server and agents. What belongs to an agent's stream is keyed by the stream, never by the agent's name: a second
//! stream of an agent, or another one of the same name, shares nothing with the first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use super::multiplexer::{Multiplexer, Side};
use super::stream::{AgentInfo, AgentStream, StreamId, StreamState};
use super::{Limits, Overloaded, Read, Room, Strategy, strategy};
use crate::proto::Packet;

/// A connection that a client of the server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId(u64);

/// Why a tunnel has no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("No agent available")]
    NoAgent,
    /// The stream by which it was dialled ended, and there is no other agent.
    #[error("agent connection closed while dialing")]
    AgentGone,
    /// No agent was asked: a policy or a limit refuses it, in these words.
    #[error("{0}")]
    Denied(String),
    /// In the agent's words.
    #[error("{0}")]
    Target(String),
}

/// How far a tunnel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialState {
    Dialing,
    /// With the number that the agent gave it.
    Connected(i64),
    Refused(Refusal),
}

/// What the edge has to do after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    Nothing,
    /// So much of the tunnel is unread that no further packet of the stream is to be taken until [`Server::is_half_full`] is over, or
    /// the tunnel is removed.
    Full(TunnelId),
}

/// Whom the last calls concern.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// Tunnels with something to read, room to write, or another state.
    pub tunnels: BTreeSet<TunnelId>,
    /// Streams with packets to send.
    pub streams: BTreeSet<StreamId>,
}

#[derive(Debug)]
pub struct Server {
    limits: Limits,
    strategies: Vec<Strategy>,
    zone: Option<String>,
    streams: BTreeMap<StreamId, AgentStream>,
    tunnels: HashMap<TunnelId, Tunnel>,
    /// By our own key, which no two dials share.
    dials: HashMap<i64, TunnelId>,
    connections: HashMap<(StreamId, i64), TunnelId>,
    last_stream: u64,
    last_tunnel: u64,
    last_dial: i64,
    unread: usize,
    wakeups: Wakeups,
}

#[derive(Debug)]
enum Tunnel {
    Dialing(Dial),
    Connected { stream: StreamId, connection: i64 },
    Refused(Refusal),
}

#[derive(Debug)]
struct Dial {
    key: i64,
    /// What an agent is chosen by.
    address: String,
    /// What it dials.
    target: String,
    lot: u64,
    /// The streams that were asked; the last is asked now.
    asked: Vec<StreamId>,
}

impl Server {
    #[must_use]
    pub fn new(limits: Limits, strategies: Vec<Strategy>) -> Self {
        Self {
            limits,
            strategies,
            zone: None,
            streams: BTreeMap::new(),
            tunnels: HashMap::new(),
            dials: HashMap::new(),
            connections: HashMap::new(),
            last_stream: 0,
            last_tunnel: 0,
            last_dial: 0,
            unread: 0,
            wakeups: Wakeups::default(),
        }
    }

    /// Where it is, for [`Strategy::Zone`].
    #[must_use]
    pub fn in_zone(self, zone: Option<String>) -> Self {
        Self { zone, ..self }
    }

    // === Agents ===

    pub fn open_stream(&mut self, agent: AgentInfo) -> StreamId {
        self.last_stream += 1;
        let id = StreamId(self.last_stream);
        let stream = AgentStream {
            multiplexer: Multiplexer::new(Side::Server, self.limits, agent.window),
            agent,
            state: StreamState::Open,
        };
        self.streams.insert(id, stream);
        id
    }

    /// Takes a packet of an agent.
    ///
    /// # Errors
    /// When the stream is to be closed.
    pub fn receive(&mut self, stream: StreamId, packet: Packet) -> Result<StreamEvent, Overloaded> {
        match packet {
            Packet::DialResponse {
                error,
                connection,
                random,
            } => self.receive_dial_response(stream, random, connection, error)?,
            Packet::DialClose { random } => {
                self.receive_dial_response(stream, random, 0, "the agent gave up the dial".to_owned())?;
            }
            Packet::Data { connection, data } => {
                let is_full = self.on(stream, |it| it.receive_data(connection, data));
                self.keep_to_total();
                if is_full.transpose()?.unwrap_or(false)
                    && let Some(tunnel) = self.connections.get(&(stream, connection))
                {
                    return Ok(StreamEvent::Full(*tunnel));
                }
            }
            Packet::CloseResponse { error, connection } => {
                self.on(stream, |it| it.receive_close_response(connection, error));
            }
            Packet::Credit { connection, octets } => {
                self.on(stream, |it| it.receive_credit(connection, octets));
            }
            Packet::Drain => {
                if let Some(stream) = self.streams.get_mut(&stream)
                    && stream.state == StreamState::Open
                {
                    stream.state = StreamState::Draining;
                }
            }
            // No agent sends these.
            Packet::DialRequest { .. } | Packet::CloseRequest { .. } => {}
        }
        Ok(StreamEvent::Nothing)
    }

    fn receive_dial_response(
        &mut self,
        stream: StreamId,
        key: i64,
        connection: i64,
        error: String,
    ) -> Result<(), Overloaded> {
        let tunnel = self.dials.get(&key).copied();
        let is_asked =
            |it: &Tunnel| matches!(it, Tunnel::Dialing(dial) if dial.asked.last() == Some(&stream));
        let Some(tunnel) = tunnel.filter(|id| self.tunnels.get(id).is_some_and(is_asked)) else {
            // Nobody waits for it any more.
            if error.is_empty() && !self.connections.contains_key(&(stream, connection)) {
                let closed = self.on(stream, |it| {
                    it.close_unknown(connection);
                    it.check()
                });
                return closed.unwrap_or(Ok(()));
            }
            return Ok(());
        };
        let state = if !error.is_empty() {
            Tunnel::Refused(Refusal::Target(error))
        } else if self.on(stream, |it| it.open(connection)) == Some(true) {
            self.connections.insert((stream, connection), tunnel);
            Tunnel::Connected { stream, connection }
        } else {
            Tunnel::Refused(Refusal::Target(format!(
                "the agent uses the number {connection} twice"
            )))
        };
        self.dials.remove(&key);
        self.tunnels.insert(tunnel, state);
        self.wakeups.tunnels.insert(tunnel);
        Ok(())
    }

    /// No further connection is made by a stream.
    pub fn expire_stream(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && matches!(stream.state, StreamState::Open | StreamState::Draining)
        {
            stream.state = StreamState::Expired;
        }
    }

    /// Whether a stream has connections.
    #[must_use]
    pub fn has_connections(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.multiplexer.connections() > 0)
    }

    /// The stream ended. Dials by it go to another agent at once, or are refused; connections end after what came of them.
    pub fn close_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.state = StreamState::Gone;
        self.on(id, Multiplexer::fail);
        let is_by_it = |it: &Tunnel| matches!(it, Tunnel::Dialing(dial) if dial.asked.last() == Some(&id));
        let tunnels = self.tunnels.iter().filter(|(_, tunnel)| is_by_it(tunnel));
        let mut moved: Vec<_> = tunnels.map(|(id, _)| *id).collect();
        moved.sort_unstable();
        for tunnel in moved {
            if let Some(Tunnel::Dialing(dial)) = self.tunnels.remove(&tunnel) {
                self.dials.remove(&dial.key);
                self.ask(tunnel, dial, Refusal::AgentGone);
            }
        }
        self.forget_stream(id);
    }

    fn forget_stream(&mut self, id: StreamId) {
        let is_done =
            |stream: &AgentStream| stream.state == StreamState::Gone && stream.multiplexer.connections() == 0;
        if self.streams.get(&id).is_some_and(is_done) {
            self.streams.remove(&id);
        }
    }

    /// The next packet of a stream.
    pub fn next_packet(&mut self, stream: StreamId) -> Option<Packet> {
        self.on(stream, Multiplexer::next_packet)?
    }

    /// Agents by which connections can be made, those that drain included.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.agents_for(Strategy::Default)
    }

    /// Those that a strategy can find for some destination.
    #[must_use]
    pub fn agents_for(&self, strategy: Strategy) -> usize {
        let usable = self.streams.values().filter(|it| it.is_usable(true));
        let found = usable.filter(|it| strategy.may_take(&it.agent.identifiers, self.zone.as_deref()));
        found
            .map(|it| it.agent.id.as_str())
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// Streams of agents that are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.values().filter(|it| it.is_usable(true)).count()
    }

    // === Tunnels ===

    /// Asks an agent to dial. `lot` chooses among equals.
    pub fn dial(&mut self, address: String, lot: u64) -> TunnelId {
        self.dial_target(address.clone(), address, lot)
    }

    /// Asks an agent that stands for the address to dial the target, which is what the address was resolved to.
    pub fn dial_target(&mut self, address: String, target: String, lot: u64) -> TunnelId {
        self.last_tunnel += 1;
        let tunnel = TunnelId(self.last_tunnel);
        let dial = Dial {
            key: 0,
            address,
            target,
            lot,
            asked: Vec::new(),
        };
        self.ask(tunnel, dial, Refusal::NoAgent);
        tunnel
    }

    fn ask(&mut self, tunnel: TunnelId, dial: Dial, otherwise: Refusal) {
        let chosen = strategy::choose(
            (&self.strategies, self.zone.as_deref()),
            &self.streams,
            &dial.address,
            &dial.asked,
            dial.lot,
        );
        let state = match chosen {
            Some(stream) => {
                self.last_dial += 1;
                let key = self.last_dial;
                self.dials.insert(key, tunnel);
                let request = Packet::DialRequest {
                    protocol: "tcp".to_owned(),
                    address: dial.target.clone(),
                    random: key,
                };
                self.on(stream, |it| it.send(request));
                let asked = [dial.asked, vec![stream]].concat();
                Tunnel::Dialing(Dial { key, asked, ..dial })
            }
            None => Tunnel::Refused(otherwise),
        };
        self.tunnels.insert(tunnel, state);
        self.wakeups.tunnels.insert(tunnel);
    }

    /// How far it is; a tunnel that was removed is refused.
    #[must_use]
    pub fn state(&self, tunnel: TunnelId) -> DialState {
        match self.tunnels.get(&tunnel) {
            Some(Tunnel::Dialing(_)) => DialState::Dialing,
            Some(Tunnel::Connected { connection, .. }) => DialState::Connected(*connection),
            Some(Tunnel::Refused(refusal)) => DialState::Refused(refusal.clone()),
            None => DialState::Refused(Refusal::AgentGone),
        }
    }

    /// The agent of a tunnel: the one that has its connection, or was asked last.
    #[must_use]
    pub fn agent_of(&self, tunnel: TunnelId) -> Option<&str> {
        let stream = match self.tunnels.get(&tunnel)? {
            Tunnel::Dialing(dial) => dial.asked.last()?,
            Tunnel::Connected { stream, .. } => stream,
            Tunnel::Refused(_) => return None,
        };
        Some(&self.streams.get(stream)?.agent.id)
    }

    pub fn read(&mut self, tunnel: TunnelId) -> Read {
        let read = self.on_tunnel(tunnel, Multiplexer::read);
        read.unwrap_or_else(|| Read::End(String::new()))
    }

    pub fn room(&mut self, tunnel: TunnelId) -> Room {
        let room = self.on_tunnel(tunnel, |it, connection| it.room(connection));
        room.unwrap_or(Room::Closed)
    }

    pub fn write(&mut self, tunnel: TunnelId, data: Bytes) {
        self.on_tunnel(tunnel, |it, connection| it.write(connection, data));
    }

    /// The client sends nothing any more: what it sent goes out, then the close.
    pub fn finish(&mut self, tunnel: TunnelId) {
        self.on_tunnel(tunnel, Multiplexer::finish);
    }

    /// Whether everything that was written is sent, and the close too.
    #[must_use]
    pub fn is_finished(&self, tunnel: TunnelId) -> bool {
        match self.tunnels.get(&tunnel) {
            Some(Tunnel::Connected { stream, connection }) => {
                let stream = self.streams.get(stream);
                stream.is_none_or(|it| !it.multiplexer.is_open(*connection))
            }
            _ => true,
        }
    }

    /// Whether so much is unread that its stream is to wait.
    #[must_use]
    pub fn is_half_full(&self, tunnel: TunnelId) -> bool {
        match self.tunnels.get(&tunnel) {
            Some(Tunnel::Connected { stream, connection }) => {
                let stream = self.streams.get(stream);
                stream.is_some_and(|it| it.multiplexer.is_half_full(*connection))
            }
            _ => false,
        }
    }

    /// Closes a connection whose client reads nothing; the client has the end.
    pub fn evict(&mut self, tunnel: TunnelId) {
        self.on_tunnel(tunnel, Multiplexer::evict);
    }

    /// The client is gone: a dial is given up, a connection is closed at once.
    pub fn remove(&mut self, tunnel: TunnelId) {
        match self.tunnels.remove(&tunnel) {
            Some(Tunnel::Dialing(dial)) => {
                self.dials.remove(&dial.key);
                if let Some(stream) = dial.asked.last() {
                    self.on(*stream, |it| it.send(Packet::DialClose { random: dial.key }));
                }
            }
            Some(Tunnel::Connected { stream, connection }) => {
                self.on(stream, |it| it.abort(connection));
                self.connections.remove(&(stream, connection));
                self.forget_stream(stream);
            }
            Some(Tunnel::Refused(_)) | None => {}
        }
    }

    fn keep_to_total(&mut self) {
        while self.unread > self.limits.unread_total {
            let fullest = self.streams.iter().filter_map(|(id, stream)| {
                let (unread, connection) = stream.multiplexer.fullest()?;
                Some((unread, *id, connection))
            });
            let Some((_, stream, connection)) = fullest.max() else {
                return;
            };
            self.on(stream, |it| it.evict(connection));
        }
    }

    // === Bookkeeping ===

    fn on_tunnel<T>(&mut self, tunnel: TunnelId, call: impl FnOnce(&mut Multiplexer, i64) -> T) -> Option<T> {
        match self.tunnels.get(&tunnel) {
            Some(Tunnel::Connected { stream, connection }) => {
                let (stream, connection) = (*stream, *connection);
                self.on(stream, |it| call(it, connection))
            }
            _ => None,
        }
    }

    fn on<T>(&mut self, id: StreamId, call: impl FnOnce(&mut Multiplexer) -> T) -> Option<T> {
        let stream = self.streams.get_mut(&id)?;
        let before = stream.multiplexer.unread();
        let result = call(&mut stream.multiplexer);
        self.unread = self.unread - before + stream.multiplexer.unread();
        let changed = stream.multiplexer.take_changed().into_iter();
        let tunnels = changed.filter_map(|connection| self.connections.get(&(id, connection)));
        self.wakeups.tunnels.extend(tunnels);
        if stream.state == StreamState::Gone {
            stream.multiplexer.discard();
        } else if stream.multiplexer.has_packets() {
            self.wakeups.streams.insert(id);
        }
        Some(result)
    }

    pub fn take_wakeups(&mut self) -> Wakeups {
        std::mem::take(&mut self.wakeups)
    }

    /// Dials that wait for an agent's answer.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        self.dials.len()
    }

    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Nothing is kept but the streams that are open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let keeps_nothing =
            |stream: &AgentStream| stream.state != StreamState::Gone && stream.multiplexer.is_idle();
        self.tunnels.is_empty()
            && self.dials.is_empty()
            && self.connections.is_empty()
            && self.unread == 0
            && self.streams.values().all(keeps_nothing)
    }
}

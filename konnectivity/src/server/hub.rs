//! The state of the server, shared by its tasks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::core::{AgentInfo, DialState, Limits, Read, Refusal, Room, Server, Strategy, StreamId, TunnelId};
use crate::relay::{Channel, Signals};

#[derive(Debug)]
pub(super) struct Hub(Mutex<State>);

#[derive(Debug)]
struct State {
    server: Server,
    tunnels: HashMap<TunnelId, Arc<Signals>>,
    streams: HashMap<StreamId, Arc<Notify>>,
}

impl Hub {
    pub(super) fn new(strategies: Vec<Strategy>, zone: Option<String>) -> Self {
        Self(Mutex::new(State {
            server: Server::new(Limits::default(), strategies).in_zone(zone),
            tunnels: HashMap::new(),
            streams: HashMap::new(),
        }))
    }

    /// Calls the state, and wakes whom it concerns.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Server) -> T) -> T {
        self.with_state(|state| call(&mut state.server))
    }

    fn with_state<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        let wakeups = state.server.take_wakeups();
        for tunnel in wakeups.tunnels {
            if let Some(signals) = state.tunnels.get(&tunnel) {
                signals.wake();
            }
        }
        for stream in wakeups.streams {
            if let Some(notify) = state.streams.get(&stream) {
                notify.notify_one();
            }
        }
        result
    }

    /// An agent's stream, with what wakes its sender.
    pub(super) fn open_stream(&self, agent: AgentInfo) -> (StreamId, Arc<Notify>) {
        self.with_state(|state| {
            let (id, notify) = (state.server.open_stream(agent), Arc::new(Notify::new()));
            state.streams.insert(id, Arc::clone(&notify));
            (id, notify)
        })
    }

    pub(super) fn close_stream(&self, id: StreamId) {
        self.with_state(|state| {
            state.streams.remove(&id);
            state.server.close_stream(id);
        });
    }

    /// By an agent that stands for the address, to the target.
    pub(super) fn dial(self: &Arc<Self>, address: String, target: String) -> Tunnel {
        self.with_state(|state| {
            let id = state.server.dial_target(address, target, rand::random());
            let signals = Arc::default();
            state.tunnels.insert(id, Arc::clone(&signals));
            Tunnel {
                hub: Arc::clone(self),
                id,
                signals,
            }
        })
    }
}

/// A tunnel of a client. Dropped, its dial is given up, its connection closed.
#[derive(Debug)]
pub(super) struct Tunnel {
    hub: Arc<Hub>,
    id: TunnelId,
    signals: Arc<Signals>,
}

impl Tunnel {
    /// Waits until an agent has answered: the number of the connection.
    pub(super) async fn connected(&self) -> Result<i64, Refusal> {
        loop {
            match self.hub.with(|server| server.state(self.id)) {
                DialState::Connected(connection) => return Ok(connection),
                DialState::Refused(refusal) => return Err(refusal),
                DialState::Dialing => self.signals.reader.notified().await,
            }
        }
    }

    /// The agent that has its connection.
    pub(super) fn agent(&self) -> Option<String> {
        self.hub
            .with(|server| server.agent_of(self.id).map(str::to_owned))
    }

    /// Closes the connection at both ends, also while the tunnel is in use.
    pub(super) fn cutter(&self) -> impl Fn() + Send + Sync + use<> {
        let (hub, id) = (Arc::downgrade(&self.hub), self.id);
        let signals = Arc::downgrade(&self.signals);
        move || {
            if let Some(hub) = hub.upgrade() {
                hub.with(|server| server.evict(id));
            }
            if let Some(signals) = signals.upgrade() {
                signals.wake();
            }
        }
    }

    pub(super) fn shared_signals(&self) -> Arc<Signals> {
        Arc::clone(&self.signals)
    }

    /// Waits until what was written is sent, and the close.
    pub(super) async fn finished(&self) {
        while !self.hub.with(|server| server.is_finished(self.id)) {
            self.signals.writer.notified().await;
        }
    }
}

impl Channel for Tunnel {
    fn read(&self) -> Read {
        self.hub.with(|server| server.read(self.id))
    }

    fn room(&self) -> Room {
        self.hub.with(|server| server.room(self.id))
    }

    fn write(&self, data: Bytes) {
        self.hub.with(|server| server.write(self.id, data));
    }

    fn finish(&self) {
        self.hub.with(|server| server.finish(self.id));
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.hub.with_state(|state| {
            state.tunnels.remove(&self.id);
            state.server.remove(self.id);
        });
    }
}

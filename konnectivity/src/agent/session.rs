//! One stream to a server, with the connections that it asks for.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use metrics::{counter, gauge, histogram};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use egret_shared::rt::{clock, task};

use super::Guard;
use crate::core::{Agent, AgentEvent, DialId, Limits, Read, Room};
use crate::grpc::{PacketReader, PacketWriter};
use crate::proto::dial_error;
use crate::relay::{Channel, Signals, relay};

/// As upstream's.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// How long a packet's stream waits for a destination that takes nothing, where the server counts no credits.
const STUCK_AFTER: Duration = Duration::from_secs(1);
const RETIRED_POLL: Duration = Duration::from_millis(500);
const STUCK_POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    outgoing: Notify,
    /// Another stream to the server is in the place of this one.
    is_retired: watch::Sender<bool>,
    guard: Arc<Guard>,
}

#[derive(Debug)]
struct State {
    agent: Agent,
    connections: HashMap<i64, Arc<Signals>>,
    dials: HashMap<DialId, AbortHandle>,
}

impl Session {
    pub(super) fn new(server_window: Option<u32>, guard: Arc<Guard>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                agent: Agent::new(Limits::default(), server_window),
                connections: HashMap::new(),
                dials: HashMap::new(),
            }),
            outgoing: Notify::new(),
            is_retired: watch::Sender::new(false),
            guard,
        })
    }

    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        for connection in state.agent.take_changed() {
            if let Some(signals) = state.connections.get(&connection) {
                signals.wake();
            }
        }
        if state.agent.has_packets() {
            self.outgoing.notify_one();
        }
        result
    }

    /// Serves until the stream ends.
    pub(super) async fn serve(
        self: Arc<Self>,
        reader: PacketReader,
        writer: PacketWriter,
    ) -> anyhow::Result<()> {
        let ended = tokio::select! {
            ended = self.receive(reader) => ended,
            ended = self.send(writer) => ended,
        };
        self.close();
        ended
    }

    /// The stream is gone: its dials are given up, its connections end.
    pub(super) fn close(&self) {
        self.with(|state| {
            state.agent.close();
            for (_, dial) in state.dials.drain() {
                dial.abort();
            }
        });
    }

    pub(super) fn drain(&self) {
        self.with(|state| state.agent.drain());
    }

    /// Asks for no further dials, and ends when no connection is left.
    pub(super) fn retire(&self) {
        self.drain();
        self.is_retired.send_replace(true);
    }

    /// Returns when it was retired and nothing is left of it.
    pub(super) async fn retired(&self) {
        let mut is_retired = self.is_retired.subscribe();
        if is_retired.wait_for(|is_retired| *is_retired).await.is_err() {
            return std::future::pending().await;
        }
        // The server may ask for a connection before it reads that this stream drains.
        loop {
            tokio::time::sleep(RETIRED_POLL).await;
            if !self.is_busy() {
                return;
            }
        }
    }

    /// Whether there is a connection, a dial, or something to send.
    pub(super) fn is_busy(&self) -> bool {
        self.with(|state| !state.connections.is_empty() || !state.agent.is_idle())
    }

    async fn send(&self, mut writer: PacketWriter) -> anyhow::Result<()> {
        loop {
            while let Some(packet) = self.with(|state| state.agent.next_packet()) {
                writer.send(&packet).await?;
            }
            self.outgoing.notified().await;
        }
    }

    async fn receive(self: &Arc<Self>, mut reader: PacketReader) -> anyhow::Result<()> {
        while let Some(packet) = reader.next().await? {
            match self.with(|state| state.agent.receive(packet))? {
                AgentEvent::Nothing => {}
                AgentEvent::Dial {
                    dial,
                    protocol,
                    address,
                } => self.start_dial(dial, protocol, address),
                AgentEvent::GiveUp(dials) => self.with(|state| {
                    for dial in dials.iter().filter_map(|dial| state.dials.remove(dial)) {
                        dial.abort();
                    }
                }),
                AgentEvent::Full(connection) => self.wait_for_room(connection).await,
            }
        }
        Ok(())
    }

    async fn wait_for_room(&self, connection: i64) {
        let reads = async {
            while self.with(|state| state.agent.is_half_full(connection)) {
                tokio::time::sleep(STUCK_POLL).await;
            }
        };
        if tokio::time::timeout(STUCK_AFTER, reads).await.is_err() {
            tracing::warn!(
                connection,
                "a connection is closed: its destination takes nothing"
            );
            self.with(|state| state.agent.abort(connection));
        }
    }

    fn start_dial(self: &Arc<Self>, dial: DialId, protocol: String, address: String) {
        let session = Arc::clone(self);
        self.with(|state| {
            let task = task::spawn_brief(async move { session.dial(dial, &protocol, &address).await });
            state.dials.insert(dial, task.abort_handle());
        });
    }

    async fn dial(self: Arc<Self>, dial: DialId, protocol: &str, address: &str) {
        let begun = clock::now();
        match connect(&self.guard, protocol, address).await {
            Ok(stream) => {
                let took = clock::now().since(begun).as_secs_f64();
                histogram!("konnectivity_network_proxy_agent_dial_duration_seconds").record(took);
                let connection = self.with(|state| {
                    state.dials.remove(&dial);
                    let connection = state.agent.connected(dial)?;
                    let signals = Arc::new(Signals::default());
                    state.connections.insert(connection, Arc::clone(&signals));
                    Some(Connection {
                        session: Arc::clone(&self),
                        number: connection,
                        signals,
                    })
                });
                if let Some(connection) = connection {
                    connection.serve(stream).await;
                }
            }
            Err(error) => {
                tracing::info!(address, error, "a dial failed");
                let reason = if error.contains("i/o timeout") {
                    "timeout"
                } else {
                    "unknown"
                };
                counter!("konnectivity_network_proxy_agent_endpoint_dial_failure_total", "reason" => reason)
                    .increment(1);
                self.with(|state| {
                    state.dials.remove(&dial);
                    state.agent.refused(dial, error);
                });
            }
        }
    }
}

/// Connects to the first address that answers; every address that is tried was checked. The error is in the words of Go.
async fn connect(guard: &Guard, protocol: &str, address: &str) -> Result<TcpStream, String> {
    if protocol != "tcp" {
        return Err(format!(
            "dial {protocol} {address}: this agent connects by tcp alone"
        ));
    }
    let dialled = tokio::time::timeout(DIAL_WITHIN, connect_tcp(guard, address)).await;
    dialled.unwrap_or_else(|_elapsed| Err(dial_error(address, &io::ErrorKind::TimedOut.into())))
}

async fn connect_tcp(guard: &Guard, address: &str) -> Result<TcpStream, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _port)| host);
    let resolved: Vec<SocketAddr> = match lookup_host(address).await {
        Ok(resolved) => resolved.collect(),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(format!("dial tcp: address {address}: {error}"));
        }
        Err(_error) => return Err(format!("dial tcp: lookup {host}: no such host")),
    };
    let mut failure = format!("dial tcp: lookup {host}: no such host");
    for candidate in resolved {
        if let Err(refused) = guard.check(candidate.ip()) {
            failure = format!("dial tcp {candidate}: {refused}");
            continue;
        }
        match TcpStream::connect(candidate).await {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection sends small packets late");
                }
                return Ok(stream);
            }
            Err(error) => failure = dial_error(&candidate.to_string(), &error),
        }
    }
    Err(failure)
}

/// A connection to a destination.
struct Connection {
    session: Arc<Session>,
    number: i64,
    signals: Arc<Signals>,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let open = gauge!("konnectivity_network_proxy_agent_open_endpoint_connections");
        open.increment(1);
        let (reader, writer) = stream.into_split();
        relay(&self, reader, writer).await;
        // What the destination sent goes out by the stream's sender.
        self.session.with(|state| state.agent.finish(self.number));
        open.decrement(1);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.session.with(|state| {
            state.connections.remove(&self.number);
        });
    }
}

impl Channel for Connection {
    fn read(&self) -> Read {
        self.session.with(|state| state.agent.read(self.number))
    }

    fn room(&self) -> Room {
        self.session.with(|state| state.agent.room(self.number))
    }

    fn write(&self, data: Bytes) {
        self.session.with(|state| state.agent.write(self.number, data));
    }

    fn finish(&self) {
        self.session.with(|state| state.agent.finish(self.number));
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }
}

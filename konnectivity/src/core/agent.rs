//! The agent's end of one stream.

use std::collections::HashMap;

use bytes::Bytes;

use super::multiplexer::{Multiplexer, Side};
use super::{Limits, Overloaded, Read, Room};
use crate::proto::Packet;

/// Dials at once; the server is told of more that they fail.
const MAX_DIALS: usize = 4096;

/// A dial that the server asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DialId(u64);

/// What the edge has to do after a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    Nothing,
    Dial {
        dial: DialId,
        protocol: String,
        address: String,
    },
    /// Nobody waits for these dials any more.
    GiveUp(Vec<DialId>),
    /// So much of the connection is unread that no further packet is to be taken until [`Agent::is_half_full`] is over, or it is aborted.
    Full(i64),
}

#[derive(Debug)]
pub struct Agent {
    multiplexer: Multiplexer,
    /// With the server's key.
    dials: HashMap<DialId, i64>,
    last_dial: u64,
    last_connection: i64,
    limits: Limits,
}

impl Agent {
    /// `server_window`: octets of a connection that the server takes before it gives credit; none where it counts no credits.
    #[must_use]
    pub fn new(limits: Limits, server_window: Option<u32>) -> Self {
        Self {
            multiplexer: Multiplexer::new(Side::Agent, limits, server_window),
            dials: HashMap::new(),
            last_dial: 0,
            last_connection: 0,
            limits,
        }
    }

    /// Takes a packet of the server.
    ///
    /// # Errors
    /// When the stream is to be closed.
    pub fn receive(&mut self, packet: Packet) -> Result<AgentEvent, Overloaded> {
        let event = match packet {
            Packet::DialRequest {
                protocol,
                address,
                random,
            } => self.receive_dial(protocol, address, random),
            Packet::DialClose { random } => {
                let dials = self.dials.iter().filter(|(_, key)| **key == random);
                let dials: Vec<_> = dials.map(|(dial, _)| *dial).collect();
                self.dials.retain(|_, key| *key != random);
                AgentEvent::GiveUp(dials)
            }
            Packet::Data { connection, data } => {
                let is_full = self.multiplexer.receive_data(connection, data)?;
                if self.multiplexer.unread() > self.limits.unread_total
                    && let Some((_, fullest)) = self.multiplexer.fullest()
                {
                    self.multiplexer.evict(fullest);
                }
                if is_full {
                    AgentEvent::Full(connection)
                } else {
                    AgentEvent::Nothing
                }
            }
            Packet::CloseRequest { connection } => {
                self.multiplexer.receive_close_request(connection);
                AgentEvent::Nothing
            }
            Packet::Credit { connection, octets } => {
                self.multiplexer.receive_credit(connection, octets);
                AgentEvent::Nothing
            }
            // No server sends these.
            Packet::DialResponse { .. } | Packet::CloseResponse { .. } | Packet::Drain => AgentEvent::Nothing,
        };
        self.multiplexer.check()?;
        Ok(event)
    }

    fn receive_dial(&mut self, protocol: String, address: String, random: i64) -> AgentEvent {
        if self.dials.len() >= MAX_DIALS {
            self.answer(
                random,
                0,
                format!("dial {protocol} {address}: too many dials at once"),
            );
            return AgentEvent::Nothing;
        }
        self.last_dial += 1;
        let dial = DialId(self.last_dial);
        self.dials.insert(dial, random);
        AgentEvent::Dial {
            dial,
            protocol,
            address,
        }
    }

    /// The dial has a connection; its number, unless nobody waits for it any more. The number is known before the server can send data for it.
    pub fn connected(&mut self, dial: DialId) -> Option<i64> {
        let random = self.dials.remove(&dial)?;
        self.last_connection += 1;
        let connection = self.last_connection;
        if !self.multiplexer.open(connection) {
            return None;
        }
        self.answer(random, connection, String::new());
        Some(connection)
    }

    pub fn refused(&mut self, dial: DialId, error: String) {
        if let Some(random) = self.dials.remove(&dial) {
            self.answer(random, 0, error);
        }
    }

    fn answer(&mut self, random: i64, connection: i64, error: String) {
        self.multiplexer.send(Packet::DialResponse {
            error,
            connection,
            random,
        });
    }

    /// Asks the server for no further dials.
    pub fn drain(&mut self) {
        self.multiplexer.send(Packet::Drain);
    }

    /// The stream ended: connections end after what came of them.
    pub fn close(&mut self) {
        self.dials.clear();
        self.multiplexer.fail();
    }

    pub fn next_packet(&mut self) -> Option<Packet> {
        self.multiplexer.next_packet()
    }

    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.multiplexer.has_packets()
    }

    pub fn read(&mut self, connection: i64) -> Read {
        self.multiplexer.read(connection)
    }

    #[must_use]
    pub fn room(&self, connection: i64) -> Room {
        self.multiplexer.room(connection)
    }

    pub fn write(&mut self, connection: i64, data: Bytes) {
        self.multiplexer.write(connection, data);
    }

    /// The destination sends nothing any more: what it sent goes out, then the close.
    pub fn finish(&mut self, connection: i64) {
        self.multiplexer.finish(connection);
    }

    /// Closes it at once.
    pub fn abort(&mut self, connection: i64) {
        self.multiplexer.abort(connection);
    }

    #[must_use]
    pub fn is_half_full(&self, connection: i64) -> bool {
        self.multiplexer.is_half_full(connection)
    }

    /// Connections with something to read, room to write, or an end.
    pub fn take_changed(&mut self) -> Vec<i64> {
        self.multiplexer.take_changed()
    }

    #[must_use]
    pub fn connections(&self) -> usize {
        self.multiplexer.connections()
    }

    /// No connection, no dial, nothing to send.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.dials.is_empty() && self.multiplexer.is_idle()
    }
}

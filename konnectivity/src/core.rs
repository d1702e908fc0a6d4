//! The state of both programs: no IO, no clock, no lock. Packets come in by `receive`, packets go out by `next_packet`.
//!
//! Nothing here waits. Whoever writes asks for room first; whoever reads is given what came. What changed for others is in the wake-ups.

mod agent;
mod leases;
mod multiplexer;
mod stream;
mod strategy;
mod server;

pub use agent::{Agent, AgentEvent, DialId};
pub use leases::{Lease, Leases};
pub use multiplexer::{Overloaded, Read, Room};
pub use server::{DialState, Refusal, Server, StreamEvent, TunnelId, Wakeups};
pub(crate) use strategy::host_of;
pub use strategy::{InvalidStrategy, Strategy};
pub use stream::{AgentInfo, StreamId};

/// What is kept in memory, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of one connection, not read yet, by a peer that counts credits.
    pub window: u32,
    /// Of one connection, not read yet, by a peer that does not: at half of it the peer is to be slowed, at all of it the connection is closed.
    pub unread: usize,
    /// Of all connections, not read yet: beyond, the connection with most is closed.
    pub unread_total: usize,
    /// Of one connection, not sent yet.
    pub unsent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 1 << 20,
            unread: 8 << 20,
            unread_total: 256 << 20,
            unsent: 64 << 10,
        }
    }
}

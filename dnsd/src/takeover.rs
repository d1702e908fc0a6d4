//! A dnsd takes over from another one without losing a query: it is given the sockets themselves, with what waits in them.
//!
//! ```text
//!   successor                                      predecessor
//!   connects, "hello" ───────────────────────────▶ answers and goes on answering
//!                     ◀─────────── "sockets", and them (SCM_RIGHTS, unix(7))
//!   "memory"          ───────────────────────────▶ goes on answering
//!                     ◀─────────── what it knows, on a socket of its own
//!   makes itself ready
//!   "stop" ──────────────────────────────────────▶ reads no more
//!                     ◀─────────── "stopped"
//!   reads                                          answers what it had read
//!   "serving" ───────────────────────────────────▶ leaves interface and rules alone, drains, exits
//! ```
//!
//! Between "stop" and the successor's first look nobody reads: what comes in waits in the sockets. A successor that
//! dies before it has said "serving" changes nothing: the predecessor reads again. So it does when that one hangs, and hands
//! over when it goes on. Closing a socket that two
//! processes have closes it for one of them; a socket that is bound a second time (`SO_REUSEPORT`) would have a queue
//! of its own, and who closes it loses what is in there.

pub mod transfer;
mod old_process;
mod new_process;
mod wire;
pub mod state;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use new_process::{Granted, Inheritance, Taken, is_somebody_at, is_somebody_else_at, take};
pub use old_process::{Event, Memory, Offer, UNREAD};
pub use wire::HandoverError;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Datagrams of clients.
    Udp,
    /// Replies to them.
    Replies,
    /// Connections of clients.
    Tcp,
    /// Connections of clients that are encrypted.
    Tls,
    /// Such connections with requests of HTTP in them.
    Https,
    /// Datagrams with encrypted connections in them.
    Quic,
    /// Pages for operators and probes.
    Http,
}

/// A socket by what it is for, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// What for.
    pub purpose: Purpose,
    /// Where it is bound.
    pub address: SocketAddr,
}

//! Replacing a running dnsd without losing a query: the new process is given the sockets themselves, with what is queued
//! in them.
//!
//! ```text
//!   new process                                    old process
//!   connects, "hello" ───────────────────────────▶ goes on answering
//!                     ◀─────────── "sockets", and the descriptors (SCM_RIGHTS, unix(7))
//!   "memory"          ───────────────────────────▶ goes on answering
//!                     ◀─────────── its state, on a socket of its own
//!   gets ready
//!   "stop" ──────────────────────────────────────▶ reads no more queries
//!                     ◀─────────── "stopped"
//!   reads                                          answers what it had read
//!   "serving", and one end of a socket pair ─────▶ leaves interface and rules alone
//!                     ◀─────────── open TCP connections, each when its queries are answered
//!   serves them                                    drains, exits
//! ```
//!
//! Between "stop" and the first read of the new process, queries wait in the sockets. When a new process dies before
//! "serving", the old one reads again. When it hangs, the old one reads again too, and leaves when the new one goes on.
//! An old process that is stopped (SIGSTOP) is killed by the new one.
//! Closing a socket that two processes share closes it for one of them. A second socket on the same port (`SO_REUSEPORT`)
//! would have a queue of its own, which is lost when it is closed.

pub mod transfer;
mod old_process;
mod new_process;
mod connections;
mod wire;
pub mod state;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use connections::{Departure, OpenConnection, send_connections};
pub use new_process::{
    InheritedSockets, OldProcess, StoppedOldProcess, end_stopped, is_served, is_served_by_other,
    is_served_from_here, take,
};
pub use old_process::{PAUSE_TIMEOUT, StateSource, TakeoverEvent, TakeoverSocket, remove_socket};
pub use wire::TakeoverError;

/// What a socket is for. The JSON names are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketPurpose {
    /// Datagrams of clients.
    Udp,
    /// Replies to them, where they have a socket of their own.
    Replies,
    /// Connections of clients.
    Tcp,
    /// Connections of clients that are encrypted.
    Tls,
    /// Such connections with HTTP requests in them.
    Https,
    /// Datagrams with encrypted connections in them.
    Quic,
    /// Metrics and probes.
    Http,
}

/// The name of a socket in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketName {
    /// What it is for.
    pub purpose: SocketPurpose,
    /// The address that was configured.
    pub address: SocketAddr,
}

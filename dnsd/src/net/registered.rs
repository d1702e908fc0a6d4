//! Sockets registered with the runtime for chosen events only. Writable events would wake it after each sent datagram.
#![allow(unsafe_code, reason = "a registered descriptor must stay open and the same")]

use std::io;
use std::net::UdpSocket;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a non-blocking socket for these events.
pub(crate) fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: a socket of the standard library has one open descriptor as long as it lives, and it lives in what is made.
    let registered = unsafe { AsyncFd::register_with_interest(socket, interest) };
    registered.map_err(io::Error::from)
}

//! Sockets of which the runtime hears only what is asked for. Of room to send it would be told after each datagram that
//! left, and there nearly always is some.
#![allow(unsafe_code, reason = "to be heard of, a descriptor has to stay what it is")]

use std::io;
use std::net::UdpSocket;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that does not block, of which the runtime hears so much from now on.
pub(crate) fn hear(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: a socket of the standard library has one open descriptor as long as it lives, and it lives in what is made.
    let heard = unsafe { AsyncFd::register_with_interest(socket, interest) };
    heard.map_err(io::Error::from)
}

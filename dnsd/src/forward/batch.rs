//! Many datagrams of a connected socket in one system call: `recvmmsg`, `sendmmsg`.
#![allow(
    unsafe_code,
    reason = "nix makes the headers anew for each call, and in memory that it asks for"
)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams of one call.
pub(super) const MOST: usize = 32;
/// The same, as the kernel counts.
const MOST_OF_KERNEL: libc::c_uint = 32;
/// All that a datagram can have, and a cache line: datagrams that begin at the same place of a page push each other out
/// of the processor's cache.
const STRIDE: usize = 65_536 + 64;

/// Datagrams that came.
pub(super) struct Inbox {
    headers: Vec<libc::mmsghdr>,
    /// What the headers point to; the parts point into the octets. None of the lists grows.
    _parts: Vec<libc::iovec>,
    /// Touched only as far as datagrams reach: what is never used is no memory.
    octets: Vec<u8>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let mut octets = vec![0; MOST * STRIDE];
        let mut parts: Vec<libc::iovec> = octets
            .chunks_exact_mut(STRIDE)
            .map(|room| libc::iovec {
                iov_base: room.as_mut_ptr().cast(),
                iov_len: STRIDE,
            })
            .collect();
        let headers = parts.iter_mut().map(header).collect();
        Self {
            headers,
            _parts: parts,
            octets,
        }
    }

    /// Receives what is there; how many that are.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: `MOST` headers are there, and what they point to is there as long as `self` is.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                MOST_OF_KERNEL,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_failed| io::Error::last_os_error())
    }

    /// A datagram that was received.
    pub(super) fn get(&self, place: usize) -> &[u8] {
        let length = usize::try_from(self.headers[place].msg_len).unwrap_or(STRIDE);
        &self.octets[place * STRIDE..][..length.min(STRIDE)]
    }
}

/// Sends datagrams, `MOST` at most; how many went.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    datagrams: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let none = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut parts, mut count) = ([none; MOST], 0);
    for (part, octets) in parts.iter_mut().zip(datagrams) {
        part.iov_base = octets.as_ptr().cast_mut().cast();
        part.iov_len = octets.len();
        count += 1;
    }
    let mut headers = parts.each_mut().map(header);
    // SAFETY: the headers are there, and the octets that they point to are borrowed until the end. The kernel only reads
    // those.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_failed| io::Error::last_os_error())
}

/// Of a datagram in one part, from or to whom the socket is connected to.
fn header(part: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: all of it are numbers and pointers, for which zero is a value.
    let mut header = unsafe { zeroed::<libc::mmsghdr>() };
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    header
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_sent_together_goes_in_one_call_and_comes_in_one() {
        let (one, other) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        let octets: Vec<Vec<u8>> = (0..MOST + 8).map(|number| vec![7; number]).collect();
        let mut inbox = Inbox::new();
        for (batch, expected) in [(&octets[..MOST], MOST), (&octets[MOST..], 8)] {
            let sent = send(one.as_fd(), batch.iter().map(Vec::as_slice));
            assert_eq!(sent.unwrap(), expected);
            assert_eq!(inbox.receive(other.as_fd()).unwrap(), expected);
            for (place, octets) in batch.iter().enumerate() {
                assert_eq!(inbox.get(place), octets);
            }
        }
        let all = send(one.as_fd(), octets.iter().map(Vec::as_slice));
        assert_eq!(all.unwrap(), MOST, "the others are for the next call");
    }

    #[test]
    fn that_nobody_listens_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(nobody).unwrap();
        assert_eq!(send(socket.as_fd(), [&[7][..]].into_iter()).unwrap(), 1);
        let failure = Inbox::new().receive(socket.as_fd()).unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::ConnectionRefused);
    }
}

//! Many datagrams per system call: `recvmmsg`, `sendmmsg`. Headers and buffers are allocated once and reused, and only the
//! headers that a call used are reset for the next one.
#![allow(
    unsafe_code,
    reason = "nix makes the headers anew for each call, and has one control message for all datagrams of it"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "families, sizes of structures and the length of a batch are small constants that C gives other types"
)]

use std::io;
use std::mem::{offset_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use crate::net::buffers::BATCH;
use crate::net::buffers::return_buffer;
use crate::net::packet_info;

/// The largest datagram and a cache line: buffers that begin at the same offset of a page evict each other from the
/// processor's cache.
const STRIDE: usize = 65_536 + 64;
/// Octets of control messages per datagram: an `in6_pktinfo` with its header takes 40 octets.
const CONTROL: usize = 64;

/// Where a datagram came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramMeta {
    /// Its source.
    pub(crate) from: SocketAddr,
    /// The local address that it was sent to.
    pub(crate) to: Option<IpAddr>,
    /// The interface that it came in by.
    pub(crate) interface: Option<u32>,
}

/// Receives datagrams.
pub(crate) struct ReceiveBatch {
    calls: MessageHeaders,
    /// Pages that no datagram reaches are never touched.
    octets: Vec<u8>,
    filled: usize,
}

/// Sends replies.
pub(crate) struct SendBatch {
    calls: MessageHeaders,
    replies: Vec<(Vec<u8>, DatagramMeta)>,
}

/// The headers of one call. They point into the other lists, none of which grows.
struct MessageHeaders {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    names: Vec<SocketName>,
    controls: Vec<ControlMessage>,
}

// SAFETY: all pointers are into lists that the value itself owns, or are set before each call.
unsafe impl Send for MessageHeaders {}

#[repr(C)]
#[derive(Clone, Copy)]
union SocketName {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// A buffer for control messages, aligned as they are.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlMessage([u8; CONTROL]);

impl MessageHeaders {
    fn new() -> Self {
        // SAFETY: all of these are numbers and pointers, for which zero is a value.
        let (header, part, name) = unsafe {
            (
                zeroed::<libc::mmsghdr>(),
                zeroed::<libc::iovec>(),
                zeroed::<SocketName>(),
            )
        };
        let mut calls = Self {
            headers: vec![header; BATCH],
            parts: vec![part; BATCH],
            names: vec![name; BATCH],
            controls: vec![ControlMessage([0; CONTROL]); BATCH],
        };
        for index in 0..BATCH {
            let header = &mut calls.headers[index].msg_hdr;
            header.msg_iov = &raw mut calls.parts[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut calls.names[index]).cast();
            header.msg_control = calls.controls[index].0.as_mut_ptr().cast();
        }
        calls
    }
}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        let mut receive_batch = Self {
            calls: MessageHeaders::new(),
            octets: vec![0; BATCH * STRIDE],
            filled: BATCH,
        };
        for (index, part) in receive_batch.calls.parts.iter_mut().enumerate() {
            part.iov_base = receive_batch.octets[index * STRIDE..].as_mut_ptr().cast();
            part.iov_len = STRIDE;
        }
        receive_batch
    }

    /// Receives without blocking; returns the number of datagrams.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for header in &mut self.calls.headers[..self.filled] {
            header.msg_hdr.msg_namelen = length_of::<SocketName>();
            header.msg_hdr.msg_controllen = CONTROL;
            header.msg_hdr.msg_flags = 0;
        }
        self.filled = 0;
        // SAFETY: `BATCH` headers are there, and what they point to is there as long as `self` is.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.calls.headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        self.filled = usize::try_from(received).map_err(|_failed| io::Error::last_os_error())?;
        Ok(self.filled)
    }

    /// The octets of a received datagram.
    pub(crate) fn octets(&self, index: usize) -> &[u8] {
        let length = usize::try_from(self.calls.headers[..self.filled][index].msg_len).unwrap_or(STRIDE);
        &self.octets[index * STRIDE..][..length.min(STRIDE)]
    }

    /// The octets and where they came from; `None` where the kernel reports no source.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], DatagramMeta)> {
        let header = &self.calls.headers[..self.filled][index];
        let from = self.calls.names[index].read(header.msg_hdr.msg_namelen)?;
        let control = &self.calls.controls[index].0;
        let control = &control[..header.msg_hdr.msg_controllen.min(CONTROL)];
        let info = packet_info::packet_info(control, from.is_ipv4());
        Some((
            self.octets(index),
            DatagramMeta {
                from,
                to: info.map(|(_, address)| address),
                interface: info.map(|(index, _)| index),
            },
        ))
    }
}

impl SendBatch {
    pub(crate) fn new() -> Self {
        Self {
            calls: MessageHeaders::new(),
            replies: Vec::with_capacity(BATCH),
        }
    }

    /// Adds a reply, sent from this address, or from one that the kernel chooses.
    ///
    /// # Panics
    /// When there are `BATCH` already.
    pub(crate) fn push(&mut self, reply: Vec<u8>, meta: DatagramMeta, from: Option<IpAddr>) {
        let index = self.replies.len();
        let header = &mut self.calls.headers[index].msg_hdr;
        header.msg_namelen = self.calls.names[index].write(meta.from);
        header.msg_controllen = from.map_or(0, |from| self.calls.controls[index].write(from));
        header.msg_control = match from {
            Some(_) => self.calls.controls[index].0.as_mut_ptr().cast(),
            None => std::ptr::null_mut(),
        };
        let part = &mut self.calls.parts[index];
        part.iov_base = reply.as_ptr().cast_mut().cast();
        part.iov_len = reply.len();
        self.replies.push((reply, meta));
    }

    /// Sends all replies. `unsent` gets each that cannot be sent, with the error.
    pub(crate) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        mut unsent: impl FnMut(Vec<u8>, DatagramMeta, io::Error),
    ) {
        let mut first = 0;
        while first < self.replies.len() {
            let waiting = &mut self.calls.headers[first..self.replies.len()];
            // SAFETY: the headers are those of replies that are still there: they are cleared below.
            let sent = unsafe { send_now(socket, waiting) };
            first += sent.unwrap_or_else(|error| {
                let (reply, meta) = &mut self.replies[first];
                unsent(std::mem::take(reply), *meta, error);
                1
            });
        }
        self.replies.drain(..).for_each(|(reply, _)| return_buffer(reply));
    }
}

/// Sends datagrams on a connected socket, `BATCH` at most; returns how many were sent.
pub(crate) fn send<'a>(
    socket: BorrowedFd<'_>,
    datagrams: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let none = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut parts, mut count) = ([none; BATCH], 0);
    for (part, octets) in parts.iter_mut().zip(datagrams) {
        part.iov_base = octets.as_ptr().cast_mut().cast();
        part.iov_len = octets.len();
        count += 1;
    }
    let mut headers = parts.each_mut().map(header);
    // SAFETY: the octets that the headers point to are borrowed until the end.
    unsafe { send_now(socket, &mut headers[..count]) }
}

/// Sends as many as the kernel takes now; returns how many.
///
/// # Safety
/// All that the headers point to is there. The kernel only reads it.
unsafe fn send_now(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let (first, count) = (headers.as_mut_ptr(), headers.len() as u32);
    // SAFETY: so many headers are there, and what they point to is as the caller says.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), first, count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_failed| io::Error::last_os_error())
}

/// The header of a datagram in one buffer, on a connected socket.
fn header(part: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: all of it are numbers and pointers, for which zero is a value.
    let mut header = unsafe { zeroed::<libc::mmsghdr>() };
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    header
}

impl SocketName {
    fn read(&self, length: libc::socklen_t) -> Option<SocketAddr> {
        // SAFETY: both begin with the family, and all octets are always written.
        let family = unsafe { self.v4.sin_family };
        if family == libc::AF_INET as libc::sa_family_t && length >= length_of::<libc::sockaddr_in>() {
            // SAFETY: the kernel wrote a whole one.
            let v4 = unsafe { self.v4 };
            let address = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(address.into(), u16::from_be(v4.sin_port)))
        } else if family == libc::AF_INET6 as libc::sa_family_t && length >= length_of::<libc::sockaddr_in6>()
        {
            // SAFETY: the kernel wrote a whole one.
            let v6 = unsafe { self.v6 };
            let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            // The scope names the interface of a link-local client; the flow label is not used.
            Some(SocketAddrV6::new(address, port, 0, v6.sin6_scope_id).into())
        } else {
            None
        }
    }

    fn write(&mut self, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*address.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
                length_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                length_of::<libc::sockaddr_in6>()
            }
        }
    }
}

impl ControlMessage {
    /// Writes one message, the address to send from (`ip(7)`, `ipv6(7)`); returns its length.
    fn write(&mut self, from: IpAddr) -> usize {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let (level, kind, size) = match from {
            IpAddr::V4(v4) => {
                let at = HEADER + offset_of!(libc::in_pktinfo, ipi_spec_dst);
                self.0[HEADER..HEADER + size_of::<libc::in_pktinfo>()].fill(0);
                self.0[at..at + 4].copy_from_slice(&v4.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>())
            }
            IpAddr::V6(v6) => {
                let at = HEADER + offset_of!(libc::in6_pktinfo, ipi6_addr);
                self.0[HEADER..HEADER + size_of::<libc::in6_pktinfo>()].fill(0);
                self.0[at..at + 16].copy_from_slice(&v6.octets());
                (
                    libc::IPPROTO_IPV6,
                    libc::IPV6_PKTINFO,
                    size_of::<libc::in6_pktinfo>(),
                )
            }
        };
        self.0[..8].copy_from_slice(&(HEADER + size).to_ne_bytes());
        self.0[8..12].copy_from_slice(&level.to_ne_bytes());
        self.0[12..HEADER].copy_from_slice(&kind.to_ne_bytes());
        (HEADER + size).next_multiple_of(8)
    }
}

fn length_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    /// A wildcard socket of each family, and an address of its host that is not the one the kernel would choose.
    fn wildcard(is_ipv4: bool) -> (UdpSocket, SocketAddr) {
        let socket = if is_ipv4 {
            UdpSocket::bind("0.0.0.0:0").unwrap()
        } else {
            UdpSocket::bind("[::]:0").unwrap()
        };
        if is_ipv4 {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true).unwrap();
        }
        let address = if is_ipv4 { "127.0.0.2" } else { "::1" };
        let port = socket.local_addr().unwrap().port();
        (socket, SocketAddr::new(address.parse().unwrap(), port))
    }

    /// Who asks at an address, and hears what comes from there alone.
    pub(crate) fn client_of(address: SocketAddr) -> UdpSocket {
        let any = if address.is_ipv4() {
            "127.0.0.1:0"
        } else {
            "[::1]:0"
        };
        let client = UdpSocket::bind(any).unwrap();
        client.connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client
    }

    #[test]
    fn queued_datagrams_arrive_in_one_call_and_replies_have_the_queried_address() {
        for is_ipv4 in [true, false] {
            let (socket, address) = wildcard(is_ipv4);
            let client = client_of(address);
            for number in 0..BATCH + 8 {
                client.send(&vec![7; number]).unwrap();
            }
            let (mut receive_batch, mut send_batch) = (ReceiveBatch::new(), SendBatch::new());
            let mut lengths = 0..;
            for expected in [BATCH, 8] {
                assert_eq!(receive_batch.receive(socket.as_fd()).unwrap(), expected);
                for index in 0..expected {
                    let (octets, meta) = receive_batch.get(index).unwrap();
                    assert_eq!(octets, vec![7; lengths.next().unwrap()]);
                    assert_eq!(meta.from, client.local_addr().unwrap());
                    assert_eq!(meta.to, Some(address.ip()));
                    assert_eq!(meta.interface, Some(1), "loopback");
                    send_batch.push(octets.to_vec(), meta, meta.to);
                }
                send_batch.flush(socket.as_fd(), |_, _, error| panic!("{error}"));
            }
            let nothing = receive_batch.receive(socket.as_fd()).unwrap_err();
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
            // The client is connected: what comes from another address of the host does not reach it.
            for number in 0..BATCH + 8 {
                assert_eq!(client.recv(&mut [0; 64]).unwrap(), number);
            }
        }
    }

    #[test]
    fn a_reply_that_cannot_be_sent_does_not_stop_the_others() {
        let (socket, address) = wildcard(true);
        let client = client_of(address);
        let meta = |from| DatagramMeta {
            from,
            to: Some(address.ip()),
            interface: None,
        };
        let (good, nobody) = (client.local_addr().unwrap(), "127.0.0.1:0".parse().unwrap());
        let mut send_batch = SendBatch::new();
        for (octet, to) in [(1, good), (2, nobody), (3, good)] {
            send_batch.push(vec![octet], meta(to), Some(address.ip()));
        }
        let mut unsent = Vec::new();
        send_batch.flush(socket.as_fd(), |reply, meta, error| {
            unsent.push((reply, meta.from, error.raw_os_error()));
        });
        assert_eq!(unsent, [(vec![2], nobody, Some(libc::EINVAL))]);
        let mut octets = [0; 8];
        for expected in [1, 3] {
            assert_eq!((client.recv(&mut octets).unwrap(), octets[0]), (1, expected));
        }
    }

    #[test]
    fn a_batch_is_sent_and_received_in_one_call() {
        let (one, other) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        let octets: Vec<Vec<u8>> = (0..BATCH + 8).map(|number| vec![7; number]).collect();
        let mut receive_batch = ReceiveBatch::new();
        for (batch, expected) in [(&octets[..BATCH], BATCH), (&octets[BATCH..], 8)] {
            let sent = send(one.as_fd(), batch.iter().map(Vec::as_slice));
            assert_eq!(sent.unwrap(), expected);
            assert_eq!(receive_batch.receive(other.as_fd()).unwrap(), expected);
            for (index, octets) in batch.iter().enumerate() {
                assert_eq!(receive_batch.octets(index), octets);
            }
        }
        let all = send(one.as_fd(), octets.iter().map(Vec::as_slice));
        assert_eq!(all.unwrap(), BATCH, "the others are for the next call");
    }

    #[test]
    fn a_closed_port_is_reported() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(nobody).unwrap();
        assert_eq!(send(socket.as_fd(), [&[7][..]].into_iter()).unwrap(), 1);
        let failure = ReceiveBatch::new().receive(socket.as_fd()).unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::ConnectionRefused);
    }
}

//! A UDP socket that reports interface and destination address of a datagram, and answers from that address.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::net::batch::{BATCH, DatagramMeta, ReceiveBatch};
use crate::net::registered::register;

/// A receive buffer for bursts, in octets: the default holds about 190 queries, and a lost query costs its client 5 s.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The socket.
#[derive(Debug)]
pub(super) struct ListenSocket {
    /// Registered for reading only. For writing, the runtime would be woken after each sent datagram, and the socket is
    /// nearly always writable.
    socket: AsyncFd<UdpSocket>,
    /// The socket that sends replies, if there is a separate one.
    outlet: Option<UdpSocket>,
    /// The bound address.
    bound: IpAddr,
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

impl ListenSocket {
    /// Binds. The address is exclusive (`SO_REUSEADDR` would let another instance take the queries).
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let Some(outlet) = outlet(address) else {
            return Self::inherit(inlet(address)?.into(), None);
        };
        // For port 0, the first of the two gets the port.
        let address = outlet.local_addr()?;
        setsockopt(&outlet, sockopt::ReusePort, &true)?;
        let inlet = inlet(address)?;
        setsockopt(&outlet, sockopt::ReusePort, &false)?;
        Self::inherit(inlet.into(), Some(outlet.into()))
    }

    /// Bound sockets, perhaps of another process.
    pub(super) fn inherit(socket: OwnedFd, outlet: Option<OwnedFd>) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        Ok(Self {
            bound: socket.local_addr()?.ip(),
            socket: register(socket, Interest::READABLE)?,
            outlet: outlet.map(UdpSocket::from),
        })
    }

    /// Sends replies by the receiving socket, which can have the options that they need.
    pub(super) fn without_outlet(self) -> Self {
        Self { outlet: None, ..self }
    }

    /// The separate sending socket, if there is one.
    pub(super) fn outlet(&self) -> Option<BorrowedFd<'_>> {
        self.outlet.as_ref().map(AsFd::as_fd)
    }

    /// The socket that sends replies.
    pub(super) fn way_out(&self) -> BorrowedFd<'_> {
        self.outlet().unwrap_or_else(|| self.as_fd())
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await?.retain_ready();
        Ok(())
    }

    /// Reads queued datagrams. A batch that is not full has emptied the socket: readiness is cleared without another
    /// system call.
    pub(super) fn try_receive(&self, receive_batch: &mut ReceiveBatch) -> io::Result<usize> {
        let mut received = 0;
        let read = self.socket.try_io(Interest::READABLE, |socket| {
            received = receive_batch.receive(socket.as_fd())?;
            if received < BATCH {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(received),
        }
    }

    /// Reads queued datagrams whether or not the runtime reports them: for the last ones of a socket.
    pub(super) fn receive_now(&self, receive_batch: &mut ReceiveBatch) -> io::Result<usize> {
        receive_batch.receive(self.as_fd())
    }

    /// The source address of a reply, if the socket does not determine it: a wildcard, or an intercepted query.
    pub(super) fn source(&self, meta: &DatagramMeta) -> Option<IpAddr> {
        meta.to.filter(|asked| *asked != self.bound)
    }

    /// Sends a reply from the address that was queried.
    pub(super) async fn send(&self, reply: &[u8], meta: &DatagramMeta) -> io::Result<()> {
        let from = self.source(meta);
        let try_send = |socket: &UdpSocket| send(socket.as_raw_fd(), reply, meta.from, from);
        match try_send(self.socket.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let room = self.socket.get_ref().try_clone()?;
                let room = register(room, Interest::WRITABLE)?;
                room.async_io(Interest::WRITABLE, try_send).await
            }
            sent => sent,
        }
    }
}

/// The receiving socket.
pub(super) fn inlet(address: SocketAddr) -> io::Result<Socket> {
    let socket = datagrams_of(address)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    // Above the host's limit only with CAP_NET_ADMIN; otherwise up to it.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    beside_others(&socket, || socket.bind(&address.into()))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The sending socket: same address and port, and nobody polls it. On the receiving socket the kernel wakes the poller
/// each time that a datagram has left (`sock_wfree`, net/core/sock.c), which costs 3 % of an answer.
///
/// It is connected to itself, so it receives no query; and it is bound first, so no query arrives between its two
/// calls. There is none for a wildcard, which answers from many addresses, or if the kernel refuses it: the receiving
/// socket reports the error then.
fn outlet(address: SocketAddr) -> Option<UdpSocket> {
    if address.ip().is_unspecified() {
        return None;
    }
    let bind = || {
        let socket = datagrams_of(address)?;
        beside_others(&socket, || socket.bind(&address.into()))?;
        socket.connect(&socket.local_addr()?)?;
        socket.set_nonblocking(true)?;
        io::Result::Ok(socket.into())
    };
    let bound =
        bind().inspect_err(|error| tracing::debug!(%address, %error, "replies have no socket of their own"));
    bound.ok()
}

fn datagrams_of(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Binds beside sockets of this user that share their port at this moment, such as a single address and a wildcard
/// during a reload. The socket shares its port with no later one.
pub(super) fn beside_others(socket: &Socket, bind: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    setsockopt(socket, sockopt::ReusePort, &true)?;
    let bound = bind();
    setsockopt(socket, sockopt::ReusePort, &false)?;
    bound
}

pub(super) fn send(socket: i32, reply: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
    let parts = [IoSlice::new(reply)];
    let to = SockaddrStorage::from(to);
    let none = MsgFlags::empty();
    match from {
        None => sendmsg(socket, &parts, &[], none, Some(&to))?,
        Some(IpAddr::V4(from)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from(from).to_be(),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            sendmsg(
                socket,
                &parts,
                &[ControlMessage::Ipv4PacketInfo(&info)],
                none,
                Some(&to),
            )?
        }
        Some(IpAddr::V6(from)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: from.octets(),
                },
                ipi6_ifindex: 0,
            };
            sendmsg(
                socket,
                &parts,
                &[ControlMessage::Ipv6PacketInfo(&info)],
                none,
                Some(&to),
            )?
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::batch::SendBatch;
    use crate::net::batch::tests::client_of;

    const BOTH: [&str; 2] = ["127.0.0.2:0", "[::1]:0"];

    #[tokio::test]
    async fn replies_are_sent_by_another_socket_from_the_queried_address_and_port() {
        for address in BOTH {
            let datagrams = ListenSocket::bind(address.parse().unwrap()).unwrap();
            let own = datagrams.local_address().unwrap();
            assert_ne!(datagrams.way_out().as_raw_fd(), datagrams.as_fd().as_raw_fd());
            let client = client_of(own);
            let (mut receive_batch, mut send_batch) = (ReceiveBatch::new(), SendBatch::new());
            client.send(&[7]).unwrap();
            assert_eq!(datagrams.receive_now(&mut receive_batch).unwrap(), 1);
            let (octets, meta) = receive_batch.get(0).unwrap();
            send_batch.push(octets.to_vec(), meta, datagrams.source(&meta));
            send_batch.flush(datagrams.way_out(), |_, _, error| panic!("{error}"));
            // It is connected: datagrams from elsewhere do not reach it.
            let mut octets = [0; 8];
            assert_eq!((client.recv(&mut octets).unwrap(), octets[0]), (1, 7), "{own}");
        }
    }

    #[tokio::test]
    async fn queries_arrive_at_the_receiving_socket() {
        for address in BOTH {
            let datagrams = ListenSocket::bind(address.parse().unwrap()).unwrap();
            let own = datagrams.local_address().unwrap();
            let clients: Vec<UdpSocket> = (0..256).map(|_| client_of(own)).collect();
            let mut receive_batch = ReceiveBatch::new();
            // … and while a reload lets others bind beside them, when the kernel treats all sockets of a port as one
            // group.
            for is_shared in [false, true] {
                for socket in [datagrams.as_fd(), datagrams.way_out()] {
                    setsockopt(&socket, sockopt::ReusePort, &is_shared).unwrap();
                }
                for client in &clients {
                    client.send(&[7]).unwrap();
                    let received = datagrams.receive_now(&mut receive_batch);
                    assert_eq!(received.unwrap(), 1, "{client:?}, {is_shared}");
                }
            }
        }
    }

    #[tokio::test]
    async fn no_other_socket_can_be_bound_beside_the_two() {
        for address in BOTH {
            let datagrams = ListenSocket::bind(address.parse().unwrap()).unwrap();
            let own = datagrams.local_address().unwrap();
            let other = datagrams_of(own).unwrap();
            let refused = beside_others(&other, || other.bind(&own.into())).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{own}");
        }
    }

    #[tokio::test]
    async fn a_wildcard_replies_by_the_receiving_socket() {
        for address in ["0.0.0.0:0", "[::]:0"] {
            let datagrams = ListenSocket::bind(address.parse().unwrap()).unwrap();
            assert!(datagrams.outlet().is_none(), "it has too many addresses for one");
        }
    }
}

//! A UDP socket that knows by which interface and to which address a datagram came, and answers from that address.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::batch::{Envelope, Inbox, MOST};
use crate::heard::hear;

/// Room for a burst: the default holds about 190 queries, and a lost one costs its client 5 s.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    /// The runtime hears of what comes alone. Of room to send it would hear after each datagram that left, and there nearly
    /// always is some.
    socket: AsyncFd<UdpSocket>,
    /// The address that it is bound to.
    bound: IpAddr,
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

impl Datagrams {
    /// Binds. The address is not shared (`SO_REUSEADDR` would let a forgotten other instance have the queries).
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        // Beyond the host's limit only with CAP_NET_ADMIN; up to it without.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        beside_others(&socket, || socket.bind(&address.into()))?;
        socket.set_nonblocking(true)?;
        Self::inherit(socket.into())
    }

    /// A socket that was bound before, perhaps by another process.
    pub(super) fn inherit(socket: OwnedFd) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        Ok(Self {
            bound: socket.local_addr()?.ip(),
            socket: hear(socket, Interest::READABLE)?,
        })
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await?.retain_ready();
        Ok(())
    }

    /// Reads what is there already. Fewer datagrams than there is room for are all that there were: the runtime is told
    /// so, and need not ask the kernel again.
    pub(super) fn try_receive(&self, inbox: &mut Inbox) -> io::Result<usize> {
        let mut received = 0;
        let read = self.socket.try_io(Interest::READABLE, |socket| {
            received = inbox.receive(socket.as_fd())?;
            if received < MOST {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(received),
        }
    }

    /// Reads what is there, whether or not the runtime has heard of it yet: for the last ones of a socket.
    pub(super) fn receive_now(&self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.receive(self.as_fd())
    }

    /// The address that a reply goes from, where the socket does not say so itself: it has them all, or it was handed what
    /// is for others.
    pub(super) fn source(&self, envelope: &Envelope) -> Option<IpAddr> {
        envelope.to.filter(|asked| *asked != self.bound)
    }

    /// Sends a reply from the address that was asked.
    pub(super) async fn send(&self, reply: &[u8], envelope: &Envelope) -> io::Result<()> {
        let from = self.source(envelope);
        let try_send = |socket: &UdpSocket| send(socket.as_raw_fd(), reply, envelope.from, from);
        match try_send(self.socket.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let room = self.socket.get_ref().try_clone()?;
                let room = hear(room, Interest::WRITABLE)?;
                room.async_io(Interest::WRITABLE, try_send).await
            }
            sent => sent,
        }
    }
}

/// Binds beside sockets of this user that share their port at this moment, as a single address and a wildcard may (a reload
/// goes from one to the other), and shares it with nobody later.
pub(super) fn beside_others(socket: &Socket, bind: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    setsockopt(socket, sockopt::ReusePort, &true)?;
    let bound = bind();
    setsockopt(socket, sockopt::ReusePort, &false)?;
    bound
}

fn send(socket: i32, reply: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
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

//! A UDP socket that knows by which interface and to which address a datagram came, and answers from that address.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Room for a burst: the default holds about 190 queries, and a lost one costs its client 5 s.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    /// The address that it is bound to.
    bound: IpAddr,
}

/// A datagram's way here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    /// Octets.
    pub(super) length: usize,
    /// Who sent it.
    pub(super) from: SocketAddr,
    /// The address of ours that it was sent to.
    pub(super) to: Option<IpAddr>,
    /// The interface that it came in by.
    pub(super) interface: Option<u32>,
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Self {
            bound: socket.local_addr()?.ip(),
            socket,
        })
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Reads a datagram that is there already.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<Envelope> {
        self.socket
            .try_io(Interest::READABLE, || receive(self.socket.as_raw_fd(), buffer))
    }

    /// Reads a datagram that is there, whether or not the runtime has heard of it yet: for the last ones of a socket.
    pub(super) fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Envelope> {
        receive(self.socket.as_raw_fd(), buffer)
    }

    /// Sends a reply from the address that was asked.
    pub(super) async fn send(&self, reply: &[u8], envelope: &Envelope) -> io::Result<()> {
        loop {
            match self.try_send(reply, envelope) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.writable().await?,
                sent => return sent,
            }
        }
    }

    /// Sends a reply if the socket takes it now.
    pub(super) fn try_send(&self, reply: &[u8], envelope: &Envelope) -> io::Result<()> {
        let from = envelope.to.filter(|asked| *asked != self.bound);
        self.socket.try_io(Interest::WRITABLE, || {
            send(self.socket.as_raw_fd(), reply, envelope.from, from)
        })
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

fn receive(socket: i32, buffer: &mut [u8]) -> io::Result<Envelope> {
    let mut control = [0; 128];
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let from = message
        .address
        .as_ref()
        .and_then(socket_address)
        .ok_or_else(|| io::Error::other("a datagram without a source address"))?;
    let (to, interface) = message
        .cmsgs()?
        .find_map(|control| destination(&control))
        .map_or((None, None), |(to, index)| (Some(to), u32::try_from(index).ok()));
    Ok(Envelope {
        length: message.bytes,
        from,
        to,
        interface,
    })
}

fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 = storage
        .as_sockaddr_in()
        .map(|address| SocketAddr::V4((*address).into()));
    ipv4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|address| SocketAddr::V6((*address).into()))
    })
}

fn destination(control: &ControlMessageOwned) -> Option<(IpAddr, i64)> {
    match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let address = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
            Some((address.into(), info.ipi_ifindex.into()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some((
            Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
            info.ipi6_ifindex.into(),
        )),
        _other => None,
    }
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

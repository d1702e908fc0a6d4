//! A UDP socket on every address of a namespace that answers from the address that was asked (IPV6_PKTINFO, RFC 3542
//! section 6), IPv4 as mapped addresses on the same socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV6},
    os::fd::AsRawFd as _,
};

use nix::{
    cmsg_space,
    libc::{in6_addr, in6_pktinfo},
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, sendmsg, setsockopt, sockopt,
    },
};
use socket2::Socket;
use tokio::{io::Interest, net::UdpSocket};

#[derive(Debug)]
pub(crate) struct WildcardUdp {
    socket: UdpSocket,
}

/// A datagram, who sent it, and which of our addresses it was sent to.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: SocketAddr,
    pub(crate) asked: IpAddr,
}

impl WildcardUdp {
    /// `socket` is a dual-stack datagram socket that does not block; a tokio runtime must be entered.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        Ok(Self {
            socket: UdpSocket::from_std(socket.into())?,
        })
    }

    pub(crate) async fn receive(&self) -> io::Result<Datagram> {
        self.socket
            .async_io(Interest::READABLE, || receive(&self.socket))
            .await
    }

    /// Sends from `source`, which need not be the address that was asked.
    pub(crate) async fn send(&self, bytes: &[u8], source: IpAddr, to: SocketAddr) -> io::Result<()> {
        self.socket
            .async_io(Interest::WRITABLE, || send(&self.socket, bytes, source, to))
            .await
    }
}

fn receive(socket: &UdpSocket) -> io::Result<Datagram> {
    let mut bytes = vec![0; 65_536];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = cmsg_space!(in6_pktinfo);
    let received = recvmsg::<SockaddrIn6>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let asked = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical())
        }
        _ => None,
    });
    let from = received
        .address
        .map(|address| unmapped(SocketAddrV6::from(address).into()));
    let length = received.bytes;
    let (Some(from), Some(asked)) = (from, asked) else {
        return Err(io::Error::other("a datagram came without its addresses"));
    };
    bytes.truncate(length);
    Ok(Datagram { bytes, from, asked })
}

fn send(socket: &UdpSocket, bytes: &[u8], source: IpAddr, to: SocketAddr) -> io::Result<()> {
    let info = in6_pktinfo {
        ipi6_addr: in6_addr {
            s6_addr: mapped(source),
        },
        ipi6_ifindex: 0,
    };
    let to = SockaddrIn6::from(SocketAddrV6::new(mapped(to.ip()).into(), to.port(), 0, 0));
    let parts = [IoSlice::new(bytes)];
    let source = [ControlMessage::Ipv6PacketInfo(&info)];
    sendmsg(
        socket.as_raw_fd(),
        &parts,
        &source,
        MsgFlags::MSG_DONTWAIT,
        Some(&to),
    )?;
    Ok(())
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An IPv4 address as such, where a dual-stack socket shows it as `::ffff:…`.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

//! Interfaces, addresses and routes as the kernel sees them, by rtnetlink; and a bell that rings when they change.
//!
//! The bell says *that* something changed, never what: after an overrun the details would be wrong, and listing
//! again is always right.

use crate::Family;
use crate::netlink::{Attributes, DUMP, Error, MalformedMessage, ReplyPart, Request, Socket};
use ipnet::IpNet;
use nix::libc::{
    IFA_ADDRESS, IFA_LOCAL, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK,
    IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_DELADDR, RTM_DELLINK,
    RTM_DELROUTE, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTN_LOCAL,
    RTN_UNICAST,
};
use nix::sys::socket::SockProtocol;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

mod attachment;
mod local;

pub use attachment::Attachment;
pub use local::InterfaceOrigin;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub is_up: bool,
    pub mtu: u32,
    /// `veth`, `bridge`, `ifb`, …; physical interfaces and `lo` have none.
    pub kind: Option<String>,
    /// The bridge or bond it is a port of.
    pub master: Option<u32>,
    /// The other end of a veth (an index of *its* namespace), or the interface it sits on.
    pub link: Option<u32>,
    /// The hardware address; empty where the interface has none.
    pub hardware: Vec<u8>,
    /// The namespace that `link` is in, by the number that this one has for it; none where that is this one.
    pub link_namespace: Option<u32>,
    /// What the interface takes out of datagrams that reach this host.
    pub decapsulates: Tunnel,
}

/// What an interface takes out of UDP datagrams to this host, as packets of nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// Nothing, or what comes by protocols of IP other than UDP.
    Nothing,
    /// What comes to a UDP port (vxlan, geneve, bareudp).
    UdpPort(u16),
    /// What comes to a UDP port that the interface does not tell (an IP tunnel with FOU or GUE).
    UdpSomewhere,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The address with the length of its on-link prefix.
    pub net: IpNet,
    /// The index of the interface that has it.
    pub interface: u32,
}

/// Where the kernel would send a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: u32,
    pub name: String,
    /// The address is one of this host's own.
    pub is_local: bool,
    /// `None`: the address is on the link.
    pub gateway: Option<IpAddr>,
}

/// The links of one network namespace: that of the thread which opened it.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

impl Links {
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkRoute).map(|socket| Self { socket })
    }

    /// Where a packet to this address would go; `None` if nowhere (no route, or one that refuses).
    pub fn route_to(&mut self, address: IpAddr) -> Result<Option<Route>, Error> {
        let found = match self.socket.ask(&route_request(address), read_route) {
            Ok(found) => found.into_iter().next(),
            Err(error) if error.refusal_code().is_some_and(is_unroutable) => None,
            Err(error) => return Err(error),
        };
        let Some((interface, is_local, gateway)) = found else {
            return Ok(None);
        };
        // An interface that vanished in between has no route either.
        let named = self.interface_by_index(interface)?;
        Ok(named.map(|Interface { name, .. }| Route {
            interface,
            name,
            is_local,
            gateway,
        }))
    }

    /// All addresses of this host, of both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let request = Request::new("all addresses", RTM_GETADDR, DUMP, &[0; ADDRESS_HEADER]);
        self.socket.ask(&request, read_address)
    }

    /// All interfaces.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>, Error> {
        self.socket.ask(
            &Request::new("all interfaces", RTM_GETLINK, DUMP, &[0; LINK_HEADER]),
            read_interface,
        )
    }

    pub fn interface_by_name(&mut self, name: &str) -> Result<Option<Interface>, Error> {
        self.one_interface(
            &Request::new("interface by name", RTM_GETLINK, 0, &[0; LINK_HEADER]).text(IFLA_IFNAME, name),
        )
    }

    pub fn interface_by_index(&mut self, index: u32) -> Result<Option<Interface>, Error> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        self.one_interface(&Request::new("interface by index", RTM_GETLINK, 0, &header))
    }

    /// The number that this namespace has for another one; none while no link leads there.
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<u32>, Error> {
        let descriptor = namespace.as_raw_fd().to_ne_bytes();
        let request = Request::new("number of a namespace", RTM_GETNSID, 0, &[0; NAMESPACE_HEADER])
            .bytes(NETNSA_FD, &descriptor);
        let found = self.socket.ask(&request, |answer| {
            let (_, attributes) = answer.split::<NAMESPACE_HEADER>()?;
            Ok(attributes.native32(NETNSA_NSID))
        })?;
        Ok(found.into_iter().find(|id| *id != NO_NAMESPACE))
    }

    fn one_interface(&mut self, request: &Request) -> Result<Option<Interface>, Error> {
        match self.socket.ask(request, read_interface) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if error.refusal_code() == Some(nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `struct ifinfomsg`, `ifaddrmsg`, `rtmsg` of `linux/rtnetlink.h`.
pub(crate) const LINK_HEADER: usize = 16;
pub(crate) const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
/// `struct rtgenmsg`, padded; attributes of `linux/net_namespace.h`.
const NAMESPACE_HEADER: usize = 4;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// `NETNSA_NSID_NOT_ASSIGNED`, -1.
const NO_NAMESPACE: u32 = u32::MAX;
const RTM_GETNSID: u16 = 90;
const IFLA_LINK_NETNSID: u16 = 37;

fn route_request(address: IpAddr) -> Request {
    let (family, octets) = match address {
        IpAddr::V4(address) => (Family::V4, address.octets().to_vec()),
        IpAddr::V6(address) => (Family::V6, address.octets().to_vec()),
    };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let mut header = [0; ROUTE_HEADER];
    header[..2].copy_from_slice(&[family.number(), bits]);
    Request::new("route to an address", RTM_GETROUTE, 0, &header).bytes(RTA_DST, &octets)
}

/// What the kernel answers for "nowhere": no route, or a route that is there to refuse
/// (`unreachable`, `prohibit`, `blackhole`).
fn is_unroutable(code: i32) -> bool {
    use nix::libc::{EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH};
    [ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL].contains(&code)
}

type Hop = (u32, bool, Option<IpAddr>);

fn read_route(answer: ReplyPart<'_>) -> Result<Option<Hop>, MalformedMessage> {
    if answer.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let (header, attributes) = answer.split::<ROUTE_HEADER>()?;
    let kind = header[7];
    // IPv6 reports refusing routes as routes of another type, IPv4 as errors.
    if kind != RTN_UNICAST && kind != RTN_LOCAL {
        return Ok(None);
    }
    let gateway = attributes
        .get(RTA_GATEWAY)
        .or_else(|| attributes.get(RTA_VIA)?.get(2..))
        .and_then(address_of);
    Ok(attributes
        .native32(RTA_OIF)
        .map(|interface| (interface, kind == RTN_LOCAL, gateway)))
}

/// A gateway of the other family: `struct rtvia`, the address behind two bytes of family.
const RTA_VIA: u16 = 18;

pub(crate) fn read_address(answer: ReplyPart<'_>) -> Result<Option<Address>, MalformedMessage> {
    if answer.kind != RTM_NEWADDR {
        return Ok(None);
    }
    let (header, attributes) = answer.split::<ADDRESS_HEADER>()?;
    let [_, length, _, _, index @ ..] = *header;
    // On a point-to-point link IFA_ADDRESS is the peer's; IFA_LOCAL, where it is said, is ours.
    let address = attributes
        .get(IFA_LOCAL)
        .or_else(|| attributes.get(IFA_ADDRESS))
        .and_then(address_of);
    let net = address.and_then(|address| IpNet::new(address, length).ok());
    Ok(net.map(|net| Address {
        net,
        interface: u32::from_ne_bytes(index),
    }))
}

pub(crate) fn read_interface(answer: ReplyPart<'_>) -> Result<Option<Interface>, MalformedMessage> {
    if answer.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (header, attributes) = answer.split::<LINK_HEADER>()?;
    let name = attributes
        .text(IFLA_IFNAME)
        .ok_or(MalformedMessage("an interface without a name"))?;
    let information = attributes.nest(IFLA_LINKINFO)?;
    let kind = information.text(IFLA_INFO_KIND);
    let decapsulates = decapsulates(kind.as_deref(), &information.nest(IFLA_INFO_DATA)?);
    Ok(Some(Interface {
        decapsulates,
        ..interface(header, &attributes, name, kind)
    }))
}

/// `IFLA_VXLAN_PORT`, `IFLA_GENEVE_PORT`, `IFLA_BAREUDP_PORT` of linux/if_link.h; `IFLA_IPTUN_ENCAP_TYPE` and
/// `IFLA_GRE_ENCAP_TYPE` of linux/if_tunnel.h.
fn decapsulates(kind: Option<&str>, data: &Attributes<'_>) -> Tunnel {
    let port = |attribute| data.be16(attribute).map_or(Tunnel::UdpSomewhere, Tunnel::UdpPort);
    let encapsulated = |attribute| match data.get(attribute) {
        None | Some([0, 0]) => Tunnel::Nothing,
        Some(_) => Tunnel::UdpSomewhere,
    };
    match kind {
        Some("vxlan") => port(15),
        Some("geneve") => port(5),
        Some("bareudp") => port(1),
        Some("ipip" | "sit" | "ip6tnl") => encapsulated(15),
        Some("gre" | "gretap" | "ip6gre" | "ip6gretap") => encapsulated(14),
        Some("gtp") => Tunnel::UdpSomewhere,
        Some(_) | None => Tunnel::Nothing,
    }
}

fn interface(
    header: &[u8; LINK_HEADER],
    attributes: &Attributes<'_>,
    name: String,
    kind: Option<String>,
) -> Interface {
    const UP: u8 = 1;
    let [_, _, _, _, i, n, d, x, flags, ..] = *header;
    Interface {
        index: u32::from_ne_bytes([i, n, d, x]),
        name,
        is_up: lowest_byte([flags, header[9], header[10], header[11]]) & UP != 0,
        mtu: attributes.native32(IFLA_MTU).unwrap_or(0),
        kind,
        master: attributes.native32(IFLA_MASTER),
        link: attributes.native32(IFLA_LINK),
        hardware: attributes.get(IFLA_ADDRESS).unwrap_or_default().to_vec(),
        link_namespace: attributes.native32(IFLA_LINK_NETNSID),
        decapsulates: Tunnel::Nothing,
    }
}

fn lowest_byte(number: [u8; 4]) -> u8 {
    u32::from_ne_bytes(number).to_le_bytes()[0]
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).map(IpAddr::from).ok();
    v4().or_else(|| <[u8; 16]>::try_from(octets).map(IpAddr::from).ok())
}

/// What changed since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkChanges {
    pub links: bool,
    pub addresses: bool,
    pub routes: bool,
    /// News were lost: anything may have changed.
    pub overrun: bool,
}

impl LinkChanges {
    pub fn any(self) -> bool {
        self.links || self.addresses || self.routes || self.overrun
    }
}

/// Hears of changes of links, addresses and routes; its file descriptor is readable when there is news.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
}

impl LinkMonitor {
    pub fn open() -> Result<Self, Error> {
        /// `RTMGRP_*`: link, and address and route of both families.
        const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x400;
        Socket::listen(SockProtocol::NetlinkRoute, GROUPS).map(|socket| Self { socket })
    }

    /// Takes all news that wait, without waiting for any.
    pub fn drain(&mut self) -> Result<LinkChanges, Error> {
        let (kinds, overrun) = self.socket.notifications()?;
        let heard = |new, gone| kinds.iter().any(|kind| *kind == new || *kind == gone);
        Ok(LinkChanges {
            links: heard(RTM_NEWLINK, RTM_DELLINK),
            addresses: heard(RTM_NEWADDR, RTM_DELADDR),
            routes: heard(RTM_NEWROUTE, RTM_DELROUTE),
            overrun,
        })
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for LinkMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

//! An attacker with root in a network namespace: packets with any source address, ICMP errors about foreign
//! connections, tunnels, TCP handshakes by hand, and a view of every frame.
//!
//! Packets leave by AF_PACKET, so no rule, route or socket of the namespace applies. The node and the daemons see
//! what they would see of a pod with CAP_NET_RAW.

#![allow(
    unsafe_code,
    reason = "socket2 has no constructor for the address of a packet socket"
)]

mod packet;
mod sniffer;
mod handshake;

use std::{
    fmt, io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use packet::{Packet, Segment};
pub use sniffer::{Seen, Sniffer};

use crate::{Attachment, World, WorldError, attachment::BRIDGE, command, netns::Netns};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// An address that no interface has.
    pub const ANY: Self = Self([0x02, 0, 0, 0, 0, 0x01]);

    /// Where neighbour discovery sends what is for this address: RFC 2464 section 7.
    pub fn of_multicast(group: Ipv6Addr) -> Self {
        let octets = group.octets();
        Self([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(to, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// Root in a namespace, at one of its interfaces.
#[derive(Debug)]
pub struct Adversary {
    netns: Arc<Netns>,
    interface: String,
    mac: MacAddress,
    gateway: MacAddress,
    socket: Socket,
}

impl World {
    /// An attacker in the pod, at its first interface.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn adversary(&self, pod: &str) -> Result<Adversary, WorldError> {
        let pod = self.pod(pod);
        let next = match pod.spec().attachment {
            Attachment::Routed => pod.interface(),
            Attachment::Bridge { .. } => BRIDGE,
        };
        let gateway = mac_of(self.node().netns(), next)?;
        Adversary::at(pod.netns(), "eth0", gateway)
    }

    /// An attacker in the pod at its second interface, a veth.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn adversary_at_second(&self, pod: &str) -> Result<Adversary, WorldError> {
        let pod = self.pod(pod);
        let gateway = mac_of(self.node().netns(), &crate::attachment::second_veth(pod.number()))?;
        Adversary::at(pod.netns(), "net1", gateway)
    }

    /// A router or host outside, beside the node: it may have any address there.
    pub fn router_outside(&self) -> Result<Adversary, WorldError> {
        let gateway = mac_of(self.node().netns(), "uplink")?;
        Adversary::at(self.upstream_network().netns(), "eth0", gateway)
    }

    /// The hardware address of an interface of the node.
    pub fn mac_on_node(&self, interface: &str) -> Result<MacAddress, WorldError> {
        mac_of(self.node().netns(), interface)
    }

    /// Captures frames that arrive at an interface of the node.
    pub fn sniff_on_node(&self, interface: &str) -> Result<Sniffer, WorldError> {
        sniff(self.node().netns(), interface, true)
    }

    /// A raw socket of the node: gets the packets of this protocol that are delivered to the node, as a tunnel device for it
    /// would.
    pub fn receive_on_node(&self, is_ipv4: bool, protocol: u8) -> Result<Sniffer, WorldError> {
        let domain = if is_ipv4 { Domain::IPV4 } else { Domain::IPV6 };
        let netns = self.node().netns();
        let protocol = Protocol::from(i32::from(protocol));
        let socket = netns.within(move || Socket::new(domain, Type::RAW, Some(protocol)));
        let socket = socket.map_err(failed(netns, "make a raw socket"))?;
        Ok(Sniffer { socket })
    }
}

impl Adversary {
    fn at(netns: &Arc<Netns>, interface: &str, gateway: MacAddress) -> Result<Self, WorldError> {
        Ok(Self {
            netns: Arc::clone(netns),
            interface: interface.into(),
            mac: mac_of(netns, interface)?,
            gateway,
            socket: packet_socket(netns, interface)?,
        })
    }

    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// The hardware address of the next hop.
    pub fn gateway(&self) -> MacAddress {
        self.gateway
    }

    /// Sends a packet to the next hop.
    pub fn send(&self, packet: &Packet) -> io::Result<()> {
        self.send_to(self.gateway, packet)
    }

    /// Sends a packet to whoever has this hardware address on the link.
    pub fn send_to(&self, to: MacAddress, packet: &Packet) -> io::Result<()> {
        self.send_frame(&packet.frame(self.mac, to))
    }

    /// Sends a packet to the next hop with another hardware address as its source.
    pub fn send_as(&self, from: MacAddress, packet: &Packet) -> io::Result<()> {
        self.send_frame(&packet.frame(from, self.gateway))
    }

    /// Sends a packet to the next hop with a VLAN tag.
    pub fn send_tagged(&self, vlan: u16, packet: &Packet) -> io::Result<()> {
        self.send_frame(&packet.tagged_frame(self.mac, self.gateway, vlan))
    }

    pub fn send_frame(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).map(drop)
    }

    /// Captures incoming frames from now on.
    pub fn sniff(&self) -> Result<Sniffer, WorldError> {
        sniff(&self.netns, &self.interface, true)
    }

    /// Captures incoming and outgoing frames from now on.
    pub fn sniff_both_ways(&self) -> Result<Sniffer, WorldError> {
        sniff(&self.netns, &self.interface, false)
    }

    /// Drops TCP segments to this port before the namespace's own TCP, which would reset unknown connections.
    pub fn keep_from_kernel(&self, port: u16) -> Result<(), WorldError> {
        let port = port.to_string();
        for program in ["iptables", "ip6tables"] {
            let rule = [
                "-w",
                "-t",
                "raw",
                "-A",
                "PREROUTING",
                "-p",
                "tcp",
                "--dport",
                &port,
                "-j",
                "DROP",
            ];
            command::ask(&self.netns, &[&[program], rule.as_slice()].concat())?;
        }
        Ok(())
    }

    /// Runs a program in the namespace, as root; anything but success is an error.
    pub fn run(&self, argv: &[&str]) -> Result<String, WorldError> {
        command::ask(&self.netns, argv)
    }

    /// Connects, sends `payload` and waits for its echo, with segments made by hand. The port of `from` is hidden from the
    /// kernel. Returns whether the echo arrived.
    pub fn converse(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        patience: Duration,
    ) -> Result<bool, Box<dyn std::error::Error>> {
        handshake::converse(self, from, to, payload, patience)
    }
}

fn sniff(netns: &Arc<Netns>, interface: &str, incoming_alone: bool) -> Result<Sniffer, WorldError> {
    let socket = packet_socket(netns, interface)?;
    if incoming_alone {
        ignore_outgoing(&socket).map_err(failed(netns, "ignore outgoing frames"))?;
    }
    Ok(Sniffer { socket })
}

/// A packet socket at one interface, for all protocols.
fn packet_socket(netns: &Arc<Netns>, interface: &str) -> Result<Socket, WorldError> {
    let name = interface.to_owned();
    let made = netns.within(move || {
        let index = i32::try_from(if_nametoindex(name.as_str())?).map_err(io::Error::other)?;
        // No protocol yet: a socket with one gets frames of all interfaces until it is bound.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_recv_buffer_size(4 << 20)?;
        socket.bind(&link_address(index)?)?;
        Ok(socket)
    });
    made.map_err(failed(netns, "open a packet socket"))
}

fn link_address(index: i32) -> io::Result<SockAddr> {
    // SAFETY: a sockaddr_ll is plain data and fits into the storage, whose length is set to it.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::sa_family_t::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
            (*address).sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
            (*address).sll_ifindex = index;
            *length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
            Ok(())
        })
    }?;
    Ok(address)
}

fn ignore_outgoing(socket: &Socket) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the option is an int, and the kernel reads `length` octets of it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn mac_of(netns: &Arc<Netns>, interface: &str) -> Result<MacAddress, WorldError> {
    let name = interface.to_owned();
    let found = netns.within(move || {
        let mut all = getifaddrs()?.filter(|found| found.interface_name == name);
        let mac = all.find_map(|found| found.address?.as_link_addr()?.addr());
        mac.map(MacAddress)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no hardware address of {name}")))
    });
    found.map_err(failed(netns, "look up a hardware address"))
}

fn failed(netns: &Arc<Netns>, doing: &'static str) -> impl FnOnce(io::Error) -> WorldError {
    let name = netns.name().to_owned();
    move |source| WorldError::Namespace { name, doing, source }
}

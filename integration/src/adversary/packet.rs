//! IP packets with contents of the test's choice. Checksums are right unless a method says otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder,
    PacketBuilderStep,
};

use super::MacAddress;

const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = 64_000;
/// The most of a packet that an ICMP error quotes: RFC 1812 section 4.3.2.3, RFC 4443 section 2.4 (c).
const QUOTED_V4: usize = 548;
const QUOTED_V6: usize = 1232;
/// Protocol numbers, as IANA assigns them.
const IN_IPV4: u8 = 4;
const IN_IPV6: u8 = 41;
const IN_GRE: u8 = 47;
const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];

/// An IPv4 or IPv6 packet, from its IP header on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet(Vec<u8>);

/// What a TCP segment says besides its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u32,
    /// Sets ACK.
    pub acknowledgment: Option<u32>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
}

impl Segment {
    pub fn syn(sequence: u32) -> Self {
        Self {
            sequence,
            syn: true,
            ..Self::default()
        }
    }

    pub fn ack(sequence: u32, acknowledgment: u32) -> Self {
        Self {
            sequence,
            acknowledgment: Some(acknowledgment),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn with_fin(self) -> Self {
        Self { fin: true, ..self }
    }

    #[must_use]
    pub fn with_rst(self) -> Self {
        Self { rst: true, ..self }
    }
}

/// Both ends of a packet must be of one family.
impl Packet {
    pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Self {
        let step = ip_step(from.ip(), to.ip()).udp(from.port(), to.port());
        Self::written(|bytes| step.write_to_vec(bytes, payload))
    }

    pub fn tcp(from: SocketAddr, to: SocketAddr, segment: Segment, payload: &[u8]) -> Self {
        let mut step = ip_step(from.ip(), to.ip()).tcp(from.port(), to.port(), segment.sequence, WINDOW);
        if let Some(number) = segment.acknowledgment {
            step = step.ack(number);
        }
        if segment.syn {
            step = step.syn();
        }
        if segment.fin {
            step = step.fin();
        }
        if segment.rst {
            step = step.rst();
        }
        Self::written(|bytes| step.write_to_vec(bytes, payload))
    }

    /// Any message of ICMP or ICMPv6: type, code, the four octets behind the checksum, and the rest.
    pub fn icmp(from: IpAddr, to: IpAddr, (kind, code): (u8, u8), octets: [u8; 4], rest: &[u8]) -> Self {
        let step = ip_step(from, to);
        Self::written(|bytes| match from {
            IpAddr::V4(_) => step.icmpv4_raw(kind, code, octets).write_to_vec(bytes, rest),
            IpAddr::V6(_) => step.icmpv6_raw(kind, code, octets).write_to_vec(bytes, rest),
        })
    }

    pub fn echo_request(from: IpAddr, to: IpAddr, payload: &[u8]) -> Self {
        let kind = if from.is_ipv4() { (8, 0) } else { (128, 0) };
        Self::icmp(from, to, kind, [0x12, 0x34, 0, 1], payload)
    }

    /// An ICMP error: nobody listens at the port that `about` was sent to.
    pub fn port_unreachable(from: IpAddr, to: IpAddr, about: &Self) -> Self {
        let kind = if from.is_ipv4() { (3, 3) } else { (1, 4) };
        Self::icmp(from, to, kind, [0; 4], about.quoted())
    }

    /// An ICMP error: `about` was larger than this MTU ("fragmentation needed", "packet too big").
    pub fn too_big(from: IpAddr, to: IpAddr, mtu: u16, about: &Self) -> Self {
        let [high, low] = mtu.to_be_bytes();
        let kind = if from.is_ipv4() { (3, 4) } else { (2, 0) };
        Self::icmp(from, to, kind, [0, 0, high, low], about.quoted())
    }

    /// An ICMP redirect for the destination of `about`, IPv4.
    pub fn redirect(from: Ipv4Addr, to: IpAddr, gateway: Ipv4Addr, about: &Self) -> Self {
        Self::icmp(from.into(), to, (5, 1), gateway.octets(), about.quoted())
    }

    /// Any protocol, or with IPv6 any extension header, of this number.
    pub fn of_protocol(from: IpAddr, to: IpAddr, number: u8, payload: &[u8]) -> Self {
        let step = ip_step(from, to);
        Self::written(|bytes| step.write_to_vec(bytes, IpNumber(number), payload))
    }

    /// This packet in another: IPIP, 6in4, 4in6 or IPv6 in IPv6.
    #[must_use]
    pub fn in_ip(&self, from: IpAddr, to: IpAddr) -> Self {
        let number = if self.is_ipv4() { IN_IPV4 } else { IN_IPV6 };
        Self::of_protocol(from, to, number, &self.0)
    }

    /// This packet in GRE (RFC 2784) without key or checksum.
    #[must_use]
    pub fn in_gre(&self, from: IpAddr, to: IpAddr) -> Self {
        let payload = [[0, 0].as_slice(), &self.ethertype(), &self.0].concat();
        Self::of_protocol(from, to, IN_GRE, &payload)
    }

    /// The datagram of VXLAN (RFC 7348) that carries this packet to the interface with this hardware address.
    pub fn vxlan(&self, network: u32, to: MacAddress) -> Vec<u8> {
        let [_, id @ ..] = network.to_be_bytes();
        let header = [0x08, 0, 0, 0, id[0], id[1], id[2], 0];
        [header.as_slice(), &self.frame(MacAddress::ANY, to)].concat()
    }

    /// The datagram of Geneve (RFC 8926) without options.
    pub fn geneve(&self, network: u32, to: MacAddress) -> Vec<u8> {
        let [_, id @ ..] = network.to_be_bytes();
        let header = [0, 0, 0x65, 0x58, id[0], id[1], id[2], 0];
        [header.as_slice(), &self.frame(MacAddress::ANY, to)].concat()
    }

    /// With another TTL or hop limit.
    #[must_use]
    pub fn with_hop_limit(mut self, hops: u8) -> Self {
        if self.is_ipv4() {
            self.0[8] = hops;
            self.write_header_checksum();
        } else {
            self.0[7] = hops;
        }
        self
    }

    /// Without a checksum of UDP, which IPv4 allows and IPv6 does not (RFC 768, RFC 8200 section 8.1).
    #[must_use]
    pub fn without_udp_checksum(mut self) -> Self {
        let at = self.header_length() + 6;
        self.0[at..at + 2].copy_from_slice(&[0, 0]);
        self
    }

    /// With these options of IPv4, whose length must be a multiple of four; with IPv6 a header of this number and these octets before what
    /// the packet had.
    #[must_use]
    pub fn with_options(mut self, options: &[u8]) -> Self {
        assert!(self.is_ipv4() && options.len().is_multiple_of(4) && options.len() <= 40);
        let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
        self.0[0] = 0x40 | words;
        self.0.splice(20..20, options.iter().copied());
        self.write_length();
        self.write_header_checksum();
        self
    }

    /// With an extension header of IPv6 in front; `octets` are those behind its first one (RFC 8200 section 4).
    #[must_use]
    pub fn with_extension(mut self, number: u8, octets: &[u8]) -> Self {
        assert!(!self.is_ipv4() && (octets.len() + 1).is_multiple_of(8));
        let next = std::mem::replace(&mut self.0[6], number);
        self.0
            .splice(40..40, std::iter::once(next).chain(octets.iter().copied()));
        self.write_length();
        self
    }

    /// In fragments of at most `size` octets, a multiple of eight, behind the IP header.
    pub fn fragments(&self, size: usize) -> Vec<Self> {
        assert!(size.is_multiple_of(8) && size > 0);
        let (header, payload) = self.0.split_at(self.header_length());
        let count = payload.len().div_ceil(size);
        let parts = payload.chunks(size).enumerate();
        parts
            .map(|(number, part)| {
                let offset = u16::try_from(number * size / 8).expect("a packet has at most 65,535 octets");
                Self::fragment(header, offset, number + 1 < count, part)
            })
            .collect()
    }

    /// One fragment of this packet: octets `from..to` of what is behind the IP header.
    #[must_use]
    pub fn fragment_of(&self, from: usize, to: usize, is_last: bool) -> Self {
        let (header, payload) = self.0.split_at(self.header_length());
        let offset = u16::try_from(from / 8).expect("a packet has at most 65,535 octets");
        Self::fragment(header, offset, !is_last, &payload[from..to])
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn frame(&self, from: MacAddress, to: MacAddress) -> Vec<u8> {
        [&to.0[..], &from.0, &self.ethertype(), &self.0].concat()
    }

    pub(crate) fn tagged_frame(&self, from: MacAddress, to: MacAddress, vlan: u16) -> Vec<u8> {
        let tag = vlan.to_be_bytes();
        [
            &to.0[..],
            &from.0,
            &[0x81, 0x00],
            &tag,
            &self.ethertype(),
            &self.0,
        ]
        .concat()
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    fn fragment(header: &[u8], offset: u16, has_more: bool, part: &[u8]) -> Self {
        const IDENTIFICATION: [u8; 2] = [0x4e, 0x47];
        let mut packet = Self(header.to_vec());
        if packet.is_ipv4() {
            let flags = if has_more { 0x2000 } else { 0 };
            packet.0[4..6].copy_from_slice(&IDENTIFICATION);
            packet.0[6..8].copy_from_slice(&(flags | offset).to_be_bytes());
        } else {
            let next = std::mem::replace(&mut packet.0[6], 44);
            let place = (offset << 3) | u16::from(has_more);
            packet.0.extend([next, 0]);
            packet.0.extend(place.to_be_bytes());
            packet.0.extend([0, 0]);
            packet.0.extend(IDENTIFICATION);
        }
        packet.0.extend_from_slice(part);
        packet.write_length();
        packet.write_header_checksum();
        packet
    }

    fn written<E: std::fmt::Debug>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Self {
        let mut bytes = Vec::new();
        write(&mut bytes).expect("a packet of a test is not too long");
        Self(bytes)
    }

    fn is_ipv4(&self) -> bool {
        self.0[0] >> 4 == 4
    }

    fn ethertype(&self) -> [u8; 2] {
        if self.is_ipv4() {
            ETHERTYPE_V4
        } else {
            ETHERTYPE_V6
        }
    }

    fn header_length(&self) -> usize {
        if self.is_ipv4() {
            usize::from(self.0[0] & 0xf) * 4
        } else {
            Ipv6Header::LEN
        }
    }

    fn quoted(&self) -> &[u8] {
        let most = if self.is_ipv4() { QUOTED_V4 } else { QUOTED_V6 };
        &self.0[..self.0.len().min(most)]
    }

    fn write_length(&mut self) {
        let all = u16::try_from(self.0.len()).expect("a packet has at most 65,535 octets");
        if self.is_ipv4() {
            self.0[2..4].copy_from_slice(&all.to_be_bytes());
        } else {
            self.0[4..6].copy_from_slice(&(all - 40).to_be_bytes());
        }
    }

    fn write_header_checksum(&mut self) {
        if !self.is_ipv4() {
            return;
        }
        let length = self.header_length();
        self.0[10..12].copy_from_slice(&[0, 0]);
        let words = self.0[..length].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).expect("two folds leave 16 bits");
        self.0[10..12].copy_from_slice(&(!folded).to_be_bytes());
    }
}

fn ip_step(from: IpAddr, to: IpAddr) -> PacketBuilderStep<IpHeaders> {
    let headers = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(0, HOP_LIMIT, IpNumber::UDP, from.octets(), to.octets());
            IpHeaders::Ipv4(
                header.expect("no payload is not too much"),
                Ipv4Extensions::default(),
            )
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                hop_limit: HOP_LIMIT,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Ipv6Extensions::default())
        }
        (from, to) => panic!("{from} and {to} are of two families"),
    };
    PacketBuilder::ip(headers)
}

//! Parses packet headers. A hostile pod may forge them, and the kernel passes only the first octets: parsing is total,
//! linear, and skips what it cannot read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_kernel::Family;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The IANA protocol number, behind the extension headers of IPv6; none if the last of them was cut off.
    pub protocol: Option<u8>,
    /// The header of the protocol.
    pub inner: Inner,
}

/// The header of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// TCP, UDP, SCTP, DCCP, UDP-Lite.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// ICMP and ICMPv6.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
    /// A later fragment, which has no such header.
    Fragment,
    /// Another protocol, or the header was cut off.
    Nothing,
}

impl Packet {
    /// Parses a packet or its beginning; none without both addresses.
    #[must_use]
    pub fn read(family: Family, octets: &[u8]) -> Option<Self> {
        match family {
            Family::V4 => read_v4(octets),
            Family::V6 => read_v6(octets),
        }
    }
}

/// RFC 791, 3.1.
fn read_v4(octets: &[u8]) -> Option<Packet> {
    let header: &[u8; 20] = octets.first_chunk()?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    let protocol = header[9];
    let rest = octets.get(length..).unwrap_or_default();
    Some(Packet {
        source: Ipv4Addr::from([header[12], header[13], header[14], header[15]]).into(),
        destination: Ipv4Addr::from([header[16], header[17], header[18], header[19]]).into(),
        protocol: Some(protocol),
        inner: inner(protocol, offset, rest),
    })
}

/// RFC 8200, 3.
fn read_v6(octets: &[u8]) -> Option<Packet> {
    let (header, rest) = octets.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| header.get(at..)?.first_chunk::<16>().copied().map(Ipv6Addr::from);
    let end = skip_extensions(header[6], rest);
    Some(Packet {
        source: address(8)?.into(),
        destination: address(24)?.into(),
        protocol: end.map(|end| end.protocol),
        inner: end.map_or(Inner::Nothing, |end| inner(end.protocol, end.offset, end.rest)),
    })
}

#[derive(Clone, Copy)]
struct End<'a> {
    protocol: u8,
    /// The fragment's offset, in units of 8 octets.
    offset: u16,
    rest: &'a [u8],
}

/// RFC 8200, 4: each header names the next one, and all but the fragment header have a length. Each takes at least 8
/// octets, so this ends.
fn skip_extensions(mut next: u8, mut rest: &[u8]) -> Option<End<'_>> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    const MOBILITY: u8 = 135;
    let mut offset = 0;
    loop {
        let length = |unit: usize, more: usize| Some((usize::from(*rest.get(1)?) + more) * unit);
        let length = match next {
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY => length(8, 1)?,
            AUTHENTICATION => length(4, 2)?,
            FRAGMENT => {
                let field = u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]);
                offset = field >> 3;
                8
            }
            protocol => {
                return Some(End {
                    protocol,
                    offset,
                    rest,
                });
            }
        };
        let follows = *rest.first()?;
        if offset > 0 {
            return Some(End {
                protocol: follows,
                offset,
                rest: &[],
            });
        }
        (next, rest) = (follows, rest.get(length..)?);
    }
}

fn inner(protocol: u8, offset: u16, rest: &[u8]) -> Inner {
    const ICMP: u8 = 1;
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const DCCP: u8 = 33;
    const ICMP_V6: u8 = 58;
    const SCTP: u8 = 132;
    const UDP_LITE: u8 = 136;
    if offset > 0 {
        return Inner::Fragment;
    }
    match (protocol, rest) {
        (TCP | UDP | DCCP | SCTP | UDP_LITE, [a, b, c, d, ..]) => Inner::Ports {
            source: u16::from_be_bytes([*a, *b]),
            destination: u16::from_be_bytes([*c, *d]),
        },
        (ICMP | ICMP_V6, [kind, code, ..]) => Inner::Icmp {
            kind: *kind,
            code: *code,
        },
        _ => Inner::Nothing,
    }
}

/// The name of a protocol, if it has one here.
#[must_use]
pub const fn protocol_word(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "ICMP",
        2 => "IGMP",
        4 => "IPIP",
        6 => "TCP",
        17 => "UDP",
        33 => "DCCP",
        41 => "IPv6",
        47 => "GRE",
        50 => "ESP",
        58 => "ICMPv6",
        132 => "SCTP",
        136 => "UDPLite",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(offset: u16, protocol: u8, options: usize, rest: &[u8]) -> Vec<u8> {
        let words = u8::try_from(5 + options).unwrap();
        let [high, low] = offset.to_be_bytes();
        let mut octets = vec![0x40 | words, 0, 0, 0, 0, 0, high, low, 64, protocol, 0, 0];
        octets.extend([10, 0, 0, 1, 203, 0, 113, 7]);
        octets.extend(vec![1; options * 4]);
        octets.extend(rest);
        octets
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut octets = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        octets.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        octets.extend("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        octets.extend(rest);
        octets
    }

    const PORTS: Inner = Inner::Ports {
        source: 0x1234,
        destination: 443,
    };
    const TO_443: [u8; 8] = [0x12, 0x34, 1, 187, 0, 0, 0, 0];

    #[test]
    fn what_the_headers_say_is_read() {
        type Row = (&'static str, Family, Vec<u8>, Option<u8>, Inner);
        let icmp = |kind, code| Inner::Icmp { kind, code };
        let extended = |headers: &[&[u8]]| [headers.concat(), TO_443.to_vec()].concat();
        let rows: Vec<Row> = vec![
            ("TCP", Family::V4, v4(0, 6, 0, &TO_443), Some(6), PORTS),
            ("options", Family::V4, v4(0, 17, 10, &TO_443), Some(17), PORTS),
            (
                "do not fragment",
                Family::V4,
                v4(0x4000, 132, 0, &TO_443),
                Some(132),
                PORTS,
            ),
            (
                "a first fragment",
                Family::V4,
                v4(0x2000, 17, 0, &TO_443),
                Some(17),
                PORTS,
            ),
            (
                "a later fragment",
                Family::V4,
                v4(0x2001, 17, 0, &TO_443),
                Some(17),
                Inner::Fragment,
            ),
            (
                "an echo",
                Family::V4,
                v4(0, 1, 0, &[8, 0, 9, 9]),
                Some(1),
                icmp(8, 0),
            ),
            ("GRE", Family::V4, v4(0, 47, 0, &TO_443), Some(47), Inner::Nothing),
            (
                "half a port",
                Family::V4,
                v4(0, 6, 0, &TO_443[..3]),
                Some(6),
                Inner::Nothing,
            ),
            ("TCP", Family::V6, v6(6, &TO_443), Some(6), PORTS),
            ("too big", Family::V6, v6(58, &[2, 0]), Some(58), icmp(2, 0)),
            (
                "hop by hop, routing, destination",
                Family::V6,
                v6(
                    0,
                    &extended(&[
                        &[43, 0, 0, 0, 0, 0, 0, 0],
                        &[60, 1],
                        &[0; 14],
                        &[6, 0, 0, 0, 0, 0, 0, 0],
                    ]),
                ),
                Some(6),
                PORTS,
            ),
            (
                "authentication",
                Family::V6,
                v6(51, &extended(&[&[17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]])),
                Some(17),
                PORTS,
            ),
            (
                "a first fragment",
                Family::V6,
                v6(44, &extended(&[&[17, 0, 0, 1, 0, 0, 0, 9]])),
                Some(17),
                PORTS,
            ),
            (
                "a later fragment",
                Family::V6,
                v6(44, &extended(&[&[17, 0, 0, 9, 0, 0, 0, 9]])),
                Some(17),
                Inner::Fragment,
            ),
            (
                "a header beyond what was handed over",
                Family::V6,
                v6(0, &[6, 200, 0, 0]),
                None,
                Inner::Nothing,
            ),
            (
                "no next header",
                Family::V6,
                v6(59, &[]),
                Some(59),
                Inner::Nothing,
            ),
        ];
        for (what, family, octets, protocol, inner) in rows {
            let packet = Packet::read(family, &octets).unwrap();
            assert_eq!(
                (packet.protocol, packet.inner),
                (protocol, inner),
                "{what}, {family:?}"
            );
            let ends = (packet.source.to_string(), packet.destination.to_string());
            let expected = match family {
                Family::V4 => ("10.0.0.1", "203.0.113.7"),
                Family::V6 => ("fd00::1", "2001:db8::7"),
            };
            assert_eq!((ends.0.as_str(), ends.1.as_str()), expected);
        }
    }

    #[test]
    fn what_has_no_addresses_is_no_packet() {
        for (family, octets) in [
            (Family::V4, vec![]),
            (Family::V4, v4(0, 6, 0, &[])[..19].to_vec()),
            (Family::V4, v6(6, &[])),
            (Family::V6, v6(6, &[])[..39].to_vec()),
            (Family::V6, v4(0, 6, 10, &[])),
            (Family::V4, [&[0x44], &v4(0, 6, 0, &[])[1..]].concat()),
        ] {
            assert_eq!(Packet::read(family, &octets), None, "{family:?} {octets:?}");
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_read_or_refused(
            octets in prop::collection::vec(any::<u8>(), 0..160),
            first in prop::sample::select(vec![0x45_u8, 0x4f, 0x60]),
            next in prop::sample::select(vec![0_u8, 6, 43, 44, 51, 60, 135]),
        ) {
            let mut octets = octets;
            if let Some(at) = octets.get_mut(0) { *at = first; }
            if let Some(at) = octets.get_mut(6) { *at = next; }
            for family in Family::ALL {
                let packet = Packet::read(family, &octets);
                let whole = match family { Family::V4 => octets.len() >= 20 && first >> 4 == 4, Family::V6 => octets.len() >= 40 && first >> 4 == 6 };
                prop_assert_eq!(packet.is_some(), whole);
            }
        }
    }
}

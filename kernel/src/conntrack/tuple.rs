//! One direction of a flow, as conntrack names it: two addresses, a protocol, and what the protocol adds.

use crate::Family;
use crate::netlink::{Attributes, MalformedMessage, Request};
use std::net::IpAddr;

/// Source, destination and protocol of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The number of the IANA protocol registry.
    pub protocol: u8,
    pub detail: ProtocolDetail,
}

/// What tells flows of one protocol between the same two addresses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolDetail {
    Ports {
        source: u16,
        destination: u16,
    },
    Icmp {
        id: u16,
        kind: u8,
        code: u8,
    },
    /// The protocol has nothing that conntrack knows of.
    Nothing,
}

impl Tuple {
    pub fn destination_port(&self) -> Option<u16> {
        match self.detail {
            ProtocolDetail::Ports { destination, .. } => Some(destination),
            ProtocolDetail::Icmp { .. } | ProtocolDetail::Nothing => None,
        }
    }

    pub(super) fn encode(&self, tuple: Request) -> Request {
        let (source, destination) = address_attributes(Family::of(self.source));
        tuple
            .nest(IP, |ip| {
                encode_address(
                    encode_address(ip, source, self.source),
                    destination,
                    self.destination,
                )
            })
            .nest(PROTOCOL, |protocol| {
                self.encode_detail(protocol.byte(NUMBER, self.protocol))
            })
    }

    fn encode_detail(&self, protocol: Request) -> Request {
        let plain16 = |request: Request, kind, value: u16| request.bytes(kind, &value.to_be_bytes());
        match self.detail {
            ProtocolDetail::Ports { source, destination } => plain16(
                plain16(protocol, SOURCE_PORT, source),
                DESTINATION_PORT,
                destination,
            ),
            ProtocolDetail::Icmp { id, kind, code } => {
                let first = icmp_attributes(Family::of(self.source));
                plain16(protocol, first, id)
                    .byte(first + 1, kind)
                    .byte(first + 2, code)
            }
            ProtocolDetail::Nothing => protocol,
        }
    }

    pub(super) fn decode(tuple: &Attributes<'_>) -> Result<Self, MalformedMessage> {
        let (source, destination) =
            decode_addresses(&tuple.nest(IP)?).ok_or(MalformedMessage("a flow without addresses"))?;
        let protocol = tuple.nest(PROTOCOL)?;
        Ok(Self {
            source,
            destination,
            protocol: protocol
                .byte(NUMBER)
                .ok_or(MalformedMessage("a flow without a protocol"))?,
            detail: decode_detail(&protocol, Family::of(source)),
        })
    }
}

/// For a filter: a tuple of which only the source is said.
pub(super) fn encode_source(tuple: Request, source: IpAddr) -> Request {
    tuple.nest(IP, |ip| {
        encode_address(ip, address_attributes(Family::of(source)).0, source)
    })
}

const IP: u16 = 1;
const PROTOCOL: u16 = 2;
const NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// Source and destination (`enum ctattr_ip`).
fn address_attributes(family: Family) -> (u16, u16) {
    match family {
        Family::V4 => (1, 2),
        Family::V6 => (3, 4),
    }
}

/// The id; type and code follow it (`enum ctattr_l4proto`).
fn icmp_attributes(family: Family) -> u16 {
    match family {
        Family::V4 => 4,
        Family::V6 => 7,
    }
}

fn encode_address(ip: Request, kind: u16, address: IpAddr) -> Request {
    match address {
        IpAddr::V4(address) => ip.bytes(kind, &address.octets()),
        IpAddr::V6(address) => ip.bytes(kind, &address.octets()),
    }
}

fn decode_addresses(ip: &Attributes<'_>) -> Option<(IpAddr, IpAddr)> {
    let v4 = |kind| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(kind)?).ok()?));
    let v6 = |kind| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(kind)?).ok()?));
    v4(1).zip(v4(2)).or_else(|| v6(3).zip(v6(4)))
}

fn decode_detail(protocol: &Attributes<'_>, family: Family) -> ProtocolDetail {
    let ports = protocol.be16(SOURCE_PORT).zip(protocol.be16(DESTINATION_PORT));
    let first = icmp_attributes(family);
    let icmp = || {
        Some((
            protocol.be16(first)?,
            protocol.byte(first + 1)?,
            protocol.byte(first + 2)?,
        ))
    };
    match ports {
        Some((source, destination)) => ProtocolDetail::Ports { source, destination },
        None => icmp().map_or(ProtocolDetail::Nothing, |(id, kind, code)| ProtocolDetail::Icmp {
            id,
            kind,
            code,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_decoding_are_inverse() {
        let details = [
            ProtocolDetail::Ports {
                source: 1,
                destination: 65535,
            },
            ProtocolDetail::Icmp {
                id: 300,
                kind: 8,
                code: 0,
            },
            ProtocolDetail::Nothing,
        ];
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for detail in details {
                let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
                let tuple = Tuple {
                    source,
                    destination,
                    protocol: 17,
                    detail,
                };
                let request = tuple.encode(Request::netfilter("test", 1, 0, 0, 0));
                assert_eq!(Tuple::decode(&request.attributes::<4>()), Ok(tuple));
            }
        }
    }

    #[test]
    fn a_tuple_without_addresses_is_malformed() {
        assert!(Tuple::decode(&Attributes::default()).is_err());
    }
}

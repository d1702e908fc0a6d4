//! Members of sets: what can be one, how long it lives, and how both are put into a message.

use super::Kind;
use crate::netlink::{Attributes, Request};
use crate::{Family, Transport};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

/// A member with its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetEntry {
    pub member: Member,
    /// Seconds to live, cut to [`MAX_TIMEOUT`]. `None`: whatever the set gives members that say nothing, which is
    /// for ever unless the set was created with a timeout of its own.
    pub timeout: Option<NonZeroU32>,
}

impl SetEntry {
    pub fn lasting(member: Member) -> Self {
        Self {
            member,
            timeout: None,
        }
    }

    pub fn living(member: Member, seconds: NonZeroU32) -> Self {
        Self {
            member,
            timeout: Some(seconds),
        }
    }
}

/// What a set can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// For `hash:ip`; in a `hash:net` it is the prefix of full length (and is listed as that).
    Address(IpAddr),
    /// For `hash:net`; bits behind the prefix do not count. A `hash:ip` would be filled with every address of it.
    ///
    /// `hash:net` cannot hold the prefix of length 0. It is written and deleted as its two halves, `0.0.0.0/1` and
    /// `128.0.0.0/1` (`::/1` and `8000::/1`), and a listing in which both halves stand shows the whole instead,
    /// with the shorter of their lifetimes. So a set should not be given a half *and* the whole.
    Net(IpNet),
    /// For `hash:ip,port`.
    AddressPort {
        address: IpAddr,
        protocol: Transport,
        port: u16,
    },
    /// For `hash:net,port`; a prefix of length 0 is treated as in [`Member::Net`].
    NetPort {
        net: IpNet,
        protocol: Transport,
        port: u16,
    },
}

impl Member {
    /// The kind of set that lists it so.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Address(_) => Kind::HashIp,
            Self::Net(_) => Kind::HashNet,
            Self::AddressPort { .. } => Kind::HashIpPort,
            Self::NetPort { .. } => Kind::HashNetPort,
        }
    }

    pub fn family(&self) -> Family {
        match self {
            Self::Address(address) | Self::AddressPort { address, .. } => Family::of(*address),
            Self::Net(net) | Self::NetPort { net, .. } => Family::of(net.addr()),
        }
    }

    /// As ipset itself would list it: a prefix without the bits that do not count.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Net(net) => Self::Net(net.trunc()),
            Self::NetPort { net, protocol, port } => Self::NetPort {
                net: net.trunc(),
                protocol,
                port,
            },
            Self::Address(_) | Self::AddressPort { .. } => self,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(formatter, "{address}"),
            Self::Net(net) => write!(formatter, "{net}"),
            Self::AddressPort {
                address,
                protocol,
                port,
            } => {
                write!(formatter, "{address},{}:{port}", protocol.name())
            }
            Self::NetPort { net, protocol, port } => {
                write!(formatter, "{net},{}:{port}", protocol.name())
            }
        }
    }
}

/// The longest lifetime the kernel's timers can count: `IPSET_MAX_TIMEOUT`, almost 25 days.
pub const MAX_TIMEOUT: u32 = 2_147_483;

const IP: u16 = 1;
const CIDR: u16 = 3;
const PORT: u16 = 4;
const TIMEOUT: u16 = 6;
const PROTO: u16 = 7;
const FLAGS: u16 = 8;
const ADDRESS_V4: u16 = 1;
const ADDRESS_V6: u16 = 2;
const NETWORK_ORDER: u16 = 0x4000;
const FLAG_NOMATCH: u32 = 1 << 2;

pub(super) fn encode(data: Request, entry: &SetEntry) -> Request {
    let data = match entry.member {
        Member::Address(address) => encode_address(data, address),
        Member::Net(net) => encode_address(data, net.network()).byte(CIDR, net.prefix_len()),
        Member::AddressPort {
            address,
            protocol,
            port,
        } => encode_address(data, address)
            .be16(PORT, port)
            .byte(PROTO, protocol.number()),
        Member::NetPort { net, protocol, port } => encode_address(data, net.network())
            .byte(CIDR, net.prefix_len())
            .be16(PORT, port)
            .byte(PROTO, protocol.number()),
    };
    match entry.timeout {
        Some(seconds) => data.be32(TIMEOUT, seconds.get().min(MAX_TIMEOUT)),
        None => data,
    }
}

fn encode_address(data: Request, address: IpAddr) -> Request {
    data.nest(IP, |ip| match address {
        IpAddr::V4(address) => ip.bytes(ADDRESS_V4 | NETWORK_ORDER, &address.octets()),
        IpAddr::V6(address) => ip.bytes(ADDRESS_V6 | NETWORK_ORDER, &address.octets()),
    })
}

/// Reads a member by its shape. `None` for one that this module could not have written: an exception (`nomatch`),
/// a protocol without ports, a type of set that is not ours.
pub(super) fn decode(data: &Attributes<'_>) -> Option<SetEntry> {
    if data.be32(FLAGS).is_some_and(|flags| flags & FLAG_NOMATCH != 0) {
        return None;
    }
    let address = decode_address(&data.nest(IP).ok()?)?;
    let member = match (data.byte(CIDR), data.byte(PROTO)) {
        (None, None) => Member::Address(address),
        (Some(length), None) => Member::Net(IpNet::new(address, length).ok()?),
        (None, Some(protocol)) => Member::AddressPort {
            address,
            protocol: Transport::from_number(protocol)?,
            port: data.be16(PORT)?,
        },
        (Some(length), Some(protocol)) => Member::NetPort {
            net: IpNet::new(address, length).ok()?,
            protocol: Transport::from_number(protocol)?,
            port: data.be16(PORT)?,
        },
    };
    Some(SetEntry {
        member,
        timeout: data.be32(TIMEOUT).and_then(NonZeroU32::new),
    })
}

fn decode_address(ip: &Attributes<'_>) -> Option<IpAddr> {
    match (ip.get(ADDRESS_V4), ip.get(ADDRESS_V6)) {
        (Some(octets), None) => Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
        (None, Some(octets)) => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        _ => None,
    }
}

/// The same members with every `/0` replaced by its two halves. Hardly anybody has one.
pub(super) fn halved(entries: &[SetEntry]) -> Cow<'_, [SetEntry]> {
    if entries.iter().all(|entry| whole(entry).is_none()) {
        return Cow::Borrowed(entries);
    }
    let halves = |entry: &SetEntry| match whole(entry) {
        Some(net) => halves(net)
            .map(|half| SetEntry {
                member: over(entry.member, half),
                ..*entry
            })
            .to_vec(),
        None => vec![*entry],
    };
    entries.iter().flat_map(halves).collect()
}

fn whole(entry: &SetEntry) -> Option<IpNet> {
    match entry.member {
        Member::Net(net) | Member::NetPort { net, .. } => (net.prefix_len() == 0).then_some(net),
        Member::Address(_) | Member::AddressPort { .. } => None,
    }
}

/// The same member over another network.
fn over(member: Member, net: IpNet) -> Member {
    match member {
        Member::Net(_) => Member::Net(net),
        Member::NetPort { protocol, port, .. } => Member::NetPort { net, protocol, port },
        Member::Address(_) | Member::AddressPort { .. } => member,
    }
}

/// The other way round: both halves become the whole.
pub(super) fn folded(entries: Vec<SetEntry>) -> Vec<SetEntry> {
    let mut timeouts: BTreeMap<Member, Option<NonZeroU32>> = entries
        .into_iter()
        .map(|entry| (entry.member, entry.timeout))
        .collect();
    for whole in [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())] {
        let [low, high] = halves(whole);
        let is_low = |member: &Member| match member {
            Member::Net(net) | Member::NetPort { net, .. } => *net == low,
            Member::Address(_) | Member::AddressPort { .. } => false,
        };
        for low in timeouts.keys().copied().filter(is_low).collect::<Vec<_>>() {
            let high = over(low, high);
            if let (Some(one), Some(other)) = (timeouts.get(&low).copied(), timeouts.get(&high).copied()) {
                timeouts.remove(&low);
                timeouts.remove(&high);
                timeouts.insert(over(low, whole), shorter(one, other));
            }
        }
    }
    timeouts
        .into_iter()
        .map(|(member, timeout)| SetEntry { member, timeout })
        .collect()
}

/// The shorter of two lifetimes, `None` being for ever.
fn shorter(one: Option<NonZeroU32>, other: Option<NonZeroU32>) -> Option<NonZeroU32> {
    one.into_iter().chain(other).min()
}

fn halves(whole: IpNet) -> [IpNet; 2] {
    match whole {
        IpNet::V4(_) => {
            [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(128, 0, 0, 0)].map(|low| Ipv4Net::new_assert(low, 1).into())
        }
        IpNet::V6(_) => [Ipv6Addr::UNSPECIFIED, Ipv6Addr::from(1u128 << 127)]
            .map(|low| Ipv6Net::new_assert(low, 1).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full_length(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from)
        ]
    }

    fn member() -> impl Strategy<Value = Member> {
        let net = (address(), 0u8..=128).prop_map(|(address, length)| {
            Member::Net(IpNet::new(address, length.min(full_length(address))).unwrap())
        });
        let transport = prop::sample::select(Transport::ALL.to_vec());
        let with_port = (address(), transport.clone(), any::<u16>());
        let net_with_port = ((address(), 0u8..=128), transport, any::<u16>());
        prop_oneof![
            address().prop_map(Member::Address),
            net,
            with_port.prop_map(|(address, protocol, port)| {
                Member::AddressPort {
                    address,
                    protocol,
                    port,
                }
            }),
            net_with_port.prop_map(|((address, length), protocol, port)| {
                let net = IpNet::new(address, length.min(full_length(address))).unwrap();
                Member::NetPort { net, protocol, port }
            }),
        ]
    }

    fn encoded(entry: &SetEntry) -> Request {
        encode(Request::netfilter("test", 6, 9, 0, 0), entry)
    }

    proptest! {
        #[test]
        fn a_lifetime_is_never_encoded_as_zero_and_its_absence_never_as_a_number(
            member in member(), seconds in prop::option::of(1..=u32::MAX),
        ) {
            let timeout = seconds.and_then(NonZeroU32::new);
            let request = encoded(&SetEntry { member, timeout });
            let sent = request.attributes::<4>().be32(TIMEOUT);
            prop_assert_eq!(sent, seconds.map(|seconds| seconds.min(MAX_TIMEOUT)));
            prop_assert_ne!(sent, Some(0));
        }

        #[test]
        fn encoding_and_decoding_are_inverse(
            member in member(), seconds in prop::option::of(1..=MAX_TIMEOUT),
        ) {
            let entry = SetEntry { member, timeout: seconds.and_then(NonZeroU32::new) };
            let request = encoded(&entry);
            let expected = SetEntry { member: member.canonical(), ..entry };
            prop_assert_eq!(decode(&request.attributes::<4>()), Some(expected));
        }

        #[test]
        fn halving_leaves_no_zero_prefix_and_folding_restores_it(
            nets in prop::collection::btree_set((address(), prop_oneof![Just(0u8), 2u8..=32]), 0..6),
        ) {
            let entries: Vec<_> = nets.iter()
                .map(|(address, length)| SetEntry::lasting(Member::Net(IpNet::new(*address, *length).unwrap().trunc())))
                .collect::<std::collections::BTreeSet<_>>().into_iter().collect();
            let written = halved(&entries);
            prop_assert!(written.iter().all(|entry| !entry.member.to_string().ends_with("/0")));
            prop_assert_eq!(folded(written.into_owned()), entries);
        }
    }

    #[test]
    fn a_network_lives_as_long_as_its_shorter_half() {
        let half = |text: &str, seconds| SetEntry {
            member: Member::Net(text.parse().unwrap()),
            timeout: NonZeroU32::new(seconds),
        };
        let whole = folded(vec![half("0.0.0.0/1", 0), half("128.0.0.0/1", 7)]);
        assert_eq!(whole, [half("0.0.0.0/0", 7)]);
        let one_half = vec![half("::/1", 3)];
        assert_eq!(folded(one_half.clone()), one_half);
    }

    #[test]
    fn an_exception_is_not_read_as_a_member() {
        let entry = SetEntry::lasting(Member::Net("10.0.0.0/8".parse().unwrap()));
        let request = encoded(&entry).be32(FLAGS, FLAG_NOMATCH);
        assert_eq!(decode(&request.attributes::<4>()), None);
    }
}

//! Statements of rules, and the expressions of nf_tables that each becomes (`linux/netfilter/nf_tables.h`).
//!
//! A statement is what a person reads as one word of a rule: `ip saddr 10.0.0.0/8`, `ct state related`, `iifname vmap @pods`. Those
//! about addresses hold in one family only, so the caller says the family first.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::net::IpNet;

use crate::iptables::{InterfaceName, InterfacePattern};
use crate::netlink::Request;
use crate::{Family, Mark};

/// One statement of a rule. The rule goes on to the next one where this one holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Statement {
    /// The packet is of this family.
    Family(Family),
    /// What is in the frame is of this kind (`ETH_P_*`), and it has no VLAN tag. In tables of bridges.
    EtherType(u16),
    /// It came in here.
    Input(InterfacePattern),
    /// It leaves here.
    Output(InterfacePattern),
    /// Its source is in this network, or is not.
    Source(IpNet, bool),
    /// Its destination is in this network.
    Destination(IpNet),
    /// Its protocol has this number.
    Protocol(u8),
    /// Its destination port is one of these, both included. Behind a `Protocol` that has ports.
    Ports(u16, u16),
    /// Its ICMP type is this one. Behind a `Protocol` of ICMP.
    IcmpType(u8),
    /// What these keys say of it is in the set, or is not.
    In(Vec<Key>, String, bool),
    /// The verdict that the map has for what these keys say of it; without one the rule goes on.
    Map(Vec<Key>, String),
    /// Its connection is in one of these states, or in none of them.
    State(&'static [ConnState], bool),
    /// It goes in the direction of the replies.
    IsReply,
    /// Its connection has these bits of the mark, or has not.
    Mark(Mark, bool),
    /// The destination of its connection was rewritten.
    IsDnat,
    /// The opener of its connection had this address, before any rewriting.
    OpenedFrom(IpAddr),
    /// The other end of its connection answers from this address.
    AnsweredFrom(IpAddr),
    /// The node routes its source to where it came in.
    ComesByItsRoute,
    /// Its destination is an address of this node, or is none.
    IsToThisHost(bool),
    /// Its destination is an address of another host.
    IsToAnotherHost(bool),
    /// Its source is an address of this node, or is none.
    IsFromThisHost(bool),
    /// A socket of this node sends it.
    HasSocket,
    /// Counts it in a counter of this name.
    Count(String),
    /// Holds so often a second.
    Limit { rate: u64, burst: u32 },
    /// Hands it to NFLOG.
    Log { prefix: String, group: u16 },
    /// Sets these bits of the mark of its connection.
    SetMark(Mark),
    /// Keeps it from being tracked.
    NoTrack,
    /// Answers TCP with a reset. Behind `Protocol` 6.
    Reset,
    /// Answers with "administratively prohibited", in its family.
    Prohibit,
}

/// What tells the elements of one set from those of another within a set of the kernel; nft lists it as text.
pub type Letters = [u8; 16];

/// What is looked up in sets and maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The same for every packet: which of many sets is meant, where one set of the kernel holds the elements of all of them.
    Part(Letters),
    Input,
    Output,
    Source(Family),
    Destination(Family),
    Protocol,
    Port,
}

/// Where a packet goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Ends this hook's chain; chains of others judge it as well.
    Accept,
    Drop,
    Return,
    Jump(Arc<str>),
    Goto(Arc<str>),
}

/// A state of a connection; `NF_CT_STATE_BIT` of `linux/netfilter/nf_conntrack_common.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnState {
    Invalid,
    Established,
    Related,
}

impl ConnState {
    const fn bit(self) -> u32 {
        match self {
            Self::Invalid => 1,
            Self::Established => 2,
            Self::Related => 4,
        }
    }
}

/// `NFT_REG_1`: 16 octets.
const REGISTER: u32 = 1;
/// `NFT_REG_VERDICT`.
const VERDICT_REGISTER: u32 = 0;
/// `NFT_REG32_00`, the first of 16 registers of 4 octets.
const FIRST_WORD: u32 = 8;

const META_INPUT_NAME: u32 = 6;
const META_OUTPUT_NAME: u32 = 7;
const META_SOCKET_OWNER: u32 = 10;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;

const CT_STATE: u32 = 0;
const CT_DIRECTION: u32 = 1;
const CT_STATUS: u32 = 2;
const CT_MARK: u32 = 3;
const CT_SOURCE_V4: u32 = 19;
const CT_SOURCE_V6: u32 = 21;

/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;

const FIB_OUTPUT: u32 = 1;
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_OF_SOURCE: u32 = 1;
const FIB_OF_DESTINATION: u32 = 2;
const FIB_FROM_INPUT: u32 = 8;
/// `RTN_UNICAST` and `RTN_LOCAL` of `linux/rtnetlink.h`.
const ROUTE_UNICAST: u32 = 1;
const ROUTE_LOCAL: u32 = 2;

/// `IFNAMSIZ`.
const NAME_OCTETS: usize = 16;
const LINK: u32 = 0;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

#[derive(Clone, Copy)]
enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

impl Comparison {
    const fn of(holds: bool) -> Self {
        if holds { Self::Equal } else { Self::NotEqual }
    }
}

impl Statement {
    /// Appends its expressions to a list of them.
    pub(super) fn put(&self, list: Request) -> Request {
        match self {
            Self::Family(family) => {
                let number = family.number();
                compare(meta(list, META_FAMILY), Comparison::Equal, &[number])
            }
            // The kernel puts a tag back that the card took out (`nft_payload_copy_vlan`), so a tagged frame has the tag's type here.
            Self::EtherType(number) => {
                let list = payload(list, REGISTER, LINK, 12, 2);
                compare(list, Comparison::Equal, &number.to_be_bytes())
            }
            Self::Input(pattern) => name(meta(list, META_INPUT_NAME), pattern),
            Self::Output(pattern) => name(meta(list, META_OUTPUT_NAME), pattern),
            Self::Source(network, holds) => {
                address(list, Key::Source(Family::of(network.addr())), network, *holds)
            }
            Self::Destination(network) => {
                address(list, Key::Destination(Family::of(network.addr())), network, true)
            }
            Self::Protocol(number) => compare(meta(list, META_PROTOCOL), Comparison::Equal, &[*number]),
            Self::Ports(first, last) => ports(list, *first, *last),
            Self::IcmpType(number) => {
                let list = payload(list, REGISTER, TRANSPORT, 0, 1);
                compare(list, Comparison::Equal, &[*number])
            }
            Self::In(keys, set, holds) => {
                let (list, register) = load(list, keys);
                expression(list, "lookup", |data| {
                    let data = data.text(1, set).plain_be32(2, register);
                    if *holds { data } else { data.plain_be32(5, 1) }
                })
            }
            Self::Map(keys, map) => {
                let (list, register) = load(list, keys);
                expression(list, "lookup", |data| {
                    data.text(1, map)
                        .plain_be32(2, register)
                        .plain_be32(3, VERDICT_REGISTER)
                })
            }
            Self::State(states, holds) => {
                let bits = states.iter().fold(0, |bits, state| bits | state.bit());
                bits_of(ct(list, CT_STATE), bits, 0, Comparison::of(!holds))
            }
            Self::IsReply => compare(ct(list, CT_DIRECTION), Comparison::Equal, &[1]),
            Self::Mark(mark, holds) => bits_of(
                ct(list, CT_MARK),
                mark.mask().get(),
                mark.value(),
                Comparison::of(*holds),
            ),
            Self::IsDnat => bits_of(ct(list, CT_STATUS), STATUS_DNAT, 0, Comparison::NotEqual),
            Self::OpenedFrom(address) => ct_source(list, *address, 0),
            Self::AnsweredFrom(address) => ct_source(list, *address, 1),
            Self::ComesByItsRoute => {
                let list = fib(list, FIB_OUTPUT, FIB_OF_SOURCE | FIB_FROM_INPUT);
                compare(list, Comparison::NotEqual, &0u32.to_ne_bytes())
            }
            Self::IsToThisHost(holds) => address_type(list, FIB_OF_DESTINATION, ROUTE_LOCAL, *holds),
            Self::IsToAnotherHost(holds) => address_type(list, FIB_OF_DESTINATION, ROUTE_UNICAST, *holds),
            Self::IsFromThisHost(holds) => address_type(list, FIB_OF_SOURCE, ROUTE_LOCAL, *holds),
            // Without a socket the expression ends the rule.
            Self::HasSocket => meta(list, META_SOCKET_OWNER),
            Self::Count(counter) => expression(list, "objref", |data| {
                data.plain_be32(1, super::COUNTER).text(2, counter)
            }),
            Self::Limit { rate, burst } => expression(list, "limit", |data| {
                data.bytes(1, &rate.to_be_bytes())
                    .bytes(2, &1u64.to_be_bytes())
                    .plain_be32(3, *burst)
            }),
            Self::Log { prefix, group } => expression(list, "log", |data| {
                data.bytes(1, &group.to_be_bytes()).text(2, prefix)
            }),
            Self::SetMark(mark) => {
                let list = bitwise(ct(list, CT_MARK), !mark.mask().get(), mark.value());
                expression(list, "ct", |data| {
                    data.plain_be32(2, CT_MARK).plain_be32(4, REGISTER)
                })
            }
            Self::NoTrack => expression(list, "notrack", |data| data),
            Self::Reset => expression(list, "reject", |data| data.plain_be32(1, 1).byte(2, 0)),
            // `NFT_REJECT_ICMPX_UNREACH` with `NFT_REJECT_ICMPX_ADMIN_PROHIBITED`.
            Self::Prohibit => expression(list, "reject", |data| data.plain_be32(1, 2).byte(2, 3)),
        }
    }
}

impl Verdict {
    /// Appends its expression to the list of a rule's.
    pub(super) fn put_expression(&self, list: Request) -> Request {
        expression(list, "immediate", |data| {
            data.plain_be32(1, VERDICT_REGISTER)
                .nest(2, |data| self.put(data))
        })
    }

    /// As `NFTA_DATA_VERDICT`.
    pub(super) fn put(&self, data: Request) -> Request {
        data.nest(2, |data| {
            let data = data.plain_be32(1, self.code());
            match self {
                Self::Accept | Self::Drop | Self::Return => data,
                Self::Jump(chain) | Self::Goto(chain) => data.text(2, chain),
            }
        })
    }

    fn code(&self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => u32::MAX - 2,
            Self::Goto(_) => u32::MAX - 3,
            Self::Return => u32::MAX - 4,
        }
    }
}

impl Key {
    /// What it takes of a key, in octets, without what fills it up.
    pub(super) const fn octets(self) -> usize {
        match self {
            Self::Part(_) | Self::Input | Self::Output => NAME_OCTETS,
            Self::Source(Family::V4) | Self::Destination(Family::V4) => 4,
            Self::Source(Family::V6) | Self::Destination(Family::V6) => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    fn load(self, list: Request, register: u32) -> Request {
        match self {
            Self::Part(letters) => expression(list, "immediate", |data| {
                value(data.plain_be32(1, register), 2, &letters)
            }),
            Self::Input => meta_into(list, META_INPUT_NAME, register),
            Self::Output => meta_into(list, META_OUTPUT_NAME, register),
            Self::Source(Family::V4) => payload(list, register, NETWORK, 12, 4),
            Self::Source(Family::V6) => payload(list, register, NETWORK, 8, 16),
            Self::Destination(Family::V4) => payload(list, register, NETWORK, 16, 4),
            Self::Destination(Family::V6) => payload(list, register, NETWORK, 24, 16),
            Self::Protocol => meta_into(list, META_PROTOCOL, register),
            Self::Port => payload(list, register, TRANSPORT, 2, 2),
        }
    }
}

/// Loads keys side by side; says where they begin.
fn load(list: Request, keys: &[Key]) -> (Request, u32) {
    if let [key] = keys {
        return (key.load(list, REGISTER), REGISTER);
    }
    let mut register = FIRST_WORD;
    let list = keys.iter().fold(list, |list, key| {
        let list = key.load(list, register);
        register += u32::try_from(key.octets().div_ceil(4)).expect("a key has few octets");
        list
    });
    (list, FIRST_WORD)
}

/// The octets of an interface's name as a key.
pub(super) fn name_octets(name: &InterfaceName) -> Vec<u8> {
    let mut octets = name.as_str().as_bytes().to_vec();
    octets.resize(NAME_OCTETS, 0);
    octets
}

/// An address's octets.
pub(super) fn address_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn expression(list: Request, name: &str, fill: impl FnOnce(Request) -> Request) -> Request {
    list.nest(1, |element| element.text(1, name).nest(2, fill))
}

fn meta(list: Request, key: u32) -> Request {
    meta_into(list, key, REGISTER)
}

fn meta_into(list: Request, key: u32, register: u32) -> Request {
    expression(list, "meta", |data| {
        data.plain_be32(1, register).plain_be32(2, key)
    })
}

fn ct(list: Request, key: u32) -> Request {
    expression(list, "ct", |data| data.plain_be32(1, REGISTER).plain_be32(2, key))
}

fn ct_source(list: Request, address: IpAddr, direction: u8) -> Request {
    let key = match address {
        IpAddr::V4(_) => CT_SOURCE_V4,
        IpAddr::V6(_) => CT_SOURCE_V6,
    };
    let list = expression(list, "ct", |data| {
        data.plain_be32(1, REGISTER).plain_be32(2, key).byte(3, direction)
    });
    compare(list, Comparison::Equal, &address_octets(address))
}

fn fib(list: Request, result: u32, flags: u32) -> Request {
    expression(list, "fib", |data| {
        data.plain_be32(1, REGISTER)
            .plain_be32(2, result)
            .plain_be32(3, flags)
    })
}

fn address_type(list: Request, whose: u32, kind: u32, holds: bool) -> Request {
    let list = fib(list, FIB_ADDRESS_TYPE, whose);
    compare(list, Comparison::of(holds), &kind.to_ne_bytes())
}

fn payload(list: Request, register: u32, base: u32, offset: u32, octets: u32) -> Request {
    expression(list, "payload", |data| {
        data.plain_be32(1, register)
            .plain_be32(2, base)
            .plain_be32(3, offset)
            .plain_be32(4, octets)
    })
}

fn compare(list: Request, comparison: Comparison, with: &[u8]) -> Request {
    expression(list, "cmp", |data| {
        value(
            data.plain_be32(1, REGISTER).plain_be32(2, comparison as u32),
            3,
            with,
        )
    })
}

/// Whether, of a number in the byte order of this machine, the bits of the mask are as `value`.
fn bits_of(list: Request, mask: u32, value: u32, comparison: Comparison) -> Request {
    compare(bitwise(list, mask, 0), comparison, &value.to_ne_bytes())
}

fn bitwise(list: Request, mask: u32, flipped: u32) -> Request {
    mask_octets(list, &mask.to_ne_bytes(), &flipped.to_ne_bytes())
}

fn mask_octets(list: Request, mask: &[u8], flipped: &[u8]) -> Request {
    let octets = u32::try_from(mask.len()).expect("a register has 16 octets");
    expression(list, "bitwise", |data| {
        let data = data
            .plain_be32(1, REGISTER)
            .plain_be32(2, REGISTER)
            .plain_be32(3, octets);
        value(value(data, 4, mask), 5, flipped)
    })
}

fn value(data: Request, kind: u16, octets: &[u8]) -> Request {
    data.nest(kind, |data| data.bytes(1, octets))
}

/// A pattern compares only what stands before its `+`.
fn name(list: Request, pattern: &InterfacePattern) -> Request {
    let text = pattern.as_str();
    let octets = match text.strip_suffix('+') {
        Some(beginning) => beginning.as_bytes().to_vec(),
        None => {
            let mut octets = text.as_bytes().to_vec();
            octets.resize(NAME_OCTETS, 0);
            octets
        }
    };
    compare(list, Comparison::Equal, &octets)
}

fn address(list: Request, key: Key, network: &IpNet, holds: bool) -> Request {
    let list = key.load(list, REGISTER);
    let list = if network.prefix_len() == network.max_prefix_len() {
        list
    } else {
        let mask = address_octets(network.netmask());
        mask_octets(list, &mask, &vec![0; mask.len()])
    };
    compare(list, Comparison::of(holds), &address_octets(network.network()))
}

fn ports(list: Request, first: u16, last: u16) -> Request {
    let list = Key::Port.load(list, REGISTER);
    if first == last {
        return compare(list, Comparison::Equal, &first.to_be_bytes());
    }
    expression(list, "range", |data| {
        let data = data
            .plain_be32(1, REGISTER)
            .plain_be32(2, Comparison::Equal as u32);
        value(value(data, 3, &first.to_be_bytes()), 4, &last.to_be_bytes())
    })
}

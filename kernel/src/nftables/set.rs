//! Sets and verdict maps, and their elements.

use std::net::IpAddr;
use std::time::Duration;

use crate::iptables::InterfaceName;
use crate::netlink::{Attributes, MalformedMessage, Request};
use crate::{Family, Transport};

use super::statement::{self, Key, Letters, Verdict};

/// A set or verdict map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    pub name: String,
    /// What its keys are made of.
    pub keys: Vec<Key>,
    pub kind: SetKind,
    /// For people.
    pub comment: String,
}

/// What a set holds for its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// Keys, for ever.
    Plain,
    /// Keys that end.
    Timeouts,
    /// Intervals of keys, none of which meets another. The kernel orders keys as octets from the first to the last, so with several keys
    /// an interval is one of the last of them, at one value of the others: said as one key, it is found in a tree, in the logarithm of
    /// their number. Said as intervals of each key (`NFT_SET_CONCAT`) it would be found in time linear in their number.
    Intervals,
    /// Verdicts.
    Verdicts,
}

/// What an element is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementKey {
    Address(IpAddr),
    AddressPort(IpAddr, Transport, u16),
    /// The same of one of the sets that share a set of the kernel: `Key::Part` comes first.
    PartAddress(Letters, IpAddr),
    PartAddressPort(Letters, IpAddr, Transport, u16),
    Interface(InterfaceName),
    InterfaceAddress(InterfaceName, IpAddr),
    /// From the first to the last address.
    Interval(IpAddr, IpAddr),
    /// The same at a port: of `Key::Protocol`, `Key::Port` and an address.
    PortInterval(Transport, u16, IpAddr, IpAddr),
    /// A key as the kernel lists it ([`ListedElement`]), which is no interval.
    Listed(Vec<u8>),
}

/// An element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub key: ElementKey,
    pub value: ElementValue,
}

/// What an element has besides its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementValue {
    /// Nothing: it stays.
    Lasting,
    /// It ends after this time.
    Living(Duration),
    /// The verdict for it.
    Verdict(Verdict),
}

const FLAG_INTERVAL: u32 = 4;
const FLAG_MAP: u32 = 8;
const FLAG_TIMEOUT: u32 = 16;
/// `NFT_DATA_VERDICT`.
const DATA_VERDICT: u32 = 0xffff_ff00;
const ELEMENT_INTERVAL_END: u32 = 1;
/// Bits of one type in that of several (`TYPE_BITS` of nft).
const TYPE_BITS: u32 = 6;
/// `TYPE_INTEGER` of nft.
const TYPE_INTEGER: u32 = 4;

pub(super) const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
pub(super) const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_TIMEOUT: u16 = 4;
pub(super) const ELEMENT_EXPIRATION: u16 = 5;

impl SetSpec {
    /// Whether a set that the kernel lists has the flags and the length of keys of this one.
    pub fn is_laid_out_as(&self, listed: ListedSet) -> bool {
        self.flags() == listed.flags && u32::try_from(self.octets()) == Ok(listed.key_octets)
    }

    pub(super) fn put(&self, request: Request, number: u32) -> Request {
        let request = request
            .plain_be32(3, self.flags())
            .plain_be32(4, self.type_number())
            .plain_be32(5, u32::try_from(self.octets()).expect("a key has few octets"))
            .plain_be32(10, number);
        let request = match self.kind {
            SetKind::Verdicts => request.plain_be32(6, DATA_VERDICT).plain_be32(7, 16),
            SetKind::Plain | SetKind::Timeouts | SetKind::Intervals => request,
        };
        let user_data = self.user_data();
        if user_data.is_empty() {
            request
        } else {
            request.bytes(13, &user_data)
        }
    }

    /// What nft reads with the set: `NFTNL_UDATA_SET_KEYBYTEORDER` and `NFTNL_UDATA_SET_COMMENT` of libnftnl. A name of an interface
    /// alone is in the byte order of this machine, and a number of several keys in that of the network.
    fn user_data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let byte_order = match (self.kind, self.keys.as_slice()) {
            (_, [Key::Input | Key::Output]) => Some(1u32),
            (SetKind::Intervals, [_, _, ..]) => Some(2),
            (_, _) => None,
        };
        if let Some(order) = byte_order {
            data.extend([0, 4]);
            data.extend(order.to_ne_bytes());
        }
        if !self.comment.is_empty() {
            data.extend(super::comment(7, &self.comment));
        }
        data
    }

    const fn flags(&self) -> u32 {
        match self.kind {
            SetKind::Plain => 0,
            SetKind::Timeouts => FLAG_TIMEOUT,
            SetKind::Intervals => FLAG_INTERVAL,
            SetKind::Verdicts => FLAG_MAP,
        }
    }

    /// What nft takes the keys for when it lists them.
    fn type_number(&self) -> u32 {
        let number = |key: &Key| match key {
            Key::Source(Family::V4) | Key::Destination(Family::V4) => 7,
            Key::Source(Family::V6) | Key::Destination(Family::V6) => 8,
            Key::Protocol => 12,
            Key::Port => 13,
            Key::Part(_) | Key::Input | Key::Output => 41,
        };
        match (self.kind, self.keys.as_slice()) {
            // Nft takes intervals of several keys for those of `NFT_SET_CONCAT`, and ends at these: it is told of one number.
            (SetKind::Intervals, [_, _, ..]) => TYPE_INTEGER,
            (_, keys) => keys.iter().fold(0, |all, key| all << TYPE_BITS | number(key)),
        }
    }

    /// Each key fills whole registers where there are several.
    fn octets(&self) -> usize {
        match self.keys.as_slice() {
            [key] => key.octets(),
            keys => keys.iter().map(|key| key.octets().next_multiple_of(4)).sum(),
        }
    }
}

impl Element {
    /// An element that stays.
    pub fn lasting(key: ElementKey) -> Self {
        let value = ElementValue::Lasting;
        Self { key, value }
    }

    /// An element that ends after this time.
    pub fn living(key: ElementKey, time: Duration) -> Self {
        let value = ElementValue::Living(time);
        Self { key, value }
    }

    /// An element that leads to a verdict.
    pub fn verdict(key: ElementKey, verdict: Verdict) -> Self {
        let value = ElementValue::Verdict(verdict);
        Self { key, value }
    }

    /// As one or two elements of a list. `room` is for its key: there may be thousands in a change that somebody waits for, and none is to
    /// need memory of its own.
    pub(super) fn put(&self, list: Request, room: &mut Vec<u8>) -> Request {
        room.clear();
        self.key.write(room);
        if let Some(end) = self.key.interval_end() {
            let list = list.nest(1, |element| key(element, room));
            // What reaches to the last address of all has no end.
            return match end {
                Some(end) => list.nest(1, |element| {
                    key(element, &end).plain_be32(ELEMENT_FLAGS, ELEMENT_INTERVAL_END)
                }),
                None => list,
            };
        }
        list.nest(1, |element| {
            let element = key(element, room);
            match &self.value {
                ElementValue::Lasting => element,
                ElementValue::Living(time) => {
                    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
                    element.bytes(ELEMENT_TIMEOUT, &milliseconds.to_be_bytes())
                }
                ElementValue::Verdict(verdict) => element.nest(ELEMENT_DATA, |data| verdict.put(data)),
            }
        })
    }
}

fn key(element: Request, octets: &[u8]) -> Request {
    element.nest(ELEMENT_KEY, |data| data.bytes(1, octets))
}

impl ElementKey {
    fn octets(&self) -> Vec<u8> {
        let mut octets = Vec::new();
        self.write(&mut octets);
        octets
    }

    fn write(&self, octets: &mut Vec<u8>) {
        match self {
            Self::Address(address) | Self::Interval(address, _) => put_address(octets, *address),
            Self::AddressPort(address, transport, port) => {
                put_address(octets, *address);
                put_port(octets, *transport, *port);
            }
            Self::PartAddress(letters, address) => {
                octets.extend(letters);
                put_address(octets, *address);
            }
            Self::PartAddressPort(letters, address, transport, port) => {
                octets.extend(letters);
                put_address(octets, *address);
                put_port(octets, *transport, *port);
            }
            Self::Interface(name) => octets.extend(statement::name_octets(name)),
            Self::InterfaceAddress(name, address) => {
                octets.extend(statement::name_octets(name));
                put_address(octets, *address);
            }
            Self::PortInterval(transport, port, first, _) => {
                put_port(octets, *transport, *port);
                put_address(octets, *first);
            }
            Self::Listed(key) => octets.extend(key),
        }
    }

    /// Of an interval, the key behind it, or none behind the last of all. None of what is no interval.
    fn interval_end(&self) -> Option<Option<Vec<u8>>> {
        let last = match self {
            Self::Interval(_, last) => statement::address_octets(*last),
            Self::PortInterval(transport, port, _, last) => at_port(*transport, *port, *last),
            Self::Address(_)
            | Self::AddressPort(..)
            | Self::PartAddress(..)
            | Self::PartAddressPort(..)
            | Self::Interface(_)
            | Self::InterfaceAddress(..)
            | Self::Listed(_) => return None,
        };
        Some(after(last))
    }
}

fn put_address(octets: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => octets.extend(address.octets()),
        IpAddr::V6(address) => octets.extend(address.octets()),
    }
}

fn put_port(octets: &mut Vec<u8>, transport: Transport, port: u16) {
    octets.extend([transport.number(), 0, 0, 0]);
    octets.extend(port.to_be_bytes());
    octets.extend([0, 0]);
}

fn at_port(transport: Transport, port: u16, address: IpAddr) -> Vec<u8> {
    let mut octets = Vec::new();
    put_port(&mut octets, transport, port);
    put_address(&mut octets, address);
    octets
}

/// The key behind one, as the kernel orders them; none behind the last. Behind the last address at a port it is one that no packet has:
/// what fills up the port is not 0.
fn after(mut octets: Vec<u8>) -> Option<Vec<u8>> {
    for octet in octets.iter_mut().rev() {
        *octet = octet.wrapping_add(1);
        if *octet != 0 {
            return Some(octets);
        }
    }
    None
}

/// The layout of a set as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSet {
    pub flags: u32,
    pub key_octets: u32,
}

/// An element that the kernel lists: its key, whether it ends an interval, and what is left of its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedElement {
    pub key: Vec<u8>,
    pub is_end: bool,
    pub left: Option<Duration>,
}

impl ListedElement {
    /// The address that is its whole key.
    pub fn address(&self) -> Option<IpAddr> {
        address_of(&self.key)
    }
}

/// An element of a set of the kernel that several sets share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartElement {
    pub letters: Letters,
    pub address: IpAddr,
    /// Where keys have one.
    pub port: Option<(Transport, u16)>,
}

impl PartElement {
    /// None of a key that is laid out in another way.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let (letters, rest) = key.split_first_chunk()?;
        let (address, port) = match rest.len() {
            12 | 24 => {
                let (address, port) = rest.split_last_chunk::<8>()?;
                let [transport, 0, 0, 0, high, low, 0, 0] = *port else {
                    return None;
                };
                let transport = Transport::from_number(transport)?;
                (address, Some((transport, u16::from_be_bytes([high, low]))))
            }
            _ => (rest, None),
        };
        Some(Self {
            letters: *letters,
            address: address_of(address)?,
            port,
        })
    }
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let sixteen = <[u8; 16]>::try_from(octets).map(IpAddr::from);
    four.or(sixteen).ok()
}

/// Reads the elements of one message.
pub(super) fn listed(attributes: &Attributes<'_>) -> Result<Vec<ListedElement>, MalformedMessage> {
    let mut found = Vec::new();
    for (_, element) in attributes.nest(3)?.iter() {
        let element = Attributes::parse(element)?;
        let key = element.nest(ELEMENT_KEY)?.get(1).unwrap_or_default().to_vec();
        let flags = element.be32(ELEMENT_FLAGS).unwrap_or(0);
        let left = element
            .get(ELEMENT_EXPIRATION)
            .and_then(|octets| octets.first_chunk().copied())
            .map(|octets| Duration::from_millis(u64::from_be_bytes(octets)));
        found.push(ListedElement {
            key,
            is_end: flags & ELEMENT_INTERVAL_END != 0,
            left,
        });
    }
    Ok(found)
}

/// The octets that the kernel lists for the keys of an element: one, or two where it is an interval with an end.
pub fn listed_keys(key: &ElementKey) -> Vec<(Vec<u8>, bool)> {
    let end = key.interval_end().flatten().map(|end| (end, true));
    std::iter::once((key.octets(), false)).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_of_one_of_many_sets_is_read_as_it_was_written() {
        let letters = *b"abcdefghijklmnop";
        for address in ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let read = |key: &ElementKey| PartElement::of_key(&key.octets());
            let expected = |port| {
                Some(PartElement {
                    letters,
                    address,
                    port,
                })
            };
            assert_eq!(read(&ElementKey::PartAddress(letters, address)), expected(None));
            let key = ElementKey::PartAddressPort(letters, address, Transport::Udp, 53);
            assert_eq!(read(&key), expected(Some((Transport::Udp, 53))));
            // What fills up a port is 0 in each that is written.
            let mut octets = key.octets();
            *octets.last_mut().unwrap() = 1;
            assert_eq!(PartElement::of_key(&octets), None);
            assert_eq!(read(&ElementKey::Address(address)), None);
            assert_eq!(read(&ElementKey::Listed(octets[..18].to_vec())), None);
        }
    }
}

//! Sets of protocols and ports.

use std::fmt;

use egret_policies::rules::PortMatch;
use egret_shared::net::{PortRange, Transport};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::ranges::Ranges;

/// Ports of the protocols that have them, ICMP, and everything else that packets may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet(Ranges);

/// Each protocol has a block of numbers, of which the first (port 0) is never used: so blocks never touch.
const BLOCK: u128 = 1 << 16;
const ICMP: u128 = 4 * BLOCK;
const OTHERS: u128 = 5 * BLOCK;

const fn block(transport: Transport) -> u128 {
    match transport {
        Transport::Tcp => 0,
        Transport::Udp => BLOCK,
        Transport::Sctp => 2 * BLOCK,
    }
}

impl PortSet {
    /// Nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(Ranges::none())
    }

    /// Every protocol and port.
    #[must_use]
    pub fn everything() -> Self {
        let ported = Transport::ALL.map(|transport| (block(transport) + 1, block(transport) + BLOCK - 1));
        Self(
            ported
                .into_iter()
                .chain([(ICMP, ICMP), (OTHERS, OTHERS)])
                .collect(),
        )
    }

    /// Some ports of a protocol.
    #[must_use]
    pub fn range(transport: Transport, range: PortRange) -> Self {
        let start = block(transport);
        Self(Ranges::of(
            start + u128::from(range.first()),
            start + u128::from(range.last()),
        ))
    }

    /// ICMP and ICMPv6.
    #[must_use]
    pub fn icmp() -> Self {
        Self(Ranges::of(ICMP, ICMP))
    }

    /// All protocols that have neither ports nor a name here.
    #[must_use]
    pub fn others() -> Self {
        Self(Ranges::of(OTHERS, OTHERS))
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is in one of them.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0))
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0))
    }

    /// What is in this one only.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.without(&other.0))
    }

    /// The ports of a protocol, both ends included.
    #[must_use]
    pub fn of(&self, transport: Transport) -> Vec<(u16, u16)> {
        let start = block(transport);
        let number =
            |at: u128| u16::try_from(at - start).expect("a block has as many numbers as there are ports");
        self.0
            .intersection(&Ranges::of(start, start + BLOCK - 1))
            .iter()
            .map(|(first, last)| (number(first), number(last)))
            .collect()
    }

    /// Whether it has all of another.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.without(self).is_empty()
    }

    fn texts(&self, transport: Transport) -> Vec<String> {
        self.of(transport).iter().map(range_text).collect()
    }

    fn list(&self) -> String {
        let ported = Transport::ALL
            .into_iter()
            .filter_map(|transport| match self.of(transport).as_slice() {
                [] => None,
                [(1, u16::MAX)] => Some(transport.to_string()),
                _ => Some(format!("{transport} {}", self.texts(transport).join(", "))),
            });
        let others = [(Self::icmp(), "ICMP"), (Self::others(), "other protocols")]
            .into_iter()
            .filter(|(set, _)| self.contains(set))
            .map(|(_, name)| name.to_owned());
        ported.chain(others).collect::<Vec<_>>().join("; ")
    }
}

fn range_text(range: &(u16, u16)) -> String {
    match range {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

impl From<PortMatch> for PortSet {
    fn from(port: PortMatch) -> Self {
        match port {
            PortMatch::Any => Self::everything(),
            PortMatch::Range(transport, range) => Self::range(transport, range),
            PortMatch::Icmp => Self::icmp(),
        }
    }
}

/// What is missing is said where it is less than what is there.
impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = Self::everything().without(self);
        if self.is_empty() {
            return f.write_str("nothing");
        }
        if missing.is_empty() {
            return f.write_str("everything");
        }
        if self.contains(&Self::others()) && missing.list().len() <= self.list().len() {
            return write!(f, "everything but {}", missing.list());
        }
        f.write_str(&self.list())
    }
}

/// `{"TCP": ["80", "443-500"], "UDP": [], "SCTP": [], "ICMP": false, "others": false}`: ranges with both ends.
impl Serialize for PortSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("PortSet", 5)?;
        object.serialize_field("TCP", &self.texts(Transport::Tcp))?;
        object.serialize_field("UDP", &self.texts(Transport::Udp))?;
        object.serialize_field("SCTP", &self.texts(Transport::Sctp))?;
        object.serialize_field("ICMP", &self.contains(&Self::icmp()))?;
        object.serialize_field("others", &self.contains(&Self::others()))?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(first: u16, last: u16) -> PortSet {
        PortSet::range(Transport::Tcp, PortRange::new(first, last).unwrap())
    }

    #[test]
    fn a_set_is_written_as_briefly_as_it_can_be() {
        let all_tcp = tcp(1, 65535);
        for (set, text) in [
            (PortSet::none(), "nothing"),
            (PortSet::everything(), "everything"),
            (tcp(80, 80).union(&tcp(443, 500)), "TCP 80, 443-500"),
            (tcp(80, 80).union(&tcp(81, 81)), "TCP 80-81"),
            (all_tcp.clone(), "TCP"),
            (
                PortSet::everything().without(&tcp(80, 80)),
                "everything but TCP 80",
            ),
            (PortSet::everything().without(&all_tcp), "everything but TCP"),
            (PortSet::others().union(&tcp(53, 53)), "TCP 53; other protocols"),
        ] {
            assert_eq!(set.to_string(), text);
        }
    }

    #[test]
    fn protocols_do_not_touch() {
        let udp = PortSet::range(Transport::Udp, PortRange::ALL);
        let both = tcp(1, 65535).union(&udp);
        assert_eq!(both.of(Transport::Tcp), [(1, 65535)]);
        assert_eq!(both.of(Transport::Udp), [(1, 65535)]);
        assert!(both.of(Transport::Sctp).is_empty() && !both.contains(&PortSet::icmp()));
    }
}

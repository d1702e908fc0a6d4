//! Families, protocols and ports.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Both, in the order in which the API writes them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `AF_INET` or `AF_INET6` of Linux, as the one byte that netlink headers carry.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The family of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }

    /// The family of a network.
    #[must_use]
    pub const fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A protocol that has ports and that policies may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IP protocol number (IANA).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|transport| transport.number() == number)
    }

    /// The name in lower case, as `/etc/protocols` and iptables have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// Ports `first` to `last`, both included; never empty, never port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortRange {
    first: NonZeroU16,
    last: NonZeroU16,
}

impl PortRange {
    /// Ports 1 to 65535.
    pub const ALL: Self = Self {
        first: NonZeroU16::MIN,
        last: NonZeroU16::MAX,
    };

    /// The range, unless it is empty or starts at 0.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<Self> {
        let (first, last) = (NonZeroU16::new(first)?, NonZeroU16::new(last)?);
        (first <= last).then_some(Self { first, last })
    }

    /// One port, unless it is 0.
    #[must_use]
    pub fn single(port: u16) -> Option<Self> {
        Self::new(port, port)
    }

    /// The lowest port.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first.get()
    }

    /// The highest port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last.get()
    }

    /// Whether the port is in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first.get() <= port && port <= self.last.get()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_range_is_never_empty() {
        assert_eq!(PortRange::new(10, 9), None);
        assert_eq!(PortRange::new(0, 9), None);
        let range = PortRange::new(79, 80).unwrap();
        assert_eq!(
            [78, 79, 80, 81].map(|port| range.contains(port)),
            [false, true, true, false]
        );
    }
}

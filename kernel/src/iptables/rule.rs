//! What a rule of iptables can say, as data. How it is written is the business of [`text`].

mod text;

use super::{ChainName, InterfaceName, InterfacePattern, SetName};
use crate::{Mark, Transport};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// What a packet must be like, and what then happens to it. Every part that is said must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    source: Option<(bool, IpNet)>,
    destination: Option<(bool, IpNet)>,
    input: Option<InterfacePattern>,
    output: Option<InterfacePattern>,
    protocol: Option<Protocol>,
    clauses: Vec<MatchClause>,
    target: Option<Target>,
}

impl Rule {
    /// A rule that so far matches every packet.
    pub fn to(target: Target) -> Self {
        Self {
            target: Some(target),
            ..Self::count()
        }
    }

    /// A rule that does nothing but count.
    pub fn count() -> Self {
        Self {
            source: None,
            destination: None,
            input: None,
            output: None,
            protocol: None,
            clauses: Vec::new(),
            target: None,
        }
    }

    #[must_use]
    pub fn source(self, net: IpNet) -> Self {
        Self {
            source: Some((true, net)),
            ..self
        }
    }

    #[must_use]
    pub fn source_other_than(self, net: IpNet) -> Self {
        Self {
            source: Some((false, net)),
            ..self
        }
    }

    #[must_use]
    pub fn destination(self, net: IpNet) -> Self {
        Self {
            destination: Some((true, net)),
            ..self
        }
    }

    #[must_use]
    pub fn destination_other_than(self, net: IpNet) -> Self {
        Self {
            destination: Some((false, net)),
            ..self
        }
    }

    #[must_use]
    pub fn input(self, interface: impl Into<InterfacePattern>) -> Self {
        Self {
            input: Some(interface.into()),
            ..self
        }
    }

    #[must_use]
    pub fn output(self, interface: impl Into<InterfacePattern>) -> Self {
        Self {
            output: Some(interface.into()),
            ..self
        }
    }

    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Self {
        Self {
            protocol: Some(protocol),
            ..self
        }
    }

    /// The packet must be so.
    #[must_use]
    pub fn when(self, condition: Match) -> Self {
        self.with(MatchClause::Condition {
            holds: true,
            condition,
        })
    }

    /// The packet must not be so.
    #[must_use]
    pub fn unless(self, condition: Match) -> Self {
        self.with(MatchClause::Condition {
            holds: false,
            condition,
        })
    }

    /// A packet of a flow in one of these states, in this direction.
    #[must_use]
    pub fn tracked(self, states: &[ConnState], direction: Direction) -> Self {
        self.with(MatchClause::Tracked(states.to_vec(), direction))
    }

    /// A packet of a flow in one of these states, of which the first packet of a direction has this source.
    #[must_use]
    pub fn of_flow_from(self, states: &[ConnState], direction: Direction, source: IpAddr) -> Self {
        self.with(MatchClause::OfFlowFrom(states.to_vec(), direction, source))
    }

    /// A packet for a transparent socket of this host.
    #[must_use]
    pub fn transparent_socket(self) -> Self {
        self.with(MatchClause::TransparentSocket)
    }

    #[must_use]
    pub fn limit(self, limit: Limit) -> Self {
        self.with(MatchClause::Limit(limit))
    }

    /// One packet of so many, drawn at random.
    #[must_use]
    pub fn one_of(self, count: NonZeroU32) -> Self {
        self.with(MatchClause::OneOf(count))
    }

    /// A remark for who reads the listing. Control characters become blanks, and what is longer than the 255 bytes
    /// that the kernel keeps is cut.
    #[must_use]
    pub fn comment(self, remark: &str) -> Self {
        self.with(MatchClause::Comment(remark.to_owned()))
    }

    fn with(mut self, clause: MatchClause) -> Self {
        self.clauses.push(clause);
        self
    }
}

/// A protocol, with the ports of those that have some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    Ports(Transport, Ports),
    /// Packets of TCP to these ports, by where in a connection they stand.
    Segments(TcpSegments, RangeInclusive<u16>),
    Icmp,
    IcmpV6,
    /// `-m icmp6 --icmpv6-type`: this type, with whatever code.
    IcmpV6Type(u8),
}

impl Protocol {
    /// The protocol with whatever ports.
    pub fn any_port(transport: Transport) -> Self {
        Self::Ports(
            transport,
            Ports {
                source: None,
                destination: None,
            },
        )
    }

    pub fn to_ports(transport: Transport, ports: RangeInclusive<u16>) -> Self {
        Self::Ports(
            transport,
            Ports {
                source: None,
                destination: Some(ports),
            },
        )
    }

    pub fn from_ports(transport: Transport, ports: RangeInclusive<u16>) -> Self {
        Self::Ports(
            transport,
            Ports {
                source: Some(ports),
                destination: None,
            },
        )
    }
}

/// Packets of a TCP connection, as their flags tell (`--syn` and its opposite).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSegments {
    /// The one that asks for a connection.
    Opening,
    /// All others.
    Further,
}

/// Ports of either side; a side that says nothing may have any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    pub source: Option<RangeInclusive<u16>>,
    pub destination: Option<RangeInclusive<u16>>,
}

/// A condition that can be required to hold or not to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    Set(SetName, SetLookup),
    Connmark(Mark),
    Mark(Mark),
    /// A flow in one of these states. None at all is refused by iptables, not taken for any.
    ConnState(Vec<ConnState>),
    /// `-m addrtype --dst-type LOCAL`: to an address of this host.
    ToThisHost,
    /// `-m addrtype --src-type LOCAL`.
    FromThisHost,
    /// `-m addrtype --dst-type UNICAST`: to one host that is not this one.
    ToAnotherHost,
    /// `-m rpfilter`: the route back to its source leads out by the interface by which it came; for PREROUTING of `raw` and `mangle`.
    FromItsRoute,
    /// `-m owner --socket-exists`: sent by a socket of this host; for OUTPUT and POSTROUTING.
    OfSocket,
    /// The port of a bridge by which a packet came in.
    BridgePortIn(InterfaceName),
    /// The port of a bridge by which a *bridged* packet goes out; for routed ones it is not known yet.
    BridgePortOut(InterfaceName),
}

/// What is looked up in a set: as much as the set has dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetLookup {
    /// For sets of addresses or prefixes.
    One(Endpoint),
    /// For sets of addresses with ports: whose address, whose port.
    Two(Endpoint, Endpoint),
}

/// The sender's or the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Source,
    Destination,
}

/// In the order in which iptables prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnState {
    Invalid,
    New,
    Related,
    Established,
    Untracked,
    Snat,
    Dnat,
}

/// Which way a packet of a tracked flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Original,
    Reply,
}

/// How often a rule may match: a rate after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    interval: u32,
    burst: u16,
}

impl Limit {
    /// Units of `--limit` in a second (`XT_LIMIT_SCALE`).
    const SCALE: u32 = 10_000;

    /// At most so many a second, 1 to 10,000 (what is outside is moved to the nearer end), after a burst of at least 1.
    pub fn per_second(rate: u32, burst: u16) -> Self {
        Self {
            interval: Self::SCALE / rate.clamp(1, Self::SCALE),
            burst: burst.clamp(1, 10_000),
        }
    }
}

/// What happens to a packet that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Accept,
    Drop,
    /// Back to where the chain was jumped to from.
    Return,
    Jump(ChainName),
    /// As a jump, but the end of that chain is the end of this one.
    Goto(ChainName),
    Reject(RejectWith),
    SetConnmark(Mark),
    SetMark(Mark),
    /// To user space, with up to 63 bytes of text.
    Nflog {
        prefix: String,
        group: u16,
    },
    /// Keeps the flow out of conntrack (raw table).
    NoTrack,
    /// To a transparent socket of this host (mangle table).
    Tproxy {
        to: SocketAddr,
        mark: Mark,
    },
    /// To another destination (nat table).
    Dnat(SocketAddr),
    /// To a local port (nat table).
    Redirect(u16),
}

/// How a refusal is worded to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectWith {
    /// For rules of TCP only.
    TcpReset,
    /// "Administratively prohibited", IPv4.
    IcmpProhibited,
    /// "Administratively prohibited", IPv6.
    IcmpV6Prohibited,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MatchClause {
    Condition {
        holds: bool,
        condition: Match,
    },
    Tracked(Vec<ConnState>, Direction),
    /// `--ctorigsrc` or `--ctreplsrc`.
    OfFlowFrom(Vec<ConnState>, Direction, IpAddr),
    TransparentSocket,
    Limit(Limit),
    /// `-m statistic --mode random`: one packet of so many, on average.
    OneOf(NonZeroU32),
    Comment(String),
}

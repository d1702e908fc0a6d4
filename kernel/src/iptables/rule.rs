//! One rule, rendered in the canonical form that `iptables-save` prints, so that the two are compared as text.
//!
//! The form, as both flavours and both families of iptables 1.8 print it:
//! * the order is `-s -d -i -o -p`, then the matches in the order they were given, then the target;
//! * an address always has its prefix length, and a prefix of length 0 is left out;
//! * `-p tcp` with a port is followed by `-m tcp`; the range 0:65535 is left out, a range of one is one number;
//! * marks are lower-case hexadecimal without leading zeros; a match leaves a full mask out, a target does not;
//! * connection states come in the order `INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,SNAT,DNAT`, before `--ctdir`;
//! * text is bare if it is all letters, digits, `_` and `-`, else in double quotes with `"`, `'` and `\` escaped;
//! * `--limit` is kept as an interval in units of 0.1 ms, so 150/sec is printed as 151/sec; a burst of 5 is left out;
//! * NFLOG's prefix comes before its group, and group 0 is left out.

use super::{ChainName, InterfaceName, SetName};
use crate::{Mark, Transport};
use ipnet::IpNet;
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// What a packet must be like, and what then happens to it. Every part that is said must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    source: Option<(bool, IpNet)>,
    destination: Option<(bool, IpNet)>,
    input: Option<InterfaceName>,
    output: Option<InterfaceName>,
    protocol: Option<Protocol>,
    clauses: Vec<Clause>,
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
        Self::default()
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
    pub fn input(self, interface: InterfaceName) -> Self {
        Self {
            input: Some(interface),
            ..self
        }
    }

    #[must_use]
    pub fn output(self, interface: InterfaceName) -> Self {
        Self {
            output: Some(interface),
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
        self.with(Clause::Condition {
            holds: true,
            condition,
        })
    }

    /// The packet must not be so.
    #[must_use]
    pub fn unless(self, condition: Match) -> Self {
        self.with(Clause::Condition {
            holds: false,
            condition,
        })
    }

    /// A packet of a flow in one of these states, in this direction.
    #[must_use]
    pub fn tracked(self, states: &[ConnState], direction: Direction) -> Self {
        self.with(Clause::Tracked(states.to_vec(), direction))
    }

    /// A packet for a transparent socket of this host.
    #[must_use]
    pub fn transparent_socket(self) -> Self {
        self.with(Clause::TransparentSocket)
    }

    #[must_use]
    pub fn limit(self, limit: Limit) -> Self {
        self.with(Clause::Limit(limit))
    }

    /// A remark for who reads the listing. Control characters become blanks, and what is longer than the 255 bytes
    /// that the kernel keeps is cut.
    #[must_use]
    pub fn comment(self, remark: &str) -> Self {
        self.with(Clause::Comment(printable(remark, 255)))
    }

    fn with(mut self, clause: Clause) -> Self {
        self.clauses.push(clause);
        self
    }
}

/// A protocol, with the ports of those that have some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    Ports(Transport, Ports),
    Icmp,
    IcmpV6,
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

/// Ports of either side; a side that says nothing may have any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    pub source: Option<RangeInclusive<u16>>,
    pub destination: Option<RangeInclusive<u16>>,
}

/// A condition that can be required to hold or not to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    Set(SetName, Sides),
    Connmark(Mark),
    Mark(Mark),
    /// A flow in one of these states. None at all is refused by iptables, not taken for any.
    ConnState(Vec<ConnState>),
    /// `-m addrtype --dst-type LOCAL`: to an address of this host.
    ToThisHost,
    /// `-m addrtype --src-type LOCAL`.
    FromThisHost,
    /// The port of a bridge by which a packet came in.
    BridgePortIn(InterfaceName),
    /// The port of a bridge by which a *bridged* packet goes out; for routed ones it is not known yet.
    BridgePortOut(InterfaceName),
}

/// What is looked up in a set: as much as the set has dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// For sets of addresses or prefixes.
    One(Side),
    /// For sets of addresses with ports: whose address, whose port.
    Two(Side, Side),
}

/// The sender's or the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
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
enum Clause {
    Condition { holds: bool, condition: Match },
    Tracked(Vec<ConnState>, Direction),
    TransparentSocket,
    Limit(Limit),
    Comment(String),
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.source.and_then(|(holds, net)| side("-s", holds, net)));
        words.extend(self.destination.and_then(|(holds, net)| side("-d", holds, net)));
        words.extend(
            self.input
                .as_ref()
                .map(|interface| format!("-i {}", interface.as_str())),
        );
        words.extend(
            self.output
                .as_ref()
                .map(|interface| format!("-o {}", interface.as_str())),
        );
        words.extend(self.protocol.as_ref().map(Protocol::to_string));
        words.extend(self.clauses.iter().map(Clause::to_string));
        words.extend(self.target.as_ref().map(Target::to_string));
        f.write_str(&words.join(" "))
    }
}

/// "Any address" is not printed; "no address" cannot be said without being printed.
fn side(flag: &str, holds: bool, net: IpNet) -> Option<String> {
    (net.prefix_len() > 0 || !holds).then(|| format!("{}{flag} {}", not(holds), net.trunc()))
}

fn not(holds: bool) -> &'static str {
    if holds { "" } else { "! " }
}

impl Display for Protocol {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ports(transport, ports) => write_ports(f, transport.name(), ports),
            Self::Icmp => f.write_str("-p icmp"),
            Self::IcmpV6 => f.write_str("-p ipv6-icmp"),
        }
    }
}

fn write_ports(f: &mut Formatter<'_>, name: &str, ports: &Ports) -> fmt::Result {
    write!(f, "-p {name}")?;
    let sides = [("--sport", &ports.source), ("--dport", &ports.destination)];
    let said: Vec<_> = sides
        .into_iter()
        .filter_map(|(flag, range)| Some((flag, restricted(range.as_ref()?)?)))
        .collect();
    if !said.is_empty() {
        write!(f, " -m {name}")?;
    }
    said.iter()
        .try_for_each(|(flag, range)| write!(f, " {flag} {range}"))
}

fn restricted(range: &RangeInclusive<u16>) -> Option<String> {
    match (*range.start(), *range.end()) {
        (0, u16::MAX) => None,
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}:{last}")),
    }
}

impl Display for Clause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { holds, condition } => write_condition(f, not(*holds), condition),
            Self::Tracked(states, direction) => {
                write!(
                    f,
                    "-m conntrack --ctstate {} --ctdir {}",
                    ordered(states),
                    direction.name()
                )
            }
            Self::TransparentSocket => f.write_str("-m socket --transparent"),
            Self::Limit(Limit { interval, burst }) => {
                write!(f, "-m limit --limit {}/sec", Limit::SCALE / interval)?;
                if *burst == 5 {
                    Ok(())
                } else {
                    write!(f, " --limit-burst {burst}")
                }
            }
            Self::Comment(remark) => write!(f, "-m comment --comment {}", quoted(remark)),
        }
    }
}

fn write_condition(f: &mut Formatter<'_>, not: &str, condition: &Match) -> fmt::Result {
    match condition {
        Match::Set(set, sides) => write!(f, "-m set {not}--match-set {} {}", set.as_str(), sides.words()),
        Match::Connmark(mark) => write!(f, "-m connmark {not}--mark {}", matched(*mark)),
        Match::Mark(mark) => write!(f, "-m mark {not}--mark {}", matched(*mark)),
        Match::ConnState(states) => write!(f, "-m conntrack {not}--ctstate {}", ordered(states)),
        Match::ToThisHost => write!(f, "-m addrtype {not}--dst-type LOCAL"),
        Match::FromThisHost => write!(f, "-m addrtype {not}--src-type LOCAL"),
        Match::BridgePortIn(port) => write!(f, "-m physdev {not}--physdev-in {}", port.as_str()),
        Match::BridgePortOut(port) => write!(f, "-m physdev {not}--physdev-out {}", port.as_str()),
    }
}

impl Sides {
    fn words(self) -> String {
        let word = |side| match side {
            Side::Source => "src",
            Side::Destination => "dst",
        };
        match self {
            Self::One(side) => word(side).to_owned(),
            Self::Two(address, port) => format!("{},{}", word(address), word(port)),
        }
    }
}

impl ConnState {
    fn name(self) -> &'static str {
        match self {
            Self::Invalid => "INVALID",
            Self::New => "NEW",
            Self::Related => "RELATED",
            Self::Established => "ESTABLISHED",
            Self::Untracked => "UNTRACKED",
            Self::Snat => "SNAT",
            Self::Dnat => "DNAT",
        }
    }
}

fn ordered(states: &[ConnState]) -> String {
    let mut states = states.to_vec();
    states.sort_unstable();
    states.dedup();
    states
        .into_iter()
        .map(ConnState::name)
        .collect::<Vec<_>>()
        .join(",")
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Original => "ORIGINAL",
            Self::Reply => "REPLY",
        }
    }
}

fn matched(mark: Mark) -> String {
    match mark.mask().get() {
        u32::MAX => format!("{:#x}", mark.value()),
        _ => set(mark),
    }
}

fn set(mark: Mark) -> String {
    format!("{:#x}/{:#x}", mark.value(), mark.mask())
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("-j ACCEPT"),
            Self::Drop => f.write_str("-j DROP"),
            Self::Return => f.write_str("-j RETURN"),
            Self::Jump(chain) => write!(f, "-j {}", chain.as_str()),
            Self::Goto(chain) => write!(f, "-g {}", chain.as_str()),
            Self::Reject(with) => write!(f, "-j REJECT --reject-with {}", with.name()),
            Self::SetConnmark(mark) => write!(f, "-j CONNMARK --set-xmark {}", set(*mark)),
            Self::SetMark(mark) => write!(f, "-j MARK --set-xmark {}", set(*mark)),
            Self::Nflog { prefix, group } => write_nflog(f, &printable(prefix, 63), *group),
            Self::NoTrack => f.write_str("-j CT --notrack"),
            Self::Tproxy { to, mark } => {
                write!(
                    f,
                    "-j TPROXY --on-port {} --on-ip {} --tproxy-mark {}",
                    to.port(),
                    to.ip(),
                    set(*mark)
                )
            }
            Self::Dnat(to) => write!(f, "-j DNAT --to-destination {to}"),
            Self::Redirect(port) => write!(f, "-j REDIRECT --to-ports {port}"),
        }
    }
}

impl RejectWith {
    fn name(self) -> &'static str {
        match self {
            Self::TcpReset => "tcp-reset",
            Self::IcmpProhibited => "icmp-admin-prohibited",
            Self::IcmpV6Prohibited => "icmp6-adm-prohibited",
        }
    }
}

fn write_nflog(f: &mut Formatter<'_>, prefix: &str, group: u16) -> fmt::Result {
    f.write_str("-j NFLOG")?;
    if !prefix.is_empty() {
        write!(f, " --nflog-prefix {}", quoted(prefix))?;
    }
    if group == 0 {
        Ok(())
    } else {
        write!(f, " --nflog-group {group}")
    }
}

/// As `xtables_save_string` does it.
fn quoted(text: &str) -> String {
    if !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    {
        return text.to_owned();
    }
    let escaped = text.chars().flat_map(|c| {
        ['"', '\'', '\\']
            .contains(&c)
            .then_some('\\')
            .into_iter()
            .chain([c])
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Text on one line, of at most so many bytes.
fn printable(text: &str, longest: usize) -> String {
    let mut text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    text.truncate(text.floor_char_boundary(longest));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn chain() -> ChainName {
        ChainName::new("C").unwrap()
    }

    #[test]
    fn parts_are_rendered_in_the_order_of_the_listing_however_they_were_said() {
        let rule = Rule::to(Target::Goto(chain()))
            .when(Match::Set(
                SetName::new("s").unwrap(),
                Sides::Two(Side::Destination, Side::Destination),
            ))
            .comment("ns/name")
            .protocol(Protocol::to_ports(Transport::Tcp, 80..=90))
            .output(InterfaceName::new("eth0").unwrap())
            .input(InterfaceName::new("veth0").unwrap())
            .destination_other_than("10.1.2.3/8".parse().unwrap())
            .source("10.0.0.1/32".parse().unwrap());
        let expected = "-s 10.0.0.1/32 ! -d 10.0.0.0/8 -i veth0 -o eth0 -p tcp -m tcp --dport 80:90 \
                        -m set --match-set s dst,dst -m comment --comment \"ns/name\" -g C";
        assert_eq!(rule.to_string(), expected);
    }

    #[test]
    fn any_address_is_not_printed_but_no_address_is() {
        let any = "10.0.0.0/0".parse().unwrap();
        assert_eq!(Rule::to(Target::Drop).source(any).to_string(), "-j DROP");
        assert_eq!(
            Rule::to(Target::Drop).source_other_than(any).to_string(),
            "! -s 0.0.0.0/0 -j DROP"
        );
    }

    #[test]
    fn a_remark_can_neither_end_its_quotes_nor_its_line() {
        let remark = |text: &str| Rule::count().comment(text).to_string();
        assert_eq!(
            remark("a\" -j ACCEPT\n-F"),
            "-m comment --comment \"a\\\" -j ACCEPT -F\""
        );
        assert_eq!(remark("plain-1_x"), "-m comment --comment plain-1_x");
        assert_eq!(remark(""), "-m comment --comment \"\"");
        assert_eq!(
            remark(&"é".repeat(200)).len(),
            "-m comment --comment \"\"".len() + 254
        );
    }

    #[test]
    fn a_mark_is_rendered_with_its_mask_unless_a_match_has_a_full_one() {
        let mark = |value, mask| Mark::new(value, NonZeroU32::new(mask).unwrap());
        let cases = [
            (
                Rule::count().when(Match::Connmark(mark(5, 0xfff))),
                "-m connmark --mark 0x5/0xfff",
            ),
            (
                Rule::count().unless(Match::Connmark(mark(5, u32::MAX))),
                "-m connmark ! --mark 0x5",
            ),
            (
                Rule::to(Target::SetConnmark(mark(0xf05, 0xff))),
                "-j CONNMARK --set-xmark 0x5/0xff",
            ),
            (
                Rule::to(Target::SetMark(mark(1, u32::MAX))),
                "-j MARK --set-xmark 0x1/0xffffffff",
            ),
        ];
        for (rule, text) in cases {
            assert_eq!(rule.to_string(), text);
        }
    }
}

//! Rules, rendered in the canonical form that `iptables-save` prints, so that the two are compared as text.
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

use super::{
    ConnState, Direction, Endpoint, Limit, Match, MatchClause, Ports, Protocol, RejectWith, Rule, SetLookup,
    Target, TcpSegments,
};
use crate::Mark;
use ipnet::IpNet;
use std::fmt::{self, Display, Formatter};
use std::ops::RangeInclusive;

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
        words.extend(self.clauses.iter().map(MatchClause::to_string));
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
            Self::Segments(segments, ports) => write_segments(f, *segments, ports),
            Self::Icmp => f.write_str("-p icmp"),
            Self::IcmpV6 => f.write_str("-p ipv6-icmp"),
            Self::IcmpV6Type(kind) => write!(f, "-p ipv6-icmp -m icmp6 --icmpv6-type {kind}"),
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

fn write_segments(f: &mut Formatter<'_>, segments: TcpSegments, ports: &RangeInclusive<u16>) -> fmt::Result {
    f.write_str("-p tcp -m tcp")?;
    if let Some(ports) = restricted(ports) {
        write!(f, " --dport {ports}")?;
    }
    let not = not(segments == TcpSegments::Opening);
    write!(f, " {not}--tcp-flags FIN,SYN,RST,ACK SYN")
}

fn restricted(range: &RangeInclusive<u16>) -> Option<String> {
    match (*range.start(), *range.end()) {
        (0, u16::MAX) => None,
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}:{last}")),
    }
}

impl Display for MatchClause {
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
            Self::OfFlowFrom(states, direction, source) => {
                let side = match direction {
                    Direction::Original => "--ctorigsrc",
                    Direction::Reply => "--ctreplsrc",
                };
                write!(f, "-m conntrack --ctstate {} {side} {source}", ordered(states))
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
            Self::OneOf(count) => write!(f, "-m statistic --mode random --probability {}", share(*count)),
            Self::Comment(remark) => write!(f, "-m comment --comment {}", quoted(&printable(remark, 255))),
        }
    }
}

/// The kernel counts in parts of 2^31 (`struct xt_statistic_info`), and iptables prints what it counts.
fn share(of: std::num::NonZeroU32) -> String {
    const WHOLE: f64 = 2_147_483_648.0;
    format!("{:.11}", (WHOLE / f64::from(of.get())).round() / WHOLE)
}

fn write_condition(f: &mut Formatter<'_>, not: &str, condition: &Match) -> fmt::Result {
    match condition {
        Match::Set(set, sides) => write!(f, "-m set {not}--match-set {} {}", set.as_str(), sides.words()),
        Match::Connmark(mark) => write!(f, "-m connmark {not}--mark {}", matched(*mark)),
        Match::Mark(mark) => write!(f, "-m mark {not}--mark {}", matched(*mark)),
        Match::ConnState(states) => write!(f, "-m conntrack {not}--ctstate {}", ordered(states)),
        Match::ToThisHost => write!(f, "-m addrtype {not}--dst-type LOCAL"),
        Match::FromItsRoute => write!(f, "-m rpfilter{}", if not.is_empty() { "" } else { " --invert" }),
        Match::ToAnotherHost => write!(f, "-m addrtype {not}--dst-type UNICAST"),
        Match::FromThisHost => write!(f, "-m addrtype {not}--src-type LOCAL"),
        Match::OfSocket => write!(f, "-m owner {not}--socket-exists"),
        Match::BridgePortIn(port) => write!(f, "-m physdev {not}--physdev-in {}", port.as_str()),
        Match::BridgePortOut(port) => write!(f, "-m physdev {not}--physdev-out {}", port.as_str()),
    }
}

impl SetLookup {
    fn words(self) -> String {
        let word = |side| match side {
            Endpoint::Source => "src",
            Endpoint::Destination => "dst",
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
            Self::NoTrack => f.write_str("-j NOTRACK"),
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
    use crate::Transport;
    use crate::iptables::{ChainName, InterfaceName, SetName};
    use std::num::NonZeroU32;

    fn chain() -> ChainName {
        ChainName::new("C").unwrap()
    }

    #[test]
    fn parts_are_rendered_in_the_order_of_the_listing_however_they_were_said() {
        let rule = Rule::to(Target::Goto(chain()))
            .when(Match::Set(
                SetName::new("s").unwrap(),
                SetLookup::Two(Endpoint::Destination, Endpoint::Destination),
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

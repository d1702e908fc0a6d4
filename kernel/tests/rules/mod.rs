//! Every part a rule of the filter table can have.

use egret_kernel::iptables::{
    ChainName, ConnState, Direction, Endpoint, InterfaceName, Limit, Match, Protocol, RejectWith, Rule,
    SetLookup, SetName, Target,
};
use egret_kernel::{Family, Mark, Transport};
use std::num::NonZeroU32;

pub(crate) fn chain(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

pub(crate) fn mark(value: u32, mask: u32) -> Mark {
    Mark::new(value, NonZeroU32::new(mask).unwrap())
}

pub(crate) fn interface(name: &str) -> InterfaceName {
    InterfaceName::new(name).unwrap()
}

/// Every part a rule can have, at least once.
pub(crate) fn filter_rules(family: Family) -> Vec<Rule> {
    let nets = match family {
        Family::V4 => ["10.1.2.3/32", "10.1.2.3/16", "0.0.0.0/0"],
        Family::V6 => ["fd00::1/128", "fd00::1/64", "::/0"],
    };
    let [host, net, any]: [ipnet::IpNet; 3] = nets.map(|net| net.parse().unwrap());
    let (icmp, prohibited) = match family {
        Family::V4 => (Protocol::Icmp, RejectWith::IcmpProhibited),
        Family::V6 => (Protocol::IcmpV6, RejectWith::IcmpV6Prohibited),
    };
    let set = |name: &str| SetName::new(name).unwrap();
    let ret = || Rule::to(Target::Return);
    let destination = SetLookup::One(Endpoint::Destination);
    let tcp = |ports| Protocol::to_ports(Transport::Tcp, ports);
    let mut rules = vec![
        Rule::count(),
        Rule::to(Target::Accept),
        Rule::to(Target::Drop),
        Rule::to(Target::Jump(chain("OTHER"))),
        Rule::to(Target::Goto(chain("OTHER"))),
        ret().source(host).destination(net),
        ret().source_other_than(host).destination_other_than(net),
        ret().source(any),
        ret().input(interface("veth0")).output(interface("eth0.100")),
        ret().protocol(icmp),
        ret().when(Match::Set(set("eg-addresses"), destination)),
        ret().unless(Match::Set(set("eg-addresses"), SetLookup::One(Endpoint::Source))),
        ret().when(Match::Set(
            set("eg-ports"),
            SetLookup::Two(Endpoint::Destination, Endpoint::Destination),
        )),
        ret().when(Match::Connmark(mark(5, 0xfff))),
        ret().unless(Match::Connmark(mark(0, 0xfff))),
        ret().when(Match::Connmark(mark(0x8000_0000, 0x8000_0000))),
        ret().when(Match::Connmark(mark(7, u32::MAX))),
        ret().when(Match::Mark(mark(4, 4))),
        ret().unless(Match::Mark(mark(4, u32::MAX))),
        Rule::to(Target::SetConnmark(mark(5, 0xfff))),
        Rule::to(Target::SetConnmark(mark(5, u32::MAX))),
        ret().when(Match::ConnState(vec![ConnState::Established, ConnState::Related])),
        ret().unless(Match::ConnState(vec![ConnState::New])),
        ret().when(Match::ConnState(vec![
            ConnState::Dnat,
            ConnState::Snat,
            ConnState::Untracked,
            ConnState::Established,
            ConnState::Related,
            ConnState::New,
            ConnState::Invalid,
        ])),
        ret().tracked(&[ConnState::Established, ConnState::Related], Direction::Reply),
        ret().tracked(&[ConnState::Related], Direction::Original),
        ret().when(Match::ToThisHost),
        ret().unless(Match::ToThisHost),
        ret().when(Match::FromThisHost),
        ret().unless(Match::ToAnotherHost),
        ret().of_flow_from(&[ConnState::Related], Direction::Original, host.addr()),
        ret().of_flow_from(
            &[ConnState::Related, ConnState::Established],
            Direction::Reply,
            host.addr(),
        ),
        ret().unless(Match::OfSocket),
        ret().when(Match::BridgePortIn(interface("veth0"))),
        ret().unless(Match::BridgePortOut(interface("veth0"))),
        Rule::to(Target::Nflog {
            prefix: String::new(),
            group: 0,
        }),
        Rule::to(Target::Nflog {
            prefix: "eg deny".into(),
            group: 77,
        })
        .limit(Limit::per_second(10, 20)),
        Rule::to(Target::Nflog {
            prefix: "a\"b'c\\d".into(),
            group: 1,
        }),
        Rule::to(Target::Nflog {
            prefix: "x".repeat(80),
            group: 1,
        }),
        Rule::to(Target::Reject(prohibited)),
        Rule::to(Target::Reject(RejectWith::TcpReset)).protocol(Protocol::any_port(Transport::Tcp)),
        // As the enforcer combines them.
        Rule::to(Target::SetConnmark(mark(0x12_0000, 0xfff_0000)))
            .input(interface("veth0"))
            .protocol(tcp(8000..=9000))
            .when(Match::Set(set("eg-addresses"), destination))
            .when(Match::Connmark(mark(0, 1)))
            .when(Match::ToThisHost)
            .limit(Limit::per_second(3, 5))
            .comment("default/allow-web egress 1"),
    ];
    for transport in Transport::ALL {
        for ports in [80..=80, 8000..=9000, 0..=65535, 1..=65535, 0..=0] {
            rules.push(ret().protocol(Protocol::to_ports(transport, ports.clone())));
            rules.push(ret().protocol(Protocol::from_ports(transport, ports)));
        }
    }
    let remarks = [
        "",
        "plain",
        "two words",
        "a/b.c:d_e-f",
        "q\"uo'te",
        "back\\slash",
        "é…",
        "-x",
        "!",
        "#",
        "0123",
        "a\tb\nc",
        "\\",
        "\"",
        "  blanks  ",
        "%s",
        "$(x)",
        "*filter",
        "COMMIT",
    ];
    rules.extend(remarks.iter().map(|remark| ret().comment(remark)));
    rules.push(ret().comment(&"y".repeat(300)));
    let rates = [
        0,
        1,
        2,
        3,
        7,
        10,
        30,
        100,
        150,
        333,
        700,
        1000,
        3000,
        5001,
        10_000,
        u32::MAX,
    ];
    rules.extend(rates.map(|rate| ret().limit(Limit::per_second(rate, 100))));
    rules
}

//! Rules, through the real programs of both flavours and both families.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::iptables::legacy::Entries;
use egret_kernel::iptables::{
    Batch, ChainName, ConnState, Direction, Error, Evidence, Flavour, Hook, InterfaceName, IpTables, Limit,
    Match, Protocol, RejectWith, Rule, Segments, SetName, Side, Sides, Table, Target,
};
use egret_kernel::{Family, Mark, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

fn everywhere() -> impl Iterator<Item = IpTables> {
    Flavour::BOTH
        .into_iter()
        .flat_map(|flavour| Family::BOTH.map(|family| IpTables::new(flavour, family)))
}

fn chain(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

fn mark(value: u32, mask: u32) -> Mark {
    Mark::new(value, NonZeroU32::new(mask).unwrap())
}

fn interface(name: &str) -> InterfaceName {
    InterfaceName::new(name).unwrap()
}

/// Every part a rule can have, at least once.
fn filter_rules(family: Family) -> Vec<Rule> {
    let nets = match family {
        Family::V4 => ["10.1.2.3/32", "10.1.2.3/16", "0.0.0.0/0"],
        Family::V6 => ["fd00::1/128", "fd00::1/64", "::/0"],
    };
    let [host, net, any] = nets.map(|net| net.parse().unwrap());
    let (icmp, prohibited) = match family {
        Family::V4 => (Protocol::Icmp, RejectWith::IcmpProhibited),
        Family::V6 => (Protocol::IcmpV6, RejectWith::IcmpV6Prohibited),
    };
    let set = |name: &str| SetName::new(name).unwrap();
    let ret = || Rule::to(Target::Return);
    let destination = Sides::One(Side::Destination);
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
        ret().unless(Match::Set(set("eg-addresses"), Sides::One(Side::Source))),
        ret().when(Match::Set(
            set("eg-ports"),
            Sides::Two(Side::Destination, Side::Destination),
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

/// Restores the rules as one chain and compares what is saved with what was rendered.
fn assert_round_trip(tables: IpTables, table: Table, rules: &[Rule]) {
    let mut batch = Batch::new(table);
    batch.declare(&chain("EG-TEST")).declare(&chain("OTHER"));
    for rule in rules {
        batch.append(&chain("EG-TEST"), rule);
    }
    tables
        .restore(&batch.render())
        .unwrap_or_else(|error| panic!("{tables:?}: {error}"));
    let listing = tables.save(table).unwrap();
    let saved: Vec<_> = listing.chain("EG-TEST").unwrap().texts().collect();
    let rendered: Vec<_> = rules.iter().map(Rule::to_string).collect();
    assert_eq!(saved, rendered, "{tables:?} {table}");
    assert_eq!(listing.foreign, [""; 0]);
}

#[test]
fn every_rule_is_saved_as_it_was_rendered() {
    in_fresh_namespace(|| {
        for tables in everywhere() {
            let family = if tables.family() == Family::V4 {
                "inet"
            } else {
                "inet6"
            };
            run("ipset", &["create", "eg-addresses", "hash:ip", "family", family]);
            run("ipset", &["create", "eg-ports", "hash:ip,port", "family", family]);
            assert_round_trip(tables, Table::Filter, &filter_rules(tables.family()));
            let clean = "*filter\n:EG-TEST - [0:0]\n-X EG-TEST\nCOMMIT\n";
            tables.restore(clean).unwrap();
            run("ipset", &["destroy"]);
        }
    });
}

#[test]
fn the_rules_of_the_other_tables_are_saved_as_they_were_rendered() {
    in_fresh_namespace(|| {
        for tables in everywhere() {
            let (any, to) = match tables.family() {
                Family::V4 => ("0.0.0.0:5353", "10.0.0.1:53"),
                Family::V6 => ("[::]:5353", "[fd00::1]:53"),
            };
            let [any, to] = [any, to].map(|address| address.parse().unwrap());
            let dns = |target| Rule::to(target).protocol(Protocol::to_ports(Transport::Udp, 53..=53));
            assert_round_trip(tables, Table::Raw, &[dns(Target::NoTrack)]);
            assert_round_trip(
                tables,
                Table::Mangle,
                &[
                    dns(Target::Tproxy {
                        to: any,
                        mark: mark(1, 1),
                    }),
                    dns(Target::Tproxy {
                        to: any,
                        mark: mark(1, u32::MAX),
                    }),
                    Rule::to(Target::SetMark(mark(1, 1))).transparent_socket(),
                    Rule::count().protocol(Protocol::Segments(Segments::Opening, 53..=53)),
                    Rule::count()
                        .protocol(Protocol::Segments(Segments::Further, 53..=54))
                        .transparent_socket(),
                    Rule::count().protocol(Protocol::Segments(Segments::Further, 0..=u16::MAX)),
                    Rule::to(Target::SetMark(mark(1, u32::MAX))),
                ],
            );
            assert_round_trip(
                tables,
                Table::Nat,
                &[
                    dns(Target::Dnat(to)),
                    dns(Target::Redirect(5353)),
                    dns(Target::Dnat(to)).one_of(2.try_into().unwrap()),
                    dns(Target::Dnat(to)).one_of(3.try_into().unwrap()),
                    dns(Target::Dnat(to)).one_of(7.try_into().unwrap()),
                ],
            );
        }
    });
}

#[test]
fn a_rewrite_touches_only_the_chains_it_names() {
    in_fresh_namespace(|| {
        for tables in everywhere() {
            let (a, b) = (chain("EG-A"), chain("EG-B"));
            let mut first = Batch::new(Table::Filter);
            first
                .declare(&a)
                .declare(&b)
                .append(&a, &Rule::to(Target::Drop))
                .append(&b, &Rule::to(Target::Return));
            first.insert(Hook::Forward, &Rule::to(Target::Jump(a.clone())));
            tables.restore(&first.render()).unwrap();
            let mut second = Batch::new(Table::Filter);
            second.declare(&a).append(&a, &Rule::to(Target::Accept));
            tables.restore(&second.render()).unwrap();
            let listing = tables.save(Table::Filter).unwrap();
            let texts = |name: &str| {
                listing
                    .chain(name)
                    .unwrap()
                    .texts()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                (texts("EG-A"), texts("EG-B"), texts("FORWARD")),
                (
                    vec!["-j ACCEPT".into()],
                    vec!["-j RETURN".into()],
                    vec!["-j EG-A".into()]
                )
            );
            let mut third = Batch::new(Table::Filter);
            third
                .delete(Hook::Forward, "-j EG-A")
                .flush(&a)
                .remove(&a)
                .flush(&b)
                .remove(&b);
            tables.restore(&third.render()).unwrap();
            assert!(
                tables
                    .save(Table::Filter)
                    .unwrap()
                    .chains
                    .iter()
                    .all(|chain| chain.policy.is_some() && chain.rules.is_empty())
            );
        }
    });
}

#[test]
fn a_refused_batch_changes_nothing_and_names_its_line() {
    in_fresh_namespace(|| {
        for tables in everywhere() {
            let batch = "*filter\n:EG-A - [0:0]\n-A EG-A -j RETURN\n-A EG-A --bogus\nCOMMIT\n";
            let Err(Error::Restore {
                line, text, stderr, ..
            }) = tables.restore(batch)
            else {
                panic!("{tables:?} took it")
            };
            assert_eq!(
                (line, text.as_deref()),
                (Some(4), Some("-A EG-A --bogus")),
                "{tables:?}: {stderr}"
            );
            assert!(stderr.contains("bogus"), "{stderr}");
            for batch in [
                "*filter\n-D FORWARD -j DROP\nCOMMIT\n",
                "*filter\n:EG-A - [0:0]\n-A EG-A -j EG-NONE\nCOMMIT\n",
                "*filter\n:EG-A - [0:0]\n",
            ] {
                assert!(
                    matches!(tables.restore(batch), Err(Error::Restore { line: Some(_), .. })),
                    "{tables:?} {batch}"
                );
            }
            assert_eq!(
                tables.save(Table::Filter).unwrap().chain("EG-A"),
                None,
                "{tables:?}"
            );
        }
    });
}

#[test]
fn packets_are_counted() {
    in_fresh_namespace(|| {
        for flavour in Flavour::BOTH {
            let tables = IpTables::new(flavour, Family::V4);
            let mut batch = Batch::new(Table::Filter);
            batch.append(
                Hook::Output,
                &Rule::count().protocol(Protocol::to_ports(Transport::Udp, 9..=9)),
            );
            tables.restore(&batch.render()).unwrap();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"1234", "127.0.0.1:9").unwrap();
            let listing = tables.save(Table::Filter).unwrap();
            let rule = &listing.chain("OUTPUT").unwrap().rules[0];
            assert_eq!((rule.packets, rule.bytes), (1, 32), "{flavour:?}");
        }
    });
}

#[test]
fn a_legacy_table_tells_without_a_program_what_its_chains_have_counted() {
    in_fresh_namespace(|| {
        for (family, own) in [(Family::V4, "127.0.0.1"), (Family::V6, "::1")] {
            let tables = IpTables::new(Flavour::Legacy, family);
            let batch = [
                "*filter\n:EG-A - [0:0]\n:EG-B - [0:0]\n:EG-EMPTY - [0:0]\n",
                "-A EG-A -p udp -m udp --dport 9 -m comment --comment one\n-A EG-A -p udp -m udp --dport 10\n",
                "-A EG-A -j EG-B\n-A EG-B -j RETURN\n-I OUTPUT -j EG-A\nCOMMIT\n",
            ];
            tables.restore(&batch.concat()).unwrap();
            let socket = std::net::UdpSocket::bind((own, 0)).unwrap();
            for port in [9, 9, 10, 11] {
                socket.send_to(b"x", (own, port)).unwrap();
            }
            let asked = BTreeSet::from(["EG-A", "EG-B", "EG-EMPTY", "EG-ABSENT", "OUTPUT"]);
            let packets = Entries::read(family, Table::Filter)
                .unwrap()
                .unwrap()
                .packets(&asked);
            let listing = tables.save(Table::Filter).unwrap();
            let of_listing = ["EG-A", "EG-B", "EG-EMPTY"].map(|name| {
                let rules = listing.chain(name).unwrap().rules.iter();
                (name, rules.map(|rule| rule.packets).collect::<Vec<u64>>())
            });
            assert_eq!(packets, BTreeMap::from(of_listing));
            assert_eq!(packets["EG-A"], [2, 1, packets["EG-A"][2]]);
            assert!(packets["EG-B"][0] >= 4, "those, and their errors");
        }
    });
}

#[test]
fn the_flavour_is_where_the_kubelets_hint_is_else_where_more_rules_are() {
    in_fresh_namespace(|| {
        let evidence = || {
            Flavour::detect(|_| false)
                .map(|found| (found.flavour, found.evidence))
                .unwrap()
        };
        let before = evidence();
        assert_eq!(before.1, Evidence::DefaultProgram);
        // Looking must not create what it looks for.
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        assert_eq!(
            std::fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap(),
            ""
        );
        run("ip6tables-legacy", &["-A", "FORWARD", "-j", "ACCEPT"]);
        assert_eq!(evidence(), (Flavour::Legacy, Evidence::MoreRules));
        for _ in 0..2 {
            run("iptables-nft", &["-A", "FORWARD", "-j", "ACCEPT"]);
        }
        assert_eq!(evidence(), (Flavour::Nft, Evidence::MoreRules));
        run("ip6tables-legacy", &["-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
        assert_eq!(evidence(), (Flavour::Legacy, Evidence::KubernetesHint));
        run("iptables-nft", &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
        assert_eq!(evidence(), (Flavour::Nft, Evidence::KubernetesHint));
    });
}

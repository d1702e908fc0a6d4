//! Rules, through the real programs of both flavours and both families.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod rules;

use common::{in_fresh_namespace, run};
use egret_kernel::iptables::legacy::TableEntries;
use egret_kernel::iptables::{
    Batch, DetectionReason, Error, Flavour, Hook, IpTables, Match, Protocol, Rule, Table, Target, TcpSegments,
};
use egret_kernel::{Family, Transport};
use rules::{chain, filter_rules, mark};
use std::collections::{BTreeMap, BTreeSet};

fn everywhere() -> impl Iterator<Item = IpTables> {
    Flavour::BOTH
        .into_iter()
        .flat_map(|flavour| Family::ALL.map(|family| IpTables::new(flavour, family)))
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
            assert_round_trip(
                tables,
                Table::Raw,
                &[
                    dns(Target::NoTrack),
                    Rule::count().when(Match::FromItsRoute),
                    Rule::count().unless(Match::FromItsRoute),
                ],
            );
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
                    Rule::count().protocol(Protocol::Segments(TcpSegments::Opening, 53..=53)),
                    Rule::count()
                        .protocol(Protocol::Segments(TcpSegments::Further, 53..=54))
                        .transparent_socket(),
                    Rule::count().protocol(Protocol::Segments(TcpSegments::Further, 0..=u16::MAX)),
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
            let packets = TableEntries::read(family, Table::Filter)
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
        assert_eq!(before.1, DetectionReason::DefaultProgram);
        // Looking must not create what it looks for.
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        assert_eq!(
            std::fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap(),
            ""
        );
        run("ip6tables-legacy", &["-A", "FORWARD", "-j", "ACCEPT"]);
        assert_eq!(evidence(), (Flavour::Legacy, DetectionReason::MoreRules));
        for _ in 0..2 {
            run("iptables-nft", &["-A", "FORWARD", "-j", "ACCEPT"]);
        }
        assert_eq!(evidence(), (Flavour::Nft, DetectionReason::MoreRules));
        run("ip6tables-legacy", &["-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
        assert_eq!(evidence(), (Flavour::Legacy, DetectionReason::KubernetesHint));
        run("iptables-nft", &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
        assert_eq!(evidence(), (Flavour::Nft, DetectionReason::KubernetesHint));
    });
}

//! A table of nftables as the kernel has it: everything that is written is listed, a transaction is made as a whole or not at all,
//! and packets meet what rules say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::time::Duration;

use common::{in_fresh_namespace, run};
use egret_kernel::iptables::{InterfaceName, InterfacePattern};
use egret_kernel::nftables::{
    BaseChain, Changes, ConnState, Element, ElementKey, Key, NamedCounter, NfHook, NftRule, Object, SetKind,
    SetSpec, Statement, TableFamily, TableName, TableReader, TableWriter, Verdict, listed_keys,
};
use egret_kernel::{Family, Mark, Transport};

const TABLE: TableName = TableName {
    family: TableFamily::Inet,
    name: "mine",
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rule(statements: Vec<Statement>) -> NftRule {
    NftRule {
        statements: statements.into(),
        verdict: None,
        comment: "why".into(),
    }
}

fn to(verdict: Verdict, statements: Vec<Statement>) -> NftRule {
    NftRule {
        verdict: Some(verdict),
        ..rule(statements)
    }
}

fn set(name: &str, keys: Vec<Key>, kind: SetKind) -> SetSpec {
    SetSpec {
        name: name.to_owned(),
        keys,
        kind,
        comment: "some".to_owned(),
    }
}

/// A table with a chain at INPUT.
fn begun() -> Changes {
    let mut changes = Changes::of(TABLE);
    changes.add_table();
    changes.add_base_chain(&BaseChain {
        name: "input".to_owned(),
        hook: NfHook::Input,
        priority: -10,
    });
    changes
}

/// Ports of bridges are seen in tables of another family, and both change in one transaction.
#[test]
fn a_table_of_bridges_changes_with_the_other_and_is_read_by_nft() {
    const BRIDGES: TableName = TableName {
        family: TableFamily::Bridge,
        name: "mine",
    };
    in_fresh_namespace(|| {
        let mut writer = TableWriter::open().unwrap();
        assert!(writer.knows_bridges().unwrap());
        let keys = vec![Key::Input, Key::Source(Family::V4)];
        let mut changes = begun();
        changes.go_to(BRIDGES);
        changes.add_table();
        changes.add_base_chain(&BaseChain {
            name: "ports".to_owned(),
            hook: NfHook::Prerouting,
            priority: -310,
        });
        changes.add_set(&set("owned", keys.clone(), SetKind::Plain));
        let port = InterfaceName::new("veth1").unwrap();
        let owned = ElementKey::InterfaceAddress(port, ip("10.0.0.1"));
        changes.add_elements("owned", &[Element::lasting(owned)]);
        let of_pod = [
            Statement::EtherType(0x0800),
            Statement::In(keys, "owned".to_owned(), true),
        ];
        changes.add_rule("ports", &rule(of_pod.into()));
        changes.add_rule("ports", &rule(vec![Statement::EtherType(0x0806)]));
        changes.go_to(TABLE);
        changes.add_chain("other", "");
        writer.commit(changes).unwrap();
        let listed = run("nft", &["list", "table", "bridge", "mine"]);
        // Nft leaves out what another statement says as well.
        for words in [
            "\n\t\tiifname . ip saddr @owned",
            "ether type arp",
            "\"veth1\" . 10.0.0.1",
        ] {
            assert!(listed.contains(words), "{words} is not in\n{listed}");
        }
        let mut reader = TableReader::open().unwrap();
        assert!(reader.list(TABLE).unwrap().unwrap().chains.contains_key("other"));
        assert!(!run("nft", &["list", "tables"]).contains("egret-asks"));

        let mut changes = Changes::of(TABLE);
        changes.add_chain("more", "");
        changes.go_to(BRIDGES);
        changes.delete_chain("nobodys");
        writer.commit(changes).unwrap_err();
        assert!(!reader.list(TABLE).unwrap().unwrap().chains.contains_key("more"));
    });
}

#[test]
fn every_statement_is_taken_by_the_kernel_and_read_by_nft() {
    in_fresh_namespace(|| {
        let mark = Mark::new(0x10000, NonZeroU32::new(0xff0000).unwrap());
        let interface = InterfaceName::new("veth1").unwrap();
        let pattern = |text: &str| InterfacePattern::new(text).unwrap();
        let v4 = Key::Source(Family::V4);
        let statements = [
            (Statement::Family(Family::V6), "meta nfproto ipv6"),
            (Statement::Input(pattern("veth1")), "iifname \"veth1\""),
            (Statement::Output(pattern("cali+")), "oifname \"cali*\""),
            (Statement::Protocol(6), "meta l4proto tcp"),
            (
                Statement::State(&[ConnState::Invalid, ConnState::Related], true),
                "ct state invalid,related",
            ),
            (
                Statement::State(&[ConnState::Invalid, ConnState::Related], false),
                "ct state ! invalid,related",
            ),
            (Statement::IsReply, "ct direction reply"),
            (Statement::Mark(mark, true), "ct mark & 0x00ff0000 == 0x00010000"),
            (Statement::Mark(mark, false), "ct mark & 0x00ff0000 != 0x00010000"),
            (Statement::IsDnat, "ct status dnat"),
            (
                Statement::OpenedFrom(ip("10.0.0.1")),
                "ct original ip saddr 10.0.0.1",
            ),
            (
                Statement::AnsweredFrom(ip("fd00::1")),
                "ct reply ip6 saddr fd00::1",
            ),
            (Statement::ComesByItsRoute, "fib saddr . iif oif != 0"),
            (Statement::IsToThisHost(true), "fib daddr type local"),
            (Statement::IsToAnotherHost(false), "fib daddr type != unicast"),
            (Statement::IsFromThisHost(true), "fib saddr type local"),
            (Statement::In(vec![v4], "plain".to_owned(), false), "!= @plain"),
            (
                Statement::Map(vec![Key::Input], "map".to_owned()),
                "iifname vmap @map",
            ),
            (Statement::Count("counter".to_owned()), "counter name \"counter\""),
            (
                Statement::Limit { rate: 10, burst: 20 },
                "limit rate 10/second burst 20 packets",
            ),
            (
                Statement::Log {
                    prefix: "egret-x".to_owned(),
                    group: 7,
                },
                "log prefix \"egret-x\" group 7",
            ),
            (Statement::SetMark(mark), "ct mark set ct mark"),
            (Statement::Prohibit, "reject with icmpx admin-prohibited"),
        ];
        let mut changes = begun();
        changes.add_counter(&NamedCounter {
            name: "counter".to_owned(),
            comment: "of what".to_owned(),
            packets: 7,
        });
        changes.add_chain("other", "a pod");
        changes.add_set(&set("plain", vec![v4], SetKind::Plain));
        changes.add_set(&set("map", vec![Key::Input], SetKind::Verdicts));
        let goto = Verdict::Goto("other".into());
        changes.add_elements("map", &[Element::verdict(ElementKey::Interface(interface), goto)]);
        for (statement, _) in &statements {
            changes.add_rule("input", &rule(vec![statement.clone()]));
        }
        TableWriter::open().unwrap().commit(changes).unwrap();
        let listed = run("nft", &["list", "table", "inet", "mine"]);
        for (statement, text) in &statements {
            assert!(
                listed.contains(text),
                "{statement:?} is not listed as {text}:\n{listed}"
            );
        }
        assert!(listed.contains("\"veth1\" : goto other"), "{listed}");
        let mut reader = TableReader::open().unwrap();
        let table = reader.list(TABLE).unwrap().unwrap();
        assert_eq!(table.chains["input"].rules.len(), statements.len());
        assert!(table.chains["input"].is_base && !table.chains["other"].is_base);
        assert_eq!(table.chains["input"].rules[0], "why");
        let counters = reader.counters(TABLE).unwrap();
        assert_eq!(
            (counters[0].packets, counters[0].comment.as_str()),
            (7, "of what")
        );
    });
}

#[test]
fn a_transaction_of_which_one_part_is_refused_changes_nothing() {
    in_fresh_namespace(|| {
        let mut writer = TableWriter::open().unwrap();
        let mut changes = begun();
        let nowhere = Verdict::Goto("nowhere".into());
        changes.add_rule("input", &to(nowhere, Vec::new()));
        let refused = writer.commit(changes).unwrap_err();
        assert!(refused.to_string().contains("add a rule"), "{refused}");
        assert!(!TableReader::open().unwrap().has(TABLE).unwrap());
    });
}

#[test]
fn all_that_is_refused_of_a_transaction_is_named_and_the_next_one_is_made() {
    in_fresh_namespace(|| {
        let mut writer = TableWriter::open().unwrap();
        let mut changes = begun();
        for chain in ["one", "two"] {
            let nowhere = Verdict::Goto("nowhere".into());
            changes.add_chain(chain, "");
            changes.add_rule(chain, &to(nowhere, Vec::new()));
        }
        changes.add_chain("three", "");
        let refused = writer.commit_or_name(changes).unwrap_err().refused;
        let objects: Vec<_> = refused.into_iter().map(|refusal| refusal.object).collect();
        assert_eq!(
            objects,
            ["one", "two"].map(|chain| Object::Chain(chain.to_owned()))
        );
        writer.commit(begun()).unwrap();
        assert!(TableReader::open().unwrap().has(TABLE).unwrap());
    });
}

#[test]
fn a_kernel_says_whether_it_can_destroy_what_may_be_there() {
    in_fresh_namespace(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release
            .split(['.', '-'])
            .map(|number| number.trim().parse().unwrap_or(0));
        let version: [u32; 2] = [numbers.next().unwrap(), numbers.next().unwrap()];
        let can = TableWriter::open().unwrap().can_destroy_elements().unwrap();
        assert_eq!(can, version >= [6, 3], "{release}");
        assert_eq!(run("nft", &["list", "ruleset"]), "", "to ask changes nothing");
    });
}

#[test]
fn members_end_in_their_time_and_a_renewed_one_lives_on() {
    in_fresh_namespace(|| {
        let mut writer = TableWriter::open().unwrap();
        let key = |text: &str| ElementKey::Address(ip(text));
        let mut changes = begun();
        changes.add_set(&set(
            "records",
            vec![Key::Destination(Family::V4)],
            SetKind::Timeouts,
        ));
        let brief = Duration::from_millis(300);
        let all = [
            Element::living(key("203.0.113.7"), brief),
            Element::living(key("203.0.113.8"), brief),
        ];
        changes.add_elements("records", &all);
        writer.commit(changes).unwrap();
        let mut changes = Changes::of(TABLE);
        let absent = Element::lasting(key("203.0.113.9"));
        changes.destroy_elements("records", &[Element::lasting(key("203.0.113.8")), absent]);
        changes.add_elements(
            "records",
            &[Element::living(key("203.0.113.8"), Duration::from_secs(60))],
        );
        writer.commit(changes).unwrap();
        let mut reader = TableReader::open().unwrap();
        let mut held = || reader.elements(TABLE, "records").unwrap();
        while held().len() > 1 {
            std::thread::yield_now();
        }
        let left = held();
        assert_eq!(left[0].address(), Some(ip("203.0.113.8")));
        assert!(left[0].left.unwrap() > Duration::from_secs(30));
    });
}

#[test]
fn packets_meet_sets_of_addresses_ports_and_intervals() {
    in_fresh_namespace(|| {
        run("ip", &["address", "add", "10.0.0.9/32", "dev", "lo"]);
        let mut changes = begun();
        let (v4, v6) = (Key::Destination(Family::V4), Key::Destination(Family::V6));
        changes.add_set(&set("ports", vec![v4, Key::Protocol, Key::Port], SetKind::Plain));
        let udp = ElementKey::AddressPort(ip("127.0.0.1"), Transport::Udp, 4000);
        changes.add_elements("ports", &[Element::lasting(udp)]);
        changes.add_set(&set("nets", vec![v4], SetKind::Intervals));
        let net = |first, last| Element::lasting(ElementKey::Interval(ip(first), ip(last)));
        changes.add_elements(
            "nets",
            &[net("10.0.0.8", "10.0.0.15"), net("224.0.0.0", "255.255.255.255")],
        );
        let port_and = |address| vec![Key::Protocol, Key::Port, address];
        changes.add_set(&set("net-ports", port_and(v4), SetKind::Intervals));
        let at = |port, first, last| {
            let key = ElementKey::PortInterval(Transport::Udp, port, ip(first), ip(last));
            Element::lasting(key)
        };
        let with_ports = [
            at(4002, "127.0.0.0", "127.0.0.3"),
            at(4003, "127.0.0.4", "255.255.255.255"),
            at(4004, "0.0.0.0", "127.0.0.0"),
        ];
        changes.add_elements("net-ports", &with_ports);
        changes.add_set(&set("all", vec![v6], SetKind::Intervals));
        changes.add_elements("all", &[net("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]);
        let of = |family, keys: Vec<Key>, set: &str| {
            let found = Statement::In(keys, set.to_owned(), true);
            to(Verdict::Drop, vec![Statement::Family(family), found])
        };
        changes.add_rule(
            "input",
            &of(Family::V4, vec![v4, Key::Protocol, Key::Port], "ports"),
        );
        changes.add_rule("input", &of(Family::V4, vec![v4], "nets"));
        changes.add_rule("input", &of(Family::V4, port_and(v4), "net-ports"));
        changes.add_rule("input", &of(Family::V6, vec![v6], "all"));
        TableWriter::open().unwrap().commit(changes).unwrap();
        let is_heard = |address: &str, port: u16| {
            let listener = UdpSocket::bind((ip(address), port)).unwrap();
            listener
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            let sender = UdpSocket::bind((ip(address), 0)).unwrap();
            sender.send_to(b"x", (ip(address), port)).unwrap();
            listener.recv(&mut [0; 8]).is_ok()
        };
        assert!(is_heard("127.0.0.1", 4001));
        assert!(!is_heard("127.0.0.1", 4000));
        assert!(!is_heard("10.0.0.9", 4001));
        let ends = ["127.0.0.1", "127.0.0.3", "127.0.0.4", "127.255.255.254"];
        let heard = |port: u16| ends.map(|address| is_heard(address, port));
        assert_eq!(heard(4002), [false, false, true, true]);
        assert_eq!(heard(4003), [true, true, false, false]);
        assert_eq!(heard(4004), [true; 4]);
        let keys: Vec<_> = with_ports
            .iter()
            .flat_map(|element| listed_keys(&element.key))
            .collect();
        let listed = TableReader::open().unwrap().elements(TABLE, "net-ports").unwrap();
        for element in listed {
            let key = (element.key, element.is_end);
            assert!(
                keys.contains(&key) || key.0.iter().all(|octet| *octet == 0),
                "{key:?}"
            );
        }
        let listed = run("nft", &["list", "table", "inet", "mine"]);
        assert!(listed.contains("net-ports"), "{listed}");
        assert!(!is_heard("::1", 4001));
        let listener = TcpListener::bind((ip("127.0.0.1"), 4000)).unwrap();
        assert!(
            TcpStream::connect(listener.local_addr().unwrap()).is_ok(),
            "it is about UDP"
        );
    });
}

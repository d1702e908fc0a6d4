//! What others do to tables and sets is seen, and what this process does itself is told apart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::Family;
use egret_kernel::ipset::{IpSets, Kind, Member, SetEntry, SetSpec};
use egret_kernel::iptables::legacy::TableEntries;
use egret_kernel::iptables::netlink_writer;
use egret_kernel::iptables::{Error, Flavour, IpTables, Table};
use egret_kernel::nftables::{
    Changes, TableChange, TableChanges, TableFamily, TableMonitor, TableName, TableWriter,
};
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::UdpSocket;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;

const BATCH: &str = "*filter\n:MINE - [0:0]\n-A MINE -s 192.0.2.1/32 -j RETURN\n-I FORWARD -j MINE\nCOMMIT\n";

fn is_mine(change: &TableChange) -> bool {
    change.table == "filter"
        && change
            .chain
            .as_deref()
            .is_none_or(|chain| ["MINE", "FORWARD"].contains(&chain))
}

fn authors(monitor: &mut TableMonitor) -> Vec<String> {
    let TableChanges { authors, overrun } = monitor.drain(is_mine).unwrap();
    assert!(!overrun);
    authors.into_iter().map(|author| author.name).collect()
}

#[test]
fn a_foreign_change_is_reported_with_its_program_and_an_own_change_is_not() {
    in_fresh_namespace(|| {
        let mut monitor = TableMonitor::open().unwrap();
        let tables = IpTables::new(Flavour::Nft, Family::V4);
        tables.restore(BATCH).unwrap();
        assert_eq!(authors(&mut monitor), [""; 0], "that was us");
        netlink_writer::TransactionWriter::default()
            .write(&[(Family::V4, BATCH)])
            .unwrap();
        assert_eq!(authors(&mut monitor), [""; 0], "that too");

        run("iptables-nft", &["-N", "THEIRS"]);
        run("iptables-nft", &["-A", "THEIRS", "-j", "ACCEPT"]);
        run("iptables-nft", &["-t", "nat", "-A", "PREROUTING", "-j", "ACCEPT"]);
        assert_eq!(authors(&mut monitor), [""; 0], "that is theirs alone");

        run("iptables-nft", &["-F", "MINE"]);
        assert_eq!(authors(&mut monitor), ["iptables-nft"]);
        tables.restore(BATCH).unwrap();
        run("iptables-nft", &["-D", "FORWARD", "1"]);
        netlink_writer::TransactionWriter::default()
            .write(&[(Family::V4, BATCH)])
            .unwrap();
        assert_eq!(authors(&mut monitor), ["iptables-nft"]);
        run("nft", &["flush", "ruleset"]);
        assert_eq!(authors(&mut monitor), ["nft"]);
        tables.restore(BATCH).unwrap();
        assert!(monitor.drain(is_mine).unwrap().is_empty());
    });
}

#[test]
fn what_a_known_socket_of_this_process_changes_wakes_nobody() {
    in_fresh_namespace(|| {
        let table = TableName {
            family: TableFamily::Inet,
            name: "mine",
        };
        let write = |writer: &mut TableWriter, chain: &str| {
            let mut changes = Changes::of(table);
            changes.add_table();
            changes.add_chain(chain, "");
            writer.commit(changes).unwrap();
        };
        let is_awake = |monitor: &TableMonitor| {
            let mut waits = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
            poll(&mut waits, PollTimeout::ZERO).unwrap() > 0
        };
        let theirs = |monitor: &mut TableMonitor| {
            let changes = monitor.drain(|change| change.table == "mine").unwrap();
            changes
                .authors
                .into_iter()
                .map(|author| author.name)
                .collect::<Vec<_>>()
        };
        // The first socket may be called as the process is.
        let [_first, mut before] = [(); 2].map(|()| TableWriter::open().unwrap());
        let mut monitor = TableMonitor::open().unwrap();
        write(&mut before, "one");
        write(&mut before, "two");
        assert!(!is_awake(&monitor), "it is known");
        write(&mut TableWriter::open().unwrap(), "three");
        assert!(is_awake(&monitor), "it was not known when the monitor began");
        assert_eq!(theirs(&mut monitor), [""; 0], "that was us all the same");
        run("nft", &["add", "chain", "inet", "mine", "four"]);
        assert_eq!(theirs(&mut monitor), ["nft"]);
    });
}

#[test]
fn a_legacy_table_has_another_fingerprint_when_its_rules_change_but_not_when_they_count() {
    in_fresh_namespace(|| {
        for (family, program, loopback) in [
            (Family::V4, "iptables-legacy", "127.0.0.1"),
            (Family::V6, "ip6tables-legacy", "::1"),
        ] {
            let read = || TableEntries::read(family, Table::Filter).unwrap();
            let fingerprint = || read().unwrap().fingerprint();
            assert_eq!(read(), None, "asking makes no table");
            let address = match family {
                Family::V4 => "192.0.2.1/32",
                Family::V6 => "2001:db8::1/128",
            };
            let batch = BATCH.replace("192.0.2.1/32", address);
            IpTables::new(Flavour::Legacy, family).restore(&batch).unwrap();
            run(program, &["-A", "INPUT", "-i", "lo", "-j", "ACCEPT"]);
            let before = fingerprint();
            let entries = read().unwrap();
            let socket = UdpSocket::bind((loopback, 0)).unwrap();
            socket.send_to(b"x", (loopback, 9)).unwrap();
            assert_ne!(read().unwrap(), entries, "it has counted");
            assert_eq!(fingerprint(), before);

            let mut seen = vec![before];
            for change in [
                &["-A", "MINE", "-j", "DROP"][..],
                &["-D", "MINE", "1"],
                &["-P", "FORWARD", "DROP"],
                &["-D", "FORWARD", "1"],
                &["-N", "THEIRS"],
                &["-E", "THEIRS", "OTHERS"],
            ] {
                run(program, change);
                assert!(!seen.contains(&fingerprint()), "{change:?}");
                seen.push(fingerprint());
            }
            assert!(read().unwrap().has_chain("OTHERS") && !read().unwrap().has_chain("THEIRS"));
        }
    });
}

#[test]
fn the_hint_of_the_kubelet_is_found_in_both_flavours_and_nft_is_asked_first() {
    in_fresh_namespace(|| {
        let hinted = || Flavour::hinted().unwrap();
        assert_eq!(hinted(), None);
        run("iptables-legacy", &["-t", "filter", "-N", "KUBE-IPTABLES-HINT"]);
        assert_eq!(hinted(), None, "it is in another table");
        run("ip6tables-legacy", &["-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
        assert_eq!(hinted(), Some(Flavour::Legacy));
        run("iptables-nft", &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
        assert_eq!(hinted(), Some(Flavour::Nft));
        run("iptables-nft", &["-t", "mangle", "-X", "KUBE-IPTABLES-HINT"]);
        assert_eq!(hinted(), Some(Flavour::Legacy));
    });
}

#[test]
fn headers_tell_of_each_set_what_it_is_and_how_many_members_live() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let member = |last| Member::Address(std::net::IpAddr::from([192, 0, 2, last]));
        let short = |member| SetEntry {
            member,
            timeout: NonZeroU32::new(1),
        };
        let records = SetSpec {
            timeout: Some(0),
            ..SetSpec::new("records", Kind::HashIp, Family::V4)
        };
        sets.create(&records).unwrap();
        sets.create(&SetSpec::new("nets", Kind::HashNet, Family::V6))
            .unwrap();
        sets.add("records", &[SetEntry::lasting(member(1)), short(member(2))])
            .unwrap();
        let counted = |sets: &mut IpSets| -> Vec<_> {
            let mut headers = sets.headers().unwrap();
            headers.sort_by(|one, other| one.name.cmp(&other.name));
            headers
                .into_iter()
                .map(|set| (set.name, set.kind, set.family, set.elements))
                .collect()
        };
        let with = |elements| {
            [
                ("nets".to_owned(), Some(Kind::HashNet), Some(Family::V6), 0),
                (
                    "records".to_owned(),
                    Some(Kind::HashIp),
                    Some(Family::V4),
                    elements,
                ),
            ]
        };
        assert_eq!(counted(&mut sets), with(2));
        while sets.test("records", member(2)).unwrap() {}
        assert_eq!(counted(&mut sets), with(1));
        run("ipset", &["flush", "records"]);
        assert_eq!(counted(&mut sets), with(0));
    });
}

#[test]
fn a_lock_that_somebody_holds_is_waited_for_shortly_in_the_legacy_flavour_alone() {
    in_fresh_namespace(|| {
        let file = std::fs::File::create("/run/xtables.lock").unwrap();
        let held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
        let legacy = IpTables::new(Flavour::Legacy, Family::V4);
        assert!(matches!(legacy.restore(BATCH), Err(Error::Locked { .. })));
        IpTables::new(Flavour::Nft, Family::V4).restore(BATCH).unwrap();
        let waiting = std::thread::spawn(move || legacy.restore(BATCH));
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}

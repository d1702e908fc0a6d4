//! Sets, against the kernel itself, with the `ipset` program as the second opinion.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::ipset::{IpSets, Kind, Member, MemberChange, Reason, SetEntry, SetSpec};
use egret_kernel::{Family, Transport};
use std::num::NonZeroU32;

fn address(text: &str) -> Member {
    Member::Address(text.parse().unwrap())
}

fn net(text: &str) -> Member {
    Member::Net(text.parse().unwrap())
}

fn port(text: &str, protocol: Transport, port: u16) -> Member {
    Member::AddressPort {
        address: text.parse().unwrap(),
        protocol,
        port,
    }
}

fn net_port(text: &str, protocol: Transport, port: u16) -> Member {
    Member::NetPort {
        net: text.parse().unwrap(),
        protocol,
        port,
    }
}

fn living(member: Member, seconds: u32) -> SetEntry {
    SetEntry::living(member, NonZeroU32::new(seconds).unwrap())
}

/// A set of the wanted kind whose members can have lifetimes.
fn spec(name: &str, kind: Kind, family: Family) -> SetSpec {
    SetSpec {
        timeout: Some(0),
        ..SetSpec::new(name, kind, family)
    }
}

#[test]
fn members_of_every_kind_and_family_are_written_and_read_back() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let cases = [
            (
                Kind::HashIp,
                Family::V4,
                vec![address("10.0.0.1"), address("255.255.255.255")],
            ),
            (Kind::HashIp, Family::V6, vec![address("::1"), address("fd00::1")]),
            (
                Kind::HashNet,
                Family::V4,
                vec![net("10.0.0.0/8"), net("10.1.0.0/16"), net("10.1.2.3/32")],
            ),
            (
                Kind::HashNet,
                Family::V6,
                vec![net("fd00::/8"), net("fd00::1/128")],
            ),
            (
                Kind::HashIpPort,
                Family::V4,
                Transport::ALL.map(|t| port("10.0.0.1", t, 443)).to_vec(),
            ),
            (
                Kind::HashIpPort,
                Family::V6,
                Transport::ALL.map(|t| port("fd00::1", t, 65535)).to_vec(),
            ),
            (
                Kind::HashNetPort,
                Family::V4,
                vec![
                    net_port("10.0.0.0/8", Transport::Tcp, 443),
                    net_port("10.1.0.0/16", Transport::Udp, 53),
                ],
            ),
            (
                Kind::HashNetPort,
                Family::V6,
                vec![net_port("fd00::/8", Transport::Sctp, 1)],
            ),
        ];
        for (number, (kind, family, members)) in cases.into_iter().enumerate() {
            let name = format!("eg-{number}");
            sets.create(&SetSpec {
                counters: true,
                comment: true,
                ..spec(&name, kind, family)
            })
            .unwrap();
            let entries: Vec<_> = members.into_iter().map(|member| living(member, 500)).collect();
            sets.add(&name, &entries).unwrap();
            let listing = sets.list_one(&name).unwrap().unwrap();
            assert_eq!(
                (listing.kind, listing.family, listing.timeout),
                (Some(kind), Some(family), Some(0))
            );
            assert!(listing.counters && listing.unreadable == 0);
            let listed: Vec<_> = listing.entries.iter().map(|entry| entry.member).collect();
            assert_eq!(
                listed,
                entries.iter().map(|entry| entry.member).collect::<Vec<_>>()
            );
            let remaining = |entry: &SetEntry| {
                entry
                    .timeout
                    .is_some_and(|left| (400..=500).contains(&left.get()))
            };
            assert!(listing.entries.iter().all(remaining), "{listing:?}");
            assert!(
                entries
                    .iter()
                    .all(|entry| sets.test(&name, entry.member).unwrap())
            );
            sets.delete(&name, &entries).unwrap();
            assert!(sets.list_one(&name).unwrap().unwrap().entries.is_empty());
        }
    });
}

#[test]
fn the_ipset_program_reads_what_was_written() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&spec("eg-a", Kind::HashIpPort, Family::V4)).unwrap();
        sets.add(
            "eg-a",
            &[
                SetEntry::lasting(port("10.0.0.1", Transport::Tcp, 80)),
                living(port("10.0.0.2", Transport::Udp, 53), 1000),
            ],
        )
        .unwrap();
        let saved = run("ipset", &["save", "eg-a"]);
        assert!(saved.contains("add eg-a 10.0.0.1,tcp:80 timeout 0\n"), "{saved}");
        assert!(
            saved.contains("add eg-a 10.0.0.2,udp:53 timeout 1000\n")
                || saved.contains("udp:53 timeout 999\n"),
            "{saved}"
        );
    });
}

#[test]
fn a_prefix_of_length_zero_is_held_as_its_halves_and_listed_whole() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let web = |text| net_port(text, Transport::Tcp, 443);
        for (name, family, whole, half) in [
            ("eg-4", Family::V4, net("0.0.0.0/0"), "128.0.0.0/1"),
            ("eg-6", Family::V6, net("::/0"), "8000::/1"),
            ("eg-4-web", Family::V4, web("0.0.0.0/0"), "128.0.0.0/1,tcp:443"),
            ("eg-6-web", Family::V6, web("::/0"), "8000::/1,tcp:443"),
        ] {
            sets.create(&spec(name, whole.kind(), family)).unwrap();
            sets.add(name, &[living(whole, 100)]).unwrap();
            assert!(run("ipset", &["save", name]).contains(half));
            let listed = sets.list_one(name).unwrap().unwrap().entries;
            assert_eq!(
                listed.iter().map(|entry| entry.member).collect::<Vec<_>>(),
                [whole]
            );
            assert!(listed[0].timeout.is_some());
            sets.delete(name, &[SetEntry::lasting(whole)]).unwrap();
            assert_eq!(sets.list_one(name).unwrap().unwrap().entries, []);
        }
    });
}

#[test]
fn adding_again_takes_the_new_lifetime_and_deleting_an_absent_member_is_fine() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&spec("eg-a", Kind::HashIp, Family::V4)).unwrap();
        let member = address("10.0.0.1");
        let lifetime = |sets: &mut IpSets| {
            sets.list_one("eg-a").unwrap().unwrap().entries[0]
                .timeout
                .map(NonZeroU32::get)
        };
        sets.add("eg-a", &[living(member, 1000)]).unwrap();
        sets.add("eg-a", &[living(member, 10)]).unwrap();
        assert!(lifetime(&mut sets).is_some_and(|left| left <= 10));
        sets.add("eg-a", &[SetEntry::lasting(member)]).unwrap();
        assert_eq!(lifetime(&mut sets), None);
        sets.add("eg-a", &[living(member, u32::MAX)]).unwrap();
        assert!(lifetime(&mut sets).is_some_and(|left| left > 2_000_000));
        sets.delete(
            "eg-a",
            &[SetEntry::lasting(member), SetEntry::lasting(address("10.9.9.9"))],
        )
        .unwrap();
        assert!(!sets.test("eg-a", member).unwrap());
    });
}

#[test]
fn thousands_of_members_are_added_in_batches_and_listed_in_parts() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&SetSpec {
            hashsize: 8192,
            ..spec("eg-a", Kind::HashIp, Family::V4)
        })
        .unwrap();
        let entries: Vec<_> = (1..=20_000u32)
            .map(|n| living(Member::Address(std::net::Ipv4Addr::from(n).into()), 600))
            .collect();
        sets.add("eg-a", &entries).unwrap();
        let listed = sets.list_one("eg-a").unwrap().unwrap().entries;
        assert!(
            listed
                .iter()
                .map(|entry| entry.member)
                .eq(entries.iter().map(|entry| entry.member))
        );
    });
}

#[test]
fn a_refusal_says_which_set_which_member_and_why() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&SetSpec {
            maxelem: 2,
            hashsize: 64,
            ..SetSpec::new("eg-a", Kind::HashIp, Family::V4)
        })
        .unwrap();
        sets.create(&SetSpec::new("eg-n", Kind::HashNet, Family::V4))
            .unwrap();
        let three = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
            .map(address)
            .map(SetEntry::lasting);
        let errors = [
            (
                sets.create(&SetSpec::new("eg-a", Kind::HashIp, Family::V4)),
                Reason::Exists,
                "eg-a",
            ),
            (sets.add("eg-a", &three), Reason::Full, "10.0.0.3"),
            (
                sets.add("eg-a", &[SetEntry::lasting(address("fd00::1"))]),
                Reason::MemberMismatch,
                "fd00::1",
            ),
            (
                sets.add("eg-a", &[living(address("10.0.0.1"), 5)]),
                Reason::TimeoutsUnsupported,
                "without timeouts",
            ),
            (
                sets.add("eg-a", &[SetEntry::lasting(address("0.0.0.0"))]),
                Reason::NullMember,
                "0.0.0.0",
            ),
            (sets.add("eg-none", &three), Reason::NoSuchSet, "eg-none"),
            (sets.destroy("eg-none"), Reason::NoSuchSet, "eg-none"),
            (sets.flush("eg-none"), Reason::NoSuchSet, "eg-none"),
            (sets.swap("eg-a", "eg-n"), Reason::TypeMismatch, "eg-a"),
            (sets.swap("eg-a", "eg-none"), Reason::NoSuchSet, "eg-a"),
        ];
        for (outcome, reason, word) in errors {
            let error = outcome.expect_err(word);
            assert_eq!(error.reason(), Some(reason), "{error}");
            assert!(error.to_string().contains(word), "{error} does not say {word}");
        }
        // What came before the member that failed is in the set.
        assert_eq!(sets.list_one("eg-a").unwrap().unwrap().entries.len(), 2);
    });
}

#[test]
fn many_sets_are_changed_together_and_one_that_fails_keeps_no_other_from_its_turn() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let name = |number: u32| format!("eg-{number}");
        let members = |from: u32, count: u32| {
            let address = |number: u32| Member::Address(std::net::Ipv4Addr::from(number).into());
            (from..from + count)
                .map(address)
                .map(SetEntry::lasting)
                .collect::<Vec<_>>()
        };
        const SETS: u32 = 150;
        for number in (0..SETS).filter(|number| number % 50 != 7) {
            let maxelem = if number % 50 == 9 { 2 } else { 65536 };
            let spec = SetSpec::new(name(number), Kind::HashIp, Family::V4);
            sets.create(&SetSpec { maxelem, ..spec }).unwrap();
        }
        // The third has more than go into a message, and the last more than go into a datagram.
        let count = |number: u32| match number {
            2 => 250,
            149 => 3_000,
            _ => 3,
        };
        let change = |number: u32| MemberChange {
            name: name(number),
            added: members(1000, count(number)),
            deleted: members(1000, 1),
        };
        let changes: Vec<MemberChange> = (0..SETS).map(change).collect();
        let outcomes = sets.change_all(&changes);
        assert_eq!(outcomes.len(), changes.len());
        for (number, outcome) in (0..SETS).zip(outcomes) {
            let (reason, word) = match number % 50 {
                7 => (Reason::NoSuchSet, name(number)),
                9 => (Reason::Full, "0.0.3.234".to_owned()),
                _ => {
                    assert_eq!(outcome.map_err(|error| error.to_string()), Ok(()), "{number}");
                    let listed = sets.list_one(&name(number)).unwrap().unwrap().entries;
                    assert_eq!(listed, members(1001, count(number) - 1), "{number}");
                    continue;
                }
            };
            let error = outcome.expect_err(&word);
            assert_eq!(error.reason(), Some(reason), "{error}");
            assert!(error.to_string().contains(&word), "{error} does not say {word}");
        }
        assert!(sets.change_all(&[]).is_empty());
        sets.destroy("eg-0")
            .expect("the next answer is that to the next question");
    });
}

#[test]
fn of_many_sets_that_are_made_together_each_says_what_became_of_it_and_all_stand_in_their_order() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let spec = |name: &str, kind| SetSpec::new(name, kind, Family::V4);
        sets.create(&spec("eg-7", Kind::HashNet)).unwrap();
        sets.create(&spec("eg-57", Kind::HashNet)).unwrap();
        let name = |number: u32| match number {
            9 => "not a name".to_owned(),
            _ => format!("eg-{number}"),
        };
        let names: Vec<String> = (0..300).map(name).collect();
        let specs: Vec<SetSpec> = names.iter().map(|name| spec(name, Kind::HashIp)).collect();
        let outcomes = sets.create_all(&specs);
        assert_eq!(outcomes.len(), specs.len());
        for ((number, name), outcome) in names.iter().enumerate().zip(outcomes) {
            let failed = outcome.as_ref().err();
            let reason = failed.and_then(egret_kernel::ipset::Error::reason);
            let expected = [7, 57].contains(&number).then_some(Reason::Exists);
            assert_eq!(
                (reason, outcome.is_err()),
                (expected, [7, 9, 57].contains(&number)),
                "{name}"
            );
            let is_named = failed.is_none_or(|error| error.to_string().contains(name));
            assert!(is_named, "{outcome:?} does not say {name}");
        }
        let made = names.into_iter().enumerate();
        let made = made
            .filter(|(number, _)| ![7, 9, 57].contains(number))
            .map(|(_, name)| name);
        let in_order: Vec<String> = ["eg-7", "eg-57"]
            .map(str::to_owned)
            .into_iter()
            .chain(made)
            .collect();
        assert_eq!(sets.names().unwrap(), in_order);
        assert!(sets.create_all(&[]).is_empty());
        let some = ["eg-7", "eg-none", "", "eg-57"].map(str::to_owned);
        let outcomes = sets.destroy_all(&some);
        let reasons: Vec<_> = outcomes
            .iter()
            .map(|outcome| outcome.as_ref().err().map(|error| error.reason()))
            .collect();
        assert_eq!(
            reasons,
            [None, Some(Some(Reason::NoSuchSet)), Some(None), None],
            "{outcomes:?}"
        );
        assert_eq!(
            sets.names().unwrap(),
            in_order[2..],
            "a name that is none is not every set"
        );
        sets.destroy("eg-0")
            .expect("the next answer is that to the next question");
    });
}

#[test]
fn of_a_change_that_fails_twice_the_first_is_told_and_a_whole_network_is_written_as_its_halves() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let member = SetEntry::lasting(address("10.0.0.1"));
        let absent = MemberChange {
            name: "absent".to_owned(),
            added: vec![member],
            deleted: vec![member],
        };
        sets.create(&SetSpec::new("all", Kind::HashNet, Family::V4))
            .unwrap();
        let all = MemberChange {
            name: "all".to_owned(),
            added: vec![SetEntry::lasting(net("0.0.0.0/0"))],
            deleted: Vec::new(),
        };
        let outcomes = sets.change_all(&[absent, all]);
        let said = outcomes[0].as_ref().unwrap_err().to_string();
        assert!(said.starts_with("cannot add to the set"), "{said}");
        assert!(outcomes[1].is_ok(), "{outcomes:?}");
        let held = run("ipset", &["list", "all"]);
        assert!(
            held.contains("0.0.0.0/1") && held.contains("128.0.0.0/1"),
            "{held}"
        );
    });
}

#[test]
fn a_set_is_made_once_and_one_in_use_is_waited_for_so_often_and_no_more() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let one = SetSpec::new("one", Kind::HashIp, Family::V4);
        sets.create(&one).unwrap();
        assert_eq!(sets.create(&one).unwrap_err().reason(), Some(Reason::Exists));
        // A list of sets refers to it.
        run("ipset", &["create", "list", "list:set"]);
        run("ipset", &["add", "list", "one"]);
        let mut waits = 2;
        let refused = sets.destroy_unnamed("one", &mut waits).unwrap_err();
        assert_eq!((refused.reason(), waits), (Some(Reason::InUse), 0));
        run("ipset", &["destroy", "list"]);
        sets.destroy_unnamed("one", &mut waits).unwrap();
        assert_eq!(sets.list_one("one").unwrap(), None);
    });
}

/// Addresses in a set of a type that is not ours are not ours to read.
#[test]
fn members_of_another_type_of_set_are_unreadable() {
    in_fresh_namespace(|| {
        run(
            "ipset",
            &["create", "theirs", "bitmap:ip", "range", "10.0.0.0/24"],
        );
        run("ipset", &["add", "theirs", "10.0.0.7"]);
        let theirs = IpSets::open().unwrap().list_one("theirs").unwrap().unwrap();
        assert_eq!(
            (theirs.kind, theirs.entries.len(), theirs.unreadable),
            (None, 0, 1)
        );
    });
}

#[test]
fn a_command_without_a_name_never_reaches_the_kernel() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&SetSpec::new("eg-a", Kind::HashIp, Family::V4))
            .unwrap();
        for name in ["", "a b", "a\0", &"x".repeat(32)] {
            assert!(
                sets.destroy(name).is_err() && sets.flush(name).is_err() && sets.swap("eg-a", name).is_err(),
                "{name:?}"
            );
        }
        assert_eq!(sets.names().unwrap(), ["eg-a"]);
    });
}

#[test]
fn a_set_that_is_there_is_kept_and_one_that_is_gone_is_no_error_but_other_refusals_are() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let (of_addresses, of_networks) = (Kind::HashIp, Kind::HashNet);
        sets.ensure(&spec("eg-a", of_addresses, Family::V4)).unwrap();
        sets.add("eg-a", &[SetEntry::lasting(address("10.0.0.1"))])
            .unwrap();
        sets.ensure(&spec("eg-a", of_networks, Family::V4)).unwrap();
        assert!(sets.test("eg-a", address("10.0.0.1")).unwrap());
        run(
            "iptables-legacy",
            &[
                "-A",
                "FORWARD",
                "-m",
                "set",
                "--match-set",
                "eg-a",
                "dst",
                "-j",
                "DROP",
            ],
        );
        assert_eq!(sets.remove("eg-a").unwrap_err().reason(), Some(Reason::InUse));
        sets.remove("eg-none").unwrap();
        let too_long = "e".repeat(32);
        assert!(sets.ensure(&spec(&too_long, of_addresses, Family::V4)).is_err());
        assert!(sets.remove(&too_long).is_err());
    });
}

#[test]
fn a_set_that_a_rule_uses_cannot_be_destroyed_but_swapped() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for name in ["eg-a", "eg-b"] {
            sets.create(&spec(name, Kind::HashIp, Family::V4)).unwrap();
        }
        sets.add("eg-b", &[SetEntry::lasting(address("10.0.0.1"))])
            .unwrap();
        run(
            "iptables-legacy",
            &[
                "-A",
                "FORWARD",
                "-m",
                "set",
                "--match-set",
                "eg-a",
                "dst",
                "-j",
                "DROP",
            ],
        );
        assert_eq!(sets.destroy("eg-a").unwrap_err().reason(), Some(Reason::InUse));
        assert_eq!(sets.list_one("eg-a").unwrap().unwrap().references, 1);
        sets.swap("eg-a", "eg-b").unwrap();
        assert!(sets.test("eg-a", address("10.0.0.1")).unwrap());
        assert!(!sets.test("eg-b", address("10.0.0.1")).unwrap());
        sets.destroy("eg-b").unwrap();
        assert_eq!(sets.names().unwrap(), ["eg-a"]);
    });
}

#[test]
fn listing_by_prefix_leaves_other_sets_alone_and_owns_up_to_what_it_cannot_read() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        run("ipset", &["create", "other", "hash:ip"]);
        run("ipset", &["create", "eg-list", "list:set"]);
        run("ipset", &["create", "eg-net", "hash:net"]);
        run("ipset", &["add", "eg-net", "10.0.0.0/8"]);
        run("ipset", &["add", "eg-net", "10.1.0.0/16", "nomatch"]);
        let listed = sets.list("eg-").unwrap();
        assert_eq!(
            listed.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(),
            ["eg-list", "eg-net"]
        );
        assert_eq!((listed[0].kind, listed[0].type_name.as_str()), (None, "list:set"));
        assert_eq!(listed[1].entries, [SetEntry::lasting(net("10.0.0.0/8"))]);
        assert_eq!((listed[1].unreadable, listed[1].timeout), (1, None));
        assert_eq!(sets.list_one("eg-none").unwrap(), None);
    });
}

#[test]
fn a_prefix_contains_what_it_covers_and_the_other_family_is_never_in() {
    in_fresh_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(&spec("eg-a", Kind::HashNet, Family::V4)).unwrap();
        sets.add("eg-a", &[SetEntry::lasting(net("10.0.0.0/8"))]).unwrap();
        assert!(sets.test("eg-a", address("10.1.2.3")).unwrap());
        assert!(!sets.test("eg-a", address("11.1.2.3")).unwrap());
        assert!(!sets.test("eg-a", address("fd00::1")).unwrap());
        assert_eq!(
            sets.test("eg-none", address("10.0.0.1")).unwrap_err().reason(),
            Some(Reason::NoSuchSet)
        );
    });
}

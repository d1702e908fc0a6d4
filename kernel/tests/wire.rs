//! Rules by netlink beside the same rules by iptables-nft: the kernel holds the same octets, and the programs list the same text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod rules;

use common::{in_fresh_namespace, run};
use egret_kernel::Family;
use egret_kernel::ipset::IpSets;
use egret_kernel::iptables::netlink_writer::{Error, TransactionWriter};
use egret_kernel::iptables::{Flavour, IpTables, Rule, Table, Target};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::Duration;

fn nft(family: Family) -> IpTables {
    IpTables::new(Flavour::Nft, family)
}

fn write(batches: &[(Family, &str)]) -> Result<(), Error> {
    TransactionWriter::default().write(batches)
}

/// The attributes of a netlink message or nest.
fn attributes(mut octets: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some([low, high, kind, above]) = octets.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        found.push((u16::from_ne_bytes([*kind, *above]) & 0x3fff, &octets[4..length]));
        octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn attribute(kind: u16, text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len() + 5).unwrap();
    let mut octets = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    octets.extend(text.bytes().chain([0]));
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets
}

/// Attributes of each rule of a chain.
type Held = Vec<Vec<(u16, Vec<u8>)>>;

/// What the kernel tells of each rule of a chain: its expressions and its user data, as they are.
fn held(family: Family, table: Table, chain: &str) -> Held {
    const GET_RULES: [u8; 4] = [7, 10, 1, 3];
    let file = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::empty(),
        SockProtocol::NetlinkNetFilter,
    )
    .unwrap();
    let number = if family == Family::V4 { 2 } else { 10 };
    let asked = [
        vec![number, 0, 0, 0],
        attribute(1, table.name()),
        attribute(2, chain),
    ]
    .concat();
    let length = u32::try_from(16 + asked.len()).unwrap();
    let header = [&length.to_ne_bytes()[..], &GET_RULES, &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    send(file.as_raw_fd(), &[header, asked].concat(), MsgFlags::empty()).unwrap();
    let mut rules = Vec::new();
    let mut room = vec![0; 1 << 17];
    loop {
        let length = recv(file.as_raw_fd(), &mut room, MsgFlags::empty()).unwrap();
        let mut rest = &room[..length];
        while let Some(length) = rest.first_chunk().map(|octets| u32::from_ne_bytes(*octets)) {
            let length = usize::try_from(length).unwrap();
            match u16::from_ne_bytes([rest[4], rest[5]]) {
                2 => panic!("refused: {:?}", &rest[16..20]),
                3 => return rules,
                _ => {
                    let parts = attributes(&rest[20..length]).into_iter();
                    let kept = parts.filter(|(kind, _)| [4, 5, 7].contains(kind));
                    rules.push(kept.map(|(kind, octets)| (kind, octets.to_vec())).collect());
                }
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// A rule as iptables 1.8.9 writes it, but for the interfaces, which are asked behind the addresses, and for a remark that stands
/// last of its matches, which is kept where nft keeps remarks.
fn as_written_here(rule: &[(u16, Vec<u8>)]) -> Vec<(u16, Vec<u8>)> {
    let [(4, list)] = rule else {
        panic!("expressions alone: {rule:?}")
    };
    let mut elements: Vec<&[u8]> = attributes(list).into_iter().map(|(_, element)| element).collect();
    let interfaces = 2 * elements
        .iter()
        .step_by(2)
        .take_while(|element| asks_interface(element))
        .count();
    let end = end_of_addresses(&elements, interfaces);
    elements[..end].rotate_left(interfaces);
    let counter = elements
        .iter()
        .position(|element| is_named(element, b"counter\0"))
        .unwrap();
    let last = counter.checked_sub(1);
    let remark = last.and_then(|last| remark_of(elements[last]));
    if let (Some(last), Some(_)) = (last, &remark) {
        elements.remove(last);
    }
    let mut kept = Vec::new();
    for element in elements {
        let length = u16::try_from(element.len() + 4).unwrap();
        kept.extend([length.to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
        kept.extend(element);
        kept.resize(kept.len().next_multiple_of(4), 0);
    }
    [(4, kept)]
        .into_iter()
        .chain(remark.map(|remark| (7, remark)))
        .collect()
}

/// The name and the data of an expression.
fn expression(element: &[u8]) -> (&[u8], Vec<(u16, &[u8])>) {
    match attributes(element).as_slice() {
        [(1, name)] => (name, Vec::new()),
        [(1, name), (2, data)] => (name, attributes(data)),
        other => panic!("no expression: {other:?}"),
    }
}

fn is_named(element: &[u8], name: &[u8]) -> bool {
    expression(element).0 == name
}

/// `meta load` of the name of an interface (`NFT_META_IIFNAME`, `NFT_META_OIFNAME`).
fn asks_interface(element: &[u8]) -> bool {
    let (name, data) = expression(element);
    name == b"meta\0" && data.iter().any(|part| matches!(part, (2, [0, 0, 0, 6 | 7])))
}

/// Behind the interfaces, the protocol and the addresses.
fn end_of_addresses(elements: &[&[u8]], interfaces: usize) -> usize {
    let mut at = interfaces;
    let is_protocol = |element: &[u8]| {
        let (name, data) = expression(element);
        name == b"meta\0" && data.contains(&(2, &[0, 0, 0, 16]))
    };
    if elements.get(at).is_some_and(|element| is_protocol(element)) {
        at += 2;
    }
    let is_of_network = |element: &[u8]| {
        let (name, data) = expression(element);
        name == b"payload\0" && data.contains(&(2, &[0, 0, 0, 1]))
    };
    while elements.get(at).is_some_and(|element| is_of_network(element)) {
        at += 2 + usize::from(is_named(elements[at + 1], b"bitwise\0"));
    }
    at
}

/// The user data (type 0, length, text and NUL) of a match for a remark; 253 octets fit there.
fn remark_of(element: &[u8]) -> Option<Vec<u8>> {
    let (b"match\0", data) = expression(element) else {
        return None;
    };
    let [(1, b"comment\0"), _, (3, info)] = data.as_slice() else {
        return None;
    };
    let remark: Vec<u8> = info.iter().copied().take_while(|octet| *octet != 0).collect();
    let length = u8::try_from(remark.len() + 1).ok()?;
    (1..=253)
        .contains(&remark.len())
        .then(|| [vec![0, length], remark, vec![0]].concat())
}

fn texts(family: Family, chain: &str) -> Vec<String> {
    let listing = nft(family).save(Table::Filter).unwrap();
    assert_eq!(listing.foreign, [""; 0]);
    let chain = listing.chain(chain).unwrap();
    chain.texts().map(str::to_owned).collect()
}

fn batch(chain: &str, rules: &[String]) -> String {
    let rules: String = rules.iter().map(|rule| format!("-A {chain} {rule}\n")).collect();
    format!("*filter\n:OTHER - [0:0]\n:{chain} - [0:0]\n{rules}COMMIT\n")
}

/// Writes rules both ways and compares; those that netlink leaves to the programs are returned.
fn compare(family: Family, rules: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let mut known = Vec::new();
    for rule in rules {
        match write(&[(family, &batch("ALONE", std::slice::from_ref(rule)))]) {
            Ok(()) => known.push(rule.clone()),
            Err(Error::Unknown { .. }) => left.push(rule.clone()),
            Err(error) => panic!("{error}"),
        }
    }
    nft(family).restore(&batch("PROGRAM", &known)).unwrap();
    write(&[(family, &batch("WIRE", &known))]).unwrap();
    let [program, ours] = ["PROGRAM", "WIRE"].map(|chain| held(family, Table::Filter, chain));
    assert_eq!(program.len(), known.len());
    for ((rule, program), ours) in known.iter().zip(&program).zip(&ours) {
        assert_eq!(*ours, as_written_here(program), "{family:?} {rule}");
    }
    assert_eq!(program.len(), ours.len());
    assert_eq!(texts(family, "WIRE"), texts(family, "PROGRAM"));
    left
}

fn make_sets(family: Family) {
    let word = if family == Family::V4 { "inet" } else { "inet6" };
    run("ipset", &["create", "other", "hash:net", "family", word]);
    run("ipset", &["create", "eg-addresses", "hash:ip", "family", word]);
    run("ipset", &["create", "eg-ports", "hash:ip,port", "family", word]);
}

#[test]
fn every_rule_is_held_octet_for_octet_as_iptables_writes_it() {
    for family in Family::ALL {
        in_fresh_namespace(move || {
            make_sets(family);
            let rules: Vec<String> = rules::filter_rules(family).iter().map(Rule::to_string).collect();
            let left = compare(family, &rules);
            assert_eq!(left, [""; 0], "{family:?}");
            assert_eq!(texts(family, "WIRE"), rules);
        });
    }
}

#[test]
fn prefixes_of_each_length_pairs_of_ports_and_marks_of_packets_are_held_as_iptables_writes_them() {
    for family in Family::ALL {
        in_fresh_namespace(move || {
            let mut rules = Vec::new();
            let (base, longest): (std::net::IpAddr, u8) = match family {
                Family::V4 => ("203.0.113.181".parse().unwrap(), 32),
                Family::V6 => ("2001:db8:b5a5:5a5a:a5a5:b5b5:5a5a:b5b5".parse().unwrap(), 128),
            };
            for length in 1..=longest {
                let net = ipnet::IpNet::new(base, length).unwrap().trunc();
                for what in ["-s", "-d", "! -s", "! -d"] {
                    rules.push(format!("{what} {net} -j RETURN"));
                }
            }
            for name in ["a", "cali0123456789a", "veth+", "eth0.100"] {
                rules.push(format!("-i {name} -j RETURN"));
                rules.push(format!("-i lo -o {name} -j RETURN"));
                rules.push(format!(
                    "-s {base}/{longest} -d {} -i {name} -o lo -p tcp -j RETURN",
                    ipnet::IpNet::new(base, 20).unwrap().trunc()
                ));
            }
            let ranges = ["0", "1", "80", "65535", "0:1", "1:65535", "80:90", "0:65534"];
            for transport in ["tcp", "udp", "sctp"] {
                for source in ranges {
                    for destination in ranges {
                        rules.push(format!(
                            "-p {transport} -m {transport} --sport {source} --dport {destination} -j DROP"
                        ));
                    }
                }
            }
            for length in [1, 200, 253, 254, 255] {
                rules.push(format!(
                    "-m comment --comment \"{}\"",
                    " \\\"\\\\\\'x"
                        .repeat(100)
                        .chars()
                        .take(length)
                        .collect::<String>()
                        .trim_end_matches('\\')
                ));
            }
            for behind in ["-m mark --mark 0x1/0x1", "-m comment --comment other"] {
                rules.push(format!("-m comment --comment first {behind} -j RETURN"));
            }
            for mark in ["0x4/0x4", "0x1/0xffffffff", "0x0/0x80000000"] {
                rules.push(format!("-j MARK --set-xmark {mark}"));
            }
            assert_eq!(compare(family, &rules), [""; 0]);
        });
    }
}

/// The tables as the enforcer writes them, with jumps from hooks.
#[test]
fn whole_tables_are_held_as_iptables_writes_them() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../enforcer/tests/golden");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let family = if name.ends_with("-6") {
            Family::V6
        } else {
            Family::V4
        };
        let golden = std::fs::read_to_string(&path).unwrap();
        for text in golden.split_inclusive("COMMIT\n") {
            for table in [Table::Raw, Table::Filter] {
                let Some(at) = text.find(&format!("*{table}\n")) else {
                    continue;
                };
                let (name, text) = (name.clone(), text[at..].to_owned());
                in_fresh_namespace(move || compare_tables(&name, family, table, &text));
                compared += 1;
            }
        }
    }
    assert!(compared >= 14, "{compared}");
}

fn compare_tables(name: &str, family: Family, table: Table, text: &str) {
    let word = if family == Family::V4 { "inet" } else { "inet6" };
    let mut sets = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        for at in words
            .iter()
            .enumerate()
            .filter(|(_, word)| **word == "--match-set")
            .map(|(at, _)| at)
        {
            sets.insert(words[at + 1], words[at + 2].contains(','));
        }
    }
    for (set, has_ports) in sets {
        let kind = if has_ports { "hash:ip,port" } else { "hash:net" };
        run("ipset", &["create", set, kind, "family", word]);
    }
    // Jumps that the change takes out must be there, and chains that it does not make.
    let taken_out = text.lines().filter_map(|line| line.strip_prefix("-D "));
    let taken_out: String = taken_out.map(|rule| format!("-A {rule}\n")).collect();
    let lead_to = text.lines().filter_map(|line| line.rsplit(' ').next());
    let chains: BTreeSet<&str> = lead_to.filter(|name| name.starts_with("EGRET")).collect();
    let chains: String = chains.iter().map(|name| format!(":{name} - [0:0]\n")).collect();
    let before = format!("*{table}\n{chains}{taken_out}COMMIT\n");
    let everything = |family| -> BTreeMap<String, Held> {
        let listing = nft(family).save(table).unwrap();
        let chains = listing.chains.iter().map(|chain| chain.name.clone());
        chains
            .map(|chain| (chain.clone(), held(family, table, &chain)))
            .collect()
    };
    nft(family).restore(&before).unwrap();
    nft(family).restore(text).unwrap();
    let program = (everything(family), nft(family).save(table).unwrap());
    run("nft", &["flush", "ruleset"]);
    nft(family).restore(&before).unwrap();
    write(&[(family, text)]).unwrap();
    let ours = (everything(family), nft(family).save(table).unwrap());
    let names: BTreeSet<_> = program.0.keys().chain(ours.0.keys()).collect();
    for chain in names {
        let program = program
            .0
            .get(chain)
            .map(|rules| rules.iter().map(|rule| as_written_here(rule)));
        assert_eq!(
            ours.0.get(chain).cloned(),
            program.map(Iterator::collect),
            "{name} {chain}"
        );
    }
    let sorted = |mut listing: egret_kernel::iptables::TableListing| {
        listing.chains.sort_by(|one, other| one.name.cmp(&other.name));
        listing
    };
    assert_eq!(sorted(ours.1), sorted(program.1), "{name}");
}

#[test]
fn both_families_change_together_or_not_at_all() {
    in_fresh_namespace(|| {
        let good = "*filter\n:EG-A - [0:0]\n-A EG-A -j RETURN\n-I FORWARD -j EG-A\nCOMMIT\n";
        let bad = "*filter\n:EG-A - [0:0]\n-A EG-A -j RETURN\n-A EG-A -j EG-NONE\nCOMMIT\n";
        let Err(Error::Refused {
            family,
            line,
            text,
            error,
        }) = write(&[(Family::V4, good), (Family::V6, bad)])
        else {
            panic!("it was taken")
        };
        assert_eq!(
            (family, line, text.as_str()),
            (Family::V6, 4, "-A EG-A -j EG-NONE"),
            "{error}"
        );
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        write(&[(Family::V4, good), (Family::V6, good)]).unwrap();
        for family in Family::ALL {
            assert_eq!(texts(family, "FORWARD"), ["-j EG-A"]);
            assert_eq!(texts(family, "EG-A"), ["-j RETURN"]);
        }
    });
}

#[test]
fn jumps_of_others_and_the_policy_of_a_hook_stay() {
    in_fresh_namespace(|| {
        let before = "*filter\n:FORWARD DROP [0:0]\n:EG-A - [0:0]\n:THEIRS - [0:0]\n-A FORWARD -j THEIRS\n\
                      -A FORWARD -j EG-A\n-A FORWARD -s 10.0.0.0/8 -j EG-A\n-A FORWARD -j EG-A\nCOMMIT\n";
        nft(Family::V4).restore(before).unwrap();
        let change = "*filter\n:EG-A - [0:0]\n[7:9] -A EG-A -j DROP\n-D FORWARD -j EG-A\n-D FORWARD -j EG-A\n-I FORWARD -j EG-A\nCOMMIT\n";
        write(&[(Family::V4, change)]).unwrap();
        assert_eq!(
            texts(Family::V4, "FORWARD"),
            ["-j EG-A", "-j THEIRS", "-s 10.0.0.0/8 -j EG-A"]
        );
        let listing = nft(Family::V4).save(Table::Filter).unwrap();
        assert_eq!(listing.chain("FORWARD").unwrap().policy.as_deref(), Some("DROP"));
        let kept = &listing.chain("EG-A").unwrap().rules[0];
        assert_eq!((kept.packets, kept.bytes), (7, 9));
        let gone = "*filter\n:EG-A - [0:0]\n-D FORWARD -j EG-A\n-D FORWARD -j EG-A\n-X EG-A\nCOMMIT\n";
        assert!(matches!(
            write(&[(Family::V4, gone)]),
            Err(Error::Unknown { line: 4, .. })
        ));
        let theirs = "*filter\n-D FORWARD -s 10.0.0.0/8 -j EG-A\nCOMMIT\n";
        nft(Family::V4).restore(theirs).unwrap();
        let gone = "*filter\n:EG-A - [0:0]\n-D FORWARD -j EG-A\n-X EG-A\nCOMMIT\n";
        write(&[(Family::V4, gone)]).unwrap();
        assert_eq!(texts(Family::V4, "FORWARD"), ["-j THEIRS"]);
        assert_eq!(nft(Family::V4).save(Table::Filter).unwrap().chain("EG-A"), None);
    });
}

#[test]
fn a_chain_that_is_declared_again_counts_from_zero() {
    in_fresh_namespace(|| {
        let text = "*filter\n:EG-A - [0:0]\n[5:6] -A EG-A -j RETURN\nCOMMIT\n";
        let again = "*filter\n:EG-A - [0:0]\n-A EG-A -j RETURN\nCOMMIT\n";
        for family in Family::ALL {
            write(&[(family, text)]).unwrap();
            let packets = || {
                nft(family)
                    .save(Table::Filter)
                    .unwrap()
                    .chain("EG-A")
                    .unwrap()
                    .rules[0]
                    .packets
            };
            assert_eq!(packets(), 5);
            write(&[(family, again)]).unwrap();
            assert_eq!(packets(), 0);
        }
    });
}

/// A number that another set had, and that the writer remembers: the rule is of the set that it names, whatever came and went before.
#[test]
fn a_rule_is_of_the_set_that_it_names_after_others_went_and_were_swapped() {
    in_fresh_namespace(|| {
        let mut writer = TransactionWriter::default();
        let of = |set: &str| {
            let rule = Rule::to(Target::Return).to_string();
            batch("EG-A", &[format!("-m set --match-set {set} dst {rule}")])
        };
        let create = |name: &str| run("ipset", &["create", name, "hash:net"]);
        create("one");
        create("two");
        writer.write(&[(Family::V4, &of("two"))]).unwrap();
        run("ipset", &["swap", "one", "two"]);
        assert_eq!(
            texts(Family::V4, "EG-A"),
            ["-m set --match-set two dst -j RETURN"]
        );
        writer.write(&[(Family::V4, &of("one"))]).unwrap();
        writer.let_go();
        // The kernel lets go of what rules referred to a moment after they went.
        let (mut sets, mut waits) = (IpSets::open().unwrap(), 100);
        sets.destroy_unnamed("two", &mut waits).unwrap();
        create("three");
        create("two");
        for name in ["two", "three", "one"] {
            writer.write(&[(Family::V4, &of(name))]).unwrap();
            assert_eq!(
                texts(Family::V4, "EG-A"),
                [format!("-m set --match-set {name} dst -j RETURN")]
            );
        }
        assert!(matches!(
            writer.write(&[(Family::V4, &of("four"))]),
            Err(Error::Unknown { line: 4, .. })
        ));
    });
}

/// Both families in one change, each with sets of its own.
#[test]
fn rules_of_both_families_name_the_sets_of_theirs() {
    in_fresh_namespace(|| {
        run("ipset", &["create", "four", "hash:net"]);
        run("ipset", &["create", "six", "hash:net", "family", "inet6"]);
        let rule = |set: &str| vec![format!("-m set --match-set {set} dst -j RETURN")];
        let (four, six) = (rule("four"), rule("six"));
        let (of_four, of_six) = (batch("EG-A", &four), batch("EG-A", &six));
        write(&[(Family::V4, &of_four), (Family::V6, &of_six)]).unwrap();
        assert_eq!(texts(Family::V4, "EG-A"), four);
        assert_eq!(texts(Family::V6, "EG-A"), six);
    });
}

/// A hook of which there was no chain is made once for all rules that come there.
#[test]
fn two_rules_come_to_a_hook_that_nobody_made() {
    in_fresh_namespace(|| {
        let text = "*filter\n:EG-A - [0:0]\n-I INPUT -j EG-A\n-A INPUT -i lo -j EG-A\nCOMMIT\n";
        write(&[(Family::V4, text)]).unwrap();
        assert_eq!(texts(Family::V4, "INPUT"), ["-j EG-A", "-i lo -j EG-A"]);
    });
}

#[test]
fn a_jump_out_of_a_hook_that_nobody_made_is_for_the_programs() {
    in_fresh_namespace(|| {
        let text = "*filter\n:EG-A - [0:0]\n-D INPUT -j EG-A\nCOMMIT\n";
        let Err(Error::Unknown { line, .. }) = write(&[(Family::V4, text)]) else {
            panic!("it was taken")
        };
        assert_eq!(line, 3);
    });
}

/// The kernel's part of a socket is made and waited for once, and gone when that is asked for.
#[test]
fn a_writer_keeps_its_socket_until_it_lets_go() {
    in_fresh_namespace(|| {
        const NETFILTER: &str = "12";
        const TURN: Duration = Duration::from_millis(5);
        const TURNS: u32 = 2_000;
        let open = || -> Vec<String> {
            let all = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
            let rows = all.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
            // By their ports; the kernel's own has 0.
            let ours = rows.filter(|row| row[1] == NETFILTER && row[2] != "0");
            ours.map(|row| row[2].to_owned()).collect()
        };
        let mut writer = TransactionWriter::default();
        let text = batch("EG-A", &["-j RETURN".to_owned()]);
        writer.write(&[(Family::V4, &text)]).unwrap();
        let kept = open();
        assert_eq!(kept.len(), 1, "{kept:?}");
        // Whoever came meanwhile has a port of his own.
        let _other = TransactionWriter::default();
        writer.write(&[(Family::V4, &text)]).unwrap();
        assert_eq!(open(), kept);
        writer.let_go();
        // A program that another test starts has it as well until it is that program.
        let is_gone = (0..TURNS).any(|_| {
            sleep(TURN);
            open().is_empty()
        });
        assert!(is_gone, "{:?}", open());
    });
}

/// More names than are asked for one by one.
#[test]
fn of_many_sets_each_rule_has_its_own() {
    in_fresh_namespace(|| {
        let names: Vec<String> = (0..700).map(|number| format!("s-{number}")).collect();
        let made: String = names
            .iter()
            .map(|name| format!("create {name} hash:net\n"))
            .collect();
        std::fs::write("/run/sets", made).unwrap();
        run("ipset", &["restore", "-file", "/run/sets"]);
        for name in names.iter().step_by(7) {
            run("ipset", &["destroy", name]);
        }
        let rules: Vec<String> = names
            .iter()
            .enumerate()
            .filter(|(number, _)| number % 7 != 0)
            .map(|(_, name)| format!("-m set --match-set {name} dst -j RETURN"))
            .collect();
        write(&[(Family::V4, &batch("EG-A", &rules))]).unwrap();
        assert_eq!(texts(Family::V4, "EG-A"), rules);
    });
}

/// The table `raw` is in front of conntrack: its hook has another priority.
#[test]
fn rules_of_the_raw_table_are_held_as_iptables_writes_them() {
    for family in Family::ALL {
        let host = if family == Family::V4 {
            "10.0.0.2/32"
        } else {
            "fd00::2/128"
        };
        let text = format!(
            "*raw\n:EGRET-SOURCE - [0:0]\n-A EGRET-SOURCE -s {host} -i veth1 -j RETURN\n-A EGRET-SOURCE -m rpfilter -j RETURN\n-A EGRET-SOURCE -i veth+ -j NOTRACK\n\
             -I PREROUTING -j EGRET-SOURCE\nCOMMIT\n"
        );
        in_fresh_namespace(move || compare_tables("raw", family, Table::Raw, &text));
        in_fresh_namespace(move || {
            let both =
                "*raw\n:A - [0:0]\n-I PREROUTING -j A\nCOMMIT\n*filter\n:A - [0:0]\n-I INPUT -j A\nCOMMIT\n";
            write(&[(family, both)]).unwrap();
            let jumps = [(Table::Raw, "PREROUTING"), (Table::Filter, "INPUT")].map(|(table, hook)| {
                let listing = nft(family).save(table).unwrap();
                listing.chain(hook).unwrap().rules.len()
            });
            assert_eq!(jumps, [1, 1]);
            let base = |table| {
                run(
                    "nft",
                    &[
                        "list",
                        "chain",
                        if family == Family::V4 { "ip" } else { "ip6" },
                        "raw",
                        table,
                    ],
                )
            };
            assert!(
                base("PREROUTING").contains("priority raw"),
                "{}",
                base("PREROUTING")
            );
        });
    }
}

//! `hosts`: the file's format, and each option with two settings.

use std::path::PathBuf;
use std::time::Duration;

use egret_dnsd::config::model::{Fallthrough, Hosts};
use egret_dnsd::dns::message::WireName;
use egret_dnsd::plugins::hosts::Table;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use crate::{SIZE, answers, asked, zones};

const FILE: &str = "
# a comment
192.0.2.1   a.test  A.Alias.Test # another
2001:db8::1 a.test
192.0.2.2   a.test
fe80::1%eth0 link.test
::ffff:192.0.2.9 mapped.test
192.0.2.10  *.wild.test
192.0.2.11  x.wild.test
nonsense    b.test
192.0.2.3
192.0.2.4   other.example
";

fn plan() -> Hosts {
    Hosts {
        file: PathBuf::from("/etc/hosts"),
        zones: Vec::new(),
        inline: Vec::new(),
        ttl: Duration::from_secs(3600),
        reverse: true,
        reload: Duration::from_secs(5),
        fallthrough: Fallthrough::No,
        fallthrough_unsupported: false,
    }
}

fn found(plan: &Hosts, name: &str, kind: RecordType) -> Result<Vec<String>, &'static str> {
    let table = Table::new(plan, &zones(&["test", "in-addr.arpa", "ip6.arpa"]), FILE);
    answers(&table.answer(&asked(name, kind), SIZE))
}

#[test]
fn names_and_addresses_are_answered_from_the_file() {
    use RecordType::{A, AAAA, PTR, TXT};
    let reverse6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
    type Row = (
        &'static str,
        RecordType,
        Result<&'static [&'static str], &'static str>,
    );
    let rows: [Row; 18] = [
        (
            "a.test",
            A,
            Ok(&["a.test. 3600 IN A 192.0.2.1", "a.test. 3600 IN A 192.0.2.2"]),
        ),
        ("A.TEST", AAAA, Ok(&["A.TEST. 3600 IN AAAA 2001:db8::1"])),
        ("a.alias.test", A, Ok(&["a.alias.test. 3600 IN A 192.0.2.1"])),
        ("a.alias.test", AAAA, Ok(&[])),
        ("a.test", TXT, Ok(&[])),
        ("link.test", AAAA, Ok(&["link.test. 3600 IN AAAA fe80::1"])),
        ("mapped.test", A, Ok(&["mapped.test. 3600 IN A 192.0.2.9"])),
        ("y.wild.test", A, Ok(&["y.wild.test. 3600 IN A 192.0.2.10"])),
        ("x.wild.test", A, Ok(&["x.wild.test. 3600 IN A 192.0.2.11"])),
        ("z.y.wild.test", A, Err("SERVFAIL")),
        ("wild.test", A, Err("SERVFAIL")),
        ("b.test", A, Err("SERVFAIL")),
        ("nowhere.test", A, Err("SERVFAIL")),
        ("other.example", A, Err("next")),
        (
            "1.2.0.192.in-addr.arpa",
            PTR,
            Ok(&[
                "1.2.0.192.in-addr.arpa. 3600 IN PTR a.test.",
                "1.2.0.192.in-addr.arpa. 3600 IN PTR a.alias.test.",
            ]),
        ),
        (
            reverse6,
            PTR,
            Ok(&[
                "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. 3600 IN PTR a.test.",
            ]),
        ),
        ("10.2.0.192.in-addr.arpa", PTR, Err("next")),
        ("9.9.9.9.in-addr.arpa", PTR, Err("next")),
    ];
    for (name, kind, expected) in rows {
        let expected = expected.map(|texts| texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(
            found(&plan(), name, kind).map_err(|it| it.to_owned()),
            expected.map_err(str::to_owned),
            "{name} {kind}"
        );
    }
}

#[test]
fn each_option_changes_what_is_answered() {
    use RecordType::{A, PTR, TXT};
    let outcome = |plan: &Hosts, name, kind| found(plan, name, kind).map(|texts| texts.join(" "));
    let falls = |fallthrough| Hosts {
        fallthrough,
        ..plan()
    };
    let ttl = Hosts {
        ttl: Duration::from_secs(7),
        ..plan()
    };
    assert_eq!(
        outcome(&ttl, "x.wild.test", A),
        Ok("x.wild.test. 7 IN A 192.0.2.11".to_owned())
    );
    let silent = Hosts {
        reverse: false,
        ..plan()
    };
    assert_eq!(outcome(&silent, "1.2.0.192.in-addr.arpa", PTR), Err("next"));
    for (fallthrough, expected) in [
        (Fallthrough::No, Err("SERVFAIL")),
        (Fallthrough::All, Err("next")),
        (Fallthrough::In(zones(&["other.test"])), Err("SERVFAIL")),
        (Fallthrough::In(zones(&["nowhere.test"])), Err("next")),
    ] {
        assert_eq!(outcome(&falls(fallthrough), "nowhere.test", A), expected);
    }
    let unsupported = |fallthrough| Hosts {
        fallthrough_unsupported: true,
        ..falls(fallthrough)
    };
    assert_eq!(
        outcome(&falls(Fallthrough::All), "a.test", TXT),
        Ok(String::new())
    );
    assert_eq!(
        outcome(&unsupported(Fallthrough::All), "a.test", TXT),
        Err("next")
    );
    assert_eq!(
        outcome(&unsupported(Fallthrough::In(zones(&["b.test"]))), "a.test", TXT),
        Ok(String::new())
    );
    let own_zones = Hosts {
        zones: zones(&["example"]),
        ..plan()
    };
    assert_eq!(outcome(&own_zones, "a.test", A), Err("next"));
    assert!(
        outcome(&own_zones, "other.example", A)
            .unwrap()
            .ends_with("192.0.2.4")
    );
    let inline = vec![(
        "192.0.2.77".parse().unwrap(),
        vec![WireName::parse("a.test").unwrap()],
    )];
    let added = outcome(&Hosts { inline, ..plan() }, "a.test", A).unwrap();
    assert!(
        added.ends_with("192.0.2.2 a.test. 3600 IN A 192.0.2.77"),
        "{added}"
    );
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(text in "([0-9a-f.:%# \n*]|\\PC){0,200}") {
        let table = Table::new(&plan(), &zones(&["."]), &text);
        let _outcome = table.answer(&asked("a.test", RecordType::A), SIZE);
        prop_assert!(table.len() < 200);
    }
}

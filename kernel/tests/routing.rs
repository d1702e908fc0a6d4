//! Rules of routing for a mark, against the kernel itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::routing::{LocalDelivery, MarkRule, Routing};
use egret_kernel::{Family, Mark};
use std::num::NonZeroU32;

fn mark(bit: u32) -> Mark {
    Mark::new(bit, NonZeroU32::new(bit).unwrap())
}

fn listed(what: &str) -> String {
    ["-4", "-6"]
        .map(|family| {
            let words: Vec<&str> = [family].into_iter().chain(what.split(' ')).collect();
            run("ip", &words)
        })
        .concat()
}

#[test]
fn marked_packets_are_delivered_locally_until_rule_and_route_are_removed() {
    in_fresh_namespace(|| {
        let before = (listed("rule list"), listed("route list table all"));
        let mut routing = Routing::open().unwrap();
        for family in Family::ALL {
            let delivery = LocalDelivery {
                family,
                mark: mark(0x20),
                table: 20_053,
                priority: 53,
            };
            assert!(routing.ensure(&delivery).unwrap());
            assert!(!routing.ensure(&delivery).unwrap(), "it is there once");
            let flag = if family == Family::V4 { "-4" } else { "-6" };
            let rules = run("ip", &[flag, "rule", "list"]);
            assert!(
                rules.contains("53:\tfrom all fwmark 0x20/0x20 lookup 20053"),
                "{rules}"
            );
            let to = if family == Family::V4 {
                "8.8.8.8"
            } else {
                "2001:db8::8"
            };
            let unmarked = std::process::Command::new("ip")
                .args([flag, "route", "get", to])
                .output();
            assert!(!unmarked.unwrap().status.success(), "there is no other route");
            let route = run("ip", &[flag, "route", "get", to, "mark", "0x21"]);
            assert!(route.starts_with("local "), "{route}");
            assert!(routing.remove(&delivery).unwrap());
            assert!(!routing.remove(&delivery).unwrap());
        }
        assert_eq!((listed("rule list"), listed("route list table all")), before);
    });
}

#[test]
fn rules_of_others_that_ask_for_a_mark_are_listed_with_what_they_ask() {
    in_fresh_namespace(|| {
        run(
            "ip",
            &[
                "rule",
                "add",
                "fwmark",
                "0x80/0x80",
                "lookup",
                "main",
                "pref",
                "1024",
            ],
        );
        run(
            "ip",
            &["rule", "add", "fwmark", "0x5", "lookup", "300", "pref", "1025"],
        );
        run("ip", &["rule", "add", "from", "10.0.0.1", "lookup", "301"]);
        let whole = Mark::new(5, NonZeroU32::MAX);
        let rules = [(mark(0x80), 254, 1024), (whole, 300, 1025)].map(|(mark, table, priority)| MarkRule {
            mark,
            table,
            priority,
        });
        assert_eq!(Routing::open().unwrap().mark_rules(Family::V4).unwrap(), rules);
    });
}

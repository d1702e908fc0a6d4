//! How often a table of nftables leads to the rules of a pod. For each change of rules the kernel walks through all that a chain leads
//! to, once for each way to it (`nft_chain_validate`), so a way more is a walk through all rules of all pods.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::BTreeMap;

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PortMatch, SetKind};
use node_world::{
    ByLastOctet, Change, NOW, address, in_fresh_namespace, nftables, pod, rule, run, set, tier,
};

/// How many rules lead to each chain; maps are no rules.
fn ways() -> BTreeMap<String, usize> {
    let text = run("nft", &["-t", "list", "table", "inet", "egret"]);
    let chains = text.lines().filter_map(|line| line.trim().strip_prefix("chain "));
    let chains = chains.map(|rest| (rest.split(' ').next().unwrap().to_owned(), 0));
    let mut ways: BTreeMap<String, usize> = chains.collect();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        if word == "goto" || word == "jump" {
            *ways.get_mut(words.next().unwrap()).unwrap() += 1;
        }
    }
    ways
}

#[test]
fn one_rule_leads_to_the_rules_of_a_pod_and_none_to_where_all_denied_packets_end() {
    in_fresh_namespace(|| {
        let telling = NflogSettings {
            group: 9261,
            per_second: 10,
        };
        let mut backend = nftables(Some(telling), ByLastOctet);
        backend.adopt(NOW).unwrap();
        let list = || {
            let of = |action, peers| rule(action, PeerMatch::In(set(peers)), PortMatch::Any);
            let first = vec![of(Action::Pass, "peers"), of(Action::Deny, "others")];
            vec![
                tier(Tier::ClusterEgressFirewall, first, DefaultAction::NextTier),
                tier(
                    Tier::NetworkPolicy,
                    vec![of(Action::Allow, "peers")],
                    DefaultAction::Deny,
                ),
            ]
        };
        let change = Change::new()
            .set("peers", SetKind::Addresses, &[(address("10.0.0.9"), None)])
            .set("others", SetKind::Addresses, &[(address("10.0.0.8"), None)])
            .rules(pod("a", &["10.0.0.1"], list(), list()))
            .rules(pod("b", &["10.0.0.2"], list(), Vec::new()));
        let status = backend.apply(&change.0, NOW);
        assert!(status.broken.is_none() && status.pending.is_empty(), "{status:?}");

        let ways = ways();
        let of_pods = |kind: &'static str| {
            let parts = ways.iter().filter(move |(name, _)| name.starts_with(kind));
            parts.map(|(_, ways)| *ways).collect::<Vec<usize>>()
        };
        // By family: the rules, and the list of which the rules pass.
        assert_eq!(of_pods("EGRET-ER-"), [1; 2], "{ways:?}");
        assert_eq!(of_pods("EGRET-IR-"), [1; 2], "{ways:?}");
        assert_eq!(of_pods("EGRET-E0001-"), [1; 4], "{ways:?}");
        // The entry is led to by the map.
        for kind in ["EGRET-E-", "EGRET-I-"] {
            let (entries, rules) = (of_pods(kind).into_iter(), [0, 1, 1, 0, 1, 1]);
            assert_eq!(entries.collect::<Vec<_>>(), rules, "{ways:?}");
        }
        assert!(!ways.contains_key("EGRET-DENY"), "{ways:?}");
    });
}

//! What the backend `netfilter` writes when something changes: what changed, and nothing else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::{BTreeMap, BTreeSet};

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::netfilter::{Netfilter, names};
use egret_kernel::iptables::Flavour;
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use node_world::{
    ByLastOctet, Change, NOW, address, backend, filter, in_fresh_namespace, packets_denied, pod, range, rule,
    run, set, tier,
};

fn in_both_flavours(test: fn(Flavour)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || test(flavour));
    }
}

/// A pod that reaches what is in one set.
fn to(name: &str, address: &str, peers: &str) -> PodRules {
    let allow = rule(Action::Allow, PeerMatch::In(set(peers)), PortMatch::Any);
    let isolated = tier(Tier::NetworkPolicy, vec![allow], DefaultAction::Deny);
    pod(name, &[address], vec![isolated], Vec::new())
}

fn sets() -> Change {
    Change::new()
        .set("some", SetKind::Addresses, &[(address("10.0.0.9"), None)])
        .set("others", SetKind::Addresses, &[(address("10.0.0.8"), None)])
}

fn begun(flavour: Flavour, change: &Change) -> Netfilter {
    let mut backend = backend(flavour, ByLastOctet);
    backend.adopt(NOW).unwrap();
    apply(&mut backend, change);
    backend
}

fn apply(backend: &mut Netfilter, change: &Change) {
    let standing = backend.apply(&change.0, NOW);
    assert_eq!((&standing.pending, &standing.broken), (&BTreeMap::new(), &None));
    assert_eq!(standing.repaired, BTreeMap::new());
}

fn removed(name: &str) -> Change {
    let mut change = Change::new();
    change.0.pods_removed.push(PodKey::new("default", name));
    change
}

#[test]
fn only_the_chain_that_changed_is_written_and_a_restart_finds_the_same() {
    in_both_flavours(|flavour| {
        let mut first = sets();
        for number in 1..=9 {
            first = first.rules(to(&format!("p{number}"), &format!("10.0.0.{number}"), "some"));
        }
        let mut one = begun(flavour, &first);
        let before = one.written();
        apply(&mut one, &Change::new().rules(to("p3", "10.0.0.3", "others")));
        let after = one.written();
        // Its chain for egress, of each family.
        assert_eq!(
            (after.chains - before.chains, after.restores - before.restores),
            (2, 2)
        );
        // By netlink both families are one change, from the first one on.
        let by_netlink = |number| if flavour == Flavour::Nft { number } else { 0 };
        assert_eq!(
            (before.transactions, after.transactions),
            (by_netlink(1), by_netlink(2))
        );
        assert!(
            after.bytes - before.bytes < 2_000,
            "{}",
            after.bytes - before.bytes
        );
        apply(
            &mut one,
            &Change::new().members("some", &[(address("10.0.0.7"), None)], &[]),
        );
        assert_eq!(one.written(), after);
        apply(&mut one, &removed("p9"));
        assert!(!filter(flavour).contains("veth-9"));

        let mut whole = sets().members("some", &[(address("10.0.0.7"), None)], &[]);
        for number in 1..=8 {
            let peers = if number == 3 { "others" } else { "some" };
            whole = whole.rules(to(&format!("p{number}"), &format!("10.0.0.{number}"), peers));
        }
        let held = filter(flavour);
        let mut other = begun(flavour, &whole);
        assert_eq!(filter(flavour), held);
        assert_eq!(other.reconcile(NOW).repaired, BTreeMap::new());
    });
}

#[test]
fn a_reevaluated_pod_gets_a_new_generation_and_no_new_rules() {
    in_both_flavours(|flavour| {
        let mut backend = begun(flavour, &sets().rules(to("p", "10.0.0.1", "some")));
        let (before, held) = (backend.written(), filter(flavour));
        let mut again = Change::new();
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "p"), Direction::Egress));
        apply(&mut backend, &again);
        // Where flows of this generation go on, and where they get it; of each family.
        assert_eq!(backend.written().chains - before.chains, 4);
        assert_eq!(backend.written().rendered, before.rendered, "nor looked at");
        let is_rule = |line: &&str| line.contains("--match-set");
        let rules = |text: &str| {
            text.lines()
                .filter(is_rule)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let now = filter(flavour);
        assert_eq!(rules(&now), rules(&held));
        assert_ne!(now, held);
    });
}

/// A pod that does not reach a port at what is in two sets.
fn not_to(name: &str, own: &str, peers: [&str; 2]) -> PodRules {
    let port = range(Transport::Tcp, 80, 80);
    let denied = peers.map(|peers| rule(Action::Deny, PeerMatch::In(set(peers)), port));
    let admin = tier(Tier::Admin, denied.to_vec(), DefaultAction::NextTier);
    pod(name, &[own], vec![admin], Vec::new())
}

/// The chains of denials that pods have in common, and how many rules jump to each.
fn common(flavour: Flavour) -> Vec<(String, usize)> {
    let text = filter(flavour);
    let chain = |rule: &str| Some(rule.strip_prefix("-A ")?.split(' ').next()?.to_owned());
    let chains = text
        .lines()
        .filter_map(chain)
        .filter(|name| names::is_shared_denials(name));
    let jumps = |name: &str| text.matches(&format!("-j {name}")).count();
    let chains: BTreeSet<String> = chains.collect();
    chains
        .into_iter()
        .map(|name| (name.clone(), jumps(&name)))
        .collect()
}

#[test]
fn equal_denials_of_pods_are_written_once_and_removed_with_the_last() {
    const SETS: [&str; 2] = ["some", "others"];
    in_both_flavours(|flavour| {
        let turned = ["others", "some"];
        let both = sets()
            .rules(not_to("p", "10.0.0.1", SETS))
            .rules(not_to("q", "10.0.0.2", SETS));
        let mut backend = begun(flavour, &both);
        // One of each family.
        let jumps = || {
            common(flavour)
                .into_iter()
                .map(|(_, jumps)| jumps)
                .collect::<Vec<_>>()
        };
        assert_eq!(jumps(), [2, 2], "{}", filter(flavour));
        apply(&mut backend, &Change::new().rules(not_to("r", "10.0.0.3", SETS)));
        assert_eq!(jumps(), [3, 3]);
        apply(&mut backend, &removed("p"));
        assert_eq!(jumps(), [2, 2]);
        apply(
            &mut backend,
            &Change::new().rules(not_to("q", "10.0.0.2", turned)),
        );
        assert_eq!(jumps(), [1, 1, 1, 1]);
        let held = filter(flavour);
        let mut again = begun(
            flavour,
            &sets()
                .rules(not_to("q", "10.0.0.2", turned))
                .rules(not_to("r", "10.0.0.3", SETS)),
        );
        assert_eq!(
            (again.written().chains, filter(flavour)),
            (0, held),
            "the next life finds the same"
        );
        apply(&mut again, &removed("r"));
        assert_eq!(jumps(), [1, 1]);
        apply(&mut again, &removed("q"));
        assert_eq!(jumps(), Vec::<usize>::new());
    });
}

#[test]
fn a_pod_closed_for_a_missing_set_opens_when_the_set_exists() {
    in_both_flavours(|flavour| {
        // Somebody's set of another type is in the way of one family, and a rule of theirs holds it there.
        let name = format!("{}-egret-4", set("some").digest());
        run("ipset", &["create", &name, "bitmap:port", "range", "1-9"]);
        run(
            &format!("iptables-{}", flavour.name()),
            &[
                "-A",
                "OUTPUT",
                "-p",
                "tcp",
                "-m",
                "set",
                "--match-set",
                &name,
                "dst",
            ],
        );
        let mut backend = backend(flavour, ByLastOctet);
        backend.adopt(NOW).unwrap();
        let standing = backend.apply(&sets().rules(to("p", "10.0.0.1", "some")).0, NOW);
        assert!(!standing.pending.is_empty());
        assert!(!filter(flavour).contains(&format!("-m set --match-set {name} dst -m comment")));
        run(&format!("iptables-{}", flavour.name()), &["-F", "OUTPUT"]);
        run("ipset", &["destroy", &name]);
        let standing = backend.reconcile(NOW);
        assert_eq!((&standing.pending, &standing.broken), (&BTreeMap::new(), &None));
        assert!(filter(flavour).contains(&format!("-m set --match-set {name} dst -m comment")));
    });
}

#[test]
fn counts_survive_a_rewrite_of_their_chain_and_those_of_other_chains_continue() {
    in_both_flavours(|flavour| {
        let first = sets()
            .rules(to("p1", "10.0.0.1", "some"))
            .rules(to("p2", "10.0.0.2", "some"));
        let mut backend = begun(flavour, &first);
        let iptables = format!("iptables-{}", flavour.name());
        // A count in the kernel as if packets had been judged, at the last rule of each pod.
        let saved = run(&format!("{iptables}-save"), &["-t", "filter"]);
        let denied: Vec<&str> = saved
            .lines()
            .filter(|line| line.contains("np deny egress 0 isolation"))
            .collect();
        assert_eq!(denied.len(), 2);
        for line in denied {
            let rule: Vec<&str> = line.split_whitespace().skip(1).collect();
            let number = saved
                .lines()
                .filter(|one| one.starts_with(&format!("-A {} ", rule[0])))
                .position(|one| one == line)
                .unwrap();
            let target = line.rsplit(' ').next().unwrap();
            run(
                &iptables,
                &[
                    "-R",
                    rule[0],
                    &(number + 1).to_string(),
                    "-m",
                    "comment",
                    "--comment",
                    "np deny egress 0 isolation",
                    "-g",
                    target,
                    "-c",
                    "5",
                    "500",
                ],
            );
        }
        assert_eq!(packets_denied(&backend), 10);
        apply(&mut backend, &Change::new().rules(to("p1", "10.0.0.1", "others")));
        assert_eq!(packets_denied(&backend), 10);
        apply(&mut backend, &removed("p2"));
        assert_eq!(packets_denied(&backend), 10);
    });
}

//! What is denied, as the kernel tells and counts it. What this host sends itself over `lo` is the pod's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use egret_enforcer::backend::netfilter::denials::{Cause, DenialRegistry};
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::{Backend, Decider, SyncStatus};
use egret_kernel::iptables::Flavour;
use egret_kernel::nflog::Listener;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, Direction, PeerMatch, PortMatch, SetKind, TierRules};
use egret_shared::pod::PodKey;
use node_world::{
    Change, NOW, ThisHost, address, filter, in_fresh_namespace, pod, rule, seconds, set, tier, told,
};

const TELLING: NflogSettings = NflogSettings {
    group: 9254,
    per_second: 10,
};
const DENIED: &str = "127.0.0.2:9";
const ISOLATED: &str = "127.0.0.3:9";

fn life(flavour: Flavour) -> (Netfilter, DenialRegistry) {
    let denials = DenialRegistry::default();
    let settings = Settings {
        flavour,
        marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
        deny: DenyAction::Drop,
        telling: Some(TELLING),
    };
    let mut backend = Netfilter::open(settings, Box::new(ThisHost))
        .unwrap()
        .telling(denials.clone());
    backend.adopt(NOW).unwrap();
    (backend, denials)
}

/// One rule that denies 127.0.0.2; the rest is denied by nobody's rule.
fn isolating(policy: &str) -> Vec<TierRules> {
    let mut deny = rule(Action::Deny, PeerMatch::In(set("peers")), PortMatch::Any);
    deny.origin.policy = policy.into();
    vec![tier(Tier::NetworkPolicy, vec![deny], DefaultAction::Deny)]
}

fn first(policy: &str) -> Change {
    Change::new()
        .set("peers", SetKind::Addresses, &[(address("127.0.0.2"), None)])
        .rules(pod("a", &["127.0.0.1"], isolating(policy), Vec::new()))
}

#[track_caller]
fn assert_settled(standing: &SyncStatus) {
    assert!(
        standing.broken.is_none() && standing.pending.is_empty(),
        "{standing:?}"
    );
    assert!(standing.repaired.is_empty(), "{standing:?}");
}

fn probe(to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", to).unwrap();
}

fn in_both_flavours(test: fn(Flavour)) {
    in_fresh_namespace(move || {
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            test(flavour);
        }
    });
}

#[test]
fn a_denial_chain_is_shared_by_all_pods_and_removed_with_the_last() {
    in_both_flavours(|flavour| {
        let (mut backend, denials) = life(flavour);
        let other = pod(
            "b",
            &["127.0.0.9"],
            isolating("NetworkPolicy/default/web"),
            Vec::new(),
        );
        let both = first("NetworkPolicy/default/web").rules(other);
        assert_settled(&backend.apply(&both.0, NOW));
        assert_settled(&backend.reconcile(NOW));
        let mut listener = Listener::bind(TELLING.group).unwrap();
        for (to, policy) in [(DENIED, Some("NetworkPolicy/default/web")), (ISOLATED, None)] {
            probe(to);
            let [denial] = told(&mut listener, &denials).try_into().unwrap();
            assert_eq!(denial.direction, Direction::Egress);
            match (denial.cause, policy) {
                (Cause::Rule(said), Some(policy)) => assert_eq!(said.policy.as_ref(), policy),
                (Cause::Isolation, None) => {}
                (other, _) => panic!("{to}: {other:?}"),
            }
        }
        // The rule, isolation, errors about others, encapsulation, and revoked flows of two directions: two lines each, in both families.
        let lines = || {
            filter(flavour)
                .lines()
                .filter(|line| line.starts_with("-A EGRET-D-"))
                .count()
        };
        assert_eq!(lines(), 24);
        for (pods, left) in [(["b"], 24), (["a"], 12)] {
            let mut gone = Change::new();
            gone.0
                .pods_removed
                .extend(pods.map(|pod| PodKey::new("default", pod)));
            assert_settled(&backend.apply(&gone.0, seconds(1)));
            assert_eq!(lines(), left, "without {pods:?}");
        }
        backend.remove_everything().unwrap();
        assert!(!filter(flavour).contains("EGRET"));
    });
}

/// Series by their rule's policy; the others are "other".
fn series(backend: &Netfilter, most: usize) -> BTreeMap<String, u64> {
    let counts = backend.counters().by_series(most).unwrap();
    let denied = counts.into_iter().filter(|count| {
        count.key.action == Action::Deny.into() && matches!(count.key.decider, Decider::Tier(_))
    });
    let name = |origin: Option<(std::sync::Arc<str>, usize)>| {
        origin.map_or_else(|| "other".into(), |(policy, _)| policy.to_string())
    };
    let mut series = BTreeMap::new();
    for count in denied {
        *series.entry(name(count.origin)).or_insert(0) += count.packets;
    }
    series
}

/// Rules are rewritten, go and come again, the enforcer begins anew, the limit grows.
#[test]
fn no_series_falls_through_rewrites_restarts_and_another_limit() {
    in_both_flavours(|flavour| {
        let (mut backend, _) = life(flavour);
        assert_settled(&backend.apply(&first("NetworkPolicy/default/a").0, NOW));
        probe(DENIED);
        probe(ISOLATED);
        let is = |backend: &Netfilter, most, a: u64, isolation: Option<u64>, other: u64, when: &str| {
            let mut expected = BTreeMap::from([
                ("NetworkPolicy/default/a".to_owned(), a),
                ("other".to_owned(), other),
            ]);
            expected.extend(isolation.map(|packets| ("isolation".to_owned(), packets)));
            assert_eq!(series(backend, most), expected, "{when}, {flavour:?}");
        };
        is(&backend, 1, 1, None, 1, "at first");
        let mut again = Change::new();
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        assert_settled(&backend.apply(&again.0, seconds(1)));
        probe(DENIED);
        is(&backend, 1, 2, None, 1, "rewritten");
        is(&backend, 2, 2, Some(0), 1, "with room for another");
        probe(ISOLATED);
        is(&backend, 2, 2, Some(1), 1, "counted apart from now on");
        let rules = pod("a", &["127.0.0.1"], Vec::new(), Vec::new());
        assert_settled(&backend.apply(&Change::new().rules(rules).0, seconds(2)));
        is(&backend, 2, 2, Some(1), 1, "the rule is gone");
        drop(backend);
        let (mut backend, _) = life(flavour);
        backend.apply(&first("NetworkPolicy/default/a").0, seconds(3));
        probe(DENIED);
        is(&backend, 2, 3, Some(1), 1, "in another life");
        backend.remove_everything().unwrap();
    });
}

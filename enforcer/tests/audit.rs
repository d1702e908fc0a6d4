//! What policies in audit would deny, as the kernel counts and tells it, and lets it through. What this host sends itself over
//! `lo` is the pod's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use egret_enforcer::backend::netfilter::denials::{Cause, DenialRegistry, Outcome};
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::{self, Backend, SyncStatus};
use egret_kernel::iptables::Flavour;
use egret_kernel::nflog::Listener;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{
    DefaultAction, Direction, DirectionRules, PeerMatch, PodRules, PortMatch, SetKind, TierRules,
};
use egret_shared::pod::PodKey;
use node_world::{
    Change, NOW, ThisHost, address, filter, in_fresh_namespace, pod, rule, run, seconds, set, tier, told,
};

const TELLING: NflogSettings = NflogSettings {
    group: 9254,
    per_second: 10,
};
const POLICY: &str = "ClusterNetworkPolicy/tried";
/// What the policy in audit says of these.
const DENIED: &str = "127.0.0.2:9";
const PASSED: &str = "127.0.0.3:9";
const ALLOWED: &str = "127.0.0.4:9";

fn life(flavour: Flavour, deny: DenyAction, telling: Option<NflogSettings>) -> (Netfilter, DenialRegistry) {
    let denials = DenialRegistry::default();
    let settings = Settings {
        flavour,
        marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
        deny,
        telling,
    };
    let mut backend = Netfilter::open(settings, Box::new(ThisHost))
        .unwrap()
        .telling(denials.clone());
    backend.adopt(NOW).unwrap();
    (backend, denials)
}

/// A policy that denies one peer, and hands another over to NetworkPolicies by which the pod is isolated.
fn tried() -> Vec<TierRules> {
    let to = |action, peers| {
        let mut rule = rule(action, PeerMatch::In(set(peers)), PortMatch::Any);
        rule.origin.policy = POLICY.into();
        rule
    };
    let admin = vec![
        to(Action::Deny, "denied"),
        to(Action::Pass, "passed"),
        to(Action::Allow, "allowed"),
    ];
    vec![
        tier(Tier::Admin, admin, DefaultAction::NextTier),
        tier(Tier::NetworkPolicy, Vec::new(), DefaultAction::Deny),
    ]
}

fn asked(audit: Vec<TierRules>) -> PodRules {
    let mut rules = pod("a", &["127.0.0.1"], Vec::new(), Vec::new());
    rules.audit.egress = DirectionRules::of(audit);
    rules
}

fn peers() -> Change {
    let set = |change: Change, (name, peer)| change.set(name, SetKind::Addresses, &[(address(peer), None)]);
    let sets = [
        ("denied", "127.0.0.2"),
        ("passed", "127.0.0.3"),
        ("allowed", "127.0.0.4"),
    ];
    sets.into_iter().fold(Change::new(), set)
}

fn in_both_flavours(test: fn(Flavour)) {
    in_fresh_namespace(move || {
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            test(flavour);
        }
    });
}

#[track_caller]
fn assert_settled(standing: &SyncStatus) {
    assert!(
        standing.broken.is_none() && standing.pending.is_empty(),
        "{standing:?}"
    );
    assert!(standing.repaired.is_empty(), "{standing:?}");
}

/// Sends from a port of its own, and sees all of it come.
#[track_caller]
fn arrives(to: &str, packets: usize) {
    let to: SocketAddr = to.parse().unwrap();
    let server = UdpSocket::bind(to).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..packets {
        client.send_to(b"x", to).unwrap();
        server.recv(&mut [0; 8]).unwrap();
    }
}

/// What is counted as what would be denied: by a rule, and by no rule.
fn counted(backend: &Netfilter, most: usize) -> [u64; 2] {
    let counts = backend.counters().by_series(most).unwrap();
    let would = counts
        .iter()
        .filter(|count| count.key.action == backend::Action::WouldDeny);
    let mut counted = [0; 2];
    for count in would {
        counted[usize::from(
            count
                .origin
                .as_ref()
                .is_none_or(|(policy, _)| policy.as_ref() != POLICY),
        )] += count.packets;
    }
    counted
}

#[test]
fn what_would_be_denied_goes_on_and_is_told_once_for_each_flow() {
    in_both_flavours(|flavour| {
        for deny in [DenyAction::Drop, DenyAction::Reject] {
            let (mut backend, denials) = life(flavour, deny, Some(TELLING));
            assert_settled(&backend.apply(&peers().rules(asked(tried())).0, NOW));
            assert_settled(&backend.reconcile(NOW));
            let mut listener = Listener::bind(TELLING.group).unwrap();
            for (to, by_rule) in [(DENIED, true), (PASSED, false)] {
                arrives(to, 3);
                let [denial] = told(&mut listener, &denials).try_into().unwrap();
                assert_eq!(
                    (denial.outcome, denial.direction),
                    (Outcome::WouldBeDenied, Direction::Egress)
                );
                match denial.cause {
                    Cause::Rule(said) => assert_eq!((said.policy.as_ref(), by_rule), (POLICY, true)),
                    Cause::Isolation => assert!(!by_rule),
                    other => panic!("{to}: {other:?}"),
                }
            }
            arrives(ALLOWED, 3);
            assert_eq!(counted(&backend, 9), [1, 1]);
            backend.remove_everything().unwrap();
            assert!(!filter(flavour).contains("EGRET"));
        }
    });
}

/// Rules are rewritten and go, and the enforcer begins anew.
#[test]
fn what_would_be_denied_is_counted_without_being_told_and_never_forgotten() {
    in_both_flavours(|flavour| {
        let (mut backend, _) = life(flavour, DenyAction::Drop, None);
        let first = peers().rules(asked(tried()));
        assert_settled(&backend.apply(&first.0, NOW));
        arrives(DENIED, 2);
        assert_eq!(counted(&backend, 9), [1, 0]);
        let mut again = Change::new();
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        assert_settled(&backend.apply(&again.0, seconds(1)));
        arrives(DENIED, 2);
        assert_eq!(counted(&backend, 9), [2, 0], "rewritten");
        assert_settled(&backend.apply(&Change::new().rules(asked(Vec::new())).0, seconds(2)));
        arrives(DENIED, 1);
        assert_eq!(counted(&backend, 9), [2, 0], "not in audit any more");
        assert!(!filter(flavour).contains("EGRET-e"));
        drop(backend);
        let (mut backend, _) = life(flavour, DenyAction::Drop, None);
        backend.apply(&first.0, seconds(3));
        arrives(DENIED, 1);
        assert_eq!(counted(&backend, 9), [3, 0], "in another life");
        assert_eq!(counted(&backend, 0), [0, 3], "all rules together");
        backend.remove_everything().unwrap();
    });
}

/// Each packet of what has no flow is asked, and nothing ends.
#[test]
fn an_untracked_packet_is_audited() {
    in_both_flavours(|flavour| {
        let raw = match flavour {
            Flavour::Nft => "iptables-nft",
            Flavour::Legacy => "iptables-legacy",
        };
        for chain in ["OUTPUT", "PREROUTING"] {
            run(raw, &["-t", "raw", "-A", chain, "-j", "CT", "--notrack"]);
        }
        let (mut backend, _) = life(flavour, DenyAction::Drop, Some(TELLING));
        assert_settled(&backend.apply(&peers().rules(asked(tried())).0, NOW));
        arrives(DENIED, 3);
        assert_eq!(counted(&backend, 9), [3, 0]);
        backend.remove_everything().unwrap();
        run(raw, &["-t", "raw", "-F"]);
    });
}

/// A set that is not there, and more lists than a packet may go through: nothing is asked, and what is in force is as it was.
#[test]
fn audit_rules_that_cannot_be_rendered_change_no_verdict() {
    in_both_flavours(|flavour| {
        let mut many: Vec<TierRules> = vec![tried().remove(0); 12];
        for list in &mut many {
            list.tier = Tier::ClusterEgressFirewall;
        }
        let mut lost = tried();
        Arc::make_mut(&mut lost[0].rules)[2].peer = PeerMatch::In(set("nowhere"));
        for audit in [many, lost] {
            let (mut backend, _) = life(flavour, DenyAction::Drop, Some(TELLING));
            assert_settled(&backend.apply(&peers().rules(asked(audit)).0, NOW));
            arrives(DENIED, 1);
            assert_eq!(counted(&backend, 9), [0, 0]);
            assert_settled(&backend.apply(&Change::new().rules(asked(tried())).0, seconds(1)));
            arrives(DENIED, 1);
            assert_eq!(
                counted(&backend, 9),
                [1, 0],
                "and it is asked again as soon as it can be"
            );
            backend.remove_everything().unwrap();
        }
    });
}

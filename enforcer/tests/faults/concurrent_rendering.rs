//! Chains are rendered while their sets are made, as if all of them came to be. Where one does not, the rules that were rendered over
//! it must not be in force: a list that is not held whole would deny too little, and somebody else's would allow what is in it.

use egret_enforcer::backend::netfilter::names;
use egret_enforcer::backend::{Backend as _, Pending, SyncStatus};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::iptables::{Flavour, IpTables};
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{Batch, DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use nix::errno::Errno;

use crate::node::{Node, Probe, hold_settled};
use crate::node_world::{Change, NOW, address, in_fresh_namespace, pod, rule, run, set, tier};
use crate::tun::What;

const LISTED: &str = "10.0.1.5";
const OTHER: &str = "10.0.1.4";
/// What the list says, asked of a pod that it denies and of one that it alone allows.
const BY_THE_LIST: [bool; 4] = [false, true, true, false];

/// Of one family, so that there is a list without members in the other, which the kernel takes in a rule.
fn no_memory_for_a_set_of_v6(taken: &Taken) -> Option<Errno> {
    let is_made = taken.step == Step::Sets && taken.what.starts_with("cannot create");
    (is_made && taken.what.ends_with("-6")).then_some(Errno::ENOMEM)
}

fn no_memory_for_members(taken: &Taken) -> Option<Errno> {
    (taken.step == Step::Sets && taken.what.starts_with("cannot add")).then_some(Errno::ENOMEM)
}

#[test]
fn rules_over_a_set_that_was_not_created_deny_no_less() {
    for flavour in Flavour::BOTH {
        for refusal in [no_memory_for_a_set_of_v6, no_memory_for_members] {
            in_fresh_namespace(move || {
                let node = Node::new(flavour);
                let planned = Planned::here(Plan::Refuse(refusal));
                let (mut backend, standing) = node.start(&over_a_list());
                hold_refused(&standing, "ENOMEM");
                assert_eq!(node.ask(&probes()), [false; 4]);
                drop(planned);
                hold_settled(&backend.reconcile(NOW));
                assert_eq!(node.ask(&probes()), BY_THE_LIST);
            });
        }
    }
}

/// A rule of theirs holds it, so it stays: what is in it is no list of ours.
#[test]
fn a_foreign_set_with_the_name_of_ours_is_used_by_no_rule() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let name = names::set(set("list"), Family::V4).as_str().to_owned();
            run("ipset", &["create", &name, "hash:net"]);
            run("ipset", &["add", &name, OTHER]);
            let theirs = |how: &str| {
                let rule = format!("*filter\n{how} THEIRS -m set --match-set {name} src -j RETURN\nCOMMIT\n");
                IpTables::new(flavour, Family::V4).restore(&rule).unwrap();
            };
            theirs("-A");
            let (mut backend, standing) = node.start(&over_a_list());
            hold_refused(&standing, &name);
            assert_eq!(node.ask(&probes()), [false; 4]);
            theirs("-D");
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes()), BY_THE_LIST);
        });
    }
}

fn over_a_list() -> Batch {
    let change = Change::new().set("list", SetKind::Addresses, &[(address(LISTED), None)]);
    let denied = by_the_list("a", "10.0.0.1", Action::Deny, DefaultAction::NextTier);
    let allowed = by_the_list("b", "10.0.0.2", Action::Allow, DefaultAction::Deny);
    change.rules(denied).rules(allowed).0
}

fn by_the_list(name: &str, own: &str, action: Action, otherwise: DefaultAction) -> PodRules {
    let rules = vec![rule(action, PeerMatch::In(set("list")), PortMatch::Any)];
    pod(
        name,
        &[own],
        vec![tier(Tier::Admin, rules, otherwise)],
        Vec::new(),
    )
}

fn probes() -> [Probe; 4] {
    let both = [("veth-1", "10.0.0.1"), ("veth-2", "10.0.0.2")];
    let [one, other] = both.map(|(through, from)| {
        [LISTED, OTHER].map(|to| Probe {
            through,
            from,
            to,
            what: What::Tcp(80),
        })
    });
    [one[0], one[1], other[0], other[1]]
}

fn hold_refused(standing: &SyncStatus, reason: &str) {
    let is_said = |pending: &Pending| matches!(pending, Pending::Refused(said) if said.contains(reason));
    assert_eq!(standing.pending.len(), 2, "{standing:?}");
    assert!(standing.pending.values().all(is_said), "{standing:?}");
    assert!(standing.broken.is_none() && standing.wants_retry());
}

//! What the kernel refuses concerns the pods that need it: they are closed, the others go on, and it is tried again.

use std::time::Duration;

use egret_enforcer::backend::{Backend, Pending, SyncStatus};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::iptables::{Flavour, IpTables};
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{Batch, DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;
use nix::errno::Errno;

use egret_enforcer::backend::netfilter::names;

use crate::node::{Node, Probe, hold_settled};
use crate::node_world::{
    Change, NOW, address, in_fresh_namespace, pod, range, rule, run, seconds, set, tier,
};
use crate::stories;
use crate::tun::What;

pub(crate) const OF_THE_POD: Probe = probe("veth-1", "10.0.0.1");
pub(crate) const OF_ANOTHER: Probe = probe("veth-2", "10.0.0.2");

const fn probe(through: &'static str, from: &'static str) -> Probe {
    Probe {
        through,
        from,
        to: "10.0.1.5",
        what: What::Tcp(80),
    }
}

/// One that a node port leads on, to where only a firewall has a say.
pub(crate) const OF_A_CLIENT: Probe = Probe {
    through: "eth0",
    from: "198.51.100.1",
    to: "192.0.2.1",
    what: What::Tcp(30080),
};

fn no_memory_for_a_set(taken: &Taken) -> Option<Errno> {
    (taken.step == Step::Sets && taken.what.starts_with("cannot create")).then_some(Errno::ENOMEM)
}

fn no_memory_for_members(taken: &Taken) -> Option<Errno> {
    (taken.step == Step::Sets && taken.what.starts_with("cannot add")).then_some(Errno::ENOMEM)
}

fn no_memory_for_rules(taken: &Taken) -> Option<Errno> {
    matches!(taken.step, Step::Rules(_)).then_some(Errno::ENOMEM)
}

#[test]
fn without_memory_for_a_set_its_pod_is_closed_and_another_is_not_until_there_is_some() {
    in_both_flavours(|node, batch| {
        for refusal in [no_memory_for_a_set, no_memory_for_members] {
            egret_enforcer::backend::netfilter::cleanup::remove(node.flavour).unwrap();
            let planned = Planned::here(Plan::Refuse(refusal));
            let (mut backend, standing) = node.start(batch);
            hold_refused(&standing, "ENOMEM");
            assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [false, true]);
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [true, true]);
        }
    });
}

#[test]
fn without_memory_for_rules_nothing_is_believed_to_be_in_force_until_there_is_some() {
    in_both_flavours(|node, batch| {
        let planned = Planned::here(Plan::Refuse(no_memory_for_rules));
        let (mut backend, standing) = node.start(batch);
        assert!(
            standing
                .broken
                .as_ref()
                .is_some_and(|reason| reason.contains("memory")),
            "{standing:?}"
        );
        assert!(standing.wants_retry());
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [true, true]);
    });
}

/// What is denied by a list is not open because the kernel did not take all of it; what is allowed by one is closed in part.
#[test]
fn a_partly_refused_deny_list_still_denies_all_of_it() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let refused = || Planned::here(Plan::Refuse(no_memory_for_members));
            hold_list_refused(&node, |batch| node.start(batch), refused, "ENOMEM");
        });
    }
}

/// A list that grows is refused, and taken later: what it denies stays denied, what it allows is closed, and nobody else is concerned.
pub(crate) fn hold_list_refused<B: Backend>(
    node: &Node,
    start: impl FnOnce(&Batch) -> (B, SyncStatus),
    refuse: impl FnOnce() -> Planned,
    said: &str,
) {
    let to = |to| Probe { to, ..OF_THE_POD };
    let probes = [to("10.0.1.1"), to("10.0.1.2"), to("198.51.100.7"), OF_ANOTHER];
    let (old, new) = (stories::denied_by_a_list(1), stories::denied_by_a_list(2));
    let (mut backend, standing) = start(&old.begin(NOW)[0]);
    hold_settled(&standing);
    assert_eq!(node.ask(&probes), [false, true, true, true]);
    let planned = refuse();
    for batch in old.turn_into(&new, NOW) {
        hold_refused(&backend.apply(&batch, NOW), said);
    }
    assert_eq!(node.ask(&probes), [false, false, false, true]);
    assert!(backend.reconcile(NOW).wants_retry());
    assert_eq!(node.ask(&probes), [false, false, false, true]);
    drop(planned);
    hold_settled(&backend.reconcile(NOW));
    assert_eq!(node.ask(&probes), [false, false, true, true]);
}

/// EBUSY: what is of another type and is named by a rule of somebody else can neither be used nor replaced.
#[test]
fn a_set_that_a_foreign_rule_holds_closes_its_pod_until_it_is_let_go() {
    in_both_flavours(|node, batch| {
        let name = set_of_addresses(batch);
        run("ipset", &["create", &name, "hash:net"]);
        let rules = IpTables::new(node.flavour, Family::V4);
        let foreign = |how: &str| {
            let rule = format!("*filter\n{how} THEIRS -m set --match-set {name} src -j RETURN\nCOMMIT\n");
            rules.restore(&rule).unwrap();
        };
        foreign("-A");
        let (mut backend, standing) = node.start(batch);
        hold_refused(&standing, &name);
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [false, true]);
        foreign("-D");
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [true, true]);
    });
}

/// ENOSPC of ipset: the set takes no more members.
#[test]
fn a_full_set_is_reported_and_recreated_with_room() {
    in_both_flavours(|node, batch| {
        let name = set_of_addresses(batch);
        let mut backend = node.backend();
        backend.adopt(NOW).unwrap();
        // Somebody is faster, and mean.
        run("ipset", &["create", &name, "hash:ip", "maxelem", "1"]);
        run("ipset", &["add", &name, "192.0.2.99"]);
        hold_refused(&backend.apply(batch, NOW), &name);
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [false, true]);
        let mut standing = backend.reconcile(NOW);
        if standing.wants_retry() {
            standing = backend.reconcile(NOW);
        }
        hold_settled(&standing);
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [true, true]);
    });
}

/// ENOSPC for a third record: only its pod waits, until one of the others has expired.
#[test]
fn a_full_set_keeps_out_a_pods_new_record_alone_until_there_is_room() {
    let ends = |at| Some(seconds(at));
    let may_reach = |number: u8, list| {
        let allow = rule(
            Action::Allow,
            PeerMatch::In(set(list)),
            range(Transport::Tcp, 80, 80),
        );
        let tier = tier(Tier::NetworkPolicy, vec![allow], DefaultAction::Deny);
        let own = format!("10.0.0.{number}");
        pod(&format!("pod-{number}"), &[&own], vec![tier], Vec::new())
    };
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let mut backend = node.backend().with_members_per_set(2);
            backend.adopt(NOW).unwrap();
            let first = [
                (address("203.0.113.7"), ends(60)),
                (address("203.0.113.8"), ends(2)),
            ];
            let change = Change::new()
                .set("names 1", SetKind::Records, &first)
                .set("names 2", SetKind::Records, &[])
                .rules(may_reach(1, "names 1"))
                .rules(may_reach(2, "names 2"));
            hold_settled(&backend.apply(&change.0, NOW));
            let new = [(address("203.0.113.9"), ends(60))];
            let change = Change::new()
                .members("names 1", &new, &[])
                .members("names 2", &new, &[]);
            let standing = backend.apply(&change.0, NOW);
            let pending: Vec<String> = standing.pending.keys().map(ToString::to_string).collect();
            assert_eq!(pending, ["default/pod-1"], "{standing:?}");
            assert!(format!("{standing:?}").contains("it is full"), "{standing:?}");
            let probes =
                [("1", "203.0.113.7"), ("1", "203.0.113.9"), ("2", "203.0.113.9")].map(|(number, to)| {
                    Probe {
                        through: if number == "1" { "veth-1" } else { "veth-2" },
                        from: if number == "1" { "10.0.0.1" } else { "10.0.0.2" },
                        to,
                        what: What::Tcp(80),
                    }
                });
            assert_eq!(node.ask(&probes), [true, false, true]);
            std::thread::sleep(Duration::from_secs(3));
            hold_settled(&backend.reconcile(seconds(3)));
            assert_eq!(node.ask(&probes), [true, true, true]);
        });
    }
}

/// No pod waits for what only the rules for clients outside name: they are closed, and that is said and tried again.
#[test]
fn what_only_the_rules_for_clients_outside_name_is_closed_and_tried_again() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let elsewhere = stories::denied_to_clients_outside("203.0.113.0/26");
            let batches = elsewhere.begin(NOW);
            for refusal in [no_memory_for_a_set, no_memory_for_members] {
                egret_enforcer::backend::netfilter::cleanup::remove(flavour).unwrap();
                let planned = Planned::here(Plan::Refuse(refusal));
                let (mut backend, standing) = node.start(&batches[0]);
                hold_refused_to_clients(&standing);
                assert_eq!(node.ask(&[OF_A_CLIENT]), [false]);
                hold_refused_to_clients(&backend.reconcile(NOW));
                drop(planned);
                hold_settled(&backend.reconcile(NOW));
                assert_eq!(node.ask(&[OF_A_CLIENT]), [true]);
            }
        });
    }
}

/// A network that comes to what is denied to clients, while the kernel takes none.
#[test]
fn what_comes_to_what_is_denied_to_clients_outside_is_closed_and_tried_again() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let old = stories::denied_to_clients_outside("203.0.113.0/26");
            let new = stories::denied_to_clients_outside("203.0.113.0/26, 203.0.113.64/26");
            let (mut backend, standing) = node.start(&old.begin(NOW)[0]);
            hold_settled(&standing);
            assert_eq!(node.ask(&[OF_A_CLIENT]), [true]);
            let planned = Planned::here(Plan::Refuse(no_memory_for_members));
            for batch in old.turn_into(&new, NOW) {
                hold_refused_to_clients(&backend.apply(&batch, NOW));
            }
            assert_eq!(node.ask(&[OF_A_CLIENT]), [false]);
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&[OF_A_CLIENT]), [false]);
            for batch in new.turn_into(&old, NOW) {
                hold_settled(&backend.apply(&batch, NOW));
            }
            assert_eq!(node.ask(&[OF_A_CLIENT]), [true]);
        });
    }
}

fn hold_refused_to_clients(standing: &SyncStatus) {
    let said = standing.refused.as_deref().unwrap_or_default();
    assert!(
        said.starts_with("rules for clients outside are closed: ") && said.contains("ENOMEM"),
        "{standing:?}"
    );
    assert!(standing.pending.is_empty() && standing.broken.is_none());
    assert!(standing.wants_retry());
}

/// What only rules in audit name closes nothing, and is said and tried again.
#[test]
fn a_refused_set_of_audit_rules_is_retried() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let mut rules = pod("a", &["10.0.0.1"], Vec::new(), Vec::new());
        let denied = rule(Action::Deny, PeerMatch::In(set("r")), PortMatch::Any);
        rules.audit.egress.tiers = vec![tier(Tier::Admin, vec![denied], DefaultAction::NextTier)];
        let member = (address("10.0.1.5"), None);
        let change = Change::new().set("r", SetKind::Addresses, &[member]).rules(rules);
        let planned = Planned::here(Plan::Refuse(no_memory_for_members));
        let (mut backend, standing) = node.start(&change.0);
        let said = standing.refused.as_deref().unwrap_or_default();
        assert!(said.starts_with("rules in audit are not asked: "), "{standing:?}");
        assert!(standing.pending.is_empty() && standing.wants_retry());
        assert_eq!(node.ask(&[OF_THE_POD]), [true]);
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
    });
}

/// Two lists changed between two lives, so the first batch of the second one changes them aside: what the kernel refuses of that
/// must not leave rules at sets of which nobody tells any more.
#[test]
fn lists_that_are_refused_at_a_start_follow_what_comes_later() {
    for (flavour, port) in each_alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            hold_settled(&node.start(&two_lists(port, "10.0.1.1", "10.0.1.2").0).1);
            let planned = Planned::here(Plan::Refuse(no_memory_for_members));
            let (mut backend, standing) = node.start(&two_lists(port, "10.0.1.3", "10.0.1.4").0);
            hold_refused(&standing, "ENOMEM");
            let to = |to| Probe { to, ..OF_THE_POD };
            let probes = ["10.0.1.1", "10.0.1.3", "10.0.1.4", "10.0.1.5"].map(to);
            assert_eq!(node.ask(&probes), [false; 4]);
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes), [true, false, false, true]);
            let more = Change::new().members("one", &[(address("10.0.1.5"), None)], &[]);
            hold_settled(&backend.apply(&more.0, NOW));
            assert_eq!(node.ask(&probes), [true, false, false, false]);
        });
    }
}

/// The same where the tables cannot be written: what was to follow the first batch waits for it, and what comes meanwhile behind that.
#[test]
fn sets_of_a_start_with_refused_rules_follow_later_batches() {
    for (flavour, port) in each_alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            hold_settled(&node.start(&two_lists(port, "10.0.1.1", "10.0.1.2").0).1);
            let planned = Planned::here(Plan::Refuse(no_memory_for_rules));
            let (mut backend, standing) = node.start(&two_lists(port, "10.0.1.3", "10.0.1.4").0);
            assert!(standing.wants_retry(), "{standing:?}");
            let to = |to| Probe { to, ..OF_THE_POD };
            let probes = ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4", "10.0.1.5"].map(to);
            assert_eq!(node.ask(&probes), [false, false, true, true, true], "as before");
            let more = Change::new().members("one", &[(address("10.0.1.5"), None)], &[]);
            assert!(backend.apply(&more.0, NOW).wants_retry());
            assert_eq!(node.ask(&probes), [false, false, true, true, true], "as before");
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes), [true, true, false, false, false]);
        });
    }
}

/// Two lists changed between two lives, and the kernel refuses the chains of one of the pods that are denied by them: its rules of
/// before would see the lists change one by one. It is closed; the others go on, with what comes later and in the next life.
#[test]
fn a_pod_whose_rules_are_refused_holds_back_no_lists_of_others() {
    for (flavour, port) in each_alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let both =
                |one, other| two_lists(port, one, other).rules(denied_by_two_lists(port, "b", "10.0.0.2"));
            hold_settled(&node.start(&both("10.0.1.1", "10.0.1.2").0).1);
            let planned = Planned::here(Plan::Refuse(rules_of_the_pod_are_refused));
            let (mut backend, standing) = node.start(&both("10.0.1.3", "10.0.1.4").0);
            hold_refused(&standing, "it is closed: ");
            let of_all = || {
                (
                    node.ask(&FOUR.map(|to| Probe { to, ..OF_THE_POD })),
                    node.ask(&FOUR.map(|to| Probe { to, ..OF_ANOTHER })),
                )
            };
            assert_eq!(of_all(), (vec![false; 4], vec![true, false, false, true]));
            // What comes later goes on for others, under the sets' own names.
            let more = Change::new().members("one", &[(address("10.0.1.5"), None)], &[address("10.0.1.3")]);
            let third = denied_by_two_lists(port, "c", "10.0.0.3");
            hold_refused(&backend.apply(&more.rules(third).0, NOW), "it is closed: ");
            assert_eq!(of_all(), (vec![false; 4], vec![true, true, false, false]));
            let of_the_third = Probe {
                to: "10.0.1.5",
                ..probe("veth-3", "10.0.0.3")
            };
            assert_eq!(node.ask(&[of_the_third]), [false]);
            assert_eq!(own_sets(&node), sets_of(["one", "other"]));
            hold_refused(&backend.reconcile(NOW), "it is closed: ");
            assert_eq!(of_all(), (vec![false; 4], vec![true, true, false, false]));
            // The next life finds the lists as it wants them, and no rules of before that it could leave to the pod.
            let (mut backend, standing) = node.start(&both("10.0.1.5", "10.0.1.4").0);
            hold_refused(&standing, "it is closed: ");
            assert_eq!(of_all(), (vec![false; 4], vec![true, true, false, false]));
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(
                of_all(),
                (vec![true, true, false, false], vec![true, true, false, false])
            );
        });
    }
}

/// Rules of before that name none of the lists which change stay in force.
#[test]
fn a_pod_whose_rules_are_refused_keeps_those_of_before_where_no_list_of_theirs_changes() {
    for (flavour, port) in each_alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let beside = |one, other, own| {
                let mut change = two_lists(port, one, other);
                let rules = change.0.rules_replaced.pop().unwrap();
                let another = PodRules {
                    pod: PodKey::new("default", "b"),
                    addresses: vec!["10.0.0.2".parse().unwrap()],
                    ..rules
                };
                change.rules(another).rules(denied_ports("a", "10.0.0.1", own))
            };
            hold_settled(&node.start(&beside("10.0.1.1", "10.0.1.2", 80).0).1);
            let planned = Planned::here(Plan::Refuse(rules_of_the_pod_are_refused));
            let (mut backend, standing) = node.start(&beside("10.0.1.3", "10.0.1.4", 443).0);
            hold_refused(&standing, "EINVAL");
            let https = Probe {
                what: What::Tcp(443),
                ..OF_THE_POD
            };
            let probes = [
                OF_THE_POD,
                https,
                OF_ANOTHER,
                Probe {
                    to: "10.0.1.4",
                    ..OF_ANOTHER
                },
            ];
            assert_eq!(node.ask(&probes), [false, true, true, false], "{standing:?}");
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes), [true, false, true, false]);
        });
    }
}

/// The same in the midst of a life: rules name what stands in for two lists while these change, and those of one pod do not.
#[test]
fn a_pod_whose_refused_rules_cannot_follow_is_closed_before_sets_change() {
    for (flavour, port) in each_alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let (mut backend, standing) = node.start(&two_lists(port, "10.0.1.1", "10.0.1.2").0);
            hold_settled(&standing);
            let planned = Planned::here(Plan::Refuse(rules_of_the_pod_are_refused));
            let aside = Change::new()
                .set(
                    "in the place of one",
                    SetKind::Addresses,
                    &[(address("10.0.1.1"), None)],
                )
                .set(
                    "in the place of other",
                    SetKind::Addresses,
                    &[(address("10.0.1.2"), None)],
                )
                .rules(denied_by(
                    port,
                    "a",
                    "10.0.0.1",
                    ["in the place of one", "in the place of other"],
                ));
            hold_refused(&backend.apply(&aside.0, NOW), "EINVAL");
            let probes = FOUR.map(|to| Probe { to, ..OF_THE_POD });
            assert_eq!(node.ask(&probes), [false, true, true, true], "as before");
            let then = Change::new()
                .members("one", &[(address("10.0.1.3"), None)], &[address("10.0.1.1")])
                .members("other", &[(address("10.0.1.4"), None)], &[address("10.0.1.2")])
                .rules(denied_by_two_lists(port, "a", "10.0.0.1"));
            hold_refused(&backend.apply(&then.0, NOW), "it is closed: ");
            let taken = planned.taken();
            let closed = taken
                .iter()
                .position(|step| step.what.contains("-g EGRET-UNKNOWN-E"));
            let name = names::set(set("one"), Family::V4);
            let of_the_list = |step: &&Taken| step.step == Step::Sets && step.what.contains(name.as_str());
            let changed = taken.iter().skip(closed.unwrap()).filter(of_the_list).count();
            assert_eq!(
                (changed, taken.iter().filter(of_the_list).count()),
                (2, 2),
                "{taken:?}"
            );
            assert_eq!(node.ask(&probes), [false; 4]);
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes), [true, false, false, true]);
        });
    }
}

/// Rules of before and those that are wanted name the same list: whoever orders the steps knows that it is asked.
#[test]
fn a_pod_whose_rules_are_refused_follows_lists_that_its_rules_name_before_and_now() {
    for port in alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(Flavour::Nft);
            let (mut backend, _) = node.start(&two_lists(port, "10.0.1.1", "10.0.1.2").0);
            let _planned = Planned::here(Plan::Refuse(rules_of_the_pod_are_refused));
            let more = [(address("10.0.1.3"), None)];
            let turned = Change::new().members("one", &more, &[]);
            let turned = turned.rules(denied_by(port, "a", "10.0.0.1", ["other", "one"]));
            hold_refused(&backend.apply(&turned.0, NOW), "EINVAL");
            let probes = FOUR.map(|to| Probe { to, ..OF_THE_POD });
            assert_eq!(node.ask(&probes), [false, false, true, true]);
            let later = Change::new().members("other", &[(address("10.0.1.4"), None)], &[]);
            hold_refused(&backend.apply(&later.0, NOW), "EINVAL");
            assert_eq!(node.ask(&probes), [false, false, false, true]);
        });
    }
}

/// Where what closes the pod is refused as well, no list changes, and all of it waits.
#[test]
fn lists_wait_for_a_pod_that_can_be_neither_written_nor_closed() {
    for port in alone_and_in_a_chain_of_all() {
        in_fresh_namespace(move || {
            let node = Node::new(Flavour::Nft);
            hold_settled(&node.start(&two_lists(port, "10.0.1.1", "10.0.1.2").0).1);
            let planned = Planned::here(Plan::Refuse(|taken| {
                let closes = taken.what.contains("-g EGRET-UNKNOWN-E");
                rules_of_the_pod_are_refused(taken).or_else(|| closes.then_some(Errno::ENOMEM))
            }));
            let (mut backend, standing) = node.start(&two_lists(port, "10.0.1.3", "10.0.1.4").0);
            assert!(
                standing.broken.is_some() && standing.wants_retry(),
                "{standing:?}"
            );
            let probes = FOUR.map(|to| Probe { to, ..OF_THE_POD });
            assert_eq!(node.ask(&probes), [false, true, true, true], "as before");
            let more = Change::new().members("one", &[(address("10.0.1.5"), None)], &[]);
            assert!(backend.apply(&more.0, NOW).wants_retry());
            assert!(backend.reconcile(NOW).wants_retry());
            assert_eq!(node.ask(&probes), [false, true, true, true], "as before");
            drop(planned);
            hold_settled(&backend.reconcile(NOW));
            assert_eq!(node.ask(&probes), [true, false, false, false]);
        });
    }
}

/// What is asked for of two lists: of before, of then, and what comes later.
const FOUR: [&str; 4] = ["10.0.1.1", "10.0.1.3", "10.0.1.4", "10.0.1.5"];

fn rules_of_the_pod_are_refused(taken: &Taken) -> Option<Errno> {
    let chains = names::PodChains::of(&PodKey::new("default", "a"));
    let mut rules = taken.what.lines().filter_map(|line| line.strip_prefix("-A "));
    let is_its = rules.any(|rule| chains.contain(rule.split(' ').next().unwrap()));
    (matches!(taken.step, Step::Rules(_)) && is_its).then_some(Errno::EINVAL)
}

fn own_sets(node: &Node) -> Vec<String> {
    let held = node.holds().ours;
    let names = held.iter().filter_map(|line| line.strip_prefix("set "));
    let mut names: Vec<String> = names
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    names.retain(|name| *name != names::inquiry_marker().as_str());
    names.sort();
    names
}

fn sets_of(all: [&str; 2]) -> Vec<String> {
    let each = all
        .into_iter()
        .flat_map(|name| Family::ALL.map(|family| names::set(set(name), family)));
    let mut names: Vec<String> = each.map(|name| name.as_str().to_owned()).collect();
    names.sort();
    names
}

fn denied_by(port: PortMatch, name: &str, own: &str, lists: [&str; 2]) -> PodRules {
    let denied = lists.map(|list| rule(Action::Deny, PeerMatch::In(set(list)), port));
    pod(
        name,
        &[own],
        vec![tier(Tier::Admin, denied.to_vec(), DefaultAction::NextTier)],
        Vec::new(),
    )
}

fn denied_by_two_lists(port: PortMatch, name: &str, own: &str) -> PodRules {
    denied_by(port, name, own, ["one", "other"])
}

fn denied_ports(name: &str, own: &str, port: u16) -> PodRules {
    let denied = rule(Action::Deny, PeerMatch::Any, range(Transport::Tcp, port, port));
    pod(
        name,
        &[own],
        vec![tier(Tier::Admin, vec![denied], DefaultAction::NextTier)],
        Vec::new(),
    )
}

fn two_lists(port: PortMatch, one: &str, other: &str) -> Change {
    Change::new()
        .set("one", SetKind::Addresses, &[(address(one), None)])
        .set("other", SetKind::Addresses, &[(address(other), None)])
        .rules(denied_by_two_lists(port, "a", "10.0.0.1"))
}

/// Denials of the same ports stand in a chain that all pods have in common.
fn alone_and_in_a_chain_of_all() -> [PortMatch; 2] {
    [PortMatch::Any, range(Transport::Tcp, 80, 80)]
}

fn each_alone_and_in_a_chain_of_all() -> impl Iterator<Item = (Flavour, PortMatch)> {
    let flavours = Flavour::BOTH.into_iter();
    flavours.flat_map(|flavour| alone_and_in_a_chain_of_all().map(|port| (flavour, port)))
}

pub(crate) fn hold_refused(standing: &SyncStatus, reason: &str) {
    let pending: Vec<_> = standing.pending.iter().collect();
    let [(pod, Pending::Refused(said))] = pending.as_slice() else {
        panic!("{standing:?}");
    };
    assert_eq!(pod.to_string(), "default/a");
    assert!(said.contains(reason), "{said}");
    assert!(standing.broken.is_none() && standing.wants_retry());
}

fn in_both_flavours(test: fn(&Node, &Batch)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let batches = stories::isolated_beside_another().begin(NOW);
            test(&Node::new(flavour), &batches[0]);
        });
    }
}

/// What the first set of addresses is called in IPv4.
fn set_of_addresses(batch: &Batch) -> String {
    let mut specs = batch
        .sets_created
        .iter()
        .filter(|spec| spec.kind == SetKind::Addresses);
    let name = names::set(specs.next().unwrap().id, Family::V4);
    name.as_str().to_owned()
}

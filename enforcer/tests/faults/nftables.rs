//! What the kernel refuses of a table of nftables: it names the message, and those whom it concerns are left out.

use std::collections::BTreeSet;

use egret_enforcer::backend::netfilter::names::{self, PodChains};
use egret_enforcer::backend::nftables::Nftables;
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned};
use egret_kernel::iptables::Flavour;
use egret_policies::rules::{Batch, Direction, SetKind};
use egret_shared::pod::PodKey;

use crate::node::{Node, Probe, hold_settled};
use crate::node_world::{self, ByLastOctet, NOW, in_fresh_namespace, run};
use crate::refused::{OF_A_CLIENT, OF_ANOTHER, OF_THE_POD, hold_list_refused, hold_refused};
use crate::stories;

fn start(batch: &Batch) -> (Nftables, SyncStatus) {
    let mut backend = node_world::nftables(None, ByLastOctet);
    backend.adopt(NOW).unwrap();
    let status = backend.apply(batch, NOW);
    (backend, status)
}

/// A rule of the pod `a` is refused.
fn rules_of_the_pod(words: &str) -> bool {
    let chains = PodChains::of(&PodKey::new("default", "a"));
    let mut words = words
        .strip_prefix("add a rule ")
        .into_iter()
        .flat_map(|words| words.split(' '));
    let chain = words.next().unwrap_or_default();
    chains.contain(chain.trim_end_matches("-4").trim_end_matches("-6"))
}

fn members(words: &str) -> bool {
    words.starts_with("add members ") && words.ends_with("-egret-4")
}

fn rules_for_clients(words: &str) -> bool {
    let chain = PodChains::of_node().entry(Direction::Egress);
    words.starts_with(&format!("add a rule {}-4 ", chain.as_str()))
        && words.contains("ClusterEgressFirewall/f")
}

fn dispatch(words: &str) -> bool {
    words.starts_with("add a rule forward-egress")
}

/// The pod's rules change while the kernel takes none of them, and so do another's.
#[test]
fn a_pod_whose_rules_are_refused_is_closed_and_another_gets_its_own() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let (old, new) = (stories::isolated_beside_another(), stories::denied_by_a_list(5));
        let planned = Planned::here(Plan::RefuseMessages(rules_of_the_pod));
        let (mut backend, standing) = start(&old.begin(NOW)[0]);
        hold_refused(&standing, "it is closed: EGRET-");
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [false, true]);
        hold_refused(&backend.reconcile(NOW), "EINVAL");
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [false, true]);
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&[OF_THE_POD, OF_ANOTHER]), [true, true]);

        // Refused in the middle of a life, with rules of before.
        let elsewhere = Probe {
            to: "10.0.1.6",
            ..OF_THE_POD
        };
        assert_eq!(node.ask(&[elsewhere]), [false]);
        let planned = Planned::here(Plan::RefuseMessages(rules_of_the_pod));
        for batch in old.turn_into(&new, NOW) {
            hold_refused(&backend.apply(&batch, NOW), "it is closed: ");
        }
        assert_eq!(
            node.ask(&[OF_THE_POD, elsewhere, OF_ANOTHER]),
            [false, false, true]
        );
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(
            node.ask(&[OF_THE_POD, elsewhere, OF_ANOTHER]),
            [false, true, true]
        );
    });
}

/// What allows by a list that is not there allows nothing; what denies by it denies everything.
#[test]
fn a_list_that_is_refused_closes_its_pod_alone() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let refuse = || Planned::here(Plan::RefuseMessages(members));
        let said = "-egret-4: the kernel refused \"add members\"";
        hold_list_refused(&node, start, refuse, said);
    });
}

#[test]
fn rules_for_clients_outside_that_are_refused_close_and_that_is_said() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let planned = Planned::here(Plan::RefuseMessages(rules_for_clients));
        let (mut backend, standing) =
            start(&stories::denied_to_clients_outside("203.0.113.0/26").begin(NOW)[0]);
        let said = standing.refused.clone().unwrap_or_default();
        assert!(
            said.starts_with("rules for clients outside are closed: "),
            "{standing:?}"
        );
        assert!(standing.pending.is_empty() && standing.broken.is_none() && standing.wants_retry());
        assert_eq!(node.ask(&[OF_A_CLIENT]), [false]);
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&[OF_A_CLIENT]), [true]);
    });
}

/// What all need is not left out: the last state stays in force.
#[test]
fn without_what_all_need_nothing_changes() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let (old, new) = (stories::denied_by_a_list(1), stories::denied_by_a_list(2));
        let (mut backend, standing) = start(&old.begin(NOW)[0]);
        hold_settled(&standing);
        let to = |to| Probe { to, ..OF_THE_POD };
        let probes = [to("10.0.1.1"), to("10.0.1.2")];
        // A counter that is gone, so that there is something to be repaired: everything is written then.
        run("nft", &["flush", "chain", "inet", "egret", "forward-ingress"]);
        let planned = Planned::here(Plan::RefuseMessages(dispatch));
        let standing = backend.reconcile(NOW);
        let said = standing.broken.clone().unwrap_or_default();
        assert!(said.contains("forward-egress"), "{standing:?}");
        for batch in old.turn_into(&new, NOW) {
            assert!(backend.apply(&batch, NOW).broken.is_some());
        }
        assert_eq!(node.ask(&probes), [false, true], "as before");
        drop(planned);
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&probes), [false, false]);
    });
}

/// Somebody made a set of that name, of another type, and a rule that names it: it is replaced with the table at once.
#[test]
fn what_others_put_into_the_table_is_replaced_at_once() {
    in_fresh_namespace(|| {
        let node = Node::new(Flavour::Nft);
        let (nothing, list) = (stories::isolated_beside_another(), stories::denied_by_a_list(5));
        let (mut backend, standing) = start(&nothing.begin(NOW)[0]);
        hold_settled(&standing);
        let batches = nothing.turn_into(&list, NOW);
        let made = batches.iter().flat_map(|batch| &batch.sets_created);
        let made = made.filter(|spec| spec.kind == SetKind::Addresses);
        let taken: BTreeSet<String> = made
            .filter_map(|spec| names::shared_set(spec.kind, spec.id, Family::V4))
            .collect();
        assert!(!taken.is_empty(), "a list comes");
        for name in &taken {
            run(
                "nft",
                &["add", "set", "inet", "egret", name, "{ type inet_service; }"],
            );
            run(
                "nft",
                &[
                    "add",
                    "rule",
                    "inet",
                    "egret",
                    "input",
                    "tcp",
                    "dport",
                    &format!("@{name}"),
                    "accept",
                ],
            );
        }
        for batch in batches {
            hold_settled(&backend.apply(&batch, NOW));
        }
        let elsewhere = Probe {
            to: "10.0.1.6",
            ..OF_THE_POD
        };
        assert_eq!(
            node.ask(&[OF_THE_POD, elsewhere, OF_ANOTHER]),
            [false, true, true]
        );
    });
}

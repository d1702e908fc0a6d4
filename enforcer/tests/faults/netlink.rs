//! Rules by netlink where it goes wrong: others are faster, or the kernel does not take them. They come into force all the same, by the programs.

use std::cell::Cell;

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::netfilter::cleanup;
use egret_enforcer::backend::netfilter::{MOST_MEMBERS, Netfilter, NftWriter, names};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned};
use egret_kernel::iptables::Flavour;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{Batch, DefaultAction, PeerMatch, PortMatch, SetKind};
use nix::errno::Errno;

use crate::node::{Node, Probe, hold_settled};
use crate::node_world::{Change, NOW, in_fresh_namespace, network, pod, rule, run, set, tier};
use crate::stories;
use crate::tun::What;

thread_local! {
    /// How often a transaction was about to be handed over.
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

const fn probe(through: &'static str, from: &'static str, to: &'static str) -> Probe {
    Probe {
        through,
        from,
        to,
        what: What::Tcp(80),
    }
}

/// To a peer, elsewhere, and of a pod of which nothing is said.
const PROBES: [Probe; 3] = [
    probe("veth-1", "10.0.0.1", "10.0.1.5"),
    probe("veth-1", "10.0.0.1", "198.51.100.7"),
    probe("veth-2", "10.0.0.2", "198.51.100.7"),
];
const WANTED: [bool; 3] = [true, false, true];

fn take_turns() -> usize {
    TURNS.replace(0)
}

/// Somebody else changes tables of nf_tables, and is faster.
fn somebody_changes_tables() {
    let turn = TURNS.get();
    TURNS.set(turn + 1);
    run("nft", &["add", "table", "inet", &format!("turn-{turn}")]);
}

fn fifteen_times(attempts: usize) -> Result<(), Errno> {
    if attempts < 15 {
        each_time(attempts)
    } else {
        counted(attempts)
    }
}

fn counted(_attempts: usize) -> Result<(), Errno> {
    TURNS.set(TURNS.get() + 1);
    Ok(())
}

fn each_time(_attempts: usize) -> Result<(), Errno> {
    somebody_changes_tables();
    Ok(())
}

fn refused(attempts: usize) -> Result<(), Errno> {
    counted(attempts)?;
    Err(Errno::ENOBUFS)
}

fn begun(node: &Node, batch: &Batch) -> Netfilter {
    let (backend, standing) = node.start(batch);
    hold_settled(&standing);
    backend
}

fn apply(backend: &mut Netfilter, batch: &Batch) {
    hold_settled(&backend.apply(batch, NOW));
}

fn on_a_node(test: impl FnOnce(&Node, &Batch) + Send + 'static) {
    in_fresh_namespace(move || {
        let batches = stories::isolated_beside_another().begin(NOW);
        test(&Node::new(Flavour::Nft), &batches[0]);
    });
}

/// ERESTART: the generation of tables is another one than that on which the transaction was built.
#[test]
fn a_transaction_that_others_overtake_is_rebuilt_and_foreign_rules_stay() {
    on_a_node(|node, batch| {
        let theirs = (node.holds().theirs, node.others());
        let planned = Planned::here(Plan::HandingOver(fifteen_times));
        let backend = begun(node, batch);
        drop(planned);
        assert_eq!((take_turns(), backend.written().transactions), (16, 1));
        assert_eq!(node.ask(&PROBES), WANTED);
        assert_eq!((node.holds().theirs, node.others()), theirs);
        let tables = run("nft", &["list", "tables"]);
        assert_eq!(tables.matches("turn-").count(), 15, "{tables}");
    });
}

#[test]
fn after_repeated_conflicts_the_programs_write_and_foreign_rules_stay() {
    on_a_node(|node, batch| {
        let theirs = (node.holds().theirs, node.others());
        let planned = Planned::here(Plan::HandingOver(each_time));
        let mut backend = begun(node, batch);
        assert_eq!((take_turns(), backend.written().transactions), (16, 0));
        assert_eq!(node.ask(&PROBES), WANTED);
        assert_eq!((node.holds().theirs, node.others()), theirs);
        drop(planned);
        assert_eq!(backend.reconcile(NOW).repaired, [].into());
    });
}

/// What is not begun with a hook is about our chains alone: nobody else can be in the way.
#[test]
fn a_change_of_our_own_chains_checks_no_nftables_generation() {
    on_a_node(|node, _batch| {
        let mut backend = begun(node, &pod_may(0).0);
        let planned = Planned::here(Plan::HandingOver(each_time));
        apply(&mut backend, &pod_may(1).0);
        drop(planned);
        assert_eq!((take_turns(), backend.written().transactions), (1, 2));
    });
}

/// A pod that may reach one network, another one for each number.
fn pod_may(number: u8) -> Change {
    let name = format!("n{number}");
    let to = network(&format!("10.0.{number}.0/24"));
    let allow = rule(Action::Allow, PeerMatch::In(set(&name)), PortMatch::Any);
    let isolated = tier(Tier::NetworkPolicy, vec![allow], DefaultAction::Deny);
    let rules = pod("a", &["10.0.0.1"], vec![isolated], Vec::new());
    Change::new()
        .set(&name, SetKind::Networks, &[(to, None)])
        .rules(rules)
}

/// The set that a rule is to name is another one by the time that the rule is handed over, and its number is a third one's.
fn the_number_becomes_anothers(attempts: usize) -> Result<(), Errno> {
    counted(attempts)?;
    let name = names::set(set("n0"), Family::V4);
    run("ipset", &["destroy", name.as_str()]);
    run("ipset", &["create", "a-third-one", "hash:net"]);
    let maxelem = MOST_MEMBERS.to_string();
    run(
        "ipset",
        &["create", name.as_str(), "hash:net", "maxelem", &maxelem],
    );
    run("ipset", &["add", name.as_str(), "10.0.0.0/24"]);
    Ok(())
}

#[test]
fn a_rule_with_the_index_of_a_foreign_set_is_rewritten() {
    on_a_node(|node, _batch| {
        let planned = Planned::here(Plan::HandingOver(the_number_becomes_anothers));
        let backend = begun(node, &pod_may(0).0);
        drop(planned);
        assert_eq!((take_turns(), backend.written().transactions), (1, 0));
        // Nothing refers to it any more.
        run("ipset", &["destroy", "a-third-one"]);
        let held = node.holds();
        let name = names::set(set("n0"), Family::V4);
        assert!(
            held.ours.iter().any(|line| line.contains(name.as_str())),
            "{held:?}"
        );
    });
}

/// No room in the socket or in memory, a transaction that is too long for it, no right to it, a table that is held.
#[test]
fn what_netlink_refuses_is_written_by_the_programs() {
    let errors: [fn(usize) -> Result<(), Errno>; 5] = [
        |_| Err(Errno::ENOBUFS),
        |_| Err(Errno::EMSGSIZE),
        |_| Err(Errno::ENOMEM),
        |_| Err(Errno::EPERM),
        |_| Err(Errno::EBUSY),
    ];
    for error in errors {
        on_a_node(move |node, batch| {
            let planned = Planned::here(Plan::HandingOver(error));
            let mut backend = begun(node, batch);
            assert_eq!(backend.written().transactions, 0);
            assert_eq!(node.ask(&PROBES), WANTED);
            drop(planned);
            assert_eq!(backend.reconcile(NOW).repaired, [].into());
            // The next change is tried again.
            apply(&mut backend, &pod_may(9).0);
            assert_eq!(backend.written().transactions, 1);
        });
    }
}

/// A kernel that never takes it does not walk its tables twice for each change.
#[test]
fn each_refusal_makes_more_changes_skip_netlink() {
    on_a_node(|node, _batch| {
        let planned = Planned::here(Plan::HandingOver(refused));
        let mut backend = begun(node, &pod_may(0).0);
        let mut tried = vec![0];
        take_turns();
        for number in 1..=200_u8 {
            apply(&mut backend, &pod_may(number).0);
            if take_turns() > 0 {
                tried.push(number);
            }
        }
        assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63, 127, 191]);
        drop(planned);
        // 63 are left out behind each of the last ones; one that is taken ends it.
        for number in 0..60_u8 {
            apply(&mut backend, &pod_may(number).0);
        }
        assert_eq!(backend.written().transactions, 6);
        let _planned = Planned::here(Plan::HandingOver(refused));
        take_turns();
        for number in 60..64_u8 {
            apply(&mut backend, &pod_may(number).0);
        }
        assert_eq!(take_turns(), 3, "it begins with few again");
    });
}

/// What is in force is the same, whoever writes it.
#[test]
fn netlink_and_the_programs_write_the_same() {
    on_a_node(|node, batch| {
        let by = |writer| {
            let mut backend = node.backend().with_nft_writer(writer);
            backend.adopt(NOW).unwrap();
            apply(&mut backend, batch);
            let held = node.holds();
            cleanup::remove(node.flavour).unwrap();
            (backend.written().transactions, take_turns(), held)
        };
        let _planned = Planned::here(Plan::HandingOver(counted));
        let (netlink, programs) = (by(NftWriter::Netlink), by(NftWriter::Programs));
        assert_eq!((netlink.0, netlink.1), (1, 1));
        assert_eq!((programs.0, programs.1), (0, 0));
        assert_eq!(netlink.2, programs.2);
    });
}

//! Places in the kernel's list of sets are made before anything is known to stand there. Nothing of that is ever taken for rules of an
//! earlier life, stands among what the first batch brings, or stays behind.

use std::time::{Duration, Instant};

use egret_enforcer::backend::Backend as _;
use egret_enforcer::backend::netfilter::{Netfilter, names};
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::ipset::IpSets;
use egret_kernel::iptables::Flavour;
use egret_policies::rules::Batch;
use nix::errno::Errno;

use crate::node::{Node, hold_settled};
use crate::node_world::{NOW, in_fresh_namespace, run};
use crate::stories;

/// More than the kernel has room for from the start (`CONFIG_IP_SET_MAX`).
const SOME: usize = 400;

#[test]
fn preallocated_sets_are_removed_before_real_ones_and_change_no_rule() {
    on_a_node(|node, batch| {
        let (_without, standing) = node.start(batch);
        hold_settled(&standing);
        let (expected, in_order) = (node.holds(), all());
        egret_enforcer::backend::netfilter::cleanup::remove(node.flavour).unwrap();
        let mut backend = making_room(node);
        let planned = Planned::here(Plan::Nothing);
        hold_settled(&backend.apply(batch, NOW));
        assert_eq!(node.holds(), expected);
        assert_eq!(
            all(),
            in_order,
            "in the places in which they would stand otherwise"
        );
        let taken = planned.taken();
        let of_room = |taken: &Taken| taken.what.contains("-egret-room");
        let last = taken.iter().rposition(of_room).unwrap();
        let is_settled = |taken: &Taken| taken.step == Step::Sets && !of_room(taken);
        assert!(!taken[..last].iter().any(is_settled), "{taken:#?}");
    });
}

#[test]
fn a_stop_before_the_first_batch_leaves_no_preallocated_set() {
    on_a_node(|node, _| {
        let (before, all_before) = (node.holds(), all());
        drop(making_room(node));
        assert_eq!((node.holds(), all()), (before, all_before));
    });
}

/// It would wait to be told again, and leave pods open until then of which nobody knows whether there is a policy.
#[test]
fn preallocated_sets_of_a_killed_process_are_not_adopted() {
    on_a_node(|node, batch| {
        for number in [0, 63, 4711] {
            run("ipset", &["create", &names::preallocated(number), "hash:ip"]);
        }
        let mut backend = node.backend();
        backend.adopt(NOW).unwrap();
        assert!(!backend.is_in_force());
        assert_eq!(rooms(), 0);
        hold_settled(&backend.apply(batch, NOW));
    });
}

#[test]
fn with_sets_of_an_earlier_process_nothing_is_preallocated() {
    on_a_node(|node, batch| {
        drop(node.start(batch));
        let planned = Planned::here(Plan::Nothing);
        let mut backend = node.backend().with_preallocation();
        backend.adopt(NOW).unwrap();
        hold_settled(&backend.apply(batch, NOW));
        let taken = planned.taken();
        assert!(
            !taken.iter().any(|taken| taken.what.contains("-egret-room")),
            "{taken:#?}"
        );
    });
}

#[test]
fn a_failed_preallocation_delays_no_rule() {
    fn is_tenth(taken: &Taken) -> Option<Errno> {
        taken.what.contains(" 0009-egret-room").then_some(Errno::ENOMEM)
    }
    on_a_node(|node, batch| {
        let planned = Planned::here(Plan::Refuse(is_tenth));
        let mut backend = node.backend().with_preallocation();
        backend.adopt(NOW).unwrap();
        hold_within(|| planned.has_ended());
        hold_settled(&backend.apply(batch, NOW));
        drop(planned);
        // Of the one that was refused there was nothing to take away.
        assert_eq!(rooms(), 0);
    });
}

fn on_a_node(test: fn(&Node, &Batch)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            test(&node, &stories::isolated().begin(NOW)[0]);
        });
    }
}

/// A life that has made some.
fn making_room(node: &Node) -> Netfilter {
    let mut backend = node.backend().with_preallocation();
    backend.adopt(NOW).unwrap();
    hold_within(|| rooms() >= SOME);
    backend
}

fn hold_within(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no room is made");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rooms() -> usize {
    all().iter().filter(|name| names::is_preallocated(name)).count()
}

/// As they stand in the kernel's list.
fn all() -> Vec<String> {
    IpSets::open().unwrap().names().unwrap()
}

//! What an answer allocates with nftables does not depend on how many pods and rules the node has: nothing of theirs is looked through.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(unsafe_code, reason = "an allocator that counts can only be written so")]

mod node_world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PortMatch, SetKind};

use node_world::{ByLastOctet, Change, NOW, address, in_fresh_namespace, pod, rule, seconds, set, tier};

struct Counting;

thread_local! { static ALLOCATIONS: Cell<usize> = const { Cell::new(0) }; }

// SAFETY: all of it is the system's allocator; the count is a number of this thread, made without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn settled(status: &SyncStatus) {
    assert_eq!((status.pending.len(), &status.broken), (0, &None));
}

/// Of an answer with one address on a node with so many pods, each of which denies for reasons of its own.
fn of_an_answer(pods: u8) -> usize {
    let mut change = Change::new().set("names", SetKind::Records, &[]);
    for number in 1..=pods {
        let own = format!("denied to {number}");
        change = change.set(&own, SetKind::Addresses, &[(address("198.18.0.1"), None)]);
        let denied = rule(Action::Deny, PeerMatch::In(set(&own)), PortMatch::Any);
        let allowed = rule(Action::Allow, PeerMatch::In(set("names")), PortMatch::Any);
        let tiers = vec![
            tier(Tier::Admin, vec![denied], DefaultAction::NextTier),
            tier(Tier::NetworkPolicy, vec![allowed], DefaultAction::Deny),
        ];
        let (name, own) = (format!("pod-{number}"), format!("10.0.0.{number}"));
        change = change.rules(pod(&name, &[&own], tiers, Vec::new()));
    }
    let telling = NflogSettings {
        group: 100,
        per_second: 10,
    };
    let mut backend = node_world::nftables(Some(telling), ByLastOctet);
    backend.adopt(NOW).unwrap();
    settled(&backend.apply(&change.0, NOW));
    let answer = |text| Change::new().members("names", &[(address(text), Some(seconds(300)))], &[]);
    settled(&backend.apply(&answer("192.0.2.1").0, NOW));
    let next = answer("192.0.2.2");
    let before = ALLOCATIONS.with(Cell::get);
    settled(&backend.apply(&next.0, NOW));
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn an_answer_looks_through_nothing_of_other_pods() {
    for pods in [2, 60] {
        in_fresh_namespace(move || {
            let allocations = of_an_answer(pods);
            assert!(allocations < 250, "{allocations} with {pods} pods");
        });
    }
}

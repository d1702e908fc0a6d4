//! Packets while the table of nftables is written: a set of intervals is never empty to them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::nftables::Nftables;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, Member, PeerMatch, PortMatch, SetKind};

use node_world::{
    Change, NOW, ThisHost, address, in_fresh_namespace, network, nftables, packets_denied, pod, rule, set,
    tier,
};

/// Denied by an interval; a later rule allows it as an address.
const FENCED: &str = "127.9.9.9";
/// Allowed by an interval.
const ALLOWED: &str = "127.1.1.1";
const PORT: u16 = 5000;
const ROUNDS: usize = 15;
/// Elements that are written together with the rules: the kernel takes milliseconds for them.
const OTHERS: u16 = 4000;

#[test]
fn a_set_of_intervals_that_comes_with_rules_is_full_when_they_are_in_force() {
    in_fresh_namespace(|| {
        let mut backend = start(&desired(0));
        while_packets_are_sent(|| {
            for number in 1..=ROUNDS {
                let mut next = desired(number);
                next.0.sets_destroyed = names(number - 1).map(|name| set(&name)).into();
                apply(&mut backend, &next);
            }
        });
        assert_eq!(
            packets_denied(&backend),
            0,
            "packets to an allowed network were denied"
        );
    });
}

#[test]
fn a_set_of_intervals_is_full_while_an_enforcer_starts_anew() {
    in_fresh_namespace(|| {
        let mut backend = start(&desired(0));
        while_packets_are_sent(|| {
            for _ in 0..ROUNDS {
                backend = start(&desired(0));
            }
        });
        assert_eq!(
            packets_denied(&backend),
            0,
            "packets to an allowed network were denied"
        );
    });
}

fn start(desired: &Change) -> Nftables {
    let mut backend = nftables(None, ThisHost);
    backend.adopt(NOW).unwrap();
    apply(&mut backend, desired);
    backend
}

fn apply(backend: &mut Nftables, change: &Change) {
    let status = backend.apply(&change.0, NOW);
    assert_eq!((status.pending.len(), &status.broken), (0, &None));
}

/// The same rules by other sets.
fn desired(number: usize) -> Change {
    let others = (0..OTHERS).map(|number| {
        let [high, low] = number.to_be_bytes();
        (Member::Address([198, 18, high, low].into()), None)
    });
    let [fence, allowed, exception, others_name] = names(number);
    let of = |action, name: &str| rule(action, PeerMatch::In(set(name)), PortMatch::Any);
    let denied = tier(
        Tier::Admin,
        vec![of(Action::Deny, &fence)],
        DefaultAction::NextTier,
    );
    let rules = [&allowed, &exception, &others_name].map(|name| of(Action::Allow, name));
    let isolated = tier(Tier::NetworkPolicy, rules.into(), DefaultAction::Deny);
    let mut change = Change::new()
        .set(&fence, SetKind::Networks, &[(network("127.9.9.0/24"), None)])
        .set(&allowed, SetKind::Networks, &[(network("127.1.0.0/16"), None)])
        .set(&exception, SetKind::Addresses, &[(address(FENCED), None)])
        .set(&others_name, SetKind::Addresses, &others.collect::<Vec<_>>())
        .rules(pod("a", &["127.0.0.1"], vec![denied, isolated], Vec::new()));
    for _ in 0..number {
        change.0.revision = change.0.revision.next();
    }
    change
}

fn names(number: usize) -> [String; 4] {
    ["fence", "allowed", "exception", "others"].map(|name| format!("{name} {number}"))
}

/// Sends datagrams to both addresses meanwhile, each of a socket of its own. None reaches the fenced one.
fn while_packets_are_sent(work: impl FnOnce()) {
    let fenced = UdpSocket::bind((FENCED, PORT)).unwrap();
    let _allowed = UdpSocket::bind((ALLOWED, PORT)).unwrap();
    fenced.set_nonblocking(true).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for to in [ALLOWED, FENCED] {
                    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
                    // What is denied in the output is an error of the socket.
                    drop(socket.send_to(b"x", (to, PORT)));
                }
            }
        });
        work();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(
        fenced.recv(&mut [0]).is_err(),
        "a packet to a denied network arrived"
    );
}

//! Pods that nobody knows yet: with links, bridges and packets of this kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a packet is waited for, for a real time"
)]

mod node_world;

use std::time::Duration;

use egret_enforcer::backend::netfilter::Netfilter;
use egret_enforcer::backend::netfilter::model::unknown_pods::UnknownPods;
use egret_enforcer::backend::unknown_pods::Stance;
use egret_enforcer::backend::{Backend, Decider, Pending, VerdictKey};
use egret_enforcer::node::{Locate, Node};
use egret_kernel::iptables::{Flavour, InterfacePattern};
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use egret_shared::pod::PodKey;

use node_world::{ByLastOctet, Change, NOW, backend, filter, in_fresh_namespace, pod, rule, run, set, tier};

fn in_both_flavours(test: fn(Flavour)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || test(flavour));
    }
}

/// A backend that has read the kernel.
fn closing(
    flavour: Flavour,
    locate: impl Locate + 'static,
    stance: Stance,
    interfaces: &[&str],
) -> Netfilter {
    let interfaces = interfaces.iter().map(|one| InterfacePattern::new(*one).unwrap());
    let mut backend = backend(flavour, locate).with_unknown_pods(UnknownPods {
        stance,
        interfaces: interfaces.collect(),
    });
    backend.adopt(NOW).unwrap();
    backend
}

fn free(name: &str, addresses: &[&str]) -> PodRules {
    pod(name, addresses, Vec::new(), Vec::new())
}

fn with_policies(change: Change) -> Change {
    let Change(mut batch) = change;
    batch.has_policies = Some(true);
    Change(batch)
}

/// Two pods behind a bridge, and a way out whose name is as that of a pod's cable.
fn lay_bridge() {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    // Where it is not there, iptables is told of no bridge either.
    for table in ["iptables", "ip6tables"] {
        drop(std::fs::write(
            format!("/proc/sys/net/bridge/bridge-nf-call-{table}"),
            "0",
        ));
    }
    let lines = "link add pods0 type bridge\n\
        link set pods0 up\n\
        address add 10.9.0.1/24 dev pods0\n\
        link add veth-up type veth peer name eth0 netns out\n\
        link set veth-up up\n\
        address add 192.0.2.2/30 dev veth-up\n\
        route add default via 192.0.2.1\n";
    for name in ["out", "a", "b"] {
        run("ip", &["netns", "add", name]);
    }
    for line in lines.lines() {
        run("ip", &line.split_whitespace().collect::<Vec<_>>());
    }
    inside("out", "link set eth0 up");
    inside("out", "address add 192.0.2.1/30 dev eth0");
    inside("out", "route add default via 192.0.2.2");
    for (name, address) in [("a", "10.9.0.2"), ("b", "10.9.0.3")] {
        let cable = format!("link add cable-{name} type veth peer name eth0 netns {name}");
        run("ip", &cable.split(' ').collect::<Vec<_>>());
        let plug = format!("link set cable-{name} master pods0 up");
        run("ip", &plug.split(' ').collect::<Vec<_>>());
        inside(name, "link set eth0 up");
        inside(name, &format!("address add {address}/24 dev eth0"));
        inside(name, "route add default via 10.9.0.1");
    }
}

fn inside(namespace: &str, line: &str) {
    run(
        "ip",
        &[&["-n", namespace], line.split(' ').collect::<Vec<_>>().as_slice()].concat(),
    );
}

/// One datagram to the other side of the way out.
fn send(namespace: &str) {
    let send = "echo x > /dev/udp/192.0.2.1/9";
    run("ip", &["netns", "exec", namespace, "bash", "-c", send]);
}

/// Waits until so many datagrams were allowed to pods without rules, and refused as unknown pods'. The first one of a
/// sender arrives when it has found the bridge.
#[track_caller]
fn assert_decided(backend: &dyn Backend, allowed: u64, refused: u64) {
    let deadline = std::time::Instant::now() + Duration::from_secs(3);
    let decided = || [Action::Allow, Action::Deny].map(|action| decided(backend, action));
    while decided() != [allowed, refused] && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(decided(), [allowed, refused]);
}

/// What no tier decided.
fn decided(backend: &dyn Backend, action: Action) -> u64 {
    let key = VerdictKey {
        decider: match action {
            Action::Deny => Decider::UnknownPod,
            Action::Allow | Action::Pass => Decider::Default,
        },
        action: action.into(),
        direction: Direction::Egress,
    };
    let counts = backend.counters().read().unwrap();
    let of_key = counts.iter().filter(|count| count.key == key);
    of_key.map(|count| count.packets).sum()
}

/// A source that is no known pod's, whoever sends it.
#[test]
fn on_a_pod_bridge_unknown_ports_are_closed() {
    in_both_flavours(|flavour| {
        lay_bridge();
        let mut backend = closing(
            flavour,
            Node::open().unwrap(),
            Stance::DenyOncePolicies,
            &["veth+"],
        );
        let begin = with_policies(Change::new().rules(free("a", &["10.9.0.2"])));
        let standing = backend.apply(&begin.0, NOW);
        assert_eq!((&standing.pending.len(), &standing.broken), (&0, &None));
        send("a");
        assert_decided(&backend, 1, 0);
        send("b");
        assert_decided(&backend, 1, 1);
        inside("a", "address del 10.9.0.2/24 dev eth0");
        inside("a", "address add 10.9.0.99/24 dev eth0");
        inside("a", "route add default via 10.9.0.1");
        send("a");
        assert_decided(&backend, 1, 2);
        // What it refused is counted on while the dispatch is written anew.
        backend.apply(&Change::new().rules(free("b", &["10.9.0.3"])).0, NOW);
        send("b");
        assert_decided(&backend, 2, 2);
        let rules = filter(flavour);
        for expected in [
            "-A EGRET-FROM -i veth-up -j RETURN",
            "-A EGRET-FROM -i veth+ -g EGRET-UNKNOWN-E",
            "-A EGRET-FROM -i pods0 -g EGRET-UNKNOWN-E",
            "-A EGRET-TO -o pods0 -g EGRET-UNKNOWN-I",
        ] {
            assert!(rules.contains(expected), "{expected} is not in:\n{rules}");
        }
    });
}

/// Who is behind another port is on no list of this node's pods.
#[test]
fn a_bridge_with_other_ports_stays_open() {
    in_fresh_namespace(|| {
        lay_bridge();
        let mut backend = closing(Flavour::Nft, Node::open().unwrap(), Stance::Deny, &[]);
        backend.apply(&Change::new().rules(free("a", &["10.9.0.2"])).0, NOW);
        send("b");
        assert_decided(&backend, 0, 1);
        let tunnel = "link add tunnel type vxlan id 5 dstport 4789";
        run("ip", &tunnel.split(' ').collect::<Vec<_>>());
        run("ip", &["link", "set", "tunnel", "master", "pods0"]);
        backend.links_changed(NOW);
        let rules = filter(Flavour::Nft);
        assert!(rules.contains("-s 10.9.0.2/32 -i pods0 -g EGRET-E-"), "{rules}");
        assert!(!rules.contains("UNKNOWN"), "{rules}");
        run("ip", &["link", "delete", "tunnel"]);
        backend.links_changed(NOW);
        assert!(filter(Flavour::Nft).contains("-i pods0 -g EGRET-UNKNOWN-E"));
    });
}

#[test]
fn unknown_pods_are_closed_while_policies_exist() {
    in_both_flavours(|flavour| {
        let is_closed = || filter(flavour).contains("-A EGRET-FROM -i veth+ -g EGRET-UNKNOWN-E");
        let mut backend = closing(flavour, ByLastOctet, Stance::DenyOncePolicies, &["veth+"]);
        backend.apply(&Change::new().rules(free("a", &["10.0.0.1"])).0, NOW);
        assert!(!is_closed());
        backend.apply(&with_policies(Change::new()).0, NOW);
        assert!(is_closed());
        let Change(mut without) = Change::new();
        without.has_policies = Some(false);
        backend.apply(&without, NOW);
        assert!(!is_closed());
        let closed = filter(flavour).contains("UNKNOWN");
        assert!(!closed, "{}", filter(flavour));
    });
}

/// What an earlier life left is not touched, nor taken for rules of pods where it is only closed.
#[test]
fn before_the_first_batch_unknown_pods_are_closed_on_an_empty_kernel() {
    in_both_flavours(|flavour| {
        let life = |stance| closing(flavour, ByLastOctet, stance, &["veth+"]);
        assert!(!life(Stance::Allow).close_unknown_pods().unwrap());
        assert!(!filter(flavour).contains("EGRET"), "{}", filter(flavour));

        let mut first = life(Stance::DenyOncePolicies);
        assert!(first.close_unknown_pods().unwrap());
        let closed = filter(flavour);
        for expected in [
            "-A FORWARD -j EGRET-FORWARD",
            "-A INPUT -j EGRET-INPUT",
            "-A EGRET-FROM -i veth+ -g EGRET-UNKNOWN-E",
            "-A EGRET-TO -o veth+ -g EGRET-UNKNOWN-I",
        ] {
            assert_eq!(
                closed.matches(expected).count(),
                2,
                "{expected} of both families:\n{closed}"
            );
        }
        assert!(!first.is_in_force());
        let mut second = life(Stance::DenyOncePolicies);
        assert!(second.close_unknown_pods().unwrap());
        assert_eq!(filter(flavour), closed);
        assert!(!second.is_in_force());
        second.apply(&Change::new().rules(free("a", &["10.0.0.1"])).0, NOW);
        let open = filter(flavour);
        assert!(!open.contains("UNKNOWN"), "{open}");
        let mut third = life(Stance::DenyOncePolicies);
        assert!(!third.close_unknown_pods().unwrap());
        assert!(third.is_in_force());
        assert_eq!(filter(flavour), open);
    });
}

/// Whatever is said about unknown pods: its rules are known, and not in force.
#[test]
fn a_pod_whose_chains_the_kernel_refuses_is_closed_alone() {
    in_both_flavours(|flavour| {
        let mut backend = closing(flavour, ByLastOctet, Stance::Allow, &[]);
        let begin = Change::new()
            .set("peers", SetKind::Addresses, &[])
            .rules(free("b", &["10.0.0.2"]));
        backend.apply(&begin.0, NOW);
        run(
            "ipset",
            &["destroy", &format!("{}-egret-4", set("peers").digest())],
        );
        let allow = rule(Action::Allow, PeerMatch::In(set("peers")), PortMatch::Any);
        let egress = vec![tier(Tier::NetworkPolicy, vec![allow], DefaultAction::Deny)];
        let refused = Change::new().rules(pod("a", &["10.0.0.1"], egress, Vec::new()));
        let standing = backend.apply(&refused.0, NOW);
        assert_eq!(standing.broken, None);
        let pending: Vec<_> = standing.pending.into_iter().collect();
        assert!(
            matches!(pending.as_slice(), [(pod, Pending::Refused(_))] if *pod == PodKey::new("default", "a")),
            "{pending:?}"
        );
        let rules = filter(flavour);
        for (expected, times) in [
            ("-A EGRET-FROM -i veth-1 -g EGRET-UNKNOWN-E", 2),
            ("-A EGRET-TO -o veth-1 -g EGRET-UNKNOWN-I", 2),
            ("-A EGRET-FROM -i veth-2 -g EGRET-E-", 2),
        ] {
            assert_eq!(rules.matches(expected).count(), times, "{expected}:\n{rules}");
        }
        let standing = backend.reconcile(NOW);
        assert_eq!(standing.pending.len(), 0, "{standing:?}");
        assert!(!filter(flavour).contains("UNKNOWN"), "{}", filter(flavour));
    });
}

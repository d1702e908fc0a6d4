//! The backend `ebpf` against this kernel: pods are processes in cgroups and network namespaces of their own,
//! and every verdict is a real connect(2) or sendto(2).
//!
//! It is longer than 800 lines because each story is a few lines in the words of one world.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[expect(dead_code, reason = "`ebpf_fallback` uses more of it")]
mod ebpf_world;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebpf_world::{Answer, Pod, World, allow, batch, deny, egress, pass, record, ruled, set, tier};
use egret_enforcer::backend::Backend;
use egret_enforcer::backend::ebpf::Ebpf;
use egret_policies::rules::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, Member, MembersChanged, PeerMatch, PortMatch, Rule, SetKind};
use egret_shared::net::{PortRange, Transport};

const ISOLATED: DefaultAction = DefaultAction::Deny;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn what_is_allowed_connects_and_what_is_not_fails_with_eperm() {
    let Some(world) = World::new("verdicts") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let peers = set("peers");
    let mut first = batch(1);
    let members = ["198.18.2.10", "2001:db8::10"].map(|text| Member::Address(address(text)));
    first.create(peers, SetKind::Addresses, members);
    let rules = vec![allow(PeerMatch::In(peers), Some(8080))];
    first.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));

    for (probe, answer) in [
        ("tcp 198.18.2.10:8080", Answer::Ok),
        ("tcp [2001:db8::10]:8080", Answer::Ok),
        ("tcp [::ffff:198.18.2.10]:8080", Answer::Ok),
        ("tcp 198.18.2.10:8081", Answer::NotPermitted),
        ("tcp 198.18.2.11:8080", Answer::NotPermitted),
        ("tcp [2001:db8::11]:8080", Answer::NotPermitted),
        ("tcp [::ffff:198.18.2.11]:8080", Answer::NotPermitted),
        ("udp 198.18.2.10:8080", Answer::NotPermitted),
        ("udp [2001:db8::10]:8080", Answer::NotPermitted),
        ("udp [::ffff:198.18.2.10]:8080", Answer::NotPermitted),
        ("udp-connect 198.18.2.10:8080", Answer::NotPermitted),
        // The pod itself.
        ("tcp 127.0.0.1:8080", Answer::Ok),
        ("tcp [::1]:8080", Answer::Ok),
        ("udp 127.0.0.1:8080", Answer::Ok),
        ("tcp 198.18.2.2:8080", Answer::Ok),
    ] {
        assert_eq!(pod.ask(probe), answer, "{probe}");
    }
    assert_eq!(world.count(&backend, Some(Tier::NetworkPolicy), Action::Allow), 3);
    assert_eq!(world.count(&backend, Some(Tier::NetworkPolicy), Action::Deny), 8);
    assert!(
        backend.dump().contains("TCP connections opened 6, accepted 6"),
        "{}",
        backend.dump()
    );
    world.end(backend, [pod]);
}

#[test]
fn networks_ports_of_pods_the_node_and_passes_decide_in_order() {
    let Some(world) = World::new("matches") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let (networks, all6, ports, passed) = (set("networks"), set("all of IPv6"), set("ports"), set("passed"));
    let mut first = batch(1);
    first.create(
        networks,
        SetKind::Networks,
        [Member::Network("198.18.2.8/29".parse().unwrap())],
    );
    first.create(
        all6,
        SetKind::Networks,
        [Member::Network("::/0".parse().unwrap())],
    );
    let port = Member::AddressPort(address("198.51.100.1"), Transport::Udp, 5353.try_into().unwrap());
    first.create(ports, SetKind::AddressPorts, [port]);
    first.create(
        passed,
        SetKind::Addresses,
        [Member::Address(address("198.18.2.10"))],
    );
    let admin = vec![
        pass(PeerMatch::In(passed), None),
        deny(PeerMatch::In(networks), None),
        allow(PeerMatch::In(all6), None),
        allow(PeerMatch::In(ports), None),
    ];
    let baseline = vec![deny(PeerMatch::OwnNode, None)];
    let tiers = vec![
        tier(Tier::Admin, admin, DefaultAction::NextTier),
        tier(Tier::Baseline, baseline, DefaultAction::NextTier),
    ];
    first.rules(&pod, egress(tiers));
    world.settled(&backend.apply(&first.batch, world.now()));

    let own_node = world.address_of_the_node();
    for (probe, answer) in [
        ("tcp 198.18.2.10:8080".to_owned(), Answer::Ok),
        ("tcp 198.18.2.11:8080".to_owned(), Answer::NotPermitted),
        ("tcp [2001:db8::10]:8080".to_owned(), Answer::Ok),
        ("udp 198.51.100.1:5353".to_owned(), Answer::Ok),
        ("tcp 198.51.100.1:5353".to_owned(), Answer::Ok),
        (format!("tcp {own_node}:8080"), Answer::NotPermitted),
    ] {
        assert_eq!(pod.ask(&probe), answer, "{probe}");
    }
    for (tier, action, count) in [
        (Some(Tier::Admin), Action::Pass, 1),
        (Some(Tier::Admin), Action::Deny, 1),
        (Some(Tier::Admin), Action::Allow, 2),
        (Some(Tier::Baseline), Action::Deny, 1),
        (None, Action::Allow, 2),
    ] {
        assert_eq!(world.count(&backend, tier, action), count, "{tier:?} {action:?}");
    }
    world.end(backend, [pod]);
}

#[test]
fn a_record_admits_the_pod_that_asked_and_no_other_until_it_expires() {
    let Some(world) = World::new("records") else {
        return;
    };
    let (mut asked, mut other) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let [of_asked, of_other] = ["api.example for a", "api.example for b"].map(set);
    let isolated = |names| {
        egress(vec![tier(
            Tier::NetworkPolicy,
            vec![allow(PeerMatch::In(names), None)],
            ISOLATED,
        )])
    };
    let mut first = batch(1);
    first.create(of_asked, SetKind::Records, []);
    first.create(of_other, SetKind::Records, []);
    first.rules(&asked, isolated(of_asked));
    first.rules(&other, isolated(of_other));
    world.settled(&backend.apply(&first.batch, world.now()));
    assert_eq!(asked.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);

    let expires = world.now().after(Duration::from_millis(400));
    backend.apply(&record(2, of_asked, "198.18.2.10", expires), world.now());
    assert_eq!(asked.ask("open-tcp kept 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(asked.ask("open-udp flow 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(other.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    loop {
        let asked_at = world.now();
        if asked.ask("tcp 198.18.2.10:8080") == Answer::NotPermitted {
            break;
        }
        assert!(asked_at < expires, "the record outlives its expiry");
    }
    assert!(world.now() >= expires, "the record ended early");

    // What was open goes on, and a new socket does not get in.
    assert_eq!(asked.ask("send kept"), Answer::Ok);
    assert_eq!(asked.ask("send flow"), Answer::Ok);
    assert_eq!(asked.ask("udp 198.18.2.10:8080"), Answer::NotPermitted);
    // A policy that changes asks what is open again: the record that opened it counts although its time is over, until the
    // rule or the member goes.
    let mut third = batch(3);
    third
        .batch
        .reevaluate
        .push((asked.key.clone(), Direction::Egress));
    backend.apply(&third.batch, world.now());
    assert_eq!(asked.ask("send flow"), Answer::Ok);
    assert_eq!(asked.ask("udp 198.18.2.10:8080"), Answer::NotPermitted);
    let mut fourth = batch(4);
    fourth.batch.members_changed.push(MembersChanged {
        set: of_asked,
        added: Vec::new(),
        removed: vec![Member::Address(address("198.18.2.10"))],
    });
    fourth
        .batch
        .reevaluate
        .push((asked.key.clone(), Direction::Egress));
    backend.apply(&fourth.batch, world.now());
    assert_eq!(asked.ask("send flow"), Answer::NotPermitted);
    world.end(backend, [asked, other]);
}

#[test]
fn a_socket_is_judged_as_the_pod_in_which_it_was_made() {
    let Some(world) = World::new("identity") else {
        return;
    };
    let (mut moved, other) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let peers = set("peers of b");
    let mut first = batch(1);
    first.create(
        peers,
        SetKind::Addresses,
        [Member::Address(address("198.18.2.10"))],
    );
    first.rules(
        &moved,
        egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]),
    );
    let rules = vec![allow(PeerMatch::In(peers), None)];
    first.rules(&other, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));

    assert_eq!(moved.ask("socket-tcp old"), Answer::Ok);
    moved.move_into(&other);
    assert_eq!(moved.ask("connect old 198.18.2.10:8080"), Answer::NotPermitted);
    assert_eq!(moved.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    world.end(backend, [moved, other]);
}

/// A world whose pod may send to 198.18.2.10 and 2001:db8::10, and to nobody else.
fn isolated(pod: &ebpf_world::Pod) -> egret_policies::rules::Batch {
    let peers = set("peers");
    let mut first = batch(1);
    let members = ["198.18.2.10", "2001:db8::10"].map(|text| Member::Address(address(text)));
    first.create(peers, SetKind::Addresses, members);
    let rules = vec![allow(PeerMatch::In(peers), None)];
    first.rules(pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    first.batch
}

#[test]
fn fragments_extension_headers_and_foreign_sources_change_no_verdict() {
    let Some(world) = World::new("shapes") else { return };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    world.settled(&backend.apply(&isolated(&pod), world.now()));
    let node = world.address_of_the_node();
    for (probe, answer) in [
        ("udp-large 198.18.2.10:9".to_owned(), Answer::Ok),
        ("udp-large 198.18.2.11:9".to_owned(), Answer::NotPermitted),
        ("udp-large [2001:db8::10]:9".to_owned(), Answer::Ok),
        ("udp-large [2001:db8::11]:9".to_owned(), Answer::NotPermitted),
        ("udp-extended [2001:db8::10]:9".to_owned(), Answer::Ok),
        ("udp-extended [2001:db8::11]:9".to_owned(), Answer::NotPermitted),
        (
            "udp-transparent 203.0.113.7:9 198.18.2.10:9".to_owned(),
            Answer::Ok,
        ),
        (
            "udp-transparent 203.0.113.7:9 198.18.2.11:9".to_owned(),
            Answer::NotPermitted,
        ),
        (
            format!("udp-transparent 203.0.113.7:9 {node}:9"),
            Answer::NotPermitted,
        ),
        // VXLAN and Geneve are UDP to the other end of the tunnel.
        (format!("udp {node}:4789"), Answer::NotPermitted),
        ("udp 198.18.2.11:6081".to_owned(), Answer::NotPermitted),
        ("udp 198.18.2.10:4789".to_owned(), Answer::Ok),
    ] {
        assert_eq!(pod.ask(&probe), answer, "{probe}");
    }
    world.end(backend, [pod]);
}

#[test]
fn what_raw_and_ping_sockets_send_is_judged() {
    let Some(world) = World::new("raw") else { return };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let mut first = isolated(&pod);
    world.settled(&backend.apply(&first, world.now()));
    for protocol in [1, 4, 6, 17, 47] {
        for (to, answer) in [("198.18.2.10", Answer::Ok), ("198.18.2.11", Answer::NotPermitted)] {
            let probe = format!("raw {protocol} 203.0.113.7 {to}");
            assert_eq!(pod.ask(&probe), answer, "{probe}");
        }
    }
    assert_eq!(pod.ask("ping 198.18.2.10"), Answer::Ok);
    assert_eq!(pod.ask("ping 198.18.2.11"), Answer::NotPermitted);
    assert_eq!(pod.ask("ping 2001:db8::10"), Answer::Ok);
    assert_eq!(pod.ask("ping 2001:db8::11"), Answer::NotPermitted);
    // A later fragment has no ports, by which it could be judged.
    assert_eq!(pod.ask("raw-fragment 198.18.2.10"), Answer::NotPermitted);
    // What needs CAP_NET_RAW as well, where the address is not the pod's (IP_TRANSPARENT): a datagram to the pod itself in the
    // name of a peer, whom the pod's server would then answer.
    assert_eq!(
        pod.ask("udp-echo 198.18.2.2:7 198.18.2.11:9999"),
        Answer::NotPermitted
    );

    // A rule about ICMP concerns nothing else.
    let icmp = Rule {
        port: PortMatch::Icmp,
        ..deny(PeerMatch::Any, None)
    };
    first = batch(2).batch;
    first.rules_replaced.push(ruled(
        "a",
        &pod.uid,
        egress(vec![tier(
            Tier::ClusterEgressFirewall,
            vec![icmp],
            DefaultAction::NextTier,
        )]),
    ));
    world.settled(&backend.apply(&first, world.now()));
    assert_eq!(pod.ask("ping 198.18.2.10"), Answer::NotPermitted);
    assert_eq!(pod.ask("ping 2001:db8::10"), Answer::NotPermitted);
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    world.end(backend, [pod]);
}

/// The pod may be reached by 198.18.2.10 at 8080 and 7, and by nobody else.
fn reached_by_one(pod: &ebpf_world::Pod, revision: u64) -> egret_policies::rules::Batch {
    let peers = set("peers");
    let mut first = batch(revision);
    if revision == 1 {
        let members = ["198.18.2.10", "2001:db8::10"].map(|text| Member::Address(address(text)));
        first.create(peers, SetKind::Addresses, members);
    }
    let udp = Rule {
        port: PortMatch::Range(Transport::Udp, PortRange::single(7).unwrap()),
        ..allow(PeerMatch::In(peers), None)
    };
    let mut rules = ruled(pod.key.name(), &pod.uid, egress(Vec::new()));
    rules.ingress.tiers = vec![tier(
        Tier::NetworkPolicy,
        vec![allow(PeerMatch::In(peers), Some(8080)), udp],
        ISOLATED,
    )];
    first.batch.rules_replaced.push(rules);
    first.batch
}

#[test]
fn ingress_rules_decide_who_reaches_the_pod() {
    let Some(world) = World::new("ingress") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    world.settled(&backend.apply(&reached_by_one(&pod, 1), world.now()));
    let mut outside = world.neighbour(&pod);
    for (probe, reaches) in [
        ("tcp-from 198.18.2.10 198.18.2.2:8080", true),
        ("tcp-from 198.18.2.11 198.18.2.2:8080", false),
        ("tcp-from 198.18.2.10 198.18.2.2:5353", false),
        ("tcp-from 2001:db8::10 [2001:db8::2]:8080", true),
        ("tcp-from 2001:db8::11 [2001:db8::2]:8080", false),
        ("udp-echo 198.18.2.2:7 198.18.2.10:9999", true),
        ("udp-echo 198.18.2.2:7 198.18.2.11:9999", false),
        ("udp-echo [2001:db8::2]:7 [2001:db8::10]:9999", true),
        ("udp-echo [2001:db8::2]:7 [2001:db8::11]:9999", false),
    ] {
        let answer = outside.ask(probe);
        assert_eq!(answer == Answer::Ok, reaches, "{probe}: {answer:?}");
    }
    let counted = |tier, action| world.count_in(&backend, Some(tier), action, Direction::Ingress);
    assert_eq!(
        counted(Tier::NetworkPolicy, Action::Allow),
        4,
        "once a connection"
    );
    assert_eq!(counted(Tier::NetworkPolicy, Action::Deny), 5);
    // What the pod opens itself is answered.
    assert_eq!(pod.ask("tcp 127.0.0.1:8080"), Answer::Ok);
    assert_eq!(outside.ask("serve-echo 198.18.2.13:9"), Answer::Ok);
    assert_eq!(pod.ask("udp-echo 198.18.2.13:9 198.18.2.2:9998"), Answer::Ok);
    assert_eq!(outside.ask("serve-stream 198.18.2.13:10"), Answer::Ok);
    assert_eq!(pod.ask("open-tcp out 198.18.2.13:10"), Answer::Ok);
    assert_eq!(pod.ask("exchange out"), Answer::Ok);
    world.end(backend, [pod, outside]);
}

#[test]
fn a_change_of_policy_reaches_what_is_open_and_leaves_the_rest() {
    let Some(world) = World::new("revoked") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut outside = world.neighbour(&pod);
    for at in ["198.18.2.10:10", "198.18.2.11:10"] {
        assert_eq!(outside.ask(&format!("serve-stream {at}")), Answer::Ok);
    }
    for at in ["198.18.2.10:9", "198.18.2.11:9"] {
        assert_eq!(outside.ask(&format!("serve-echo {at}")), Answer::Ok);
    }
    // Sockets from before the programs, accepted and opened.
    assert_eq!(pod.ask("open-tcp early 198.18.2.11:10"), Answer::Ok);
    assert_eq!(outside.ask("open-tcp accepted 198.18.2.2:11"), Answer::Ok);
    let mut backend = world.backend();
    let mut first = batch(1);
    let (one, two) = (set("one"), set("two"));
    first.create(one, SetKind::Addresses, [Member::Address(address("198.18.2.10"))]);
    first.create(two, SetKind::Addresses, [Member::Address(address("198.18.2.11"))]);
    let rules = vec![allow(PeerMatch::In(one), None), allow(PeerMatch::In(two), None)];
    first.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));
    for question in [
        "open-tcp kept 198.18.2.10:10",
        "open-tcp ended 198.18.2.11:10",
        "udp-connected kept-udp 198.18.2.10:9",
        "udp-connected ended-udp 198.18.2.11:9",
        "exchange early",
        "exchange kept",
        "exchange ended",
        "send kept-udp",
        "send ended-udp",
    ] {
        assert_eq!(pod.ask(question), Answer::Ok, "{question}");
    }
    assert_eq!(outside.ask("exchange accepted"), Answer::Ok);

    let mut second = batch(2);
    let rules = vec![allow(PeerMatch::In(one), None)];
    second.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    second.batch.reevaluate.push((pod.key.clone(), Direction::Egress));
    world.settled(&backend.apply(&second.batch, world.now()));
    for (question, goes_on) in [
        ("exchange kept", true),
        ("exchange ended", false),
        ("exchange early", false),
        ("send kept-udp", true),
        ("send ended-udp", false),
    ] {
        let answer = pod.ask(question);
        assert_eq!(answer == Answer::Ok, goes_on, "{question}: {answer:?}");
    }
    // Their programs hear of it.
    assert_eq!(backend.search_and_end().sockets, 3);
    let aborted = format!("{}", std::io::Error::from_raw_os_error(nix::libc::ECONNABORTED));
    for question in ["receive ended", "receive early", "receive ended-udp"] {
        assert_eq!(pod.ask(question), Answer::Other(aborted.clone()), "{question}");
    }
    assert_eq!(backend.search_and_end().sockets, 0);
    assert_eq!(pod.ask("exchange kept"), Answer::Ok);
    assert_eq!(outside.ask("exchange accepted"), Answer::Ok);
    world.end(backend, [pod, outside]);
}

#[test]
fn what_a_connected_socket_may_send_elsewhere_says_nothing_of_its_own_peer() {
    let Some(world) = World::new("elsewhere") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut outside = world.neighbour(&pod);
    for at in ["198.18.2.10:9", "198.18.2.11:9"] {
        assert_eq!(outside.ask(&format!("serve-echo {at}")), Answer::Ok);
    }
    let mut backend = world.backend();
    let mut first = batch(1);
    let (one, two) = (set("one"), set("two"));
    first.create(one, SetKind::Addresses, [Member::Address(address("198.18.2.10"))]);
    first.create(two, SetKind::Addresses, [Member::Address(address("198.18.2.11"))]);
    let rules = vec![allow(PeerMatch::In(one), None), allow(PeerMatch::In(two), None)];
    first.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));
    assert_eq!(pod.ask("udp-connected socket 198.18.2.11:9"), Answer::Ok);
    assert_eq!(pod.ask("exchange socket"), Answer::Ok);
    let mut second = batch(2);
    let rules = vec![allow(PeerMatch::In(one), None)];
    second.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    second.batch.reevaluate.push((pod.key.clone(), Direction::Egress));
    world.settled(&backend.apply(&second.batch, world.now()));
    // The socket keeps a verdict of this generation, about another peer.
    assert_eq!(pod.ask("send-to socket 198.18.2.10:9"), Answer::Ok);
    assert_eq!(pod.ask("send socket"), Answer::NotPermitted);
    world.end(backend, [pod, outside]);
}

#[test]
fn what_a_known_pod_has_open_is_closed_when_nobody_knows_it_any_more() {
    let Some(world) = World::new("forgotten") else {
        return;
    };
    let mut pod = world.pod("a");
    assert_eq!(pod.ask("interface 203.0.113.1/24"), Answer::Ok);
    let mut backend = world.backend();
    let mut first = batch(1);
    first.batch.has_policies = Some(true);
    world.settled(&backend.apply(&first.batch, world.now()));
    assert_eq!(pod.ask("udp-connected socket 203.0.113.9:9"), Answer::Ok);
    assert_eq!(
        pod.ask("send socket"),
        Answer::NotPermitted,
        "it is not known yet"
    );
    for revision in [2, 4] {
        let mut known = batch(revision);
        known.rules(
            &pod,
            egress(vec![tier(
                Tier::NetworkPolicy,
                vec![allow(PeerMatch::Any, None)],
                ISOLATED,
            )]),
        );
        world.settled(&backend.apply(&known.batch, world.now()));
        for _ in 0..2 {
            assert_eq!(pod.ask("send socket"), Answer::Ok);
        }
        let mut gone = batch(revision + 1);
        gone.batch.pods_removed.push(pod.key.clone());
        world.settled(&backend.apply(&gone.batch, world.now()));
        assert_eq!(
            pod.ask("send socket"),
            Answer::NotPermitted,
            "it is not known any more"
        );
    }
    world.end(backend, [pod]);
}

#[test]
fn a_peer_that_sends_first_after_a_change_of_policy_reopens_nothing() {
    let Some(world) = World::new("reopened") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut outside = world.neighbour(&pod);
    let mut backend = world.backend();
    let peers = set("peers");
    let mut first = batch(1);
    first.create(
        peers,
        SetKind::Addresses,
        [Member::Address(address("198.18.2.11"))],
    );
    let rules = vec![allow(PeerMatch::In(peers), None)];
    first.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));
    assert_eq!(outside.ask("udp-at peer 198.18.2.11:4001"), Answer::Ok);
    for question in [
        "udp-at own 198.18.2.2:4000",
        "connect own 198.18.2.11:4001",
        "send own",
    ] {
        assert_eq!(pod.ask(question), Answer::Ok, "{question}");
    }
    let mut second = batch(2);
    second.rules(
        &pod,
        egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]),
    );
    second.batch.reevaluate.push((pod.key.clone(), Direction::Egress));
    world.settled(&backend.apply(&second.batch, world.now()));
    assert_eq!(outside.ask("send-to peer 198.18.2.2:4000"), Answer::Ok);
    assert_ne!(pod.ask("receive-datagram own"), Answer::Ok);
    assert_eq!(pod.ask("send own"), Answer::NotPermitted);
    world.end(backend, [pod, outside]);
}

#[test]
fn a_change_of_ingress_policy_reaches_who_is_connected() {
    let Some(world) = World::new("revoked-in") else {
        return;
    };
    let pod = world.pod("a");
    let mut outside = world.neighbour(&pod);
    let mut backend = world.backend();
    let mut first = batch(1);
    first
        .batch
        .rules_replaced
        .push(ruled("a", &pod.uid, egress(Vec::new())));
    first.create(
        set("peers"),
        SetKind::Addresses,
        [Member::Address(address("198.18.2.10"))],
    );
    world.settled(&backend.apply(&first.batch, world.now()));
    for question in [
        "open-tcp-from kept 198.18.2.10 198.18.2.2:8081",
        "open-tcp-from ended 198.18.2.11 198.18.2.2:8081",
        "exchange kept",
        "exchange ended",
    ] {
        assert_eq!(outside.ask(question), Answer::Ok, "{question}");
    }
    let mut second = reached_by_one(&pod, 2);
    Arc::make_mut(&mut second.rules_replaced[0].ingress.tiers[0].rules)[0] =
        allow(PeerMatch::In(set("peers")), Some(8081));
    second.reevaluate.push((pod.key.clone(), Direction::Ingress));
    world.settled(&backend.apply(&second, world.now()));
    assert_eq!(outside.ask("exchange kept"), Answer::Ok);
    assert_ne!(outside.ask("exchange ended"), Answer::Ok);
    world.end(backend, [pod, outside]);
}

#[test]
fn the_last_of_two_thousand_rules_decides_and_lists_that_nobody_has_are_removed() {
    let Some(world) = World::new("many") else { return };
    let (mut one, mut other) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let mut first = batch(1);
    let (nobody, peers) = (set("nobody"), set("peers"));
    first.create(nobody, SetKind::Addresses, []);
    first.create(
        peers,
        SetKind::Addresses,
        [Member::Address(address("198.18.2.10"))],
    );
    let mut rules = vec![allow(PeerMatch::In(nobody), None); 2000];
    rules.push(allow(PeerMatch::In(peers), Some(8080)));
    let list = || egress(vec![tier(Tier::NetworkPolicy, rules.clone(), ISOLATED)]);
    first.rules(&one, list());
    first.rules(&other, list());
    world.settled(&backend.apply(&first.batch, world.now()));
    for pod in [&mut one, &mut other] {
        assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::Ok);
        assert_eq!(pod.ask("tcp 198.18.2.10:5353"), Answer::NotPermitted);
        assert_eq!(pod.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
    }
    // 2002 rules, shared by both.
    assert!(
        backend.dump().contains("chunks of rules 32\n"),
        "{}",
        backend.dump()
    );
    let mut second = batch(2);
    for pod in [&one, &other] {
        second.rules(pod, egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]));
    }
    world.settled(&backend.apply(&second.batch, world.now()));
    assert!(
        backend.dump().contains("chunks of rules 1\n"),
        "{}",
        backend.dump()
    );
    assert_eq!(one.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    world.end(backend, [one, other]);
}

#[test]
fn ordered_rules_are_looked_up_and_the_one_that_denies_is_counted() {
    let Some(world) = World::new("ordered") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let mut first = batch(1);
    let mut rules = Vec::new();
    for number in 0..60 {
        let elsewhere = format!("203.0.{number}.0/24");
        let (network, port, is_denied) = match number {
            17 => ("198.18.2.10/32", Some(8080), true),
            30 => ("198.18.2.8/29", None, false),
            45 => ("198.18.2.0/24", None, true),
            _ => (
                elsewhere.as_str(),
                (number % 3 == 0).then_some(443),
                number % 2 == 0,
            ),
        };
        let networks = set(&format!("networks of {number}"));
        first.create_fixed(networks, network);
        let mut rule = match is_denied {
            true => deny(PeerMatch::In(networks), port),
            false => allow(PeerMatch::In(networks), port),
        };
        rule.origin.rule = number;
        rules.push(rule);
    }
    first.rules(
        &pod,
        egress(vec![tier(Tier::Admin, rules, DefaultAction::NextTier)]),
    );
    world.settled(&backend.apply(&first.batch, world.now()));

    for (probe, answer) in [
        ("tcp 198.18.2.10:8080", Answer::NotPermitted),
        ("tcp 198.18.2.99:8080", Answer::NotPermitted),
        ("udp 198.18.2.99:8080", Answer::NotPermitted),
        ("tcp 203.0.6.1:443", Answer::NotPermitted),
        ("tcp 198.18.2.11:8080", Answer::Ok),
        ("udp 198.18.2.10:8080", Answer::Ok),
        ("tcp 198.51.100.1:8080", Answer::Ok),
    ] {
        assert_eq!(pod.ask(probe), answer, "{probe}");
    }
    let counts = backend.counters().read().unwrap();
    let denied_by = |rule: usize| {
        let of_rule = counts.iter().filter(|count| {
            count.key.action == Action::Deny.into()
                && count.origin.as_ref().is_some_and(|(_, number)| *number == rule)
        });
        of_rule.map(|count| count.packets).sum::<u64>()
    };
    assert_eq!([17, 45, 6, 0].map(denied_by), [1, 2, 1, 0]);
    let dump = backend.dump();
    let rules = dump
        .lines()
        .find(|line| line.starts_with("default/a: uid"))
        .unwrap();
    let looked_up = (1..10).any(|count| rules.contains(&format!(" {count} egress rules")));
    assert!(looked_up, "{rules}");
    world.end(backend, [pod]);
}

#[test]
fn a_socket_from_before_the_rules_is_judged_when_it_connects_or_sends_to() {
    let Some(world) = World::new("before") else { return };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    for question in [
        "socket-tcp denied",
        "socket-tcp allowed",
        "open-udp to-denied 198.18.2.11:9",
        "open-udp to-allowed 198.18.2.10:9",
    ] {
        assert_eq!(pod.ask(question), Answer::Ok, "{question}");
    }
    world.settled(&backend.apply(&isolated(&pod), world.now()));
    for (probe, answer) in [
        ("connect denied 198.18.2.11:8080", Answer::NotPermitted),
        ("connect allowed 198.18.2.10:8080", Answer::Ok),
        ("send to-denied", Answer::NotPermitted),
        ("send to-allowed", Answer::Ok),
    ] {
        assert_eq!(pod.ask(probe), answer, "{probe}");
    }
    world.end(backend, [pod]);
}

#[test]
fn a_passed_socket_is_judged_as_the_pod_that_created_it() {
    let Some(world) = World::new("passed") else { return };
    let (mut closed, mut open) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let mut first = batch(1);
    first.rules(
        &closed,
        egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]),
    );
    let rules = vec![allow(PeerMatch::Any, None)];
    first.rules(&open, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&first.batch, world.now()));
    for (name, from_closed) in [("of-closed", true), ("of-open", false)] {
        let (from, to) = if from_closed {
            (&mut closed, &mut open)
        } else {
            (&mut open, &mut closed)
        };
        let path = std::env::temp_dir().join(format!("eg-ebpf-pass-{}-{name}", std::process::id()));
        let path = path.display();
        assert_eq!(
            to.ask(&format!("listen-for-sockets place-{name} {path}")),
            Answer::Ok
        );
        assert_eq!(from.ask(&format!("socket-tcp {name}")), Answer::Ok);
        assert_eq!(from.ask(&format!("pass {name} {path}")), Answer::Ok);
        assert_eq!(to.ask(&format!("take {name} place-{name}")), Answer::Ok);
        std::fs::remove_file(path.to_string()).unwrap();
    }
    assert_eq!(
        open.ask("connect of-closed 198.18.2.11:8080"),
        Answer::NotPermitted
    );
    assert_eq!(closed.ask("connect of-open 198.18.2.11:8080"), Answer::Ok);
    assert_eq!(open.ask("tcp 198.18.2.11:8080"), Answer::Ok);
    assert_eq!(closed.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
    world.end(backend, [closed, open]);
}

#[test]
fn verdicts_records_and_counts_outlive_the_enforcer() {
    let Some(world) = World::new("restart") else {
        return;
    };
    let mut pod = world.pod("a");
    let (peers, names, gone) = (set("peers"), set("names"), set("gone"));
    let whole = |members: &[&str]| {
        let mut whole = batch(1);
        let members = members.iter().map(|text| Member::Address(address(text)));
        whole.create(peers, SetKind::Addresses, members);
        whole.create(names, SetKind::Records, []);
        let rules = vec![
            allow(PeerMatch::In(peers), None),
            allow(PeerMatch::In(names), None),
        ];
        whole.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
        whole.batch
    };
    let (before, after) = (whole(&["198.18.2.10", "198.18.2.11"]), whole(&["198.18.2.10"]));
    let mut first = world.backend();
    first.apply(&before, world.now());
    let later = world.now().after(Duration::from_secs(60));
    first.apply(&record(2, names, "198.18.2.12", later), world.now());
    first.apply(&record(3, gone, "198.18.2.13", later), world.now());
    drop(first);

    let mut probe = |answers: [Answer; 4]| {
        for (last, answer) in (10..).zip(answers) {
            assert_eq!(
                pod.ask(&format!("tcp 198.18.2.{last}:8080")),
                answer,
                "198.18.2.{last}"
            );
        }
    };
    let refused = || Answer::NotPermitted;
    probe([Answer::Ok, Answer::Ok, Answer::Ok, refused()]);
    let mut second = world.backend();
    probe([Answer::Ok, Answer::Ok, Answer::Ok, refused()]);
    world.settled(&second.apply(&after, world.now()));
    probe([Answer::Ok, refused(), Answer::Ok, refused()]);
    assert_eq!(world.count(&second, Some(Tier::NetworkPolicy), Action::Allow), 8);
    assert_eq!(world.count(&second, Some(Tier::NetworkPolicy), Action::Deny), 4);
    assert_eq!(second.reconcile(world.now()).repaired, [].into());
    world.end(second, [pod]);
}

#[test]
fn counters_that_somebody_removes_come_back_and_count() {
    let Some(world) = World::new("counters") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    world.settled(&backend.apply(&isolated(&pod), world.now()));
    let connect = |pod: &mut Pod| assert_eq!(pod.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
    let denied = |backend: &Ebpf| world.count(backend, Some(Tier::NetworkPolicy), Action::Deny);
    connect(&mut pod);
    assert_eq!(denied(&backend), 1);

    let removed = world.remove_counters();
    connect(&mut pod);
    assert_eq!(denied(&backend), 0);

    let status = backend.reconcile(world.now());
    assert_eq!(status.repaired, [("counter missing", removed)].into());
    connect(&mut pod);
    assert_eq!(denied(&backend), 1);
    assert_eq!(backend.reconcile(world.now()).repaired, [].into());
    world.end(backend, [pod]);
}

#[test]
fn a_udp_server_answers_whom_it_may_not_address() {
    let Some(world) = World::new("replies") else {
        return;
    };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let mut first = batch(1);
    first.rules(
        &pod,
        egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]),
    );
    world.settled(&backend.apply(&first.batch, world.now()));
    let mut outside = world.neighbour(&pod);

    assert_eq!(pod.ask("udp 198.18.2.10:9999"), Answer::NotPermitted);
    assert_eq!(outside.ask("udp-echo 198.18.2.2:7 198.18.2.10:9999"), Answer::Ok);
    assert_eq!(
        outside.ask("udp-echo [2001:db8::2]:7 [2001:db8::10]:9999"),
        Answer::Ok
    );
    assert_eq!(pod.ask("udp 198.18.2.10:9999"), Answer::NotPermitted);
    world.end(backend, [pod, outside]);
}

#[test]
fn rules_that_cannot_be_held_refuse_everything_and_a_missing_cgroup_is_looked_for_again() {
    let Some(world) = World::new("faults") else { return };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    let many = vec![allow(PeerMatch::Any, None); 65_537];
    let mut first = batch(1);
    first.rules(
        &pod,
        egress(vec![tier(Tier::NetworkPolicy, many, DefaultAction::NextTier)]),
    );
    first
        .batch
        .rules_replaced
        .push(ruled("b", "00000000-b", egress(Vec::new())));
    let standing = backend.apply(&first.batch, world.now());
    let reasons: Vec<String> = standing.pending.values().map(ToString::to_string).collect();
    assert!(reasons[0].contains("its egress rules are 65537"), "{reasons:?}");
    assert!(reasons[1].contains("no cgroup of pod 00000000-b"), "{reasons:?}");
    assert!(standing.wants_retry());
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);

    let late = world.pod_with_uid("b", "00000000-b");
    assert_eq!(backend.reconcile(world.now()).pending.len(), 1);
    let mut second = batch(2);
    let rules = vec![allow(PeerMatch::Any, None)];
    second.rules(&pod, egress(vec![tier(Tier::NetworkPolicy, rules, ISOLATED)]));
    world.settled(&backend.apply(&second.batch, world.now()));
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::Ok);

    let mut third = batch(3);
    third.batch.pods_removed.push(pod.key.clone());
    backend.apply(&third.batch, world.now());
    assert!(!world.is_attached(&pod) && world.is_attached(&late));
    world.end(backend, [pod, late]);
}

/// As many addresses as a map holds.
const MAX_MEMBERS: u32 = 262_144;

#[test]
fn an_entry_that_finds_no_room_stays_closed_until_there_is_some() {
    let Some(world) = World::new("full") else { return };
    let (mut allowed, mut denied) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let (crowd, peers, enemies) = (set("crowd"), set("peers"), set("enemies"));
    let mut first = batch(1);
    let of_crowd = |number: u32| Member::Address(IpAddr::from((0x0a00_0000 + number).to_be_bytes()));
    first.create(crowd, SetKind::Addresses, (0..MAX_MEMBERS).map(of_crowd));
    world.settled(&backend.apply(&first.batch, world.now()));
    let mut first = batch(2);
    let alone = |text| [Member::Address(address(text))];
    first.create(peers, SetKind::Addresses, alone("198.18.2.10"));
    first.create(enemies, SetKind::Addresses, alone("198.18.2.11"));
    let isolated = tier(
        Tier::NetworkPolicy,
        vec![allow(PeerMatch::In(peers), None)],
        ISOLATED,
    );
    let open = tier(
        Tier::Admin,
        vec![deny(PeerMatch::In(enemies), None)],
        DefaultAction::NextTier,
    );
    first.rules(&allowed, egress(vec![isolated]));
    first.rules(&denied, egress(vec![open]));
    let status = backend.apply(&first.batch, world.now());
    assert_eq!(status.pending.len(), 2, "{status:?}");
    assert!(status.wants_retry());
    // What would be allowed is not, and where something would be denied nothing is allowed.
    assert_eq!(allowed.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    assert_eq!(denied.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
    assert_eq!(denied.ask("tcp 198.18.2.12:8080"), Answer::NotPermitted);

    let mut second = batch(3);
    second.batch.members_changed.push(MembersChanged {
        set: crowd,
        added: Vec::new(),
        removed: (0..16).map(of_crowd).collect(),
    });
    backend.apply(&second.batch, world.now());
    world.settled(&backend.reconcile(world.now()));
    assert_eq!(allowed.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(denied.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
    assert_eq!(denied.ask("tcp 198.18.2.12:8080"), Answer::Ok);
    world.end(backend, [allowed, denied]);
}

#[test]
fn programs_of_another_release_judge_until_they_are_replaced() {
    let Some(world) = World::new("release") else {
        return;
    };
    let (mut pod, mut unknown) = (world.pod("a"), world.pod("b"));
    let whole = |pods: &[&ebpf_world::Pod], rules: &[_]| {
        let mut whole = batch(1);
        for pod in pods {
            whole.rules(
                pod,
                egress(vec![tier(Tier::NetworkPolicy, rules.to_vec(), ISOLATED)]),
            );
        }
        whole.batch
    };
    let (closed, open) = (
        whole(&[&pod, &unknown], &[]),
        whole(&[&pod], &[allow(PeerMatch::Any, None)]),
    );
    let mut other = world.backend();
    world.settled(&other.apply(&closed, world.now()));
    drop(other);
    world.pretend_another_release();

    let mut backend = world.backend();
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    world.settled(&backend.apply(&open, world.now()));
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(unknown.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    world.settled(&backend.apply(&whole(&[&unknown], &[allow(PeerMatch::Any, None)]), world.now()));
    assert_eq!(unknown.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(world.releases(), 1);
    world.end(backend, [pod, unknown]);
}

#[test]
fn another_build_of_the_programs_takes_over_under_load_and_gives_back() {
    let Some(world) = World::new("upgrade") else {
        return;
    };
    let (mut pod, mut loaded) = (world.pod("a"), world.pod("loaded"));
    let peers = set("peers");
    let mut all = batch(1);
    all.create(
        peers,
        SetKind::Addresses,
        [Member::Address(address("198.18.2.10"))],
    );
    for pod in [&pod, &loaded] {
        let rules = [8080, 8082].map(|port| allow(PeerMatch::In(peers), Some(port)));
        all.rules(
            pod,
            egress(vec![tier(Tier::NetworkPolicy, rules.into(), ISOLATED)]),
        );
    }
    let mut backend = world.backend();
    world.settled(&backend.apply(&all.batch, world.now()));
    let is_open = |pod: &mut Pod| pod.ask("tcp 198.18.2.10:8082") != Answer::NotPermitted;
    assert!(is_open(&mut pod));

    let is_over = AtomicBool::new(false);
    let (backend, tried) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut tried = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(loaded.ask("tcp 198.18.2.10:8080"), Answer::Ok);
                assert_eq!(loaded.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);
                assert_eq!(loaded.ask("udp 198.18.2.11:8080"), Answer::NotPermitted);
                tried += 1;
            }
            tried
        });
        for _ in 0..5 {
            drop(backend);
            let Some(mut other) = world.backend_of_another_build() else {
                backend = world.backend();
                break;
            };
            world.settled(&other.apply(&all.batch, world.now()));
            assert!(!is_open(&mut pod), "by the other build");
            assert_eq!(world.releases(), 1, "over the same maps");
            drop(other);
            assert!(!is_open(&mut pod), "its links stay");
            backend = world.backend();
            world.settled(&backend.apply(&all.batch, world.now()));
            assert!(is_open(&mut pod), "by this build again");
        }
        is_over.store(true, Ordering::Relaxed);
        (backend, load.join().unwrap())
    });
    assert!(tried > 10, "{tried} rounds under load");
    // The counters are those of all builds.
    let denied = world.count(&backend, Some(Tier::NetworkPolicy), Action::Deny);
    assert_eq!(denied, 2 * tried);
    world.end(backend, [pod, loaded]);
}

#[test]
fn a_pod_is_judged_in_the_cgroup_that_it_has_now_and_one_that_is_gone_leaves_nothing() {
    let Some(world) = World::new("cgroups") else {
        return;
    };
    let (first_life, gone) = (world.pod("a"), world.pod("b"));
    let mut backend = world.backend();
    let mut first = batch(1);
    for pod in [&first_life, &gone] {
        first.rules(pod, egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]));
    }
    world.settled(&backend.apply(&first.batch, world.now()));
    drop(backend);
    world.remove(first_life);
    world.remove(gone);

    let mut backend = world.backend();
    let mut second_life = world.pod("a");
    let mut again = batch(1);
    again.rules(
        &second_life,
        egress(vec![tier(Tier::NetworkPolicy, Vec::new(), ISOLATED)]),
    );
    world.settled(&backend.apply(&again.batch, world.now()));
    assert_eq!(second_life.ask("tcp 198.18.2.10:8080"), Answer::NotPermitted);
    // The kernel takes programs off a cgroup some time after that is gone (cgroup_bpf_offline of kernel/bpf/cgroup.c).
    for minutes in 1..=500 {
        if world.pinned_pods() == ["5c6e1d0e-a"] {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        let later = world.now().after(Duration::from_secs(60 * minutes));
        world.settled(&backend.reconcile(later));
    }
    assert_eq!(world.pinned_pods(), ["5c6e1d0e-a"]);
    world.end(backend, [second_life]);
}

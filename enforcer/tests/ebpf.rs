//! The backend `ebpf` against this kernel: pods are processes in cgroups and network namespaces of their own,
//! and every verdict is a real connect(2) or sendto(2).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod ebpf_world;

use std::net::IpAddr;
use std::time::Duration;

use ebpf_world::{Answer, World, allow, batch, deny, egress, pass, record, ruled, set, tier};
use egret_enforcer::backend::Backend;
use egret_policies::rules::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, Member, PeerMatch, SetKind};
use egret_shared::net::Transport;

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
    // A policy that changes asks open UDP flows again.
    let mut third = batch(3);
    third
        .batch
        .reevaluate
        .push((asked.key.clone(), Direction::Egress));
    backend.apply(&third.batch, world.now());
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

/// A limit: the kernel asks no program in sendmsg(2) of a raw socket. A pod without CAP_NET_RAW cannot make one.
#[test]
fn what_raw_sockets_send_is_not_judged() {
    let Some(world) = World::new("raw") else { return };
    let mut pod = world.pod("a");
    let mut backend = world.backend();
    world.settled(&backend.apply(&isolated(&pod), world.now()));
    assert_eq!(pod.ask("udp 198.18.2.11:9"), Answer::NotPermitted);
    for protocol in [17, 4, 47] {
        let probe = format!("raw {protocol} 203.0.113.7 198.18.2.11");
        assert_eq!(
            pod.ask(&probe),
            Answer::Ok,
            "judged: the limit in docs/enforcer.md is out of date"
        );
    }
    // What needs CAP_NET_RAW as well, where the address is not the pod's (IP_TRANSPARENT): a datagram to the pod itself in the
    // name of a peer, whom the pod's server then answers.
    assert_eq!(pod.ask("udp-echo 198.18.2.2:7 198.18.2.11:9999"), Answer::Ok);
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
        "open-tcp open 198.18.2.11:8080",
    ] {
        assert_eq!(pod.ask(question), Answer::Ok, "{question}");
    }
    world.settled(&backend.apply(&isolated(&pod), world.now()));
    for (probe, answer) in [
        ("connect denied 198.18.2.11:8080", Answer::NotPermitted),
        ("connect allowed 198.18.2.10:8080", Answer::Ok),
        ("send to-denied", Answer::NotPermitted),
        ("send to-allowed", Answer::Ok),
        // A limit: what was connected before goes on.
        ("send open", Answer::Ok),
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
    let many = vec![allow(PeerMatch::Any, None); 257];
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
    assert!(reasons[0].contains("its egress rules are 257"), "{reasons:?}");
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

//! Flows that a change forbids, against this kernel: packets over `lo`, behind which the pod is.
//!
//! It is longer than 800 lines because all stories read the same states of flows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};

use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::{Netfilter, names};
use egret_enforcer::backend::{Backend, EndedConnections, SearchResult};
use egret_kernel::Family;
use egret_kernel::conntrack::{Conntrack, Flow, FlowFilter};
use egret_kernel::iptables::Flavour;
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, Member, PeerMatch, PortMatch, SetKind};
use egret_shared::pod::PodKey;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket};
use node_world::{
    Change, NOW, ThisHost, address, backend, backend_marking, in_fresh_namespace, network, pod, rule, run,
    set, tier,
};

const POD: &str = "127.0.0.1";
const STRANGER: &str = "127.0.0.2";
const ONE: &str = "127.0.0.8";
const OTHER: &str = "127.0.0.9";
const SECOND: &str = "127.0.0.3";
const SERVICE: &str = "127.0.0.30";
const POD_6: &str = "fd00::1";
/// More flows than end at once.
const MANY: usize = 1_600;
/// More flows than two slices look at.
const SLICES_LOOK_AT: u16 = 4_200;
const LONG: std::time::Duration = std::time::Duration::from_secs(600);

#[test]
fn connections_end_with_their_pod_and_the_next_pod_at_the_address_does_not_inherit_them() {
    in_fresh_namespace(|| {
        let unrestricted = |name: &str| Change::new().rules(pod(name, &[POD], Vec::new(), Vec::new()));
        let mut backend = begin(&unrestricted("a"));
        let _open = [datagram(POD, ONE), datagram(STRANGER, ONE)];
        assert_eq!([state(POD, ONE), state(STRANGER, ONE)], [State::Allowed; 2]);
        let mut gone = Change::new();
        gone.0.pods_removed.push(PodKey::new("default", "a"));
        assert_eq!(change(&mut backend, &gone), 1, "flows that are revoked");
        assert_eq!(state(POD, ONE), State::Left);
        assert_eq!(state(STRANGER, ONE), State::Allowed, "it is no pod's");
        // Who starts anew knows it by the mark alone.
        let mut backend = begin(&Change::new());
        assert_eq!(state(POD, ONE), State::Left);
        assert_eq!(
            change(&mut backend, &unrestricted("b")),
            1,
            "flows that are revoked"
        );
        assert_eq!(state(POD, ONE), State::Gone, "what comes next is the next one's");
        let _new = datagram(POD, OTHER);
        assert_eq!(state(POD, OTHER), State::Allowed);
        assert_eq!(state(STRANGER, ONE), State::Allowed);
    });
}

#[test]
fn a_pod_that_replaces_another_during_a_restart_inherits_no_connection() {
    in_fresh_namespace(|| {
        let unrestricted = |name: &str, address: &str, uid: &str| {
            let mut rules = pod(name, &[address], Vec::new(), Vec::new());
            rules.uid = Some(uid.into());
            Change::new().rules(rules)
        };
        let both = unrestricted("a", POD, "1").rules(pod("b", &[STRANGER], Vec::new(), Vec::new()));
        let first = begin(&both);
        let _open = [datagram(POD, ONE), datagram(STRANGER, ONE)];
        drop(first);
        let after = unrestricted("c", POD, "2").rules(pod("b", &[STRANGER], Vec::new(), Vec::new()));
        let mut backend = begin(&after);
        assert_eq!(
            [state(POD, ONE), state(STRANGER, ONE)],
            [State::Gone, State::Allowed]
        );
        let _open = datagram(POD, ONE);
        assert_eq!(
            change(&mut backend, &unrestricted("c", POD, "2")),
            0,
            "flows that are revoked"
        );
        assert_eq!(state(POD, ONE), State::Allowed, "it is the same");
        assert_eq!(
            change(&mut backend, &unrestricted("c", POD, "3")),
            1,
            "flows that are revoked"
        );
        assert_eq!(
            [state(POD, ONE), state(STRANGER, ONE)],
            [State::Gone, State::Allowed]
        );
    });
}

#[test]
fn connections_from_before_the_first_rules_are_judged() {
    in_fresh_namespace(|| {
        let mut backend = begin(&Change::new());
        let _open = [datagram(POD, ONE), datagram(POD, OTHER)];
        assert_eq!([state(POD, ONE), state(POD, OTHER)], [State::Unmarked; 2]);
        let peers = rule(Action::Allow, PeerMatch::In(set("peers")), PortMatch::Any);
        let isolated = vec![tier(Tier::NetworkPolicy, vec![peers], DefaultAction::Deny)];
        let comes = Change::new()
            .set("peers", SetKind::Addresses, &[(address(ONE), None)])
            .rules(pod("a", &[POD], isolated, Vec::new()));
        assert_eq!(change(&mut backend, &comes), 1, "flows that are revoked");
        assert_eq!(
            [state(POD, ONE), state(POD, OTHER)],
            [State::Unmarked, State::Revoked]
        );
    });
}

#[test]
fn what_is_allowed_again_while_denied_connections_end_goes_on() {
    in_fresh_namespace(|| {
        flows_stay();
        let only = |peer| {
            vec![tier(
                Tier::NetworkPolicy,
                vec![rule(Action::Allow, peer, PortMatch::Any)],
                DefaultAction::Deny,
            )]
        };
        let mut backend = begin(&Change::new().rules(pod("a", &[POD], only(PeerMatch::Any), Vec::new())));
        let sockets: Vec<UdpSocket> = (0..MANY).map(|_| UdpSocket::bind((POD, 0)).unwrap()).collect();
        for (number, socket) in sockets.iter().enumerate() {
            let to = if number % 2 == 0 { ONE } else { OTHER };
            socket.send_to(b"x", (to, 9)).unwrap();
        }
        let count = |to: &str, is: fn(State) -> bool| {
            let flows = flows(POD, to).into_iter();
            flows
                .filter(|flow| is(state_of_flow(Direction::Egress, flow)))
                .count()
        };
        while count(ONE, |state| state == State::Allowed) + count(OTHER, |state| state == State::Allowed)
            < MANY
        {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let allow = |name: &str, peer: &str| {
            let mut change = Change::new()
                .set(name, SetKind::Networks, &[(network(peer), None)])
                .rules(pod("a", &[POD], only(PeerMatch::In(set(name))), Vec::new()));
            change
                .0
                .reevaluate
                .push((PodKey::new("default", "a"), Direction::Egress));
            change
        };
        // Nothing that is open is allowed, and not all of it ends at once.
        apply(&mut backend, &allow("nobody", "192.0.2.0/24"));
        let search = backend.connection_search().expect("somebody is to be asked");
        search();
        let first = backend.end_denied_connections();
        assert!(first.is_unfinished && first.flows > 0, "{first:?}");
        assert!(count(ONE, |state| state == State::Revoked) > 0, "{first:?}");
        change(&mut backend, &allow("one", "127.0.0.8/32"));
        assert_eq!(count(ONE, |state| state == State::Revoked), 0);
        assert_eq!(count(OTHER, |state| state == State::Revoked), MANY / 2);
    });
}

/// The next change waits for one slice.
#[test]
fn a_slice_looks_at_few_flows_whether_they_end_go_on_or_stay_as_they_are() {
    in_fresh_namespace(|| {
        flows_stay();
        let reaching = |name: &str, peer: &str| {
            let peers = rule(Action::Allow, PeerMatch::In(set(name)), PortMatch::Any);
            let isolated = vec![tier(Tier::NetworkPolicy, vec![peers], DefaultAction::Deny)];
            let mut change = Change::new()
                .set(name, SetKind::Networks, &[(network(peer), None)])
                .rules(pod("a", &[POD], isolated, Vec::new()));
            let egress = (PodKey::new("default", "a"), Direction::Egress);
            change.0.reevaluate.push(egress);
            change
        };
        let mut backend = begin(&reaching("all", "127.0.0.0/8"));
        for port in 0..SLICES_LOOK_AT {
            let socket = UdpSocket::bind((POD, 20_000 + port)).unwrap();
            socket.send_to(b"x", (ONE, 9)).unwrap();
        }
        let states = |is: State| {
            let flows = flows(POD, ONE);
            let states = flows.iter().map(|flow| state_of_flow(Direction::Egress, flow));
            u64::try_from(states.filter(|state| *state == is).count()).unwrap()
        };
        let many = u64::from(SLICES_LOOK_AT);
        until(|| (states(State::Allowed) == many).then_some(()));
        let mut slices = |change: &Change| {
            apply(&mut backend, change);
            let search = backend.connection_search().expect("somebody is to be asked");
            search();
            let mut revoked = Vec::new();
            loop {
                let ended = backend.end_denied_connections();
                revoked.push(ended.flows);
                if !ended.is_unfinished {
                    return revoked;
                }
            }
        };
        let allowed = slices(&reaching("one", "127.0.0.8/32"));
        assert!(
            allowed.len() > 2,
            "all are allowed, looked at in slices: {allowed:?}"
        );
        let revoked = slices(&reaching("nobody", "192.0.2.0/24"));
        assert_eq!(revoked.iter().sum::<u64>(), many, "{revoked:?}");
        assert!(revoked.iter().all(|flows| *flows <= many / 8), "{revoked:?}");
        let stay = slices(&reaching("nobody-else", "192.0.2.1/32"));
        assert!(stay.len() > 2, "all stay revoked, looked at in slices: {stay:?}");
        assert_eq!(states(State::Revoked), many);
        let go_on = slices(&reaching("one-again", "127.0.0.8/32"));
        assert!(go_on.len() > 8, "all go on, in slices: {go_on:?}");
        assert_eq!(states(State::Unmarked), many);
    });
}

#[test]
fn what_is_allowed_stays_and_what_is_allowed_again_is_judged_again() {
    in_fresh_namespace(|| {
        let peers = rule(Action::Allow, PeerMatch::In(set("peers")), PortMatch::Any);
        let isolated = vec![tier(Tier::NetworkPolicy, vec![peers], DefaultAction::Deny)];
        let members = [(address(ONE), None), (address(OTHER), None)];
        let mut backend = begin(
            &Change::new()
                .set("peers", SetKind::Addresses, &members)
                .rules(pod("a", &[POD], isolated, Vec::new())),
        );
        let open = [datagram(POD, ONE), datagram(POD, OTHER)];
        assert_eq!([state(POD, ONE), state(POD, OTHER)], [State::Allowed; 2]);
        let mut less = Change::new().members("peers", &[], &[address(OTHER)]);
        let asked = (PodKey::new("default", "a"), Direction::Egress);
        less.0.reevaluate.push(asked);
        assert_eq!(change(&mut backend, &less), 1, "flows that are revoked");
        assert_eq!(
            [state(POD, ONE), state(POD, OTHER)],
            [State::Allowed, State::Revoked]
        );
        let again = Change::new().members("peers", &[(address(OTHER), None)], &[]);
        assert_eq!(change(&mut backend, &again), 0, "flows that are revoked");
        assert_eq!(state(POD, OTHER), State::Unmarked);
        open[1].send((OTHER, 9)).unwrap();
        assert_eq!(state(POD, OTHER), State::Allowed);
    });
}

#[test]
fn one_pass_keeps_connections_of_records_and_ends_forbidden_ones() {
    in_fresh_namespace(|| {
        let to = |name: &str| rule(Action::Allow, PeerMatch::In(set(name)), PortMatch::Any);
        let isolated = |rules| vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)];
        let first = Change::new()
            .set(
                "names",
                SetKind::Records,
                &[(address(ONE), Some(NOW.after(LONG)))],
            )
            .set("peers", SetKind::Addresses, &[(address(OTHER), None)])
            .set("clients", SetKind::Addresses, &[(address(STRANGER), None)])
            .rules(pod(
                "a",
                &[POD],
                isolated(vec![to("names"), to("peers")]),
                isolated(vec![to("clients")]),
            ));
        let mut backend = begin(&first);
        let _open = [datagram(POD, ONE), datagram(POD, OTHER), datagram(STRANGER, POD)];
        let mut less = Change::new().members("peers", &[], &[address(OTHER)]).members(
            "clients",
            &[],
            &[address(STRANGER)],
        );
        let both = Direction::ALL.map(|direction| (PodKey::new("default", "a"), direction));
        less.0.reevaluate.extend(both);
        assert_eq!(change(&mut backend, &less), 2, "flows that are revoked");
        assert_eq!(
            [state(POD, ONE), state(POD, OTHER)],
            [State::Allowed, State::Revoked]
        );
        let to_it = flow(STRANGER, POD).unwrap();
        let marks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap();
        assert!(marks.revoked(Direction::Ingress).is_in(to_it.mark));
    });
}

#[test]
fn removed_members_end_their_connections_and_no_rule_is_written() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        let _open = [datagram(POD, ONE), datagram(POD, OTHER)];
        let (written, held) = (backend.written(), mark(POD, ONE));
        assert_eq!(change(&mut backend, &without(OTHER)), 1, "flows that are revoked");
        assert_eq!((backend.written(), mark(POD, ONE)), (written, held));
        assert_eq!(state(POD, OTHER), State::Revoked);
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

/// Name, what the pod reaches, the member that goes, source and destination of what is open, what becomes of it.
type OpenFlow<'a> = (&'a str, &'a [&'a str], &'a str, (&'a str, &'a str), State);

/// A pod that reaches what is in the list has something open with this source and destination when a member goes.
#[test]
fn a_flow_is_reevaluated_whichever_end_the_removed_member_is() {
    let rows: [OpenFlow<'static>; 8] = [
        ("who answers", &[ONE, OTHER], OTHER, (POD, OTHER), State::Revoked),
        ("somebody else", &[ONE, OTHER], ONE, (POD, OTHER), State::Allowed),
        (
            "a network",
            &["127.0.0.8/29"],
            "127.0.0.8/29",
            (POD, OTHER),
            State::Revoked,
        ),
        (
            "another network",
            &[OTHER, "127.0.0.16/28"],
            "127.0.0.16/28",
            (POD, OTHER),
            State::Allowed,
        ),
        (
            "of the pod's second address",
            &[OTHER],
            OTHER,
            (SECOND, OTHER),
            State::Revoked,
        ),
        (
            "of an address that nobody has",
            &[OTHER],
            OTHER,
            (STRANGER, OTHER),
            State::Unmarked,
        ),
        (
            "behind a Service",
            &[OTHER],
            OTHER,
            (POD, SERVICE),
            State::Revoked,
        ),
        (
            "of IPv6",
            &["fd00::9"],
            "fd00::9",
            (POD_6, "fd00::9"),
            State::Revoked,
        ),
    ];
    for (name, members, gone, (from, to), expected) in rows {
        in_fresh_namespace(move || {
            for address in [POD_6, "fd00::9"] {
                run("ip", &["address", "add", address, "dev", "lo", "nodad"]);
            }
            let dnat = [
                "-t",
                "nat",
                "-A",
                "OUTPUT",
                "-d",
                SERVICE,
                "-j",
                "DNAT",
                "--to-destination",
                OTHER,
            ];
            run("iptables-nft", &dnat);
            let mut backend = begin(&reaching(members));
            let _open = datagram(from, to);
            assert_eq!(state(from, to), State::Allowed, "{name}");
            change(&mut backend, &without(gone));
            assert_eq!(state(from, to), expected, "{name}");
        });
    }
}

#[test]
fn a_removed_member_loses_connections_that_it_opened_to_the_pod() {
    in_fresh_namespace(|| {
        let clients = rule(Action::Allow, PeerMatch::In(set("peers")), PortMatch::Any);
        let isolated = vec![tier(Tier::NetworkPolicy, vec![clients], DefaultAction::Deny)];
        let both = [(host(ONE), None), (host(OTHER), None)];
        let first = Change::new().set("peers", SetKind::Networks, &both).rules(pod(
            "a",
            &[POD],
            Vec::new(),
            isolated,
        ));
        let mut backend = begin(&first);
        let _open = [datagram(ONE, POD), datagram(OTHER, POD)];
        let held = mark(ONE, POD);
        assert_eq!(change(&mut backend, &without(OTHER)), 1, "flows that are revoked");
        assert_eq!(state_of(Direction::Ingress, OTHER, POD), State::Revoked);
        assert_eq!(mark(ONE, POD), held);
    });
}

#[test]
fn what_a_name_opened_outlasts_its_address_in_another_set() {
    in_fresh_namespace(|| {
        let to = |name: &str| rule(Action::Allow, PeerMatch::In(set(name)), PortMatch::Any);
        let rules = vec![to("names"), to("peers")];
        let first = Change::new()
            .set(
                "names",
                SetKind::Records,
                &[(address(ONE), Some(NOW.after(LONG)))],
            )
            .set("peers", SetKind::Networks, &[(host(ONE), None)])
            .rules(pod(
                "a",
                &[POD],
                vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)],
                Vec::new(),
            ));
        let mut backend = begin(&first);
        let _open = datagram(POD, ONE);
        let held = mark(POD, ONE);
        assert_eq!(change(&mut backend, &without(ONE)), 0, "flows that are revoked");
        assert_eq!(mark(POD, ONE), held);
    });
}

/// Such a program has packets that met the list as it was, and nobody knows for how long.
#[test]
fn with_an_nfqueue_program_every_connection_is_reevaluated() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        let open = [datagram(POD, ONE), datagram(POD, OTHER)];
        let (written, held) = (backend.written(), mark(POD, ONE));
        let _queue = a_queue();
        assert_eq!(change(&mut backend, &without(OTHER)), 1, "flows that are revoked");
        assert_ne!(backend.written(), written, "the pod has a new generation");
        open[0].send((ONE, 9)).unwrap();
        assert_eq!((state(POD, ONE), mark(POD, ONE) == held), (State::Allowed, false));
        assert_eq!(state(POD, OTHER), State::Revoked);
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

#[test]
fn a_restart_repeats_an_unfinished_connection_search() {
    in_fresh_namespace(|| {
        let mut first = begin(&reaching(&[ONE, OTHER]));
        let _open = [datagram(POD, ONE), datagram(POD, OTHER)];
        apply(&mut first, &without(OTHER));
        drop(first);
        assert!(is_in_doubt(), "the kernel holds that somebody is to be asked");
        drop(begin(&reaching(&[ONE])));
        assert_eq!(
            [state(POD, ONE), state(POD, OTHER)],
            [State::Allowed, State::Revoked]
        );
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

#[test]
fn members_removed_during_a_connection_search_are_searched_next_and_marked_in_the_kernel() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        let _open = [datagram(POD, ONE), datagram(POD, OTHER)];
        apply(&mut backend, &without(OTHER));
        let inquiry = backend.connection_search().expect("somebody is to be asked");
        apply(&mut backend, &without(ONE));
        assert!(backend.connection_search().is_none(), "there is one at a time");
        assert_eq!(inquiry(), SearchResult::Something);
        backend.end_denied_connections();
        assert_eq!(
            [state(POD, ONE), state(POD, OTHER)],
            [State::Allowed, State::Revoked]
        );
        assert!(is_in_doubt(), "the kernel holds that somebody is to be asked");
        backend.search_and_end();
        assert_eq!(state(POD, ONE), State::Revoked);
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

#[test]
fn a_member_that_returns_before_the_connection_search_keeps_its_connections() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        let open = [datagram(POD, ONE), datagram(POD, OTHER)];
        apply(&mut backend, &without(OTHER));
        let inquiry = backend.connection_search().expect("somebody is to be asked");
        let back = Change::new().members("peers", &[(host(OTHER), None)], &[]);
        apply(&mut backend, &back);
        inquiry();
        backend.end_denied_connections();
        let states = [state(POD, ONE), state(POD, OTHER)];
        assert_eq!(states, [State::Allowed, State::Unmarked]);
        open[1].send((OTHER, 9)).unwrap();
        assert_eq!(state(POD, OTHER), State::Allowed, "judged again");
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

#[test]
fn connections_opened_during_a_connection_search_are_judged_by_the_current_sets() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        apply(&mut backend, &without(OTHER));
        let inquiry = backend.connection_search().expect("somebody is to be asked");
        let socket = Open(UdpSocket::bind((POD, 0)).unwrap());
        // It may hear that it is refused.
        drop(socket.send((OTHER, 9)));
        assert_ne!(state(POD, OTHER), State::Allowed);
        apply(
            &mut backend,
            &Change::new().members("peers", &[(host(OTHER), None)], &[]),
        );
        socket.send((OTHER, 9)).unwrap();
        assert_eq!(state(POD, OTHER), State::Allowed);
        assert_eq!(inquiry(), SearchResult::Something);
        backend.end_denied_connections();
        let held = state(POD, OTHER);
        assert!(matches!(held, State::Allowed | State::Unmarked), "{held:?}");
    });
}

#[test]
fn rules_written_during_a_connection_search_still_end_forbidden_connections() {
    in_fresh_namespace(|| {
        let mut backend = begin(&reaching(&[ONE, OTHER]));
        let _open = [datagram(POD, ONE), datagram(POD, OTHER)];
        apply(&mut backend, &without(OTHER));
        let inquiry = backend.connection_search().expect("somebody is to be asked");
        inquiry();
        let mut renewed = Change::new();
        let both = Direction::ALL.map(|direction| (PodKey::new("default", "a"), direction));
        renewed.0.reevaluate.extend(both);
        assert_eq!(change(&mut backend, &renewed), 1, "flows that are revoked");
        assert_eq!(state(POD, OTHER), State::Revoked);
        assert!(!is_in_doubt(), "the kernel holds that nobody is to be asked");
    });
}

/// Another pod has connections through the same rule, and with the member that goes. Whoever asks it too takes its mark or writes
/// its rules.
#[test]
fn flows_of_other_pods_keep_their_marks() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || another_keeps_its_marks(flavour));
    }
}

fn another_keeps_its_marks(flavour: Flavour) {
    let to = |name: &str| rule(Action::Allow, PeerMatch::In(set(name)), PortMatch::Any);
    let reaching = |own: &str| {
        vec![tier(
            Tier::NetworkPolicy,
            vec![to("all"), to(own)],
            DefaultAction::Deny,
        )]
    };
    let first = Change::new()
        .set("all", SetKind::Networks, &[(host(ONE), None)])
        .set("peers", SetKind::Networks, &[(host(OTHER), None)])
        .rules(pod("a", &[POD], reaching("peers"), Vec::new()));
    let mut backend = begin_with(flavour, &first);
    // Who comes later has another generation.
    let comes = Change::new()
        .set("friends", SetKind::Networks, &[(host(OTHER), None)])
        .rules(pod("b", &[STRANGER], reaching("friends"), Vec::new()));
    assert_eq!(change(&mut backend, &comes), 0, "flows that are revoked");
    let kept = [(POD, ONE), (STRANGER, ONE), (STRANGER, OTHER)];
    let open = kept.map(|(from, to)| (datagram(from, to), to));
    let _ends = datagram(POD, OTHER);
    let marks = || kept.map(|(from, to)| mark(from, to));
    let (before, written) = (marks(), backend.written());
    assert_ne!(before[0], before[1], "they have generations of their own");
    assert_eq!(before[1], before[2]);
    assert_eq!(
        change(&mut backend, &without(OTHER)),
        1,
        "flows that are revoked, {flavour:?}"
    );
    assert_eq!(state(POD, OTHER), State::Revoked);
    assert_eq!(marks(), before, "{flavour:?}: they are asked again");
    for (socket, to) in &open {
        socket.send((*to, 9)).unwrap();
    }
    assert_eq!(marks(), before, "{flavour:?}: they were asked again");
    assert_eq!(backend.written(), written, "{flavour:?}");
}

/// There are 127 generations with eight bits, and half of them are taken off flows at once.
#[test]
fn a_reused_generation_is_on_no_older_flow_and_on_none_of_another_pod() {
    const EGRESS: u32 = 0x00ff_0000;
    in_fresh_namespace(|| {
        flows_stay();
        let masks = [format!("{EGRESS:#x}"), "0xfe000100".to_owned()];
        let masks = masks.map(|mask| mask.parse().unwrap());
        let marks = Marks::new(masks[0], masks[1]).unwrap();
        assert_eq!(marks.generations(), 127);
        let mut backend = backend_marking(marks, Flavour::Nft, ThisHost);
        backend.adopt(NOW).unwrap();
        let unrestricted = |name: &str, own: &str| pod(name, &[own], Vec::new(), Vec::new());
        change(&mut backend, &Change::new().rules(unrestricted("b", STRANGER)));
        let _kept = datagram(STRANGER, ONE);
        change(&mut backend, &Change::new().rules(unrestricted("a", POD)));
        let generation = |flow: &Flow| marks.generation(Direction::Egress, flow.mark, EGRESS);
        let mut given_before = Vec::new();
        for turn in 0..260_u32 {
            let mut again = Change::new();
            again
                .0
                .reevaluate
                .push((PodKey::new("default", "a"), Direction::Egress));
            change(&mut backend, &again);
            let to = format!("127.1.{}.{}", turn / 200, turn % 200 + 1);
            let _open = datagram(POD, &to);
            let to: IpAddr = to.parse().unwrap();
            // On a busy machine it is on its way through `lo` for a while.
            let flows = until(|| {
                let flows = Conntrack::open().unwrap().dump(&FlowFilter::ALL).unwrap();
                let new = flows.iter().find(|flow| flow.original.destination == to);
                new.is_some_and(|new| generation(new).is_some()).then_some(flows)
            });
            let of = |to: IpAddr| {
                let mut flows = flows.iter();
                generation(flows.find(|flow| flow.original.destination == to).unwrap()).unwrap()
            };
            let (given, of_another) = (of(to), of(ONE.parse().unwrap()));
            let bearing = flows.iter().filter(|flow| generation(flow) == Some(given));
            assert_eq!(bearing.count(), 1, "{given:?} in turn {turn}");
            given_before.push(given);
            assert_eq!(of_another.number(), 1, "turn {turn}");
        }
        given_before.sort();
        given_before.dedup();
        assert_eq!(
            given_before.len(),
            125,
            "all but the other pod's and that of the other direction"
        );
    });
}

#[test]
fn what_two_rules_allow_goes_on_until_neither_does() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || two_rules_allow(flavour));
    }
}

fn two_rules_allow(flavour: Flavour) {
    let to = |name: &str| rule(Action::Allow, PeerMatch::In(set(name)), PortMatch::Any);
    let isolated = vec![tier(
        Tier::NetworkPolicy,
        vec![to("peers"), to("friends")],
        DefaultAction::Deny,
    )];
    let both = [(host(ONE), None), (host(OTHER), None)];
    let first = Change::new()
        .set("peers", SetKind::Networks, &both)
        .set("friends", SetKind::Networks, &both[..1])
        .rules(pod("a", &[POD], isolated, Vec::new()));
    let mut backend = begin_with(flavour, &first);
    let sets = run("ipset", &["list", "-name"]);
    assert!(
        !sets.contains(names::set(set("peers"), Family::V4).as_str()),
        "they are merged: {sets}"
    );
    let open = [datagram(POD, ONE), datagram(POD, OTHER)];
    let held = mark(POD, ONE);
    let mut less = without(ONE);
    less.0.members_changed[0].removed.push(host(OTHER));
    assert_eq!(
        change(&mut backend, &less),
        1,
        "flows that are revoked, {flavour:?}"
    );
    open[0].send((ONE, 9)).unwrap();
    assert_eq!(
        (state(POD, ONE), mark(POD, ONE)),
        (State::Allowed, held),
        "{flavour:?}"
    );
    assert_eq!(state(POD, OTHER), State::Revoked, "{flavour:?}");
    let mut none = without(ONE);
    none.0.members_changed[0].set = set("friends");
    assert_eq!(
        change(&mut backend, &none),
        1,
        "flows that are revoked, {flavour:?}"
    );
    assert_eq!(state(POD, ONE), State::Revoked, "{flavour:?}");
}

/// The pod has two addresses of IPv4 and one of IPv6, and reaches these.
fn reaching(members: &[&str]) -> Change {
    let peers = rule(Action::Allow, PeerMatch::In(set("peers")), PortMatch::Any);
    let isolated = vec![tier(Tier::NetworkPolicy, vec![peers], DefaultAction::Deny)];
    let members: Vec<_> = members.iter().map(|member| (host(member), None)).collect();
    Change::new().set("peers", SetKind::Networks, &members).rules(pod(
        "a",
        &[POD, SECOND, POD_6],
        isolated,
        Vec::new(),
    ))
}

/// What the compiler makes of a member that goes.
fn without(member: &str) -> Change {
    let mut less = Change::new().members("peers", &[], &[host(member)]);
    let both = Direction::ALL.map(|direction| (PodKey::new("default", "a"), direction));
    less.0.reevaluate.extend(both.clone());
    less.0.by_members.extend(both);
    less
}

/// A network, or one address as one.
fn host(text: &str) -> Member {
    match text.parse::<IpAddr>() {
        Ok(address) => Member::Network(address.into()),
        Err(_) => network(text),
    }
}

/// The only flow's mark.
fn mark(from: &str, to: &str) -> u32 {
    flow(from, to).unwrap().mark
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let found = (0..1_000).find_map(|_| {
        let found = look();
        if found.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        found
    });
    found.expect("it was to be seen within seconds")
}

fn is_in_doubt() -> bool {
    run("ipset", &["list", "-name"]).contains(names::inquiry_marker().as_str())
}

/// A queue for packets (`NFQNL_MSG_CONFIG`, `NFQNL_CFG_CMD_BIND` of linux/netfilter/nfnetlink_queue.h), as long as this lives.
fn a_queue() -> OwnedFd {
    let (kind, stream) = (SockType::Raw, SockProtocol::NetlinkNetFilter);
    let file = socket(AddressFamily::Netlink, kind, SockFlag::SOCK_CLOEXEC, stream).unwrap();
    let mut message = Vec::new();
    for number in [28_u32, 0x0302 | 1 << 16, 1, 0] {
        message.extend(number.to_ne_bytes());
    }
    message.extend([0, 0, 0, 7]);
    message.extend(8_u16.to_ne_bytes());
    message.extend(1_u16.to_ne_bytes());
    message.extend([1, 0, 0, 0]);
    send(file.as_raw_fd(), &message, MsgFlags::empty()).unwrap();
    file
}

fn begin(first: &Change) -> Netfilter {
    begin_with(Flavour::Nft, first)
}

fn begin_with(flavour: Flavour, first: &Change) -> Netfilter {
    let mut backend = backend(flavour, ThisHost);
    backend.adopt(NOW).unwrap();
    change(&mut backend, first);
    backend
}

/// Applies it, and how many flows were revoked then.
fn change(backend: &mut Netfilter, change: &Change) -> u64 {
    apply(backend, change);
    let EndedConnections {
        flows,
        sockets,
        is_unfinished,
    } = backend.search_and_end();
    assert!(!is_unfinished, "all was asked for");
    assert_eq!(sockets, 0, "nothing here is in a namespace of its own");
    flows
}

/// Applies it, and asks nothing.
fn apply(backend: &mut Netfilter, change: &Change) {
    let standing = backend.apply(&change.0, NOW);
    assert_eq!(standing.broken, None);
}

/// Has the kernel keep flows without answers for longer than a busy machine needs for a test.
fn flows_stay() {
    std::fs::write("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "600").unwrap();
}

struct Open(UdpSocket);

impl Open {
    fn send(&self, to: (&str, u16)) -> std::io::Result<usize> {
        self.0.send_to(b"x", to)
    }
}

fn datagram(from: &str, to: &str) -> Open {
    let open = Open(UdpSocket::bind((from, 0)).unwrap());
    open.send((to, 9)).unwrap();
    // On a busy processor the kernel takes it in behind the call that sends it. Nobody marks the flow of one that is no pod's.
    let is_taken_in = || flow(from, to).is_some_and(|flow| flow.mark != 0);
    let _taken_in = (0..20).any(|_| {
        let is_taken_in = is_taken_in();
        if !is_taken_in {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        is_taken_in
    });
    open
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unmarked,
    Allowed,
    Revoked,
    /// It is of a pod that is gone.
    Left,
    /// Nobody knows it.
    Gone,
}

/// The state of the only flow between these two, by its bits for egress.
fn state(from: &str, to: &str) -> State {
    state_of(Direction::Egress, from, to)
}

/// The same by its bits for a direction.
fn state_of(direction: Direction, from: &str, to: &str) -> State {
    flow(from, to).map_or(State::Gone, |flow| state_of_flow(direction, &flow))
}

fn state_of_flow(direction: Direction, flow: &Flow) -> State {
    let marks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap();
    if marks.unmarked(direction).is_in(flow.mark) {
        State::Unmarked
    } else if marks.revoked(direction).is_in(flow.mark) {
        State::Revoked
    } else if marks.gone(direction).is_in(flow.mark) {
        State::Left
    } else {
        State::Allowed
    }
}

/// The only flow between these two.
fn flow(from: &str, to: &str) -> Option<Flow> {
    let mut flows = flows(from, to);
    assert!(flows.len() < 2, "{flows:?}");
    flows.pop()
}

fn flows(from: &str, to: &str) -> Vec<Flow> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let flows = Conntrack::open()
        .unwrap()
        .dump(&FlowFilter::from_source(from))
        .unwrap();
    let is_between = |flow: &Flow| flow.original.destination == to && flow.original.protocol == 17;
    flows.into_iter().filter(is_between).collect()
}

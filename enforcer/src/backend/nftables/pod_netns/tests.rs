use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use egret_policies::rules::{Member, Origin, PortMatch, Tier};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::backend::netfilter::model::set_members::SetMembers;

const FENCED: &str = "127.9.9.9";
const PORT: u16 = 5000;
const ROUNDS: usize = 30;
/// Members that are written together with the rules: the kernel takes milliseconds for them.
const OTHERS: u16 = 4000;

/// Denies a network by a set of this number, and some addresses by another set.
fn firewall(number: usize) -> (EgressFirewall, Contents) {
    let id = |name: &str| SetId::of_content(&format!("{name} {number}"));
    let network = Member::Network("127.9.9.0/24".parse().unwrap());
    let others = (0..OTHERS).map(|number| {
        let [high, low] = number.to_be_bytes();
        Member::Address([198, 18, high, low].into())
    });
    let mut contents = Contents::new();
    let mut hold = |id, kind, members: Vec<Member>| {
        let mut held = SetMembers::default();
        held.extend(
            &members
                .into_iter()
                .map(|member| (member, None))
                .collect::<Vec<_>>(),
        );
        contents.insert(id, (kind, Arc::new(held)));
    };
    hold(id("fence"), SetKind::Networks, vec![network]);
    hold(id("others"), SetKind::Addresses, others.collect());
    let rule = |name| Rule {
        action: Action::Deny,
        peer: PeerMatch::In(id(name)),
        except: None,
        port: PortMatch::Any,
        origin: Origin {
            policy: "ClusterEgressFirewall//fence".into(),
            rule: 0,
            name: None,
        },
        attribution: None,
    };
    let tier = TierRules {
        tier: Tier::ClusterEgressFirewall,
        rules: [rule("others"), rule("fence")].into(),
        default_action: DefaultAction::NextTier,
    };
    (EgressFirewall { tiers: vec![tier] }, contents)
}

fn enforce_number(number: usize) {
    let (firewall, contents) = firewall(number);
    let interfaces = [InterfaceName::new("lo").unwrap()];
    let written = enforce(&interfaces, &firewall, &contents, DenyAction::Drop);
    assert_eq!(written, Ok(1));
    assert_eq!(
        enforce(&interfaces, &firewall, &contents, DenyAction::Drop),
        Ok(0),
        "it is as it is to be"
    );
}

#[test]
fn a_network_stays_denied_inside_a_pod_while_another_set_takes_over() {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        enforce_number(0);
        let fenced = UdpSocket::bind((FENCED, PORT)).unwrap();
        fenced.set_nonblocking(true).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
                    // What is denied in the output is an error of the socket.
                    drop(socket.send_to(b"x", (FENCED, PORT)));
                }
            });
            (1..=ROUNDS).for_each(enforce_number);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(
            fenced.recv(&mut [0]).is_err(),
            "a packet to a denied network arrived"
        );
    };
    std::thread::spawn(inside).join().unwrap();
}

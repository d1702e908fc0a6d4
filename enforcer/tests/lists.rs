//! The most that a node may have to ask: a hundred lists of one tier, every tier behind them, and hundreds of pods. The
//! flavour `nft` refuses a table in which a packet may go through more than 15 chains.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_enforcer::node::{Locate, Location};
use egret_kernel::iptables::{Flavour, InterfaceName};
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{
    DefaultAction, DirectionRules, PeerMatch, PodRules, PortMatch, SetKind, TierRules,
};

use node_world::{Change, NOW, address, in_fresh_namespace, pod, rule, set, tier};

const LISTS: usize = 100;
const PODS: usize = 300;

/// The pod `a` is this host; the others are behind interfaces that begin alike.
#[derive(Debug)]
struct Many;

impl Locate for Many {
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        let name = match addresses {
            [IpAddr::V4(own), ..] if own.is_loopback() => "lo".to_owned(),
            [IpAddr::V4(own), ..] => format!("veth{}", u32::from_be_bytes(own.octets()) % 1_000_000),
            _ => return Err("it has no address".to_owned()),
        };
        Ok(vec![Location::own(InterfaceName::new(name).unwrap())])
    }
}

fn open(flavour: Flavour) -> Netfilter {
    let settings = Settings {
        flavour,
        marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
        deny: DenyAction::Drop,
        telling: None,
    };
    let mut backend = Netfilter::open(settings, Box::new(Many)).unwrap();
    backend.adopt(NOW).unwrap();
    backend
}

/// Each list but one leaves the peer to the next; the tiers behind them leave it to the last, which allows.
fn egress() -> Vec<TierRules> {
    let about = |action, peers| rule(action, PeerMatch::In(set(peers)), PortMatch::Any);
    let list = |place: usize| {
        let rules = if place == LISTS - 1 {
            vec![about(Action::Deny, "denied")]
        } else {
            vec![
                about(Action::Pass, "denied"),
                about(Action::Pass, "left"),
                about(Action::Deny, "left"),
            ]
        };
        tier(Tier::ClusterEgressFirewall, rules, DefaultAction::NextTier)
    };
    let behind = [Tier::Admin, Tier::NetworkPolicy, Tier::Baseline];
    let behind = behind.map(|one| tier(one, vec![about(Action::Pass, "left")], DefaultAction::NextTier));
    (0..LISTS).map(list).chain(behind).collect()
}

fn others() -> impl Iterator<Item = PodRules> {
    (0..PODS).map(|number| {
        let own = format!("10.0.{}.{}", number / 200, number % 200 + 1);
        pod(&format!("other-{number}"), &[&own], Vec::new(), Vec::new())
    })
}

#[track_caller]
fn assert_settled(standing: &SyncStatus) {
    assert!(
        standing.broken.is_none() && standing.pending.is_empty(),
        "{standing:?}"
    );
}

fn arrives(to: &str) -> bool {
    let server = UdpSocket::bind((to, 0)).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    // What this host may not send is an error at once.
    let sent = client.send_to(b"x", server.local_addr().unwrap());
    sent.is_ok() && server.recv(&mut [0; 8]).is_ok()
}

#[test]
fn a_hundred_lists_and_hundreds_of_pods_are_in_force_in_both_flavours() {
    in_fresh_namespace(|| {
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            let mut backend = open(flavour);
            let rules = |egress| pod("a", &["127.0.0.1"], egress, Vec::new());
            let sets = [("denied", "127.0.0.2"), ("left", "127.0.0.3")];
            let change = sets.into_iter().fold(Change::new(), |change, (name, peer)| {
                change.set(name, SetKind::Addresses, &[(address(peer), None)])
            });
            let change = others().fold(change.rules(rules(egress())), Change::rules);
            assert_settled(&backend.apply(&change.0, NOW));
            assert!(!arrives("127.0.0.2"), "{flavour:?}: the last list denies it");
            assert!(
                arrives("127.0.0.3"),
                "{flavour:?}: what leaves its list is allowed in the end"
            );

            let mut asked = rules(egress());
            asked.audit.egress = DirectionRules::of(egress());
            assert_settled(&backend.apply(&Change::new().rules(asked).0, NOW));
            assert!(
                !arrives("127.0.0.2") && arrives("127.0.0.3"),
                "{flavour:?}: with as much in audit"
            );
            backend.remove_everything().unwrap();
        }
    });
}

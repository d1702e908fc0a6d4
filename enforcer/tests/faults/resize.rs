//! A set that outgrows its table is put into a larger one. At each instant, whatever fails and whenever a life ends, it has the members
//! that it had, for as long as they had to live.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use egret_enforcer::backend::Backend as _;
use egret_enforcer::backend::netfilter::{Netfilter, names};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::ipset::{IpSets, SetListing};
use egret_kernel::iptables::Flavour;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{Batch, DefaultAction, Member, PeerMatch, PortMatch, SetKind};
use egret_shared::time::Timestamp;
use nix::errno::Errno;

use crate::node::{Node, Probe, hold_settled};
use crate::node_world::{Change, NOW, in_fresh_namespace, pod, rule, seconds, set, tier};
use crate::tun::What;

#[test]
fn a_set_that_outgrows_its_table_gets_one_sixteen_times_as_large_and_keeps_lifetimes() {
    on_a_node(|node| {
        let (mut backend, standing) = node.start(&nobody_told());
        hold_settled(&standing);
        // So few that the kernel makes no more places by itself: one in 300 times it does for 500.
        tell(&mut backend, 0..300);
        assert_eq!(held().hashsize, 128);
        tell(&mut backend, 300..600);
        let seen = held();
        assert_eq!((seen.hashsize, seen.entries.len()), (2048, 600));
        for entry in &seen.entries {
            let lives = entry.timeout.unwrap().get();
            assert!((3590..=3601).contains(&lives), "{entry:?}");
        }
        assert_eq!(node.ask(&probes()), [true, true, true, false]);
        tell(&mut backend, 600..4_500);
        assert_eq!((held().hashsize, held().entries.len()), (32_768, 4_500));
        assert!(!all().iter().any(|name| names::is_temporary(name)), "{:?}", all());
        // With rules that were written meanwhile, too: they name the set by its number.
        hold_settled(&backend.reconcile(NOW));
        assert_eq!(node.ask(&probes()), [true, true, true, false]);
    });
}

#[test]
fn expired_records_resize_no_set() {
    on_a_node(|node| {
        let (mut backend, _) = node.start(&nobody_told());
        for hour in 0..4_u32 {
            let now = seconds(u64::from(hour) * 7_200);
            tell_at(&mut backend, hour * 400..hour * 400 + 400, now);
        }
        // The kernel's clock goes on slower than this one, and it makes more places by itself.
        assert!(held().hashsize < 2048);
    });
}

#[test]
fn after_a_refused_resize_the_set_has_its_members() {
    for plan in [refusing::<0>, refusing::<1>, refusing::<2>, refusing::<3>] {
        on_a_node(move |node| {
            let (mut backend, _) = node.start(&nobody_told());
            tell(&mut backend, 0..500);
            let planned = Planned::here(Plan::Refuse(plan));
            tell(&mut backend, 500..600);
            assert!(planned.has_ended(), "nothing was refused");
            drop(planned);
            assert_eq!(held().entries.len(), 600);
            assert_eq!(node.ask(&probes()), [true, true, true, false]);
            tell(&mut backend, 600..1_200);
            assert_eq!(
                (held().hashsize, held().entries.len()),
                (2048, 1_200),
                "it is tried again"
            );
            drop(backend);
            let (_next, standing) = node.start(&nobody_told());
            hold_settled(&standing);
            assert!(!all().iter().any(|name| names::is_temporary(name)), "{:?}", all());
            assert_eq!(held().entries.len(), 1_200);
        });
    }
}

/// One step of an exchange, by its place among them.
fn refusing<const PLACE: usize>(taken: &Taken) -> Option<Errno> {
    let words = ["cannot create", "cannot add", "cannot swap", "cannot destroy"][PLACE];
    let is_made = ["cannot create", "cannot swap"].contains(&words) || taken.what.contains("-wider");
    // What is not there is not taken away.
    let is_first = words == "cannot destroy" && !all().iter().any(|name| names::is_temporary(name));
    (taken.what.starts_with(words) && is_made && !is_first).then_some(Errno::ENOMEM)
}

#[test]
fn after_a_crash_in_a_resize_the_set_has_its_members() {
    on_a_node(|node| {
        for steps in 0.. {
            let (mut backend, _) = node.start(&nobody_told());
            tell(&mut backend, 0..500);
            let planned = Planned::here(Plan::EndAfter(BTreeMap::from([(Step::Sets, steps)])));
            tell(&mut backend, 500..600);
            let is_whole = !planned.has_ended();
            drop(planned);
            assert!(held().entries.len() >= 500, "after {steps} steps");
            drop(backend);
            let (mut next, standing) = node.start(&nobody_told());
            hold_settled(&standing);
            tell(&mut next, 500..600);
            assert_eq!(held().entries.len(), 600, "after {steps} steps");
            assert_eq!(node.ask(&probes()), [true, true, true, false]);
            assert!(!all().iter().any(|name| names::is_temporary(name)), "{:?}", all());
            egret_enforcer::backend::netfilter::cleanup::remove(node.flavour).unwrap();
            if is_whole {
                assert!(steps > 5, "remove, create, fill, swap, remove, add");
                return;
            }
        }
    });
}

fn on_a_node(test: impl Fn(&Node) + Send + Copy + 'static) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || test(&Node::new(flavour)));
    }
}

/// A pod that may open what it was told, which is nothing yet.
fn nobody_told() -> Batch {
    let told = rule(Action::Allow, PeerMatch::In(set("told")), PortMatch::Any);
    let rules = pod(
        "a",
        &["10.0.0.1"],
        vec![tier(Tier::NetworkPolicy, vec![told], DefaultAction::Deny)],
        Vec::new(),
    );
    Change::new().set("told", SetKind::Records, &[]).rules(rules).0
}

fn tell(backend: &mut Netfilter, numbers: std::ops::Range<u32>) {
    tell_at(backend, numbers, NOW);
}

/// For an hour, a hundred at once.
fn tell_at(backend: &mut Netfilter, numbers: std::ops::Range<u32>, now: Timestamp) {
    let until = now.after(std::time::Duration::from_secs(3_600));
    let numbers: Vec<u32> = numbers.collect();
    for some in numbers.chunks(100) {
        let members: Vec<_> = some
            .iter()
            .map(|number| (Member::Address(told(*number)), Some(until)))
            .collect();
        // What is refused is seen by what the set holds.
        drop(backend.add_records(&Change::new().members("told", &members, &[]).0, now));
    }
}

fn told(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(203, 0, 0, 1)) + number).into()
}

/// The first one that it was told, one from the midst, one of the last, and one that it never was.
fn probes() -> [Probe; 4] {
    ["203.0.0.1", "203.0.0.101", "203.0.2.10", "198.51.100.5"].map(|to| Probe {
        through: "veth-1",
        from: "10.0.0.1",
        to,
        what: What::Tcp(80),
    })
}

fn held() -> SetListing {
    let name = names::set(set("told"), Family::V4);
    IpSets::open().unwrap().list_one(name.as_str()).unwrap().unwrap()
}

fn all() -> Vec<String> {
    IpSets::open().unwrap().names().unwrap()
}

//! What objects have in common is kept once, and means the same.

mod random;
mod fixture;

use std::sync::Arc;

use egret_policies::model::cluster::Entity;
use egret_policies::model::{Effect, Peer, Peers, Policy, Port, Ports, Shared};
use proptest::collection::vec;
use proptest::prelude::*;

use fixture::{Say, allow, names, network_policy, pod};
use random::entity;

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn an_object_of_shared_parts_is_the_same_object(entities in vec(entity(), 1..60)) {
        let mut shared = Shared::default();
        for entity in entities {
            prop_assert_eq!(&shared.entity(entity.clone()), &entity);
        }
    }
}

#[test]
fn what_no_object_has_any_more_is_forgotten() {
    let mut shared = Shared::default();
    let stays = shared.entity(Entity::Pod(pod("default/stays", "app=stays", &["10.0.0.1"])));
    for number in 0..50_000 {
        let labels = format!("app=a{number},version=v{number}");
        drop(shared.entity(Entity::Pod(pod("default/goes", &labels, &["10.0.0.2"]))));
    }
    assert!(shared.count() < 10_000, "{}", shared.count());
    let again = shared.entity(Entity::Pod(pod("default/again", "app=stays", &["10.0.0.3"])));
    let (Entity::Pod(one), Entity::Pod(other)) = (&stays, &again) else {
        panic!("pods stay pods")
    };
    let value = |pod: &egret_policies::model::cluster::Pod| pod.labels.get("app").map(str::as_ptr);
    assert_eq!(value(one), value(other), "one text");
}

fn lists(policy: &Policy) -> (&Arc<[Peer]>, &Arc<[Port]>) {
    let Effect::Rules(rules) = &policy.egress else {
        panic!("{policy:?}")
    };
    let (Peers::OneOf(peers), Ports::OneOf(ports)) = (&rules[0].peers, &rules[0].ports) else {
        panic!("{rules:?}")
    };
    (peers, ports)
}

#[test]
fn equal_lists_of_peers_and_of_ports_are_there_once_and_go_with_the_last_policy() {
    let mut shared = Shared::default();
    let mut policy = |name: &str, peer: &str| {
        let mut rule = allow(names(&[peer]));
        rule.ports = Ports::OneOf([Port::Icmp].into());
        match shared.entity(Entity::Policy(network_policy(name, "").egress(vec![rule]))) {
            Entity::Policy(policy) => policy,
            other => panic!("{other:?}"),
        }
    };
    let (one, other) = (policy("default/one", "a.test"), policy("default/other", "a.test"));
    assert!(Arc::ptr_eq(lists(&one).0, lists(&other).0), "one list of peers");
    assert!(Arc::ptr_eq(lists(&one).1, lists(&other).1), "one list of ports");
    for number in 0..10_000 {
        drop(policy("default/goes", &format!("a{number}.test")));
    }
    assert!(shared.count() < 5_000, "{}", shared.count());
}

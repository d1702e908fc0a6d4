//! A big cluster: a small change stays small.

mod fixture;

use egret_policies::compiler::{Compiler, Event, InSync, Work};
use egret_policies::model::Direction;
use egret_policies::model::cluster::{Entity, Pod};
use egret_policies::rules::Batch;
use egret_policies::simulator::Simulator;

use fixture::*;

const POLICIES: usize = 1000;
const LOCAL: usize = 100;
const REMOTE: usize = 2000;

fn remote(number: usize, team: usize) -> Pod {
    let address = format!("10.1.{}.{}", number / 250, number % 250);
    let mut pod = pod(
        &format!("shop/remote-{number}"),
        &format!("team=t{team}"),
        &[&address],
    );
    pod.node = Some("there".into());
    pod
}

/// Every local pod is selected by a tenth of the policies; every policy names its own set.
fn big() -> Vec<Entity> {
    let local = (0..LOCAL).map(|number| {
        let address = format!("10.0.0.{}", number + 1);
        Entity::Pod(pod(
            &format!("shop/local-{number}"),
            &format!("group=g{}", number % 10),
            &[&address],
        ))
    });
    let remote = (0..REMOTE).map(|number| Entity::Pod(remote(number, number % POLICIES)));
    let policies = (0..POLICIES).map(|number| {
        let subject = format!("group=g{}", number % 10);
        let peers = pods(&format!("team=t{number}"));
        let rules = vec![
            allow(peers),
            allow(networks(&["192.0.2.0/24"])),
            allow(names(&["*.example.test"])),
        ];
        Entity::Policy(network_policy(&format!("shop/p{number}"), &subject).egress(rules))
    });
    local.chain(remote).chain(policies).collect()
}

/// The oracle is left out: it is slow by design.
fn compiled() -> (Compiler<InSync>, Simulator) {
    let mut compiler = Compiler::new(settings());
    for entity in big() {
        compiler.handle(Event::Apply(entity), START);
    }
    let mut compiler = compiler.in_sync();
    let mut memory = Simulator::new();
    let batch = compiler.poll_batch(START).expect("a batch is due");
    memory.apply(&batch, START).expect("the batch applies");
    (compiler, memory)
}

fn change(compiler: &mut Compiler<InSync>, entity: Entity) -> Batch {
    compiler.handle(Event::Apply(entity), START);
    compiler.poll_batch(START).expect("a change makes a batch due")
}

#[test]
fn a_label_of_one_pod_of_thousands_touches_two_sets() {
    let (mut compiler, memory) = compiled();
    assert_eq!(memory.pods().count(), LOCAL);
    assert_eq!(memory.sets().count(), POLICIES + LOCAL + 1);
    let batch = change(&mut compiler, Entity::Pod(remote(7, 8)));
    assert_eq!(batch.members_changed.len(), 2);
    assert!(
        batch.rules_replaced.is_empty() && batch.sets_created.is_empty() && batch.sets_destroyed.is_empty()
    );
    assert_eq!(
        batch.reevaluate.len(),
        LOCAL / 10,
        "only pods that were allowed to reach it"
    );
    assert!(
        batch
            .reevaluate
            .iter()
            .all(|(_, direction)| *direction == Direction::Egress)
    );
}

#[test]
fn a_policy_touches_the_pods_that_it_selects() {
    let (mut compiler, _) = compiled();
    let same = || Entity::Policy(network_policy("shop/p7", "group=g7").egress(vec![]));
    let batch = change(&mut compiler, same());
    assert_eq!(batch.rules_replaced.len(), LOCAL / 10);
    assert_eq!(batch.sets_destroyed.len(), 1);
    let settled = compiler.revision();
    assert_eq!(compiler.handle(Event::Apply(same()), START), settled);
}

/// What was done between two moments.
fn work_of(compiler: &mut Compiler<InSync>, event: Event) -> Work {
    let before = compiler.work();
    compiler.handle(event, START);
    while compiler.poll_batch(START).is_some() {}
    let after = compiler.work();
    Work {
        pods_compiled: after.pods_compiled - before.pods_compiled,
        policies_filled: after.policies_filled - before.policies_filled,
        set_lookups: after.set_lookups - before.set_lookups,
        ..Work::default()
    }
}

fn work(pods_compiled: usize, policies_filled: usize, sets_asked: usize) -> Work {
    Work {
        pods_compiled,
        policies_filled,
        set_lookups: sets_asked,
        ..Work::default()
    }
}

/// The work is counted, not timed: it is the same on every machine.
#[test]
fn what_does_not_concern_the_node_costs_it_nothing() {
    let (mut compiler, _) = compiled();
    let elsewhere = |name: &str, team: &str| {
        let mut pod = pod(name, &format!("team={team}"), &["10.2.0.1"]);
        pod.node = Some("there".into());
        Event::Apply(Entity::Pod(pod))
    };
    let policy = |peers| {
        let policy = network_policy("elsewhere/p", "group=g7").egress(vec![allow(peers)]);
        Event::Apply(Entity::Policy(policy))
    };
    for (event, expected, story) in [
        (elsewhere("elsewhere/a", "none"), work(0, 0, 0), "a pod in no set"),
        (elsewhere("elsewhere/a", "other"), work(0, 0, 0), "its label"),
        (
            policy(pods("team=t1")),
            work(0, 0, 0),
            "a policy of a namespace without a pod here",
        ),
        (policy(pods("team=t2")), work(0, 0, 0), "a change of it"),
        (
            elsewhere("elsewhere/a", "t1"),
            work(0, 0, 1),
            "a pod that comes into one set",
        ),
        (
            elsewhere("elsewhere/a", "t2"),
            work(0, 0, 2),
            "and from there into another",
        ),
    ] {
        assert_eq!(work_of(&mut compiler, event), expected, "{story}");
    }
}

#[test]
fn a_change_of_one_policy_fills_in_no_other() {
    let (mut compiler, _) = compiled();
    let one = network_policy("shop/p7", "group=g7").egress(vec![allow(pods("team=t8"))]);
    let all = admin_policy("all", 1, "").egress(vec![deny(pods("team=t9"))]);
    let nobody = admin_policy("nobody", 1, "group=none").egress(vec![deny(pods("team=t9"))]);
    let tenth = LOCAL / 10;
    for (policy, expected, story) in [
        (one, work(tenth, tenth, 0), "one that selects a tenth of the pods"),
        (all, work(LOCAL, LOCAL, 0), "one that selects all of them"),
        (nobody, work(0, 0, 0), "one that selects none"),
    ] {
        let event = Event::Apply(Entity::Policy(policy));
        assert_eq!(work_of(&mut compiler, event), expected, "{story}");
    }
}

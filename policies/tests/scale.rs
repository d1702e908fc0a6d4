//! A big cluster: a small change stays small.

mod situation;

use egret_policies::compiler::{Compiler, Event, InSync};
use egret_policies::memory::Memory;
use egret_policies::model::Direction;
use egret_policies::model::cluster::{Entity, Pod};
use egret_policies::rules::Batch;

use situation::*;

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
fn compiled() -> (Compiler<InSync>, Memory) {
    let mut compiler = Compiler::new(settings());
    for entity in big() {
        compiler.handle(Event::Apply(entity), START);
    }
    let mut compiler = compiler.in_sync();
    let mut memory = Memory::new();
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

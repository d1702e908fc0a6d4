//! Compiler and memory decide what the oracle decides: for any small cluster, after any history, and
//! for every connection that can be asked about.

mod random;
mod fixture;

use std::collections::BTreeSet;

use egret_policies::compiler::{Event, Settings};
use egret_shared::pod::PodKey;
use proptest::collection::vec;
use proptest::prelude::*;

use fixture::{Fixture, answer, settings};
use random::{Step, connections, dns, entering, entity, step};

fn take(fixture: &mut Fixture, step: Step) {
    match step {
        Step::Apply(entity) => fixture.tell(Event::Apply(entity)),
        Step::Delete(key) => fixture.tell(Event::Delete(key)),
        Step::Observe(client, name, addresses, ttl) => {
            // What waits for a pod to come is the subject of its own tests.
            if fixture.world.owner(client).is_some() {
                let told = answer(&client.to_string(), name, &addresses, fixture.now, ttl);
                fixture.tell(Event::Observed(told));
            }
        }
        Step::Sleep(seconds) => fixture.sleep(seconds),
        Step::Poll => {
            fixture.poll();
            hold_to_oracle(fixture);
        }
    }
}

fn hold_to_oracle(fixture: &Fixture) {
    let with_rules: BTreeSet<PodKey> = fixture.memory.pods().map(|rules| rules.pod.clone()).collect();
    let local: BTreeSet<PodKey> = fixture.world.local_pods().collect();
    assert_eq!(with_rules, local);
    for pod in &local {
        for connection in connections(pod) {
            fixture.decide_connection(&connection);
        }
    }
    for entering in entering() {
        fixture.decide_entering(entering);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn a_cluster_compiled_at_once_is_decided_as_the_oracle_does(dns in dns(), entities in vec(entity(), 1..25)) {
        hold_to_oracle(&Fixture::with(Settings { dns, ..settings() }, entities));
    }

    #[test]
    fn a_cluster_with_a_history_is_decided_as_the_oracle_does(dns in dns(), steps in vec(step(), 1..60)) {
        let mut fixture = Fixture::with(Settings { dns, ..settings() }, []);
        for step in steps {
            take(&mut fixture, step);
        }
        fixture.poll();
        hold_to_oracle(&fixture);
    }
}

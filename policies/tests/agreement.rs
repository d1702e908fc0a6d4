//! Compiler and memory decide what the oracle decides: for any small cluster, after any history, and
//! for every connection that can be asked about.

mod random;
mod situation;

use std::collections::BTreeSet;

use egret_policies::compiler::{Event, Settings};
use egret_shared::pod::PodKey;
use proptest::collection::vec;
use proptest::prelude::*;

use random::{Step, connections, dns, entering, entity, step};
use situation::{Situation, answer, settings};

fn take(situation: &mut Situation, step: Step) {
    match step {
        Step::Apply(entity) => situation.tell(Event::Apply(entity)),
        Step::Delete(key) => situation.tell(Event::Delete(key)),
        Step::Observe(client, name, addresses, ttl) => {
            // What waits for a pod to come is the subject of its own tests.
            if situation.world.owner(client).is_some() {
                let told = answer(&client.to_string(), name, &addresses, situation.now, ttl);
                situation.tell(Event::Observed(told));
            }
        }
        Step::Sleep(seconds) => situation.sleep(seconds),
        Step::Poll => {
            situation.poll();
            hold_to_oracle(situation);
        }
    }
}

fn hold_to_oracle(situation: &Situation) {
    let with_rules: BTreeSet<PodKey> = situation.memory.pods().map(|rules| rules.pod.clone()).collect();
    let local: BTreeSet<PodKey> = situation.world.local_pods().collect();
    assert_eq!(with_rules, local);
    for pod in &local {
        for connection in connections(pod) {
            situation.decide_connection(&connection);
        }
    }
    for entering in entering() {
        situation.decide_entering(entering);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn a_cluster_compiled_at_once_is_decided_as_the_oracle_does(dns in dns(), entities in vec(entity(), 1..25)) {
        hold_to_oracle(&Situation::with(Settings { dns, ..settings() }, entities));
    }

    #[test]
    fn a_cluster_with_a_history_is_decided_as_the_oracle_does(dns in dns(), steps in vec(step(), 1..60)) {
        let mut situation = Situation::with(Settings { dns, ..settings() }, []);
        for step in steps {
            take(&mut situation, step);
        }
        situation.poll();
        hold_to_oracle(&situation);
    }
}

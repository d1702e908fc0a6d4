//! The path does not matter: whatever the order of events, and whenever batches are taken, the kernel
//! ends in the same state; and on the way it never allows what neither end of a batch allows.

mod random;
mod fixture;

use std::collections::BTreeMap;
use std::net::IpAddr;

use egret_policies::compiler::{Event, Settings};
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::rules::{Batch, Member, MembersChanged};
use egret_policies::simulator::{Connection, Simulator, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;

use fixture::{Fixture, START, Say, admin_policy, allow, deny, labels, pass, pod, pods, settings};
use random::{churn, connections, dns, entering, entity};

/// Objects by key: of two with one key the later counts.
fn last_of_each(entities: &[Entity]) -> BTreeMap<EntityKey, Entity> {
    entities
        .iter()
        .map(|entity| (entity.key(), entity.clone()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn any_order_of_events_ends_in_the_same_kernel_state(
        dns in dns(),
        goal in vec(entity(), 1..20),
        detours in vec((entity(), any::<bool>(), any::<bool>()), 0..20),
        order in vec(any::<prop::sample::Index>(), 20),
    ) {
        let goal = last_of_each(&goal);
        let settings = Settings { dns, ..settings() };
        let mut by_detour = Fixture::with(settings.clone(), []);
        for (entity, is_deleted, is_polled) in detours {
            let key = entity.key();
            by_detour.tell(Event::Apply(entity));
            if is_polled {
                by_detour.poll();
            }
            if is_deleted || !goal.contains_key(&key) {
                by_detour.tell(Event::Delete(key));
            }
        }
        let mut left: Vec<Entity> = goal.values().cloned().collect();
        for pick in order {
            if left.is_empty() {
                break;
            }
            let entity = left.remove(pick.index(left.len()));
            by_detour.tell(Event::Apply(entity));
            if pick.index(2) == 0 {
                by_detour.poll();
            }
        }
        by_detour.poll();
        let at_once = Fixture::with(settings, goal.into_values());
        prop_assert_eq!(by_detour.memory, at_once.memory);
    }

    #[test]
    fn between_two_states_nothing_is_allowed_that_neither_allows(
        dns in dns(),
        start in vec(entity(), 1..20),
        changes in vec(vec(entity(), 1..6), 1..4),
    ) {
        hold_through(Fixture::with(Settings { dns, ..settings() }, start), changes);
    }

    #[test]
    fn while_labels_and_policies_change_together_nothing_is_opened(
        start in vec(churn(), 4..20),
        changes in vec(vec(churn(), 1..6), 1..6),
    ) {
        hold_through(Fixture::new(start), changes);
    }
}

fn hold_through(mut fixture: Fixture, changes: Vec<Vec<Entity>>) {
    for change in changes {
        let (old, world) = (fixture.memory.clone(), fixture.world.clone());
        for entity in change {
            fixture.tell(Event::Apply(entity));
        }
        let mut batches = Vec::new();
        while let Some(batch) = fixture.compiler.poll_batch(START) {
            fixture.memory.apply(&batch, START).expect("the batch applies");
            batches.push(batch);
        }
        // What comes to the pods or leaves them may be half known for a moment.
        let is_passing = |address| world.owner(address).is_some() != fixture.world.owner(address).is_some();
        hold_between(&old, &fixture.memory, &batches, is_passing);
        hold_reevaluated(&old, &fixture.memory, &batches);
    }
}

fn hold_between(old: &Simulator, new: &Simulator, batches: &[Batch], is_passing: impl Fn(IpAddr) -> bool) {
    let mut between = old.clone();
    for step in batches.iter().flat_map(steps) {
        between.apply(&step, START).expect("a step of a batch applies");
        hold_entering_between(old, &between, new, &is_passing);
        for rules in old.pods() {
            if new.pod(&rules.pod).is_none() {
                continue;
            }
            for connection in connections(&rules.pod) {
                if is_passing(connection.peer) {
                    continue;
                }
                let [before, now, after] =
                    [old, &between, new].map(|memory| memory.decide(&connection, START).verdict);
                assert!(
                    now == Verdict::Deny || before == Verdict::Allow || after == Verdict::Allow,
                    "{connection:?} is allowed after {step:?}"
                );
            }
        }
    }
}

fn hold_entering_between(
    old: &Simulator,
    between: &Simulator,
    new: &Simulator,
    is_passing: impl Fn(IpAddr) -> bool,
) {
    for connection in entering().into_iter().filter(|one| !is_passing(one.destination)) {
        let [before, now, after] =
            [old, between, new].map(|memory| memory.decide_entering(connection, START).verdict);
        assert!(
            now == Verdict::Deny || before == Verdict::Allow || after == Verdict::Allow,
            "{connection:?} is allowed between two states that deny it"
        );
    }
}

/// Whatever was allowed and is not any more is asked again; where that is for the sake of members, for the sake of its peer.
fn hold_reevaluated(old: &Simulator, new: &Simulator, batches: &[Batch]) {
    let is_asked = |connection: &Connection| {
        let asked = (connection.pod.clone(), connection.direction);
        batches.iter().any(|batch| {
            let has_new_rules = batch.rules_replaced.iter().any(|rules| rules.pod == asked.0);
            let is_by_members = batch.by_members.contains(&asked) && !has_new_rules;
            batch.reevaluate.contains(&asked) && (!is_by_members || is_about(batch, connection.peer))
        })
    };
    for rules in old.pods().filter(|rules| new.pod(&rules.pod).is_some()) {
        for connection in connections(&rules.pod) {
            let [before, after] = [old, new].map(|memory| memory.decide(&connection, START).verdict);
            let has_closed = before == Verdict::Allow && after == Verdict::Deny;
            assert!(
                !has_closed || is_asked(&connection),
                "{connection:?} has closed and is not asked again"
            );
        }
    }
}

/// Whether members of a batch are about an address.
fn is_about(batch: &Batch, peer: IpAddr) -> bool {
    let members = batch.members_changed.iter().flat_map(|changed| {
        let added = changed.added.iter().map(|(member, _)| member);
        added.chain(&changed.removed)
    });
    members.into_iter().any(|member| match member {
        Member::Address(address) | Member::AddressPort(address, ..) => *address == peer,
        Member::Network(network) | Member::NetworkPort(network, ..) => network.contains(&peer),
    })
}

/// A batch as a kernel may take it: one thing after the other.
fn steps(batch: &Batch) -> Vec<Batch> {
    let step = |fill: &dyn Fn(&mut Batch)| {
        let mut step = Batch::empty(batch.revision);
        fill(&mut step);
        step
    };
    let mut all = vec![step(&|step| step.sets_created.clone_from(&batch.sets_created))];
    for changed in &batch.members_changed {
        for member in &changed.added {
            all.push(step(&|step| {
                step.members_changed.push(MembersChanged {
                    set: changed.set,
                    added: vec![*member],
                    removed: Vec::new(),
                });
            }));
        }
        for member in &changed.removed {
            all.push(step(&|step| {
                step.members_changed.push(MembersChanged {
                    set: changed.set,
                    added: Vec::new(),
                    removed: vec![*member],
                });
            }));
        }
    }
    for rules in &batch.rules_replaced {
        all.push(step(&|step| step.rules_replaced.push(rules.clone())));
    }
    if let Some(rules) = &batch.node_rules {
        all.push(step(&|step| step.node_rules = Some(rules.clone())));
    }
    for pod in &batch.pods_removed {
        all.push(step(&|step| step.pods_removed.push(pod.clone())));
    }
    for set in &batch.sets_destroyed {
        all.push(step(&|step| step.sets_destroyed.push(*set)));
    }
    all
}

/// A set behind which anything may stand, and another, both with the address that comes: no order of the two is safe for an
/// address that was there before, and writing rules anew for each pod of the cluster would cost more than it is worth.
#[test]
fn a_pod_that_comes_to_another_node_or_leaves_it_writes_no_rules() {
    let policy = admin_policy("p", 1, "app=client").egress(vec![
        pass(pods("app=web")),
        deny(pods("tier=shop")),
        allow(pods("app=web")),
    ]);
    let client = Entity::Pod(pod("default/client", "app=client", &["10.0.0.1"]));
    let mut elsewhere = pod("default/web", "app=web,tier=shop", &["10.0.0.2"]);
    elsewhere.node = Some("elsewhere".into());
    let mut fixture = Fixture::new([client, Entity::Policy(policy)]);
    let batch = fixture.apply(Entity::Pod(elsewhere.clone()));
    assert_eq!((batch.rules_replaced, batch.members_changed.len()), (vec![], 2));
    elsewhere.labels = labels("app=other,tier=other");
    let batch = fixture.apply(Entity::Pod(elsewhere.clone()));
    assert!(!batch.rules_replaced.is_empty(), "a label changes aside");
    let batch = fixture.apply(Entity::Pod(pod("default/other", "app=web", &["10.0.0.3"])));
    assert_eq!(batch.rules_replaced.len(), 1, "its own");
    let batch = fixture.delete(EntityKey::Pod(elsewhere.key));
    assert_eq!(batch.rules_replaced, []);
}

/// What its rules name changes with it, and its rules go; those of others stay as they are.
#[test]
fn a_pod_that_leaves_this_node_writes_no_rules_of_others() {
    let policy = admin_policy("p", 1, "team=a").egress(vec![
        pass(pods("app=web")),
        deny(pods("tier=shop")),
        allow(pods("app=web")),
    ]);
    let gone = pod("default/other", "team=a,app=web,tier=shop", &["10.0.0.2"]);
    let mut web = pod("default/web", "app=web,tier=shop", &["10.0.0.3"]);
    let start = || {
        let client = pod("default/client", "team=a", &["10.0.0.1"]);
        let pods = [client, gone.clone(), web.clone()].map(Entity::Pod);
        Fixture::new(pods.into_iter().chain([Entity::Policy(policy.clone())]))
    };
    let (mut alone, mut with_a_label) = (start(), start());
    let batch = alone.delete(EntityKey::Pod(gone.key.clone()));
    assert_eq!(batch.pods_removed, std::slice::from_ref(&gone.key));
    assert_eq!((batch.rules_replaced, batch.members_changed.len()), (vec![], 2));
    web.labels = labels("app=other,tier=shop");
    with_a_label.tell(Event::Apply(Entity::Pod(web)));
    let batch = with_a_label.delete(EntityKey::Pod(gone.key));
    assert!(
        !batch.rules_replaced.is_empty(),
        "a label beside it changes aside"
    );
}

//! What answers open goes ahead of batches that are on their way, and only what may.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use egret_policies::compiler::Event;
use egret_policies::model::cluster::{ApiServerAddresses, Entity, EntityKey};
use egret_policies::model::{Direction, Kind, Peers, Policy, PolicyId, Rule};
use egret_policies::rules::{Batch, Member, SetId, SetKind};
use egret_policies::simulator::Verdict::{Allow, Deny};
use egret_shared::time::Timestamp;
use proptest::prelude::*;

use fixture::*;

const CLIENT: &str = "default/client";
const TOLD: &str = "203.0.113.7";

fn client() -> Entity {
    Entity::Pod(pod(CLIENT, "app=client", &["10.0.0.1"]))
}

fn other() -> Entity {
    Entity::Pod(pod("default/other", "app=other", &["10.0.0.2"]))
}

fn may_reach(list: Peers) -> Entity {
    Entity::Policy(network_policy("default/names", "app=client").egress(vec![allow(list)]))
}

fn told(fixture: &mut Fixture, name: &str) {
    fixture.tell(Event::Observed(answer("10.0.0.1", name, &[ip(TOLD)], START, 60)));
}

fn batches(fixture: &mut Fixture) -> Vec<Batch> {
    std::iter::from_fn(|| fixture.compiler.poll_batch(fixture.now)).collect()
}

fn sets_of(batches: &[Batch]) -> BTreeSet<SetId> {
    let created = batches
        .iter()
        .flat_map(|batch| &batch.sets_created)
        .map(|spec| spec.id);
    let changed = batches
        .iter()
        .flat_map(|batch| &batch.members_changed)
        .map(|changed| changed.set);
    created.chain(changed).collect()
}

#[test]
fn an_answer_is_open_before_the_rules_of_another_pod_are_written() {
    let mut fixture = Fixture::new([client(), other(), may_reach(names(&["api.example.test"]))]);
    fixture.tell(Event::Apply(Entity::Policy(
        network_policy("default/closed", "app=other").egress(Vec::new()),
    )));
    let on_their_way = batches(&mut fixture);
    told(&mut fixture, "api.example.test");
    let revision = fixture.compiler.handle(
        Event::Observed(answer("10.0.0.9", "x.test", &[], START, 1)),
        START,
    );
    let ahead = fixture
        .compiler
        .poll_answers(&sets_of(&on_their_way), START)
        .unwrap();
    assert!(ahead.rules_replaced.is_empty() && ahead.members_changed.len() == 1);
    assert!(ahead.revision >= revision && !fixture.compiler.has_pending_answers());
    fixture.memory.apply(&ahead, START).unwrap();
    assert_eq!(fixture.egress(CLIENT, TOLD, tcp(443)), Allow);
    for batch in on_their_way {
        fixture.memory.apply(&batch, START).unwrap();
    }
    assert_eq!(fixture.egress("default/other", TOLD, tcp(443)), Deny);
    assert_eq!(batches(&mut fixture), []);
}

/// The address is in both sets or in none.
#[test]
fn an_answer_that_a_deny_names_too_takes_the_ordinary_path() {
    for refused in [deny(names(&["*.example.test"])), pass(names(&["*.example.test"]))] {
        let refusal = admin_policy("refusal", 1, "app=client").egress(vec![refused]);
        let allowed = may_reach(names(&["api.example.test"]));
        let mut fixture = Fixture::new([client(), Entity::Policy(refusal), allowed]);
        told(&mut fixture, "api.example.test");
        assert_eq!(fixture.compiler.poll_answers(&BTreeSet::new(), START), None);
        assert!(fixture.compiler.has_pending_answers());
        let all = batches(&mut fixture);
        assert!(sets_of(&all).len() >= 2);
        assert!(!fixture.compiler.has_pending_answers());
    }
}

/// The rules that will name it are not there yet, so nobody is told that it is open.
#[test]
fn an_answer_about_a_set_that_is_being_made_waits_for_its_rules() {
    let mut fixture = Fixture::new([client(), may_reach(names(&["old.example.test"]))]);
    fixture.tell(Event::Apply(may_reach(names(&["new.example.test"]))));
    let on_their_way = batches(&mut fixture);
    told(&mut fixture, "new.example.test");
    let busy = sets_of(&on_their_way);
    assert_eq!(fixture.compiler.poll_answers(&busy, START), None);
    assert!(fixture.compiler.has_pending_answers());
    for batch in on_their_way {
        fixture.memory.apply(&batch, START).unwrap();
    }
    let then = fixture.compiler.poll_answers(&BTreeSet::new(), START).unwrap();
    fixture.memory.apply(&then, START).unwrap();
    assert_eq!(fixture.egress(CLIENT, TOLD, tcp(443)), Allow);
}

/// Eight rules with an order, and two names among them.
fn ordered(last: &str) -> Entity {
    let mut rules: Vec<Rule> = (0..7)
        .map(|number| deny(networks(&[&format!("198.51.{number}.0/24")])))
        .collect();
    rules.push(deny(networks(&[last])));
    rules.insert(3, deny(names(&["api.example.test"])));
    rules.insert(5, allow(names(&["www.example.test"])));
    Entity::Policy(admin_policy("ordered", 1, "app=client").egress(rules))
}

/// Goes through changes of members: whoever is in the set of a name is in that of all names, at each step.
fn assert_all_names_have_what_a_name_has(fixture: &mut Fixture, all: SetId) -> usize {
    let mut held: BTreeMap<SetId, BTreeSet<Member>> = BTreeMap::new();
    for spec in fixture.memory.sets().filter(|spec| spec.kind == SetKind::Records) {
        held.insert(
            spec.id,
            fixture
                .memory
                .members(spec.id)
                .map(|(member, _)| member)
                .collect(),
        );
    }
    let mut changes = 0;
    let batches = batches(fixture);
    let changed = batches.iter().flat_map(|batch| &batch.members_changed);
    for change in changed {
        let Some(members) = held.get_mut(&change.set) else {
            continue;
        };
        changes += 1;
        members.extend(change.added.iter().map(|(member, _)| *member));
        members.retain(|member| !change.removed.contains(member));
        let of_names = held
            .iter()
            .filter(|(id, _)| **id != all)
            .flat_map(|(_, members)| members);
        let missing: Vec<&Member> = of_names.filter(|member| !held[&all].contains(member)).collect();
        assert!(missing.is_empty(), "{missing:?} after {change:?}");
    }
    for batch in &batches {
        fixture.memory.apply(batch, fixture.now).unwrap();
    }
    changes
}

#[test]
fn what_is_told_for_a_name_between_rules_is_told_for_all_names_first_and_for_as_long() {
    let mut fixture = Fixture::new([client(), other(), ordered("198.51.100.0/24")]);
    let rules = fixture.memory.pod(&key(CLIENT)).unwrap();
    let all = rules.egress.names.as_ref().unwrap().records;
    fixture.poll();
    // Rules are replaced together with what comes and what goes.
    told(&mut fixture, "api.example.test");
    fixture.tell(Event::Apply(ordered("198.51.101.0/24")));
    assert_eq!(assert_all_names_have_what_a_name_has(&mut fixture, all), 2);
    assert_eq!(fixture.egress(CLIENT, TOLD, tcp(443)), Deny);
    let declared = ApiServerAddresses {
        name: "cloud".into(),
        addresses: vec![ip(TOLD)],
    };
    fixture.tell(Event::Apply(Entity::ApiServerAddresses(declared)));
    fixture.tell(Event::Apply(ordered("198.51.102.0/24")));
    assert_eq!(assert_all_names_have_what_a_name_has(&mut fixture, all), 2);
    assert_eq!(fixture.egress(CLIENT, TOLD, tcp(443)), Allow);
}

#[test]
fn an_answer_for_a_name_that_is_allowed_between_rules_is_open_at_once() {
    let mut fixture = Fixture::new([client(), other(), ordered("198.51.100.0/24")]);
    fixture.tell(Event::Apply(Entity::Policy(
        network_policy("default/closed", "app=other").egress(Vec::new()),
    )));
    let on_their_way = batches(&mut fixture);
    told(&mut fixture, "www.example.test");
    let ahead = fixture
        .compiler
        .poll_answers(&sets_of(&on_their_way), START)
        .unwrap();
    assert_eq!(ahead.members_changed.len(), 2, "of the name, and of all names");
    assert!(!fixture.compiler.has_pending_answers());
}

#[derive(Clone, Debug)]
enum Step {
    /// A policy of this number is so, or is gone.
    Policy(u8, Option<u8>),
    Pod(bool),
    /// This name resolves to this address.
    Observed(u8, u8),
    /// The next batch that is on its way arrives.
    Arrive,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3u8, proptest::option::of(0..4u8)).prop_map(|(policy, how)| Step::Policy(policy, how)),
        any::<bool>().prop_map(Step::Pod),
        (0..3u8, 1..4u8).prop_map(|(name, address)| Step::Observed(name, address)),
        (0..3u8, 1..4u8).prop_map(|(name, address)| Step::Observed(name, address)),
        Just(Step::Arrive),
        Just(Step::Arrive),
    ];
    proptest::collection::vec(step, 0..40)
}

fn policy_so(number: u8, how: u8) -> Policy {
    let list = names(&[["a.x.test", "b.x.test", "*.x.test"][usize::from(number)]]);
    let rule = match how {
        0 => allow(list),
        1 => deny(list),
        2 => pass(list),
        _ => allow(networks(&["203.0.113.0/31"])),
    };
    admin_policy(&format!("p{number}"), u32::from(number), "app=client").egress(vec![rule])
}

fn id_of(number: u8) -> PolicyId {
    PolicyId {
        kind: Kind::ClusterNetworkPolicy,
        namespace: None,
        name: format!("p{number}").as_str().into(),
    }
}

fn event(step: &Step) -> Option<Event> {
    Some(match step {
        Step::Policy(number, Some(how)) => Event::Apply(Entity::Policy(policy_so(*number, *how))),
        Step::Policy(number, None) => Event::Delete(EntityKey::Policy(id_of(*number))),
        Step::Pod(true) => Event::Apply(client()),
        Step::Pod(false) => Event::Delete(EntityKey::Pod(key(CLIENT))),
        Step::Observed(name, address) => {
            let name = ["a.x.test", "b.x.test", "c.x.test"][usize::from(*name)];
            let address = std::net::Ipv4Addr::new(203, 0, 113, *address).into();
            Event::Observed(answer("10.0.0.1", name, &[address], START, 60))
        }
        Step::Arrive => return None,
    })
}

/// As the engine does it: one change is on its way at a time, and what came meanwhile is made into the next one then.
#[derive(Default)]
struct Flight {
    left: VecDeque<Batch>,
    busy: BTreeSet<SetId>,
}

fn open_answers(fixture: &mut Fixture, busy: &BTreeSet<SetId>, now: Timestamp) {
    while let Some(ahead) = fixture.compiler.poll_answers(busy, now) {
        assert!(
            ahead
                .members_changed
                .iter()
                .all(|changed| changed.removed.is_empty())
        );
        fixture.memory.apply(&ahead, now).unwrap();
    }
}

fn arrive(fixture: &mut Fixture, flight: &mut Flight, now: Timestamp) {
    if let Some(batch) = flight.left.pop_front() {
        fixture.memory.apply(&batch, now).unwrap();
    }
    if flight.left.is_empty() {
        open_answers(fixture, &BTreeSet::new(), now);
        flight.left = batches(fixture).into();
        flight.busy = sets_of(flight.left.make_contiguous());
    }
}

proptest! {
    /// `Simulator` refuses what no kernel could do: a set that is not there, a life that gets shorter.
    #[test]
    fn answers_that_overtake_batches_end_in_the_state_of_the_ordinary_order(steps in steps()) {
        let mut ahead = Fixture::new([client()]);
        let mut ordinary = Fixture::new([client()]);
        let mut flight = Flight::default();
        for step in &steps {
            match event(step) {
                Some(event) => {
                    ahead.tell(event.clone());
                    open_answers(&mut ahead, &flight.busy, START);
                    ordinary.tell(event);
                    ordinary.poll();
                }
                None => arrive(&mut ahead, &mut flight, START),
            }
        }
        for _ in 0..100 {
            arrive(&mut ahead, &mut flight, START);
        }
        for name in 1..4u8 {
            let address = format!("203.0.113.{name}");
            let verdicts = [&ahead, &ordinary].map(|one| one.decide(CLIENT, Direction::Egress, &address, tcp(443)));
            prop_assert_eq!(&verdicts[0], &verdicts[1], "{}", address);
        }
    }
}

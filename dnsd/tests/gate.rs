//! The response gate in simulated time: which answers are held, for which sequence, and how a hold ends.
//!
//! It is longer than 800 lines because all situations share one simulated world.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::IpAddr;
use std::time::Duration;

use egret_dnsd::enforcement::client::ClientId;
use egret_dnsd::enforcement::gate::{Gate, GateLimits, GateSnapshot, Outcome, Stall, Ticket, Verdict};
use egret_dnsd::enforcement::records::RecordLimits;
use egret_kernel::links::Attachment;
use egret_shared::link::{Interest, ToDnsd, ToEnforcer};
use egret_shared::name::DnsName;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

const POD: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const LIMITS: GateLimits = GateLimits {
    deadline: Duration::from_millis(200),
    per_client: 3,
    total: 5,
    records: RecordLimits {
        per_client: 100,
        total: 1_000,
        grace: Duration::from_secs(30),
    },
};

/// A hold, a clock, and the enforcer's end of the link.
struct World {
    gate: Gate,
    now: Timestamp,
    sent: Vec<ToEnforcer>,
    /// What all clients' addresses are attached to.
    attachment: Option<Attachment>,
}

impl World {
    fn new() -> Self {
        let now = Timestamp::from_millis(10_000);
        Self {
            gate: Gate::new(LIMITS, now),
            now,
            sent: Vec::new(),
            attachment: Some(Attachment::to(&"a cable")),
        }
    }

    fn client_id(&self, address: IpAddr) -> ClientId {
        ClientId {
            address,
            attachment: self.attachment,
        }
    }

    /// An enforcer is connected, the pod waits for `*.example.test`, all that was told is realized.
    fn settled() -> Self {
        let mut world = Self::new();
        world.connect(&["*.example.test"]);
        world.realize_all();
        world
    }

    fn connect(&mut self, patterns: &[&str]) {
        self.gate.connected(self.now);
        self.interest(patterns);
        self.gate.receive(ToDnsd::InterestComplete, self.now);
        self.transmit();
    }

    fn interest(&mut self, patterns: &[&str]) {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let pod = POD.into();
        self.gate
            .receive(ToDnsd::Interest(Interest { pod, patterns }), self.now);
    }

    fn next(&mut self) -> Option<ToEnforcer> {
        let attachment = self.attachment;
        let who_has = |address| ClientId { address, attachment };
        self.gate.poll_transmit(self.now, who_has)
    }

    fn transmit(&mut self) -> Vec<ToEnforcer> {
        let sent: Vec<ToEnforcer> = std::iter::from_fn(|| self.next()).collect();
        self.sent.extend(sent.iter().cloned());
        sent
    }

    /// Whether something is to go to the enforcer now.
    fn is_to_send(&self) -> bool {
        self.gate.poll_outgoing().is_some_and(|due| due <= self.now)
    }

    /// The number of the last observation that was sent.
    fn last(&self) -> Sequence {
        let numbers = self.sent.iter().filter_map(|message| match message {
            ToEnforcer::Observed { sequence, .. } => Some(*sequence),
            ToEnforcer::Hello(_)
            | ToEnforcer::ResyncStarted
            | ToEnforcer::ResyncEnded { .. }
            | ToEnforcer::Holding { .. } => None,
        });
        numbers.max().unwrap_or(Sequence::ZERO)
    }

    fn realize(&mut self, through: Sequence, failed: Vec<Sequence>) {
        self.gate.receive(ToDnsd::Realized { through, failed }, self.now);
    }

    fn realize_all(&mut self) {
        self.transmit();
        self.realize(self.last(), Vec::new());
    }

    fn ask(&mut self, name: &str, address: u8, ttl: u64) -> Verdict {
        self.ask_as(POD.into(), name, address, ttl)
    }

    fn ask_as(&mut self, client: IpAddr, name: &str, address: u8, ttl: u64) -> Verdict {
        let told = ObservedAddress {
            address: [192, 0, 2, address].into(),
            expires: self.now.after(Duration::from_secs(ttl)),
        };
        let observation = Observation {
            client,
            question: name.parse().unwrap(),
            chain: Vec::new(),
            addresses: vec![told],
        };
        let is_settled = self.gate.is_settled(
            self.client_id(client),
            observation.question.as_str(),
            observation.addresses.iter().copied(),
        );
        let before = self.gate.poll_outgoing();
        let verdict = self
            .gate
            .answer(observation, self.attachment, client.into(), self.now);
        if is_settled {
            assert_eq!(
                (verdict, self.gate.poll_outgoing()),
                (Verdict::Release, before),
                "{name}"
            );
        }
        verdict
    }

    fn held(&mut self, name: &str, address: u8, ttl: u64) -> Ticket {
        ticket(self.ask(name, address, ttl))
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
        self.gate.handle_timeout(self.now);
    }

    fn ended(&mut self) -> Vec<(Ticket, Outcome)> {
        std::iter::from_fn(|| self.gate.poll_ended()).collect()
    }
}

fn ticket(verdict: Verdict) -> Ticket {
    match verdict {
        Verdict::Hold(ticket) => ticket,
        Verdict::Release | Verdict::OverLimit => panic!("expected the answer to be held, got {verdict:?}"),
    }
}

#[test]
fn an_answer_with_interest_waits_until_its_sequence_is_realized() {
    let mut world = World::settled();
    let held = world.held("api.example.test", 1, 30);
    world.transmit();
    let before = world.last();
    world.pass(50);
    assert_eq!(world.ended(), []);
    world.realize(before, Vec::new());
    assert_eq!(world.ended(), [(held, Outcome::Realized)]);
}

#[test]
fn an_answer_without_interest_is_recorded_and_released() {
    let mut world = World::settled();
    assert_eq!(world.ask("www.other.test", 1, 30), Verdict::Release);
    assert_eq!(
        world.ask_as(OTHER.into(), "api.example.test", 1, 30),
        Verdict::Release
    );
    assert_eq!(world.transmit().len(), 2);
}

#[test]
fn observations_without_a_held_answer_are_sent_together() {
    let mut world = World::settled();
    world.pass(1_000);
    world.ask("first.other.test", 1, 30);
    assert!(world.is_to_send(), "nothing went just before");
    assert_eq!(world.transmit().len(), 1);
    for number in 2..5 {
        world.ask(&format!("n{number}.other.test"), number, 30);
        world.pass(3);
        assert!(!world.is_to_send(), "{number}");
    }
    world.pass(1);
    assert!(world.is_to_send(), "10 ms after the first");
    assert!(world.next().is_some());
    assert!(world.is_to_send(), "all of them go");
    assert_eq!((world.transmit().len(), world.is_to_send()), (2, false));
}

#[test]
fn a_held_answers_observation_is_sent_at_once_with_all_delayed_ones() {
    let mut world = World::settled();
    world.ask("first.other.test", 1, 30);
    world.transmit();
    world.ask("second.other.test", 2, 30);
    assert!(!world.is_to_send());
    let held = world.held("api.example.test", 3, 30);
    assert!(world.is_to_send());
    assert_eq!(world.transmit().len(), 2);
    // The next one tells nothing new, but what it waits for may not have gone.
    world.ask("third.other.test", 4, 30);
    assert!(!world.is_to_send());
    let second = world.held("api.example.test", 3, 30);
    assert!(world.is_to_send());
    world.realize_all();
    assert_eq!(
        world.ended(),
        [(held, Outcome::Realized), (second, Outcome::Realized)]
    );
}

#[test]
fn delayed_observations_are_sent_at_once_on_an_interest_or_shutdown() {
    let mut world = World::settled();
    let hurries: [fn(&mut World); 2] = [
        |world| world.interest(&["*.example.test", "*.other.test"]),
        |world| world.gate.flush(),
    ];
    for (number, flush) in (1..).step_by(2).zip(hurries) {
        for address in [number, number + 1] {
            world.pass(1);
            world.ask(&format!("n{address}.some.test"), address, 30);
        }
        world.next();
        assert!(world.is_to_send(), "what has begun to go goes on");
        world.transmit();
        world.ask(&format!("last{number}.some.test"), 100 + number, 30);
        assert!(!world.is_to_send());
        flush(&mut world);
        assert!(world.is_to_send());
        world.transmit();
    }
}

#[test]
fn at_shutdown_observations_made_without_an_enforcer_are_sent() {
    let mut world = World::settled();
    world.gate.disconnected();
    world.ask("n1.some.test", 1, 30);
    world.gate.connected(world.now);
    assert!(!world.is_to_send(), "its interests may come");
    world.gate.flush();
    assert!(world.is_to_send());
    assert!(matches!(
        world.transmit()[..],
        [
            ToEnforcer::ResyncStarted,
            ToEnforcer::Observed { .. },
            ToEnforcer::ResyncEnded { .. }
        ]
    ));
}

#[test]
fn the_second_of_two_equal_answers_waits_for_the_sequence_of_the_first() {
    let mut world = World::settled();
    let first = world.held("api.example.test", 1, 30);
    let second = world.held("api.example.test", 1, 30);
    assert_eq!(world.transmit().len(), 1, "the second tells nothing new");
    world.realize(world.last(), Vec::new());
    assert_eq!(
        world.ended(),
        [(first, Outcome::Realized), (second, Outcome::Realized)]
    );
}

#[test]
fn a_realized_answer_is_released_at_once_until_its_lifetime_grows() {
    let mut world = World::settled();
    world.held("api.example.test", 1, 30);
    world.realize_all();
    let (question, address) = (
        "api.example.test".parse::<DnsName>().unwrap(),
        ObservedAddress {
            address: [192, 0, 2, 1].into(),
            expires: world.now.after(Duration::from_secs(30)),
        },
    );
    assert!(world.gate.is_settled(
        world.client_id(POD.into()),
        question.as_str(),
        [address].into_iter()
    ));
    assert!(!world.gate.is_settled(
        world.client_id(OTHER.into()),
        question.as_str(),
        [address].into_iter()
    ));
    assert_eq!(world.ask("api.example.test", 1, 30), Verdict::Release);
    assert_eq!(world.ask("api.example.test", 1, 10), Verdict::Release);
    assert!(world.transmit().is_empty());
    world.held("api.example.test", 1, 60);
}

#[test]
fn an_observation_that_counts_no_longer_is_sent_again_with_the_longest_lifetime() {
    let mut world = World::settled();
    let long = world.now.after(Duration::from_secs(60));
    world.held("api.example.test", 1, 60);
    world.transmit();
    // Not realized, so that it is told again.
    world.realize(world.last(), vec![world.last()]);
    world.held("api.example.test", 1, 30);
    let told: Vec<Timestamp> = world
        .transmit()
        .into_iter()
        .filter_map(|message| match message {
            ToEnforcer::Observed { observation, .. } => Some(observation.addresses[0].expires),
            ToEnforcer::Hello(_)
            | ToEnforcer::ResyncStarted
            | ToEnforcer::ResyncEnded { .. }
            | ToEnforcer::Holding { .. } => None,
        })
        .collect();
    assert_eq!(
        told,
        [long],
        "the pod may still use the first answer, and the ledger says so"
    );
    world.realize_all();
    assert_eq!(world.ask("api.example.test", 1, 60), Verdict::Release);
}

#[test]
fn a_cached_answer_is_held_for_a_pod_without_a_record() {
    let mut world = World::settled();
    world.ask_as(OTHER.into(), "api.example.test", 1, 30);
    world.realize_all();
    ticket(world.ask_as(POD.into(), "api.example.test", 1, 30));
}

#[test]
fn a_new_address_of_a_known_name_waits() {
    let mut world = World::settled();
    world.held("api.example.test", 1, 30);
    world.realize_all();
    world.held("api.example.test", 2, 30);
}

#[test]
fn the_deadline_releases_an_answer_and_the_next_one_is_held() {
    let mut world = World::settled();
    let held = world.held("api.example.test", 1, 30);
    assert_eq!(world.gate.poll_timeout(), Some(world.now.after(LIMITS.deadline)));
    world.pass(199);
    assert_eq!(world.ended(), []);
    world.pass(1);
    assert_eq!(world.ended(), [(held, Outcome::Stalled(Stall::Deadline))]);
    world.held("api.example.test", 1, 29);
}

#[test]
fn a_failed_sequence_releases_its_answer_and_is_sent_again_on_the_next_query() {
    let mut world = World::settled();
    let held = world.held("api.example.test", 1, 30);
    world.transmit();
    world.realize(world.last(), vec![world.last()]);
    assert_eq!(world.ended(), [(held, Outcome::Stalled(Stall::Failed))]);
    let again = world.held("api.example.test", 1, 30);
    assert_eq!(world.transmit().len(), 1);
    world.realize(world.last(), Vec::new());
    assert_eq!(world.ended(), [(again, Outcome::Realized)]);
}

#[test]
fn above_a_limit_nothing_is_held() {
    let mut world = World::settled();
    for address in 1..=3 {
        world.held("api.example.test", address, 30);
    }
    assert_eq!(world.ask("api.example.test", 4, 30), Verdict::OverLimit);
    world.realize_all();
    world.held("api.example.test", 5, 30);
}

#[test]
fn while_the_enforcer_is_away_its_interest_and_realized_sequences_stay() {
    let mut world = World::settled();
    world.held("api.example.test", 1, 30);
    world.realize_all();
    world.ended();
    world.gate.disconnected();
    assert_eq!(world.ask("api.example.test", 1, 30), Verdict::Release);
    assert_eq!(world.ask("www.other.test", 1, 30), Verdict::Release);
    let held = world.held("new.example.test", 1, 30);
    world.pass(200);
    assert_eq!(world.ended(), [(held, Outcome::Stalled(Stall::LinkDown))]);
}

#[test]
fn an_enforcer_that_reconnects_receives_all_live_observations() {
    let mut world = World::settled();
    world.held("before.example.test", 1, 30);
    world.ask("dead.example.test", 2, 1);
    world.realize_all();
    world.gate.disconnected();
    world.ask("meanwhile.other.test", 3, 60);
    world.pass(32_000);
    world.sent.clear();
    world.connect(&["*.example.test"]);
    let names: Vec<String> = world.sent.iter().map(describe).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(names.first().map(String::as_str), Some("started"));
    assert_eq!(names.last().map(String::as_str), Some("ended"));
    assert_eq!(
        sorted,
        ["before.example.test", "ended", "meanwhile.other.test", "started"]
    );
}

fn describe(message: &ToEnforcer) -> String {
    match message {
        ToEnforcer::Hello(_) => "hello".to_owned(),
        ToEnforcer::ResyncStarted => "started".to_owned(),
        ToEnforcer::ResyncEnded { .. } => "ended".to_owned(),
        ToEnforcer::Holding { .. } => "holding".to_owned(),
        ToEnforcer::Observed { observation, .. } => observation.question.to_string(),
    }
}

#[test]
fn sequences_are_sent_in_order_and_the_end_names_the_last() {
    let mut world = World::settled();
    for address in 0..50 {
        world.ask(&format!("n{address}.other.test"), address, 60);
    }
    world.gate.disconnected();
    world.sent.clear();
    world.gate.connected(world.now);
    world.interest(&["*.example.test"]);
    world.gate.receive(ToDnsd::InterestComplete, world.now);
    for address in 0..50 {
        let next = world.next();
        world.sent.extend(next);
        world.ask(&format!("m{address}.other.test"), address, 60);
    }
    world.transmit();
    let mut last = Sequence::ZERO;
    for message in &world.sent {
        match message {
            ToEnforcer::Observed { sequence, .. } => {
                assert!(*sequence > last, "{sequence} after {last}");
                last = *sequence;
            }
            ToEnforcer::ResyncEnded { through } => assert_eq!(*through, last),
            ToEnforcer::Hello(_) | ToEnforcer::ResyncStarted | ToEnforcer::Holding { .. } => {}
        }
    }
    let observed = world
        .sent
        .iter()
        .filter(|message| matches!(message, ToEnforcer::Observed { .. }));
    assert_eq!(observed.count(), 100);
}

#[test]
fn a_held_answer_outlives_a_restart_of_the_enforcer_and_goes_first() {
    let mut world = World::settled();
    for address in 0..20 {
        world.ask(&format!("n{address}.other.test"), address, 60);
    }
    let held = world.held("api.example.test", 1, 30);
    world.realize(Sequence::ZERO, Vec::new());
    world.gate.disconnected();
    world.pass(50);
    world.sent.clear();
    world.connect(&["*.example.test"]);
    assert_eq!(describe(&world.sent[0]), "api.example.test");
    assert_eq!(world.ended(), []);
    world.realize(world.last(), Vec::new());
    assert_eq!(world.ended(), [(held, Outcome::Realized)]);
}

#[test]
fn a_sequence_of_an_earlier_connection_releases_nothing() {
    let mut world = World::settled();
    world.held("api.example.test", 1, 30);
    world.transmit();
    let stale = world.last();
    world.gate.disconnected();
    world.connect(&["*.example.test"]);
    world.realize(stale, Vec::new());
    assert_eq!(world.ended(), []);
}

#[test]
fn a_connection_that_ends_before_it_realized_anything_leaves_nothing_realized() {
    let mut world = World::settled();
    world.ask("www.other.test", 1, 300);
    world.gate.disconnected();
    world.gate.connected(world.now);
    world.gate.disconnected();
    world.interest(&["*.other.test"]);
    world.held("www.other.test", 1, 300);
}

#[test]
fn a_wider_interest_invalidates_earlier_records() {
    let mut world = World::settled();
    world.ask("www.other.test", 1, 300);
    world.realize_all();
    world.interest(&["*.example.test", "www.other.test"]);
    let held = world.held("www.other.test", 1, 300);
    assert_eq!(world.transmit().len(), 1, "it is told again");
    world.realize(world.last(), Vec::new());
    assert_eq!(world.ended(), [(held, Outcome::Realized)]);
    assert_eq!(world.ask("www.other.test", 1, 300), Verdict::Release);
}

#[test]
fn an_unchanged_interest_holds_no_recorded_answer() {
    let mut world = World::settled();
    world.held("api.example.test", 1, 30);
    world.realize_all();
    world.interest(&["*.example.test"]);
    assert_eq!(world.ask("api.example.test", 1, 30), Verdict::Release);
}

#[test]
fn a_pod_that_a_new_connection_does_not_name_has_no_interest() {
    let mut world = World::settled();
    world.gate.disconnected();
    world.gate.connected(world.now);
    world.gate.receive(ToDnsd::InterestComplete, world.now);
    assert_eq!(world.ask("api.example.test", 1, 30), Verdict::Release);
}

#[test]
fn without_any_interest_each_answer_is_held_for_two_seconds() {
    let mut world = World::new();
    let first = world.held("www.other.test", 1, 30);
    world.pass(200);
    assert_eq!(world.ended(), [(first, Outcome::Stalled(Stall::NoInterest))]);
    world.pass(1_799);
    assert!(world.gate.waits_for_interest(world.now));
    world.held("www.other.test", 2, 30);
    world.pass(1);
    assert_eq!(world.ask("www.other.test", 3, 30), Verdict::Release);
}

#[test]
fn the_first_interest_decides_which_answers_stay_held() {
    let mut world = World::new();
    let dull = world.held("www.other.test", 1, 30);
    let wanted = world.held("api.example.test", 2, 30);
    world.pass(20);
    world.connect(&["*.example.test"]);
    assert_eq!(world.ended(), [(dull, Outcome::NotInteresting)]);
    world.realize_all();
    assert_eq!(world.ended(), [(wanted, Outcome::Realized)]);
}

#[test]
fn an_enforcer_without_interests_receives_all_observations() {
    let mut world = World::new();
    world.gate.connected(world.now);
    assert!(world.transmit().is_empty());
    world.pass(100);
    let told: Vec<String> = world.transmit().iter().map(describe).collect();
    assert_eq!(told, ["started", "ended"]);
}

#[test]
fn an_enforcer_that_does_not_read_gets_a_resync_and_nothing_is_released_early() {
    let mut world = World::settled();
    let before = world.last();
    let held = world.held("api.example.test", 1, 300);
    let mut asked = 0;
    while asked < 9_000 {
        world.ask(&format!("n{}.other.test", asked % 90), 2, 300 + asked);
        asked += 1;
    }
    let told = world.transmit();
    assert!(told.len() < 200, "{} messages", told.len());
    assert!(told.iter().any(|message| describe(message) == "n89.other.test"));
    world.realize(before.next(), Vec::new());
    assert_eq!(world.ended(), []);
    world.realize(world.last(), Vec::new());
    assert_eq!(world.ended(), [(held, Outcome::Realized)]);
}

#[test]
fn a_flood_of_one_client_leaves_the_records_of_the_others() {
    let mut world = World::settled();
    world.ask_as(OTHER.into(), "www.other.test", 1, 300);
    for number in 0..5_000 {
        world.ask(&format!("n{number}.other.test"), 2, 300);
    }
    let stats = world.gate.stats();
    assert_eq!(stats.recorded, 101);
    assert_eq!(stats.evictions, 4_900);
}

/// The names of a pod's records.
fn recorded(world: &World) -> Vec<String> {
    let records = world.gate.records_of(POD.into(), world.now);
    let names = records
        .iter()
        .map(|record| record.observation.question.to_string());
    names.collect()
}

#[test]
fn names_without_interest_are_evicted_before_names_with_interest() {
    let mut world = World::settled();
    for number in 0..50 {
        world.ask(&format!("n{number}.example.test"), 1, 300);
        world.realize_all();
    }
    for number in 0..5_000 {
        world.ask(&format!("n{number}.other.test"), 2, 300);
    }
    let of_interest = recorded(&world)
        .iter()
        .filter(|name| name.ends_with(".example.test"))
        .count();
    assert_eq!((of_interest, world.gate.stats().recorded), (50, 100));
    // Among names with interest, and where there are no others, the oldest is evicted.
    for number in 50..180 {
        world.ask(&format!("n{number}.example.test"), 1, 300);
        world.realize_all();
    }
    let recorded = recorded(&world);
    assert_eq!(recorded.len(), 100);
    assert!((80..180).all(|number| recorded.contains(&format!("n{number}.example.test"))));
}

#[test]
fn eviction_follows_a_changed_interest() {
    let mut world = World::settled();
    for number in 0..40 {
        world.ask(&format!("n{number}.other.test"), 2, 300);
        world.ask(&format!("n{number}.example.test"), 1, 300);
        world.realize_all();
    }
    world.interest(&["*.other.test"]);
    for number in 0..5_000 {
        world.ask(&format!("n{number}.third.test"), 3, 300);
    }
    let recorded = recorded(&world);
    let of = |zone: &str| recorded.iter().filter(|name| name.ends_with(zone)).count();
    assert_eq!(
        (of(".other.test"), of(".example.test"), of(".third.test")),
        (40, 0, 60)
    );
}

/// The names that the enforcer was told, in order.
fn told(messages: &[ToEnforcer]) -> Vec<String> {
    let names = messages.iter().filter_map(|message| match message {
        ToEnforcer::Observed { observation, .. } => Some(observation.question.to_string()),
        ToEnforcer::Hello(_)
        | ToEnforcer::ResyncStarted
        | ToEnforcer::ResyncEnded { .. }
        | ToEnforcer::Holding { .. } => None,
    });
    names.collect()
}

#[test]
fn records_are_sent_again_only_for_the_same_pod() {
    let (cable, other) = (Some(Attachment::to(&1)), Some(Attachment::to(&2)));
    for (then, now, is_told) in [
        (cable, cable, true),
        (cable, other, false),
        (cable, None, false),
        (None, cable, false),
        (None, None, false),
    ] {
        let mut world = World::settled();
        world.attachment = then;
        world.ask("api.example.test", 1, 60);
        world.realize_all();
        world.gate.disconnected();
        world.attachment = now;
        world.gate.connected(world.now);
        world.gate.receive(ToDnsd::InterestComplete, world.now);
        let sent = world.transmit();
        assert_eq!(!told(&sent).is_empty(), is_told, "{then:?} {now:?}");
        assert!(
            matches!(sent.last(), Some(ToEnforcer::ResyncEnded { .. })),
            "{sent:?}"
        );
        world.ask_as(POD.into(), "api.example.test", 1, 60);
        assert_eq!(
            !told(&world.transmit()).is_empty(),
            !is_told,
            "{then:?} {now:?}: asked again"
        );
    }
}

#[test]
fn a_pod_at_a_reused_address_has_records_of_its_own() {
    let mut world = World::settled();
    world.ask("api.example.test", 1, 60);
    world.ask("www.example.test", 2, 60);
    world.realize_all();
    assert_eq!(
        world.ask_as(POD.into(), "api.example.test", 1, 60),
        Verdict::Release
    );
    world.attachment = Some(Attachment::to(&"another cable"));
    let verdict = world.ask_as(POD.into(), "api.example.test", 1, 60);
    assert!(matches!(verdict, Verdict::Hold(_)), "{verdict:?}");
    assert_eq!(told(&world.transmit()), ["api.example.test"]);
    assert_eq!(
        world.gate.stats().recorded,
        1,
        "what was told to the one before is forgotten"
    );
}

/// So the enforcer says that an address is another pod's: what was asked before it knew that may be nobody's.
#[test]
fn an_interest_that_ends_and_returns_invalidates_records() {
    for (ends, is_told) in [(false, false), (true, true)] {
        let mut world = World::settled();
        world.ask("api.example.test", 1, 60);
        world.realize_all();
        if ends {
            world.interest(&[]);
        }
        world.interest(&["*.example.test"]);
        world.ask_as(POD.into(), "api.example.test", 1, 60);
        assert_eq!(!told(&world.transmit()).is_empty(), is_told, "{ends}");
    }
}

// --- a hold that begins with what another one knew ----------------------------------------------------------------

/// What a hold knows, as it is told to its successor.
fn known_by(world: &World) -> GateSnapshot {
    let clients = world.gate.clients().into_iter();
    GateSnapshot {
        since: Some(world.gate.since()),
        interests: world.gate.interests(),
        records: clients
            .flat_map(|client| world.gate.records_of(client, world.now))
            .collect(),
    }
}

fn successor(of: &World) -> World {
    let mut next = World::new();
    next.now = of.now;
    next.gate = Gate::new(LIMITS, next.now);
    next.gate.restore(known_by(of), next.now);
    next
}

#[test]
fn after_a_takeover_the_first_two_seconds_are_not_repeated() {
    let mut old = World::new();
    assert!(old.gate.waits_for_interest(old.now));
    assert!(successor(&old).gate.waits_for_interest(old.now));
    old.now = old.now.after(Duration::from_secs(3));
    assert!(Gate::new(LIMITS, old.now).waits_for_interest(old.now));
    let mut next = successor(&old);
    assert!(!next.gate.waits_for_interest(next.now));
    assert_eq!(next.ask("api.example.test", 1, 60), Verdict::Release);
}

#[test]
fn after_a_takeover_realized_records_count_until_an_enforcer_connects() {
    let mut old = World::settled();
    old.ask("api.example.test", 1, 60);
    old.realize_all();
    let unrealized = old.ask("new.example.test", 2, 60);
    assert!(matches!(unrealized, Verdict::Hold(_)));
    let mut next = successor(&old);
    assert_eq!(next.ask("api.example.test", 1, 60), Verdict::Release);
    assert!(matches!(next.ask("new.example.test", 2, 60), Verdict::Hold(_)));
    assert_eq!(
        next.ask("api.other.test", 3, 60),
        Verdict::Release,
        "interests are known"
    );
    next.connect(&["*.example.test"]);
    assert!(matches!(next.ask("api.example.test", 1, 60), Verdict::Hold(_)));
    assert!(!next.gate.is_caught_up());
    next.realize_all();
    assert!(next.gate.is_caught_up());
    assert_eq!(next.ask("api.example.test", 1, 60), Verdict::Release);
}

#[test]
fn after_a_takeover_the_enforcer_receives_the_old_records() {
    let mut old = World::settled();
    old.ask("api.example.test", 1, 60);
    old.ask_as(OTHER.into(), "other.example.test", 2, 60);
    let mut next = successor(&old);
    next.connect(&["*.example.test"]);
    let told = next.sent.iter().filter_map(|message| match message {
        ToEnforcer::Observed { observation, .. } => Some(observation.question.to_string()),
        ToEnforcer::Hello(_)
        | ToEnforcer::ResyncStarted
        | ToEnforcer::ResyncEnded { .. }
        | ToEnforcer::Holding { .. } => None,
    });
    let mut told: Vec<String> = told.collect();
    told.sort();
    assert_eq!(told, ["api.example.test", "other.example.test"]);
    let mut elsewhere = successor(&old);
    elsewhere.attachment = Some(Attachment::to(&"another cable"));
    elsewhere.connect(&["*.example.test"]);
    assert_eq!(
        elsewhere.last(),
        Sequence::ZERO,
        "who has the address now was not told"
    );
}

#[test]
fn above_the_total_the_largest_client_gives_up_its_oldest_held_answer() {
    const NEWCOMER: [u8; 4] = [10, 0, 0, 3];
    let mut world = World::new();
    let hold = |world: &mut World, client: [u8; 4], number: u8| {
        let name = format!("n{number}.example.test");
        world.ask_as(client.into(), &name, number, 60)
    };
    let of_pod: Vec<Verdict> = (0..3).map(|number| hold(&mut world, POD, number)).collect();
    for number in 3..5 {
        assert!(matches!(hold(&mut world, OTHER, number), Verdict::Hold(_)));
    }
    // All clients wait while no interest is known.
    assert!(
        matches!(hold(&mut world, NEWCOMER, 5), Verdict::Hold(_)),
        "it has none yet"
    );
    let Verdict::Hold(oldest) = of_pod[0] else {
        panic!("the first is held");
    };
    let over = Outcome::Stalled(Stall::OverLimit);
    assert_eq!(world.gate.poll_ended(), Some((oldest, over)));
    // Nobody has two more than another now.
    assert_eq!(hold(&mut world, OTHER, 6), Verdict::OverLimit);
    assert_eq!(world.gate.poll_ended(), None);
    assert_eq!(world.gate.stats().held, 5);
}

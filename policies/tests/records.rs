//! What a pod was told opens what its policies name, for that pod, while it lives.

mod fixture;
#[path = "records/lives.rs"]
mod lives;
#[path = "records/limits.rs"]
mod limits;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::{Compiler, Event, Settings};
use egret_policies::model::cluster::{Entity, EntityKey, Pod};
use egret_policies::model::{Direction, Policy};
use egret_policies::records::{
    PodSnapshot, RecordCursor, RecordLimits, RecordSettings, SnapshotBuilder, SnapshotChange,
};
use egret_policies::rules::Batch;
use egret_policies::simulator::Verdict::{Allow, Deny};
use egret_shared::name::NamePattern;
use egret_shared::time::Timestamp;

use fixture::*;
use lives::next_life;

const API: &str = "203.0.113.7";

fn client() -> Pod {
    pod("default/client", "app=client", &["10.0.0.1", "fd00::1"])
}

fn other() -> Pod {
    pod("default/other", "app=client", &["10.0.0.2"])
}

/// Pods of app=client are isolated but for these names.
fn names_only(list: &[&str]) -> Policy {
    network_policy("default/names", "app=client").egress(vec![allow(names(list))])
}

fn fixture(list: &[&str]) -> Fixture {
    with_records(RecordSettings::default(), list)
}

fn with_records(records: RecordSettings, list: &[&str]) -> Fixture {
    let settings = Settings {
        records,
        ..settings()
    };
    let entities = [
        Entity::Pod(client()),
        Entity::Pod(other()),
        Entity::Policy(names_only(list)),
    ];
    Fixture::with(settings, entities)
}

fn without_grace() -> RecordSettings {
    RecordSettings {
        grace: Duration::ZERO,
        ..RecordSettings::default()
    }
}

fn many(count: u32) -> Vec<IpAddr> {
    let first = u32::from(Ipv4Addr::new(203, 0, 0, 0));
    (0..count)
        .map(|number| Ipv4Addr::from(first + number).into())
        .collect()
}

fn reaches(fixture: &Fixture, pod: &str, peer: &str) -> bool {
    fixture.egress(pod, peer, tcp(443)) == Allow
}

fn added(batch: &Batch) -> usize {
    batch
        .members_changed
        .iter()
        .map(|changed| changed.added.len())
        .sum()
}

#[test]
fn an_answer_opens_its_addresses_for_the_pod_that_asked_and_no_other() {
    let mut fixture = fixture(&["api.example.test"]);
    assert!(!reaches(&fixture, "default/client", API));
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 60);
    assert!(reaches(&fixture, "default/client", API));
    assert!(!reaches(&fixture, "default/other", API));
    assert_eq!(fixture.ingress("default/client", API, tcp(443)), Allow);
}

#[test]
fn a_pod_may_ask_from_any_of_its_addresses() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("fd00::1", "api.example.test", &[ip(API), ip("2001:db8::7")], 60);
    assert!(reaches(&fixture, "default/client", API));
    assert!(reaches(&fixture, "default/client", "2001:db8::7"));
}

#[test]
fn names_are_matched_by_whole_labels() {
    for (pattern, question, expected) in [
        ("api.example.test", "API.Example.TEST.", true),
        ("api.example.test", "www.api.example.test", false),
        ("*.example.test", "api.example.test", true),
        ("*.example.test", "a.b.example.test", true),
        ("*.example.test", "example.test", false),
        ("*.example.test", "my-example.test", false),
    ] {
        let mut fixture = fixture(&[pattern]);
        fixture.observe("10.0.0.1", question, &[ip(API)], 60);
        assert_eq!(
            reaches(&fixture, "default/client", API),
            expected,
            "{pattern} {question}"
        );
    }
}

#[test]
fn a_record_ends_with_its_time_and_the_grace_without_a_batch() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 60);
    fixture.sleep(89);
    assert!(reaches(&fixture, "default/client", API));
    assert_eq!(
        fixture.compiler.poll_timeout(),
        Some(START.after(Duration::from_secs(90)))
    );
    fixture.sleep(1);
    assert!(
        !reaches(&fixture, "default/client", API),
        "the kernel needs no compiler to drop it"
    );
    fixture.compiler.handle_timeout(fixture.now);
    assert_eq!(fixture.poll(), None);
    assert_eq!(fixture.compiler.record_stats().records, 0);
    assert_eq!(fixture.compiler.poll_timeout(), None);
}

#[test]
fn a_name_that_is_told_again_after_its_end_is_open_again() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
    fixture.sleep(41);
    let batch = fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
    assert_eq!(batch.map(|batch| added(&batch)), Some(1));
    assert!(reaches(&fixture, "default/client", API));
}

#[test]
fn a_newer_answer_extends_and_never_shortens() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 300);
    let shorter = fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
    assert_eq!(shorter.map(|batch| added(&batch)), Some(0));
    let longer = fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 600);
    assert_eq!(
        longer.map(|batch| (added(&batch), batch.reevaluate)),
        Some((1, vec![]))
    );
    fixture.sleep(629);
    assert!(reaches(&fixture, "default/client", API));
    fixture.sleep(1);
    assert!(!reaches(&fixture, "default/client", API));
}

#[test]
fn a_shorter_answer_does_not_shorten_what_a_later_policy_finds() {
    let mut fixture = fixture(&["www.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 300);
    fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
    fixture.apply(Entity::Policy(names_only(&["api.example.test"])));
    fixture.sleep(329);
    assert!(reaches(&fixture, "default/client", API));
    fixture.sleep(1);
    assert!(!reaches(&fixture, "default/client", API));
}

#[test]
fn each_address_has_its_own_end() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip("203.0.113.1")], 10);
    fixture.observe("10.0.0.1", "api.example.test", &[ip("203.0.113.2")], 100);
    fixture.sleep(50);
    assert!(!reaches(&fixture, "default/client", "203.0.113.1"));
    assert!(reaches(&fixture, "default/client", "203.0.113.2"));
}

#[test]
fn an_address_of_two_names_lives_as_long_as_the_longer_one() {
    let mut fixture = fixture(&["*.example.test"]);
    fixture.observe("10.0.0.1", "a.example.test", &[ip(API)], 100);
    fixture.observe("10.0.0.1", "b.example.test", &[ip(API)], 10);
    fixture.sleep(41);
    fixture.compiler.handle_timeout(fixture.now);
    assert_eq!(fixture.poll(), None);
    assert!(reaches(&fixture, "default/client", API));
}

#[test]
fn a_time_to_live_of_zero_lives_for_the_grace_and_at_least_a_second() {
    for (records, millis) in [(RecordSettings::default(), 30_000), (without_grace(), 1_000)] {
        let mut fixture = with_records(records, &["api.example.test"]);
        fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 0);
        fixture.now = Timestamp::from_millis(START.as_millis() + millis - 1);
        assert!(reaches(&fixture, "default/client", API));
        fixture.now = Timestamp::from_millis(START.as_millis() + millis);
        assert!(!reaches(&fixture, "default/client", API));
    }
}

#[test]
fn a_time_to_live_is_kept_within_its_bounds() {
    let bounded = RecordSettings {
        min_ttl: Duration::from_secs(10),
        max_ttl: Duration::from_secs(20),
        ..without_grace()
    };
    for (ttl, lives) in [(1, 10), (15, 15), (1_000_000, 20)] {
        let mut fixture = with_records(bounded.clone(), &["api.example.test"]);
        fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], ttl);
        fixture.sleep(lives - 1);
        assert!(reaches(&fixture, "default/client", API), "{ttl}");
        fixture.sleep(1);
        assert!(!reaches(&fixture, "default/client", API), "{ttl}");
    }
}

#[test]
fn telling_an_old_answer_again_does_not_make_it_live_longer() {
    let mut fixture = fixture(&["api.example.test"]);
    let told = answer("10.0.0.1", "api.example.test", &[ip(API)], fixture.now, 10);
    fixture.tell(Event::Observed(told.clone()));
    fixture.poll();
    fixture.sleep(35);
    fixture.tell(Event::Observed(told.clone()));
    fixture.poll();
    assert!(reaches(&fixture, "default/client", API));
    fixture.sleep(5);
    fixture.tell(Event::Observed(told));
    fixture.poll();
    assert!(!reaches(&fixture, "default/client", API));
}

#[test]
fn a_policy_that_comes_later_works_from_history() {
    let mut fixture = fixture(&["www.example.test"]);
    assert_eq!(
        fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 60),
        None,
        "nothing asks for the name, so there is nothing to wait for"
    );
    fixture.apply(Entity::Policy(names_only(&["*.example.test"])));
    assert!(reaches(&fixture, "default/client", API));
    assert!(!reaches(&fixture, "default/other", API));
}

#[test]
fn an_answer_waits_for_a_pod_that_is_not_known_yet() {
    let mut fixture = fixture(&["api.example.test"]);
    let told = answer("10.0.0.9", "api.example.test", &[ip(API)], fixture.now, 60);
    fixture.compiler.handle(Event::Observed(told), fixture.now);
    fixture.sleep(1);
    let late = Entity::Pod(pod("default/late", "app=client", &["10.0.0.9"]));
    fixture.compiler.handle(Event::Apply(late), fixture.now);
    fixture.poll();
    let decision = fixture.memory.decide(&to_api("default/late"), fixture.now);
    assert_eq!(decision.verdict, Allow);
}

#[test]
fn an_answer_to_a_pod_that_is_gone_does_not_wait_for_the_next_one() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.delete(EntityKey::Pod(key("default/other")));
    let told = answer("10.0.0.2", "api.example.test", &[ip(API)], fixture.now, 60);
    fixture.compiler.handle(Event::Observed(told), fixture.now);
    assert_eq!(fixture.compiler.record_stats().unattributed, 1);
    fixture.apply(Entity::Pod(pod("default/next", "app=client", &["10.0.0.2"])));
    let decision = fixture.memory.decide(&to_api("default/next"), fixture.now);
    assert_eq!(decision.verdict, Deny);
}

fn to_api(pod: &str) -> egret_policies::simulator::Connection {
    egret_policies::simulator::Connection {
        pod: key(pod),
        direction: Direction::Egress,
        peer: ip(API),
        peer_is_own_node: false,
        protocol: tcp(443),
    }
}

#[test]
fn an_answer_to_a_pod_of_another_node_is_not_kept() {
    let mut fixture = fixture(&["api.example.test"]);
    let mut there = pod("default/there", "app=client", &["10.0.0.9"]);
    there.node = Some("there".into());
    fixture.apply(Entity::Pod(there));
    fixture.observe("10.0.0.9", "api.example.test", &[ip(API)], 60);
    let stats = fixture.compiler.record_stats();
    assert_eq!((stats.records, stats.unattributed), (0, 1));
}

#[test]
fn another_pod_with_the_address_was_told_nothing() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.observe("10.0.0.2", "api.example.test", &[ip(API)], 60);
    assert!(reaches(&fixture, "default/other", API));
    fixture.delete(EntityKey::Pod(key("default/other")));
    fixture.apply(Entity::Pod(pod("default/next", "app=client", &["10.0.0.2"])));
    assert!(!reaches(&fixture, "default/next", API));
    fixture.apply(Entity::Pod(pod("default/other", "app=client", &["10.0.0.3"])));
    assert!(!reaches(&fixture, "default/other", API));
}

#[test]
fn another_run_under_the_same_name_was_told_nothing() {
    let run = |uid: &str| {
        let mut pod = other();
        pod.uid = Some(uid.into());
        Entity::Pod(pod)
    };
    let mut fixture = fixture(&["api.example.test"]);
    fixture.apply(run("one"));
    fixture.observe("10.0.0.2", "api.example.test", &[ip(API)], 60);
    assert!(reaches(&fixture, "default/other", API));
    let batch = fixture.apply(run("two"));
    assert!(!reaches(&fixture, "default/other", API));
    assert_eq!(batch.reevaluate, [(key("default/other"), Direction::Egress)]);
    // The set of its names is another one, so that nothing of the old one is adopted after a restart.
    assert_eq!((batch.sets_created.len(), batch.sets_destroyed.len()), (1, 1));
}

#[test]
fn a_protected_address_is_never_opened_by_a_name() {
    let records = RecordSettings {
        protected: vec!["169.254.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()],
        ..RecordSettings::default()
    };
    let mut fixture = with_records(records, &["api.example.test"]);
    let told = ["169.254.169.254", "::ffff:169.254.169.254", "::1", API].map(ip);
    fixture.observe("10.0.0.1", "api.example.test", &told, 60);
    for address in &told[..3] {
        assert!(!reaches(&fixture, "default/client", &address.to_string()));
    }
    assert!(reaches(&fixture, "default/client", API));
    assert_eq!(fixture.compiler.record_stats().protected, 3);
}

#[test]
fn a_hundred_and_twenty_addresses_of_every_name_under_a_wildcard_are_open_at_once() {
    let tight = RecordSettings {
        limits: RecordLimits {
            addresses_per_name: 120,
            ..RecordLimits::default()
        },
        ..RecordSettings::default()
    };
    let mut fixture = with_records(tight, &["*.example.test"]);
    let all = many(240);
    for (name, addresses) in ["docs.example.test", "blog.example.test"]
        .iter()
        .zip(all.chunks(120))
    {
        for some in addresses.chunks(8) {
            fixture.observe("10.0.0.1", name, some, 60);
        }
    }
    for address in &all {
        assert!(
            reaches(&fixture, "default/client", &address.to_string()),
            "{address}"
        );
    }
    assert_eq!(fixture.compiler.record_stats().addresses_of_largest_name, 120);
}

#[test]
fn over_a_limit_the_oldest_goes_and_is_counted() {
    let limits = RecordLimits {
        names_per_pod: 2,
        addresses_per_name: 1,
        total: 150,
    };
    let tight = RecordSettings {
        limits,
        ..RecordSettings::default()
    };
    let mut fixture = with_records(tight, &["*.example.test"]);
    let observe = |fixture: &mut Fixture, client: &str, name: &str, addresses: &[IpAddr]| {
        // The oracle knows no limits, so it is not told.
        let told = answer(client, name, addresses, fixture.now, 60);
        fixture.compiler.handle(Event::Observed(told), fixture.now);
        fixture.poll();
    };
    let is_open = |fixture: &Fixture, address: IpAddr| {
        let mut connection = to_api("default/client");
        connection.peer = address;
        fixture.memory.decide(&connection, fixture.now).verdict == Allow
    };
    let all = many(400);
    for address in &all[..101] {
        observe(&mut fixture, "10.0.0.1", "a.example.test", &[*address]);
    }
    assert_eq!(
        [all[0], all[1], all[100]].map(|address| is_open(&fixture, address)),
        [false, true, true],
        "a hundred are the least that a name may have"
    );
    observe(&mut fixture, "10.0.0.1", "b.example.test", &all[200..201]);
    observe(&mut fixture, "10.0.0.1", "c.example.test", &all[201..202]);
    assert_eq!(
        [all[100], all[200], all[201]].map(|address| is_open(&fixture, address)),
        [false, true, true]
    );
    observe(&mut fixture, "10.0.0.2", "a.example.test", &all[..100]);
    observe(&mut fixture, "10.0.0.2", "b.example.test", &all[100..200]);
    let stats = fixture.compiler.record_stats();
    assert_eq!(
        (
            stats.records,
            stats.evicted_addresses_per_name,
            stats.evicted_names_per_pod,
            stats.evicted_total
        ),
        (150, 1, 100, 52)
    );
    assert!(is_open(&fixture, all[200]), "the pod that has most gives way");
}

#[test]
fn interests_are_the_names_in_force_by_address_and_are_told_when_they_change() {
    let told = |fixture: &mut Fixture| {
        fixture
            .compiler
            .poll_interests()
            .into_iter()
            .map(|interest| (interest.pod, interest.patterns))
            .collect::<Vec<_>>()
    };
    let pattern = |text: &str| text.parse::<NamePattern>().unwrap();
    let mut fixture = fixture(&["api.example.test", "*.example.test"]);
    let both = vec![pattern("api.example.test"), pattern("*.example.test")];
    assert_eq!(
        told(&mut fixture),
        ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|address| (ip(address), both.clone()))
    );
    assert_eq!(told(&mut fixture), []);
    fixture.apply(Entity::Pod(pod("default/client", "app=free", &["10.0.0.1"])));
    assert_eq!(
        told(&mut fixture),
        ["10.0.0.1", "fd00::1"].map(|address| (ip(address), vec![]))
    );
    assert_eq!(fixture.compiler.interests().len(), 1);
    fixture.apply(Entity::Pod(pod("default/client", "app=free,new=", &["10.0.0.1"])));
    assert_eq!(told(&mut fixture), []);
}

#[test]
fn an_address_that_is_another_pods_at_once_waits_for_nothing_in_between() {
    let run = |name: &str, uid: &str| Pod {
        uid: Some(uid.into()),
        ..pod(name, "app=client", &["10.0.0.7"])
    };
    let apply = |name, uid| Event::Apply(Entity::Pod(run(name, uid)));
    let delete = || Event::Delete(EntityKey::Pod(key("default/web")));
    for (what, events, told) in [
        ("the same run", vec![apply("default/web", "one")], vec![]),
        ("another run", vec![apply("default/web", "two")], vec![0, 1]),
        (
            "another pod",
            vec![delete(), apply("default/next", "two")],
            vec![0, 1],
        ),
        (
            "another pod, told before",
            vec![apply("default/next", "two"), delete()],
            vec![0, 1],
        ),
        ("none", vec![delete()], vec![0]),
    ] {
        let mut fixture = fixture(&["api.example.test"]);
        fixture.apply(Entity::Pod(run("default/web", "one")));
        fixture.compiler.poll_interests();
        for event in events {
            fixture.compiler.handle(event, START);
        }
        while fixture.compiler.poll_batch(START).is_some() {}
        let interests = fixture.compiler.poll_interests();
        let numbers: Vec<usize> = interests.iter().map(|interest| interest.patterns.len()).collect();
        assert_eq!(numbers, told, "{what}");
        assert!(interests.iter().all(|interest| interest.pod == ip("10.0.0.7")));
    }
}

#[test]
fn what_was_told_before_all_is_known_counts_too() {
    let mut compiler = Compiler::new(settings());
    let told = answer("10.0.0.1", "api.example.test", &[ip(API)], START, 60);
    for event in [
        Event::Observed(told),
        Event::Apply(Entity::Policy(names_only(&["api.example.test"]))),
        Event::Apply(Entity::Pod(client())),
    ] {
        compiler.handle(event, START);
    }
    let mut compiler = compiler.in_sync();
    let batch = compiler.poll_batch(START).unwrap();
    assert_eq!((added(&batch), batch.reevaluate), (1, vec![]));
    let records: Vec<_> = compiler.records().map(|record| record.name.to_string()).collect();
    assert_eq!(records, ["api.example.test"]);
}

/// Whether a connection that was open before goes on when the rules are asked again; the oracle says the same.
fn goes_on(fixture: &Fixture, address: &str) -> bool {
    let connection = egret_policies::simulator::Connection {
        peer: ip(address),
        ..to_api("default/client")
    };
    fixture.decide_connection(&connection);
    fixture.memory.decide_open(&connection, fixture.now).verdict == Allow
}

#[test]
fn what_a_name_opened_goes_on_after_its_end_while_some_rule_names_it() {
    let moved = || admin_policy("moved", 10, "app=client").egress(vec![allow(names(&["*.example.test"]))]);
    let renamed = |list: &[&str]| {
        let mut policy = names_only(list);
        policy.id.name = "renamed".into();
        policy
    };
    for (what, after, expected) in [
        ("as it was", vec![names_only(&["api.example.test"])], true),
        (
            "a name more",
            vec![names_only(&["more.test", "api.example.test"])],
            true,
        ),
        ("a wildcard", vec![names_only(&["*.example.test"])], true),
        ("another object", vec![renamed(&["api.example.test"])], true),
        ("another tier", vec![moved(), names_only(&["www.test"])], true),
        ("another name", vec![names_only(&["www.example.test"])], false),
        (
            "no name",
            vec![network_policy("default/names", "app=client").egress(vec![])],
            false,
        ),
    ] {
        let mut fixture = fixture(&["api.example.test", "old.test"]);
        fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
        fixture.sleep(41);
        fixture.delete(EntityKey::Policy(names_only(&[]).id));
        assert!(goes_on(&fixture, API), "{what}: nothing isolates the pod");
        for policy in after {
            fixture.tell(Event::Apply(Entity::Policy(policy)));
        }
        fixture.poll();
        assert!(!reaches(&fixture, "default/client", API), "{what}: nothing new");
        assert_eq!(goes_on(&fixture, API), expected, "{what}");
        assert!(!reaches(&fixture, "default/other", API), "{what}");
    }
}

#[test]
fn expired_records_are_restored_to_the_same_run_of_the_pod_alone() {
    let another = Pod {
        uid: Some(Arc::from("another")),
        ..client()
    };
    for (what, pod, expected) in [("the same", client(), true), ("another uid", another, false)] {
        let mut first = fixture(&["api.example.test"]);
        first.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
        first.sleep(41);
        let mut second = next_life(
            &mut first,
            RecordSettings::default(),
            &["*.example.test"],
            [pod, other()],
        );
        assert_eq!(goes_on(&second, API), expected, "{what}");
        assert!(!reaches(&second, "default/client", API), "{what}");
        second.sleep(1);
        let mut third = next_life(
            &mut second,
            RecordSettings::default(),
            &["api.example.test"],
            [client(), other()],
        );
        assert_eq!(goes_on(&third, API), expected, "{what}: a life later");
        third.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
        assert!(reaches(&third, "default/client", API), "{what}: told again");
        assert_eq!(third.compiler.record_stats().retained, 0);
    }
}

#[test]
fn a_run_that_ended_leaves_no_expired_record_to_the_next_also_when_it_ended_before_the_record() {
    let elsewhere = || pod("default/client", "app=client", &["10.0.0.1"]);
    for (what, seconds) in [("records still count", 1), ("records have expired", 41)] {
        let mut fixture = fixture(&["api.example.test"]);
        fixture.observe("10.0.0.1", "api.example.test", &[ip(API)], 10);
        fixture.tell(Event::Apply(Entity::Pod(elsewhere())));
        fixture.sleep(seconds);
        fixture.poll();
        assert!(!goes_on(&fixture, API), "{what}");
    }
}

#[test]
fn the_oldest_expired_records_are_evicted_for_each_pod_by_itself() {
    let mut fixture = fixture(&["*.example.test"]);
    let tell = |fixture: &mut Fixture, client: &str, name: &str, address: IpAddr| {
        let told = answer(client, name, &[address], fixture.now, 1);
        fixture.compiler.handle(Event::Observed(told), fixture.now);
        fixture.sleep(40);
        fixture.compiler.handle_timeout(fixture.now);
    };
    tell(&mut fixture, "10.0.0.2", "kept.example.test", ip(API));
    let all = many(2_100);
    for (number, address) in all.iter().enumerate() {
        tell(
            &mut fixture,
            "10.0.0.1",
            &format!("n{number}.example.test"),
            *address,
        );
    }
    let stats = fixture.compiler.record_stats();
    assert_eq!((stats.records, stats.retained, stats.forgotten), (0, 2_049, 52));
    fixture.compiler.handle(
        Event::Apply(Entity::Policy(names_only(&["*.example.test", "more.test"]))),
        fixture.now,
    );
    let batch = fixture.poll().unwrap();
    let told = |address: IpAddr| {
        let all = batch.expired.iter().flat_map(|lapsed| &lapsed.addresses);
        all.filter(|(lapsed, _)| *lapsed == address).count()
    };
    assert_eq!([all[51], all[52], all[2_099], ip(API)].map(told), [0, 1, 1, 1]);
    fixture.delete(EntityKey::Pod(key("default/client")));
    assert_eq!(
        fixture.compiler.record_stats().retained,
        1,
        "it goes with its pod"
    );
}

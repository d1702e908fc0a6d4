//! What is too much makes room, and costs no more than it brings. Work is counted, not timed.

use super::*;

/// An answer without the oracle, which knows no limits.
fn tell(fixture: &mut Fixture, client: &str, name: &str, addresses: &[IpAddr], ttl: u64) {
    let told = answer(client, name, addresses, fixture.now, ttl);
    fixture.compiler.handle(Event::Observed(told), fixture.now);
    fixture.poll();
}

fn names_of(fixture: &Fixture, pod: &str) -> Vec<String> {
    let of_pod = fixture
        .compiler
        .records()
        .filter(|record| *record.pod == key(pod));
    let mut names: Vec<String> = of_pod.map(|record| record.name.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

fn with_limits(limits: RecordLimits, list: &[&str]) -> Fixture {
    let records = RecordSettings {
        limits,
        ..RecordSettings::default()
    };
    with_records(records, list)
}

/// So many records were looked at meanwhile.
fn work(fixture: &mut Fixture, what: impl FnOnce(&mut Fixture)) -> usize {
    let before = fixture.compiler.work().record_steps;
    what(fixture);
    fixture.compiler.work().record_steps - before
}

#[test]
fn an_answer_with_more_addresses_than_a_name_may_have_is_cut_before_it_is_taken_in() {
    let limits = RecordLimits {
        addresses_per_name: 120,
        ..RecordLimits::default()
    };
    let all = many(3_900);
    for (count, kept, cut) in [(120, 120, 0), (121, 120, 1), (3_900, 120, 3_780)] {
        let mut fixture = with_limits(limits, &["api.example.test"]);
        let asked = work(&mut fixture, |fixture| {
            tell(fixture, "10.0.0.1", "api.example.test", &all[..count], 60);
        });
        let stats = fixture.compiler.record_stats();
        assert_eq!(
            (stats.records, stats.evicted_addresses_per_name),
            (kept, cut),
            "{count}"
        );
        assert!(asked <= 4 * kept, "{count}: {asked}");
        let told: BTreeSet<IpAddr> = fixture.compiler.records().map(|record| record.address).collect();
        assert!(
            told.iter().eq(&all[..kept]),
            "{count}: the first ones of the answer"
        );
    }
}

#[test]
fn an_answer_costs_what_it_brings_however_much_has_to_go_for_it() {
    let mut fixture = with_limits(RecordLimits::default(), &["*.example.test"]);
    let all = many(20_000);
    let mut most = 0;
    for addresses in all.chunks(1_000) {
        let asked = work(&mut fixture, |fixture| {
            tell(fixture, "10.0.0.1", "api.example.test", addresses, 600);
        });
        most = most.max(asked);
    }
    let stats = fixture.compiler.record_stats();
    assert_eq!((stats.records, stats.evicted_addresses_per_name), (1_000, 19_000));
    assert!(most <= 5 * 1_000, "{most}");
    let one = work(&mut fixture, |fixture| {
        tell(fixture, "10.0.0.1", "api.example.test", &[ip(API)], 600);
    });
    assert!(one <= 5, "{one}: one address of a full name");
}

#[test]
fn a_new_name_evicts_without_a_scan_of_other_records() {
    let limits = RecordLimits {
        names_per_pod: 100,
        ..RecordLimits::default()
    };
    let mut fixture = with_limits(limits, &["*.example.test"]);
    let all = many(500);
    for number in 0..100 {
        let name = format!("n{number}.example.test");
        tell(&mut fixture, "10.0.0.1", &name, &all, 600);
    }
    // Each name is told again, but for most of its addresses.
    for number in 0..100 {
        let name = format!("n{number}.example.test");
        tell(&mut fixture, "10.0.0.1", &name, &all[..1], 600);
    }
    for number in 0..10 {
        let asked = work(&mut fixture, |fixture| {
            let name = format!("new{number}.example.test");
            tell(fixture, "10.0.0.1", &name, &[ip(API)], 600);
        });
        // What the name had that goes, and who asks until when those are open that others have too.
        assert!(asked <= 4 * all.len(), "{asked}");
    }
    let names = names_of(&fixture, "default/client");
    assert!(names.len() == 100 && !names.contains(&"n9.example.test".to_owned()));
    assert!(names.contains(&"n10.example.test".to_owned()));
}

#[test]
fn at_the_total_limit_each_eviction_is_found_without_a_scan() {
    let limits = RecordLimits {
        total: 2_000,
        ..RecordLimits::default()
    };
    let mut fixture = with_limits(limits, &["*.example.test"]);
    let all = many(3_000);
    tell(&mut fixture, "10.0.0.2", "api.example.test", &all[..300], 600);
    let mut most = 0;
    for number in 0..100 {
        let asked = work(&mut fixture, |fixture| {
            let name = format!("n{number}.example.test");
            tell(fixture, "10.0.0.1", &name, &all[number..number + 500], 600);
        });
        most = most.max(asked);
    }
    assert!(most <= 5 * 500, "{most}");
    let stats = fixture.compiler.record_stats();
    assert_eq!(
        (stats.records, stats.evicted_total),
        (2_000, 300 + 50_000 - 2_000)
    );
    assert_eq!(names_of(&fixture, "default/other"), ["api.example.test"]);
}

#[test]
fn a_name_that_a_policy_mentions_outlives_ten_thousand_that_none_does() {
    let mut fixture = with_limits(RecordLimits::default(), &["api.example.test"]);
    tell(&mut fixture, "10.0.0.1", "api.example.test", &[ip(API)], 3_600);
    for number in 0..10_000_u32 {
        let name = format!("n{number}.flood.test");
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
        tell(&mut fixture, "10.0.0.1", &name, &[address.into()], 3_600);
    }
    assert!(reaches_api(&fixture));
    let stats = fixture.compiler.record_stats();
    assert_eq!((stats.records, stats.evicted_names_per_pod), (1_000, 9_001));
    // Among those that nobody mentions the oldest went.
    let names = names_of(&fixture, "default/client");
    let is_kept = |number: u32| names.contains(&format!("n{number}.flood.test"));
    assert_eq!([9_000, 9_001, 9_999].map(is_kept), [false, true, true]);
    // And where a policy mentions all, the oldest goes as ever.
    fixture.compiler.handle(
        Event::Apply(Entity::Policy(names_only(&["*.flood.test", "api.example.test"]))),
        fixture.now,
    );
    fixture.poll();
    tell(
        &mut fixture,
        "10.0.0.1",
        "more.flood.test",
        &[ip("192.0.2.9")],
        3_600,
    );
    assert!(!reaches_api(&fixture));
}

fn reaches_api(fixture: &Fixture) -> bool {
    let decision = fixture.memory.decide(&to_api("default/client"), fixture.now);
    decision.verdict == Allow
}

#[test]
fn eviction_follows_the_policies_that_mention_a_name_now() {
    let limits = RecordLimits {
        names_per_pod: 3,
        ..RecordLimits::default()
    };
    let mut fixture = with_limits(limits, &["old.example.test"]);
    for name in ["old.example.test", "new.example.test", "a.test"] {
        tell(&mut fixture, "10.0.0.1", name, &[ip(API)], 600);
    }
    fixture.compiler.handle(
        Event::Apply(Entity::Policy(names_only(&["new.example.test"]))),
        fixture.now,
    );
    fixture.poll();
    tell(&mut fixture, "10.0.0.1", "b.test", &[ip(API)], 600);
    assert_eq!(
        names_of(&fixture, "default/client"),
        ["a.test", "b.test", "new.example.test"]
    );
    for name in ["c.test", "d.test", "e.test"] {
        tell(&mut fixture, "10.0.0.1", name, &[ip(API)], 600);
    }
    assert_eq!(
        names_of(&fixture, "default/client"),
        ["d.test", "e.test", "new.example.test"]
    );
}

#[test]
fn at_the_total_limit_a_pod_loses_unmentioned_names_first() {
    let limits = RecordLimits {
        total: 10,
        ..RecordLimits::default()
    };
    let mut fixture = with_limits(limits, &["api.example.test"]);
    tell(&mut fixture, "10.0.0.1", "api.example.test", &[ip(API)], 600);
    for number in 0..100 {
        let name = format!("n{number}.flood.test");
        tell(&mut fixture, "10.0.0.1", &name, &[ip("192.0.2.9")], 600);
    }
    assert!(reaches_api(&fixture));
    assert_eq!(fixture.compiler.record_stats().evicted_total, 91);
}

#[test]
fn expired_records_of_unmentioned_names_are_evicted_first() {
    let mut fixture = with_limits(RecordLimits::default(), &["api.example.test"]);
    tell(&mut fixture, "10.0.0.1", "api.example.test", &[ip(API)], 1);
    fixture.sleep(40);
    for number in 0..5_000_u32 {
        let name = format!("n{number}.flood.test");
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
        tell(&mut fixture, "10.0.0.1", &name, &[address.into()], 1);
        if number % 900 == 0 {
            fixture.sleep(40);
            fixture.compiler.handle_timeout(fixture.now);
        }
    }
    let stats = fixture.compiler.record_stats();
    assert!(stats.retained == 2_048 && stats.forgotten > 0, "{stats:?}");
    fixture.tell(Event::Apply(Entity::Policy(names_only(&["*.example.test"]))));
    fixture.poll();
    let open = to_api("default/client");
    assert_eq!(fixture.memory.decide_open(&open, fixture.now).verdict, Allow);
}

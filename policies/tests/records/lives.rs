//! What is remembered from one life of the enforcer to the next.

use super::*;

/// All that is remembered.
pub(super) fn all(fixture: &Fixture) -> Vec<PodSnapshot> {
    let mut walk = RecordCursor::default();
    std::iter::from_fn(|| fixture.compiler.next_records(&mut walk, usize::MAX)).collect()
}

/// What is remembered of one life, told to the next one.
pub(super) fn next_life(
    before: &mut Fixture,
    records: RecordSettings,
    list: &[&str],
    pods: [Pod; 2],
) -> Fixture {
    let settings = Settings {
        records,
        ..settings()
    };
    let entities = pods.map(Entity::Pod).into_iter();
    let mut after = Fixture::with(settings, entities.chain([Entity::Policy(names_only(list))]));
    after.now = before.now;
    for remembered in all(before) {
        after.tell(Event::Restored(remembered));
    }
    after.poll();
    after
}

#[test]
fn a_policy_that_changed_between_two_lives_works_from_what_was_told_in_the_first() {
    let usual = RecordSettings::default();
    let mut first = fixture(&["www.example.test"]);
    first.observe("10.0.0.1", "api.example.test", &[ip(API)], 60);
    first.sleep(20);
    let mut second = next_life(&mut first, usual, &["api.example.test"], [client(), other()]);
    assert!(reaches(&second, "default/client", API));
    assert!(!reaches(&second, "default/other", API));
    second.sleep(69);
    assert!(reaches(&second, "default/client", API));
    second.sleep(1);
    assert!(!reaches(&second, "default/client", API), "no second grace");
}

#[test]
fn what_was_told_is_not_restored_to_another_run_or_to_a_protected_address() {
    let usual = RecordSettings::default();
    let another = Pod {
        uid: Some(Arc::from("another")),
        ..client()
    };
    let moved = pod("default/client", "app=client", &["10.0.0.9"]);
    let protecting = RecordSettings {
        protected: vec!["203.0.113.0/24".parse().unwrap()],
        ..usual.clone()
    };
    for (what, settings, pod, is_restored) in [
        ("the same", usual.clone(), client(), true),
        ("another uid", usual.clone(), another, false),
        ("another address", usual.clone(), moved, false),
        ("protected since", protecting, client(), false),
    ] {
        let mut first = fixture(&["api.example.test"]);
        first.observe("10.0.0.1", "api.example.test", &[ip(API)], 60);
        let second = next_life(&mut first, settings, &["api.example.test"], [pod, other()]);
        assert_eq!(reaches(&second, "default/client", API), is_restored, "{what}");
    }
}

#[test]
fn nothing_is_restored_for_longer_than_if_it_were_told_now() {
    let short = RecordSettings {
        max_ttl: Duration::from_secs(5),
        ..RecordSettings::default()
    };
    let mut first = fixture(&["api.example.test"]);
    first.observe("10.0.0.1", "api.example.test", &[ip(API)], 3600);
    let mut second = next_life(&mut first, short, &["api.example.test"], [client(), other()]);
    second.sleep(34);
    assert!(reaches(&second, "default/client", API));
    second.sleep(1);
    assert!(!reaches(&second, "default/client", API));
}

#[test]
fn what_is_restored_gives_way_to_what_was_told_since() {
    let mut first = fixture(&["api.example.test"]);
    first.observe("10.0.0.1", "api.example.test", &many(100), 60);
    let remembered = all(&first);
    let few = RecordSettings {
        limits: RecordLimits {
            addresses_per_name: 100,
            ..RecordLimits::default()
        },
        ..RecordSettings::default()
    };
    let mut second = with_records(few, &["api.example.test"]);
    let since = ip("198.51.100.1");
    second.observe("10.0.0.1", "api.example.test", &[since], 60);
    for remembered in remembered {
        second.compiler.handle(Event::Restored(remembered), second.now);
    }
    let left: Vec<IpAddr> = second.compiler.records().map(|record| record.address).collect();
    assert_eq!(left.len(), 100);
    assert!(left.contains(&since));
    assert!(!left.contains(&many(1)[0]), "the oldest went");
    assert_eq!(second.compiler.record_stats().evicted_addresses_per_name, 1);
}

#[test]
fn only_what_changed_is_remembered_anew() {
    let mut fixture = fixture(&["api.example.test"]);
    fixture.compiler.track_record_changes();
    let changed = |fixture: &mut Fixture| -> Vec<(String, bool, usize, usize)> {
        let changed = fixture.compiler.take_record_changes();
        let words = |of: &SnapshotChange| {
            let told = &of.snapshot;
            (
                told.pod.to_string(),
                of.is_reset,
                of.forgotten.len(),
                told.records.len(),
            )
        };
        changed.iter().map(words).collect()
    };
    let told = |name: &str, count: usize| (name.to_owned(), false, 0, count);
    assert_eq!(changed(&mut fixture), []);
    fixture.observe("10.0.0.1", "api.example.test", &many(3), 60);
    fixture.observe("10.0.0.2", "api.example.test", &[ip(API)], 600);
    assert_eq!(
        changed(&mut fixture),
        [told("default/client", 3), told("default/other", 1)]
    );
    fixture.observe("10.0.0.1", "api.example.test", &many(1), 60);
    assert_eq!(changed(&mut fixture), [], "nothing lives longer than before");
    fixture.observe("10.0.0.1", "api.example.test", &many(1), 70);
    assert_eq!(changed(&mut fixture), [told("default/client", 1)]);
    fixture.sleep(100);
    fixture.compiler.handle_timeout(fixture.now);
    assert_eq!(changed(&mut fixture), [], "a record says itself when it is over");
    fixture.delete(EntityKey::Pod(key("default/other")));
    assert_eq!(changed(&mut fixture), [("default/other".to_owned(), true, 0, 0)]);
}

#[test]
fn an_evicted_record_is_removed_from_the_stored_state() {
    let limits = RecordLimits {
        names_per_pod: 2,
        ..RecordLimits::default()
    };
    let records = RecordSettings {
        limits,
        ..RecordSettings::default()
    };
    let mut fixture = with_records(records, &["*.example.test"]);
    fixture.compiler.track_record_changes();
    let mut ledger = SnapshotBuilder::default();
    for name in [
        "a.example.test",
        "b.example.test",
        "a.example.test",
        "c.example.test",
    ] {
        fixture.observe("10.0.0.1", name, &many(2), 60);
        fixture.sleep(1);
        let changes = fixture.compiler.take_record_changes();
        changes.into_iter().for_each(|change| ledger.apply(change));
    }
    let remembered = ledger.finish();
    let names: Vec<&str> = remembered[0]
        .records
        .iter()
        .map(|record| record.name.as_str())
        .collect();
    let [a, c] = ["a.example.test", "c.example.test"];
    assert_eq!(names, [a, a, c, c], "what was told last stays, the oldest first");
}

/// So many at once that each pass ends a part of them.
#[test]
fn very_many_records_that_end_at_once_end_in_parts_and_none_is_lost() {
    let mut fixture = fixture(&["*.example.test"]);
    fixture.compiler.track_record_changes();
    let names = (0..30).map(|number| format!("n{number}.example.test"));
    for name in names {
        fixture.observe("10.0.0.1", &name, &many(100), 60);
    }
    fixture.compiler.take_record_changes();
    assert!(reaches(&fixture, "default/client", "203.0.0.1"));
    fixture.sleep(90);
    let stats = |fixture: &Fixture| {
        let stats = fixture.compiler.record_stats();
        (stats.records, stats.expired)
    };
    let mut parts = 0;
    while fixture
        .compiler
        .poll_timeout()
        .is_some_and(|at| at <= fixture.now)
    {
        let before = stats(&fixture).1;
        fixture.compiler.handle_timeout(fixture.now);
        parts += 1;
        assert!(
            stats(&fixture).1 - before <= 1_024,
            "the engine has its turn in between"
        );
        assert!(
            !reaches(&fixture, "default/client", "203.0.0.1"),
            "it is over all the same"
        );
        fixture.now = fixture.now.after(Duration::from_millis(1));
    }
    assert_eq!((parts, stats(&fixture)), (3, (0, 3_000)));
    assert_eq!(
        fixture.compiler.record_stats().retained,
        2_048,
        "the most of a pod"
    );
}

/// Not all that ended is taken in yet when there are too many.
#[test]
fn expired_records_are_evicted_before_live_ones_and_stay_in_the_stored_state() {
    let limits = RecordLimits {
        total: 2_000,
        ..RecordLimits::default()
    };
    let records = RecordSettings {
        limits,
        ..RecordSettings::default()
    };
    let mut fixture = with_records(records, &["*.example.test"]);
    let tell = |fixture: &mut Fixture, client: &str, names: u32| {
        for number in 0..names {
            fixture.observe(client, &format!("n{number}.example.test"), &many(100), 60);
        }
    };
    tell(&mut fixture, "10.0.0.1", 20);
    fixture.sleep(90);
    tell(&mut fixture, "10.0.0.2", 11);
    let stats = fixture.compiler.record_stats();
    assert_eq!(
        (stats.evicted_total, stats.records, stats.retained),
        (0, 2_000, 1_100)
    );
    let is_of_other = |record: &egret_policies::records::Record<'_>| record.pod.name() == "other";
    assert_eq!(fixture.compiler.records().filter(is_of_other).count(), 1_100);
}

/// A copy that takes in steps of a walk and what changes meanwhile, at every size of a step.
#[test]
fn a_scan_and_the_changes_during_it_are_the_whole_state() {
    for most in 1..9 {
        let mut fixture = fixture(&["*.example.test"]);
        let mut ledger = SnapshotBuilder::default();
        for number in 0..6 {
            let ttl = 1 + 10 * (number % 3);
            fixture.observe("10.0.0.1", &format!("n{number}.example.test"), &many(2), ttl);
            fixture.observe("10.0.0.2", &format!("n{number}.example.test"), &many(1), ttl);
        }
        fixture.compiler.track_record_changes();
        let mut walk = RecordCursor::default();
        for step in 0..20 {
            if let Some(remembered) = fixture.compiler.next_records(&mut walk, most) {
                ledger.apply(remembered.into());
            }
            match step {
                2 => fixture.sleep(35),
                3 => drop(fixture.observe("10.0.0.1", "n0.example.test", &many(3), 60)),
                4 => drop(fixture.delete(EntityKey::Pod(key("default/client")))),
                5 => drop(fixture.apply(Entity::Pod(client()))),
                6 => drop(fixture.observe("10.0.0.1", "n9.example.test", &many(1), 60)),
                7 => drop(fixture.observe("10.0.0.2", "n1.example.test", &many(4), 60)),
                _ => fixture.sleep(1),
            }
            fixture.compiler.handle_timeout(fixture.now);
            let changes = fixture.compiler.take_record_changes();
            changes.into_iter().for_each(|change| ledger.apply(change));
        }
        assert_eq!(fixture.compiler.next_records(&mut walk, most), None, "it is over");
        assert_eq!(sorted(ledger.finish()), sorted(all(&fixture)), "{most} a step");
    }
}

pub(super) fn sorted(mut pods: Vec<PodSnapshot>) -> Vec<PodSnapshot> {
    for pod in &mut pods {
        pod.records
            .sort_by_key(|record| (record.name.to_string(), record.address));
    }
    pods.sort_by(|one, other| one.pod.cmp(&other.pod));
    pods.dedup_by(|next, one| {
        let is_same = next.pod == one.pod;
        if is_same {
            one.records.append(&mut next.records);
            one.records
                .sort_by_key(|record| (record.name.to_string(), record.address));
        }
        is_same
    });
    pods
}

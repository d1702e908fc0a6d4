//! Bounds of the cache, and eviction.

use egret_dnsd::cache::{Cache, Class, Found, Key, KeyView, Kind, Value};
use egret_dnsd::config::model::{CacheRules, Capacity};
use hickory_proto::rr::RecordType;

use crate::support::NOW;
use crate::{LARGE, Numbered, kept, key, number, numbered, rules};

fn insert_many(cache: &mut Cache<Numbered>, prefix: &str, kind: Kind, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let asked = key(&format!("{prefix}{number}.test"), RecordType::A);
        cache.insert(&asked, numbered(number), kept(kind, 60), NOW);
    }
}

#[test]
fn it_holds_no_more_entries_of_a_class_than_configured() {
    let capacity = |entries| Capacity {
        entries,
        ..rules().success
    };
    let rules = CacheRules {
        success: capacity(100),
        denial: capacity(50),
        ..rules()
    };
    let mut cache = Cache::new(&rules, LARGE);
    insert_many(&mut cache, "a", Kind::Answer, 0..1_000);
    insert_many(&mut cache, "d", Kind::NameError, 0..1_000);
    assert_eq!(Class::ALL.map(|class| cache.entries(class)), [100, 50]);
    assert_eq!(Class::ALL.map(|class| cache.evictions(class)), [900, 950]);
}

#[test]
fn a_flood_of_random_names_does_not_evict_popular_answers() {
    // By entries and by octets; of answers and of denials.
    for (entries, limit) in [(1_000, LARGE), (usize::MAX, 400_000)] {
        for kind in [Kind::Answer, Kind::NameError] {
            let capacity = Capacity {
                entries,
                ..rules().success
            };
            let mut cache = Cache::new(
                &CacheRules {
                    success: capacity,
                    denial: capacity,
                    ..rules()
                },
                limit,
            );
            insert_many(&mut cache, "used", Kind::Answer, 0..90);
            let asked_for = |cache: &mut Cache<Numbered>| {
                (0..90)
                    .filter(|n| {
                        number(&cache.get(&key(&format!("used{n}.test"), RecordType::A), NOW)).is_some()
                    })
                    .count()
            };
            assert_eq!(asked_for(&mut cache), 90);
            insert_many(&mut cache, "flood", kind, 0..20_000);
            assert_eq!(asked_for(&mut cache), 90, "{kind:?} {entries} {limit}");
            assert!(cache.weight() <= limit);
        }
    }
}

/// So much is kept where the configuration does not say (`cacheSize`).
const DEFAULT: usize = 32 << 20;

/// A value of so many octets.
#[derive(Clone, Debug)]
struct Large(usize, Key);

impl Value for Large {
    fn key(&self) -> KeyView<'_> {
        self.1.view()
    }

    fn weight(&self) -> usize {
        self.0
    }
}

#[test]
fn a_full_cache_keeps_popular_answers_and_its_bound() {
    let capacity = Capacity {
        entries: usize::MAX,
        ..rules().success
    };
    let all = CacheRules {
        success: capacity,
        denial: capacity,
        ..rules()
    };
    for kind in [Kind::Answer, Kind::NameError] {
        let mut cache = Cache::new(&all, DEFAULT);
        let insert = |cache: &mut Cache<Large>, name: String, kind| {
            let make = |key: &Key| Some(Large(1_000, *key));
            cache.insert(&key(&name, RecordType::A), make, kept(kind, 60), NOW);
        };
        let used: Vec<String> = (0..1_000).map(|number| format!("used{number}.test")).collect();
        for name in &used {
            insert(&mut cache, name.clone(), Kind::Answer);
        }
        let asked_for = |cache: &mut Cache<Large>| {
            let found = used.iter().map(|name| cache.get(&key(name, RecordType::A), NOW));
            found.filter(|found| matches!(found, Found::Fresh(_))).count()
        };
        assert_eq!(asked_for(&mut cache), used.len());
        for number in 0..100_000 {
            insert(&mut cache, format!("flood{number}.test"), kind);
            assert!(cache.weight() <= DEFAULT, "{number}");
        }
        assert!(
            cache.weight() > DEFAULT / 10 * 9,
            "it is full: {}",
            cache.weight()
        );
        assert_eq!(asked_for(&mut cache), used.len(), "{kind:?}");
    }
}

#[test]
fn an_answer_too_large_for_its_share_is_not_cached() {
    let mut cache = Cache::new(&rules(), 1 << 20);
    cache.insert(
        &key("a.test", RecordType::A),
        |key| Some(Large(70_000, *key)),
        kept(Kind::Answer, 60),
        NOW,
    );
    assert!(cache.is_empty());
    cache.insert(
        &key("a.test", RecordType::A),
        |key| Some(Large(60_000, *key)),
        kept(Kind::Answer, 60),
        NOW,
    );
    assert_eq!(cache.len(), 1);
}

//! How much is kept, and what gives way.

use egret_dnsd::cache::{Cache, Class, Key, KeyView, Kind, Value};
use egret_dnsd::plan::{CacheRules, Capacity};
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
fn a_flood_of_random_names_does_not_flush_what_is_asked_for() {
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

#[test]
fn an_answer_too_large_for_its_share_is_not_kept() {
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

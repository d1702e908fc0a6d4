//! The cache against a slow and obvious model under random histories, and its bounds.

use egret_dnsd::cache::{Cache, Cacheable, Class, Found, Key, Kind};
use egret_dnsd::config::model::{CacheRules, Capacity, Refresh, ServeStale};
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use crate::{LARGE, Numbered, at, kept, key, number, numbered, rules, secs, stale};

/// What was inserted, in order; nothing is ever forgotten or moved.
#[derive(Clone, Debug)]
struct Inserted {
    name: usize,
    kind_asked: usize,
    kept: Cacheable,
    at: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Insert(usize, usize, Kind, u64),
    Get(usize, usize),
    Wait(u64),
}

#[derive(Debug)]
struct Model {
    stale_for: u64,
    prefers_positive: bool,
    inserted: Vec<Inserted>,
}

impl Model {
    fn is_of_use(&self, inserted: &Inserted, now: u64) -> bool {
        let stale = if inserted.kept.kind == Kind::Failure {
            0
        } else {
            self.stale_for
        };
        now < inserted.at + inserted.kept.lifetime.as_secs() + stale
    }

    fn is_fresh(inserted: &Inserted, now: u64) -> bool {
        now < inserted.at + inserted.kept.lifetime.as_secs()
    }

    /// The number of what was inserted last about a question among these kinds.
    fn last(&self, name: usize, asked: Option<usize>, kinds: &[Kind]) -> Option<usize> {
        self.inserted.iter().rposition(|inserted| {
            inserted.name == name
                && asked.is_none_or(|asked| inserted.kind_asked == asked)
                && kinds.contains(&inserted.kept.kind)
        })
    }

    /// The last denial of the name, unless it was inserted of since.
    fn name_denied(&self, name: usize) -> Option<usize> {
        use Kind::{Answer, Denial, NameError, Other};
        let exists = self.last(name, None, &[Answer, Other, Denial]);
        self.last(name, None, &[NameError])
            .filter(|denied| exists.is_none_or(|exists| exists < *denied))
    }

    /// Whether there is a denial of the name or of the type, not a failure, that may be given, be there an answer
    /// beside it or not.
    fn denies(&self, name: usize, asked: usize, now: u64) -> bool {
        use Kind::{Answer, Denial, NameError, Other};
        let own = self.last(name, Some(asked), &[Answer, Other, Denial, NameError]);
        let own = own.filter(|own| self.inserted[*own].kept.kind == Denial);
        [own, self.name_denied(name)]
            .into_iter()
            .flatten()
            .any(|number| self.is_of_use(&self.inserted[number], now))
    }

    /// What is to be given: the newest of what concerns the question, failures last, answers that live before
    /// denials of the name that came with another type.
    fn get(&self, name: usize, asked: usize, now: u64) -> Option<(usize, bool)> {
        use Kind::{Answer, Denial, Failure, NameError, Other};
        let of_use = |number: &usize| self.is_of_use(&self.inserted[*number], now);
        let with_age = |number: usize| (number, Self::is_fresh(&self.inserted[number], now));
        if self.prefers_positive
            && let Some(answer) = self.last(name, Some(asked), &[Answer]).filter(of_use)
        {
            return Some(with_age(answer));
        }
        let denied = self.name_denied(name);
        let own = self.last(name, Some(asked), &[Answer, Other, Denial, NameError]);
        let failure = self.last(name, Some(asked), &[Failure]);
        let failure = failure.filter(|failure| own.is_none_or(|own| own < *failure));
        let failure = failure.filter(of_use).map(with_age);
        let own = own.filter(|own| self.inserted[*own].kept.kind != NameError);
        let own = own.filter(of_use).map(with_age);
        let denied = denied.filter(of_use).map(with_age);
        let fresh = |found: Option<(usize, bool)>| found.filter(|(_, is_fresh)| *is_fresh);
        fresh(own)
            .or_else(|| fresh(denied))
            .or(own)
            .or(denied)
            .or(failure)
    }
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        Just(Kind::Answer),
        Just(Kind::Denial),
        Just(Kind::NameError),
        Just(Kind::Failure),
    ];
    prop_oneof![
        3 => (0..3_usize, 0..2_usize, kind, 1..40_u64).prop_map(|(name, asked, kind, ttl)| Event::Insert(name, asked, kind, ttl)),
        4 => (0..3_usize, 0..2_usize).prop_map(|(name, asked)| Event::Get(name, asked)),
        2 => (0..30_u64).prop_map(Event::Wait),
    ]
}

fn asked(name: usize, kind: usize) -> Key {
    key(&format!("n{name}.test"), [RecordType::A, RecordType::AAAA][kind])
}

proptest! {
    #[test]
    fn the_cache_agrees_with_the_model(
        events in proptest::collection::vec(event(), 1..60),
        stale_for in prop_oneof![Just(0_u64), Just(20)],
        prefers_positive in any::<bool>(),
    ) {
        let serve_stale = (stale_for > 0).then(|| ServeStale { up_to: secs(stale_for), prefers_positive, ..stale(Refresh::Immediate) });
        let mut cache: Cache<Numbered> = Cache::new(&CacheRules { serve_stale, ..rules() }, LARGE);
        let mut model = Model { stale_for, prefers_positive: prefers_positive && stale_for > 0, inserted: Vec::new() };
        let mut now = 0;
        for event in events {
            match event {
                Event::Wait(seconds) => now += seconds,
                Event::Get(name, kind) => {
                    let found = match cache.get(&asked(name, kind), at(now)) {
                        Found::Fresh(hit) => Some((hit.value.0, true)),
                        Found::Stale(hit, _) => Some((hit.value.0, false)),
                        Found::FreshAndDue(_) => unreachable!("nothing is prefetched"),
                        Found::Miss => None,
                    };
                    prop_assert_eq!(found, model.get(name, kind, now), "{:?}", model);
                }
                Event::Insert(name, kind, what, ttl) => {
                    let kept = kept(what, ttl);
                    cache.insert(&asked(name, kind), numbered(model.inserted.len()), kept, at(now));
                    // A failure leaves a denial alone that may still be given; the model says so by not hearing it.
                    if what != Kind::Failure || !model.denies(name, kind, now) {
                        model.inserted.push(Inserted { name, kind_asked: kind, kept, at: now });
                    }
                }
            }
        }
    }

    #[test]
    fn the_cache_stays_within_its_bounds_and_returns_only_inserted_answers(
        events in proptest::collection::vec((0..200_usize, 0..2_usize, any::<bool>(), any::<bool>(), 0..3_u64), 1..600),
        entries in 1..40_usize,
        limit in 5_000..40_000_usize,
    ) {
        let capacity = Capacity { entries, ..rules().success };
        let mut cache = Cache::new(&CacheRules { success: capacity, denial: capacity, ..rules() }, limit);
        let mut now = 0;
        for (name, kind, is_insert, is_answer, seconds) in events {
            now += seconds;
            if is_insert {
                let kept = kept(if is_answer { Kind::Answer } else { Kind::NameError }, 20);
                cache.insert(&asked(name, kind), numbered(name), kept, at(now));
            } else if let Some(number) = number(&cache.get(&asked(name, kind), at(now))) {
                prop_assert_eq!(number, name);
            }
            prop_assert!(cache.weight() <= limit);
            prop_assert!(Class::ALL.into_iter().all(|class| cache.entries(class) <= entries));
            prop_assert_eq!(cache.weight() == 0, cache.is_empty());
        }
    }
}

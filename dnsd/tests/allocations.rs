//! Memory of cached answers: a cache hit allocates only its reply, and the cache takes what it reports.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "an allocator that counts can only be written so")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use egret_dnsd::cache::{Cache, Cacheability, Found, Hit, Key, Provenance};
use egret_dnsd::config::model::{CacheRules, Capacity, Disabled};
use egret_dnsd::dns::answer::{Answer, Ttls};
use egret_dnsd::dns::message::Query;
use egret_dnsd::enforcement::observation::observe;
use egret_dnsd::enforcement::records::{RecordLimits, Records};
use egret_dnsd::upstream::pending_query::ValidatedResponse;
use egret_dnsd::zones::{AnswerSource, ResolvedAnswer, StoredAnswer};
use egret_shared::observation::{Observation, ObservedAddress};
use hickory_proto::rr::RecordType;
use support::{NOW, address, matched, query, response};

struct Counting;

thread_local! { static ALLOCATIONS : Cell < usize > = const { Cell::new(0) }; static OCTETS : Cell < isize > = const { Cell::new(0) }; }

/// Octets of the heap that an allocation takes with glibc: eight more, rounded up to 16, and 32 at least (malloc.c,
/// `request2size`).
fn taken(octets: usize) -> isize {
    (octets + 8).next_multiple_of(16).max(32).cast_signed()
}

// SAFETY: all of it is the system's allocator; the counts are numbers of this thread, made without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        OCTETS.with(|octets| octets.set(octets.get() + taken(layout.size())));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        OCTETS.with(|octets| octets.set(octets.get() - taken(layout.size())));
        // SAFETY: the pointer came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.with(Cell::get);
    let done = work();
    (ALLOCATIONS.with(Cell::get) - before, done)
}

/// Octets that are taken more than before.
fn octets<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = OCTETS.with(Cell::get);
    let done = work();
    let octets = OCTETS.with(Cell::get) - before;
    (usize::try_from(octets).unwrap(), done)
}

fn rules(entries: usize) -> CacheRules {
    let capacity = Capacity {
        entries,
        max_ttl: Duration::from_secs(3600),
        min_ttl: Duration::ZERO,
    };
    CacheRules {
        zones: Vec::new(),
        success: capacity,
        denial: capacity,
        prefetch: None,
        serve_stale: None,
        servfail: Duration::ZERO,
        disabled: Disabled::default(),
        keep_ttl: false,
    }
}

fn known(answer: ValidatedResponse<Answer>) -> ResolvedAnswer {
    let verdict = Cacheability::of(&rules(1), &answer.get().message(), Provenance::Upstream);
    ResolvedAnswer {
        observation: observe(&answer, &[]).0,
        cacheable: verdict.kept(),
        provenance: Provenance::Upstream,
        source: AnswerSource::Forward,
        error: None,
        answer,
    }
}

#[test]
fn a_cache_hit_allocates_only_its_reply() {
    let known = known(matched("a.test", RecordType::A, |asked| {
        response(asked, vec![address("a.test", 60, "192.0.2.1")])
    }));
    let mut cache = Cache::new(&rules(9984), 1 << 20);
    for size in [None, Some(1232)] {
        let client = Query::read(&query("A.test", RecordType::A, size))
            .unwrap()
            .owned();
        if size.is_none() {
            let pack = |place: &Key| StoredAnswer::new(&known, place.as_octets());
            cache.insert(&Key::of(&client).unwrap(), pack, known.cacheable.unwrap(), NOW);
        }
        let (of_key, key) = allocations(|| Key::of(&client).unwrap());
        let (of_get, found) = allocations(|| cache.get(&key, NOW));
        let Found::Fresh(Hit { value, ttls, .. }) = found else {
            panic!("it was kept");
        };
        let (of_telling, told) = allocations(|| {
            let question = value.with_question(|name| name == "a.test");
            (question, value.addresses(NOW).count())
        });
        assert_eq!((of_telling, told), (0, (Some(true), 1)));
        let later = Ttls::CountedDown(NOW.after(Duration::from_secs(9)));
        assert!(matches!(ttls, Ttls::CountedDown(_)));
        let (of_reply, (reply, is_whole)) =
            allocations(|| value.answer(NOW).reply_within(&client, later, 512, 1232));
        assert!(is_whole && reply.len() > 12);
        // The first reply has the room in which the answer was packed.
        let own = usize::from(size.is_some());
        assert_eq!((of_key, of_get, of_reply), (0, 0, own), "{size:?}");
    }
}

#[test]
fn the_cache_takes_what_it_reports_and_at_most_250_octets_for_an_address() {
    // Right behind a growth of its tables, long after one, and with what it could not hold gone again.
    const LARGE: usize = 64 << 20;
    for (names, limit) in [
        (4_000, LARGE),
        (7_100, LARGE),
        (7_200, LARGE),
        (8_200, LARGE),
        (10_000, 1 << 20),
    ] {
        let mut cache = Cache::new(&rules(usize::MAX), limit);
        let (taken, ()) = octets(|| {
            for number in 0..names {
                let name = format!("name-{number:05}.bench.test");
                let known = known(matched(&name, RecordType::A, |asked| {
                    response(asked, vec![address(&name, 60, "192.0.2.1")])
                }));
                let client = Query::read(&query(&name, RecordType::A, None)).unwrap().owned();
                let pack = |place: &Key| StoredAnswer::new(&known, place.as_octets());
                cache.insert(&Key::of(&client).unwrap(), pack, known.cacheable.unwrap(), NOW);
            }
        });
        let (said, kept) = (cache.weight(), cache.len());
        assert_eq!(kept == names, limit == LARGE);
        assert!(taken <= said, "{kept}: {taken} octets, and says {said}");
        assert!(taken * 5 > said * 4, "{kept}: {taken} octets, and says {said}");
        assert!(said <= 250 * kept, "{kept}: {} octets each", said / kept);
    }
}

#[test]
fn records_take_at_most_120_octets_for_a_name_with_one_address() {
    let limits = RecordLimits {
        per_client: 10_000,
        total: 160_000,
        grace: Duration::from_secs(30),
    };
    let mut records = Records::new(limits);
    let (taken, ()) = octets(|| {
        // Three times what it may keep of one client.
        for number in 0..30_000 {
            let observation = Observation {
                client: [10, 0, 0, 1].into(),
                question: format!("name-{number:05}.bench.test").parse().unwrap(),
                chain: Vec::new(),
                addresses: vec![ObservedAddress {
                    address: [192, 0, 2, 1].into(),
                    expires: NOW.after(Duration::from_secs(60)),
                }],
            };
            assert!(
                records
                    .note(&observation, None, |_| false, |_, _| false, NOW)
                    .new
                    .is_some()
            );
        }
    });
    assert_eq!((records.len(), records.evictions()), (10_000, 20_000));
    assert!(
        taken <= 120 * records.len(),
        "{} octets each",
        taken / records.len()
    );
    let before = OCTETS.with(Cell::get);
    assert_eq!(
        records.sweep(NOW.after(Duration::from_secs(89))),
        0,
        "the grace is not over"
    );
    assert_eq!(records.sweep(NOW.after(Duration::from_secs(90))), 10_000);
    let given_back = usize::try_from(before - OCTETS.with(Cell::get)).unwrap();
    assert!(
        records.is_empty() && given_back * 10 > taken * 9,
        "{given_back} of {taken}"
    );
}

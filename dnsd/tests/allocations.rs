//! What a cached answer costs in memory: the hot path takes one allocation, for the reply itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "an allocator that counts can only be written so")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::answer::{Answer, Ttls};
use egret_dnsd::cache::{Cache, Found, Hit, Key, Maker, Verdict, Weigh};
use egret_dnsd::exchange::Matched;
use egret_dnsd::message::Query;
use egret_dnsd::plan::{CacheRules, Capacity, Disabled};
use hickory_proto::rr::RecordType;
use support::{NOW, address, matched, query, response};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's allocator; the count is a number of this thread, made without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
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

#[derive(Debug)]
struct Known(Matched<Answer>);

impl Weigh for Known {
    fn weight(&self) -> usize {
        self.0.get().size()
    }
}

#[test]
fn a_hit_allocates_its_reply_and_nothing_else() {
    let capacity = Capacity {
        entries: 9984,
        max_ttl: Duration::from_secs(3600),
        min_ttl: Duration::ZERO,
    };
    let rules = CacheRules {
        zones: Vec::new(),
        success: capacity,
        denial: capacity,
        prefetch: None,
        serve_stale: None,
        servfail: Duration::ZERO,
        disabled: Disabled::default(),
        keep_ttl: false,
    };
    let known = Known(matched("a.test", RecordType::A, |asked| {
        response(asked, vec![address("a.test", 60, "192.0.2.1")])
    }));
    let kept = Verdict::of(&rules, &known.0.get().message(), Maker::Upstream)
        .kept()
        .unwrap();
    let mut cache = Cache::new(&rules, 1 << 20);
    for size in [None, Some(1232)] {
        let client = Query::read(&query("A.test", RecordType::A, size)).unwrap();
        if size.is_none() {
            cache.insert(
                &Key::of(&client).unwrap(),
                Arc::new(Known(known.0.clone())),
                kept,
                NOW,
            );
        }
        let (of_key, key) = allocations(|| Key::of(&client).unwrap());
        let (of_get, found) = allocations(|| cache.get(&key, NOW));
        let Found::Fresh(Hit { value, ttls, .. }) = found else {
            panic!("it was kept");
        };
        let later = Ttls::CountedDown(NOW.after(Duration::from_secs(9)));
        assert!(matches!(ttls, Ttls::CountedDown(_)));
        let (of_reply, (reply, is_whole)) =
            allocations(|| value.0.get().reply_within(&client, later, 512, 1232));
        assert!(is_whole && reply.len() > 12);
        assert_eq!((of_key, of_get, of_reply), (0, 0, 1), "{size:?}");
    }
}

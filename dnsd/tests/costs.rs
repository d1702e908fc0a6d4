//! What a cached answer costs in memory that is asked for: each allocation is some 20 ns, and they add up unseen.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "an allocator that counts has no safe form")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use egret_dnsd::metrics::Transport;
use egret_dnsd::resolve::{Moment, Step};
use egret_dnsd::server::Arrival;
use hickory_proto::rr::RecordType;
use support::{address, query};
use whole::{Dnsd, Upstream};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; the counter is a plain cell of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are passed on as they are.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The question as it was written, and the reply. Zones, counts and the chain cost none.
const CACHED: usize = 2;

#[tokio::test]
async fn a_cached_answer_asks_for_memory_twice_whatever_its_block_counts() {
    let up = Upstream::with(|| vec![address("api.example.test", 60, "192.0.2.1")]).await;
    for (name, more) in [
        ("plain", ""),
        ("counted", "prometheus 127.0.0.1:9253"),
        ("with-errors", "errors\n loop"),
    ] {
        let corefile = format!(
            "example.test {{\n bind 127.0.0.1\n {more}\n cache 60\n forward . {0}\n}}\n. {{\n bind 127.0.0.1\n forward . {0}\n}}\n",
            up.address
        );
        let dnsd = Dnsd::with(&format!("costs-{name}"), &corefile);
        for _ in 0..3 {
            dnsd.ask("api.example.test").await.unwrap();
        }
        let resolver = &dnsd.service.resolver;
        let serving = resolver.serving();
        let (_, table) = serving.tables.first_key_value().unwrap();
        let octets = query("api.example.test", RecordType::A, Some(1232));
        let arrival = Arrival {
            source: "127.0.0.1:5353".parse().unwrap(),
            asked: None,
            // Nobody's, so that nothing is held.
            interface: None,
            transport: Transport::Udp,
        };
        let when = Moment::now();
        let before = COUNT.get();
        let step = resolver.take(&octets, arrival, table, when);
        let taken = COUNT.get() - before;
        assert!(matches!(step, Step::Reply(_)), "it is in the cache");
        assert_eq!(taken, CACHED, "{name}");
    }
}

//! Memory of answers: an allocation takes some 20 ns, a kilobyte that is moved as much.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "an allocator that counts has no safe form")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use egret_dnsd::net::Transport;
use egret_dnsd::pipeline::{Disposition, ReceivedAt, Resolver};
use egret_dnsd::zones::{PacketInfo, ZoneTable};
use hickory_proto::rr::RecordType;
use support::{address, query, response};
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

/// The question is borrowed from its datagram, and room for the reply is used again; zones, counts and the chain cost none.
const CACHED: usize = 0;
/// What waits and its question, its place and how it hears that it lost that, the question that is sent, the answer and its
/// places, what it tells, what is kept of it, and the room that tables have for it.
const FORWARDED: usize = 13;
/// Octets of what a query is while it waits: each worker has as many, and they are written for each query.
const WAITING: usize = 4_000;

/// A query at the door of a dnsd.
struct PipelineClient {
    resolver: Arc<Resolver>,
    table: Arc<ZoneTable>,
    octets: Vec<u8>,
}

impl PipelineClient {
    fn new(dnsd: &Dnsd, name: &str) -> Self {
        let resolver = Arc::clone(&dnsd.service.resolver);
        let serving = resolver.serving();
        let (_, table) = serving.tables.first_key_value().unwrap();
        Self {
            table: Arc::clone(table),
            octets: query(name, RecordType::A, Some(1232)),
            resolver,
        }
    }

    fn take(&self) -> Disposition {
        let arrival = PacketInfo {
            source: "127.0.0.1:5353".parse().unwrap(),
            asked: None,
            // Nobody's, so that nothing is held.
            interface: None,
            transport: Transport::Udp,
        };
        self.resolver
            .answer(&self.octets, arrival, &self.table, ReceivedAt::now())
    }
}

#[tokio::test]
async fn a_cached_answer_allocates_nothing_with_any_metrics() {
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
        let at_door = PipelineClient::new(&dnsd, "api.example.test");
        let before = COUNT.get();
        let step = at_door.take();
        let taken = COUNT.get() - before;
        assert!(matches!(step, Disposition::Reply(_)), "it is in the cache");
        assert_eq!(taken, CACHED, "{name}");
    }
}

/// An upstream whose allocations are its own thread's.
fn upstream_elsewhere() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let its_address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let asked = &buffer[..length];
            let name = hickory_proto::op::Message::from_vec(asked).unwrap().queries[0]
                .name
                .to_lowercase()
                .to_ascii();
            let answer = response(asked, vec![address(&name, 60, "192.0.2.1")]);
            socket.send_to(&answer.to_vec().unwrap(), from).unwrap();
        }
    });
    its_address
}

/// Has names answered that nobody asked for before, one after the other; what an answer asked for.
async fn forward(dnsd: &Dnsd, zone: &str) -> usize {
    const NAMES: usize = 64;
    let name = |number| PipelineClient::new(dnsd, &format!("n{number}.{zone}.test"));
    let names: Vec<PipelineClient> = (0..NAMES).map(name).collect();
    let before = COUNT.get();
    for at_door in &names {
        let Disposition::Pending(pending) = at_door.take() else {
            panic!("it is not in the cache");
        };
        let waiting = pending.reply();
        assert!(size_of_val(&waiting) <= WAITING, "{}", size_of_val(&waiting));
        waiting.await.expect("a reply");
    }
    (COUNT.get() - before) / NAMES
}

#[tokio::test]
async fn a_pending_query_is_small_and_allocates_a_few_times() {
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n prometheus 127.0.0.1:9253\n errors\n cache 60\n forward . {}\n}}\n",
        upstream_elsewhere()
    );
    let dnsd = Dnsd::with("costs-forwarded", &corefile);
    // The first round is for what is made once.
    forward(&dnsd, "first").await;
    let taken = forward(&dnsd, "second").await;
    assert!((CACHED..=CACHED + FORWARDED).contains(&taken), "{taken}");
}

//! What CoreDNS counts of queries, by its names and labels: dashboards that were made for it go on working.
//!
//! These are counted on the way of every query. A handle is found when a plan is put in force; counting is an
//! addition to a number, and no sample is kept. What is counted more rarely goes by `metrics`.

mod histogram;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::Class;
use crate::dns::message::kind;
use crate::telemetry::metrics::Transport;

use super::Event;
use crate::zones::answer_source::By;
use histogram::Histogram;

pub(super) use text::rcode_label;

/// The types that have series of their own, as in CoreDNS; all others are "other".
const TYPES: [(u16, &str); 19] = [
    (kind::A, "A"),
    (kind::AAAA, "AAAA"),
    (kind::CNAME, "CNAME"),
    (48, "DNSKEY"),
    (43, "DS"),
    (15, "MX"),
    (50, "NSEC3"),
    (47, "NSEC"),
    (2, "NS"),
    (12, "PTR"),
    (46, "RRSIG"),
    (kind::SOA, "SOA"),
    (33, "SRV"),
    (16, "TXT"),
    (kind::HTTPS, "HTTPS"),
    (kind::SVCB, "SVCB"),
    (251, "IXFR"),
    (252, "AXFR"),
    (kind::ANY, "ANY"),
];
/// Codes of a header, and one for all above.
const RCODES: usize = 17;

/// All that was ever counted and is still in force.
#[derive(Debug, Default)]
pub struct Counts {
    /// Held when a plan is put in force, and when the page is written.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    zones: BTreeMap<Place, Arc<OfZone>>,
    caches: BTreeMap<Place, Arc<OfCache>>,
}

/// A server's address as CoreDNS writes it, and its zone or zones.
type Place = (String, String);

/// What is counted of the queries for a zone at an address.
#[derive(Debug)]
pub struct OfZone {
    requests: [[[AtomicU64; TYPES.len() + 1]; 2]; 2],
    with_do: AtomicU64,
    seconds: Histogram,
    request_octets: [Histogram; 2],
    response_octets: [Histogram; 2],
    responses: [[AtomicU64; By::ALL.len()]; RCODES],
}

/// Where a query is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    transport: Transport,
    is_ipv6: bool,
    /// The place of its type.
    of_kind: usize,
    dnssec: bool,
    /// The ranges of its octets, and of those of its reply.
    request: usize,
    response: usize,
    rcode: usize,
    by: By,
}

/// What is counted of a cache at an address.
#[derive(Debug, Default)]
pub struct OfCache {
    hits: [AtomicU64; 2],
    misses: AtomicU64,
    prefetches: AtomicU64,
    drops: AtomicU64,
    stale: AtomicU64,
    entries: [AtomicU64; 2],
    evictions: [AtomicU64; 2],
}

impl Counts {
    /// The handle for a zone at a server's address.
    #[must_use]
    pub fn zone(&self, server: &str, zone: &str) -> Arc<OfZone> {
        let place = (server.to_owned(), zone.to_owned());
        Arc::clone(self.lock().zones.entry(place).or_default())
    }

    /// The handle for the cache of some zones at a server's address.
    #[must_use]
    pub fn cache(&self, server: &str, zones: &str) -> Arc<OfCache> {
        let place = (server.to_owned(), zones.to_owned());
        Arc::clone(self.lock().caches.entry(place).or_default())
    }

    /// Forgets what no plan has a handle of any more.
    pub fn sweep(&self) {
        let mut state = self.lock();
        state.zones.retain(|_, counts| Arc::strong_count(counts) > 1);
        state.caches.retain(|_, counts| Arc::strong_count(counts) > 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for OfZone {
    fn default() -> Self {
        Self {
            requests: Default::default(),
            with_do: AtomicU64::new(0),
            seconds: Histogram::of_time(),
            request_octets: [Histogram::of_octets(), Histogram::of_octets()],
            response_octets: [Histogram::of_octets(), Histogram::of_octets()],
            responses: Default::default(),
        }
    }
}

impl Series {
    /// Those of a query that was answered.
    pub(crate) fn of(event: &Event<'_>, by: By) -> Self {
        let query = event.query;
        let of_kind = TYPES
            .iter()
            .position(|(number, _)| *number == query.question.kind);
        Self {
            transport: event.arrival.transport,
            is_ipv6: event.arrival.source.is_ipv6(),
            of_kind: of_kind.unwrap_or(TYPES.len()),
            dnssec: query.edns.as_ref().is_some_and(|edns| edns.dnssec),
            request: histogram::of_octets(event.octets as u64),
            response: histogram::of_octets(event.reply.len() as u64),
            rcode: event.reply.get(3).map_or(0, |flags| usize::from(flags & 0xf)),
            by,
        }
    }
}

impl OfZone {
    /// A query was answered.
    pub(super) fn count(&self, event: &Event<'_>, by: By) {
        let octets = [event.octets as u64, event.reply.len() as u64];
        self.add(&Series::of(event, by), 1, octets, event.span);
    }

    /// So many queries of the same series were answered, with so many octets of all requests and of all responses, each
    /// after this span.
    pub(crate) fn add(&self, series: &Series, queries: u64, octets: [u64; 2], span: Duration) {
        let transport = series.transport.counted();
        let [request_octets, response_octets] = octets;
        add(
            &self.requests[transport][usize::from(series.is_ipv6)][series.of_kind],
            queries,
        );
        if series.dnssec {
            add(&self.with_do, queries);
        }
        self.seconds.add(span, queries);
        self.request_octets[transport].add_at(series.request, queries, request_octets);
        self.response_octets[transport].add_at(series.response, queries, response_octets);
        add(&self.responses[series.rcode][series.by as usize], queries);
    }
}

impl OfCache {
    /// So many answers were there.
    pub fn hits(&self, class: Class, count: u64) {
        add(&self.hits[class as usize], count);
    }

    /// None was there.
    pub fn missed(&self) {
        add(&self.misses, 1);
    }

    /// An answer is asked for again before its end.
    pub fn prefetches(&self) {
        add(&self.prefetches, 1);
    }

    /// An answer cannot be read and is not kept.
    pub fn dropped(&self) {
        add(&self.drops, 1);
    }

    /// An answer was given after its end.
    pub fn gave_stale(&self) {
        add(&self.stale, 1);
    }

    /// How many there are of a class, and how many had to go.
    pub fn set(&self, class: Class, entries: u64, evictions: u64) {
        self.entries[class as usize].store(entries, Ordering::Relaxed);
        self.evictions[class as usize].store(evictions, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

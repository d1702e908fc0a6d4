//! CoreDNS' counters of queries, by its names and labels, so that its dashboards go on working.
//!
//! They are counted for every query: handles are looked up when a plan is put in force, counting is an atomic addition, and
//! histograms keep no samples. What is counted more rarely uses the crate `metrics`.

mod histogram;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::Class;
use crate::dns::message::kind;
use crate::net::Transport;

use super::AnsweredQuery;
use crate::zones::answer_source::AnswerSource;
use histogram::Histogram;

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
/// The codes of a header, and one for all others.
const RCODES: usize = 17;

/// The counters of all zones and caches in force.
#[derive(Debug, Default)]
pub struct CoreDnsCounters {
    /// Locked when a plan is put in force, and when the metrics are rendered.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    zones: BTreeMap<Labels, Arc<ZoneCounters>>,
    caches: BTreeMap<Labels, Arc<CacheCounters>>,
}

/// The labels `server` and `zone` or `zones`.
type Labels = (String, String);

/// The counters of a zone at an address.
#[derive(Debug)]
pub struct ZoneCounters {
    requests: [[[AtomicU64; TYPES.len() + 1]; 2]; 2],
    with_do: AtomicU64,
    seconds: Histogram,
    request_octets: [Histogram; 2],
    response_octets: [Histogram; 2],
    responses: [[AtomicU64; AnswerSource::ALL.len()]; RCODES],
}

/// The series that count a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Series {
    transport: Transport,
    is_ipv6: bool,
    /// The index of its type.
    type_index: usize,
    dnssec: bool,
    /// The buckets of its octets, and of those of its reply.
    request: usize,
    response: usize,
    rcode: usize,
    source: AnswerSource,
}

/// The counters of a cache at an address.
#[derive(Debug, Default)]
pub struct CacheCounters {
    hits: [AtomicU64; 2],
    misses: AtomicU64,
    prefetches: AtomicU64,
    drops: AtomicU64,
    stale: AtomicU64,
    entries: [AtomicU64; 2],
    evictions: [AtomicU64; 2],
}

impl CoreDnsCounters {
    /// The handle for a zone at a server's address.
    #[must_use]
    pub fn zone(&self, server: &str, zone: &str) -> Arc<ZoneCounters> {
        let labels = (server.to_owned(), zone.to_owned());
        Arc::clone(self.lock().zones.entry(labels).or_default())
    }

    /// The handle for the cache of some zones at a server's address.
    #[must_use]
    pub fn cache(&self, server: &str, zones: &str) -> Arc<CacheCounters> {
        let labels = (server.to_owned(), zones.to_owned());
        Arc::clone(self.lock().caches.entry(labels).or_default())
    }

    /// Drops the counters that no plan in force uses.
    pub fn sweep(&self) {
        let mut state = self.lock();
        state.zones.retain(|_, counts| Arc::strong_count(counts) > 1);
        state.caches.retain(|_, counts| Arc::strong_count(counts) > 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ZoneCounters {
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
    /// The series of an answered query.
    pub(crate) fn of(event: &AnsweredQuery<'_>, source: AnswerSource) -> Self {
        let query = event.query;
        let type_index = TYPES
            .iter()
            .position(|(number, _)| *number == query.question.kind);
        Self {
            transport: event.arrival.transport,
            is_ipv6: event.arrival.source.is_ipv6(),
            type_index: type_index.unwrap_or(TYPES.len()),
            dnssec: query.edns.as_ref().is_some_and(|edns| edns.dnssec),
            request: histogram::of_octets(event.octets as u64),
            response: histogram::of_octets(event.reply.len() as u64),
            rcode: event.reply.get(3).map_or(0, |flags| usize::from(flags & 0xf)),
            source,
        }
    }
}

impl ZoneCounters {
    /// Counts an answered query.
    pub(super) fn count(&self, event: &AnsweredQuery<'_>, source: AnswerSource) {
        let octets = [event.octets as u64, event.reply.len() as u64];
        self.add(&Series::of(event, source), 1, octets, event.span);
    }

    /// Counts answered queries of the same series: `octets` of all requests and of all responses, each after `span`.
    pub(crate) fn add(&self, series: &Series, queries: u64, octets: [u64; 2], span: Duration) {
        let transport = series.transport.counted();
        let [request_octets, response_octets] = octets;
        add(
            &self.requests[transport][usize::from(series.is_ipv6)][series.type_index],
            queries,
        );
        if series.dnssec {
            add(&self.with_do, queries);
        }
        self.seconds.add(span, queries);
        self.request_octets[transport].add_at(series.request, queries, request_octets);
        self.response_octets[transport].add_at(series.response, queries, response_octets);
        add(&self.responses[series.rcode][series.source as usize], queries);
    }
}

impl CacheCounters {
    /// Counts hits.
    pub fn hits(&self, class: Class, count: u64) {
        add(&self.hits[class as usize], count);
    }

    /// Counts a miss.
    pub fn missed(&self) {
        add(&self.misses, 1);
    }

    /// Counts a prefetch.
    pub fn prefetches(&self) {
        add(&self.prefetches, 1);
    }

    /// Counts an answer that cannot be read, and is not cached.
    pub fn dropped(&self) {
        add(&self.drops, 1);
    }

    /// Counts a stale answer.
    pub fn served_stale(&self) {
        add(&self.stale, 1);
    }

    /// Sets the entries and evictions of a class.
    pub fn set(&self, class: Class, entries: u64, evictions: u64) {
        self.entries[class as usize].store(entries, Ordering::Relaxed);
        self.evictions[class as usize].store(evictions, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

//! The counts in Prometheus' text format.

use std::sync::atomic::{AtomicU64, Ordering};

use egret_shared::rt::telemetry::MetricsPage;

use crate::cache::Class;
use crate::dns::message::rcode_label;
use crate::net::Transport;

use super::{CacheCounters, CoreDnsCounters, Histogram, RCODES, State, TYPES, ZoneCounters};
use crate::zones::answer_source::AnswerSource;

impl CoreDnsCounters {
    /// Writes them.
    pub fn write(&self, page: &mut MetricsPage) {
        let state = self.lock();
        zones(&state, page);
        caches(&state, page);
    }
}

fn zones(state: &State, page: &mut MetricsPage) {
    const REQUESTS: &str = "coredns_dns_requests_total";
    page.family(
        REQUESTS,
        "counter",
        "Counter of DNS requests made per zone, protocol and family.",
    );
    each(state, |labels, zone| zone.requests(REQUESTS, labels, page));
    const DO: &str = "coredns_dns_do_requests_total";
    page.family(DO, "counter", "Counter of DNS requests with DO bit set per zone.");
    each(state, |labels, zone| seen(DO, labels, &zone.with_do, page));
    const SECONDS: &str = "coredns_dns_request_duration_seconds";
    page.family(
        SECONDS,
        "histogram",
        "Histogram of the time (in seconds) each request took per zone.",
    );
    each(state, |labels, zone| {
        samples(SECONDS, labels, &zone.seconds, page)
    });
    const REQUEST_OCTETS: &str = "coredns_dns_request_size_bytes";
    page.family(
        REQUEST_OCTETS,
        "histogram",
        "Size of the requests in bytes, per zone and protocol.",
    );
    each(state, |labels, zone| {
        by_transport(REQUEST_OCTETS, labels, &zone.request_octets, page);
    });
    const RESPONSE_OCTETS: &str = "coredns_dns_response_size_bytes";
    page.family(
        RESPONSE_OCTETS,
        "histogram",
        "Size of the returned response in bytes, per zone and protocol.",
    );
    each(state, |labels, zone| {
        by_transport(RESPONSE_OCTETS, labels, &zone.response_octets, page);
    });
    const RESPONSES: &str = "coredns_dns_responses_total";
    page.family(RESPONSES, "counter", "Counter of response status codes.");
    each(state, |labels, zone| zone.responses(RESPONSES, labels, page));
}

fn each(state: &State, mut write: impl FnMut(&[(&str, &str)], &ZoneCounters)) {
    for ((server, zone), counts) in &state.zones {
        write(&[("server", server), ("zone", zone), ("view", "")], counts);
    }
}

fn by_transport(name: &str, labels: &[(&str, &str)], histograms: &[Histogram; 2], page: &mut MetricsPage) {
    for transport in Transport::ALL {
        let labels = with(labels, &[("proto", transport.label())]);
        samples(name, &labels, &histograms[transport.counted()], page);
    }
}

/// A counter at zero has no series, as in CoreDNS.
fn seen(name: &str, labels: &[(&str, &str)], counter: &AtomicU64, page: &mut MetricsPage) {
    let count = counter.load(Ordering::Relaxed);
    if count > 0 {
        page.count(name, labels, count);
    }
}

/// A histogram without samples has no series either.
fn samples(name: &str, labels: &[(&str, &str)], histogram: &Histogram, page: &mut MetricsPage) {
    let (rows, sum) = histogram.read();
    if rows.last().is_some_and(|(_, total)| *total > 0) {
        page.histogram(name, labels, rows, sum);
    }
}

fn with<'a>(labels: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    labels.iter().chain(more).copied().collect()
}

impl ZoneCounters {
    fn requests(&self, name: &str, labels: &[(&str, &str)], page: &mut MetricsPage) {
        for transport in Transport::ALL {
            for (family, of_family) in ["1", "2"].iter().zip(&self.requests[transport.counted()]) {
                for (index, counter) in of_family.iter().enumerate() {
                    let kind = TYPES.get(index).map_or("other", |(_, label)| label);
                    let more = [("proto", transport.label()), ("family", family), ("type", kind)];
                    seen(name, &with(labels, &more), counter, page);
                }
            }
        }
    }

    fn responses(&self, name: &str, labels: &[(&str, &str)], page: &mut MetricsPage) {
        for code in 0..RCODES {
            for source in AnswerSource::ALL {
                let code_label = rcode_label(u8::try_from(code).expect("RCODES is below 256"));
                let more = [("rcode", &*code_label), ("plugin", source.label())];
                seen(
                    name,
                    &with(labels, &more),
                    &self.responses[code][source as usize],
                    page,
                );
            }
        }
    }
}

fn caches(state: &State, page: &mut MetricsPage) {
    type Read = fn(&CacheCounters) -> &AtomicU64;
    type ReadClass = fn(&CacheCounters, Class) -> &AtomicU64;
    let by_class: [(&str, &str, &str, ReadClass); 3] = [
        (
            "coredns_cache_entries",
            "gauge",
            "The number of elements in the cache.",
            |cache, class| &cache.entries[class as usize],
        ),
        (
            "coredns_cache_hits_total",
            "counter",
            "The count of cache hits.",
            |cache, class| &cache.hits[class as usize],
        ),
        (
            "coredns_cache_evictions_total",
            "counter",
            "The count of cache evictions.",
            |cache, class| &cache.evictions[class as usize],
        ),
    ];
    for (name, kind, help, read) in by_class {
        page.family(name, kind, help);
        for ((server, zones), cache) in &state.caches {
            for class in Class::ALL {
                let labels = [
                    ("server", &**server),
                    ("type", class.label()),
                    ("zones", zones),
                    ("view", ""),
                ];
                page.count(name, &labels, read(cache, class).load(Ordering::Relaxed));
            }
        }
    }
    let single: [(&str, &str, Read); 4] = [
        (
            "coredns_cache_misses_total",
            "The count of cache misses.",
            |cache| &cache.misses,
        ),
        (
            "coredns_cache_prefetch_total",
            "The number of times the cache has prefetched a cached item.",
            |cache| &cache.prefetches,
        ),
        (
            "coredns_cache_drops_total",
            "The number responses that are not cached, because the reply is malformed.",
            |cache| &cache.drops,
        ),
        (
            "coredns_cache_served_stale_total",
            "The number of requests served from stale cache entries.",
            |cache| &cache.stale,
        ),
    ];
    for (name, help, read) in single {
        page.family(name, "counter", help);
        for ((server, zones), cache) in &state.caches {
            let labels = [("server", &**server), ("zones", zones), ("view", "")];
            page.count(name, &labels, read(cache).load(Ordering::Relaxed));
        }
    }
    let name = "coredns_cache_requests_total";
    page.family(name, "counter", "The count of cache requests.");
    for ((server, zones), cache) in &state.caches {
        let labels = [("server", &**server), ("zones", zones), ("view", "")];
        page.count(name, &labels, cache.requests());
    }
}

impl CacheCounters {
    fn requests(&self) -> u64 {
        let hits = self.hits.iter().chain([&self.misses]);
        hits.map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

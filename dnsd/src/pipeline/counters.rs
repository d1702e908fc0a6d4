//! What is counted of queries that are answered together. A counter is an addition that no other processor may come between,
//! and a cached answer had thirteen of them; here they are added up for all that came together, and counted once, before
//! any of the replies goes out: so whoever has an answer finds it counted.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::time::Instant;

use crate::cache::Class;
use crate::net::Transport;
use crate::pipeline::Metrics;
use crate::zones::{AnswerSource, AnsweredQuery, CacheCounters, Series, ZoneBinding, ZoneCounters};

/// Sets of labels that are added up side by side: most of what comes together has one or two.
const SERIES_SLOTS: usize = 4;

/// Of queries that came at one moment.
#[derive(Debug)]
pub(crate) struct BatchedCounters<'a> {
    metrics: &'a Metrics,
    begun: Instant,
    queries: [[Cell<u64>; 2]; 2],
    responses: [Cell<u64>; 16],
    hits: Cell<u64>,
    observations: Cell<u64>,
    of_cache: RefCell<Option<CacheHits>>,
    of_zones: RefCell<[Option<SeriesSum>; SERIES_SLOTS]>,
}

/// Answers that were in one cache.
#[derive(Debug)]
struct CacheHits {
    counts: Arc<CacheCounters>,
    hits: [u64; 2],
}

/// Queries that are counted in the same series.
#[derive(Debug)]
struct SeriesSum {
    counts: Arc<ZoneCounters>,
    series: Series,
    queries: u64,
    octets: [u64; 2],
}

impl<'a> BatchedCounters<'a> {
    /// Nothing yet of queries that came then.
    pub(crate) fn new(metrics: &'a Metrics, begun: Instant) -> Self {
        Self {
            metrics,
            begun,
            queries: Default::default(),
            responses: Default::default(),
            hits: Cell::new(0),
            observations: Cell::new(0),
            of_cache: RefCell::new(None),
            of_zones: RefCell::default(),
        }
    }

    /// A query came in.
    pub(crate) fn query(&self, transport: Transport, is_ipv6: bool) {
        add(&self.queries[transport as usize][usize::from(is_ipv6)]);
    }

    /// A reply with this code goes out.
    pub(crate) fn response(&self, rcode: u8) {
        add(&self.responses[usize::from(rcode & 0xf)]);
    }

    /// An answer was in the cache.
    pub(crate) fn hit(&self, binding: &ZoneBinding, class: Class) {
        add(&self.hits);
        let Some(counts) = &binding.of_cache else {
            return;
        };
        let mut of_cache = self.of_cache.borrow_mut();
        if let Some(other) = of_cache.take_if(|sum| !Arc::ptr_eq(&sum.counts, counts)) {
            other.tell();
        }
        let sum = of_cache.get_or_insert_with(|| CacheHits {
            counts: Arc::clone(counts),
            hits: [0; 2],
        });
        sum.hits[class as usize] += 1;
    }

    /// A client is given an answer with addresses.
    pub(crate) fn observation(&self) {
        add(&self.observations);
    }

    /// A query was answered, whose span is not known yet.
    pub(crate) fn note(&self, binding: &ZoneBinding, event: &AnsweredQuery<'_>, source: AnswerSource) {
        let Some(counts) = &binding.counts else {
            return;
        };
        let (series, octets) = (Series::of(event, source), [event.octets, event.reply.len()]);
        let mut of_zones = self.of_zones.borrow_mut();
        let is_it = |sum: &SeriesSum| sum.series == series && Arc::ptr_eq(&sum.counts, counts);
        let resolved = of_zones.iter().position(|sum| sum.as_ref().is_none_or(is_it));
        let place = resolved.unwrap_or_else(|| {
            self.tell_zones(&mut *of_zones);
            0
        });
        let sum = of_zones[place].get_or_insert_with(|| SeriesSum {
            counts: Arc::clone(counts),
            series,
            queries: 0,
            octets: [0; 2],
        });
        sum.queries += 1;
        for (sum, octets) in sum.octets.iter_mut().zip(octets) {
            *sum += octets as u64;
        }
    }

    fn tell_zones(&self, of_zones: &mut [Option<SeriesSum>]) {
        if of_zones.first().is_some_and(Option::is_some) {
            let span = self.begun.elapsed();
            of_zones
                .iter_mut()
                .filter_map(Option::take)
                .for_each(|sum| sum.tell(span));
        }
    }
}

impl Drop for BatchedCounters<'_> {
    fn drop(&mut self) {
        for (transport, of_transport) in Transport::ALL.iter().zip(&self.queries) {
            for (is_ipv6, sum) in [false, true].iter().zip(of_transport) {
                some(sum, |count| self.metrics.queries(*transport, *is_ipv6, count));
            }
        }
        for (rcode, sum) in (0..).zip(&self.responses) {
            some(sum, |count| self.metrics.responses(rcode, count));
        }
        tell(&self.hits, &self.metrics.cache_hits);
        tell(&self.observations, &self.metrics.gate.observations);
        if let Some(sum) = self.of_cache.take() {
            sum.tell();
        }
        self.tell_zones(&mut *self.of_zones.borrow_mut());
    }
}

impl CacheHits {
    fn tell(self) {
        for (class, hits) in Class::ALL.into_iter().zip(self.hits) {
            if hits > 0 {
                self.counts.hits(class, hits);
            }
        }
    }
}

impl SeriesSum {
    fn tell(self, span: Duration) {
        self.counts.add(&self.series, self.queries, self.octets, span);
    }
}

fn add(sum: &Cell<u64>) {
    sum.set(sum.get() + 1);
}

fn tell(sum: &Cell<u64>, counter: &Counter) {
    some(sum, |count| counter.increment(count));
}

fn some(sum: &Cell<u64>, tell: impl FnOnce(u64)) {
    if sum.get() > 0 {
        tell(sum.get());
    }
}

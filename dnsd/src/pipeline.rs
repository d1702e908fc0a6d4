//! The path of a query: parse, identify the client, find the zone, answer from the cache or by the chain, observe, hold, reply.
//!
//! `Resolver` answers at once where it can. Otherwise the query becomes [`Pending`], and a task waits with it.

pub(crate) mod counters;
mod metrics;
mod query;
mod reply;
mod pending;
mod learning;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use tokio::time::Instant;

use self::counters::BatchedCounters;
use self::learning::Learning;
use self::metrics::Intercepted;
use self::pending::PendingState;
use self::query::{Learnable, QueryView};
use crate::cache::{Found, Hit, Key, StaleRefresh};
use crate::dns::message::{HEADER, Query, Refusal, error_reply, rcode};
use crate::enforcement::client::{Client, ClientLookup, Identity};
use crate::enforcement::gated::ResponseGate;
use crate::kernel_answers::KernelAnswers;
use crate::limits::permits::{FairSemaphore, RevokeSender};
use crate::limits::rate::RateLimiter;
use crate::upstream::Failure;
use crate::zones::{ActiveConfig, CacheCounters, PacketInfo, StoredAnswer, ZoneTable};

pub use self::metrics::Metrics;

/// Answers queries by the configuration in force.
#[derive(Debug)]
pub struct Resolver {
    serving: RwLock<Arc<ActiveConfig>>,
    /// Queries that wait for upstreams.
    waiting: Arc<FairSemaphore<RevokeSender>>,
    rates: RateLimiter,
    client_lookup: Arc<ClientLookup>,
    gate: Arc<ResponseGate>,
    metrics: Arc<Metrics>,
    learning: Learning,
}

/// What happens to a query at once.
#[derive(Debug)]
pub enum Disposition {
    /// This reply is sent.
    Reply(Vec<u8>),
    /// Nothing is sent.
    NoReply,
    /// The reply comes later.
    Pending(Pending),
}

/// A query that waits for an upstream, or for the enforcer.
#[derive(Debug)]
pub struct Pending(PendingState);

/// A stale answer, and how long a better one is waited for.
type StaleFallback = (Hit<StoredAnswer>, Option<Duration>);

/// Queries that were read together, under one zone table. Dropping it adds up the counters.
#[derive(Debug)]
pub struct Batch<'a> {
    resolver: &'a Arc<Resolver>,
    table: &'a Arc<ZoneTable>,
    received: ReceivedAt,
    counters: BatchedCounters<'a>,
}

/// When a batch was read.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedAt {
    now: Timestamp,
    instant: Instant,
}

impl ReceivedAt {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            now: clock::now(),
            instant: Instant::now(),
        }
    }
}

impl Resolver {
    /// Answers by this configuration.
    #[must_use]
    pub fn new(
        serving: ActiveConfig,
        client_lookup: Arc<ClientLookup>,
        gate: Arc<ResponseGate>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            serving: RwLock::new(Arc::new(serving)),
            waiting: Arc::default(),
            rates: RateLimiter::default(),
            client_lookup,
            gate,
            metrics,
            learning: Learning::default(),
        }
    }

    /// With answers of the kernel.
    #[must_use]
    pub fn with_kernel_answers(self, answers: Arc<KernelAnswers>) -> Self {
        Self {
            learning: Learning::of(answers),
            ..self
        }
    }

    /// Adds what the kernel has answered to the metrics.
    pub fn count_kernel_answers(&self) {
        self.learning.add_up(&self.metrics);
    }

    /// The configuration in force.
    #[must_use]
    pub fn serving(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The counters.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Identifies the client of a packet.
    pub fn identify(&self, packet: &PacketInfo, now: Timestamp) -> Identity {
        self.client_lookup
            .identify(packet.source.ip(), packet.interface, now)
    }

    /// Whether any answer is held.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.gate.is_holding()
    }

    /// Queries that wait for upstreams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.taken()
    }

    /// Puts another configuration in force. The owner of the sockets has replaced their zone tables.
    pub fn put_in_force(&self, serving: ActiveConfig) {
        self.gate.set_limits(serving.config.hold);
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
        self.learning.begin_configuration(&self.metrics, clock::now());
    }

    /// Answers a query by itself.
    pub fn answer(
        self: &Arc<Self>,
        octets: &[u8],
        packet: PacketInfo,
        table: &Arc<ZoneTable>,
        received: ReceivedAt,
    ) -> Disposition {
        self.batch(table, received).answer(octets, packet)
    }

    /// Begins a batch.
    #[must_use]
    pub fn batch<'a>(self: &'a Arc<Self>, table: &'a Arc<ZoneTable>, received: ReceivedAt) -> Batch<'a> {
        Batch {
            resolver: self,
            table,
            received,
            counters: BatchedCounters::new(&self.metrics, received.instant),
        }
    }

    /// Answers from the cache, or makes the query wait.
    fn resolve(self: &Arc<Self>, query: QueryView<'_>, now: Timestamp) -> Disposition {
        let block = &query.binding.block;
        block.observe_query(query.query);
        // An answer of a resolver that the client chose is not cached, nor is one from the cache its answer.
        let own_key = match query.chosen_resolver {
            None => block.key_view(query.query),
            Some(_) => None,
        };
        let Some(key) = own_key.filter(|_| !block.translates(query.query, query.packet)) else {
            return self.wait(query, own_key.map(|key| key.to_key(query.query)), None);
        };
        let query = QueryView {
            missed_at: query.binding.completions(),
            ..query
        };
        let hit = match block.cached(key, now) {
            Found::Fresh(hit) => hit,
            Found::FreshAndDue(hit) => {
                query.binding.count_cache(CacheCounters::prefetches);
                self.refresh(query, key.to_key(query.query));
                hit
            }
            Found::Stale(hit, StaleRefresh::Background) => {
                self.refresh(query, key.to_key(query.query));
                hit
            }
            Found::Stale(hit, StaleRefresh::None) => hit,
            Found::Stale(hit, StaleRefresh::Foreground(timeout)) => {
                return self.wait(query, Some(key.to_key(query.query)), Some((hit, timeout)));
            }
            Found::Miss => {
                self.metrics.cache_misses.increment(1);
                query.binding.count_cache(CacheCounters::missed);
                let key = key.to_key(query.query);
                if let Some(denial) = query.binding.denied_below(&key, query.query, now) {
                    return self.deny(query, &denial, now);
                }
                return self.wait(query, Some(key), None);
            }
        };
        self.deliver(query, self.cached(query, &hit, now))
    }

    /// Makes a query wait for an upstream, if its client has a permit left.
    fn wait(
        self: &Arc<Self>,
        query: QueryView<'_>,
        key: Option<Key>,
        stale: Option<StaleFallback>,
    ) -> Disposition {
        match self.waiting.acquire(query.quota_key, query.table.config.waiting) {
            Some(permit) => {
                let query = query.owned(key);
                Disposition::Pending(Pending(PendingState::ForAnswer(
                    Arc::clone(self),
                    query,
                    stale,
                    permit,
                )))
            }
            None => self.over_limit(query, stale.as_ref().map(|(hit, _)| hit)),
        }
    }

    /// Refreshes a cached answer in a task of its own, if its client has a permit left.
    fn refresh(&self, query: QueryView<'_>, key: Key) {
        let binding = Arc::clone(query.binding);
        let Some(permit) = self.waiting.acquire(query.quota_key, query.table.config.waiting) else {
            self.metrics.upstream.error(Failure::OverLimit);
            return binding.block.refresh_failed(&key, clock::now());
        };
        let (query, context) = (query.query.owned(), query.context());
        drop(task::spawn_brief(async move {
            drop(binding.refresh(key, query, context).await);
            drop(permit);
        }));
    }
}

impl Batch<'_> {
    /// Answers a query. A panic ends this answer alone, with SERVFAIL: shared state is locked for one operation at a time.
    pub fn answer(&self, octets: &[u8], packet: PacketInfo) -> Disposition {
        if self.table.is_debugged {
            return self.dispatch(octets, packet);
        }
        let answered = catch_unwind(AssertUnwindSafe(|| self.dispatch(octets, packet)));
        answered.unwrap_or_else(|_panic| {
            self.resolver.metrics.zones.panics.increment(1);
            let refusal = if octets.len() < HEADER {
                Refusal::Silence
            } else {
                Refusal::Reply(rcode::SERVFAIL)
            };
            self.resolver.refuse(octets, refusal, &self.table.config)
        })
    }

    /// Parses a query, identifies its client and finds its zone.
    fn dispatch(&self, octets: &[u8], packet: PacketInfo) -> Disposition {
        let Self {
            resolver,
            table,
            received,
            counters,
        } = self;
        counters.query(packet.transport, packet.source.is_ipv6());
        // Filled in place: a move would copy some hundred octets.
        let mut query = Query::UNREAD;
        if let Err(refusal) = query.fill(octets) {
            return resolver.refuse(octets, refusal, &table.config);
        }
        let query = &query;
        let generation = resolver.learning.answers.generation();
        let Identity {
            client,
            quota_key,
            is_forged,
            pod_until,
        } = resolver.identify(&packet, received.now);
        if let Client::Unidentified(reason) = client {
            resolver.metrics.unattributed(reason);
        }
        if is_forged {
            return Disposition::NoReply;
        }
        let rate = table.config.queries_per_second;
        if let Err(over) = resolver.rates.admit(quota_key, rate, received.now) {
            resolver.metrics.over_rate(over);
            let reply = error_reply(query, rcode::REFUSED, table.config.max_udp_size);
            resolver.metrics.responses(rcode::REFUSED, 1);
            return Disposition::Reply(reply);
        }
        let Some(binding) = table.binding(&query.question, packet.asked) else {
            return resolver.refuse_unknown(query, &packet, table, octets);
        };
        let intercepted = table.intercepted(packet.asked);
        let chosen_resolver = intercepted.filter(|_| table.config.trusted_originals.is_some());
        if intercepted.is_some() {
            let upstream = chosen_resolver.map_or(Intercepted::Ours, |_| Intercepted::Original);
            resolver.metrics.intercepted(upstream);
        }
        let view = QueryView {
            query,
            client,
            quota_key,
            packet: &packet,
            binding,
            table,
            chosen_resolver,
            query_octets: octets.len(),
            received: received.instant,
            missed_at: None,
            counters: Some(counters),
            learnable: generation.zip(pod_until).map(|(generation, until)| Learnable {
                octets,
                generation,
                until,
            }),
        };
        resolver.resolve(view, received.now)
    }
}

//! The way of one query: read, attribute, find its block, answer from its cache or by its chain, observe, hold, reply.

pub(crate) mod counters;
mod metrics;
mod pending;

use std::borrow::Cow;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use tokio::time::Instant;

use self::metrics::Intercepted;
pub use self::metrics::Metrics;
use crate::cache::nxdomain_cut::Denial;
use crate::cache::{Class, Found, Hit, Key, StaleRefresh};
use crate::config::{Config, OnStall};
use crate::dns::answer::{Answer, AnswerView, Ttls};
use crate::dns::message::{
    HEADER, Query, Refusal, bad_version_reply, error_reply, explained_reply, header_reply, rcode,
};
use crate::enforcement::client::{Client, ClientId, ClientLookup, Identity};
use crate::enforcement::gate::{Origin, Stall};
use crate::enforcement::gated::{Admission, GatedResponse, ResponseGate};
use crate::enforcement::observation::AnswerObservation;
use crate::limits::permits::{FairSemaphore, RevocablePermit, RevokeSender};
use crate::limits::quota_key::QuotaKey;
use crate::limits::rate::RateLimiter;
use crate::net::Transport;
use crate::pipeline::counters::BatchedCounters;
use crate::upstream::{CompletionCount, Failure};
use crate::zones::{
    ActiveConfig, AnswerSource, AnsweredQuery, CacheCounters, PacketInfo, QueryContext, ResolveError,
    ResolvedAnswer, StoredAnswer, ZoneBinding, ZoneTable,
};

/// Seconds for which addresses of a stale answer are good at least: its TTL may be 0, and its client connects all
/// the same.
const STALE_LIFETIME_SECONDS: u64 = 30;

/// All that answering takes.
#[derive(Debug)]
pub struct Resolver {
    serving: RwLock<Arc<ActiveConfig>>,
    /// Queries that wait for upstreams.
    waiting: Arc<FairSemaphore<RevokeSender>>,
    rates: RateLimiter,
    client_lookup: Arc<ClientLookup>,
    gate: Arc<ResponseGate>,
    metrics: Arc<Metrics>,
}

/// What becomes of a query at once.
#[derive(Debug)]
pub enum Disposition {
    /// This reply goes out now.
    Reply(Vec<u8>),
    /// Nothing does.
    NoReply,
    /// The reply comes later.
    Pending(Pending),
}

/// A query that waits for an upstream or for the kernel.
#[derive(Debug)]
pub struct Pending(PendingState);

#[derive(Debug)]
enum PendingState {
    ForAnswer(
        Arc<Resolver>,
        Box<WaitingQuery>,
        Option<StaleFallback>,
        RevocablePermit,
    ),
    ForKernel(Arc<Resolver>, Box<WaitingQuery>, UnsentReply, GatedResponse),
}

/// What is given where nothing better comes, and how long that is waited for.
type StaleFallback = (Hit<StoredAnswer>, Option<Duration>);

/// A query with its client, and who answers it: of what waits.
#[derive(Debug)]
struct WaitingQuery {
    query: Query<'static>,
    key: Option<Key>,
    client: Client,
    quota_key: QuotaKey,
    arrival: PacketInfo,
    binding: Arc<ZoneBinding>,
    table: Arc<ZoneTable>,
    /// Whom the client asked, if that one is to be asked.
    original: Option<IpAddr>,
    octets: usize,
    begun: Instant,
    missed_at: Option<CompletionCount>,
}

/// The same while it is looked at: what is answered at once owns nothing.
#[derive(Clone, Copy)]
struct QueryView<'a> {
    query: &'a Query<'a>,
    client: Client,
    quota_key: QuotaKey,
    arrival: &'a PacketInfo,
    binding: &'a Arc<ZoneBinding>,
    table: &'a Arc<ZoneTable>,
    /// Whom the client asked, if that one is to be asked.
    original: Option<IpAddr>,
    /// Octets of the query.
    octets: usize,
    /// When it came.
    begun: Instant,
    /// How many questions had ended before the cache was looked into, if it was.
    missed_at: Option<CompletionCount>,
    /// Where it is counted with others that came with it.
    sums: Option<&'a BatchedCounters<'a>>,
}

/// Queries that came together, where one table is in force.
#[derive(Debug)]
pub struct Batch<'a> {
    resolver: &'a Arc<Resolver>,
    table: &'a Arc<ZoneTable>,
    when: ReceivedAt,
    /// Counted when the batch is dropped.
    sums: BatchedCounters<'a>,
}

/// When something came; what comes together has one.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedAt {
    now: Timestamp,
    begun: Instant,
}

impl ReceivedAt {
    /// This one.
    #[must_use]
    pub fn now() -> Self {
        Self {
            now: clock::now(),
            begun: Instant::now(),
        }
    }
}

/// What becomes of an answer.
enum Delivery {
    Now(Vec<u8>, AnswerSource),
    GatedResponse(UnsentReply, GatedResponse),
}

/// A reply that is not sent before its wait has ended; `or_else` goes out instead if it may not.
#[derive(Debug)]
struct UnsentReply {
    reply: Vec<u8>,
    source: AnswerSource,
    or_else: Vec<u8>,
}

impl Resolver {
    /// Answers as configured.
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
        }
    }

    /// What is in force.
    #[must_use]
    pub fn serving(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Who sent what came so.
    pub fn identify(&self, arrival: &PacketInfo, now: Timestamp) -> Identity {
        self.client_lookup
            .identify(arrival.source.ip(), arrival.interface, now)
    }

    /// Whether any answer waits for the enforcer.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.gate.is_holding()
    }

    /// Puts another configuration in force, for what comes; the sockets' tables are set by who has them.
    pub fn put_in_force(&self, serving: ActiveConfig) {
        self.gate.set_limits(serving.config.hold);
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
    }

    /// Takes a query, where this table is in force: replies at once if it can.
    pub fn take(
        self: &Arc<Self>,
        octets: &[u8],
        arrival: PacketInfo,
        table: &Arc<ZoneTable>,
        when: ReceivedAt,
    ) -> Disposition {
        self.batch(table, when).take(octets, arrival)
    }

    /// Begins to take queries that came together.
    #[must_use]
    pub fn batch<'a>(self: &'a Arc<Self>, table: &'a Arc<ZoneTable>, when: ReceivedAt) -> Batch<'a> {
        Batch {
            resolver: self,
            table,
            when,
            sums: BatchedCounters::new(&self.metrics, when.begun),
        }
    }

    fn take_at(self: &Arc<Self>, batch: &Batch<'_>, octets: &[u8], arrival: PacketInfo) -> Disposition {
        let (table, ReceivedAt { now, begun }, sums) = (batch.table, batch.when, &batch.sums);
        sums.query(arrival.transport, arrival.source.is_ipv6());
        // Looked at where it is: it is too large to be moved for nothing.
        let mut query = Query::UNREAD;
        if let Err(refusal) = query.fill(octets) {
            return self.refuse(octets, refusal, &table.config);
        }
        let query = &query;
        let Identity {
            client,
            quota_key,
            is_forged,
        } = self.identify(&arrival, now);
        if let Client::Unidentified(reason) = client {
            self.metrics.unattributed(reason);
        }
        if is_forged {
            return Disposition::NoReply;
        }
        let rate = table.config.queries_per_second;
        if let Err(over) = self.rates.admit(quota_key, rate, now) {
            self.metrics.over_rate(over);
            let reply = error_reply(query, rcode::REFUSED, table.config.max_udp_size);
            self.metrics.responses(rcode::REFUSED, 1);
            return Disposition::Reply(reply);
        }
        let Some(binding) = table.binding(&query.question, arrival.asked) else {
            return self.refuse_unknown(query, &arrival, table, octets);
        };
        let intercepted = table.intercepted(arrival.asked);
        let original = intercepted.filter(|_| table.config.trusted_originals.is_some());
        if intercepted.is_some() {
            self.metrics
                .intercepted(original.map_or(Intercepted::Ours, |_| Intercepted::Original));
        }
        let asked = QueryView {
            query,
            client,
            quota_key,
            arrival: &arrival,
            binding,
            table,
            original,
            octets: octets.len(),
            begun,
            missed_at: None,
            sums: Some(sums),
        };
        self.begin(asked, now)
    }

    /// Answers from the cache, or makes the query wait.
    fn begin(self: &Arc<Self>, asked: QueryView<'_>, now: Timestamp) -> Disposition {
        let block = &asked.binding.block;
        block.observe_query(asked.query);
        // What others say is neither kept nor answered from what is.
        let own_key = match asked.original {
            None => block.key_view(asked.query),
            Some(_) => None,
        };
        let Some(key) = own_key.filter(|_| !block.translates(asked.query, asked.arrival)) else {
            return self.wait(asked, own_key.map(|key| key.to_key(asked.query)), None);
        };
        let asked = QueryView {
            missed_at: asked.binding.completions(),
            ..asked
        };
        let hit = match block.cached(key, now) {
            Found::Fresh(hit) => hit,
            Found::FreshAndDue(hit) => {
                asked.binding.count_cache(CacheCounters::prefetches);
                self.refresh_behind(asked, key.to_key(asked.query));
                hit
            }
            Found::Stale(hit, StaleRefresh::Background) => {
                self.refresh_behind(asked, key.to_key(asked.query));
                hit
            }
            Found::Stale(hit, StaleRefresh::None) => hit,
            Found::Stale(hit, StaleRefresh::Foreground(patience)) => {
                return self.wait(asked, Some(key.to_key(asked.query)), Some((hit, patience)));
            }
            Found::Miss => {
                self.metrics.cache_misses.increment(1);
                asked.binding.count_cache(CacheCounters::missed);
                let key = key.to_key(asked.query);
                if let Some(denial) = asked.binding.denied_below(&key, asked.query, now) {
                    return self.deny(asked, &denial, now);
                }
                return self.wait(asked, Some(key), None);
            }
        };
        self.give_kept_now(asked, &hit, now)
    }

    /// Denies what is below a denied name: that tells nobody anything, so nothing is noted.
    fn deny(&self, asked: QueryView<'_>, denial: &Denial, now: Timestamp) -> Disposition {
        let (block, limit) = (&asked.binding.block, asked.datagram_limit());
        block.count_cut();
        let reply = denial.reply(asked.query, now, block.keeps_ttls(), limit, asked.udp_size());
        self.reply(asked, reply, AnswerSource::Cache)
    }

    /// Gives what is kept.
    fn give_kept_now(
        self: &Arc<Self>,
        asked: QueryView<'_>,
        hit: &Hit<StoredAnswer>,
        now: Timestamp,
    ) -> Disposition {
        match self.cached_reply(asked, hit, now) {
            Delivery::Now(reply, source) => self.reply(asked, reply, source),
            Delivery::GatedResponse(unsent, held) => self.held(asked.owned(None), unsent, held),
        }
    }

    /// Sends what goes out now.
    fn step(self: &Arc<Self>, asked: Box<WaitingQuery>, given: Delivery) -> Disposition {
        match given {
            Delivery::Now(reply, source) => self.reply(asked.view(), reply, source),
            Delivery::GatedResponse(unsent, held) => self.held(asked, unsent, held),
        }
    }

    fn held(
        self: &Arc<Self>,
        asked: Box<WaitingQuery>,
        unsent: UnsentReply,
        held: GatedResponse,
    ) -> Disposition {
        Disposition::Pending(Pending(PendingState::ForKernel(
            Arc::clone(self),
            asked,
            unsent,
            held,
        )))
    }

    /// Queries that wait for upstreams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.taken()
    }

    /// Makes a query wait for an upstream, if there is room; what is stale is given if nothing better comes.
    fn wait(
        self: &Arc<Self>,
        asked: QueryView<'_>,
        key: Option<Key>,
        stale: Option<StaleFallback>,
    ) -> Disposition {
        match (
            self.waiting.acquire(asked.quota_key, asked.table.config.waiting),
            stale,
        ) {
            (Some(permit), stale) => Disposition::Pending(Pending(PendingState::ForAnswer(
                Arc::clone(self),
                asked.owned(key),
                stale,
                permit,
            ))),
            (None, Some((hit, _))) => self.give_kept_now(asked, &hit, clock::now()),
            (None, None) => {
                self.metrics.upstream.error(Failure::OverLimit);
                self.fail(asked, ResolveError::OverLimit)
            }
        }
    }

    /// What is given to who had to give way to another client: what is stale, if there is anything.
    fn crowded_out(self: &Arc<Self>, asked: QueryView<'_>, stale: Option<&StaleFallback>) -> Disposition {
        if let Some((hit, _)) = stale {
            return self.give_kept_now(asked, hit, clock::now());
        }
        self.metrics.upstream.error(Failure::OverLimit);
        self.fail(asked, ResolveError::OverLimit)
    }

    /// Asks for an answer again that was given just now, if who was given it has room for one more that waits.
    fn refresh_behind(&self, asked: QueryView<'_>, key: Key) {
        let binding = Arc::clone(asked.binding);
        let Some(permit) = self.waiting.acquire(asked.quota_key, asked.table.config.waiting) else {
            self.metrics.upstream.error(Failure::OverLimit);
            return binding.block.refresh_failed(&key, clock::now());
        };
        let (query, context) = (asked.query.owned(), asked.context());
        drop(task::spawn_brief(async move {
            drop(binding.refresh(key, query, context).await);
            drop(permit);
        }));
    }

    fn fail(&self, asked: QueryView<'_>, error: ResolveError) -> Disposition {
        let (code, reason) = (error.rcode(), error.extended_error());
        asked.binding.block.log_error(asked.query, error);
        let reply = explained_reply(asked.query, code, reason, asked.udp_size());
        self.reply(asked, reply, AnswerSource::Server)
    }

    /// No block answers for this name here.
    fn refuse_unknown(
        &self,
        query: &Query,
        arrival: &PacketInfo,
        table: &ZoneTable,
        octets: &[u8],
    ) -> Disposition {
        let error = ResolveError::NoBlock;
        let size = table.config.max_udp_size;
        let reply = explained_reply(query, error.rcode(), error.extended_error(), size);
        table.note_dropped(&AnsweredQuery {
            query,
            arrival,
            octets: octets.len(),
            reply: &reply,
            span: Duration::ZERO,
        });
        self.metrics.responses(error.rcode(), 1);
        Disposition::Reply(reply)
    }

    fn refuse(&self, octets: &[u8], refusal: Refusal, config: &Config) -> Disposition {
        let reply = match refusal {
            Refusal::Silence => {
                self.metrics.ignored.increment(1);
                return Disposition::NoReply;
            }
            Refusal::Reply(code) => header_reply(octets, code),
            Refusal::BadVersion => bad_version_reply(octets, config.max_udp_size),
        };
        self.metrics.responses(reply[3] & 0xf, 1);
        Disposition::Reply(reply)
    }

    fn cached_reply(&self, asked: QueryView<'_>, hit: &Hit<StoredAnswer>, now: Timestamp) -> Delivery {
        self.count_hit(asked, hit.class);
        if matches!(hit.ttls, Ttls::All(_)) {
            asked.binding.count_cache(CacheCounters::served_stale);
        }
        let answer = hit.value.answer(hit.arrived);
        let (reply, is_whole) = asked.reply(&answer, hit.ttls);
        let Some(client_id) = asked
            .hears(&reply, is_whole)
            .filter(|_| hit.value.has_addresses())
        else {
            return Delivery::Now(reply, AnswerSource::Cache);
        };
        if matches!(hit.ttls, Ttls::CountedDown(_)) && self.knows(asked, client_id, hit) {
            return Delivery::Now(reply, AnswerSource::Cache);
        }
        let Some(observation) = hit.value.observation(hit.arrived) else {
            return Delivery::Now(reply, AnswerSource::Cache);
        };
        let observation = as_given(Cow::Owned(observation), hit.arrived, hit.ttls, now);
        self.admit(asked, reply, AnswerSource::Cache, client_id, observation, now)
    }

    /// Whether a client was told before what is kept here; nearly all were.
    fn knows(&self, asked: QueryView<'_>, client_id: ClientId, hit: &Hit<StoredAnswer>) -> bool {
        let bitmap = hit.value.bitmap();
        if self.gate.is_marked(client_id, bitmap) {
            match asked.sums {
                Some(sums) => sums.observation(),
                None => self.metrics.gate.observations.increment(1),
            }
            return true;
        }
        let addresses = hit.value.addresses(hit.arrived);
        let observation = |question: &str| self.gate.settle(client_id, question, addresses, bitmap);
        hit.value.with_question(observation).unwrap_or(false)
    }

    fn count_hit(&self, asked: QueryView<'_>, class: Class) {
        if let Some(sums) = asked.sums {
            return sums.hit(asked.binding, class);
        }
        self.metrics.cache_hits.increment(1);
        asked.binding.count_cache(|counts| counts.hits(class, 1));
    }

    /// Gives an answer to its client, now or when the kernel is ready.
    fn give(
        &self,
        asked: QueryView<'_>,
        resolved: &ResolvedAnswer,
        ttls: Ttls,
        source: AnswerSource,
        now: Timestamp,
    ) -> Delivery {
        let observation = resolved.observation.as_ref().map(Cow::Borrowed);
        self.give_telling(asked, resolved.answer.get(), observation, ttls, source, now)
    }

    /// The same of an answer that came just now. Nearly always nobody else waits for it: then what it tells is not copied.
    fn give_new(&self, asked: QueryView<'_>, mut resolved: Arc<ResolvedAnswer>, now: Timestamp) -> Delivery {
        let ttls = Ttls::CountedDown(now);
        let own = Arc::get_mut(&mut resolved).and_then(|resolved| resolved.observation.take());
        let observation = own
            .map(Cow::Owned)
            .or_else(|| resolved.observation.as_ref().map(Cow::Borrowed));
        self.give_telling(
            asked,
            resolved.answer.get(),
            observation,
            ttls,
            resolved.source,
            now,
        )
    }

    fn give_telling(
        &self,
        asked: QueryView<'_>,
        answer: &Answer,
        observation: Option<Cow<'_, AnswerObservation>>,
        ttls: Ttls,
        source: AnswerSource,
        now: Timestamp,
    ) -> Delivery {
        let (reply, is_whole) = asked.reply(&answer.view(), ttls);
        let (Some(client_id), Some(observation)) = (asked.hears(&reply, is_whole), observation) else {
            return Delivery::Now(reply, source);
        };
        let observation = as_given(observation, answer.arrived(), ttls, now);
        self.admit(asked, reply, source, client_id, observation, now)
    }

    /// Gives a reply that tells its client something.
    fn admit(
        &self,
        asked: QueryView<'_>,
        reply: Vec<u8>,
        source: AnswerSource,
        client_id: ClientId,
        observation: Cow<'_, AnswerObservation>,
        now: Timestamp,
    ) -> Delivery {
        let origin = match source {
            AnswerSource::Cache => Origin::Cache,
            AnswerSource::Server
            | AnswerSource::Forward
            | AnswerSource::Template
            | AnswerSource::Hosts
            | AnswerSource::Dns64
            | AnswerSource::Whoami => Origin::Upstream,
        };
        match self
            .gate
            .admit(client_id, asked.quota_key, observation, origin, now)
        {
            Admission::Now => Delivery::Now(reply, source),
            Admission::OverLimit => {
                // Whatever is configured: refusing would turn a flood of questions into an outage.
                self.metrics.stall(OnStall::Release, Stall::OverLimit);
                Delivery::Now(reply, source)
            }
            Admission::Held(held) => {
                let or_else = error_reply(asked.query, rcode::SERVFAIL, asked.udp_size());
                Delivery::GatedResponse(
                    UnsentReply {
                        reply,
                        source,
                        or_else,
                    },
                    held,
                )
            }
        }
    }

    /// A reply goes out.
    fn reply(&self, asked: QueryView<'_>, reply: Vec<u8>, source: AnswerSource) -> Disposition {
        let rcode = reply[3] & 0xf;
        let event = |span| AnsweredQuery {
            query: asked.query,
            arrival: asked.arrival,
            octets: asked.octets,
            reply: &reply,
            span,
        };
        match asked.sums {
            Some(sums) => sums.response(rcode),
            None => self.metrics.responses(rcode, 1),
        }
        match asked.sums {
            Some(sums) if !asked.binding.is_logged() => {
                sums.note(asked.binding, &event(Duration::ZERO), source)
            }
            Some(_) | None if asked.binding.is_observed() => {
                asked.binding.record(&event(asked.begun.elapsed()), source);
            }
            Some(_) | None => {}
        }
        Disposition::Reply(reply)
    }
}

/// What an answer tells, with the ends that its client makes of the TTLs it is given.
fn as_given(
    observation: Cow<'_, AnswerObservation>,
    arrived: Timestamp,
    ttls: Ttls,
    now: Timestamp,
) -> Cow<'_, AnswerObservation> {
    match ttls {
        Ttls::CountedDown(_) => observation,
        Ttls::Original => Cow::Owned(observation.later(now.since(arrived))),
        Ttls::All(seconds) => {
            let seconds = u64::from(seconds).max(STALE_LIFETIME_SECONDS);
            Cow::Owned(observation.expiring(now.after(Duration::from_secs(seconds))))
        }
    }
}

impl WaitingQuery {
    fn view(&self) -> QueryView<'_> {
        QueryView {
            query: &self.query,
            client: self.client,
            quota_key: self.quota_key,
            arrival: &self.arrival,
            binding: &self.binding,
            table: &self.table,
            original: self.original,
            octets: self.octets,
            begun: self.begun,
            missed_at: self.missed_at,
            sums: None,
        }
    }
}

impl Batch<'_> {
    /// Takes a query: replies at once if it can.
    pub fn take(&self, octets: &[u8], arrival: PacketInfo) -> Disposition {
        let Self { resolver, table, .. } = self;
        if table.is_debugged {
            return resolver.take_at(self, octets, arrival);
        }
        // A fault in one answer is that client's alone. What is shared stays true: locks are held for one operation.
        let taken = catch_unwind(AssertUnwindSafe(|| resolver.take_at(self, octets, arrival)));
        taken.unwrap_or_else(|_panic| {
            resolver.metrics.zones.panics.increment(1);
            let refusal = if octets.len() < HEADER {
                Refusal::Silence
            } else {
                Refusal::Reply(rcode::SERVFAIL)
            };
            resolver.refuse(octets, refusal, &table.config)
        })
    }
}

impl QueryView<'_> {
    /// The same, to wait with.
    fn owned(self, key: Option<Key>) -> Box<WaitingQuery> {
        Box::new(WaitingQuery {
            query: self.query.owned(),
            key,
            client: self.client,
            quota_key: self.quota_key,
            arrival: *self.arrival,
            binding: Arc::clone(self.binding),
            table: Arc::clone(self.table),
            original: self.original,
            octets: self.octets,
            begun: self.begun,
            missed_at: self.missed_at,
        })
    }

    /// The reply, and whether all of the answer is in it.
    fn reply(self, answer: &AnswerView<'_>, ttls: Ttls) -> (Vec<u8>, bool) {
        let (most, limit) = (self.udp_size(), self.datagram_limit());
        let (reply, is_whole) = answer.reply_within(self.query, ttls, limit, most);
        (self.binding.block.balance(reply, self.query, most), is_whole)
    }

    /// Who hears what a reply says, if it is known who that is. A client that is told some of the addresses may use those,
    /// and hears of the others over TCP.
    fn hears(self, reply: &[u8], is_whole: bool) -> Option<ClientId> {
        match self.client {
            Client::Identified(client_id) if is_whole || reply[6..8] != [0, 0] => Some(client_id),
            Client::Identified(_) | Client::Unidentified(_) => None,
        }
    }

    /// The longest reply.
    fn datagram_limit(self) -> usize {
        match self.arrival.transport {
            Transport::Udp => self.query.datagram_limit(self.udp_size()),
            Transport::Tcp => usize::from(u16::MAX),
        }
    }

    /// The largest datagram to clients and from upstreams.
    fn udp_size(self) -> u16 {
        let of_block = self.binding.block.plan().bufsize;
        of_block.unwrap_or(self.table.config.max_udp_size)
    }

    fn context(self) -> QueryContext {
        QueryContext {
            table: Arc::clone(self.table),
            arrival: *self.arrival,
            quota_key: self.quota_key,
            may_ask_outside: self.binding.may_ask_outside,
            may_forward: self.binding.block.may_forward(self.query),
            zone: self.binding.zone,
            depth: 0,
            waited: Duration::ZERO,
        }
    }
}

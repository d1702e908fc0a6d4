//! The way of one query: read, attribute, find its block, answer from its cache or by its chain, observe, hold, reply.

pub(crate) mod counters;
mod pending;

use std::borrow::Cow;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use tokio::time::Instant;

use crate::cache::nxdomain_cut::Denial;
use crate::cache::{Ask, Class, Found, Hit, Key};
use crate::config::{Config, OnStall};
use crate::dns::answer::{Answer, AnswerView, Ttls};
use crate::dns::message::{
    HEADER, Query, Refusal, bad_version_reply, error_reply, explained_reply, header_reply, rcode,
};
use crate::enforcement::client::{Asker, Attribution, Client, Identity, Payer};
use crate::enforcement::gate::{Origin, Stall};
use crate::enforcement::gated::{Admission, Held, Holder};
use crate::enforcement::observation::Told;
use crate::limits::permits::{Loss, Revocable, Tally};
use crate::limits::rate::Rates;
use crate::pipeline::counters::Sums;
use crate::telemetry::metrics::{Intercepted, Metrics, Transport};
use crate::upstream::{Failure, Landings};
use crate::zones::{Arrival, By, Entry, Event, Failed, Known, OfCache, Packed, Serving, Table, Terms};

/// Seconds for which addresses of a stale answer are good at least: its TTL may be 0, and its client connects all
/// the same.
const STALE_LIVES: u64 = 30;

/// All that answering takes.
#[derive(Debug)]
pub struct Resolver {
    serving: RwLock<Arc<Serving>>,
    /// Queries that wait for upstreams.
    waiting: Arc<Tally<Loss>>,
    rates: Rates,
    attribution: Arc<Attribution>,
    holder: Arc<Holder>,
    metrics: Arc<Metrics>,
}

/// What becomes of a query at once.
#[derive(Debug)]
pub enum Step {
    /// This reply goes out now.
    Reply(Vec<u8>),
    /// Nothing does.
    Silence,
    /// The reply comes later.
    Later(Pending),
}

/// A query that waits for an upstream or for the kernel.
#[derive(Debug)]
pub struct Pending(Waiting);

#[derive(Debug)]
enum Waiting {
    ForAnswer(Arc<Resolver>, Box<Asked>, Option<Stale>, Revocable),
    ForKernel(Arc<Resolver>, Box<Asked>, Unsent, Held),
}

/// What is given where nothing better comes, and how long that is waited for.
type Stale = (Hit<Packed>, Option<Duration>);

/// A query with its client, and who answers it: of what waits.
#[derive(Debug)]
struct Asked {
    query: Query<'static>,
    key: Option<Key>,
    client: Client,
    payer: Payer,
    arrival: Arrival,
    entry: Arc<Entry>,
    table: Arc<Table>,
    /// Whom the client asked, if that one is to be asked.
    original: Option<IpAddr>,
    octets: usize,
    begun: Instant,
    missed_at: Option<Landings>,
}

/// The same while it is looked at: what is answered at once owns nothing.
#[derive(Clone, Copy)]
struct View<'a> {
    query: &'a Query<'a>,
    client: Client,
    payer: Payer,
    arrival: &'a Arrival,
    entry: &'a Arc<Entry>,
    table: &'a Arc<Table>,
    /// Whom the client asked, if that one is to be asked.
    original: Option<IpAddr>,
    /// Octets of the query.
    octets: usize,
    /// When it came.
    begun: Instant,
    /// How many questions had ended before the cache was looked into, if it was.
    missed_at: Option<Landings>,
    /// Where it is counted with others that came with it.
    sums: Option<&'a Sums<'a>>,
}

/// Queries that came together, where one table is in force.
#[derive(Debug)]
pub struct Batch<'a> {
    resolver: &'a Arc<Resolver>,
    table: &'a Arc<Table>,
    when: Moment,
    /// Counted when the batch is dropped.
    sums: Sums<'a>,
}

/// When something came; what comes together has one.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    now: Timestamp,
    begun: Instant,
}

impl Moment {
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
enum Given {
    Now(Vec<u8>, By),
    Held(Unsent, Held),
}

/// A reply that is not sent before its wait has ended; `or_else` goes out instead if it may not.
#[derive(Debug)]
struct Unsent {
    reply: Vec<u8>,
    by: By,
    or_else: Vec<u8>,
}

impl Resolver {
    /// Answers as configured.
    #[must_use]
    pub fn new(
        serving: Serving,
        attribution: Arc<Attribution>,
        holder: Arc<Holder>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            serving: RwLock::new(Arc::new(serving)),
            waiting: Arc::default(),
            rates: Rates::default(),
            attribution,
            holder,
            metrics,
        }
    }

    /// What is in force.
    #[must_use]
    pub fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Who sent what came so.
    pub fn identify(&self, arrival: &Arrival, now: Timestamp) -> Identity {
        self.attribution
            .identify(arrival.source.ip(), arrival.interface, now)
    }

    /// Whether any answer waits for the enforcer.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.holder.is_holding()
    }

    /// Puts another configuration in force, for what comes; the sockets' tables are set by who has them.
    pub fn put_in_force(&self, serving: Serving) {
        self.holder.set_limits(serving.config.hold);
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
    }

    /// Takes a query, where this table is in force: replies at once if it can.
    pub fn take(self: &Arc<Self>, octets: &[u8], arrival: Arrival, table: &Arc<Table>, when: Moment) -> Step {
        self.batch(table, when).take(octets, arrival)
    }

    /// Begins to take queries that came together.
    #[must_use]
    pub fn batch<'a>(self: &'a Arc<Self>, table: &'a Arc<Table>, when: Moment) -> Batch<'a> {
        Batch {
            resolver: self,
            table,
            when,
            sums: Sums::new(&self.metrics, when.begun),
        }
    }

    fn take_at(self: &Arc<Self>, batch: &Batch<'_>, octets: &[u8], arrival: Arrival) -> Step {
        let (table, Moment { now, begun }, sums) = (batch.table, batch.when, &batch.sums);
        sums.query(arrival.transport, arrival.source.is_ipv6());
        // Looked at where it is: it is too large to be moved for nothing.
        let mut query = Query::UNREAD;
        if let Err(refusal) = query.fill(octets) {
            return self.refuse(octets, refusal, &table.config);
        }
        let query = &query;
        let Identity {
            client,
            payer,
            is_forged,
        } = self.identify(&arrival, now);
        if let Client::Unattributed(reason) = client {
            self.metrics.unattributed(reason);
        }
        if is_forged {
            return Step::Silence;
        }
        let rate = table.config.queries_per_second;
        if let Err(over) = self.rates.admit(payer, rate, now) {
            self.metrics.over_rate(over);
            let reply = error_reply(query, rcode::REFUSED, table.config.max_udp_size);
            self.metrics.response(rcode::REFUSED);
            return Step::Reply(reply);
        }
        let Some(entry) = table.entry(&query.question, arrival.asked) else {
            return self.refuse_unknown(query, &arrival, table, octets);
        };
        let caught = table.caught(arrival.asked);
        let original = caught.filter(|_| table.config.trusted_originals.is_some());
        if caught.is_some() {
            self.metrics
                .intercepted(original.map_or(Intercepted::Ours, |_| Intercepted::Original));
        }
        let asked = View {
            query,
            client,
            payer,
            arrival: &arrival,
            entry,
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
    fn begin(self: &Arc<Self>, asked: View<'_>, now: Timestamp) -> Step {
        let block = &asked.entry.block;
        block.note_query(asked.query);
        // What others say is neither kept nor answered from what is.
        let own_key = match asked.original {
            None => block.key_view(asked.query),
            Some(_) => None,
        };
        let Some(key) = own_key.filter(|_| !block.translates(asked.query, asked.arrival)) else {
            return self.wait(asked, own_key.map(|key| key.to_key(asked.query)), None);
        };
        let asked = View {
            missed_at: asked.entry.landings(),
            ..asked
        };
        let hit = match block.cached(key, now) {
            Found::Fresh(hit) => hit,
            Found::FreshAndDue(hit) => {
                asked.entry.caching(OfCache::prefetches);
                self.refresh_behind(asked, key.to_key(asked.query));
                hit
            }
            Found::Stale(hit, Ask::Behind) => {
                self.refresh_behind(asked, key.to_key(asked.query));
                hit
            }
            Found::Stale(hit, Ask::NotNow) => hit,
            Found::Stale(hit, Ask::First(patience)) => {
                return self.wait(asked, Some(key.to_key(asked.query)), Some((hit, patience)));
            }
            Found::Miss => {
                self.metrics.cache_misses.increment(1);
                asked.entry.caching(OfCache::missed);
                let key = key.to_key(asked.query);
                if let Some(denial) = asked.entry.denied_below(&key, asked.query, now) {
                    return self.deny(asked, &denial, now);
                }
                return self.wait(asked, Some(key), None);
            }
        };
        self.give_kept_now(asked, &hit, now)
    }

    /// Denies what is below a denied name: that tells nobody anything, so nothing is noted.
    fn deny(&self, asked: View<'_>, denial: &Denial, now: Timestamp) -> Step {
        let (block, limit) = (&asked.entry.block, asked.datagram_limit());
        block.count_cut();
        let reply = denial.reply(asked.query, now, block.keeps_ttls(), limit, asked.udp_size());
        self.reply(asked, reply, By::Cache)
    }

    /// Gives what is kept.
    fn give_kept_now(self: &Arc<Self>, asked: View<'_>, hit: &Hit<Packed>, now: Timestamp) -> Step {
        match self.give_kept(asked, hit, now) {
            Given::Now(reply, by) => self.reply(asked, reply, by),
            Given::Held(unsent, held) => self.held(asked.owned(None), unsent, held),
        }
    }

    /// Sends what goes out now.
    fn step(self: &Arc<Self>, asked: Box<Asked>, given: Given) -> Step {
        match given {
            Given::Now(reply, by) => self.reply(asked.view(), reply, by),
            Given::Held(unsent, held) => self.held(asked, unsent, held),
        }
    }

    fn held(self: &Arc<Self>, asked: Box<Asked>, unsent: Unsent, held: Held) -> Step {
        Step::Later(Pending(Waiting::ForKernel(Arc::clone(self), asked, unsent, held)))
    }

    /// Queries that wait for upstreams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.taken()
    }

    /// Makes a query wait for an upstream, if there is room; what is stale is given if nothing better comes.
    fn wait(self: &Arc<Self>, asked: View<'_>, key: Option<Key>, stale: Option<Stale>) -> Step {
        match (self.waiting.enter(asked.payer, asked.table.config.waiting), stale) {
            (Some(place), stale) => Step::Later(Pending(Waiting::ForAnswer(
                Arc::clone(self),
                asked.owned(key),
                stale,
                place,
            ))),
            (None, Some((hit, _))) => self.give_kept_now(asked, &hit, clock::now()),
            (None, None) => {
                self.metrics.upstream_error(Failure::OverLimit);
                self.fail(asked, Failed::Crowded)
            }
        }
    }

    /// What is given to who had to give way to another client: what is stale, if there is anything.
    fn crowded_out(self: &Arc<Self>, asked: View<'_>, stale: Option<&Stale>) -> Step {
        if let Some((hit, _)) = stale {
            return self.give_kept_now(asked, hit, clock::now());
        }
        self.metrics.upstream_error(Failure::OverLimit);
        self.fail(asked, Failed::Crowded)
    }

    /// Asks for an answer again that was given just now, if who was given it has room for one more that waits.
    fn refresh_behind(&self, asked: View<'_>, key: Key) {
        let entry = Arc::clone(asked.entry);
        let Some(place) = self.waiting.enter(asked.payer, asked.table.config.waiting) else {
            self.metrics.upstream_error(Failure::OverLimit);
            return entry.block.refresh_failed(&key, clock::now());
        };
        let (query, terms) = (asked.query.owned(), asked.terms());
        drop(task::spawn_brief(async move {
            drop(entry.refresh(key, query, terms).await);
            drop(place);
        }));
    }

    fn fail(&self, asked: View<'_>, failed: Failed) -> Step {
        let (code, reason) = (failed.rcode(), failed.extended_error());
        asked.entry.block.note_error(asked.query, failed);
        let reply = explained_reply(asked.query, code, reason, asked.udp_size());
        self.reply(asked, reply, By::Server)
    }

    /// No block answers for this name here.
    fn refuse_unknown(&self, query: &Query, arrival: &Arrival, table: &Table, octets: &[u8]) -> Step {
        let failed = Failed::NoBlock;
        let size = table.config.max_udp_size;
        let reply = explained_reply(query, failed.rcode(), failed.extended_error(), size);
        table.note_dropped(&Event {
            query,
            arrival,
            octets: octets.len(),
            reply: &reply,
            span: Duration::ZERO,
        });
        self.metrics.response(failed.rcode());
        Step::Reply(reply)
    }

    fn refuse(&self, octets: &[u8], refusal: Refusal, config: &Config) -> Step {
        let reply = match refusal {
            Refusal::Silence => {
                self.metrics.ignored.increment(1);
                return Step::Silence;
            }
            Refusal::Reply(code) => header_reply(octets, code),
            Refusal::BadVersion => bad_version_reply(octets, config.max_udp_size),
        };
        self.metrics.response(reply[3] & 0xf);
        Step::Reply(reply)
    }

    fn give_kept(&self, asked: View<'_>, hit: &Hit<Packed>, now: Timestamp) -> Given {
        self.count_hit(asked, hit.class);
        if matches!(hit.ttls, Ttls::All(_)) {
            asked.entry.caching(OfCache::gave_stale);
        }
        let answer = hit.value.answer(hit.arrived);
        let (reply, is_whole) = asked.reply(&answer, hit.ttls);
        let Some(asker) = asked.hears(&reply, is_whole).filter(|_| hit.value.tells()) else {
            return Given::Now(reply, By::Cache);
        };
        if matches!(hit.ttls, Ttls::CountedDown(_)) && self.knows(asked, asker, hit) {
            return Given::Now(reply, By::Cache);
        }
        let Some(told) = hit.value.told(hit.arrived) else {
            return Given::Now(reply, By::Cache);
        };
        let told = as_given(Cow::Owned(told), hit.arrived, hit.ttls, now);
        self.admit(asked, reply, By::Cache, asker, told, now)
    }

    /// Whether a client was told before what is kept here; nearly all were.
    fn knows(&self, asked: View<'_>, asker: Asker, hit: &Hit<Packed>) -> bool {
        let marks = hit.value.marks();
        if self.holder.is_marked(asker, marks) {
            match asked.sums {
                Some(sums) => sums.observation(),
                None => self.metrics.observations.increment(1),
            }
            return true;
        }
        let addresses = hit.value.addresses(hit.arrived);
        let told = |question: &str| self.holder.has_told(asker, question, addresses, marks);
        hit.value.with_question(told).unwrap_or(false)
    }

    fn count_hit(&self, asked: View<'_>, class: Class) {
        if let Some(sums) = asked.sums {
            return sums.hit(asked.entry, class);
        }
        self.metrics.cache_hits.increment(1);
        asked.entry.caching(|counts| counts.hits(class, 1));
    }

    /// Gives an answer to its client, now or when the kernel is ready.
    fn give(&self, asked: View<'_>, known: &Known, ttls: Ttls, by: By, now: Timestamp) -> Given {
        let told = known.told.as_ref().map(Cow::Borrowed);
        self.give_telling(asked, known.answer.get(), told, ttls, by, now)
    }

    /// The same of an answer that came just now. Nearly always nobody else waits for it: then what it tells is not copied.
    fn give_new(&self, asked: View<'_>, mut known: Arc<Known>, now: Timestamp) -> Given {
        let ttls = Ttls::CountedDown(now);
        let own = Arc::get_mut(&mut known).and_then(|known| known.told.take());
        let told = own
            .map(Cow::Owned)
            .or_else(|| known.told.as_ref().map(Cow::Borrowed));
        self.give_telling(asked, known.answer.get(), told, ttls, known.by, now)
    }

    fn give_telling(
        &self,
        asked: View<'_>,
        answer: &Answer,
        told: Option<Cow<'_, Told>>,
        ttls: Ttls,
        by: By,
        now: Timestamp,
    ) -> Given {
        let (reply, is_whole) = asked.reply(&answer.view(), ttls);
        let (Some(asker), Some(told)) = (asked.hears(&reply, is_whole), told) else {
            return Given::Now(reply, by);
        };
        let told = as_given(told, answer.arrived(), ttls, now);
        self.admit(asked, reply, by, asker, told, now)
    }

    /// Gives a reply that tells its client something.
    fn admit(
        &self,
        asked: View<'_>,
        reply: Vec<u8>,
        by: By,
        asker: Asker,
        told: Cow<'_, Told>,
        now: Timestamp,
    ) -> Given {
        let origin = match by {
            By::Cache => Origin::Cache,
            By::Server | By::Forward | By::Template | By::Hosts | By::Dns64 | By::Whoami => Origin::Upstream,
        };
        match self.holder.admit(asker, asked.payer, told, origin, now) {
            Admission::Now => Given::Now(reply, by),
            Admission::OverLimit => {
                // Whatever is configured: refusing would turn a flood of questions into an outage.
                self.metrics.stall(OnStall::Release, Stall::OverLimit);
                Given::Now(reply, by)
            }
            Admission::Held(held) => {
                let or_else = error_reply(asked.query, rcode::SERVFAIL, asked.udp_size());
                Given::Held(Unsent { reply, by, or_else }, held)
            }
        }
    }

    /// A reply goes out.
    fn reply(&self, asked: View<'_>, reply: Vec<u8>, by: By) -> Step {
        let rcode = reply[3] & 0xf;
        let event = |span| Event {
            query: asked.query,
            arrival: asked.arrival,
            octets: asked.octets,
            reply: &reply,
            span,
        };
        match asked.sums {
            Some(sums) => sums.response(rcode),
            None => self.metrics.response(rcode),
        }
        match asked.sums {
            Some(sums) if !asked.entry.is_logged() => sums.note(asked.entry, &event(Duration::ZERO), by),
            Some(_) | None if asked.entry.is_watched() => {
                asked.entry.note(&event(asked.begun.elapsed()), by);
            }
            Some(_) | None => {}
        }
        Step::Reply(reply)
    }
}

/// What an answer tells, with the ends that its client makes of the TTLs it is given.
fn as_given(told: Cow<'_, Told>, arrived: Timestamp, ttls: Ttls, now: Timestamp) -> Cow<'_, Told> {
    match ttls {
        Ttls::CountedDown(_) => told,
        Ttls::Original => Cow::Owned(told.later(now.since(arrived))),
        Ttls::All(seconds) => {
            let seconds = u64::from(seconds).max(STALE_LIVES);
            Cow::Owned(told.until(now.after(Duration::from_secs(seconds))))
        }
    }
}

impl Asked {
    fn view(&self) -> View<'_> {
        View {
            query: &self.query,
            client: self.client,
            payer: self.payer,
            arrival: &self.arrival,
            entry: &self.entry,
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
    pub fn take(&self, octets: &[u8], arrival: Arrival) -> Step {
        let Self { resolver, table, .. } = self;
        if table.is_debugged {
            return resolver.take_at(self, octets, arrival);
        }
        // A fault in one answer is that client's alone. What is shared stays true: locks are held for one operation.
        let taken = catch_unwind(AssertUnwindSafe(|| resolver.take_at(self, octets, arrival)));
        taken.unwrap_or_else(|_panic| {
            resolver.metrics.panics.increment(1);
            let refusal = if octets.len() < HEADER {
                Refusal::Silence
            } else {
                Refusal::Reply(rcode::SERVFAIL)
            };
            resolver.refuse(octets, refusal, &table.config)
        })
    }
}

impl View<'_> {
    /// The same, to wait with.
    fn owned(self, key: Option<Key>) -> Box<Asked> {
        Box::new(Asked {
            query: self.query.owned(),
            key,
            client: self.client,
            payer: self.payer,
            arrival: *self.arrival,
            entry: Arc::clone(self.entry),
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
        (self.entry.block.balance(reply, self.query, most), is_whole)
    }

    /// Who hears what a reply says, if it is known who that is. A client that is told some of the addresses may use those,
    /// and hears of the others over TCP.
    fn hears(self, reply: &[u8], is_whole: bool) -> Option<Asker> {
        match self.client {
            Client::Attributed(asker) if is_whole || reply[6..8] != [0, 0] => Some(asker),
            Client::Attributed(_) | Client::Unattributed(_) => None,
        }
    }

    /// The longest reply.
    fn datagram_limit(self) -> usize {
        match self.arrival.transport {
            Transport::Udp => self.query.datagram_limit(self.udp_size()),
            Transport::Tcp | Transport::Quic => usize::from(u16::MAX),
        }
    }

    /// The largest datagram to clients and from upstreams.
    fn udp_size(self) -> u16 {
        let of_block = self.entry.block.plan().bufsize;
        of_block.unwrap_or(self.table.config.max_udp_size)
    }

    fn terms(self) -> Terms {
        Terms {
            table: Arc::clone(self.table),
            arrival: *self.arrival,
            payer: self.payer,
            may_ask_outside: self.entry.may_ask_outside,
            may_forward: self.entry.block.may_forward(self.query),
            zone: self.entry.zone,
            depth: 0,
            waited: Duration::ZERO,
        }
    }
}

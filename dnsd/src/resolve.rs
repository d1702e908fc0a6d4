//! The way of one query: read, attribute, answer from the cache or from an upstream, observe, hold, reply.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use crate::answer::Answer;
use crate::cache::{Cache, Key, Weigh};
use crate::client::{Attribution, Client};
use crate::config::{Config, Live, OnStall};
use crate::exchange::Matched;
use crate::forward::{Flights, Forwarder};
use crate::hold::{Origin, Stall};
use crate::message::{Query, Refusal, bad_version_reply, error_reply, header_reply, rcode};
use crate::metrics::{Metrics, Transport, UpstreamError};
use crate::observe::{Told, observe};
use crate::release::{Admission, Held, Holder, stalled};
use crate::tally::{Place, Tally};

/// All that answering takes.
#[derive(Debug)]
pub struct Resolver {
    config: Live,
    /// Held for one map operation.
    cache: Mutex<Cache<Known>>,
    flights: Arc<Flights<Result<Arc<Known>, UpstreamError>>>,
    forwarder: Forwarder,
    /// Queries that wait for upstreams.
    waiting: Arc<Tally>,
    attribution: Arc<Attribution>,
    holder: Arc<Holder>,
    metrics: Arc<Metrics>,
}

/// An answer and what it tells, for any number of clients.
#[derive(Debug)]
pub struct Known {
    answer: Matched<Answer>,
    told: Option<Told>,
}

impl Weigh for Known {
    fn weight(&self) -> usize {
        self.answer.get().size()
            + self
                .told
                .as_ref()
                .map_or(0, |told| 64 + 32 * told.addresses().len())
            + size_of::<Self>()
    }
}

/// Where a query came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The source address.
    pub source: IpAddr,
    /// The interface, where the kernel told.
    pub interface: Option<u32>,
    /// How.
    pub transport: Transport,
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
    ForAnswer(Arc<Resolver>, Box<Asked>, Place),
    ForKernel(Arc<Resolver>, Unsent, Held),
}

/// A query with its client.
#[derive(Debug)]
struct Asked {
    query: Query,
    key: Option<Key>,
    client: Client,
    transport: Transport,
}

/// A reply that is not sent before its wait has ended; `or_else` goes out instead if it may not.
#[derive(Debug)]
struct Unsent {
    reply: Vec<u8>,
    or_else: Vec<u8>,
}

impl Resolver {
    /// Answers as configured.
    #[must_use]
    pub fn new(
        config: Config,
        attribution: Arc<Attribution>,
        holder: Arc<Holder>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            cache: Mutex::new(Cache::new(config.fixed.cache_size)),
            config: Live::new(config),
            flights: Arc::default(),
            forwarder: Forwarder::new(Arc::clone(&metrics)),
            waiting: Arc::default(),
            attribution,
            holder,
            metrics,
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.config.get()
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Puts another configuration in force, for what comes.
    pub fn reconfigure(&self, config: Config) {
        self.holder.set_limits(config.hold);
        self.config.set(config);
    }

    /// Takes a query: replies at once if it can.
    pub fn take(self: &Arc<Self>, octets: &[u8], arrival: Arrival) -> Step {
        let now = clock::now();
        self.metrics.query(arrival.transport, arrival.source.is_ipv6());
        let query = match Query::read(octets) {
            Ok(query) => query,
            Err(refusal) => return self.refuse(octets, refusal),
        };
        let client = self.attribution.client(arrival.source, arrival.interface, now);
        if let Client::Unattributed(reason) = client {
            self.metrics.unattributed(reason);
        }
        let asked = Asked {
            key: Key::of(&query),
            query,
            client,
            transport: arrival.transport,
        };
        match asked.key.as_ref().and_then(|key| self.cached(key, now)) {
            Some(known) => {
                self.metrics.cache_hits.increment(1);
                self.give(&asked, &known, Origin::Cache, now)
            }
            None => {
                self.metrics.cache_misses.increment(1);
                self.wait(asked, arrival.source)
            }
        }
    }

    /// Entries, octets, and evictions since the start, of the cache.
    #[must_use]
    pub fn cache_figures(&self) -> (usize, usize, u64) {
        let cache = self.cache();
        (cache.len(), cache.weight(), cache.evictions())
    }

    /// Queries that wait for upstreams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.taken()
    }

    /// Makes a query wait for an upstream, if there is room.
    fn wait(self: &Arc<Self>, asked: Asked, source: IpAddr) -> Step {
        match self.waiting.take(source, self.config().waiting) {
            Some(place) => Step::Later(Pending(Waiting::ForAnswer(
                Arc::clone(self),
                Box::new(asked),
                place,
            ))),
            None => {
                self.metrics.upstream_error(UpstreamError::OverLimit);
                self.fail(&asked.query)
            }
        }
    }

    fn fail(&self, query: &Query) -> Step {
        self.reply(error_reply(query, rcode::SERVFAIL, self.config().max_udp_size))
    }

    fn refuse(&self, octets: &[u8], refusal: Refusal) -> Step {
        let reply = match refusal {
            Refusal::Silence => {
                self.metrics.ignored.increment(1);
                return Step::Silence;
            }
            Refusal::Reply(code) => header_reply(octets, code),
            Refusal::BadVersion => bad_version_reply(octets, self.config().max_udp_size),
        };
        self.reply(reply)
    }

    /// Gives an answer to its client, now or when the kernel is ready.
    fn give(self: &Arc<Self>, asked: &Asked, known: &Known, origin: Origin, now: Timestamp) -> Step {
        let config = self.config();
        let (reply, is_whole) = asked.reply(known.answer.get(), &config, now);
        // A client that is told to ask again over TCP was told no addresses yet.
        let (Client::Attributed(asker), Some(told), true) = (asked.client, &known.told, is_whole) else {
            return self.reply(reply);
        };
        match self.holder.admit(asker, told, origin, now) {
            Admission::Now => self.reply(reply),
            Admission::OverLimit => {
                // Whatever is configured: refusing would turn a flood of questions into an outage.
                self.metrics.stall(OnStall::Release, Stall::OverLimit);
                self.reply(reply)
            }
            Admission::Held(held) => {
                let or_else = error_reply(&asked.query, rcode::SERVFAIL, config.max_udp_size);
                Step::Later(Pending(Waiting::ForKernel(
                    Arc::clone(self),
                    Unsent { reply, or_else },
                    held,
                )))
            }
        }
    }

    async fn answer(self: &Arc<Self>, asked: &Asked) -> Result<Arc<Known>, UpstreamError> {
        let Some(key) = asked.key.clone() else {
            // Boxed: the rare way must not make every waiting query as large as itself.
            return Box::pin(self.ask(asked.query.clone())).await.map(Arc::new);
        };
        let (resolver, query) = (Arc::clone(self), asked.query.clone());
        let ask = || async move {
            let key = Key::of(&query);
            let known = Arc::new(resolver.ask(query).await?);
            key.into_iter().for_each(|key| resolver.keep(key, &known));
            Ok(known)
        };
        self.flights
            .join(key, ask)
            .await
            .unwrap_or(Err(UpstreamError::Local))
    }

    async fn ask(&self, query: Query) -> Result<Known, UpstreamError> {
        let config = self.config();
        let answer = self.forwarder.forward(&query, &config).await?;
        if !answer.get().is_readable() {
            self.metrics.unreadable_answers.increment(1);
        }
        let (told, protected) = observe(&answer, &config.protected);
        self.metrics.protected.increment(protected as u64);
        Ok(Known { answer, told })
    }

    fn keep(&self, key: Key, known: &Arc<Known>) {
        let config = self.config();
        let answer = known.answer.get();
        let Some(lifetime) = answer.lifetime(config.max_negative_ttl) else {
            return;
        };
        let mut cache = self.cache();
        let before = cache.evictions();
        cache.insert(key, Arc::clone(known), answer.arrived(), lifetime);
        self.metrics.cache_evictions.increment(cache.evictions() - before);
    }

    fn cached(&self, key: &Key, now: Timestamp) -> Option<Arc<Known>> {
        self.cache().get(key, now)
    }

    fn cache(&self) -> MutexGuard<'_, Cache<Known>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reply(&self, reply: Vec<u8>) -> Step {
        self.metrics.response(reply[3] & 0xf);
        Step::Reply(reply)
    }
}

impl Asked {
    /// The reply, and whether all of the answer is in it.
    fn reply(&self, answer: &Answer, config: &Config, now: Timestamp) -> (Vec<u8>, bool) {
        let limit = match self.transport {
            Transport::Udp => self.query.datagram_limit(config.max_udp_size),
            Transport::Tcp => usize::from(u16::MAX),
        };
        answer.reply_within(&self.query, now, limit, config.max_udp_size)
    }
}

impl Pending {
    /// Waits for the reply; nothing where none is to be sent.
    pub async fn reply(self) -> Option<Vec<u8>> {
        let mut waiting = self.0;
        loop {
            let step = match waiting {
                Waiting::ForAnswer(resolver, asked, _place) => answered(&resolver, &asked).await,
                Waiting::ForKernel(resolver, unsent, held) => released(&resolver, unsent, held).await,
            };
            match step {
                Step::Reply(reply) => return Some(reply),
                Step::Silence => return None,
                Step::Later(later) => waiting = later.0,
            }
        }
    }
}

async fn answered(resolver: &Arc<Resolver>, asked: &Asked) -> Step {
    match resolver.answer(asked).await {
        Ok(known) => resolver.give(asked, &known, Origin::Upstream, clock::now()),
        Err(_counted) => resolver.fail(&asked.query),
    }
}

async fn released(resolver: &Resolver, unsent: Unsent, held: Held) -> Step {
    let outcome = held.end(&resolver.metrics).await;
    let Some(stall) = stalled(outcome) else {
        return resolver.reply(unsent.reply);
    };
    let action = resolver.config().on_stall;
    resolver.metrics.stall(action, stall);
    match action {
        OnStall::Release => resolver.reply(unsent.reply),
        OnStall::Servfail => resolver.reply(unsent.or_else),
        OnStall::Drop => Step::Silence,
    }
}

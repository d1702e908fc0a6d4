//! A server block at work: what it keeps, and the chain that answers what it does not have.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::time::Timestamp;
use metrics::Counter;

use crate::cache::nxdomain_cut::{CutZone, Cuts};
use crate::cache::{Cache, Class, Found, Kept, Key, KeyView, Maker, Verdict};
use crate::config::Config;
use crate::config::model;
use crate::dns::answer::Answer;
use crate::dns::message::{Query, WireName};
use crate::enforcement::observation::Told;
use crate::plugins::Asker;
use crate::telemetry::metrics::CutInquiry;
use crate::upstream::Flights;
use crate::upstream::pending_query::Matched;

use super::chain::{Chain, reads_files};
use super::{Arrival, By, Event, Means, OfCache, Packed, Serving, Terms, Unfit, error_log, query_log};
use crate::zones::failure::Failed;
use crate::zones::loop_probe::Probe;

/// A block of the plan, running.
#[derive(Debug)]
pub struct Block {
    plan: model::Block,
    /// What is kept, if anything.
    store: Option<Arc<Store>>,
    pub(super) chain: Chain,
    log: query_log::Rules,
    errors: Option<error_log::Rules>,
    probe: Option<Arc<Probe>>,
    means: Means,
}

/// Questions under way, each with what became of it.
type Asking = Flights<Result<Arc<Known>, Failed>>;

/// Answers, and the questions under way for them.
#[derive(Debug)]
struct Store {
    /// Held for one map operation.
    cache: Mutex<Cache<Packed>>,
    flights: Arc<Asking>,
    /// Names below which nothing is asked, where the chain is such that only upstreams know of any.
    cuts: Option<Arc<Cuts>>,
}

/// An answer and what it tells, for any number of clients, on its way; it is kept [packed](Packed).
#[derive(Debug)]
pub struct Known {
    /// The answer.
    pub answer: Matched<Answer>,
    /// What it tells.
    pub told: Option<Told>,
    /// As what it is kept, if it may be.
    pub kept: Option<Kept>,
    /// Who made it.
    pub maker: Maker,
    /// Which part of the chain that was.
    pub by: By,
    /// Why there is none, if it says so.
    pub failed: Option<Failed>,
}

impl Block {
    /// The block of `before` if it is written as this one; otherwise another, with what it kept if it would answer
    /// alike.
    pub(super) fn put_in_force(
        plan: &model::Block,
        config: &Config,
        octets: usize,
        before: Option<&Serving>,
        means: &Means,
    ) -> Result<Arc<Self>, Unfit> {
        let before = before.filter(|before| before.config.asks_like(config));
        let same = before.and_then(|before| before.blocks.iter().find(|block| is_same(block.plan(), plan)));
        if let Some(block) = same.filter(|_| !plan.forward.iter().any(reads_files)) {
            return Ok(Arc::clone(block));
        }
        let store = plan.cache.as_ref().map(|rules| {
            let alike = before.and_then(|before| before.blocks.iter().find(|block| block.answers_like(plan)));
            let kept = alike.and_then(|block| block.store.clone());
            kept.unwrap_or_else(|| Arc::new(Store::new(rules, octets, cuts(plan, config))))
        });
        let chains: Vec<&Chain> = before
            .iter()
            .flat_map(|before| &before.blocks)
            .map(|block| &block.chain)
            .collect();
        Ok(Arc::new(Self {
            plan: plan.clone(),
            store,
            chain: Chain::new(plan, &chains, &means.metrics)?,
            probe: plan
                .zones
                .first()
                .filter(|_| plan.detects_loop)
                .map(|zone| Probe::new(*zone)),
            log: query_log::Rules::new(&plan.log),
            errors: plan
                .errors
                .as_ref()
                .map(|plan| error_log::Rules::new(plan, &means.outlet)),
            means: means.clone(),
        }))
    }

    /// Whether it gives the answers that a plan would, whatever is logged and counted of them.
    fn answers_like(&self, plan: &model::Block) -> bool {
        what_is_answered(&self.plan) == what_is_answered(plan)
    }

    /// What was written.
    #[must_use]
    pub const fn plan(&self) -> &model::Block {
        &self.plan
    }

    /// What is kept for a question; nothing where it does not go by the cache.
    #[must_use]
    pub fn cached(&self, key: KeyView<'_>, now: Timestamp) -> Found<Packed> {
        self.cache().map_or(Found::Miss, |mut cache| cache.get(key, now))
    }

    /// What a question that is asked more than once, or again, goes by; nothing where it does not go by the cache.
    #[must_use]
    pub fn key(&self, query: &Query) -> Option<Key> {
        self.key_view(query).and_then(|_| Key::of(query))
    }

    /// The same for who only looks.
    #[must_use]
    pub fn key_view<'a>(&self, query: &'a Query<'_>) -> Option<KeyView<'a>> {
        let rules = self.plan.cache.as_ref()?;
        let name = &query.question.name;
        let covers = rules.zones.is_empty() || rules.zones.iter().any(|zone| zone.holds(name));
        if covers { KeyView::of(query) } else { None }
    }

    /// Whether there are upstreams to be asked for a name.
    pub(super) fn forwards(&self, name: &WireName) -> bool {
        self.chain.forwards(name)
    }

    /// Questions under way, where equal ones are asked once.
    pub(super) fn flights(&self) -> Option<&Arc<Asking>> {
        self.store.as_ref().map(|store| &store.flights)
    }

    /// Names below which nothing is asked.
    pub(super) fn cuts(&self) -> Option<&Arc<Cuts>> {
        self.store.as_ref()?.cuts.as_ref()
    }

    /// A question was answered since a name above its own was denied.
    pub fn count_cut(&self) {
        self.means.metrics.cut_answers.increment(1);
    }

    /// A name above others was asked for.
    pub(super) fn count_inquiry(&self, outcome: CutInquiry) {
        self.means.metrics.cut_inquiry(outcome);
    }

    /// Whether TTLs are given as they came (`keepttl`).
    #[must_use]
    pub fn keeps_ttls(&self) -> bool {
        self.plan.cache.as_ref().is_some_and(|rules| rules.keep_ttl)
    }

    /// As what an answer would be kept.
    pub(super) fn judged(&self, known: &Known) -> Option<Kept> {
        let rules = self.plan.cache.as_ref()?;
        Verdict::of(rules, &known.answer.get().message(), known.maker).kept()
    }

    /// Keeps an answer, if it may be.
    pub(super) fn keep(&self, key: &Key, known: Known) -> Arc<Known> {
        let known = Arc::new(known);
        if let (Some(kept), Some(mut cache)) = (known.kept, self.cache()) {
            let before = evictions(&cache);
            let pack = |place: &Key| Packed::new(&known, place.as_octets());
            cache.insert(key, pack, kept, known.answer.get().arrived());
            let evicted = evictions(&cache) - before;
            self.means.metrics.cache_evictions.increment(evicted);
        }
        known
    }

    /// An answer of whom the client asked, and the operator trusts.
    #[must_use]
    pub fn of_trusted(&self, answer: Matched<Answer>, terms: &Terms) -> Known {
        self.chain.unkept(answer, terms, Maker::Upstream, By::Forward)
    }

    /// Whether an answer may take the place of a stale one.
    #[must_use]
    pub fn refreshes(&self, known: &Known) -> bool {
        let rules = self.plan.cache.as_ref();
        rules.is_some_and(|rules| {
            Verdict::of(rules, &known.answer.get().message(), known.maker).refreshes(rules)
        })
    }

    /// Notes that nothing better came.
    pub fn refresh_failed(&self, key: &Key, now: Timestamp) {
        if let Some(mut cache) = self.cache() {
            cache.refresh_failed(key, now);
        }
    }

    /// Whether an answer may have to be made of another question's (`dns64`).
    #[must_use]
    pub fn translates(&self, query: &Query, arrival: &Arrival) -> bool {
        let asker = Asker {
            client: arrival.source,
            server: arrival.source,
            over_tcp: false,
        };
        let translator = self.chain.own.dns64.as_ref();
        translator.is_some_and(|translator| translator.applies(query, &asker))
    }

    /// An answer in the order that the block wants (`loadbalance`).
    #[must_use]
    pub fn balance(&self, reply: Vec<u8>, query: &Query, udp_size: u16) -> Vec<u8> {
        self.chain.own.balance(reply, query, udp_size)
    }

    /// A query came: it may be the one that looks for a loop.
    pub fn note_query(&self, query: &Query) {
        if let Some(probe) = &self.probe {
            probe.note(query);
        }
    }

    /// Whether upstreams may be asked: not where that ends here again.
    #[must_use]
    pub fn may_forward(&self, query: &Query) -> bool {
        self.probe.as_ref().is_none_or(|probe| probe.lets_pass(query))
    }

    /// Looks for a loop at an address where it answers, once.
    pub fn look_for_loops(&self, address: SocketAddr) {
        if let Some(probe) = &self.probe {
            probe.begin(address);
        }
    }

    /// Faults of dnsd's own.
    pub(super) fn panics(&self) -> &Counter {
        &self.means.metrics.panics
    }

    /// Whether lines are written about queries.
    pub(super) const fn logs(&self) -> bool {
        !self.log.is_empty()
    }

    /// Writes a line about a query, if one is wanted.
    pub(super) fn log(&self, event: &Event<'_>) {
        if let Some(line) = self.log.line(event) {
            self.means.outlet.say(model::LogLevel::Info, &line);
        }
    }

    /// Writes a line about a query without an answer, if one is wanted.
    pub fn note_error(&self, query: &Query, failed: Failed) {
        // Nobody waits for what looks for a loop.
        if self.probe.as_ref().is_some_and(|probe| probe.is_own(query)) {
            return;
        }
        match &self.errors {
            Some(errors) => errors.note(query, failed.rcode(), failed.said()),
            None if self.plan.debug => {
                let line = format!(
                    "{} {:?}: {}",
                    self.plan.origin,
                    query.question.name,
                    failed.said()
                );
                self.means.outlet.say(model::LogLevel::Debug, &line);
            }
            None => {}
        }
    }

    /// The same for a failure that is kept as if it were an answer.
    pub fn note_kept_failure(&self, query: &Query, known: &Known) {
        if let Some(failed) = known.failed {
            self.note_error(query, failed);
        }
    }

    /// Tells how much it keeps.
    pub(super) fn count_cache(&self, counts: &OfCache) {
        if let Some(cache) = self.cache() {
            for class in Class::ALL {
                counts.set(class, cache.entries(class) as u64, cache.evictions(class));
            }
        }
    }

    /// Answers and octets that are kept.
    #[must_use]
    pub fn cache_figures(&self) -> (usize, usize) {
        self.cache().map_or((0, 0), |cache| (cache.len(), cache.weight()))
    }

    pub(super) fn cache(&self) -> Option<MutexGuard<'_, Cache<Packed>>> {
        let store = self.store.as_ref()?;
        Some(store.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    fn new(rules: &model::CacheRules, octets: usize, cuts: Option<Arc<Cuts>>) -> Self {
        Self {
            cache: Mutex::new(Cache::new(rules, octets)),
            flights: Arc::default(),
            cuts,
        }
    }
}

/// The cuts of a block. Where it answers or changes names itself, or chooses among upstreams by them, a name may exist
/// although one above it does not: such a block has none.
fn cuts(plan: &model::Block, config: &Config) -> Option<Arc<Cuts>> {
    let answers_itself = plan.hosts.is_some() || !plan.template.is_empty() || !plan.rewrite.is_empty();
    let meets = |zone: &CutZone| {
        let mut zones = plan.zones.iter();
        zones.any(|own| own.holds(zone.zone.apex()) || zone.zone.holds(own.apex()))
    };
    let has_cuts = !answers_itself && plan.forward.len() == 1 && config.cut_zones.iter().any(meets);
    has_cuts.then(|| Arc::new(Cuts::new(&config.cut_zones)))
}

/// Whether two blocks say the same, wherever in their files: a line that is added above moves all below it.
fn is_same(one: &model::Block, other: &model::Block) -> bool {
    without_places(one) == without_places(other)
}

/// What the answers depend on that are kept.
pub(super) fn what_is_answered(block: &model::Block) -> model::Block {
    let unsaid = model::Block::default();
    model::Block {
        scheme: unsaid.scheme,
        port: unsaid.port,
        bind: unsaid.bind,
        tls: unsaid.tls,
        timeouts: unsaid.timeouts,
        prometheus: unsaid.prometheus,
        debug: unsaid.debug,
        errors: unsaid.errors,
        log: unsaid.log,
        dns64: unsaid.dns64,
        loadbalance: unsaid.loadbalance,
        detects_loop: unsaid.detects_loop,
        ..without_places(block)
    }
}

fn without_places(block: &model::Block) -> model::Block {
    let mut block = block.clone();
    block.origin.clear();
    block.tls.iter_mut().for_each(|tls| tls.origin.clear());
    block
        .forward
        .iter_mut()
        .for_each(|forward| forward.origin.clear());
    block
        .template
        .iter_mut()
        .for_each(|template| template.origin.clear());
    block
}

fn evictions(cache: &Cache<Packed>) -> u64 {
    cache.evictions(Class::Success) + cache.evictions(Class::Denial)
}

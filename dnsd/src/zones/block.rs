//! A server block at work: its cache, and the chain of plugins that resolves what the cache does not have.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::time::Timestamp;
use metrics::Counter;

use crate::cache::nxdomain_cut::NxdomainCuts;
use crate::cache::{Cache, Cacheability, Cacheable, Class, Found, Key, KeyView, Provenance};
use crate::config::Config;
use crate::config::CutZone;
use crate::config::model;
use crate::dns::answer::Answer;
use crate::dns::message::{Query, WireName};
use crate::enforcement::observation::AnswerObservation;
use crate::plugins::QueryEndpoints;
use crate::upstream::Singleflight;
use crate::upstream::pending_query::ValidatedResponse;

use super::chain::{Chain, reads_files};
use super::{
    ActiveConfig, AnswerSource, AnsweredQuery, CacheCounters, InvalidPlan, PacketInfo, PreQueryResult,
    QueryContext, StoredAnswer, Telemetry, error_log, query_log,
};
use crate::zones::failure::ResolveError;
use crate::zones::loop_probe::Probe;

/// A server block of the plan, at work.
#[derive(Debug)]
pub struct ServerBlock {
    plan: model::Block,
    /// The cache, with `cache`.
    store: Option<Arc<CacheStore>>,
    pub(super) chain: Chain,
    log: query_log::Rules,
    errors: Option<error_log::Rules>,
    probe: Option<Arc<Probe>>,
    telemetry: Telemetry,
}

/// Queries in flight, each with its result.
type Inflight = Singleflight<Result<Arc<ResolvedAnswer>, ResolveError>>;

/// A cache, and the queries in flight.
#[derive(Debug)]
struct CacheStore {
    /// Held for one map operation.
    cache: Mutex<Cache<StoredAnswer>>,
    singleflight: Arc<Inflight>,
    /// NXDOMAIN cuts, where all names of the block come from one `forward`.
    cuts: Option<Arc<NxdomainCuts>>,
}

/// An answer on its way to any number of clients; it is cached as a [stored answer](super::StoredAnswer).
#[derive(Debug)]
pub struct ResolvedAnswer {
    /// The answer.
    pub answer: ValidatedResponse<Answer>,
    /// The addresses that it teaches.
    pub observation: Option<AnswerObservation>,
    /// The kind and lifetime of its cache entry, if it may be cached.
    pub cacheable: Option<Cacheable>,
    /// Whether an upstream or dnsd itself made it.
    pub provenance: Provenance,
    /// The plugin that made it.
    pub source: AnswerSource,
    /// The failure that it reports, if it does.
    pub error: Option<ResolveError>,
}

impl ServerBlock {
    /// Reuses the block of `before` if it is written alike; otherwise makes one, with the cache of a block that answers alike.
    pub(super) fn put_in_force(
        plan: &model::Block,
        config: &Config,
        octets: usize,
        before: Option<&ActiveConfig>,
        telemetry: &Telemetry,
    ) -> Result<Arc<Self>, InvalidPlan> {
        let before = before.filter(|before| before.config.asks_like(config));
        let same = before.and_then(|before| before.blocks.iter().find(|block| is_same(block.plan(), plan)));
        if let Some(block) = same.filter(|_| !plan.forward.iter().any(reads_files)) {
            return Ok(Arc::clone(block));
        }
        let store = plan.cache.as_ref().map(|rules| {
            let alike = before.and_then(|before| before.blocks.iter().find(|block| block.answers_like(plan)));
            let cacheable = alike.and_then(|block| block.store.clone());
            cacheable.unwrap_or_else(|| Arc::new(CacheStore::new(rules, octets, cuts(plan, config))))
        });
        let chains: Vec<&Chain> = before
            .iter()
            .flat_map(|before| &before.blocks)
            .map(|block| &block.chain)
            .collect();
        Ok(Arc::new(Self {
            plan: plan.clone(),
            store,
            chain: Chain::new(plan, &chains, telemetry)?,
            probe: plan
                .zones
                .first()
                .filter(|_| plan.detects_loop)
                .map(|zone| Probe::new(*zone)),
            log: query_log::Rules::new(&plan.log),
            errors: plan
                .errors
                .as_ref()
                .map(|plan| error_log::Rules::new(plan, &telemetry.log_writer)),
            telemetry: telemetry.clone(),
        }))
    }

    /// Whether it answers as a plan would, whatever is logged and counted.
    fn answers_like(&self, plan: &model::Block) -> bool {
        answering_part(&self.plan) == answering_part(plan)
    }

    /// Its plan.
    #[must_use]
    pub const fn plan(&self) -> &model::Block {
        &self.plan
    }

    /// Searches the cache.
    #[must_use]
    pub fn cached(&self, key: KeyView<'_>, now: Timestamp) -> Found<StoredAnswer> {
        self.cache().map_or(Found::Miss, |mut cache| cache.get(key, now))
    }

    /// The cache key of a query; none where it does not go through the cache.
    #[must_use]
    pub fn key(&self, query: &Query) -> Option<Key> {
        self.key_view(query).and_then(|_| Key::of(query))
    }

    /// As [`key`](Self::key), without a copy of the name.
    #[must_use]
    pub fn key_view<'a>(&self, query: &'a Query<'_>) -> Option<KeyView<'a>> {
        let rules = self.plan.cache.as_ref()?;
        let name = &query.question.name;
        let covers = rules.zones.is_empty() || rules.zones.iter().any(|zone| zone.holds(name));
        if covers { KeyView::of(query) } else { None }
    }

    /// Whether an upstream may be asked for a name.
    pub(super) fn forwards(&self, name: &WireName) -> bool {
        self.chain.forwards(name)
    }

    /// The queries in flight.
    pub(super) fn singleflight(&self) -> Option<&Arc<Inflight>> {
        self.store.as_ref().map(|store| &store.singleflight)
    }

    /// The NXDOMAIN cuts.
    pub(super) fn cuts(&self) -> Option<&Arc<NxdomainCuts>> {
        self.store.as_ref()?.cuts.as_ref()
    }

    /// Counts a query answered by an NXDOMAIN cut.
    pub fn count_cut(&self) {
        self.telemetry.metrics.cut_answers.increment(1);
    }

    /// Counts a pre-query.
    pub(super) fn count_pre_query(&self, outcome: PreQueryResult) {
        self.telemetry.metrics.pre_query(outcome);
    }

    /// Whether TTLs are not counted down (`keepttl`).
    #[must_use]
    pub fn keeps_ttls(&self) -> bool {
        self.plan.cache.as_ref().is_some_and(|rules| rules.keep_ttl)
    }

    /// The kind and lifetime of the cache entry that an answer would have.
    pub(super) fn cacheability(&self, resolved: &ResolvedAnswer) -> Option<Cacheable> {
        let rules = self.plan.cache.as_ref()?;
        Cacheability::of(rules, &resolved.answer.get().message(), resolved.provenance).kept()
    }

    /// Caches an answer, if it may be cached.
    pub(super) fn store(&self, key: &Key, resolved: ResolvedAnswer) -> Arc<ResolvedAnswer> {
        let resolved = Arc::new(resolved);
        if let (Some(cacheable), Some(mut cache)) = (resolved.cacheable, self.cache()) {
            let (before, ended_before) = (evictions(&cache), cache.ended_early());
            let pack = |place: &Key| StoredAnswer::new(&resolved, place.as_octets());
            cache.insert(key, pack, cacheable, resolved.answer.get().arrived());
            let evicted = evictions(&cache) - before;
            self.telemetry.metrics.cache_evictions.increment(evicted);
            if cache.ended_early() > ended_before {
                self.telemetry.kernel_answers.void();
            }
        }
        resolved
    }

    /// The answer of a trusted resolver that the client chose.
    #[must_use]
    pub fn of_trusted(&self, answer: ValidatedResponse<Answer>, context: &QueryContext) -> ResolvedAnswer {
        self.chain
            .uncached(answer, context, Provenance::Upstream, AnswerSource::Forward)
    }

    /// Whether an answer may replace a stale one.
    #[must_use]
    pub fn refreshes(&self, resolved: &ResolvedAnswer) -> bool {
        let rules = self.plan.cache.as_ref();
        rules.is_some_and(|rules| {
            Cacheability::of(rules, &resolved.answer.get().message(), resolved.provenance).refreshes(rules)
        })
    }

    /// Notes that a refresh failed.
    pub fn refresh_failed(&self, key: &Key, now: Timestamp) {
        if let Some(mut cache) = self.cache() {
            cache.refresh_failed(key, now);
        }
    }

    /// Whether the answer may have to be synthesized (`dns64`).
    #[must_use]
    pub fn translates(&self, query: &Query, arrival: &PacketInfo) -> bool {
        let endpoints = QueryEndpoints {
            client: arrival.source,
            server: arrival.source,
            over_tcp: false,
        };
        let translator = self.chain.own.dns64.as_ref();
        translator.is_some_and(|translator| translator.applies(query, &endpoints))
    }

    /// Orders the addresses of an answer (`loadbalance`).
    #[must_use]
    pub fn balance(&self, reply: Vec<u8>, query: &Query, udp_size: u16) -> Vec<u8> {
        self.chain.own.balance(reply, query, udp_size)
    }

    /// Shows the loop detection a query.
    pub fn observe_query(&self, query: &Query) {
        if let Some(probe) = &self.probe {
            probe.observe(query);
        }
    }

    /// Whether upstreams may be asked: not while there is a loop.
    #[must_use]
    pub fn may_forward(&self, query: &Query) -> bool {
        self.probe.as_ref().is_none_or(|probe| probe.lets_pass(query))
    }

    /// Starts the loop detection, once, at an address of the block.
    pub fn look_for_loops(&self, address: SocketAddr) {
        if let Some(probe) = &self.probe {
            probe.begin(address);
        }
    }

    /// The counter of panics.
    pub(super) fn panics(&self) -> &Counter {
        &self.telemetry.metrics.panics
    }

    /// Whether queries are logged (`log`).
    pub(super) const fn logs(&self) -> bool {
        !self.log.is_empty()
    }

    /// Logs a query, if the rules say so.
    pub(super) fn log(&self, event: &AnsweredQuery<'_>) {
        if let Some(line) = self.log.line(event) {
            self.telemetry.log_writer.write(model::LogLevel::Info, &line);
        }
    }

    /// Logs a query that failed, if the rules say so.
    pub fn log_error(&self, query: &Query, error: ResolveError) {
        // The probe of the loop detection is no client's query.
        if self.probe.as_ref().is_some_and(|probe| probe.is_own(query)) {
            return;
        }
        match &self.errors {
            Some(errors) => errors.log(query, error.rcode(), error.message()),
            None if self.plan.debug => {
                let line = format!(
                    "{} {:?}: {}",
                    self.plan.origin,
                    query.question.name,
                    error.message()
                );
                self.telemetry.log_writer.write(model::LogLevel::Debug, &line);
            }
            None => {}
        }
    }

    /// Logs a cached failure.
    pub fn log_cached_failure(&self, query: &Query, resolved: &ResolvedAnswer) {
        if let Some(error) = resolved.error {
            self.log_error(query, error);
        }
    }

    /// Updates CoreDNS' counters of the cache's size.
    pub(super) fn count_cache(&self, counts: &CacheCounters) {
        if let Some(cache) = self.cache() {
            for class in Class::ALL {
                counts.set(class, cache.entries(class) as u64, cache.evictions(class));
            }
        }
    }

    /// Answers and octets in the cache.
    #[must_use]
    pub fn cache_figures(&self) -> (usize, usize) {
        self.cache().map_or((0, 0), |cache| (cache.len(), cache.weight()))
    }

    pub(super) fn cache(&self) -> Option<MutexGuard<'_, Cache<StoredAnswer>>> {
        let store = self.store.as_ref()?;
        Some(store.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CacheStore {
    fn new(rules: &model::CacheRules, octets: usize, cuts: Option<Arc<NxdomainCuts>>) -> Self {
        Self {
            cache: Mutex::new(Cache::new(rules, octets)),
            singleflight: Arc::default(),
            cuts,
        }
    }
}

/// The NXDOMAIN cuts of a block. A block that answers or rewrites names itself, or chooses among upstreams by name, has none:
/// there a name may exist although one above it does not.
fn cuts(plan: &model::Block, config: &Config) -> Option<Arc<NxdomainCuts>> {
    let answers_itself = plan.hosts.is_some() || !plan.template.is_empty() || !plan.rewrite.is_empty();
    let meets = |zone: &CutZone| {
        let mut zones = plan.zones.iter();
        zones.any(|own| own.holds(zone.zone.apex()) || zone.zone.holds(own.apex()))
    };
    let has_cuts = !answers_itself && plan.forward.len() == 1 && config.cut_zones.iter().any(meets);
    has_cuts.then(|| Arc::new(NxdomainCuts::new(&config.cut_zones)))
}

/// Whether two blocks are written alike, wherever in their files.
fn is_same(one: &model::Block, other: &model::Block) -> bool {
    without_origins(one) == without_origins(other)
}

/// The part of a plan that cached answers depend on.
pub(super) fn answering_part(block: &model::Block) -> model::Block {
    let default = model::Block::default();
    model::Block {
        scheme: default.scheme,
        port: default.port,
        bind: default.bind,
        tls: default.tls,
        timeouts: default.timeouts,
        prometheus: default.prometheus,
        debug: default.debug,
        errors: default.errors,
        log: default.log,
        dns64: default.dns64,
        loadbalance: default.loadbalance,
        detects_loop: default.detects_loop,
        ..without_origins(block)
    }
}

fn without_origins(block: &model::Block) -> model::Block {
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

fn evictions(cache: &Cache<StoredAnswer>) -> u64 {
    cache.evictions(Class::Success) + cache.evictions(Class::Denial)
}

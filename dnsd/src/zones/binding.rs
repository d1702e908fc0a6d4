//! A zone at an address, bound to its server block. Concurrent equal queries are resolved once, and answers are cached.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use metrics::{Label, counter};
use tokio::time::timeout;

use crate::cache::{Found, Hit, Key, StaleRefresh};
use crate::config::model::Zone;
use crate::dns::answer::Ttls;
use crate::dns::message::{Message, Query, WireName, explained_reply, kind, rcode};
use crate::limits::quota_key::QuotaKey;
use crate::net::Transport;
use crate::plugins::QueryEndpoints;
use crate::plugins::template::MatchedTemplate;
use crate::upstream::{CompletionCount, Failure};

use super::chain::own;
use super::{
    AnswerSource, AnsweredQuery, CacheCounters, ResolveError, ResolvedAnswer, ServerBlock, StoredAnswer,
    ZoneCounters, ZoneTable,
};
use crate::zones::type_names::{class_name, kind_name};

/// A zone at an address, and the server block that answers for it.
#[derive(Debug)]
pub struct ZoneBinding {
    /// The zone.
    pub zone: Zone,
    /// The block.
    pub block: Arc<ServerBlock>,
    /// Whether resolvers outside of the cluster may be asked: not for names in a zone of another block or of the cluster.
    pub may_ask_outside: bool,
    /// The counters of its queries, with `prometheus`.
    pub(crate) counts: Option<Arc<ZoneCounters>>,
    /// The counters of its cache, with `prometheus`.
    pub(crate) of_cache: Option<Arc<CacheCounters>>,
}

/// How a query came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The source.
    pub source: SocketAddr,
    /// The destination address, where the kernel reports it.
    pub asked: Option<IpAddr>,
    /// The index of the interface, where the kernel reports it.
    pub interface: Option<u32>,
    /// The transport.
    pub transport: Transport,
}

/// The context in which a query is resolved.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// The zones of the address, as they were when the query came.
    pub table: Arc<ZoneTable>,
    /// The client's packet, of the query that came first.
    pub arrival: PacketInfo,
    /// The client whose quota pays for upstream queries.
    pub quota_key: QuotaKey,
    /// Whether resolvers outside of the cluster may be asked.
    pub may_ask_outside: bool,
    /// Whether upstreams may be asked at all.
    pub may_forward: bool,
    /// The zone that holds the name.
    pub zone: Zone,
    /// How many queries led to this one.
    pub depth: u8,
    /// The part of the total time-out that has passed already.
    pub waited: Duration,
}

/// Whether the caller of [`ZoneBinding::find`] may be cancelled before there is an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// Never: it resolves the query itself.
    Never,
    /// At any time, while others wait for the same answer: a task of its own resolves the query.
    Possible,
}

/// How long a query waits for the answer of the other address family. Stub resolvers wait for both anyway.
const OTHER_FAMILY_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest chain of queries: aliases of rewrite rules and templates, A for AAAA.
const MAX_DEPTH: u8 = 8;

/// A lookup that may lead to others.
type Lookup<'a> =
    Pin<Box<dyn Future<Output = Result<(Arc<ResolvedAnswer>, Ttls), ResolveError>> + Send + 'a>>;

impl QueryContext {
    /// This context after `waited` more.
    fn after(&self, waited: Duration) -> Self {
        Self {
            waited: self.waited + waited,
            ..self.clone()
        }
    }

    pub(super) fn endpoints(&self) -> QueryEndpoints {
        let asked = self.arrival.asked.unwrap_or_else(|| self.table.address.ip());
        QueryEndpoints {
            client: self.arrival.source,
            server: SocketAddr::new(asked, self.table.address.port()),
            over_tcp: self.arrival.transport == Transport::Tcp,
        }
    }

    /// Looks up a target name with the query's type and class. Returns the response's octets.
    pub(super) async fn follow(&self, query: &Query<'_>, target: &WireName) -> Result<Vec<u8>, ResolveError> {
        let question = query.asking(target, query.question.kind, query.question.class);
        let (resolved, ttls) = self.look_up(question.clone()).await?;
        let size = u16::MAX;
        let (octets, _whole) = resolved
            .answer
            .get()
            .reply_within(&question, ttls, usize::from(size), size);
        Ok(octets)
    }

    /// Resolves a query as if a client had sent it to the same address.
    pub(super) fn look_up(&self, query: Query<'static>) -> Lookup<'_> {
        Box::pin(async move {
            if self.depth >= MAX_DEPTH {
                return Err(ResolveError::TooDeep);
            }
            let binding = self
                .table
                .binding(&query.question, self.arrival.asked)
                .ok_or(ResolveError::NoBlock)?;
            let context = Self {
                may_ask_outside: binding.may_ask_outside,
                may_forward: binding.block.may_forward(&query),
                zone: binding.zone,
                depth: self.depth + 1,
                ..self.clone()
            };
            binding.answer(query, context).await
        })
    }

    /// Counts a template's match, and its failure.
    pub(super) fn count_template(&self, matched: &MatchedTemplate) {
        let mut labels = vec![
            Label::new("server", self.table.server()),
            Label::new("zone", matched.zone.to_string()),
            Label::new("view", ""),
            Label::new("class", class_name(matched.class)),
            Label::new("type", kind_name(matched.kind)),
        ];
        counter!("coredns_template_matches_total", labels.iter()).increment(1);
        if let Some(failure) = &matched.failure {
            labels.push(Label::new("section", failure.section));
            labels.push(Label::new("template", failure.template.clone()));
            let name = match failure.is_filled_in {
                true => "coredns_template_rr_failures_total",
                false => "coredns_template_template_failures_total",
            };
            counter!(name, labels).increment(1);
        }
    }
}

impl ZoneBinding {
    /// Whether its queries are counted or logged.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.counts.is_some() || self.is_logged()
    }

    /// Whether each of its queries is logged.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.block.logs()
    }

    /// Updates the counters of the cache.
    pub fn count_cache(&self, count: impl FnOnce(&CacheCounters)) {
        if let Some(counts) = &self.of_cache {
            count(counts);
        }
    }

    /// Counts and logs an answered query.
    pub fn record(&self, event: &AnsweredQuery<'_>, source: AnswerSource) {
        if let Some(counts) = &self.counts {
            counts.count(event, source);
        }
        self.block.log(event);
    }

    /// Resolves a query that missed the cache. `missed_at` is the completion count at that miss: when another query has
    /// completed since, the cache is searched again.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn find(
        self: &Arc<Self>,
        key: Option<&Key>,
        query: &Query<'_>,
        context: &QueryContext,
        missed_at: Option<CompletionCount>,
        cancellation: Cancellation,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        let landed = self.completions();
        let is_missed = missed_at.is_some() && missed_at == landed;
        let key_to_find = key.filter(|_| !is_missed);
        let found = key_to_find.map_or(Found::Miss, |key| self.block.cached(key.view(), clock::now()));
        match found {
            Found::Fresh(hit) => Ok(resolved(&hit)),
            Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss => {
                self.ask(key, query, context, cancellation, landed).await
            }
        }
    }

    /// Resolves a query by the chain, or joins the same query in flight.
    async fn ask(
        self: &Arc<Self>,
        key: Option<&Key>,
        query: &Query<'_>,
        context: &QueryContext,
        cancellation: Cancellation,
        missed_at: Option<CompletionCount>,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        let (Some(key), Some(singleflight)) = (key, self.block.singleflight()) else {
            // Boxed: the rare path must not enlarge the future of every pending query.
            let resolving = Box::pin(self.block.chain.resolve(query, context));
            return resolving.await.map(Arc::new);
        };
        if let Some(other) = self.other_family(key, query, context)
            && let Some(denial) = Box::pin(self.denied_by(other, key)).await
        {
            return Ok(denial);
        }
        if self.block.chain.depends_on_client {
            // The answer may depend on the client: it is not shared.
            return Box::pin(self.resolve(key, query, context, missed_at)).await;
        }
        let resolved = match cancellation {
            Cancellation::Never => {
                let (begun, mut is_first) = (clock::now(), false);
                let asking = || {
                    is_first = true;
                    let waited = clock::now().since(begun);
                    async move {
                        if waited.is_zero() {
                            return self.resolve(key, query, context, missed_at).await;
                        }
                        // The first caller was cancelled. Boxed, like all that is rare.
                        let context = context.after(waited);
                        Box::pin(self.resolve(key, query, &context, missed_at)).await
                    }
                };
                match singleflight.join(key, asking).await {
                    // The first caller's client was over its limit: this client may not be.
                    Some(Err(ResolveError::Upstream(Failure::OverLimit))) if !is_first => {
                        let context = context.after(clock::now().since(begun));
                        let asking = || self.resolve(key, query, &context, missed_at);
                        Box::pin(singleflight.join(key, asking)).await
                    }
                    resolved => resolved,
                }
            }
            Cancellation::Possible => {
                let (binding, key, query, context) = (Arc::clone(self), *key, query.owned(), context.clone());
                let asking = async move { binding.resolve(&key, &query, &context, missed_at).await };
                Box::pin(singleflight.join_in_task(key, asking)).await
            }
        };
        resolved.unwrap_or_else(|| {
            self.block.panics().increment(1);
            Err(ResolveError::Upstream(Failure::Local))
        })
    }

    /// The completion count of queries in flight.
    #[must_use]
    pub fn completions(&self) -> Option<CompletionCount> {
        self.block
            .singleflight()
            .map(|singleflight| singleflight.completions())
    }

    /// The answer that another query has put into the cache since the miss.
    fn resolved_since(&self, missed_at: Option<CompletionCount>, key: &Key) -> Option<Arc<ResolvedAnswer>> {
        if missed_at.is_none() || missed_at == self.completions() {
            return None;
        }
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) => Some(resolved(&hit)),
            Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Resolves by the chain and caches the answer. Equal queries wait for this one.
    async fn resolve(
        self: &Arc<Self>,
        key: &Key,
        query: &Query<'_>,
        context: &QueryContext,
        missed_at: Option<CompletionCount>,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        if let Some(resolved) = self.resolved_since(missed_at, key) {
            return Ok(resolved);
        }
        let resolved = self.block.chain.resolve(query, context).await?;
        if !resolved.answer.get().is_readable() {
            self.count_cache(CacheCounters::dropped);
        }
        let resolved = self.block.store(key, resolved);
        self.update_cuts(key, query, context, &resolved);
        Ok(resolved)
    }

    /// The completion of the query in flight for the same name and the other address family: in zones of search lists.
    fn other_family(
        &self,
        key: &Key,
        query: &Query,
        context: &QueryContext,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let other = match query.question.kind {
            kind::A => kind::AAAA,
            kind::AAAA => kind::A,
            _ => return None,
        };
        let (config, name) = (&context.table.config, &query.question.name);
        let is_searched = config.cluster_domains.iter().any(|zone| zone.holds(name))
            || config.cut_zones.iter().any(|zone| zone.zone.holds(name));
        let singleflight = self.block.singleflight().filter(|_| is_searched)?;
        singleflight.meanwhile(key, &key.of_kind(other))
    }

    /// The NXDOMAIN of the other family's answer, which holds for any type (RFC 2308 §5). Stub resolvers ask for both families
    /// at once, and most names of a search list do not exist.
    async fn denied_by(&self, other: impl Future<Output = ()>, key: &Key) -> Option<Arc<ResolvedAnswer>> {
        timeout(OTHER_FAMILY_TIMEOUT, other).await.ok()?;
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) | Found::FreshAndDue(hit) => Some(resolved(&hit)),
            Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Resolves a query from the cache or by the chain.
    pub(super) async fn answer(
        self: &Arc<Self>,
        query: Query<'static>,
        context: QueryContext,
    ) -> Result<(Arc<ResolvedAnswer>, Ttls), ResolveError> {
        let now = clock::now();
        let key = self.block.key(&query);
        let missed_at = self.completions();
        let found = key.map_or(Found::Miss, |key| self.block.cached(key.view(), now));
        match (found, key) {
            (Found::Fresh(hit) | Found::Stale(hit, StaleRefresh::None), _) => Ok((resolved(&hit), hit.ttls)),
            (Found::FreshAndDue(hit) | Found::Stale(hit, _), Some(key)) => {
                let better = Arc::clone(self).refresh(key, query, context).await;
                Ok(better.map_or_else(
                    |_worse| (resolved(&hit), hit.ttls),
                    |better| (better, Ttls::CountedDown(now)),
                ))
            }
            (Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss, key) => {
                if let Some(denied) = self.denied_below_answer(key.as_ref(), &query, &context, now) {
                    return Ok((denied, Ttls::Original));
                }
                let asking = self.ask(key.as_ref(), &query, &context, Cancellation::Possible, missed_at);
                let resolved = asking.await?;
                Ok((resolved, Ttls::CountedDown(clock::now())))
            }
        }
    }

    /// Resolves AAAA by dns64: with addresses synthesized from A records where there are no others (RFC 6147).
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn translate(
        self: &Arc<Self>,
        query: &Query<'_>,
        context: QueryContext,
    ) -> Result<(Arc<ResolvedAnswer>, Ttls), ResolveError> {
        let aaaa = self.answer(query.owned(), context.clone()).await;
        let Some(translator) = &self.block.chain.own.dns64 else {
            return aaaa;
        };
        let empty = || explained_reply(query, rcode::SERVFAIL, 0, u16::MAX);
        let octets = match &aaaa {
            Ok((resolved, _)) if !translator.wants_a(&resolved.answer.get().message()) => return aaaa,
            Ok((resolved, _)) => resolved.answer.get().message().octets().to_vec(),
            Err(_counts_as_empty) => empty(),
        };
        let question = translator.question_for_a(query);
        let (a, ttls) = context.look_up(question.clone()).await?;
        let size = u16::MAX;
        let (a, _whole) = a
            .answer
            .get()
            .reply_within(&question, ttls, usize::from(size), size);
        let made = Message::read(&octets)
            .ok()
            .zip(Message::read(&a).ok())
            .and_then(|(aaaa, a)| translator.synthesize(query, &aaaa, &a, size).ok());
        let Some(answer) = made.and_then(|octets| own(octets, clock::now())) else {
            return Err(ResolveError::Rewrite);
        };
        counter!("coredns_dns64_requests_translated_total", "server" => context.table.server()).increment(1);
        let resolved = self.block.chain.synthesized(answer, &context);
        Ok((Arc::new(resolved), Ttls::CountedDown(clock::now())))
    }

    /// Resolves a cached answer again.
    ///
    /// # Errors
    /// When the refresh failed; then the cached answer is not refreshed again for a while.
    pub async fn refresh(
        self: Arc<Self>,
        key: Key,
        query: Query<'static>,
        context: QueryContext,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        let asked = self
            .ask(Some(&key), &query, &context, Cancellation::Possible, None)
            .await;
        let is_better = asked
            .as_ref()
            .is_ok_and(|resolved| self.block.refreshes(resolved));
        if !is_better {
            self.block.refresh_failed(&key, clock::now());
        }
        asked
    }
}

/// The answer of a cache entry.
fn resolved(hit: &Hit<StoredAnswer>) -> Arc<ResolvedAnswer> {
    Arc::new(hit.value.to_resolved(hit.arrived))
}

//! A zone at an address and who answers for it: equal questions at once are asked once, and answers are kept.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use metrics::{Label, counter};
use tokio::time::timeout;

use crate::cache::{Ask, Found, Hit, Key};
use crate::config::model::Zone;
use crate::dns::answer::Ttls;
use crate::dns::message::{Message, Query, WireName, explained_reply, kind, rcode};
use crate::limits::quota_key::QuotaKey;
use crate::net::Transport;
use crate::plugins::QueryEndpoints;
use crate::plugins::template::Matched;
use crate::upstream::{Failure, Landings};

use super::chain::own;
use super::{
    AnswerSource, AnsweredQuery, CacheCounters, ResolveError, ResolvedAnswer, ServerBlock, StoredAnswer,
    ZoneCounters, ZoneTable,
};
use crate::zones::type_names::{class_name, kind_name};

/// A zone and who answers for it.
#[derive(Debug)]
pub struct ZoneBinding {
    /// The zone.
    pub zone: Zone,
    /// Who answers.
    pub block: Arc<ServerBlock>,
    /// Whether a name may be asked of resolvers outside of the cluster: not where it is in a zone of which a block
    /// elsewhere, or the cluster, knows everything.
    pub may_ask_outside: bool,
    /// What is counted of its queries, where metrics are wanted.
    pub(crate) counts: Option<Arc<ZoneCounters>>,
    /// What is counted of its cache, where there is one.
    pub(crate) of_cache: Option<Arc<CacheCounters>>,
}

/// Where a query came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The source.
    pub source: SocketAddr,
    /// The address of ours that was asked, where the kernel told.
    pub asked: Option<IpAddr>,
    /// The interface, where the kernel told.
    pub interface: Option<u32>,
    /// How.
    pub transport: Transport,
}

/// Under which conditions a question is answered.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// What was in force, where it was asked, when it came.
    pub table: Arc<ZoneTable>,
    /// Who asked first.
    pub arrival: PacketInfo,
    /// From whose share its upstreams are asked.
    pub quota_key: QuotaKey,
    /// Whether resolvers outside of the cluster may be asked.
    pub may_ask_outside: bool,
    /// Whether upstreams may be asked at all.
    pub may_forward: bool,
    /// The zone that holds the name.
    pub zone: Zone,
    /// From how many other questions this one comes.
    pub depth: u8,
    /// How much of the client's patience was used before upstreams are asked.
    pub waited: Duration,
}

/// Whether who asks may go before there is an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// It stays until the end: it asks itself.
    Always,
    /// It may go, and others wait: a task of its own asks.
    Perhaps,
}

/// How long a question waits for the other family's answer. Who asked waits for both anyway; a server that does not answer
/// the first leaves time for the second.
const MEANWHILE: Duration = Duration::from_secs(1);
/// Questions that come from a question: aliases of rules and templates, A for AAAA.
const DEEPEST: u8 = 8;

/// A look-up that may lead to others.
type Lookup<'a> =
    Pin<Box<dyn Future<Output = Result<(Arc<ResolvedAnswer>, Ttls), ResolveError>> + Send + 'a>>;

impl QueryContext {
    /// The same for who has waited so long already.
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

    /// What is known of a name, of the type that is asked for: octets of a response to that question.
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

    /// Asks as a client would at the same address.
    pub(super) fn look_up(&self, query: Query<'static>) -> Lookup<'_> {
        Box::pin(async move {
            if self.depth >= DEEPEST {
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

    /// Counts that a template matched, and what came of it.
    pub(super) fn count_template(&self, matched: &Matched) {
        let mut labels = vec![
            Label::new("server", self.table.server()),
            Label::new("zone", matched.zone.to_string()),
            Label::new("view", ""),
            Label::new("class", class_name(matched.class)),
            Label::new("type", kind_name(matched.kind)),
        ];
        counter!("coredns_template_matches_total", labels.iter()).increment(1);
        if let Some(misfit) = &matched.misfit {
            labels.push(Label::new("section", misfit.section));
            labels.push(Label::new("template", misfit.template.clone()));
            let name = match misfit.is_filled_in {
                true => "coredns_template_rr_failures_total",
                false => "coredns_template_template_failures_total",
            };
            counter!(name, labels).increment(1);
        }
    }
}

impl ZoneBinding {
    /// Whether somebody wants to know of its queries.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.counts.is_some() || self.is_logged()
    }

    /// Whether somebody wants to know of each of them by itself.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.block.logs()
    }

    /// Counts something of the cache.
    pub fn caching(&self, count: impl FnOnce(&CacheCounters)) {
        if let Some(counts) = &self.of_cache {
            count(counts);
        }
    }

    /// A query was answered.
    pub fn note(&self, event: &AnsweredQuery<'_>, source: AnswerSource) {
        if let Some(counts) = &self.counts {
            counts.count(event, source);
        }
        self.block.log(event);
    }

    /// Answers what the block's cache did not have when the query came, after so many questions had ended, if it was looked
    /// for: since then somebody else's question, or the same name's for another type, may have been answered.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn find(
        self: &Arc<Self>,
        key: Option<&Key>,
        query: &Query<'_>,
        context: &QueryContext,
        missed_at: Option<Landings>,
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

    /// Asks for what the block's cache does not have; or for what it has, if it was not looked for.
    async fn ask(
        self: &Arc<Self>,
        key: Option<&Key>,
        query: &Query<'_>,
        context: &QueryContext,
        cancellation: Cancellation,
        missed_at: Option<Landings>,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        let (Some(key), Some(inflight)) = (key, self.block.inflight()) else {
            // Boxed: the rare way must not make every waiting query as large as itself.
            let solving = Box::pin(self.block.chain.solve(query, context));
            return solving.await.map(Arc::new);
        };
        if let Some(other) = self.other_family(key, query, context)
            && let Some(denial) = Box::pin(self.denied_by(other, key)).await
        {
            return Ok(denial);
        }
        if self.block.chain.tells_clients_apart {
            // What one client is told about itself is not the answer for who asks the same meanwhile.
            return Box::pin(self.solve(key, query, context, missed_at)).await;
        }
        let resolved = match cancellation {
            Cancellation::Always => {
                let (begun, mut is_first) = (clock::now(), false);
                let asking = || {
                    is_first = true;
                    let waited = clock::now().since(begun);
                    async move {
                        if waited.is_zero() {
                            return self.solve(key, query, context, missed_at).await;
                        }
                        // Who asked before had to go. Boxed, like all that is rare.
                        let context = context.after(waited);
                        Box::pin(self.solve(key, query, &context, missed_at)).await
                    }
                };
                match inflight.join(key, asking).await {
                    // Who asked first had no place, or lost it: that is not this client's.
                    Some(Err(ResolveError::Upstream(Failure::OverLimit))) if !is_first => {
                        let context = context.after(clock::now().since(begun));
                        let asking = || self.solve(key, query, &context, missed_at);
                        Box::pin(inflight.join(key, asking)).await
                    }
                    resolved => resolved,
                }
            }
            Cancellation::Perhaps => {
                let (binding, key, query, context) = (Arc::clone(self), *key, query.owned(), context.clone());
                let asking = async move { binding.solve(&key, &query, &context, missed_at).await };
                Box::pin(inflight.join_in_task(key, asking)).await
            }
        };
        resolved.unwrap_or_else(|| {
            self.block.panics().increment(1);
            Err(ResolveError::Upstream(Failure::Local))
        })
    }

    /// How many questions have ended, before it is looked whether one is to be asked.
    #[must_use]
    pub fn completions(&self) -> Option<Landings> {
        self.block.inflight().map(|inflight| inflight.landings())
    }

    /// What another thread has come to know since it was not there.
    fn resolved_since(&self, missed_at: Option<Landings>, key: &Key) -> Option<Arc<ResolvedAnswer>> {
        if missed_at.is_none() || missed_at == self.completions() {
            return None;
        }
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) => Some(resolved(&hit)),
            Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Has the chain answer, and keeps what it says. From here on others wait for this question.
    async fn solve(
        self: &Arc<Self>,
        key: &Key,
        query: &Query<'_>,
        context: &QueryContext,
        missed_at: Option<Landings>,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        if let Some(resolved) = self.resolved_since(missed_at, key) {
            return Ok(resolved);
        }
        let resolved = self.block.chain.solve(query, context).await?;
        if !resolved.answer.get().is_readable() {
            self.caching(CacheCounters::dropped);
        }
        let resolved = self.block.keep(key, resolved);
        self.learn_what_is_above(key, query, context, &resolved);
        Ok(resolved)
    }

    /// The end of the question for the other family's addresses of a name of the cluster, or of another zone in which search
    /// lists look, if it is under way.
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
        let inflight = self.block.inflight().filter(|_| is_searched)?;
        inflight.meanwhile(key, &key.of_kind(other))
    }

    /// What the answer for the other family says of this one. Stubs ask for both at once, and most names that a search
    /// list makes do not exist: for any type (RFC 2308 §5).
    async fn denied_by(&self, other: impl Future<Output = ()>, key: &Key) -> Option<Arc<ResolvedAnswer>> {
        timeout(MEANWHILE, other).await.ok()?;
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) | Found::FreshAndDue(hit) => Some(resolved(&hit)),
            Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Answers from the cache or by the chain.
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
            (Found::Fresh(hit) | Found::Stale(hit, Ask::NotNow), _) => Ok((resolved(&hit), hit.ttls)),
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
                let asking = self.ask(key.as_ref(), &query, &context, Cancellation::Perhaps, missed_at);
                let resolved = asking.await?;
                Ok((resolved, Ttls::CountedDown(clock::now())))
            }
        }
    }

    /// Answers a question for IPv6 addresses with some that are made of IPv4 ones, where there are no others.
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
        let resolved = self.block.chain.made_of_a(answer, &context);
        Ok((Arc::new(resolved), Ttls::CountedDown(clock::now())))
    }

    /// Asks again for an answer that is kept.
    ///
    /// # Errors
    /// Why there is nothing better: what is kept stays as it is for a while.
    pub async fn refresh(
        self: Arc<Self>,
        key: Key,
        query: Query<'static>,
        context: QueryContext,
    ) -> Result<Arc<ResolvedAnswer>, ResolveError> {
        let asked = self
            .ask(Some(&key), &query, &context, Cancellation::Perhaps, None)
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

/// What is kept, for who goes on with it.
fn resolved(hit: &Hit<StoredAnswer>) -> Arc<ResolvedAnswer> {
    Arc::new(hit.value.to_resolved(hit.arrived))
}

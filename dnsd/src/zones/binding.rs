//! A zone at an address and who answers for it: equal questions at once are asked once, and answers are kept.

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
use crate::plugins::QueryEndpoints;
use crate::plugins::template::MatchedTemplate;
use crate::telemetry::metrics::Transport;
use crate::upstream::{CompletionCount, Failure};

use super::chain::own;
use super::{Block, By, Event, Failed, Known, OfCache, OfZone, Packed, Table};
use crate::zones::type_names::{class_name, kind_name};

/// A zone and who answers for it.
#[derive(Debug)]
pub struct Entry {
    /// The zone.
    pub zone: Zone,
    /// Who answers.
    pub block: Arc<Block>,
    /// Whether a name may be asked of resolvers outside of the cluster: not where it is in a zone of which a block
    /// elsewhere, or the cluster, knows everything.
    pub may_ask_outside: bool,
    /// What is counted of its queries, where metrics are wanted.
    pub(crate) counts: Option<Arc<OfZone>>,
    /// What is counted of its cache, where there is one.
    pub(crate) of_cache: Option<Arc<OfCache>>,
}

/// Where a query came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
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
pub struct Terms {
    /// What was in force, where it was asked, when it came.
    pub table: Arc<Table>,
    /// Who asked first.
    pub arrival: Arrival,
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
pub enum Stays {
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
type LookUp<'a> = Pin<Box<dyn Future<Output = Result<(Arc<Known>, Ttls), Failed>> + Send + 'a>>;

impl Terms {
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
    pub(super) async fn follow(&self, query: &Query<'_>, target: &WireName) -> Result<Vec<u8>, Failed> {
        let question = query.asking(target, query.question.kind, query.question.class);
        let (known, ttls) = self.look_up(question.clone()).await?;
        let size = u16::MAX;
        let (octets, _whole) = known
            .answer
            .get()
            .reply_within(&question, ttls, usize::from(size), size);
        Ok(octets)
    }

    /// Asks as a client would at the same address.
    pub(super) fn look_up(&self, query: Query<'static>) -> LookUp<'_> {
        Box::pin(async move {
            if self.depth >= DEEPEST {
                return Err(Failed::TooDeep);
            }
            let entry = self
                .table
                .entry(&query.question, self.arrival.asked)
                .ok_or(Failed::NoBlock)?;
            let terms = Self {
                may_ask_outside: entry.may_ask_outside,
                may_forward: entry.block.may_forward(&query),
                zone: entry.zone,
                depth: self.depth + 1,
                ..self.clone()
            };
            entry.answer(query, terms).await
        })
    }

    /// Counts that a template matched, and what came of it.
    pub(super) fn count_template(&self, matched: &MatchedTemplate) {
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

impl Entry {
    /// Whether somebody wants to know of its queries.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.counts.is_some() || self.is_logged()
    }

    /// Whether somebody wants to know of each of them by itself.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.block.logs()
    }

    /// Counts something of the cache.
    pub fn caching(&self, count: impl FnOnce(&OfCache)) {
        if let Some(counts) = &self.of_cache {
            count(counts);
        }
    }

    /// A query was answered.
    pub fn note(&self, event: &Event<'_>, by: By) {
        if let Some(counts) = &self.counts {
            counts.count(event, by);
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
        terms: &Terms,
        missed_at: Option<CompletionCount>,
        stays: Stays,
    ) -> Result<Arc<Known>, Failed> {
        let landed = self.completions();
        let is_missed = missed_at.is_some() && missed_at == landed;
        let key_to_find = key.filter(|_| !is_missed);
        let found = key_to_find.map_or(Found::Miss, |key| self.block.cached(key.view(), clock::now()));
        match found {
            Found::Fresh(hit) => Ok(known(&hit)),
            Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss => {
                self.ask(key, query, terms, stays, landed).await
            }
        }
    }

    /// Asks for what the block's cache does not have; or for what it has, if it was not looked for.
    async fn ask(
        self: &Arc<Self>,
        key: Option<&Key>,
        query: &Query<'_>,
        terms: &Terms,
        stays: Stays,
        missed_at: Option<CompletionCount>,
    ) -> Result<Arc<Known>, Failed> {
        let (Some(key), Some(singleflight)) = (key, self.block.singleflight()) else {
            // Boxed: the rare way must not make every waiting query as large as itself.
            let solving = Box::pin(self.block.chain.solve(query, terms));
            return solving.await.map(Arc::new);
        };
        if let Some(other) = self.other_family(key, query, terms)
            && let Some(denial) = Box::pin(self.denied_by(other, key)).await
        {
            return Ok(denial);
        }
        if self.block.chain.tells_clients_apart {
            // What one client is told about itself is not the answer for who asks the same meanwhile.
            return Box::pin(self.solve(key, query, terms, missed_at)).await;
        }
        let known = match stays {
            Stays::Always => {
                let (begun, mut is_first) = (clock::now(), false);
                let asking = || {
                    is_first = true;
                    let waited = clock::now().since(begun);
                    async move {
                        if waited.is_zero() {
                            return self.solve(key, query, terms, missed_at).await;
                        }
                        // Who asked before had to go. Boxed, like all that is rare.
                        let terms = terms.after(waited);
                        Box::pin(self.solve(key, query, &terms, missed_at)).await
                    }
                };
                match singleflight.join(key, asking).await {
                    // Who asked first had no place, or lost it: that is not this client's.
                    Some(Err(Failed::Upstream(Failure::OverLimit))) if !is_first => {
                        let terms = terms.after(clock::now().since(begun));
                        let asking = || self.solve(key, query, &terms, missed_at);
                        Box::pin(singleflight.join(key, asking)).await
                    }
                    known => known,
                }
            }
            Stays::Perhaps => {
                let (entry, key, query, terms) = (Arc::clone(self), *key, query.owned(), terms.clone());
                let asking = async move { entry.solve(&key, &query, &terms, missed_at).await };
                Box::pin(singleflight.join_in_task(key, asking)).await
            }
        };
        known.unwrap_or_else(|| {
            self.block.panics().increment(1);
            Err(Failed::Upstream(Failure::Local))
        })
    }

    /// How many questions have ended, before it is looked whether one is to be asked.
    #[must_use]
    pub fn completions(&self) -> Option<CompletionCount> {
        self.block
            .singleflight()
            .map(|singleflight| singleflight.completions())
    }

    /// What another thread has come to know since it was not there.
    fn known_since(&self, missed_at: Option<CompletionCount>, key: &Key) -> Option<Arc<Known>> {
        if missed_at.is_none() || missed_at == self.completions() {
            return None;
        }
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) => Some(known(&hit)),
            Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Has the chain answer, and keeps what it says. From here on others wait for this question.
    async fn solve(
        self: &Arc<Self>,
        key: &Key,
        query: &Query<'_>,
        terms: &Terms,
        missed_at: Option<CompletionCount>,
    ) -> Result<Arc<Known>, Failed> {
        if let Some(known) = self.known_since(missed_at, key) {
            return Ok(known);
        }
        let known = self.block.chain.solve(query, terms).await?;
        if !known.answer.get().is_readable() {
            self.caching(OfCache::dropped);
        }
        let known = self.block.keep(key, known);
        self.learn_what_is_above(key, query, terms, &known);
        Ok(known)
    }

    /// The end of the question for the other family's addresses of a name of the cluster, or of another zone in which search
    /// lists look, if it is under way.
    fn other_family(
        &self,
        key: &Key,
        query: &Query,
        terms: &Terms,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let other = match query.question.kind {
            kind::A => kind::AAAA,
            kind::AAAA => kind::A,
            _ => return None,
        };
        let (config, name) = (&terms.table.config, &query.question.name);
        let is_searched = config.cluster_domains.iter().any(|zone| zone.holds(name))
            || config.cut_zones.iter().any(|zone| zone.zone.holds(name));
        let singleflight = self.block.singleflight().filter(|_| is_searched)?;
        singleflight.meanwhile(key, &key.of_kind(other))
    }

    /// What the answer for the other family says of this one. Stubs ask for both at once, and most names that a search
    /// list makes do not exist: for any type (RFC 2308 §5).
    async fn denied_by(&self, other: impl Future<Output = ()>, key: &Key) -> Option<Arc<Known>> {
        timeout(MEANWHILE, other).await.ok()?;
        match self.block.cached(key.view(), clock::now()) {
            Found::Fresh(hit) | Found::FreshAndDue(hit) => Some(known(&hit)),
            Found::Stale(..) | Found::Miss => None,
        }
    }

    /// Answers from the cache or by the chain.
    pub(super) async fn answer(
        self: &Arc<Self>,
        query: Query<'static>,
        terms: Terms,
    ) -> Result<(Arc<Known>, Ttls), Failed> {
        let now = clock::now();
        let key = self.block.key(&query);
        let missed_at = self.completions();
        let found = key.map_or(Found::Miss, |key| self.block.cached(key.view(), now));
        match (found, key) {
            (Found::Fresh(hit) | Found::Stale(hit, StaleRefresh::None), _) => Ok((known(&hit), hit.ttls)),
            (Found::FreshAndDue(hit) | Found::Stale(hit, _), Some(key)) => {
                let better = Arc::clone(self).refresh(key, query, terms).await;
                Ok(better.map_or_else(
                    |_worse| (known(&hit), hit.ttls),
                    |better| (better, Ttls::CountedDown(now)),
                ))
            }
            (Found::FreshAndDue(_) | Found::Stale(..) | Found::Miss, key) => {
                if let Some(denied) = self.known_denied_below(key.as_ref(), &query, &terms, now) {
                    return Ok((denied, Ttls::Original));
                }
                let asking = self.ask(key.as_ref(), &query, &terms, Stays::Perhaps, missed_at);
                let known = asking.await?;
                Ok((known, Ttls::CountedDown(clock::now())))
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
        terms: Terms,
    ) -> Result<(Arc<Known>, Ttls), Failed> {
        let aaaa = self.answer(query.owned(), terms.clone()).await;
        let Some(translator) = &self.block.chain.own.dns64 else {
            return aaaa;
        };
        let empty = || explained_reply(query, rcode::SERVFAIL, 0, u16::MAX);
        let octets = match &aaaa {
            Ok((known, _)) if !translator.wants_a(&known.answer.get().message()) => return aaaa,
            Ok((known, _)) => known.answer.get().message().octets().to_vec(),
            Err(_counts_as_empty) => empty(),
        };
        let question = translator.question_for_a(query);
        let (a, ttls) = terms.look_up(question.clone()).await?;
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
            return Err(Failed::Rewrite);
        };
        counter!("coredns_dns64_requests_translated_total", "server" => terms.table.server()).increment(1);
        let known = self.block.chain.made_of_a(answer, &terms);
        Ok((Arc::new(known), Ttls::CountedDown(clock::now())))
    }

    /// Asks again for an answer that is kept.
    ///
    /// # Errors
    /// Why there is nothing better: what is kept stays as it is for a while.
    pub async fn refresh(
        self: Arc<Self>,
        key: Key,
        query: Query<'static>,
        terms: Terms,
    ) -> Result<Arc<Known>, Failed> {
        let asked = self.ask(Some(&key), &query, &terms, Stays::Perhaps, None).await;
        let is_better = asked.as_ref().is_ok_and(|known| self.block.refreshes(known));
        if !is_better {
            self.block.refresh_failed(&key, clock::now());
        }
        asked
    }
}

/// What is kept, for who goes on with it.
fn known(hit: &Hit<Packed>) -> Arc<Known> {
    Arc::new(hit.value.to_known(hit.arrived))
}

//! A pending query: it waits for an upstream, until its permit is revoked, or for the enforcer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use tokio::time::timeout;

use super::query::{QueryView, WaitingQuery};
use super::reply::{Delivery, UnsentReply};
use super::{Disposition, Pending, Resolver, StaleFallback};
use crate::cache::{Hit, Key};
use crate::config::OnStall;
use crate::config::host_setup::INTERCEPT_PORT;
use crate::dns::answer::Ttls;
use crate::enforcement::gate::Stall;
use crate::enforcement::gated::{GatedResponse, stalled};
use crate::limits::permits::RevocablePermit;
use crate::upstream::{Limits, client_chosen};
use crate::zones::{AnswerSource, Cancellation, ResolveError, ResolvedAnswer, StoredAnswer};

/// What a query waits for.
#[derive(Debug)]
pub(super) enum PendingState {
    ForAnswer(
        Arc<Resolver>,
        Box<WaitingQuery>,
        Option<StaleFallback>,
        RevocablePermit,
    ),
    ForKernel(Arc<Resolver>, Box<WaitingQuery>, UnsentReply, GatedResponse),
}

impl Pending {
    /// Waits for the reply; none where nothing is to be sent.
    pub async fn reply(self) -> Option<Vec<u8>> {
        let mut state = self.0;
        loop {
            let disposition = match state {
                PendingState::ForAnswer(resolver, query, stale, mut permit) => {
                    let stale = stale.as_ref();
                    let answered = tokio::select! {
                        biased;
                        answered = answered(&resolver, &query, stale) => answered,
                        () = permit.revoked() => Err(resolver.over_limit(query.view(), stale.map(|(hit, _)| hit))),
                    };
                    answered.map_or_else(
                        |failed| failed,
                        |delivery| resolver.deliver_pending(query, delivery),
                    )
                }
                PendingState::ForKernel(resolver, query, unsent, held) => {
                    release(&resolver, &query, unsent, held).await
                }
            };
            match disposition {
                Disposition::Reply(reply) => return Some(reply),
                Disposition::NoReply => return None,
                Disposition::Pending(pending) => state = pending.0,
            }
        }
    }
}

impl Resolver {
    /// Sends the reply of a query that is still looked at, or holds it.
    pub(super) fn deliver(self: &Arc<Self>, query: QueryView<'_>, delivery: Delivery) -> Disposition {
        match delivery {
            Delivery::Now(reply, source) => self.reply(query, reply, source),
            Delivery::Held(unsent, held) => self.hold(query.owned(None), unsent, held),
        }
    }

    /// Sends the reply of a pending query, or holds it.
    pub(super) fn deliver_pending(
        self: &Arc<Self>,
        query: Box<WaitingQuery>,
        delivery: Delivery,
    ) -> Disposition {
        match delivery {
            Delivery::Now(reply, source) => self.reply(query.view(), reply, source),
            Delivery::Held(unsent, held) => self.hold(query, unsent, held),
        }
    }

    fn hold(
        self: &Arc<Self>,
        query: Box<WaitingQuery>,
        unsent: UnsentReply,
        held: GatedResponse,
    ) -> Disposition {
        let state = PendingState::ForKernel(Arc::clone(self), query, unsent, held);
        Disposition::Pending(Pending(state))
    }

    /// Answers a query that has no permit to wait: with the stale answer, if there is one.
    pub(super) fn over_limit(
        self: &Arc<Self>,
        query: QueryView<'_>,
        stale: Option<&Hit<StoredAnswer>>,
    ) -> Disposition {
        if let Some(hit) = stale {
            return self.deliver(query, self.cached(query, hit, clock::now()));
        }
        self.metrics.upstream.error(crate::upstream::Failure::OverLimit);
        self.fail(query, ResolveError::OverLimit)
    }
}

/// Resolves a pending query. The error is a reply that reports a failure, or a denial.
async fn answered(
    resolver: &Arc<Resolver>,
    query: &WaitingQuery,
    stale: Option<&StaleFallback>,
) -> Result<Delivery, Disposition> {
    // Boxed: the rare paths must not enlarge the future of every pending query.
    if let Some(server) = query.chosen_resolver {
        return Box::pin(ask_chosen_resolver(
            resolver,
            query,
            SocketAddr::new(server, INTERCEPT_PORT),
        ))
        .await;
    }
    if query.binding.block.translates(&query.query, &query.packet) {
        return Box::pin(translate(resolver, query)).await;
    }
    let result = match (stale, query.key) {
        (Some((hit, patience)), Some(key)) => match Box::pin(refresh(query, key, *patience)).await {
            Some(resolved) => Ok(resolved),
            None => return Ok(resolver.cached(query.view(), hit, clock::now())),
        },
        (_, key) => {
            let context = query.view().context();
            // Another query may have learned it since the cache miss.
            if let Some(key) = &key
                && let Some(denial) = query.binding.denied_below(key, &query.query, clock::now())
            {
                return Err(resolver.deny(query.view(), &denial, clock::now()));
            }
            query
                .binding
                .find(
                    key.as_ref(),
                    &query.query,
                    &context,
                    query.missed_at,
                    Cancellation::Never,
                )
                .await
        }
    };
    match result {
        Ok(resolved) => {
            let now = clock::now();
            query.binding.block.log_cached_failure(&query.query, &resolved);
            Ok(resolver.resolved(query.view(), resolved, Ttls::CountedDown(now), now))
        }
        Err(error) => Err(resolver.fail(query.view(), error)),
    }
}

/// Asks the resolver that the client chose. Its answer is not cached, and is observed only if the operator trusts it.
async fn ask_chosen_resolver(
    resolver: &Arc<Resolver>,
    waiting: &WaitingQuery,
    server: SocketAddr,
) -> Result<Delivery, Disposition> {
    let config = &waiting.table.config;
    let (query, client) = (&waiting.query, waiting.packet.transport);
    let limits = Limits {
        patience: config.total_timeout,
        udp_size: waiting.view().udp_size(),
        ttl: config.ttl,
        quota_key: waiting.quota_key,
    };
    let serving = resolver.serving();
    let Some(forwarder) = serving.trusted.get(&server.ip()) else {
        return match client_chosen::ask(server, query, client, &limits).await {
            Ok(relayed) => {
                let reply = relayed.reply_within(query, waiting.view().datagram_limit(), limits.udp_size);
                Ok(Delivery::Now(reply, AnswerSource::Forward))
            }
            Err(failure) => Err(resolver.fail(waiting.view(), ResolveError::Upstream(failure))),
        };
    };
    match forwarder.ask(query, client, &limits).await {
        Ok(answer) => {
            let resolved = waiting
                .binding
                .block
                .of_trusted(answer, &waiting.view().context());
            let now = clock::now();
            Ok(resolver.resolved(waiting.view(), Arc::new(resolved), Ttls::CountedDown(now), now))
        }
        Err(failure) => Err(resolver.fail(waiting.view(), ResolveError::Upstream(failure))),
    }
}

/// Resolves AAAA by dns64 (RFC 6147).
async fn translate(resolver: &Arc<Resolver>, query: &WaitingQuery) -> Result<Delivery, Disposition> {
    match query
        .binding
        .translate(&query.query, query.view().context())
        .await
    {
        Ok((resolved, ttls)) => Ok(resolver.resolved(query.view(), resolved, ttls, clock::now())),
        Err(error) => Err(resolver.fail(query.view(), error)),
    }
}

/// A fresh answer in the place of a stale one, if it comes in time.
async fn refresh(query: &WaitingQuery, key: Key, limit: Option<Duration>) -> Option<Arc<ResolvedAnswer>> {
    let refreshing = Arc::clone(&query.binding).refresh(key, query.query.owned(), query.view().context());
    let result = match limit {
        Some(limit) => timeout(limit, refreshing).await.ok()?,
        None => refreshing.await,
    };
    result
        .ok()
        .filter(|resolved| query.binding.block.refreshes(resolved))
}

/// Waits until a held reply is released.
async fn release(
    resolver: &Resolver,
    query: &WaitingQuery,
    unsent: UnsentReply,
    held: GatedResponse,
) -> Disposition {
    let outcome = held.end(&resolver.metrics.gate).await;
    let Some(stall) = stalled(outcome) else {
        return resolver.reply(query.view(), unsent.reply, unsent.source);
    };
    let action = match stall {
        // As where the gate has no room.
        Stall::OverLimit => OnStall::Release,
        Stall::Deadline | Stall::LinkDown | Stall::NoInterest | Stall::Failed => query.table.config.on_stall,
    };
    resolver.metrics.stall(action, stall);
    match action {
        OnStall::Release => resolver.reply(query.view(), unsent.reply, unsent.source),
        OnStall::Servfail => resolver.reply(query.view(), unsent.servfail, AnswerSource::Server),
        OnStall::Drop => Disposition::NoReply,
    }
}

//! A query that waits: for an upstream, until its place is another client's, or for the kernel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use tokio::time::timeout;

use super::{
    Delivery, Disposition, Pending, PendingState, Resolver, StaleFallback, UnsentReply, WaitingQuery,
};
use crate::cache::Key;
use crate::cache::nxdomain_cut::Denial;
use crate::config::OnStall;
use crate::config::host_setup::INTERCEPT_PORT;
use crate::dns::answer::Ttls;
use crate::enforcement::gate::Stall;
use crate::enforcement::gated::{GatedResponse, stalled};
use crate::upstream::{Forwarder, Limits, client_chosen};
use crate::zones::{AnswerSource, Cancellation, QueryContext, ResolveError, ResolvedAnswer};

impl Pending {
    /// Waits for the reply; nothing where none is to be sent.
    pub async fn reply(self) -> Option<Vec<u8>> {
        let mut waiting = self.0;
        loop {
            let step = match waiting {
                PendingState::ForAnswer(resolver, asked, stale, mut place) => {
                    let stale = stale.as_ref();
                    let answered = tokio::select! { biased; answered = answered(& resolver, & asked, stale) => answered, () = place.revoked() => Err(resolver.crowded_out(asked.view(), stale)), };
                    answered.map_or_else(|step| step, |given| resolver.step(asked, given))
                }
                PendingState::ForKernel(resolver, asked, unsent, held) => {
                    released(&resolver, &asked, unsent, held).await
                }
            };
            match step {
                Disposition::Reply(reply) => return Some(reply),
                Disposition::NoReply => return None,
                Disposition::Pending(later) => waiting = later.0,
            }
        }
    }
}

/// What is given to who waited for it; or the reply that says why nothing is.
async fn answered(
    resolver: &Arc<Resolver>,
    asked: &WaitingQuery,
    stale: Option<&StaleFallback>,
) -> Result<Delivery, Disposition> {
    // What is rare is boxed: it must not make every waiting query as large as itself.
    if let Some(server) = asked.original {
        return Box::pin(asked_there(
            resolver,
            asked,
            SocketAddr::new(server, INTERCEPT_PORT),
        ))
        .await;
    }
    if asked.binding.block.translates(&asked.query, &asked.arrival) {
        return Box::pin(translated(resolver, asked)).await;
    }
    let heard = match (stale, asked.key) {
        (Some((hit, patience)), Some(key)) => match Box::pin(refreshed(asked, key, *patience)).await {
            Some(resolved) => Ok(resolved),
            None => return Ok(resolver.cached_reply(asked.view(), hit, clock::now())),
        },
        (_, key) => {
            let mut context = asked.view().context();
            if let Some(key) = &key
                && let Some(denial) = denied_above(asked, key, &mut context).await
            {
                return Err(resolver.deny(asked.view(), &denial, clock::now()));
            }
            asked
                .binding
                .find(
                    key.as_ref(),
                    &asked.query,
                    &context,
                    asked.missed_at,
                    Cancellation::Never,
                )
                .await
        }
    };
    match heard {
        Ok(resolved) => {
            let now = clock::now();
            asked.binding.block.log_cached_failure(&asked.query, &resolved);
            Ok(resolver.give_new(asked.view(), resolved, now))
        }
        Err(error) => Err(resolver.fail(asked.view(), error)),
    }
}

/// The denial of the name above a question's, if that is known by now, or soon because it is asked for first.
async fn denied_above(asked: &WaitingQuery, key: &Key, context: &mut QueryContext) -> Option<Arc<Denial>> {
    let (binding, query) = (&asked.binding, &asked.query);
    let Some(pre_query_first) = binding.pre_query_first(key, query, context) else {
        // When the question came it was not known; whom it waited behind may have heard it meanwhile.
        return binding.denied_below(key, query, clock::now());
    };
    match Box::pin(binding.denied_first(pre_query_first, key, query)).await {
        Ok(denial) => Some(denial),
        Err(waited) => {
            context.waited = waited;
            None
        }
    }
}

/// Whom the client asked is asked. What he says opens names only if the operator trusts him, and is kept for nobody.
async fn asked_there(
    resolver: &Arc<Resolver>,
    asked: &WaitingQuery,
    server: SocketAddr,
) -> Result<Delivery, Disposition> {
    let limits = Limits {
        patience: asked.table.config.total_timeout,
        udp_size: asked.view().udp_size(),
        ttl: asked.table.config.ttl,
        quota_key: asked.quota_key,
    };
    let (query, client) = (&asked.query, asked.arrival.transport);
    let serving = resolver.serving();
    let anybody = is_off(Switch::TrustChosen)
        .then(|| {
            Forwarder::new(
                &asked.table.config.forward_to_trusted(server.ip()),
                Arc::clone(&resolver.metrics.upstream),
            )
        })
        .and_then(Result::ok);
    let trusted = serving.trusted.get(&server.ip());
    let Some(forwarder) = trusted.or(anybody.as_ref()) else {
        return match client_chosen::ask(server, query, client, &limits).await {
            Ok(relayed) => {
                let reply = relayed.reply_within(query, asked.view().datagram_limit(), limits.udp_size);
                Ok(Delivery::Now(reply, AnswerSource::Forward))
            }
            Err(failure) => Err(resolver.fail(asked.view(), ResolveError::Upstream(failure))),
        };
    };
    match forwarder.ask(query, client, &limits).await {
        Ok(answer) => {
            let (resolved, now) = (
                asked.binding.block.of_trusted(answer, &asked.view().context()),
                clock::now(),
            );
            let ttls = Ttls::CountedDown(now);
            Ok(resolver.give(asked.view(), &resolved, ttls, AnswerSource::Forward, now))
        }
        Err(failure) => Err(resolver.fail(asked.view(), ResolveError::Upstream(failure))),
    }
}

/// IPv6 addresses made of IPv4 ones, where the name has none (RFC 6147).
async fn translated(resolver: &Arc<Resolver>, asked: &WaitingQuery) -> Result<Delivery, Disposition> {
    match asked
        .binding
        .translate(&asked.query, asked.view().context())
        .await
    {
        Ok((resolved, ttls)) => {
            Ok(resolver.give(asked.view(), &resolved, ttls, resolved.source, clock::now()))
        }
        Err(error) => Err(resolver.fail(asked.view(), error)),
    }
}

/// Something better than what is stale, if it comes in time.
async fn refreshed(
    asked: &WaitingQuery,
    key: Key,
    patience: Option<Duration>,
) -> Option<Arc<ResolvedAnswer>> {
    let refreshing = Arc::clone(&asked.binding).refresh(key, asked.query.owned(), asked.view().context());
    let heard = match patience {
        Some(patience) => timeout(patience, refreshing).await.ok()?,
        None => refreshing.await,
    };
    heard
        .ok()
        .filter(|resolved| asked.binding.block.refreshes(resolved))
}

async fn released(
    resolver: &Resolver,
    asked: &WaitingQuery,
    unsent: UnsentReply,
    held: GatedResponse,
) -> Disposition {
    let outcome = held.end(&resolver.metrics.gate).await;
    let Some(stall) = stalled(outcome) else {
        return resolver.reply(asked.view(), unsent.reply, unsent.source);
    };
    let action = match stall {
        // As where there was no room to hold it.
        Stall::OverLimit => OnStall::Release,
        Stall::Deadline | Stall::LinkDown | Stall::NoInterest | Stall::Failed => asked.table.config.on_stall,
    };
    resolver.metrics.stall(action, stall);
    match action {
        OnStall::Release => resolver.reply(asked.view(), unsent.reply, unsent.source),
        OnStall::Servfail => resolver.reply(asked.view(), unsent.or_else, AnswerSource::Server),
        OnStall::Drop => Disposition::NoReply,
    }
}

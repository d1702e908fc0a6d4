//! A query that waits: for an upstream, until its place is another client's, or for the kernel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use tokio::time::timeout;

use super::{Asked, Given, Pending, Resolver, Stale, Step, Unsent, Waiting};
use crate::cache::Key;
use crate::cache::nxdomain_cut::Denial;
use crate::config::OnStall;
use crate::dns::answer::Ttls;
use crate::enforcement::gate::Stall;
use crate::enforcement::gated::{GatedResponse, stalled};
use crate::host::interception::PORT;
use crate::upstream::{Forwarder, Limits, client_chosen};
use crate::zones::{By, Failed, Known, Stays, Terms};

impl Pending {
    /// Waits for the reply; nothing where none is to be sent.
    pub async fn reply(self) -> Option<Vec<u8>> {
        let mut waiting = self.0;
        loop {
            let step = match waiting {
                Waiting::ForAnswer(resolver, asked, stale, mut place) => {
                    let stale = stale.as_ref();
                    let answered = tokio::select! {
                        biased;
                        answered = answered(&resolver, &asked, stale) => answered,
                        () = place.revoked() => Err(resolver.crowded_out(asked.view(), stale)),
                    };
                    answered.map_or_else(|step| step, |given| resolver.step(asked, given))
                }
                Waiting::ForKernel(resolver, asked, unsent, held) => {
                    released(&resolver, &asked, unsent, held).await
                }
            };
            match step {
                Step::Reply(reply) => return Some(reply),
                Step::Silence => return None,
                Step::Later(later) => waiting = later.0,
            }
        }
    }
}

/// What is given to who waited for it; or the reply that says why nothing is.
async fn answered(resolver: &Arc<Resolver>, asked: &Asked, stale: Option<&Stale>) -> Result<Given, Step> {
    // What is rare is boxed: it must not make every waiting query as large as itself.
    if let Some(server) = asked.original {
        return Box::pin(asked_there(resolver, asked, SocketAddr::new(server, PORT))).await;
    }
    if asked.entry.block.translates(&asked.query, &asked.arrival) {
        return Box::pin(translated(resolver, asked)).await;
    }
    let heard = match (stale, asked.key) {
        (Some((hit, patience)), Some(key)) => match Box::pin(refreshed(asked, key, *patience)).await {
            Some(known) => Ok(known),
            None => return Ok(resolver.give_kept(asked.view(), hit, clock::now())),
        },
        (_, key) => {
            let mut terms = asked.view().terms();
            if let Some(key) = &key
                && let Some(denial) = denied_above(asked, key, &mut terms).await
            {
                return Err(resolver.deny(asked.view(), &denial, clock::now()));
            }
            asked
                .entry
                .find(key.as_ref(), &asked.query, &terms, asked.missed_at, Stays::Always)
                .await
        }
    };
    match heard {
        Ok(known) => {
            let now = clock::now();
            asked.entry.block.note_kept_failure(&asked.query, &known);
            Ok(resolver.give_new(asked.view(), known, now))
        }
        Err(failed) => Err(resolver.fail(asked.view(), failed)),
    }
}

/// The denial of the name above a question's, if that is known by now, or soon because it is asked for first.
async fn denied_above(asked: &Asked, key: &Key, terms: &mut Terms) -> Option<Arc<Denial>> {
    let (entry, query) = (&asked.entry, &asked.query);
    let Some(pre_query_first) = entry.pre_query_first(key, query, terms) else {
        // When the question came it was not known; whom it waited behind may have heard it meanwhile.
        return entry.denied_below(key, query, clock::now());
    };
    match Box::pin(entry.denied_first(pre_query_first, key, query)).await {
        Ok(denial) => Some(denial),
        Err(waited) => {
            terms.waited = waited;
            None
        }
    }
}

/// Whom the client asked is asked. What he says opens names only if the operator trusts him, and is kept for nobody.
async fn asked_there(resolver: &Arc<Resolver>, asked: &Asked, server: SocketAddr) -> Result<Given, Step> {
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
                Arc::clone(&resolver.metrics),
            )
        })
        .and_then(Result::ok);
    let trusted = serving.trusted.get(&server.ip());
    let Some(forwarder) = trusted.or(anybody.as_ref()) else {
        return match client_chosen::ask(server, query, client, &limits).await {
            Ok(relayed) => {
                let reply = relayed.reply_within(query, asked.view().datagram_limit(), limits.udp_size);
                Ok(Given::Now(reply, By::Forward))
            }
            Err(failure) => Err(resolver.fail(asked.view(), Failed::Upstream(failure))),
        };
    };
    match forwarder.ask(query, client, &limits).await {
        Ok(answer) => {
            let (known, now) = (
                asked.entry.block.of_trusted(answer, &asked.view().terms()),
                clock::now(),
            );
            let ttls = Ttls::CountedDown(now);
            Ok(resolver.give(asked.view(), &known, ttls, By::Forward, now))
        }
        Err(failure) => Err(resolver.fail(asked.view(), Failed::Upstream(failure))),
    }
}

/// IPv6 addresses made of IPv4 ones, where the name has none (RFC 6147).
async fn translated(resolver: &Arc<Resolver>, asked: &Asked) -> Result<Given, Step> {
    match asked.entry.translate(&asked.query, asked.view().terms()).await {
        Ok((known, ttls)) => Ok(resolver.give(asked.view(), &known, ttls, known.by, clock::now())),
        Err(failed) => Err(resolver.fail(asked.view(), failed)),
    }
}

/// Something better than what is stale, if it comes in time.
async fn refreshed(asked: &Asked, key: Key, patience: Option<Duration>) -> Option<Arc<Known>> {
    let refreshing = Arc::clone(&asked.entry).refresh(key, asked.query.owned(), asked.view().terms());
    let heard = match patience {
        Some(patience) => timeout(patience, refreshing).await.ok()?,
        None => refreshing.await,
    };
    heard.ok().filter(|known| asked.entry.block.refreshes(known))
}

async fn released(resolver: &Resolver, asked: &Asked, unsent: Unsent, held: GatedResponse) -> Step {
    let outcome = held.end(&resolver.metrics).await;
    let Some(stall) = stalled(outcome) else {
        return resolver.reply(asked.view(), unsent.reply, unsent.by);
    };
    let action = match stall {
        // As where there was no room to hold it.
        Stall::OverLimit => OnStall::Release,
        Stall::Deadline | Stall::LinkDown | Stall::NoInterest | Stall::Failed => asked.table.config.on_stall,
    };
    resolver.metrics.stall(action, stall);
    match action {
        OnStall::Release => resolver.reply(asked.view(), unsent.reply, unsent.by),
        OnStall::Servfail => resolver.reply(asked.view(), unsent.or_else, By::Server),
        OnStall::Drop => Step::Silence,
    }
}

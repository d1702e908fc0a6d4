//! A zone at an address and who answers for it: equal questions at once are asked once, and answers are kept.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use egret_shared::rt::clock;

use crate::cache::Key;
use crate::config::Config;
use crate::forward::Failure;
use crate::message::Query;
use crate::metrics::Transport;
use crate::plan::Zone;

use super::{Block, By, Event, Failed, Known, OfCache, OfZone};

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
    pub(super) counts: Option<Arc<OfZone>>,
    /// What is counted of its cache, where there is one.
    pub(super) of_cache: Option<Arc<OfCache>>,
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
    /// What was in force when it came.
    pub config: Arc<Config>,
    /// Who asked first.
    pub arrival: Arrival,
    /// Whether resolvers outside of the cluster may be asked.
    pub may_ask_outside: bool,
}

impl Entry {
    /// Whether somebody wants to know of its queries.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.counts.is_some() || self.block.logs()
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

    /// Answers what the block's cache does not have.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        self: &Arc<Self>,
        key: Option<Key>,
        query: &Query,
        terms: Terms,
    ) -> Result<Arc<Known>, Failed> {
        let (Some(key), Some(flights)) = (key, self.block.flights()) else {
            // Boxed: the rare way must not make every waiting query as large as itself.
            let solving = Box::pin(self.block.chain.solve(query.clone(), &terms));
            return solving.await.map(Arc::new);
        };
        let (entry, query) = (Arc::clone(self), query.clone());
        let ask = || async move {
            let solved = entry.block.chain.solve(query, &terms).await;
            solved.map(|known| entry.block.keep(&key, known))
        };
        flights
            .join(key, ask)
            .await
            .unwrap_or(Err(Failed::Upstream(Failure::Local)))
    }

    /// Asks again for an answer that is kept.
    ///
    /// # Errors
    /// Why there is nothing better: what is kept stays as it is for a while.
    pub async fn refresh(
        self: Arc<Self>,
        key: Key,
        query: Query,
        terms: Terms,
    ) -> Result<Arc<Known>, Failed> {
        let asked = self.ask(Some(key), &query, terms).await;
        let is_better = asked.as_ref().is_ok_and(|known| self.block.refreshes(known));
        if !is_better {
            self.block.refresh_failed(&key, clock::now());
        }
        asked
    }
}

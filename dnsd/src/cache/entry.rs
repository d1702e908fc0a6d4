//! A stored answer with its freshness and its use.

use std::time::Duration;

use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cache::cacheability::{Cacheable, Kind};
use crate::config::model::{CacheRules, Prefetch};

/// The cap of an entry's use counter (S3-FIFO).
const MAX_USES: u8 = 3;
/// A refresh that has not ended after this time counts as failed.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether an entry has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It has not.
    Fresh,
    /// It has, and may be served stale.
    Stale,
}

/// The queues of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Small,
    Main,
}

/// A stored answer. Times are milliseconds after its arrival, which saves memory.
#[derive(Debug)]
pub(super) struct Entry<V> {
    value: V,
    arrived: Timestamp,
    lifetime: u32,
    /// The last query for it, while `prefetch` counts them.
    last_query: u32,
    /// When the next refresh may start.
    refresh_from: u32,
    /// Queries without a long pause between them.
    queries: u32,
    kind: Kind,
    queue: QueueKind,
    uses: u8,
    /// A later answer contradicts it.
    is_contradicted: bool,
}

/// How often an entry is used: for eviction and `prefetch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// The use counter of eviction.
    uses: u8,
    /// Queries without a long pause between them.
    queries: u32,
    /// The last of them, in milliseconds after the entry's arrival.
    last_query: u32,
}

impl<V> Entry<V> {
    pub(super) fn new(value: V, kept: Cacheable, arrived: Timestamp) -> Self {
        Self {
            value,
            arrived,
            lifetime: millis(kept.lifetime),
            last_query: 0,
            refresh_from: 0,
            queries: 0,
            kind: kept.kind,
            queue: QueueKind::Small,
            uses: 0,
            is_contradicted: false,
        }
    }

    /// Replaces it with a newer answer; its use counters stay.
    pub(super) fn replace(&mut self, value: V, kept: Cacheable, arrived: Timestamp) {
        let last_query = self.arrived.after(Duration::from_millis(self.last_query.into()));
        *self = Self {
            last_query: millis(last_query.since(arrived)),
            queries: self.queries,
            queue: self.queue,
            uses: self.uses,
            ..Self::new(value, kept, arrived)
        };
    }

    pub(super) const fn value(&self) -> &V {
        &self.value
    }

    pub(super) const fn arrived(&self) -> Timestamp {
        self.arrived
    }

    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) const fn queue(&self) -> QueueKind {
        self.queue
    }

    /// Expires it; it is evicted in its turn.
    pub(super) const fn expire(&mut self) {
        self.is_contradicted = true;
    }

    /// Whether it may be served, and as what. Failures are never served stale (RFC 9520 §3.2 bounds them).
    pub(super) fn freshness(&self, rules: &CacheRules, now: Timestamp) -> Option<Freshness> {
        let age = self.age_millis(now);
        if self.is_contradicted {
            return None;
        }
        if age < self.lifetime {
            return Some(Freshness::Fresh);
        }
        let stale = rules
            .serve_stale
            .as_ref()
            .filter(|_| self.kind != Kind::Failure)?;
        let end = self.lifetime.saturating_add(millis(stale.up_to));
        (age < end).then_some(Freshness::Stale)
    }

    /// When its lifetime ends.
    pub(super) fn fresh_until(&self) -> Timestamp {
        self.arrived.after(Duration::from_millis(self.lifetime.into()))
    }

    pub(super) fn is_servable(&self, rules: &CacheRules, now: Timestamp) -> bool {
        self.freshness(rules, now).is_some()
    }

    pub(super) fn count_use(&mut self) {
        self.uses = (self.uses + 1).min(MAX_USES);
    }

    /// How often it is used.
    pub(super) const fn demand(&self) -> Demand {
        Demand {
            uses: self.uses,
            queries: self.queries,
            last_query: self.last_query,
        }
    }

    /// Takes over the counters of another process.
    pub(super) fn set_demand(&mut self, demand: Demand) {
        self.uses = demand.uses.min(MAX_USES);
        self.queries = demand.queries;
        self.last_query = demand.last_query;
    }

    /// Whether it stays when the oldest of its queue is evicted: from the small queue it is promoted if it was used, in the
    /// main one it is reinserted once per use.
    pub(super) const fn promote(&mut self, queue: QueueKind) -> bool {
        if self.uses == 0 {
            return false;
        }
        self.uses = match queue {
            QueueKind::Small => 0,
            QueueKind::Main => self.uses - 1,
        };
        self.queue = QueueKind::Main;
        true
    }

    /// Counts a query, and returns whether a refresh is due.
    pub(super) fn is_due(&mut self, rule: &Prefetch, now: Timestamp) -> bool {
        let age = self.age_millis(now);
        let is_first = self.queries == 0 || age.saturating_sub(self.last_query) > millis(rule.within);
        self.queries = if is_first {
            1
        } else {
            self.queries.saturating_add(1)
        };
        self.last_query = age;
        let seconds = u64::from(self.lifetime / 1000) * u64::from(rule.percentage);
        let left = self.lifetime.saturating_sub(age);
        let is_near_its_end = u64::from(left) <= seconds.div_ceil(100) * 1000;
        self.queries >= rule.amount && is_near_its_end && self.begin_refresh(now)
    }

    /// Begins a refresh unless one is running.
    pub(super) fn begin_refresh(&mut self, now: Timestamp) -> bool {
        let age = self.age_millis(now);
        let may = age >= self.refresh_from;
        if may {
            self.refresh_from = age.saturating_add(millis(REFRESH_TIMEOUT));
        }
        may
    }

    /// Sets when the next refresh may begin; the pause is for expired entries.
    pub(super) fn refresh_failed(&mut self, now: Timestamp, pause: Duration) {
        let age = self.age_millis(now);
        let pause = if age < self.lifetime { 0 } else { millis(pause) };
        self.refresh_from = age.saturating_add(pause);
    }

    fn age_millis(&self, now: Timestamp) -> u32 {
        millis(now.since(self.arrived))
    }
}

fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

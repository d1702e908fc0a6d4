//! Failover: the upstreams that one query is sent to, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use egret_shared::rt::clock;

use crate::upstream::counters::ForwardMetrics;
use crate::upstream::selection::{Ranking, UpstreamOrder};
use crate::upstream::server::Upstream;

/// The upstreams and the policy of selection.
#[derive(Debug)]
pub(super) struct Selection {
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) order: UpstreamOrder,
    /// The limit of failed attempts per query.
    pub(super) attempts: usize,
    pub(super) fails_fast: bool,
    pub(super) metrics: ForwardMetrics,
}

/// The attempts of one query.
#[derive(Debug)]
pub(super) struct Failover<'a> {
    selection: &'a Selection,
    ranking: Ranking,
    position: usize,
    failed: usize,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum NextAttempt<'a> {
    Attempt(Attempt<'a>),
    /// The limit of attempts is reached.
    Exhausted,
    /// All are down (`failfast_all_unhealthy_upstreams`).
    AllDead,
}

/// An attempt at one upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) upstream: &'a Arc<Upstream>,
    /// Whether it is the first of the query.
    pub(super) is_first: bool,
    /// The upstream of the hedged query: the next live one; itself where there is none, or with the policy `sequential`, where
    /// later upstreams may not know the same names.
    pub(super) backup: &'a Arc<Upstream>,
    /// The pause before it: after each pass through all upstreams.
    pub(super) pause: Duration,
}

/// The pause after a pass through all upstreams; it doubles with each pass.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

impl<'a> Failover<'a> {
    pub(super) fn new(selection: &'a Selection) -> Self {
        let health = |upstream: usize| &selection.upstreams[upstream].health;
        let ranking = selection
            .order
            .ranking(|upstream| health(upstream).latency())
            .behind(|upstream| health(upstream).is_avoided(clock::now));
        Self {
            selection,
            ranking,
            position: 0,
            failed: 0,
        }
    }

    /// The next live upstream; a random one if none is live, since the checks may be wrong (as in CoreDNS).
    pub(super) fn next(&mut self) -> NextAttempt<'a> {
        if self.failed >= self.selection.attempts {
            return NextAttempt::Exhausted;
        }
        let upstreams = &self.selection.upstreams;
        let (is_first, pause) = (self.position == 0, self.pause());
        for _ in 0..upstreams.len() {
            let upstream = &upstreams[self.ranking.upstream(self.position)];
            self.position += 1;
            if !upstream.is_down() {
                let backup = self.backup(upstream);
                return NextAttempt::Attempt(Attempt {
                    upstream,
                    is_first,
                    backup,
                    pause,
                });
            }
        }
        self.selection.metrics.broken.increment(1);
        if self.selection.fails_fast {
            return NextAttempt::AllDead;
        }
        let upstream = &upstreams[rand::random_range(0..upstreams.len())];
        NextAttempt::Attempt(Attempt {
            upstream,
            is_first,
            backup: upstream,
            pause,
        })
    }

    /// The attempt failed.
    pub(super) const fn failed(&mut self) {
        self.failed += 1;
    }

    fn backup(&self, first: &'a Arc<Upstream>) -> &'a Arc<Upstream> {
        if !self.selection.order.are_equals() {
            return first;
        }
        let upstreams = &self.selection.upstreams;
        (0..upstreams.len())
            .map(|ahead| &upstreams[self.ranking.upstream(self.position + ahead)])
            .find(|other| {
                !Arc::ptr_eq(other, first) && !other.is_down() && !other.health.is_avoided(clock::now)
            })
            .unwrap_or(first)
    }

    fn pause(&self) -> Duration {
        let count = self.selection.upstreams.len();
        if self.position == 0 || !self.position.is_multiple_of(count) {
            return Duration::ZERO;
        }
        let passes = u32::try_from(self.position / count).unwrap_or(u32::MAX).min(8);
        (FIRST_PAUSE * 2_u32.pow(passes - 1)).min(LONGEST_PAUSE)
    }
}

/// The budget of hedged queries: one query in ten, and a burst of 20. Without it, overloaded upstreams would get twice as
/// many queries.
#[derive(Debug)]
pub(super) struct HedgeBudget(AtomicU32);

/// The cost of a hedged query; each query earns 1.
const COST: u32 = 10;
const MAX_BALANCE: u32 = 20 * COST;

impl HedgeBudget {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(MAX_BALANCE))
    }

    /// A query is sent.
    pub(super) fn earn(&self) {
        let balance = self.0.load(Ordering::Relaxed);
        if balance < MAX_BALANCE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a hedged query may be sent.
    pub(super) fn spend(&self) -> bool {
        let paid = |balance: u32| balance.checked_sub(COST);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_in_ten_may_be_hedged() {
        let budget = HedgeBudget::new();
        let at_once = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(at_once, 20);
        let later = (0..1_000)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        assert_eq!(later, 100);
    }
}

//! Whom one question goes to, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use egret_shared::rt::clock;

use crate::upstream::counters::Shared;
use crate::upstream::selection::{Order, Ranking};
use crate::upstream::server::Upstream;

/// The upstreams, and the rules by which they are chosen.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) order: Order,
    /// Failed attempts for one question.
    pub(super) attempts: usize,
    pub(super) fails_fast: bool,
    pub(super) shared: Shared,
}

/// The way of one question.
#[derive(Debug)]
pub(super) struct Course<'a> {
    choice: &'a Choice,
    ranking: Ranking,
    turn: usize,
    failed: usize,
}

/// What is next.
#[derive(Debug)]
pub(super) enum Next<'a> {
    Ask(Turn<'a>),
    /// As many were tried as may be.
    Nobody,
    /// All are dead, and none is to be tried.
    AllDead,
}

/// An upstream whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'a> {
    pub(super) upstream: &'a Arc<Upstream>,
    /// Whether nobody was asked before.
    pub(super) is_first: bool,
    /// Who is asked as well if it is slow: the next that lives, or itself where there is none or where the
    /// operator gave an order, since who comes later may not know the same names.
    pub(super) backup: &'a Arc<Upstream>,
    /// How long to wait first: all were tried, and at once said nothing.
    pub(super) pause: Duration,
}

/// After a pass through all upstreams there is a pause, twice as long after each.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

impl<'a> Course<'a> {
    pub(super) fn new(choice: &'a Choice) -> Self {
        let health = |place: usize| &choice.upstreams[place].health;
        let ranking = choice
            .order
            .ranking(|place| health(place).latency())
            .behind(|place| health(place).is_shunned(clock::now));
        Self {
            choice,
            ranking,
            turn: 0,
            failed: 0,
        }
    }

    /// The next that lives; any, if none does, since then it is the checks that are broken (as CoreDNS has it).
    pub(super) fn next(&mut self) -> Next<'a> {
        if self.failed >= self.choice.attempts {
            return Next::Nobody;
        }
        let upstreams = &self.choice.upstreams;
        let (is_first, pause) = (self.turn == 0, self.pause());
        for _ in 0..upstreams.len() {
            let upstream = &upstreams[self.ranking.place(self.turn)];
            self.turn += 1;
            if !upstream.is_dead() {
                let backup = self.backup(upstream);
                return Next::Ask(Turn {
                    upstream,
                    is_first,
                    backup,
                    pause,
                });
            }
        }
        self.choice.shared.broken.increment(1);
        if self.choice.fails_fast {
            return Next::AllDead;
        }
        let upstream = &upstreams[rand::random_range(0..upstreams.len())];
        Next::Ask(Turn {
            upstream,
            is_first,
            backup: upstream,
            pause,
        })
    }

    /// The one before gave no answer.
    pub(super) const fn failed(&mut self) {
        self.failed += 1;
    }

    fn backup(&self, first: &'a Arc<Upstream>) -> &'a Arc<Upstream> {
        if !self.choice.order.are_equals() {
            return first;
        }
        let upstreams = &self.choice.upstreams;
        (0..upstreams.len())
            .map(|ahead| &upstreams[self.ranking.place(self.turn + ahead)])
            .find(|other| {
                !Arc::ptr_eq(other, first) && !other.is_dead() && !other.health.is_shunned(clock::now)
            })
            .unwrap_or(first)
    }

    fn pause(&self) -> Duration {
        let count = self.choice.upstreams.len();
        if self.turn == 0 || !self.turn.is_multiple_of(count) {
            return Duration::ZERO;
        }
        let passes = u32::try_from(self.turn / count).unwrap_or(u32::MAX).min(8);
        (FIRST_PAUSE * 2_u32.pow(passes - 1)).min(LONGEST_PAUSE)
    }
}

/// How many questions may be asked twice since the first is slow: one in ten, and a few at once. Were there no
/// bound, upstreams that are slow because they have too much to do would get twice as much.
#[derive(Debug)]
pub(super) struct Budget(AtomicU32);

/// What a second question costs; each question earns 1.
const PRICE: u32 = 10;
const SAVINGS: u32 = 20 * PRICE;

impl Budget {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(SAVINGS))
    }

    /// A question is asked.
    pub(super) fn earn(&self) {
        let saved = self.0.load(Ordering::Relaxed);
        if saved < SAVINGS {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether another may be asked as well.
    pub(super) fn spend(&self) -> bool {
        let paid = |saved: u32| saved.checked_sub(PRICE);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_in_ten_may_be_asked_twice() {
        let budget = Budget::new();
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

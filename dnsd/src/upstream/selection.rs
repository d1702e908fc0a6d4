//! The order of upstreams for a query (`policy`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::seq::SliceRandom;

use crate::config::model::Policy;

/// The most upstreams of one `forward` (CoreDNS' limit).
pub(super) const MAX_UPSTREAMS: usize = 15;

/// With the lowest latency first, one query in so many goes to a random upstream: its latency is measured again.
const EXPLORED: u32 = 64;

/// Indexes of upstreams, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranking {
    upstreams: [u8; MAX_UPSTREAMS],
    length: u8,
}

impl Ranking {
    fn of(count: usize) -> Self {
        let length = u8::try_from(count.min(MAX_UPSTREAMS)).expect("the limit fits into an octet");
        let mut upstreams = [0; MAX_UPSTREAMS];
        for (upstream, number) in upstreams.iter_mut().zip(0..length) {
            *upstream = number;
        }
        Self { upstreams, length }
    }

    /// The index of the upstream of an attempt; after the last, the first again.
    pub(super) fn upstream(&self, turn: usize) -> usize {
        let upstreams = &self.upstreams[..usize::from(self.length)];
        usize::from(upstreams[turn % upstreams.len()])
    }

    /// Moves upstreams that are avoided behind the others.
    pub(super) fn behind(mut self, mut is_avoided: impl FnMut(usize) -> bool) -> Self {
        self.as_mut()
            .sort_by_key(|upstream| is_avoided(usize::from(*upstream)));
        self
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.upstreams[..usize::from(self.length)]
    }
}

/// Makes a ranking for each query.
#[derive(Debug)]
pub(super) struct UpstreamOrder {
    policy: Policy,
    count: usize,
    turn: AtomicUsize,
}

impl UpstreamOrder {
    pub(super) const fn new(policy: Policy, count: usize) -> Self {
        Self {
            policy,
            count,
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether any upstream is as good as any other. With `sequential`, the first may know names that the others do not.
    pub(super) const fn are_equals(&self) -> bool {
        match self.policy {
            Policy::Random | Policy::RoundRobin | Policy::LowestLatency => true,
            Policy::Sequential => false,
        }
    }

    /// The ranking for one query. `latency` is the recent latency of an upstream, if it is known.
    pub(super) fn ranking(&self, latency: impl Fn(usize) -> Option<Duration>) -> Ranking {
        let mut ranking = Ranking::of(self.count);
        if self.count < 2 {
            return ranking;
        }
        match self.policy {
            Policy::Sequential => {}
            Policy::Random => ranking.as_mut().shuffle(&mut rand::rng()),
            Policy::RoundRobin => {
                let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.count.min(MAX_UPSTREAMS);
                ranking.as_mut()[..=first].rotate_right(1);
            }
            Policy::LowestLatency if rand::random_ratio(1, EXPLORED) => {
                ranking.as_mut().shuffle(&mut rand::rng());
            }
            // Upstreams without a measured latency come first.
            Policy::LowestLatency => ranking
                .as_mut()
                .sort_by_key(|upstream| latency(usize::from(*upstream))),
        }
        ranking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rankings(policy: Policy, count: usize, times: usize) -> Vec<Vec<usize>> {
        let order = UpstreamOrder::new(policy, count);
        let latency = |upstream: usize| [Some(30), Some(10), Some(20)][upstream].map(Duration::from_millis);
        (0..times)
            .map(|_| order.ranking(latency))
            .map(|ranking| (0..count).map(|turn| ranking.upstream(turn)).collect())
            .collect()
    }

    #[test]
    fn sequential_is_the_order_of_the_file() {
        assert_eq!(rankings(Policy::Sequential, 3, 2), [[0, 1, 2], [0, 1, 2]]);
    }

    #[test]
    fn round_robin_takes_each_in_its_turn_and_keeps_the_rest_in_order() {
        assert_eq!(
            rankings(Policy::RoundRobin, 3, 4),
            [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 1, 2]]
        );
    }

    #[test]
    fn random_brings_each_to_the_front_and_each_once() {
        let mut first = [false; 3];
        for ranking in rankings(Policy::Random, 3, 200) {
            let mut sorted = ranking.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            first[ranking[0]] = true;
        }
        assert_eq!(first, [true; 3]);
    }

    #[test]
    fn lowest_latency_takes_the_fastest_mostly_and_tries_the_others_at_times() {
        let rankings = rankings(Policy::LowestLatency, 3, 3_000);
        let fastest = rankings.iter().filter(|ranking| ranking[..] == [1, 2, 0]).count();
        assert!((2_800..3_000).contains(&fastest), "{fastest}");
    }

    #[test]
    fn the_avoided_come_last_and_otherwise_the_order_stays() {
        let ranking = UpstreamOrder::new(Policy::Sequential, 4).ranking(|_| None);
        let ranking = ranking.behind(|upstream| upstream % 2 == 0);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|turn| ranking.upstream(turn)),
            [1, 3, 0, 2, 1]
        );
    }
}

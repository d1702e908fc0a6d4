//! Rate limits for queries, per client and in total, by token buckets. When the total is used up, a client below its fair
//! share is still answered: its queries overdraw the total, which the others pay back.

use std::sync::{Mutex, PoisonError};

use egret_shared::time::Timestamp;

use crate::hash::HashMap;
use crate::limits::quota_key::QuotaKey;

/// Clients with a bucket. Above it, clients without a query for a second are removed, or all if most are active: a sweep for
/// each query would cost more than the query.
const MAX_CLIENTS: usize = 16_384;
/// Milliseconds of a second.
const SECOND: u64 = 1000;
/// The cost of a query, in thousandths of a token: a bucket gains its rate each millisecond.
const COST: i64 = 1000;

/// Queries per second; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Of one client.
    pub per_client: Option<u32>,
    /// Of all clients together.
    pub total: Option<u32>,
}

/// The limit that a query exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverRate {
    /// The client's.
    Client,
    /// The total.
    Total,
}

labels! { OverRate: Client => "client", Total => "total" }

/// The rate limiter.
#[derive(Debug, Default)]
pub struct RateLimiter {
    /// Held for one map operation.
    buckets: Mutex<TokenBuckets>,
}

#[derive(Debug, Default)]
struct TokenBuckets {
    by_client: HashMap<QuotaKey, TokenBucket>,
    total: Option<TokenBucket>,
    shares: FairShares,
}

/// A token bucket: tokens in thousandths at a time. A second fills it.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// Below zero where it is overdrawn.
    tokens: i64,
    at: Timestamp,
}

/// Queries of each client in the present second.
#[derive(Debug, Default)]
struct FairShares {
    began: Option<Timestamp>,
    queries: HashMap<QuotaKey, u32>,
    /// The number of clients in the second before.
    clients_before: usize,
}

impl RateLimiter {
    /// Admits a query within the limits. A query above its client's limit takes nothing from the total.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub fn admit(&self, client: QuotaKey, limits: RateLimits, now: Timestamp) -> Result<(), OverRate> {
        if limits == RateLimits::default() {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = limits.per_client;
        if of_client.is_some_and(|rate| !buckets.of(client, rate, now).take(rate, now)) {
            return Err(OverRate::Client);
        }
        let Some(rate) = limits.total else {
            return Ok(());
        };
        let is_below_share = buckets.shares.count(client, rate, now);
        let total = buckets.total.get_or_insert_with(|| TokenBucket::full(rate, now));
        if total.take(rate, now) || is_below_share && total.overdraw(rate) {
            Ok(())
        } else {
            Err(OverRate::Total)
        }
    }
}

impl TokenBuckets {
    fn of(&mut self, client: QuotaKey, rate: u32, now: Timestamp) -> &mut TokenBucket {
        if self.by_client.len() >= MAX_CLIENTS {
            self.by_client.retain(|_, bucket| millis(now, bucket.at) < SECOND);
            if self.by_client.len() > MAX_CLIENTS / 2 {
                self.by_client.clear();
            }
        }
        let bucket = self.by_client.entry(client);
        bucket.or_insert_with(|| TokenBucket::full(rate, now))
    }
}

impl FairShares {
    /// Counts a query; returns whether its client has no more than its share of the total in this second. Clients that cannot
    /// be counted have none.
    fn count(&mut self, client: QuotaKey, total: u32, now: Timestamp) -> bool {
        if self.began.is_none_or(|began| millis(now, began) >= SECOND) {
            self.clients_before = self.queries.len();
            self.queries.clear();
            self.began = Some(now);
        }
        if self.queries.len() >= MAX_CLIENTS && !self.queries.contains_key(&client) {
            return false;
        }
        let queries = self.queries.entry(client).or_default();
        *queries = queries.saturating_add(1);
        let queries = usize::try_from(*queries).unwrap_or(usize::MAX);
        let clients = self.queries.len().max(self.clients_before);
        usize::try_from(total).is_ok_and(|total| queries.saturating_mul(clients) <= total)
    }
}

impl TokenBucket {
    fn full(rate: u32, now: Timestamp) -> Self {
        Self {
            tokens: capacity(rate),
            at: now,
        }
    }

    fn take(&mut self, rate: u32, now: Timestamp) -> bool {
        // Threads read the clock before they take the lock: a late one must not refill for the same time twice.
        let now = now.max(self.at);
        let gained = i64::try_from(millis(now, self.at).saturating_mul(rate.into())).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(gained).min(capacity(rate));
        self.at = now;
        let is_taken = self.tokens >= COST;
        if is_taken {
            self.tokens -= COST;
        }
        is_taken
    }

    /// Takes a query that the bucket has no token for, up to a second's debt.
    fn overdraw(&mut self, rate: u32) -> bool {
        let is_taken = self.tokens > -capacity(rate);
        if is_taken {
            self.tokens -= COST;
        }
        is_taken
    }
}

/// The tokens of a full bucket.
fn capacity(rate: u32) -> i64 {
    i64::from(rate) * COST
}

fn millis(now: Timestamp, before: Timestamp) -> u64 {
    now.as_millis().saturating_sub(before.as_millis())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;

    const FIVE: RateLimits = RateLimits {
        per_client: Some(5),
        total: None,
    };

    fn of(client: u8) -> QuotaKey {
        IpAddr::from([10, 0, 0, client]).into()
    }

    #[test]
    fn each_client_has_its_own_rate() {
        let (rates, now) = (RateLimiter::default(), Timestamp::from_millis(10_000));
        let admitted = |client: u8, now| {
            let asked = (0..20).filter(|_| rates.admit(of(client), FIVE, now).is_ok());
            asked.count()
        };
        assert_eq!((admitted(1, now), admitted(1, now), admitted(2, now)), (5, 0, 5));
        assert_eq!(admitted(1, now.after(Duration::from_millis(400))), 2);
        assert_eq!(admitted(1, now.after(Duration::from_secs(60))), 5);
    }

    #[test]
    fn a_late_query_does_not_turn_time_back() {
        let (rates, now) = (RateLimiter::default(), Timestamp::from_millis(10_000));
        let at = |millis| now.after(Duration::from_millis(millis));
        let one = of(1);
        while rates.admit(one, FIVE, at(20)).is_ok() {}
        // Of a thread that is always 20 ms behind the other.
        let admitted = (2..50).flat_map(|turn| [at(turn * 20), at((turn - 1) * 20)]);
        let admitted = admitted.filter(|moment| rates.admit(one, FIVE, *moment).is_ok());
        assert_eq!(admitted.count(), 4, "not quite a second has passed");
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten_again() {
        let rates = RateLimiter::default();
        // Some in each millisecond, and all in one.
        for moment in [|client: u32| u64::from(client), |_| 40_000] {
            for client in 0..40_000_u32 {
                let (now, address) = (Timestamp::from_millis(moment(client)), client.to_be_bytes());
                let quota_key = QuotaKey::from(IpAddr::from(address));
                assert_eq!(rates.admit(quota_key, FIVE, now), Ok(()));
            }
            assert!(rates.buckets.lock().unwrap().by_client.len() <= MAX_CLIENTS);
        }
    }

    #[test]
    fn queries_above_a_clients_rate_do_not_count_in_the_total() {
        let (rates, now) = (RateLimiter::default(), Timestamp::from_millis(10_000));
        let limits = RateLimits {
            total: Some(8),
            ..FIVE
        };
        let admit = |client: u8| rates.admit(of(client), limits, now);
        let flood: Vec<_> = (0..100).map(|_| admit(1)).collect();
        assert_eq!(flood.iter().filter(|admitted| admitted.is_ok()).count(), 5);
        assert_eq!(flood[99], Err(OverRate::Client));
        assert_eq!(
            [2, 2, 3, 3, 3].map(admit),
            [Ok(()), Ok(()), Ok(()), Ok(()), Err(OverRate::Total)],
            "the second query of the third client is within its share, and its third one is not"
        );
    }

    #[test]
    fn a_client_below_its_share_of_the_total_is_answered_while_another_floods() {
        let rates = RateLimiter::default();
        let limits = RateLimits {
            per_client: None,
            total: Some(100),
        };
        let (mut flood, mut quiet) = (0, 0);
        for millis in 0..10_000 {
            let now = Timestamp::from_millis(10_000 + millis);
            let admitted = |client| rates.admit(of(client), limits, now).is_ok();
            flood += (0..10).filter(|_| admitted(1)).count();
            // 10 queries a second.
            quiet += usize::from(millis % 100 == 99 && admitted(2));
        }
        assert_eq!(quiet, 100);
        let total = flood + quiet;
        assert!(
            (1_000..=1_200).contains(&total),
            "{total} in 10 s, and the bucket's first 100"
        );
    }
}

//! How often a client may ask, and all of them together: so that one pod that asks without end leaves the others their
//! turns.

use std::sync::{Mutex, PoisonError};

use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use crate::enforcement::client::Payer;
use crate::hash::HashMap;

/// Clients that are remembered; with more, those that have asked nothing for a second are forgotten, or all, where that is
/// nobody: to look for such at each query would cost more than the query.
const MAX_REMEMBERED: usize = 16_384;
/// Milliseconds of a second: what a query costs, in thousandths of it.
const SECOND: u64 = 1000;

/// Queries in a second, where they are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Of one client.
    pub per_client: Option<u32>,
    /// Of all clients.
    pub total: Option<u32>,
}

/// Which limit a query is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverRate {
    /// That of its client.
    Client,
    /// That of all.
    Total,
}

impl OverRate {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Client, Self::Total];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Total => "total",
        }
    }
}

/// What clients have left.
#[derive(Debug, Default)]
pub struct Rates {
    /// Held for one map operation.
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    by_client: HashMap<Payer, Bucket>,
    total: Option<Bucket>,
}

/// Queries that may come at once, in thousandths, as of a moment; a second fills it.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u64,
    at: Timestamp,
}

impl Rates {
    /// Takes a query, if it is one of so many a second. What a client asks beyond its own limit is not taken from what
    /// all have.
    ///
    /// # Errors
    /// With the limit that it is over.
    pub fn admit(&self, client: Payer, limits: RateLimits, now: Timestamp) -> Result<(), OverRate> {
        if limits == RateLimits::default() {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = limits.per_client.filter(|_| !is_off(Switch::FairShares));
        if of_client.is_some_and(|rate| !buckets.of(client, rate, now).take(rate, now)) {
            return Err(OverRate::Client);
        }
        let Some(rate) = limits.total else {
            return Ok(());
        };
        let total = buckets.total.get_or_insert_with(|| Bucket::full(rate, now));
        if total.take(rate, now) {
            Ok(())
        } else {
            Err(OverRate::Total)
        }
    }
}

impl Buckets {
    fn of(&mut self, client: Payer, rate: u32, now: Timestamp) -> &mut Bucket {
        if self.by_client.len() >= MAX_REMEMBERED {
            self.by_client.retain(|_, bucket| millis(now, bucket.at) < SECOND);
            if self.by_client.len() > MAX_REMEMBERED / 2 {
                self.by_client.clear();
            }
        }
        let bucket = self.by_client.entry(client);
        bucket.or_insert_with(|| Bucket::full(rate, now))
    }
}

impl Bucket {
    fn full(rate: u32, now: Timestamp) -> Self {
        Self {
            left: u64::from(rate) * SECOND,
            at: now,
        }
    }

    fn take(&mut self, rate: u32, now: Timestamp) -> bool {
        // Threads look at the clock before they come here: one that comes late must not have the time between given twice.
        let now = now.max(self.at);
        let full = u64::from(rate) * SECOND;
        let gained = millis(now, self.at).saturating_mul(rate.into());
        self.left = self.left.saturating_add(gained).min(full);
        self.at = now;
        let is_taken = self.left >= SECOND;
        if is_taken {
            self.left -= SECOND;
        }
        is_taken
    }
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

    fn of(client: u8) -> Payer {
        IpAddr::from([10, 0, 0, client]).into()
    }

    #[test]
    fn a_client_has_so_many_a_second_and_others_have_theirs() {
        let (rates, now) = (Rates::default(), Timestamp::from_millis(10_000));
        let admitted = |client: u8, now| {
            let asked = (0..20).filter(|_| rates.admit(of(client), FIVE, now).is_ok());
            asked.count()
        };
        assert_eq!((admitted(1, now), admitted(1, now), admitted(2, now)), (5, 0, 5));
        assert_eq!(admitted(1, now.after(Duration::from_millis(400))), 2);
        assert_eq!(admitted(1, now.after(Duration::from_secs(60))), 5);
    }

    #[test]
    fn a_query_that_comes_here_late_brings_no_time_back() {
        let (rates, now) = (Rates::default(), Timestamp::from_millis(10_000));
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
        let rates = Rates::default();
        // Some in each millisecond, and all in one.
        for moment in [|client: u32| u64::from(client), |_| 40_000] {
            for client in 0..40_000_u32 {
                let (now, address) = (Timestamp::from_millis(moment(client)), client.to_be_bytes());
                let payer = Payer::from(IpAddr::from(address));
                assert_eq!(rates.admit(payer, FIVE, now), Ok(()));
            }
            assert!(rates.buckets.lock().unwrap().by_client.len() <= MAX_REMEMBERED);
        }
    }

    #[test]
    fn what_one_client_asks_too_often_is_not_taken_from_what_all_have() {
        let (rates, now) = (Rates::default(), Timestamp::from_millis(10_000));
        let limits = RateLimits {
            total: Some(8),
            ..FIVE
        };
        let admit = |client: u8| rates.admit(of(client), limits, now);
        let flood: Vec<_> = (0..100).map(|_| admit(1)).collect();
        assert_eq!(flood.iter().filter(|admitted| admitted.is_ok()).count(), 5);
        assert_eq!(flood[99], Err(OverRate::Client));
        assert_eq!(
            [2, 2, 3, 3].map(admit),
            [Ok(()), Ok(()), Ok(()), Err(OverRate::Total)]
        );
    }
}

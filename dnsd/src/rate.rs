//! How often a client may ask: so that one pod that asks without end leaves the others their turns.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use egret_shared::time::Timestamp;

/// Clients that are remembered; with more, those that have asked nothing for a second are forgotten.
const MAX_REMEMBERED: usize = 16_384;
/// Milliseconds of a second: what a query costs, in thousandths of it.
const SECOND: u64 = 1000;

/// What clients have left.
#[derive(Debug, Default)]
pub struct Rates {
    /// Held for one map operation.
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

/// Queries that may come at once, in thousandths, as of a moment; a second fills it.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u64,
    at: Timestamp,
}

impl Rates {
    /// Whether a query is one of so many a second.
    #[must_use]
    pub fn admit(&self, client: IpAddr, per_second: u32, now: Timestamp) -> bool {
        let full = u64::from(per_second) * SECOND;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_REMEMBERED {
            buckets.retain(|_, bucket| millis(now, bucket.at) < SECOND);
        }
        let bucket = buckets.entry(client).or_insert(Bucket { left: full, at: now });
        let gained = millis(now, bucket.at).saturating_mul(per_second.into());
        bucket.left = bucket.left.saturating_add(gained).min(full);
        bucket.at = now;
        let is_admitted = bucket.left >= SECOND;
        if is_admitted {
            bucket.left -= SECOND;
        }
        is_admitted
    }
}

fn millis(now: Timestamp, before: Timestamp) -> u64 {
    now.as_millis().saturating_sub(before.as_millis())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_has_so_many_a_second_and_others_have_theirs() {
        let (rates, now) = (Rates::default(), Timestamp::from_millis(10_000));
        let admitted = |client: u8, now| {
            let asked = (0..20).filter(|_| rates.admit([10, 0, 0, client].into(), 5, now));
            asked.count()
        };
        assert_eq!((admitted(1, now), admitted(1, now), admitted(2, now)), (5, 0, 5));
        assert_eq!(admitted(1, now.after(Duration::from_millis(400))), 2);
        assert_eq!(admitted(1, now.after(Duration::from_secs(60))), 5);
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten_again() {
        let rates = Rates::default();
        for client in 0..40_000_u32 {
            let now = Timestamp::from_millis(u64::from(client));
            assert!(rates.admit(IpAddr::from(client.to_be_bytes()), 5, now));
        }
        assert!(rates.buckets.lock().unwrap().len() <= MAX_REMEMBERED);
    }
}

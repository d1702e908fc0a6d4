//! Places that are few: each client may have some of them, and all clients together some more.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::switch::{Switch, is_off};

use crate::client::Payer;
use crate::table::HashMap;

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// For one client.
    pub per_client: usize,
    /// For all.
    pub total: usize,
}

/// Who has places.
#[derive(Debug, Default)]
pub struct Tally {
    /// Held for one map operation.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_client: HashMap<Payer, usize>,
    total: usize,
}

/// A place, or several, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    tally: Arc<Tally>,
    client: Payer,
    amount: usize,
}

impl Tally {
    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().total
    }

    /// Takes a place, if there is one for this client.
    #[must_use]
    pub fn take(self: &Arc<Self>, client: Payer, places: Places) -> Option<Place> {
        self.take_some(client, 1, places)
    }

    /// Takes so many at once, or none.
    #[must_use]
    pub fn take_some(self: &Arc<Self>, client: Payer, amount: usize, places: Places) -> Option<Place> {
        let mut taken = self.lock();
        let total = taken.total + amount;
        let entry = taken.by_client.entry(client);
        let of_client = amount
            + if let Entry::Occupied(count) = &entry {
                *count.get()
            } else {
                0
            };
        if total > places.total || of_client > places.per_client && !is_off(Switch::FairShares) {
            return None;
        }
        entry.insert_entry(of_client);
        taken.total = total;
        drop(taken);
        Some(Place {
            tally: Arc::clone(self),
            client,
            amount,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.tally.lock();
        taken.total -= self.amount;
        if let Entry::Occupied(mut count) = taken.by_client.entry(self.client) {
            *count.get_mut() -= self.amount;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_client_that_takes_all_of_its_places_leaves_some_to_others() {
        let tally = Arc::<Tally>::default();
        let places = Places {
            per_client: 2,
            total: 3,
        };
        let of = |client: u8| Payer::from(IpAddr::from([10, 0, 0, client]));
        let take = |client| tally.take(of(client), places);
        let mine = [take(1), take(1)];
        assert!(take(1).is_none());
        let other = take(2);
        assert!(other.is_some() && take(3).is_none(), "three are taken");
        drop(mine);
        assert_eq!(tally.taken(), 1);
        assert!(tally.take_some(of(1), 3, places).is_none());
        drop(tally.take_some(of(1), 2, places).unwrap());
        assert!(take(1).is_some() && take(3).is_some());
    }
}

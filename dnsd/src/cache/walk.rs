//! All that is kept, in pieces, for a successor; and what a predecessor kept.

use std::sync::Arc;

use egret_shared::time::Timestamp;

use super::shelf::Place;
use super::slot::Demand;
use super::verdict::{Class, Kept};
use super::{Cache, Key, Weigh, place_of};

/// Answers before denials, and what was asked for again before what was not.
const QUEUES: [(Class, Place); 4] = [
    (Class::Success, Place::Main),
    (Class::Success, Place::Small),
    (Class::Denial, Place::Main),
    (Class::Denial, Place::Small),
];

/// How far a walk through all entries is. What moves meanwhile may be missed.
#[derive(Debug, Default)]
pub struct Walk {
    queue: usize,
    at: usize,
}

/// An entry.
#[derive(Debug)]
pub struct Remembered<V> {
    /// The octets of its key.
    pub key: Arc<[u8]>,
    /// What is kept.
    pub value: Arc<V>,
    /// How much it was asked for.
    pub demand: Demand,
}

impl<V: Weigh> Cache<V> {
    /// The next entries of a walk, of which at most this many are looked at; nothing at its end. The work is in
    /// proportion to that number, so that who answers meanwhile does not wait for the whole.
    pub fn walk(&mut self, walk: &mut Walk, most: usize, now: Timestamp) -> Option<Vec<Remembered<V>>> {
        let (class, place) = *QUEUES.get(walk.queue)?;
        let names = self.shelves.names(class, place);
        let names: Vec<Arc<[u8]>> = names.iter().skip(walk.at).take(most).cloned().collect();
        if names.is_empty() {
            (walk.queue, walk.at) = (walk.queue + 1, 0);
        }
        walk.at += names.len();
        let of_use = names
            .into_iter()
            .filter_map(|name| self.remembered(name, class, now));
        Some(of_use.collect())
    }

    /// Keeps what another dnsd kept, if there is nothing here: what stood beside each other there does so here.
    pub fn inherit(&mut self, key: &Key, value: Arc<V>, kept: Kept, arrived: Timestamp, demand: Demand) {
        let (place, class) = (place_of(key, kept.kind), kept.kind.class());
        let Some(weight) = self.weight_at(&place, &value) else {
            return;
        };
        if self.entry_mut(&place, class).is_some() {
            return;
        }
        self.put(&place, value, kept, arrived, weight);
        if let Some(entry) = self.entry_mut(&place, class) {
            entry.take_demand(demand);
        }
        self.make_room(arrived);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(&self.rules, self.limit);
    }

    fn remembered(&mut self, key: Arc<[u8]>, class: Class, now: Timestamp) -> Option<Remembered<V>> {
        let entry = self.slots.get_mut(&key)?.of_mut(class).as_deref()?;
        let is_of_use = entry.is_of_use(&self.rules, now);
        is_of_use.then(|| Remembered {
            value: entry.value(),
            demand: entry.demand(),
            key,
        })
    }

    fn entry_mut(&mut self, key: &Key, class: Class) -> Option<&mut super::slot::Entry<V>> {
        let slot = self.slots.get_mut(key.as_octets())?;
        slot.of_mut(class).as_deref_mut()
    }
}

//! All that is kept, in pieces, for a successor; and what a predecessor kept.

use egret_shared::time::Timestamp;

use super::entries::Id;
use super::{Cache, Key, Value};
use crate::cache::bucket::Demand;
use crate::cache::cacheability::{Class, Kept, Kind};
use crate::cache::eviction::Place;

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
    /// What is kept, with its key.
    pub value: V,
    /// As what.
    pub kind: Kind,
    /// When it was heard.
    pub arrived: Timestamp,
    /// How much it was asked for.
    pub demand: Demand,
}

impl<V: Value> Cache<V> {
    /// The next entries of a walk, of which at most this many are looked at; nothing at its end. The work is in
    /// proportion to that number, so that who answers meanwhile does not wait for the whole.
    pub fn walk(&self, walk: &mut Walk, most: usize, now: Timestamp) -> Option<Vec<Remembered<V>>> {
        let (class, place) = *QUEUES.get(walk.queue)?;
        let entries = self.shelves.in_order(class, place);
        let ids: Vec<Id> = entries.iter().skip(walk.at).take(most).copied().collect();
        if ids.is_empty() {
            (walk.queue, walk.at) = (walk.queue + 1, 0);
        }
        walk.at += ids.len();
        let of_use = ids.into_iter().filter_map(|id| self.remembered(id, now));
        Some(of_use.collect())
    }

    /// Keeps what another dnsd kept, if there is nothing here: what stood beside each other there does so here.
    pub fn inherit(
        &mut self,
        key: &Key,
        make: impl FnOnce(&Key) -> Option<V>,
        kept: Kept,
        arrived: Timestamp,
        demand: Demand,
    ) {
        let place = key.place(kept.kind);
        let Some(value) = make(&place).filter(|value| self.has_room_for(value)) else {
            return;
        };
        if self.slot(place.view()).of(kept.kind.class()).is_some() {
            return;
        }
        let id = self.put(&place, value, kept, arrived);
        self.entries[id].take_demand(demand);
        self.make_room(arrived);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(&self.rules, self.limit);
    }

    fn remembered(&self, id: Id, now: Timestamp) -> Option<Remembered<V>> {
        let entry = &self.entries[id];
        entry.is_of_use(&self.rules, now).then(|| Remembered {
            value: entry.value().clone(),
            kind: entry.kind(),
            arrived: entry.arrived(),
            demand: entry.demand(),
        })
    }
}

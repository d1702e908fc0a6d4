//! Transfers the entries to a new process, in pieces.

use egret_shared::time::Timestamp;

use super::entries::EntryId;
use super::{Cache, Key, Value};

use crate::cache::cacheability::{Cacheable, Class, Kind};
use crate::cache::entry::{Demand, QueueKind};

/// Answers before denials, and used entries before new ones.
const QUEUES: [(Class, QueueKind); 4] = [
    (Class::Success, QueueKind::Main),
    (Class::Success, QueueKind::Small),
    (Class::Denial, QueueKind::Main),
    (Class::Denial, QueueKind::Small),
];

/// The position of an iteration over all entries. Entries that move meanwhile may be missed.
#[derive(Debug, Default)]
pub struct TransferCursor {
    queue: usize,
    at: usize,
}

/// A transferred entry.
#[derive(Debug)]
pub struct TransferredEntry<V> {
    /// The value, with its key.
    pub value: V,
    /// Its kind.
    pub kind: Kind,
    /// When it arrived.
    pub arrived: Timestamp,
    /// How often it is used.
    pub demand: Demand,
}

impl<V: Value> Cache<V> {
    /// The next entries of an iteration, at most `most`; `None` at its end. Queries wait for one piece only.
    pub fn walk(
        &self,
        walk: &mut TransferCursor,
        most: usize,
        now: Timestamp,
    ) -> Option<Vec<TransferredEntry<V>>> {
        let (class, queue) = *QUEUES.get(walk.queue)?;
        let entries = self.queues.in_order(class, queue);
        let ids: Vec<EntryId> = entries.iter().skip(walk.at).take(most).copied().collect();
        if ids.is_empty() {
            (walk.queue, walk.at) = (walk.queue + 1, 0);
        }
        walk.at += ids.len();
        let of_use = ids.into_iter().filter_map(|id| self.transferred(id, now));
        Some(of_use.collect())
    }

    /// Stores an entry of another process, unless there is one: entries that coexisted there do so here.
    pub fn import(
        &mut self,
        key: &Key,
        make: impl FnOnce(&Key) -> Option<V>,
        kept: Cacheable,
        arrived: Timestamp,
        demand: Demand,
    ) {
        let stored_key = key.storage_key(kept.kind);
        let Some(value) = make(&stored_key).filter(|value| self.is_storable(value)) else {
            return;
        };
        if self.bucket(stored_key.view()).of(kept.kind.class()).is_some() {
            return;
        }
        let id = self.put(&stored_key, value, kept, arrived);
        self.entries[id].set_demand(demand);
        self.evict(arrived);
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::new(&self.rules, self.limit);
    }

    fn transferred(&self, id: EntryId, now: Timestamp) -> Option<TransferredEntry<V>> {
        let entry = &self.entries[id];
        entry.is_servable(&self.rules, now).then(|| TransferredEntry {
            value: entry.value().clone(),
            kind: entry.kind(),
            arrived: entry.arrived(),
            demand: entry.demand(),
        })
    }
}

//! A slab of cache entries, found by 32-bit indexes: a hundred thousand entries need no allocation and no 64-bit pointers each.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use crate::cache::entry::Entry;

/// The index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryId(NonZeroU32);

/// The slab.
#[derive(Debug)]
pub(super) struct Entries<V> {
    entries: Vec<Option<Entry<V>>>,
    free: Vec<EntryId>,
}

impl EntryId {
    fn of(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("memory has no room for 4 billion entries"))
    }

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<V> Entries<V> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, entry: Entry<V>) -> EntryId {
        if let Some(id) = self.free.pop() {
            self.entries[id.index()] = Some(entry);
            return id;
        }
        if self.entries.len() == self.entries.capacity() {
            // Grows by an eighth: doubling would waste as much memory as it uses.
            self.entries.reserve_exact(self.entries.len() / 8 + 16);
        }
        self.entries.push(Some(entry));
        EntryId::of(self.entries.len() - 1)
    }

    pub(super) fn remove(&mut self, id: EntryId) {
        self.entries[id.index()] = None;
        self.free.push(id);
    }
}

const PRESENT: &str = "an index is reused after its entry is removed";

impl<V> Index<EntryId> for Entries<V> {
    type Output = Entry<V>;

    fn index(&self, id: EntryId) -> &Entry<V> {
        self.entries[id.index()].as_ref().expect(PRESENT)
    }
}

impl<V> IndexMut<EntryId> for Entries<V> {
    fn index_mut(&mut self, id: EntryId) -> &mut Entry<V> {
        self.entries[id.index()].as_mut().expect(PRESENT)
    }
}

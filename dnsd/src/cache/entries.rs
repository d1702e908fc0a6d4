//! The entries of a cache side by side in one piece of memory, found by small numbers. Who keeps a hundred thousand names
//! has no room for a pointer, and an allocation, for each place where an entry is known.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use crate::cache::bucket::Entry;

/// The number of an entry, for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(NonZeroU32);

/// The entries, and the places between them that are free.
#[derive(Debug)]
pub(super) struct Entries<V> {
    places: Vec<Option<Entry<V>>>,
    free: Vec<Id>,
}

impl Id {
    fn of(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("4 billion entries have no room in memory"))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<V> Entries<V> {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Takes an entry in.
    pub(super) fn add(&mut self, entry: Entry<V>) -> Id {
        if let Some(id) = self.free.pop() {
            self.places[id.place()] = Some(entry);
            return id;
        }
        if self.places.len() == self.places.capacity() {
            // By an eighth: twice as many would be as much memory for nothing.
            self.places.reserve_exact(self.places.len() / 8 + 16);
        }
        self.places.push(Some(entry));
        Id::of(self.places.len() - 1)
    }

    pub(super) fn remove(&mut self, id: Id) {
        self.places[id.place()] = None;
        self.free.push(id);
    }
}

const PRESENT: &str = "a number is given back when its entry goes";

impl<V> Index<Id> for Entries<V> {
    type Output = Entry<V>;

    fn index(&self, id: Id) -> &Entry<V> {
        self.places[id.place()].as_ref().expect(PRESENT)
    }
}

impl<V> IndexMut<Id> for Entries<V> {
    fn index_mut(&mut self, id: Id) -> &mut Entry<V> {
        self.places[id.place()].as_mut().expect(PRESENT)
    }
}

//! How many questions may have a socket of their own: no more than there can be open files, and of one upstream no more than are
//! left for the others.
//!
//! An upstream may have as many as are free then: one that answers nothing takes half, two take a third each, and some are left
//! for whoever is next (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).

use std::sync::atomic::{AtomicUsize, Ordering};

/// The process's, as the limit of open files is.
static PLACES: Places = Places::new();

/// Of four files, so many are for these sockets. The others are for clients, and for what questions share.
const OF_FOUR: usize = 3;

/// Tells how many files may be open; before that, it is any number.
pub fn limit_sockets(files: u64) {
    PLACES.limit(usize::try_from(files).unwrap_or(usize::MAX));
}

/// All places.
#[derive(Debug)]
struct Places {
    most: AtomicUsize,
    taken: AtomicUsize,
}

/// The places of one upstream.
#[derive(Debug)]
pub(super) struct Share {
    all: &'static Places,
    taken: AtomicUsize,
}

/// One place; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a>(&'a Share);

impl Places {
    const fn new() -> Self {
        Self {
            most: AtomicUsize::new(usize::MAX),
            taken: AtomicUsize::new(0),
        }
    }

    fn limit(&self, files: usize) {
        self.most.store(files / 4 * OF_FOUR, Ordering::Relaxed);
    }

    fn left(&self) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        self.most.load(Ordering::Relaxed).saturating_sub(taken)
    }
}

impl Share {
    pub(super) const fn new() -> Self {
        Self::of(&PLACES)
    }

    const fn of(all: &'static Places) -> Self {
        Self {
            all,
            taken: AtomicUsize::new(0),
        }
    }

    /// Threads that look at once may take one each: there are files for that.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        if self.taken.load(Ordering::Relaxed) >= self.all.left() {
            return None;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.all.taken.fetch_add(1, Ordering::Relaxed);
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.all.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &Share) -> Vec<Place<'_>> {
        std::iter::from_fn(|| share.enter()).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_some_to_the_next() {
        static ALL: Places = Places::new();
        ALL.limit(128);
        let shares: [Share; 3] = std::array::from_fn(|_| Share::of(&ALL));
        let first = take_all(&shares[0]);
        let second = take_all(&shares[1]);
        let third = take_all(&shares[2]);
        assert_eq!((first.len(), second.len(), third.len()), (48, 24, 12));
        drop((first, second));
        assert_eq!(take_all(&shares[0]).len(), 42, "what is given back is free");
        drop(third);
        assert_eq!(ALL.left(), 96);
    }
}

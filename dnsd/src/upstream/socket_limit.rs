//! The limit of sockets for one query each: fewer than open files, and for one upstream no more than are free.
//!
//! An upstream may use as many sockets as are free then: one that does not answer uses half, two use a third each, and some are
//! left for the next (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).

use std::sync::atomic::{AtomicUsize, Ordering};

/// Of the process, as the limit of open files.
static BUDGET: SocketBudget = SocketBudget::new();

/// Of four files, so many are for these sockets. The others are for clients and shared sockets.
const OF_FOUR: usize = 3;

/// Sets the limit of open files; before, there is none.
pub fn limit_sockets(files: u64) {
    BUDGET.limit(usize::try_from(files).unwrap_or(usize::MAX));
}

/// The sockets of all upstreams.
#[derive(Debug)]
struct SocketBudget {
    most: AtomicUsize,
    taken: AtomicUsize,
}

/// The sockets of one upstream.
#[derive(Debug)]
pub(super) struct UpstreamSockets {
    all: &'static SocketBudget,
    taken: AtomicUsize,
}

/// A permit for one socket, returned when dropped.
#[derive(Debug)]
pub(super) struct SocketPermit<'a>(&'a UpstreamSockets);

impl SocketBudget {
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

impl UpstreamSockets {
    pub(super) const fn new() -> Self {
        Self::of(&BUDGET)
    }

    const fn of(all: &'static SocketBudget) -> Self {
        Self {
            all,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes a permit. Threads at the limit may take one each too many: files are left for that.
    pub(super) fn acquire(&self) -> Option<SocketPermit<'_>> {
        if self.taken.load(Ordering::Relaxed) >= self.all.left() {
            return None;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.all.taken.fetch_add(1, Ordering::Relaxed);
        Some(SocketPermit(self))
    }
}

impl Drop for SocketPermit<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.all.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &UpstreamSockets) -> Vec<SocketPermit<'_>> {
        std::iter::from_fn(|| share.acquire()).collect()
    }

    #[test]
    fn one_upstream_leaves_sockets_to_the_next() {
        static ALL: SocketBudget = SocketBudget::new();
        ALL.limit(128);
        let shares: [UpstreamSockets; 3] = std::array::from_fn(|_| UpstreamSockets::of(&ALL));
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

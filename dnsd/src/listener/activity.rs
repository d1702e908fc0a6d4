//! Whether a connection is used: by what is under way on it, not by what its client sends to keep it open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How many queries of a connection are under way, and when the last one ended.
#[derive(Debug, Default)]
pub(super) struct Activity {
    under_way: AtomicUsize,
    /// Held for one look.
    ended: Mutex<Option<Instant>>,
}

/// A query that is under way.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Activity);

impl Activity {
    /// One begins.
    pub(super) fn begin(&self) -> Busy<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Waits until nothing was under way for so long.
    pub(super) async fn idle(&self, patience: Duration) {
        let begun = Instant::now();
        loop {
            let ended = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet = ended.unwrap_or(begun).elapsed();
            let is_busy = self.under_way.load(Ordering::Relaxed) > 0;
            match patience.checked_sub(quiet) {
                Some(left) if !left.is_zero() => sleep(left).await,
                Some(_) | None if is_busy => sleep(patience).await,
                Some(_) | None => return,
            }
        }
    }

    /// Waits until nothing is under way.
    pub(super) async fn nothing(&self) {
        while self.under_way.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

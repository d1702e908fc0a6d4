//! The activity of a connection: queries under way, not what a client sends to keep it open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The number of queries under way, and when the last one ended.
#[derive(Debug, Default)]
pub(super) struct Activity {
    under_way: AtomicUsize,
    /// Held for one read or write.
    ended: Mutex<Option<Instant>>,
}

/// A query under way.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Activity);

impl Activity {
    /// Begins a query.
    pub(super) fn begin(&self) -> Busy<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Waits until no query was under way for `patience`.
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

    /// Waits until no query is under way.
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

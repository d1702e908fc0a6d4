//! Waiting for what other processes bring about.

use std::time::{Duration, Instant};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// Polls until it is so. Returns the time that this took.
///
/// # Panics
/// When it is not so within `patience`, with `what` is waited for.
#[track_caller]
pub fn within(patience: Duration, what: &str, is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    assert!(is_soon(patience, is_so), "not within {patience:?}: {what}");
    begun.elapsed()
}

/// Polls until it is so or the timeout ends. Returns whether it became so.
pub fn is_soon(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(INTERVAL);
    }
    true
}

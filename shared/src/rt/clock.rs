//! The clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::time::Timestamp;

/// Now.
#[must_use]
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every kernel since 2.6.39 has CLOCK_BOOTTIME");
    let seconds = u64::try_from(time.tv_sec()).expect("the time since boot is not negative");
    let nanoseconds = u64::try_from(time.tv_nsec()).expect("nanoseconds are not negative");
    Timestamp::from_millis(seconds * 1000 + nanoseconds / 1_000_000)
}

/// The time of day, since 1970, for people to read: it may jump, so nothing is decided by it.
#[must_use]
pub fn since_epoch() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_REALTIME).expect("every kernel has CLOCK_REALTIME");
    // A clock before 1970 is told as 1970.
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec()).unwrap_or(0))
}

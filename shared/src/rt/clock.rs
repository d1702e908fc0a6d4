//! The clock.

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

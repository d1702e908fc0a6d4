//! Moments and lifetimes. Nothing here reads a clock; `rt::clock` does.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment: milliseconds of `CLOCK_BOOTTIME`.
///
/// Both daemons run on one kernel, so the same number means the same moment to both, across restarts
/// of either, and setting the wall clock changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `millis` milliseconds after boot.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since boot.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This moment, `span` later; the end of time where that does not fit.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds from `now` until this moment, rounded up, at least one: what a kernel set may be
    /// given as a timeout, in which 0 would mean "for ever". `None` when the moment has passed.
    #[must_use]
    pub fn seconds_left(self, now: Self) -> Option<NonZeroU32> {
        let left = self.0.checked_sub(now.0).filter(|left| *left > 0)?;
        NonZeroU32::new(u32::try_from(left.div_ceil(1000)).unwrap_or(u32::MAX))
    }
}

/// The time to live of a DNS record, in seconds (RFC 1035 §3.2.1; RFC 2181 §8: at most 2^31 - 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ttl(u32);

impl Ttl {
    /// Reads the field of a message; a value with the top bit set is to be treated as zero (RFC 2181 §8).
    #[must_use]
    pub const fn from_wire(seconds: u32) -> Self {
        Self(if seconds > i32::MAX as u32 { 0 } else { seconds })
    }

    /// Seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// As a span of time.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_left_is_never_zero_and_never_short() {
        let now = Timestamp::from_millis(10_000);
        for (until, left) in [
            (9_999, None),
            (10_000, None),
            (10_001, Some(1)),
            (11_000, Some(1)),
            (11_001, Some(2)),
        ] {
            assert_eq!(
                Timestamp::from_millis(until)
                    .seconds_left(now)
                    .map(NonZeroU32::get),
                left,
                "until {until}"
            );
        }
    }

    #[test]
    fn a_ttl_with_the_top_bit_is_zero() {
        assert_eq!(Ttl::from_wire(0x8000_0000).seconds(), 0);
        assert_eq!(Ttl::from_wire(0x7fff_ffff).seconds(), 0x7fff_ffff);
    }
}

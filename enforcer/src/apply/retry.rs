//! When a refused change is tried again: exponential backoff.

use std::time::Duration;

use egret_shared::time::Timestamp;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Backoff from 100 ms to 5 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing was refused.
    Idle,
    /// Something was refused and is tried again.
    Waiting {
        /// When.
        at: Timestamp,
        /// The current pause.
        pause: Duration,
    },
}

impl Retry {
    /// The state after an attempt.
    #[must_use]
    pub fn after(self, wants_retry: bool, now: Timestamp) -> Self {
        match (self, wants_retry) {
            (_, false) => Self::Idle,
            (Self::Idle, true) => Self::Waiting {
                at: now.after(FIRST),
                pause: FIRST,
            },
            (waiting @ Self::Waiting { at, .. }, true) if now < at => waiting,
            (Self::Waiting { pause, .. }, true) => {
                let pause = (pause * 2).min(LONGEST);
                Self::Waiting {
                    at: now.after(pause),
                    pause,
                }
            }
        }
    }

    /// When to try again.
    #[must_use]
    pub const fn deadline(self) -> Option<Timestamp> {
        match self {
            Self::Idle => None,
            Self::Waiting { at, .. } => Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_double_up_to_five_seconds_and_end_with_a_success() {
        let mut retry = Retry::Idle;
        let mut now = Timestamp::from_millis(0);
        let mut pauses = Vec::new();
        for _ in 0..11 {
            retry = retry.after(true, now);
            let at = retry.deadline().unwrap();
            pauses.push(at.since(now).as_millis());
            now = at;
        }
        assert_eq!(
            pauses,
            [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 5000]
        );
        assert_eq!(retry.after(false, now), Retry::Idle);
    }

    #[test]
    fn an_attempt_before_its_time_does_not_prolong_the_wait() {
        let now = Timestamp::from_millis(0);
        let retry = Retry::Idle.after(true, now);
        assert_eq!(retry.after(true, Timestamp::from_millis(50)), retry);
    }
}

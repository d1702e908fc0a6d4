//! Wakes the engine when something is due. Observations come a thousand times a second, and the next deadline rarely
//! changes: the timer is set only when it changes.

use std::pin::Pin;

use egret_shared::time::Timestamp;
use tokio::time::{Sleep, sleep};

/// Expires at a timestamp, if one is set.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<(Timestamp, Pin<Box<Sleep>>)>);

impl Timer {
    /// Sets the timestamp; an earlier one is forgotten.
    pub(super) fn set(&mut self, at: Option<Timestamp>, now: Timestamp) {
        if self.0.as_ref().map(|(at, _)| *at) != at {
            self.0 = at.map(|at| (at, Box::pin(sleep(at.since(now)))));
        }
    }

    /// Waits until it expires, once; for ever if nothing is set.
    pub(super) async fn expired(&mut self) {
        match &mut self.0 {
            Some((_, sleep)) => sleep.await,
            None => std::future::pending().await,
        }
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    async fn expires_within(timer: &mut Timer, resync_deadline: Duration) -> bool {
        tokio::time::timeout(resync_deadline, timer.expired())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn it_expires_once_at_the_last_timestamp() {
        const LITTLE: Duration = Duration::from_millis(30);
        const LONG: Duration = Duration::from_secs(20);
        let mut timer = Timer::default();
        assert!(!expires_within(&mut timer, LITTLE).await, "nothing is due");
        timer.set(Some(at(500)), at(490));
        assert!(expires_within(&mut timer, LONG).await);
        assert!(!expires_within(&mut timer, LITTLE).await, "it expired");
        timer.set(Some(at(500)), at(499));
        assert!(
            expires_within(&mut timer, LONG).await,
            "whoever set it found it to be too early"
        );
        timer.set(Some(at(900_000)), at(1_000));
        assert!(!expires_within(&mut timer, LITTLE).await);
        timer.set(Some(at(2_000)), at(1_999));
        assert!(
            expires_within(&mut timer, LONG).await,
            "something else is due before"
        );
        timer.set(Some(at(2_020)), at(2_000));
        timer.set(None, at(2_001));
        assert!(
            !expires_within(&mut timer, 2 * LITTLE).await,
            "nothing is due any more"
        );
    }
}

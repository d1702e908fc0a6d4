//! The limits of kept sockets and connections.

use std::time::Duration;

/// The limits of kept sockets and connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    /// How long an idle one is kept.
    pub(super) expire: Duration,
    /// The maximum age; zero is no limit.
    pub(super) max_age: Duration,
    /// The maximum number of idle ones; 0 is no limit.
    pub(super) most_idle: usize,
}

impl PoolLimits {
    /// The interval between sweeps for idle sockets.
    pub(super) fn sweep_interval(&self) -> Duration {
        self.expire
            .clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}

//! CPU time and memory.

use std::time::Duration;

use egret_benches::process::memory;
use nix::time::{ClockId, clock_gettime};

/// The CPU time of this thread so far.
pub(crate) fn cpu() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has a clock");
    now.into()
}

/// The most memory that a process had at any time, in MiB; none for a process that has ended.
pub(crate) fn peak(process: &str) -> anyhow::Result<f64> {
    memory(process, "VmHWM")
}

/// Times of one thing that was done often.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn note(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The time within which this share of them was done, in microseconds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted
            .get(place)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }
}

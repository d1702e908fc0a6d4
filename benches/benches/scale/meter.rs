//! CPU time and memory.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use nix::time::{ClockId, clock_gettime};

/// The CPU time of this thread so far.
pub(crate) fn cpu() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has a clock");
    now.into()
}

/// The most memory that a process had at any time, in MiB; none for a process that has ended.
pub(crate) fn peak(process: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).context(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: f64 = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no VmHWM")?
        .parse()?;
    Ok(kibibytes / 1024.0)
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

//! CPU time with that of programs that were run, and memory.
#![allow(
    unsafe_code,
    reason = "the C library's allocator has no other way to be asked"
)]

use std::fs;
use std::time::Duration;

use egret_benches::process::{self, Whose, mebibytes};
use nix::time::{ClockId, clock_gettime};

/// The CPU time of this process so far.
pub(crate) fn own() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has a clock");
    now.into()
}

/// The CPU time of programs that were run and have ended: exact, but told in hundredths of seconds.
pub(crate) fn of_programs() -> anyhow::Result<Duration> {
    process::cpu("self", Whose::EndedChildren)
}

/// A line of `/proc/self/status`, in MiB.
pub(crate) fn memory(line: &str) -> anyhow::Result<f64> {
    process::memory("self", line)
}

/// What of this process's memory is in use, in MiB: where that stays and the rest grows, it lies between what is in use.
#[cfg(target_env = "gnu")]
pub(crate) fn in_use() -> String {
    // SAFETY: it takes nothing, and may be called at any time from any thread.
    let info = unsafe { nix::libc::mallinfo2() };
    format!("{:.2}", (info.uordblks + info.hblkhd) as f64 / f64::from(1 << 20))
}

/// Other C libraries do not tell.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn in_use() -> String {
    String::new()
}

/// What the kernel has allocated by the piece and cannot take back from whoever holds it, and what it keeps for each processor.
pub(crate) fn of_kernel() -> anyhow::Result<String> {
    let all = fs::read_to_string("/proc/meminfo")?;
    let (slab, of_processors) = (mebibytes(&all, "SUnreclaim")?, mebibytes(&all, "Percpu")?);
    Ok(format!("{slab:.1}, {of_processors:.1}"))
}

/// The time within which this share of them was done, in milliseconds.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted
        .get(place)
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

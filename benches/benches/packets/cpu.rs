//! CPU time of a process from outside.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, bail};
use egret_benches::process::{Whose, cpu};
use nix::unistd::{SysconfVar, sysconf};

/// So far, over its threads: the first field of `schedstat`.
pub(crate) fn of_process(process: u32) -> anyhow::Result<Duration> {
    let folder = format!("/proc/{process}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&folder).context(folder)? {
        // A thread may end while it is looked at.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
        sum += Duration::from_nanos(nanoseconds.context("schedstat is three numbers")?);
    }
    Ok(sum)
}

/// So far, of the thread that asks.
pub(crate) fn of_thread() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    Ok(Duration::from_nanos(
        nanoseconds.context("schedstat is three numbers")?,
    ))
}

/// Octets of memory that a process has now: the second field of proc_pid_statm(5).
pub(crate) fn memory_of_process(process: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|field| field.parse().ok());
    let page = sysconf(SysconfVar::PAGE_SIZE)?.context("pages have a size")?;
    Ok(pages.context("statm is seven numbers")? * u64::try_from(page)?)
}

/// Of the programs that it ran and that have ended: `cutime` and `cstime` of proc_pid_stat(5).
pub(crate) fn of_children(process: u32) -> anyhow::Result<Duration> {
    cpu(&process.to_string(), Whose::EndedChildren)
}

/// Once it has done what it was asked for.
pub(crate) fn when_idle(process: u32) -> anyhow::Result<Duration> {
    const STILL: Duration = Duration::from_millis(20);
    let mut before = of_process(process)?;
    for _ in 0..500 {
        std::thread::sleep(STILL);
        let now = of_process(process)?;
        if now - before < STILL / 10 {
            return Ok(now);
        }
        before = now;
    }
    bail!("process {process} does not come to rest")
}

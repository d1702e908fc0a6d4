//! What a process has used, by `/proc` (proc(5)). A process is its number, or `self`.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{SysconfVar, sysconf};

/// Whose CPU time, in user and system mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of the process, of all threads: `utime` and `stime`.
    Own,
    /// That of programs that it ran and that have ended: `cutime` and `cstime`.
    EndedChildren,
}

/// CPU time so far, exact to a tick: a hundredth of a second.
///
/// # Errors
/// When there is no such process.
pub fn cpu(process: &str, whose: Whose) -> anyhow::Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).context(path)?;
    let (_, behind_name) = stat.rsplit_once(')').context("stat has a name in brackets")?;
    let first = match whose {
        Whose::Own => 11,
        Whose::EndedChildren => 13,
    };
    let mut fields = behind_name.split_whitespace().skip(first);
    let mut ticks = || {
        fields
            .next()
            .context("too few fields")?
            .parse::<u64>()
            .context("no number")
    };
    let sum = ticks()? + ticks()?;
    let second = sysconf(SysconfVar::CLK_TCK)?.context("a second has ticks")?;
    Ok(Duration::from_millis(sum * 1000 / u64::try_from(second)?))
}

/// A line of the process's `status` that speaks of memory, such as `VmRSS`, in MiB.
///
/// # Errors
/// When there is no such process, or it has ended.
pub fn memory(process: &str, line: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/status");
    mebibytes(&fs::read_to_string(&path).context(path)?, line)
}

/// A line of a page of `/proc` that speaks of kB, in MiB.
///
/// # Errors
/// When there is no such line.
pub fn mebibytes(page: &str, line: &str) -> anyhow::Result<f64> {
    let found = page
        .lines()
        .find_map(|one| one.strip_prefix(line)?.strip_prefix(':'));
    let kibibytes: f64 = found
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .with_context(|| format!("no {line}"))?
        .parse()?;
    Ok(kibibytes / 1024.0)
}

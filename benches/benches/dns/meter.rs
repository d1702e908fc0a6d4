//! CPU time, and which CPU does what: servers on the first, the generator and its upstream on the second.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use egret_benches::process;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};

/// Where servers run.
pub(crate) const SERVERS: usize = 0;
/// Where the generator and its upstream run.
pub(crate) const GENERATOR: usize = 1;

/// A process or a thread whose CPU time is measured.
#[derive(Clone, Debug)]
pub(crate) enum Meter {
    Process(u32),
    /// A thread of this process.
    Thread(Pid),
}

impl Meter {
    /// The time that it has spent on a CPU: the first number of `schedstat` (Documentation/scheduler/sched-stats.rst),
    /// in nanoseconds where `stat` counts ticks.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let times = self.tasks()?.into_iter().map(|task| time_of(&task));
        times.sum()
    }

    /// How often its threads waited.
    pub(crate) fn switches(&self) -> anyhow::Result<f64> {
        let of = |task: &PathBuf| {
            let path = task.join("status");
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<f64>().ok())
                .with_context(|| format!("{}: no switches", path.display()))
        };
        self.tasks()?.iter().map(of).sum()
    }

    /// Lets all of its threads run where there is room.
    pub(crate) fn spread(&self) -> anyhow::Result<()> {
        for task in self.tasks()? {
            let id = task.file_name().and_then(|id| id.to_str()?.parse().ok());
            spread(Pid::from_raw(id.context("a task is a number")?))?;
        }
        Ok(())
    }

    /// Resident memory of the process, in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        match self {
            Self::Thread(_) => process::memory("self", "VmRSS"),
            Self::Process(id) => process::memory(&id.to_string(), "VmRSS"),
        }
    }

    fn tasks(&self) -> anyhow::Result<Vec<PathBuf>> {
        match self {
            Self::Thread(id) => Ok(vec![format!("/proc/self/task/{id}").into()]),
            Self::Process(id) => {
                let folder = format!("/proc/{id}/task");
                let entries = fs::read_dir(&folder).context(folder)?;
                Ok(entries
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<Result<_, _>>()?)
            }
        }
    }
}

/// Starts something on the servers' CPU: its threads stay there, and a program that counts CPUs finds one.
pub(crate) fn on_the_servers_cpu<T>(start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    pin_this_thread(SERVERS)?;
    let started = start();
    pin_this_thread(GENERATOR)?;
    started
}

/// Moves the calling thread to one CPU.
pub(crate) fn pin_this_thread(cpu: usize) -> anyhow::Result<()> {
    pin(gettid(), cpu)
}

/// Lets the calling thread run where there is room.
pub(crate) fn use_all_cpus() -> anyhow::Result<()> {
    spread(gettid())
}

fn spread(task: Pid) -> anyhow::Result<()> {
    let mut both = CpuSet::new();
    both.set(SERVERS)?;
    both.set(GENERATOR)?;
    sched_setaffinity(task, &both).with_context(|| format!("task {task} cannot be given both CPUs"))
}

fn pin(task: Pid, cpu: usize) -> anyhow::Result<()> {
    if std::thread::available_parallelism()?.get() == 1 && cpu > 0 {
        return Ok(());
    }
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(task, &only).with_context(|| format!("task {task} cannot be moved to CPU {cpu}"))
}

fn time_of(task: &Path) -> anyhow::Result<Duration> {
    let path = task.join("schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .with_context(|| format!("{}: not three numbers: {text}", path.display()))
}

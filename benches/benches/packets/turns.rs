//! Rounds of all rows in turn, so that each has the same share of whatever else the machine does.

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::load::Kind;
use crate::report::Rounds;
use crate::testbed::Testbed;

/// A client in a testbed.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) name: String,
    testbed: &'a Testbed,
    client: usize,
    helper: Option<u32>,
}

impl<'a> Row<'a> {
    /// That of the pod that stands first.
    pub(crate) fn new(name: impl Into<String>, testbed: &'a Testbed) -> Self {
        Self {
            name: name.into(),
            testbed,
            client: 0,
            helper: None,
        }
    }

    pub(crate) fn of_last_pod(self) -> Self {
        Self { client: 1, ..self }
    }

    /// A process that the kernel asks.
    pub(crate) fn with_helper(self, process: u32) -> Self {
        Self {
            helper: Some(process),
            ..self
        }
    }
}

/// So many rounds, and one before them that does not count. On a thread of its own, which stays on one CPU and visits the clients' namespaces.
pub(crate) fn of(rows: &[Row<'_>], kinds: &[Kind], rounds: usize) -> anyhow::Result<Rounds> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            stay_on_one_cpu()?;
            round(rows, kinds, &mut Rounds::default())?;
            let mut seen = Rounds::default();
            for _ in 0..rounds {
                round(rows, kinds, &mut seen)?;
            }
            Ok(seen)
        });
        thread.join().expect("measuring does not panic")
    })
}

fn round(rows: &[Row<'_>], kinds: &[Kind], seen: &mut Rounds) -> anyhow::Result<()> {
    for kind in kinds {
        for row in rows {
            let measured = row.testbed.path.measure(row.client, *kind, row.helper);
            seen.note(
                &row.name,
                *kind,
                measured.with_context(|| format!("{}: {kind:?}", row.name))?,
            );
            row.testbed.forget_flows()?;
        }
    }
    Ok(())
}

/// The last one: interrupts of most machines come to the first.
fn stay_on_one_cpu() -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(std::thread::available_parallelism()?.get() - 1)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &only)?)
}

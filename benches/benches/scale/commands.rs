//! The program `egret` on many manifests, as it was built for release.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use egret_benches::big::{Elsewhere, Part};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::folder::Folder;
use crate::meter::peak;

const ROUNDS: usize = 5;
const PROBES: usize = 10_000;

/// A command and what it is to be run on.
struct Run {
    what: String,
    arguments: Vec<String>,
}

/// What a run took.
struct Took {
    cpu: Duration,
    wall: Duration,
    peak: f64,
}

/// All commands, or those with one of some words.
pub(crate) fn measure(words: &[&str]) -> anyhow::Result<()> {
    let egret = release_folder()?.join("egret");
    if !egret.exists() {
        println!(
            "NOT MEASURED: {} is not there; cargo build --release -p egret-cli",
            egret.display()
        );
        return Ok(());
    }
    println!("| command | CPU ms | wall ms | peak MiB |\n|---|---|---|---|");
    let inputs = Inputs::write()?;
    for run in inputs.runs() {
        if words.is_empty() || words.iter().any(|word| run.what.contains(word)) {
            print(&egret, &run)?;
        }
    }
    Ok(())
}

/// What commands read.
struct Inputs {
    probed: Folder,
    listed: Folder,
    changed: Folder,
    whole: Folder,
    questions: Folder,
}

impl Inputs {
    fn write() -> anyhow::Result<Self> {
        let (probed, listed, whole) = (Part::PROBED, Part::LISTED, Elsewhere::TARGET);
        let questions = Folder::new("scale-questions")?;
        let write = |name: &str, text: String| fs::write(questions.path().join(name), text);
        write("one", probed.probes(1))?;
        write("probed", probed.probes(PROBES))?;
        write("probed-records", probed.records())?;
        write("whole", whole.probes(PROBES))?;
        write("whole-records", whole.records())?;
        let other_port = |text: String| text.replace("port: 5432", "port: 5433");
        Ok(Self {
            probed: Folder::of_manifests("scale-probed", probed.manifests())?,
            listed: Folder::of_manifests("scale-listed", listed.manifests())?,
            changed: Folder::of_manifests("scale-changed", listed.manifests().map(other_port))?,
            whole: Folder::of_manifests("scale-whole", whole.manifests())?,
            questions,
        })
    }

    fn runs(&self) -> Vec<Run> {
        let changed = self.changed.path().display().to_string();
        let listed = |what: &str, command: &str, rest: &[&str]| Run::of(what, command, &self.listed, rest);
        vec![
            self.verdict(
                "verdict, 1 probe, 1,000 manifests",
                &self.probed,
                "one",
                "probed-records",
            ),
            self.verdict(
                "verdict, 10,000 probes, 1,000 manifests",
                &self.probed,
                "probed",
                "probed-records",
            ),
            self.verdict(
                "verdict, 10,000 probes, the whole cluster",
                &self.whole,
                "whole",
                "whole-records",
            ),
            listed("list, 1,000 pods, 200 policies", "list", &[]),
            listed("list --pods", "list", &["--pods"]),
            listed("list --pods -o json", "list", &["--pods", "-o", "json"]),
            listed("matrix", "matrix", &["--port", "8080"]),
            listed("matrix --pods", "matrix", &["--pods", "--port", "8080"]),
            listed(
                "diff, another port in 190 policies",
                "diff",
                &["--against", &changed],
            ),
            listed(
                "diff, nothing changed",
                "diff",
                &["--against", &self.listed.path().display().to_string()],
            ),
        ]
    }

    fn verdict(&self, what: &str, manifests: &Folder, probes: &str, records: &str) -> Run {
        let path = |name: &str| self.questions.path().join(name).display().to_string();
        let rest = [
            "-o",
            "json",
            "--probes",
            &path(probes),
            "--records",
            &path(records),
        ];
        Run::of(what, "verdict", manifests, &rest)
    }
}

fn print(egret: &Path, run: &Run) -> anyhow::Result<()> {
    let mut rounds = (0..ROUNDS)
        .map(|_| run.once(egret))
        .collect::<anyhow::Result<Vec<_>>>()?;
    rounds.sort_by_key(|took| took.cpu);
    let peak = rounds.iter().map(|took| took.peak).fold(0.0, f64::max);
    let median = &rounds[ROUNDS / 2];
    println!(
        "| {} | {:.0} | {:.0} | {peak:.0} |",
        run.what,
        median.cpu.as_secs_f64() * 1e3,
        median.wall.as_secs_f64() * 1e3
    );
    Ok(())
}

impl Run {
    fn of(what: &str, command: &str, manifests: &Folder, rest: &[&str]) -> Self {
        let manifests = manifests.path().display().to_string();
        let arguments = [command, "--manifests", &manifests]
            .into_iter()
            .chain(rest.iter().copied());
        Self {
            what: what.to_owned(),
            arguments: arguments.map(str::to_owned).collect(),
        }
    }

    fn once(&self, egret: &Path) -> anyhow::Result<Took> {
        let begin = Instant::now();
        let mut child = Command::new(egret)
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut stdout = child.stdout.take().context("a pipe")?;
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            stdout.read_to_end(&mut all).map(|_| all.len())
        });
        let id = child.id().to_string();
        let mut highest: f64 = 0.0;
        let pid = Pid::from_raw(child.id().try_into()?);
        // A process that has ended and was not asked for has its times still, but its memory no more.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        while waitid(Id::Pid(pid), flags)? == nix::sys::wait::WaitStatus::StillAlive {
            highest = highest.max(peak(&id).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(1));
        }
        let wall = begin.elapsed();
        let schedstat = fs::read_to_string(format!("/proc/{id}/schedstat"))?;
        let nanoseconds = schedstat
            .split(' ')
            .next()
            .context("schedstat has numbers")?
            .parse()?;
        let status = child.wait()?;
        let length = reader.join().expect("reading does not panic")?;
        anyhow::ensure!(
            status.code().is_some_and(|code| code < 2) && length > 0,
            "{:?}: {status}",
            self.arguments
        );
        Ok(Took {
            cpu: Duration::from_nanos(nanoseconds),
            wall,
            peak: highest,
        })
    }
}

/// Where the program of this build is: a bench runs in `<profile>/deps`.
fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}

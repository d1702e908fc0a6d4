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
    let (small, big) = (Part::PROBED, Part::LISTED);
    let probed = Folder::of_manifests("scale-probed", small.manifests())?;
    let listed = Folder::of_manifests("scale-listed", big.manifests())?;
    let changed = Folder::of_manifests(
        "scale-changed",
        big.manifests()
            .map(|text| text.replace("port: 5432", "port: 5433")),
    )?;
    let whole = Folder::of_manifests("scale-whole", Elsewhere::TARGET.manifests())?;
    let probes = Folder::new("scale-probes")?;
    let (few, many, at_target) = (
        probes.path().join("1"),
        probes.path().join("10000"),
        probes.path().join("target"),
    );
    fs::write(&few, small.probes(1))?;
    fs::write(&many, small.probes(PROBES))?;
    fs::write(&at_target, Elsewhere::TARGET.probes(PROBES))?;
    let on = |command: &str, folder: &Folder, rest: &[&str]| {
        let mut arguments = vec![
            command.to_owned(),
            "--manifests".to_owned(),
            folder.path().display().to_string(),
        ];
        arguments.extend(rest.iter().map(ToString::to_string));
        arguments
    };
    let text = |path: &Path| path.display().to_string();
    let (few, many, at_target, against) = (text(&few), text(&many), text(&at_target), text(changed.path()));
    println!("| command | CPU ms | wall ms | peak MiB |\n|---|---|---|---|");
    for (what, arguments) in [
        (
            "verdict, 1 probe, 1,000 manifests",
            on("verdict", &probed, &["-o", "json", "--probes", &few]),
        ),
        (
            "verdict, 10,000 probes, 1,000 manifests",
            on("verdict", &probed, &["-o", "json", "--probes", &many]),
        ),
        (
            "verdict, 10,000 probes, the whole cluster of the first table",
            on("verdict", &whole, &["-o", "json", "--probes", &at_target]),
        ),
        ("list, 1,000 pods × 200 policies", on("list", &listed, &[])),
        ("list --pods, the same", on("list", &listed, &["--pods"])),
        (
            "list --pods -o json, the same",
            on("list", &listed, &["--pods", "-o", "json"]),
        ),
        (
            "matrix --pods, the same",
            on("matrix", &listed, &["--pods", "--port", "8080"]),
        ),
        (
            "diff, one port of 200 policies",
            on("diff", &listed, &["--against", &against]),
        ),
    ] {
        if !words.is_empty() && !words.iter().any(|word| what.contains(word)) {
            continue;
        }
        print(
            &egret,
            &Run {
                what: what.to_owned(),
                arguments,
            },
        )?;
    }
    Ok(())
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

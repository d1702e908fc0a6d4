//! Everything from nothing, in a process that does only this.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use egret_benches::START;
use egret_benches::big::{Elsewhere, entities_of};
use egret_policies::compiler::{Compiler, Event, NodeScope, Settings, Syncing};
use egret_policies::model::cluster::Entity;

use crate::folder::Folder;
use crate::meter::{cpu, peak};

/// Objects come one by one, as from an API server.
pub(crate) const OBJECTS: &str = "first-of-objects";
/// Objects are read from a folder of manifests.
pub(crate) const MANIFESTS: &str = "first-of-manifests";

const ROUNDS: usize = 5;

/// Both, in processes of their own: the median of the times, and the highest peak.
pub(crate) fn measure() -> anyhow::Result<()> {
    let folder = Folder::of_manifests("scale-first", Elsewhere::TARGET.manifests())?;
    let path = folder.path().to_str().context("a path in UTF-8")?;
    println!(
        "| {} policies, {} pods | compile CPU ms | with reading, CPU ms | peak MiB |",
        Elsewhere::TARGET.all_policies(),
        Elsewhere::TARGET.all_pods()
    );
    println!("|---|---|---|---|");
    for (title, arguments) in [
        ("objects, one by one", vec![OBJECTS]),
        (
            "objects read from a folder, one manifest a file",
            vec![MANIFESTS, path],
        ),
    ] {
        let rounds = (0..ROUNDS)
            .map(|_| run(&arguments))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let column = |place: usize| {
            let mut values: Vec<f64> = rounds.iter().map(|round| round[place]).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (compile, all, peaks) = (column(0), column(1), column(2));
        println!(
            "| {title} | {:.0} | {:.0} | {:.1} |",
            compile[ROUNDS / 2],
            all[ROUNDS / 2],
            peaks[ROUNDS - 1]
        );
    }
    Ok(())
}

fn run(arguments: &[&str]) -> anyhow::Result<[f64; 3]> {
    let output = Command::new(std::env::current_exe()?).args(arguments).output()?;
    let text = String::from_utf8(output.stdout)?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{arguments:?} failed: {told}");
    let values: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    values.try_into().map_err(|values: Vec<f64>| {
        anyhow::anyhow!("three numbers are expected, not {}: {text:?}", values.len())
    })
}

pub(crate) fn compile_objects() -> anyhow::Result<()> {
    let mut first = First::new();
    for text in Elsewhere::TARGET.manifests() {
        first.take(entities_of(&text));
    }
    first.finish()
}

pub(crate) fn compile_manifests(folder: &Path) -> anyhow::Result<()> {
    let mut first = First::new();
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        first.take(entities_of(&text));
    }
    first.finish()
}

/// A compiler that is told of objects, with the CPU time that it took.
struct First {
    compiler: Compiler<Syncing>,
    took: Duration,
}

impl First {
    fn new() -> Self {
        Self {
            compiler: Compiler::new(Settings::for_scope(NodeScope::One("here".into()))),
            took: Duration::ZERO,
        }
    }

    fn take(&mut self, entities: Vec<Entity>) {
        let before = cpu();
        for entity in entities {
            self.compiler.handle(Event::Apply(entity), START);
        }
        self.took += cpu() - before;
    }

    /// Prints milliseconds of compilation, milliseconds of everything, and the peak in MiB.
    fn finish(mut self) -> anyhow::Result<()> {
        let before = cpu();
        let mut compiler = self.compiler.in_sync();
        let batch = compiler.poll_batch(START).context("the first batch is due")?;
        self.took += cpu() - before;
        eprintln!(
            "{} pods, {} rules, {} sets",
            batch.rules_replaced.len(),
            batch.rules_replaced.iter().map(rules_of).sum::<usize>(),
            batch.sets_created.len()
        );
        println!("{} {} {}", millis(self.took), millis(cpu()), peak("self")?);
        Ok(())
    }
}

fn rules_of(pod: &egret_policies::rules::PodRules) -> usize {
    let tiers = pod.egress.tiers.iter().chain(&pod.ingress.tiers);
    tiers.map(|tier| tier.rules.len()).sum()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

//! Promise S-4: 10,000 policies and 5,000 pods, 110 of them on this node: the first compilation, what a change costs
//! afterwards, whether what does not concern the node costs anything, and the commands of `egret` on many manifests.
//!
//! `cargo bench -p egret-benches --bench scale -- changes answer` measures only changes with this word, and
//! `-- commands list` only such commands.
//! Prints Markdown. Times are CPU times of one thread, so that other work on the machine changes them little.

#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

mod churn;
mod commands;
mod first;
mod folder;
mod meter;

use anyhow::Context as _;
use egret_benches::big::Elsewhere;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // This program again, as a process that does nothing else: so its peak of memory is that of what it does.
        [first::OBJECTS] => first::compile_objects(),
        [first::MANIFESTS, folder] => first::compile_manifests(folder.as_ref()),
        [] => all(),
        ["commands", some @ ..] => commands::measure(some),
        ["changes", some @ ..] => {
            churn::table(Elsewhere::TARGET, some);
            Ok(())
        }
        _ => anyhow::bail!("no arguments are known but those of cargo: {words:?}"),
    }
}

fn all() -> anyhow::Result<()> {
    println!("## First compilation\n");
    first::measure().context("first compilation")?;
    println!("\n## One change\n");
    churn::table(Elsewhere::TARGET, &[]);
    println!("\n## What is elsewhere\n");
    churn::flatness();
    println!("\n## Commands\n");
    commands::measure(&[]).context("commands")
}

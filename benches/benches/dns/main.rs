//! Promises S-1, S-2 and S-5: what an answer costs dnsd, next to an echo (the floor: what the kernel takes to receive and
//! to send) and to the servers that can be had, and how much later it comes when the kernel has to know it first.
//!
//! CPU time a query, in rounds of all servers in turn. Everything is inside the namespaces of a world; needs root.
//! `cargo bench -p egret-benches --bench dns -- cached mix` runs only the parts with these names (`PARTS`).
//! EGRET_BENCH_ROUNDS says how often, EGRET_BENCH_PLOT to which file a plot is written. Prints Markdown.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real packets and processes take"
)]

mod answers;
mod mix;
mod held;
mod memory;
mod configurations;
mod node;
mod servers;
mod enforcer;
mod upstream;
mod threads;
mod several;
mod questions;
mod generator;
mod meter;
mod report;
mod plot;

use std::collections::BTreeSet;

use anyhow::ensure;

use report::Situation;

/// What a part of the bench gives to the plot.
type Situations = Vec<Situation>;

type Part = (&'static str, fn(u32) -> anyhow::Result<Situations>);

const PARTS: [Part; 13] = [
    ("cached", answers::cached),
    ("forwarded", answers::forwarded),
    ("paced", answers::paced),
    ("large", answers::large),
    ("pods", answers::by_pods),
    ("mix", mix::all_stand),
    ("brisk-mix", mix::brisk),
    ("fast-mix", mix::fast),
    ("held", held::measure),
    ("threads", several::measure),
    ("names", memory::names),
    ("flood", memory::flood),
    ("start", memory::start),
];

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        println!("NOT MEASURED: built without optimisation; run `make bench`");
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        println!("NOT MEASURED: worlds need root");
        return Ok(());
    }
    let rounds = rounds()?;
    println!(
        "{rounds} rounds; /proc/loadavg: {}",
        std::fs::read_to_string("/proc/loadavg")?
    );
    generator::prepare_this_thread()?;
    let wanted = wanted()?;
    let (mut situations, file) = (Vec::new(), std::env::var_os("EGRET_BENCH_PLOT"));
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(name) {
            situations.extend(part(rounds)?);
            if let Some(file) = &file {
                std::fs::write(file, plot::svg(&situations))?;
            }
        }
    }
    Ok(())
}

fn wanted() -> anyhow::Result<BTreeSet<String>> {
    let words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let words: BTreeSet<String> = words.collect();
    let known = PARTS.map(|(name, _)| name);
    for word in &words {
        ensure!(
            known.contains(&word.as_str()),
            "{word}: want one of {}",
            known.join(", ")
        );
    }
    Ok(words)
}

fn rounds() -> anyhow::Result<u32> {
    let given = std::env::var("EGRET_BENCH_ROUNDS").ok();
    let rounds = given.map_or(Ok(7), |text| text.parse())?;
    ensure!(rounds > 0, "EGRET_BENCH_ROUNDS: want a number above 0");
    Ok(rounds)
}

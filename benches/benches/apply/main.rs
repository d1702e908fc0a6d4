//! Promise S-6: what a change costs at the kernel edge, on a node of 110 pods in a cluster of 10,000 policies and 5,000 pods.
//! The real compiler and the real backends `netfilter`, in both flavours, and `nftables`, each in a network namespace of its own; needs root.
//!
//! `cargo bench -p egret-benches --bench apply -- nft` measures only one of these (`legacy`, `nft`, `nftables`), `-- nft label answer` only changes with one of
//! these words, and `-- churn 100000` so many pod changes, to see what memory they leave behind (`-- churn kernel 20000`:
//! all of them in the kernel, on a small node). EGRET_BENCH_EACH_ALONE has each
//! rule look into a set of its own.
//! Prints Markdown.

#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

mod changes;
mod churn;
mod meter;
mod world;

use std::process::Command;

use anyhow::Context as _;
use egret_benches::ruleset::Ruleset;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => Ruleset::ALL
            .iter()
            .try_for_each(|ruleset| alone(&[ruleset.name()]))
            .and_then(|()| alone(&["churn", "100000"])),
        ["churn", "kernel", times] => {
            churn::measure_in_the_kernel(times.parse().context("a number of changes")?)
        }
        ["churn", times] => churn::measure(times.parse().context("a number of changes")?),
        [ruleset, some @ ..] => changes::measure(ruleset.parse().map_err(anyhow::Error::msg)?, some),
    }
}

/// This program again, as a process that does nothing else: so its memory is that of what it does.
fn alone(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
    anyhow::ensure!(status.success(), "{arguments:?}: {status}");
    Ok(())
}

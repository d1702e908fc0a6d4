//! Promise S-6: what a change costs at the kernel edge, on a node of 110 pods in a cluster of 10,000 policies and 5,000 pods.
//! The real compiler and the real backend `netfilter`, in a network namespace of its own, in both flavours; needs root.
//!
//! `cargo bench -p egret-benches --bench apply -- nft` measures only one flavour, `-- nft label answer` only changes with one of
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
use egret_kernel::iptables::Flavour;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => alone(&[Flavour::Legacy.name()])
            .and_then(|()| alone(&[Flavour::Nft.name()]))
            .and_then(|()| alone(&["churn", "100000"])),
        ["churn", "kernel", times] => {
            churn::measure_in_the_kernel(times.parse().context("a number of changes")?)
        }
        ["churn", times] => churn::measure(times.parse().context("a number of changes")?),
        [flavour, some @ ..] => changes::measure(flavour.parse().map_err(anyhow::Error::msg)?, some),
    }
}

/// This program again, as a process that does nothing else: so its memory is that of what it does.
fn alone(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
    anyhow::ensure!(status.success(), "{arguments:?}: {status}");
    Ok(())
}

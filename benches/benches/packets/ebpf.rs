//! The programs of the backend `ebpf` beside the packet filters: what a packet and a connection cost, what a refused call costs, and
//! by the kernel's own clock what each program takes.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::Context as _;
use aya::programs::loaded_programs;
use egret_benches::ruleset::Ruleset;
use egret_kernel::iptables::Flavour;

use crate::cluster::Size;
use crate::load::Kind;
use crate::testbed::{Enforcing, Testbed};
use crate::turns::{self, Row};

/// With it each run of a program costs some 30 ns more, which count as its own.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const RULESETS: [Ruleset; 4] = [
    Ruleset::Netfilter(Flavour::Nft),
    Ruleset::Nftables,
    Ruleset::Ebpf,
    Ruleset::Both,
];

pub(crate) fn programs(rounds: usize) -> anyhow::Result<()> {
    let size = Size::TARGET;
    let testbed = |enforcing| Testbed::enforced_by(size, enforcing);
    let nothing = [testbed(Enforcing::Nothing)?, testbed(Enforcing::Nothing)?];
    // As on a node with kube-proxy, which tracks connections whoever judges them.
    let one_rule = testbed(Enforcing::OneRule(Ruleset::Nftables))?;
    let ebpf_and_rule = testbed(Enforcing::Egret(Ruleset::Ebpf))?;
    ebpf_and_rule.write_one_rule(Ruleset::Nftables)?;
    let mut enforced = Vec::new();
    for ruleset in RULESETS {
        enforced.push((ruleset, testbed(Enforcing::Egret(ruleset))?));
    }
    let mut rows = vec![Row::new("no rules", &nothing[0])];
    rows.extend(
        enforced
            .iter()
            .map(|(ruleset, testbed)| Row::new(ruleset.name(), testbed)),
    );
    rows.push(Row::new("one rule", &one_rule));
    rows.push(Row::new("ebpf and one rule", &ebpf_and_rule));
    rows.push(Row::new("no rules, again", &nothing[1]));
    let seen = turns::of(&rows, &Kind::ALL, rounds)?;
    seen.print(&format!("the programs beside the packet filters: {size}"));
    for (ruleset, _) in &enforced {
        seen.print_against(ruleset.name(), "no rules");
    }
    for (ruleset, _) in enforced.iter().filter(|(ruleset, _)| !ruleset.judges_sockets()) {
        seen.print_against(ruleset.name(), "one rule");
    }
    seen.print_against("ebpf and one rule", "one rule");
    let at_sockets: Vec<Row<'_>> = enforced
        .iter()
        .filter(|(ruleset, _)| ruleset.judges_sockets())
        .map(|(ruleset, testbed)| Row::new(ruleset.name(), testbed))
        .collect();
    let refused = turns::of(&at_sockets, &[Kind::Denied], rounds)?;
    for ruleset in [Ruleset::Ebpf, Ruleset::Both] {
        let took = refused.median(ruleset.name(), Kind::Denied, |seen| seen.p50);
        println!("\nconnect() that `{}` refuses: {took:.2} µs", ruleset.name());
    }
    let of_ebpf: Vec<Row<'_>> = enforced
        .iter()
        .filter(|(ruleset, _)| *ruleset == Ruleset::Ebpf)
        .map(|(_, testbed)| Row::new("ebpf", testbed))
        .collect();
    println!("\n### each program, by the kernel's clock (ns a run)\n");
    fs::write(STATISTICS, "1")?;
    let clocked = Kind::ALL.into_iter().try_for_each(|kind| clock(&of_ebpf, kind));
    fs::write(STATISTICS, "0")?;
    clocked
}

fn clock(rows: &[Row<'_>], kind: Kind) -> anyhow::Result<()> {
    let before = runs()?;
    turns::of(rows, &[kind], 1)?;
    for (name, (runs, nanoseconds)) in runs()? {
        let (runs_before, nanoseconds_before) = before.get(&name).copied().unwrap_or_default();
        let runs = runs - runs_before;
        if runs > 100 {
            println!(
                "- {kind:?}: `{name}` {} ({runs} runs)",
                (nanoseconds - nanoseconds_before) / runs
            );
        }
    }
    Ok(())
}

/// Runs and nanoseconds of our programs, by name: several enforcers have one each.
fn runs() -> anyhow::Result<BTreeMap<String, (u64, u64)>> {
    let mut sums = BTreeMap::new();
    for program in loaded_programs() {
        let program = program?;
        let Some(name) = program.name_as_str().filter(|name| name.starts_with("egret_")) else {
            continue;
        };
        let fd = program.fd()?;
        let said = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
        let number = |word: &str| -> anyhow::Result<u64> {
            let line = said
                .lines()
                .find_map(|line| line.strip_prefix(word))
                .context("the kernel counts runs")?;
            Ok(line.trim_start_matches(':').trim().parse()?)
        };
        let sum: &mut (u64, u64) = sums.entry(name.to_owned()).or_default();
        sum.0 += number("run_cnt")?;
        sum.1 += number("run_time_ns")?;
    }
    Ok(sums)
}

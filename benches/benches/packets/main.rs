//! Promise S-7: what enforcement costs a packet and a connection, next to no rules at all and to a single rule for open
//! connections, in rounds of all of them in turn; needs root.
//!
//! `cargo bench -p egret-benches --bench packets -- promise` measures only what is promised; the other parts are in `PARTS`.
//! EGRET_BENCH_ROUNDS says how often. Prints Markdown.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real packets and processes take"
)]

mod cluster;
mod testbed;
mod load;
mod cpu;
mod turns;
mod ordered;
mod ordered_rules;
mod sizes;
mod plot;
mod report;
mod revoked;
mod records;
mod peer;
mod ebpf;
mod attach;

use anyhow::{Context as _, ensure};
use egret_benches::ruleset::Ruleset;
use egret_integration::Peer;

use cluster::Size;
use load::Kind;
use testbed::{Enforcing, Testbed};
use turns::Row;

type Part = (&'static str, fn(usize) -> anyhow::Result<()>);

const PARTS: [Part; 9] = [
    ("promise", promise),
    ("flat", sizes::flatness),
    ("own", sizes::own_policies),
    ("ordered", ordered::rules),
    ("revoked", revoked::revocation),
    ("records", records::addresses),
    ("peer", compared),
    ("ebpf", ebpf::programs),
    ("attach", attach::attach),
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
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let rounds = rounds()?;
    println!(
        "{rounds} rounds; /proc/loadavg: {}",
        std::fs::read_to_string("/proc/loadavg")?
    );
    for (name, part) in PARTS {
        if words.is_empty() || words.iter().any(|word| word == name) {
            part(rounds)?;
        }
    }
    Ok(())
}

fn rounds() -> anyhow::Result<usize> {
    let given = std::env::var("EGRET_BENCH_ROUNDS").ok();
    let rounds = given.map_or(Ok(60), |text| text.parse())?;
    ensure!(rounds > 0, "EGRET_BENCH_ROUNDS: want a number above 0");
    Ok(rounds)
}

/// 110 pods, 1,000 policies, 10,000 addresses.
fn promise(rounds: usize) -> anyhow::Result<()> {
    let size = Size::TARGET;
    let testbed = |enforcing| Testbed::enforced_by(size, enforcing);
    let nothing = [testbed(Enforcing::Nothing)?, testbed(Enforcing::Nothing)?];
    let mut enforced = Vec::new();
    for ruleset in Ruleset::ALL {
        enforced.push((
            ruleset,
            testbed(Enforcing::OneRule(ruleset))?,
            testbed(Enforcing::Egret(ruleset))?,
            testbed(Enforcing::EachAlone(ruleset))?,
        ));
    }
    let mut rows = vec![Row::new("no rules", &nothing[0])];
    for (ruleset, one, egret, alone) in &enforced {
        let name = ruleset.name();
        rows.push(Row::new(format!("{name}: one rule"), one));
        rows.push(Row::new(format!("{name}: **egret**"), egret));
        rows.push(Row::new(format!("{name}: egret, last pod"), egret).of_last_pod());
        rows.push(Row::new(format!("{name}: egret, each rule alone"), alone));
    }
    rows.push(Row::new("no rules, again", &nothing[1]));
    let seen = turns::of(&rows, &Kind::ALL, rounds)?;
    seen.print(&size.to_string());
    for ruleset in Ruleset::ALL {
        let (egret, one) = (
            format!("{}: **egret**", ruleset.name()),
            format!("{}: one rule", ruleset.name()),
        );
        seen.print_against(&egret, &one);
    }
    Ok(())
}

/// The same world, policies and load for kube-network-policies; and a small world, in which it has little to look through.
fn compared(rounds: usize) -> anyhow::Result<()> {
    let Some(binary) = Peer::KUBE_NETWORK_POLICIES.build()? else {
        return Ok(());
    };
    for size in [Size::SMALL, Size::TARGET] {
        let (theirs, daemon) = peer::testbed(size, &binary)?;
        let nothing = Testbed::enforced_by(size, Enforcing::Nothing)?;
        let mut ours = Vec::new();
        for ruleset in Ruleset::ALL {
            ours.push((ruleset, Testbed::enforced_by(size, Enforcing::Egret(ruleset))?));
        }
        let mut rows = vec![Row::new("no rules", &nothing)];
        rows.extend(
            ours.iter()
                .map(|(ruleset, testbed)| Row::new(format!("egret, {}", ruleset.name()), testbed)),
        );
        rows.push(Row::new("kube-network-policies", &theirs).with_helper(daemon.pid()));
        let seen = turns::of(&rows, &[Kind::Connect], rounds).with_context(|| daemon.log())?;
        seen.print_connections(&format!("kube-network-policies: {size}"));
    }
    Ok(())
}

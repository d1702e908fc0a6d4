//! The first sync, and what changes cost afterwards: from the compiled batch to the kernel.

use std::time::{Duration, Instant};

use egret_benches::big::change::{self, Change};
use egret_enforcer::backend::netfilter::Written;
use egret_kernel::iptables::Flavour;

use crate::meter::{memory, of_programs, own, percentile};
use crate::world::{self, Node};

/// What takes longer is measured less often.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// Prints both tables, the second with changes that have one of the words.
pub(crate) fn measure(flavour: Flavour, words: &[&str]) -> anyhow::Result<()> {
    world::enter()?;
    println!("### {}\n", flavour.name());
    let mut node = Node::new(flavour)?;
    first_sync(&mut node)?;
    println!(
        "| change | rounds | ms p50 | p99 | own CPU ms | programs' CPU ms | restores | chains | bytes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let is_asked = |change: &Change| words.is_empty() || words.iter().any(|word| change.what.contains(word));
    for (mut change, rounds) in changes().into_iter().filter(|(change, _)| is_asked(change)) {
        one(&mut node, &mut change, rounds)?;
    }
    println!(
        "\nafterwards: {:.0} MiB, at most {:.0} MiB\n",
        memory("VmRSS")?,
        memory("VmHWM")?
    );
    Ok(())
}

fn changes() -> [(Change, usize); 9] {
    [
        (change::answer_for_one_policy(), 2_000),
        (change::new_answer(), 2_000),
        (change::long_answer(), 500),
        (change::label_of_the_gateway(), 200),
        (change::label_of_a_namespace(), 60),
        (change::label_here(), 100),
        (change::policy_here(), 100),
        (change::policy_of_all_pods(), 20),
        (change::pod_comes_and_goes(), 100),
    ]
}

fn first_sync(node: &mut Node) -> anyhow::Result<()> {
    let compiled = memory("VmRSS")?;
    let (wall, cpu, programs) = (Instant::now(), own(), of_programs()?);
    let batches = node.batches();
    let compiling = wall.elapsed();
    node.apply(&batches)?;
    let written = node.backend.written();
    println!(
        "first sync: {:.2} s ({:.2} s of it the batch; own CPU {:.2} s, programs' {:.2} s), {} chains, {} octets; \
         {compiled:.0} MiB before, {:.0} MiB after\n",
        wall.elapsed().as_secs_f64(),
        compiling.as_secs_f64(),
        (own() - cpu).as_secs_f64(),
        (of_programs()? - programs).as_secs_f64(),
        written.chains,
        written.bytes,
        memory("VmRSS")?,
    );
    Ok(())
}

fn one(node: &mut Node, change: &mut Change, rounds: usize) -> anyhow::Result<()> {
    let (mut times, began) = (Vec::new(), Instant::now());
    let (mut cpu, mut programs, mut before) = (Duration::ZERO, Duration::ZERO, Written::default());
    // The first round brings about what the others change back and forth.
    for round in 0..=rounds {
        if round > 1 && began.elapsed() > LONG_ENOUGH {
            break;
        }
        node.now = node.now.after(Duration::from_millis(1));
        let event = (change.event)(round, node.now);
        let batches = node.compile(event);
        if round == 1 {
            (programs, before) = (of_programs()?, node.backend.written());
        }
        let (wall, used) = (Instant::now(), own());
        node.apply(&batches)?;
        if round > 0 {
            times.push(wall.elapsed());
            cpu += own() - used;
        }
    }
    let programs = of_programs()? - programs;
    let (written, many) = (node.backend.written(), u32::try_from(times.len())?);
    let each = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(many);
    let many = u64::from(many);
    println!(
        "| {} | {many} | {:.2} | {:.2} | {:.2} | {:.1} | {} | {} | {} |",
        change.what,
        percentile(&times, 50),
        percentile(&times, 99),
        each(cpu),
        each(programs),
        (written.restores - before.restores) / many,
        (written.chains - before.chains) / many,
        (written.bytes - before.bytes) / many,
    );
    Ok(())
}

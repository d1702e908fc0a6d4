//! The first sync, and what changes cost afterwards: from the compiled batch to the kernel.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use egret_benches::big::change::{self, Change};
use egret_benches::ruleset::Ruleset;
use egret_enforcer::backend::netfilter::WriteStats;
use egret_policies::rules::Batch;

use crate::meter::{memory, of_programs, own, percentile};
use crate::world::{self, Node};

/// What takes longer is measured less often.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// Prints both tables, the second with changes that have one of the words.
pub(crate) fn measure(ruleset: Ruleset, words: &[&str]) -> anyhow::Result<()> {
    world::enter()?;
    println!("### {}\n", ruleset.name());
    let mut node = Node::new(ruleset)?;
    first_sync(&mut node, ruleset)?;
    println!(
        "| change | rounds | ms until in force p50 | p99 | ms until what is open was asked again p50 | p99 | own CPU ms | programs' CPU ms | restores | chains | bytes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
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

fn changes() -> [(Change, usize); 11] {
    [
        (change::answer_for_one_policy(), 2_000),
        (change::new_answer(), 2_000),
        (change::long_answer(), 500),
        (change::label_of_a_peer(), 400),
        (change::label_of_the_gateway(), 400),
        (change::network_of_a_node(), 400),
        (change::label_of_a_namespace(), 60),
        (change::label_here(), 100),
        (change::policy_here(), 100),
        (change::policy_of_all_pods(), 20),
        (change::pod_comes_and_goes(), 100),
    ]
}

fn first_sync(node: &mut Node, ruleset: Ruleset) -> anyhow::Result<()> {
    let compiled = memory("VmRSS")?;
    let (wall, cpu, programs) = (Instant::now(), own(), of_programs()?);
    let batches = node.batches();
    let compiling = wall.elapsed();
    node.apply(&batches)?;
    let written = node.written();
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
    let (wall, cpu) = (Instant::now(), own());
    node.restart(ruleset)?;
    node.apply(&batches)?;
    println!(
        "a start that finds this: {:.2} s (own CPU {:.2} s)\n",
        wall.elapsed().as_secs_f64(),
        (own() - cpu).as_secs_f64(),
    );
    Ok(())
}

/// Who is asked again because members went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nobody,
    Flows,
    /// As where a pod has new rules.
    All,
}

/// What rounds took.
#[derive(Debug, Default)]
struct Taken {
    times: Vec<Duration>,
    /// Until new connections are judged by it.
    in_force: Vec<Duration>,
    cpu: Duration,
    programs: Duration,
    written: WriteStats,
}

fn one(node: &mut Node, change: &mut Change, rounds: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let [mut nobody_asked, mut flows_asked, mut all_asked] = <[Taken; 3]>::default();
    // The first round brings about what the others change back and forth.
    for round in 0..=rounds {
        if round > 4 && began.elapsed() > LONG_ENOUGH {
            break;
        }
        node.now = node.now.after(Duration::from_millis(1));
        let event = (change.event)(round, node.now);
        let batches = node.compile(event);
        if round == 0 {
            node.apply(&batches)?;
            continue;
        }
        let has_suspects = batches.iter().any(|batch| !batch.by_members.is_empty());
        match way(round, has_suspects) {
            Way::Nobody => nobody_asked.round(node, batches)?,
            Way::Flows => flows_asked.round(node, batches)?,
            Way::All => all_asked.round(node, batches.into_iter().map(without_suspects).collect())?,
        }
    }
    nobody_asked.print(change.what)?;
    flows_asked.print(&format!("{}: flows of members are asked again", change.what))?;
    all_asked.print(&format!("{}: all that these pods have is", change.what))
}

/// By turns of two, as what comes goes with the next.
const fn way(round: usize, has_suspects: bool) -> Way {
    match (has_suspects, round / 2 % 2) {
        (false, _) => Way::Nobody,
        (true, 0) => Way::Flows,
        (true, _) => Way::All,
    }
}

fn without_suspects(batch: Batch) -> Batch {
    Batch {
        by_members: BTreeSet::new(),
        ..batch
    }
}

impl Taken {
    fn round(&mut self, node: &mut Node, batches: Vec<Batch>) -> anyhow::Result<()> {
        let (programs, before) = (of_programs()?, node.written());
        let (wall, used) = (Instant::now(), own());
        node.put_in_force(&batches)?;
        self.in_force.push(wall.elapsed());
        node.ask_what_is_open();
        self.times.push(wall.elapsed());
        self.cpu += own() - used;
        self.programs += of_programs()? - programs;
        let after = node.written();
        self.written.restores += after.restores - before.restores;
        self.written.chains += after.chains - before.chains;
        self.written.bytes += after.bytes - before.bytes;
        Ok(())
    }

    fn print(&self, what: &str) -> anyhow::Result<()> {
        if self.times.is_empty() {
            return Ok(());
        }
        let many = u32::try_from(self.times.len())?;
        let each = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(many);
        let many = u64::from(many);
        println!(
            "| {what} | {many} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {} | {} | {} |",
            percentile(&self.in_force, 50),
            percentile(&self.in_force, 99),
            percentile(&self.times, 50),
            percentile(&self.times, 99),
            each(self.cpu),
            each(self.programs),
            self.written.restores / many,
            self.written.chains / many,
            self.written.bytes / many,
        );
        Ok(())
    }
}

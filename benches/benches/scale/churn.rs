//! What one change costs after the first compilation, from the event to its last batch.

use std::time::{Duration, Instant};

use egret_benches::big::Elsewhere;
use egret_benches::big::change::{self, Change};
use egret_benches::{START, compiler};
use egret_policies::compiler::{Compiler, InSync};
use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use crate::meter::{Times, cpu};

/// The node, after its first batch.
struct Node {
    compiler: Compiler<InSync>,
    now: Timestamp,
}

/// What the rounds of one change gave.
#[derive(Default)]
struct Outcome {
    cpu: Times,
    wall: Times,
    pods: usize,
    members: usize,
}

/// Every kind of change in one cluster, or those with one of some words.
pub(crate) fn table(elsewhere: Elsewhere, words: &[&str]) {
    let mut node = Node::new(elsewhere);
    println!("| change | CPU µs p50 | p99 | max | wall µs p99 | pods with new rules | members changed |");
    println!("|---|---|---|---|---|---|---|");
    let is_asked = |change: &Change| words.is_empty() || words.iter().any(|word| change.what.contains(word));
    for mut change in changes().filter(is_asked) {
        let outcome = node.measure(&mut change);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} |",
            change.what,
            outcome.cpu.percentile(50),
            outcome.cpu.percentile(99),
            outcome.cpu.percentile(100),
            outcome.wall.percentile(99),
            outcome.pods,
            outcome.members,
        );
    }
}

/// Changes of this node's own, with more and more of what does not concern it.
pub(crate) fn flatness() {
    let target = Elsewhere::TARGET;
    let mut sizes = Vec::new();
    sizes.extend([1_000, 3_000, 10_000].map(|policies| Elsewhere { policies, ..target }));
    sizes.extend([1_000, 5_000, 20_000].map(|pods| Elsewhere { pods, ..target }));
    let names: Vec<&str> = flat_changes().map(|change| change.what).collect();
    println!("CPU µs, p50:\n");
    println!("| policies elsewhere | pods elsewhere | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for size in sizes {
        let mut node = Node::new(size);
        let times =
            flat_changes().map(|mut change| format!("{:.1}", node.measure(&mut change).cpu.percentile(50)));
        println!(
            "| {} | {} | {} |",
            size.policies,
            size.pods,
            times.collect::<Vec<_>>().join(" | ")
        );
    }
}

fn changes() -> impl Iterator<Item = Change> {
    [
        change::label_here(),
        change::label_elsewhere(),
        change::label_of_the_gateway(),
        change::label_of_a_namespace(),
        change::policy_here(),
        change::policy_elsewhere(),
        change::policy_of_all_pods(),
        change::pod_comes_and_goes(),
        change::answer_for_one_policy(),
        change::new_answer(),
        change::known_answer(),
    ]
    .into_iter()
}

fn flat_changes() -> impl Iterator<Item = Change> {
    [
        change::label_here(),
        change::policy_here(),
        change::answer_for_one_policy(),
        change::policy_elsewhere(),
        change::label_elsewhere(),
    ]
    .into_iter()
}

impl Node {
    fn new(elsewhere: Elsewhere) -> Self {
        let mut compiler = compiler(elsewhere.entities()).in_sync();
        while compiler.poll_batch(START).is_some() {}
        Self { compiler, now: START }
    }

    fn measure(&mut self, change: &mut Change) -> Outcome {
        let mut outcome = Outcome::default();
        // The first round brings about what the others change back and forth.
        for round in 0..=change.rounds {
            self.now = self.now.after(Duration::from_millis(1));
            let event = (change.event)(round, self.now);
            let (wall, used) = (Instant::now(), cpu());
            self.compiler.handle(event, self.now);
            let batches: Vec<Batch> = std::iter::from_fn(|| self.compiler.poll_batch(self.now)).collect();
            let (used, wall) = (cpu() - used, wall.elapsed());
            if round > 0 {
                outcome.cpu.note(used);
                outcome.wall.note(wall);
                outcome.pods = batches.iter().map(|batch| batch.rules_replaced.len()).sum();
                let members = batches.iter().flat_map(|batch| &batch.members_changed);
                outcome.members = members.map(|set| set.added.len() + set.removed.len()).sum();
            }
        }
        outcome
    }
}

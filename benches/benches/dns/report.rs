//! What the rounds gave: medians, and ratios to the floor of the same situation, as a Markdown table.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::generator::Run;

/// One round of one server.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) run: Run,
    /// CPU time of the server.
    pub(crate) cpu: Duration,
}

impl Round {
    fn cpu_micros(&self) -> f64 {
        micros(self.cpu) / count(self.run.received().max(1))
    }

    fn rate(&self) -> f64 {
        count(self.run.received()) / self.run.took.as_secs_f64() / 1e3
    }

    fn busy(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.run.took.as_secs_f64()
    }
}

/// All rounds of one situation (which questions, on which way), by server, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Situation {
    order: Vec<&'static str>,
    rounds: BTreeMap<&'static str, Vec<Round>>,
}

impl Situation {
    pub(crate) fn note(&mut self, server: &'static str, round: Round) {
        if !self.order.contains(&server) {
            self.order.push(server);
        }
        self.rounds.entry(server).or_default().push(round);
    }

    /// Prints it. The first row is what the others are compared with: the floor, or the same without what is measured.
    pub(crate) fn print(&self, title: &str) {
        println!("\n### {title}\n");
        println!("| server | CPU µs a query | × first row | thousand/s | p50 µs | p99 µs | busy % | lost |");
        println!("|---|---|---|---|---|---|---|---|");
        for &server in &self.order {
            let lost: usize = self.rounds[server].iter().map(|round| round.run.lost).sum();
            println!(
                "| {server} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {lost} |",
                self.median(server, Round::cpu_micros),
                self.ratio(server, self.order[0]),
                self.median(server, Round::rate),
                self.median(server, |round| micros(round.run.percentile(50))),
                self.median(server, |round| micros(round.run.percentile(99))),
                self.median(server, Round::busy),
            );
        }
    }

    /// Medians of one figure over the rounds.
    pub(crate) fn median(&self, server: &str, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds[server].iter().map(figure))
    }

    /// The median of the rounds' own differences: both were measured next to each other.
    pub(crate) fn difference(&self, more: &str, less: &str, figure: impl Fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds[more].iter().zip(&self.rounds[less]);
        median(pairs.map(|(more, less)| figure(more) - figure(less)))
    }

    fn ratio(&self, server: &str, floor: &str) -> f64 {
        let pairs = self.rounds[server].iter().zip(&self.rounds[floor]);
        median(pairs.map(|(server, floor)| server.cpu_micros() / floor.cpu_micros()))
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a bench asks fewer than 2^52 questions"
)]
fn count(number: usize) -> f64 {
    number as f64
}

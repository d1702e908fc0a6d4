//! What the rounds gave: medians, and ratios to the others of the same round, as a Markdown table.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::generator::Run;

/// What others are compared with, as their servers are called.
pub(crate) const REFERENCES: [&str; 3] = ["echo", "dnsdist", "node-cache"];

/// One round of one server.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) run: Run,
    /// CPU time of the server.
    pub(crate) cpu: Duration,
    /// Questions to its upstream.
    pub(crate) upstream: usize,
}

impl Round {
    pub(crate) fn cpu_micros(&self) -> f64 {
        micros(self.cpu) / count(self.run.received().max(1))
    }

    fn rate(&self) -> f64 {
        count(self.run.received()) / self.run.took.as_secs_f64() / 1e3
    }

    fn busy(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.run.took.as_secs_f64()
    }

    fn upstream(&self) -> f64 {
        count(self.upstream)
    }
}

/// All rounds of one situation (which questions, on which way), by server, in the order in which they were first seen.
#[derive(Debug)]
pub(crate) struct Situation {
    /// A word for the plot.
    pub(crate) name: &'static str,
    title: String,
    order: Vec<&'static str>,
    rounds: BTreeMap<&'static str, Vec<Round>>,
}

impl Situation {
    pub(crate) fn new(name: &'static str, title: impl Into<String>) -> Self {
        Self {
            name,
            title: title.into(),
            order: Vec::new(),
            rounds: BTreeMap::new(),
        }
    }

    pub(crate) fn note(&mut self, server: &'static str, round: Round) {
        if !self.order.contains(&server) {
            self.order.push(server);
        }
        self.rounds.entry(server).or_default().push(round);
    }

    pub(crate) fn servers(&self) -> &[&'static str] {
        &self.order
    }

    /// Prints it; a ratio is the median of the rounds' own.
    pub(crate) fn print(&self) {
        println!("\n### {}\n", self.title);
        let references = REFERENCES.map(|name| format!("× {name}")).join(" | ");
        println!(
            "| server | CPU µs a query | {references} | thousand/s | p50 µs | p99 µs | busy % | upstream | lost |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for &server in &self.order {
            let ratios = REFERENCES.map(|reference| self.ratio_text(server, reference));
            let lost: usize = self.rounds[server].iter().map(|round| round.run.lost).sum();
            println!(
                "| {server} | {:.2} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {lost} |",
                self.median(server, Round::cpu_micros),
                ratios.join(" | "),
                self.median(server, Round::rate),
                self.median(server, |round| micros(round.run.percentile(50))),
                self.median(server, |round| micros(round.run.percentile(99))),
                self.median(server, Round::busy),
                self.median(server, Round::upstream),
            );
        }
    }

    /// Medians of one figure over the rounds.
    pub(crate) fn median(&self, server: &str, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds[server].iter().map(figure))
    }

    /// Against one that was not measured there is nothing to say.
    fn ratio_text(&self, server: &str, reference: &str) -> String {
        self.ratio(server, reference)
            .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
    }

    fn ratio(&self, server: &str, reference: &str) -> Option<f64> {
        let pairs = self.rounds[server].iter().zip(self.rounds.get(reference)?);
        let ratios = pairs.map(|(server, reference)| server.cpu_micros() / reference.cpu_micros());
        Some(median(ratios))
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a bench asks fewer than 2^52 questions"
)]
pub(crate) fn count(number: usize) -> f64 {
    number as f64
}

//! What the rounds gave: medians, and medians of the rounds' own ratios to a floor, as Markdown.

use std::collections::BTreeMap;

use crate::load::{Kind, Seen};

/// Rounds by row and kind; rows in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    rows: Vec<String>,
    seen: BTreeMap<(String, Kind), Vec<Seen>>,
}

impl Rounds {
    pub(crate) fn note(&mut self, row: &str, kind: Kind, seen: Seen) {
        if !self.rows.iter().any(|known| known == row) {
            self.rows.push(row.to_owned());
        }
        self.seen.entry((row.to_owned(), kind)).or_default().push(seen);
    }

    pub(crate) fn median(&self, row: &str, kind: Kind, figure: fn(&Seen) -> f64) -> f64 {
        median(self.of(row, kind).iter().map(figure))
    }

    /// The median of the rounds' own ratios: both were measured next to each other.
    pub(crate) fn ratio(&self, row: &str, floor: &str, kind: Kind, figure: fn(&Seen) -> f64) -> f64 {
        let pairs = self.of(row, kind).iter().zip(self.of(floor, kind));
        median(pairs.map(|(one, floor)| figure(one) / figure(floor)))
    }

    fn of(&self, row: &str, kind: Kind) -> &[Seen] {
        self.seen.get(&(row.to_owned(), kind)).map_or(&[], Vec::as_slice)
    }

    /// One row next to another.
    pub(crate) fn print_against(&self, row: &str, floor: &str) {
        let ratio = |kind, figure| self.ratio(row, floor, kind, figure);
        println!(
            "\n{row} : {floor} = connect {:.2} (CPU {:.2}), UDP round trip {:.2} (CPU {:.2}), new UDP flow {:.2}, unanswered UDP {:.2}",
            ratio(Kind::Connect, p50),
            ratio(Kind::Connect, cpu),
            ratio(Kind::RoundTrip, p50),
            ratio(Kind::RoundTrip, cpu),
            ratio(Kind::NewFlow, p50),
            ratio(Kind::Unanswered, cpu),
        );
    }

    /// Every row next to the first one, as far as connections go.
    pub(crate) fn print_connections(&self, title: &str) {
        let Some(floor) = self.rows.first() else {
            return;
        };
        println!("\n### {title}\n");
        println!("| | connect p50 µs | p99 | CPU of a new connection, µs |");
        println!("|---|---|---|---|");
        for row in &self.rows {
            let cell = |figure: fn(&Seen) -> f64| {
                let ratio = self.ratio(row, floor, Kind::Connect, figure);
                format!("{:.1} ({ratio:.2})", self.median(row, Kind::Connect, figure))
            };
            println!("| {row} | {} | {} | {} |", cell(p50), cell(p99), cell(cpu));
        }
    }

    /// Every row next to the first one.
    pub(crate) fn print(&self, title: &str) {
        let Some(floor) = self.rows.first() else { return };
        println!("\n### {title}\n");
        println!(
            "| | connect µs | p99 | CPU | UDP round trip µs | p99 | CPU | new UDP flow µs | CPU | unanswered UDP, CPU µs | 64 KiB of TCP, CPU µs |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for row in &self.rows {
            let cell = |kind: Kind, figure: fn(&Seen) -> f64| {
                let ratio = self.ratio(row, floor, kind, figure);
                format!("{:.2} ({ratio:.2})", self.median(row, kind, figure))
            };
            let waits = |kind| format!("{} | {}", cell(kind, p50), cell(kind, p99));
            println!(
                "| {row} | {} | {} | {} | {} | {} | {} | {} | {} |",
                waits(Kind::Connect),
                cell(Kind::Connect, cpu),
                waits(Kind::RoundTrip),
                cell(Kind::RoundTrip, cpu),
                cell(Kind::NewFlow, p50),
                cell(Kind::NewFlow, cpu),
                cell(Kind::Unanswered, cpu),
                cell(Kind::Bulk, cpu),
            );
        }
    }
}

pub(crate) fn p50(seen: &Seen) -> f64 {
    seen.p50
}

pub(crate) fn p99(seen: &Seen) -> f64 {
    seen.p99
}

pub(crate) fn cpu(seen: &Seen) -> f64 {
    seen.cpu
}

pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

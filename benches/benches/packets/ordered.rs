//! Ordered rules about a pod, from one to ten thousand: promised to cost a packet the same. Next to them the same rules, each walked
//! alone, as the enforcer has it where each is counted (`--rule-metrics`).

use anyhow::Context as _;
use egret_benches::ruleset::Ruleset;

use crate::cluster::Size;
use crate::load::Kind;
use crate::ordered_rules::{Ordered, Shape};
use crate::plot::{self, Panel};
use crate::report::{self, Rounds};
use crate::testbed::{Enforcing, Testbed};
use crate::turns::{self, Row};

const KINDS: [Kind; 2] = [Kind::Connect, Kind::RoundTrip];
const NUMBERS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// More of these would be walked for longer than anybody waits.
const MOST_WALKED: usize = 1_000;

/// A table for each shape, or for those that the command line names; and a picture of them, where EGRET_BENCH_PLOT names a file for it.
pub(crate) fn rules(rounds: usize) -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let is_named = |word: &str| words.iter().any(|named| named == word);
    let is_one_named = Shape::ALL.iter().any(|(_, word, _)| is_named(word));
    let mut panels = Vec::new();
    for (shape, word, title) in Shape::ALL {
        if !is_one_named || is_named(word) {
            panels.push(measure(shape, title, rounds).with_context(|| title)?);
        }
    }
    if let Some(file) = std::env::var_os("EGRET_BENCH_PLOT") {
        std::fs::write(file, plot::svg(&panels))?;
    }
    Ok(())
}

fn measure(shape: Shape, title: &str, rounds: usize) -> anyhow::Result<Panel> {
    let mut lines = Vec::new();
    for ruleset in Ruleset::ALL {
        let one = Testbed::enforced_by(Size::SMALL, Enforcing::OneRule(ruleset))?;
        let mut testbeds = Vec::new();
        for number in NUMBERS {
            let size = Size {
                ordered: Some(Ordered { shape, rules: number }),
                ..Size::SMALL
            };
            testbeds.push((
                looked_up(number),
                Testbed::enforced_by(size, Enforcing::Egret(ruleset))?,
            ));
            if number <= MOST_WALKED {
                testbeds.push((
                    walked(number),
                    Testbed::enforced_by(size, Enforcing::EachAlone(ruleset))?,
                ));
            }
        }
        let mut rows = vec![Row::new("one rule", &one)];
        rows.extend(
            testbeds
                .iter()
                .map(|(name, testbed)| Row::new(name.as_str(), testbed)),
        );
        let seen = turns::of(&rows, &KINDS, rounds)?;
        for (kind, kind_name) in KINDS.into_iter().zip(["connect", "UDP round trip"]) {
            lines.push((
                format!("{kind_name}, {}", ruleset.name()),
                ratios(&seen, kind, looked_up),
            ));
            lines.push((
                format!("{kind_name}, {}, walked", ruleset.name()),
                ratios(&seen, kind, walked),
            ));
        }
    }
    print(title, &lines);
    Ok(Panel {
        title: title.to_owned(),
        sizes: NUMBERS
            .iter()
            .map(|number| u32::try_from(*number).map(f64::from))
            .collect::<Result<_, _>>()?,
        lines,
    })
}

fn looked_up(number: usize) -> String {
    format!("{number}")
}

fn walked(number: usize) -> String {
    format!("{number}, walked")
}

/// × one rule; nothing where it was not measured.
fn ratios(seen: &Rounds, kind: Kind, name: fn(usize) -> String) -> Vec<f64> {
    let ratio = |number: &usize| seen.ratio(&name(*number), "one rule", kind, report::p50);
    NUMBERS
        .iter()
        .map(ratio)
        .filter(|ratio| ratio.is_finite())
        .collect()
}

fn print(title: &str, lines: &[(String, Vec<f64>)]) {
    println!("\n### × one rule, by ordered rules: {title}\n");
    println!("| | {} |", NUMBERS.map(|number| number.to_string()).join(" | "));
    println!("|---|{}", "---|".repeat(NUMBERS.len()));
    for (name, ratios) in lines {
        let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!("| {name} | {} |", ratios.join(" | "));
    }
}

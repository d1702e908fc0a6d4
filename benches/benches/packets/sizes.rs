//! What becomes of the cost when there is more of everything.

use egret_benches::ruleset::Ruleset;

use crate::cluster::Size;
use crate::load::Kind;
use crate::plot::{self, Panel};
use crate::report::{self, Rounds};
use crate::testbed::{Enforcing, Testbed};
use crate::turns::{self, Row};

const KINDS: [Kind; 3] = [Kind::Connect, Kind::RoundTrip, Kind::Unanswered];

/// One thing that grows.
struct Growth {
    title: &'static str,
    sizes: Vec<(usize, Size)>,
}

/// Policies, and addresses: promised to cost nothing. A picture too, where EGRET_BENCH_PLOT names a file for it.
pub(crate) fn flatness(rounds: usize) -> anyhow::Result<()> {
    let policies = |policies| Size {
        policies,
        of_pod: 3,
        ..Size::TARGET
    };
    let addresses = |addresses| Size {
        addresses,
        of_pod: 3,
        ..Size::TARGET
    };
    let growths = [
        Growth {
            title: "policies (3 of each pod, 10,000 addresses)",
            sizes: [10, 100, 1_000, 10_000]
                .map(|number| (number, policies(number)))
                .into(),
        },
        Growth {
            title: "addresses (1,000 policies, 3 of each pod)",
            sizes: [100, 1_000, 10_000, 100_000]
                .map(|number| (number, addresses(number)))
                .into(),
        },
    ];
    let panels = growths.iter().map(|growth| measure(growth, rounds));
    let panels: Vec<Panel> = panels.collect::<anyhow::Result<_>>()?;
    if let Some(file) = std::env::var_os("EGRET_BENCH_PLOT") {
        std::fs::write(file, plot::svg(&panels))?;
    }
    Ok(())
}

/// Rules of the pod itself, all of which are asked for its new connections: these cost.
pub(crate) fn own_policies(rounds: usize) -> anyhow::Result<()> {
    let of_pod = |of_pod| Size {
        of_pod,
        ..Size::TARGET
    };
    let growth = Growth {
        title: "policies of each pod, all asked (1,000 policies, 10,000 addresses)",
        sizes: [1, 5, 20, 100].map(|number| (number, of_pod(number))).into(),
    };
    measure(&growth, rounds)?;
    println!("\nEach rule over a set of its own:");
    measure_with(Enforcing::EachAlone, &growth, rounds).map(drop)
}

fn measure(growth: &Growth, rounds: usize) -> anyhow::Result<Panel> {
    measure_with(Enforcing::Egret, growth, rounds)
}

fn measure_with(
    enforcing: fn(Ruleset) -> Enforcing,
    growth: &Growth,
    rounds: usize,
) -> anyhow::Result<Panel> {
    let mut lines = Vec::new();
    for ruleset in Ruleset::ALL {
        let seen = grown(growth, enforcing(ruleset), rounds)?;
        for (kind, name) in KINDS
            .into_iter()
            .zip(["connect", "UDP round trip", "unanswered UDP"])
        {
            let figure = if kind == Kind::Unanswered {
                report::cpu
            } else {
                report::p50
            };
            let ratio =
                |(number, _): &(usize, Size)| seen.ratio(&number.to_string(), "no rules", kind, figure);
            let ratios = growth.sizes.iter().map(ratio).collect();
            lines.push((format!("{name}, {}", ruleset.name()), ratios));
        }
    }
    print(growth, &lines);
    let sizes = growth.sizes.iter().map(|(number, _)| number);
    Ok(Panel {
        title: growth.title.to_owned(),
        sizes: sizes
            .map(|number| u32::try_from(*number).map(f64::from))
            .collect::<Result<_, _>>()?,
        lines,
    })
}

fn grown(growth: &Growth, enforcing: Enforcing, rounds: usize) -> anyhow::Result<Rounds> {
    let nothing = Testbed::enforced_by(Size::SMALL, Enforcing::Nothing)?;
    let mut testbeds = Vec::new();
    for (number, size) in &growth.sizes {
        testbeds.push((number.to_string(), Testbed::enforced_by(*size, enforcing)?));
    }
    let mut rows = vec![Row::new("no rules", &nothing)];
    rows.extend(
        testbeds
            .iter()
            .map(|(number, testbed)| Row::new(number.as_str(), testbed)),
    );
    turns::of(&rows, &KINDS, rounds)
}

fn print(growth: &Growth, lines: &[(String, Vec<f64>)]) {
    println!("\n### × no rules, by {}\n", growth.title);
    let numbers: Vec<String> = growth
        .sizes
        .iter()
        .map(|(number, _)| number.to_string())
        .collect();
    println!("| | {} |", numbers.join(" | "));
    println!("|---|{}", "---|".repeat(numbers.len()));
    for (name, ratios) in lines {
        let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!("| {name} | {} |", ratios.join(" | "));
    }
}

//! `egret matrix`: which pods reach which at one port, in a table that is seen at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::num::NonZeroU16;

use clap::{Args, ValueEnum};
use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, Width, presets};
use egret_shared::net::{Family, PortRange, Transport};
use serde::Serialize;

use crate::options::{ManifestOptions, ReachError, port};
use crate::output::{Format, TerminalWrite};
use crate::output::{WIDTH, empty_table, header};
use crate::reach::Reach;
use crate::reach::fold::{Folding, Unit};
use crate::reach::load::LoadedCluster;
use crate::reach::ports::PortSet;
use crate::verdict::row::VerdictWord;

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    from: ManifestOptions,
    /// The destination port; ICMP has none
    #[arg(long, value_name = "PORT", value_parser = port)]
    port: Option<NonZeroU16>,
    /// The protocol
    #[arg(long, value_enum, ignore_case = true, default_value_t = MatrixProtocol::Tcp)]
    protocol: MatrixProtocol,
    /// Show each pod for itself, not each workload
    #[arg(long)]
    pods: bool,
    /// How to print the matrix
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
}

const AFTER_HELP: &str = "\
Who connects stands at the left, to whom at the top:
  ✓    allowed in every family that both have
  ✗    denied
  4 6  allowed over IPv4 or IPv6 only
  ·    never judged: a pod with itself
       no common family

Exit status:
  0  the matrix is printed, whatever is in it
  2  bad usage, or input that cannot be read";

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatrixProtocol {
    #[value(name = "TCP")]
    Tcp,
    #[value(name = "UDP")]
    Udp,
    #[value(name = "SCTP")]
    Sctp,
    #[value(name = "ICMP")]
    Icmp,
}

/// What becomes of connections from one unit to another, by family.
type FamilyVerdicts = BTreeMap<Family, VerdictWord>;

#[derive(Serialize)]
struct UnitPair<'a> {
    from: String,
    to: String,
    verdict: &'static str,
    families: &'a FamilyVerdicts,
}

impl Arguments {
    /// Prints the matrix to `out`, all that should be known besides to `remarks`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn run(&self, out: &mut impl TerminalWrite, remarks: &mut impl Write) -> Result<(), ReachError> {
        let asked = self.asked()?;
        let reach = Reach::new(LoadedCluster::read(&self.from)?);
        let folding = if self.pods {
            Folding::Pods
        } else {
            Folding::Workloads
        };
        let units = reach.units(folding, &BTreeSet::new());
        let cells = judge(&reach, &units, &asked);
        reach.loaded.write_remarks(remarks)?;
        let pairs = pairs(&units, &cells);
        self.output.write(&pairs, || table(&units, &cells, &asked), out)?;
        Ok(())
    }

    fn asked(&self) -> Result<PortSet, ReachError> {
        let transport = match self.protocol {
            MatrixProtocol::Tcp => Transport::Tcp,
            MatrixProtocol::Udp => Transport::Udp,
            MatrixProtocol::Sctp => Transport::Sctp,
            MatrixProtocol::Icmp if self.port.is_some() => {
                return Err(ReachError::Usage("ICMP has no port: leave out --port".to_owned()));
            }
            MatrixProtocol::Icmp => return Ok(PortSet::icmp()),
        };
        let range = self.port.and_then(|port| PortRange::single(port.get()));
        let missing = || ReachError::Usage(format!("--port is missing: {transport} has ports, 1 to 65535"));
        Ok(PortSet::range(transport, range.ok_or_else(missing)?))
    }
}

/// Of each unit, what becomes of its connections to each.
fn judge(reach: &Reach, units: &[Unit], asked: &PortSet) -> Vec<Vec<FamilyVerdicts>> {
    let pair = |from: &Unit, to: &Unit| {
        let word = |is_allowed| {
            if is_allowed {
                VerdictWord::Allow
            } else {
                VerdictWord::Deny
            }
        };
        let families = reach.allowed_between(from, to);
        families
            .map(|(family, allowed)| (family, word(allowed.contains(asked))))
            .collect()
    };
    let row = |from| units.iter().map(|to| pair(from, to)).collect();
    units.iter().map(row).collect()
}

fn pairs<'a>(units: &[Unit], cells: &'a [Vec<FamilyVerdicts>]) -> Vec<UnitPair<'a>> {
    let mut pairs = Vec::new();
    for (from, row) in units.iter().zip(cells) {
        for (to, families) in units.iter().zip(row).filter(|(_, families)| !families.is_empty()) {
            pairs.push(UnitPair {
                from: from.workload.to_string(),
                to: to.workload.to_string(),
                verdict: match only(families) {
                    Some(word) => word.as_str(),
                    None => "differs",
                },
                families,
            });
        }
    }
    pairs
}

/// The verdict of all families; none where they differ.
fn only(families: &FamilyVerdicts) -> Option<VerdictWord> {
    let first = families.values().next().copied()?;
    families.values().all(|word| *word == first).then_some(first)
}

/// As many columns beside each other as fit; the others come below, in tables of their own.
fn table(units: &[Unit], cells: &[Vec<FamilyVerdicts>], asked: &PortSet) -> String {
    const NAME_WIDTH: u16 = 48;
    let number_width = units.len().to_string().len();
    let longest = units
        .iter()
        .map(|unit| unit.workload.to_string().chars().count())
        .max();
    let name_width = longest.unwrap_or_default().min(NAME_WIDTH.into());
    let room = usize::from(WIDTH).saturating_sub(name_width + number_width + 4);
    let columns = (room / (number_width + 2)).max(1);
    let mut text = format!("{asked}, from the left to the top\n");
    let numbers: Vec<usize> = (0..units.len()).collect();
    for block in numbers.chunks(columns) {
        let mut table = empty_table(presets::NOTHING);
        let heads = block.iter().map(|to| header(&(to + 1).to_string()));
        table.set_header([header(""), header("")].into_iter().chain(heads));
        for (from, row) in cells.iter().enumerate() {
            let head = [Cell::new(from + 1), Cell::new(&units[from].workload)];
            let marks = block.iter().map(|to| mark(&row[*to], from == *to));
            table.add_row(head.into_iter().chain(marks));
        }
        for place in 2..block.len() + 2 {
            if let Some(column) = table.column_mut(place) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        if let Some(column) = table.column_mut(1) {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(NAME_WIDTH)));
        }
        text.push_str(&format!("\n{}\n", table.trim_fmt()));
    }
    text
}

fn mark(families: &FamilyVerdicts, is_own: bool) -> Cell {
    match only(families) {
        Some(VerdictWord::Allow) => Cell::new("✓").fg(Color::Green),
        Some(VerdictWord::Deny | VerdictWord::Error) => Cell::new("✗").fg(Color::Red),
        None if families.get(&Family::V4) == Some(&VerdictWord::Allow) => Cell::new("4").fg(Color::Yellow),
        None if !families.is_empty() => Cell::new("6").fg(Color::Yellow),
        None if is_own => Cell::new("·"),
        None => Cell::new(""),
    }
}

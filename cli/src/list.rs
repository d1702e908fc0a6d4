//! `egret list`: all connections that the policies in manifests allow.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::rc::Rc;

use clap::{Args, ValueEnum};
use comfy_table::Cell;
use egret_policies::model::Direction;
use serde::Serialize;

use crate::options::{ManifestOptions, ReachError};
use crate::output::{PLAIN, count, empty_table, header};
use crate::output::{TerminalWrite, write_json, write_yaml};
use crate::reach::Reach;
use crate::reach::connection_end::{End, EndPair};
use crate::reach::ends::AllPods;
use crate::reach::fold::{Folding, Unit};
use crate::reach::json::JsonEnds;
use crate::reach::load::LoadedCluster;
use crate::reach::merge::{Row, merge, merge_way};
use crate::reach::points::{EndPairVerdicts, PartExtent, way_between};
use crate::reach::ports::PortSet;

mod dot;

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    from: ManifestOptions,
    /// List each pod for itself, not each workload
    #[arg(long)]
    pods: bool,
    /// How to print the connections
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

const AFTER_HELP: &str = "\
Ends of connections:
  shop/client         a workload, with all its pods
  own node            the node on which the pod at the other end runs
  node node-1         a node, for pods that run on others
  outside             every address that is neither a pod's nor a node's
  10.0.0.0/8          those of them in these networks
  *.example.com       those that the pod was told for such a name, if less is allowed without

A connection of a pod with itself is always allowed, and not listed.

Exit status:
  0  all is listed
  2  bad usage, or input that cannot be read";

/// How to print connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs: one object a line
    Json,
    /// The same as one list in YAML
    Yaml,
    /// The source of a picture, for Graphviz
    Dot,
}

#[derive(Serialize)]
struct AllowedConnection<'a> {
    #[serde(flatten)]
    ends: JsonEnds,
    ports: &'a PortSet,
}

impl Arguments {
    /// Lists: connections go to `out`, all that should be known besides to `remarks`.
    ///
    /// # Errors
    /// Why there is no list.
    pub fn run(&self, out: &mut impl TerminalWrite, remarks: &mut impl Write) -> Result<(), ReachError> {
        let reach = Reach::new(LoadedCluster::read(&self.from)?);
        let folding = if self.pods {
            Folding::Pods
        } else {
            Folding::Workloads
        };
        let units = reach.units(folding, &BTreeSet::new());
        let rows = connections(&reach, &units);
        reach.loaded.write_remarks(remarks)?;
        let objects = || -> Vec<AllowedConnection<'_>> { rows.iter().map(object).collect() };
        match self.output {
            Output::Table => out.write_table(|| table(&units, &rows))?,
            Output::Json => write_json(rows.iter().map(object), out)?,
            Output::Yaml => write_yaml(&objects(), out)?,
            Output::Dot => write!(out, "{}", dot::render(&units, &rows))?,
        }
        out.flush()?;
        Ok(())
    }
}

/// All connections that are allowed. Those that pods open come first, pod by pod: nothing is collected besides rows.
#[must_use]
pub fn connections(reach: &Reach, units: &[Unit]) -> Vec<Row<Rc<PortSet>>> {
    let (mut rows, mut opened_by_others) = (Vec::new(), Vec::new());
    for unit in units {
        for other in units {
            let allowed = reach.allowed_between(unit, other).map(|(family, ports)| {
                let ports = Some(ports).filter(|ports| !ports.is_empty());
                (PartExtent::Family(family), ports)
            });
            merge_way(&way_between(unit, other), allowed, &mut rows);
        }
        let (by_others, by_pods): (Vec<Row<_>>, Vec<Row<_>>) = merge(with_others(reach, unit))
            .into_iter()
            .partition(|row| matches!(row.ends.to, End::Pods(_)));
        rows.extend(by_pods);
        opened_by_others.extend(by_others);
    }
    opened_by_others.sort_by(|one, other| one.ends.cmp(&other.ends));
    rows.append(&mut opened_by_others);
    rows
}

/// What is allowed between pods and whatever is no pod.
fn with_others(
    reach: &Reach,
    unit: &Unit,
) -> impl Iterator<Item = (EndPair, PartExtent, Option<Rc<PortSet>>)> {
    let mut points = reach.with_nodes(unit);
    for direction in Direction::ALL {
        let cuts = reach.boundaries(unit, direction);
        points.extend(reach.with_outside(unit, direction, &cuts));
        points.extend(reach.with_names(unit, &cuts));
    }
    points.into_iter().map(|point| {
        let ports = Some(ports(&point)).filter(|ports| !ports.is_empty());
        (point.ends, point.extent, ports.map(Rc::new))
    })
}

/// What is allowed; of names, what is allowed because of them.
fn ports(point: &EndPairVerdicts) -> PortSet {
    let allowed = point.verdicts.allowed();
    match &point.without_record {
        Some(untold) if allowed == *untold => PortSet::none(),
        Some(untold) => allowed.without(untold),
        None => allowed,
    }
}

fn object(row: &Row<Rc<PortSet>>) -> AllowedConnection<'_> {
    AllowedConnection {
        ends: JsonEnds::of(row),
        ports: &row.value,
    }
}

fn table(units: &[Unit], rows: &[Row<Rc<PortSet>>]) -> String {
    let mut table = empty_table(PLAIN);
    table.set_header(["FROM", "TO", "PORTS"].map(header));
    // The same ports are allowed on most ways: their text is made once.
    let texts = RefCell::new(HashMap::new());
    let said = |row: &Row<Rc<PortSet>>| -> Rc<str> {
        let key = (Rc::as_ptr(&row.value), row.part.family());
        let mut texts = texts.borrow_mut();
        Rc::clone(texts.entry(key).or_insert_with(|| words(row).into()))
    };
    for several in AllPods::of(units).gather(rows, said) {
        table.add_row(
            [
                several.from.join("\n"),
                several.to.join("\n"),
                several.said.to_string(),
            ]
            .map(Cell::new),
        );
    }
    let pods = units.iter().map(|unit| unit.workload.pods.len()).sum();
    format!(
        "{}\n\n{} ({}), {}\n",
        table.trim_fmt(),
        count(units.len(), "workload", "workloads"),
        count(pods, "pod", "pods"),
        count(rows.len(), "connection", "connections"),
    )
}

fn words(row: &Row<Rc<PortSet>>) -> String {
    match row.part.family() {
        Some(family) => format!("{family}: {}", row.value),
        None => row.value.to_string(),
    }
}

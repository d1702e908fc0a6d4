//! `egret diff`: which connections appear, vanish or change from some manifests to others, and by which rule:
//! what whoever reviews a change of policies wants to read.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::options::{ManifestOptions, ReachError};
use crate::output::{TerminalWrite, write_json, write_yaml};
use crate::reach::Reach;
use crate::reach::json::JsonEnds;
use crate::reach::load::LoadedCluster;
use crate::reach::merge::Row;
use crate::reach::ports::PortSet;

mod cause;
mod change;
mod compare;
mod table;

use cause::Cause;
use change::{Change, ChangeKind};
use compare::compare;

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    from: ManifestOptions,
    /// The manifests as they were before, or as they are without the change
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    against: Vec<PathBuf>,
    /// How to print the changes
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

const AFTER_HELP: &str = "\
  egret diff --manifests new/ --against old/

What --manifests allows and --against does not appears; what only --against allows vanishes.

Exit status:
  0  the same connections are allowed
  1  they differ
  2  bad usage, or input that cannot be read";

/// How to print changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs: one object a line
    Json,
    /// The same as one list in YAML
    Yaml,
    /// For a comment in a review
    Markdown,
}

/// Whether there is a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The same is allowed.
    None,
    /// Something else is allowed.
    Some,
}

#[derive(Serialize)]
struct ChangedConnection<'a> {
    change: ChangeKind,
    #[serde(flatten)]
    ends: JsonEnds,
    before: &'a PortSet,
    after: &'a PortSet,
    because: &'a [Cause],
}

impl Arguments {
    /// Compares: changes go to `out`, all that should be known besides to `remarks`.
    ///
    /// # Errors
    /// Why nothing can be compared.
    pub fn run(
        &self,
        out: &mut impl TerminalWrite,
        remarks: &mut impl Write,
    ) -> Result<Difference, ReachError> {
        let loaded = LoadedCluster::read_both(&self.against, &self.from)?;
        let [before, after] = loaded.map(Reach::new);
        let compared = compare(&before, &after);
        after.loaded.write_remarks(remarks)?;
        let objects = || -> Vec<ChangedConnection<'_>> { compared.rows.iter().map(object).collect() };
        match self.output {
            Output::Table => out.write_table(|| table::table(&compared))?,
            Output::Json => write_json(objects(), out)?,
            Output::Yaml => write_yaml(&objects(), out)?,
            Output::Markdown => write!(out, "{}", table::markdown(&compared))?,
        }
        out.flush()?;
        Ok(if compared.rows.is_empty() {
            Difference::None
        } else {
            Difference::Some
        })
    }
}

fn object(row: &Row<Change>) -> ChangedConnection<'_> {
    ChangedConnection {
        change: row.value.kind(),
        ends: JsonEnds::of(row),
        before: &row.value.before,
        after: &row.value.after,
        because: &row.value.because,
    }
}

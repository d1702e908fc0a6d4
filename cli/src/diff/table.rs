//! Changes for people: in a table of at most 100 columns, or in Markdown.

use std::collections::BTreeMap;

use comfy_table::{Cell, Color, ColumnConstraint, Width};

use crate::output::{PLAIN, count, empty_table, header};
use crate::reach::ends::{AllPods, EndGroup};
use crate::reach::merge::Row;

use super::cause::Cause;
use super::change::{Change, ChangeKind};
use super::compare::ClusterDiff;

/// What is to be said of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChangeText {
    kind: ChangeKind,
    ports: Vec<String>,
    because: Vec<String>,
}

const NOTHING_CHANGES: &str = "No connection appears, vanishes or changes.\n";
/// What decided needs the room.
const CONNECTION_WIDTH: u16 = 40;

pub(super) fn table(compared: &ClusterDiff) -> String {
    if compared.rows.is_empty() {
        return NOTHING_CHANGES.to_owned();
    }
    let mut table = empty_table(PLAIN);
    table.set_header(["CHANGE", "CONNECTION", "BECAUSE"].map(header));
    for several in gather(compared) {
        let said = &several.said;
        let connection = format!(
            "{}\n→ {}\n  {}",
            several.from.join("\n"),
            several.to.join("\n→ "),
            said.ports.join("\n  ")
        );
        table.add_row([
            Cell::new(said.kind.word()).fg(color(said.kind)),
            Cell::new(connection),
            Cell::new(said.because.join("\n")),
        ]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(CONNECTION_WIDTH)));
    }
    format!("{}\n\n{}\n", table.trim_fmt(), summary(compared))
}

pub(super) fn markdown(compared: &ClusterDiff) -> String {
    if compared.rows.is_empty() {
        return NOTHING_CHANGES.to_owned();
    }
    let mut text = format!("{}\n\n", summary(compared));
    text.push_str("| change | from | to | ports | because |\n|---|---|---|---|---|\n");
    for EndGroup { from, to, said } in gather(compared) {
        let names = |names: &[String]| {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join("<br>")
        };
        text.push_str(&format!(
            "| **{}** | {} | {} | {} | {} |\n",
            said.kind.word(),
            names(&from),
            names(&to),
            said.ports.join("<br>"),
            said.because
                .iter()
                .map(|because| escape(because))
                .collect::<Vec<_>>()
                .join("<br>"),
        ));
    }
    text
}

/// What would begin something else in Markdown.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('*', "\\*")
        .replace('<', "&lt;")
}

fn gather(compared: &ClusterDiff) -> Vec<EndGroup<ChangeText>> {
    let mut gathered = AllPods::of(&compared.units).gather(&compared.rows, words);
    gathered.sort_by_key(|several| several.said.kind);
    gathered
}

fn words(row: &Row<Change>) -> ChangeText {
    let family = match row.part.family() {
        Some(family) => format!("{family}: "),
        None => String::new(),
    };
    let change = &row.value;
    let (added, removed) = (change.added(), change.removed());
    let ports = match change.kind() {
        ChangeKind::Appears => vec![format!("{family}{added}")],
        ChangeKind::Vanishes => vec![format!("{family}{removed}")],
        ChangeKind::Changes => {
            let parts = [("+", added), ("-", removed)];
            let there = parts.into_iter().filter(|(_, ports)| !ports.is_empty());
            there
                .map(|(sign, ports)| format!("{sign} {family}{ports}"))
                .collect()
        }
    };
    ChangeText {
        kind: change.kind(),
        ports,
        because: because(&change.because),
    }
}

/// The reasons; where they differ in the ports, each with its own.
fn because(causes: &[Cause]) -> Vec<String> {
    let are_alike = causes.iter().all(|cause| cause.ports() == causes[0].ports());
    let words = |cause: &Cause| match cause.ports().filter(|_| !are_alike) {
        Some(ports) => format!("{ports}: {cause}"),
        None => cause.to_string(),
    };
    causes.iter().map(words).collect()
}

const fn color(kind: ChangeKind) -> Color {
    match kind {
        ChangeKind::Appears => Color::Green,
        ChangeKind::Vanishes => Color::Red,
        ChangeKind::Changes => Color::Yellow,
    }
}

fn summary(compared: &ClusterDiff) -> String {
    let mut counts: BTreeMap<ChangeKind, usize> = BTreeMap::new();
    for row in &compared.rows {
        *counts.entry(row.value.kind()).or_default() += 1;
    }
    let of = |kind| counts.get(&kind).copied().unwrap_or_default();
    let (appear, vanish, change) = (
        of(ChangeKind::Appears),
        of(ChangeKind::Vanishes),
        of(ChangeKind::Changes),
    );
    let connections = count(compared.rows.len(), "connection", "connections");
    format!("{connections}: {appear} appear, {vanish} vanish, {change} change")
}

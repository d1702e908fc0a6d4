//! Rows for people: a table of at most 100 columns, then what should be known besides.

use std::collections::BTreeMap;

use comfy_table::{Cell, Color, ColumnConstraint, Width, presets};
use serde_json::Value;

use crate::output::{PLAIN, count, empty_table, first_of, header};

use super::input::Probe;
use super::row::{ConnectionVerdict, EndVerdict, Row, VerdictWord};

/// Longer ids and connections are broken into lines: what decided needs the room.
const ID_WIDTH: u16 = 20;
const CONNECTION_WIDTH: u16 = 30;
/// The probes that a note names.
const SHOWN_IDS: usize = 6;

/// The answers as a table, with what was asked.
#[must_use]
pub fn render(answers: &[(&Probe, Row)]) -> String {
    let mut table = empty_table(PLAIN);
    table.set_header(["ID", "CONNECTION", "VERDICT", "BECAUSE"].map(header));
    for (probe, row) in answers {
        table.add_row(cells(probe, row));
        for part in parts_to_show(row) {
            table.add_row(part_cells(part));
        }
    }
    for (place, width) in [(0, ID_WIDTH), (1, CONNECTION_WIDTH)] {
        if let Some(column) = table.column_mut(place) {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(width)));
        }
    }
    let mut text = format!("{}\n", table.trim_fmt());
    if let Some(notes) = render_notes(answers) {
        text.push_str(&format!("\n{notes}\n"));
    }
    text.push_str(&format!("\n{}\n", summary(answers)));
    text
}

fn cells(probe: &Probe, row: &Row) -> [Cell; 4] {
    let several = match (&row.endpoints, &row.addresses) {
        (Some(parts), _) => format!(", {}", count(parts.len(), "endpoint", "endpoints")),
        (None, Some(parts)) => format!(", {}", count(parts.len(), "address", "addresses")),
        (None, None) => String::new(),
    };
    [
        Cell::new(plain(&row.id)),
        Cell::new(format!(
            "{}\n→ {}\n  {}{several}",
            probe.from, probe.to, probe.protocol
        )),
        word_cell(row.verdict),
        Cell::new(because(
            row.reason.as_deref(),
            row.egress.as_ref(),
            row.ingress.as_ref(),
        )),
    ]
}

/// The parts, where they are not all alike.
fn parts_to_show(row: &Row) -> &[ConnectionVerdict] {
    let parts = row
        .endpoints
        .as_deref()
        .or(row.addresses.as_deref())
        .unwrap_or(&[]);
    let alike = |part: &ConnectionVerdict| part.egress == row.egress && part.ingress == row.ingress;
    if parts.iter().all(alike) { &[] } else { parts }
}

fn part_cells(part: &ConnectionVerdict) -> [Cell; 4] {
    let port = part.port.map(|port| format!(" port {port}")).unwrap_or_default();
    let pod = part
        .pod
        .as_ref()
        .map(|pod| format!("\n  {pod}"))
        .unwrap_or_default();
    [
        Cell::new(""),
        Cell::new(format!("· {}{port}{pod}", part.address)),
        word_cell(part.verdict),
        Cell::new(because(
            part.reason.as_deref(),
            part.egress.as_ref(),
            part.ingress.as_ref(),
        )),
    ]
}

fn word_cell(word: VerdictWord) -> Cell {
    let color = match word {
        VerdictWord::Allow => Color::Green,
        VerdictWord::Deny => Color::Red,
        VerdictWord::Error => Color::Yellow,
    };
    Cell::new(word.as_str()).fg(color)
}

/// An end that is no policed pod has no say, and no line.
fn because(reason: Option<&str>, egress: Option<&EndVerdict>, ingress: Option<&EndVerdict>) -> String {
    let has_say = |end: &&EndVerdict| end.tier != "none";
    let sides = [
        ("egress", egress.filter(has_say)),
        ("ingress", ingress.filter(has_say)),
    ];
    let mut lines: Vec<String> = reason.map(str::to_owned).into_iter().collect();
    lines.extend(
        sides
            .into_iter()
            .filter_map(|(side, end)| Some(format!("{side}: {}{}", say(end?), tried(end?)))),
    );
    if lines.is_empty() {
        return "neither end is a pod that policies are about".to_owned();
    }
    lines.join("\n")
}

fn say(end: &EndVerdict) -> String {
    let verdict = end.verdict.as_str();
    match (&end.policy, end.tier) {
        (Some(policy), tier) => {
            let rule = end.rule.map(|rule| format!(", rule {rule}")).unwrap_or_default();
            let name = end
                .rule_name
                .as_ref()
                .map(|name| format!(" ({name})"))
                .unwrap_or_default();
            format!("{verdict} in tier {tier}{rule}{name}\n  {policy}")
        }
        (None, "np") => format!("{verdict} in tier np: isolated, and no rule matches"),
        (None, "exempt") => format!("{verdict}, exempt from policies"),
        (None, "default") => format!("{verdict} by default: no policy decides"),
        (None, tier) => format!("{verdict} in tier {tier}"),
    }
}

/// What policies in audit would do about it.
fn tried(end: &EndVerdict) -> String {
    let Some(would) = &end.would_deny else {
        return String::new();
    };
    format!("\n  in audit: {}", would.words())
}

/// Each note once, with the probes that it is about.
fn render_notes(answers: &[(&Probe, Row)]) -> Option<String> {
    let mut order = Vec::new();
    let mut probes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, row) in answers {
        for note in &row.diagnostics {
            let text = note.to_string();
            let ids = probes.entry(text.clone()).or_default();
            if ids.is_empty() {
                order.push(text);
            }
            ids.push(plain(&row.id));
        }
    }
    let mut table = empty_table(presets::NOTHING);
    table.set_header(["PROBES", "NOTE"].map(header));
    for text in &order {
        table.add_row([first_of(&probes[text], SHOWN_IDS), text.clone()]);
    }
    (!order.is_empty()).then(|| table.trim_fmt())
}

fn summary(answers: &[(&Probe, Row)]) -> String {
    let of = |word| answers.iter().filter(|(_, row)| row.verdict == word).count();
    let probes = count(answers.len(), "probe", "probes");
    format!(
        "{probes}: {} allow, {} deny, {} error",
        of(VerdictWord::Allow),
        of(VerdictWord::Deny),
        of(VerdictWord::Error)
    )
}

pub(crate) fn plain(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

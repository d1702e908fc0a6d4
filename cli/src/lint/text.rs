//! Findings for people, in at most 100 columns.

use comfy_table::{Cell, Color, ColumnConstraint, Width};
use egret_policies::diagnostic::Severity;

use crate::output::{PLAIN, count, empty_table, header};

use super::finding::Finding;

/// Longer places are broken into lines: what was found needs the room.
const WHERE_WIDTH: u16 = 40;

/// The findings as a table, and how many there are.
#[must_use]
pub(super) fn table(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing found\n".to_owned();
    }
    let mut table = empty_table(PLAIN);
    table.set_header(["CODE", "WHERE", "WHAT, AND WHAT TO DO"].map(header));
    for finding in findings {
        table.add_row([
            Cell::new(format!("{}\n{}", finding.code, finding.severity)).fg(color(finding.severity)),
            Cell::new(place(finding)),
            Cell::new(format!("{}\n→ {}", finding.found, finding.fix)),
        ]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(WHERE_WIDTH)));
    }
    format!("{}\n\n{}\n", table.trim_fmt(), summary(findings))
}

fn place(finding: &Finding) -> String {
    let file = match (&finding.file, finding.line) {
        (Some(file), Some(line)) => Some(format!("{file}:{line}")),
        (file, _) => file.clone(),
    };
    let parts = [file, finding.object.clone(), finding.field.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn summary(findings: &[Finding]) -> String {
    let of = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    format!(
        "{}, {}, {}",
        count(of(Severity::Error), "error", "errors"),
        count(of(Severity::Warning), "warning", "warnings"),
        count(of(Severity::Info), "info", "infos")
    )
}

const fn color(severity: Severity) -> Color {
    match severity {
        Severity::Error => Color::Red,
        Severity::Warning => Color::Yellow,
        Severity::Info => Color::Cyan,
    }
}

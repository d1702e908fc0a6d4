//! Prometheus' text format.

use std::fmt::{Arguments, Display, Write};

use crate::escape;

/// A page of metrics: a family has one head, and all of its series behind it.
#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// Begins a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// A series.
    pub fn series(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.row(name, labels, value);
    }

    /// A series of whole numbers.
    pub fn count(&mut self, name: &str, labels: &[(&str, &str)], count: u64) {
        self.row(name, labels, count);
    }

    /// A histogram's series: for each upper bound how many values are not above it, last those without a bound; and what
    /// all values add up to.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        rows: impl IntoIterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut total = 0;
        for (bound, count) in rows {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let labels: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.count(&format!("{name}_bucket"), &labels, count);
            total = count;
        }
        self.series(&format!("{name}_sum"), labels, sum);
        self.count(&format!("{name}_count"), labels, total);
    }

    /// The text.
    #[must_use]
    pub fn text(self) -> String {
        self.0
    }

    fn row(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = written(labels);
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn line(&mut self, line: Arguments<'_>) {
        self.0.write_fmt(line).expect("a String takes everything");
        self.0.push('\n');
    }
}

fn written(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| {
        escape::lines(value)
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let labels = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", labels.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_nothing_that_a_terminal_obeys_and_are_read_as_prometheus_reads() {
        let mut page = MetricsPage::default();
        page.count("a", &[("zone", "ü\u{202e}\u{1b}\\\"\n")], 1);
        assert_eq!(page.text(), "a{zone=\"ü\\\\u{202e}\\\\u{1b}\\\\\\\"\\n\"} 1\n");
    }
}

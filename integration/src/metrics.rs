//! A scrape of `/metrics`, as values that a test can add up.

use std::collections::BTreeMap;

/// Every sample of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A line that is no sample.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of the metrics is no sample (want `name{{label=\"value\",…}} number`): {text}")]
pub struct NotASample {
    pub line: usize,
    pub text: String,
}

impl Metrics {
    /// Reads the Prometheus text format, version 0.0.4.
    pub fn parse(text: &str) -> Result<Self, NotASample> {
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|(index, line)| {
            read_sample(line).ok_or_else(|| NotASample {
                line: index + 1,
                text: line.to_owned(),
            })
        });
        Ok(Self {
            samples: samples.collect::<Result<_, _>>()?,
        })
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The sum of the samples of this name that carry all these labels; 0 when there is none, as a counter that never
    /// counted.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    /// Whether such a sample exists at all.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        })
    }
}

fn read_sample(line: &str) -> Option<Sample> {
    let end_of_name = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end_of_name);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => read_labels(inside)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads `key="value",…}` and gives back what follows.
fn read_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = read_quoted(after)?;
        labels.insert(key.to_owned(), value);
        rest = after;
    }
}

fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAPE: &str = "# HELP egret_verdicts Verdicts\n# TYPE egret_verdicts counter\n\
        egret_verdicts{action=\"allow\",direction=\"egress\"} 3\n\
        egret_verdicts{action=\"deny\",direction=\"egress\"} 4 1700000000000\n\
        egret_up 1\n\
        egret_rule{rule=\"a \\\"b\\\", {c}\"} 2.5e1\n\n";

    #[test]
    fn samples_are_added_up_by_the_labels_that_are_named() {
        let metrics = Metrics::parse(SCRAPE).unwrap();
        for (name, labels, sum) in [
            ("egret_verdicts", &[][..], 7.0),
            ("egret_verdicts", &[("action", "deny")], 4.0),
            (
                "egret_verdicts",
                &[("action", "deny"), ("direction", "ingress")],
                0.0,
            ),
            ("egret_up", &[], 1.0),
            ("egret_rule", &[("rule", "a \"b\", {c}")], 25.0),
            ("egret_verdict", &[], 0.0),
        ] {
            assert_eq!(metrics.sum(name, labels), sum, "{name} {labels:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_sample_is_named() {
        let error = Metrics::parse("egret_up 1\negret_down\n").unwrap_err();
        assert_eq!(
            error,
            NotASample {
                line: 2,
                text: "egret_down".into()
            }
        );
    }
}

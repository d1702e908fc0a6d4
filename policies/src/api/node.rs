//! A document as a tree, with the place of everything.

use std::collections::HashSet;

use crate::diagnostic::Position;

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it begins.
    pub position: Position,
    /// What it is.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`, `~`, or nothing: the same as a field that is not there.
    Null,
    /// Text, a number, a truth value: which one is decided by what is asked for.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// Fields.
    Mapping(Mapping),
}

/// A scalar as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its text, escapes resolved.
    pub text: Box<str>,
    /// Whether it was written without quotes.
    pub plain: bool,
}

impl Scalar {
    /// Whether YAML 1.1, as Kubernetes reads it, makes something else than text of it.
    #[must_use]
    pub fn is_no_text(&self) -> bool {
        self.plain && (is_truth_value(&self.text) || is_number(&self.text))
    }
}

fn is_truth_value(text: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

/// As `gopkg.in/yaml.v2`, which API servers use, resolves it: also with a base, also with underscores.
fn is_number(text: &str) -> bool {
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return false;
    }
    let digits = text.replace('_', "");
    let amount = digits.trim_start_matches(['+', '-']);
    let has_base = |prefix: &str, radix: u32| {
        let digits = amount.strip_prefix(prefix);
        digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)))
    };
    digits.parse::<f64>().is_ok() || has_base("0x", 16) || has_base("0o", 8) || has_base("0b", 2)
}

/// Fields in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// All of them, also those of one name.
    pub entries: Vec<Entry>,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Box<str>,
    /// Where the name stands.
    pub position: Position,
    /// Its value.
    pub value: Node,
}

impl Mapping {
    /// The value of a field; the last one where it is there several times, as JSON decoders do.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries
            .iter()
            .rev()
            .find(|entry| &*entry.key == key)
            .map(|entry| &entry.value)
    }

    /// Whether a field is there several times.
    #[must_use]
    pub fn repeats(&self, key: &str) -> bool {
        self.entries
            .iter()
            .filter(|entry| &*entry.key == key)
            .nth(1)
            .is_some()
    }

    /// The fields whose name was there before.
    #[must_use]
    pub fn repeated(&self) -> Vec<&Entry> {
        // Most mappings have few fields, and a set costs more than it saves.
        if self.entries.len() <= 8 {
            return (1..self.entries.len())
                .filter(|&later| {
                    self.entries[..later]
                        .iter()
                        .any(|entry| entry.key == self.entries[later].key)
                })
                .map(|later| &self.entries[later])
                .collect();
        }
        let mut seen = HashSet::with_capacity(self.entries.len());
        self.entries
            .iter()
            .filter(|entry| !seen.insert(&entry.key))
            .collect()
    }

    /// Of each name the entry that counts: the last one.
    #[must_use]
    pub fn last_entries(&self) -> Vec<&Entry> {
        if self.repeated().is_empty() {
            return self.entries.iter().collect();
        }
        let mut seen = HashSet::with_capacity(self.entries.len());
        let mut last: Vec<_> = self
            .entries
            .iter()
            .rev()
            .filter(|entry| seen.insert(&entry.key))
            .collect();
        last.reverse();
        last
    }
}

//! From a document to text.

use std::borrow::Cow;
use std::fmt::Write as _;

use egret_shared::escape;

use super::document::{
    BlankLine, Collection, CollectionKind, CollectionStyle, Document, Entry, QuoteStyle, Scalar, Value,
};

/// A document as YAML, without `---`.
#[must_use]
pub fn print(document: &Document) -> String {
    let mut printer = Printer { text: String::new() };
    match &document.root {
        Value::Collection(root) => {
            let root = root.clone();
            let root = match root.style {
                CollectionStyle::Flow => all_opened(root),
                CollectionStyle::Block(_) => in_blocks(root),
            };
            printer.slots(&root, 0, FirstEntry::OnNewLine);
        }
        Value::Scalar(scalar) => {
            printer.scalar(scalar, None, 0);
            printer.text.push('\n');
        }
    }
    printer.lines(&document.below, 0);
    printer.text
}

/// What has comments in it cannot be on one line.
fn in_blocks(collection: Collection) -> Collection {
    let has_comments = !collection.comments().is_empty();
    let mut collection = match collection.style {
        CollectionStyle::Flow if has_comments => opened(collection),
        CollectionStyle::Flow | CollectionStyle::Block(_) => collection,
    };
    for slot in &mut collection.slots {
        slot.value = match std::mem::replace(&mut slot.value, Value::word("")) {
            Value::Collection(inner) if !inner.comments().is_empty() => Value::Collection(in_blocks(inner)),
            value => value,
        };
    }
    collection
}

/// A document of JSON, or one that is as dense, as people write YAML.
#[must_use]
pub fn all_opened(collection: Collection) -> Collection {
    let mut collection = opened(collection);
    for slot in &mut collection.slots {
        slot.value = match std::mem::replace(&mut slot.value, Value::word("")) {
            Value::Collection(inner) => Value::Collection(all_opened(inner)),
            value => value,
        };
    }
    collection
}

/// A collection in flow style as one in blocks. Words lose the quotes that JSON puts around them.
#[must_use]
pub fn opened(mut collection: Collection) -> Collection {
    if collection.slots.is_empty() {
        return collection;
    }
    collection.style = CollectionStyle::Block(2);
    for slot in &mut collection.slots {
        let value = match &mut slot.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Collection(_) => None,
        };
        for scalar in slot.key.iter_mut().chain(value) {
            scalar.form = unquoted(scalar);
        }
    }
    collection
}

impl Collection {
    fn comments(&self) -> Vec<String> {
        self.slots.iter().flat_map(Entry::comments).collect()
    }
}

/// What needs no quotes in any context, and is no number or truth value in any version of YAML.
fn unquoted(scalar: &Scalar) -> QuoteStyle {
    let text = scalar.text.as_str();
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '/'));
    let other = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let is_other = other.iter().any(|word| text.eq_ignore_ascii_case(word));
    match &scalar.form {
        QuoteStyle::Quoted(_) if is_word && !is_other => QuoteStyle::Plain,
        form => form.clone(),
    }
}

struct Printer {
    text: String,
}

/// Where the first slot of a collection begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstEntry {
    OnNewLine,
    /// Behind the dash of an item.
    Here,
}

impl Printer {
    fn slots(&mut self, collection: &Collection, column: usize, start: FirstEntry) {
        for (place, slot) in collection.slots.iter().enumerate() {
            if place > 0 || start == FirstEntry::OnNewLine {
                self.lines(&slot.above, column);
                self.indent(column);
            }
            match collection.shape {
                CollectionKind::Mapping => self.field(slot, column),
                CollectionKind::List => self.item(slot, column),
            }
        }
    }

    fn lines(&mut self, lines: &[BlankLine], column: usize) {
        for line in lines {
            if let BlankLine::Comment { shift, text } = line {
                self.indent(column.saturating_add_signed(*shift));
                self.text.push_str(&escape::json(text));
            }
            self.text.push('\n');
        }
    }

    fn field(&mut self, slot: &Entry, column: usize) {
        let key = slot.key.as_ref().map(flow_scalar).unwrap_or_default();
        write!(self.text, "{key}:").expect("a String takes every text");
        match &slot.value {
            Value::Collection(collection) if !is_on_one_line(collection) => {
                self.end_line(slot);
                self.slots(collection, column + depth(collection, 0), FirstEntry::OnNewLine);
            }
            value => self.behind(value, slot, column),
        }
    }

    fn item(&mut self, slot: &Entry, column: usize) {
        self.text.push('-');
        match &slot.value {
            Value::Collection(collection) if !is_on_one_line(collection) => {
                let depth = depth(collection, 2);
                let first = collection.slots.first();
                let is_apart = slot.beside.is_some() || first.is_some_and(|first| !first.above.is_empty());
                if is_apart {
                    self.end_line(slot);
                    self.slots(collection, column + depth, FirstEntry::OnNewLine);
                } else {
                    self.indent(depth - 1);
                    self.slots(collection, column + depth, FirstEntry::Here);
                }
            }
            value => self.behind(value, slot, column),
        }
    }

    /// A value on the line of its slot.
    fn behind(&mut self, value: &Value, slot: &Entry, column: usize) {
        match value {
            Value::Scalar(scalar) => {
                if !(scalar.form == QuoteStyle::Plain && scalar.text.is_empty()) {
                    self.text.push(' ');
                }
                self.scalar(scalar, slot.beside.as_deref(), column);
                self.text.push('\n');
            }
            Value::Collection(_) => {
                write!(self.text, " {}", flow(value)).expect("a String takes every text");
                self.end_line(slot);
            }
        }
    }

    fn scalar(&mut self, scalar: &Scalar, beside: Option<&str>, column: usize) {
        let beside = beside.unwrap_or_default();
        let Some(mark) = block_mark(scalar) else {
            write!(self.text, "{}{beside}", flow_scalar(scalar)).expect("a String takes every text");
            return;
        };
        write!(self.text, "{mark}{beside}").expect("a String takes every text");
        for line in scalar.text.trim_end_matches('\n').split('\n') {
            self.text.push('\n');
            if !line.is_empty() {
                self.indent(column + 2);
                self.text.push_str(line);
            }
        }
    }

    fn end_line(&mut self, slot: &Entry) {
        self.text.push_str(slot.beside.as_deref().unwrap_or_default());
        self.text.push('\n');
    }

    fn indent(&mut self, columns: usize) {
        self.text.extend(std::iter::repeat_n(' ', columns));
    }
}

fn is_on_one_line(collection: &Collection) -> bool {
    let has_comments = collection.slots.iter().any(|slot| !slot.comments().is_empty());
    collection.slots.is_empty() || (collection.style == CollectionStyle::Flow && !has_comments)
}

/// A mapping must be deeper than its field or dash; a list may stand below the name of its field.
fn depth(collection: &Collection, least: usize) -> usize {
    let least = match collection.shape {
        CollectionKind::Mapping => 2,
        CollectionKind::List => least,
    };
    match collection.style {
        CollectionStyle::Flow => least.max(2),
        CollectionStyle::Block(depth) => depth.max(least),
    }
}

/// What begins a scalar on lines of its own; none where that would not be the same text.
fn block_mark(scalar: &Scalar) -> Option<&'static str> {
    let text = scalar.text.as_str();
    let content = text.trim_end_matches('\n');
    let is_simple = !content.is_empty()
        && !content.starts_with([' ', '\n'])
        && content
            .chars()
            .all(|letter| letter == '\n' || !letter.is_control())
        && is_shown(text);
    if scalar.form != QuoteStyle::Block || !is_simple {
        return None;
    }
    match text.len() - content.len() {
        0 => Some("|-"),
        1 => Some("|"),
        _ => None,
    }
}

fn flow(value: &Value) -> String {
    let collection = match value {
        Value::Scalar(scalar) => return flow_scalar(scalar),
        Value::Collection(collection) => collection,
    };
    let slot = |slot: &Entry| match &slot.key {
        Some(key) => format!("{}: {}", flow_scalar(key), flow(&slot.value)),
        None => flow(&slot.value),
    };
    let slots = collection.slots.iter().map(slot).collect::<Vec<_>>().join(", ");
    match collection.shape {
        CollectionKind::List => format!("[{slots}]"),
        CollectionKind::Mapping => format!("{{{slots}}}"),
    }
}

fn flow_scalar(scalar: &Scalar) -> String {
    // Every text of JSON is one of YAML.
    let quoted = || escape::json(&serde_json::Value::String(scalar.text.clone()).to_string()).into_owned();
    match &scalar.form {
        QuoteStyle::Plain if is_shown(&scalar.text) => scalar.text.clone(),
        QuoteStyle::Quoted(source) if is_shown(source) => source.clone(),
        QuoteStyle::Plain | QuoteStyle::Quoted(_) | QuoteStyle::Block | QuoteStyle::Text => quoted(),
    }
}

/// Whether a terminal shows a text as it stands.
fn is_shown(text: &str) -> bool {
    matches!(escape::lines(text), Cow::Borrowed(_))
}

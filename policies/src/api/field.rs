//! Fields of a tree, read one by one: each knows its path and place, absent and empty are different
//! things, and what cannot be read is noted where it is.

use std::collections::HashSet;

use super::UnknownFields;
use super::node::{Entry, Mapping, Node, Value};
use super::notes::{Note, Notes, Refused};
use crate::diagnostic::{Code, Severity};

/// A value somewhere in a tree.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    node: &'a Node,
    path: String,
    repeats: Repeats,
}

/// What counts of a field that is there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeats {
    /// The last, as an API server takes it.
    Last,
    /// None: nobody can say which one was meant.
    None,
    /// This is such a field, or below one.
    Here,
}

impl<'a> Field<'a> {
    /// The tree itself; of a field that is there twice the last counts.
    pub(crate) const fn root(node: &'a Node) -> Self {
        Self {
            node,
            path: String::new(),
            repeats: Repeats::Last,
        }
    }

    /// The tree of a policy; a field that is there twice cannot be read, unless a server has stored one of them.
    pub(crate) const fn policy(node: &'a Node, reading: UnknownFields) -> Self {
        Self {
            node,
            path: String::new(),
            repeats: match reading {
                UnknownFields::AsWritten => Repeats::None,
                UnknownFields::AsStored => Repeats::Last,
            },
        }
    }

    /// A field of this mapping; none where it is absent or null, or where this is no mapping.
    pub(crate) fn get(&self, key: &str) -> Option<Self> {
        let mapping = self.mapping()?;
        let node = mapping.get(key)?;
        // Of two of which one is null, that one might have been meant: the field is there, and cannot be read.
        let child = self.child(node, key).among(mapping.repeats(key));
        (node.value != Value::Null || child.repeats == Repeats::Here).then_some(child)
    }

    /// Its name, without what it is in.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// A field that must be there.
    pub(crate) fn require(&self, key: &str, accepted: &str, notes: &mut Notes) -> Result<Self, Refused> {
        self.get(key).ok_or_else(|| {
            let mut path = self.path.clone();
            append(&mut path, key);
            let field = path;
            let found = "nothing".to_owned();
            notes.keep(Note {
                field,
                ..self.note(Code::FieldMissing, found, accepted)
            });
            Refused
        })
    }

    /// Checks that this is a mapping which has no other fields than these, none twice.
    pub(crate) fn only(&self, known: &[&str], notes: &mut Notes) -> Result<(), Refused> {
        self.readable(notes)?;
        let mapping = match &self.node.value {
            Value::Mapping(mapping) => mapping,
            // A null item of a list is stored as an empty object.
            Value::Null if notes.reading == UnknownFields::AsStored => return Ok(()),
            Value::Null | Value::Scalar(_) | Value::Sequence(_) => {
                return Err(self.refuse(
                    Code::WrongType,
                    &format!("a mapping of {}", known.join(", ")),
                    notes,
                ));
            }
        };
        let mut result = Ok(());
        for entry in &mapping.entries {
            if !known.contains(&&*entry.key) {
                let accepted = format!("one of {}", known.join(", "));
                result = self
                    .child(&entry.value, &entry.key)
                    .unknown(Code::UnknownField, &accepted, notes);
            }
        }
        self.only_once(notes).and(result)
    }

    /// Checks that no field of this mapping is there twice.
    pub(crate) fn only_once(&self, notes: &mut Notes) -> Result<(), Refused> {
        let mut result = Ok(());
        for entry in self.mapping().map(Mapping::repeated).unwrap_or_default() {
            let field = self.child(&entry.value, &entry.key);
            result = field.unknown(Code::DuplicateField, "the field once", notes);
        }
        result
    }

    fn unknown(&self, code: Code, accepted: &str, notes: &mut Notes) -> Result<(), Refused> {
        match notes.reading {
            UnknownFields::AsWritten => {
                let severity = Severity::Error;
                notes.keep(Note {
                    severity,
                    ..self.note(code, self.describe(), accepted)
                });
                Err(Refused)
            }
            UnknownFields::AsStored => {
                notes.keep(Note {
                    severity: Severity::Warning,
                    enforced: Some("as if the field were not there".to_owned()),
                    ..self.note(code, self.describe(), accepted)
                });
                Ok(())
            }
        }
    }

    /// Checks that this is not there twice, nor what it is in.
    fn readable(&self, notes: &mut Notes) -> Result<(), Refused> {
        match self.repeats {
            Repeats::Last | Repeats::None => Ok(()),
            Repeats::Here => self.unknown(Code::DuplicateField, "the field once", notes),
        }
    }

    /// The items of this list.
    pub(crate) fn items(&self, notes: &mut Notes) -> Result<Vec<Self>, Refused> {
        self.readable(notes)?;
        match &self.node.value {
            Value::Sequence(items) => Ok(items
                .iter()
                .enumerate()
                .map(|(index, node)| Self {
                    node,
                    path: format!("{}[{index}]", self.path),
                    repeats: self.repeats,
                })
                .collect()),
            Value::Null | Value::Scalar(_) | Value::Mapping(_) => {
                Err(self.refuse(Code::WrongType, "a list", notes))
            }
        }
    }

    /// The items of this list, which must have some; more than `most` are worth a warning.
    pub(crate) fn some_items(&self, most: usize, notes: &mut Notes) -> Result<Vec<Self>, Refused> {
        let items = self.items(notes)?;
        if items.is_empty() {
            return Err(self.refuse(Code::EmptyList, &format!("1 to {most} items"), notes));
        }
        self.limit(items.len(), most, notes);
        Ok(items)
    }

    /// Warns of a list that is longer than the API admits.
    pub(crate) fn limit(&self, length: usize, most: usize, notes: &mut Notes) {
        if length > most {
            self.tell(
                Code::OverLimit,
                format!("{length} items"),
                &format!("at most {most}"),
                "all of them",
                notes,
            );
        }
    }

    /// The fields of this mapping, whatever their names; of one that is there twice, the last.
    pub(crate) fn entries(&self, notes: &mut Notes) -> Result<Vec<(&'a str, Self)>, Refused> {
        self.readable(notes)?;
        let Value::Mapping(mapping) = &self.node.value else {
            return Err(self.refuse(Code::WrongType, "a mapping", notes));
        };
        let repeated: HashSet<&str> = mapping.repeated().iter().map(|entry| &*entry.key).collect();
        let field = |entry: &'a Entry| {
            let field = self.child(&entry.value, &entry.key);
            (&*entry.key, field.among(repeated.contains(&*entry.key)))
        };
        Ok(mapping.last_entries().into_iter().map(field).collect())
    }

    /// This text.
    pub(crate) fn text(&self, notes: &mut Notes) -> Result<&'a str, Refused> {
        self.readable(notes)?;
        let Value::Scalar(scalar) = &self.node.value else {
            return Err(self.refuse(Code::WrongType, "text", notes));
        };
        if scalar.is_no_text() {
            let quoted = format!("\"{}\"", scalar.text);
            self.tell(Code::UnquotedText, self.describe(), &quoted, &quoted, notes);
        }
        Ok(&scalar.text)
    }

    /// This whole number, if it is one: decimal, without quotes, without leading zeros (octal in YAML 1.1).
    pub(crate) fn maybe_integer(&self) -> Option<i64> {
        let (Value::Scalar(scalar), Repeats::Last | Repeats::None) = (&self.node.value, self.repeats) else {
            return None;
        };
        let digits = scalar.text.strip_prefix('-').unwrap_or(&scalar.text);
        let decimal =
            digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|octet| octet.is_ascii_digit()));
        if scalar.plain && decimal {
            scalar.text.parse().ok()
        } else {
            None
        }
    }

    /// This truth value.
    pub(crate) fn boolean(&self, notes: &mut Notes) -> Result<bool, Refused> {
        self.readable(notes)?;
        match &self.node.value {
            Value::Scalar(scalar) if scalar.plain => match &*scalar.text {
                "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Ok(true),
                "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Ok(false),
                _ => Err(self.refuse(Code::WrongType, "true or false", notes)),
            },
            Value::Null | Value::Scalar(_) | Value::Sequence(_) | Value::Mapping(_) => {
                Err(self.refuse(Code::WrongType, "true or false", notes))
            }
        }
    }

    /// Notes that this cannot be taken, and why.
    pub(crate) fn refuse(&self, code: Code, accepted: &str, notes: &mut Notes) -> Refused {
        notes.keep(self.note(code, self.describe(), accepted));
        Refused
    }

    /// Notes something that changes nothing, or only what `enforced` says.
    pub(crate) fn tell(&self, code: Code, found: String, accepted: &str, enforced: &str, notes: &mut Notes) {
        let enforced = Some(enforced.to_owned());
        notes.keep(Note {
            enforced,
            ..self.note(code, found, accepted)
        });
    }

    /// What is here, in a few words.
    pub(crate) fn describe(&self) -> String {
        match &self.node.value {
            Value::Null => "null".to_owned(),
            Value::Scalar(scalar) if scalar.plain && scalar.is_no_text() => shorten(&scalar.text),
            Value::Scalar(scalar) => format!("{:?}", shorten(&scalar.text)),
            Value::Sequence(items) if items.is_empty() => "an empty list".to_owned(),
            Value::Sequence(items) => format!("a list of {}", items.len()),
            Value::Mapping(mapping) if mapping.entries.is_empty() => "{}".to_owned(),
            Value::Mapping(mapping) => {
                let keys: Vec<_> = mapping
                    .entries
                    .iter()
                    .take(5)
                    .map(|entry| shorten(&entry.key))
                    .collect();
                format!("a mapping with {:?}", keys.join(", "))
            }
        }
    }

    /// Whether it is there but null.
    pub(crate) fn is_null(&self) -> bool {
        self.node.value == Value::Null
    }

    const fn mapping(&self) -> Option<&'a Mapping> {
        match &self.node.value {
            Value::Mapping(mapping) => Some(mapping),
            Value::Null | Value::Scalar(_) | Value::Sequence(_) => None,
        }
    }

    fn child(&self, node: &'a Node, key: &str) -> Self {
        let mut path = self.path.clone();
        append(&mut path, key);
        let repeats = self.repeats;
        Self { node, path, repeats }
    }

    /// This field, one of several of its name or the only one.
    fn among(self, several: bool) -> Self {
        match self.repeats {
            Repeats::None if several => Self {
                repeats: Repeats::Here,
                ..self
            },
            Repeats::Last | Repeats::None | Repeats::Here => self,
        }
    }

    fn note(&self, code: Code, found: String, accepted: &str) -> Note {
        Note {
            code,
            severity: code.severity(),
            position: self.node.position,
            field: self.path.clone(),
            found,
            accepted: accepted.to_owned(),
            enforced: None,
        }
    }
}

/// Adds a field's name to a path; names that are no plain words are put in brackets.
pub(super) fn append(path: &mut String, key: &str) {
    let plain = (1..=SHORT).contains(&key.len())
        && key
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-');
    if plain {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    } else {
        path.push_str(&format!("[{:?}]", shorten(key)));
    }
}

/// The characters of a text that are shown.
const SHORT: usize = 80;

/// At most so many characters, on one line.
fn shorten(text: &str) -> String {
    let mut short: String = text
        .chars()
        .take(SHORT)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

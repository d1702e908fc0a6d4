//! Fields of a tree, read one by one: each knows its path and place, absent and empty are different
//! things, and what cannot be read is noted where it is.

use super::Reading;
use super::node::{Mapping, Node, Value};
use crate::diagnostic::{Code, Position, Severity};

/// Something could not be read; why is in the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// What is noted about a document, before it is known whose file or object it is.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) code: Code,
    pub(crate) severity: Severity,
    pub(crate) position: Position,
    pub(crate) field: String,
    pub(crate) found: String,
    pub(crate) accepted: String,
    /// What is enforced meanwhile, as soon as somebody knows.
    pub(crate) enforced: Option<String>,
}

/// The notes about a document.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) reading: Reading,
    pub(crate) list: Vec<Note>,
}

impl Notes {
    pub(crate) const fn new(reading: Reading) -> Self {
        Self {
            reading,
            list: Vec::new(),
        }
    }

    /// A place to come back to with [`Notes::enforce`].
    pub(crate) const fn mark(&self) -> usize {
        self.list.len()
    }

    /// Says of all notes since the mark what is enforced, where that is not said yet.
    pub(crate) fn enforce(&mut self, mark: usize, enforced: &str) {
        for note in &mut self.list[mark..] {
            note.enforced.get_or_insert_with(|| enforced.to_owned());
        }
    }
}

/// A value somewhere in a tree.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    node: &'a Node,
    path: String,
}

impl<'a> Field<'a> {
    /// The tree itself.
    pub(crate) const fn root(node: &'a Node) -> Self {
        Self {
            node,
            path: String::new(),
        }
    }

    /// A field of this mapping; none where it is absent or null, or where this is no mapping.
    pub(crate) fn get(&self, key: &str) -> Option<Self> {
        let node = self.mapping()?.get(key)?;
        (node.value != Value::Null).then(|| self.child(node, key))
    }

    /// A field that must be there.
    pub(crate) fn require(&self, key: &str, accepted: &str, notes: &mut Notes) -> Result<Self, Refused> {
        self.get(key).ok_or_else(|| {
            let mut path = self.path.clone();
            append(&mut path, key);
            self.note_at(Code::FieldMissing, path, "nothing".to_owned(), accepted, notes);
            Refused
        })
    }

    /// Checks that this is a mapping which has no other fields than these, none twice.
    pub(crate) fn only(&self, known: &[&str], notes: &mut Notes) -> Result<(), Refused> {
        let mapping = match &self.node.value {
            Value::Mapping(mapping) => mapping,
            // A null item of a list is stored as an empty object.
            Value::Null if notes.reading == Reading::AsStored => return Ok(()),
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
            Reading::AsWritten => {
                let refused = self.refuse(code, accepted, notes);
                if let Some(note) = notes.list.last_mut() {
                    note.severity = Severity::Error;
                }
                Err(refused)
            }
            Reading::AsStored => {
                self.note(code, self.describe(), accepted, notes);
                if let Some(note) = notes.list.last_mut() {
                    note.severity = Severity::Warning;
                    note.enforced = Some("as if the field were not there".to_owned());
                }
                Ok(())
            }
        }
    }

    /// The items of this list.
    pub(crate) fn items(&self, notes: &mut Notes) -> Result<Vec<Self>, Refused> {
        match &self.node.value {
            Value::Sequence(items) => Ok(items
                .iter()
                .enumerate()
                .map(|(index, node)| Self {
                    node,
                    path: format!("{}[{index}]", self.path),
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
        let Value::Mapping(mapping) = &self.node.value else {
            return Err(self.refuse(Code::WrongType, "a mapping", notes));
        };
        let last = |index: usize, key: &str| {
            !mapping.entries[index + 1..]
                .iter()
                .any(|later| &*later.key == key)
        };
        let repeats = !mapping.repeated().is_empty();
        Ok(mapping
            .entries
            .iter()
            .enumerate()
            .filter(|(index, entry)| !repeats || last(*index, &entry.key))
            .map(|(_, entry)| (&*entry.key, self.child(&entry.value, &entry.key)))
            .collect())
    }

    /// This text.
    pub(crate) fn text(&self, notes: &mut Notes) -> Result<&'a str, Refused> {
        let Value::Scalar(scalar) = &self.node.value else {
            return Err(self.refuse(Code::WrongType, "text", notes));
        };
        if scalar.is_no_text() {
            let quoted = format!("\"{}\"", scalar.text);
            self.tell(Code::UnquotedText, self.describe(), &quoted, &quoted, notes);
        }
        Ok(&scalar.text)
    }

    /// This whole number.
    pub(crate) fn integer(&self, accepted: &str, notes: &mut Notes) -> Result<i64, Refused> {
        match self.maybe_integer() {
            Some(number) => Ok(number),
            None => Err(self.refuse(Code::WrongType, accepted, notes)),
        }
    }

    /// This whole number, if it is one: decimal, without quotes, without leading zeros (octal in YAML 1.1).
    pub(crate) fn maybe_integer(&self) -> Option<i64> {
        let Value::Scalar(scalar) = &self.node.value else {
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
        self.note(code, self.describe(), accepted, notes);
        Refused
    }

    /// Notes something that changes nothing, or only what `enforced` says.
    pub(crate) fn tell(&self, code: Code, found: String, accepted: &str, enforced: &str, notes: &mut Notes) {
        self.note(code, found, accepted, notes);
        if let Some(note) = notes.list.last_mut() {
            note.enforced = Some(enforced.to_owned());
        }
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
        Self { node, path }
    }

    fn note(&self, code: Code, found: String, accepted: &str, notes: &mut Notes) {
        self.note_at(code, self.path.clone(), found, accepted, notes);
    }

    fn note_at(&self, code: Code, field: String, found: String, accepted: &str, notes: &mut Notes) {
        notes.list.push(Note {
            code,
            severity: code.severity(),
            position: self.node.position,
            field,
            found,
            accepted: accepted.to_owned(),
            enforced: None,
        });
    }
}

/// Adds a field's name to a path; names that are no plain words are put in brackets.
pub(super) fn append(path: &mut String, key: &str) {
    let plain = !key.is_empty()
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

/// At most 80 characters, on one line.
fn shorten(text: &str) -> String {
    let mut short: String = text
        .chars()
        .take(80)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

//! What is noted about a document while it is read.

use super::UnknownFields;
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
    pub(crate) reading: UnknownFields,
    pub(crate) list: Vec<Note>,
}

/// The notes of an object that are kept: nobody reads more, and a hostile object could have a million.
const MOST: usize = 200;

impl Notes {
    pub(crate) const fn new(reading: UnknownFields) -> Self {
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

    /// Says of all notes since the mark what is enforced, whatever was said before: what they are in is closed as a whole.
    pub(crate) fn overrule(&mut self, mark: usize, enforced: &str) {
        for note in &mut self.list[mark..] {
            note.enforced = Some(enforced.to_owned());
        }
    }

    /// Whether it is told of a field, or of what it is in, that it is there twice.
    fn tells_of_repeated(&self, field: &str) -> bool {
        let is_within = |whole: &str| {
            field
                .strip_prefix(whole)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let mut repeated = self.list.iter().filter(|note| note.code == Code::DuplicateField);
        repeated.any(|note| is_within(&note.field))
    }

    /// Keeps a note. What is enforced does not depend on whether there is room for it.
    pub(super) fn keep(&mut self, note: Note) {
        if note.code == Code::DuplicateField && self.tells_of_repeated(&note.field) {
            return;
        }
        match self.list.len() {
            ..MOST => self.list.push(note),
            MOST => self.list.push(Note {
                code: Code::TooManyDiagnostics,
                severity: Code::TooManyDiagnostics.severity(),
                found: format!("more than {MOST} things to say"),
                accepted: "an object with fewer errors".to_owned(),
                enforced: Some("as said of each".to_owned()),
                ..note
            }),
            _ => {}
        }
    }
}

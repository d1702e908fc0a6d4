//! Where something is written, and what is to be said about it.

use std::fmt;
use std::sync::Arc;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Place {
    /// Where a file begins.
    #[must_use]
    pub fn start(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            line: 1,
            column: 1,
        }
    }

    /// Without the column, for logs.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", one_line(&self.file), self.line, self.column)
    }
}

/// Why a Corefile cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {}; accepted: {accepted}", one_line(.wrong))]
pub struct Error {
    /// Where.
    pub place: Place,
    /// What is wrong there.
    pub wrong: String,
    /// What would be accepted.
    pub accepted: String,
}

/// Words between quotes may have line breaks, and terminals obey other control characters.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// What is accepted, and yet does not do what it seems to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub place: Place,
    /// What is to be known.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, one_line(&self.text))
    }
}

/// What is said while a file is read.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) errors: Vec<Error>,
    pub(super) warnings: Vec<Warning>,
}

impl Notes {
    pub(super) fn warn(&mut self, place: &Place, text: impl Into<String>) {
        self.warnings.push(Warning {
            place: place.clone(),
            text: text.into(),
        });
    }

    /// Keeps what is wrong, and goes on.
    pub(super) fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

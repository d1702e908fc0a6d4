//! Positions in a file, errors and warnings.

use std::fmt;
use std::sync::Arc;

/// A position in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The path of the file, as given.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Position {
    /// The start of a file.
    #[must_use]
    pub fn start(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            line: 1,
            column: 1,
        }
    }

    /// File and line, for logs.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", one_line(&self.file), self.line, self.column)
    }
}

/// An error in a Corefile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {}; accepted: {accepted}", one_line(.wrong))]
pub struct Error {
    /// The position.
    pub position: Position,
    /// What is wrong.
    pub wrong: String,
    /// What is accepted.
    pub accepted: String,
}

/// Quoted words may contain line breaks, and terminals obey other control characters.
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

/// Accepted text that may not do what it seems to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The position.
    pub position: Position,
    /// The warning.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, one_line(&self.text))
    }
}

/// The errors and warnings so far.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    pub(super) errors: Vec<Error>,
    pub(super) warnings: Vec<Warning>,
}

impl Diagnostics {
    pub(super) fn warn(&mut self, position: &Position, text: impl Into<String>) {
        self.warnings.push(Warning {
            position: position.clone(),
            text: text.into(),
        });
    }

    /// Records the error, if it is one.
    pub(super) fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

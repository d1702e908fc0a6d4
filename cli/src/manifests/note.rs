//! What should be known about an answer besides the answer.

use std::fmt;

use egret_policies::diagnostic::{Diagnostic, Severity};
use serde::Serialize;

/// Something that should be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// How bad it is.
    pub severity: Severity,
    /// A word or number that stays the same, for programs.
    pub code: &'static str,
    /// The object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The field of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What it is.
    pub message: String,
}

impl Note {
    /// A note of this command's own.
    pub(crate) fn new(severity: Severity, code: &'static str, message: String) -> Self {
        Self {
            severity,
            code,
            object: None,
            field: None,
            file: None,
            line: None,
            message,
        }
    }

    /// A diagnostic of a policy or another object, with the file that the object came from.
    pub(super) fn of(diagnostic: &Diagnostic, file: Option<&str>) -> Self {
        let Diagnostic {
            code,
            severity,
            object,
            position,
            field,
            found,
            accepted,
            enforced,
        } = diagnostic;
        Self {
            severity: *severity,
            code: code.id(),
            object: Some(object.to_string()),
            field: Some(field.clone()).filter(|field| !field.is_empty()),
            file: file.map(str::to_owned),
            line: position.map(|position| position.line),
            message: format!("found {found}; accepted: {accepted}; enforced: {enforced}"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.severity, self.code)?;
        for part in [&self.object, &self.field].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " ({file}:{line})")?,
            (Some(file), None) => write!(f, " ({file})")?,
            (None, _) => {}
        }
        write!(f, ": {}", self.message)
    }
}

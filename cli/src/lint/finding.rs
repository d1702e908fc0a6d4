//! One thing that was found.

use egret_policies::api::manifest::Problem;
use egret_policies::diagnostic::{Diagnostic, ObjectRef, Severity};
use serde::Serialize;

use crate::manifests::note::Note;

use super::code::{LintCode, fix_of};
use crate::manifests::objects::WrittenObjects;

/// Something that its author should look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// How bad it is.
    pub severity: Severity,
    /// A number that stays the same.
    pub code: &'static str,
    /// The object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The field of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What it is.
    pub found: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    /// A mistake in an object, at a field or at the object as a whole.
    pub(super) fn new(
        mistake: LintCode,
        objects: &WrittenObjects,
        object: &ObjectRef,
        field: &str,
        found: String,
    ) -> Self {
        let (file, line) = objects.place(object, field);
        Self {
            file,
            line,
            severity: mistake.severity,
            code: mistake.id,
            object: Some(object.to_string()),
            field: Some(field.to_owned()).filter(|field| !field.is_empty()),
            found,
            fix: mistake.fix.to_owned(),
        }
    }

    /// A diagnostic of policies side by side.
    pub(super) fn of_diagnostic(diagnostic: &Diagnostic, objects: &WrittenObjects) -> Self {
        let (file, line) = objects.place(&diagnostic.object, &diagnostic.field);
        let Diagnostic {
            code,
            severity,
            object,
            field,
            found,
            accepted,
            enforced,
            position: _,
        } = diagnostic;
        Self {
            file,
            line,
            severity: *severity,
            code: code.id(),
            object: Some(object.to_string()),
            field: Some(field.clone()).filter(|field| !field.is_empty()),
            found: format!("found {found}; accepted: {accepted}; enforced: {enforced}"),
            fix: code.fix().to_owned(),
        }
    }

    /// A problem of reading that leaves the rest readable.
    pub(super) fn of_problem(problem: &Problem) -> Self {
        Self {
            file: Some(problem.file.to_string()),
            line: Some(problem.position.line),
            severity: problem.severity,
            code: problem.code.id(),
            object: None,
            field: Some(problem.field.clone()).filter(|field| !field.is_empty()),
            found: format!("found {}; accepted: {}", problem.found, problem.accepted),
            fix: problem.code.fix().to_owned(),
        }
    }

    /// What reading and lowering noted of an object.
    pub(super) fn of_note(note: &Note, objects: &WrittenObjects, object: &ObjectRef) -> Self {
        let field = note.field.as_deref().unwrap_or_default();
        let (file, line) = match &note.file {
            Some(file) => (Some(file.clone()), note.line),
            None => objects.place(object, field),
        };
        Self {
            file,
            line,
            severity: note.severity,
            code: note.code,
            object: note.object.clone(),
            field: note.field.clone(),
            found: note.message.clone(),
            fix: fix_of(note.code).to_owned(),
        }
    }
}

//! The object around the rules: fields outside `spec`, and `spec` itself.

use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;

const OBJECT: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// The fields of ObjectMeta (k8s.io/apimachinery).
const METADATA: [&str; 15] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Warns of fields outside `spec` that nobody knows.
pub(super) fn outside(object: &Object, notes: &mut Notes) {
    let root = Field::root(&object.body);
    warn_of_unknown(&root, &OBJECT, notes);
    if let Some(metadata) = root.get("metadata") {
        warn_of_unknown(&metadata, &METADATA, notes);
    }
}

/// Warns of the fields of a mapping that nobody knows.
pub(super) fn warn_of_unknown(mapping: &Field<'_>, known: &[&str], notes: &mut Notes) {
    // What is no mapping was refused when the file was read.
    for (key, field) in mapping.entries(notes).unwrap_or_default() {
        if !known.contains(&key) {
            let accepted = format!("one of {}", known.join(", "));
            field.refuse(Code::UnknownFieldOutside, &accepted, notes);
        }
    }
}

/// `spec`, which must be there and be a mapping.
pub(super) fn required<'a>(object: &'a Object, notes: &mut Notes) -> Result<Field<'a>, Refused> {
    match spec(object, notes)? {
        Some(spec) => Ok(spec),
        None => Field::policy(&object.body, notes.reading).require("spec", "a mapping", notes),
    }
}

/// `spec`: nothing where it is absent, refused where it is no mapping.
pub(super) fn spec<'a>(object: &'a Object, notes: &mut Notes) -> Result<Option<Field<'a>>, Refused> {
    let Some(spec) = Field::policy(&object.body, notes.reading).get("spec") else {
        return Ok(None);
    };
    match spec.entries(notes) {
        Ok(_) => Ok(Some(spec)),
        Err(refused) => Err(refused),
    }
}

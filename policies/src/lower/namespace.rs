//! Namespaces, and the annotation by which they were isolated before NetworkPolicy v1.

use std::sync::Arc;

use super::{enforcement, legacy};
use crate::api::{Field, Notes, Object};
use crate::diagnostic::Code;
use crate::model::cluster::{Entity, Namespace};
use crate::model::{NAME_LABEL, Policy};

/// The annotation of the proposal of 2016, ignored by Kubernetes since 1.7.
const ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";

pub(super) fn lower(object: &Object, notes: &mut Notes) -> Vec<Entity> {
    let name = Arc::clone(&object.metadata.name);
    let mut labels = object.metadata.labels.clone();
    labels.set(NAME_LABEL, &name);
    let policy = annotation(object, notes).or_else(|| spec_form(object, notes));
    let enforcement = enforcement::of(object, notes);
    let namespace = Entity::Namespace(Namespace {
        name,
        labels,
        enforcement,
    });
    std::iter::once(namespace)
        .chain(policy.map(Entity::Policy))
        .collect()
}

/// The policy that the annotation stands for: `DefaultDeny`, or anything that cannot be read, isolates.
fn annotation(object: &Object, notes: &mut Notes) -> Option<Policy> {
    let annotation = Field::root(&object.body)
        .get("metadata")?
        .get("annotations")?
        .get(ANNOTATION)?;
    if annotation_leaves_open(&annotation) {
        return None;
    }
    let accepted = "a NetworkPolicy with podSelector {}";
    let enforced = "the pods of the namespace are isolated for ingress";
    annotation.tell(
        Code::LegacyAnnotation,
        annotation.describe(),
        accepted,
        enforced,
        notes,
    );
    Some(legacy::default_deny(&object.metadata.name, ANNOTATION))
}

/// The form in a namespace's spec, which no API server ever had: it is read where somebody wrote it.
fn spec_form(object: &Object, notes: &mut Notes) -> Option<Policy> {
    let field = Field::root(&object.body).get("spec")?.get("networkPolicy")?;
    let is_mapping = |field: &Field<'_>| {
        let mut ignored = Notes::new(notes.reading);
        field.entries(&mut ignored).is_ok()
    };
    let says_nothing = |ingress: Field<'_>| is_mapping(&ingress) && ingress.get("isolation").is_none();
    if is_mapping(&field) && field.get("ingress").is_none_or(says_nothing) {
        return None;
    }
    let accepted = "a NetworkPolicy with podSelector {}";
    let enforced = "the pods of the namespace are isolated for ingress";
    field.tell(
        Code::LegacyAnnotation,
        field.describe(),
        accepted,
        enforced,
        notes,
    );
    Some(legacy::default_deny(&object.metadata.name, "spec.networkPolicy"))
}

/// Only an object that says nothing of ingress isolation leaves the namespace open.
fn annotation_leaves_open(annotation: &Field<'_>) -> bool {
    let mut ignored = Notes::new(crate::api::UnknownFields::AsWritten);
    let Ok(text) = annotation.text(&mut ignored) else {
        return false;
    };
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(fields)) => match fields.get("ingress") {
            None | Some(serde_json::Value::Null) => true,
            Some(serde_json::Value::Object(ingress)) => {
                ingress.get("isolation").is_none_or(serde_json::Value::is_null)
            }
            Some(_) => false,
        },
        Ok(_) | Err(_) => false,
    }
}

//! The annotation of 2016.

use serde_json::Value;

use super::cluster::get;
use super::{Ask, PolicyReader};
use crate::ids::Id;

const ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";
const USUAL: &str = r#"{"ingress":{"isolation":"DefaultDeny"}}"#;

impl PolicyReader<'_> {
    /// Whether the annotation closes the subject for this direction.
    pub(super) fn is_closed_by_annotation(&self, ask: &Ask<'_>) -> bool {
        let namespace = &ask.subject.namespace;
        !self.is_tried(namespace) && self.is_annotated(namespace) && (!ask.is_egress() || self.errs(Id::P4))
    }

    /// Whether a namespace is closed by its annotation, or by the form in its spec.
    pub(crate) fn is_annotated(&self, namespace: &str) -> bool {
        let Some(namespace) = self.cluster.namespaces.get(namespace) else {
            return false;
        };
        let annotations = get(&namespace.object["metadata"], "annotations");
        let annotation = annotations.and_then(|all| get(all, ANNOTATION));
        let by_annotation = annotation.is_some_and(|text| self.closes(text.as_str().unwrap_or_default()));
        let form = get(&namespace.object["spec"], "networkPolicy");
        by_annotation || (form.is_some_and(says_isolation) && !self.errs(Id::P18))
    }

    fn closes(&self, text: &str) -> bool {
        if text != USUAL && self.errs(Id::P1) {
            return false;
        }
        let read: Result<Value, _> = serde_json::from_str(text);
        let says = match read {
            Ok(value) if value.is_object() => says_isolation(&value),
            Ok(_) | Err(_) => true,
        };
        says || self.errs(Id::P2)
    }
}

/// Whether it says anything of isolation for ingress; what cannot be read does.
fn says_isolation(form: &Value) -> bool {
    if !form.is_object() {
        return true;
    }
    match get(form, "ingress") {
        None => false,
        Some(Value::Object(ingress)) => ingress.get("isolation").is_some_and(|value| !value.is_null()),
        Some(_) => true,
    }
}

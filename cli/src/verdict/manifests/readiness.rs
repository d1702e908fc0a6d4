//! Whether a Service would send connections to a pod, by its status. Without a status it would: manifests
//! written by hand say what is to run.

use egret_policies::api::{Node, Object, Value};

/// Whether the pod of an object runs and is ready; the pods of a workload are.
pub(super) fn is_ready(object: &Object) -> bool {
    let metadata = field(&object.body, "metadata");
    let is_ending = metadata
        .and_then(|metadata| field(metadata, "deletionTimestamp"))
        .is_some();
    let status = field(&object.body, "status");
    let phase = status.and_then(|status| field(status, "phase"));
    let runs = phase.is_none_or(|phase| text(phase) == Some("Running"));
    let condition = status
        .and_then(|status| field(status, "conditions"))
        .and_then(|conditions| {
            items(conditions)
                .iter()
                .find(|condition| has(condition, "type", "Ready"))
        });
    !is_ending && runs && condition.is_none_or(|condition| has(condition, "status", "True"))
}

fn has(node: &Node, key: &str, expected: &str) -> bool {
    field(node, key).and_then(text) == Some(expected)
}

fn field<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    match &node.value {
        Value::Mapping(mapping) => mapping.get(key).filter(|node| node.value != Value::Null),
        Value::Null | Value::Scalar(_) | Value::Sequence(_) => None,
    }
}

fn items(node: &Node) -> &[Node] {
    match &node.value {
        Value::Sequence(items) => items,
        Value::Null | Value::Scalar(_) | Value::Mapping(_) => &[],
    }
}

fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) => None,
    }
}

//! Whether a Service would send connections to a pod, by its status. Without a status it would: manifests
//! written by hand say what is to run. What is printed from a cluster has the owners beside what they own (a
//! Deployment, its ReplicaSets, their Pods): then only the last of the line serves.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::api::{Node, Object, Value};
use egret_policies::diagnostic::ObjectRef;

/// Whether the pod of an object runs and is ready; the pods of a workload are, if it has any.
pub(super) fn is_ready(object: &Object) -> bool {
    let is_ending = at(&object.body, &["metadata", "deletionTimestamp"]).is_some();
    let phase = at(&object.body, &["status", "phase"]);
    let runs = phase.is_none_or(|phase| text(phase) == Some("Running"));
    let has_pods = at(&object.body, &["spec", "replicas"]).is_none_or(|replicas| text(replicas) != Some("0"));
    let condition = at(&object.body, &["status", "conditions"]).and_then(|conditions| {
        items(conditions)
            .iter()
            .find(|condition| has(condition, "type", "Ready"))
    });
    !is_ending && runs && has_pods && condition.is_none_or(|condition| has(condition, "status", "True"))
}

/// The objects that own this one (`metadata.ownerReferences`), all of its own namespace.
pub(super) fn owners(object: &Object) -> BTreeSet<ObjectRef> {
    let references = at(&object.body, &["metadata", "ownerReferences"]).map_or(&[][..], items);
    references
        .iter()
        .filter_map(|reference| {
            Some(ObjectRef {
                kind: field(reference, "kind").and_then(text)?.into(),
                namespace: object.metadata.namespace.as_ref().map(Arc::clone),
                name: field(reference, "name").and_then(text)?.into(),
            })
        })
        .collect()
}

fn has(node: &Node, key: &str, expected: &str) -> bool {
    field(node, key).and_then(text) == Some(expected)
}

fn at<'a>(node: &'a Node, path: &[&str]) -> Option<&'a Node> {
    path.iter().try_fold(node, |node, key| field(node, key))
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

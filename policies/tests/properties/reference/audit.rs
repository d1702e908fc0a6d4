//! Policies and namespaces in audit: as if they said nothing.

use serde_json::Value;

use super::PolicyReader;
use super::cluster::{Pod, get};
use super::kinds::Dialect;

const ANNOTATION: &str = "policy.egret.dev/enforcement";

impl<'c> PolicyReader<'c> {
    /// The policies that count for a pod.
    pub(super) fn policies_for(&self, subject: &Pod) -> impl Iterator<Item = (Dialect, &'c Value)> {
        let is_off = self.is_tried(&subject.namespace);
        let counts =
            move |(_, policy): &(Dialect, &'c Value)| self.with_audited || !(is_off || is_audit(policy));
        self.policies().filter(counts)
    }

    /// Whether nothing counts for the pods of a namespace.
    pub(super) fn is_tried(&self, namespace: &str) -> bool {
        let namespace = self.cluster.namespaces.get(namespace);
        !self.with_audited && namespace.is_some_and(|namespace| is_audit(&namespace.object))
    }
}

fn is_audit(object: &Value) -> bool {
    let annotations = get(&object["metadata"], "annotations");
    annotations.and_then(|all| get(all, ANNOTATION)) == Some(&Value::from("audit"))
}

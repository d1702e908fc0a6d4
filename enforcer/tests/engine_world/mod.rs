//! The input of an engine in tests.

use egret_enforcer::engine::{Input, SourceState};
use egret_policies::api::manifest;
use egret_policies::compiler::Event;
use egret_policies::lower::lower;

/// Two pods of the node, and names that the pod `a` may reach.
#[allow(dead_code, reason = "not every test has this cluster")]
pub(crate) const CLUSTER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: a}}
spec: {nodeName: n}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: default, labels: {app: b}}
spec: {nodeName: n}
status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}
  egress:
  - {name: x, action: Accept, to: [{domainNames: [\"*.example.test\"]}]}
";

/// These manifests.
pub(crate) fn cluster(text: &str) -> Input {
    let read = manifest::read(text, "test");
    assert!(read.is_whole(), "{:?}", read.problems);
    let entities = read
        .documents
        .iter()
        .flat_map(|document| lower(&document.object).entities);
    Input::Cluster(entities.map(Event::Apply).collect())
}

/// That it has told everything.
pub(crate) fn in_sync() -> Input {
    Input::Source(SourceState {
        is_complete: true,
        ..SourceState::default()
    })
}

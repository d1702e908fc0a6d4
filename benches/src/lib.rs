//! What the benches share: clusters made by rule, so that two runs measure the same.

use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::compiler::{Compiler, Event, NodeScope, Settings, Syncing};
use egret_policies::lower::lower;
use egret_policies::model::cluster::Entity;
use egret_shared::time::Timestamp;

pub mod big;
pub mod process;
pub mod ruleset;

/// The moment at which benches begin.
pub const START: Timestamp = Timestamp::from_millis(1_000_000);

/// A cluster: `pods` of `namespaces` namespaces, of which `local` are on node `here`, and `policies`
/// NetworkPolicies (every tenth with a range of ports, every fifth with an ipBlock), and one
/// ClusterNetworkPolicy with names.
///
/// # Panics
/// When a manifest made here cannot be read: a bug in the bench.
#[must_use]
pub fn cluster(namespaces: usize, pods: usize, local: usize, policies: usize) -> Vec<Entity> {
    let mut text = String::new();
    (0..namespaces).for_each(|number| text += &namespace(number));
    (0..pods).for_each(|number| text += &pod(number, namespaces, number < local));
    (0..policies).for_each(|number| text += &policy(number, namespaces));
    text += NAMES;
    let read = manifest::read(&text, "bench.yaml");
    assert!(read.problems.is_empty(), "{:?}", read.problems.first());
    read.documents
        .iter()
        .flat_map(|document| lower(&document.object).entities)
        .collect()
}

/// A compiler of node `here` that was told all of it.
#[must_use]
pub fn compiler(entities: impl IntoIterator<Item = Entity>) -> Compiler<Syncing> {
    let mut compiler = Compiler::new(Settings::for_scope(NodeScope::One(Arc::from("here"))));
    for entity in entities {
        compiler.handle(Event::Apply(entity), START);
    }
    compiler
}

fn namespace(number: usize) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: ns{number}, labels: {{team: t{}}}}}\n",
        number % 7
    )
}

/// A pod as a manifest; the label `app` is one of 50.
#[must_use]
pub fn pod(number: usize, namespaces: usize, is_local: bool) -> String {
    let (namespace, app, node) = (
        number % namespaces,
        number % 50,
        if is_local { "here" } else { "there" },
    );
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: ns{namespace}, labels: {{app: a{app}}}}}\n\
         spec: {{nodeName: {node}}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.{}.{}.{}}}]}}\n",
        number >> 16 & 255,
        number >> 8 & 255,
        number & 255
    )
}

fn policy(number: usize, namespaces: usize) -> String {
    let (namespace, app, peer) = (number % namespaces, number % 50, (number / 3) % 50);
    let port = if number.is_multiple_of(10) {
        "{port: 8000, endPort: 8100}"
    } else {
        "{port: 443}"
    };
    let block = if number.is_multiple_of(5) {
        format!(
            "\n    - ipBlock: {{cidr: 198.51.{}.0/24, except: [198.51.{}.16/28]}}",
            number % 256,
            number % 256
        )
    } else {
        String::new()
    };
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: np{number}, namespace: ns{namespace}}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: a{app}}}}}\n  policyTypes: [Ingress, Egress]\n  egress:\n  - to:\n    \
         - namespaceSelector: {{matchLabels: {{team: t{}}}}}\n      podSelector: {{matchLabels: {{app: a{peer}}}}}{block}\n    \
         ports: [{port}]\n  ingress:\n  - from:\n    - podSelector: {{matchLabels: {{app: a{peer}}}}}\n    ports: [{port}]\n",
        number % 7
    )
}

const NAMES: &str = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: names}\n\
spec:\n  tier: Admin\n  priority: 10\n  subject: {namespaces: {}}\n  egress:\n  - action: Accept\n    to:\n    - domainNames: \
[api.example.test, \"*.cdn.example.test\"]\n    protocols: [{tcp: {destinationPort: {number: 443}}}]\n";

//! What a cluster says, as people write it, and the batches that follow from it: from nothing, and from what it said before.

use std::collections::BTreeMap;
use std::time::Duration;

use egret_policies::api::manifest;
use egret_policies::compiler::{Compiler, Event, InSync, NodeScope, Settings};
use egret_policies::lower::lower;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::rules::Batch;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::node_world::NOW;

/// Objects, and the DNS answers that pods received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    objects: String,
    answers: Vec<DnsAnswer>,
}

/// A DNS answer: the pod that received it, the name, the addresses, and the seconds until they expire.
#[derive(Clone, Copy, Debug)]
struct DnsAnswer {
    client: &'static str,
    name: &'static str,
    addresses: &'static [&'static str],
    seconds: u64,
}

impl Cluster {
    pub(crate) fn of(objects: &[&str]) -> Self {
        Self {
            objects: objects.iter().map(|object| format!("{object}\n---\n")).collect(),
            answers: Vec::new(),
        }
    }

    pub(crate) fn and(mut self, objects: &[&str]) -> Self {
        self.objects += &Self::of(objects).objects;
        self
    }

    pub(crate) fn with_answer(
        mut self,
        client: &'static str,
        name: &'static str,
        addresses: &'static [&'static str],
        seconds: u64,
    ) -> Self {
        self.answers.push(DnsAnswer {
            client,
            name,
            addresses,
            seconds,
        });
        self
    }

    pub(crate) fn has_records(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The batches of a life that finds this at its start.
    pub(crate) fn begin(&self, now: Timestamp) -> Vec<Batch> {
        batches(&mut self.compiler(), now)
    }

    /// The batches by which this becomes the other.
    pub(crate) fn turn_into(&self, other: &Self, now: Timestamp) -> Vec<Batch> {
        let mut compiler = self.compiler();
        batches(&mut compiler, NOW);
        let (before, after) = (self.entities(), other.entities());
        for key in before.keys().filter(|key| !after.contains_key(key)) {
            compiler.handle(Event::Delete(key.clone()), now);
        }
        for (key, entity) in &after {
            if before.get(key) != Some(entity) {
                compiler.handle(Event::Apply(entity.clone()), now);
            }
        }
        for answer in &other.answers[self.answers.len().min(other.answers.len())..] {
            compiler.handle(answer.event(), now);
        }
        compiler.handle_timeout(now);
        batches(&mut compiler, now)
    }

    fn compiler(&self) -> Compiler<InSync> {
        let mut compiler = Compiler::new(Settings::for_scope(NodeScope::One("here".into())));
        for entity in self.entities().into_values() {
            compiler.handle(Event::Apply(entity), NOW);
        }
        for answer in &self.answers {
            compiler.handle(answer.event(), NOW);
        }
        compiler.in_sync()
    }

    fn entities(&self) -> BTreeMap<EntityKey, Entity> {
        let read = manifest::read(&self.objects, "test");
        assert!(read.is_whole(), "{:?}\n{}", read.problems, self.objects);
        let lowered = read.documents.iter().map(|document| lower(&document.object));
        let entities = lowered.flat_map(|lowered| {
            assert!(lowered.diagnostics.is_empty(), "{:?}", lowered.diagnostics);
            lowered.entities
        });
        entities.map(|entity| (entity.key(), entity)).collect()
    }
}

impl DnsAnswer {
    fn event(&self) -> Event {
        let address = |address: &&str| ObservedAddress {
            address: address.parse().unwrap(),
            expires: NOW.after(Duration::from_secs(self.seconds)),
        };
        Event::Observed(Observation {
            client: self.client.parse().unwrap(),
            question: self.name.parse().unwrap(),
            chain: Vec::new(),
            addresses: self.addresses.iter().map(address).collect(),
        })
    }
}

fn batches(compiler: &mut Compiler<InSync>, now: Timestamp) -> Vec<Batch> {
    std::iter::from_fn(|| compiler.poll_batch(now)).collect()
}

/// A pod of this node (`10.0.0.x`) or of the other (`10.0.1.x`).
pub(crate) fn pod(name: &str, labels: &str, node: &str, last: u8) -> String {
    let subnet = if node == "here" { 0 } else { 1 };
    let prefix = if node == "here" { "fd00::" } else { "fd00:1::" };
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default, labels: {{{labels}}}}}, \
         spec: {{nodeName: {node}, containers: []}}, status: {{phase: Running, podIP: 10.0.{subnet}.{last}, \
         podIPs: [{{ip: 10.0.{subnet}.{last}}}, {{ip: \"{prefix}{last}\"}}]}}}}"
    )
}

pub(crate) fn nodes() -> String {
    let node = |name: &str, last: u8| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, \
             status: {{addresses: [{{type: InternalIP, address: 192.0.2.{last}}}]}}}}\n---\n"
        )
    };
    node("here", 1) + &node("there", 2)
}

/// A NetworkPolicy of pods with these labels.
pub(crate) fn network_policy(name: &str, labels: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: default}}, \
         spec: {{podSelector: {{matchLabels: {{{labels}}}}}, {rest}}}}}"
    )
}

/// A ClusterNetworkPolicy of pods with these labels.
pub(crate) fn cluster_policy(name: &str, tier: &str, labels: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, \
         spec: {{tier: {tier}, priority: 10, subject: {{pods: {{namespaceSelector: {{}}, \
         podSelector: {{matchLabels: {{{labels}}}}}}}}}, {rest}}}}}"
    )
}

/// A ClusterEgressFirewall that holds for everybody, clients outside included.
pub(crate) fn firewall(name: &str, rules: &str) -> String {
    format!(
        "{{apiVersion: policy.egret.dev/v1alpha1, kind: ClusterEgressFirewall, metadata: {{name: {name}}}, \
         spec: {{priority: 10, services: {{exposure: Reject}}, rules: {rules}}}}}"
    )
}

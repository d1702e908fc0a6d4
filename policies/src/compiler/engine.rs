//! What the compiler remembers, and how a batch is made of what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

use crate::compile::{Compiled, DnsRules, Surroundings, Template, Templates, compile};
use crate::index::{Index, LivePod, is_api_server};
use crate::model::cluster::{EndpointSlice, Entity, EntityKey, Service};
use crate::model::{Direction, Labels, Policy, PolicyId};
use crate::records::Records;
use crate::rules::Batch;
use crate::sequence::{Batches, Sets};

use super::interests::Interests;
use super::locals::Locals;
use super::settings::{NodeScope, Settings};

/// All that the compiler knows.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) index: Index,
    policies: BTreeMap<PolicyId, Policy>,
    templates: Templates,
    pub(super) records: Records,
    pub(super) locals: Locals,
    pub(super) sets: Sets,
    pub(super) compiled: BTreeMap<PodKey, Compiled>,
    pub(super) interests: Interests,
    pub(super) dirty: Dirty,
    /// Of the last batch that is due or was given.
    last: Revision,
    /// What is to follow the batch that was given last.
    rest: Option<Batch>,
}

/// What is to be looked at again.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// Whether a batch is due.
    is_due: bool,
    pods: BTreeSet<PodKey>,
    nodes: BTreeSet<Arc<str>>,
    services: BTreeSet<PodKey>,
    /// Whether the API server may be elsewhere.
    api_server: bool,
    subjects: BTreeSet<PodKey>,
}

impl Engine {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            index: Index::new(settings.dns.clone()),
            policies: BTreeMap::new(),
            templates: Templates::new(),
            records: Records::new(settings.records.clone()),
            locals: Locals::default(),
            sets: Sets::default(),
            compiled: BTreeMap::new(),
            interests: Interests::default(),
            dirty: Dirty::default(),
            last: Revision::ZERO,
            rest: None,
            settings,
        }
    }

    pub(super) fn apply(&mut self, entity: Entity, now: Timestamp) {
        match entity {
            Entity::Pod(pod) if self.index.pod(&pod.key) == Some(&pod) => {}
            Entity::Pod(pod) => {
                let key = pod.key.clone();
                let touched = self.index.set_pod(&key, Some(pod));
                self.touch_pods(touched, now);
            }
            Entity::Namespace(namespace) => {
                let name = Arc::clone(&namespace.name);
                let touched = self.index.set_namespace(&name, Some(namespace));
                self.touch_pods(touched, now);
            }
            Entity::Node(node) if self.index.node(&node.name) == Some(&node) => {}
            Entity::Node(node) => {
                let name = Arc::clone(&node.name);
                let touched = self.index.set_node(&name, Some(node));
                self.touch_node(&name, touched, now);
            }
            Entity::Policy(policy) => {
                let id = policy.id.clone();
                self.set_policy(&id, Some(policy));
            }
            Entity::Service(service) => {
                let key = service.key.clone();
                self.set_service(&key, Some(service));
            }
            Entity::EndpointSlice(slice) => {
                let key = slice.key.clone();
                self.set_slice(&key, Some(slice));
            }
            Entity::NodeAddressReport(report) => self.set_report(&report.node, Some(report.addresses)),
            Entity::ApiServerAddresses(declared) => {
                self.set_declared(&declared.name, Some(declared.addresses));
            }
        }
    }

    pub(super) fn delete(&mut self, key: &EntityKey, now: Timestamp) {
        match key {
            EntityKey::Pod(key) if self.index.pod(key).is_none() => {}
            EntityKey::Pod(key) => {
                let touched = self.index.set_pod(key, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Namespace(name) => {
                let touched = self.index.set_namespace(name, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Node(name) if self.index.node(name).is_none() => {}
            EntityKey::Node(name) => {
                let touched = self.index.set_node(name, None);
                self.touch_node(name, touched, now);
            }
            EntityKey::Policy(id) => self.set_policy(id, None),
            EntityKey::Service(key) => self.set_service(key, None),
            EntityKey::EndpointSlice(key) => self.set_slice(key, None),
            EntityKey::NodeAddressReport(node) => self.set_report(node, None),
            EntityKey::ApiServerAddresses(name) => self.set_declared(name, None),
        }
    }

    /// The revision that includes all events so far.
    pub(super) const fn pending_revision(&self) -> Revision {
        if self.dirty.is_due {
            self.revision_after_change()
        } else {
            self.last
        }
    }

    /// A change may take two batches, so it has two numbers, and the second is the one to wait for.
    const fn revision_after_change(&self) -> Revision {
        self.last.next().next()
    }

    pub(super) const fn revision(&self) -> Revision {
        self.last
    }

    /// Makes a batch due.
    pub(super) const fn mark(&mut self) {
        self.dirty.is_due = true;
    }

    pub(super) fn poll_batch(&mut self, now: Timestamp) -> Option<Batch> {
        self.expire(now);
        if let Some(rest) = self.rest.take() {
            return Some(rest);
        }
        if !self.dirty.is_due {
            return None;
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut batches = Batches {
            first: Batch::empty(self.last.next()),
            then: Batch::empty(self.revision_after_change()),
        };
        for name in &dirty.nodes {
            self.sets.refresh_node(name, &self.index);
        }
        for key in &dirty.services {
            self.sets.refresh_service(key, &self.index);
        }
        if dirty.api_server {
            self.sets.refresh_api_server(&self.index);
        }
        if self.index.take_dns_change() {
            self.sets.refresh_dns(&self.index);
        }
        for key in &dirty.pods {
            self.sets.refresh_pod(key, &self.index);
        }
        let mut new = BTreeSet::new();
        for key in dirty.pods.union(&dirty.subjects) {
            if self.recompile(key, &mut batches.first) {
                new.insert(key.clone());
            }
        }
        self.sets
            .sequence(&mut batches, &self.records, now, |pod| !new.contains(pod));
        self.last = batches.then.revision;
        if batches.then.members_changed.is_empty() {
            batches.first.revision = self.last;
        } else {
            self.rest = Some(batches.then);
        }
        Some(batches.first)
    }

    /// Whether the pod is one of those that get rules.
    pub(super) fn is_local(&self, pod: &LivePod<'_>) -> bool {
        match &self.settings.node {
            NodeScope::One(name) => pod.pod.node.as_ref() == Some(name),
            NodeScope::All => true,
        }
    }

    fn touch_pods(&mut self, touched: BTreeSet<PodKey>, now: Timestamp) {
        if touched.is_empty() {
            return;
        }
        self.refresh_locals(&touched, now);
        self.dirty.pods.extend(touched);
        self.mark();
    }

    fn touch_node(&mut self, name: &Arc<str>, touched: BTreeSet<PodKey>, now: Timestamp) {
        self.touch_places(name);
        self.touch_pods(touched, now);
    }

    /// Addresses of a node: what is one of them belongs to no pod's network, whosever that is.
    fn touch_places(&mut self, name: &Arc<str>) {
        self.dirty.nodes.insert(Arc::clone(name));
        if self.sets.depends_on_places() {
            self.dirty.nodes.extend(self.index.node_names());
        }
        self.dirty.api_server = true;
        for key in self.compiled.keys() {
            if self.index.pod(key).and_then(|pod| pod.node.as_ref()) == Some(name) {
                self.dirty.subjects.insert(key.clone());
            }
        }
        self.mark();
    }

    fn set_report(&mut self, node: &Arc<str>, addresses: Option<Vec<IpAddr>>) {
        let after = addresses.clone().unwrap_or_default();
        let before = self.index.report(node).to_vec();
        if self.index.set_report(node, addresses) {
            self.dirty.pods.extend(self.index.claimants(&before));
            self.dirty.pods.extend(self.index.claimants(&after));
            self.touch_places(node);
        }
    }

    fn set_service(&mut self, key: &PodKey, service: Option<Service>) {
        if self.index.set_service(key, service) {
            self.dirty.services.insert(key.clone());
            self.dirty.api_server |= is_api_server(key);
            self.mark();
        }
    }

    fn set_slice(&mut self, key: &PodKey, slice: Option<EndpointSlice>) {
        if self.index.set_slice(key, slice) {
            self.dirty.api_server = true;
            self.mark();
        }
    }

    fn set_declared(&mut self, name: &Arc<str>, addresses: Option<Vec<IpAddr>>) {
        if self.index.set_declared(name, addresses) {
            self.dirty.api_server = true;
            self.mark();
        }
    }

    fn set_policy(&mut self, id: &PolicyId, policy: Option<Policy>) {
        if self.policies.get(id) == policy.as_ref() {
            return;
        }
        let before = self.policies.remove(id);
        if let Some(before) = &before {
            self.templates.remove(&(before.rank, id.clone()));
        }
        for policy in before.iter().chain(&policy) {
            self.touch_subjects(policy);
        }
        if let Some(policy) = policy {
            let template = Template::new(&policy, self.dns_rules());
            self.templates.insert((policy.rank, id.clone()), template);
            self.policies.insert(id.clone(), policy);
        }
        self.mark();
    }

    fn dns_rules(&self) -> DnsRules {
        if self.settings.dns.addresses.is_empty() {
            DnsRules::PodsAlone
        } else {
            DnsRules::WithStandIn
        }
    }

    /// Pods that have no rules yet are touched already, so those that have are enough.
    fn touch_subjects(&mut self, policy: &Policy) {
        let subject = &policy.subject;
        for key in self.compiled.keys() {
            let is_selected = self
                .index
                .live(key)
                .is_some_and(|pod| pod.is_selected(&subject.namespaces, &subject.pods));
            if is_selected {
                self.dirty.subjects.insert(key.clone());
            }
        }
    }

    /// Makes a pod's rules anew; returns whether it had none before.
    fn recompile(&mut self, key: &PodKey, batch: &mut Batch) -> bool {
        let live = self.index.live(key).filter(|pod| self.is_local(pod));
        let after = live.map(|pod| {
            let no_labels = Labels::default();
            let own_node = pod.pod.node.as_ref();
            let own_node = own_node.map(|name| self.index.node(name).map_or(&no_labels, |node| &node.labels));
            let around = Surroundings {
                pod_to_own_node: self.settings.pod_to_own_node,
                own_node,
            };
            compile(&pod, &self.templates, around)
        });
        let before = self.compiled.remove(key);
        let Some(after) = after else {
            if let Some(before) = before {
                self.sets.replace_uses(
                    key,
                    Some(&before.uses),
                    &BTreeMap::new(),
                    &self.index,
                    &self.records,
                );
                self.interests.replace(Some(&before), None);
                batch.pods_removed.push(key.clone());
            }
            return false;
        };
        let is_new = before.is_none();
        if before.as_ref().is_none_or(|before| before.rules != after.rules) {
            let uses = before.as_ref().map(|before| &before.uses);
            self.sets
                .replace_uses(key, uses, &after.uses, &self.index, &self.records);
            batch
                .reevaluate
                .extend(replaced_directions(before.as_ref(), &after));
            batch.rules_replaced.push(after.rules.clone());
        }
        self.interests.replace(before.as_ref(), Some(&after));
        self.compiled.insert(key.clone(), after);
        is_new
    }
}

/// The directions of a pod whose rules are others than before; none for a pod that had no rules.
fn replaced_directions(before: Option<&Compiled>, after: &Compiled) -> Vec<(PodKey, Direction)> {
    Direction::ALL
        .into_iter()
        .filter(|direction| {
            before
                .is_some_and(|before| before.rules.direction(*direction) != after.rules.direction(*direction))
        })
        .map(|direction| (after.rules.pod.clone(), direction))
        .collect()
}

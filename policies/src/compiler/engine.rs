//! What the compiler remembers, and how a batch is made of what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

use crate::compile::{Compiled, CompiledNode, DnsRules, Filled, Surroundings, compile_exposed};
use crate::index::{Index, LivePod, is_api_server};
use crate::model::cluster::{EndpointSlice, Entity, EntityKey, Service};
use crate::model::{Direction, Enforcement, Exposure, Labels, NamespaceSelector, Policy, PolicyId};
use crate::records::{Owned, Records};
use crate::rules::{Batch, SetId};
use crate::sequence::{Aside, Batches, Sets, User};

use super::interests::Interests;
use super::locals::Locals;
use super::policies::{Place, Policies, place_of};
use super::settings::{NodeScope, Settings};
use super::work::Work;

/// All that the compiler knows.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) index: Index,
    policies: Policies,
    pub(super) records: Records,
    pub(super) locals: Locals,
    pub(super) sets: Sets,
    pub(super) compiled: BTreeMap<PodKey, Compiled>,
    compiled_node: Option<CompiledNode>,
    /// As the last batch said it.
    has_policies: bool,
    pub(super) interests: Interests,
    /// The addresses of the node on which the compiler runs.
    pub(super) held: Vec<IpAddr>,
    pub(super) dirty: Dirty,
    work: Work,
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
    /// Policies that select a pod with rules, or did.
    policies: BTreeSet<Place>,
    /// Whether the node's own rules may be others.
    node_rules: bool,
    /// Addresses of pods that came, went or changed, each with whether a pod had it before.
    owned: BTreeMap<IpAddr, bool>,
}

impl Engine {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            index: Index::new(settings.dns.clone()),
            policies: Policies::new(dns_rules(&settings)),
            records: Records::new(settings.records.clone()),
            locals: Locals::default(),
            sets: Sets::default(),
            compiled: BTreeMap::new(),
            compiled_node: None,
            has_policies: false,
            interests: Interests::default(),
            held: Vec::new(),
            dirty: Dirty::default(),
            work: Work::default(),
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
                self.note_owners(&key, &pod.addresses);
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
                let before = self
                    .index
                    .node(&name)
                    .map_or_else(Vec::new, |node| node.addresses.clone());
                self.guard(Owned::Node, &before, &node.addresses);
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
                self.note_owners(key, &[]);
                let touched = self.index.set_pod(key, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Namespace(name) => {
                let touched = self.index.set_namespace(name, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Node(name) if self.index.node(name).is_none() => {}
            EntityKey::Node(name) => {
                let before = self
                    .index
                    .node(name)
                    .map_or_else(Vec::new, |node| node.addresses.clone());
                self.guard(Owned::Node, &before, &[]);
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
    pub(super) fn pending_revision(&self) -> Revision {
        if self.is_due() {
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

    /// What was done so far.
    pub(super) fn work(&self) -> Work {
        Work {
            sets_asked: self.sets.asked,
            records_asked: self.records.steps(),
            ..self.work
        }
    }

    /// Makes a batch due.
    pub(super) const fn mark(&mut self) {
        self.dirty.is_due = true;
    }

    fn is_due(&self) -> bool {
        self.dirty.is_due || self.sets.has_answered()
    }

    pub(super) fn has_batch(&self) -> bool {
        self.rest.is_some() || self.is_due()
    }

    /// What answers open, ahead of the rest. The last of them has the revision to wait for.
    pub(super) fn poll_answers(&mut self, busy: &BTreeSet<SetId>, now: Timestamp) -> Option<Batch> {
        self.expire(now);
        if !self.sets.has_answered() || self.rest.is_some() {
            return None;
        }
        let after = self.revision_after_change();
        let members_changed = self.sets.sequence_answers(&self.records, now, busy);
        if !self.sets.has_answered() {
            self.last = after;
        }
        let is_told = self.last == after || !members_changed.is_empty();
        is_told.then(|| Batch {
            members_changed,
            ..Batch::empty(self.last)
        })
    }

    pub(super) fn poll_batch(&mut self, now: Timestamp) -> Option<Batch> {
        self.expire(now);
        if let Some(rest) = self.rest.take() {
            return Some(rest);
        }
        if !self.is_due() {
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
        for (key, which) in self.concerned(&dirty) {
            if self.recompile(&key, which, &mut batches.first) {
                new.insert(key);
            }
        }
        if !dirty.policies.is_empty() || !dirty.pods.is_empty() {
            self.policies.forget_unused();
        }
        if dirty.node_rules {
            self.recompile_node(&mut batches.first);
        }
        let has_passed =
            |(address, was_owned): &(&IpAddr, &bool)| self.index.owner(**address).is_some() != **was_owned;
        let passing = dirty
            .owned
            .iter()
            .filter(has_passed)
            .map(|(address, _)| *address)
            .collect();
        let has_policies = !self.settings.enforcement.is_audit() && self.policies.has_enforced();
        if self.has_policies != has_policies {
            self.has_policies = has_policies;
            batches.first.has_policies = Some(has_policies);
        }
        let aside = self
            .sets
            .sequence(&mut batches, &self.records, now, &passing, |pod| {
                !new.contains(pod)
            });
        let pods = self.compiled.iter().map(|(key, compiled)| (key, &compiled.rules));
        let node = self.compiled_node.as_ref().map(|node| &node.rules);
        Aside::name_in(aside, &mut batches, pods, node);
        self.last = batches.then.revision;
        if batches.then.members_changed.is_empty() {
            batches.first.revision = self.last;
        } else {
            self.rest = Some(batches.then);
        }
        Some(batches.first)
    }

    /// The pods whose rules may be others, each with the policies because of which; with none, because of the pod.
    fn concerned(&self, dirty: &Dirty) -> BTreeMap<PodKey, Option<BTreeSet<Place>>> {
        let itself = dirty.pods.union(&dirty.subjects);
        let mut concerned: BTreeMap<_, _> = itself.map(|key| (key.clone(), None)).collect();
        if dirty.policies.is_empty() {
            return concerned;
        }
        for (key, compiled) in &self.compiled {
            let Some(live) = self.index.live(key).filter(|_| !concerned.contains_key(key)) else {
                continue;
            };
            let is_about = |place: &&Place| compiled.is_made_of(place) || self.policies.selects(place, &live);
            let places: BTreeSet<Place> = dirty.policies.iter().filter(is_about).cloned().collect();
            if !places.is_empty() {
                concerned.insert(key.clone(), Some(places));
            }
        }
        concerned
    }

    /// Whether the pod is one of those that get rules.
    pub(super) fn is_local(&self, pod: &LivePod<'_>) -> bool {
        match &self.settings.node {
            NodeScope::One(name) => pod.pod.node.as_ref() == Some(name),
            NodeScope::All => true,
        }
    }

    /// Notes, before a pod changes, which of its addresses are some pod's.
    fn note_owners(&mut self, key: &PodKey, after: &[IpAddr]) {
        let before = self.index.pod(key).map_or(&[][..], |pod| &pod.addresses);
        for address in before.iter().chain(after).map(IpAddr::to_canonical) {
            let is_owned = self.index.owner(address).is_some();
            self.dirty.owned.entry(address).or_insert(is_owned);
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
        if self.records.opens().node {
            self.guard_api_server();
        }
        self.dirty.nodes.insert(Arc::clone(name));
        if self.sets.depends_on_places() {
            self.dirty.nodes.extend(self.index.node_names());
        }
        self.dirty.api_server = true;
        self.dirty.node_rules |= matches!(&self.settings.node, NodeScope::One(own) if own == name);
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
            self.guard(Owned::Node, &before, &after);
            self.dirty.pods.extend(self.index.claimants(&before));
            self.dirty.pods.extend(self.index.claimants(&after));
            self.touch_places(node);
        }
    }

    fn set_service(&mut self, key: &PodKey, service: Option<Service>) {
        let addresses =
            |service: Option<&Service>| service.map_or_else(Vec::new, |one| one.addresses.clone());
        let before = addresses(self.index.service(key));
        if self.index.set_service(key, service) {
            if is_api_server(key) {
                self.guard_api_server();
            } else {
                let after = addresses(self.index.service(key));
                self.guard(Owned::Service, &before, &after);
            }
            self.dirty.services.insert(key.clone());
            self.dirty.api_server |= is_api_server(key);
            self.mark();
        }
    }

    fn set_slice(&mut self, key: &PodKey, slice: Option<EndpointSlice>) {
        if self.index.set_slice(key, slice) {
            self.guard_api_server();
            self.dirty.api_server = true;
            self.mark();
        }
    }

    fn set_declared(&mut self, name: &Arc<str>, addresses: Option<Vec<IpAddr>>) {
        if self.index.set_declared(name, addresses) {
            self.guard_api_server();
            self.dirty.api_server = true;
            self.mark();
        }
    }

    fn set_policy(&mut self, id: &PolicyId, policy: Option<Policy>) {
        if self.policies.get(id) == policy.as_ref() {
            return;
        }
        let before = self.policies.set(id, policy);
        let places: Vec<Place> = before.iter().chain(self.policies.get(id)).map(place_of).collect();
        let namespaces = before.iter().chain(self.policies.get(id));
        let is_of_pods = namespaces
            .clone()
            .any(|policy| self.has_rules_in(&policy.subject.namespaces));
        self.dirty.node_rules |= namespaces
            .into_iter()
            .any(|policy| policy.exposure == Exposure::Reject);
        if is_of_pods {
            self.dirty.policies.extend(places);
        }
        self.mark();
    }

    /// Whether a pod has rules that is of one of these namespaces. Pods that have none yet are touched already.
    fn has_rules_in(&self, namespaces: &NamespaceSelector) -> bool {
        match namespaces {
            NamespaceSelector::Named(name) => {
                let mut from = self.compiled.range(PodKey::new(name, "")..);
                from.next()
                    .is_some_and(|(key, _)| key.namespace() == name.as_ref())
            }
            NamespaceSelector::Matching(_) => !self.compiled.is_empty(),
        }
    }

    /// Makes the node's own rules anew. A node without an object has no labels.
    fn recompile_node(&mut self, batch: &mut Batch) {
        let exposed = match self.settings.enforcement {
            Enforcement::Enforced => self.policies.exposed(),
            Enforcement::Audited => Vec::new(),
        };
        let no_labels = Labels::default();
        let own_node = match &self.settings.node {
            NodeScope::One(name) => Some(self.index.node(name).map_or(&no_labels, |node| &node.labels)),
            NodeScope::All => None,
        };
        let after = compile_exposed(&exposed, own_node);
        let before = self.compiled_node.as_ref();
        let is_same = match before {
            Some(before) => before.rules == after.rules,
            None => after.rules.exposed.tiers.is_empty(),
        };
        if is_same {
            return;
        }
        let uses = before.map(|before| &before.uses);
        self.sets
            .replace_uses(&User::Node, uses, &after.uses, &self.index, &self.records);
        batch.node_rules = Some(after.rules.clone());
        self.compiled_node = Some(after);
    }

    /// Makes the rules of a pod anew, as far as these policies have a part in them; all of it for a pod that may look
    /// different itself. Returns whether it had none before.
    fn recompile(&mut self, key: &PodKey, which: Option<BTreeSet<Place>>, batch: &mut Batch) -> bool {
        let before = self.compiled.remove(key);
        let Some(live) = self.index.live(key).filter(|pod| self.is_local(pod)) else {
            if let Some(before) = before {
                self.drop_rules(key, &before, batch);
            }
            self.locals.forget_lost(key);
            return false;
        };
        let is_new = before.is_none();
        let mut compiled = before.unwrap_or_else(|| Compiled::new(&live));
        let no_labels = Labels::default();
        let own_node = live.pod.node.as_ref();
        let own_node = own_node.map(|name| self.index.node(name).map_or(&no_labels, |node| &node.labels));
        let around = Surroundings {
            pod_to_own_node: self.settings.pod_to_own_node,
            own_node,
            lost: self.locals.lost(key),
            enforcement: self.settings.enforcement,
        };
        let places = which.unwrap_or_else(|| {
            let selecting = self.policies.selecting(&live);
            compiled.places().cloned().chain(selecting).collect()
        });
        let parts: Vec<(Place, Option<Filled>)> = places
            .into_iter()
            .map(|place| {
                let filled = self.policies.fill(&place, &live, around);
                (place, filled)
            })
            .collect();
        self.work.pods_compiled += 1;
        self.work.policies_filled += parts.len();
        let moved = compiled.meet(&live);
        let outcome = compiled.replace(parts, around);
        let is_changed = !outcome.directions.is_empty() || !outcome.audited.is_empty();
        if is_new || moved.is_another_run || moved.from.is_some() || is_changed {
            batch.rules_replaced.push(compiled.rules.clone());
        }
        if !is_new {
            // Rules may ask for the pod's own addresses too.
            let is_asked =
                |direction: &Direction| moved.from.is_some() || outcome.directions.contains(*direction);
            let directions = Direction::ALL.into_iter().filter(is_asked);
            batch
                .reevaluate
                .extend(directions.map(|direction| (key.clone(), direction)));
        }
        let user = User::Pod(key.clone());
        for (id, before, after) in &outcome.uses {
            self.sets.change_use(
                &user,
                *id,
                before.as_ref(),
                after.as_ref(),
                &self.index,
                &self.records,
            );
        }
        if is_new || moved.is_another_run || moved.from.is_some() || outcome.patterns {
            let from = moved.from.unwrap_or_default();
            self.interests.replace(key, &from, &compiled.rules.addresses);
            self.records.mention(key, &compiled.patterns);
        }
        self.compiled.insert(key.clone(), compiled);
        is_new
    }

    fn drop_rules(&mut self, key: &PodKey, before: &Compiled, batch: &mut Batch) {
        let user = User::Pod(key.clone());
        for (id, used) in before.uses() {
            self.sets.drop_use(&user, id, used);
        }
        self.interests.replace(key, &before.rules.addresses, &[]);
        self.records.mention(key, &BTreeSet::new());
        batch.pods_removed.push(key.clone());
    }
}

fn dns_rules(settings: &Settings) -> DnsRules {
    if settings.dns.addresses.is_empty() {
        DnsRules::PodsAlone
    } else {
        DnsRules::WithStandIn
    }
}

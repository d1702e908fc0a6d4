//! The policies of the cluster, found by the pods that they are about. Most are about no pod of this node: these
//! are kept as they came, and nothing is made of them until a pod needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::tree::{pack_map, pack_set};

use crate::compiler::index::LivePod;
use crate::compiler::pod_rules::{CompileContext, DnsRules, FilledTemplate, Template};
use crate::model::{Enforcement, Exposure, NamespaceSelector, Policy, PolicyId, Rank};

/// A policy's position in the order of evaluation.
pub(super) type PolicyOrder = (Rank, PolicyId);

/// All policies, and the templates of those that select a pod with rules.
#[derive(Debug)]
pub(super) struct Policies {
    all: BTreeMap<PolicyId, Policy>,
    /// Those about one namespace, by its name.
    of_namespace: BTreeMap<Arc<str>, BTreeSet<PolicyOrder>>,
    /// Those about namespaces by their labels.
    of_cluster: BTreeSet<PolicyOrder>,
    /// Those that are also asked about clients that are no pods.
    exposed: BTreeSet<PolicyOrder>,
    /// How many are not only asked: this is looked at with each batch.
    enforced: usize,
    templates: BTreeMap<PolicyId, Arc<Template>>,
    dns: DnsRules,
}

impl Policies {
    pub(super) const fn new(dns: DnsRules) -> Self {
        Self {
            all: BTreeMap::new(),
            of_namespace: BTreeMap::new(),
            of_cluster: BTreeSet::new(),
            exposed: BTreeSet::new(),
            enforced: 0,
            templates: BTreeMap::new(),
            dns,
        }
    }

    /// Has all that came so far take as little memory as it can.
    pub(super) fn pack(&mut self) {
        pack_map(&mut self.all);
        self.of_namespace.values_mut().for_each(pack_set);
        pack_map(&mut self.of_namespace);
        pack_set(&mut self.of_cluster);
        pack_set(&mut self.exposed);
    }

    /// Whether there is one that is not only asked.
    pub(super) const fn has_enforced(&self) -> bool {
        self.enforced > 0
    }

    pub(super) fn get(&self, id: &PolicyId) -> Option<&Policy> {
        self.all.get(id)
    }

    /// Puts a policy in, or with `None` takes it out; returns the one before.
    pub(super) fn set(&mut self, id: &PolicyId, policy: Option<Policy>) -> Option<Policy> {
        let before = self.all.remove(id);
        if let Some(before) = &before {
            self.templates.remove(id);
            self.withdraw(before);
        }
        if let Some(policy) = policy {
            let place = order_of(&policy);
            self.enforced += usize::from(!policy.enforcement.is_audit());
            if policy.exposure == Exposure::Reject && !policy.enforcement.is_audit() {
                self.exposed.insert(place.clone());
            }
            match &policy.subject.namespaces {
                NamespaceSelector::Named(name) => {
                    self.of_namespace
                        .entry(Arc::clone(name))
                        .or_default()
                        .insert(place);
                }
                NamespaceSelector::Matching(_) => {
                    self.of_cluster.insert(place);
                }
            }
            self.all.insert(id.clone(), policy);
        }
        before
    }

    fn withdraw(&mut self, policy: &Policy) {
        let place = order_of(policy);
        self.enforced -= usize::from(!policy.enforcement.is_audit());
        self.exposed.remove(&place);
        match &policy.subject.namespaces {
            NamespaceSelector::Named(name) => {
                if let Some(places) = self.of_namespace.get_mut(name) {
                    places.remove(&place);
                    if places.is_empty() {
                        self.of_namespace.remove(name);
                    }
                }
            }
            NamespaceSelector::Matching(_) => {
                self.of_cluster.remove(&place);
            }
        }
    }

    /// The places of all policies that select a pod.
    pub(super) fn selecting(&self, pod: &LivePod<'_>) -> BTreeSet<PolicyOrder> {
        let of_namespace = self.of_namespace.get(pod.pod.key.namespace());
        let places = of_namespace.into_iter().flatten().chain(&self.of_cluster);
        places.filter(|place| self.selects(place, pod)).cloned().collect()
    }

    /// Whether there is a policy at this place and it selects a pod.
    pub(super) fn selects(&self, place: &PolicyOrder, pod: &LivePod<'_>) -> bool {
        let policy = self.all.get(&place.1).filter(|policy| policy.rank == place.0);
        policy.is_some_and(|policy| pod.is_selected(&policy.subject.namespaces, &policy.subject.pods))
    }

    /// The template of a policy, made when it is first asked for.
    fn template(&mut self, id: &PolicyId) -> Option<Arc<Template>> {
        if !self.templates.contains_key(id) {
            let template = Template::new(self.all.get(id)?, self.dns);
            self.templates.insert(id.clone(), Arc::new(template));
        }
        self.templates.get(id).map(Arc::clone)
    }

    /// What the policy at a place comes to for a pod; none where it does not select it.
    pub(super) fn fill(
        &mut self,
        place: &PolicyOrder,
        pod: &LivePod<'_>,
        around: CompileContext<'_>,
    ) -> Option<FilledTemplate> {
        let template = self
            .selects(place, pod)
            .then(|| self.template(&place.1))
            .flatten()?;
        let policy = self.all.get(&place.1)?.enforcement;
        let is_audit = [around.enforcement, pod.enforcement, policy]
            .into_iter()
            .any(Enforcement::is_audit);
        Some(FilledTemplate::new(&template, pod, around, is_audit))
    }

    /// The templates of all policies that are also asked about clients that are no pods, in the order of evaluation.
    pub(super) fn exposed(&mut self) -> Vec<(Rank, Arc<Template>)> {
        let exposed = self.exposed.clone().into_iter();
        exposed
            .filter_map(|(rank, id)| Some((rank, self.template(&id)?)))
            .collect()
    }

    /// Lets go of templates that no rules are made of any more.
    pub(super) fn forget_unused(&mut self) {
        self.templates
            .retain(|_, template| Arc::strong_count(template) > 1);
    }
}

/// Where a policy stands.
pub(super) fn order_of(policy: &Policy) -> PolicyOrder {
    (policy.rank, policy.id.clone())
}

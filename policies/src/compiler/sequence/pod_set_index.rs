//! Which sets a pod may be in, by its namespace and labels, so that a change of one pod does not have to ask all sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::pod::PodKey;

use crate::compiler::index::LivePod;
use crate::model::{Labels, NamespaceSelector, Requirement, Selector};
use crate::rules::SetId;

/// Sets of pods by their selectors, and pods by the sets that they are in.
#[derive(Debug, Default)]
pub(super) struct PodSetIndex {
    in_namespace: BTreeMap<Arc<str>, SetsByLabel>,
    anywhere: SetsByLabel,
    /// Of those that ask for no label of the pod: by the labels of the namespace.
    by_namespace: SetsByLabel,
    of_pod: BTreeMap<PodKey, BTreeSet<SetId>>,
}

/// Sets by a value of a label that they ask for; those that ask for none by themselves.
#[derive(Debug, Default)]
struct SetsByLabel {
    by_label: BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<SetId>>>,
    others: BTreeSet<SetId>,
}

impl PodSetIndex {
    /// A set of pods by selectors begins.
    pub(super) fn insert(&mut self, id: SetId, namespaces: &NamespaceSelector, pods: &Selector) {
        match namespaces {
            NamespaceSelector::Named(name) => {
                let sets = self.in_namespace.entry(Arc::clone(name)).or_default();
                if !sets.insert(id, pods) {
                    sets.others.insert(id);
                }
            }
            NamespaceSelector::Matching(namespaces) => {
                if !self.anywhere.insert(id, pods) && !self.by_namespace.insert(id, namespaces) {
                    self.anywhere.others.insert(id);
                }
            }
        }
    }

    /// A set of pods by selectors ends.
    pub(super) fn remove(&mut self, id: SetId, namespaces: &NamespaceSelector, pods: &Selector) {
        match namespaces {
            NamespaceSelector::Named(name) => {
                if let Some(sets) = self.in_namespace.get_mut(name) {
                    sets.remove(id, pods);
                    if sets.by_label.is_empty() && sets.others.is_empty() {
                        self.in_namespace.remove(name);
                    }
                }
            }
            NamespaceSelector::Matching(namespaces) => {
                self.anywhere.remove(id, pods);
                self.by_namespace.remove(id, namespaces);
            }
        }
    }

    /// A set of all pods begins.
    pub(super) fn insert_everywhere(&mut self, id: SetId) {
        self.anywhere.others.insert(id);
    }

    /// A set of all pods ends.
    pub(super) fn remove_everywhere(&mut self, id: SetId) {
        self.anywhere.others.remove(&id);
    }

    /// A pod has members in a set now, or has none any more.
    pub(super) fn note(&mut self, pod: &PodKey, id: SetId, is_in: bool) {
        if is_in {
            self.of_pod.entry(pod.clone()).or_default().insert(id);
        } else if let Some(sets) = self.of_pod.get_mut(pod) {
            sets.remove(&id);
            if sets.is_empty() {
                self.of_pod.remove(pod);
            }
        }
    }

    /// The sets that a pod is in, and those that it may be in as it is now; none for a pod that is gone.
    pub(super) fn concerned(&self, key: &PodKey, pod: Option<&LivePod<'_>>) -> BTreeSet<SetId> {
        let mut all = self.of_pod.get(key).cloned().unwrap_or_default();
        if let Some(pod) = pod {
            if let Some(sets) = self.in_namespace.get(key.namespace()) {
                sets.collect(&pod.pod.labels, &mut all);
            }
            self.anywhere.collect(&pod.pod.labels, &mut all);
            self.by_namespace.collect(pod.namespace, &mut all);
        }
        all
    }
}

impl SetsByLabel {
    /// Files a set under one of the labels that it asks for: the one under which there are fewest now. Returns whether
    /// it asks for any.
    fn insert(&mut self, id: SetId, selector: &Selector) -> bool {
        let named = named(selector);
        let count = |(key, values): &(&Arc<str>, Vec<&Arc<str>>)| -> usize {
            let sets = self.by_label.get(*key);
            values
                .iter()
                .filter_map(|value| Some(sets?.get(*value)?.len()))
                .sum()
        };
        let Some((key, values)) = named.into_iter().min_by_key(count) else {
            return false;
        };
        let sets = self.by_label.entry(Arc::clone(key)).or_default();
        for value in values {
            sets.entry(Arc::clone(value)).or_default().insert(id);
        }
        true
    }

    fn remove(&mut self, id: SetId, selector: &Selector) {
        self.others.remove(&id);
        for (key, values) in named(selector) {
            let Some(sets) = self.by_label.get_mut(key) else {
                continue;
            };
            for value in values {
                if let Some(ids) = sets.get_mut(value) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        sets.remove(value);
                    }
                }
            }
            if sets.is_empty() {
                self.by_label.remove(key);
            }
        }
    }

    fn collect(&self, labels: &Labels, all: &mut BTreeSet<SetId>) {
        all.extend(&self.others);
        for (key, value) in labels.iter() {
            all.extend(
                self.by_label
                    .get(key)
                    .and_then(|sets| sets.get(value))
                    .into_iter()
                    .flatten(),
            );
        }
    }
}

/// The labels of which one of some values must be there.
fn named(selector: &Selector) -> Vec<(&Arc<str>, Vec<&Arc<str>>)> {
    let named = selector
        .requirements()
        .filter_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key, values.iter().collect())),
            Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => None,
        });
    named.collect()
}

//! Sets of records by the names that they are about. Patterns are shared by the pods that a policy selects, so an answer
//! to one pod after the other compares with the same few texts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::pod::PodKey;

use crate::rules::SetId;

/// Sets of records by pod, with their patterns. Pods are never walked through.
#[derive(Debug, Default)]
pub(super) struct NameSetIndex(HashMap<PodKey, BTreeMap<SetId, Arc<BTreeSet<NamePattern>>>>);

impl NameSetIndex {
    /// A set begins.
    pub(super) fn insert(&mut self, id: SetId, pod: &PodKey, patterns: &Arc<BTreeSet<NamePattern>>) {
        let of_pod = self.0.entry(pod.clone()).or_default();
        of_pod.insert(id, Arc::clone(patterns));
    }

    /// A set ends.
    pub(super) fn remove(&mut self, id: SetId, pod: &PodKey) {
        if let Some(of_pod) = self.0.get_mut(pod) {
            of_pod.remove(&id);
            if of_pod.is_empty() {
                self.0.remove(pod);
            }
        }
    }

    /// The sets of a pod that are about a name.
    pub(super) fn about(&self, pod: &PodKey, name: &DnsName) -> impl Iterator<Item = SetId> {
        let sets = self.0.get(pod).into_iter().flatten();
        let matching = sets.filter(|(_, patterns)| patterns.iter().any(|pattern| pattern.matches(name)));
        matching.map(|(id, _)| *id)
    }

    /// All sets of a pod.
    pub(super) fn of_pod(&self, pod: &PodKey) -> impl Iterator<Item = SetId> {
        self.0.get(pod).into_iter().flatten().map(|(id, _)| *id)
    }
}

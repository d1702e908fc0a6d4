//! Sets of records by the names that they are about: an answer must not have to ask every set of its pod.

use std::collections::{BTreeMap, BTreeSet};

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::pod::PodKey;

use crate::rules::SetId;

/// Sets of records by pod and pattern.
#[derive(Debug, Default)]
pub(super) struct ByName(BTreeMap<PodKey, BTreeMap<NamePattern, BTreeSet<SetId>>>);

impl ByName {
    /// A set begins.
    pub(super) fn insert(&mut self, id: SetId, pod: &PodKey, patterns: &BTreeSet<NamePattern>) {
        let of_pod = self.0.entry(pod.clone()).or_default();
        for pattern in patterns {
            of_pod.entry(pattern.clone()).or_default().insert(id);
        }
    }

    /// A set ends.
    pub(super) fn remove(&mut self, id: SetId, pod: &PodKey, patterns: &BTreeSet<NamePattern>) {
        let Some(of_pod) = self.0.get_mut(pod) else {
            return;
        };
        for pattern in patterns {
            if let Some(ids) = of_pod.get_mut(pattern) {
                ids.remove(&id);
                if ids.is_empty() {
                    of_pod.remove(pattern);
                }
            }
        }
        if of_pod.is_empty() {
            self.0.remove(pod);
        }
    }

    /// The sets of a pod that are about a name.
    pub(super) fn about(&self, pod: &PodKey, name: &DnsName) -> BTreeSet<SetId> {
        let patterns = self.0.get(pod).into_iter().flatten();
        let matching = patterns.filter(|(pattern, _)| pattern.matches(name));
        matching.flat_map(|(_, ids)| ids).copied().collect()
    }

    /// All sets of a pod.
    pub(super) fn of_pod(&self, pod: &PodKey) -> BTreeSet<SetId> {
        let patterns = self.0.get(pod).into_iter().flatten();
        patterns.flat_map(|(_, ids)| ids).copied().collect()
    }
}

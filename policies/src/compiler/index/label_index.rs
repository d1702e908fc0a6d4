//! Pods and namespaces by label, so that a new set does not have to look at all of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::tree::{pack_map, pack_set};

use crate::model::{Labels, Requirement, Selector};

/// Those that have a label with a value, by label and value.
#[derive(Debug)]
pub(super) struct LabelIndex<K>(BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<K>>>);

impl<K> Default for LabelIndex<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Clone + Ord> LabelIndex<K> {
    pub(super) fn insert(&mut self, who: &K, labels: &Labels) {
        for (key, value) in labels.iter() {
            self.0
                .entry(key.into())
                .or_default()
                .entry(value.into())
                .or_default()
                .insert(who.clone());
        }
    }

    pub(super) fn remove(&mut self, who: &K, labels: &Labels) {
        for (key, value) in labels.iter() {
            let Some(values) = self.0.get_mut(key) else {
                continue;
            };
            if let Some(all) = values.get_mut(value) {
                all.remove(who);
                if all.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub(super) fn pack(&mut self) {
        for by_value in self.0.values_mut() {
            by_value.values_mut().for_each(pack_set);
            pack_map(by_value);
        }
    }

    /// All that a selector can match: those of the requirement that names values which fewest have; none where it has
    /// no such requirement, and then every one may match.
    pub(super) fn candidates(&self, selector: &Selector) -> Option<Candidates<'_, K>> {
        let named = selector
            .requirements()
            .filter_map(|requirement| match requirement {
                Requirement::In(key, values) => Some((key, values)),
                Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => None,
            });
        let candidates = named.map(|(key, values)| {
            let all = self.0.get(key);
            Candidates(values.iter().filter_map(|value| all?.get(value)).collect())
        });
        candidates.min_by_key(Candidates::count)
    }
}

/// What a selector can match, by the values of one label.
pub(super) struct Candidates<'a, K>(Vec<&'a BTreeSet<K>>);

impl<'a, K> Candidates<'a, K> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|all| all.len()).sum()
    }

    /// All of them, each once.
    pub(super) fn iter(self) -> impl Iterator<Item = &'a K> {
        self.0.into_iter().flatten()
    }
}

//! Pods by label, so that a new set does not have to look at every pod of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::pod::PodKey;

use crate::model::cluster::Pod;
use crate::model::{Requirement, Selector};

/// The pods that have a label with a value, by label and value.
#[derive(Debug, Default)]
pub(super) struct ByLabel(BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<PodKey>>>);

impl ByLabel {
    pub(super) fn insert(&mut self, pod: &Pod) {
        for (key, value) in pod.labels.iter() {
            self.0
                .entry(key.into())
                .or_default()
                .entry(value.into())
                .or_default()
                .insert(pod.key.clone());
        }
    }

    pub(super) fn remove(&mut self, pod: &Pod) {
        for (key, value) in pod.labels.iter() {
            let Some(values) = self.0.get_mut(key) else {
                continue;
            };
            if let Some(pods) = values.get_mut(value) {
                pods.remove(&pod.key);
                if pods.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// All pods that a selector can match, by the first of its requirements that names values; none where
    /// it has no such requirement, and then every pod may match.
    pub(super) fn candidates(&self, selector: &Selector) -> Option<impl Iterator<Item = &PodKey>> {
        let (key, wanted) = selector
            .requirements()
            .find_map(|requirement| match requirement {
                Requirement::In(key, values) => Some((key, values)),
                Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => None,
            })?;
        let pods = self.0.get(key);
        Some(wanted.iter().filter_map(move |value| pods?.get(value)).flatten())
    }
}

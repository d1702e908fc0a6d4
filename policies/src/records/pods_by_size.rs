//! Which pod has most, so that it gives way: asked for each record that is too much.

use std::collections::BTreeSet;

use egret_shared::pod::PodKey;

/// Pods by how much each has; one that has nothing is not in it.
#[derive(Debug, Default)]
pub(super) struct PodsBySize(BTreeSet<(usize, PodKey)>);

impl PodsBySize {
    /// A pod has so much after it had so much before.
    pub(super) fn change(&mut self, pod: &PodKey, before: usize, after: usize) {
        if before == after {
            return;
        }
        if before > 0 {
            self.0.remove(&(before, pod.clone()));
        }
        if after > 0 {
            self.0.insert((after, pod.clone()));
        }
    }

    /// The pod that has most.
    pub(super) fn largest(&self) -> Option<&PodKey> {
        self.0.last().map(|(_, pod)| pod)
    }
}

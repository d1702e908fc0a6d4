//! Which pod has most, so that it gives way: asked for each record that is too much.

use std::collections::BTreeSet;

use egret_shared::pod::PodKey;

/// Pods by how much each has; one that has nothing is not in it. There is no order before somebody asks for it: on most nodes
/// nothing is ever too much.
#[derive(Debug, Default)]
pub(super) struct PodsBySize(Option<BTreeSet<(usize, PodKey)>>);

impl PodsBySize {
    /// A pod has so much after it had so much before.
    pub(super) fn change(&mut self, pod: &PodKey, before: usize, after: usize) {
        let Some(order) = self.0.as_mut().filter(|_| before != after) else {
            return;
        };
        if before > 0 {
            order.remove(&(before, pod.clone()));
        }
        if after > 0 {
            order.insert((after, pod.clone()));
        }
    }

    /// The pod that has most; `all` is how much each has.
    pub(super) fn largest<'a>(&mut self, all: impl Iterator<Item = (usize, &'a PodKey)>) -> Option<PodKey> {
        let order = self.0.get_or_insert_with(|| {
            let some = all.filter(|(size, _)| *size > 0);
            some.map(|(size, pod)| (size, pod.clone())).collect()
        });
        order.last().map(|(_, pod)| pod.clone())
    }
}

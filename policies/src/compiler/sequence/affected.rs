//! The pods and directions that are to be asked again when sets change: something that was allowed may not be any more.
//! A set that every pod's rules name changes with many a pod of the cluster, several at once: so names of pods, which are
//! in order already, are merged and not sorted.

use std::collections::BTreeSet;

use egret_shared::pod::PodKey;

use super::SetUser;
use super::live_set::{LiveSet, SetChange};
use crate::compiler::directions::Directions;
use crate::compiler::set_use::SetUse;
use crate::model::Direction;

/// Pods and directions to reevaluate, in the order of pods, each once.
#[derive(Debug, Default)]
pub(super) struct AffectedPods<'a>(Vec<(&'a PodKey, Directions)>);

impl<'a> AffectedPods<'a> {
    /// Adds those because of one set.
    pub(super) fn add(&mut self, set: &'a LiveSet, changed: &SetChange) {
        let has_gone = !changed.members.removed.is_empty();
        let more = set.users.iter().filter_map(|(user, used)| {
            // The node's rules remember nothing of what they allowed.
            let SetUser::Pod(pod) = user else { return None };
            let asked = reevaluated(used, has_gone, changed.has_new);
            (!asked.is_empty()).then_some((pod, asked))
        });
        self.merge(more);
    }

    /// Both are in order.
    fn merge(&mut self, more: impl Iterator<Item = (&'a PodKey, Directions)>) {
        let mut before = std::mem::take(&mut self.0).into_iter().peekable();
        for (pod, asked) in more {
            while let Some(less) = before.next_if(|(other, _)| *other < pod) {
                self.0.push(less);
            }
            let same = before.next_if(|(other, _)| *other == pod);
            let already = same.map_or_else(Directions::default, |(_, already)| already);
            self.0.push((pod, already.and(asked)));
        }
        self.0.extend(before);
    }

    pub(super) fn all(&self) -> BTreeSet<(PodKey, Direction)> {
        let each = |(pod, asked): &(&PodKey, Directions)| {
            let pod = (*pod).clone();
            asked.iter().map(move |direction| (pod.clone(), direction))
        };
        self.0.iter().flat_map(each).collect()
    }
}

fn reevaluated(used: &SetUse, has_gone: bool, has_new: bool) -> Directions {
    let opened = if has_gone {
        used.opens
    } else {
        Directions::default()
    };
    let closed = if has_new {
        used.closes
    } else {
        Directions::default()
    };
    opened.and(closed)
}

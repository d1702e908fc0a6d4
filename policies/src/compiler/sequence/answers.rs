//! What answers open, ahead of everything else that changed. Rules take their time to be written; until they are, a record is
//! judged by those that are in force, so nobody who waits for one has to wait for them.
//!
//! Only what opens and nothing else: each set that the answer is about stands in Allow rules alone, and is there. An address that
//! is to be in a Deny or a Pass as well goes the ordinary way, in the order of `order`, and so do all of the pod's that
//! came with it: in none of the instants between is it in one of its sets and not in the other.

use std::collections::BTreeSet;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::order::Effect;
use super::{LiveSet, Sets};
use crate::compiler::set_content::SetContent;
use crate::records::{RecordKey, Records};
use crate::rules::{MembersChanged, SetId};

impl Sets {
    /// Records came or live longer because of an answer.
    pub(crate) fn answer(&mut self, changed: &[RecordKey]) {
        let concerned = self.mark_changed(changed);
        self.answered.extend(concerned);
    }

    /// Whether answers are about sets of which no batch has told since.
    pub(crate) fn has_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// The new members of the sets that answers are about, but for pods of which one is `busy` or does more than to open.
    pub(crate) fn sequence_answers(
        &mut self,
        records: &Records,
        now: Timestamp,
        busy: &BTreeSet<SetId>,
    ) -> Vec<MembersChanged> {
        let may_go = |id: &SetId| {
            let set = self.live.get(id).filter(|_| !busy.contains(id));
            set.is_some_and(|set| set.only_opens(records, now))
        };
        let (mut going, waiting): (Vec<SetId>, Vec<SetId>) = self.answered.iter().copied().partition(may_go);
        if !waiting.is_empty() {
            let pods: BTreeSet<&PodKey> = waiting.iter().filter_map(|id| self.pod_of(id)).collect();
            going.retain(|id| self.pod_of(id).is_some_and(|pod| !pods.contains(pod)));
        }
        let mut changed = Vec::new();
        for id in going {
            self.answered.remove(&id);
            let changes = self
                .live
                .get_mut(&id)
                .and_then(|set| set.changes(id, records, now));
            changed.extend(changes.map(|changes| changes.members));
        }
        changed
    }

    /// The pod to whose records a set belongs.
    fn pod_of(&self, id: &SetId) -> Option<&PodKey> {
        let SetContent::Records { pod, .. } = &self.live.get(id)?.named.content else {
            return None;
        };
        Some(pod)
    }
}

impl LiveSet {
    /// Whether all that changes in it are addresses which come, or live longer, and are allowed by it.
    fn only_opens(&self, records: &Records, now: Timestamp) -> bool {
        let closes_nothing = match Effect::of(self.users.values()) {
            Effect::Opens | Effect::HasNamesAsked => true,
            Effect::Closes | Effect::Either => false,
        };
        self.is_programmed
            && self.is_expired_programmed
            && closes_nothing
            && !self.removes_members(records, now)
    }
}

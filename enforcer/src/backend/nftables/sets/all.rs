//! All sets at a start, or where the table is written anew.

use std::collections::BTreeSet;

use egret_kernel::Family;
use egret_kernel::nftables::Changes;
use egret_shared::time::Timestamp;

use super::new_shared::to_hold;
use super::retired::empty_of_others;
use super::{ElementWrite, KernelSet, ListedSets, Programmed, SetWrites, Sets};

impl Sets {
    /// Plans to make all desired sets in a table that has none of ours but those that are made and filled, and `kept` ones, which are filled anew:
    /// what was adopted of records is written again. Of sets that no rule names what is in kept ones stays.
    pub(in crate::backend::nftables) fn plan_all(
        &mut self,
        kept: &BTreeSet<String>,
        listed: &ListedSets,
        changes: &mut Changes,
        now: Timestamp,
    ) -> SetWrites {
        let mut adopted = std::mem::take(&mut self.programmed);
        let mut writes = SetWrites::default();
        self.forget_retired_outside(kept);
        let with_retired = self.kernel_sets_with_retired();
        let refused = &self.refused;
        let taken = self
            .desired
            .iter_mut()
            .filter(|(id, _)| !refused.contains_key(id));
        for (id, wanted) in taken {
            wanted.make_room(now);
            let mut held = adopted.remove(id).unwrap_or_else(|| Programmed::of(wanted.kind));
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let held = &mut held.families[place];
                if !wanted.families().has(family) {
                    continue;
                }
                let set = KernelSet::of(wanted.kind, *id, family);
                if self.made.contains(&set.name) {
                    let filled = self
                        .programmed
                        .entry(*id)
                        .or_insert_with(|| Programmed::of(wanted.kind));
                    filled.families[place] = std::mem::take(held);
                    continue;
                }
                if writes.made.insert(set.name.clone()) {
                    if with_retired.contains(&set.name) {
                        empty_of_others(&set, wanted.kind, &self.retired, listed, changes);
                    } else if kept.contains(&set.name) {
                        changes.empty_set(&set.name);
                    } else {
                        changes.add_set(&set.spec(wanted, family));
                    }
                }
                let elements = to_hold(wanted, held, family, now);
                changes.add_elements(set.elements(), &set.written(elements.iter(), now));
                writes.changed.push(ElementWrite {
                    added: elements.iter().collect(),
                    ..ElementWrite::of(*id, place)
                });
            }
            writes.begun.insert(*id, wanted.kind);
        }
        writes.planned = self.dirty.keys().copied().collect();
        writes
    }
}

//! All sets at a start, or where the table is written anew.

use std::collections::BTreeSet;

use egret_kernel::Family;
use egret_kernel::nftables::Changes;
use egret_policies::rules::{SetId, SetKind};
use egret_shared::time::Timestamp;

use super::new_shared::to_hold;
use super::retired::empty_of_others;
use super::{ElementWrite, KernelSet, ListedSets, Programmed, SetWrites, Sets, difference};
use crate::backend::netfilter::names;

impl Sets {
    /// Plans to make all desired sets in a table that has none of ours but those that are made and filled, and `kept` ones. Of the addresses of
    /// those that share a kept one what differs is written: they may be half a million. All else is filled anew, and what was adopted of
    /// records is written again. Of sets that no rule names what is in kept ones stays.
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
        self.desired.values_mut().for_each(|wanted| wanted.make_room(now));
        let taken = self.desired.iter().filter(|(id, _)| !refused.contains_key(id));
        for (id, wanted) in taken {
            let held = adopted.remove(id).unwrap_or_else(|| Programmed::of(wanted.kind));
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let held = &held.families[place];
                if !wanted.families().has(family) {
                    continue;
                }
                let set = KernelSet::of(wanted.kind, *id, family);
                let is_made = self.made.contains(&set.name);
                let differs = kept.contains(&set.name) && has_listed_addresses(wanted.kind);
                if is_made || differs {
                    let programmed = self.programmed.entry(*id);
                    let programmed = programmed.or_insert_with(|| Programmed::of(wanted.kind));
                    programmed.families[place] = held.clone();
                }
                if is_made {
                    continue;
                }
                if writes.made.insert(set.name.clone()) {
                    let is_retired =
                        |id: SetId| self.retired.get(&id).is_some_and(|it| it.is_of(wanted.kind));
                    let is_desired = |id: SetId| {
                        let desired = self.desired.get(&id).filter(|_| !refused.contains_key(&id));
                        desired.is_some_and(|it| it.kind == wanted.kind)
                    };
                    if differs {
                        empty_of_others(&set, |id| is_desired(id) || is_retired(id), listed, changes);
                    } else if with_retired.contains(&set.name) {
                        empty_of_others(&set, is_retired, listed, changes);
                    } else if kept.contains(&set.name) {
                        changes.empty_set(&set.name);
                    } else {
                        changes.add_set(&set.spec(wanted, family));
                    }
                }
                let elements = to_hold(wanted, held, family, now);
                let mut write = ElementWrite::of(*id, place);
                if differs {
                    difference(&mut write, wanted, held, &elements, now);
                    let gone = set.removed(write.removed.iter().copied());
                    changes.destroy_elements(set.elements(), &gone);
                } else {
                    write.added = elements.iter().collect();
                }
                changes.add_elements(set.elements(), &set.written(write.added.iter().copied(), now));
                writes.changed.push(write);
            }
            writes.begun.insert(*id, wanted.kind);
        }
        writes.planned = self.dirty.keys().copied().collect();
        writes
    }
}

/// Whether what the kernel lists of such a set says all about it. A record has an end besides.
fn has_listed_addresses(kind: SetKind) -> bool {
    names::shares_a_set(kind) && kind != SetKind::Records
}

//! What others changed of sets, by a listing of the table.

use std::collections::BTreeSet;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::nftables::listed_keys;
use egret_shared::time::Timestamp;

use super::{KernelSet, ListedSets, Sets, is_zero_end};
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::names;
use crate::backend::nftables::elements::Elements;

/// How far the kernel's life of a record and ours may lie apart.
const COARSE: Duration = Duration::from_secs(2);

impl Sets {
    /// What somebody else changed of members, by a listing. Members that timed out did not change.
    pub(in crate::backend::nftables) fn drift(&self, listed: &ListedSets, now: Timestamp, drift: &mut Drift) {
        let soon = now.after(COARSE);
        let nothing = Elements::default();
        for (id, held) in &self.programmed {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let name = String::from(names::set(*id, family));
                let held_in = &held.families[place];
                if names::shares_a_set(held.kind) {
                    // That the kernel's set is not there is said by its name.
                    if listed.has_shared(&KernelSet::of(held.kind, *id, family).name) {
                        let there = listed.part(held.kind, *id, family).unwrap_or(&nothing);
                        let missing = held_in.iter().filter(|(element, expires)| {
                            expires.is_none_or(|at| at > soon) && !there.contains(element)
                        });
                        drift.note_all("member_missing", missing.count(), &name);
                        let extra = there.keys().filter(|element| !held_in.contains(element));
                        drift.note_all("member_extra", extra.count(), &name);
                    }
                    continue;
                }
                let Some(elements) = listed.alone(*id, family) else {
                    continue;
                };
                let there: BTreeSet<(Vec<u8>, bool)> = elements
                    .iter()
                    .map(|element| (element.key.clone(), element.is_end))
                    .collect();
                let mut known: BTreeSet<(Vec<u8>, bool)> = BTreeSet::new();
                let mut missing = 0;
                for element in held_in.keys() {
                    let keys = listed_keys(&element.key());
                    missing += usize::from(keys.iter().any(|key| !there.contains(key)));
                    known.extend(keys);
                }
                drift.note_all("member_missing", missing, &name);
                let extra = there
                    .iter()
                    .filter(|key| !known.contains(*key) && !is_zero_end(key));
                drift.note_all("member_extra", extra.count(), &name);
            }
        }
        self.others_drift(listed, drift);
    }

    /// The same of elements that are of no set that rules may name.
    fn others_drift(&self, listed: &ListedSets, drift: &mut Drift) {
        for (kind, id, family, there) in listed.parts() {
            if self.programmed.get(&id).is_some_and(|held| held.kind == kind) {
                continue;
            }
            let extra = there
                .keys()
                .filter(|element| !self.has_retired(kind, id, *element));
            drift.note_all("member_extra", extra.count(), names::set(id, family).as_str());
        }
        for (name, keys) in listed.nobodys() {
            drift.note_all("member_extra", keys.len(), name);
        }
    }
}

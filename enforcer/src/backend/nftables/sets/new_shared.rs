//! Shared sets that the kernel does not have yet, as at the first start after a boot.

use std::collections::BTreeMap;

use egret_kernel::Family;
use egret_kernel::nftables::{Changes, ListedSet};
use egret_policies::rules::{SetId, SetKind};
use egret_shared::time::Timestamp;

use super::{ElementWrite, Elements, KernelSet, SetWrites, Sets, TABLE, target};
use crate::backend::netfilter::model::desired_set::{DesiredSet, lives_longer};
use crate::backend::netfilter::names;

/// Elements that are added in one transaction. As soon as anybody listens to changes of nftables, in whatever network namespace, the kernel
/// makes a message of its own for each element, of 4 KiB, and keeps them until the transaction ends (`nf_tables_setelem_notify` and
/// `nft_commit_notify` of net/netfilter/nf_tables_api.c): for half a million these are 2 GiB, which take longer than all else.
const ADDED_TOGETHER: usize = 2048;

impl Sets {
    /// Makes the shared sets that are not listed and have elements, and those of records in any case. Adds their elements, in as many
    /// transactions as these need.
    pub(in crate::backend::nftables) fn fill_new_shared<E>(
        &mut self,
        listed: &BTreeMap<String, ListedSet>,
        now: Timestamp,
        mut transact: impl FnMut(Changes) -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = || {
            let mut changes = Changes::of(TABLE);
            changes.add_table();
            (changes, SetWrites::default(), ADDED_TOGETHER)
        };
        let (mut changes, mut writes, mut room) = begin();
        let desired = self
            .desired
            .iter()
            .filter(|(id, wanted)| names::shares_a_set(wanted.kind) && !self.refused.contains_key(id));
        let nothing = Elements::default();
        let mut ids: Vec<(SetId, SetKind)> = desired.map(|(id, wanted)| (*id, wanted.kind)).collect();
        // First in the kernel's list are those that most messages are about.
        ids.sort_by_key(|(_, kind)| *kind != SetKind::Records);
        for (id, kind) in ids {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let set = KernelSet::of(kind, id, family);
                let Some(wanted) = self.desired.get(&id).filter(|_| !listed.contains_key(&set.name)) else {
                    continue;
                };
                let held = self
                    .programmed
                    .get(&id)
                    .map_or(&nothing, |held| &held.families[place]);
                let elements = to_hold(wanted, held, family, now);
                let elements: Vec<_> = elements.iter().collect();
                let is_needed = kind == SetKind::Records || !elements.is_empty();
                if is_needed && !self.made.contains(&set.name) && !writes.made.contains(&set.name) {
                    changes.add_set(&set.spec(wanted, family));
                    writes.made.insert(set.name.clone());
                }
                for some in elements.chunks(ADDED_TOGETHER) {
                    if some.len() > room {
                        transact(changes)?;
                        self.done(writes);
                        (changes, writes, room) = begin();
                    }
                    room -= some.len();
                    changes.add_elements(set.elements(), &set.written(some.iter().copied(), now));
                    writes.begun.insert(id, kind);
                    writes.changed.push(ElementWrite {
                        added: some.to_vec(),
                        ..ElementWrite::of(id, place)
                    });
                }
            }
        }
        if !writes.is_empty() || !writes.changed.is_empty() {
            transact(changes)?;
            self.done(writes);
        }
        Ok(())
    }
}

/// What the kernel is to hold for a set in a family, with the records that it held before where these live longer.
pub(super) fn to_hold(wanted: &DesiredSet, held: &Elements, family: Family, now: Timestamp) -> Elements {
    let mut elements = target(wanted, family);
    if wanted.kind == SetKind::Records {
        for (element, end) in held.iter() {
            if lives_longer(end, elements.get(&element), now) {
                elements.insert(element, end);
            }
        }
        elements.retain_living(|at| at > now);
    }
    elements
}

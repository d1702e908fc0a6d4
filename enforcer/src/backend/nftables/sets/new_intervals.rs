//! Sets that come or stay: none is empty to a packet that is judged by it.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::nftables::{Changes, Element, ListedSet};

use super::{ElementWrite, KernelSet, SetWrites, Sets, spec, target};
use crate::backend::netfilter::model::desired_set::DesiredSet;
use crate::backend::netfilter::names;

impl Sets {
    /// The kernel's sets in which desired sets are, laid out as they are to be. Their elements may be others.
    pub(in crate::backend::nftables) fn held_as_desired(
        &self,
        listed: &BTreeMap<String, ListedSet>,
    ) -> BTreeSet<String> {
        let mut held = BTreeSet::new();
        let taken = self
            .desired
            .iter()
            .filter(|(id, _)| !self.refused.contains_key(id));
        for (id, wanted) in taken {
            for family in Family::ALL
                .into_iter()
                .filter(|family| wanted.families().has(*family))
            {
                let set = KernelSet::of(wanted.kind, *id, family);
                let is_held = |listed: &ListedSet| set.spec(wanted, family).is_laid_out_as(*listed);
                if listed.get(&set.name).is_some_and(is_held) {
                    held.insert(set.name);
                }
            }
        }
        held
    }

    /// Plans the sets of intervals that are neither made nor listed. They come in a transaction before that of the rules: since
    /// intervals are found in an array (`nft_rbtree_commit`, net/netfilter/nft_set_rbtree.c), the kernel publishes those of a
    /// transaction at its end, milliseconds after its rules are in force. Until then a new set is empty to packets; one that was there
    /// holds what it held.
    pub(in crate::backend::nftables) fn plan_intervals(
        &self,
        listed: &BTreeMap<String, ListedSet>,
        changes: &mut Changes,
    ) -> SetWrites {
        let mut writes = SetWrites::default();
        let desired = self
            .dirty
            .keys()
            .filter_map(|id| Some((id, self.desired.get(id)?)));
        for (id, wanted) in
            desired.filter(|(id, wanted)| has_intervals(wanted) && !self.refused.contains_key(id))
        {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let name = String::from(names::set(*id, family));
                if !wanted.families().has(family) || self.made.contains(&name) || listed.contains_key(&name) {
                    continue;
                }
                changes.add_set(&spec(wanted, &name, family));
                let elements = target(wanted, family);
                let each = elements.keys().map(|element| Element::lasting(element.key()));
                changes.add_elements(name.as_str(), &each.collect::<Vec<_>>());
                writes.made.insert(name);
                writes.begun.insert(*id, wanted.kind);
                writes.changed.push(ElementWrite {
                    added: elements.iter().collect(),
                    ..ElementWrite::of(*id, place)
                });
            }
        }
        writes
    }
}

fn has_intervals(wanted: &DesiredSet) -> bool {
    !names::shares_a_set(wanted.kind)
}

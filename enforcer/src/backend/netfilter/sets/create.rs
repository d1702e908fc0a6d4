//! Creates sets, many in one netlink exchange: a start has thousands.

use egret_kernel::Family;
use egret_kernel::ipset::SetSpec;
use egret_policies::rules::{SetId, SetKind};

use super::{MOST_BUCKETS, MOST_MEMBERS, ProgrammedSet, Sets, kernel_kind};
use crate::backend::netfilter::names;

/// Sets that are made or filled together. More would only be more memory.
pub(super) const TOGETHER: usize = 256;

impl Sets {
    /// Makes wanted sets in this order.
    pub(in crate::backend::netfilter) fn create_in_order(&mut self, order: &[SetId]) {
        for some in order.chunks(TOGETHER) {
            let specs: Vec<SetSpec> = some.iter().flat_map(|id| self.missing(*id)).collect();
            let outcomes = self.ipsets.create_all(&specs);
            // Who settles a set tries again, and says why it cannot be made.
            let made = specs
                .into_iter()
                .zip(outcomes)
                .filter(|(_, outcome)| outcome.is_ok());
            self.programmed
                .extend(made.map(|(spec, _)| (spec.name.clone(), ProgrammedSet::made(&spec))));
        }
    }

    /// What is to be made for a wanted set, where there is nothing of its name.
    fn missing(&self, id: SetId) -> Vec<SetSpec> {
        let Some(wanted) = self.desired.get(&id) else {
            return Vec::new();
        };
        let families = wanted.families().all();
        let specs = families.map(|family| self.spec(id, wanted.kind, family, wanted.members.len()));
        specs
            .filter(|spec| !self.programmed.contains_key(&spec.name))
            .collect()
    }

    /// What the set of a family is, with room for so many members from the start.
    pub(super) fn spec(&self, id: SetId, kind: SetKind, family: Family, members: usize) -> SetSpec {
        // Records come one answer after the other, and somebody waits for each: 500 have room there.
        let least = if kind == SetKind::Records { 128 } else { 64 };
        let buckets = u32::try_from(members.next_power_of_two())
            .unwrap_or(MOST_MEMBERS)
            .clamp(least, MOST_BUCKETS);
        SetSpec {
            timeout: (kind == SetKind::Records).then_some(0),
            hashsize: buckets,
            maxelem: self.most,
            ..SetSpec::new(names::set(id, family).as_str(), kernel_kind(kind), family)
        }
    }
}

//! Resizes a set that is about to outgrow its hash table, by a swap with one of sixteen times the size. The
//! kernel would double it by itself, and waits each time until nobody uses the old table (`mtype_resize` of
//! net/netfilter/ipset/ip_set_hash_gen.h): 6 to 15 ms in which an answer is held, five times on the way to a
//! few thousand members. The swap waits as long, and seldom.

use egret_kernel::ipset::{Error, SetEntry, SetSpec};
use egret_shared::time::Timestamp;

use super::programmed::ProgrammedSet;
use super::{MOST_BUCKETS, Sets, Write, entry};
use crate::backend::netfilter::names;

/// Members for each place of a table. The kernel has room for twelve in a place and makes the table larger when one is full, which is the
/// sooner the more there are: one of 64 with 400 members in all, one of 128 with 800, one of 1,024 with 4,700.
const IN_A_PLACE: u32 = 2;
/// … of a small one. So many would be rare among 1,024.
const IN_A_PLACE_OF_FEW: u32 = 4;
const FEW: u32 = 256;
const TIMES: u32 = 16;

impl Sets {
    /// Has the sets that are about to outgrow their tables have larger ones. Where the kernel does not take that, it doubles them itself.
    pub(super) fn widen(&mut self, writes: &[Write], now: Timestamp) {
        for Write { change, held, .. } in writes {
            let most = self.most;
            let Some(known) = self.programmed.get_mut(&change.name) else {
                continue;
            };
            if !known.may_outgrow(held.len()) {
                continue;
            }
            let living = known.living(now);
            if let Some(spec) = known.wider(&change.name, living.len() + held.len(), most) {
                self.exchange(&change.name, &spec, &living);
            }
        }
    }

    fn exchange(&mut self, name: &str, spec: &SetSpec, members: &[SetEntry]) {
        match self.put_into(name, spec, members) {
            Ok(()) => {
                if let Some(known) = self.programmed.get_mut(name) {
                    known.places = spec.hashsize;
                }
            }
            Err(error) => tracing::warn!(set = name, %error, "a set stays in the table that it outgrows"),
        }
    }

    /// At each instant the set of this name has all its members.
    fn put_into(&mut self, name: &str, spec: &SetSpec, members: &[SetEntry]) -> Result<(), Error> {
        // What an exchange left that did not end.
        self.ipsets.remove(&spec.name)?;
        self.ipsets.create(spec)?;
        let filled = self.ipsets.add(&spec.name, members);
        let exchanged = filled.and_then(|()| self.ipsets.swap(name, &spec.name));
        if let Err(error) = self.ipsets.remove(&spec.name) {
            tracing::warn!(set = spec.name, %error, "a set that nobody needs stays until the next start");
        }
        exchanged
    }
}

impl ProgrammedSet {
    /// Whether it may have more members than its table is for. Those that are over count until they are looked at.
    fn may_outgrow(&self, coming: usize) -> bool {
        self.members.len() + coming > self.checked_at.max(self.room())
    }

    fn living(&self, now: Timestamp) -> Vec<SetEntry> {
        let members = self.members.iter();
        members
            .filter_map(|(member, expires)| entry(member, expires, now))
            .collect()
    }

    /// What it is to be with so many members; none as long as it is large enough, which is looked at when some more have come.
    fn wider(&mut self, name: &str, members: usize, most: u32) -> Option<SetSpec> {
        self.checked_at = self.members.len() + self.room();
        let places = self.places.saturating_mul(TIMES).min(MOST_BUCKETS);
        if members <= self.room() || places <= self.places {
            return None;
        }
        Some(SetSpec {
            timeout: self.has_timeouts.then_some(0),
            hashsize: places,
            maxelem: most,
            ..SetSpec::new(names::resized(name), self.kind?, names::family_of_set(name)?)
        })
    }

    fn room(&self) -> usize {
        let in_each = if self.places <= FEW {
            IN_A_PLACE_OF_FEW
        } else {
            IN_A_PLACE
        };
        usize::try_from(self.places.saturating_mul(in_each)).unwrap_or(usize::MAX)
    }
}

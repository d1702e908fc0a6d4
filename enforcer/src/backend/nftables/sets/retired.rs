//! Sets that no rule names any more, and of which a set of the kernel that others share still holds elements. They stay for a while: a
//! packet that began with the rules before meets the elements of after, and what a set denied would pass. (A set of the kernel that
//! is removed keeps its elements for such packets.)

use std::collections::BTreeSet;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::netlink;
use egret_kernel::nftables::{Changes, Element, ElementKey};
use egret_policies::rules::{SetId, SetKind};
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::{KernelSet, ListedSets, Programmed, Sets, SharedSets, TABLE};
use crate::backend::nftables::elements::SetElement;

/// A set that no rule names.
#[derive(Debug)]
pub(super) struct Retired {
    /// By the clock: a batch may be seconds old when its transaction is made.
    since: Timestamp,
    pub(super) held: Programmed,
}

impl Retired {
    pub(super) fn is_of(&self, kind: SetKind) -> bool {
        self.held.kind == kind
    }
}

const fn place_of(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// For how long elements stay. A packet takes microseconds.
const RETIREMENT: Duration = Duration::from_secs(2);
/// Elements that are removed in one transaction: an answer that a client waits for comes behind it.
const REMOVED_TOGETHER: usize = 1024;

impl Sets {
    /// No rule names a set from now on.
    pub(super) fn retire(&mut self, id: SetId, held: Programmed) {
        let since = clock::now();
        self.retired.insert(id, Retired { since, held });
    }

    /// The same of all listed sets that are not desired: it is not known since when no rule names them.
    pub(super) fn retire_listed(&mut self, listed: &ListedSets) {
        let since = clock::now();
        for (kind, id, family, elements) in listed.parts() {
            if self.programmed.contains_key(&id) {
                continue;
            }
            let retired = self.retired.entry(id).or_insert_with(|| Retired {
                since,
                held: Programmed::of(kind),
            });
            if retired.is_of(kind) {
                retired.held.families[place_of(family)] = elements.clone();
            }
        }
    }

    /// Forgets those in other sets of the kernel than these: these go as a whole.
    pub(super) fn forget_retired_outside(&mut self, kept: &BTreeSet<String>) {
        self.retired.retain(|id, Retired { held, .. }| {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                if !kept.contains(&KernelSet::of(held.kind, *id, family).name) {
                    held.families[place] = Default::default();
                }
            }
            !held.is_empty()
        });
    }

    pub(super) fn kernel_sets_with_retired(&self) -> BTreeSet<String> {
        let all = self.retired.iter().flat_map(|(id, Retired { held, .. })| {
            let families = Family::ALL.into_iter().zip(&held.families);
            let with_elements = families.filter(|(_, elements)| !elements.is_empty());
            with_elements.map(|(family, _)| KernelSet::of(held.kind, *id, family).name)
        });
        all.collect()
    }

    pub(super) fn has_retired(&self, kind: SetKind, id: SetId, element: SetElement) -> bool {
        let retired = self.retired.get(&id).filter(|retired| retired.is_of(kind));
        retired.is_some_and(|Retired { held, .. }| held.families.iter().any(|all| all.contains(&element)))
    }

    /// Removes elements whose time is over, as many as one transaction is to have; says whether there were any.
    fn remove_some_retired(&mut self, now: Timestamp) -> Result<bool, netlink::Error> {
        let mut changes = Changes::of(TABLE);
        let mut removed = Vec::new();
        let mut room = REMOVED_TOGETHER;
        let due = self
            .retired
            .iter()
            .filter(|(_, retired)| retired.since.after(RETIREMENT) <= now);
        for (id, Retired { held, .. }) in due {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let set = KernelSet::of(held.kind, *id, family);
                let elements = set.removed(held.families[place].keys().take(room));
                changes.destroy_elements(set.elements(), &elements);
                room -= elements.len();
                removed.push((*id, place, elements.len()));
            }
            if room == 0 {
                break;
            }
        }
        if removed.is_empty() {
            return Ok(false);
        }
        self.writer.commit(changes)?;
        for (id, place, number) in removed {
            if let Some(Retired { held, .. }) = self.retired.get_mut(&id) {
                held.families[place] = held.families[place].iter().skip(number).collect();
            }
        }
        self.retired.retain(|_, retired| !retired.held.is_empty());
        Ok(true)
    }
}

impl SharedSets {
    /// Removes all elements whose time is over. Others come in between transactions.
    pub(in crate::backend::nftables) fn remove_retired(&self) -> Result<(), netlink::Error> {
        while self.lock().remove_some_retired(clock::now())? {}
        Ok(())
    }
}

/// Removes all elements of a set of the kernel but those of sets that stay.
pub(super) fn empty_of_others(
    set: &KernelSet,
    stays: impl Fn(SetId) -> bool,
    listed: &ListedSets,
    changes: &mut Changes,
) {
    let mut removed: Vec<Element> = Vec::new();
    for (id, elements) in listed.parts_of(&set.name) {
        if !stays(id) {
            let part = Some(id.digest().letters());
            removed.extend(
                elements
                    .keys()
                    .map(|element| Element::lasting(element.key_in(part))),
            );
        }
    }
    let nobodys = listed.nobodys_of(&set.name).iter();
    removed.extend(nobodys.map(|key| Element::lasting(ElementKey::Listed(key.clone()))));
    changes.destroy_elements(set.name.as_str(), &removed);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::backend::netfilter::model::desired_set::DesiredSet;

    /// Elements that are not there are no error, so these are not made.
    #[test]
    fn a_transaction_removes_a_part_of_what_is_due_and_nothing_else() {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut sets = Sets::open().unwrap();
            let [many, some] = ["many", "some"].map(SetId::of_content);
            let mut changes = Changes::of(TABLE);
            changes.add_table();
            for id in [many, some] {
                let set = KernelSet::of(SetKind::Records, id, Family::V4);
                let spec = egret_policies::rules::SetSpec {
                    id,
                    kind: SetKind::Records,
                    breadth: egret_policies::rules::Breadth::Narrow,
                    description: "names".into(),
                };
                changes.add_set(&set.spec(&DesiredSet::of(&spec), Family::V4));
            }
            sets.writer.commit(changes).unwrap();
            let record = |number: u32| {
                (
                    SetElement::Address(IpAddr::from(number.to_be_bytes())),
                    Some(clock::now()),
                )
            };
            let held = |number| Programmed {
                kind: SetKind::Records,
                families: [(0..number).map(record).collect(), Default::default()],
            };
            let left = |sets: &Sets| {
                let of = |id| sets.retired.get(id).map(|retired| retired.held.families[0].len());
                [of(&many), of(&some)]
            };
            sets.retire(many, held(1500));
            sets.retire(some, held(10));
            assert!(!sets.remove_some_retired(clock::now()).unwrap());
            let due = clock::now().after(RETIREMENT);
            sets.retired.get_mut(&some).unwrap().since = due;
            assert!(sets.remove_some_retired(due).unwrap());
            assert_eq!(left(&sets), [Some(1500 - REMOVED_TOGETHER), Some(10)]);
            assert!(sets.remove_some_retired(due).unwrap());
            assert_eq!(left(&sets), [None, Some(10)]);
            assert!(!sets.remove_some_retired(due).unwrap());
        };
        std::thread::spawn(inside).join().unwrap();
    }
}

//! What the kernel lists of our sets.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use egret_kernel::Family;
use egret_kernel::nftables::{ListedElement, PartElement, listed_keys};
use egret_policies::rules::{Digest, SetId, SetKind};
use egret_shared::time::Timestamp;

use super::{is_zero_end, target};
use crate::backend::netfilter::model::desired_set::DesiredSet;
use crate::backend::netfilter::names;
use crate::backend::nftables::elements::{Elements, SetElement};

/// What the kernel lists of our sets.
#[derive(Debug, Default)]
pub(in crate::backend::nftables) struct ListedSets {
    /// Of sets that have a set of the kernel alone, by name. An earlier version had no others.
    alone: BTreeMap<String, Vec<ListedElement>>,
    /// The sets of the kernel that several share.
    shared: BTreeMap<String, ListedShared>,
}

/// A set of the kernel that several share.
#[derive(Debug)]
struct ListedShared {
    kind: SetKind,
    family: Family,
    parts: BTreeMap<SetId, Elements>,
    /// Keys of elements that are of no set that may have elements here, and of records that do not end.
    nobodys: Vec<Vec<u8>>,
}

impl ListedSets {
    /// Takes what is listed of a set of the kernel.
    pub(in crate::backend::nftables) fn add(
        &mut self,
        name: &str,
        elements: Vec<ListedElement>,
        now: Timestamp,
    ) {
        let Some((kind, family)) = names::shared_by(name) else {
            self.alone.insert(name.to_owned(), elements);
            return;
        };
        let mut parts: BTreeMap<SetId, Vec<_>> = BTreeMap::new();
        let mut nobodys = Vec::new();
        for element in elements {
            let is_here = |id| names::shared_set(kind, id, family).as_deref() == Some(name);
            match part(kind, &element).filter(|(id, _)| is_here(*id)) {
                Some((id, key)) => {
                    let end = element.left.map(|left| now.after(left));
                    parts.entry(id).or_default().push((key, end));
                }
                None => nobodys.push(element.key),
            }
        }
        let parts = parts
            .into_iter()
            .map(|(id, elements)| (id, elements.into_iter().collect()));
        let shared = ListedShared {
            kind,
            family,
            parts: parts.collect(),
            nobodys,
        };
        self.shared.insert(name.to_owned(), shared);
    }

    /// What the kernel holds of a set that has one alone.
    pub(super) fn alone(&self, id: SetId, family: Family) -> Option<&[ListedElement]> {
        let elements = self.alone.get(names::set(id, family).as_str());
        elements.map(Vec::as_slice)
    }

    /// What the kernel holds of a set that shares one.
    pub(super) fn part(&self, kind: SetKind, id: SetId, family: Family) -> Option<&Elements> {
        let name = names::shared_set(kind, id, family)?;
        self.shared.get(&name)?.parts.get(&id)
    }

    /// All sets that share some.
    pub(super) fn parts(&self) -> impl Iterator<Item = (SetKind, SetId, Family, &Elements)> {
        self.shared.values().flat_map(|shared| {
            let parts = shared.parts.iter();
            parts.map(|(id, elements)| (shared.kind, *id, shared.family, elements))
        })
    }

    /// Those that share this set of the kernel.
    pub(super) fn parts_of(&self, name: &str) -> impl Iterator<Item = (SetId, &Elements)> {
        let parts = self.shared.get(name).into_iter().flat_map(|shared| &shared.parts);
        parts.map(|(id, elements)| (*id, elements))
    }

    /// Keys of elements that are nobody's, by the set of the kernel.
    pub(super) fn nobodys(&self) -> impl Iterator<Item = (&String, &[Vec<u8>])> {
        let all = self.shared.iter();
        all.map(|(name, shared)| (name, shared.nobodys.as_slice()))
    }

    /// The same of one.
    pub(super) fn nobodys_of(&self, name: &str) -> &[Vec<u8>] {
        let shared = self.shared.get(name);
        shared.map_or(&[], |shared| shared.nobodys.as_slice())
    }

    pub(super) fn has_shared(&self, name: &str) -> bool {
        self.shared.contains_key(name)
    }

    /// What is known to be held of a set: all but what has a set of the kernel alone, and is no record.
    pub(super) fn held(&self, kind: SetKind, id: SetId, family: Family, now: Timestamp) -> Elements {
        if kind == SetKind::Records {
            return self.records(id, family, now);
        }
        self.part(kind, id, family).cloned().unwrap_or_default()
    }

    /// The records of a set, in the layout of before too.
    fn records(&self, id: SetId, family: Family, now: Timestamp) -> Elements {
        let record = |element: &ListedElement| {
            let end = now.after(element.left?);
            Some((SetElement::Address(element.address()?), Some(end)))
        };
        let of_before = self.alone(id, family).unwrap_or_default();
        let mut records: Elements = of_before.iter().filter_map(record).collect();
        let part = self.part(SetKind::Records, id, family);
        records.extend(&part.into_iter().flat_map(Elements::iter).collect::<Vec<_>>());
        records
    }

    /// Whether the kernel holds more of a set than is desired.
    pub(super) fn has_more(&self, id: SetId, wanted: &DesiredSet) -> bool {
        let in_family = |family| {
            if let Some(held) = self.part(wanted.kind, id, family) {
                let target = target(wanted, family);
                return held.keys().any(|element| !target.contains(&element));
            }
            let Some(elements) = self.alone(id, family) else {
                return false;
            };
            let target: BTreeSet<(Vec<u8>, bool)> = target(wanted, family)
                .keys()
                .flat_map(|element| listed_keys(&element.key()))
                .collect();
            let mut keys = elements
                .iter()
                .map(|element| (element.key.clone(), element.is_end));
            keys.any(|key| !target.contains(&key) && !is_zero_end(&key))
        };
        Family::ALL.into_iter().any(in_family)
    }
}

/// Whose an element of a shared set is, and what it is of that.
fn part(kind: SetKind, element: &ListedElement) -> Option<(SetId, SetElement)> {
    // A record that somebody else made to stay is none of ours.
    if (kind == SetKind::Records) != element.left.is_some() {
        return None;
    }
    let part = PartElement::of_key(&element.key)?;
    let id = SetId::of_digest(Digest::of_letters(part.letters)?);
    let key = match (kind, part.port) {
        (SetKind::AddressPorts, Some((transport, port))) => {
            SetElement::AddressPort(part.address, transport, NonZeroU16::new(port)?)
        }
        (SetKind::Addresses | SetKind::Records, None) => SetElement::Address(part.address),
        (_, _) => return None,
    };
    Some((id, key))
}

//! Where the kernel keeps the elements of a set.
//!
//! The kernel finds a set by comparing its name with those of all others of the table (`nft_set_lookup`), for each message about
//! elements and each rule that names it. So sets of addresses share few sets of the kernel: those of one kind and family whose digests
//! begin with the same letter. A key begins with the whole digest, which says what a set stands for as its name does: it means the
//! same in every life, and never another set. There are several because the kernel lists a set from its beginning for each datagram
//! (`nf_tables_dump_set`). Intervals are in sets of their own: where keys are intervals the kernel copies all of a set for a change.

use egret_kernel::Family;
use egret_kernel::nftables::{Element, ElementsOf, Key, Letters, SetSpec as NftSet, Statement};
use egret_policies::rules::{SetId, SetKind};
use egret_shared::time::Timestamp;

use super::{lookup_keys, spec};
use crate::backend::netfilter::model::desired_set::DesiredSet;
use crate::backend::netfilter::names;
use crate::backend::nftables::elements::SetElement;

/// Where the elements of a set are in a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::nftables) struct KernelSet {
    /// The kernel's set.
    pub(super) name: String,
    /// The set itself.
    named: String,
    /// With what its keys begin; none where it has a set of the kernel alone.
    part: Option<Letters>,
}

impl KernelSet {
    pub(in crate::backend::nftables) fn of(kind: SetKind, id: SetId, family: Family) -> Self {
        let named = String::from(names::set(id, family));
        let shared = names::shared_set(kind, id, family);
        Self {
            part: shared.is_some().then(|| id.digest().letters()),
            name: shared.unwrap_or_else(|| named.clone()),
            named,
        }
    }

    /// That an end of a packet is in the set, or is not.
    pub(in crate::backend::nftables) fn lookup(self, kind: SetKind, address: Key, holds: bool) -> Statement {
        let part = self.part.map(Key::Part).into_iter();
        let keys = part.chain(lookup_keys(kind, address)).collect();
        Statement::In(keys, self.name, holds)
    }

    pub(super) fn spec(&self, wanted: &DesiredSet, family: Family) -> NftSet {
        let alone = spec(wanted, &self.name, family);
        match self.part {
            None => alone,
            Some(letters) => NftSet {
                keys: [&[Key::Part(letters)], &alone.keys[..]].concat(),
                comment: "members of sets, by the digest of each".to_owned(),
                ..alone
            },
        }
    }

    /// Whose elements a message is about.
    pub(super) fn elements(&self) -> ElementsOf<'_> {
        ElementsOf {
            set: &self.name,
            named: &self.named,
        }
    }

    /// Elements as they are written, but for those whose life is over.
    pub(super) fn written(
        &self,
        elements: impl Iterator<Item = (SetElement, Option<Timestamp>)>,
        now: Timestamp,
    ) -> Vec<Element> {
        let written = |(element, expires): (SetElement, Option<Timestamp>)| {
            let key = element.key_in(self.part);
            match expires {
                None => Some(Element::lasting(key)),
                Some(at) if at > now => Some(Element::living(key, at.since(now))),
                Some(_) => None,
            }
        };
        elements.filter_map(written).collect()
    }

    /// Elements as they are removed.
    pub(super) fn removed(&self, elements: impl Iterator<Item = SetElement>) -> Vec<Element> {
        elements
            .map(|element| Element::lasting(element.key_in(self.part)))
            .collect()
    }
}

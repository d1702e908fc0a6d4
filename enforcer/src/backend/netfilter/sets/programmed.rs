//! What the kernel holds of a set, as far as it is known.

use std::collections::{BTreeSet, HashMap};

use egret_kernel::ipset::{Kind, SetEntry, SetHeader, SetListing, SetSpec};
use egret_policies::rules::SetKind;
use egret_shared::time::Timestamp;

use super::Members;
use super::members;
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::names;

/// What the kernel holds of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgrammedSet {
    pub(super) kind: Option<Kind>,
    pub(super) has_timeouts: bool,
    /// Whether it is of the family that its name says, and has room.
    has_expected_type: bool,
    pub(super) members: Members,
    /// Places of its table, as far as it was not the kernel that made more of them.
    pub(super) places: u32,
    /// Up to how many members need not be looked at for those that live.
    pub(super) checked_at: usize,
}

/// How far the kernel's seconds and ours may lie apart.
const COARSE: std::time::Duration = std::time::Duration::from_secs(2);

impl ProgrammedSet {
    pub(super) fn made(spec: &SetSpec) -> Self {
        Self {
            kind: Some(spec.kind),
            has_timeouts: spec.timeout.is_some(),
            has_expected_type: true,
            members: Members::default(),
            places: spec.hashsize,
            checked_at: 0,
        }
    }

    /// Whether it can hold what a set of this kind holds.
    pub(super) fn fits(&self, kind: SetKind) -> bool {
        let is_of_kind =
            self.kind == Some(kernel_kind(kind)) && self.has_timeouts == (kind == SetKind::Records);
        is_of_kind && self.has_expected_type
    }

    pub(super) fn looks_like(&self, header: &SetHeader, now: Timestamp) -> bool {
        let living = |lives: fn(Timestamp, Timestamp) -> bool| {
            let ended = self.members.ends().filter(|at| !lives(*at, now)).count();
            self.members.len() - ended
        };
        let least = living(|at, now| at > now.after(COARSE));
        let most = living(|at, now| at.after(COARSE) > now);
        let elements = usize::try_from(header.elements).unwrap_or(usize::MAX);
        header.kind == self.kind && (least..=most).contains(&elements)
    }

    pub(super) fn of(listing: SetListing, most: u32, now: Timestamp) -> Self {
        let lives = |entry: &SetEntry| {
            entry
                .timeout
                .map(|left| now.after(std::time::Duration::from_secs(u64::from(left.get()))))
        };
        let members = listing
            .entries
            .iter()
            .flat_map(|entry| members::halves(entry.member).map(move |member| (member, lives(entry))))
            .collect();
        Self {
            kind: listing.kind,
            has_timeouts: listing.timeout.is_some(),
            has_expected_type: listing.maxelem >= most
                && names::family_of_set(&listing.name) == listing.family,
            members,
            places: listing.hashsize,
            checked_at: 0,
        }
    }
}

/// What somebody else changed. Members that timed out did not change.
pub(super) fn drift(
    believed: &HashMap<String, ProgrammedSet>,
    listed: &HashMap<String, ProgrammedSet>,
    now: Timestamp,
) -> Drift {
    let mut drift = Drift::default();
    let in_order = |sets: &HashMap<String, ProgrammedSet>| sets.keys().cloned().collect::<BTreeSet<String>>();
    let (before, after) = (in_order(believed), in_order(listed));
    for name in before.difference(&after) {
        drift.note("set_missing", name);
    }
    for name in after.difference(&before) {
        drift.note("set_extra", name);
    }
    for name in before.intersection(&after) {
        let (Some(was), Some(is)) = (believed.get(name), listed.get(name)) else {
            continue;
        };
        // The kernel ends a second's part earlier than it lists.
        let soon = now.after(COARSE);
        let alive = |expires: &Option<Timestamp>| expires.is_none_or(|at| at > soon);
        let gone = was
            .members
            .iter()
            .filter(|(member, expires)| alive(expires) && !is.members.contains(member));
        drift.note_all("member_missing", gone.count(), name);
        let extra = is.members.keys().filter(|member| !was.members.contains(member));
        drift.note_all("member_extra", extra.count(), name);
    }
    drift
}

/// The kernel's word for it.
pub(in crate::backend::netfilter) const fn kernel_kind(kind: SetKind) -> Kind {
    match kind {
        SetKind::Addresses | SetKind::Records => Kind::HashIp,
        SetKind::Networks => Kind::HashNet,
        SetKind::AddressPorts => Kind::HashIpPort,
        SetKind::NetworkPorts => Kind::HashNetPort,
    }
}

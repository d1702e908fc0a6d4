//! A desired set: what it is to hold, with the records that are over.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::Family;
use egret_policies::rules::{ExpiredMembers, Member, MembersChanged, SetKind, SetSpec};
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use super::available_sets::{Available, Families};
use super::set_contents::Content;

/// A desired set.
#[derive(Clone, Debug)]
pub(in crate::backend) struct DesiredSet {
    pub(in crate::backend) kind: SetKind,
    pub(in crate::backend) description: String,
    pub(in crate::backend) is_fixed: bool,
    /// Expired records included, up to a limit: what they opened may still be open. Copied on write, so readers keep theirs.
    pub(in crate::backend) members: Arc<BTreeMap<Member, Option<Timestamp>>>,
    /// At how many members those that are over are counted again.
    pub(in crate::backend) room: usize,
}

/// Records that are over and remembered for the connections that they opened, for each set.
pub(in crate::backend) const MOST_EXPIRED: usize = 4096;

impl DesiredSet {
    pub(in crate::backend) fn of(spec: &SetSpec) -> Self {
        Self {
            kind: spec.kind,
            description: spec.description.to_string(),
            is_fixed: spec.is_fixed(),
            members: Arc::default(),
            room: MOST_EXPIRED,
        }
    }

    /// Takes changes of members.
    pub(in crate::backend) fn note(&mut self, change: &MembersChanged) {
        let members = Arc::make_mut(&mut self.members);
        for member in &change.removed {
            members.remove(member);
        }
        members.extend(change.added.iter().copied());
    }

    /// Takes records that were over before the set was made.
    pub(in crate::backend) fn note_expired(&mut self, lapsed: &ExpiredMembers) {
        for (address, ended) in &lapsed.addresses {
            let member = Arc::make_mut(&mut self.members).entry(Member::Address(*address));
            member.or_insert(Some(*ended));
        }
    }

    /// Whether it remembers records that are over.
    pub(in crate::backend) fn has_expired(&self) -> bool {
        self.kind == SetKind::Records && !self.members.is_empty()
    }

    /// What it is to hold; none for records.
    pub(in crate::backend) fn content(&self) -> Option<Content> {
        (self.kind != SetKind::Records).then(|| (self.kind, Arc::clone(&self.members)))
    }

    /// Whether it is of records, and holds an address, or did.
    pub(in crate::backend) fn has_record(&self, address: IpAddr) -> bool {
        self.kind == SetKind::Records && self.members.contains_key(&Member::Address(address))
    }

    /// Whether it holds an address; one of records also while the record is over.
    pub(in crate::backend) fn holds(&self, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        match self.kind {
            SetKind::Addresses | SetKind::Records => self.members.contains_key(&Member::Address(address)),
            SetKind::Networks | SetKind::AddressPorts => {
                self.members.keys().any(|member| covers(member, address, port))
            }
        }
    }

    /// As it is available once it is made.
    pub(in crate::backend) fn available(&self) -> Available {
        Available {
            kind: self.kind,
            families: self.families(),
        }
    }

    /// Where it is to be: networks of one family that never change are made in that one alone. Those of IPv4 come first.
    pub(in crate::backend) fn families(&self) -> Families {
        // Who is told something asks this too.
        if !self.is_fixed {
            return Families::Both;
        }
        let family = |member: &Member| match member {
            Member::Network(network) => Some(Family::of(network.addr())),
            Member::Address(_) | Member::AddressPort(..) => None,
        };
        let ends = [self.members.first_key_value(), self.members.last_key_value()];
        match ends.map(|end| end.and_then(|(member, _)| family(member))) {
            [Some(first), Some(last)] if first == last => Families::Only(first),
            _ => Families::Both,
        }
    }

    /// Forgets what it may when it has grown; where most members live, it is looked through ever more rarely.
    pub(in crate::backend) fn make_room(&mut self, now: Timestamp) {
        if self.is_full() {
            self.forget_oldest(now);
            self.room = MOST_EXPIRED.max(self.members.len()) * 2;
        }
    }

    pub(in crate::backend) fn is_full(&self) -> bool {
        self.kind == SetKind::Records && self.members.len() > self.room
    }

    /// Forgets expired records, the oldest first, above the limit.
    pub(in crate::backend) fn forget_oldest(&mut self, now: Timestamp) {
        let mut lapsed: Vec<Timestamp> = self
            .members
            .values()
            .flatten()
            .filter(|at| **at <= now)
            .copied()
            .collect();
        let Some(surplus) = lapsed
            .len()
            .checked_sub(MOST_EXPIRED)
            .filter(|surplus| *surplus > 0)
        else {
            return;
        };
        lapsed.sort_unstable();
        let newest_gone = lapsed[surplus - 1];
        Arc::make_mut(&mut self.members).retain(|_, expires| expires.is_none_or(|at| at > newest_gone));
    }
}

/// Whether writing would add to the life that the kernel gives the member.
pub(in crate::backend) fn lives_longer(
    wanted: Option<Timestamp>,
    held: Option<Option<Timestamp>>,
    now: Timestamp,
) -> bool {
    match (wanted, held) {
        (Some(wanted), _) if wanted <= now => false,
        (Some(wanted), Some(Some(held))) => wanted > held,
        (Some(_) | None, None) => true,
        (Some(_) | None, Some(None)) | (None, Some(Some(_))) => false,
    }
}

/// Whether a wanted member holds an address, with a port where the set has some.
fn covers(member: &Member, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
    match member {
        Member::Address(own) => *own == address,
        Member::Network(network) => network.contains(&address),
        Member::AddressPort(own, transport, number) => {
            *own == address && port == Some((*transport, number.get()))
        }
    }
}

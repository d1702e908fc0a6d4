//! One set: desired members by contributor, and the members that are programmed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use egret_shared::tree::pack_map;

use crate::compiler::set_content::{NamedSet, SetContent};
use crate::records::Records;
use crate::rules::{ExpiredMembers, Member, MembersChanged, SetId};

use super::set_users::SetUsers;

/// Who puts members into a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contributor {
    Pod(PodKey),
    Node(Arc<str>),
    Service(PodKey),
    Policy,
}

/// A set that rules name.
#[derive(Debug)]
pub(super) struct LiveSet {
    pub(super) named: Arc<NamedSet>,
    pub(super) users: SetUsers,
    /// Whether a backend was told to make it.
    pub(super) is_programmed: bool,
    /// Whether a backend knows the records that were over before.
    pub(super) is_expired_programmed: bool,
    /// In order. A big set has thousands of contributors with one or two members each.
    contributions: BTreeMap<Contributor, Box<[Member]>>,
    members: BTreeMap<Member, MemberState>,
    touched: Vec<Member>,
    /// What the cluster itself took or gave up.
    protected: BTreeSet<IpAddr>,
}

/// A change of a set's members.
#[derive(Debug)]
pub(super) struct SetChange {
    pub(super) members: MembersChanged,
    /// Whether a member came that was not there; one that only lives longer is not counted.
    pub(super) has_new: bool,
}

/// A member that is desired, programmed, or both.
#[derive(Clone, Copy, Debug, Default)]
struct MemberState {
    /// How many contributors put it in: two nodes may share an address.
    contributors: u32,
    /// Whether it is programmed, with its expiry where it has one.
    programmed: Option<Option<Timestamp>>,
}

impl LiveSet {
    pub(super) const fn new(named: Arc<NamedSet>) -> Self {
        Self {
            named,
            users: SetUsers::new(),
            is_programmed: false,
            is_expired_programmed: false,
            contributions: BTreeMap::new(),
            members: BTreeMap::new(),
            touched: Vec::new(),
            protected: BTreeSet::new(),
        }
    }

    /// Has all that came so far take as little memory as it can.
    pub(super) fn pack(&mut self) {
        pack_map(&mut self.contributions);
        pack_map(&mut self.members);
        self.touched.shrink_to_fit();
    }

    /// The pods that put members in.
    pub(super) fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.contributions.keys().filter_map(|who| match who {
            Contributor::Pod(pod) => Some(pod),
            Contributor::Node(_) | Contributor::Service(_) | Contributor::Policy => None,
        })
    }

    /// Replaces what one contributor puts in; returns whether that is another thing than before.
    pub(super) fn contribute(&mut self, who: Contributor, members: BTreeSet<Member>) -> bool {
        let members: Box<[Member]> = members.into_iter().collect();
        let before = if members.is_empty() {
            self.contributions.remove(&who)
        } else {
            self.contributions.insert(who, members.clone())
        }
        .unwrap_or_default();
        let is_in = |list: &[Member], member: &Member| list.binary_search(member).is_ok();
        for gone in before.iter().filter(|member| !is_in(&members, member)) {
            self.withdraw(*gone);
        }
        for come in members.iter().filter(|member| !is_in(&before, member)) {
            self.members.entry(*come).or_default().contributors += 1;
            self.touched.push(*come);
        }
        before != members
    }

    fn withdraw(&mut self, member: Member) {
        let mut standing = self.members.get(&member).copied().unwrap_or_default();
        standing.contributors = standing.contributors.saturating_sub(1);
        self.set(member, standing);
        self.touched.push(member);
    }

    fn set(&mut self, member: Member, standing: MemberState) {
        if standing.contributors == 0 && standing.programmed.is_none() {
            self.members.remove(&member);
        } else {
            self.members.insert(member, standing);
        }
    }

    fn programmed(&self, member: Member) -> Option<Option<Timestamp>> {
        self.members.get(&member).and_then(|standing| standing.programmed)
    }

    fn set_programmed(&mut self, member: Member, told: Option<Option<Timestamp>>) {
        let standing = self.members.get(&member).copied().unwrap_or_default();
        self.set(
            member,
            MemberState {
                programmed: told,
                ..standing
            },
        );
    }

    /// Whether something that a backend holds is to go.
    pub(super) fn removes_members(&self, records: &Records, now: Timestamp) -> bool {
        let is_held = |standing: &MemberState| {
            standing
                .programmed
                .is_some_and(|told| told.is_none_or(|until| until > now))
        };
        self.touched.iter().any(|member| {
            let standing = self.members.get(member).copied().unwrap_or_default();
            is_held(&standing) && self.desired(*member, standing, records).is_none()
        })
    }

    /// Marks members that may have changed.
    pub(super) fn touch(&mut self, members: impl IntoIterator<Item = Member>) {
        self.touched.extend(members);
    }

    /// Marks addresses that no name opens any more, or that names open again. What is over of them a backend is to
    /// forget, or to be told.
    pub(super) fn protect(&mut self, addresses: impl IntoIterator<Item = IpAddr> + Clone) {
        self.touch(addresses.clone().into_iter().map(Member::Address));
        self.protected.extend(addresses);
        self.is_expired_programmed = false;
    }

    /// Until when an address is in a set that is made of records.
    pub(super) fn record_expiry(&self, address: IpAddr, records: &Records) -> Option<Timestamp> {
        let SetContent::Records { pod, patterns, .. } = &self.named.content else {
            return None;
        };
        records.expiry(pod, patterns, address)
    }

    /// What the set would hold beyond its members if no time were over, unless a backend was told of that. What ends from
    /// here on it sees itself.
    pub(super) fn take_expired(&mut self, id: SetId, records: &Records) -> Option<ExpiredMembers> {
        if std::mem::replace(&mut self.is_expired_programmed, true) {
            return None;
        }
        self.expired(id, records)
    }

    /// What a set of this name would hold beyond its members if no time were over.
    pub(super) fn expired(&self, id: SetId, records: &Records) -> Option<ExpiredMembers> {
        let SetContent::Records { pod, patterns, .. } = &self.named.content else {
            return None;
        };
        let addresses: Vec<_> = records.expired(pod, patterns).into_iter().collect();
        (!addresses.is_empty()).then_some(ExpiredMembers { set: id, addresses })
    }

    /// Forgets a member that has timed out wherever it is; returns whether it is gone.
    pub(super) fn drop_expired(&mut self, member: Member, now: Timestamp) -> bool {
        match self.programmed(member) {
            Some(Some(until)) if until <= now => {
                self.set_programmed(member, None);
                true
            }
            Some(Some(_) | None) => false,
            None => true,
        }
    }

    /// What a backend is to be told, which counts as told from here on.
    pub(super) fn changes(&mut self, id: SetId, records: &Records, now: Timestamp) -> Option<SetChange> {
        let (mut added, mut removed, mut has_new) = (Vec::new(), Vec::new(), false);
        let guarded = std::mem::take(&mut self.protected);
        // A backend remembers what is over, which is nothing that it was told of here.
        let pod = match &self.named.content {
            SetContent::Records { pod, .. } => Some(pod.clone()),
            _ => None,
        };
        let is_protected = |address| pod.as_ref().is_some_and(|pod| records.is_protected(pod, address));
        let is_withdrawn = |member: Member| match member {
            Member::Address(address) => guarded.contains(&address) && is_protected(address),
            Member::Network(_) | Member::AddressPort(..) | Member::NetworkPort(..) => false,
        };
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for member in touched {
            let standing = self.members.get(&member).copied().unwrap_or_default();
            let told = standing
                .programmed
                .filter(|told| told.is_none_or(|until| until > now));
            let told = match (told, self.desired(member, standing, records)) {
                (None, Some(until)) => {
                    has_new = true;
                    added.push((member, until));
                    Some(until)
                }
                (Some(before), Some(until)) if before < until => {
                    added.push((member, until));
                    Some(until)
                }
                (Some(_), None) => {
                    removed.push(member);
                    None
                }
                (None, None) if is_withdrawn(member) => {
                    removed.push(member);
                    None
                }
                (Some(_), Some(_)) | (None, None) => told,
            };
            if told != standing.programmed {
                self.set(
                    member,
                    MemberState {
                        programmed: told,
                        ..standing
                    },
                );
            }
        }
        (!added.is_empty() || !removed.is_empty()).then_some(SetChange {
            members: MembersChanged {
                set: id,
                added,
                removed,
            },
            has_new,
        })
    }

    /// The members that a backend was told of and that are not over.
    pub(super) fn programmed_members(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (Member, Option<Timestamp>)> {
        let told = self
            .members
            .iter()
            .filter_map(|(member, standing)| Some((*member, standing.programmed?)));
        told.filter(move |(_, until)| until.is_none_or(|until| until > now))
    }

    /// Whether a member should be there, and if it is a record until when.
    fn desired(&self, member: Member, standing: MemberState, records: &Records) -> Option<Option<Timestamp>> {
        if !matches!(self.named.content, SetContent::Records { .. }) {
            return (standing.contributors > 0).then_some(None);
        }
        match member {
            Member::Address(address) => self.record_expiry(address, records).map(Some),
            Member::Network(_) | Member::AddressPort(..) | Member::NetworkPort(..) => None,
        }
    }
}

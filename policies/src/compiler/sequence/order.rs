//! Close first, then open. Between two steps of a batch a connection must never be allowed that neither
//! the old nor the new state allows; so what only closes comes before what only opens, and where rules
//! are replaced too, what opens comes after them. A set for which that is no order (it stands in a Pass, or in an Allow and in a
//! Deny) changes aside: rules name one with the new members in its place, all at once, and are given back to it when it holds
//! the same.
//!
//! The set that has names asked ([`crate::rules::Names`]) takes before all other sets and gives behind all: whoever is in the set of a
//! name is in it too.
//!
//! An address that comes to the pods or leaves them needs no such care, or every pod of the cluster that comes would have all
//! these rules written anew: what was sent to it until now was judged as if it were nobody's, and a moment more of
//! that, or of half of it, opens nothing of a pod that was there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_shared::net::IpNet;
use egret_shared::time::Timestamp;

use super::SetUser;
use super::set_users::SetUsers;
use crate::compiler::set_use::SetUse;
use crate::rules::{Batch, Member, MembersChanged, SetId};

/// A batch, and what is to come after it.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) first: Batch,
    pub(crate) then: Batch,
}

/// What one more member of a set does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It stands in Allow rules only.
    Opens,
    /// It stands in Deny rules only.
    Closes,
    /// Both, or in a Pass, behind which anything may stand: then there is a right order only where nothing else changes.
    Either,
    /// It stands in no rule, and only has those over names asked.
    HasNamesAsked,
}

impl Effect {
    pub(super) fn of<'a>(uses: impl Iterator<Item = &'a SetUse>) -> Self {
        let (mut opens, mut closes) = (false, false);
        for used in uses {
            opens |= !used.opens.is_empty();
            closes |= !used.closes.is_empty();
        }
        match (opens, closes) {
            (true, false) => Self::Opens,
            (false, true) => Self::Closes,
            (true, true) => Self::Either,
            (false, false) => Self::HasNamesAsked,
        }
    }
}

/// A change of a programmed set, with what decides its place in the batch.
#[derive(Debug)]
pub(super) struct OrderedChange<'a> {
    pub(super) effect: Effect,
    /// Whose rules name it.
    pub(super) users: &'a SetUsers,
    pub(super) former: FormerUser,
    pub(super) members: MembersChanged,
    affected: AffectedAddresses,
}

/// Whose rules stopped naming a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormerUser {
    Nobody,
    /// Of pods that are gone, and their rules with them.
    Gone,
    /// Of somebody whose rules are replaced now.
    Replaced,
}

/// The addresses that a change affects, without those that come to pods or leave them.
#[derive(Debug)]
struct AffectedAddresses {
    hosts: BTreeSet<IpAddr>,
    networks: Vec<IpNet>,
}

impl<'a> OrderedChange<'a> {
    pub(super) fn new(
        users: &'a SetUsers,
        former: &[SetUse],
        of: FormerUser,
        members: MembersChanged,
        passing: &BTreeSet<IpAddr>,
    ) -> Self {
        Self {
            effect: Effect::of(users.values().chain(former)),
            users,
            former: of,
            affected: AffectedAddresses::by(&members, passing),
            members,
        }
    }

    /// Whether rules that name it, or did, are replaced together with it. The rules of a pod that is gone judge what it
    /// sends for a moment more: its own address, like any that leaves, may be in some of its sets and not in others.
    fn meets_rules(&self, replaced: &BTreeSet<SetUser>) -> bool {
        let by_former = match self.former {
            FormerUser::Nobody => false,
            FormerUser::Gone => !self.affected.is_empty(),
            FormerUser::Replaced => true,
        };
        by_former || replaced.iter().any(|user| self.users.contains(user))
    }

    /// Whether somebody's packets of one address meet two changed sets.
    fn meets(&self, other: &Self) -> bool {
        self.members.set != other.members.set
            && other.effect != Effect::HasNamesAsked
            && self.affected.meets(&other.affected)
            && self.shares_users(other)
    }

    fn shares_users(&self, other: &Self) -> bool {
        let (few, many) = match self.users.len() < other.users.len() {
            true => (self.users, other.users),
            false => (other.users, self.users),
        };
        few.keys().any(|user| many.contains(user))
    }
}

impl AffectedAddresses {
    fn by(changed: &MembersChanged, passing: &BTreeSet<IpAddr>) -> Self {
        let (mut hosts, mut networks) = (BTreeSet::new(), Vec::new());
        let added = changed.added.iter().map(|(member, _)| member);
        for member in added.chain(&changed.removed) {
            match member {
                Member::Address(address) | Member::AddressPort(address, ..) if passing.contains(address) => {}
                Member::Network(network) | Member::NetworkPort(network, ..)
                    if is_host(network) && passing.contains(&network.addr()) => {}
                Member::Address(address) | Member::AddressPort(address, ..) => {
                    hosts.insert(*address);
                }
                Member::Network(network) | Member::NetworkPort(network, ..) => networks.push(*network),
            }
        }
        Self { hosts, networks }
    }

    fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.networks.is_empty()
    }

    /// Whether some address may be concerned by both.
    fn meets(&self, other: &Self) -> bool {
        let is_within = |hosts: &BTreeSet<IpAddr>, networks: &[IpNet]| {
            networks
                .iter()
                .any(|network| hosts.iter().any(|host| network.contains(host)))
        };
        let overlaps = |network: &IpNet| {
            let meets = |other: &IpNet| network.contains(other) || other.contains(network);
            other.networks.iter().any(meets)
        };
        !self.hosts.is_disjoint(&other.hosts)
            || is_within(&self.hosts, &other.networks)
            || is_within(&other.hosts, &self.networks)
            || self.networks.iter().any(overlaps)
    }
}

/// Writes changes into batches; returns the sets that must change while no rule names them. `replaced` gets those
/// whose rules are replaced because of that.
///
/// Where no rules are replaced, a set that opens takes first and gives then, so that an address that goes from one to another
/// is never in neither; one that closes takes before all that and gives behind. So in between an address is in
/// the sets of both states, and the first rule that holds it is one of either.
pub(super) fn into_batches(
    changes: Vec<OrderedChange<'_>>,
    replaced: &mut BTreeSet<SetUser>,
    batches: &mut Batches,
) -> BTreeSet<SetId> {
    let aside = without_order(&changes, replaced);
    let (mut taking, mut either, mut giving, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut behind = Vec::new();
    for change in changes {
        let meets_rules = change.meets_rules(replaced);
        let MembersChanged { set, added, removed } = change.members;
        if aside.contains(&set) {
            batches
                .then
                .members_changed
                .insert(0, MembersChanged { set, added, removed });
            continue;
        }
        let (takes, gives) = (part(set, added, Vec::new()), part(set, Vec::new(), removed));
        let first = &mut batches.first.members_changed;
        match (change.effect, meets_rules) {
            (Effect::Opens, true) => {
                first.extend(gives);
                batches.then.members_changed.extend(takes);
            }
            (Effect::Closes, true) => {
                first.extend(takes);
                batches.then.members_changed.extend(gives);
            }
            (Effect::Opens, false) => {
                taking.extend(takes);
                giving.extend(gives);
            }
            (Effect::Closes, false) => {
                first.extend(takes);
                last.extend(gives);
            }
            (Effect::Either, _) => either.extend(takes.into_iter().chain(gives)),
            (Effect::HasNamesAsked, _) => {
                first.splice(0..0, takes);
                behind.extend(gives);
            }
        }
    }
    batches
        .first
        .members_changed
        .extend([taking, either, giving, last].into_iter().flatten());
    // What is put aside is changed in the later batch.
    let later = !batches.then.members_changed.is_empty();
    let end = if later {
        &mut batches.then
    } else {
        &mut batches.first
    };
    end.members_changed.extend(behind);
    aside
}

fn part(set: SetId, added: Added, removed: Vec<Member>) -> Option<MembersChanged> {
    let part = MembersChanged { set, added, removed };
    (!part.added.is_empty() || !part.removed.is_empty()).then_some(part)
}

type Added = Vec<(Member, Option<Timestamp>)>;

/// Sets for whose change there is no right order, as there are rules or other sets that change with it. That their own
/// rules are replaced may concern further ones.
fn without_order(changes: &[OrderedChange<'_>], replaced: &mut BTreeSet<SetUser>) -> BTreeSet<SetId> {
    let mut aside = BTreeSet::new();
    loop {
        let more = changes.iter().find(|change| {
            change.effect == Effect::Either
                && !aside.contains(&change.members.set)
                && (change.meets_rules(replaced) || changes.iter().any(|other| change.meets(other)))
        });
        let Some(more) = more else { return aside };
        aside.insert(more.members.set);
        replaced.extend(more.users.keys().cloned());
    }
}

fn is_host(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

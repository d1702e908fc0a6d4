//! Sets of addresses in the table. What changes of them is part of the transaction that changes the rules, or of one of its own where
//! a client waits.
//!
//! Elements of a set that no rule names any more stay for a while where it shares a set of the kernel (`retired`).
//!
//! A record has the kernel's own timeout. It is never shortened: what the kernel holds longer than we know stays until it times out.

mod all;
mod concurrent;
mod drift;
mod kernel_set;
mod listed;
mod new_intervals;
mod new_shared;
mod retired;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::netlink;
use egret_kernel::nftables::{Changes, Element, Key, SetKind as NftKind, SetSpec as NftSet, TableWriter};
use egret_policies::rules::{ExpiredMembers, Member, MembersChanged, SetId, SetKind, SetSpec};
use egret_shared::net::{IpNet, Transport};
use egret_shared::time::Timestamp;

use super::TABLE;
use super::elements::{Elements, SetElement};
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::model::desired_set::{DesiredSet, lives_longer};
use crate::backend::netfilter::names;

pub(super) use concurrent::SharedSets;
pub(super) use kernel_set::KernelSet;
pub(super) use listed::ListedSets;
use retired::Retired;

/// All sets of ours.
#[derive(Debug)]
pub(super) struct Sets {
    writer: TableWriter,
    desired: BTreeMap<SetId, DesiredSet>,
    /// The sets that the kernel holds and rules may name.
    programmed: BTreeMap<SetId, Programmed>,
    /// Sets of which the kernel holds elements, and that no rule names any more.
    retired: BTreeMap<SetId, Retired>,
    /// The names of the kernel's sets.
    made: BTreeSet<String>,
    /// Desired sets that rules may refer to: all of them, since they are made in the transaction of the rules.
    available: Arc<AvailableSets>,
    /// Sets whose kernel state may differ from what is desired.
    dirty: BTreeMap<SetId, Touched>,
    /// Sets that got members concurrently.
    concurrent: BTreeSet<SetId>,
    /// Sets that the kernel refused, and why: they are left out until they are tried again.
    refused: BTreeMap<SetId, String>,
}

/// What the kernel holds of a set.
#[derive(Debug)]
struct Programmed {
    kind: SetKind,
    families: [Elements; 2],
}

impl Programmed {
    fn of(kind: SetKind) -> Self {
        let families = Default::default();
        Self { kind, families }
    }

    fn is_empty(&self) -> bool {
        self.families.iter().all(Elements::is_empty)
    }

    /// Removes all elements of a family.
    fn remove(&self, id: SetId, place: usize, family: Family, changes: &mut Changes) {
        let set = KernelSet::of(self.kind, id, family);
        changes.destroy_elements(set.elements(), &set.removed(self.families[place].keys()));
    }
}

/// Which members of a set may differ.
#[derive(Clone, Debug)]
enum Touched {
    All,
    These(BTreeSet<Member>),
}

impl Touched {
    /// Whether members of a family may differ.
    fn has(&self, family: Family) -> bool {
        match self {
            Self::All => true,
            Self::These(members) => {
                let mut elements = members.iter().filter_map(|member| SetElement::of(*member));
                elements.any(|element| element.family() == family)
            }
        }
    }
}

/// How long after its end here a record may live in the kernel: a batch is that old at most when its transaction is made, by far.
const KERNEL_LATER: Duration = Duration::from_secs(60);

/// What a transaction does to sets, to be taken as done when it was made.
#[derive(Debug, Default)]
pub(super) struct SetWrites {
    /// Sets of the kernel.
    made: BTreeSet<String>,
    begun: BTreeMap<SetId, SetKind>,
    removed: Vec<SetId>,
    changed: Vec<ElementWrite>,
    planned: Vec<SetId>,
}

impl SetWrites {
    pub(super) fn is_empty(&self) -> bool {
        self.made.is_empty()
    }
}

#[derive(Debug)]
struct ElementWrite {
    set: SetId,
    family: usize,
    added: Vec<(SetElement, Option<Timestamp>)>,
    removed: Vec<SetElement>,
    /// Records that are added and that the kernel may have.
    renewed: Vec<SetElement>,
}

impl ElementWrite {
    const fn of(set: SetId, family: usize) -> Self {
        Self {
            set,
            family,
            added: Vec::new(),
            removed: Vec::new(),
            renewed: Vec::new(),
        }
    }

    /// What an element needs of which these lives are wanted and known of. Records never go before their end.
    fn note(
        &mut self,
        of: &DesiredSet,
        element: SetElement,
        wanted: Option<Option<Timestamp>>,
        held: Option<Option<Timestamp>>,
        now: Timestamp,
    ) {
        // A record that is over is not there, whatever is remembered.
        let lives = held.filter(|held| held.is_none_or(|at| at > now));
        match wanted {
            Some(end) if lives_longer(end, lives, now) => {
                self.added.push((element, end));
                if of.kind == SetKind::Records && held.is_some() {
                    self.renewed.push(element);
                }
            }
            Some(_) => {}
            None if of.kind == SetKind::Records => {
                if lives.flatten().is_some() {
                    self.removed.push(element);
                }
            }
            None => {
                if held.is_some() {
                    self.removed.push(element);
                }
            }
        }
    }
}

impl Sets {
    fn open() -> Result<Self, netlink::Error> {
        Ok(Self {
            writer: TableWriter::open()?,
            desired: BTreeMap::new(),
            programmed: BTreeMap::new(),
            retired: BTreeMap::new(),
            made: BTreeSet::new(),
            available: Arc::default(),
            dirty: BTreeMap::new(),
            concurrent: BTreeSet::new(),
            refused: BTreeMap::new(),
        })
    }

    /// The sets that rules may refer to.
    pub(super) fn available(&self) -> Arc<AvailableSets> {
        Arc::clone(&self.available)
    }

    pub(super) fn add_desired(&mut self, created: &[SetSpec]) {
        for spec in created {
            self.desired
                .entry(spec.id)
                .or_insert_with(|| DesiredSet::of(spec));
            self.dirty.insert(spec.id, Touched::All);
            self.look_for(spec.id);
        }
    }

    fn look_for(&mut self, id: SetId) {
        let available = Arc::make_mut(&mut self.available);
        let taken = self.desired.get(&id).filter(|_| !self.refused.contains_key(&id));
        match taken.map(DesiredSet::available) {
            Some(wanted) => available.insert(id, wanted),
            None => available.remove(&id),
        };
    }

    /// The desired sets that need a set of this name, which is theirs or the kernel's.
    pub(super) fn needing(&self, name: &str) -> BTreeSet<SetId> {
        let needs = |(id, wanted): &(&SetId, &DesiredSet)| {
            let in_family = |family| {
                names::set(**id, family).as_str() == name
                    || KernelSet::of(wanted.kind, **id, family).name == name
            };
            Family::ALL.into_iter().any(in_family)
        };
        self.desired.iter().filter(needs).map(|(id, _)| *id).collect()
    }

    /// Leaves a set out; says whether it was not before.
    pub(super) fn leave_out(&mut self, id: SetId, reason: String) -> bool {
        let is_new = self.refused.insert(id, reason).is_none();
        self.dirty.insert(id, Touched::All);
        self.look_for(id);
        is_new
    }

    /// The sets that are left out, and why.
    pub(super) const fn refused(&self) -> &BTreeMap<SetId, String> {
        &self.refused
    }

    /// Has those that were left out tried again.
    pub(super) fn take_refused(&mut self) -> BTreeSet<SetId> {
        let refused: BTreeSet<SetId> = std::mem::take(&mut self.refused).into_keys().collect();
        for id in &refused {
            self.dirty.insert(*id, Touched::All);
            self.look_for(*id);
        }
        refused
    }

    /// Takes changes of members as desired.
    pub(super) fn note_members(&mut self, changes: &[MembersChanged]) {
        for change in changes {
            let Some(wanted) = self.desired.get_mut(&change.set) else {
                continue;
            };
            let before = wanted.families();
            wanted.note(change);
            let has_moved = wanted.families() != before;
            let whole = has_moved || matches!(wanted.kind, SetKind::Networks | SetKind::NetworkPorts);
            let touched = self
                .dirty
                .entry(change.set)
                .or_insert_with(|| Touched::These(BTreeSet::new()));
            match touched {
                Touched::These(_) if whole => *touched = Touched::All,
                Touched::These(members) => {
                    members.extend(change.removed.iter().copied());
                    members.extend(change.added.iter().map(|(member, _)| *member));
                }
                Touched::All => {}
            }
            if has_moved {
                self.look_for(change.set);
            }
        }
    }

    pub(super) fn note_expired(&mut self, all: &[ExpiredMembers]) {
        for lapsed in all {
            if let Some(wanted) = self.desired.get_mut(&lapsed.set) {
                wanted.note_expired(lapsed);
            }
        }
    }

    pub(super) fn remove_desired(&mut self, destroyed: &[SetId]) {
        for id in destroyed {
            self.desired.remove(id);
            self.refused.remove(id);
            self.dirty.insert(*id, Touched::All);
            self.look_for(*id);
        }
    }

    /// Takes over what the kernel holds: records that nobody knows stay desired by the kernel alone, and of sets that nobody desires
    /// it is not known since when no rule names them. Returns the sets from which members are to go.
    pub(super) fn adopt(&mut self, listed: &ListedSets, now: Timestamp) -> BTreeSet<SetId> {
        let mut shrunk = BTreeSet::new();
        self.programmed.clear();
        self.retired.clear();
        self.made.clear();
        for (id, wanted) in &self.desired {
            if self.refused.contains_key(id) {
                continue;
            }
            let mut held = Programmed::of(wanted.kind);
            for (place, family) in Family::ALL.into_iter().enumerate() {
                held.families[place] = listed.held(wanted.kind, *id, family, now);
            }
            if wanted.kind != SetKind::Records && listed.has_more(*id, wanted) {
                shrunk.insert(*id);
            }
            self.programmed.insert(*id, held);
            self.dirty.insert(*id, Touched::All);
        }
        self.retire_listed(listed);
        shrunk
    }

    /// Sets, records left out, of which the kernel holds more than is desired.
    pub(super) fn surplus(&self, listed: &ListedSets) -> BTreeSet<SetId> {
        let has_surplus = |(id, wanted): &(&SetId, &DesiredSet)| {
            wanted.kind != SetKind::Records && listed.has_more(**id, wanted)
        };
        self.desired
            .iter()
            .filter(has_surplus)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Plans what differs, before rules change; sets that go are left for `plan_removal`.
    pub(super) fn plan(&mut self, changes: &mut Changes, now: Timestamp) -> SetWrites {
        let mut writes = SetWrites::default();
        let dirty: Vec<(SetId, Touched)> = self
            .dirty
            .iter()
            .map(|(id, touched)| (*id, touched.clone()))
            .collect();
        for (id, touched) in dirty {
            // A message is about one set.
            let put = |changes: &mut Changes, set: KernelSet, gone: Vec<Element>, added: Vec<Element>| {
                changes.destroy_elements(set.elements(), &gone);
                changes.add_elements(set.elements(), &added);
            };
            self.plan_one(id, &touched, changes, &mut writes, put, now);
            writes.planned.push(id);
        }
        writes
    }

    /// Plans what differs of a set; `put` says what goes and comes of a set of the kernel.
    fn plan_one(
        &mut self,
        id: SetId,
        touched: &Touched,
        changes: &mut Changes,
        writes: &mut SetWrites,
        mut put: impl FnMut(&mut Changes, KernelSet, Vec<Element>, Vec<Element>),
        now: Timestamp,
    ) {
        let is_refused = self.refused.contains_key(&id);
        let Some(wanted) = self.desired.get_mut(&id).filter(|_| !is_refused) else {
            if self.programmed.contains_key(&id) {
                writes.removed.push(id);
            }
            return;
        };
        wanted.make_room(now);
        let wanted = &*wanted;
        let nothing = Elements::default();
        let is_programmed = self.programmed.contains_key(&id);
        for (place, family) in Family::ALL.into_iter().enumerate() {
            if !wanted.families().has(family) || is_programmed && !touched.has(family) {
                continue;
            }
            let set = KernelSet::of(wanted.kind, id, family);
            if !self.made.contains(&set.name) && writes.made.insert(set.name.clone()) {
                changes.add_set(&set.spec(wanted, family));
            }
            let held = self.programmed.get(&id);
            let held = held.map_or(&nothing, |held| &held.families[place]);
            let mut write = ElementWrite::of(id, place);
            match touched {
                Touched::All => difference(&mut write, wanted, held, &target(wanted, family), now),
                Touched::These(members) => {
                    for member in members {
                        let element = SetElement::of(*member).filter(|element| element.family() == family);
                        if let Some(element) = element {
                            write.note(
                                wanted,
                                element,
                                wanted.members.get(member),
                                held.get(&element),
                                now,
                            );
                        }
                    }
                }
            }
            let gone = match self.retired.get(&id) {
                // Of one that comes back nothing of before is left.
                Some(retired) => {
                    retired.held.remove(id, place, family, changes);
                    Vec::new()
                }
                None => {
                    // A record that the kernel may have is made anew with its new life; one that timed out is not there any more.
                    set.removed(write.removed.iter().chain(&write.renewed).copied())
                }
            };
            let added = set.written(write.added.iter().copied(), now);
            put(changes, set, gone, added);
            writes.changed.push(write);
        }
        if !is_programmed {
            writes.begun.insert(id, wanted.kind);
        }
    }

    /// Plans the removal of sets, behind the rules that named them.
    pub(super) fn plan_removal(&self, writes: &SetWrites, changes: &mut Changes) {
        let names = writes.removed.iter().flat_map(|id| both(*id));
        names
            .filter(|name| self.made.contains(name))
            .for_each(|name| changes.delete_set(&name));
    }

    /// Takes writes as done.
    pub(super) fn done(&mut self, writes: SetWrites) {
        self.made.extend(writes.made);
        for (id, kind) in writes.begun {
            self.retired.remove(&id);
            self.programmed.entry(id).or_insert_with(|| Programmed::of(kind));
        }
        for ElementWrite {
            set,
            family,
            added,
            removed,
            renewed: _,
        } in writes.changed
        {
            if let Some(held) = self.programmed.get_mut(&set) {
                let held = &mut held.families[family];
                for element in &removed {
                    held.remove(element);
                }
                held.extend(&added);
                if let Some(wanted) = self.desired.get(&set) {
                    held.share(&wanted.members);
                }
            }
        }
        for id in writes.removed {
            let Some(held) = self.programmed.remove(&id) else {
                continue;
            };
            if !names::shares_a_set(held.kind) {
                both(id).iter().for_each(|name| _ = self.made.remove(name));
            } else if !held.is_empty() {
                self.retire(id, held);
            }
        }
        for id in writes.planned {
            self.dirty.remove(&id);
        }
    }

    /// Programs members that a client waits for, in a transaction of their own. A message is about all sets that share one of the
    /// kernel: the kernel looks for it once. Where it refuses, all is written with the rules, and then a message is about one set.
    fn add_now(&mut self, changes: &[MembersChanged], now: Timestamp) -> Result<(), netlink::Error> {
        self.note_members(changes);
        let mut transaction = Changes::of(TABLE);
        let mut writes = SetWrites::default();
        let mut together: BTreeMap<String, [Vec<Element>; 2]> = BTreeMap::new();
        let mut planned = Vec::with_capacity(changes.len());
        for change in changes {
            // What is not in the kernel yet comes with the rules.
            if self.programmed.contains_key(&change.set)
                && let Some(touched) = self.dirty.remove(&change.set)
            {
                let put = |_: &mut Changes, set: KernelSet, gone, added| {
                    let [all_gone, all_added] = together.entry(set.name).or_default();
                    all_gone.extend::<Vec<Element>>(gone);
                    all_added.extend::<Vec<Element>>(added);
                };
                self.plan_one(change.set, &touched, &mut transaction, &mut writes, put, now);
                planned.push((change.set, touched));
            }
        }
        for (set, [gone, added]) in &together {
            transaction.destroy_elements(set.as_str(), gone);
            transaction.add_elements(set.as_str(), added);
        }
        if let Err(error) = self.writer.commit(transaction) {
            self.dirty.extend(planned);
            return Err(error);
        }
        self.done(writes);
        Ok(())
    }

    /// The names of the kernel's sets.
    pub(super) const fn made(&self) -> &BTreeSet<String> {
        &self.made
    }

    /// Forgets elements that have timed out, also by the clock of the kernel: of what is not remembered a new life is written without
    /// a look at what may be there.
    pub(super) fn forget_ended(&mut self, now: Timestamp) {
        let retired = self.retired.values_mut().map(|retired| &mut retired.held);
        for held in self.programmed.values_mut().chain(retired) {
            for elements in &mut held.families {
                elements.retain_living(|at| at.after(KERNEL_LATER) > now);
            }
        }
    }

    /// Desires nothing any more.
    pub(super) fn forget(&mut self) {
        self.desired.clear();
        self.programmed.clear();
        self.retired.clear();
        self.made.clear();
        self.dirty.clear();
        self.refused.clear();
        self.available = Arc::default();
    }

    pub(super) fn dump(&self) -> String {
        let mut lines = Vec::new();
        for (id, wanted) in &self.desired {
            let held = self.programmed.get(id).map_or_else(
                || "missing".to_owned(),
                |Programmed { families, .. }| {
                    format!("{} and {} programmed", families[0].len(), families[1].len())
                },
            );
            let digest = id.digest();
            lines.push(format!(
                "set {digest} {:?} {}: {held}",
                wanted.kind, wanted.description
            ));
        }
        for (id, Retired { held, .. }) in &self.retired {
            let [v4, v6] = held.families.each_ref().map(Elements::len);
            lines.push(format!(
                "set {} of no rule: {v4} and {v6} programmed",
                id.digest()
            ));
        }
        lines.join("\n")
    }
}

/// A set of intervals may list an end at address 0, which nft itself adds.
pub(super) fn is_zero_end((key, is_end): &(Vec<u8>, bool)) -> bool {
    *is_end && key.iter().all(|octet| *octet == 0)
}

/// The names of a set in the kernel.
fn both(id: SetId) -> [String; 2] {
    Family::ALL.map(|family| String::from(names::set(id, family)))
}

pub(super) fn spec(wanted: &DesiredSet, name: &str, family: Family) -> NftSet {
    // Which end of a packet is looked up is said by rules; the keys are the same.
    let kind = match wanted.kind {
        SetKind::Addresses | SetKind::AddressPorts => NftKind::Plain,
        SetKind::Networks | SetKind::NetworkPorts => NftKind::Intervals,
        SetKind::Records => NftKind::Timeouts,
    };
    NftSet {
        name: name.to_owned(),
        keys: lookup_keys(wanted.kind, Key::Destination(family)),
        kind,
        comment: wanted.description.clone(),
    }
}

/// What is looked up in a set, given an end of a packet. In an interval the last key is the one that differs.
pub(super) fn lookup_keys(kind: SetKind, address: Key) -> Vec<Key> {
    match kind {
        SetKind::Addresses | SetKind::Networks | SetKind::Records => vec![address],
        SetKind::AddressPorts => vec![address, Key::Protocol, Key::Port],
        SetKind::NetworkPorts => vec![Key::Protocol, Key::Port, address],
    }
}

/// What the kernel is to hold for a set in a family.
pub(super) fn target(wanted: &DesiredSet, family: Family) -> Elements {
    match wanted.kind {
        SetKind::Networks | SetKind::NetworkPorts => {
            let mut by_port: BTreeMap<Option<(Transport, u16)>, Vec<IpNet>> = BTreeMap::new();
            for member in wanted.members.keys() {
                let (network, port) = match member {
                    Member::Network(network) => (network, None),
                    Member::NetworkPort(network, transport, port) => (network, Some((transport, port.get()))),
                    Member::Address(_) | Member::AddressPort(..) => continue,
                };
                if Family::of(network.addr()) == family {
                    by_port.entry(port).or_default().push(network);
                }
            }
            let all = by_port.into_iter().flat_map(|(port, networks)| {
                let key = move |(first, last)| match port {
                    Some((transport, port)) => SetElement::PortInterval(transport, port, first, last),
                    None => SetElement::Interval(first, last),
                };
                intervals(networks.into_iter()).into_iter().map(key)
            });
            all.map(|element| (element, None)).collect()
        }
        SetKind::Addresses | SetKind::AddressPorts | SetKind::Records => {
            let members = wanted.members.iter();
            let held = members.filter_map(|(member, expires)| Some((SetElement::of(member)?, expires)));
            held.filter(|(element, _)| element.family() == family).collect()
        }
    }
}

/// What has to come and go so that `held` becomes `target`. Records never go: they time out.
fn difference(
    write: &mut ElementWrite,
    wanted: &DesiredSet,
    held: &Elements,
    target: &Elements,
    now: Timestamp,
) {
    for (element, end) in target.iter() {
        write.note(wanted, element, Some(end), held.get(&element), now);
    }
    if wanted.kind != SetKind::Records {
        write.removed = held.keys().filter(|element| !target.contains(element)).collect();
    }
}

/// Networks as intervals of which none meets another.
fn intervals(networks: impl Iterator<Item = IpNet>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> = networks
        .map(|network| (network.network(), network.broadcast()))
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if meets(*end, first) => *end = (*end).max(last),
            Some(_) | None => merged.push((first, last)),
        }
    }
    merged
}

/// Whether an interval that begins at `first` overlaps one that ends at `end`, or follows it without a gap.
fn meets(end: IpAddr, first: IpAddr) -> bool {
    match (end, first) {
        (IpAddr::V4(end), IpAddr::V4(first)) => u32::from(first) <= u32::from(end).saturating_add(1),
        (IpAddr::V6(end), IpAddr::V6(first)) => u128::from(first) <= u128::from(end).saturating_add(1),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks, and the first and last address of each interval.
    type Row = (&'static [&'static str], &'static [(&'static str, &'static str)]);

    #[test]
    fn networks_become_intervals_of_which_none_meets_another() {
        let rows: [Row; 5] = [
            (&["10.0.0.0/8", "10.1.0.0/16"], &[("10.0.0.0", "10.255.255.255")]),
            (&["10.0.0.0/25", "10.0.0.128/25"], &[("10.0.0.0", "10.0.0.255")]),
            (
                &["0.0.0.0/0", "255.255.255.255/32"],
                &[("0.0.0.0", "255.255.255.255")],
            ),
            (
                &["10.0.0.1/32", "10.0.0.3/32"],
                &[("10.0.0.1", "10.0.0.1"), ("10.0.0.3", "10.0.0.3")],
            ),
            (
                &["fd00::/8", "fd00::1/128"],
                &[("fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")],
            ),
        ];
        for (networks, expected) in rows {
            let found = intervals(networks.iter().map(|text| text.parse().unwrap()));
            let expected = expected
                .iter()
                .map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{networks:?}");
        }
    }
}

//! Sets of addresses in the table: one for each set and family. What changes of them is part of the transaction that changes the
//! rules, or of one of its own where a client waits.
//!
//! A record has the kernel's own timeout. It is never shortened: what the kernel holds longer than we know stays until it times out.

mod new_intervals;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::Family;
use egret_kernel::netlink;
use egret_kernel::nftables::{
    Changes, Element, Key, ListedElement, SetKind as NftKind, SetSpec as NftSet, TableWriter, listed_keys,
};
use egret_policies::rules::{ExpiredMembers, Member, MembersChanged, SetId, SetKind, SetSpec};
use egret_shared::net::{IpNet, Transport};
use egret_shared::time::Timestamp;

use super::TABLE;
use super::elements::{Elements, SetElement};
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::model::desired_set::{DesiredSet, lives_longer};
use crate::backend::netfilter::model::set_contents::{Content, SetContents};
use crate::backend::netfilter::names;
use crate::backend::{BackendError, ConcurrentSetUpdate};

/// All sets of ours.
#[derive(Debug)]
pub(super) struct Sets {
    writer: TableWriter,
    desired: BTreeMap<SetId, DesiredSet>,
    /// Per set, what each family holds. A set that is not here is not in the kernel.
    programmed: BTreeMap<SetId, [Elements; 2]>,
    /// The names of the sets that are in the kernel.
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

/// Which members of a set may differ.
#[derive(Clone, Debug)]
enum Touched {
    All,
    These(BTreeSet<Member>),
}

/// What a transaction does to sets, to be taken as done when it was made.
#[derive(Debug, Default)]
pub(super) struct SetWrites {
    made: Vec<(SetId, String)>,
    removed: Vec<SetId>,
    changed: Vec<ElementWrite>,
    planned: Vec<SetId>,
}

impl SetWrites {
    pub(super) const fn is_empty(&self) -> bool {
        self.made.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

#[derive(Debug)]
struct ElementWrite {
    set: SetId,
    family: usize,
    added: Vec<(SetElement, Option<Timestamp>)>,
    removed: Vec<SetElement>,
}

/// What the kernel lists of our sets, by name.
pub(super) type ListedSets = BTreeMap<String, Vec<ListedElement>>;

impl Sets {
    fn open() -> Result<Self, netlink::Error> {
        Ok(Self {
            writer: TableWriter::open()?,
            desired: BTreeMap::new(),
            programmed: BTreeMap::new(),
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

    /// The desired set of this name.
    pub(super) fn named(&self, name: &str) -> Option<SetId> {
        let mut ids = self.desired.keys().copied();
        ids.find(|id| both(*id).iter().any(|own| own == name))
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

    /// Takes over what the kernel holds: records that nobody knows stay desired by the kernel alone. Returns the sets from which
    /// members are to go.
    pub(super) fn adopt(&mut self, listed: &ListedSets, now: Timestamp) -> BTreeSet<SetId> {
        let mut shrunk = BTreeSet::new();
        self.programmed.clear();
        self.made.clear();
        for (id, wanted) in &self.desired {
            if self.refused.contains_key(id) {
                continue;
            }
            let mut held = [Elements::default(), Elements::default()];
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let Some(elements) = listed.get(names::set(*id, family).as_str()) else {
                    continue;
                };
                if wanted.kind == SetKind::Records {
                    held[place] = records(elements, now);
                } else if has_more(elements, &target(wanted, family)) {
                    shrunk.insert(*id);
                }
            }
            self.programmed.insert(*id, held);
            self.dirty.insert(*id, Touched::All);
        }
        shrunk
    }

    /// Sets, records left out, of which the kernel holds more than is desired.
    pub(super) fn surplus(&self, listed: &ListedSets) -> BTreeSet<SetId> {
        let has_surplus = |(id, wanted): &(&SetId, &DesiredSet)| {
            wanted.kind != SetKind::Records
                && Family::ALL.into_iter().any(|family| {
                    let elements = listed.get(names::set(**id, family).as_str());
                    elements.is_some_and(|elements| has_more(elements, &target(wanted, family)))
                })
        };
        self.desired
            .iter()
            .filter(has_surplus)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Plans to make all desired sets in a table that has none of ours but those that are made, and `kept` ones, which are filled anew:
    /// what was adopted of records is written again.
    pub(super) fn plan_all(
        &mut self,
        kept: &BTreeSet<String>,
        changes: &mut Changes,
        now: Timestamp,
    ) -> SetWrites {
        let adopted = std::mem::take(&mut self.programmed);
        let mut writes = SetWrites::default();
        let refused = &self.refused;
        let taken = self
            .desired
            .iter_mut()
            .filter(|(id, _)| !refused.contains_key(id));
        for (id, wanted) in taken {
            wanted.make_room(now);
            for (place, family) in Family::ALL.into_iter().enumerate() {
                if !wanted.families().has(family) {
                    continue;
                }
                let name = String::from(names::set(*id, family));
                let is_made = self.made.contains(&name);
                if kept.contains(&name) {
                    changes.empty_set(&name);
                } else if !is_made {
                    changes.add_set(&spec(wanted, &name, family));
                }
                writes.made.push((*id, name.clone()));
                let mut elements = target(wanted, family);
                if wanted.kind == SetKind::Records {
                    for (element, held) in adopted.get(id).iter().flat_map(|held| held[place].iter()) {
                        if lives_longer(held, elements.get(&element), now) {
                            elements.insert(element, held);
                        }
                    }
                    elements.retain_living(|at| at > now);
                }
                if !is_made {
                    changes.add_elements(name.as_str(), &written(elements.iter(), now));
                }
                writes.changed.push(ElementWrite {
                    set: *id,
                    family: place,
                    added: elements.iter().collect(),
                    removed: Vec::new(),
                });
            }
        }
        writes.planned = self.dirty.keys().copied().collect();
        writes
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
            self.plan_one(id, &touched, changes, &mut writes, now);
            writes.planned.push(id);
        }
        writes
    }

    fn plan_one(
        &mut self,
        id: SetId,
        touched: &Touched,
        changes: &mut Changes,
        writes: &mut SetWrites,
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
        for (place, family) in Family::ALL.into_iter().enumerate() {
            if !wanted.families().has(family) {
                continue;
            }
            let name = String::from(names::set(id, family));
            let is_new = !self.made.contains(&name);
            if is_new {
                changes.add_set(&spec(wanted, &name, family));
                writes.made.push((id, name.clone()));
            }
            let held = self.programmed.get(&id).map_or(&nothing, |held| &held[place]);
            let write = match touched {
                Touched::All => {
                    let mut write = difference(id, place, wanted, held, &target(wanted, family), now);
                    if wanted.kind == SetKind::Records {
                        write.removed.clear();
                    }
                    write
                }
                Touched::These(members) => {
                    let members = members.iter().filter_map(|member| SetElement::of(*member));
                    let touched: BTreeSet<SetElement> =
                        members.filter(|element| element.family() == family).collect();
                    let desired = touched
                        .iter()
                        .filter_map(|element| Some((*element, desired(wanted, *element)?)));
                    let desired: Elements = desired.collect();
                    let held = touched
                        .iter()
                        .filter_map(|element| Some((*element, held.get(element)?)));
                    difference(id, place, wanted, &held.collect(), &desired, now)
                }
            };
            let renewed = write.added.iter().map(|(element, _)| element);
            let gone: Vec<Element> = match is_new {
                true => Vec::new(),
                false => write
                    .removed
                    .iter()
                    .chain(renewed.filter(|_| wanted.kind == SetKind::Records))
                    .map(|element| Element::lasting(element.key()))
                    .collect(),
            };
            // One that timed out is not there any more; one that lives on is made anew with its new life.
            changes.destroy_elements(name.as_str(), &gone);
            changes.add_elements(name.as_str(), &written(write.added.iter().copied(), now));
            writes.changed.push(write);
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
        for (id, name) in writes.made {
            self.programmed.entry(id).or_default();
            self.made.insert(name);
        }
        for ElementWrite {
            set,
            family,
            added,
            removed,
        } in writes.changed
        {
            if let Some(held) = self.programmed.get_mut(&set) {
                for element in &removed {
                    held[family].remove(element);
                }
                held[family].extend(&added);
            }
        }
        for id in writes.removed {
            self.programmed.remove(&id);
            for name in both(id) {
                self.made.remove(&name);
            }
        }
        for id in writes.planned {
            self.dirty.remove(&id);
        }
    }

    /// Programs members that a client waits for, in a transaction of their own.
    fn add_now(&mut self, changes: &[MembersChanged], now: Timestamp) -> Result<(), netlink::Error> {
        self.note_members(changes);
        let mut transaction = Changes::of(TABLE);
        let mut writes = SetWrites::default();
        for change in changes {
            // What is not in the kernel yet comes with the rules.
            if self.programmed.contains_key(&change.set)
                && let Some(touched) = self.dirty.get(&change.set).cloned()
            {
                self.plan_one(change.set, &touched, &mut transaction, &mut writes, now);
                writes.planned.push(change.set);
            }
        }
        self.writer.commit(transaction)?;
        self.done(writes);
        Ok(())
    }

    /// The names of the sets that the kernel holds.
    pub(super) const fn made(&self) -> &BTreeSet<String> {
        &self.made
    }

    /// Forgets elements that have timed out.
    pub(super) fn forget_ended(&mut self, now: Timestamp) {
        for elements in self.programmed.values_mut().flatten() {
            elements.retain_living(|at| at > now);
        }
    }

    /// What somebody else changed of members, by a listing. Members that timed out did not change.
    pub(super) fn drift(&self, listed: &ListedSets, now: Timestamp, drift: &mut Drift) {
        for (id, held) in &self.programmed {
            for (place, family) in Family::ALL.into_iter().enumerate() {
                let name = String::from(names::set(*id, family));
                let Some(elements) = listed.get(&name) else {
                    continue;
                };
                let soon = now.after(COARSE);
                let there: BTreeSet<(Vec<u8>, bool)> = elements
                    .iter()
                    .map(|element| (element.key.clone(), element.is_end))
                    .collect();
                let mut known: BTreeSet<(Vec<u8>, bool)> = BTreeSet::new();
                let mut missing = 0;
                for (element, expires) in held[place].iter() {
                    let keys = listed_keys(&element.key());
                    let lives = expires.is_none_or(|at| at > soon);
                    missing += usize::from(lives && keys.iter().any(|key| !there.contains(key)));
                    known.extend(keys);
                }
                drift.note_all("member_missing", missing, &name);
                let extra = there
                    .iter()
                    .filter(|key| !known.contains(*key) && !is_zero_end(key));
                drift.note_all("member_extra", extra.count(), &name);
            }
        }
    }

    /// Desires nothing any more.
    pub(super) fn forget(&mut self) {
        self.desired.clear();
        self.programmed.clear();
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
                |held| format!("{} and {} programmed", held[0].len(), held[1].len()),
            );
            let digest = id.digest();
            lines.push(format!(
                "set {digest} {:?} {}: {held}",
                wanted.kind, wanted.description
            ));
        }
        lines.join("\n")
    }
}

/// How far the kernel's life of a record and ours may lie apart.
const COARSE: std::time::Duration = std::time::Duration::from_secs(2);

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

/// The life of an element that is desired.
fn desired(wanted: &DesiredSet, element: SetElement) -> Option<Option<Timestamp>> {
    let member = match element {
        SetElement::Address(address) => Member::Address(address),
        SetElement::AddressPort(address, transport, port) => {
            Member::AddressPort(address, transport, std::num::NonZeroU16::new(port)?)
        }
        SetElement::Interval(..) | SetElement::PortInterval(..) => return None,
    };
    wanted.members.get(&member)
}

/// What has to come and go so that `held` becomes `target`. Records never go: they time out.
fn difference(
    set: SetId,
    family: usize,
    wanted: &DesiredSet,
    held: &Elements,
    target: &Elements,
    now: Timestamp,
) -> ElementWrite {
    let added = target.iter().filter(|(element, expires)| {
        let known = held.get(element);
        // A record that is over is not there, whatever is remembered.
        let known = known.filter(|known| known.is_none_or(|at| at > now));
        lives_longer(*expires, known, now)
    });
    let added = added.collect();
    let removed = match wanted.kind {
        SetKind::Records => {
            let gone = held.iter().filter(|(element, expires)| {
                !target.contains(element)
                    && expires.is_some_and(|at| at > now)
                    && desired(wanted, *element).is_none()
            });
            gone.map(|(element, _)| element).collect()
        }
        SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts | SetKind::NetworkPorts => {
            held.keys().filter(|element| !target.contains(element)).collect()
        }
    };
    ElementWrite {
        set,
        family,
        added,
        removed,
    }
}

fn written(elements: impl Iterator<Item = (SetElement, Option<Timestamp>)>, now: Timestamp) -> Vec<Element> {
    elements
        .filter_map(|(element, expires)| match expires {
            None => Some(Element::lasting(element.key())),
            Some(at) if at > now => Some(Element::living(element.key(), at.since(now))),
            Some(_) => None,
        })
        .collect()
}

fn records(elements: &[ListedElement], now: Timestamp) -> Elements {
    let of = |element: &ListedElement| {
        let address = element.address()?;
        Some((
            SetElement::Address(address),
            element.left.map(|left| now.after(left)),
        ))
    };
    elements.iter().filter_map(of).collect()
}

/// Whether the kernel holds more than the target.
fn has_more(elements: &[ListedElement], target: &Elements) -> bool {
    let wanted: BTreeSet<(Vec<u8>, bool)> = target
        .keys()
        .flat_map(|element| listed_keys(&element.key()))
        .collect();
    let mut there = elements
        .iter()
        .map(|element| (element.key.clone(), element.is_end));
    there.any(|key| !wanted.contains(&key) && !is_zero_end(&key))
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

/// The sets behind a lock: of the thread that programs rules, and of the one that opens DNS answers.
#[derive(Clone, Debug)]
pub(super) struct SharedSets(Arc<Mutex<Sets>>);

impl SharedSets {
    pub(super) fn open() -> Result<Self, netlink::Error> {
        Ok(Self(Arc::new(Mutex::new(Sets::open()?))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetContents for SharedSets {
    fn holds(&self, id: SetId, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        self.lock()
            .desired
            .get(&id)
            .is_some_and(|wanted| wanted.holds(address, port))
    }

    fn has_record(&self, id: SetId, address: IpAddr) -> bool {
        self.lock()
            .desired
            .get(&id)
            .is_some_and(|wanted| wanted.has_record(address))
    }

    fn has_expired(&self, id: SetId) -> bool {
        self.lock().desired.get(&id).is_some_and(DesiredSet::has_expired)
    }

    fn content(&self, id: SetId) -> Option<Content> {
        self.lock().desired.get(&id)?.content()
    }

    fn take_concurrent(&self) -> BTreeSet<SetId> {
        std::mem::take(&mut self.lock().concurrent)
    }
}

impl ConcurrentSetUpdate for SharedSets {
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError> {
        let mut sets = self.lock();
        let changed = changes.iter().map(|change| change.set);
        sets.concurrent.extend(changed);
        sets.add_now(changes, now)
            .map_err(|error| BackendError::new("cannot open what a pod was told", error))
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

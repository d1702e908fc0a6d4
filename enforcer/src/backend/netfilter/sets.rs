//! ipsets: one for each set and family, changed by netlink. A change of members touches nothing else.
//!
//! A record never lives for ever by accident (a lifetime is rounded up to a whole second, at least one, and is never
//! absent), and is never shortened: what the kernel holds longer than we know stays until it times out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::Family;
use egret_kernel::ipset::{self, IpSets, Kind, Member as KernelMember, Reason, SetEntry, SetHeader};
use egret_policies::rules::{ExpiredMembers, MembersChanged, SetId, SetKind, SetSpec};
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::model::available_sets::{Available, AvailableSets, Families};
use crate::backend::netfilter::model::desired_set::{DesiredSet, lives_longer};
use crate::backend::netfilter::model::set_contents::Content;
use crate::backend::netfilter::model::set_members::SetMembers;

use crate::backend::netfilter::names;

pub(super) mod concurrent;
mod create;
pub(super) mod creation_order;
pub(super) mod members;
pub mod merged;
pub(super) mod preallocate;
mod programmed;
mod resize;

use create::TOGETHER;
pub(super) use programmed::kernel_kind;
use programmed::{ProgrammedSet, drift};

/// Members with the end of their life; none for those that stay.
pub(super) type Members = SetMembers<KernelMember>;

/// Why a set is not as it should be.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Members may not have gone from it.
    is_too_wide: bool,
}

/// Sets that rules may refer to.
#[derive(Clone, Debug)]
pub(super) struct SetsSnapshot {
    pub(super) sets: Arc<AvailableSets>,
    /// Changes when a set may be missing that was available and is desired.
    pub(super) listing: u64,
}

/// All sets of ours.
#[derive(Debug)]
pub(super) struct Sets {
    ipsets: IpSets,
    /// How many members a set may have.
    most: u32,
    desired: BTreeMap<SetId, DesiredSet>,
    /// By name in the kernel; dumps and drift sort it.
    programmed: HashMap<String, ProgrammedSet>,
    /// Names of programmed sets that are not desired.
    undesired: BTreeSet<String>,
    /// Those that rules may refer to: programmed in all families in which they are desired.
    available: Arc<AvailableSets>,
    /// Changes when a set may be missing that was available.
    listings: u64,
    /// Sets that are not as they should be, and why.
    failed: BTreeMap<SetId, Failure>,
    /// Sets that got members concurrently.
    concurrent: BTreeSet<SetId>,
    /// Whether the kernel holds the inquiry marker: members went, and their connections were not looked for yet.
    has_inquiry_marker: bool,
}

/// The most members of a set: as many as one would put in (the kernel allocates by need).
pub const MOST_MEMBERS: u32 = 1 << 20;
/// The most places of a set's table.
const MOST_BUCKETS: u32 = 1 << 17;
/// How often it is waited until the kernel lets go of sets whose rules went, some ten milliseconds each time.
const MOST_WAITS: u32 = 8;

impl Sets {
    pub(super) fn open() -> Result<Self, ipset::Error> {
        Ok(Self {
            ipsets: IpSets::open()?,
            most: MOST_MEMBERS,
            desired: BTreeMap::new(),
            programmed: HashMap::new(),
            undesired: BTreeSet::new(),
            available: Arc::default(),
            listings: 0,
            failed: BTreeMap::new(),
            concurrent: BTreeSet::new(),
            has_inquiry_marker: false,
        })
    }

    /// The most members of a set from now on.
    pub(super) const fn set_most_members(&mut self, most: u32) {
        self.most = most;
    }

    /// Destroys temporary sets that a killed life left.
    pub(super) fn remove_temporary(&mut self) -> Result<(), ipset::Error> {
        preallocate::clear(&mut self.ipsets, names::is_temporary)
    }

    /// Takes over what the kernel lists. Returns the drift.
    pub(super) fn resync(&mut self, now: Timestamp) -> Result<Drift, ipset::Error> {
        let most = self.most;
        let mut listed: HashMap<String, ProgrammedSet> = self
            .ipsets
            .list_those(names::is_own_set)?
            .into_iter()
            .map(|listing| (listing.name.clone(), ProgrammedSet::of(listing, most, now)))
            .collect();
        self.has_inquiry_marker = listed.remove(names::inquiry_marker().as_str()).is_some();
        let drift = drift(&self.programmed, &listed, now);
        self.programmed = listed;
        self.find_undesired();
        self.listings += 1;
        for id in self.desired.keys().copied().collect::<Vec<_>>() {
            self.look_for(id);
        }
        Ok(drift)
    }

    /// Sets that are gone, are of another type, or hold another number of members than they should, in words. Reads no
    /// member: a member that was replaced by another is found by `resync` alone.
    pub(super) fn mismatches(&mut self, now: Timestamp) -> Result<Vec<String>, ipset::Error> {
        let headers: BTreeMap<String, SetHeader> = self
            .ipsets
            .headers()?
            .into_iter()
            .map(|header| (header.name.clone(), header))
            .collect();
        let odd = |(name, known): (&String, &ProgrammedSet)| match headers.get(name) {
            Some(header) if known.looks_like(header, now) => None,
            Some(header) => Some(format!("the set {name} has {} members", header.elements)),
            None => Some(format!("the set {name} is gone")),
        };
        let mut odd: Vec<String> = self.programmed.iter().filter_map(odd).collect();
        odd.sort();
        Ok(odd)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.programmed.is_empty()
    }

    /// The sets that rules may refer to: those programmed in all families in which they are desired.
    pub(super) fn available(&self) -> Arc<AvailableSets> {
        Arc::clone(&self.available)
    }

    /// The same, and as of when.
    pub(super) fn snapshot(&self) -> SetsSnapshot {
        SetsSnapshot {
            sets: self.available(),
            listing: self.listings,
        }
    }

    /// What is available once all that is desired is programmed. To be checked by `check_snapshot`.
    pub(super) fn desired_snapshot(&self) -> SetsSnapshot {
        let sets = self
            .desired
            .iter()
            .map(|(id, wanted)| (*id, wanted.available()))
            .collect();
        SetsSnapshot {
            sets: Arc::new(sets),
            listing: self.listings,
        }
    }

    /// Compares a desired snapshot with what is available: where a set is missing, all that was compiled over it is stale.
    pub(super) fn check_snapshot(&mut self, expected: &SetsSnapshot) {
        self.listings += u64::from(expected.sets != self.available);
    }

    fn find_undesired(&mut self) {
        self.undesired = self.programmed.keys().cloned().collect();
        for (id, wanted) in &self.desired {
            for family in wanted.families().all() {
                self.undesired.remove(names::set(*id, family).as_str());
            }
        }
    }

    /// Updates whether a set is available.
    fn look_for(&mut self, id: SetId) {
        match self.as_wanted(id) {
            Some(set) => drop(Arc::make_mut(&mut self.available).insert(id, set)),
            None => drop(Arc::make_mut(&mut self.available).remove(&id)),
        }
    }

    /// A set, if it is programmed in all families in which it is desired.
    fn as_wanted(&self, id: SetId) -> Option<Available> {
        let set = self.desired.get(&id)?.available();
        let known = |family| self.programmed.get(names::set(id, family).as_str());
        let mut families = set.families.all();
        let is_there = families.all(|family| known(family).is_some_and(|known| known.fits(set.kind)));
        is_there.then_some(set)
    }

    /// Whether a set remembers records that are over.
    pub(super) fn has_expired(&self, id: SetId) -> bool {
        self.desired.get(&id).is_some_and(DesiredSet::has_expired)
    }

    /// What a set is to hold; none for records, which are not used in pods' namespaces.
    pub(super) fn content(&self, id: SetId) -> Option<Content> {
        self.desired.get(&id)?.content()
    }

    /// Whether a set of records holds an address, or did.
    pub(super) fn has_record(&self, id: SetId, address: IpAddr) -> bool {
        self.desired
            .get(&id)
            .is_some_and(|wanted| wanted.has_record(address))
    }

    /// Whether a set holds an address; a set of records also while the record is over.
    pub(super) fn holds(&self, id: SetId, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        self.desired
            .get(&id)
            .is_some_and(|wanted| wanted.holds(address, port))
    }

    /// Whether the programmed members of a set differ from the desired ones.
    pub(super) fn differs(&self, id: SetId) -> bool {
        let Some(wanted) = self.desired.get(&id) else {
            return false;
        };
        let target = members::target(&wanted.members);
        Family::ALL.into_iter().any(|family| {
            let known = self.programmed.get(names::set(id, family).as_str());
            let held = known.into_iter().flat_map(|known| known.members.keys());
            let wanted = target.keys().filter(|member| member.family() == family);
            !held.eq(wanted)
        })
    }

    /// Whether a set is programmed, in any family.
    pub(super) fn is_known(&self, id: SetId) -> bool {
        let mut families = Family::ALL.into_iter();
        families.any(|family| self.programmed.contains_key(names::set(id, family).as_str()))
    }

    /// Makes failed sets unavailable that hold too much, or that rules need whole. Says whether any was available so far. A later
    /// sync makes them available again.
    pub(super) fn withhold(&mut self, say_no: &BTreeSet<SetId>) -> bool {
        let is_unfit = |(id, failure): &(&SetId, &Failure)| failure.is_too_wide || say_no.contains(id);
        let unfit: Vec<SetId> = self.failed.iter().filter(is_unfit).map(|(id, _)| *id).collect();
        let available = Arc::make_mut(&mut self.available);
        let withheld = unfit.iter().filter(|id| available.remove(id).is_some()).count();
        self.listings += u64::from(withheld > 0);
        withheld > 0
    }

    pub(super) const fn failed(&self) -> &BTreeMap<SetId, Failure> {
        &self.failed
    }

    /// What was too wide stays so, whatever fails next.
    fn fail(&mut self, id: SetId, reason: String, is_too_wide: bool) {
        let before = self.failed.remove(&id);
        let is_too_wide = is_too_wide || before.is_some_and(|failure| failure.is_too_wide);
        let failure = Failure { reason, is_too_wide };
        self.failed.insert(id, failure);
    }

    pub(super) fn add_desired(&mut self, created: &[SetSpec]) {
        for spec in created {
            self.desired
                .entry(spec.id)
                .or_insert_with(|| DesiredSet::of(spec));
            for name in both(spec.id) {
                self.undesired.remove(&name);
            }
            self.look_for(spec.id);
        }
    }

    /// Takes changes of members as desired.
    pub(super) fn note_members(&mut self, changes: &[MembersChanged]) {
        for change in changes {
            let Some(wanted) = self.desired.get_mut(&change.set) else {
                continue;
            };
            let before = wanted.families();
            wanted.note(change);
            if wanted.families() != before {
                self.change_families(change.set);
            }
        }
    }

    /// A set is desired in other families than before. That happens to sets without members only.
    fn change_families(&mut self, id: SetId) {
        let was_there = self.available.contains_key(&id);
        if !was_there || self.as_wanted(id).is_some() {
            self.look_for(id);
            self.listings += u64::from(was_there);
        } else {
            self.fail(
                id,
                "it has members of another family than before".to_owned(),
                true,
            );
        }
    }

    /// Takes records that were over before their set was made.
    pub(super) fn note_expired(&mut self, all: &[ExpiredMembers]) {
        for lapsed in all {
            if let Some(wanted) = self.desired.get_mut(&lapsed.set) {
                wanted.note_expired(lapsed);
            }
        }
    }

    /// Takes note of sets that got members concurrently.
    fn note_concurrent(&mut self, changes: &[MembersChanged]) {
        self.concurrent.extend(changes.iter().map(|change| change.set));
    }

    /// Those since the last call.
    pub(super) fn take_concurrent(&mut self) -> BTreeSet<SetId> {
        std::mem::take(&mut self.concurrent)
    }

    /// Programs noted changes in the sets that are available.
    pub(super) fn write_noted(&mut self, changes: &[MembersChanged], now: Timestamp) {
        let (mut writes, mut full) = (Vec::new(), Vec::new());
        for change in changes {
            let Some(wanted) = self.desired.get(&change.set) else {
                continue;
            };
            full.extend(wanted.is_full().then_some(change.set));
            if !self.available.contains_key(&change.set) {
                continue;
            }
            let members = change
                .removed
                .iter()
                .chain(change.added.iter().map(|(member, _)| member));
            let mut touched: Vec<KernelMember> =
                members.flat_map(|member| members::held_as(*member)).collect();
            touched.sort_unstable();
            touched.dedup();
            let target = |held| members::wanted_for(&wanted.members, held);
            self.plan(change.set, &touched, target, now, &mut writes);
        }
        self.carry_out(writes, now);
        for id in full {
            if let Some(wanted) = self.desired.get_mut(&id) {
                wanted.make_room(now);
            }
        }
    }

    /// Programs every desired set; returns the sets from which members went.
    pub(super) fn sync(&mut self, now: Timestamp) -> BTreeSet<SetId> {
        self.failed.clear();
        let all: Vec<SetId> = self.desired.keys().copied().collect();
        let mut shrunk = BTreeSet::new();
        for some in all.chunks(TOGETHER) {
            let mut writes = Vec::new();
            shrunk.extend(some.iter().filter(|id| self.plan_whole(**id, now, &mut writes)));
            self.carry_out(writes, now);
        }
        shrunk
    }

    /// Programs a desired set, whatever the kernel holds under its name.
    pub(super) fn sync_one(&mut self, id: SetId, now: Timestamp) {
        let mut writes = Vec::new();
        self.plan_whole(id, now, &mut writes);
        self.carry_out(writes, now);
    }

    /// Plans the programming of a desired set, which is created if it is missing; says whether members go.
    fn plan_whole(&mut self, id: SetId, now: Timestamp, writes: &mut Vec<Write>) -> bool {
        let Some(wanted) = self.desired.get_mut(&id) else {
            return false;
        };
        wanted.forget_oldest(now);
        let (kind, target) = (wanted.kind, members::target(&wanted.members));
        let families = wanted.families();
        for family in families.all() {
            if let Err(reason) = self.create(id, kind, family, target.len()) {
                tracing::error!(reason, "a set cannot be made");
                self.fail(id, reason, false);
                return false;
            }
        }
        self.look_for(id);
        self.remove_from_others(id, families);
        // What the kernel holds of records and we do not know was told before we began.
        let surplus = match kind {
            SetKind::Records => BTreeSet::new(),
            SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts | SetKind::NetworkPorts => {
                self.surplus(id, &target)
            }
        };
        if !surplus.is_empty() {
            self.set_inquiry_marker();
        }
        let touched: Vec<KernelMember> = target.keys().chain(surplus.iter().copied()).collect();
        self.plan(id, &touched, |held| target.get(&held), now, writes);
        !surplus.is_empty()
    }

    /// An earlier version made each set in both families.
    fn remove_from_others(&mut self, id: SetId, wanted: Families) {
        let others = Family::ALL.into_iter().filter(|family| !wanted.has(*family));
        let names = others.map(|family| String::from(names::set(id, family)));
        self.undesired
            .extend(names.filter(|name| self.programmed.contains_key(name)));
    }

    /// Programmed members that are not desired.
    fn surplus(&self, id: SetId, target: &Members) -> BTreeSet<KernelMember> {
        Family::ALL
            .iter()
            .filter_map(|family| self.programmed.get(names::set(id, *family).as_str()))
            .flat_map(|known| known.members.keys())
            .filter(|member| !target.contains(member))
            .collect()
    }

    /// Creates the set of a family if it is missing.
    fn create(&mut self, id: SetId, kind: SetKind, family: Family, members: usize) -> Result<(), String> {
        let spec = self.spec(id, kind, family, members);
        match self.programmed.get(&spec.name) {
            Some(known) if known.fits(kind) => return Ok(()),
            // Whoever made it, it holds nothing that rules of ours could ask for. While rules name it, it stays.
            Some(_) => self
                .ipsets
                .destroy(&spec.name)
                .map_err(|error| format!("{error}; it is of another type or size"))?,
            None => {}
        }
        self.ipsets.create(&spec).map_err(|error| said(&error))?;
        self.programmed
            .insert(spec.name.clone(), ProgrammedSet::made(&spec));
        Ok(())
    }

    /// Plans to make the touched members as the target says.
    fn plan(
        &self,
        id: SetId,
        touched: &[KernelMember],
        target: impl Fn(KernelMember) -> Option<Option<Timestamp>>,
        now: Timestamp,
        writes: &mut Vec<Write>,
    ) {
        for family in Family::ALL {
            if touched.iter().all(|member| member.family() != family) {
                continue;
            }
            let name = String::from(names::set(id, family));
            let known = self.programmed.get(&name);
            let mut write = Write::of(id, name);
            for member in touched.iter().filter(|member| member.family() == family) {
                let held = known.and_then(|known| known.members.get(member));
                match target(*member) {
                    Some(expires) if lives_longer(expires, held, now) => write.add(*member, expires, now),
                    None if held.is_some() => write.change.deleted.push(SetEntry::lasting(*member)),
                    Some(_) | None => {}
                }
            }
            if !write.is_empty() {
                writes.push(write);
            }
        }
    }

    /// Writes what was planned, all of it in one exchange with the kernel.
    fn carry_out(&mut self, writes: Vec<Write>, now: Timestamp) {
        self.widen(&writes, now);
        let outcomes = self.ipsets.change_all(writes.iter().map(|write| &write.change));
        for (Write { id, change, held }, outcome) in writes.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                let reason = said(&error);
                tracing::warn!(set = change.name, reason, "a set does not hold what it should");
                self.fail(id, reason, !change.deleted.is_empty());
            } else if let Some(known) = self.programmed.get_mut(&change.name) {
                known.members.extend(&held);
                for deleted in &change.deleted {
                    known.members.remove(&deleted.member);
                }
                if let Some(wanted) = self.desired.get(&id) {
                    known.members.share(&wanted.members);
                }
            }
        }
    }

    pub(super) fn remove_desired(&mut self, destroyed: &[SetId]) {
        for id in destroyed {
            self.desired.remove(id);
            self.failed.remove(id);
            Arc::make_mut(&mut self.available).remove(id);
            let there = both(*id)
                .into_iter()
                .filter(|name| self.programmed.contains_key(name));
            self.undesired.extend(there);
        }
    }

    /// Whether there is anything to destroy.
    pub(super) fn has_undesired(&self) -> bool {
        !self.undesired.is_empty()
    }

    /// Destroys what is ours and not desired; what is still in use is left for the next time.
    pub(super) fn destroy_undesired(&mut self) -> Vec<String> {
        let mut kept = Vec::new();
        let mut waits = MOST_WAITS;
        for name in std::mem::take(&mut self.undesired) {
            match self.ipsets.destroy_unnamed(&name, &mut waits) {
                Ok(()) => drop(self.programmed.remove(&name)),
                Err(error) if error.reason() == Some(Reason::NoSuchSet) => {
                    drop(self.programmed.remove(&name))
                }
                Err(error) => {
                    kept.push(error.to_string());
                    self.undesired.insert(name);
                }
            }
        }
        kept
    }

    /// Creates the inquiry marker: members go, and their connections are not looked for yet. A life that
    /// ends meanwhile leaves them to the next one.
    pub(super) fn set_inquiry_marker(&mut self) {
        if self.has_inquiry_marker {
            return;
        }
        let spec = ipset::SetSpec::new(names::inquiry_marker().as_str(), Kind::HashIp, Family::V4);
        match self.ipsets.create(&spec) {
            Ok(()) => self.has_inquiry_marker = true,
            Err(error) => {
                tracing::warn!(%error, "an enforcer that ends now leaves forbidden connections open")
            }
        }
    }

    pub(super) const fn has_inquiry_marker(&self) -> bool {
        self.has_inquiry_marker
    }

    /// Destroys the inquiry marker.
    pub(super) fn clear_inquiry_marker(&mut self) {
        if !self.has_inquiry_marker {
            return;
        }
        match self.ipsets.destroy(names::inquiry_marker().as_str()) {
            Ok(()) => self.has_inquiry_marker = false,
            Err(error) if error.reason() == Some(Reason::NoSuchSet) => self.has_inquiry_marker = false,
            Err(error) => tracing::warn!(%error, "the next life asks all connections again, in vain"),
        }
    }

    /// Desires nothing any more.
    pub(super) fn forget(&mut self) {
        self.desired.clear();
        self.failed.clear();
        self.available = Arc::default();
        self.find_undesired();
    }

    pub(super) fn dump(&self) -> String {
        let mut lines = Vec::new();
        for (id, wanted) in &self.desired {
            lines.push(format!(
                "set {} {:?} {}",
                id.digest(),
                wanted.kind,
                wanted.description
            ));
            for family in wanted.families().all() {
                let name = names::set(*id, family);
                let held = self
                    .programmed
                    .get(name.as_str())
                    .map_or_else(|| "missing".to_owned(), |known| known.members.len().to_string());
                lines.push(format!("  {}: {held} programmed", name.as_str()));
            }
            let failure = self.failed.get(id);
            lines.extend(failure.map(|failure| format!("  pending: {}", failure.reason)));
        }
        lines.join("\n")
    }
}

/// What is to be written to the set of one family.
struct Write {
    id: SetId,
    change: ipset::MemberChange,
    /// What it holds then, with expiries to the millisecond: the kernel has seconds.
    held: Vec<(KernelMember, Option<Timestamp>)>,
}

impl Write {
    fn of(id: SetId, name: String) -> Self {
        let change = ipset::MemberChange {
            name,
            ..ipset::MemberChange::default()
        };
        let held = Vec::new();
        Self { id, change, held }
    }

    fn add(&mut self, member: KernelMember, expires: Option<Timestamp>, now: Timestamp) {
        if let Some(entry) = entry(member, expires, now) {
            self.change.added.push(entry);
        }
        self.held.push((member, expires));
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.change.deleted.is_empty()
    }
}

/// The names of a set in the kernel.
fn both(id: SetId) -> [String; 2] {
    Family::ALL.map(|family| String::from(names::set(id, family)))
}

fn entry(member: KernelMember, expires: Option<Timestamp>, now: Timestamp) -> Option<SetEntry> {
    match expires {
        None => Some(SetEntry::lasting(member)),
        Some(at) => at
            .seconds_left(now)
            .map(|seconds| SetEntry::living(member, seconds)),
    }
}

fn said(error: &ipset::Error) -> String {
    error.to_string()
}

/// Whether the kernel takes an address as a member: it refuses the unspecified one, to which no one connects
/// (resolvers that block names answer with it).
pub(super) const fn is_holdable(address: IpAddr) -> bool {
    !address.is_unspecified()
}

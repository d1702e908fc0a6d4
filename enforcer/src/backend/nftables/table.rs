//! The table: what it is to hold, what the kernel holds, and the transaction that makes the one the other. Rules, maps and sets of
//! both families change together or not at all, so no packet meets a state between two. New sets of intervals come before, in a
//! transaction of their own (`Sets::plan_intervals`).

mod drift;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};

use egret_kernel::Family;
use egret_kernel::iptables::{InterfaceName, InterfacePattern};
use egret_kernel::netlink;
use egret_kernel::nftables::{
    BaseChain, Changes, ElementKey, ListedSet, NamedCounter, NftListing, NftRule, Object, Refusal, Statement,
    TableReader, TableWriter, Verdict,
};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::TABLE;
use super::bridge_table::{BridgeState, BridgeTable};
use super::counters::Counters;
use super::denial::Ends;
use super::dispatch::{self, Lookup, Lookups};
use super::refusals::Concerned;
use super::rules::{AlikeParts, Lines, Rendered, SharedChain, rule};
use super::sets::{ListedSets, SetWrites, Sets, SharedSets};
use crate::backend::netfilter::bridges;
use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::names::{self, NFTABLES_BRIDGE};

/// Whose chains they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChainOwner {
    /// All pods'.
    Shared,
    /// An empty chain: members went, and their connections were not looked for yet.
    Inquiry,
    /// A chain that nothing leads to: it says for which bridges `br_netfilter` was turned on.
    Bridges,
    /// Those of the node's rules for clients outside.
    Exposed,
    /// The ends of denied packets, one for each reason.
    Denials,
    /// A chain that pods share, by its name.
    SharedChain(String),
    Pod(PodKey),
}

/// The chain that is there while connections are to be looked for.
pub(super) const INQUIRY: &str = "EGRET-INQUIRY";

/// Chains of an owner, by name.
type Chains = BTreeMap<String, Lines>;

/// What came of a transaction.
#[derive(Debug)]
#[must_use]
pub(super) enum TransactionOutcome {
    Done,
    /// The kernel refused these messages, and so did nothing.
    Refused(Vec<Refusal>),
    /// Nothing could be written, whatever were in it.
    Failed,
}

/// The table of the enforcer.
#[derive(Debug)]
pub(super) struct Table {
    writer: TableWriter,
    reader: TableReader,
    ends: Ends,
    desired: BTreeMap<ChainOwner, Rendered>,
    alike: AlikeParts,
    lookups: Lookups,
    base: Vec<BaseChain>,
    /// Where ports of bridges are looked at.
    bridge: Option<BridgeTable>,
    programmed: Programmed,
    /// Owners whose chains may differ.
    dirty: BTreeSet<ChainOwner>,
    /// What else may differ: most transactions are about members alone, and none is to cost what all pods have.
    unwritten: Unwritten,
    /// How many rules of desired chains lead to each reason.
    denials: BTreeMap<Denial, usize>,
    /// The chains that desired ones of others lead to, and how often.
    shared: BTreeMap<String, (usize, Arc<SharedChain>)>,
    /// How many desired rules count in each counter, and its comment.
    counted: BTreeMap<String, (usize, Arc<str>)>,
    /// Counters of the kernel.
    counters: BTreeSet<String>,
    read: Arc<Counters>,
    have_denials_changed: bool,
    /// Why the table could not be written.
    broken: Option<String>,
}

/// What the kernel holds.
#[derive(Debug, Default)]
struct Programmed {
    chains: BTreeMap<ChainOwner, Chains>,
    lookups: BTreeMap<&'static str, Lookup>,
    base: BTreeSet<String>,
    bridge: BridgeState,
    /// Whether the rest is known; otherwise everything is written.
    is_known: bool,
}

/// What may differ from what was written last.
#[derive(Debug)]
struct Unwritten {
    /// The chains of hooks, and the lookups.
    dispatch: bool,
    /// For which reasons packets are denied.
    denials: bool,
    /// What rules count in.
    counters: bool,
}

impl Unwritten {
    const ALL: Self = Self {
        dispatch: true,
        denials: true,
        counters: true,
    };
    const NOTHING: Self = Self {
        dispatch: false,
        denials: false,
        counters: false,
    };
}

/// What the kernel lists of the table.
#[derive(Debug, Default)]
pub(super) struct KernelState {
    pub(super) table: NftListing,
    pub(super) sets: ListedSets,
    pub(super) counters: Vec<NamedCounter>,
    pub(super) bridge: BridgeState,
}

impl KernelState {
    /// Whether an earlier life left more than what closes unknown pods, and sets that no rule names yet.
    pub(super) fn has_rules(&self) -> bool {
        let mut chains = self.table.chains.keys();
        chains.any(|chain| chain.starts_with("EGRET-E-") || chain.starts_with("EGRET-I-"))
    }
}

impl Table {
    pub(super) fn open(ends: Ends, read: Arc<Counters>) -> Result<Self, netlink::Error> {
        Ok(Self {
            writer: TableWriter::open()?,
            reader: TableReader::open()?,
            ends,
            desired: BTreeMap::new(),
            alike: AlikeParts::default(),
            lookups: Lookups::new(),
            base: Vec::new(),
            bridge: None,
            programmed: Programmed::default(),
            dirty: BTreeSet::new(),
            unwritten: Unwritten::ALL,
            denials: BTreeMap::new(),
            shared: BTreeMap::new(),
            counted: BTreeMap::new(),
            counters: BTreeSet::new(),
            read,
            have_denials_changed: true,
            broken: None,
        })
    }

    /// Lists the table; none where it is not there.
    pub(super) fn list(&mut self, now: Timestamp) -> Result<Option<KernelState>, netlink::Error> {
        let mut held = self.list_rules()?;
        if let Some(held) = &mut held {
            for name in held.table.sets.keys() {
                if names::is_own_set(name) || names::shared_by(name).is_some() {
                    held.sets.add(name, self.reader.elements(TABLE, name)?, now);
                }
            }
        }
        Ok(held)
    }

    /// The same without the elements of its sets, of which there may be half a million.
    pub(super) fn list_rules(&mut self) -> Result<Option<KernelState>, netlink::Error> {
        let bridge = BridgeState::list(&mut self.reader)?;
        let Some(table) = self.reader.list(TABLE)? else {
            return Ok((!bridge.is_empty()).then(|| KernelState {
                bridge,
                ..KernelState::default()
            }));
        };
        let counters = self.reader.counters(TABLE)?;
        Ok(Some(KernelState {
            table,
            sets: ListedSets::default(),
            counters,
            bridge,
        }))
    }

    /// Whether the tables are there.
    pub(super) fn is_there(&mut self) -> Result<bool, netlink::Error> {
        Ok(self.reader.has(TABLE)? && (self.bridge.is_none() || self.reader.has(NFTABLES_BRIDGE)?))
    }

    pub(super) const fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    pub(super) fn has(&self, owner: &ChainOwner) -> bool {
        self.desired.contains_key(owner)
    }

    pub(super) fn desired(&self, owner: &ChainOwner) -> Option<&Rendered> {
        self.desired.get(owner)
    }

    /// Has the marker be there or not; says whether that is a change.
    pub(super) fn set_inquiry_marker(&mut self, is_there: bool) -> bool {
        let was_there = self.has(&ChainOwner::Inquiry);
        if is_there {
            let mut rendered = Rendered::default();
            rendered.put(INQUIRY, Vec::new());
            self.set_desired(ChainOwner::Inquiry, rendered);
        } else {
            self.remove_desired(&ChainOwner::Inquiry);
        }
        was_there != is_there
    }

    /// Desires these chains for an owner.
    pub(super) fn set_desired(&mut self, owner: ChainOwner, mut rendered: Rendered) {
        if self.desired.get(&owner) == Some(&rendered) {
            return;
        }
        for (name, shared) in &mut rendered.shared {
            if let Some((_, known)) = self.shared.get(name) {
                *shared = Arc::clone(known);
            }
        }
        self.alike.share(&mut rendered);
        // What comes is counted first: a shared chain that stays never goes in between.
        self.count(&rendered, true);
        if let Some(before) = self.desired.insert(owner.clone(), rendered) {
            self.count(&before, false);
        }
        self.dirty.insert(owner);
    }

    pub(super) fn remove_desired(&mut self, owner: &ChainOwner) {
        if let Some(before) = self.desired.remove(owner) {
            self.count(&before, false);
            self.dirty.insert(owner.clone());
        }
    }

    /// Removes the chains of pods that are not there.
    pub(super) fn retain_pods(&mut self, is_there: impl Fn(&PodKey) -> bool) {
        let is_gone = |owner: &&ChainOwner| match owner {
            ChainOwner::Pod(pod) => !is_there(pod),
            ChainOwner::Shared
            | ChainOwner::Inquiry
            | ChainOwner::Bridges
            | ChainOwner::Exposed
            | ChainOwner::Denials
            | ChainOwner::SharedChain(_) => false,
        };
        let gone: Vec<ChainOwner> = self.desired.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|owner| self.remove_desired(owner));
    }

    pub(super) fn set_shared(&mut self, base: Vec<BaseChain>, rendered: Rendered, lookups: Lookups) {
        self.base = base;
        self.lookups = lookups;
        self.unwritten.dispatch = true;
        self.set_desired(ChainOwner::Shared, rendered);
    }

    /// Writes down for which bridges `br_netfilter` was turned on.
    pub(super) fn set_recorded<'a>(&mut self, bridges: impl Iterator<Item = &'a (Family, InterfaceName)>) {
        let note = |(family, bridge): &(Family, InterfaceName)| NftRule {
            comment: bridges::remark(*family, bridge).into(),
            ..rule([Statement::Input(InterfacePattern::from(bridge.clone()))])
        };
        let notes: Vec<NftRule> = bridges.map(note).collect();
        if notes.is_empty() {
            self.remove_desired(&ChainOwner::Bridges);
            return;
        }
        let mut rendered = Rendered::default();
        rendered.put(names::bridges().as_str(), notes);
        self.set_desired(ChainOwner::Bridges, rendered);
    }

    /// Whether ports of bridges are looked at, or were.
    pub(super) fn has_bridge(&self) -> bool {
        self.bridge.is_some() || !self.programmed.bridge.is_empty()
    }

    pub(super) fn set_bridge(&mut self, bridge: Option<BridgeTable>) {
        self.bridge = bridge;
    }

    /// Counts references of chains that come or go.
    fn count(&mut self, rendered: &Rendered, comes: bool) {
        for (name, shared) in &rendered.shared {
            self.count_shared(name, shared, comes);
        }
        for denial in &rendered.denials {
            let uses = self.denials.entry(denial.clone()).or_default();
            *uses = if comes { *uses + 1 } else { *uses - 1 };
            self.unwritten.denials = true;
        }
        for rule in rendered.chains.values().flat_map(|lines| lines.iter()) {
            for statement in rule.statements.iter() {
                if let Statement::Count(name) = statement {
                    let (uses, _) = self
                        .counted
                        .entry(name.clone())
                        .or_insert_with(|| (0, Arc::clone(&rule.comment)));
                    *uses = if comes { *uses + 1 } else { *uses - 1 };
                    self.unwritten.counters = true;
                }
            }
        }
    }

    fn count_shared(&mut self, name: &str, shared: &Arc<SharedChain>, comes: bool) {
        let known = || (0, Arc::clone(shared));
        let (uses, _) = self.shared.entry(name.to_owned()).or_insert_with(known);
        *uses = if comes { *uses + 1 } else { *uses - 1 };
        let owner = || ChainOwner::SharedChain(name.to_owned());
        match (*uses, comes) {
            (1, true) => {
                let rendered = Rendered {
                    chains: BTreeMap::from([(name.to_owned(), Arc::clone(&shared.lines))]),
                    denials: shared.denials.clone(),
                    shared: BTreeMap::new(),
                };
                self.set_desired(owner(), rendered);
            }
            (0, false) => {
                self.shared.remove(name);
                self.remove_desired(&owner());
            }
            _ => {}
        }
    }

    /// Desires a chain for each reason to which rules lead.
    fn compile_denials(&mut self) {
        if !std::mem::take(&mut self.unwritten.denials) {
            return;
        }
        self.denials.retain(|_, uses| *uses > 0);
        let mut rendered = Rendered::default();
        for denial in self.denials.keys() {
            if let Some(lines) = self.ends.lines(denial) {
                rendered.put(denial.chain().as_str(), lines);
            }
        }
        self.have_denials_changed |= self.desired(&ChainOwner::Denials) != Some(&rendered);
        self.set_desired(ChainOwner::Denials, rendered);
    }

    /// Whether the reasons may be others than at the last call.
    pub(super) const fn take_denials_changed(&mut self) -> bool {
        std::mem::replace(&mut self.have_denials_changed, false)
    }

    /// The reasons for which packets are denied.
    pub(super) fn denials(&self) -> impl Iterator<Item = &Denial> {
        self.denials.keys()
    }

    /// Makes the kernel hold what is desired, by what differs; by everything where it is not known what it holds.
    pub(super) fn write(&mut self, sets: &SharedSets, now: Timestamp) -> TransactionOutcome {
        if !self.programmed.is_known {
            let outcome = self.list(now);
            return match outcome {
                Ok(listed) => self.write_all(sets, &listed.unwrap_or_default(), now),
                Err(error) => self.fail(&error.to_string()),
            };
        }
        self.compile_denials();
        let mut sets = sets.lock();
        if let Err(outcome) = self.make_intervals(&mut sets, &BTreeMap::new()) {
            return outcome;
        }
        let mut changes = Changes::of(TABLE);
        if BridgeState::of(self.bridge.as_ref()) != self.programmed.bridge {
            BridgeTable::plan(self.bridge.as_ref(), &self.programmed.bridge, &mut changes);
        }
        self.add_counters(&mut changes);
        let writes = sets.plan(&mut changes, now);
        for chain in self
            .base
            .iter()
            .filter(|chain| !self.programmed.base.contains(&chain.name))
        {
            changes.add_base_chain(chain);
        }
        let gone = self.put_chains(&mut changes);
        if self.unwritten.dispatch {
            self.put_lookups(&mut changes);
        }
        let kept: BTreeSet<&String> = self.base.iter().map(|chain| &chain.name).collect();
        let lost = self.programmed.base.iter().filter(|name| !kept.contains(name));
        for chain in gone.iter().filter(|chain| !dispatch::is_base(chain)).chain(lost) {
            changes.delete_chain(chain);
        }
        sets.plan_removal(&writes, &mut changes);
        self.commit(changes, sets, writes)
    }

    /// Makes everything anew in one transaction, in the place of what the kernel holds. Chains that it calls stay, so that none of
    /// them is missed by a packet on its way; so do sets and maps, which are emptied and filled: one that was removed has no element
    /// for a packet that began with the rules before.
    pub(super) fn write_all(
        &mut self,
        sets: &SharedSets,
        held: &KernelState,
        now: Timestamp,
    ) -> TransactionOutcome {
        self.forget_programmed();
        self.compile_denials();
        let mut sets = sets.lock();
        sets.adopt(&held.sets, now);
        let mut kept = sets.held_as_desired(&held.table.sets);
        // First in the kernel's list are those that most messages are about.
        if let Err(outcome) = self.fill_new_shared(&mut sets, &held.table.sets, now) {
            return outcome;
        }
        if let Err(outcome) = self.make_intervals(&mut sets, &held.table.sets) {
            return outcome;
        }
        let mut changes = Changes::of(TABLE);
        BridgeTable::plan(self.bridge.as_ref(), &held.bridge, &mut changes);
        changes.add_table();
        for chain in held.table.chains.keys() {
            changes.flush_chain(chain);
        }
        for (name, lookup) in &self.lookups {
            let is_kept = |listed: &ListedSet| lookup.spec(name).is_laid_out_as(*listed);
            if held.table.sets.get(*name).is_some_and(is_kept) {
                changes.empty_set(name);
                self.programmed.lookups.insert(name, lookup.emptied());
                kept.insert((*name).to_owned());
            }
        }
        let others = held.table.sets.keys().filter(|set| !kept.contains(*set));
        others.for_each(|set| changes.delete_set(set));
        let of_owners = self.desired.values().flat_map(|rendered| rendered.chains.keys());
        let desired: BTreeSet<&String> = self
            .base
            .iter()
            .map(|chain| &chain.name)
            .chain(of_owners)
            .collect();
        for name in held.table.chains.keys().filter(|name| !desired.contains(name)) {
            changes.delete_chain(name);
        }
        self.counters = held.counters.iter().map(|counter| counter.name.clone()).collect();
        self.add_counters(&mut changes);
        let writes = sets.plan_all(&kept, &held.sets, &mut changes, now);
        for chain in &self.base {
            changes.add_base_chain(chain);
        }
        self.dirty = self.desired.keys().cloned().collect();
        self.put_chains(&mut changes);
        self.put_lookups(&mut changes);
        self.commit(changes, sets, writes)
    }

    /// Makes the sets of intervals that neither we know nor the kernel lists; no rule names them yet.
    fn make_intervals(
        &mut self,
        sets: &mut Sets,
        listed: &BTreeMap<String, ListedSet>,
    ) -> Result<(), TransactionOutcome> {
        let mut changes = Changes::of(TABLE);
        changes.add_table();
        let writes = sets.plan_intervals(listed, &mut changes);
        if writes.is_empty() {
            return Ok(());
        }
        self.transact(changes)?;
        sets.done(writes);
        Ok(())
    }

    /// Makes and fills the shared sets that the kernel does not list; no rule names them yet.
    fn fill_new_shared(
        &mut self,
        sets: &mut Sets,
        listed: &BTreeMap<String, ListedSet>,
        now: Timestamp,
    ) -> Result<(), TransactionOutcome> {
        sets.fill_new_shared(listed, now, |changes| self.transact(changes))
    }

    /// Has the kernel take all of it.
    fn commit(
        &mut self,
        changes: Changes,
        mut sets: MutexGuard<'_, Sets>,
        writes: SetWrites,
    ) -> TransactionOutcome {
        if let Err(outcome) = self.transact(changes) {
            return outcome;
        }
        sets.done(writes);
        drop(sets);
        self.take_as_done();
        TransactionOutcome::Done
    }

    fn transact(&mut self, changes: Changes) -> Result<(), TransactionOutcome> {
        match self.writer.commit_or_name(changes) {
            Ok(()) => Ok(()),
            Err(failed) if failed.refused.is_empty() => Err(self.fail(&failed.to_string())),
            Err(failed) => Err(TransactionOutcome::Refused(failed.refused)),
        }
    }

    pub(super) fn fail(&mut self, reason: &str) -> TransactionOutcome {
        tracing::error!(reason, "the table cannot be written");
        self.broken = Some(reason.to_owned());
        // What is retried is everything: whatever the kernel refused may be due to what others did to the table.
        self.forget_programmed();
        TransactionOutcome::Failed
    }

    /// Those who need an object of the table; none where it is what all need.
    pub(super) fn concerned(&self, object: &Object, sets: &SharedSets) -> Option<Concerned> {
        let owners: BTreeSet<&ChainOwner> = match object {
            Object::Table => return None,
            Object::Set(name) => {
                let sets = sets.lock().needing(name);
                return (!sets.is_empty()).then(|| Concerned {
                    sets,
                    ..Concerned::default()
                });
            }
            Object::Chain(name) => self.owners(|rendered| rendered.chains.contains_key(name)),
            Object::Counter(name) => {
                let counts = Statement::Count(name.clone());
                let lines = |rendered: &Rendered| {
                    let mut lines = rendered.chains.values().flat_map(|lines| lines.iter());
                    lines.any(|rule| rule.statements.contains(&counts))
                };
                self.owners(lines)
            }
        };
        let mut concerned = Concerned::default();
        for owner in owners {
            concerned.extend(self.users(owner)?);
        }
        Some(concerned).filter(|concerned| *concerned != Concerned::default())
    }

    fn owners(&self, needs: impl Fn(&Rendered) -> bool) -> BTreeSet<&ChainOwner> {
        let all = self.desired.iter().filter(|(_, rendered)| needs(rendered));
        all.map(|(owner, _)| owner).collect()
    }

    /// Those who need the chains of an owner; none where all do.
    fn users(&self, owner: &ChainOwner) -> Option<Concerned> {
        match owner {
            // A reason's chain is needed by those alone who deny for it, but all of these chains are of one kind: where the kernel does
            // not take it, it takes none.
            ChainOwner::Shared | ChainOwner::Inquiry | ChainOwner::Bridges | ChainOwner::Denials => None,
            ChainOwner::Exposed => Some(Concerned {
                is_exposed: true,
                ..Concerned::default()
            }),
            ChainOwner::Pod(pod) => Some(Concerned {
                pods: BTreeSet::from([pod.clone()]),
                ..Concerned::default()
            }),
            ChainOwner::SharedChain(name) => {
                let mut concerned = Concerned::default();
                for user in self.owners(|rendered| rendered.shared.contains_key(name)) {
                    concerned.extend(self.users(user)?);
                }
                Some(concerned)
            }
        }
    }

    /// Has everything written the next time.
    pub(super) fn forget_programmed(&mut self) {
        self.programmed = Programmed::default();
        self.unwritten = Unwritten::ALL;
    }

    fn add_counters(&mut self, changes: &mut Changes) {
        if !self.unwritten.counters {
            return;
        }
        for counter in self.read.kept().iter().filter(|_| !self.programmed.is_known) {
            if self.counters.insert(counter.name.clone()) {
                changes.add_counter(counter);
            }
        }
        for (name, (_, comment)) in self.counted.iter().filter(|(_, (uses, _))| *uses > 0) {
            if !self.counters.contains(name) {
                changes.add_counter(&NamedCounter {
                    name: name.clone(),
                    comment: comment.to_string(),
                    packets: self.read.last(name),
                });
            }
        }
    }

    /// Makes chains and their rules. Returns the chains that are empty now and not desired.
    fn put_chains(&mut self, changes: &mut Changes) -> Vec<String> {
        let nothing = Chains::new();
        let mut gone = Vec::new();
        let mut changed: Vec<(&String, &Lines)> = Vec::new();
        let mut flushed: Vec<&String> = Vec::new();
        for owner in &self.dirty {
            let desired = self
                .desired
                .get(owner)
                .map_or(&nothing, |rendered| &rendered.chains);
            let held = self.programmed.chains.get(owner).unwrap_or(&nothing);
            for (name, lines) in desired {
                match held.get(name) {
                    Some(held) if Arc::ptr_eq(held, lines) || held == lines => {}
                    Some(_) => {
                        flushed.push(name);
                        changed.push((name, lines));
                    }
                    None => {
                        if !dispatch::is_base(name) {
                            let about = match owner {
                                ChainOwner::Pod(pod) => format!("pod {pod}"),
                                ChainOwner::Shared
                                | ChainOwner::Inquiry
                                | ChainOwner::Bridges
                                | ChainOwner::Exposed
                                | ChainOwner::Denials
                                | ChainOwner::SharedChain(_) => String::new(),
                            };
                            changes.add_chain(name, &about);
                        }
                        changed.push((name, lines));
                    }
                }
            }
            let lost = held.keys().filter(|name| !desired.contains_key(*name));
            for name in lost {
                flushed.push(name);
                gone.push(name.clone());
            }
        }
        // Maps are there before the rules that name them.
        for (name, lookup) in &self.lookups {
            if !self.programmed.lookups.contains_key(name) {
                changes.add_set(&lookup.spec(name));
            }
        }
        flushed.into_iter().for_each(|name| changes.flush_chain(name));
        for (name, lines) in changed {
            for rule in lines.iter() {
                changes.add_rule(name, rule);
            }
        }
        gone
    }

    fn put_lookups(&self, changes: &mut Changes) {
        let nothing = BTreeMap::new();
        for (name, lookup) in &self.lookups {
            let held = self
                .programmed
                .lookups
                .get(name)
                .map_or(&nothing, |held| &held.elements);
            let is_other = |(key, verdict): &(&ElementKey, &Option<Verdict>)| {
                lookup.elements.get(*key) != Some(*verdict)
            };
            let gone = held.iter().filter(is_other);
            let gone: Vec<_> = gone
                .map(|(key, verdict)| dispatch::element(key, verdict.as_ref()))
                .collect();
            if !gone.is_empty() {
                changes.delete_elements(*name, &gone);
            }
            let added = lookup
                .elements
                .iter()
                .filter(|(key, verdict)| held.get(*key) != Some(*verdict));
            let added: Vec<_> = added
                .map(|(key, verdict)| dispatch::element(key, verdict.as_ref()))
                .collect();
            changes.add_elements(*name, &added);
        }
        let lost = self.programmed.lookups.keys();
        for name in lost.filter(|name| !self.lookups.contains_key(*name)) {
            changes.delete_set(name);
        }
    }

    fn take_as_done(&mut self) {
        self.broken = None;
        for owner in std::mem::take(&mut self.dirty) {
            match self.desired.get(&owner) {
                Some(rendered) => drop(self.programmed.chains.insert(owner, rendered.chains.clone())),
                None => drop(self.programmed.chains.remove(&owner)),
            }
        }
        if self.unwritten.dispatch {
            self.programmed.lookups.clone_from(&self.lookups);
            self.programmed.base = self.base.iter().map(|chain| chain.name.clone()).collect();
        }
        self.programmed.bridge = BridgeState::of(self.bridge.as_ref());
        self.programmed.is_known = true;
        if self.unwritten.counters {
            let made = self.counted.iter().filter(|(_, (uses, _))| *uses > 0);
            self.counters.extend(made.map(|(name, _)| name.clone()));
        }
        self.unwritten = Unwritten::NOTHING;
    }

    /// Whether the table was written by this process.
    pub(super) const fn is_known(&self) -> bool {
        self.programmed.is_known
    }

    /// Counters that no desired rule counts in any more.
    pub(super) fn retired_counters(&mut self) -> BTreeSet<String> {
        self.counted.retain(|_, (uses, _)| *uses > 0);
        let counted = &self.counted;
        let retired = self.counters.iter().filter(|name| !counted.contains_key(*name));
        retired
            .filter(|name| !name.starts_with(super::counters::KEPT))
            .cloned()
            .collect()
    }

    pub(super) fn forget_counters(&mut self, removed: &BTreeSet<String>) {
        self.counters.retain(|name| !removed.contains(name));
    }

    /// Desires nothing any more.
    pub(super) fn clear(&mut self) {
        self.desired.clear();
        self.lookups.clear();
        self.base.clear();
        self.bridge = None;
        self.dirty.clear();
        self.denials.clear();
        self.shared.clear();
        self.counted.clear();
        self.counters.clear();
        self.forget_programmed();
    }

    pub(super) fn dump(&self) -> String {
        let mut text = String::new();
        for (name, lines) in self.programmed.chains.values().flatten() {
            text += &format!("chain {name}: {} rules\n", lines.len());
        }
        for (name, lookup) in &self.programmed.lookups {
            text += &format!("map {name}: {} elements\n", lookup.elements.len());
        }
        text
    }
}

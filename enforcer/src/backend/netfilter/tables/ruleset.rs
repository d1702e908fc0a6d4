//! Our rules in the tables of both families: desired, programmed, and what the kernel refused of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, IpTables, TableListing};
use egret_policies::rules::SetId;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::counters::{self, Counters, Totals};
use super::family_table::{ChainOwner, FamilyTable};
use super::restore::ProgrammedChains;
use super::wire::{NftWriter, Wire};
use super::write_stats::WriteStats;
use crate::backend::BackendError;
use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::settings::{JumpPosition, NflogSettings};
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::netfilter::render::chains::Chains;

/// The rules of both families, in one flavour of iptables.
#[derive(Debug)]
pub(in crate::backend::netfilter) struct Ruleset {
    pub(super) tables: [FamilyTable; 2],
    pub(super) counters: Arc<Counters>,
    /// The lines of the totals that the kernel holds.
    pub(super) programmed_totals: Option<Vec<(u64, String)>>,
    /// Pods whose chains the kernel refuses, and why.
    pub(super) refused: BTreeMap<PodKey, String>,
    /// Why no table can be written or listed.
    pub(super) broken: Option<String>,
    pub(super) written: WriteStats,
    pub(super) wire: Wire,
}

impl Ruleset {
    pub(in crate::backend::netfilter) fn new(flavour: Flavour) -> Self {
        let tables = Family::ALL.map(|family| FamilyTable::new(flavour, family));
        Self {
            counters: Arc::new(Counters::new(tables.each_ref().map(FamilyTable::programs))),
            tables,
            programmed_totals: None,
            refused: BTreeMap::new(),
            broken: None,
            written: WriteStats::default(),
            wire: Wire::default(),
        }
    }

    pub(in crate::backend::netfilter) fn set_jump_position(&mut self, position: JumpPosition) {
        for table in &mut self.tables {
            table.set_jump_position(position);
        }
    }

    pub(in crate::backend::netfilter) const fn set_nft_writer(&mut self, writer: NftWriter) {
        self.wire.set_writer(writer);
    }

    /// Takes over what an earlier life left, and which generations its chains write. Returns the listings of both families.
    pub(in crate::backend::netfilter) fn adopt(
        &mut self,
        generations: &mut Generations,
        now: Timestamp,
    ) -> Result<[TableListing; 2], BackendError> {
        let listings = self.list()?;
        for (table, listing) in self.tables.iter_mut().zip(&listings) {
            table.resync(listing, now);
            table.note_jumps_ahead(listing);
        }
        generations.adopt(self.tables[0].connmarks());
        let totals = Totals::of_listing(&listings[0]);
        self.programmed_totals = listings[0]
            .chain(names::totals().as_str())
            .map(|_| totals.lines());
        *self.counters.lock() = totals;
        Ok(listings)
    }

    /// Compares with the kernel; what differs is pending afterwards.
    pub(in crate::backend::netfilter) fn resync(
        &mut self,
        now: Timestamp,
    ) -> Result<[Drift; 2], BackendError> {
        let listings = self.list()?;
        let [one, other] = &mut self.tables;
        Ok([one.resync(&listings[0], now), other.resync(&listings[1], now)])
    }

    fn list(&self) -> Result<[TableListing; 2], BackendError> {
        counters::list_both(self.programs())
    }

    pub(in crate::backend::netfilter) fn programs(&self) -> [IpTables; 2] {
        self.tables.each_ref().map(FamilyTable::programs)
    }

    pub(in crate::backend::netfilter) fn flavour(&self) -> Flavour {
        self.tables[0].programs().flavour()
    }

    /// Whether an owner has desired chains, in every family.
    pub(in crate::backend::netfilter) fn has(&self, owner: &ChainOwner) -> bool {
        self.tables.iter().all(|table| table.has(owner))
    }

    /// Whether a chain is desired, in every family.
    pub(in crate::backend::netfilter) fn desires(&self, chain: &str) -> bool {
        self.tables.iter().all(|table| table.desires(chain))
    }

    /// Desires these chains for an owner, and no others for it.
    pub(in crate::backend::netfilter) fn set_desired_for(
        &mut self,
        owner: &ChainOwner,
        chains: impl Fn(Family) -> Chains,
    ) {
        for table in &mut self.tables {
            table.set_desired_for(owner.clone(), chains(table.family()));
        }
    }

    /// Desires other rules in some chains that an owner has.
    pub(in crate::backend::netfilter) fn update_desired(&mut self, chains: impl Fn(Family) -> Chains) {
        for table in &mut self.tables {
            table.update_desired(chains(table.family()));
        }
    }

    /// Desires these chains, made from those that the kernel holds, and no others.
    pub(in crate::backend::netfilter) fn set_desired(
        &mut self,
        chains: impl Fn(Family, &ProgrammedChains) -> Chains,
    ) {
        for table in &mut self.tables {
            table.set_desired(chains(table.family(), table.programmed()));
        }
    }

    /// Drops the chains of all other owners.
    pub(in crate::backend::netfilter) fn retain_owners(&mut self, is_kept: impl Fn(&ChainOwner) -> bool) {
        for table in &mut self.tables {
            table.retain_owners(&is_kept);
        }
    }

    /// Desires the denial chains that the desired rules lead to. Returns those that came or went.
    pub(in crate::backend::netfilter) fn update_denial_chains(
        &mut self,
        telling: NflogSettings,
    ) -> BTreeSet<String> {
        let tables = self.tables.iter_mut();
        tables
            .flat_map(|table| table.update_denial_chains(telling))
            .collect()
    }

    /// Why desired rules lead to a chain that logs denials.
    pub(in crate::backend::netfilter) fn denial(&self, chain: &str) -> Option<&Denial> {
        self.tables.iter().find_map(|table| table.denial(chain))
    }

    /// Whether the kernel holds these chains as they are, in every family.
    pub(in crate::backend::netfilter) fn holds(&self, chains: impl Fn(Family) -> Chains) -> bool {
        self.tables
            .iter()
            .all(|table| table.holds(&chains(table.family())))
    }

    pub(in crate::backend::netfilter) const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// What was written so far.
    pub(in crate::backend::netfilter) const fn written(&self) -> WriteStats {
        self.written
    }

    pub(in crate::backend::netfilter) const fn count_rendered(&mut self, pods: u64) {
        self.written.rendered += pods;
    }

    /// Pods whose chains the kernel refuses, and why.
    pub(in crate::backend::netfilter) const fn refused(&self) -> &BTreeMap<PodKey, String> {
        &self.refused
    }

    /// Why no table can be written or listed.
    pub(in crate::backend::netfilter) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(in crate::backend::netfilter) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(in crate::backend::netfilter) fn set_broken(&mut self, reason: String) {
        self.broken = Some(reason);
    }

    /// Whether everything desired is programmed, as far as it is known.
    pub(in crate::backend::netfilter) fn is_whole(&self) -> bool {
        self.broken.is_none() && self.refused.is_empty()
    }

    pub(in crate::backend::netfilter) fn forget_refused(&mut self, pod: &PodKey) {
        self.refused.remove(pod);
    }

    /// Whether the kernel holds no chain of ours.
    pub(in crate::backend::netfilter) fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.programmed().is_empty())
    }

    /// Whether the kernel holds chains that come from rules or pods.
    pub(in crate::backend::netfilter) fn has_rules(&self) -> bool {
        let mut chains = self.tables.iter().flat_map(|table| table.programmed().keys());
        chains.any(|chain| !names::is_independent_of_rules(chain) && !names::is_denial(chain))
    }

    /// Whether the kernel holds chains of a pod, in both families.
    pub(in crate::backend::netfilter) fn has_chains(&self, pod: &PodKey) -> bool {
        let chains = PodChains::of(pod);
        let mut tables = self.tables.iter();
        tables.all(|table| table.programmed().keys().any(|name| chains.contain(name)))
    }

    /// Whether the kernel holds a chain in every family.
    pub(in crate::backend::netfilter) fn holds_chain(&self, chain: &str) -> bool {
        self.tables
            .iter()
            .all(|table| table.programmed().contains_key(chain))
    }

    /// Rules of others in front of our jumps that accept packets.
    pub(in crate::backend::netfilter) fn bypassing_rules(&self) -> Vec<String> {
        let rules = self.tables.iter().flat_map(|table| table.bypassing_rules());
        rules.cloned().collect()
    }

    /// The names of the sets that rules name which the kernel holds.
    pub(in crate::backend::netfilter) fn sets_named(&self) -> BTreeSet<String> {
        self.words_behind("--match-set", |_| true)
    }

    /// Whether the chains of a pod that the kernel holds name one of these sets, of which its desired rules name `desired`.
    pub(in crate::backend::netfilter) fn names_undesired(
        &self,
        pod: &PodKey,
        sets: &BTreeSet<SetId>,
        desired: &BTreeSet<SetId>,
    ) -> bool {
        let own = PodChains::of(pod);
        let shared = self.words_behind("-j", |chain| own.contain(chain));
        let named = self.words_behind("--match-set", |chain| {
            own.contain(chain) || shared.contains(chain)
        });
        let mut undesired = sets.difference(desired).copied();
        undesired.any(|id| is_named(&named, id))
    }

    /// The words behind an option in the rules of these chains, as the kernel holds them.
    pub(super) fn words_behind(&self, option: &str, which: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let chains = self.tables.iter().flat_map(|table| table.programmed());
        let rules = chains
            .filter(|(name, _)| which(name))
            .flat_map(|(_, rules)| rules.iter());
        let pairs = rules.flat_map(|rule| {
            let words = rule.split(' ');
            words.clone().zip(words.skip(1))
        });
        let behind = pairs.filter(|(word, _)| *word == option);
        behind.map(|(_, name)| name.to_owned()).collect()
    }

    /// Differences between what is desired and what an earlier life left, by kind.
    pub(in crate::backend::netfilter) fn differences(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for table in &self.tables {
            let pending = table.pending();
            let missing = pending
                .rewrite
                .keys()
                .filter(|name| !table.programmed().contains_key(*name))
                .count();
            let parts = [
                ("chain_missing", missing),
                ("chain_changed", pending.rewrite.len() - missing),
                ("chain_extra", pending.remove.len()),
                ("jump", pending.jumps.len() + pending.jumps_removed.len()),
            ];
            for (kind, number) in parts.into_iter().filter(|(_, number)| *number > 0) {
                *counts.entry(kind).or_insert(0) += u64::try_from(number).unwrap_or(u64::MAX);
            }
        }
        counts
    }

    /// Waits until the sets that no rule names any more can be destroyed.
    pub(in crate::backend::netfilter) fn release_sets(&mut self) {
        self.wire.let_go();
    }

    /// Desires no chain any more.
    pub(in crate::backend::netfilter) fn clear(&mut self) {
        self.set_desired(|_, _| Chains::new());
    }

    /// Desired chains, and what is pending, as text.
    pub(in crate::backend::netfilter) fn dump(&self) -> String {
        self.tables.iter().map(FamilyTable::dump).collect()
    }
}

/// Whether the kernel's set of an identifier is among these names, in either family.
pub(in crate::backend::netfilter) fn is_named(named: &BTreeSet<String>, id: SetId) -> bool {
    let mut families = Family::ALL.into_iter();
    families.any(|family| named.contains(names::set(id, family).as_str()))
}

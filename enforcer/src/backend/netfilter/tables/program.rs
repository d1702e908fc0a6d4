//! Programs the tables: both families in one nf_tables transaction, or by the programs of iptables side by
//! side. Where the kernel refuses it, pods are written one by one, so that a refused pod concerns no other.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{self, Flavour};
use egret_shared::pod::PodKey;
use nix::errno::Errno;

use super::family_table::{ChainOwner, FamilyTable};
use super::lost_counters;
use super::restore::Change;
use super::wire::{Tried, Wire};
use super::write_stats::WriteStats;
use crate::backend::BackendError;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::netfilter::tables::ruleset::Ruleset;

/// What is left to do after [`Ruleset::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::backend::netfilter) enum Applied {
    /// Nothing: the tables hold what is desired, or cannot be written.
    All,
    /// The chains that all pods share: pods were written one by one, and some may have been refused.
    PodsAlone,
}

impl Ruleset {
    /// Makes the tables hold what is desired; `pods` are those that have chains.
    pub(in crate::backend::netfilter) fn apply<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodKey>,
    ) -> Applied {
        self.refused.clear();
        self.broken = None;
        match self.write_pending() {
            Ok(()) => Applied::All,
            Err(WriteError::Refused(_)) => self.apply_pods(pods),
            Err(WriteError::Broken(reason)) => {
                self.broken = Some(reason);
                Applied::All
            }
        }
    }

    /// Writes all that is pending.
    pub(in crate::backend::netfilter) fn write_pending(&mut self) -> Result<(), WriteError> {
        self.write(self.tables.each_ref().map(FamilyTable::pending))
    }

    /// Writes pods one by one, so that one that the kernel refuses concerns no other.
    fn apply_pods<'a>(&mut self, pods: impl Iterator<Item = &'a PodKey>) -> Applied {
        self.apply_ends();
        if self.broken.is_some() {
            return Applied::All;
        }
        for pod in pods {
            let (chains, part) = (PodChains::of(pod), ChainOwner::Pod(pod.clone()));
            let changes = self.tables.each_ref().map(|table| {
                let is_its = |name: &str| chains.contain(name) || table.is_shared_denials_of(name, &part);
                only(table.pending(), is_its)
            });
            match self.write(changes) {
                Ok(()) => {}
                Err(WriteError::Refused(reason)) => {
                    tracing::error!(%pod, reason, "the rules of a pod are refused by the kernel");
                    self.refused.insert(pod.clone(), reason);
                }
                Err(WriteError::Broken(reason)) => {
                    self.broken = Some(reason);
                    return Applied::All;
                }
            }
        }
        Applied::PodsAlone
    }

    /// The chains that pods' rules lead to: they must be there before the pods' are.
    fn apply_ends(&mut self) {
        let shared = [names::deny(), names::encapsulation()];
        let is_end = |name: &str| shared.iter().any(|chain| chain.as_str() == name) || names::is_denial(name);
        let changes = self.tables.each_ref().map(|table| Change {
            rewrite: only(table.pending(), is_end).rewrite,
            ..Change::default()
        });
        self.write_or_break(changes);
    }

    /// Refused pods that have no chains of before, or only outdated ones: the shared chains are to be desired without them.
    pub(in crate::backend::netfilter) fn unusable(&self, outdated: &BTreeSet<PodKey>) -> BTreeSet<PodKey> {
        let is_unusable = |pod: &&PodKey| outdated.contains(*pod) || !self.has_chains(pod);
        self.refused.keys().filter(is_unusable).cloned().collect()
    }

    /// Writes the chains that all pods share, and removes the chains of pods that are outdated.
    pub(in crate::backend::netfilter) fn apply_shared(&mut self, outdated: &BTreeSet<PodKey>) {
        let refused: Vec<PodChains> = self.refused.keys().map(PodChains::of).collect();
        let kept = self.refused.keys().filter(|pod| !outdated.contains(*pod));
        let kept: Vec<PodChains> = kept.map(PodChains::of).collect();
        let needed = self.words_behind("-j", |name| kept.iter().any(|chains| chains.contain(name)));
        let mut staying = self.tables.each_ref().map(|table| {
            let pending = table.pending();
            let (jumps, jumps_removed) = (pending.jumps.clone(), pending.jumps_removed.clone());
            let mut rest = only(pending, |name| !refused.iter().any(|chains| chains.contain(name)));
            // Others' were written with these, and what is left is of refused ones alone.
            rest.rewrite.retain(|name, _| !names::is_shared_denials(name));
            // What the kernel holds of the refused ones may go there.
            rest.remove.retain(|name| {
                let may_be_needed = names::is_denial(name) && !refused.is_empty();
                !may_be_needed && !needed.contains(name)
            });
            Change {
                jumps,
                jumps_removed,
                ..rest
            }
        });
        let outdated = self.tables.each_ref().map(|table| chains_of(table, outdated));
        // A rule of somebody else may lead to a chain, which then cannot go: that keeps nobody from their rules.
        let going = staying.each_mut().map(|staying| Change {
            remove: std::mem::take(&mut staying.remove),
            ..Change::default()
        });
        for changes in [staying, outdated, going] {
            if self.broken.is_none() {
                self.write_or_break(changes);
            }
        }
    }

    fn write_or_break(&mut self, changes: [Change; 2]) {
        if let Err(WriteError::Refused(reason) | WriteError::Broken(reason)) = self.write(changes) {
            self.broken = Some(reason);
        }
    }

    /// Applies changes, one of each table; the counts of what is rewritten are kept.
    fn write(&mut self, mut changes: [Change; 2]) -> Result<(), WriteError> {
        let counters = std::sync::Arc::clone(&self.counters);
        let mut totals = counters.lock();
        let kept = lost_counters::lost_by(&self.tables, &changes, &mut self.written)?;
        let next = kept
            .iter()
            .fold(totals.clone(), |sum, kept| sum.plus(kept))
            .lines();
        if self.programmed_totals.as_ref() != Some(&next) {
            changes[0].totals = Some(next);
        }
        let results = restore_both(&self.tables, &changes, &mut self.written, &mut self.wire);
        let mut outcome = Ok(());
        for (((table, change), result), kept) in self.tables.iter_mut().zip(changes).zip(results).zip(&kept) {
            match result {
                Ok(()) => {
                    *totals = std::mem::take(&mut *totals).plus(kept);
                    if change.totals.is_some() {
                        self.programmed_totals.clone_from(&change.totals);
                    }
                    table.done(change);
                }
                Err(error) => outcome = Err(WriteError::from(error)),
            }
        }
        outcome
    }
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(in crate::backend::netfilter) enum WriteError {
    /// The kernel refuses what is in it.
    #[error("{0}")]
    Refused(String),
    /// Whatever were in it.
    #[error("{0}")]
    Broken(String),
}

impl From<iptables::Error> for WriteError {
    fn from(error: iptables::Error) -> Self {
        match error {
            iptables::Error::Restore { .. } => Self::Refused(error.to_string()),
            iptables::Error::Run { .. }
            | iptables::Error::Missing { .. }
            | iptables::Error::Save { .. }
            | iptables::Error::Locked { .. }
            | iptables::Error::NoPrograms => Self::Broken(error.to_string()),
        }
    }
}

impl From<BackendError> for WriteError {
    fn from(error: BackendError) -> Self {
        Self::Broken(error.to_string())
    }
}

fn restore_both(
    tables: &[FamilyTable; 2],
    changes: &[Change; 2],
    written: &mut WriteStats,
    wire: &mut Wire,
) -> [Result<(), iptables::Error>; 2] {
    let texts = changes
        .each_ref()
        .map(|change| (!change.is_empty()).then(|| change.render()));
    for (change, text) in changes.iter().zip(&texts) {
        written.note(change, text.as_deref());
    }
    let restore = |at: usize| match &texts[at] {
        Some(text) => tables[at].programs().restore(text),
        None => Ok(()),
    };
    match tables[0].programs().flavour() {
        // Both families take one lock: side by side, the second would wait as if for somebody else, and give up.
        Flavour::Legacy => [restore(0), restore(1)],
        // What no program could list again is not written by whoever needs none.
        Flavour::Nft if !tables.iter().all(|table| table.programs().is_installed()) => side_by_side(restore),
        Flavour::Nft => match wire.write(&batches(tables, &texts)) {
            Tried::Done => {
                written.transactions += u64::from(texts.iter().any(Option::is_some));
                [Ok(()), Ok(())]
            }
            Tried::NotBegun(errno) => texts.each_ref().map(|text| match text {
                Some(_) => Err(not_begun(errno)),
                None => Ok(()),
            }),
            Tried::ForThePrograms => side_by_side(restore),
        },
    }
}

fn batches<'a>(tables: &[FamilyTable; 2], texts: &'a [Option<String>; 2]) -> Vec<(Family, &'a str)> {
    let both = tables.iter().zip(texts);
    both.filter_map(|(table, text)| Some((table.family(), text.as_deref()?)))
        .collect()
}

fn not_begun(errno: Errno) -> iptables::Error {
    iptables::Error::Run {
        program: "a transaction of nf_tables".to_owned(),
        source: errno.into(),
    }
}

fn side_by_side(
    restore: impl Fn(usize) -> Result<(), iptables::Error> + Sync,
) -> [Result<(), iptables::Error>; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| restore(1));
        let one = restore(0);
        [
            one,
            other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        ]
    })
}

/// That all chains of these pods go which the kernel holds.
fn chains_of(table: &FamilyTable, pods: &BTreeSet<PodKey>) -> Change {
    let chains: Vec<PodChains> = pods.iter().map(PodChains::of).collect();
    let held = table.programmed().keys();
    let remove = held.filter(|name| chains.iter().any(|chains| chains.contain(name)));
    Change {
        remove: remove.cloned().collect(),
        ..Change::default()
    }
}

fn only(change: Change, keep: impl Fn(&str) -> bool) -> Change {
    Change {
        rewrite: change
            .rewrite
            .into_iter()
            .filter(|(name, _)| keep(name))
            .collect(),
        remove: change.remove.into_iter().filter(|name| keep(name)).collect(),
        jumps: BTreeMap::new(),
        jumps_removed: BTreeMap::new(),
        totals: None,
    }
}

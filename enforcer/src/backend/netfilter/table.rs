//! The filter table of one family: what it holds of ours, and what it should.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{self, Flavour, Hook, IpTables, Table as Which, TableListing};

use super::dispatch::jumps;
use super::names;
use super::render::Chains;
use super::restore::Change;
use crate::apply::delta::Tracker;

/// The table of a family.
#[derive(Debug)]
pub(super) struct Table {
    tables: IpTables,
    pub(super) chains: Tracker<String, Vec<String>>,
    /// Hooks whose head is not our jump, with the number of our jumps elsewhere.
    astray: BTreeMap<Hook, usize>,
}

impl Table {
    pub(super) fn new(flavour: Flavour, family: Family) -> Self {
        Self {
            tables: IpTables::new(flavour, family),
            chains: Tracker::default(),
            astray: BTreeMap::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.tables.family()
    }

    pub(super) const fn programs(&self) -> IpTables {
        self.tables
    }

    /// Believes a listing; returns what had changed behind our back, by kind.
    pub(super) fn resync(&mut self, listing: &TableListing) -> BTreeMap<&'static str, u64> {
        let listed: Chains = ours(listing)
            .filter(|chain| chain.name != names::totals().as_str())
            .map(|chain| (chain.name.clone(), chain.texts().map(str::to_owned).collect()))
            .collect();
        self.astray = astray(listing);
        let drift = drift(self.chains.programmed(), &listed, &self.astray);
        self.chains.resync(listed);
        drift
    }

    /// Wants these chains, and no others.
    pub(super) fn want(&mut self, wanted: Chains) {
        let gone: Vec<String> = self
            .chains
            .desired()
            .keys()
            .filter(|name| !wanted.contains_key(*name))
            .cloned()
            .collect();
        for name in &gone {
            self.chains.unwant(name);
        }
        for (name, rules) in wanted {
            self.chains.want(name, rules);
        }
    }

    /// Whether the kernel holds these chains as they are.
    pub(super) fn holds(&self, chains: &Chains) -> bool {
        chains
            .iter()
            .all(|(name, rules)| self.chains.programmed().get(name) == Some(rules))
    }

    /// What is still to be done.
    pub(super) fn pending(&self) -> Change {
        Change {
            rewrite: self
                .chains
                .to_program()
                .map(|(name, rules)| (name.clone(), rules.clone()))
                .collect(),
            remove: self.chains.to_remove().cloned().collect(),
            jumps: self.astray.clone(),
            totals: None,
        }
    }

    /// Says that a change was made.
    pub(super) fn done(&mut self, change: Change) {
        for (chain, rules) in change.rewrite {
            self.chains.was_programmed(chain, rules);
        }
        for chain in &change.remove {
            self.chains.was_removed(chain);
        }
        for hook in change.jumps.keys() {
            self.astray.remove(hook);
        }
    }

    /// Desired chains, and what is pending, as text.
    pub(super) fn dump(&self) -> String {
        let pending = self.pending();
        let mut text = String::new();
        for (name, rules) in self.chains.desired() {
            let state = if pending.rewrite.contains_key(name) {
                " (pending)"
            } else {
                ""
            };
            text += &format!("{:?} {name}{state}\n", self.family());
            text.extend(rules.iter().map(|rule| format!("  {rule}\n")));
        }
        text.extend(
            pending
                .remove
                .iter()
                .map(|name| format!("{:?} {name} (to be removed)\n", self.family())),
        );
        text
    }
}

/// Lists the filter table.
pub(super) fn list(tables: IpTables) -> Result<TableListing, iptables::Error> {
    tables.save(Which::Filter)
}

/// The chains of ours in a listing.
pub(super) fn ours(listing: &TableListing) -> impl Iterator<Item = &iptables::Chain> {
    listing
        .chains
        .iter()
        .filter(|chain| names::is_own_chain(&chain.name))
}

/// Places of our jump in the chain of a hook.
pub(super) fn copies(listing: &TableListing, hook: Hook, jump: &str) -> Vec<usize> {
    let rules = listing.chain(hook.name()).map(|chain| chain.texts().enumerate());
    rules
        .into_iter()
        .flatten()
        .filter(|(_, text)| *text == jump)
        .map(|(place, _)| place)
        .collect()
}

fn astray(listing: &TableListing) -> BTreeMap<Hook, usize> {
    jumps()
        .into_iter()
        .map(|(hook, jump)| (hook, copies(listing, hook, &jump)))
        .filter(|(_, places)| places.as_slice() != [0])
        .map(|(hook, places)| (hook, places.len()))
        .collect()
}

fn drift(believed: &Chains, listed: &Chains, astray: &BTreeMap<Hook, usize>) -> BTreeMap<&'static str, u64> {
    let names: BTreeSet<&String> = believed.keys().chain(listed.keys()).collect();
    let mut counts = BTreeMap::new();
    for name in names {
        let kind = match (believed.get(name), listed.get(name)) {
            (Some(was), Some(is)) if was == is => continue,
            (Some(_), Some(_)) => "chain_changed",
            (Some(_), None) => "chain_missing",
            (None, Some(_)) => "chain_extra",
            (None, None) => continue,
        };
        *counts.entry(kind).or_insert(0) += 1;
    }
    if !astray.is_empty() {
        counts.insert("jump", u64::try_from(astray.len()).unwrap_or(u64::MAX));
    }
    counts
}

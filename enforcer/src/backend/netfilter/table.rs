//! The filter table of one family: what it holds of ours, and what it should.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{self, Flavour, Hook, IpTables, Table as Which, TableListing};

use super::dispatch::{Jump, jumps};
use super::names;
use super::render::Chains;
use super::restore::Change;
use crate::apply::delta::Tracker;

/// The table of a family.
#[derive(Debug)]
pub(super) struct Table {
    tables: IpTables,
    pub(super) chains: Tracker<String, Vec<String>>,
    /// Where our jumps stand among the rules of their hooks; a hook without one is left out.
    places: BTreeMap<Hook, Vec<usize>>,
}

impl Table {
    pub(super) fn new(flavour: Flavour, family: Family) -> Self {
        Self {
            tables: IpTables::new(flavour, family),
            chains: Tracker::default(),
            places: BTreeMap::new(),
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
        self.places = places(listing);
        let (astray, surplus) = (self.astray(), self.surplus());
        let drift = drift(self.chains.programmed(), &listed, astray.len() + surplus.len());
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
            jumps: self.astray(),
            jumps_removed: self.surplus(),
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
            self.places.insert(*hook, vec![0]);
        }
        for hook in change.jumps_removed.keys() {
            self.places.remove(hook);
        }
    }

    /// Hooks whose head should be our jump and is not, with the number of our jumps elsewhere.
    fn astray(&self) -> BTreeMap<Hook, usize> {
        let wanted = jumps().into_iter().filter(|jump| self.is_wanted(jump));
        let places = |hook: Hook| self.places.get(&hook).map_or(&[][..], Vec::as_slice);
        wanted
            .filter(|jump| places(jump.hook) != [0])
            .map(|jump| (jump.hook, places(jump.hook).len()))
            .collect()
    }

    /// Hooks from which we should not jump, with the number of our jumps.
    fn surplus(&self) -> BTreeMap<Hook, usize> {
        let unwanted = jumps().into_iter().filter(|jump| !self.is_wanted(jump));
        unwanted
            .filter_map(|jump| Some((jump.hook, self.places.get(&jump.hook)?.len())))
            .collect()
    }

    fn is_wanted(&self, jump: &Jump) -> bool {
        self.chains.desired().contains_key(jump.chain.as_str())
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

fn places(listing: &TableListing) -> BTreeMap<Hook, Vec<usize>> {
    jumps()
        .into_iter()
        .map(|jump| (jump.hook, copies(listing, jump.hook, &jump.text)))
        .filter(|(_, places)| !places.is_empty())
        .collect()
}

fn drift(believed: &Chains, listed: &Chains, astray: usize) -> BTreeMap<&'static str, u64> {
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
    if astray > 0 {
        counts.insert("jump", u64::try_from(astray).unwrap_or(u64::MAX));
    }
    counts
}

//! The filter table of one family: what it holds of ours, and what it should.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{self, Flavour, Hook, IpTables, Table as Which, TableListing};

use super::dispatch::{Jump, jumps};
use super::drift::Drift;
use super::names;
use super::neighbours;
use super::place::{Contest, JumpPlace, Put};
use super::render::Chains;
use super::restore::Change;
use crate::apply::delta::Tracker;
use egret_shared::time::Timestamp;

/// The table of a family.
#[derive(Debug)]
pub(super) struct Table {
    tables: IpTables,
    pub(super) chains: Tracker<String, Vec<String>>,
    /// Where our jumps stand among the rules of their hooks; a hook without one is left out.
    places: BTreeMap<Hook, Vec<usize>>,
    /// Where they should.
    pub(super) place: JumpPlace,
    contest: Contest,
    /// Hooks whose head is left to others.
    left_to_others: BTreeSet<Hook>,
    /// Rules of others in front of our jumps by which a packet may pass us.
    pub(super) in_front: Vec<String>,
}

impl Table {
    pub(super) fn new(flavour: Flavour, family: Family) -> Self {
        Self {
            tables: IpTables::new(flavour, family),
            chains: Tracker::default(),
            places: BTreeMap::new(),
            place: JumpPlace::Insert,
            contest: Contest::default(),
            left_to_others: BTreeSet::new(),
            in_front: Vec::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.tables.family()
    }

    pub(super) const fn programs(&self) -> IpTables {
        self.tables
    }

    /// Believes a listing; returns what had changed behind our back.
    pub(super) fn resync(&mut self, listing: &TableListing, now: Timestamp) -> Drift {
        let listed: Chains = ours(listing)
            .filter(|chain| chain.name != names::totals().as_str())
            .map(|chain| (chain.name.clone(), chain.texts().map(str::to_owned).collect()))
            .collect();
        self.places = places(listing);
        self.contest_places(now);
        self.look_in_front(listing);
        let drift = self.drift(&listed);
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

    fn look_in_front(&mut self, listing: &TableListing) {
        let mut places = self.places.clone();
        if self.place == JumpPlace::Append {
            // What is there now is what ours will stand behind.
            for hook in [Hook::Forward, Hook::Input] {
                places.entry(hook).or_insert_with(|| vec![usize::MAX]);
            }
        }
        let found = neighbours::in_front(listing, self.family(), &places);
        for rule in found.iter().filter(|rule| !self.in_front.contains(rule)) {
            tracing::warn!(
                rule,
                "a rule of others in front of ours accepts packets that are then never judged"
            );
        }
        self.in_front = found;
    }

    /// Decides which of the places that others took are taken back.
    fn contest_places(&mut self, now: Timestamp) {
        let pushed: Vec<Hook> = self
            .places
            .iter()
            .filter(|(_, places)| matches!(places.as_slice(), [place] if *place > 0))
            .map(|(hook, _)| *hook)
            .collect();
        self.left_to_others.retain(|hook| pushed.contains(hook));
        if self.place == JumpPlace::Append {
            return;
        }
        for hook in pushed {
            if self.contest.may_move(hook, now) {
                self.left_to_others.remove(&hook);
            } else if self.left_to_others.insert(hook) {
                let (family, hook) = (self.family(), hook.name());
                tracing::warn!(
                    ?family,
                    hook,
                    "others keep putting a rule in front of ours, which stays behind it for now"
                );
            }
        }
    }

    /// Hooks whose jump is not where it should be, and how it is put there.
    fn astray(&self) -> BTreeMap<Hook, Put> {
        let wanted = jumps().into_iter().filter(|jump| self.is_wanted(jump));
        wanted
            .filter(|jump| !self.is_in_place(jump.hook))
            .map(|jump| {
                let copies = self.places.get(&jump.hook).map_or(0, Vec::len);
                let place = self.place;
                (jump.hook, Put { copies, place })
            })
            .collect()
    }

    fn is_in_place(&self, hook: Hook) -> bool {
        match self.places.get(&hook).map(Vec::as_slice) {
            Some([0]) => true,
            Some([_]) => self.place == JumpPlace::Append || self.left_to_others.contains(&hook),
            Some(_) | None => false,
        }
    }

    fn drift(&self, listed: &Chains) -> Drift {
        let mut drift = drift(self.family(), self.chains.programmed(), listed);
        for hook in self.astray().keys().chain(self.surplus().keys()) {
            drift.note("jump", &format!("{:?} {}", self.family(), hook.name()));
        }
        drift
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

fn drift(family: Family, believed: &Chains, listed: &Chains) -> Drift {
    let names: BTreeSet<&String> = believed.keys().chain(listed.keys()).collect();
    let mut drift = Drift::default();
    for name in names {
        let kind = match (believed.get(name), listed.get(name)) {
            (Some(was), Some(is)) if was == is => continue,
            (Some(_), Some(_)) => "chain_changed",
            (Some(_), None) => "chain_missing",
            (None, Some(_)) => "chain_extra",
            (None, None) => continue,
        };
        drift.note(kind, &format!("{family:?} {name}"));
    }
    drift
}

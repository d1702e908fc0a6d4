//! The tables of one family, `raw` and `filter`: desired and programmed chains, and where our jumps stand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use egret_kernel::Family;
use egret_kernel::iptables::legacy;
use egret_kernel::iptables::{self, Flavour, Hook, IpTables, Table as Which, TableListing};

use super::connmarks;
use super::denial_chains::DenialChains;
use super::foreign_rules;
use super::hooks::{self, Jump, jumps};
use super::jump_position::{JumpPlacement, PositionContest};
use super::restore::{Change, ProgrammedChains};
use crate::apply::tracker::Tracker;
use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::marks::generations::ChainMark;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::names;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::nflog;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

/// Whose chains are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::netfilter) enum ChainOwner {
    /// All pods'.
    Shared,
    /// The node's own, about clients outside.
    Exposed,
    /// A pod's.
    Pod(PodKey),
}

/// The tables of a family.
#[derive(Debug)]
pub(super) struct FamilyTable {
    tables: IpTables,
    chains: Tracker<String, Arc<[String]>>,
    /// The owners of desired chains; none where all chains were set at once.
    owners: Option<BTreeMap<ChainOwner, BTreeSet<String>>>,
    /// Why the desired ones deny.
    denial_chains: DenialChains,
    /// Where our jumps stand among the rules of their hooks; a hook without one is left out.
    places: BTreeMap<Hook, Vec<usize>>,
    /// Where they should.
    place: JumpPosition,
    contest: PositionContest,
    /// Hooks whose jump an earlier life left in front of rules behind which it belongs.
    ahead_of_others: BTreeSet<Hook>,
    /// Hooks whose head is left to others.
    left_to_others: BTreeSet<Hook>,
    /// Rules of others in front of our jumps by which a packet may pass us.
    bypassing: Vec<String>,
}

impl FamilyTable {
    pub(in crate::backend::netfilter) fn new(flavour: Flavour, family: Family) -> Self {
        Self {
            tables: IpTables::new(flavour, family),
            chains: Tracker::default(),
            owners: None,
            denial_chains: DenialChains::default(),
            places: BTreeMap::new(),
            place: JumpPosition::Insert,
            contest: PositionContest::default(),
            ahead_of_others: BTreeSet::new(),
            left_to_others: BTreeSet::new(),
            bypassing: Vec::new(),
        }
    }

    pub(in crate::backend::netfilter) fn family(&self) -> Family {
        self.tables.family()
    }

    pub(in crate::backend::netfilter) const fn set_jump_position(&mut self, position: JumpPosition) {
        self.place = position;
    }

    /// The chains that the kernel holds.
    pub(in crate::backend::netfilter) const fn programmed(&self) -> &ProgrammedChains {
        self.chains.programmed()
    }

    /// The connection marks in the chains that the kernel holds.
    pub(super) fn connmarks(&self) -> impl Iterator<Item = ChainMark<'_>> {
        connmarks::of(self.programmed())
    }

    pub(in crate::backend::netfilter) fn desires(&self, chain: &str) -> bool {
        self.chains.desired().contains_key(chain)
    }

    /// Why desired rules lead to a chain that logs denials.
    pub(in crate::backend::netfilter) fn denial(&self, chain: &str) -> Option<&Denial> {
        self.denial_chains.denial(chain)
    }

    /// Rules of others in front of our jumps that accept packets.
    pub(super) fn bypassing_rules(&self) -> &[String] {
        &self.bypassing
    }

    pub(in crate::backend::netfilter) const fn programs(&self) -> IpTables {
        self.tables
    }

    /// Takes over a listing; returns the drift.
    pub(in crate::backend::netfilter) fn resync(&mut self, listing: &TableListing, now: Timestamp) -> Drift {
        let listed: ProgrammedChains = ours(listing)
            .filter(|chain| chain.name != names::totals().as_str())
            .map(|chain| (chain.name.clone(), self.held(chain)))
            .collect();
        let before = std::mem::replace(&mut self.places, places(listing));
        self.contest_places(now);
        self.look_in_front(listing);
        let drift = self.drift(&listed, &before);
        self.chains.resync(listed);
        drift
    }

    /// The rules of a listed chain; shared with the desired ones where they are the same.
    fn held(&self, chain: &iptables::Chain) -> Arc<[String]> {
        let wanted = self.chains.desired().get(&chain.name);
        let wanted = wanted.filter(|rules| chain.texts().eq(rules.iter().map(String::as_str)));
        wanted.map_or_else(|| chain.texts().map(str::to_owned).collect(), Arc::clone)
    }

    /// Whether an owner has desired chains.
    pub(in crate::backend::netfilter) fn has(&self, owner: &ChainOwner) -> bool {
        self.owners
            .as_ref()
            .is_some_and(|owners| owners.contains_key(owner))
    }

    /// Desires these chains for an owner, and no others for it. Chains that were set at once go.
    pub(in crate::backend::netfilter) fn set_desired_for(&mut self, owner: ChainOwner, wanted: Chains) {
        if self.owners.is_none() {
            self.set_desired(Chains::new());
        }
        let owners = self.owners.get_or_insert_default();
        let names = wanted.keys().cloned().collect();
        let before = owners.insert(owner, names).unwrap_or_default();
        let gone = before.into_iter().filter(|name| !wanted.contains_key(name));
        self.drop_chains(gone.collect());
        for (name, rules) in wanted {
            self.desire_chain(name, rules);
        }
    }

    /// Desires other rules in some chains that an owner has.
    pub(in crate::backend::netfilter) fn update_desired(&mut self, wanted: Chains) {
        for (name, rules) in wanted {
            self.desire_chain(name, rules);
        }
    }

    fn desire_chain(&mut self, name: String, rules: Vec<String>) {
        let before = self.chains.desired().get(&name);
        if before.is_some_and(|before| **before == *rules) {
            return;
        }
        self.denial_chains.add_rules(&name, &rules);
        self.denial_chains
            .remove_rules(before.map_or(&[], |before| &**before));
        let there = self.chains.programmed().get(&name);
        let there = there.filter(|there| ***there == *rules).cloned();
        self.chains
            .set_desired(name, there.unwrap_or_else(|| rules.into()));
    }

    fn drop_chain(&mut self, name: &String) {
        let before = self.chains.desired().get(name);
        self.denial_chains
            .remove_rules(before.map_or(&[], |before| &**before));
        self.chains.remove_desired(name);
    }

    /// Desires the denial chains that the desired rules lead to. Returns those that came or went.
    pub(in crate::backend::netfilter) fn update_denial_chains(
        &mut self,
        telling: NflogSettings,
    ) -> BTreeSet<String> {
        let touched = self.denial_chains.take_changed();
        for name in &touched {
            if self.denial_chains.is_used(name) {
                let lines = nflog::lines(name, telling);
                self.chains.set_desired(name.clone(), lines.into());
            } else {
                self.chains.remove_desired(name);
            }
        }
        touched
    }

    /// Drops the chains of all other owners.
    pub(in crate::backend::netfilter) fn retain_owners(&mut self, is_kept: impl Fn(&ChainOwner) -> bool) {
        let owners = self
            .owners
            .iter_mut()
            .flat_map(|owners| owners.extract_if(.., |owner, _| !is_kept(owner)));
        let gone = owners.flat_map(|(_, names)| names).collect();
        self.drop_chains(gone);
    }

    /// Drops these chains, except those that other owners have as well.
    fn drop_chains(&mut self, gone: Vec<String>) {
        for name in gone {
            let mut owners = self.owners.iter().flat_map(BTreeMap::values);
            if !names::is_shared_denials(&name) || !owners.any(|names| names.contains(&name)) {
                self.drop_chain(&name);
            }
        }
    }

    /// Whether a chain is a shared denial chain that this owner has.
    pub(super) fn is_shared_denials_of(&self, name: &str, owner: &ChainOwner) -> bool {
        let names = self.owners.as_ref().and_then(|owners| owners.get(owner));
        names::is_shared_denials(name) && names.is_some_and(|names| names.contains(name))
    }

    /// Desires these chains, and no others.
    pub(in crate::backend::netfilter) fn set_desired(&mut self, wanted: Chains) {
        self.owners = None;
        let gone: Vec<String> = self
            .chains
            .desired()
            .keys()
            .filter(|name| !wanted.contains_key(*name))
            .cloned()
            .collect();
        for name in &gone {
            self.drop_chain(name);
        }
        for (name, rules) in wanted {
            self.desire_chain(name, rules);
        }
    }

    /// Whether the kernel holds these chains as they are.
    pub(in crate::backend::netfilter) fn holds(&self, chains: &Chains) -> bool {
        !has_family(self.family())
            || chains.iter().all(|(name, rules)| {
                self.chains
                    .programmed()
                    .get(name)
                    .is_some_and(|held| **held == **rules)
            })
    }

    /// What is still to be done.
    pub(in crate::backend::netfilter) fn pending(&self) -> Change {
        if !has_family(self.family()) {
            return Change::default();
        }
        Change {
            rewrite: self
                .chains
                .to_program()
                .map(|(name, rules)| (name.clone(), Arc::clone(rules)))
                .collect(),
            remove: self.chains.to_remove().cloned().collect(),
            jumps: self.misplaced_jumps(),
            jumps_removed: self.surplus(),
            totals: None,
        }
    }

    /// Says that a change was made.
    pub(in crate::backend::netfilter) fn done(&mut self, change: Change) {
        for (chain, rules) in change.rewrite {
            self.chains.set_programmed(chain, rules);
        }
        for chain in &change.remove {
            self.chains.remove_programmed(chain);
        }
        for hook in change.jumps.keys() {
            self.ahead_of_others.remove(hook);
            self.places.insert(*hook, vec![0]);
        }
        for hook in change.jumps_removed.keys() {
            self.places.remove(hook);
        }
    }

    /// At start, append means behind all rules. Later rules of others may stand behind our jump.
    pub(super) fn note_jumps_ahead(&mut self, listing: &TableListing) {
        let rules = |hook: Hook| listing.chain(hook.name()).map_or(0, |chain| chain.rules.len());
        let early = self.places.iter().filter(|(hook, places)| {
            self.place == JumpPosition::Append && places.last().is_some_and(|place| place + 1 < rules(**hook))
        });
        // What is checked in front of everything is checked in front of everybody: it judges nothing that others have a say in.
        let early = early.filter(|(hook, _)| hooks::table(**hook) == Which::Filter);
        self.ahead_of_others = early.map(|(hook, _)| *hook).collect();
    }

    fn look_in_front(&mut self, listing: &TableListing) {
        let mut places = self.places.clone();
        if self.place == JumpPosition::Append {
            // What is there now is what ours will stand behind.
            for hook in [Hook::Forward, Hook::Input] {
                places.entry(hook).or_insert_with(|| vec![usize::MAX]);
            }
        }
        let found = foreign_rules::bypassing(listing, self.family(), &places);
        for rule in found.iter().filter(|rule| !self.bypassing.contains(rule)) {
            tracing::warn!(
                rule,
                "a rule of others in front of ours accepts packets that are then never judged"
            );
        }
        self.bypassing = found;
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
        for hook in pushed {
            if self.place_at(hook) == JumpPosition::Append {
                continue;
            }
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

    /// Hooks whose jump is missing or misplaced, and where it is to be put.
    fn misplaced_jumps(&self) -> BTreeMap<Hook, JumpPlacement> {
        let wanted = jumps().into_iter().filter(|jump| self.is_wanted(jump));
        wanted
            .filter(|jump| !self.is_in_place(jump.hook))
            .map(|jump| {
                let copies = self.places.get(&jump.hook).map_or(0, Vec::len);
                let place = self.place_at(jump.hook);
                (jump.hook, JumpPlacement { copies, place })
            })
            .collect()
    }

    /// Where the jump of a hook should stand. Sources are checked before anybody lets a packet pass.
    fn place_at(&self, hook: Hook) -> JumpPosition {
        match hooks::table(hook) {
            Which::Raw => JumpPosition::Insert,
            Which::Mangle | Which::Nat | Which::Filter => self.place,
        }
    }

    fn is_in_place(&self, hook: Hook) -> bool {
        match self.places.get(&hook).map(Vec::as_slice) {
            Some(_) if self.ahead_of_others.contains(&hook) => false,
            Some([0]) => true,
            Some([_]) => self.place_at(hook) == JumpPosition::Append || self.left_to_others.contains(&hook),
            Some(_) | None => false,
        }
    }

    fn drift(&self, listed: &ProgrammedChains, before: &BTreeMap<Hook, Vec<usize>>) -> Drift {
        let mut drift = drift(self.family(), self.chains.programmed(), listed);
        let (misplaced_jumps, surplus) = (self.misplaced_jumps(), self.surplus());
        let moved = misplaced_jumps.keys().filter(|hook| before.contains_key(hook));
        let came = surplus.keys().filter(|hook| !before.contains_key(hook));
        for hook in moved.chain(came) {
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
    pub(in crate::backend::netfilter) fn dump(&self) -> String {
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

/// Lists the filter table, and of the table `raw` the hook that leads to our chains and these chains. Where only the programs of IPv6 are not there, it is taken for empty: IPv4 is written all the same,
/// and what cannot be written says so.
pub(in crate::backend::netfilter) fn list(tables: IpTables) -> Result<TableListing, iptables::Error> {
    let nothing = || Ok(TableListing::empty(Which::Filter.name()));
    if !has_family(tables.family()) {
        return nothing();
    }
    match list_both(tables) {
        Err(iptables::Error::Missing { .. }) if tables.family() == Family::V6 => nothing(),
        listed => listed,
    }
}

fn list_both(tables: IpTables) -> Result<TableListing, iptables::Error> {
    let mut listing = tables.save(Which::Filter)?;
    listing
        .chains
        .retain(|chain| names::table(&chain.name) == Which::Filter);
    // Listing a legacy table makes it.
    if tables.flavour() == Flavour::Nft || legacy::is_there(tables.family(), Which::Raw) {
        let raw = tables.save(Which::Raw)?;
        let ours = raw
            .chains
            .into_iter()
            .filter(|chain| chain.name == Hook::Prerouting.name() || names::table(&chain.name) == Which::Raw);
        listing.chains.extend(ours);
    }
    Ok(listing)
}

/// Whether this kernel speaks a family at all. With `ipv6.disable=1` it does not, and `ip6tables-legacy` cannot be used.
fn has_family(family: Family) -> bool {
    match family {
        Family::V4 => true,
        Family::V6 => Path::new("/proc/sys/net/ipv6/conf").exists(),
    }
}

/// The chains of ours in a listing.
pub(in crate::backend::netfilter) fn ours(listing: &TableListing) -> impl Iterator<Item = &iptables::Chain> {
    listing
        .chains
        .iter()
        .filter(|chain| names::is_own_chain(&chain.name))
}

fn places(listing: &TableListing) -> BTreeMap<Hook, Vec<usize>> {
    jumps()
        .into_iter()
        .map(|jump| (jump.hook, hooks::copies(listing, jump.hook, &jump.text)))
        .filter(|(_, places)| !places.is_empty())
        .collect()
}

fn drift(family: Family, believed: &ProgrammedChains, listed: &ProgrammedChains) -> Drift {
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

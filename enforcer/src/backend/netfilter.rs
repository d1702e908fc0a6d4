//! iptables and ipset: the packet filter that every Linux has, in both flavours and both families.
//!
//! Rules are static and data is dynamic: what a name resolves to, which pods have a label, which networks a policy
//! lists, all that is in sets and changes by netlink in microseconds. `iptables-restore` runs when a pod comes or
//! goes, a policy changes its rules, or open connections are to be asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, InterfaceName};
use egret_policies::rules::{Batch, Direction, NodeRules, PodRules, Rule, SetId};
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use super::{Backend, BackendError, Ended, Pending, Standing, VerdictCounters};
use crate::node::{Locate, Location};

pub mod render;
pub mod dispatch;
pub mod restore;
pub mod tally;
pub mod names;
pub mod marks;
pub mod cleanup;
mod generations;
mod sets;
mod members;
mod table;
mod program;
mod totals;
mod neighbours;
mod lapsed;
mod revocation;
mod judge;
mod pod_sockets;

use dispatch::{Attached, DenyAction, Exposed, Port};
use generations::Generations;
use marks::{Generation, Marks};
use names::PodChains;
use render::{Chains, PodMarks, Surroundings};
use revocation::Revocations;
use sets::Sets;
use table::Table;
use totals::{Counters, Totals};

/// How the backend is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which iptables.
    pub flavour: Flavour,
    /// Which bits of the connection mark are ours.
    pub marks: Marks,
    /// What a sender is told.
    pub deny: DenyAction,
}

/// The backend.
#[derive(Debug)]
pub struct Netfilter {
    settings: Settings,
    locate: Box<dyn Locate>,
    sets: Sets,
    tables: [Table; 2],
    generations: Generations,
    counters: Arc<Counters>,
    pods: BTreeMap<PodKey, Local>,
    /// For clients outside; none where nothing is to be asked about them.
    node_rules: Option<NodeRules>,
    /// Chains that the kernel refused, by pod, and what concerns all of them.
    refused: BTreeMap<PodKey, String>,
    broken: Option<String>,
    /// The lines of the totals that the kernel holds.
    written_totals: Option<Vec<(u64, String)>>,
    revocations: Revocations,
    phase: Phase,
}

/// Whether what is wanted is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The kernel was read, no batch came yet: nothing may be written or removed.
    Adopting {
        /// There was something of ours: what differs from the first batch is a repair.
        had_state: bool,
    },
    /// The first batch, and so all that is wanted, came.
    InForce,
}

/// A pod of this node.
#[derive(Debug)]
struct Local {
    rules: PodRules,
    place: Result<Vec<Location>, String>,
}

impl Local {
    fn interfaces(&self) -> Vec<InterfaceName> {
        let places = self.place.iter().flatten();
        places.map(|location| location.interface.clone()).collect()
    }
}

impl Netfilter {
    /// Opens the kernel's interfaces; writes nothing.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn open(settings: Settings, locate: Box<dyn Locate>) -> Result<Self, BackendError> {
        let sets = Sets::open().map_err(|error| BackendError::new("cannot use ipset", error))?;
        let tables = Family::BOTH.map(|family| Table::new(settings.flavour, family));
        let counters = Arc::new(Counters::new([tables[0].programs(), tables[1].programs()]));
        Ok(Self {
            settings,
            locate,
            sets,
            generations: Generations::new(settings.marks),
            tables,
            counters,
            pods: BTreeMap::new(),
            node_rules: None,
            refused: BTreeMap::new(),
            broken: None,
            written_totals: None,
            revocations: Revocations::default(),
            phase: Phase::Adopting { had_state: false },
        })
    }

    /// The first batch: everything is wanted at once and compared with what an earlier life left.
    fn begin(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> Standing {
        let mut standing = Standing::default();
        self.sets.want(&batch.sets_created);
        self.sets.note(&batch.members_changed);
        self.sets.note_lapsed(&batch.lapsed);
        let shrunk = self.sets.settle(now);
        self.replace(&batch.rules_replaced);
        self.replace_node_rules(batch.node_rules.as_ref());
        self.generations.retain(self.pods.keys().map(PodChains::of));
        self.phase = Phase::InForce;
        let stale = self.stale_directions(&shrunk);
        let before = self.renew(&stale);
        if had_state {
            standing.repaired = self.differences();
            if !shrunk.is_empty() {
                standing
                    .repaired
                    .insert("member_extra", u64::try_from(shrunk.len()).unwrap_or(u64::MAX));
            }
        }
        self.program_and_carry(&before);
        self.revocations.start(self.pods.keys().cloned());
        self.sweep();
        self.standing(standing)
    }

    fn step(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        self.sets.want(&batch.sets_created);
        self.sets.note(&batch.members_changed);
        self.sets.note_lapsed(&batch.lapsed);
        for spec in &batch.sets_created {
            self.sets.settle_one(spec.id, now);
        }
        self.sets.write_noted(&batch.members_changed, now);
        self.revocations.note(batch, &self.pods);
        let touches_rules = !(batch.rules_replaced.is_empty()
            && batch.node_rules.is_none()
            && batch.pods_removed.is_empty()
            && batch.reevaluate.is_empty());
        if touches_rules {
            self.replace(&batch.rules_replaced);
            self.replace_node_rules(batch.node_rules.as_ref());
            self.remove(&batch.pods_removed);
            let mut before = Vec::new();
            if !is_off(Switch::Generation) {
                let asked = batch
                    .reevaluate
                    .iter()
                    .filter(|(pod, _)| self.pods.contains_key(pod))
                    .cloned()
                    .collect();
                before = self.renew(&asked);
                self.revocations.ask(asked);
            }
            self.program_and_carry(&before);
        }
        if !batch.sets_destroyed.is_empty() {
            self.sets.unwant(&batch.sets_destroyed);
            self.sweep();
        }
        self.standing(Standing::default())
    }

    fn replace(&mut self, replaced: &[PodRules]) {
        for rules in replaced {
            let place = self.locate.locate(&rules.addresses);
            self.pods.insert(
                rules.pod.clone(),
                Local {
                    rules: rules.clone(),
                    place,
                },
            );
        }
    }

    fn replace_node_rules(&mut self, replaced: Option<&NodeRules>) {
        if let Some(rules) = replaced {
            let says_something = !rules.exposed.tiers.is_empty() && !is_off(Switch::RejectExposure);
            self.node_rules = says_something.then(|| rules.clone());
        }
    }

    fn remove(&mut self, removed: &[PodKey]) {
        for pod in removed {
            self.pods.remove(pod);
            self.refused.remove(pod);
            self.generations.forget(PodChains::of(pod));
        }
    }

    /// Gives these pods and directions, and those that have none yet, a generation that no flow bears. Returns the
    /// marks that flows of the asked pods bear so far.
    fn renew(&mut self, asked: &BTreeSet<(PodKey, Direction)>) -> Vec<(PodKey, PodMarks)> {
        let mut drawn: Option<Generation> = None;
        let mut before = Vec::new();
        for (pod, local) in &self.pods {
            if asked.contains(&(pod.clone(), Direction::Egress)) {
                before.extend(
                    self.generations
                        .marks(PodChains::of(pod))
                        .map(|marks| (pod.clone(), marks)),
                );
            }
            for direction in Direction::ALL {
                if asked.contains(&(pod.clone(), direction)) || !self.generations.has(&local.rules, direction)
                {
                    let generation =
                        *drawn.get_or_insert_with(|| self.generations.draw(&mut self.counters.lock().serial));
                    self.generations.set(PodChains::of(pod), direction, generation);
                }
            }
        }
        before
    }

    /// Programs the rules, and keeps open what only an expired record would end.
    fn program_and_carry(&mut self, before: &[(PodKey, PodMarks)]) {
        self.program();
        for (pod, before) in before {
            let Some(local) = self.pods.get(pod) else { continue };
            let Some(after) = self.generations.marks(PodChains::of(pod)) else {
                continue;
            };
            match lapsed::carry_over(&local.rules, &self.sets, before.egress, after.egress) {
                Ok(0) => {}
                Ok(flows) => {
                    tracing::debug!(%pod, flows, "connections of expired records go on under the new rules")
                }
                Err(error) => {
                    tracing::warn!(%pod, %error, "connections of expired records may end with the change of rules")
                }
            }
        }
    }

    /// After a restart: pods and directions whose rules or members are not those that the open connections were
    /// allowed under.
    fn stale_directions(&self, shrunk: &BTreeSet<SetId>) -> BTreeSet<(PodKey, Direction)> {
        let sets = self.sets.available();
        let mut stale = BTreeSet::new();
        for (pod, local) in &self.pods {
            let chains = PodChains::of(pod);
            let Some(marks) = self.generations.marks(chains) else {
                continue;
            };
            let interfaces = local.interfaces();
            for direction in Direction::ALL {
                let is_same = self.tables.iter().all(|table| {
                    let around = Surroundings {
                        family: table.family(),
                        sets: &sets,
                        interfaces: &interfaces,
                    };
                    table.holds(&render::direction(&local.rules, direction, marks, around))
                });
                if !is_same || names_any(&local.rules, direction, shrunk) {
                    stale.insert((pod.clone(), direction));
                }
            }
        }
        stale
    }

    /// What the tables are to hold now.
    fn want_chains(&mut self, without: &BTreeSet<PodKey>) {
        let sets = self.sets.available();
        let attached = self.attached(without);
        let exposed = self.node_rules.as_ref().map(|_| Exposed {
            unmarked: self.settings.marks.unmarked(Direction::Egress),
            by_ipvs: dispatch::has_ipvs(),
        });
        for table in &mut self.tables {
            let mut wanted = dispatch::shared(
                &attached,
                exposed,
                self.settings.marks,
                self.settings.deny,
                table.family(),
            );
            if let Some(rules) = &self.node_rules {
                let around = Surroundings {
                    family: table.family(),
                    sets: &sets,
                    interfaces: &[],
                };
                wanted.extend(render::exposed(rules, around));
            }
            for (pod, local) in &self.pods {
                let around = Surroundings {
                    family: table.family(),
                    sets: &sets,
                    interfaces: &local.interfaces(),
                };
                if let Some(marks) = self.generations.marks(PodChains::of(pod)) {
                    wanted.extend(render::pod(&local.rules, marks, around));
                }
            }
            table.want(wanted);
        }
    }

    /// Pods with an interface, and whether it is theirs alone.
    fn attached(&self, without: &BTreeSet<PodKey>) -> Vec<Attached> {
        let mut users: BTreeMap<&InterfaceName, usize> = BTreeMap::new();
        for location in self
            .pods
            .values()
            .filter_map(|local| local.place.as_ref().ok())
            .flatten()
        {
            *users.entry(&location.interface).or_default() += 1;
        }
        let port = |location: &Location| {
            let is_shared =
                location.is_bridge || users.get(&location.interface).is_some_and(|users| *users > 1);
            let name = location.interface.clone();
            if is_shared {
                Port::Shared(name)
            } else {
                Port::Own(name)
            }
        };
        self.pods
            .iter()
            .filter(|(pod, _)| !without.contains(*pod))
            .filter_map(|(pod, local)| {
                let interfaces = local.place.as_ref().ok()?.iter().map(port).collect();
                Some(Attached {
                    chains: PodChains::of(pod),
                    interfaces,
                    addresses: local.rules.addresses.clone(),
                })
            })
            .collect()
    }

    /// Differences between what is wanted and what an earlier life left, by kind.
    fn differences(&mut self) -> BTreeMap<&'static str, u64> {
        self.want_chains(&BTreeSet::new());
        let mut counts = BTreeMap::new();
        for table in &self.tables {
            let pending = table.pending();
            let missing = pending
                .rewrite
                .keys()
                .filter(|name| !table.chains.programmed().contains_key(*name))
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

    fn sweep(&mut self) {
        for reason in self.sets.sweep() {
            tracing::warn!(reason, "a set that no rule needs stays for now");
        }
    }

    fn standing(&self, standing: Standing) -> Standing {
        let mut pending: BTreeMap<PodKey, Pending> = BTreeMap::new();
        for (pod, local) in &self.pods {
            if let Err(reason) = &local.place {
                pending.insert(pod.clone(), Pending::Unattached(reason.clone()));
            }
            let failed = self.sets.failed().iter().find(|(id, _)| {
                Direction::ALL
                    .into_iter()
                    .any(|direction| names_any(&local.rules, direction, &BTreeSet::from([**id])))
            });
            if let Some((_, reason)) = failed {
                pending.insert(pod.clone(), Pending::Refused(reason.clone()));
            }
        }
        pending.extend(
            self.refused
                .iter()
                .map(|(pod, reason)| (pod.clone(), Pending::Refused(reason.clone()))),
        );
        Standing {
            pending,
            broken: self.broken.clone(),
            ..standing
        }
    }

    fn read_tables(&mut self) -> Result<BTreeMap<&'static str, u64>, BackendError> {
        let mut drift = BTreeMap::new();
        let listings = totals::both(self.tables.each_ref().map(Table::programs))?;
        for (table, listing) in self.tables.iter_mut().zip(&listings) {
            add(&mut drift, table.resync(listing));
        }
        Ok(drift)
    }
}

impl Backend for Netfilter {
    fn name(&self) -> &'static str {
        "netfilter"
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        if is_off(Switch::AdoptKernel) {
            self.remove_everything()?;
        }
        for rule in neighbours::foreign_writers(self.settings.flavour, self.settings.marks) {
            tracing::warn!(
                rule,
                "another agent writes bits of the connection mark that are ours: choose other mark masks"
            );
        }
        self.sets
            .resync(now)
            .map_err(|error| BackendError::new("cannot list the sets", error))?;
        let listings = totals::both(self.tables.each_ref().map(Table::programs))?;
        for (table, listing) in self.tables.iter_mut().zip(&listings) {
            table.resync(listing);
        }
        let totals = Totals::of_listing(&listings[0]);
        self.written_totals = listings[0]
            .chain(names::totals().as_str())
            .map(|_| totals.lines());
        *self.counters.lock() = totals;
        self.generations.adopt(self.tables[0].chains.programmed());
        let had_state = !self.sets.is_empty()
            || self
                .tables
                .iter()
                .any(|table| !table.chains.programmed().is_empty());
        self.phase = Phase::Adopting { had_state };
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        matches!(self.phase, Phase::Adopting { had_state: true } | Phase::InForce)
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        match self.phase {
            Phase::Adopting { had_state } => self.begin(batch, had_state, now),
            Phase::InForce => self.step(batch, now),
        }
    }

    fn links_changed(&mut self, _now: Timestamp) -> Standing {
        if self.phase != Phase::InForce {
            return Standing::default();
        }
        let mut moved = false;
        for local in self.pods.values_mut() {
            let place = self.locate.locate(&local.rules.addresses);
            moved |= local.place != place;
            local.place = place;
        }
        if moved {
            self.program();
        }
        self.standing(Standing::default())
    }

    fn reconcile(&mut self, now: Timestamp) -> Standing {
        if self.phase != Phase::InForce {
            return Standing::default();
        }
        let mut standing = Standing::default();
        match self.sets.resync(now) {
            Ok(drift) => add(&mut standing.repaired, drift),
            Err(error) => self.broken = Some(error.to_string()),
        }
        match self.read_tables() {
            Ok(drift) => add(&mut standing.repaired, drift),
            Err(error) => {
                self.broken = Some(error.to_string());
                return self.standing(standing);
            }
        }
        let shrunk = self.sets.settle(now);
        let stale = self.pods.iter().flat_map(|(pod, local)| {
            let named = Direction::ALL
                .into_iter()
                .filter(|direction| names_any(&local.rules, *direction, &shrunk));
            named.map(|direction| (pod.clone(), direction))
        });
        let stale = stale.collect();
        let before = self.renew(&stale);
        self.program_and_carry(&before);
        self.revocations.ask(stale);
        self.revocations.look_again();
        self.sweep();
        self.standing(standing)
    }

    fn end_forbidden(&mut self) -> Ended {
        self.revoke()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::clone(&self.counters) as Arc<dyn VerdictCounters>
    }

    fn dump(&self) -> String {
        let mut text = self.sets.dump() + "\n";
        for table in &self.tables {
            text += &table.dump();
        }
        for (pod, local) in &self.pods {
            text += &match &local.place {
                Ok(places) => format!("pod {pod} chains {:?} at {:?}\n", PodChains::of(pod), places),
                Err(reason) => format!("pod {pod} pending: {reason}\n"),
            };
        }
        text
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        let removed = cleanup::remove(self.settings.flavour);
        self.sets.forget();
        self.pods.clear();
        self.node_rules = None;
        self.revocations = Revocations::default();
        for table in &mut self.tables {
            table.want(Chains::new());
        }
        removed.map(|_found| ())
    }
}

/// Whether rules of a direction refer to one of these sets.
fn names_any(rules: &PodRules, direction: Direction, sets: &BTreeSet<SetId>) -> bool {
    let rules = rules
        .direction(direction)
        .tiers
        .iter()
        .flat_map(|tier| &tier.rules);
    !sets.is_empty()
        && rules
            .into_iter()
            .flat_map(Rule::sets)
            .any(|id| sets.contains(&id))
}

fn add(counts: &mut BTreeMap<&'static str, u64>, more: BTreeMap<&'static str, u64>) {
    for (kind, number) in more {
        *counts.entry(kind).or_insert(0) += number;
    }
}

impl Location {
    /// A location for who knows it without asking: tests, and interfaces given by hand.
    #[must_use]
    pub const fn own(interface: InterfaceName) -> Self {
        Self {
            interface,
            is_bridge: false,
        }
    }
}

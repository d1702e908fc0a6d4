//! iptables and ipset: the packet filter that every Linux has, in both flavours and both families.
//!
//! Rules are static and data is dynamic: what a name resolves to, which pods have a label, which networks a policy
//! lists, all that is in sets and changes by netlink in microseconds. `iptables-restore` runs when a pod comes or
//! goes, a policy changes its rules, or open connections are to be asked again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::Family;
use egret_policies::rules::{Batch, Direction, PodRules};
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use crate::backend::Backend;
use crate::backend::BackendError;
use crate::backend::Ended;
use crate::backend::Inquiry;
use crate::backend::Meanwhile;
use crate::backend::Standing;
use crate::backend::VerdictCounters;
use crate::backend::outlook::Outlook;
use crate::node::Locate;

mod first_sync;
mod staged;
mod status;

use crate::backend::netfilter::bridges::{BridgeNetfilter, TurnedOn};
use crate::backend::netfilter::compile::{Rendered, Shared};
use crate::backend::netfilter::connections::affected::Suspects;
use crate::backend::netfilter::connections::inquiry::Asking;
use crate::backend::netfilter::connections::revocation::Revocations;
use crate::backend::netfilter::denials::Denials;
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::marks::Generation;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::model::pods::names_any;
use crate::backend::netfilter::model::settings::Beside;
use crate::backend::netfilter::model::settings::JumpPlace;
use crate::backend::netfilter::model::settings::Settings;
use crate::backend::netfilter::model::unknown_pods::UnknownPods;
use crate::backend::netfilter::monitor::bypass::Lookout;
use crate::backend::netfilter::monitor::drift_poll::Vigil;
use crate::backend::netfilter::names;
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::dispatch;
use crate::backend::netfilter::sets::concurrent::SharedSets;
use crate::backend::netfilter::sets::creation_order;
use crate::backend::netfilter::sets::merged::Joints;
use crate::backend::netfilter::sets::preallocate::Room;
use crate::backend::netfilter::tables::counters::{Counters, Totals};
use crate::backend::netfilter::tables::family_table::Table;
use crate::backend::netfilter::tables::program::Written;
use crate::backend::netfilter::tables::wire::Wire;
use crate::backend::netfilter::tables::{cleanup, counters};

/// The backend.
#[derive(Debug)]
pub struct Netfilter {
    pub(crate) settings: Settings,
    pub(crate) beside: Beside,
    pub(crate) joints: Joints,
    pub(crate) sets: SharedSets,
    pub(crate) tables: [Table; 2],
    pub(crate) generations: Generations,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pods: Pods,
    /// Of what the chains are made that are wanted for all pods.
    pub(crate) shared: Option<Shared>,
    /// Chains that the kernel refused, by pod, and what concerns all of them.
    pub(crate) refused: BTreeMap<PodKey, String>,
    pub(crate) broken: Option<String>,
    /// The lines of the totals that the kernel holds.
    pub(crate) written_totals: Option<Vec<(u64, String)>>,
    pub(crate) revocations: Revocations,
    pub(crate) asking: Asking,
    pub(crate) vigil: Vigil,
    /// Why our rules are in a flavour in which they should not be.
    pub(crate) stranded: Option<String>,
    pub(crate) written: Written,
    pub(crate) wire: Wire,
    /// From what the chains of pods in the tables are; none where they are to be rendered in any case.
    pub(crate) rendered: BTreeMap<PodKey, Rendered>,
    pub(crate) denials: Denials,
    /// From the first batch on.
    pub(crate) lookout: Option<Lookout>,
    pub(crate) turned_on: TurnedOn,
    pub(crate) phase: Phase,
    /// What is to follow the first batch when the tables can be written.
    pub(crate) held_back: VecDeque<Batch>,
    pub(crate) room: Room,
}

/// Whether what is wanted is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The kernel was read, no batch came yet: nothing may be written or removed.
    Adopting {
        /// There was something of ours: what differs from the first batch is a repair.
        had_state: bool,
    },
    /// The first batch, and so all that is wanted, came.
    InForce,
}

impl Netfilter {
    /// Opens the kernel's interfaces; writes nothing.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn open(settings: Settings, locate: Box<dyn Locate>) -> Result<Self, BackendError> {
        let sets = SharedSets::open().map_err(|error| BackendError::new("cannot use ipset", error))?;
        let tables = Family::BOTH.map(|family| Table::new(settings.flavour, family));
        let counters = Arc::new(Counters::new([tables[0].programs(), tables[1].programs()]));
        Ok(Self {
            settings,
            beside: Beside {
                jump: JumpPlace::Insert,
                follows_flavour: false,
                accepted_marks: Vec::new(),
            },
            joints: Joints::default(),
            sets,
            generations: Generations::new(settings.marks),
            tables,
            counters,
            pods: Pods::new(locate),
            rendered: BTreeMap::new(),
            shared: None,
            refused: BTreeMap::new(),
            broken: None,
            written_totals: None,
            revocations: Revocations::default(),
            asking: Asking::default(),
            vigil: Vigil::default(),
            stranded: None,
            written: Written::default(),
            wire: Wire::default(),
            denials: Denials::default(),
            lookout: None,
            turned_on: TurnedOn::as_wished(BridgeNetfilter::Off),
            phase: Phase::Adopting { had_state: false },
            held_back: VecDeque::new(),
            room: Room::NotWanted,
        })
    }

    /// Closes pods that nobody knows yet as this says. Without it their interfaces are nobody's.
    #[must_use]
    pub fn with_unknown_pods(mut self, pods: UnknownPods) -> Self {
        self.pods.set_unknown(pods);
        self
    }

    /// Lives with others as this says. Without it the jumps are at the head, and the flavour stays.
    #[must_use]
    pub fn beside(mut self, beside: Beside) -> Self {
        let jump = if is_off(Switch::JumpInFront) {
            JumpPlace::Append
        } else {
            beside.jump
        };
        let beside = Beside { jump, ..beside };
        for table in &mut self.tables {
            table.place = jump;
        }
        self.accept_marks(beside.accepted_marks.clone());
        Self { beside, ..self }
    }

    /// What was written so far.
    #[must_use]
    pub const fn written(&self) -> Written {
        self.written
    }

    /// Gives a set so many places. Without it there are more than one would use.
    #[must_use]
    pub fn with_members_per_set(self, most: u32) -> Self {
        self.sets.lock().most = most;
        self
    }

    /// Makes room in the kernel's list of sets until the first batch comes. Without it the first sync of a large node takes longer.
    #[must_use]
    pub fn making_room(self) -> Self {
        Self {
            room: Room::Wanted,
            ..self
        }
    }

    /// Says here what is denied and why, for who listens to the kernel.
    #[must_use]
    pub fn telling(self, denials: Denials) -> Self {
        Self { denials, ..self }
    }

    /// The first batch: everything is wanted at once and compared with what an earlier life left.
    pub(crate) fn begin(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> Standing {
        let mut standing = Standing::default();
        self.sets.lock().want(&batch.sets_created);
        self.sets.lock().note(&batch.members_changed);
        self.sets.lock().note_lapsed(&batch.lapsed);
        let was_in_doubt = self.sets.lock().is_in_doubt();
        self.replace(&batch.rules_replaced);
        self.pods.replace_node_rules(batch.node_rules.as_ref());
        self.pods
            .set_has_policies(Some(batch.has_policies.unwrap_or(false)));
        self.pods.read_surroundings();
        self.pods.warn_open_interfaces();
        let had_pods = !self.generations.is_empty();
        self.generations.retain(self.pods.keys().map(PodChains::of));
        let unknown = self.pods.rules().filter(|rules| {
            let is_known = |direction| self.generations.has(rules, direction);
            had_pods && !Direction::ALL.into_iter().any(is_known)
        });
        let strangers: BTreeSet<PodKey> = unknown.map(|rules| rules.pod.clone()).collect();
        let had_marks = !self.generations.is_empty();
        let shrunk = self.make_sets(creation_order::in_order(batch, self.settings.flavour), now);
        self.withhold_sets();
        self.phase = Phase::InForce;
        let stale = if had_marks {
            self.stale_directions(&shrunk, was_in_doubt)
        } else {
            BTreeSet::new()
        };
        let before = self.renew(&stale);
        if had_state {
            standing.repaired = self.differences();
            if !shrunk.is_empty() {
                standing
                    .repaired
                    .insert("member_extra", u64::try_from(shrunk.len()).unwrap_or(u64::MAX));
            }
        }
        let rules = self.pods.rules();
        self.revocations
            .start(rules, |rules| strangers.contains(&rules.pod));
        self.program_and_carry(&before);
        self.be_sure();
        self.leave_the_other();
        self.sweep();
        self.look_out();
        self.standing(standing)
    }

    pub(crate) fn step(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        self.sets.lock().want(&batch.sets_created);
        self.sets.lock().note(&batch.members_changed);
        self.sets.lock().note_lapsed(&batch.lapsed);
        for spec in &batch.sets_created {
            self.sets.lock().settle_one(spec.id, now);
        }
        self.doubt(batch);
        self.sets.lock().write_noted(&batch.members_changed, now);
        self.revocations.note(batch, &self.pods);
        let suspects = Suspects::of(batch);
        let mut by_rules = batch
            .reevaluate
            .iter()
            .filter(|asked| !suspects.has(asked))
            .peekable();
        let touches_rules = !(batch.rules_replaced.is_empty()
            && batch.node_rules.is_none()
            && batch.has_policies.is_none()
            && batch.pods_removed.is_empty()
            && by_rules.peek().is_none());
        if self.withhold_sets() || touches_rules {
            let others = self.pods.other_runs(&batch.rules_replaced);
            self.replace(&batch.rules_replaced);
            self.pods.replace_node_rules(batch.node_rules.as_ref());
            self.withhold_sets();
            self.pods.set_has_policies(batch.has_policies);
            self.pods.warn_open_interfaces();
            self.remove(&batch.pods_removed);
            let mut before = Vec::new();
            if !is_off(Switch::Generation) {
                let asked = by_rules
                    .cloned()
                    .chain(others.iter().cloned())
                    .filter(|(pod, _)| self.pods.contains(pod))
                    .collect();
                before = self.renew(&asked);
                before.retain(|(pod, _)| others.iter().all(|(other, _)| other != pod));
                self.revocations.ask(asked);
            }
            self.program_and_carry(&before);
            self.look_out();
        } else {
            self.look_out_for_members(batch);
        }
        self.ask_again(suspects);
        if !batch.sets_destroyed.is_empty() {
            self.sets.lock().unwant(&batch.sets_destroyed);
            self.sweep();
        }
        self.standing(Standing::default())
    }

    pub(crate) fn replace(&mut self, replaced: &[PodRules]) {
        self.pods.replace(replaced);
        for rules in replaced {
            self.rendered.remove(&rules.pod);
        }
    }

    /// Writes the chains that are there without any pod, where there are none, and leaves what else there is.
    pub(crate) fn close_before_the_first_batch(&mut self) -> Result<bool, BackendError> {
        self.pods.read_surroundings();
        let closed = self.pods.closed(&BTreeSet::new());
        if closed.is_empty() {
            return Ok(false);
        }
        for table in &mut self.tables {
            let held = table.chains.programmed().iter();
            let mut wanted: Chains = held.map(|(name, rules)| (name.clone(), rules.to_vec())).collect();
            if !wanted.contains_key(names::forward().as_str()) {
                let Settings { marks, deny, .. } = self.settings;
                wanted.extend(dispatch::shared(&[], &closed, None, marks, deny, table.family()));
            }
            table.want(wanted);
        }
        let changes = self.tables.each_ref().map(Table::pending);
        self.write(changes)
            .map_err(|error| BackendError::new("cannot close pods that are not known", error))?;
        Ok(self.tables.iter().all(|table| {
            let chains = table.chains.programmed();
            chains.contains_key(names::unknown(Direction::Egress).as_str())
        }))
    }

    pub(crate) fn remove(&mut self, removed: &[PodKey]) {
        for pod in removed {
            self.pods.remove(pod);
            self.rendered.remove(pod);
            self.refused.remove(pod);
            self.generations.forget(PodChains::of(pod));
        }
    }

    /// Gives these pods and directions, and those that have none yet, a generation that no flow and no other pod bears: what one pod
    /// marks counts for no other. Returns the marks that flows of the asked pods bear so far.
    pub(crate) fn renew(&mut self, asked: &BTreeSet<(PodKey, Direction)>) -> Vec<(PodKey, PodMarks)> {
        let mut before = Vec::new();
        for (pod, local) in self.pods.iter() {
            let mut drawn: Option<Generation> = None;
            if asked.contains(&(pod.clone(), Direction::Egress)) {
                before.extend(
                    self.generations
                        .marks(PodChains::of(pod))
                        .map(|marks| (pod.clone(), marks)),
                );
            }
            for direction in Direction::ALL {
                if asked.contains(&(pod.clone(), direction))
                    || !self.generations.has(local.rules(), direction)
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
    pub(crate) fn program_and_carry(&mut self, before: &[(PodKey, PodMarks)]) {
        self.program();
        if let Err(error) = self.carry_over(before) {
            tracing::warn!(%error, "connections of expired records may end with the change of rules");
        }
    }

    /// Differences between what is wanted and what an earlier life left, by kind.
    pub(crate) fn differences(&mut self) -> BTreeMap<&'static str, u64> {
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

    pub(crate) fn sweep(&mut self) {
        if self.sets.lock().has_unwanted() {
            self.wire.let_go();
        }
        for reason in self.sets.lock().sweep() {
            tracing::warn!(reason, "a set that no rule needs stays for now");
        }
    }

    pub(crate) fn read_tables(&mut self, now: Timestamp) -> Result<[Drift; 2], BackendError> {
        self.note_fingerprints();
        let listings = counters::both(self.tables.each_ref().map(Table::programs))?;
        let [one, other] = &mut self.tables;
        Ok([one.resync(&listings[0], now), other.resync(&listings[1], now)])
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
        let unlisted = |error| BackendError::new("cannot list the sets", error);
        self.sets.lock().clear_passing().map_err(unlisted)?;
        self.sets.lock().resync(now).map_err(unlisted)?;
        let listings = counters::both(self.tables.each_ref().map(Table::programs))?;
        for (table, listing) in self.tables.iter_mut().zip(&listings) {
            table.resync(listing, now);
            table.insist_on_place(listing);
        }
        let totals = Totals::of_listing(&listings[0]);
        self.written_totals = listings[0]
            .chain(names::totals().as_str())
            .map(|_| totals.lines());
        *self.counters.lock() = totals;
        for (family, listing) in Family::BOTH.into_iter().zip(&listings) {
            self.turned_on.adopt(family, listing);
        }
        self.generations.adopt(self.tables[0].chains.programmed());
        let had_state = self.adopt_from_the_other()?
            || !self.sets.lock().is_empty()
            || self
                .tables
                .iter()
                .flat_map(|table| table.chains.programmed().keys())
                .any(|chain| !names::is_of_no_rules(chain) && !names::is_told(chain));
        self.phase = Phase::Adopting { had_state };
        let is_none_there = self.sets.lock().is_empty();
        self.room.begin_if(is_none_there);
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        matches!(self.phase, Phase::Adopting { had_state: true } | Phase::InForce)
    }

    fn close_unknown(&mut self) -> Result<bool, BackendError> {
        match self.phase {
            Phase::Adopting { had_state: false } => self.close_before_the_first_batch(),
            Phase::Adopting { had_state: true } | Phase::InForce => Ok(false),
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        let batch = self.joints.join(batch);
        match self.phase {
            Phase::Adopting { had_state } => self.begin_safely(&batch, had_state, now),
            Phase::InForce => self.step_in_turn(&batch, now),
        }
    }

    fn open_answer(&mut self, batch: &Batch, now: Timestamp) -> Option<Standing> {
        let opened = self.sets.add_members(&batch.members_changed, now);
        opened.is_err().then(|| self.standing(Standing::default()))
    }

    fn links_changed(&mut self, _now: Timestamp) -> Standing {
        if self.phase != Phase::InForce {
            return Standing::default();
        }
        let mut moved = self.pods.read_surroundings();
        moved |= self.pods.relocate();
        moved |= self.has_ipvs_changed();
        if moved {
            self.program();
        }
        self.look_out();
        self.standing(Standing::default())
    }

    fn look(&mut self, now: Timestamp) -> Option<String> {
        match self.phase {
            Phase::InForce => {
                if self.pods.settle_moved(now) {
                    self.program();
                }
                self.look_around(now)
            }
            Phase::Adopting { .. } => None,
        }
    }

    fn reconcile(&mut self, now: Timestamp) -> Standing {
        if self.phase != Phase::InForce {
            return Standing::default();
        }
        let mut standing = Standing::default();
        self.follow_flavour(now);
        match self.sets.lock().resync(now) {
            Ok(drift) => drift.tell(&mut standing),
            Err(error) => self.broken = Some(error.to_string()),
        }
        match self.read_tables(now) {
            Ok(drifts) => drifts.into_iter().for_each(|drift| drift.tell(&mut standing)),
            Err(error) => {
                self.broken = Some(error.to_string());
                return self.standing(standing);
            }
        }
        let shrunk = self.sets.lock().settle(now);
        self.withhold_sets();
        let stale = self.pods.iter().flat_map(|(pod, local)| {
            let named = Direction::ALL
                .into_iter()
                .filter(|direction| names_any(local.rules(), *direction, &shrunk));
            named.map(|direction| (pod.clone(), direction))
        });
        let stale = stale.collect();
        let before = self.renew(&stale);
        self.revocations.ask(stale);
        self.program_and_carry(&before);
        self.be_sure();
        self.leave_the_other();
        self.revocations.look_again();
        self.sweep();
        self.look_out_anew();
        let standing = self.standing(standing);
        self.catch_up(standing, now)
    }

    fn inquiry(&mut self) -> Option<Inquiry> {
        self.begin_inquiry()
    }

    fn end_forbidden(&mut self) -> Ended {
        self.take_in();
        self.revoke()
    }

    fn pod_behind(&self, interface: &str, address: IpAddr) -> Option<PodKey> {
        self.pods.behind(interface, address).cloned()
    }

    fn meanwhile(&self) -> Option<Arc<dyn Meanwhile>> {
        (!is_off(Switch::RecordsMeanwhile)).then(|| Arc::new(self.sets.clone()) as Arc<dyn Meanwhile>)
    }

    fn outlook(&self) -> Outlook {
        self.lookout.as_ref().map(Lookout::outlook).unwrap_or_default()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::clone(&self.counters) as Arc<dyn VerdictCounters>
    }

    fn dump(&self) -> String {
        let mut text = self.sets.lock().dump() + "\n";
        text += &self.joints.dump();
        for table in &self.tables {
            text += &table.dump();
        }
        for (pod, local) in self.pods.iter() {
            text += &match local.locations() {
                Ok(places) => format!("pod {pod} chains {:?} at {:?}\n", PodChains::of(pod), places),
                Err(reason) => format!("pod {pod} pending: {reason}\n"),
            };
        }
        text
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        drop(self.room.end());
        let removed = cleanup::remove(self.settings.flavour);
        self.sets.lock().forget();
        self.joints.forget();
        self.held_back.clear();
        self.pods.clear();
        self.pods.clear_node_rules();
        self.revocations = Revocations::default();
        self.asking = Asking::default();
        for table in &mut self.tables {
            table.want(Chains::new());
        }
        removed.map(|_found| ())
    }
}

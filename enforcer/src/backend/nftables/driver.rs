//! The driver: owns the table, the sets and what is shared with the backend `netfilter`, and implements `Backend`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::nftables::{Refusal, TableWriter};
use egret_policies::rules::{Batch, Direction, PodRules, SetId};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::TABLE;
use super::cleanup;
use super::compile::{Compiler, Inputs};
use super::counters::Counters;
use super::denial::Ends;
use super::dispatch::Style;
use super::refusals::{self, Concerned, Refusals};
use super::sets::SharedSets;
use super::table::{KernelState, Table, TransactionOutcome};
use crate::backend::bypass::{Bypass, BypassReport};
use crate::backend::netfilter::bridges::{self, BridgeNetfilter, EnabledBridges, PreparedBridges};
use crate::backend::netfilter::cleanup::{Mode, bridges_turned_on};
use crate::backend::netfilter::connections::{AffectedConnections, Connections, InForce, carry_over};
use crate::backend::netfilter::denials::DenialRegistry;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::marks::{Marks, PodMarks};
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::model::settings::{DenyAction, NflogSettings};
use crate::backend::netfilter::model::unknown_pods::UnknownPods;
use crate::backend::netfilter::monitor::{BypassDetector, DriftPoll, PodSnapshot, concerns_pod_netns};
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::pod_netns::RuleSettings;
use crate::backend::netfilter::sets::merged::MergedSets;
use crate::backend::{
    Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, EndedConnections, Pending, RemoveOther,
    SyncStatus, VerdictCounters, remove_other,
};
use crate::node::Locate;

/// How the backend is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The bits of the connection mark that hold generations.
    pub marks: Marks,
    /// What happens to denied packets.
    pub deny: DenyAction,
    /// How denied packets are logged; none where they are not.
    pub telling: Option<NflogSettings>,
    /// How unknown pods are treated.
    pub unknown: UnknownPods,
    /// Rules of others that write our bits of the connection mark, and are known and accepted.
    pub accepted_marks: Vec<String>,
    /// What is done about bridges that pods are on.
    pub bridges: BridgeNetfilter,
}

impl Settings {
    const fn ends(&self) -> Ends {
        Ends {
            deny: self.deny,
            telling: self.telling,
        }
    }
}

/// The backend.
#[derive(Debug)]
pub struct Nftables {
    settings: Settings,
    pods: Pods,
    merged_sets: MergedSets,
    sets: SharedSets,
    generations: Generations,
    /// Of the last generation.
    serial: u64,
    compiler: Compiler,
    table: Table,
    counters: Arc<Counters>,
    denials: DenialRegistry,
    connections: Connections,
    drift_poll: DriftPoll,
    /// From the first batch on.
    bypass: Option<BypassDetector>,
    remove_other: Option<RemoveOther>,
    phase: Phase,
    /// As of the last call that told it.
    now: Timestamp,
    refusals: Refusals,
    bridges: EnabledBridges,
    /// Whether the kernel shows ports of bridges to tables.
    sees_ports: bool,
}

/// Whether what is desired is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The kernel was read, no batch came yet.
    Adopting {
        /// There was a table.
        had_state: bool,
    },
    /// The first batch, and so all that is desired, came.
    InForce,
}

impl Nftables {
    /// Opens the kernel's interfaces; writes nothing.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn open(settings: Settings, locate: Box<dyn Locate>) -> Result<Self, BackendError> {
        let failed = |error| BackendError::new("cannot use nftables", error);
        let mut writer = TableWriter::open().map_err(failed)?;
        if !writer.can_destroy_elements().map_err(failed)? {
            let reason = "it needs Linux 6.3; the backend netfilter does not";
            return Err(BackendError::new("cannot use nftables", reason));
        }
        let sees_ports = writer.knows_bridges().map_err(failed)?;
        if settings.bridges == BridgeNetfilter::Enable && !sees_ports {
            let reason = "bridgeNetfilter needs tables of the family bridge (CONFIG_NF_TABLES_BRIDGE)";
            return Err(BackendError::new("cannot use nftables", reason));
        }
        let mut pods = Pods::new(locate);
        pods.set_unknown(settings.unknown.clone());
        let mut drift_poll = DriftPoll::default();
        drift_poll.accept_marks(settings.accepted_marks.clone());
        let counters = Arc::new(Counters::open().map_err(failed)?);
        Ok(Self {
            pods,
            merged_sets: MergedSets::default(),
            sets: SharedSets::open().map_err(failed)?,
            generations: Generations::new(settings.marks),
            serial: 0,
            compiler: Compiler::default(),
            table: Table::open(settings.ends(), Arc::clone(&counters)).map_err(failed)?,
            counters,
            denials: DenialRegistry::default(),
            connections: Connections::default(),
            drift_poll,
            bypass: None,
            remove_other: None,
            phase: Phase::Adopting { had_state: false },
            now: Timestamp::from_millis(0),
            refusals: Refusals::default(),
            bridges: EnabledBridges::new(settings.bridges),
            sees_ports,
            settings,
        })
    }

    /// Has each rule look into its own set and count by itself. Without it, rules that only allow share sets.
    #[must_use]
    pub const fn without_merged_sets(mut self) -> Self {
        self.merged_sets.leave_each_alone();
        self
    }

    /// Removes with this what another backend left, once this one is in force.
    #[must_use]
    pub fn replacing(self, remove: RemoveOther) -> Self {
        Self {
            remove_other: Some(remove),
            ..self
        }
    }

    /// Publishes here what is denied and why, for the reader of NFLOG.
    #[must_use]
    pub fn telling(self, denials: DenialRegistry) -> Self {
        Self { denials, ..self }
    }

    const fn compiler_inputs(&mut self) -> (&mut Compiler, Inputs<'_>, &mut Table) {
        let style = Style {
            marks: self.settings.marks,
            ends: self.settings.ends(),
        };
        let inputs = Inputs {
            style,
            pods: &self.pods,
            generations: &self.generations,
            refusals: &self.refusals,
            sees_ports: self.sees_ports,
        };
        (&mut self.compiler, inputs, &mut self.table)
    }

    const fn connections_in_force(&mut self) -> (&mut Connections, InForce<'_>) {
        let in_force = InForce {
            pods: &self.pods,
            sets: &self.sets,
            generations: &self.generations,
            marks: self.settings.marks,
            refused: self.refusals.pods(),
        };
        (&mut self.connections, in_force)
    }

    /// The first batch: everything is written at once, in the place of what an earlier life left.
    fn apply_first(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> SyncStatus {
        let held = match self.table.list(now) {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                // All is desired from now on, and written by the next reconciliation.
                tracing::error!(%error, "the table cannot be listed");
                KernelState::default()
            }
        };
        self.note_sets(batch);
        self.replace(&batch.rules_replaced);
        self.pods.replace_node_rules(batch.node_rules.as_ref());
        self.pods
            .set_has_policies(Some(batch.has_policies.unwrap_or(false)));
        self.pods.read_surroundings();
        self.pods.warn_open_interfaces();
        let new_pods = self.generations.retain(self.pods.keys(), self.pods.rules());
        let had_marks = !self.generations.is_empty();
        let shrunk = self.sets.lock().adopt(&held.sets, now);
        let mut stale = BTreeSet::new();
        if had_marks {
            let available = self.sets.lock().available();
            let (compiler, inputs, _) = self.compiler_inputs();
            stale = compiler.stale_directions(inputs, &available, &held.table);
            stale.extend(self.pods.directions_naming(&shrunk));
        }
        let before = self.renew_generations(&stale);
        self.phase = Phase::InForce;
        self.connections
            .start(self.pods.rules(), |rules| new_pods.contains(&rules.pod));
        self.compile();
        let written = self.table.write_all(&self.sets, &held, now);
        self.leave_out_refused(written, now);
        let mut status = SyncStatus::default();
        if had_state && self.table.is_known() {
            self.table.drift(&held, &self.sets, now).add_to(&mut status);
        }
        self.publish_denials();
        self.carry_over(&before);
        if self.table.broken().is_none() {
            remove_other(&mut self.remove_other);
        }
        self.detect_bypasses(false);
        self.status(status)
    }

    fn apply_next(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.note_sets(batch);
        if !batch.by_members.is_empty() {
            self.table.set_inquiry_marker(true);
        }
        self.connections.note(batch, &self.pods);
        let affected = AffectedConnections::of(batch);
        let by_rules = batch
            .reevaluate
            .iter()
            .filter(|asked| !affected.has(asked))
            .cloned();
        let by_rules: Vec<(PodKey, Direction)> = by_rules.collect();
        let touches_rules = !(batch.rules_replaced.is_empty()
            && batch.node_rules.is_none()
            && batch.has_policies.is_none()
            && batch.pods_removed.is_empty()
            && by_rules.is_empty());
        let others = self.pods.other_runs(&batch.rules_replaced);
        self.replace(&batch.rules_replaced);
        self.pods.replace_node_rules(batch.node_rules.as_ref());
        self.pods.set_has_policies(batch.has_policies);
        if touches_rules {
            self.pods.warn_open_interfaces();
        }
        for pod in &batch.pods_removed {
            self.pods.remove(pod);
            self.compiler.forget(pod);
            self.refusals.forget(pod);
            self.generations.forget(PodChains::of(pod));
        }
        let asked = by_rules.into_iter().chain(others.iter().cloned());
        let asked: BTreeSet<(PodKey, Direction)> = asked.filter(|(pod, _)| self.pods.contains(pod)).collect();
        self.sets.lock().remove_desired(&batch.sets_destroyed);
        if touches_rules {
            let mut before = self.renew_generations(&asked);
            before.retain(|(pod, _)| others.iter().all(|(other, _)| other != pod));
            self.connections.reevaluate(asked);
            self.program(now);
            self.carry_over(&before);
        } else {
            self.write(now);
        }
        if touches_rules || concerns_pod_netns(batch, &self.pods, &self.sets) {
            self.detect_bypasses(false);
        }
        self.connections.reevaluate_members(affected);
        self.clear_inquiry_marker(now);
        self.status(SyncStatus::default())
    }

    fn note_sets(&self, batch: &Batch) {
        let mut sets = self.sets.lock();
        sets.add_desired(&batch.sets_created);
        sets.note_members(&batch.members_changed);
        sets.note_expired(&batch.expired);
    }

    fn replace(&mut self, replaced: &[PodRules]) {
        self.pods.replace(replaced);
        for rules in replaced {
            self.compiler.forget(&rules.pod);
            self.refusals.forget(&rules.pod);
        }
    }

    /// [`Generations::renew`] of all pods of this node.
    fn renew_generations(&mut self, asked: &BTreeSet<(PodKey, Direction)>) -> Vec<(PodKey, PodMarks)> {
        self.generations.renew(self.pods.rules(), asked, &mut self.serial)
    }

    fn compile(&mut self) {
        let available = self.sets.lock().available();
        let (compiler, inputs, table) = self.compiler_inputs();
        compiler.update(inputs, &available, table);
        self.table.set_recorded(self.bridges.recorded());
    }

    /// Makes the kernel hold what follows from the pods, their rules and the sets.
    fn program(&mut self, now: Timestamp) {
        self.compile();
        self.write(now);
        self.publish_denials();
    }

    fn write(&mut self, now: Timestamp) {
        let written = self.table.write(&self.sets, now);
        self.leave_out_refused(written, now);
    }

    /// Writes again without what the kernel refused, until it takes the rest. What it refuses may be due to what others did to the
    /// table, so before anything is left out all of it is written anew, once.
    fn leave_out_refused(&mut self, written: TransactionOutcome, now: Timestamp) {
        let mut written = written;
        while let TransactionOutcome::Refused(refused) = written {
            let causes = refusals::causes(&refused);
            let reason = causes
                .first()
                .map(|cause| refusals::reason(cause))
                .unwrap_or_default();
            let concerned = self.concerned(&causes);
            let is_as_before = concerned.as_ref().is_some_and(|who| self.refusals.is_known(who));
            if self.table.is_known() && !is_as_before {
                tracing::warn!(
                    reason,
                    "the kernel refuses a change of the table: it is written anew"
                );
                self.table.forget_programmed();
            } else if !self.leave_out(concerned, &reason) {
                written = self.table.fail(&reason);
                continue;
            }
            written = self.table.write(&self.sets, now);
        }
    }

    /// All whom refused messages concern; none where one concerns all.
    fn concerned(&self, causes: &[&Refusal]) -> Option<Concerned> {
        let mut all = Concerned::default();
        for cause in causes {
            all.extend(self.table.concerned(&cause.object, &self.sets)?);
        }
        Some(all)
    }

    /// Desires the table without these; says whether that is less than before.
    fn leave_out(&mut self, concerned: Option<Concerned>, reason: &str) -> bool {
        let Some(concerned) = concerned else {
            return false;
        };
        let sets = concerned.sets.clone();
        if !self.refusals.leave_out(concerned, reason, &self.sets) {
            return false;
        }
        self.render_users(&sets);
        self.compile();
        self.publish_denials();
        true
    }

    /// Has what was left out tried again.
    fn retry_refused(&mut self) {
        let has_refused = !self.refusals.pods().is_empty() || self.refusals.has_exposed();
        let sets = self.sets.lock().take_refused();
        if sets.is_empty() && !has_refused {
            self.refusals.forget_known();
            return;
        }
        self.refusals.forget_all();
        self.render_users(&sets);
    }

    /// Has pods rendered again whose rules name one of these sets, in force or in audit.
    fn render_users(&mut self, sets: &BTreeSet<SetId>) {
        let names = |rules: &&PodRules| {
            let in_force = rules.egress.sets().chain(rules.ingress.sets());
            in_force.chain(rules.audit.sets()).any(|id| sets.contains(&id))
        };
        for rules in self.pods.rules().filter(names) {
            self.compiler.forget(&rules.pod);
        }
    }

    fn publish_denials(&mut self) {
        if self.settings.telling.is_some() && self.table.take_denials_changed() {
            self.denials
                .set_desired_in(TABLE, super::denial::counters, self.table.denials());
        }
    }

    /// Keeps open what only an expired record would end; `before` are the marks so far.
    fn carry_over(&mut self, before: &[(PodKey, PodMarks)]) {
        let (_, in_force) = self.connections_in_force();
        carry_over(in_force, before);
    }

    /// Takes it back that connections are to be looked for, once they were.
    fn clear_inquiry_marker(&mut self, now: Timestamp) {
        if self.connections.has_no_member_search()
            && self.table.is_known()
            && self.table.set_inquiry_marker(false)
        {
            self.write(now);
        }
    }

    fn detect_bypasses(&mut self, is_whole: bool) {
        let bridges = self.update_bridges();
        let view = PodSnapshot::of(&self.pods, &self.sets, bridges, is_whole);
        if let Some(bypass) = &self.bypass {
            bypass.look(view);
            return;
        }
        match BypassDetector::start(RuleSettings::Nftables(self.settings.deny)) {
            Ok(bypass) => {
                bypass.look(view);
                self.bypass = Some(bypass);
            }
            Err(error) => tracing::error!(%error, "ways past the rules cannot be looked for"),
        }
    }

    /// Turns bridges of pods on as wished, and off again what is wished for no more. Returns what stays unseen.
    fn update_bridges(&mut self) -> Vec<Bypass> {
        match self.set_bridges() {
            Ok(true) => {
                self.pods.relocate();
                self.program(self.now);
            }
            Ok(false) => {}
            Err(reason) => tracing::error!(reason, "a bridge cannot be set"),
        }
        let bridges = self.pods.bridges();
        let mut gaps = self.bridges.gaps(&bridges);
        if !self.sees_ports {
            gaps.extend(bridges.iter().map(bridges::gap_without_ports));
        }
        gaps
    }

    /// Says whether any was set. What is turned on is written down before.
    fn set_bridges(&mut self) -> Result<bool, String> {
        let off = match self.bridges.prepare(&self.pods.bridges())? {
            PreparedBridges::Done { is_changed } => return Ok(is_changed),
            PreparedBridges::ToTurnOn(off) => off,
        };
        self.program(self.now);
        bridges::turn_on(&off, self.table.broken().map(String::as_str))?;
        Ok(true)
    }

    fn status(&self, status: SyncStatus) -> SyncStatus {
        let mut pending: BTreeMap<PodKey, Pending> = BTreeMap::new();
        for (pod, local) in self.pods.iter() {
            if let Err(reason) = local.locations() {
                pending.insert(pod.clone(), Pending::Unattached(reason.clone()));
            } else if local.has_moved() {
                let reason = "its address leads to another cable than before, which may be another pod's: that is closed";
                pending.insert(pod.clone(), Pending::Unattached(reason.to_owned()));
            }
        }
        let mut status = SyncStatus {
            pending,
            broken: self.table.broken().cloned(),
            foreign_marks: self.drift_poll.foreign_marks().to_vec(),
            ..status
        };
        self.refusals.add_to(&mut status, &self.pods, &self.sets);
        status
    }
}

impl Backend for Nftables {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn adopt(&mut self, _: Timestamp) -> Result<(), BackendError> {
        let held = self.table.list_rules();
        let held = held.map_err(|error| BackendError::new("cannot list the table of nftables", error))?;
        if let Some(held) = &held {
            self.counters.adopt(&held.counters);
            self.compiler.adopt(&held.table, &mut self.generations);
            self.bridges.record(&bridges::noted_in(&held.table));
        }
        if self.bridges.is_enabled() {
            self.bridges.record(&bridges_turned_on());
        }
        // Flows of an earlier life, or of another backend, may bear any number.
        let borne = self.generations.look_for_borne();
        borne.map_err(|error| BackendError::new("cannot list the tracked connections", error))?;
        self.serial = self.generations.highest();
        self.phase = Phase::Adopting {
            had_state: held.is_some_and(|held| held.has_rules()),
        };
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        matches!(self.phase, Phase::Adopting { had_state: true } | Phase::InForce)
    }

    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        if self.phase != (Phase::Adopting { had_state: false }) {
            return Ok(false);
        }
        self.pods.read_surroundings();
        if self.pods.closed(&BTreeSet::new()).is_empty() {
            return Ok(false);
        }
        let held = self.table.list(self.now);
        let held = held.map_err(|error| BackendError::new("cannot list the table of nftables", error))?;
        self.compile();
        let (held, now) = (held.unwrap_or_default(), self.now);
        let written = self.table.write_all(&self.sets, &held, now);
        self.leave_out_refused(written, now);
        match self.table.broken() {
            Some(reason) => Err(BackendError::new("cannot close pods that are not known", reason)),
            None => Ok(true),
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.now = now;
        let batch = self.merged_sets.merge(batch);
        crate::backend::metrics::ordered_rules(self.merged_sets.ordered());
        match self.phase {
            Phase::Adopting { had_state } => self.apply_first(&batch, had_state, now),
            Phase::InForce => self.apply_next(&batch, now),
        }
    }

    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        match self.sets.add_members(&batch.members_changed, now) {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "it is written with all else");
                self.write(now);
                Some(self.status(SyncStatus::default()))
            }
        }
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        self.now = now;
        if self.phase != Phase::InForce {
            return SyncStatus::default();
        }
        let mut has_changed = self.pods.read_surroundings();
        has_changed |= self.pods.relocate();
        has_changed |= self.compiler.has_ipvs_changed();
        if has_changed {
            self.program(now);
        }
        self.detect_bypasses(false);
        self.status(SyncStatus::default())
    }

    fn poll_drift(&mut self, now: Timestamp) -> Option<String> {
        self.now = now;
        if self.phase != Phase::InForce {
            return None;
        }
        if self.pods.settle_moved(now) {
            self.program(now);
        }
        self.drift_poll.look_for_foreign_marks(self.settings.marks, now);
        match self.table.is_there() {
            Ok(true) => {
                if let Err(error) = self.sets.remove_retired() {
                    tracing::warn!(%error, "elements of sets that no rule names stay for now");
                }
                None
            }
            Ok(false) => Some("the table is gone".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.now = now;
        if self.phase != Phase::InForce {
            return SyncStatus::default();
        }
        let mut status = SyncStatus::default();
        let held = match self.table.list(now) {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                self.table.forget_programmed();
                status.broken = Some(error.to_string());
                return self.status(status);
            }
        };
        self.sets.lock().forget_ended(now);
        let was_known = self.table.is_known();
        let drift = self.table.drift(&held, &self.sets, now);
        let differs = !drift.is_empty();
        if was_known {
            drift.add_to(&mut status);
        }
        self.retry_refused();
        let mut before = Vec::new();
        if differs || !was_known {
            let shrunk = self.sets.lock().surplus(&held.sets);
            let stale = self.pods.directions_naming(&shrunk);
            before = self.renew_generations(&stale);
            self.connections.reevaluate(stale);
            self.compile();
            let written = self.table.write_all(&self.sets, &held, now);
            self.leave_out_refused(written, now);
        } else {
            self.compile();
            self.write(now);
        }
        self.publish_denials();
        self.carry_over(&before);
        self.clear_inquiry_marker(now);
        let retired = self.table.retired_counters();
        match self.counters.fold(&retired) {
            Ok(removed) => self.table.forget_counters(&removed),
            Err(error) => tracing::debug!(%error, "counters of rules that are gone stay for now"),
        }
        self.connections.reload_revoked();
        self.detect_bypasses(true);
        self.status(status)
    }

    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        let is_broken = self.table.broken().is_some();
        let (connections, in_force) = self.connections_in_force();
        connections.begin_search(in_force, is_broken)
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        let (connections, in_force) = self.connections_in_force();
        let found = connections.finish_search(in_force);
        let now = self.now;
        match found {
            Ok(false) => {}
            Ok(true) => self.clear_inquiry_marker(now),
            Err(affected) => {
                let before = self.renew_generations(affected.pods());
                self.connections.reevaluate(affected.pods().iter().cloned());
                self.program(now);
                self.carry_over(&before);
                self.clear_inquiry_marker(now);
            }
        }
        let is_broken = self.table.broken().is_some();
        let (connections, in_force) = self.connections_in_force();
        connections.revoke(in_force, is_broken)
    }

    fn pod_at_interface(&self, interface: &str, address: IpAddr) -> Option<PodKey> {
        self.pods.behind(interface, address).cloned()
    }

    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        Some(Arc::new(self.sets.clone()))
    }

    fn bypass_report(&self) -> BypassReport {
        let bypass = self.bypass.as_ref();
        bypass.map(BypassDetector::bypass_report).unwrap_or_default()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::clone(&self.counters) as Arc<dyn VerdictCounters>
    }

    fn dump(&self) -> String {
        let mut text = self.sets.lock().dump() + "\n";
        text += &self.merged_sets.dump();
        text += &self.table.dump();
        for (pod, local) in self.pods.iter() {
            text += &match local.locations() {
                Ok(places) => format!("pod {pod} chains {:?} at {places:?}\n", PodChains::of(pod)),
                Err(reason) => format!("pod {pod} pending: {reason}\n"),
            };
        }
        text
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        let removed = cleanup::remove(Mode::Remove);
        self.sets.lock().forget();
        self.merged_sets.forget();
        self.pods.clear();
        self.pods.clear_node_rules();
        self.connections = Connections::default();
        self.table.clear();
        removed.map(|_found| ())
    }
}

//! The driver: owns one of each room, implements `Backend`, and takes every change through the rooms in the
//! order in which each step is safe.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::Family;
use egret_policies::rules::Batch;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::bridges::{self, BridgeNetfilter, EnabledBridges};
use super::cleanup;
use super::compile::{self, Compiler, Inputs};
use super::connections::{Connections, InForce};
use super::denials::DenialRegistry;
use super::drift::Drift;
use super::marks::generations::Generations;
use super::model::pods::Pods;
use super::model::settings::{Coexistence, JumpPosition, Settings};
use super::model::unknown_pods::UnknownPods;
use super::monitor::{BypassDetector, DriftPoll};
use super::names;
use super::sets::concurrent::SharedSets;
use super::sets::merged::MergedSets;
use super::sets::preallocate::Preallocation;
use super::tables::ruleset::Ruleset;
use super::tables::wire::NftWriter;
use super::tables::write_stats::WriteStats;
use crate::backend::bypass::BypassReport;
use crate::backend::metrics;
use crate::backend::{
    Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, EndedConnections, RemoveOther, SyncStatus,
    VerdictCounters,
};
use crate::node::Locate;

mod batches;
mod program;
mod status;

/// The backend.
#[derive(Debug)]
pub struct Netfilter {
    settings: Settings,
    coexistence: Coexistence,
    pods: Pods,
    merged_sets: MergedSets,
    sets: SharedSets,
    preallocation: Preallocation,
    generations: Generations,
    bridges: EnabledBridges,
    compiler: Compiler,
    ruleset: Ruleset,
    denials: DenialRegistry,
    connections: Connections,
    drift_poll: DriftPoll,
    /// From the first batch on.
    bypass: Option<BypassDetector>,
    phase: Phase,
    /// What is to follow the first batch when the tables can be written.
    deferred: VecDeque<Batch>,
    /// Why our rules are in a flavour in which they should not be.
    stranded: Option<String>,
    remove_other: Option<RemoveOther>,
}

/// Whether what is desired is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The kernel was read, no batch came yet: nothing may be written or removed.
    Adopting {
        /// There was something of ours: what differs from the first batch is a repair.
        had_state: bool,
    },
    /// The first batch, and so all that is desired, came.
    InForce,
}

impl Netfilter {
    /// Opens the kernel's interfaces; writes nothing.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn open(settings: Settings, locate: Box<dyn Locate>) -> Result<Self, BackendError> {
        let sets = SharedSets::open().map_err(|error| BackendError::new("cannot use ipset", error))?;
        Ok(Self {
            settings,
            coexistence: Coexistence {
                jump: JumpPosition::Insert,
                follows_flavour: false,
                accepted_marks: Vec::new(),
            },
            pods: Pods::new(locate),
            merged_sets: MergedSets::default(),
            sets,
            preallocation: Preallocation::Off,
            generations: Generations::new(settings.marks),
            bridges: EnabledBridges::new(BridgeNetfilter::Off),
            compiler: Compiler::default(),
            ruleset: Ruleset::new(settings.flavour),
            denials: DenialRegistry::default(),
            connections: Connections::default(),
            drift_poll: DriftPoll::default(),
            bypass: None,
            phase: Phase::Adopting { had_state: false },
            deferred: VecDeque::new(),
            stranded: None,
            remove_other: None,
        })
    }

    /// How unknown pods are treated. Without it their interfaces are left open.
    #[must_use]
    pub fn with_unknown_pods(mut self, pods: UnknownPods) -> Self {
        self.pods.set_unknown(pods);
        self
    }

    /// How it lives with other rules. Without it the jumps are at the head, and the flavour stays.
    #[must_use]
    pub fn with_coexistence(mut self, coexistence: Coexistence) -> Self {
        let jump = coexistence.jump;
        let coexistence = Coexistence { jump, ..coexistence };
        self.ruleset.set_jump_position(jump);
        self.drift_poll.accept_marks(coexistence.accepted_marks.clone());
        Self { coexistence, ..self }
    }

    /// What is done about bridges that pods are on. Without it they stay as they are.
    #[must_use]
    pub fn with_bridges(self, mode: BridgeNetfilter) -> Self {
        Self {
            bridges: EnabledBridges::new(mode),
            ..self
        }
    }

    /// What writes rules of the flavour `nft`. Without it they are written by netlink.
    #[must_use]
    pub const fn with_nft_writer(mut self, writer: NftWriter) -> Self {
        self.ruleset.set_nft_writer(writer);
        self
    }

    /// Has each rule look into its own set and count by itself. Without it, rules that only allow share sets.
    #[must_use]
    pub const fn without_merged_sets(mut self) -> Self {
        self.merged_sets.leave_each_alone();
        self
    }

    /// The most members of a set. Without it there are more than one would use.
    #[must_use]
    pub fn with_members_per_set(self, most: u32) -> Self {
        self.sets.lock().set_most_members(most);
        self
    }

    /// Preallocates places in the kernel's list of sets until the first batch comes. Without it the first sync of a large node
    /// takes longer.
    #[must_use]
    pub fn with_preallocation(self) -> Self {
        Self {
            preallocation: Preallocation::Requested,
            ..self
        }
    }

    /// Publishes here what is denied and why, for the reader of NFLOG.
    #[must_use]
    pub fn telling(self, denials: DenialRegistry) -> Self {
        Self { denials, ..self }
    }

    /// Removes with this what another backend left, once this one is in force.
    #[must_use]
    pub fn replacing(self, remove: RemoveOther) -> Self {
        Self {
            remove_other: Some(remove),
            ..self
        }
    }

    /// What was written so far.
    #[must_use]
    pub const fn written(&self) -> WriteStats {
        self.ruleset.written()
    }

    /// The compiler, its inputs, and the tables that it fills.
    const fn compiler_inputs(&mut self) -> (&mut Compiler, Inputs<'_>, &mut Ruleset) {
        let inputs = Inputs {
            settings: &self.settings,
            pods: &self.pods,
            generations: &self.generations,
            bridges: &self.bridges,
            denials: &self.denials,
        };
        (&mut self.compiler, inputs, &mut self.ruleset)
    }

    /// The connections, and what is in force for them.
    const fn connections_in_force(&mut self) -> (&mut Connections, InForce<'_>) {
        let in_force = InForce {
            pods: &self.pods,
            sets: &self.sets,
            generations: &self.generations,
            marks: self.settings.marks,
            refused: self.ruleset.refused(),
        };
        (&mut self.connections, in_force)
    }

    /// Reads what the kernel holds in the tables, and reports what differs.
    fn resync_tables(&mut self, now: Timestamp) -> Result<[Drift; 2], BackendError> {
        self.drift_poll.note_fingerprints(self.ruleset.flavour());
        self.ruleset.resync(now)
    }
}

impl Backend for Netfilter {
    fn name(&self) -> &'static str {
        "netfilter"
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        let unlisted = |error| BackendError::new("cannot list the sets", error);
        self.sets.lock().remove_temporary().map_err(unlisted)?;
        self.sets.lock().resync(now).map_err(unlisted)?;
        let listings = self.ruleset.adopt(&mut self.generations, now)?;
        for (family, listing) in Family::ALL.into_iter().zip(&listings) {
            self.bridges.adopt(family, listing);
        }
        if self.bridges.is_enabled() {
            self.bridges.record(&bridges::noted_by_nftables());
        }
        let is_from_other = self.ruleset.adopt_from_other(&mut self.generations)?;
        let has_no_sets = self.sets.lock().is_empty();
        let had_state = is_from_other || !has_no_sets || self.ruleset.has_rules();
        self.phase = Phase::Adopting { had_state };
        self.preallocation.begin_if(has_no_sets);
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        matches!(self.phase, Phase::Adopting { had_state: true } | Phase::InForce)
    }

    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        match self.phase {
            Phase::Adopting { had_state: false } => self.close_before_first_batch(),
            Phase::Adopting { had_state: true } | Phase::InForce => Ok(false),
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        let batch = self.merged_sets.merge(batch);
        metrics::ordered_rules(self.merged_sets.ordered());
        match self.phase {
            Phase::Adopting { had_state } => self.apply_first(&batch, had_state, now),
            Phase::InForce => self.apply_next(&batch, now),
        }
    }

    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        let opened = self.sets.add_members(&batch.members_changed, now);
        opened.is_err().then(|| self.standing(SyncStatus::default()))
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        if self.phase != Phase::InForce {
            return SyncStatus::default();
        }
        let mut has_changed = self.pods.read_surroundings();
        has_changed |= self.pods.relocate();
        has_changed |= compile::has_ipvs_changed(&self.ruleset);
        if has_changed {
            self.program();
        }
        self.detect_bypasses(false);
        self.standing(SyncStatus::default())
    }

    fn poll_drift(&mut self, now: Timestamp) -> Option<String> {
        if self.phase != Phase::InForce {
            return None;
        }
        if self.pods.settle_moved(now) {
            self.program();
        }
        self.drift_poll.look_for_foreign_marks(self.settings.marks, now);
        let moved = self.moved_flavour();
        moved
            .map(|flavour| format!("the kubelet uses iptables-{} now", flavour.name()))
            .or_else(|| self.drift_poll.poll(self.ruleset.flavour(), &self.sets, now))
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        if self.phase != Phase::InForce {
            return SyncStatus::default();
        }
        let mut standing = SyncStatus::default();
        self.follow_flavour(now);
        match self.sets.lock().resync(now) {
            Ok(drift) => drift.add_to(&mut standing),
            Err(error) => self.ruleset.set_broken(error.to_string()),
        }
        match self.resync_tables(now) {
            Ok(drifts) => drifts.into_iter().for_each(|drift| drift.add_to(&mut standing)),
            Err(error) => {
                self.ruleset.set_broken(error.to_string());
                return self.standing(standing);
            }
        }
        let shrunk = self.sets.lock().sync(now);
        self.withhold_sets();
        let stale = self.pods.directions_naming(&shrunk);
        let before = self.renew_generations(&stale);
        self.connections.reevaluate(stale);
        self.program_and_carry_over(&before);
        self.clear_inquiry_marker();
        self.leave_other_flavour();
        self.connections.reload_revoked();
        self.destroy_unused_sets();
        self.detect_bypasses(true);
        let standing = self.standing(standing);
        self.apply_deferred(standing, now)
    }

    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        let is_broken = self.ruleset.is_broken();
        let (connections, in_force) = self.connections_in_force();
        connections.begin_search(in_force, is_broken)
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        let (connections, in_force) = self.connections_in_force();
        match connections.finish_search(in_force) {
            Ok(false) => {}
            Ok(true) => self.clear_inquiry_marker(),
            Err(affected) => {
                let before = self.renew_generations(affected.pods());
                self.connections.reevaluate(affected.pods().iter().cloned());
                self.program_and_carry_over(&before);
                self.clear_inquiry_marker();
            }
        }
        let is_broken = self.ruleset.is_broken();
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
        self.bypass
            .as_ref()
            .map(BypassDetector::bypass_report)
            .unwrap_or_default()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::clone(self.ruleset.counters()) as Arc<dyn VerdictCounters>
    }

    fn dump(&self) -> String {
        let mut text = self.sets.lock().dump() + "\n";
        text += &self.merged_sets.dump();
        text += &self.ruleset.dump();
        for (pod, local) in self.pods.iter() {
            text += &match local.locations() {
                Ok(places) => format!("pod {pod} chains {:?} at {places:?}\n", names::PodChains::of(pod)),
                Err(reason) => format!("pod {pod} pending: {reason}\n"),
            };
        }
        text
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        drop(self.preallocation.end());
        let removed = cleanup::remove(self.ruleset.flavour());
        self.sets.lock().forget();
        self.merged_sets.forget();
        self.deferred.clear();
        self.pods.clear();
        self.pods.clear_node_rules();
        self.connections = Connections::default();
        self.ruleset.clear();
        removed.map(|_found| ())
    }
}

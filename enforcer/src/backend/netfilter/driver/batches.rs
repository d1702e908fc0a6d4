//! Batches, in the order in which each step is safe.
//!
//! The first batch of a life meets rules of an earlier one that name the same sets. If several of these changed meanwhile, or
//! one of them and the rules, no order of single steps is safe; so all of it changes at once: rules name sets with the new
//! members in the place of those, and are given back to them when they hold the same.

use std::collections::{BTreeMap, BTreeSet};

use egret_policies::rules::{Batch, Direction, PodRules, SetId, SetKind};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::{Netfilter, Phase};
use crate::backend::netfilter::compile;
use crate::backend::netfilter::connections::AffectedConnections;
use crate::backend::netfilter::monitor::concerns_pod_netns;
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::sets::creation_order;
use crate::backend::netfilter::tables::ruleset::is_named;
use crate::backend::{SyncStatus, remove_other};

impl Netfilter {
    /// The first batch, in one step or, where that would not be safe, in two.
    pub(super) fn apply_first(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> SyncStatus {
        let staged = self.sets_to_stage(batch);
        if staged.is_empty() {
            return self.begin(batch, had_state, now);
        }
        let (first, then) = split(batch, &staged);
        let begun = self.begin(&first, had_state, now);
        self.deferred.push_back(then);
        self.apply_deferred(begun, now)
    }

    /// A batch behind the first one, and behind what of that one is still deferred.
    pub(super) fn apply_next(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        // Where the tables cannot be written at all, nobody can be closed, and nothing of this life is in force that would follow.
        if self.deferred.is_empty() && (self.ruleset.is_broken() || self.close_outdated(batch)) {
            return self.step(batch, now);
        }
        self.deferred.push_back(batch.clone());
        self.program();
        let standing = self.standing(SyncStatus::default());
        self.apply_deferred(standing, now)
    }

    /// Takes the steps that were deferred, as long as the tables can be written: until then all rules are those of before, and
    /// name the sets that these steps change.
    pub(super) fn apply_deferred(&mut self, begun: SyncStatus, now: Timestamp) -> SyncStatus {
        let mut standing = begun;
        while !self.ruleset.is_broken()
            && let Some(batch) = self.deferred.pop_front()
        {
            let repaired = standing.repaired;
            standing = if self.close_outdated(&batch) {
                self.step(&batch, now)
            } else {
                self.deferred.push_front(batch);
                self.standing(SyncStatus::default())
            };
            standing.repaired = repaired;
        }
        standing
    }

    /// The first batch: everything is desired at once and compared with what an earlier life left.
    fn begin(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> SyncStatus {
        let mut standing = SyncStatus::default();
        self.sets.lock().add_desired(&batch.sets_created);
        self.sets.lock().note_members(&batch.members_changed);
        self.sets.lock().note_expired(&batch.expired);
        let had_inquiry_marker = self.sets.lock().has_inquiry_marker();
        self.replace(&batch.rules_replaced);
        self.pods.replace_node_rules(batch.node_rules.as_ref());
        self.pods
            .set_has_policies(Some(batch.has_policies.unwrap_or(false)));
        self.pods.read_surroundings();
        self.pods.warn_open_interfaces();
        let new_pods = self.generations.retain(self.pods.keys(), self.pods.rules());
        let had_marks = !self.generations.is_empty();
        let shrunk = self.create_sets(creation_order::in_order(batch, self.ruleset.flavour()), now);
        self.withhold_sets();
        self.phase = Phase::InForce;
        let stale = if had_marks {
            self.stale_directions(&shrunk, had_inquiry_marker)
        } else {
            BTreeSet::new()
        };
        let before = self.renew_generations(&stale);
        if had_state {
            self.compile(&BTreeSet::new());
            standing.repaired = self.ruleset.differences();
            if !shrunk.is_empty() {
                let number = u64::try_from(shrunk.len()).unwrap_or(u64::MAX);
                standing.repaired.insert("member_extra", number);
            }
        }
        self.connections
            .start(self.pods.rules(), |rules| new_pods.contains(&rules.pod));
        self.program_and_carry_over(&before);
        self.clear_inquiry_marker();
        self.leave_other_flavour();
        if !self.ruleset.is_broken() {
            remove_other(&mut self.remove_other);
        }
        self.destroy_unused_sets();
        self.detect_bypasses(false);
        self.standing(standing)
    }

    fn step(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.change_sets(batch, now);
        self.connections.note(batch, &self.pods);
        let affected = AffectedConnections::of(batch);
        let by_rules: Vec<_> = batch
            .reevaluate
            .iter()
            .filter(|asked| !affected.has(asked))
            .cloned()
            .collect();
        let touches_rules = !(batch.rules_replaced.is_empty()
            && batch.node_rules.is_none()
            && batch.has_policies.is_none()
            && batch.pods_removed.is_empty()
            && by_rules.is_empty());
        if self.withhold_sets() || touches_rules {
            self.change_rules(batch, by_rules);
            self.detect_bypasses(false);
        } else if concerns_pod_netns(batch, &self.pods, &self.sets) {
            self.detect_bypasses(false);
        }
        self.connections.reevaluate_members(affected);
        self.clear_inquiry_marker();
        if !batch.sets_destroyed.is_empty() {
            self.sets.lock().remove_desired(&batch.sets_destroyed);
            self.destroy_unused_sets();
        }
        self.standing(SyncStatus::default())
    }

    fn change_sets(&mut self, batch: &Batch, now: Timestamp) {
        self.sets.lock().add_desired(&batch.sets_created);
        self.sets.lock().note_members(&batch.members_changed);
        self.sets.lock().note_expired(&batch.expired);
        for spec in &batch.sets_created {
            self.sets.lock().sync_one(spec.id, now);
        }
        // Before members go: until their connections were looked for, the kernel holds that they were not.
        if !batch.by_members.is_empty() {
            self.sets.lock().set_inquiry_marker();
        }
        self.sets.lock().write_noted(&batch.members_changed, now);
    }

    /// Changes rules; connections of `by_rules` and of pods that run anew are judged again.
    fn change_rules(&mut self, batch: &Batch, by_rules: Vec<(PodKey, Direction)>) {
        let others = self.pods.other_runs(&batch.rules_replaced);
        self.replace(&batch.rules_replaced);
        self.pods.replace_node_rules(batch.node_rules.as_ref());
        self.withhold_sets();
        self.pods.set_has_policies(batch.has_policies);
        self.pods.warn_open_interfaces();
        self.remove(&batch.pods_removed);
        let asked = by_rules.into_iter().chain(others.iter().cloned());
        let asked = asked.filter(|(pod, _)| self.pods.contains(pod)).collect();
        let mut before = self.renew_generations(&asked);
        before.retain(|(pod, _)| others.iter().all(|(other, _)| other != pod));
        self.connections.reevaluate(asked);
        self.program_and_carry_over(&before);
    }

    fn replace(&mut self, replaced: &[PodRules]) {
        self.pods.replace(replaced);
        for rules in replaced {
            self.compiler.forget(&rules.pod);
        }
    }

    fn remove(&mut self, removed: &[PodKey]) {
        for pod in removed {
            self.pods.remove(pod);
            self.compiler.forget(pod);
            self.ruleset.forget_refused(pod);
            self.generations.forget(PodChains::of(pod));
        }
    }

    fn stale_directions(
        &mut self,
        shrunk: &BTreeSet<SetId>,
        had_inquiry_marker: bool,
    ) -> BTreeSet<(PodKey, Direction)> {
        let sets = self.sets.lock().available();
        let (_, inputs, ruleset) = self.compiler_inputs();
        compile::stale_directions(inputs, &sets, shrunk, had_inquiry_marker, ruleset)
    }

    /// Before sets change: closes the pods whose rules of before would see it, and whose desired rules would not. Says whether
    /// none is left open.
    ///
    /// A batch is safe at every prefix for rules that are, at each step, those of before or those of the batch. Where the kernel
    /// refuses a pod's chains, its rules may be older than that: they name a set for which its desired rules name what
    /// stands in. Whoever ordered the steps took it that nobody asks that set meanwhile, so what a pod sees through older rules may be
    /// wider than any policy was. It can be neither left to them nor kept from all others; so the dispatch leads to no
    /// chain of its own first, then these go (the next life would take them for rules of before), and then the set changes. Each attempt to
    /// write the pod's chains writes the dispatch with them, so that it is open again with the rules that are desired, or not at all.
    fn close_outdated(&mut self, batch: &Batch) -> bool {
        if self.ruleset.refused().is_empty() {
            return true;
        }
        let created = batch.sets_created.iter().map(|spec| spec.id);
        let changed = batch.members_changed.iter().map(|changed| changed.set);
        let changed: BTreeSet<SetId> = created.chain(changed).collect();
        let refused = self.ruleset.refused().keys();
        let outdated = refused.filter(|pod| self.is_outdated(pod, &changed));
        let outdated: BTreeSet<PodKey> = outdated.cloned().collect();
        if outdated.is_empty() {
            return true;
        }
        for pod in &outdated {
            tracing::error!(%pod, "a pod is closed: its rules are refused, and those of before name sets that change");
        }
        self.program_shared(&outdated);
        !self.ruleset.is_broken()
    }

    /// Whether the chains of a pod that the kernel holds name one of these sets, and its rules do not.
    fn is_outdated(&self, pod: &PodKey, changed: &BTreeSet<SetId>) -> bool {
        let Some(local) = self.pods.get(pod) else {
            return false;
        };
        let rules = local.rules();
        let desired = rules.egress.sets().chain(rules.ingress.sets());
        let desired: BTreeSet<SetId> = desired.chain(rules.audit.sets()).collect();
        self.ruleset.names_undesired(pod, changed, &desired)
    }

    /// The sets that must not be changed where they are, with the names of what is to stand for them.
    fn sets_to_stage(&mut self, batch: &Batch) -> BTreeMap<SetId, SetId> {
        let named = self.ruleset.sets_named();
        self.sets.lock().add_desired(&batch.sets_created);
        self.sets.lock().note_members(&batch.members_changed);
        // What the kernel holds of records is kept as it is, and more.
        let specs = batch
            .sets_created
            .iter()
            .filter(|spec| spec.kind != SetKind::Records);
        let differing: Vec<SetId> = specs
            .map(|spec| spec.id)
            .filter(|id| is_named(&named, *id) && self.sets.lock().differs(*id))
            .collect();
        let is_alone = differing.len() < 2 && {
            self.replace(&batch.rules_replaced);
            let had_inquiry_marker = self.sets.lock().has_inquiry_marker();
            differing.is_empty()
                || self
                    .stale_directions(&BTreeSet::new(), had_inquiry_marker)
                    .is_empty()
        };
        self.sets.lock().forget();
        self.pods.clear();
        if is_alone {
            return BTreeMap::new();
        }
        differing.into_iter().map(|id| (id, self.unused(id))).collect()
    }

    /// A name in the place of a set's that no set has.
    fn unused(&self, id: SetId) -> SetId {
        let candidates =
            (0_u64..).map(|number| SetId::of_content(&format!("in the place of {} {number}", id.digest())));
        let mut free = candidates.filter(|candidate| !self.sets.lock().is_known(*candidate));
        free.next().expect("there are more names than sets")
    }
}

/// The batch with other sets in the place of some, and what gives everything back to these.
fn split(batch: &Batch, moving: &BTreeMap<SetId, SetId>) -> (Batch, Batch) {
    let mut then = Batch::empty(batch.revision);
    let mut first = batch.clone();
    for spec in first
        .sets_created
        .iter_mut()
        .filter(|spec| moving.contains_key(&spec.id))
    {
        then.sets_created.push(spec.clone());
        spec.id = moving[&spec.id];
        then.sets_destroyed.push(spec.id);
    }
    for changed in first
        .members_changed
        .iter_mut()
        .filter(|changed| moving.contains_key(&changed.set))
    {
        then.members_changed.push(changed.clone());
        changed.set = moving[&changed.set];
    }
    for rules in &mut first.rules_replaced {
        let is_moving = |set: SetId| moving.contains_key(&set);
        if rules.egress.sets().any(is_moving) || rules.ingress.sets().any(is_moving) {
            then.rules_replaced.push(rules.clone());
            rules.egress.rename_sets(moving);
            rules.ingress.rename_sets(moving);
        }
    }
    if let Some(rules) = first
        .node_rules
        .as_mut()
        .filter(|rules| rules.sets().any(|set| moving.contains_key(&set)))
    {
        then.node_rules = Some(rules.clone());
        rules.exposed.rename_sets(moving);
    }
    (first, then)
}

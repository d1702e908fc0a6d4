//! The rules of pods and of the node, made anew where something that they depend on has changed.

use std::collections::{BTreeMap, BTreeSet};

use egret_shared::pod::PodKey;

use crate::model::{Direction, Enforcement, Labels};
use crate::rules::Batch;

use super::node_rules::compile_exposed;
use super::pod_rules::{CompileContext, CompiledPod, FilledTemplate};
use super::policies::PolicyOrder;
use super::sequence::SetUser;
use super::settings::NodeScope;
use super::{Compiler, Dirty, InSync};

impl Compiler<InSync> {
    /// The pods whose rules may be others, each with the policies because of which; with none, because of the pod.
    pub(super) fn affected_pods(&self, dirty: &Dirty) -> BTreeMap<PodKey, Option<BTreeSet<PolicyOrder>>> {
        let itself = dirty.pods.union(&dirty.subjects);
        let mut concerned: BTreeMap<_, _> = itself.map(|key| (key.clone(), None)).collect();
        if dirty.policies.is_empty() {
            return concerned;
        }
        for (key, compiled) in &self.compiled {
            let Some(live) = self.index.live(key).filter(|_| !concerned.contains_key(key)) else {
                continue;
            };
            let is_about =
                |place: &&PolicyOrder| compiled.is_made_of(place) || self.policies.selects(place, &live);
            let places: BTreeSet<PolicyOrder> = dirty.policies.iter().filter(is_about).cloned().collect();
            if !places.is_empty() {
                concerned.insert(key.clone(), Some(places));
            }
        }
        concerned
    }

    /// Makes the node's own rules anew. A node without an object has no labels.
    pub(super) fn recompile_node(&mut self, batch: &mut Batch) {
        let exposed = match self.settings.enforcement {
            Enforcement::Enforced => self.policies.exposed(),
            Enforcement::Audited => Vec::new(),
        };
        let no_labels = Labels::default();
        let own_node = match &self.settings.node {
            NodeScope::One(name) => Some(self.index.node(name).map_or(&no_labels, |node| &node.labels)),
            NodeScope::All => None,
        };
        let after = compile_exposed(&exposed, own_node);
        let before = self.compiled_node.as_ref();
        let is_same = match before {
            Some(before) => before.rules == after.rules,
            None => after.rules.exposed.tiers.is_empty(),
        };
        if is_same {
            return;
        }
        let uses = before.map(|before| &before.uses);
        self.sets
            .replace_uses(&SetUser::Node, uses, &after.uses, &self.index, &self.records);
        batch.node_rules = Some(after.rules.clone());
        self.compiled_node = Some(after);
    }

    /// Makes the rules of a pod anew, as far as these policies have a part in them; all of it for a pod that may look
    /// different itself. Returns whether it had none before.
    pub(super) fn recompile(
        &mut self,
        key: &PodKey,
        which: Option<BTreeSet<PolicyOrder>>,
        batch: &mut Batch,
    ) -> bool {
        let before = self.compiled.remove(key);
        let Some(live) = self.index.live(key).filter(|pod| self.is_local(pod)) else {
            if let Some(before) = before {
                self.drop_rules(key, &before, batch);
            }
            self.local_pods.forget_ended_runs(key);
            return false;
        };
        let is_new = before.is_none();
        let mut compiled = before.unwrap_or_else(|| CompiledPod::new(&live));
        let no_labels = Labels::default();
        let own_node = live.pod.node.as_ref();
        let own_node = own_node.map(|name| self.index.node(name).map_or(&no_labels, |node| &node.labels));
        let around = CompileContext {
            pod_to_own_node: self.settings.pod_to_own_node,
            own_node,
            ended_runs: self.local_pods.ended_runs(key),
            enforcement: self.settings.enforcement,
        };
        let places = which.unwrap_or_else(|| {
            let selecting = self.policies.selecting(&live);
            compiled.policies().cloned().chain(selecting).collect()
        });
        let parts: Vec<(PolicyOrder, Option<FilledTemplate>)> = places
            .into_iter()
            .map(|place| {
                let filled = self.policies.fill(&place, &live, around);
                (place, filled)
            })
            .collect();
        self.work.pods_compiled += 1;
        self.work.policies_filled += parts.len();
        let moved = compiled.update_identity(&live);
        let outcome = compiled.replace(parts, around);
        let is_changed = !outcome.directions.is_empty() || !outcome.audited.is_empty();
        if is_new || moved.is_another_run || moved.from.is_some() || is_changed {
            batch.rules_replaced.push(compiled.rules.clone());
        }
        if !is_new {
            // Rules may ask for the pod's own addresses too.
            let is_asked =
                |direction: &Direction| moved.from.is_some() || outcome.directions.contains(*direction);
            let directions = Direction::ALL.into_iter().filter(is_asked);
            batch
                .reevaluate
                .extend(directions.map(|direction| (key.clone(), direction)));
        }
        let user = SetUser::Pod(key.clone());
        for (id, before, after) in &outcome.uses {
            self.sets.change_use(
                &user,
                *id,
                before.as_ref(),
                after.as_ref(),
                &self.index,
                &self.records,
            );
        }
        if is_new || moved.is_another_run || moved.from.is_some() || outcome.patterns {
            let from = moved.from.unwrap_or_default();
            self.interests.replace(key, &from, &compiled.rules.addresses);
            self.records.mention(key, &compiled.patterns);
        }
        self.compiled.insert(key.clone(), compiled);
        is_new
    }

    fn drop_rules(&mut self, key: &PodKey, before: &CompiledPod, batch: &mut Batch) {
        let user = SetUser::Pod(key.clone());
        for (id, used) in before.uses() {
            self.sets.drop_use(&user, id, used);
        }
        self.interests.replace(key, &before.rules.addresses, &[]);
        self.records.mention(key, &BTreeSet::new());
        batch.pods_removed.push(key.clone());
    }
}

//! The first batch of a life meets rules of an earlier one that name the same sets. If several of these changed meanwhile, or
//! one of them and the rules, no order of single steps is safe; so all of it changes at once: rules name sets with the new
//! members in the place of those, and are given back to them when they hold the same.

use std::collections::{BTreeMap, BTreeSet};

use egret_policies::rules::{Batch, SetId, SetKind};
use egret_shared::time::Timestamp;

use super::Netfilter;
use super::names;
use crate::backend::Standing;
use egret_kernel::Family;

impl Netfilter {
    /// The first batch, in one step or, where that would not be safe, in two.
    pub(super) fn begin_safely(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> Standing {
        let moving = self.moving(batch);
        if moving.is_empty() {
            return self.begin(batch, had_state, now);
        }
        let (first, then) = split(batch, &moving);
        let begun = self.begin(&first, had_state, now);
        self.held_back.push(then);
        self.catch_up(begun, now)
    }

    /// A batch behind the first one, and behind what of that one is still to come.
    pub(super) fn step_in_turn(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        if self.held_back.is_empty() {
            return self.step(batch, now);
        }
        self.held_back.push(batch.clone());
        self.program();
        let standing = self.standing(Standing::default());
        self.catch_up(standing, now)
    }

    /// Takes the steps that were held back, unless rules of before may still name the sets which they change.
    pub(super) fn catch_up(&mut self, mut standing: Standing, now: Timestamp) -> Standing {
        if self.broken.is_some() || !self.refused.is_empty() {
            return standing;
        }
        for batch in std::mem::take(&mut self.held_back) {
            standing = Standing {
                repaired: standing.repaired,
                ..self.step(&batch, now)
            };
        }
        standing
    }

    /// The sets that must not be changed where they are, with the names of what is to stand for them.
    fn moving(&mut self, batch: &Batch) -> BTreeMap<SetId, SetId> {
        let named = self.named_sets();
        let is_named = |id: SetId| {
            Family::BOTH
                .iter()
                .any(|family| named.contains(names::set(id, *family).as_str()))
        };
        self.sets.lock().want(&batch.sets_created);
        self.sets.lock().note(&batch.members_changed);
        // What the kernel holds of records is kept as it is, and more.
        let specs = batch
            .sets_created
            .iter()
            .filter(|spec| spec.kind != SetKind::Records);
        let differing: Vec<SetId> = specs
            .map(|spec| spec.id)
            .filter(|id| is_named(*id) && self.sets.lock().differs(*id))
            .collect();
        let is_alone = differing.len() < 2 && {
            self.replace(&batch.rules_replaced);
            let was_in_doubt = self.sets.lock().is_in_doubt();
            differing.is_empty() || self.stale_directions(&BTreeSet::new(), was_in_doubt).is_empty()
        };
        self.sets.lock().forget();
        self.pods.clear();
        if is_alone {
            return BTreeMap::new();
        }
        differing.into_iter().map(|id| (id, self.unused(id))).collect()
    }

    /// The sets that the rules of the earlier life name.
    fn named_sets(&self) -> BTreeSet<String> {
        let chains = self
            .tables
            .iter()
            .flat_map(|table| table.chains.programmed().values());
        let words = chains.flat_map(|rules| rules.iter()).flat_map(|rule| {
            let words = rule.split(' ');
            words.clone().zip(words.skip(1))
        });
        words
            .filter(|(option, _)| *option == "--match-set")
            .map(|(_, name)| name.to_owned())
            .collect()
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

//! The first batch of a life meets rules of an earlier one that name the same sets. If several of these changed meanwhile, or
//! one of them and the rules, no order of single steps is safe; so all of it changes at once: rules name sets with the new
//! members in the place of those, and are given back to them when they hold the same.

use std::collections::{BTreeMap, BTreeSet};

use egret_policies::rules::{Batch, SetId, SetKind};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::Netfilter;
use crate::backend::Standing;
use crate::backend::netfilter::names::{self, PodChains};
use egret_kernel::Family;

impl Netfilter {
    /// The first batch, in one step or, where that would not be safe, in two.
    pub(crate) fn begin_safely(&mut self, batch: &Batch, had_state: bool, now: Timestamp) -> Standing {
        let moving = self.moving(batch);
        if moving.is_empty() {
            return self.begin(batch, had_state, now);
        }
        let (first, then) = split(batch, &moving);
        let begun = self.begin(&first, had_state, now);
        self.held_back.push_back(then);
        self.catch_up(begun, now)
    }

    /// A batch behind the first one, and behind what of that one is still to come.
    pub(crate) fn step_in_turn(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        // Where the tables cannot be written at all, nobody can be closed, and nothing of this life is in force that would follow.
        if self.held_back.is_empty() && (self.broken.is_some() || self.make_way(batch)) {
            return self.step(batch, now);
        }
        self.held_back.push_back(batch.clone());
        self.program();
        let standing = self.standing(Standing::default());
        self.catch_up(standing, now)
    }

    /// Takes the steps that were held back, as long as the tables can be written: until then all rules are those of before, and
    /// name the sets that these steps change.
    pub(crate) fn catch_up(&mut self, begun: Standing, now: Timestamp) -> Standing {
        let mut standing = begun;
        while self.broken.is_none()
            && let Some(batch) = self.held_back.pop_front()
        {
            let repaired = standing.repaired;
            standing = if self.make_way(&batch) {
                self.step(&batch, now)
            } else {
                self.held_back.push_front(batch);
                self.standing(Standing::default())
            };
            standing.repaired = repaired;
        }
        standing
    }

    /// Before sets change: closes the pods whose rules of before would see it, and whose wanted rules would not. Says whether
    /// none is left open.
    ///
    /// A batch is safe at every prefix for rules that are, at each step, those of before or those of the batch. Where the kernel
    /// refuses a pod's chains, its rules may be older than that: they name a set for which its wanted rules name what
    /// stands in. Whoever ordered the steps took it that nobody asks that set meanwhile, so what a pod sees through older rules may be
    /// wider than any policy was. It can be neither left to them nor kept from all others; so the dispatch leads to no
    /// chain of its own first, then these go (the next life would take them for rules of before), and then the set changes. Each attempt to
    /// write the pod's chains writes the dispatch with them, so that it is open again with the rules that are wanted, or not at all.
    fn make_way(&mut self, batch: &Batch) -> bool {
        if self.refused.is_empty() {
            return true;
        }
        let created = batch.sets_created.iter().map(|spec| spec.id);
        let changed = batch.members_changed.iter().map(|changed| changed.set);
        let changed: BTreeSet<SetId> = created.chain(changed).collect();
        let outdated = self.refused.keys().filter(|pod| self.is_outdated(pod, &changed));
        let outdated: BTreeSet<PodKey> = outdated.cloned().collect();
        if outdated.is_empty() {
            return true;
        }
        for pod in &outdated {
            tracing::error!(%pod, "a pod is closed: its rules are refused, and those of before name sets that change");
        }
        self.program_the_rest(&outdated);
        self.broken.is_none()
    }

    /// Whether the chains of a pod that the kernel holds name one of these sets, and its rules do not.
    fn is_outdated(&self, pod: &PodKey, changed: &BTreeSet<SetId>) -> bool {
        let Some(local) = self.pods.get(pod) else {
            return false;
        };
        let rules = local.rules();
        let wanted = rules.egress.sets().chain(rules.ingress.sets());
        let wanted: BTreeSet<SetId> = wanted.chain(rules.audit.sets()).collect();
        let own = PodChains::of(pod);
        let alike = self.words_behind("-j", |chain| own.contain(chain));
        let named = self.sets_named_by(|chain| own.contain(chain) || alike.contains(chain));
        let mut unseen = changed.difference(&wanted).copied();
        unseen.any(|id| is_named(&named, id))
    }

    /// The sets that must not be changed where they are, with the names of what is to stand for them.
    fn moving(&mut self, batch: &Batch) -> BTreeMap<SetId, SetId> {
        let named = self.sets_named_by(|_| true);
        self.sets.lock().want(&batch.sets_created);
        self.sets.lock().note(&batch.members_changed);
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

    /// The sets that rules name which the kernel holds, in these chains.
    fn sets_named_by(&self, which: impl Fn(&str) -> bool) -> BTreeSet<String> {
        self.words_behind("--match-set", which)
    }

    /// The words that stand behind one in the rules of these chains.
    pub(crate) fn words_behind(&self, word: &str, which: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let chains = self.tables.iter().flat_map(|table| table.chains.programmed());
        let rules = chains
            .filter(|(name, _)| which(name))
            .flat_map(|(_, rules)| rules.iter());
        let words = rules.flat_map(|rule| {
            let words = rule.split(' ');
            words.clone().zip(words.skip(1))
        });
        words
            .filter(|(option, _)| *option == word)
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

fn is_named(named: &BTreeSet<String>, id: SetId) -> bool {
    let mut families = Family::BOTH.into_iter();
    families.any(|family| named.contains(names::set(id, family).as_str()))
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

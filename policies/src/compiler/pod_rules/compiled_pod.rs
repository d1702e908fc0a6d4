//! The rules of a pod, made of the filled templates of its policies. A change rebuilds the tiers of the policies that
//! changed, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::name::NamePattern;

use super::filled::{FilledEffect, FilledTemplate, RuleList};
use super::{CompileContext, firewall, itself_rule, own_node_rules};
use crate::compiler::directions::Directions;
use crate::compiler::index::LivePod;
use crate::compiler::set_content::{NamedSet, SetContent};
use crate::compiler::set_use::SetUse;
use crate::decision;
use crate::model::{Direction, PolicyId, Rank, Tier};
use crate::rules::{Audit, DefaultAction, DirectionRules, Names, PodRules, Rule, SetId, TierRules};

/// The policies of a pod in the order of evaluation.
type PolicyParts = BTreeMap<(Rank, PolicyId), FilledTemplate>;

/// A pod's rules, with the templates that they are made of.
#[derive(Debug)]
pub(crate) struct CompiledPod {
    pub(crate) rules: PodRules,
    pub(crate) patterns: BTreeSet<NamePattern>,
    parts: PolicyParts,
    uses: BTreeMap<SetId, UseCount>,
    /// The set that has names asked, of [`Names`].
    names: Option<SetUse>,
    /// The directions in which an annotation of 2016 is in force, or would be.
    annotated: Directions,
}

/// Which policies count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyFilter {
    /// Those that decide.
    Enforced,
    /// Those that are only asked as well.
    All,
}

/// How a set is used, and by how many policies in each direction.
#[derive(Debug)]
struct UseCount {
    used: SetUse,
    opens: [usize; 2],
    closes: [usize; 2],
    has_names_asked: [usize; 2],
}

/// A change of a pod's UID or addresses.
#[derive(Debug)]
pub(crate) struct IdentityChange {
    /// Whether it has another UID.
    pub(crate) is_another_run: bool,
    /// The addresses that it had, if it has others.
    pub(crate) from: Option<Vec<IpAddr>>,
}

/// How the rules of a pod changed.
#[derive(Debug, Default)]
pub(crate) struct RuleChanges {
    /// The sets that are used in another way than before, with the way before and the way now.
    pub(crate) uses: Vec<(SetId, Option<SetUse>, Option<SetUse>)>,
    /// The directions whose rules are others than before.
    pub(crate) directions: Directions,
    /// The directions in which something else is asked of policies in audit.
    pub(crate) audited: Directions,
    /// Whether other names are waited for.
    pub(crate) patterns: bool,
}

/// Changes that are collected while policies are replaced.
#[derive(Default)]
struct PendingChanges {
    uses: BTreeMap<SetId, Option<SetUse>>,
    tiers: BTreeSet<(Direction, Tier)>,
    patterns: bool,
}

impl CompiledPod {
    /// A pod about which no policy says anything.
    pub(crate) fn new(pod: &LivePod<'_>) -> Self {
        let nothing = || DirectionRules::of(Vec::new());
        Self {
            rules: PodRules {
                pod: pod.pod.key.clone(),
                uid: pod.pod.uid.clone(),
                addresses: pod.addresses.to_vec(),
                egress: nothing(),
                ingress: nothing(),
                audit: Audit::default(),
            },
            patterns: BTreeSet::new(),
            parts: PolicyParts::new(),
            uses: BTreeMap::new(),
            names: None,
            annotated: Directions::default(),
        }
    }

    /// Sets the UID and addresses of the pod; returns what changed.
    pub(crate) fn update_identity(&mut self, pod: &LivePod<'_>) -> IdentityChange {
        let uid = std::mem::replace(&mut self.rules.uid, pod.pod.uid.clone());
        let addresses = std::mem::replace(&mut self.rules.addresses, pod.addresses.to_vec());
        IdentityChange {
            is_another_run: uid != self.rules.uid,
            from: (addresses != self.rules.addresses).then_some(addresses),
        }
    }

    /// The places of the policies that its rules are made of.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &(Rank, PolicyId)> {
        self.parts.keys()
    }

    /// Whether its rules are made of a policy.
    pub(crate) fn is_made_of(&self, place: &(Rank, PolicyId)) -> bool {
        self.parts.contains_key(place)
    }

    /// How its rules use sets.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SetId, &SetUse)> {
        self.uses.iter().map(|(id, counted)| (*id, &counted.used))
    }

    /// Replaces what some policies come to; with `None` they have no part any more.
    pub(crate) fn replace(
        &mut self,
        policies: impl IntoIterator<Item = ((Rank, PolicyId), Option<FilledTemplate>)>,
        around: CompileContext<'_>,
    ) -> RuleChanges {
        let mut changes = PendingChanges::default();
        for (place, after) in policies {
            let before = match after {
                Some(after) => self.put(place, after, &mut changes),
                None => self.take(&place, &mut changes),
            };
            drop(before);
        }
        self.settle_annotations(&mut changes);
        self.finish(changes, around)
    }

    fn put(
        &mut self,
        place: (Rank, PolicyId),
        after: FilledTemplate,
        changes: &mut PendingChanges,
    ) -> Option<FilledTemplate> {
        let before = self.parts.get(&place).cloned();
        for direction in Direction::ALL {
            let (old, new) = (
                before.as_ref().map(|before| before.effect(direction)),
                after.effect(direction),
            );
            let was_audit = before.as_ref().map(|before| before.is_audit);
            if old == Some(new) && was_audit == Some(after.is_audit) {
                continue;
            }
            if let Some(old) = old {
                self.count(place.0.tier, direction, old, false, changes);
            }
            self.count(place.0.tier, direction, new, true, changes);
        }
        self.parts.insert(place, after)
    }

    fn take(&mut self, place: &(Rank, PolicyId), changes: &mut PendingChanges) -> Option<FilledTemplate> {
        let before = self.parts.remove(place)?;
        for direction in Direction::ALL {
            self.count(place.0.tier, direction, before.effect(direction), false, changes);
        }
        Some(before)
    }

    /// Rules of the form of 2016 begin or cease to count with the annotation.
    fn settle_annotations(&mut self, changes: &mut PendingChanges) {
        for direction in Direction::ALL {
            let mut parts = self.parts.values().map(|filled| filled.effect(direction));
            let is_annotated = parts.any(FilledEffect::is_annotation);
            if is_annotated == self.annotated.contains(direction) {
                continue;
            }
            let opening: Vec<FilledEffect> = self
                .parts
                .values()
                .map(|filled| filled.effect(direction))
                .filter(|part| matches!(part, FilledEffect::Opens(_)))
                .cloned()
                .collect();
            // They are counted only while the annotation is in force.
            self.annotated.set(direction, true);
            for part in opening {
                self.count(Tier::NetworkPolicy, direction, &part, is_annotated, changes);
            }
            self.annotated.set(direction, is_annotated);
        }
    }

    fn count(
        &mut self,
        tier: Tier,
        direction: Direction,
        part: &FilledEffect,
        is_there: bool,
        changes: &mut PendingChanges,
    ) {
        let Some(written) = part.counting(self.annotated.contains(direction)) else {
            return;
        };
        changes.tiers.insert((direction, tier));
        changes.patterns |= !written.patterns.is_empty();
        for used in &written.uses {
            self.count_use(used, direction, is_there, changes);
        }
    }

    fn count_use(
        &mut self,
        used: &SetUse,
        direction: Direction,
        is_there: bool,
        changes: &mut PendingChanges,
    ) {
        let id = used.set.id;
        let counted = self.uses.get(&id);
        changes
            .uses
            .entry(id)
            .or_insert_with(|| counted.map(|counted| counted.used.clone()));
        let counted = self.uses.entry(id).or_insert_with(|| UseCount::new(used));
        counted.count(used, direction, is_there);
        if counted.used.does_nothing() {
            self.uses.remove(&id);
        }
    }

    /// Puts the tiers together that may be others than before.
    fn finish(&mut self, mut changes: PendingChanges, around: CompileContext<'_>) -> RuleChanges {
        self.replace_names(&mut changes, around);
        let (mut directions, mut audited) = (Directions::default(), Directions::default());
        for direction in Direction::ALL {
            let touched = |tier: Tier| changes.tiers.contains(&(direction, tier));
            if !Tier::ALL.into_iter().any(touched) {
                continue;
            }
            let before = std::mem::take(&mut self.rules.direction_mut(direction).tiers);
            let (mut kept, old): (Vec<TierRules>, Vec<TierRules>) =
                before.into_iter().partition(|rules| !touched(rules.tier));
            let new = Tier::ALL.into_iter().filter(|tier| touched(*tier));
            let new: Vec<TierRules> = new
                .flat_map(|tier| self.tier(tier, direction, PolicyFilter::Enforced, around))
                .collect();
            if new != old {
                directions.set(direction, true);
            }
            kept.extend(new);
            kept.sort_by_key(|rules| rules.tier);
            let rules = self.rules.direction_mut(direction);
            rules.tiers = kept;
            if direction == Direction::Egress {
                rules.names = self.names.as_ref().map(|used| Names {
                    records: used.set.id,
                    without: None,
                });
            }
            let asked = self.audit_rules(direction, around);
            if *self.rules.audit.direction(direction) != asked {
                audited.set(direction, true);
                *self.rules.audit.direction_mut(direction) = asked;
            }
        }
        if changes.patterns {
            self.patterns = self.all_patterns();
        }
        RuleChanges {
            uses: self.changed_uses(changes.uses),
            directions,
            audited,
            patterns: changes.patterns,
        }
    }

    /// Pods are told names for what they open, so only egress has such rules.
    fn replace_names(&mut self, changes: &mut PendingChanges, around: CompileContext<'_>) {
        let has_order = |(direction, tier): &(Direction, Tier)| {
            *direction == Direction::Egress && decision::has_order(*tier)
        };
        if !changes.tiers.iter().any(has_order) {
            return;
        }
        let after = self.names_between_rules(around);
        let before = std::mem::replace(&mut self.names, after.clone());
        for (used, is_there) in [(after, true), (before, false)] {
            if let Some(used) = used {
                self.count_use(&used, Direction::Egress, is_there, changes);
            }
        }
    }

    /// The set of all records of names between rules with an order, if these are many.
    fn names_between_rules(&self, around: CompileContext<'_>) -> Option<SetUse> {
        let lists = || {
            let lists = self.rule_lists(Direction::Egress, PolicyFilter::Enforced);
            lists.filter(|(rank, _)| decision::has_order(rank.tier))
        };
        let count: usize = lists().map(|(_, list)| list.rules.len()).sum();
        let patterns: BTreeSet<NamePattern> = lists()
            .flat_map(|(_, list)| &list.patterns)
            .flat_map(|patterns| patterns.iter().cloned())
            .collect();
        if count < decision::FEW || patterns.is_empty() {
            return None;
        }
        let records = SetContent::Records {
            pod: self.rules.pod.clone(),
            uid: self.rules.uid.clone(),
            ended_runs: around.ended_runs,
            patterns: patterns.into(),
        };
        let mut used = SetUse::none_of(&NamedSet::new(records));
        used.has_names_asked.set(Direction::Egress, true);
        Some(used)
    }

    fn changed_uses(
        &self,
        before: BTreeMap<SetId, Option<SetUse>>,
    ) -> Vec<(SetId, Option<SetUse>, Option<SetUse>)> {
        let now = |id: &SetId| self.uses.get(id).map(|counted| counted.used.clone());
        before
            .into_iter()
            .map(|(id, before)| (id, before, now(&id)))
            .filter(|(_, before, now)| before != now)
            .collect()
    }

    fn all_patterns(&self) -> BTreeSet<NamePattern> {
        let mut all = BTreeSet::new();
        for direction in Direction::ALL {
            for (_, written) in self.rule_lists(direction, PolicyFilter::All) {
                all.extend(
                    written
                        .patterns
                        .iter()
                        .flat_map(|patterns| patterns.iter().cloned()),
                );
            }
        }
        all
    }

    fn rule_lists(
        &self,
        direction: Direction,
        view: PolicyFilter,
    ) -> impl Iterator<Item = (Rank, &RuleList)> {
        let counts = move |filled: &&FilledTemplate| view == PolicyFilter::All || !filled.is_audit;
        let mut parts = self.parts.values().filter(counts);
        let is_annotated = self.annotated.contains(direction)
            && parts.any(|filled| filled.effect(direction).is_annotation());
        let parts = self.parts.iter().filter(move |(_, filled)| counts(filled));
        parts.filter_map(move |((rank, _), filled)| {
            Some((*rank, filled.effect(direction).counting(is_annotated)?))
        })
    }

    /// The rules as they were if the policies in audit were in force; nothing where none of them speaks.
    fn audit_rules(&self, direction: Direction, around: CompileContext<'_>) -> DirectionRules {
        let is_annotated = self.annotated.contains(direction);
        let mut audited = self.parts.values().filter(|filled| filled.is_audit);
        if !audited.any(|filled| filled.effect(direction).counting(is_annotated).is_some()) {
            return DirectionRules::default();
        }
        let tiers = Tier::ALL.into_iter();
        let tiers = tiers.flat_map(|tier| self.tier(tier, direction, PolicyFilter::All, around));
        DirectionRules::of(tiers.collect())
    }

    fn tier(
        &self,
        tier: Tier,
        direction: Direction,
        view: PolicyFilter,
        around: CompileContext<'_>,
    ) -> Vec<TierRules> {
        let written = self
            .rule_lists(direction, view)
            .filter(|(rank, _)| rank.tier == tier);
        match tier {
            Tier::ClusterEgressFirewall => firewall::in_lists_of(written),
            Tier::Admin | Tier::NetworkPolicy | Tier::Baseline => {
                let written: Vec<&RuleList> = written.map(|(_, written)| written).collect();
                one_list(tier, direction, &written, around).into_iter().collect()
            }
        }
    }
}

fn one_list(
    tier: Tier,
    direction: Direction,
    written: &[&RuleList],
    around: CompileContext<'_>,
) -> Option<TierRules> {
    let count = written.iter().map(|written| written.rules.len()).sum();
    let mut rules: Vec<Rule> = Vec::with_capacity(count);
    for written in written {
        rules.extend_from_slice(&written.rules);
    }
    let is_isolated = tier == Tier::NetworkPolicy && !written.is_empty();
    if is_isolated && direction == Direction::Egress {
        rules.extend(own_node_rules(around.pod_to_own_node));
    }
    if is_isolated {
        rules.push(itself_rule());
    }
    (is_isolated || !rules.is_empty()).then_some(TierRules {
        tier,
        rules: rules.into(),
        default_action: if is_isolated {
            DefaultAction::Deny
        } else {
            DefaultAction::NextTier
        },
    })
}

impl UseCount {
    fn new(used: &SetUse) -> Self {
        Self {
            used: SetUse::none_of(&used.set),
            opens: [0; 2],
            closes: [0; 2],
            has_names_asked: [0; 2],
        }
    }

    fn count(&mut self, used: &SetUse, direction: Direction, is_there: bool) {
        let place = direction as usize;
        let step = |count: &mut usize, does: bool| {
            if does && is_there {
                *count += 1;
            } else if does {
                *count -= 1;
            }
        };
        step(&mut self.opens[place], used.opens.contains(direction));
        step(&mut self.closes[place], used.closes.contains(direction));
        step(
            &mut self.has_names_asked[place],
            used.has_names_asked.contains(direction),
        );
        self.used.opens.set(direction, self.opens[place] > 0);
        self.used.closes.set(direction, self.closes[place] > 0);
        self.used
            .has_names_asked
            .set(direction, self.has_names_asked[place] > 0);
    }
}

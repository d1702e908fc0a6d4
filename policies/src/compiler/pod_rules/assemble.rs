//! The rules of a pod, put together from what each policy comes to for it. What a change does not concern stays as it
//! is: the tiers of other policies, and how other sets are used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::name::NamePattern;
use egret_shared::switch::{Switch, is_off};

use super::filled::{Filled, Part, Written};
use super::{Surroundings, firewall, itself_rule, own_node_rules};
use crate::compiler::directions::Directions;
use crate::compiler::index::LivePod;
use crate::compiler::set_use::Use;
use crate::model::{Direction, PolicyId, Rank, Tier};
use crate::rules::{Audit, DirectionRules, Otherwise, PodRules, Rule, SetId, TierRules};

/// The policies of a pod in the order of evaluation.
type Parts = BTreeMap<(Rank, PolicyId), Filled>;

/// What a pod's policies come to.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) rules: PodRules,
    pub(crate) patterns: BTreeSet<NamePattern>,
    parts: Parts,
    uses: BTreeMap<SetId, Counted>,
    /// The directions in which an annotation of 2016 is in force, or would be.
    annotated: Directions,
}

/// Which policies are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Those that decide.
    Enforced,
    /// Those that are only asked as well.
    All,
}

/// How a set is used, and by how many policies in each direction.
#[derive(Debug)]
struct Counted {
    used: Use,
    opens: [usize; 2],
    closes: [usize; 2],
}

/// What is new about a pod, besides its labels.
#[derive(Debug)]
pub(crate) struct Moved {
    /// Whether it has another UID.
    pub(crate) is_another_run: bool,
    /// The addresses that it had, if it has others.
    pub(crate) from: Option<Vec<IpAddr>>,
}

/// What became of a pod's rules.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The sets that are used in another way than before, with the way before and the way now.
    pub(crate) uses: Vec<(SetId, Option<Use>, Option<Use>)>,
    /// The directions whose rules are others than before.
    pub(crate) directions: Directions,
    /// The directions in which something else is asked of policies in audit.
    pub(crate) audited: Directions,
    /// Whether other names are waited for.
    pub(crate) patterns: bool,
}

/// What is noted while policies are replaced.
#[derive(Default)]
struct Changes {
    uses: BTreeMap<SetId, Option<Use>>,
    tiers: BTreeSet<(Direction, Tier)>,
    patterns: bool,
}

impl Compiled {
    /// A pod about which no policy says anything.
    pub(crate) fn new(pod: &LivePod<'_>) -> Self {
        let nothing = || DirectionRules { tiers: Vec::new() };
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
            parts: Parts::new(),
            uses: BTreeMap::new(),
            annotated: Directions::default(),
        }
    }

    /// Takes over who the pod is; returns what was others before.
    pub(crate) fn meet(&mut self, pod: &LivePod<'_>) -> Moved {
        let uid = std::mem::replace(&mut self.rules.uid, pod.pod.uid.clone());
        let addresses = std::mem::replace(&mut self.rules.addresses, pod.addresses.to_vec());
        Moved {
            is_another_run: uid != self.rules.uid,
            from: (addresses != self.rules.addresses).then_some(addresses),
        }
    }

    /// The places of the policies that its rules are made of.
    pub(crate) fn places(&self) -> impl Iterator<Item = &(Rank, PolicyId)> {
        self.parts.keys()
    }

    /// Whether its rules are made of a policy.
    pub(crate) fn is_made_of(&self, place: &(Rank, PolicyId)) -> bool {
        self.parts.contains_key(place)
    }

    /// How its rules use sets.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SetId, &Use)> {
        self.uses.iter().map(|(id, counted)| (*id, &counted.used))
    }

    /// Replaces what some policies come to; with `None` they have no part any more.
    pub(crate) fn replace(
        &mut self,
        policies: impl IntoIterator<Item = ((Rank, PolicyId), Option<Filled>)>,
        around: Surroundings<'_>,
    ) -> Outcome {
        let mut changes = Changes::default();
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

    fn put(&mut self, place: (Rank, PolicyId), after: Filled, changes: &mut Changes) -> Option<Filled> {
        let before = self.parts.get(&place).cloned();
        for direction in Direction::ALL {
            let (old, new) = (
                before.as_ref().map(|before| before.part(direction)),
                after.part(direction),
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

    fn take(&mut self, place: &(Rank, PolicyId), changes: &mut Changes) -> Option<Filled> {
        let before = self.parts.remove(place)?;
        for direction in Direction::ALL {
            self.count(place.0.tier, direction, before.part(direction), false, changes);
        }
        Some(before)
    }

    /// Rules of the form of 2016 begin or cease to count with the annotation.
    fn settle_annotations(&mut self, changes: &mut Changes) {
        for direction in Direction::ALL {
            let mut parts = self.parts.values().map(|filled| filled.part(direction));
            let is_annotated = parts.any(Part::is_annotation);
            if is_annotated == self.annotated.contains(direction) {
                continue;
            }
            let opening: Vec<Part> = self
                .parts
                .values()
                .map(|filled| filled.part(direction))
                .filter(|part| matches!(part, Part::Opens(_)))
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
        part: &Part,
        is_there: bool,
        changes: &mut Changes,
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

    fn count_use(&mut self, used: &Use, direction: Direction, is_there: bool, changes: &mut Changes) {
        let id = used.set.id;
        let counted = self.uses.get(&id);
        changes
            .uses
            .entry(id)
            .or_insert_with(|| counted.map(|counted| counted.used.clone()));
        let counted = self.uses.entry(id).or_insert_with(|| Counted::new(used));
        counted.count(used, direction, is_there);
        if counted.used.does_nothing() {
            self.uses.remove(&id);
        }
    }

    /// Puts the tiers together that may be others than before.
    fn finish(&mut self, changes: Changes, around: Surroundings<'_>) -> Outcome {
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
                .flat_map(|tier| self.tier(tier, direction, View::Enforced, around))
                .collect();
            if new != old {
                directions.set(direction, true);
            }
            kept.extend(new);
            kept.sort_by_key(|rules| rules.tier);
            self.rules.direction_mut(direction).tiers = kept;
            let asked = self.asked(direction, around);
            if *self.rules.audit.direction(direction) != asked {
                audited.set(direction, true);
                *self.rules.audit.direction_mut(direction) = asked;
            }
        }
        if changes.patterns {
            self.patterns = self.all_patterns();
        }
        Outcome {
            uses: self.changed_uses(changes.uses),
            directions,
            audited,
            patterns: changes.patterns,
        }
    }

    fn changed_uses(&self, before: BTreeMap<SetId, Option<Use>>) -> Vec<(SetId, Option<Use>, Option<Use>)> {
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
            for (_, written) in self.written(direction, View::All) {
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

    fn written(&self, direction: Direction, view: View) -> impl Iterator<Item = (Rank, &Written)> {
        let counts = move |filled: &&Filled| view == View::All || !filled.is_audit;
        let mut parts = self.parts.values().filter(counts);
        let is_annotated =
            self.annotated.contains(direction) && parts.any(|filled| filled.part(direction).is_annotation());
        let parts = self.parts.iter().filter(move |(_, filled)| counts(filled));
        parts.filter_map(move |((rank, _), filled)| {
            Some((*rank, filled.part(direction).counting(is_annotated)?))
        })
    }

    /// The rules as they were if the policies in audit were in force; nothing where none of them speaks.
    fn asked(&self, direction: Direction, around: Surroundings<'_>) -> DirectionRules {
        let is_annotated = self.annotated.contains(direction);
        let mut audited = self.parts.values().filter(|filled| filled.is_audit);
        if !audited.any(|filled| filled.part(direction).counting(is_annotated).is_some()) {
            return DirectionRules::default();
        }
        let tiers = Tier::ALL.into_iter();
        DirectionRules {
            tiers: tiers
                .flat_map(|tier| self.tier(tier, direction, View::All, around))
                .collect(),
        }
    }

    fn tier(&self, tier: Tier, direction: Direction, view: View, around: Surroundings<'_>) -> Vec<TierRules> {
        let written = self
            .written(direction, view)
            .filter(|(rank, _)| rank.tier == tier);
        match tier {
            Tier::ClusterEgressFirewall => firewall::in_lists_of(written),
            Tier::Admin | Tier::NetworkPolicy | Tier::Baseline => {
                let written: Vec<&Written> = written.map(|(_, written)| written).collect();
                one_list(tier, direction, &written, around).into_iter().collect()
            }
        }
    }
}

fn one_list(
    tier: Tier,
    direction: Direction,
    written: &[&Written],
    around: Surroundings<'_>,
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
    if is_isolated && !is_off(Switch::Hairpin) {
        rules.push(itself_rule());
    }
    (is_isolated || !rules.is_empty()).then_some(TierRules {
        tier,
        rules,
        otherwise: if is_isolated {
            Otherwise::Deny
        } else {
            Otherwise::NextTier
        },
    })
}

impl Counted {
    fn new(used: &Use) -> Self {
        Self {
            used: Use {
                opens: Directions::default(),
                closes: Directions::default(),
                ..used.clone()
            },
            opens: [0; 2],
            closes: [0; 2],
        }
    }

    fn count(&mut self, used: &Use, direction: Direction, is_there: bool) {
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
        self.used.opens.set(direction, self.opens[place] > 0);
        self.used.closes.set(direction, self.closes[place] > 0);
    }
}

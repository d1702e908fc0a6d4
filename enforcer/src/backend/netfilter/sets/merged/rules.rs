//! Which rules of a direction merge into one rule over a merged set. Adjacent Allow rules of a list may be
//! reordered, and the NetworkPolicy tier has no others; so those of the same port become one: whether the
//! peer is in any of their sets. The result depends on nothing but the rules, so a restart merges the same
//! ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_policies::rules::{
    Action, DirectionRules, Names, Origin, PeerMatch, PortMatch, Rule, SEVERAL, SetId, SetKind, TierRules,
};

/// The sets that a merged set has the members of: two at least, in order.
pub(super) type Parts = Vec<SetId>;

/// Rules with merged sets, and the parts of these.
#[derive(Debug)]
pub(super) struct MergedRules {
    pub(super) rules: DirectionRules,
    pub(super) merged: BTreeMap<SetId, (SetKind, Parts)>,
}

impl MergedRules {
    /// Joins what can be merged; `kind` knows the sets that can be.
    pub(super) fn of(rules: &DirectionRules, kind: impl Fn(SetId) -> Option<SetKind>) -> Self {
        let mut merged = BTreeMap::new();
        let mut merge = |tiers: &[TierRules]| merge_tiers(tiers, &kind, &mut merged);
        let rules = DirectionRules {
            tiers: merge(&rules.tiers),
            names: rules.names.as_ref().map(|names| Names {
                records: names.records,
                without: names.without.as_deref().map(&mut merge),
            }),
        };
        Self { rules, merged }
    }
}

fn merge_tiers(
    tiers: &[TierRules],
    kind: &impl Fn(SetId) -> Option<SetKind>,
    merged: &mut BTreeMap<SetId, (SetKind, Parts)>,
) -> Vec<TierRules> {
    let mergeable = MergeableSets {
        kind,
        excluded: named_otherwise(tiers),
    };
    let tiers = tiers.iter().map(|tier| {
        let rules = merge(&tier.rules, &mergeable, merged);
        TierRules {
            tier: tier.tier,
            rules: if *rules == *tier.rules {
                Arc::clone(&tier.rules)
            } else {
                rules.into()
            },
            default_action: tier.default_action,
        }
    });
    tiers.collect()
}

/// Which of the sets that rules name can be merged.
struct MergeableSets<K> {
    kind: K,
    /// Sets that are not merged in these rules.
    excluded: BTreeSet<SetId>,
}

impl<K: Fn(SetId) -> Option<SetKind>> MergeableSets<K> {
    fn set(&self, rule: &Rule) -> Option<(SetId, SetKind)> {
        match rule.peer {
            PeerMatch::In(id) => (self.kind)(id).map(|kind| (id, kind)),
            PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => None,
        }
    }

    /// The set of a rule that may be merged with others.
    fn part(&self, rule: &Rule) -> Option<(SetId, SetKind)> {
        let is_part = |(id, _): &(SetId, SetKind)| rule.except.is_none() && !self.excluded.contains(id);
        self.set(rule).filter(is_part)
    }
}

/// Sets that do something else in these rules than to allow. A member would come to such a set and to a merged ones in two
/// steps, and what is judged between them would be judged as neither before nor after.
fn named_otherwise(tiers: &[TierRules]) -> BTreeSet<SetId> {
    let all = tiers.iter().flat_map(|tier| tier.rules.iter());
    let otherwise = all.flat_map(|rule| match rule.action {
        Action::Allow => rule.except.into_iter().collect::<Vec<_>>(),
        Action::Deny | Action::Pass => rule.sets().collect(),
    });
    otherwise.collect()
}

fn merge<K: Fn(SetId) -> Option<SetKind>>(
    list: &[Rule],
    mergeable: &MergeableSets<K>,
    merged: &mut BTreeMap<SetId, (SetKind, Parts)>,
) -> Vec<Rule> {
    let is_allow = |rule: &Rule| rule.action == Action::Allow;
    let runs = list.chunk_by(|one, other| is_allow(one) && is_allow(other));
    runs.flat_map(|run| merge_run(run, mergeable, merged)).collect()
}

/// Rules that are alike, at the position of the first of them.
struct Group<'a> {
    kind: SetKind,
    first: &'a Rule,
    sets: BTreeSet<SetId>,
    is_of_one: bool,
}

/// What becomes one rule.
enum Entry<'a> {
    Group(Group<'a>),
    Alone(&'a Rule),
}

/// The cost of a rule for the kernel. The order of Allow rules has no meaning, so the cheapest come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LookupCost {
    /// At most one lookup.
    Single,
    /// One lookup for each length of prefix in the set.
    Networks,
    /// A lookup in the routing table, or a rare rule.
    OwnAddresses,
}

fn merge_run<K: Fn(SetId) -> Option<SetKind>>(
    run: &[Rule],
    mergeable: &MergeableSets<K>,
    merged: &mut BTreeMap<SetId, (SetKind, Parts)>,
) -> Vec<Rule> {
    let mut entries = entries(run, mergeable);
    entries.sort_by_key(|entry| entry.cost(mergeable));
    entries.into_iter().map(|entry| entry.rule(merged)).collect()
}

fn entries<'a, K: Fn(SetId) -> Option<SetKind>>(
    run: &'a [Rule],
    mergeable: &MergeableSets<K>,
) -> Vec<Entry<'a>> {
    let mut positions: BTreeMap<(PortMatch, SetKind), usize> = BTreeMap::new();
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for rule in run {
        let Some((id, kind)) = mergeable.part(rule) else {
            entries.push(Entry::Alone(rule));
            continue;
        };
        let position = *positions.entry((rule.port, kind)).or_insert(entries.len());
        match entries.get_mut(position) {
            Some(Entry::Group(group)) => group.take_in(rule, id),
            Some(Entry::Alone(_)) | None => entries.push(Entry::Group(Group {
                kind,
                first: rule,
                sets: BTreeSet::from([id]),
                is_of_one: true,
            })),
        }
    }
    entries
}

impl Entry<'_> {
    fn cost<K: Fn(SetId) -> Option<SetKind>>(&self, mergeable: &MergeableSets<K>) -> LookupCost {
        let rule = match self {
            Self::Group(group) => group.first,
            Self::Alone(rule) => rule,
        };
        match (&rule.peer, mergeable.set(rule)) {
            (PeerMatch::In(_), Some((_, SetKind::Networks))) => LookupCost::Networks,
            (PeerMatch::In(_) | PeerMatch::Any, _) => LookupCost::Single,
            (PeerMatch::OwnNode | PeerMatch::Itself, _) => LookupCost::OwnAddresses,
        }
    }

    fn rule(self, merged: &mut BTreeMap<SetId, (SetKind, Parts)>) -> Rule {
        match self {
            Self::Group(group) => group.rule(merged),
            Self::Alone(rule) => rule.clone(),
        }
    }
}

impl Group<'_> {
    fn take_in(&mut self, rule: &Rule, set: SetId) {
        self.is_of_one &= self.first.origin == rule.origin;
        self.sets.insert(set);
    }

    fn rule(self, merged: &mut BTreeMap<SetId, (SetKind, Parts)>) -> Rule {
        let origin = match self.is_of_one {
            true => self.first.origin.clone(),
            false => Origin {
                policy: SEVERAL.into(),
                rule: 0,
                name: None,
            },
        };
        let parts: Parts = self.sets.into_iter().collect();
        let peer = match parts[..] {
            [alone] => alone,
            _ => {
                let id = name(&parts);
                merged.insert(id, (self.kind, parts));
                id
            }
        };
        Rule {
            peer: PeerMatch::In(peer),
            origin,
            ..self.first.clone()
        }
    }
}

/// The name of the set that has the members of these.
fn name(parts: &[SetId]) -> SetId {
    let digests = parts.iter().map(|part| part.digest());
    let text = digests.fold("any of".to_owned(), |text, digest| text + " " + digest.as_str());
    SetId::of_content(&text)
}

#[cfg(test)]
mod tests {
    use egret_policies::rules::{DefaultAction, Tier};

    use super::*;

    #[test]
    fn a_tier_of_which_nothing_is_merged_keeps_its_rules_in_the_same_memory() {
        let rule = Rule {
            action: Action::Allow,
            peer: PeerMatch::Any,
            except: None,
            port: PortMatch::Any,
            origin: Origin {
                policy: "NetworkPolicy/a/b".into(),
                rule: 0,
                name: None,
            },
            attribution: None,
        };
        let rules = DirectionRules::of(vec![TierRules {
            tier: Tier::NetworkPolicy,
            rules: [rule].into(),
            default_action: DefaultAction::Deny,
        }]);
        let merged = MergedRules::of(&rules, |_| None);
        assert!(Arc::ptr_eq(&merged.rules.tiers[0].rules, &rules.tiers[0].rules));
    }
}

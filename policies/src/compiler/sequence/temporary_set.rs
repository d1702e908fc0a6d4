//! Temporary sets. A set that no order makes safe changes while no rule names it; meanwhile rules name a temporary set
//! with the members that it had.

use std::collections::BTreeMap;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::live_set::LiveSet;
use super::order::Batches;
use crate::records::Records;
use crate::rules::{ExpiredMembers, MembersChanged, NodeRules, PodRules, SetId, SetSpec};

/// A set that rules name in place of another one while that changes.
#[derive(Debug)]
pub(crate) struct TemporarySet {
    of: SetId,
    spec: SetSpec,
    members: MembersChanged,
    lapsed: Option<ExpiredMembers>,
}

impl TemporarySet {
    pub(super) fn of(set: &LiveSet, records: &Records, now: Timestamp) -> Self {
        let SetSpec {
            id: of,
            kind,
            breadth,
            description,
        } = set.named.spec();
        let description = format!("in the place of {description}");
        let id = SetId::of_content(&description);
        let members = MembersChanged {
            set: id,
            added: set.programmed_members(now).collect(),
            removed: Vec::new(),
        };
        Self {
            of,
            spec: SetSpec {
                id,
                kind,
                breadth,
                description: description.into(),
            },
            members,
            lapsed: set.expired(id, records),
        }
    }

    /// Has rules name what stands for the sets in the first batch, and the sets themselves in the later one.
    pub(crate) fn substitute<'a>(
        all: Vec<Self>,
        batches: &mut Batches,
        pods: impl Iterator<Item = (&'a PodKey, &'a PodRules)>,
        node: Option<&NodeRules>,
    ) {
        let names: BTreeMap<SetId, SetId> = all.iter().map(|aside| (aside.of, aside.spec.id)).collect();
        if names.is_empty() {
            return;
        }
        let Batches { first, then } = batches;
        for aside in all {
            then.sets_destroyed.push(aside.spec.id);
            first.sets_created.push(aside.spec);
            first.members_changed.push(aside.members);
            first.expired.extend(aside.lapsed);
        }
        let is_named = |set: SetId| names.contains_key(&set);
        for (pod, rules) in
            pods.filter(|(_, rules)| rules.egress.sets().chain(rules.ingress.sets()).any(is_named))
        {
            let mut renamed = rules.clone();
            renamed.egress.rename_sets(&names);
            renamed.ingress.rename_sets(&names);
            first.rules_replaced.retain(|rules| rules.pod != *pod);
            first.rules_replaced.push(renamed);
            then.rules_replaced.push(rules.clone());
        }
        if let Some(rules) = node.filter(|rules| rules.sets().any(is_named)) {
            let mut renamed = rules.clone();
            renamed.exposed.rename_sets(&names);
            first.node_rules = Some(renamed);
            then.node_rules = Some(rules.clone());
        }
    }
}

//! ClusterEgressFirewalls, of one pod and of what comes from outside. Each object is a list of its own: of those with one priority, whichever
//! denies wins, whatever their names; one that allows ends the tier. A first match cannot say that of several
//! lists at once, so they stand one behind the other, and an allow leaves its own list only.

use std::collections::BTreeMap;

use super::filled::RuleList;
use crate::model::{Action, Rank, Tier};
use crate::rules::{DefaultAction, Rule, TierRules};

/// The lists to be asked, in order: what is denied by one is denied, whatever is not goes on to the next.
pub(super) fn in_lists_of<'a>(objects: impl Iterator<Item = (Rank, &'a RuleList)>) -> Vec<TierRules> {
    let mut groups: BTreeMap<u32, Vec<Vec<Rule>>> = BTreeMap::new();
    for (rank, written) in objects {
        groups
            .entry(rank.priority)
            .or_default()
            .push(written.rules.clone());
    }
    in_lists(groups)
}

pub(in crate::compiler) fn in_lists(groups: BTreeMap<u32, Vec<Vec<Rule>>>) -> Vec<TierRules> {
    let mut lists = FirewallLists::default();
    for objects in groups.into_values() {
        lists.append(objects);
    }
    lists.finish()
}

/// Lists while they are written.
#[derive(Default)]
struct FirewallLists {
    done: Vec<Vec<Rule>>,
    current: Vec<Rule>,
    /// What stronger priorities allow: weaker ones are not asked about it, in whichever list they stand.
    allowed: Vec<Rule>,
}

impl FirewallLists {
    /// Adds the objects of one priority. Lists that only deny, or only allow, need none of their own: what
    /// one of the former denies is denied anyway, and the latter can only end the tier.
    fn append(&mut self, objects: Vec<Vec<Rule>>) {
        let allows = |rule: &Rule| rule.action != Action::Deny;
        let (allowing, denying): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|rules| rules.iter().any(allows));
        let (only_allowing, mixed): (Vec<_>, Vec<_>) =
            allowing.into_iter().partition(|rules| rules.iter().all(allows));
        self.current.extend(denying.into_iter().flatten());
        let (mut allowed_by_others, mut allowed_by_last) = (Vec::new(), Vec::new());
        for (place, rules) in mixed.into_iter().enumerate() {
            if place > 0 {
                let next = self.allowed.clone();
                self.done.push(std::mem::replace(&mut self.current, next));
            }
            allowed_by_others.append(&mut allowed_by_last);
            allowed_by_last.extend(rules.iter().filter(|rule| allows(rule)).cloned());
            self.current.extend(rules);
        }
        allowed_by_others.extend(only_allowing.into_iter().flatten());
        // What weaker priorities add to this list is not asked about what the others allow.
        self.current.extend(allowed_by_others.iter().cloned());
        self.allowed.extend(allowed_by_last);
        self.allowed.extend(allowed_by_others);
    }

    fn finish(mut self) -> Vec<TierRules> {
        self.done.push(self.current);
        self.done
            .into_iter()
            .filter(|rules| !rules.is_empty())
            .map(|rules| TierRules {
                tier: Tier::ClusterEgressFirewall,
                rules: rules.into(),
                default_action: DefaultAction::NextTier,
            })
            .collect()
    }
}

//! Selects the rules that have a metric series of their own. The first rules keep theirs; all others share the series
//! `other` of their verdict. No series ever falls, though rules come and go, counters are lost and the limit changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Decider, VerdictCount, VerdictKey};

/// A rule: its verdict, its object, its index in the object.
pub type RuleKey = (VerdictKey, Arc<str>, usize);

/// Rules with a series of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    named: BTreeMap<RuleKey, Named>,
    /// Whether rules without a series may have been counted in `other`.
    was_full: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Named {
    /// What the rule had counted in `other`; negative if counts were lost.
    base: i64,
    last: u64,
}

impl Series {
    /// Restores a rule's series of the previous process, with the rule's count at its start.
    pub fn name(&mut self, rule: RuleKey, base: i64) {
        self.named.insert(rule, Named { base, last: 0 });
        self.was_full = true;
    }

    /// Whether a rule has a series of its own.
    #[must_use]
    pub fn has(&self, rule: &RuleKey) -> bool {
        self.named.contains_key(rule)
    }

    /// The rules with a series, and their counts at its start.
    pub fn named(&self) -> impl Iterator<Item = (&RuleKey, i64)> {
        self.named.iter().map(|(rule, named)| (rule, named.base))
    }

    /// Sums up counts by series. New rules get a series until `most` have one. A count without a series has no origin.
    pub fn add_up(&mut self, counts: &[VerdictCount], most: usize) -> Vec<VerdictCount> {
        let mut by_key: BTreeMap<VerdictKey, u64> = BTreeMap::new();
        let mut by_rule: BTreeMap<RuleKey, u64> = BTreeMap::new();
        for count in counts {
            *by_key.entry(count.key).or_default() += count.packets;
            if let (Some((policy, rule)), Decider::Tier(_)) = (&count.origin, count.key.decider) {
                let rule = (count.key, Arc::clone(policy), *rule);
                *by_rule.entry(rule).or_default() += count.packets;
            }
        }
        if most > 0 {
            self.take(by_rule, most);
            for ((key, _, _), named) in &self.named {
                let others = by_key.entry(*key).or_default();
                *others = others.saturating_sub(named.last);
            }
        }
        let named = self.named.iter().filter(|_| most > 0);
        let named = named.map(|((key, policy, rule), named)| VerdictCount {
            key: *key,
            origin: Some((Arc::clone(policy), *rule)),
            packets: named.last,
        });
        let others = by_key.into_iter().map(|(key, packets)| VerdictCount {
            key,
            origin: None,
            packets,
        });
        named.chain(others).collect()
    }

    fn take(&mut self, by_rule: BTreeMap<RuleKey, u64>, most: usize) {
        for (rule, count) in by_rule {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            if !self.named.contains_key(&rule) {
                if self.named.len() >= most {
                    continue;
                }
                let base = if self.was_full { count } else { 0 };
                self.named.insert(rule.clone(), Named { base, last: 0 });
            }
            if let Some(named) = self.named.get_mut(&rule) {
                named.last = named.last.max(u64::try_from(count - named.base).unwrap_or(0));
                // Lost counts are not counted again.
                named.base = count - i64::try_from(named.last).unwrap_or(i64::MAX);
            }
        }
        self.was_full |= self.named.len() >= most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Action;
    use egret_policies::rules::{Direction, Tier};
    use proptest::prelude::*;

    const KEY: VerdictKey = VerdictKey {
        decider: Decider::Tier(Tier::Admin),
        action: Action::Deny,
        direction: Direction::Egress,
    };

    fn count(policy: &str, packets: u64) -> VerdictCount {
        VerdictCount {
            key: KEY,
            origin: Some((policy.into(), 0)),
            packets,
        }
    }

    fn values(counts: Vec<VerdictCount>) -> Vec<(String, u64)> {
        let name = |count: &VerdictCount| {
            count
                .origin
                .as_ref()
                .map_or_else(|| "other".into(), |(policy, _)| policy.to_string())
        };
        counts.iter().map(|count| (name(count), count.packets)).collect()
    }

    fn rows(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected
            .iter()
            .map(|(name, packets)| ((*name).to_owned(), *packets))
            .collect()
    }

    #[test]
    fn the_first_rules_keep_their_series_and_the_rest_share_one() {
        let mut series = Series::default();
        let first = [count("b", 5), count("b", 1), count("c", 2)];
        assert_eq!(values(series.add_up(&first, 1)), rows(&[("b", 6), ("other", 2)]));
        let second = [count("a", 7), count("b", 6), count("c", 2)];
        assert_eq!(values(series.add_up(&second, 1)), rows(&[("b", 6), ("other", 9)]));
    }

    #[test]
    fn a_rule_that_gets_a_series_later_starts_at_zero() {
        let mut series = Series::default();
        let counts = [count("a", 5), count("b", 50)];
        assert_eq!(
            values(series.add_up(&counts, 1)),
            rows(&[("a", 5), ("other", 50)])
        );
        assert_eq!(
            values(series.add_up(&counts, 2)),
            rows(&[("a", 5), ("b", 0), ("other", 50)])
        );
        let more = [count("a", 5), count("b", 53)];
        assert_eq!(
            values(series.add_up(&more, 2)),
            rows(&[("a", 5), ("b", 3), ("other", 50)])
        );
        assert_eq!(
            values(series.add_up(&more, 1)),
            rows(&[("a", 5), ("b", 3), ("other", 50)]),
            "nobody loses it"
        );
    }

    #[test]
    fn counts_of_a_removed_rule_are_counted_once() {
        let mut series = Series::default();
        series.add_up(&[count("a", 10)], 1);
        let lost = VerdictCount {
            origin: None,
            ..count("", 10)
        };
        assert_eq!(
            values(series.add_up(&[lost.clone(), count("a", 0)], 1)),
            rows(&[("a", 10), ("other", 0)])
        );
        assert_eq!(
            values(series.add_up(&[lost, count("a", 4)], 1)),
            rows(&[("a", 14), ("other", 0)])
        );
    }

    #[test]
    fn counts_continue_after_a_restart() {
        let mut before = Series::default();
        before.add_up(&[count("a", 5), count("b", 50)], 1);
        before.add_up(&[count("a", 5), count("b", 50)], 2);
        let mut after = Series::default();
        for (rule, base) in before.named() {
            after.name(rule.clone(), base);
        }
        let counts = [count("a", 6), count("b", 51), count("c", 9)];
        let expected = rows(&[("a", 6), ("b", 1), ("c", 0), ("other", 59)]);
        assert_eq!(values(after.add_up(&counts, 3)), expected);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Count(usize, u64),
        Forget(usize),
        Limit(usize),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..5_usize, 0..9_u64).prop_map(|(rule, packets)| Step::Count(rule, packets)),
            1 => (0..5_usize).prop_map(Step::Forget),
            1 => (1..4_usize).prop_map(Step::Limit),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        /// Rules count, go with their counts kept without a name, the limit changes, the enforcer begins anew.
        #[test]
        fn no_series_ever_falls_and_all_together_are_what_was_counted(steps in prop::collection::vec(step(), 1..60)) {
            let (mut series, mut rules, mut nameless, mut most) = (Series::default(), [0_u64; 5], 0, 2);
            let mut seen: BTreeMap<String, u64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Count(rule, packets) => rules[rule] += packets,
                    Step::Forget(rule) => {
                        let key = (KEY, Arc::from(rule.to_string()), 0);
                        // The totals keep what has a series.
                        if !series.has(&key) { nameless += std::mem::take(&mut rules[rule]); }
                    }
                    Step::Limit(limit) => most = limit,
                    Step::Restart => {
                        let mut after = Series::default();
                        for (rule, base) in series.named() { after.name(rule.clone(), base); }
                        series = after;
                    }
                }
                let mut counts: Vec<VerdictCount> = rules.iter().enumerate().map(|(rule, packets)| count(&rule.to_string(), *packets)).collect();
                counts.push(VerdictCount { origin: None, ..count("", nameless) });
                let now = values(series.add_up(&counts, most));
                let sum: u64 = now.iter().map(|(_, packets)| packets).sum();
                prop_assert_eq!(sum, rules.iter().sum::<u64>() + nameless);
                for (name, packets) in now {
                    let before = seen.insert(name.clone(), packets).unwrap_or(0);
                    prop_assert!(packets >= before, "{} fell from {} to {}", name, before, packets);
                }
            }
        }
    }
}

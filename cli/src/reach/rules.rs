//! What the rules of a direction say of all ports at once: each rule takes its share of the ports that no
//! rule before it has taken, as the first match decides for each of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use egret_policies::rules::{Action, DefaultAction, DirectionRules, Origin, PeerMatch, SetId, Tier};
use egret_policies::simulator::{Decision, Verdict};
use egret_shared::pod::PodKey;

use super::ports::PortSet;

/// The rules of a direction. Pods whose rules differ in nothing but whom a name was told have equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleSet(Vec<TierRules>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TierRules {
    tier: Tier,
    rules: Vec<ReachRule>,
    otherwise: DefaultAction,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReachRule {
    action: Action,
    peer: PeerSet,
    /// Where the other end is in this set, the rule does not count.
    except: Option<SetId>,
    ports: PortSet,
    origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PeerSet {
    Any,
    OwnNode,
    In(SetId),
    Names(NamePatterns),
}

/// The patterns of a rule, as written.
type NamePatterns = Arc<[Arc<str>]>;

/// What rules ask about the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The sets that it is in, with the ports at which it is.
    pub sets: BTreeMap<SetId, PortSet>,
    /// The pattern of the names for which it was told.
    pub name: Option<Arc<str>>,
    /// Whether it is the own node.
    pub is_own_node: bool,
}

impl Facts {
    /// What of it is asked for by rules that name these sets.
    pub fn relevant(&self, named: &HashSet<SetId>) -> Self {
        let sets = self.sets.iter().filter(|(set, _)| named.contains(*set));
        Self {
            sets: sets.map(|(set, ports)| (*set, ports.clone())).collect(),
            name: self.name.clone(),
            is_own_node: self.is_own_node,
        }
    }

    fn is_told_for(&self, patterns: &NamePatterns) -> bool {
        let covers = |name: &str| patterns.iter().any(|pattern| covers(pattern, name));
        self.name.as_deref().is_some_and(covers)
    }
}

/// Whether every name that matches one pattern matches the other: `*.` stands for one or more labels.
fn covers(pattern: &str, other: &str) -> bool {
    let below = pattern.strip_prefix('*');
    pattern == other
        || below.is_some_and(|domain| {
            other.trim_start_matches('*').len() > domain.len() && other.ends_with(domain)
        })
}

/// Ports for which one thing was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedPorts {
    /// The ports.
    pub ports: PortSet,
    /// What was decided.
    pub decision: Decision,
}

/// What is allowed of all slices.
#[must_use]
pub fn allowed(slices: &[DecidedPorts]) -> PortSet {
    slices
        .iter()
        .filter(|slice| slice.decision.verdict == Verdict::Allow)
        .fold(PortSet::none(), |all, slice| all.union(&slice.ports))
}

/// One decision for all ports, without a rule.
#[must_use]
pub fn allow_everything(tier: &'static str) -> Vec<DecidedPorts> {
    vec![DecidedPorts {
        ports: PortSet::everything(),
        decision: decision(Verdict::Allow, tier, None),
    }]
}

impl RuleSet {
    /// The rules of a pod's direction, given what sets of records stand for.
    #[must_use]
    pub fn new(pod: &PodKey, rules: &DirectionRules, records: &BTreeMap<SetId, Arc<str>>) -> Self {
        let peer = |peer: &PeerMatch| match peer {
            PeerMatch::Any => Some(PeerSet::Any),
            PeerMatch::OwnNode => Some(PeerSet::OwnNode),
            PeerMatch::In(set) => {
                let names = records.get(set).map(|description| names(description, pod));
                Some(names.map_or(PeerSet::In(*set), PeerSet::Names))
            }
            // Nothing is said here of a pod with itself.
            PeerMatch::Itself => None,
        };
        let rule = |rule: &egret_policies::rules::Rule| {
            Some(ReachRule {
                action: rule.action,
                peer: peer(&rule.peer)?,
                except: rule.except,
                ports: rule.port.into(),
                origin: rule.origin.clone(),
            })
        };
        let tier = |tier: &egret_policies::rules::TierRules| TierRules {
            tier: tier.tier,
            rules: tier.rules.iter().filter_map(rule).collect(),
            otherwise: tier.default_action,
        };
        Self(rules.tiers.iter().map(tier).collect())
    }

    /// The sets that the rules name.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        self.rules().flat_map(|rule| {
            let peer = match &rule.peer {
                PeerSet::In(set) => Some(*set),
                PeerSet::Any | PeerSet::OwnNode | PeerSet::Names(_) => None,
            };
            peer.into_iter().chain(rule.except)
        })
    }

    /// The patterns of names that the rules have.
    #[must_use]
    pub fn names(&self) -> BTreeSet<Arc<str>> {
        let names = self.rules().filter_map(|rule| match &rule.peer {
            PeerSet::Names(names) => Some(names),
            PeerSet::Any | PeerSet::OwnNode | PeerSet::In(_) => None,
        });
        names.flat_map(|names| names.iter().cloned()).collect()
    }

    fn rules(&self) -> impl Iterator<Item = &ReachRule> {
        self.0.iter().flat_map(|tier| tier.rules.iter())
    }

    /// What becomes of every port: the slices have no port in common, and together all of them.
    #[must_use]
    pub fn judge(&self, facts: &Facts) -> Vec<DecidedPorts> {
        let mut slices = Vec::new();
        let mut asked = PortSet::everything();
        for tier in &self.0 {
            asked = tier.judge(facts, asked, &mut slices);
        }
        push(&mut slices, asked, decision(Verdict::Allow, "default", None));
        slices
    }
}

impl TierRules {
    /// Returns what is left for the next tier.
    fn judge(&self, facts: &Facts, mut asked: PortSet, slices: &mut Vec<DecidedPorts>) -> PortSet {
        let mut passed = PortSet::none();
        let word = self.tier.word();
        // Most rules are about somebody else: that is cheaper to see than which ports are left for them.
        for rule in self.rules.iter().filter(|rule| rule.is_about(facts)) {
            let matching = rule.matching(facts, &asked);
            if matching.is_empty() {
                continue;
            }
            asked = asked.without(&matching);
            let origin = || Some(rule.origin.clone());
            match rule.action {
                Action::Allow => push(slices, matching, decision(Verdict::Allow, word, origin())),
                Action::Deny => push(slices, matching, decision(Verdict::Deny, word, origin())),
                Action::Pass => passed = passed.union(&matching),
            }
        }
        match self.otherwise {
            DefaultAction::NextTier => passed.union(&asked),
            DefaultAction::Deny => {
                push(slices, asked, decision(Verdict::Deny, word, None));
                passed
            }
        }
    }
}

impl ReachRule {
    /// Whether the other end is one of those that it is about, whatever the port.
    fn is_about(&self, facts: &Facts) -> bool {
        let is_there = match &self.peer {
            PeerSet::Any => true,
            PeerSet::OwnNode => facts.is_own_node,
            PeerSet::Names(names) => facts.is_told_for(names),
            PeerSet::In(set) => facts.sets.contains_key(set),
        };
        is_there && !self.except.is_some_and(|set| facts.sets.contains_key(&set))
    }

    /// The ports that it takes of those that are asked about, of an end that it is about.
    fn matching(&self, facts: &Facts, asked: &PortSet) -> PortSet {
        let ports = asked.intersection(&self.ports);
        match &self.peer {
            PeerSet::Any | PeerSet::OwnNode | PeerSet::Names(_) => ports,
            PeerSet::In(set) => facts
                .sets
                .get(set)
                .map_or_else(PortSet::none, |served| served.intersection(&ports)),
        }
    }
}

fn push(slices: &mut Vec<DecidedPorts>, ports: PortSet, decision: Decision) {
    if !ports.is_empty() {
        slices.push(DecidedPorts { ports, decision });
    }
}

const fn decision(verdict: Verdict, tier: &'static str, origin: Option<Origin>) -> Decision {
    Decision {
        verdict,
        tier,
        origin,
    }
}

/// The description of a set of records is `names *.example.com y.test of namespace/pod`.
fn names(description: &str, pod: &PodKey) -> NamePatterns {
    let patterns = description.strip_prefix("names ").unwrap_or(description);
    let patterns = patterns.strip_suffix(&format!(" of {pod}")).unwrap_or(patterns);
    patterns.split(' ').map(Arc::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_lies_below_it() {
        for (pattern, other, expected) in [
            ("a.test", "a.test", true),
            ("a.test", "b.a.test", false),
            ("*.a.test", "*.a.test", true),
            ("*.a.test", "b.a.test", true),
            ("*.a.test", "*.b.a.test", true),
            ("*.a.test", "a.test", false),
            ("*.a.test", "ba.test", false),
            ("*.b.a.test", "*.a.test", false),
        ] {
            assert_eq!(covers(pattern, other), expected, "{pattern} {other}");
        }
    }
}

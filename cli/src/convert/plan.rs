//! Names and priorities of the new objects, so that every policy is asked when it was asked before.
//!
//! Before, a ClusterNetworkPolicy goes before an AdminNetworkPolicy of its priority, then the name decides;
//! afterwards only the name does. Where that would change the order, and where a policy needs several objects,
//! the priorities behind its own are taken, if nobody has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_policies::model::{Kind, Policy, PolicyId, Tier};

use super::policy::PartName;

/// A policy that is to be converted.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub id: PolicyId,
    /// Its priority; a BaselineAdminNetworkPolicy has none.
    pub priority: u32,
    /// How many objects it takes.
    pub parts: usize,
}

/// What a policy becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its objects.
    pub parts: Vec<PartName>,
    /// What its author should know.
    pub notes: Vec<String>,
}

/// The weakest priority.
const LAST: u32 = 1000;

/// Plans for all candidates, or why there is none.
#[must_use]
pub fn plan(candidates: &[Candidate], existing: &[Policy]) -> BTreeMap<PolicyId, Result<Plan, String>> {
    let mut names = UniqueNames::new(candidates, existing);
    let (baseline, admin): (Vec<&Candidate>, Vec<&Candidate>) = candidates
        .iter()
        .partition(|candidate| candidate.id.kind == Kind::BaselineAdminNetworkPolicy);
    let mut plans = BTreeMap::new();
    for candidate in baseline {
        let plan = names
            .suffix(candidate, "-baseline")
            .and_then(|suffix| last(candidate, &suffix, existing));
        plans.insert(candidate.id.clone(), plan);
    }
    plans.extend(in_order(&admin, existing, &mut names));
    plans
}

/// The names of ClusterNetworkPolicies.
struct UniqueNames {
    taken: BTreeSet<String>,
    /// Names that others would like to keep.
    wanted: BTreeMap<String, usize>,
}

impl UniqueNames {
    fn new(candidates: &[Candidate], existing: &[Policy]) -> Self {
        let of_existing = existing
            .iter()
            .filter(|policy| policy.id.kind == Kind::ClusterNetworkPolicy);
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        for candidate in candidates {
            *wanted.entry(candidate.id.name.to_string()).or_default() += 1;
        }
        Self {
            taken: of_existing.map(|policy| policy.id.name.to_string()).collect(),
            wanted,
        }
    }

    /// What is put behind the name of a policy, so that nobody else has it.
    fn suffix(&mut self, candidate: &Candidate, other: &str) -> Result<String, String> {
        let name = &candidate.id.name;
        let all = |suffix: &str| -> Vec<String> {
            (0..candidate.parts)
                .map(|index| format!("{name}{}", suffix_of(suffix, index)))
                .collect()
        };
        let is_free = |names: &[String]| {
            names.iter().all(|one| {
                let others = usize::from(**one == **name);
                !self.taken.contains(one) && (others == 1 || !self.wanted.contains_key(one))
            })
        };
        let suffix = ["", other].into_iter().find(|suffix| is_free(&all(suffix)));
        let Some(suffix) = suffix else {
            let taken = all(other).join(" or ");
            return Err(format!(
                "there are ClusterNetworkPolicies called {name} and {taken}: give it another name"
            ));
        };
        self.taken.extend(all(suffix));
        Ok(suffix.to_owned())
    }
}

fn suffix_of(suffix: &str, index: usize) -> String {
    match index {
        0 => suffix.to_owned(),
        _ => format!("{suffix}-{}", index + 1),
    }
}

fn parts(candidate: &Candidate, suffix: &str, first: u32) -> Plan {
    let part = |(index, priority): (usize, u32)| PartName {
        name: suffix_of(suffix, index),
        priority,
    };
    let mut plan = Plan {
        parts: (0..candidate.parts).zip(first..).map(part).collect(),
        notes: Vec::new(),
    };
    if !suffix.is_empty() {
        let name = &candidate.id.name;
        plan.notes.push(format!(
            "it is called {name}{suffix}: there is another ClusterNetworkPolicy {name}"
        ));
    }
    if candidate.parts > 1 {
        let count = candidate.parts;
        plan.notes.push(format!(
            "it becomes {count} objects with priorities {first} to {}: an object has at most 25 rules in a direction",
            first + width(candidate) - 1
        ));
    }
    plan
}

fn width(candidate: &Candidate) -> u32 {
    u32::try_from(candidate.parts).unwrap_or(u32::MAX)
}

/// Behind all others of the Baseline tier.
fn last(candidate: &Candidate, suffix: &str, existing: &[Policy]) -> Result<Plan, String> {
    let Some(first) = (LAST + 1).checked_sub(width(candidate)) else {
        return Err(format!(
            "it takes {} objects: there are not so many priorities",
            candidate.parts
        ));
    };
    let name = format!("{}{suffix}", candidate.id.name);
    let is_before = |policy: &Policy| {
        policy.rank.priority < first
            || (candidate.parts == 1 && policy.rank.priority == first && *policy.id.name < *name)
    };
    let behind = existing
        .iter()
        .filter(|policy| policy.rank.tier == Tier::Baseline)
        .find(|policy| policy.id.kind == Kind::ClusterNetworkPolicy && !is_before(policy));
    if let Some(behind) = behind {
        return Err(format!(
            "it goes behind every ClusterNetworkPolicy of tier Baseline, with priority {first}: give {} one below {first}",
            behind.id
        ));
    }
    let mut plan = parts(candidate, suffix, first);
    plan.notes.push(format!(
        "it has priority {first}, behind every other of tier Baseline"
    ));
    Ok(plan)
}

/// AdminNetworkPolicies of one priority together.
fn in_order(
    candidates: &[&Candidate],
    existing: &[Policy],
    names: &mut UniqueNames,
) -> BTreeMap<PolicyId, Result<Plan, String>> {
    let of_tier: Vec<&Policy> = existing
        .iter()
        .filter(|policy| policy.rank.tier == Tier::Admin && policy.id.kind == Kind::ClusterNetworkPolicy)
        .collect();
    let mut occupied: BTreeMap<u32, Arc<str>> = BTreeMap::new();
    for policy in &of_tier {
        occupied.insert(policy.rank.priority, policy.id.to_string().into());
    }
    let mut groups: BTreeMap<u32, Vec<&Candidate>> = BTreeMap::new();
    for candidate in candidates {
        occupied.insert(candidate.priority, candidate.id.to_string().into());
        groups.entry(candidate.priority).or_default().push(candidate);
    }
    let mut plans = BTreeMap::new();
    for (priority, mut group) in groups {
        group.sort_by(|one, other| one.id.cmp(&other.id));
        let before = of_tier.iter().filter(|policy| policy.rank.priority == priority);
        let before = before.map(|policy| policy.id.name.to_string()).max();
        let named = group
            .iter()
            .map(|candidate| (*candidate, names.suffix(candidate, "-admin")));
        plans.extend(PriorityGroup { priority, before }.plan(named.collect(), &mut occupied));
    }
    plans
}

/// Policies of one priority.
struct PriorityGroup {
    priority: u32,
    /// The last ClusterNetworkPolicy of that priority by name.
    before: Option<String>,
}

type NamedPart<'a> = (&'a Candidate, Result<String, String>);

impl PriorityGroup {
    fn plan(
        &self,
        named: Vec<NamedPart<'_>>,
        occupied: &mut BTreeMap<u32, Arc<str>>,
    ) -> BTreeMap<PolicyId, Result<Plan, String>> {
        let mut last_name = self.before.clone();
        let mut next = self.priority;
        let mut plans = BTreeMap::new();
        for (candidate, suffix) in named {
            let plan = suffix.and_then(|suffix| {
                let name = format!("{}{suffix}", candidate.id.name);
                let is_tied = last_name.is_some();
                let is_in_order = last_name.as_ref().is_none_or(|last| *last < name) && candidate.parts == 1;
                let first = if is_tied && !is_in_order { next + 1 } else { next };
                let end = first + width(candidate) - 1;
                self.free(first, end, occupied)?;
                // Behind the last of several objects the next policy must not go between them.
                next = end;
                last_name = Some(if candidate.parts == 1 {
                    name
                } else {
                    LAST_OF_ALL.to_owned()
                });
                let mut plan = parts(candidate, &suffix, first);
                if first != self.priority {
                    plan.notes.push(format!(
                        "it has priority {first} instead of {}, so that it is asked when it was asked before",
                        self.priority
                    ));
                }
                Ok(plan)
            });
            plans.insert(candidate.id.clone(), plan);
        }
        for priority in self.priority..=next {
            occupied.entry(priority).or_insert_with(|| "another".into());
        }
        plans
    }

    fn free(&self, first: u32, end: u32, occupied: &BTreeMap<u32, Arc<str>>) -> Result<(), String> {
        let needed = first.max(self.priority + 1)..=end;
        if needed.is_empty() {
            return Ok(());
        }
        let hint = "give it a priority with free ones behind it";
        if end > LAST {
            return Err(format!(
                "it would need the priorities up to {end}, and {LAST} is the last: {hint}"
            ));
        }
        match occupied.range(needed.clone()).next() {
            None => Ok(()),
            Some((taken, by)) => Err(format!(
                "to be asked when it was asked before it would need the priorities {} to {end}, and {by} has {taken}: {hint}",
                needed.start()
            )),
        }
    }
}

/// A name that no object has and behind which no name comes.
const LAST_OF_ALL: &str = "\u{10ffff}";

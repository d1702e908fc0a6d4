//! Decision tables: what many ordered rules come to, so that a packet is looked up instead of compared with each rule in turn.
//!
//! ```text
//!  rules, in order                       lookups
//!  deny  10.1.0.0/16                     deny  in {10.1.0.0/16, 10.3.0.0/16}
//!  allow 10.2.0.0/16 TCP 443       ▸     allow in {10.2.0.0/16 TCP 443}
//!  deny  10.3.0.0/16
//!  …
//! ```
//!
//! A table has a verdict for each *key*: a network or an address, with or without a port. The verdict of a key is that of the first rule
//! which matches it, and a packet has that of its narrowest key. So the keys are looked up from narrow to wide: addresses with ports,
//! networks with ports, addresses, networks. Among networks the narrower ones are in an earlier layer where a wider one has another
//! verdict. A key with the verdict of the next wider one is left out.
//!
//! Networks that policies write out never change, so their keys are computed once. Addresses of pods, nodes and Services come and go:
//! [`DecisionTable::entries_at`] says which keys an address has, and a backend keeps these up to date.
//!
//! Lookups are rules like all others, over sets with names of their own. A Deny that stands for several has them as its attribution: a
//! denied packet pays for finding out which, an allowed one does not. Names stay sets that are looked up in their place; so do
//! exceptions, the own node, and everything else that is no set of addresses. Where keys would be many more than the networks in the
//! rules, the rules are divided, and at last walked. Which rules are in a table depends on rules alone, never on who is in their sets.
//!
//! Names divide the rules as well. So there is a second form of the rules without those over names, for packets to addresses that are
//! in no record of them ([`Names`]): two lookups more for these, whatever the number of names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Action, Tier};
use crate::rules::{
    DefaultAction, Digest, DirectionRules, Member, Names, Origin, PeerMatch, PortMatch, Rule, SEVERAL, SetId,
    SetKind, TierRules,
};

mod fixed;
mod run;
mod table;

pub use table::{DecisionTable, Lookup};

use run::Run;
use table::TooLarge;

/// The least rules for which a table pays: fewer are walked as fast.
pub(crate) const FEW: usize = 8;

/// What a set holds that rules name.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Networks that never change, in order.
    Fixed(&'a [Member]),
    /// Members that come and go, of this kind.
    Changing(SetKind),
}

/// Rules of a direction, some of them lookups in tables.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The rules.
    pub rules: DirectionRules,
    /// The tables that they look into.
    pub tables: Vec<Arc<DecisionTable>>,
    /// How many rules are where.
    pub counts: RuleCounts,
}

/// How many rules of tiers with an order are looked up, and how many are walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// In tables.
    pub looked_up: usize,
    /// One after the other.
    pub walked: usize,
}

impl RuleCounts {
    const fn of(all: usize, looked_up: usize) -> Self {
        Self {
            looked_up,
            walked: all - looked_up,
        }
    }

    /// Of rules without tables.
    #[must_use]
    pub fn all_walked(rules: &DirectionRules) -> Self {
        let ordered = rules.tiers.iter().filter(|tier| has_order(tier.tier));
        Self {
            looked_up: 0,
            walked: ordered.map(|tier| tier.rules.len()).sum(),
        }
    }

    /// Of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            looked_up: self.looked_up + other.looked_up,
            walked: self.walked + other.walked,
        }
    }
}

/// Whether the order of rules counts. Those of NetworkPolicies only allow: the ones over the same kind of set are one rule already (see the
/// merged sets of a backend).
pub(crate) const fn has_order(tier: Tier) -> bool {
    match tier {
        Tier::NetworkPolicy => false,
        Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline => true,
    }
}

/// Whether a rule is over a name, in a tier where names divide the rules.
pub(crate) fn is_over_name(tier: Tier, rule: &Rule, is_of_records: impl Fn(SetId) -> bool) -> bool {
    let is_over_records = match rule.peer {
        PeerMatch::In(id) => is_of_records(id),
        PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => false,
    };
    has_order(tier) && is_over_records
}

/// Replaces rules by lookups. `content` knows the sets that may be in tables and those of records, and `known` the tables that are there
/// already.
pub fn decide<'a>(
    rules: &DirectionRules,
    content: impl Fn(SetId) -> Option<Content<'a>>,
    known: impl Fn(Digest) -> Option<Arc<DecisionTable>>,
) -> Decided {
    let all = decide_tiers(&rules.tiers, &content, &known);
    let count = RuleCounts::all_walked(rules).walked;
    let mut decided = Decided {
        rules: DirectionRules::of(all.tiers),
        tables: all.tables,
        counts: RuleCounts::of(count, all.looked_up),
    };
    if let Some(names) = &rules.names {
        let others = without_names(&rules.tiers, &content);
        let used = |id: Digest| decided.tables.iter().find(|table| table.id() == id).cloned();
        let others = decide_tiers(&others, &content, &|id| used(id).or_else(|| known(id)));
        let has_tables = !others.tables.is_empty();
        if has_tables {
            decided.counts = RuleCounts::of(count, others.looked_up);
            decided.tables.extend(others.tables);
        }
        decided.rules.names = Some(Names {
            records: names.records,
            without: has_tables.then_some(others.tiers),
        });
    }
    decided
}

/// Tiers without the rules over names between those with an order.
fn without_names<'a>(tiers: &[TierRules], content: &impl Fn(SetId) -> Option<Content<'a>>) -> Vec<TierRules> {
    let is_of_records = |id| matches!(content(id), Some(Content::Changing(SetKind::Records)));
    let others = tiers.iter().map(|tier| TierRules {
        tier: tier.tier,
        rules: {
            let others = tier
                .rules
                .iter()
                .filter(|rule| !is_over_name(tier.tier, rule, is_of_records));
            others.cloned().collect()
        },
        default_action: tier.default_action,
    });
    let says_something =
        |tier: &TierRules| !tier.rules.is_empty() || tier.default_action == DefaultAction::Deny;
    others.filter(says_something).collect()
}

/// Tiers with lookups in tables.
struct DecidedTiers {
    tiers: Vec<TierRules>,
    tables: Vec<Arc<DecisionTable>>,
    looked_up: usize,
}

fn decide_tiers<'a>(
    tiers: &[TierRules],
    content: &impl Fn(SetId) -> Option<Content<'a>>,
    known: &impl Fn(Digest) -> Option<Arc<DecisionTable>>,
) -> DecidedTiers {
    let mut made: BTreeMap<Digest, Arc<DecisionTable>> = BTreeMap::new();
    let mut excluded = BTreeSet::new();
    loop {
        let mut tables = Tables {
            content: |id: SetId| content(id).filter(|_| !excluded.contains(&id)),
            known: |id: Digest| made.get(&id).cloned().or_else(|| known(id)),
            used: Vec::new(),
            looked_up: 0,
        };
        let decided = tiers.iter().map(|tier| TierRules {
            tier: tier.tier,
            rules: tables.rules(tier),
            default_action: tier.default_action,
        });
        let decided = decided.collect();
        let (used, looked_up) = (tables.used, tables.looked_up);
        let again = named_elsewhere(tiers, &used);
        if again.is_empty() {
            return DecidedTiers {
                tiers: decided,
                tables: used,
                looked_up,
            };
        }
        excluded.extend(again);
        made.extend(used.into_iter().map(|table| (table.id(), table)));
    }
}

/// Sets that change, and that rules outside of their table name too. A member would come to the table and to the set in two steps, and
/// what is judged between them would be judged as neither before nor after.
fn named_elsewhere(tiers: &[TierRules], tables: &[Arc<DecisionTable>]) -> BTreeSet<SetId> {
    if tables.is_empty() {
        return BTreeSet::new();
    }
    let mut named: BTreeMap<SetId, usize> = BTreeMap::new();
    for id in tiers
        .iter()
        .flat_map(|tier| tier.rules.iter())
        .flat_map(Rule::own_sets)
    {
        *named.entry(id).or_default() += 1;
    }
    let each = tables.iter().flat_map(|table| {
        let mut in_table: BTreeMap<SetId, usize> = BTreeMap::new();
        for id in table.changing() {
            *in_table.entry(id).or_default() += 1;
        }
        in_table
    });
    let elsewhere = each.filter(|(id, count)| named.get(id) != Some(count));
    elsewhere.map(|(id, _)| id).collect()
}

/// Tables while rules are replaced.
struct Tables<C, K> {
    content: C,
    known: K,
    used: Vec<Arc<DecisionTable>>,
    looked_up: usize,
}

impl<'a, C, K> Tables<C, K>
where
    C: Fn(SetId) -> Option<Content<'a>>,
    K: Fn(Digest) -> Option<Arc<DecisionTable>>,
{
    fn rules(&mut self, tier: &TierRules) -> Arc<[Rule]> {
        match has_order(tier.tier) {
            false => Arc::clone(&tier.rules),
            true => {
                let rules: Vec<&Rule> = tier.rules.iter().collect();
                self.looked_up(&rules, &BTreeSet::new()).into()
            }
        }
    }

    /// Lookups in the place of rules, none of them in these sets.
    fn looked_up(&mut self, rules: &[&Rule], walked: &BTreeSet<SetId>) -> Vec<Rule> {
        let runs = Run::all_of(rules, &|id| self.content(id, walked));
        runs.into_iter().flat_map(|run| self.run(&run, walked)).collect()
    }

    fn run(&mut self, run: &Run<'_>, walked: &BTreeSet<SetId>) -> Vec<Rule> {
        if !run.is_worth_a_table() {
            return run.walked();
        }
        match self.table(run, walked) {
            // Nobody is in its sets, and nobody will be.
            Ok(table) if table.lookups().is_empty() => run.walked(),
            Ok(table) => {
                let rules = run.looked_up(&table);
                self.looked_up += run.count();
                self.used.push(table);
                rules
            }
            Err(TooLarge::Beside(sets)) => self.looked_up(run.rules(), &(walked | &sets)),
            Err(TooLarge::Keys) => {
                let (first, second) = run.rules().split_at(run.rules().len() / 2);
                let halves = [first, second].into_iter();
                halves.flat_map(|half| self.looked_up(half, walked)).collect()
            }
        }
    }

    fn table(&self, run: &Run<'_>, walked: &BTreeSet<SetId>) -> Result<Arc<DecisionTable>, TooLarge> {
        let id = run.table_id();
        let is_used = |table: &&Arc<DecisionTable>| table.id() == id;
        let used = self.used.iter().find(is_used).cloned();
        let known = used.or_else(|| (self.known)(id));
        let new = || DecisionTable::new(id, run.base(), run.entries(&|id| self.content(id, walked)));
        known.map_or_else(|| new().map(Arc::new), Ok)
    }

    fn content(&self, id: SetId, walked: &BTreeSet<SetId>) -> Option<Content<'a>> {
        (self.content)(id).filter(|_| !walked.contains(&id))
    }
}

/// A text that names an action.
const fn word(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
        Action::Pass => "pass",
    }
}

#[cfg(test)]
mod tests;

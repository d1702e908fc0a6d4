//! Merged sets: several Allow rules that look into one set each become one rule over the union, and many ordered rules become lookups in
//! a decision table ([`egret_policies::decision`]). A set lookup costs the first packet of a connection more than all else in a rule,
//! and a pod of many policies has many of them.
//!
//! ```text
//!  what policies say                    what is written
//!  allow TCP 443 in {A}   policy 1      allow TCP 443 in {A ∪ B ∪ C}
//!  allow TCP 443 in {B}   policy 2  ▸
//!  allow TCP 443 in {C}   policy 3
//! ```
//!
//! This stands in front of the rest of the backend and turns each batch into another one, about sets of which some are merged.
//! Every prefix of that one is as safe as a prefix of the first: a member of a part comes to a merged set, or goes, at the place
//! where the part itself would have changed, and what is made anew is filled before a rule names it. What rules
//! name only by merged sets is not in the kernel itself. Nothing of it depends on what was before.
//!
//! Records stay alone: they come and go while somebody waits, and each ends by itself. Only which sets are of records is known here: the
//! rules over them are left out of what is asked where no name matches ([`egret_policies::rules::Names`]).
//!
//! A key of a table that changes its verdict comes to the one set before it goes from the other. In between it is in both, and the one
//! that is asked first decides: the verdict is that of before or that of after.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use egret_policies::decision::{self, Content, DecisionTable, RuleCounts};
use egret_policies::rules::{
    Audit, Batch, Breadth, Digest, DirectionRules, Member, MembersChanged, NodeRules, PodRules, SetId,
    SetKind, SetSpec,
};
use egret_shared::pod::PodKey;

use crate::backend::netfilter::model::sorted_list::SortedList;

mod keys;
mod rules;

use rules::{MergedRules, Parts};

/// The sets that policies speak of, and the merged ones that stand for them.
#[derive(Debug, Default)]
pub struct MergedSets {
    /// In no order, as it is asked for each set that a pod's rules name.
    parts: HashMap<SetId, Part>,
    merged: HashMap<SetId, MergedSet>,
    tables: BTreeMap<Digest, TableInUse>,
    named: BTreeMap<Owner, Named>,
    records: BTreeSet<SetId>,
    counts: BTreeMap<PodKey, RuleCounts>,
    /// Each rule is counted by itself, so nothing is merged.
    is_each_alone: bool,
}

/// A set that policies speak of, and that may be merged with others.
#[derive(Debug)]
struct Part {
    kind: SetKind,
    breadth: Breadth,
    is_fixed: bool,
    description: Arc<str>,
    /// Without records.
    members: SortedList<Member>,
    /// Whose rules name it by itself.
    users: usize,
    /// Those that have its members.
    merged: BTreeSet<SetId>,
    /// Those that have keys because of its members.
    tables: BTreeSet<Digest>,
}

#[derive(Debug)]
struct MergedSet {
    kind: SetKind,
    source: Source,
    /// Whose rules name it.
    users: usize,
}

/// Where the members of a merged set come from.
#[derive(Clone, Debug)]
enum Source {
    /// All of these sets.
    Union(Parts),
    /// The keys of a table that have one action: its lookup at this position.
    Keys(Arc<DecisionTable>, usize),
}

/// Merged sets that rules name.
type Merged = BTreeMap<SetId, (SetKind, Source)>;

/// A table that rules look into.
#[derive(Debug)]
struct TableInUse {
    table: Arc<DecisionTable>,
    /// How many of its sets are there.
    sets: usize,
}

impl Part {
    /// The kind of the set, where it may be merged with others. A member of wide sets would be in as many unions as a node has
    /// combinations of them.
    fn mergeable(&self) -> Option<SetKind> {
        match self.breadth {
            Breadth::Narrow => Some(self.kind),
            Breadth::Wide => None,
        }
    }

    fn content(&self) -> Content<'_> {
        match self.is_fixed {
            true => Content::Fixed(self.members.as_slice()),
            false => Content::Changing(self.kind),
        }
    }
}

/// Whose rules name sets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Pod(PodKey),
    Node,
}

/// The sets that somebody's rules name: merged ones, and parts by themselves.
type Named = BTreeSet<SetId>;

/// Whether a set was in the kernel before a batch, for sets about which that may change.
type Before = BTreeMap<SetId, bool>;

impl MergedSets {
    /// Has each rule look into its own set and count by itself. Without it, rules that only allow share sets.
    pub(in crate::backend) const fn leave_each_alone(&mut self) {
        self.is_each_alone = true;
    }

    /// The batch as it is to be applied.
    pub fn merge<'a>(&mut self, batch: &'a Batch) -> Cow<'a, Batch> {
        self.count_ordered(batch);
        self.note_records(batch);
        if self.is_each_alone || !self.concern(batch) {
            return Cow::Borrowed(batch);
        }
        let mut before = Before::new();
        let mut joined = Batch {
            revision: batch.revision,
            sets_created: Vec::new(),
            members_changed: Vec::new(),
            expired: batch.expired.clone(),
            rules_replaced: Vec::new(),
            node_rules: batch.node_rules.clone(),
            has_policies: batch.has_policies,
            pods_removed: batch.pods_removed.clone(),
            reevaluate: batch.reevaluate.clone(),
            by_members: batch.by_members.clone(),
            sets_destroyed: Vec::new(),
        };
        for spec in &batch.sets_created {
            joined.sets_created.extend(self.take_in(spec, &mut before));
        }
        for changed in &batch.members_changed {
            self.change(changed, &before, &mut joined.members_changed);
        }
        for rules in &batch.rules_replaced {
            joined.rules_replaced.push(self.replace(rules, &mut before));
        }
        if let Some(rules) = &batch.node_rules {
            self.rename(Owner::Node, self.alone(rules), Merged::new(), &mut before);
        }
        for pod in &batch.pods_removed {
            let owner = Owner::Pod(pod.clone());
            self.rename(owner, Named::new(), Merged::new(), &mut before);
        }
        for id in &batch.sets_destroyed {
            joined.sets_destroyed.extend(self.let_go(*id, &mut before));
        }
        self.settle(before, &mut joined);
        Cow::Owned(joined)
    }

    /// Rules of tiers with an order, of all pods of this node.
    #[must_use]
    pub fn ordered(&self) -> RuleCounts {
        self.counts
            .values()
            .copied()
            .fold(RuleCounts::default(), RuleCounts::and)
    }

    /// Counts ordered rules before any is looked up.
    fn count_ordered(&mut self, batch: &Batch) {
        for rules in &batch.rules_replaced {
            let both = [&rules.egress, &rules.ingress].map(RuleCounts::all_walked);
            self.counts.insert(rules.pod.clone(), both[0].and(both[1]));
        }
        for pod in &batch.pods_removed {
            self.counts.remove(pod);
        }
    }

    /// Notes which sets are of records.
    fn note_records(&mut self, batch: &Batch) {
        let is_of_records = |spec: &&SetSpec| spec.kind == SetKind::Records;
        let created = batch.sets_created.iter().filter(is_of_records);
        self.records.extend(created.map(|spec| spec.id));
        for id in &batch.sets_destroyed {
            self.records.remove(id);
        }
    }

    /// The kernel has nothing any more.
    pub(in crate::backend) fn forget(&mut self) {
        *self = Self {
            is_each_alone: self.is_each_alone,
            ..Self::default()
        };
    }

    /// What merged sets stand for, for people.
    #[must_use]
    pub fn dump(&self) -> String {
        let digests = |of: &mut dyn Iterator<Item = SetId>| {
            let digests = of.map(|part| part.digest());
            digests.map(|digest| format!(" {digest}")).collect::<String>()
        };
        let merged = self.merged.iter().collect::<BTreeMap<_, _>>().into_iter();
        let merged = merged.map(|(id, set)| {
            let (digest, kind) = (id.digest(), set.kind);
            match &set.source {
                Source::Union(of) => format!(
                    "merged {digest} {kind:?} of{}\n",
                    digests(&mut of.iter().copied())
                ),
                Source::Keys(table, _) => format!("keys {digest} {kind:?} of table {}\n", table.id()),
            }
        });
        let tables = self.tables.values().map(|used| {
            let sets = digests(&mut used.table.sets().iter().copied());
            format!("table {} of{sets}\n", used.table.id())
        });
        let parts = self.parts.iter().filter(|(id, _)| !self.is_there(**id));
        let parts = parts.collect::<BTreeMap<_, _>>().into_iter().map(|(id, part)| {
            let (digest, kind, description) = (id.digest(), part.kind, &part.description);
            format!("part {digest} {kind:?} {description}\n")
        });
        merged.chain(tables).chain(parts).collect()
    }

    /// Whether anything here may change with a batch. What pods are told does not, and somebody waits for it.
    fn concern(&self, batch: &Batch) -> bool {
        let is_ours = |id: &SetId| self.parts.contains_key(id);
        !batch.rules_replaced.is_empty()
            || batch.node_rules.is_some()
            || !batch.pods_removed.is_empty()
            || batch.sets_created.iter().any(is_tracked)
            || batch.members_changed.iter().any(|changed| is_ours(&changed.set))
            || batch.sets_destroyed.iter().any(is_ours)
    }

    /// Whether a set is in the kernel: a part is not if rules name it by merged sets and tables only.
    fn is_there(&self, id: SetId) -> bool {
        let is_there = |part: &Part| part.users > 0 || (part.merged.is_empty() && part.tables.is_empty());
        self.merged.contains_key(&id) || self.parts.get(&id).is_some_and(is_there)
    }

    fn note(&self, id: SetId, before: &mut Before) {
        before.entry(id).or_insert_with(|| self.is_there(id));
    }

    /// Takes in a new set; returns it where it is made in any case.
    fn take_in(&mut self, spec: &SetSpec, before: &mut Before) -> Option<SetSpec> {
        if !is_tracked(spec) {
            return Some(spec.clone());
        }
        self.note(spec.id, before);
        self.parts.entry(spec.id).or_insert_with(|| Part {
            kind: spec.kind,
            breadth: spec.breadth,
            is_fixed: spec.is_fixed(),
            description: Arc::clone(&spec.description),
            members: SortedList::default(),
            users: 0,
            merged: BTreeSet::new(),
            tables: BTreeSet::new(),
        });
        None
    }

    /// Lets a set go that no rule names; returns it where it has nothing to do with merged ones.
    fn let_go(&mut self, id: SetId, before: &mut Before) -> Option<SetId> {
        if !self.parts.contains_key(&id) {
            return Some(id);
        }
        self.note(id, before);
        self.parts.remove(&id);
        None
    }

    /// Changes a part, and says what that changes in the kernel as it is before the rules of the batch.
    fn change(&mut self, changed: &MembersChanged, before: &Before, all: &mut Vec<MembersChanged>) {
        let Some(part) = self.parts.get(&changed.set) else {
            all.push(changed.clone());
            return;
        };
        let is_new = before.get(&changed.set) == Some(&false);
        let is_there = !is_new && self.is_there(changed.set);
        let own = is_there.then(|| changed.clone());
        let of_merged = part.merged.iter().map(|id| self.changed(*id, changed, part));
        let of_merged: Vec<MembersChanged> = of_merged.flatten().collect();
        let keys = self.keys_before(changed);
        if let Some(part) = self.parts.get_mut(&changed.set) {
            for member in &changed.removed {
                part.members.remove(member);
            }
            part.members
                .extend(changed.added.iter().map(|(member, _)| *member));
        }
        let [first, last] = self.changed_keys(keys);
        all.extend(first.into_iter().chain(own).chain(of_merged).chain(last));
    }

    /// What the change of a part, which was not made yet, changes in a merged set: no more than what no other part has.
    fn changed(&self, id: SetId, changed: &MembersChanged, part: &Part) -> Option<MembersChanged> {
        let Source::Union(of) = &self.merged.get(&id)?.source else {
            return None;
        };
        let is_in_other_part = |member: &Member| {
            let others = of.iter().filter(|other| **other != changed.set);
            others
                .filter_map(|other| self.parts.get(other))
                .any(|other| other.members.contains(member))
        };
        let goes = |member: &&Member| part.members.contains(member) && !is_in_other_part(member);
        let removed: Vec<Member> = changed.removed.iter().filter(goes).copied().collect();
        let was_in = |member: &Member| part.members.contains(member) && !changed.removed.contains(member);
        let added = changed.added.iter();
        let added: Vec<_> = added
            .filter(|(member, _)| !was_in(member) && !is_in_other_part(member))
            .copied()
            .collect();
        (!added.is_empty() || !removed.is_empty()).then_some(MembersChanged {
            set: id,
            added,
            removed,
        })
    }

    /// The rules of a pod over merged sets.
    fn replace(&mut self, rules: &PodRules, before: &mut Before) -> PodRules {
        let mut merged = Merged::new();
        let mut merge = |rules: &DirectionRules| {
            let kind = |id| self.parts.get(&id).and_then(Part::mergeable);
            let joined = MergedRules::of(rules, kind);
            let unions = joined.merged.into_iter();
            merged.extend(unions.map(|(id, (kind, of))| (id, (kind, Source::Union(of)))));
            joined.rules
        };
        let (egress, egress_keys, of_egress) = self.decide(&rules.egress);
        let (ingress, ingress_keys, of_ingress) = self.decide(&rules.ingress);
        self.counts.insert(rules.pod.clone(), of_egress.and(of_ingress));
        let joined = PodRules {
            pod: rules.pod.clone(),
            uid: rules.uid.clone(),
            addresses: rules.addresses.clone(),
            egress: merge(&egress),
            ingress: merge(&ingress),
            audit: Audit {
                egress: merge(&rules.audit.egress),
                ingress: merge(&rules.audit.ingress),
            },
        };
        merged.extend(egress_keys.into_iter().chain(ingress_keys));
        let decide = joined.egress.sets().chain(joined.ingress.sets());
        let all = decide.chain(joined.audit.sets());
        let named = all
            .filter(|id| merged.contains_key(id) || self.parts.contains_key(id))
            .collect();
        self.rename(Owner::Pod(rules.pod.clone()), named, merged, before);
        joined
    }

    fn alone(&self, rules: &NodeRules) -> Named {
        rules.sets().filter(|id| self.parts.contains_key(id)).collect()
    }

    /// Counts whose rules name what. What comes is counted first: a set that stays never goes in between.
    fn rename(&mut self, owner: Owner, named: Named, merged: Merged, before: &mut Before) {
        for (id, (kind, source)) in merged {
            self.make(id, kind, source, before);
        }
        for id in &named {
            self.note(*id, before);
            self.count(*id, |users| users + 1);
        }
        let former = match named.is_empty() {
            true => self.named.remove(&owner),
            false => self.named.insert(owner, named),
        };
        for id in former.into_iter().flatten() {
            self.note(id, before);
            self.count(id, |users| users.saturating_sub(1));
            self.unmake(id, before);
        }
    }

    fn count(&mut self, id: SetId, next: impl Fn(usize) -> usize) {
        let of_part = self.parts.get_mut(&id).map(|part| &mut part.users);
        if let Some(users) = of_part.or_else(|| self.merged.get_mut(&id).map(|set| &mut set.users)) {
            *users = next(*users);
        }
    }

    /// Makes a merged set, unless it is there.
    fn make(&mut self, id: SetId, kind: SetKind, source: Source, before: &mut Before) {
        if self.merged.contains_key(&id) {
            return;
        }
        self.note(id, before);
        match &source {
            Source::Union(of) => {
                for part in of {
                    self.note(*part, before);
                    if let Some(part) = self.parts.get_mut(part) {
                        part.merged.insert(id);
                    }
                }
            }
            Source::Keys(table, _) => self.use_table(table, before),
        }
        let set = MergedSet {
            kind,
            source,
            users: 0,
        };
        self.merged.insert(id, set);
    }

    /// Drops a merged set that no rule names any more.
    fn unmake(&mut self, id: SetId, before: &mut Before) {
        let Entry::Occupied(entry) = self.merged.entry(id) else {
            return;
        };
        if entry.get().users > 0 {
            return;
        }
        match entry.remove().source {
            Source::Union(of) => {
                for part in of {
                    self.note(part, before);
                    if let Some(part) = self.parts.get_mut(&part) {
                        part.merged.remove(&id);
                    }
                }
            }
            Source::Keys(table, _) => self.leave_table(&table, before),
        }
    }

    /// Has made what came, with all its members, and destroyed what went.
    fn settle(&self, before: Before, joined: &mut Batch) {
        let mut keys = BTreeMap::new();
        for (id, was_there) in before {
            match (was_there, self.is_there(id)) {
                (false, true) => {
                    joined.sets_created.extend(self.spec(id));
                    joined.members_changed.extend(self.filled(id, &mut keys));
                }
                (true, false) => joined.sets_destroyed.push(id),
                (true, true) | (false, false) => {}
            }
        }
    }

    fn spec(&self, id: SetId) -> Option<SetSpec> {
        let of_part = |part: &Part| (part.kind, part.breadth, Arc::clone(&part.description));
        let of_merged = |set: &MergedSet| {
            let description = match &set.source {
                Source::Union(of) => format!("any of {} sets", of.len()),
                Source::Keys(table, _) => format!("a verdict of the table {}", table.id()),
            };
            // Keys of networks never change: a set of them is fixed.
            (set.kind, Breadth::Narrow, description.into())
        };
        let part = self.parts.get(&id).map(of_part);
        let (kind, breadth, description) = part.or_else(|| self.merged.get(&id).map(of_merged))?;
        Some(SetSpec {
            id,
            kind,
            breadth,
            description,
        })
    }

    fn filled(&self, id: SetId, keys: &mut keys::AllKeys) -> Option<MembersChanged> {
        let members: BTreeSet<Member> = match self.merged.get(&id).map(|set| &set.source) {
            None => self.parts.get(&id)?.members.iter().collect(),
            Some(Source::Union(of)) => {
                let parts = of.iter().filter_map(|part| self.parts.get(part));
                parts.flat_map(|part| part.members.iter()).collect()
            }
            Some(Source::Keys(table, place)) => self.keys(table, *place, keys),
        };
        let added: Vec<_> = members.into_iter().map(|member| (member, None)).collect();
        (!added.is_empty()).then_some(MembersChanged {
            set: id,
            added,
            removed: Vec::new(),
        })
    }
}

/// Whether a set may be a part of merged ones, or of tables.
const fn is_tracked(spec: &SetSpec) -> bool {
    match spec.kind {
        SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts => true,
        SetKind::Records | SetKind::NetworkPorts => false,
    }
}

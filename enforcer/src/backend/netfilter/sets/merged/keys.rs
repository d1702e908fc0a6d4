//! The keys of decision tables, as members of sets.

use std::net::IpAddr;

use egret_policies::rules::Action;

use super::*;

/// The keys of an address in a table before a change.
pub(super) struct KeysBefore {
    table: Arc<DecisionTable>,
    address: IpAddr,
    keys: BTreeMap<Member, Action>,
}

/// The keys of tables that come and go, computed once for a batch.
pub(super) type AllKeys = BTreeMap<Digest, BTreeMap<Member, Action>>;

/// In which order keys come and go. An address with a port is looked up before the address: so its key is there while that of the
/// address changes, and each packet has the verdict of before or that of after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    PortComes,
    AddressComes,
    AddressGoes,
    PortGoes,
}

impl MergedSets {
    /// The rules of a direction with lookups in tables, the sets of these, and how many are where.
    pub(super) fn decide(&self, rules: &DirectionRules) -> (DirectionRules, Merged, RuleCounts) {
        let content = |id| match self.parts.get(&id) {
            Some(part) => Some(part.content()),
            None => self
                .records
                .contains(&id)
                .then_some(Content::Changing(SetKind::Records)),
        };
        let known = |id: Digest| self.tables.get(&id).map(|used| Arc::clone(&used.table));
        let decided = decision::decide(rules, content, known);
        let sets = decided.tables.iter().flat_map(|table| {
            let lookups = table.lookups().iter().enumerate();
            lookups.map(|(place, lookup)| (lookup.set, (lookup.kind, Source::Keys(Arc::clone(table), place))))
        });
        let sets = sets.collect();
        (decided.rules, sets, decided.counts)
    }

    /// One more set of a table is there.
    pub(super) fn use_table(&mut self, table: &Arc<DecisionTable>, before: &mut Before) {
        let used = self.tables.entry(table.id()).or_insert_with(|| TableInUse {
            table: Arc::clone(table),
            sets: 0,
        });
        used.sets += 1;
        if used.sets > 1 {
            return;
        }
        for id in table.sets() {
            self.note(*id, before);
            if let Some(part) = self.parts.get_mut(id) {
                part.tables.insert(table.id());
            }
        }
    }

    /// One set of a table less is there.
    pub(super) fn leave_table(&mut self, table: &DecisionTable, before: &mut Before) {
        let Some(used) = self.tables.get_mut(&table.id()) else {
            return;
        };
        used.sets -= 1;
        if used.sets > 0 {
            return;
        }
        self.tables.remove(&table.id());
        for id in table.sets() {
            self.note(*id, before);
            if let Some(part) = self.parts.get_mut(id) {
                part.tables.remove(&table.id());
            }
        }
    }

    /// All keys of a lookup.
    pub(super) fn keys(&self, table: &DecisionTable, place: usize, all: &mut AllKeys) -> BTreeSet<Member> {
        let Some(lookup) = table.lookups().get(place) else {
            return BTreeSet::new();
        };
        if let Some(fixed) = &lookup.fixed {
            return fixed.iter().copied().collect();
        }
        let keys = all
            .entry(table.id())
            .or_insert_with(|| table.entries(|id| self.members(id)));
        let of_lookup = keys
            .iter()
            .filter(|(member, action)| **action == lookup.action && kind_of(member) == lookup.kind);
        of_lookup.map(|(member, _)| *member).collect()
    }

    /// The keys that the change of a part, which was not made yet, may change.
    pub(super) fn keys_before(&self, changed: &MembersChanged) -> Vec<KeysBefore> {
        let tables = self
            .parts
            .get(&changed.set)
            .into_iter()
            .flat_map(|part| &part.tables);
        let tables = tables
            .filter_map(|id| self.tables.get(id))
            .map(|used| &used.table);
        let members = changed
            .added
            .iter()
            .map(|(member, _)| member)
            .chain(&changed.removed);
        let addresses: BTreeSet<IpAddr> = members.filter_map(address).collect();
        let each = tables.flat_map(|table| {
            addresses.iter().map(|address| KeysBefore {
                table: Arc::clone(table),
                address: *address,
                keys: table.entries_at(*address, |id| self.members(id)),
            })
        });
        each.collect()
    }

    /// What the change of a part, which is made, changes in the sets of keys: before the part itself is changed, and behind that.
    ///
    /// Who finds out which rule denied looks into the part. So what is not denied any more is not before the part changes, and what is
    /// denied now is behind it: in between only what is denied before and after.
    pub(super) fn changed_keys(&self, before: Vec<KeysBefore>) -> [Vec<MembersChanged>; 2] {
        let mut changes = [Changes::new(), Changes::new()];
        for KeysBefore { table, address, keys } in before {
            let now = table.entries_at(address, |id| self.members(id));
            let between = table.entries_between(address, &keys, &now);
            let [first, second] = &mut changes;
            note_changes(&table, &keys, &between, first);
            note_changes(&table, &between, &now, second);
        }
        let change = |((phase, set), members): ((Phase, SetId), Vec<Member>)| match phase {
            Phase::PortComes | Phase::AddressComes => MembersChanged {
                set,
                added: members.into_iter().map(|member| (member, None)).collect(),
                removed: Vec::new(),
            },
            Phase::AddressGoes | Phase::PortGoes => MembersChanged {
                set,
                added: Vec::new(),
                removed: members,
            },
        };
        changes.map(|changes| changes.into_iter().map(change).collect())
    }

    fn members(&self, id: SetId) -> Option<&[Member]> {
        self.parts.get(&id).map(|part| part.members.as_slice())
    }
}

/// Members that come to sets and go from them, in order.
type Changes = BTreeMap<(Phase, SetId), Vec<Member>>;

/// What makes `now` of the keys that an address had.
fn note_changes(
    table: &DecisionTable,
    before: &BTreeMap<Member, Action>,
    now: &BTreeMap<Member, Action>,
    changes: &mut Changes,
) {
    let mut note =
        |keys: &BTreeMap<Member, Action>, others: &BTreeMap<Member, Action>, [port, address]: [Phase; 2]| {
            for (member, action) in keys
                .iter()
                .filter(|(member, action)| others.get(member) != Some(action))
            {
                let phase = match kind_of(member) {
                    SetKind::AddressPorts => port,
                    _ => address,
                };
                if let Some(set) = set_of(table, member, *action) {
                    changes.entry((phase, set)).or_default().push(*member);
                }
            }
        };
    note(now, before, [Phase::PortComes, Phase::AddressComes]);
    note(before, now, [Phase::PortGoes, Phase::AddressGoes]);
}

/// The set that has a key.
fn set_of(table: &DecisionTable, member: &Member, action: Action) -> Option<SetId> {
    let mut lookups = table.lookups().iter();
    let found = lookups
        .find(|lookup| lookup.fixed.is_none() && lookup.action == action && lookup.kind == kind_of(member));
    found.map(|lookup| lookup.set)
}

/// The kind of the sets that have such a member.
const fn kind_of(member: &Member) -> SetKind {
    match member {
        Member::Address(_) => SetKind::Addresses,
        Member::Network(_) => SetKind::Networks,
        Member::AddressPort(..) => SetKind::AddressPorts,
        Member::NetworkPort(..) => SetKind::NetworkPorts,
    }
}

/// The address of a member that comes and goes.
fn address(member: &Member) -> Option<IpAddr> {
    match member {
        Member::Address(address) | Member::AddressPort(address, ..) => Some(*address),
        Member::Network(_) | Member::NetworkPort(..) => None,
    }
}

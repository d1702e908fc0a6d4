//! The order in which sets are created. The kernel finds a set by comparing its name with that of each one
//! before it (`find_set_and_id` of net/netfilter/ipset/ip_set_core.c): for each message about one, and with
//! `legacy` for each rule that names one. With `nft` rules hold the indices of sets
//! ([`egret_kernel::iptables::netlink_writer`]), so messages alone count: an answer changes as many sets as the pod's
//! policies that have its name, a thousand times a second; a label of a pod may change hundreds of sets, and
//! is rare.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use egret_kernel::iptables::Flavour;
use egret_policies::rules::{Batch, Member, SetId, SetKind, SetSpec};

/// A label that is about so many sets would take milliseconds behind thousands of others; about fewer it may.
const MANY: usize = 64;

/// The new sets of a batch, in order.
pub(in crate::backend::netfilter) fn in_order(batch: &Batch, flavour: Flavour) -> Vec<SetId> {
    let weights = match flavour {
        Flavour::Nft => by_members(batch),
        Flavour::Legacy => by_rules(batch),
    };
    let place = |spec: &&SetSpec| {
        let weight = weights.get(&spec.id).copied().unwrap_or_default();
        (Turn::of(spec, flavour, weight), Reverse(weight))
    };
    let mut order: Vec<&SetSpec> = batch.sets_created.iter().collect();
    order.sort_by_key(place);
    order.into_iter().map(|spec| spec.id).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    First,
    /// There are most of these.
    Records,
    Later,
    /// No message is ever about them.
    Fixed,
}

impl Turn {
    fn of(spec: &SetSpec, flavour: Flavour, weight: usize) -> Self {
        match (flavour, spec.kind) {
            (Flavour::Nft, _) if spec.is_fixed() => Self::Fixed,
            (_, SetKind::Records) => Self::Records,
            (Flavour::Nft, _) if weight < MANY => Self::Later,
            (_, SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts | SetKind::NetworkPorts) => {
                Self::First
            }
        }
    }
}

/// How many rules name each.
fn by_rules(batch: &Batch) -> BTreeMap<SetId, usize> {
    let mut rules: BTreeMap<SetId, usize> = BTreeMap::new();
    let of_pods = batch.rules_replaced.iter();
    for id in of_pods.flat_map(|rules| rules.egress.sets().chain(rules.ingress.sets())) {
        *rules.entry(id).or_default() += 1;
    }
    rules
}

/// In how many sets that member of each is which is in most: when it goes, it goes from all of them at once.
fn by_members(batch: &Batch) -> BTreeMap<SetId, usize> {
    let mut sets: HashMap<Member, usize> = HashMap::new();
    for (member, _) in batch.members_changed.iter().flat_map(|change| &change.added) {
        *sets.entry(*member).or_default() += 1;
    }
    let most = |added: &[(Member, _)]| {
        added
            .iter()
            .filter_map(|(member, _)| sets.get(member))
            .max()
            .copied()
    };
    let changes = batch.members_changed.iter();
    changes
        .filter_map(|change| Some((change.set, most(&change.added)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use egret_policies::rules::{Breadth, MembersChanged};
    use egret_shared::revision::Revision;

    use super::*;

    fn set(name: &str) -> SetId {
        SetId::of_content(name)
    }

    fn spec(name: &str, kind: SetKind, breadth: Breadth) -> SetSpec {
        SetSpec {
            id: set(name),
            kind,
            breadth,
            description: Arc::from(name),
        }
    }

    fn members(name: &str, addresses: &[u8]) -> MembersChanged {
        let member = |last: &u8| (Member::Address([10, 0, 0, *last].into()), None);
        MembersChanged {
            set: set(name),
            added: addresses.iter().map(member).collect(),
            removed: Vec::new(),
        }
    }

    /// One pod is in as many sets as a label may be about, another one in fewer.
    #[test]
    fn sets_of_bulk_messages_are_created_first_then_those_that_rules_wait_for() {
        let many: Vec<String> = (0..MANY).map(|number| format!("of many {number}")).collect();
        let few = ["few 1", "few 2"];
        let pods = |name| spec(name, SetKind::Addresses, Breadth::Wide);
        let mut sets_created = vec![
            spec("written out", SetKind::Networks, Breadth::Narrow),
            pods(few[0]),
            pods("one of many members"),
            spec("cluster", SetKind::Networks, Breadth::Wide),
            spec("told", SetKind::Records, Breadth::Wide),
            pods(few[1]),
        ];
        sets_created.extend(many.iter().map(|name| pods(name)));
        let mut members_changed: Vec<_> = many.iter().map(|name| members(name, &[1, 7])).collect();
        members_changed.extend(few.map(|name| members(name, &[2])));
        members_changed.push(members("one of many members", &[3, 4, 5]));
        let batch = Batch {
            sets_created,
            members_changed,
            ..Batch::empty(Revision::ZERO)
        };
        let behind = [
            "told",
            few[0],
            few[1],
            "one of many members",
            "cluster",
            "written out",
        ];
        let wanted = many.iter().map(String::as_str).chain(behind).map(set);
        assert_eq!(in_order(&batch, Flavour::Nft), wanted.collect::<Vec<_>>());
        assert_eq!(in_order(&batch, Flavour::Legacy).last(), Some(&set("told")));
    }
}

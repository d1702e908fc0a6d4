//! In which order sets are made. The kernel finds a set by its name and looks at all before it (`find_set_and_id` of
//! net/netfilter/ipset/ip_set_core.c): for each message about one, and with `legacy` for each rule that names one. With `nft` rules
//! have the numbers of sets ([`egret_kernel::iptables::wire`]), so there messages alone count: an answer is about as many sets as the
//! pod's policies that have its name, a label of a pod may be about hundreds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use egret_kernel::iptables::Flavour;
use egret_policies::rules::{Batch, Member, SetId, SetKind, SetSpec};

/// The new sets of a batch, in order.
pub(super) fn in_order(batch: &Batch, flavour: Flavour) -> Vec<SetId> {
    let weights = match flavour {
        Flavour::Nft => by_members(batch),
        Flavour::Legacy => by_rules(batch),
    };
    let place = |spec: &&SetSpec| {
        let weight = weights.get(&spec.id).copied().unwrap_or_default();
        (Turn::of(spec, flavour), Reverse(weight))
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
    /// No message is ever about them.
    Fixed,
}

impl Turn {
    fn of(spec: &SetSpec, flavour: Flavour) -> Self {
        match (flavour, spec.kind) {
            (Flavour::Nft, _) if spec.is_fixed() => Self::Fixed,
            (_, SetKind::Records) => Self::Records,
            (_, SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts) => Self::First,
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

    fn members(name: &str, addresses: &[&str]) -> MembersChanged {
        let member = |text: &&str| (Member::Address(text.parse().expect("an address")), None);
        MembersChanged {
            set: set(name),
            added: addresses.iter().map(member).collect(),
            removed: Vec::new(),
        }
    }

    #[test]
    fn what_the_most_messages_are_about_is_made_first() {
        let batch = Batch {
            sets_created: vec![
                spec("written out", SetKind::Networks, Breadth::Narrow),
                spec("told", SetKind::Records, Breadth::Wide),
                spec("many, seldom", SetKind::Addresses, Breadth::Wide),
                spec("one of two", SetKind::Addresses, Breadth::Wide),
                spec("cluster", SetKind::Networks, Breadth::Wide),
                spec("two of two", SetKind::Addresses, Breadth::Narrow),
            ],
            members_changed: vec![
                members("many, seldom", &["10.0.0.3", "10.0.0.4", "10.0.0.5"]),
                members("one of two", &["10.0.0.1"]),
                members("two of two", &["10.0.0.2", "10.0.0.1"]),
            ],
            ..Batch::empty(Revision::ZERO)
        };
        let order = |flavour| in_order(&batch, flavour);
        let names = [
            "one of two",
            "two of two",
            "many, seldom",
            "cluster",
            "told",
            "written out",
        ];
        assert_eq!(order(Flavour::Nft), names.map(set));
        assert_eq!(order(Flavour::Legacy).last(), Some(&set("told")));
    }
}

//! The members of a set, in order.
//!
//! Nearly all members have no end: those of selectors and networks. They stand side by side, IPv4 addresses in four octets each,
//! where a tree would take 64; a node with 10,000 policies has half a million of them. Records end and come one by one, also in
//! sets of a hundred thousand. They are in a tree.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use egret_policies::rules::Member;
use egret_shared::time::Timestamp;

use super::sorted_list::SortedList;

/// What a set may have as a member. An IPv4 address, and nothing else about it, is less than every other member.
pub(in crate::backend) trait SetMember: Copy + Ord {
    /// The address, where it is an IPv4 address and nothing else.
    fn ipv4(self) -> Option<Ipv4Addr>;

    /// The member that is this address and nothing else.
    fn of_ipv4(address: Ipv4Addr) -> Self;
}

impl SetMember for Member {
    fn ipv4(self) -> Option<Ipv4Addr> {
        match self {
            Self::Address(IpAddr::V4(address)) => Some(address),
            _ => None,
        }
    }

    fn of_ipv4(address: Ipv4Addr) -> Self {
        Self::Address(IpAddr::V4(address))
    }
}

/// The members of a set, with the end of their life where they have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct SetMembers<M> {
    /// IPv4 addresses without an end.
    addresses: SortedList<Ipv4Addr>,
    /// Others without an end.
    others: SortedList<M>,
    /// With an end; none of them is among those without.
    living: BTreeMap<M, Timestamp>,
}

impl<M> Default for SetMembers<M> {
    fn default() -> Self {
        Self {
            addresses: SortedList::default(),
            others: SortedList::default(),
            living: BTreeMap::new(),
        }
    }
}

impl<M: SetMember> SetMembers<M> {
    pub(in crate::backend) fn len(&self) -> usize {
        self.addresses.as_slice().len() + self.others.as_slice().len() + self.living.len()
    }

    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(in crate::backend) fn contains(&self, member: &M) -> bool {
        self.get(member).is_some()
    }

    /// The end of a member's life, `Some(None)` where it has none; `None` where it is no member.
    pub(in crate::backend) fn get(&self, member: &M) -> Option<Option<Timestamp>> {
        if self.is_lasting(member) {
            Some(None)
        } else {
            self.living.get(member).copied().map(Some)
        }
    }

    fn is_lasting(&self, member: &M) -> bool {
        match member.ipv4() {
            Some(address) => self.addresses.contains(&address),
            None => self.others.contains(member),
        }
    }

    /// Each member with the end of its life, in order.
    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = (M, Option<Timestamp>)> {
        let addresses = self.addresses.as_slice().iter().copied().map(M::of_ipv4);
        let mut lasting = addresses.chain(self.others.as_slice().iter().copied()).peekable();
        let mut living = self.living.iter().peekable();
        std::iter::from_fn(move || match (lasting.peek(), living.peek()) {
            (Some(first), Some((other, _))) if *other < first => next_living(&mut living),
            (Some(_), _) => lasting.next().map(|member| (member, None)),
            (None, _) => next_living(&mut living),
        })
    }

    /// Each member, in order.
    pub(in crate::backend) fn keys(&self) -> impl Iterator<Item = M> {
        self.iter().map(|(member, _)| member)
    }

    /// The ends of the members that have one.
    pub(in crate::backend) fn ends(&self) -> impl Iterator<Item = Timestamp> {
        self.living.values().copied()
    }

    pub(in crate::backend) fn first(&self) -> Option<M> {
        self.keys().next()
    }

    pub(in crate::backend) fn last(&self) -> Option<M> {
        let address = self.addresses.as_slice().last().copied().map(M::of_ipv4);
        let living = self.living.last_key_value().map(|(member, _)| *member);
        self.others.as_slice().last().copied().or(address).max(living)
    }

    /// The last member up to this one.
    pub(in crate::backend) fn last_up_to(&self, member: &M) -> Option<M> {
        let address = match member.ipv4() {
            Some(address) => self.addresses.last_up_to(&address),
            None => self.addresses.as_slice().last().copied(),
        };
        let other = self.others.last_up_to(member);
        let living = self.living.range(..=member).next_back();
        other
            .or_else(|| address.map(M::of_ipv4))
            .max(living.map(|(member, _)| *member))
    }

    pub(in crate::backend) fn insert(&mut self, member: M, end: Option<Timestamp>) {
        if let Some(end) = end {
            self.remove_lasting(&member);
            self.living.insert(member, end);
            return;
        }
        self.living.remove(&member);
        match member.ipv4() {
            Some(address) => self.addresses.insert(address),
            None => self.others.insert(member),
        }
    }

    pub(in crate::backend) fn remove(&mut self, member: &M) {
        self.remove_lasting(member);
        self.living.remove(member);
    }

    fn remove_lasting(&mut self, member: &M) {
        match member.ipv4() {
            Some(address) => self.addresses.remove(&address),
            None => self.others.remove(member),
        }
    }

    /// Of a member that stands there twice the last one counts.
    pub(in crate::backend) fn extend(&mut self, members: &[(M, Option<Timestamp>)]) {
        if members.iter().any(|(_, end)| end.is_some()) {
            members
                .iter()
                .for_each(|(member, end)| self.insert(*member, *end));
            return;
        }
        for (member, _) in members {
            self.living.remove(member);
        }
        let addresses = members.iter().filter_map(|(member, _)| member.ipv4());
        self.addresses.extend(addresses);
        let others = members
            .iter()
            .filter(|(member, _)| member.ipv4().is_none())
            .map(|(member, _)| *member);
        self.others.extend(others);
    }

    /// Keeps of the members that have an end those whose end fits.
    pub(in crate::backend) fn retain_living(&mut self, stays: impl Fn(Timestamp) -> bool) {
        self.living.retain(|_, end| stays(*end));
    }
}

impl<M: SetMember> FromIterator<(M, Option<Timestamp>)> for SetMembers<M> {
    fn from_iter<I: IntoIterator<Item = (M, Option<Timestamp>)>>(members: I) -> Self {
        let mut all = Self::default();
        all.extend(&members.into_iter().collect::<Vec<_>>());
        all
    }
}

fn next_living<'a, M: Copy + 'a>(
    living: &mut impl Iterator<Item = (&'a M, &'a Timestamp)>,
) -> Option<(M, Option<Timestamp>)> {
    living.next().map(|(member, end)| (*member, Some(*end)))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// An even number is an IPv4 address.
    fn member(number: u8) -> Member {
        let address: IpAddr = match number % 2 {
            0 => Ipv4Addr::new(192, 0, 2, number).into(),
            _ => Ipv4Addr::new(192, 0, 2, number).to_ipv6_mapped().into(),
        };
        Member::Address(address)
    }

    fn any_member() -> impl Strategy<Value = Member> {
        any::<u8>().prop_map(member)
    }

    #[derive(Clone, Debug)]
    enum Change {
        Extend(Vec<(Member, Option<u8>)>),
        Remove(Vec<Member>),
        RetainAbove(u8),
    }

    fn change() -> impl Strategy<Value = Change> {
        let end = prop_oneof![3 => Just(None), 1 => any::<u8>().prop_map(Some)];
        let lasting = vec(any_member().prop_map(|member| (member, None)), 0..20);
        prop_oneof![
            lasting.prop_map(Change::Extend),
            vec((any_member(), end), 0..20).prop_map(Change::Extend),
            vec(any_member(), 0..20).prop_map(Change::Remove),
            any::<u8>().prop_map(Change::RetainAbove),
        ]
    }

    fn at(millis: u8) -> Timestamp {
        Timestamp::from_millis(u64::from(millis))
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_it_holds_what_a_tree_would(changes in vec(change(), 1..20)) {
            let (mut members, mut tree) = (SetMembers::default(), BTreeMap::new());
            for change in changes {
                match change {
                    Change::Extend(some) => {
                        let some: Vec<_> = some.into_iter().map(|(member, end)| (member, end.map(at))).collect();
                        members.extend(&some);
                        tree.extend(some);
                    }
                    Change::Remove(some) => some.iter().for_each(|member| {
                        members.remove(member);
                        tree.remove(member);
                    }),
                    Change::RetainAbove(end) => {
                        members.retain_living(|ends| ends > at(end));
                        tree.retain(|_, ends: &mut Option<Timestamp>| ends.is_none_or(|ends| ends > at(end)));
                    }
                }
                prop_assert!(members.iter().eq(tree.iter().map(|(member, end)| (*member, *end))));
                prop_assert_eq!(members.len(), tree.len());
                prop_assert_eq!(members.is_empty(), tree.is_empty());
                prop_assert_eq!(members.first(), tree.first_key_value().map(|(member, _)| *member));
                prop_assert_eq!(members.last(), tree.last_key_value().map(|(member, _)| *member));
                prop_assert!(members.ends().eq(members.iter().filter_map(|(_, end)| end)));
                for member in (0..=u8::MAX).map(member) {
                    prop_assert_eq!(members.get(&member), tree.get(&member).copied());
                    let nearest = tree.range(..=member).next_back().map(|(member, _)| *member);
                    prop_assert_eq!(members.last_up_to(&member), nearest);
                }
            }
        }
    }
}

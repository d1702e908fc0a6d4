//! The members of a set, in order.
//!
//! Nearly all members have no end: those of selectors and networks. They stand side by side in one allocation, which takes a
//! third of a tree's memory; a node with 10,000 policies has half a million of them. Records end and come one by one, also in sets
//! of a hundred thousand. They are in a tree.

use std::collections::BTreeMap;

use egret_shared::time::Timestamp;

/// The members of a set, with the end of their life where they have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct SetMembers<M> {
    /// Without an end; sorted.
    lasting: Vec<M>,
    /// With an end; none of them is in `lasting`.
    living: BTreeMap<M, Timestamp>,
}

/// Above so many new members they are sorted in together.
const FEW: usize = 8;

impl<M> Default for SetMembers<M> {
    fn default() -> Self {
        Self {
            lasting: Vec::new(),
            living: BTreeMap::new(),
        }
    }
}

impl<M: Copy + Ord> SetMembers<M> {
    pub(in crate::backend) fn len(&self) -> usize {
        self.lasting.len() + self.living.len()
    }

    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.lasting.is_empty() && self.living.is_empty()
    }

    /// The members that have no end, in order.
    pub(in crate::backend) fn lasting(&self) -> &[M] {
        &self.lasting
    }

    pub(in crate::backend) fn contains(&self, member: &M) -> bool {
        self.get(member).is_some()
    }

    /// The end of a member's life, `Some(None)` where it has none; `None` where it is no member.
    pub(in crate::backend) fn get(&self, member: &M) -> Option<Option<Timestamp>> {
        match self.lasting.binary_search(member) {
            Ok(_) => Some(None),
            Err(_) => self.living.get(member).copied().map(Some),
        }
    }

    /// Each member with the end of its life, in order.
    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = (M, Option<Timestamp>)> {
        let mut lasting = self.lasting.iter().copied().peekable();
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
        let living = self.living.last_key_value().map(|(member, _)| *member);
        self.lasting.last().copied().max(living)
    }

    /// The last member up to this one.
    pub(in crate::backend) fn last_up_to(&self, member: &M) -> Option<M> {
        let behind = self.lasting.partition_point(|lasting| lasting <= member);
        let lasting = behind.checked_sub(1).map(|place| self.lasting[place]);
        let living = self.living.range(..=member).next_back();
        lasting.max(living.map(|(member, _)| *member))
    }

    pub(in crate::backend) fn insert(&mut self, member: M, end: Option<Timestamp>) {
        let place = self.lasting.binary_search(&member);
        match (place, end) {
            (Ok(_), None) => {}
            (Ok(place), Some(end)) => {
                self.lasting.remove(place);
                self.living.insert(member, end);
            }
            (Err(_), Some(end)) => _ = self.living.insert(member, end),
            (Err(place), None) => {
                self.living.remove(&member);
                if self.lasting.len() == self.lasting.capacity() {
                    // Little is left unused in each of thousands of sets.
                    self.lasting.reserve_exact(self.lasting.len() / 8 + 1);
                }
                self.lasting.insert(place, member);
            }
        }
    }

    pub(in crate::backend) fn remove(&mut self, member: &M) {
        match self.lasting.binary_search(member) {
            Ok(place) => _ = self.lasting.remove(place),
            Err(_) => _ = self.living.remove(member),
        }
    }

    /// Of a member that stands there twice the last one counts.
    pub(in crate::backend) fn extend(&mut self, members: &[(M, Option<Timestamp>)]) {
        if members.len() <= FEW || members.iter().any(|(_, end)| end.is_some()) {
            members
                .iter()
                .for_each(|(member, end)| self.insert(*member, *end));
            return;
        }
        for (member, _) in members {
            self.living.remove(member);
        }
        self.lasting.reserve_exact(members.len());
        self.lasting.extend(members.iter().map(|(member, _)| *member));
        self.lasting.sort();
        self.lasting.dedup();
    }

    /// Keeps of the members that have an end those whose end fits.
    pub(in crate::backend) fn retain_living(&mut self, stays: impl Fn(Timestamp) -> bool) {
        self.living.retain(|_, end| stays(*end));
    }
}

impl<M: Copy + Ord> FromIterator<(M, Option<Timestamp>)> for SetMembers<M> {
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

    #[derive(Clone, Debug)]
    enum Change {
        Extend(Vec<(u8, Option<u8>)>),
        Remove(Vec<u8>),
        RetainAbove(u8),
    }

    fn change() -> impl Strategy<Value = Change> {
        let end = prop_oneof![3 => Just(None), 1 => any::<u8>().prop_map(Some)];
        let lasting = vec(any::<u8>().prop_map(|member| (member, None)), 0..20);
        prop_oneof![
            lasting.prop_map(Change::Extend),
            vec((any::<u8>(), end), 0..20).prop_map(Change::Extend),
            vec(any::<u8>(), 0..20).prop_map(Change::Remove),
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
                prop_assert!(members.lasting().is_sorted());
                prop_assert!(members.iter().eq(tree.iter().map(|(member, end)| (*member, *end))));
                prop_assert_eq!(members.len(), tree.len());
                prop_assert_eq!(members.is_empty(), tree.is_empty());
                prop_assert_eq!(members.first(), tree.first_key_value().map(|(member, _)| *member));
                prop_assert_eq!(members.last(), tree.last_key_value().map(|(member, _)| *member));
                prop_assert!(members.ends().eq(members.iter().filter_map(|(_, end)| end)));
                for member in 0..=u8::MAX {
                    prop_assert_eq!(members.get(&member), tree.get(&member).copied());
                    let nearest = tree.range(..=member).next_back().map(|(member, _)| *member);
                    prop_assert_eq!(members.last_up_to(&member), nearest);
                }
            }
        }
    }
}

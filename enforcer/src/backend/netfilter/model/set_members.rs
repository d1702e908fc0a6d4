//! The members of a set, in order.
//!
//! Nearly all members have no end: those of selectors and networks. They stand side by side, addresses and ports in as many octets as
//! they have, where a tree would take 64; a node with 10,000 policies has half a million of them. Records end and come one by one,
//! also in sets of a hundred thousand. They are in a tree.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use egret_policies::rules::Member;
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use super::sorted_list::SortedList;

/// An address, and what port of which protocol where it has one.
pub(in crate::backend) type AddressPort = (IpAddr, Option<(Transport, NonZeroU16)>);

/// What a set may have as a member. Addresses are less than addresses with a port, and IPv4 is less than IPv6 among either.
pub(in crate::backend) trait SetMember: Copy + Ord {
    /// Nothing of what stands for several addresses.
    fn address(self) -> Option<AddressPort>;

    /// The member that is this.
    fn of_address(address: AddressPort) -> Self;
}

impl SetMember for Member {
    fn address(self) -> Option<AddressPort> {
        match self {
            Self::Address(address) => Some((address, None)),
            Self::AddressPort(address, transport, port) => Some((address, Some((transport, port)))),
            Self::Network(_) | Self::NetworkPort(..) => None,
        }
    }

    fn of_address((address, port): AddressPort) -> Self {
        match port {
            None => Self::Address(address),
            Some((transport, port)) => Self::AddressPort(address, transport, port),
        }
    }
}

/// The members of a set, with the end of their life where they have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct SetMembers<M: SetMember> {
    /// Without an end.
    lasting: Lasting<M>,
    /// With an end; none of them is among those without.
    living: BTreeMap<M, Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lasting<M: SetMember> {
    ipv4: SortedList<Ipv4Addr>,
    ipv6: SortedList<Ipv6Addr>,
    ipv4_ports: SortedList<(Ipv4Addr, Transport, NonZeroU16)>,
    ipv6_ports: SortedList<(Ipv6Addr, Transport, NonZeroU16)>,
    others: SortedList<M>,
}

/// A member as its list has it.
#[derive(Clone, Copy)]
enum PackedMember<M: SetMember> {
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
    Ipv4Port((Ipv4Addr, Transport, NonZeroU16)),
    Ipv6Port((Ipv6Addr, Transport, NonZeroU16)),
    Other(M),
}

impl<M: SetMember> Default for SetMembers<M> {
    fn default() -> Self {
        Self {
            lasting: Lasting {
                ipv4: SortedList::default(),
                ipv6: SortedList::default(),
                ipv4_ports: SortedList::default(),
                ipv6_ports: SortedList::default(),
                others: SortedList::default(),
            },
            living: BTreeMap::new(),
        }
    }
}

impl<M: SetMember> SetMembers<M> {
    pub(in crate::backend) fn len(&self) -> usize {
        self.lasting.len() + self.living.len()
    }

    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(in crate::backend) fn contains(&self, member: &M) -> bool {
        self.get(member).is_some()
    }

    /// The end of a member's life, `Some(None)` where it has none; `None` where it is no member.
    pub(in crate::backend) fn get(&self, member: &M) -> Option<Option<Timestamp>> {
        if self.lasting.contains(*member) {
            Some(None)
        } else {
            self.living.get(member).copied().map(Some)
        }
    }

    /// Each member with the end of its life, in order.
    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = (M, Option<Timestamp>)> {
        let lasting = self.lasting.iter().map(|member| (member, None));
        let living = self.living.iter().map(|(member, end)| (*member, Some(*end)));
        merge(lasting, living, |(one, _), (other, _)| one < other)
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
        self.lasting.last_where(|_| true).max(living)
    }

    /// The last member up to this one.
    pub(in crate::backend) fn last_up_to(&self, member: &M) -> Option<M> {
        let living = self
            .living
            .range(..=member)
            .next_back()
            .map(|(member, _)| *member);
        self.lasting.last_where(|one| one <= *member).max(living)
    }

    pub(in crate::backend) fn insert(&mut self, member: M, end: Option<Timestamp>) {
        if let Some(end) = end {
            self.lasting.remove(member);
            self.living.insert(member, end);
        } else {
            self.living.remove(&member);
            self.lasting.insert(member);
        }
    }

    pub(in crate::backend) fn remove(&mut self, member: &M) {
        self.lasting.remove(*member);
        self.living.remove(member);
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
        self.lasting.extend(members.iter().map(|(member, _)| *member));
    }

    /// Has the memory of another set's members for the addresses without an end that are the same in both.
    pub(in crate::backend) fn share<O: SetMember>(&mut self, other: &SetMembers<O>) {
        self.lasting.ipv4.share(&other.lasting.ipv4);
        self.lasting.ipv6.share(&other.lasting.ipv6);
        self.lasting.ipv4_ports.share(&other.lasting.ipv4_ports);
        self.lasting.ipv6_ports.share(&other.lasting.ipv6_ports);
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

impl<M: SetMember> Lasting<M> {
    fn len(&self) -> usize {
        self.ipv4.len() + self.ipv6.len() + self.ipv4_ports.len() + self.ipv6_ports.len() + self.others.len()
    }

    fn iter(&self) -> impl Iterator<Item = M> {
        let addresses = self
            .ipv4
            .iter()
            .map(PackedMember::Ipv4)
            .chain(self.ipv6.iter().map(PackedMember::Ipv6));
        let ipv4_ports = self.ipv4_ports.iter().map(PackedMember::Ipv4Port);
        let ipv6_ports = self.ipv6_ports.iter().map(PackedMember::Ipv6Port);
        let with_address = addresses
            .chain(ipv4_ports)
            .chain(ipv6_ports)
            .map(PackedMember::member);
        merge(with_address, self.others.iter(), |one, other| one < other)
    }

    fn contains(&self, member: M) -> bool {
        match PackedMember::of(member) {
            PackedMember::Ipv4(address) => self.ipv4.contains(&address),
            PackedMember::Ipv6(address) => self.ipv6.contains(&address),
            PackedMember::Ipv4Port(port) => self.ipv4_ports.contains(&port),
            PackedMember::Ipv6Port(port) => self.ipv6_ports.contains(&port),
            PackedMember::Other(member) => self.others.contains(&member),
        }
    }

    fn insert(&mut self, member: M) {
        match PackedMember::of(member) {
            PackedMember::Ipv4(address) => self.ipv4.insert(address),
            PackedMember::Ipv6(address) => self.ipv6.insert(address),
            PackedMember::Ipv4Port(port) => self.ipv4_ports.insert(port),
            PackedMember::Ipv6Port(port) => self.ipv6_ports.insert(port),
            PackedMember::Other(member) => self.others.insert(member),
        }
    }

    fn remove(&mut self, member: M) {
        match PackedMember::of(member) {
            PackedMember::Ipv4(address) => self.ipv4.remove(&address),
            PackedMember::Ipv6(address) => self.ipv6.remove(&address),
            PackedMember::Ipv4Port(port) => self.ipv4_ports.remove(&port),
            PackedMember::Ipv6Port(port) => self.ipv6_ports.remove(&port),
            PackedMember::Other(member) => self.others.remove(&member),
        }
    }

    fn extend(&mut self, members: impl Iterator<Item = M> + Clone) {
        macro_rules! those_of {
            ($list:ident, $place:ident) => {
                self.$list.extend(
                    members
                        .clone()
                        .filter_map(|member| match PackedMember::of(member) {
                            PackedMember::$place(one) => Some(one),
                            _ => None,
                        }),
                )
            };
        }
        those_of!(ipv4, Ipv4);
        those_of!(ipv6, Ipv6);
        those_of!(ipv4_ports, Ipv4Port);
        those_of!(ipv6_ports, Ipv6Port);
        those_of!(others, Other);
    }

    /// The last of those that fit; what is less than one that fits does as well.
    fn last_where(&self, fits: impl Fn(M) -> bool) -> Option<M> {
        let fits = |packed: PackedMember<M>| fits(packed.member());
        let last = [
            self.ipv4.last_where(PackedMember::Ipv4, fits),
            self.ipv6.last_where(PackedMember::Ipv6, fits),
            self.ipv4_ports.last_where(PackedMember::Ipv4Port, fits),
            self.ipv6_ports.last_where(PackedMember::Ipv6Port, fits),
            self.others.last_where(PackedMember::Other, fits),
        ];
        last.into_iter().flatten().map(PackedMember::member).max()
    }
}

impl<M: SetMember> PackedMember<M> {
    fn of(member: M) -> Self {
        match member.address() {
            Some((IpAddr::V4(address), None)) => Self::Ipv4(address),
            Some((IpAddr::V6(address), None)) => Self::Ipv6(address),
            Some((IpAddr::V4(address), Some((transport, port)))) => {
                Self::Ipv4Port((address, transport, port))
            }
            Some((IpAddr::V6(address), Some((transport, port)))) => {
                Self::Ipv6Port((address, transport, port))
            }
            None => Self::Other(member),
        }
    }

    fn member(self) -> M {
        match self {
            Self::Ipv4(address) => M::of_address((address.into(), None)),
            Self::Ipv6(address) => M::of_address((address.into(), None)),
            Self::Ipv4Port((address, transport, port)) => {
                M::of_address((address.into(), Some((transport, port))))
            }
            Self::Ipv6Port((address, transport, port)) => {
                M::of_address((address.into(), Some((transport, port))))
            }
            Self::Other(member) => member,
        }
    }
}

/// Two ordered sequences as one.
fn merge<T>(
    one: impl Iterator<Item = T>,
    other: impl Iterator<Item = T>,
    is_before: impl Fn(&T, &T) -> bool,
) -> impl Iterator<Item = T> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if is_before(second, first) => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Of each kind, in an order that is none of them.
    fn member(number: u8) -> Member {
        let ipv4 = Ipv4Addr::new(192, 0, 2, number);
        let address = if number.is_multiple_of(2) {
            ipv4.into()
        } else {
            ipv4.to_ipv6_mapped().into()
        };
        let (transport, port) = (
            Transport::Udp,
            NonZeroU16::MIN.saturating_add(u16::from(number % 3)),
        );
        match number / 2 % 4 {
            0 => Member::Address(address),
            1 => Member::AddressPort(address, transport, port),
            2 => Member::Network(address.into()),
            _ => Member::NetworkPort(address.into(), transport, port),
        }
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

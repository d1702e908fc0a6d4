//! A desired set: what it is to hold, with the records that are over.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_kernel::Family;
use egret_policies::rules::{ExpiredMembers, Member, MembersChanged, SetKind, SetSpec};
use egret_shared::net::{IpNet, Transport};
use egret_shared::time::Timestamp;

use super::available_sets::{Available, Families};
use super::set_contents::Content;
use super::set_members::SetMembers;

/// A desired set.
#[derive(Clone, Debug)]
pub(in crate::backend) struct DesiredSet {
    pub(in crate::backend) kind: SetKind,
    pub(in crate::backend) description: String,
    pub(in crate::backend) is_fixed: bool,
    /// Expired records included, up to a limit: what they opened may still be open. Copied on write, so readers keep theirs.
    pub(in crate::backend) members: Arc<SetMembers<Member>>,
    /// At how many members those that are over are counted again.
    pub(in crate::backend) room: usize,
}

/// Records that are over and remembered for the connections that they opened, for each set.
pub(in crate::backend) const MOST_EXPIRED: usize = 4096;

impl DesiredSet {
    pub(in crate::backend) fn of(spec: &SetSpec) -> Self {
        Self {
            kind: spec.kind,
            description: spec.description.to_string(),
            is_fixed: spec.is_fixed(),
            members: Arc::default(),
            room: MOST_EXPIRED,
        }
    }

    /// One of these members, none of which is a record.
    pub(in crate::backend) fn holding(kind: SetKind, members: &Arc<SetMembers<Member>>) -> Self {
        Self {
            kind,
            description: String::new(),
            is_fixed: false,
            members: Arc::clone(members),
            room: MOST_EXPIRED,
        }
    }

    /// Takes changes of members.
    pub(in crate::backend) fn note(&mut self, change: &MembersChanged) {
        let members = Arc::make_mut(&mut self.members);
        for member in &change.removed {
            members.remove(member);
        }
        members.extend(&change.added);
    }

    /// Takes records that were over before the set was made.
    pub(in crate::backend) fn note_expired(&mut self, lapsed: &ExpiredMembers) {
        let members = Arc::make_mut(&mut self.members);
        for (address, ended) in &lapsed.addresses {
            let member = Member::Address(*address);
            if !members.contains(&member) {
                members.insert(member, Some(*ended));
            }
        }
    }

    /// Whether it remembers records that are over.
    pub(in crate::backend) fn has_expired(&self) -> bool {
        self.kind == SetKind::Records && !self.members.is_empty()
    }

    /// What it is to hold; none for records.
    pub(in crate::backend) fn content(&self) -> Option<Content> {
        (self.kind != SetKind::Records).then(|| (self.kind, Arc::clone(&self.members)))
    }

    /// Whether it is of records, and holds an address, or did.
    pub(in crate::backend) fn has_record(&self, address: IpAddr) -> bool {
        self.kind == SetKind::Records && self.members.contains(&Member::Address(address))
    }

    /// Whether it holds an address; one of records also while the record is over.
    pub(in crate::backend) fn holds(&self, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        match self.kind {
            SetKind::Addresses | SetKind::Records => self.members.contains(&Member::Address(address)),
            SetKind::Networks => is_in_networks(&self.members, address),
            SetKind::AddressPorts => port.is_some_and(|(transport, port)| {
                let port = NonZeroU16::new(port);
                let member = port.map(|port| Member::AddressPort(address, transport, port));
                member.is_some_and(|member| self.members.contains(&member))
            }),
            SetKind::NetworkPorts => port.is_some_and(|(transport, port)| {
                self.members.keys().any(|member| match member {
                    Member::NetworkPort(network, own, number) => {
                        network.contains(&address) && (own, number.get()) == (transport, port)
                    }
                    Member::Address(_) | Member::Network(_) | Member::AddressPort(..) => false,
                })
            }),
        }
    }

    /// As it is available once it is made.
    pub(in crate::backend) fn available(&self) -> Available {
        Available {
            kind: self.kind,
            families: self.families(),
        }
    }

    /// Where it is to be: networks of one family that never change are made in that one alone. Those of IPv4 come first.
    pub(in crate::backend) fn families(&self) -> Families {
        // Who is told something asks this too.
        if !self.is_fixed {
            return Families::Both;
        }
        let family = |member: Member| match member {
            Member::Network(network) | Member::NetworkPort(network, ..) => Some(Family::of(network.addr())),
            Member::Address(_) | Member::AddressPort(..) => None,
        };
        let ends = [self.members.first(), self.members.last()];
        match ends.map(|end| end.and_then(family)) {
            [Some(first), Some(last)] if first == last => Families::Only(first),
            _ => Families::Both,
        }
    }

    /// Forgets what it may when it has grown; where most members live, it is looked through ever more rarely.
    pub(in crate::backend) fn make_room(&mut self, now: Timestamp) {
        if self.is_full() {
            self.forget_oldest(now);
            self.room = MOST_EXPIRED.max(self.members.len()) * 2;
        }
    }

    pub(in crate::backend) fn is_full(&self) -> bool {
        self.kind == SetKind::Records && self.members.len() > self.room
    }

    /// Forgets expired records, the oldest first, above the limit.
    pub(in crate::backend) fn forget_oldest(&mut self, now: Timestamp) {
        let mut lapsed: Vec<Timestamp> = self.members.ends().filter(|at| *at <= now).collect();
        let Some(surplus) = lapsed
            .len()
            .checked_sub(MOST_EXPIRED)
            .filter(|surplus| *surplus > 0)
        else {
            return;
        };
        lapsed.sort_unstable();
        let newest_gone = lapsed[surplus - 1];
        Arc::make_mut(&mut self.members).retain_living(|at| at > newest_gone);
    }
}

/// Whether writing would add to the life that the kernel gives the member.
pub(in crate::backend) fn lives_longer(
    wanted: Option<Timestamp>,
    held: Option<Option<Timestamp>>,
    now: Timestamp,
) -> bool {
    match (wanted, held) {
        (Some(wanted), _) if wanted <= now => false,
        (Some(wanted), Some(Some(held))) => wanted > held,
        (Some(_) | None, None) => true,
        (Some(_) | None, Some(None)) | (None, Some(Some(_))) => false,
    }
}

/// Whether one of the wanted networks holds an address.
///
/// Networks are in the order of their first addresses. So what holds the address is at or before it, and holds all between
/// as well: of the nearest network that does not hold it, only what both have in common can.
fn is_in_networks(wanted: &SetMembers<Member>, address: IpAddr) -> bool {
    let mut within = IpNet::from(address);
    loop {
        let Some(Member::Network(network)) = wanted.last_up_to(&Member::Network(within)) else {
            return false;
        };
        if network.contains(&address) {
            return true;
        }
        let Some(common) = common(network.addr(), address) else {
            return false;
        };
        within = common;
    }
}

/// The smallest network with both addresses; none of two families.
fn common(one: IpAddr, other: IpAddr) -> Option<IpNet> {
    let length = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let length = u8::try_from(length).expect("an address has at most 128 bits");
    let network = IpNet::new(other, length).expect("no longer than the address");
    Some(network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Member {
        Member::Network(text.parse().unwrap())
    }

    #[test]
    fn an_address_is_in_networks_exactly_if_one_of_them_holds_it() {
        let networks = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.0/24",
            "10.1.2.3/32",
            "10.1.2.128/25",
            "192.0.2.0/31",
            "fd00::/8",
            "fd00:1::/32",
            "2001:db8::1/128",
        ];
        let addresses = [
            "9.255.255.255",
            "10.0.0.0",
            "10.1.2.2",
            "10.1.2.3",
            "10.1.2.4",
            "10.1.2.200",
            "10.255.255.255",
            "11.0.0.0",
            "192.0.2.1",
            "192.0.2.2",
            "255.255.255.255",
            "::",
            "2001:db8::",
            "2001:db8::1",
            "2001:db8::2",
            "fcff::1",
            "fd00:1::1",
            "fe00::",
        ];
        // Every choice of the networks: which are the nearest differs in each.
        for chosen in 0_u32..1 << networks.len() {
            let some = networks.iter().enumerate();
            let some = some.filter(|(bit, _)| chosen >> bit & 1 == 1);
            let wanted: SetMembers<_> = some.map(|(_, text)| (net(text), None)).collect();
            for text in addresses {
                let address: IpAddr = text.parse().unwrap();
                let holds = |member| matches!(member, Member::Network(network) if network.contains(&address));
                assert_eq!(
                    is_in_networks(&wanted, address),
                    wanted.keys().any(holds),
                    "{address} in {wanted:?}"
                );
            }
        }
    }
}

//! Members as the kernel holds them. A `hash:net` cannot hold a network of length 0, which becomes two
//! halves.

use std::collections::BTreeMap;

use egret_kernel::ipset::Member as KernelMember;
use egret_policies::rules::Member;
use egret_shared::time::Timestamp;

use super::{Members, is_holdable};
use egret_shared::net::IpNet;
use std::net::IpAddr;

/// What the kernel holds for a member; nothing for what it cannot hold and nobody connects to.
pub(super) fn held_as(member: Member) -> impl Iterator<Item = KernelMember> {
    let held = match member {
        Member::Address(address) if is_holdable(address) => [Some(KernelMember::Address(address)), None],
        Member::AddressPort(address, transport, port) if is_holdable(address) => {
            let protocol = transport;
            let port = port.get();
            [
                Some(KernelMember::AddressPort {
                    address,
                    protocol,
                    port,
                }),
                None,
            ]
        }
        Member::Address(_) | Member::AddressPort(..) => [None, None],
        Member::Network(network) => parts(KernelMember::Net(network.trunc())),
    };
    held.into_iter().flatten()
}

/// The same, with a network of length 0 in one.
pub(in crate::backend::netfilter) fn whole(member: Member) -> Vec<KernelMember> {
    match member {
        Member::Network(network) => vec![KernelMember::Net(network.trunc())],
        Member::Address(_) | Member::AddressPort(..) => held_as(member).collect(),
    }
}

/// A network of length 0 as its halves (a `hash:net` cannot hold it), everything else as it is.
pub(in crate::backend::netfilter) fn halves(member: KernelMember) -> impl Iterator<Item = KernelMember> {
    parts(member).into_iter().flatten()
}

fn parts(member: KernelMember) -> [Option<KernelMember>; 2] {
    match member {
        KernelMember::Net(network) if network.prefix_len() == 0 => network.subnets(1).map_or_else(
            |_| [Some(member), None],
            |mut halves| [halves.next(), halves.next()].map(|half| half.map(KernelMember::Net)),
        ),
        KernelMember::Net(_) | KernelMember::Address(_) | KernelMember::AddressPort { .. } => {
            [Some(member), None]
        }
    }
}

/// What the kernel is to hold for wanted members.
pub(in crate::backend::netfilter) fn target(wanted: &BTreeMap<Member, Option<Timestamp>>) -> Members {
    let held = |(member, expires): (&Member, &Option<Timestamp>)| {
        let expires = *expires;
        held_as(*member).map(move |held| (held, expires))
    };
    wanted.iter().flat_map(held).collect()
}

/// The life of the wanted member that a held one stands for.
pub(super) fn wanted_for(
    wanted: &BTreeMap<Member, Option<Timestamp>>,
    held: KernelMember,
) -> Option<Option<Timestamp>> {
    match held {
        KernelMember::Address(address) => wanted.get(&Member::Address(address)).copied(),
        KernelMember::Net(_) | KernelMember::AddressPort { .. } => stands_for(held)
            .into_iter()
            .find_map(|member| wanted.get(&member).copied()),
    }
}

fn stands_for(held: KernelMember) -> Vec<Member> {
    match held {
        KernelMember::Address(address) => vec![Member::Address(address)],
        KernelMember::AddressPort {
            address,
            protocol,
            port,
        } => {
            let port = port.try_into();
            port.map(|port| Member::AddressPort(address, protocol, port))
                .into_iter()
                .collect()
        }
        KernelMember::Net(network) if network.prefix_len() == 1 => {
            let whole = network.supernet();
            [Some(network), whole]
                .into_iter()
                .flatten()
                .map(Member::Network)
                .collect()
        }
        KernelMember::Net(network) => vec![Member::Network(network)],
    }
}

/// Whether one of the wanted networks holds an address.
///
/// Networks are in the order of their first addresses. So what holds the address is at or before it, and holds all between
/// as well: of the nearest network that does not hold it, only what both have in common can.
pub(super) fn is_in_networks(wanted: &BTreeMap<Member, Option<Timestamp>>, address: IpAddr) -> bool {
    let mut within = IpNet::from(address);
    loop {
        let nearest = wanted.range(..=Member::Network(within)).next_back();
        let Some((Member::Network(network), _)) = nearest else {
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
    fn a_half_network_stays_while_it_or_its_whole_is_desired() {
        let half = KernelMember::Net("0.0.0.0/1".parse().unwrap());
        for (wanted, stays) in [
            (vec![net("0.0.0.0/0")], true),
            (vec![net("0.0.0.0/1")], true),
            (vec![net("10.0.0.0/8")], false),
        ] {
            let wanted = wanted.into_iter().map(|member| (member, None)).collect();
            assert_eq!(wanted_for(&wanted, half).is_some(), stays, "{wanted:?}");
        }
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
            let wanted: BTreeMap<_, _> = some.map(|(_, text)| (net(text), None)).collect();
            for text in addresses {
                let address: IpAddr = text.parse().unwrap();
                let holds = |member: &Member| matches!(member, Member::Network(network) if network.contains(&address));
                assert_eq!(
                    is_in_networks(&wanted, address),
                    wanted.keys().any(holds),
                    "{address} in {wanted:?}"
                );
            }
        }
    }

    #[test]
    fn the_unspecified_address_is_no_member() {
        assert_eq!(held_as(Member::Address([0, 0, 0, 0].into())).count(), 0);
        assert_eq!(held_as(net("::/0")).count(), 2);
    }
}

//! Members as the kernel holds them. A `hash:net` cannot hold a network of length 0, which becomes two
//! halves.

use std::num::NonZeroU16;

use egret_kernel::ipset::Member as KernelMember;
use egret_policies::rules::Member;
use egret_shared::time::Timestamp;

use super::{Members, is_holdable};
use crate::backend::netfilter::model::set_members::{AddressPort, SetMember, SetMembers};

impl SetMember for KernelMember {
    fn address(self) -> Option<AddressPort> {
        match self {
            Self::Address(address) => Some((address, None)),
            Self::AddressPort {
                address,
                protocol,
                port,
            } => {
                // The port 0 that somebody else added is a member of its own kind.
                let port = NonZeroU16::new(port)?;
                Some((address, Some((protocol, port))))
            }
            Self::Net(_) | Self::NetPort { .. } => None,
        }
    }

    fn of_address((address, port): AddressPort) -> Self {
        match port {
            None => Self::Address(address),
            Some((protocol, port)) => Self::AddressPort {
                address,
                protocol,
                port: port.get(),
            },
        }
    }
}

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
        Member::NetworkPort(..) => whole(member).into_iter().next().map_or([None, None], parts),
    };
    held.into_iter().flatten()
}

/// The same, with a network of length 0 in one.
pub(in crate::backend) fn whole(member: Member) -> Vec<KernelMember> {
    match member {
        Member::Network(network) => vec![KernelMember::Net(network.trunc())],
        Member::NetworkPort(network, protocol, port) => vec![KernelMember::NetPort {
            net: network.trunc(),
            protocol,
            port: port.get(),
        }],
        Member::Address(_) | Member::AddressPort(..) => held_as(member).collect(),
    }
}

/// A network of length 0 as its halves (a `hash:net` cannot hold it), everything else as it is.
pub(in crate::backend) fn halves(member: KernelMember) -> impl Iterator<Item = KernelMember> {
    parts(member).into_iter().flatten()
}

fn parts(member: KernelMember) -> [Option<KernelMember>; 2] {
    match member {
        KernelMember::Net(network) if network.prefix_len() == 0 => network.subnets(1).map_or_else(
            |_| [Some(member), None],
            |mut halves| [halves.next(), halves.next()].map(|half| half.map(KernelMember::Net)),
        ),
        KernelMember::NetPort { net, protocol, port } if net.prefix_len() == 0 => {
            let half = |net| KernelMember::NetPort { net, protocol, port };
            net.subnets(1).map_or_else(
                |_| [Some(member), None],
                |mut halves| [halves.next(), halves.next()].map(|net| net.map(half)),
            )
        }
        KernelMember::Net(_)
        | KernelMember::NetPort { .. }
        | KernelMember::Address(_)
        | KernelMember::AddressPort { .. } => [Some(member), None],
    }
}

/// What the kernel is to hold for wanted members.
pub(in crate::backend) fn target(wanted: &SetMembers<Member>) -> Members {
    let held = |(member, expires)| held_as(member).map(move |held| (held, expires));
    wanted.iter().flat_map(held).collect()
}

/// The life of the wanted member that a held one stands for.
pub(super) fn wanted_for(wanted: &SetMembers<Member>, held: KernelMember) -> Option<Option<Timestamp>> {
    match held {
        KernelMember::Address(address) => wanted.get(&Member::Address(address)),
        KernelMember::Net(_) | KernelMember::NetPort { .. } | KernelMember::AddressPort { .. } => {
            stands_for(held)
                .into_iter()
                .find_map(|member| wanted.get(&member))
        }
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
        KernelMember::NetPort { net, protocol, port } => {
            let wider = net.supernet().filter(|_| net.prefix_len() == 1);
            let Ok(port) = port.try_into() else {
                return Vec::new();
            };
            let nets = std::iter::once(net).chain(wider);
            nets.map(|net| Member::NetworkPort(net, protocol, port)).collect()
        }
    }
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
    fn the_unspecified_address_is_no_member() {
        assert_eq!(held_as(Member::Address([0, 0, 0, 0].into())).count(), 0);
        assert_eq!(held_as(net("::/0")).count(), 2);
    }
}

//! Elements of sets of addresses, as they are remembered: a node with 10,000 policies has half a million of them.

use std::net::IpAddr;
use std::num::NonZeroU16;

use egret_kernel::Family;
use egret_kernel::nftables::{ElementKey, Letters};
use egret_policies::rules::Member;
use egret_shared::net::Transport;

use crate::backend::netfilter::model::set_members::{AddressPort, SetMember, SetMembers};

/// Elements of a set in a family, with the end of their life where they have one.
pub(super) type Elements = SetMembers<SetElement>;

/// An element of a set of addresses. [`ElementKey`] has interfaces as well, and so memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetElement {
    Address(IpAddr),
    AddressPort(IpAddr, Transport, NonZeroU16),
    /// From the first to the last address.
    Interval(IpAddr, IpAddr),
    PortInterval(Transport, u16, IpAddr, IpAddr),
}

impl SetElement {
    /// Of a member that is no network: networks that meet are one interval.
    pub(super) fn of(member: Member) -> Option<Self> {
        match member {
            Member::Address(address) => Some(Self::Address(address)),
            Member::AddressPort(address, transport, port) => {
                Some(Self::AddressPort(address, transport, port))
            }
            Member::Network(_) | Member::NetworkPort(..) => None,
        }
    }

    /// As it is written.
    pub(super) const fn key(self) -> ElementKey {
        match self {
            Self::Address(address) => ElementKey::Address(address),
            Self::AddressPort(address, transport, port) => {
                ElementKey::AddressPort(address, transport, port.get())
            }
            Self::Interval(first, last) => ElementKey::Interval(first, last),
            Self::PortInterval(transport, port, first, last) => {
                ElementKey::PortInterval(transport, port, first, last)
            }
        }
    }

    /// The same in a set of the kernel in which this part is the set's.
    pub(super) const fn key_in(self, part: Option<Letters>) -> ElementKey {
        match (self, part) {
            (Self::Address(address), Some(letters)) => ElementKey::PartAddress(letters, address),
            (Self::AddressPort(address, transport, port), Some(letters)) => {
                ElementKey::PartAddressPort(letters, address, transport, port.get())
            }
            (_, _) => self.key(),
        }
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::Address(address)
            | Self::AddressPort(address, ..)
            | Self::Interval(address, _)
            | Self::PortInterval(_, _, address, _) => Family::of(address),
        }
    }
}

impl SetMember for SetElement {
    fn address(self) -> Option<AddressPort> {
        match self {
            Self::Address(address) => Some((address, None)),
            Self::AddressPort(address, transport, port) => Some((address, Some((transport, port)))),
            Self::Interval(..) | Self::PortInterval(..) => None,
        }
    }

    fn of_address((address, port): AddressPort) -> Self {
        match port {
            None => Self::Address(address),
            Some((transport, port)) => Self::AddressPort(address, transport, port),
        }
    }
}

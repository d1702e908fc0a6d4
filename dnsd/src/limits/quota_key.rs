//! The key by which limits are counted.

use std::net::IpAddr;

/// From whose share of a per-client limit a query is taken: an interface, and an address where several clients are behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaKey {
    interface: Option<u32>,
    /// None where all that comes by the interface is one client's.
    address: Option<IpAddr>,
}

impl QuotaKey {
    /// dnsd itself.
    pub const OWN: Self = Self {
        interface: None,
        address: None,
    };

    /// The client behind this interface, at this address where several clients are.
    #[must_use]
    pub const fn behind(interface: u32, address: Option<IpAddr>) -> Self {
        Self {
            interface: Some(interface),
            address,
        }
    }

    pub(crate) const fn new(interface: Option<u32>, address: Option<IpAddr>) -> Self {
        Self { interface, address }
    }

    pub(crate) const fn interface(self) -> Option<u32> {
        self.interface
    }

    pub(crate) const fn address(self) -> Option<IpAddr> {
        self.address
    }
}

impl From<IpAddr> for QuotaKey {
    fn from(address: IpAddr) -> Self {
        Self {
            interface: None,
            address: Some(address),
        }
    }
}

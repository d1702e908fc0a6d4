//! Where an agent connects to. A server is not trusted with the agent's own machine: what listens on loopback or link-local addresses there
//! takes the connection for one of its own.

use std::net::IpAddr;

use ipnet::IpNet;

/// What an agent refuses, but for the networks that its operator allows.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    allowed: Vec<IpNet>,
}

/// Why a destination is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {class}, which this agent does not connect to (--allow-destinations)")]
pub struct NotAllowed {
    pub address: IpAddr,
    class: &'static str,
}

impl Guard {
    #[must_use]
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self { allowed }
    }

    /// Whether an address may be connected to. An IPv4-mapped address is the IPv4 address.
    ///
    /// # Errors
    /// When it is not one of another machine, and not allowed.
    pub fn check(&self, address: IpAddr) -> Result<(), NotAllowed> {
        let address = address.to_canonical();
        if self.allowed.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        let class = match address {
            it if it.is_loopback() => "loopback",
            it if it.is_unspecified() => "unspecified",
            it if it.is_multicast() => "multicast",
            IpAddr::V4(it) if it.is_link_local() => "link-local",
            IpAddr::V4(it) if it.is_broadcast() => "broadcast",
            // 0.0.0.0/8 is this host (RFC 1122, section 3.2.1.3).
            IpAddr::V4(it) if it.octets()[0] == 0 => "this network",
            IpAddr::V6(it) if it.is_unicast_link_local() => "link-local",
            // ::a.b.c.d (RFC 4291, section 2.5.5.1) is deprecated: nobody has such an address.
            IpAddr::V6(it) if it.to_ipv4().is_some() => "IPv4-compatible",
            _ => return Ok(()),
        };
        Err(NotAllowed { address, class })
    }
}

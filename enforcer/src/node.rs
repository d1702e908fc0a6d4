//! Where this node's pods are: the interface by which a pod's address is reached.

use std::net::IpAddr;

use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::{Links, Route};
use egret_kernel::netlink;

pub mod monitor;
pub mod others;

/// Finds interfaces.
pub trait Locate: Send + std::fmt::Debug {
    /// The interfaces by which a pod with these addresses is reached.
    ///
    /// # Errors
    /// Why there is none yet, in words.
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String>;
}

/// An interface of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Its name.
    pub interface: InterfaceName,
    /// Whether it is a bridge: then other pods are behind it as well.
    pub is_bridge: bool,
}

/// This node, by its routing tables.
#[derive(Debug)]
pub struct Node {
    links: Links,
}

impl Node {
    /// Opens the routing tables of the calling thread's namespace.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> Result<Self, netlink::Error> {
        Ok(Self {
            links: Links::open()?,
        })
    }

    fn find(&mut self, address: IpAddr) -> Result<Location, String> {
        let route = self
            .route(address)?
            .ok_or_else(|| format!("there is no route to {address}"))?;
        if route.is_local {
            return Err(format!("{address} is an address of the node itself"));
        }
        if let Some(gateway) = route.gateway {
            return Err(format!("{address} is behind {gateway}, not on this node"));
        }
        if self.is_uplink(&route, address)? {
            return Err(format!(
                "{address} is reached by the default route ({}), not on this node",
                route.name
            ));
        }
        let named = self
            .links
            .interface_by_index(route.interface)
            .map_err(|error| error.to_string())?;
        let interface = named.ok_or_else(|| format!("the interface of {address} has gone"))?;
        let is_bridge = interface.kind.as_deref() == Some("bridge");
        let interface = InterfaceName::new(interface.name).map_err(|error| error.to_string())?;
        Ok(Location { interface, is_bridge })
    }

    /// Whether this is where packets go that no other route takes: asked with addresses that nobody has.
    fn is_uplink(&mut self, route: &Route, address: IpAddr) -> Result<bool, String> {
        /// RFC 5737 and RFC 3849: for documentation, in nobody's routing table.
        const NOBODY: [IpAddr; 2] = [
            IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 255)),
            IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 1)),
        ];
        let nobody = NOBODY[usize::from(address.is_ipv6())];
        Ok(self
            .route(nobody)?
            .is_some_and(|default| default.interface == route.interface))
    }

    fn route(&mut self, address: IpAddr) -> Result<Option<Route>, String> {
        self.links.route_to(address).map_err(|error| error.to_string())
    }
}

impl Locate for Node {
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        let (mut found, mut reasons) = (Vec::new(), Vec::new());
        for address in addresses {
            match self.find(*address) {
                Ok(location) => found.push(location),
                Err(reason) => reasons.push(reason),
            }
        }
        found.sort();
        found.dedup();
        if found.is_empty() {
            Err(reasons.join("; "))
        } else {
            Ok(found)
        }
    }
}

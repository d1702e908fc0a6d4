//! This node's network: the interfaces by which its pods are reached.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::{Attachment, Interface, Links, Route, Tunnel};
use egret_kernel::netlink;

use veth::VethTopology;

pub mod link_monitor;
pub mod veth;
mod pod_links;
mod reported_interfaces;

pub use reported_interfaces::ReportedInterfaces;

/// Finds the interfaces of pods.
pub trait Locate: Send + std::fmt::Debug {
    /// The interfaces by which a pod with these addresses is reached.
    ///
    /// # Errors
    ///
    /// Why there is none yet.
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String>;

    /// Forgets the links that were read.
    fn forget_links(&mut self) {}

    /// Facts about the node's interfaces that do not depend on its pods. Changes of links and routes may change them.
    ///
    /// # Errors
    ///
    /// Why they are unknown.
    fn node_interfaces(&mut self) -> Result<NodeInterfaces, String> {
        Ok(NodeInterfaces::default())
    }
}

/// Facts about the node's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInterfaces {
    /// Interfaces of the default route: the node is reached by them.
    pub uplinks: BTreeSet<InterfaceName>,
    /// Bridges whose ports are all veths: everything behind them is on this node. Another port (a card, a tunnel, a
    /// virtual machine) connects other hosts.
    pub veth_bridges: BTreeSet<InterfaceName>,
    /// UDP ports at which the node's tunnels decapsulate.
    pub encapsulation_ports: BTreeSet<u16>,
}

/// VXLAN by Linux and Flannel and by IANA (RFC 7348), Geneve (RFC 8926). Pods must not send there even before the
/// tunnel exists.
pub const ENCAPSULATION_PORTS: [u16; 3] = [8472, 4789, 6081];

/// An interface by which a pod is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Its name.
    pub interface: InterfaceName,
    /// Whether it is a bridge: other pods are behind it as well.
    pub is_bridge: bool,
    /// The pod's port of the bridge, if iptables sees the ports of this bridge.
    pub port: Option<InterfaceName>,
    /// Identifies the veth pair: a later pair may be another pod's, even under the same name. None if no veth was
    /// found.
    pub cable: Option<Attachment>,
}

impl Location {
    /// A location that needs no lookup: tests, and interfaces given by hand.
    #[must_use]
    pub const fn own(interface: InterfaceName) -> Self {
        Self {
            interface,
            is_bridge: false,
            port: None,
            cable: None,
        }
    }
}

/// This node's routing tables and links.
#[derive(Debug)]
pub struct Node {
    links: Links,
    reported: ReportedInterfaces,
    /// The veths since the last `forget_links`.
    veths: Option<VethTopology>,
}

impl Node {
    /// Opens the routing tables of the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// When no socket can be opened.
    pub fn open() -> Result<Self, netlink::Error> {
        Ok(Self {
            links: Links::open()?,
            reported: ReportedInterfaces::default(),
            veths: None,
        })
    }

    /// Interfaces that the CNI plugin reports are not looked for.
    #[must_use]
    pub fn with_reported(self, reported: ReportedInterfaces) -> Self {
        Self { reported, ..self }
    }

    fn find(&mut self, address: IpAddr) -> Result<Location, String> {
        let interface = match self.reported_interface(address)? {
            Some(reported) => reported,
            None => self.routed_interface(address)?,
        };
        let is_bridge = is_bridge(&interface);
        let cable = Attachment::to_cable(&interface);
        let interface = InterfaceName::new(interface.name).map_err(|error| error.to_string())?;
        Ok(Location {
            interface,
            is_bridge,
            port: None,
            cable,
        })
    }

    /// The interface by which packets of the pod come that was reported with this address: the node's end of its link, or the
    /// bridge of which that is a port. None if there is no report, or the link is gone.
    fn reported_interface(&mut self, address: IpAddr) -> Result<Option<Interface>, String> {
        let Some(reported) = self.reported.get(address) else {
            return Ok(None);
        };
        let end = self.interface_by_index(reported.index)?;
        let Some(end) = end.filter(|end| end.name == reported.name) else {
            return Ok(None);
        };
        match end.master {
            None => Ok(Some(end)),
            // Behind another master than a bridge (a VRF), the route says what packets show.
            Some(master) => Ok(self.interface_by_index(master)?.filter(is_bridge)),
        }
    }

    fn routed_interface(&mut self, address: IpAddr) -> Result<Interface, String> {
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
        let named = self.interface_by_index(route.interface)?;
        named.ok_or_else(|| format!("the interface of {address} has gone"))
    }

    fn interface_by_index(&mut self, index: u32) -> Result<Option<Interface>, String> {
        let found = self.links.interface_by_index(index);
        found.map_err(|error| error.to_string())
    }

    /// Whether the address takes the default route, which the route of an unrouted address shows.
    fn is_uplink(&mut self, route: &Route, address: IpAddr) -> Result<bool, String> {
        let unrouted = UNROUTED[usize::from(address.is_ipv6())];
        Ok(self
            .route(unrouted)?
            .is_some_and(|default| default.interface == route.interface))
    }

    fn route(&mut self, address: IpAddr) -> Result<Option<Route>, String> {
        self.links.route_to(address).map_err(|error| error.to_string())
    }
}

/// RFC 5737 and RFC 3849: documentation addresses, which take the default route.
const UNROUTED: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 255)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 1)),
];

fn is_bridge(interface: &Interface) -> bool {
    interface.kind.as_deref() == Some("bridge")
}

/// None for a name that cannot stand in a rule: no rule could name the interface.
fn interface_name(interface: &Interface) -> Option<InterfaceName> {
    InterfaceName::new(interface.name.clone()).ok()
}

fn encapsulation_ports(interfaces: &[Interface]) -> BTreeSet<u16> {
    let told = interfaces
        .iter()
        .filter_map(|interface| match interface.decapsulates {
            Tunnel::UdpPort(port) => Some(port),
            Tunnel::Nothing | Tunnel::UdpSomewhere => None,
        });
    told.collect()
}

fn veth_bridges(interfaces: &[Interface]) -> BTreeSet<InterfaceName> {
    let kind = |interface: &Interface, kind: &str| interface.kind.as_deref() == Some(kind);
    let is_of_cables = |bridge: &&Interface| {
        let mut ports = interfaces.iter().filter(|port| port.master == Some(bridge.index));
        kind(bridge, "bridge") && ports.all(|port| kind(port, "veth"))
    };
    interfaces
        .iter()
        .filter(is_of_cables)
        .filter_map(interface_name)
        .collect()
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
        let found = self.add_other_links(found, addresses)?;
        if found.is_empty() {
            Err(reasons.join("; "))
        } else {
            Ok(found)
        }
    }

    fn forget_links(&mut self) {
        self.veths = None;
    }

    fn node_interfaces(&mut self) -> Result<NodeInterfaces, String> {
        let mut uplinks = BTreeSet::new();
        for address in UNROUTED {
            let route = self.route(address)?;
            uplinks.extend(route.and_then(|route| InterfaceName::new(route.name).ok()));
        }
        let interfaces = self.links.interfaces().map_err(|error| error.to_string())?;
        Ok(NodeInterfaces {
            uplinks,
            veth_bridges: veth_bridges(&interfaces),
            encapsulation_ports: encapsulation_ports(&interfaces),
        })
    }
}

//! Where this node's pods are: the interface by which a pod's address is reached.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::{Attachment, Decapsulates, Interface, Links, Route};
use egret_kernel::netlink;

use cables::Cables;

pub mod monitor;
pub mod cables;
mod ends;

/// Finds interfaces.
pub trait Locate: Send + std::fmt::Debug {
    /// The interfaces by which a pod with these addresses is reached.
    ///
    /// # Errors
    /// Why there is none yet, in words.
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String>;

    /// Forgets what was seen of the node's links.
    fn look_again(&mut self) {}

    /// What else is to be known of the node's interfaces. Changes of links and routes may change it.
    ///
    /// # Errors
    /// Why that cannot be found out, in words.
    fn surroundings(&mut self) -> Result<Surroundings, String> {
        Ok(Surroundings::default())
    }
}

/// What is to be known of a node's interfaces, whichever pods there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Those by which packets leave that no other route takes: the node is reached by them.
    pub uplinks: BTreeSet<InterfaceName>,
    /// Bridges whose ports are virtual cables alone: what is behind them is on this node. One that has another port as
    /// well (a card, a tunnel, a virtual machine) joins others, whom nobody here knows.
    pub bridges_of_cables: BTreeSet<InterfaceName>,
    /// UDP ports at which interfaces of the node take packets out of datagrams.
    pub encapsulation_ports: BTreeSet<u16>,
}

/// VXLAN as Linux and Flannel have it and as IANA does (RFC 7348), Geneve (RFC 8926): closed to pods also before the
/// interface is there.
pub const ENCAPSULATION_PORTS: [u16; 3] = [8472, 4789, 6081];

/// An interface of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Its name.
    pub interface: InterfaceName,
    /// Whether it is a bridge: then other pods are behind it as well.
    pub is_bridge: bool,
    /// The port of the bridge that the pod is behind, where iptables is told by which port a packet came.
    pub port: Option<InterfaceName>,
    /// The cable by which it is found: another one may be another pod's, whatever it is called. None where it is found by none.
    pub cable: Option<Attachment>,
}

impl Location {
    /// A location for who knows it without asking: tests, and interfaces given by hand.
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

/// This node, by its routing tables.
#[derive(Debug)]
pub struct Node {
    links: Links,
    /// As they were when somebody asked first.
    cables: Option<Cables>,
}

impl Node {
    /// Opens the routing tables of the calling thread's namespace.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> Result<Self, netlink::Error> {
        Ok(Self {
            links: Links::open()?,
            cables: None,
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
        let cable = Attachment::to_cable(&interface);
        let interface = InterfaceName::new(interface.name).map_err(|error| error.to_string())?;
        Ok(Location {
            interface,
            is_bridge,
            port: None,
            cable,
        })
    }

    /// Whether this is where packets go that no other route takes: asked with addresses that nobody has.
    fn is_uplink(&mut self, route: &Route, address: IpAddr) -> Result<bool, String> {
        let nobody = NOBODY[usize::from(address.is_ipv6())];
        Ok(self
            .route(nobody)?
            .is_some_and(|default| default.interface == route.interface))
    }

    fn route(&mut self, address: IpAddr) -> Result<Option<Route>, String> {
        self.links.route_to(address).map_err(|error| error.to_string())
    }
}

/// RFC 5737 and RFC 3849: for documentation, in nobody's routing table.
const NOBODY: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 255)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 1)),
];

/// Names that cannot stand in a rule are no pods' either: rules could not name them.
fn name_of(interface: &Interface) -> Option<InterfaceName> {
    InterfaceName::new(interface.name.clone()).ok()
}

fn encapsulation_ports(interfaces: &[Interface]) -> BTreeSet<u16> {
    let told = interfaces
        .iter()
        .filter_map(|interface| match interface.decapsulates {
            Decapsulates::UdpPort(port) => Some(port),
            Decapsulates::Nothing | Decapsulates::UdpSomewhere => None,
        });
    told.collect()
}

fn bridges_of_cables(interfaces: &[Interface]) -> BTreeSet<InterfaceName> {
    let kind = |interface: &Interface, kind: &str| interface.kind.as_deref() == Some(kind);
    let is_of_cables = |bridge: &&Interface| {
        let mut ports = interfaces.iter().filter(|port| port.master == Some(bridge.index));
        kind(bridge, "bridge") && ports.all(|port| kind(port, "veth"))
    };
    interfaces
        .iter()
        .filter(is_of_cables)
        .filter_map(name_of)
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
        let found = self.follow_cables(found, addresses)?;
        if found.is_empty() {
            Err(reasons.join("; "))
        } else {
            Ok(found)
        }
    }

    fn look_again(&mut self) {
        self.cables = None;
    }

    fn surroundings(&mut self) -> Result<Surroundings, String> {
        let mut uplinks = BTreeSet::new();
        for nobody in NOBODY {
            let route = self.route(nobody)?;
            uplinks.extend(route.and_then(|route| InterfaceName::new(route.name).ok()));
        }
        let interfaces = self.links.interfaces().map_err(|error| error.to_string())?;
        Ok(Surroundings {
            uplinks,
            bridges_of_cables: bridges_of_cables(&interfaces),
            encapsulation_ports: encapsulation_ports(&interfaces),
        })
    }
}

//! How pods are joined to the node: by a routed veth pair, as the CNI plugins `ptp` and Calico make it (the host side has
//! a /32 and a /128 route to the pod and answers ARP for the link-local gateway); by a port of a bridge, as `bridge` and
//! flannel do; and by a second interface, as Multus adds it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::net::if_::if_nametoindex;

use crate::{WorldError, netns::Netns};

/// The gateway that every routed pod has, as Calico's.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The host side's hardware address, as Calico's, and the link-local address made of it.
const HOST_MAC: &str = "ee:ee:ee:ee:ee:ee";
const GATEWAY_V6: &str = "fe80::ecee:eeff:feee:eeee";

/// The bridge of pods that are on one.
pub const BRIDGE: &str = "cni0";
/// Its addresses, and so the pods' gateway.
const BRIDGE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 255, 254);
const BRIDGE_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 0xfffe);

/// The networks that a pod reaches by its second interface.
pub const SECOND_NETWORK: &str = "198.18.0.0/15";
pub const SECOND_NETWORK_V6: &str = "2001:db8:2::/48";
/// The upstream network's addresses in the network of macvlan interfaces.
pub(crate) const MACVLAN_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 80, 255, 254);
pub(crate) const MACVLAN_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 0xfffe);

/// How a pod's first interface is joined to the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// A veth pair of its own, and routes.
    #[default]
    Routed,
    /// A port of [`BRIDGE`].
    Bridge {
        /// Hairpin mode: a frame may leave by the port on which it arrived.
        hairpin: bool,
    },
}

/// A pod's second interface, `net1`, by which it reaches [`SECOND_NETWORK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondInterface {
    /// Another routed veth pair.
    Veth,
    /// A macvlan interface on the node's uplink: its packets pass no hook of the node.
    Macvlan,
}

impl Attachment {
    /// IPv4, then IPv6.
    pub(crate) fn addresses(self, number: u16) -> [IpAddr; 2] {
        match self {
            Self::Routed => addresses_in(77, number),
            Self::Bridge { .. } => addresses_in(78, number),
        }
    }

    pub(crate) fn lay(
        self,
        node: &Netns,
        pod: &Netns,
        interface: &str,
        addresses: [IpAddr; 2],
    ) -> Result<(), WorldError> {
        pod.ip("link set lo up\n")?;
        match self {
            Self::Routed => {
                lay_cable(node, pod, [interface, "eth0"], addresses)?;
                pod.ip(&format!(
                    "route add default via {GATEWAY} dev eth0 onlink\n\
                     route add default via {GATEWAY_V6} dev eth0\n"
                ))
            }
            Self::Bridge { hairpin } => lay_port(node, pod, interface, addresses, hairpin),
        }
    }
}

impl SecondInterface {
    pub(crate) fn addresses(self, number: u16) -> [IpAddr; 2] {
        match self {
            Self::Veth => addresses_in(79, number),
            Self::Macvlan => addresses_in(80, number),
        }
    }

    pub(crate) fn lay(self, node: &Netns, pod: &Netns, number: u16) -> Result<(), WorldError> {
        let addresses = self.addresses(number);
        match self {
            Self::Veth => {
                lay_cable(node, pod, [&second_veth(number), "net1"], addresses)?;
                let gateways = [GATEWAY.to_string(), GATEWAY_V6.to_owned()];
                lead_by_net1(pod, &gateways, addresses)
            }
            Self::Macvlan => {
                let [v4, v6] = addresses;
                node.ip(&format!(
                    "link add link uplink name net1 netns {} type macvlan mode bridge\n",
                    pod.name()
                ))?;
                pod.ip(&format!(
                    "link set net1 up\n\
                     address add {v4}/16 dev net1\n\
                     address add {v6}/64 dev net1 nodad\n"
                ))?;
                let gateways = [MACVLAN_GATEWAY.to_string(), MACVLAN_GATEWAY_V6.to_string()];
                lead_by_net1(pod, &gateways, addresses)
            }
        }
    }
}

/// The node's end of a second veth pair.
pub(crate) fn second_veth(number: u16) -> String {
    format!("veth{number}b")
}

fn lead_by_net1(pod: &Netns, [v4, v6]: &[String; 2], addresses: [IpAddr; 2]) -> Result<(), WorldError> {
    pod.ip(&format!(
        "route add {SECOND_NETWORK} via {v4} dev net1 onlink src {}\n\
         route add {SECOND_NETWORK_V6} via {v6} dev net1 src {}\n",
        addresses[0], addresses[1]
    ))
}

fn addresses_in(network: u8, number: u16) -> [IpAddr; 2] {
    let [high, low] = number.to_be_bytes();
    let first = u16::from_str_radix(&format!("fd{network}"), 16).expect("these are hexadecimal digits");
    [
        Ipv4Addr::new(10, network, high, low).into(),
        Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, number).into(),
    ]
}

/// A veth pair, its addresses and its routes to the pod, on both sides.
fn lay_cable(
    node: &Netns,
    pod: &Netns,
    [outside, inside]: [&str; 2],
    [v4, v6]: [IpAddr; 2],
) -> Result<(), WorldError> {
    node.ip(&format!(
        "link add {outside} address {HOST_MAC} type veth peer name {inside} netns {}\n\
         link set {outside} addrgenmode none\n\
         link set {outside} up\n\
         address add {GATEWAY_V6}/64 dev {outside} nodad\n\
         route add {v4}/32 dev {outside} scope link\n\
         route add {v6}/128 dev {outside}\n",
        pod.name()
    ))?;
    // The host answers ARP for the gateway; it would wait up to 0.8 s before doing so.
    node.sysctl(&format!("ipv4/conf/{outside}/proxy_arp"), "1")?;
    node.sysctl(&format!("ipv4/neigh/{outside}/proxy_delay"), "0")?;
    pod.ip(&format!(
        "link set {inside} up\n\
         address add {v4}/32 dev {inside}\n\
         address add {v6}/128 dev {inside} nodad\n"
    ))
}

fn lay_port(
    node: &Netns,
    pod: &Netns,
    interface: &str,
    [v4, v6]: [IpAddr; 2],
    hairpin: bool,
) -> Result<(), WorldError> {
    if node.within(|| if_nametoindex(BRIDGE).is_err()) {
        lay_bridge(node)?;
    }
    let hairpin = if hairpin { "on" } else { "off" };
    node.ip(&format!(
        "link add {interface} type veth peer name eth0 netns {}\n\
         link set {interface} addrgenmode none\n\
         link set {interface} master {BRIDGE}\n\
         link set {interface} type bridge_slave hairpin {hairpin}\n\
         link set {interface} up\n",
        pod.name()
    ))?;
    pod.ip(&format!(
        "link set eth0 up\n\
         address add {v4}/16 dev eth0\n\
         address add {v6}/64 dev eth0 nodad\n\
         route add default via {BRIDGE_ADDRESS}\n\
         route add default via {BRIDGE_ADDRESS_V6}\n"
    ))
}

/// As on a node without `br_netfilter`: packets between ports of a bridge do not pass iptables.
fn lay_bridge(node: &Netns) -> Result<(), WorldError> {
    for family in ["iptables", "ip6tables"] {
        node.sysctl(&format!("bridge/bridge-nf-call-{family}"), "0")?;
    }
    node.ip(&format!(
        "link add {BRIDGE} address 0a:58:0a:4e:ff:fe type bridge mcast_snooping 0\n\
         link set {BRIDGE} up\n\
         address add {BRIDGE_ADDRESS}/16 dev {BRIDGE}\n\
         address add {BRIDGE_ADDRESS_V6}/64 dev {BRIDGE} nodad\n"
    ))
}

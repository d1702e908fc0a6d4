//! The veth topology: which links of the node lead into the same pod, and which interfaces of a pod lead past the node.
//!
//! A veth shows the id of its peer's namespace. So all veths with one id belong to one pod, and the interfaces of that
//! namespace are listed without entering it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::links::{Interface, Links};
use egret_kernel::namespaces::{LOOPBACK, Namespaces};
use egret_kernel::netlink::Error;

/// The node's links at one moment.
#[derive(Debug)]
pub struct VethTopology {
    interfaces: Vec<Interface>,
    namespaces: Namespaces,
    /// Addresses in namespaces behind bridges, by namespace id, as far as they were needed.
    addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
}

impl VethTopology {
    /// Reads all links.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn read(links: &mut Links) -> Result<Self, Error> {
        Ok(Self {
            interfaces: links.interfaces()?,
            namespaces: Namespaces::open()?,
            addresses: BTreeMap::new(),
        })
    }

    /// The link with a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The id of the namespace behind this link that has the pod's addresses.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or several namespaces have one of the addresses.
    pub fn namespace(&mut self, link: &str, addresses: &[IpAddr]) -> Result<Option<u32>, String> {
        let Some(link) = self.named(link) else {
            return Ok(None);
        };
        if !is_bridge(link) {
            return Ok(peer_namespace(link));
        }
        let (bridge, name) = (link.index, link.name.clone());
        let found = self.behind_ports(bridge, addresses)?;
        match found.iter().collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [number] => Ok(Some(*number)),
            _ => Err(format!(
                "several namespaces behind the bridge {name} have one of its addresses"
            )),
        }
    }

    fn behind_ports(&mut self, bridge: u32, addresses: &[IpAddr]) -> Result<BTreeSet<u32>, String> {
        let ports = self.interfaces.iter().filter(|port| port.master == Some(bridge));
        let numbers: BTreeSet<u32> = ports.filter_map(peer_namespace).collect();
        let mut found = BTreeSet::new();
        for number in numbers {
            let has = self.addresses_of(number)?;
            if addresses.iter().any(|address| has.contains(address)) {
                found.insert(number);
            }
        }
        Ok(found)
    }

    fn addresses_of(&mut self, number: u32) -> Result<&BTreeSet<IpAddr>, String> {
        if !self.addresses.contains_key(&number) {
            let listed = self
                .namespaces
                .addresses(number)
                .map_err(|error| error.to_string())?;
            let listed = listed.into_iter().map(|address| address.net.addr()).collect();
            self.addresses.insert(number, listed);
        }
        Ok(&self.addresses[&number])
    }

    /// The node's ends of the veths into a namespace.
    pub fn ends_of(&self, number: u32) -> impl Iterator<Item = &Interface> {
        self.interfaces
            .iter()
            .filter(move |interface| peer_namespace(interface) == Some(number))
    }

    /// Interfaces of a namespace by which packets leave it without passing the node's links into it.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn leading_past_node(&mut self, number: u32) -> Result<Vec<Interface>, String> {
        let inside = self
            .namespaces
            .interfaces(number)
            .map_err(|error| error.to_string())?;
        let ends: BTreeSet<u32> = self.ends_of(number).filter_map(|veth| veth.link).collect();
        let leading = leading_past_node(&inside, &ends);
        let leads_there = |one: &Interface| leading.contains(&one.index);
        Ok(inside.into_iter().filter(leads_there).collect())
    }
}

fn is_bridge(link: &Interface) -> bool {
    link.kind.as_deref() == Some("bridge")
}

/// The namespace of a veth's peer, if that is another one.
fn peer_namespace(link: &Interface) -> Option<u32> {
    let is_veth = link.kind.as_deref() == Some("veth");
    link.link_namespace.filter(|_| is_veth)
}

/// Interfaces that lead past the node, interfaces on top of them, and bridges and bonds that hold them as ports.
fn leading_past_node(inside: &[Interface], ends: &BTreeSet<u32>) -> BTreeSet<u32> {
    let by_itself =
        |one: &&Interface| !is_local_kind(one) && !ends.contains(&one.index) && one.index != LOOPBACK;
    let mut found: BTreeSet<u32> = inside.iter().filter(by_itself).map(|one| one.index).collect();
    loop {
        let upon = inside
            .iter()
            .filter(|one| one.link.is_some_and(|below| found.contains(&below)));
        let upon = upon
            .filter(|one| one.link_namespace.is_none())
            .map(|one| one.index);
        let holding = inside
            .iter()
            .filter(|one| found.contains(&one.index))
            .filter_map(|one| one.master);
        let more: Vec<u32> = upon
            .chain(holding)
            .filter(|index| !found.contains(index))
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Kinds that a namespace creates for itself: their packets leave by another of its interfaces, or not at all. Any
/// other kind leads past the node. A card has no kind; an interface on top of one in another namespace shows that
/// namespace.
fn is_local_kind(interface: &Interface) -> bool {
    const KINDS: [&str; 25] = [
        "bond",
        "bridge",
        "dummy",
        "erspan",
        "geneve",
        "gre",
        "gretap",
        "ifb",
        "ip6_vti",
        "ip6erspan",
        "ip6gre",
        "ip6gretap",
        "ip6tnl",
        "ipip",
        "ipvlan",
        "ipvtap",
        "macvlan",
        "macvtap",
        "sit",
        "tun",
        "vlan",
        "vrf",
        "vti",
        "vxlan",
        "wireguard",
    ];
    let kind = interface.kind.as_deref();
    interface.link_namespace.is_none() && kind.is_some_and(|kind| KINDS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_kernel::links::Tunnel;

    fn interface(index: u32, kind: &str, link: Option<u32>, link_namespace: Option<u32>) -> Interface {
        Interface {
            decapsulates: Tunnel::Nothing,
            index,
            name: format!("i{index}"),
            is_up: true,
            mtu: 1500,
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            master: None,
            link,
            hardware: Vec::new(),
            link_namespace,
        }
    }

    #[test]
    fn an_interface_that_a_pod_creates_leads_past_the_node_only_by_what_is_below() {
        const VETH: u32 = 2;
        const CARD: u32 = 3;
        for (kind, link, namespace, expected) in [
            ("dummy", None, None, false),
            ("vlan", Some(VETH), None, false),
            ("macvlan", Some(VETH), None, false),
            ("vlan", Some(CARD), None, true),
            ("vlan", Some(VETH), Some(0), true),
            ("macvlan", Some(VETH), Some(0), true),
            ("ipvlan", Some(VETH), Some(0), true),
            ("veth", Some(VETH), Some(3), true),
            ("netkit", Some(VETH), Some(0), true),
            ("a kind of tomorrow", None, None, true),
            ("", None, None, true),
        ] {
            let inside = [
                interface(LOOPBACK, "", None, None),
                interface(VETH, "veth", Some(9), Some(0)),
                interface(CARD, "", None, None),
                interface(7, kind, link, namespace),
            ];
            let found = leading_past_node(&inside, &BTreeSet::from([VETH]));
            assert_eq!(found.contains(&7), expected, "{kind} {link:?} {namespace:?}");
            assert!(found.contains(&CARD) && !found.contains(&VETH) && !found.contains(&LOOPBACK));
        }
    }

    #[test]
    fn a_bridge_with_a_card_leads_past_the_node() {
        let port = Interface {
            decapsulates: Tunnel::Nothing,
            master: Some(8),
            ..interface(3, "", None, None)
        };
        let inside = [
            port,
            interface(8, "bridge", None, None),
            interface(9, "bridge", None, None),
        ];
        assert_eq!(
            leading_past_node(&inside, &BTreeSet::new()),
            BTreeSet::from([3, 8])
        );
    }
}

//! Lists the node's addresses.
//!
//! An address on any interface of the node's namespace is delivered to the node, also on a bridge, a tunnel or the
//! node's end of a veth pair. Pods are in other namespaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use egret_kernel::links::{Address, Interface, Links};
use egret_kernel::netlink;

/// Interfaces with addresses of Services: kube-proxy in IPVS mode, and node-local-dns, whose other address is
/// link-local.
const SERVICE_INTERFACES: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// The node's addresses, each with its first interface.
pub(super) fn list(links: &mut Links) -> Result<BTreeMap<IpAddr, String>, netlink::Error> {
    let interfaces = links.interfaces()?;
    Ok(reported(&links.addresses()?, &interfaces))
}

/// Addresses that others can reach, each with its first interface.
pub(super) fn reported(node_addresses: &[Address], interfaces: &[Interface]) -> BTreeMap<IpAddr, String> {
    let name = |index: u32| interfaces.iter().find(|one| one.index == index);
    let mut reported = BTreeMap::new();
    for address in node_addresses {
        let ip = address.net.addr();
        // An interface that was removed since is missing in the second list.
        if let Some(interface) = name(address.interface)
            && !SERVICE_INTERFACES.contains(&interface.name.as_str())
            && is_reachable(ip)
        {
            reported.entry(ip).or_insert_with(|| interface.name.clone());
        }
    }
    reported
}

/// Link-local addresses belong to a link, and every node may have the same ones.
fn is_reachable(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_kernel::links::Tunnel;

    #[test]
    fn all_addresses_of_the_node_count_but_those_that_nobody_else_reaches_and_services() {
        let table = [
            ("lo", "127.0.0.1/8", false),
            ("lo", "::1/128", false),
            ("lo", "192.0.2.1/32", true),
            ("eth0", "10.76.0.1/24", true),
            ("eth0", "fd76::1/64", true),
            ("eth0", "fe80::1/64", false),
            ("eth1", "198.18.0.1/24", true),
            ("cni0", "10.77.1.254/24", true),
            ("veth0a1b", "10.77.1.253/32", true),
            ("kube-ipvs0", "10.96.0.1/32", false),
            ("nodelocaldns", "169.254.20.10/32", false),
            ("nodelocaldns", "10.96.0.10/32", false),
        ];
        let mut names: Vec<&str> = table.iter().map(|(name, ..)| *name).collect();
        names.dedup();
        let index = |name: &str| {
            let place = names.iter().position(|one| *one == name).unwrap();
            u32::try_from(place).unwrap() + 1
        };
        let interfaces: Vec<_> = names.iter().map(|name| interface(name, index(name))).collect();
        let node_addresses: Vec<_> = table
            .iter()
            .map(|(name, net, _)| Address {
                net: net.parse().unwrap(),
                interface: index(name),
            })
            .collect();
        let reported = reported(&node_addresses, &interfaces);
        for (address, (name, net, is_reported)) in node_addresses.iter().zip(table) {
            let found = reported.get(&address.net.addr());
            assert_eq!(found.map(String::as_str), is_reported.then_some(name), "{net}");
        }
        let stranger = Address {
            interface: 99,
            ..node_addresses[3]
        };
        assert!(super::reported(&[stranger], &interfaces).is_empty());
    }

    fn interface(name: &str, index: u32) -> Interface {
        Interface {
            decapsulates: Tunnel::Nothing,
            index,
            name: name.to_owned(),
            is_up: true,
            mtu: 1500,
            kind: None,
            master: None,
            link: None,
            hardware: Vec::new(),
            link_namespace: None,
        }
    }
}

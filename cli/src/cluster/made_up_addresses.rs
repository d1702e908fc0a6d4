//! Addresses for pods that have none yet: manifests written by hand seldom have a status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use egret_shared::net::{IpNet, Ipv4Net};
use egret_shared::pod::PodKey;

/// What is in use: a made-up address must mean nothing to anybody who wrote a policy.
#[derive(Debug, Default)]
pub struct UsedAddresses {
    /// Addresses of pods, nodes, endpoints, records and probes.
    pub addresses: BTreeSet<IpAddr>,
    /// Networks that policies and nodes name.
    pub networks: Vec<IpNet>,
}

/// Ranges nobody's pods live in: for measuring devices (RFC 2544 appendix C.2.2), then the part of class E
/// (RFC 1112 §4) below the broadcast address.
fn ranges() -> impl Iterator<Item = Ipv4Net> {
    let benchmarking = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15);
    let reserved = (240..=254).map(|first| Ipv4Net::new_assert(Ipv4Addr::new(first, 0, 0, 0), 8));
    std::iter::once(benchmarking).chain(reserved)
}

/// An address for each pod, always the same for the same namespace and name, unless two of the pods hash to
/// one address: then the second by name gets the next that is free.
///
/// # Panics
/// When there are more pods than all ranges have addresses.
#[must_use]
pub fn make_up_addresses(pods: &BTreeSet<PodKey>, used: &UsedAddresses) -> BTreeMap<PodKey, IpAddr> {
    let needed = pods.len() + used.addresses.len();
    let has_room = |range: &Ipv4Net| usize::try_from(size_of(*range)).is_ok_and(|size| size > needed);
    let range = ranges()
        .find(|range| has_room(range) && used.leaves_alone(range))
        .or_else(|| ranges().find(has_room))
        .expect("nobody has sixteen million pods");
    let size = size_of(range);
    let mut taken = used.addresses.clone();
    let address_of = |pod: &PodKey| {
        let start = fnv1a(&pod.to_string()) % size;
        let address = (0..size)
            .map(|step| nth(range, (start + step) % size))
            .find(|address| taken.insert(*address))
            .expect("the range has more addresses than are used and needed");
        (pod.clone(), address)
    };
    pods.iter().map(address_of).collect()
}

const fn size_of(range: Ipv4Net) -> u32 {
    1 << (32 - range.prefix_len())
}

fn nth(range: Ipv4Net, index: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(range.network().to_bits() + index))
}

impl UsedAddresses {
    /// Whether nothing in use lies in the range. A wide network around it (`0.0.0.0/0`, or what is left of it
    /// without some exceptions) cannot be helped.
    fn leaves_alone(&self, range: &Ipv4Net) -> bool {
        let around = |network: &IpNet| network.prefix_len() < 8;
        !self
            .addresses
            .iter()
            .any(|address| IpNet::V4(*range).contains(address))
            && !self
                .networks
                .iter()
                .any(|network| !around(network) && overlap(network, &IpNet::V4(*range)))
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// FNV-1a, 32 bits: the same in every release and on every machine, unlike the standard library's hasher.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, octet| {
        (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &[&str]) -> BTreeSet<PodKey> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_pod_has_the_same_address_whoever_else_is_there() {
        let alone = make_up_addresses(&pods(&["shop/client"]), &UsedAddresses::default());
        let together = make_up_addresses(
            &pods(&["a/b", "shop/client", "shop/other"]),
            &UsedAddresses::default(),
        );
        assert_eq!(
            alone[&PodKey::new("shop", "client")],
            together[&PodKey::new("shop", "client")]
        );
        let distinct: BTreeSet<_> = together.values().collect();
        assert_eq!(distinct.len(), 3);
    }

    #[test]
    fn a_range_that_somebody_uses_is_left() {
        let everything = "0.0.0.0/0".parse().unwrap();
        let network = |text: &str| UsedAddresses {
            networks: vec![everything, text.parse().unwrap()],
            ..UsedAddresses::default()
        };
        let address = |text: &str| UsedAddresses {
            addresses: [text.parse().unwrap()].into(),
            ..UsedAddresses::default()
        };
        for (used, first_octet) in [
            (UsedAddresses::default(), 198),
            (network("10.0.0.0/8"), 198),
            (network("198.18.7.0/24"), 240),
            (network("198.0.0.0/8"), 240),
            (address("198.19.255.255"), 240),
            (address("198.20.0.0"), 198),
        ] {
            let made = make_up_addresses(&pods(&["shop/client"]), &used);
            let IpAddr::V4(address) = made[&PodKey::new("shop", "client")] else {
                panic!("IPv4 is made up");
            };
            assert_eq!(address.octets()[0], first_octet, "{used:?}");
        }
    }
}

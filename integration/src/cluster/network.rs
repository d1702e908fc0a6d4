//! The addresses of the cluster: everything that has one, or is told one, takes it from here.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use egret_shared::net::Family;
use hickory_proto::rr::RecordType;

/// The families that the cluster has addresses of, the primary one first. Of what has addresses there is one of each family, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(&'static [Family]);

impl Network {
    pub const DUAL_STACK: Self = Self(&Family::ALL);

    pub(super) fn control_plane(self) -> Vec<IpAddr> {
        self.host(1, 0x1)
    }

    pub(super) fn node(self, number: u8) -> Vec<IpAddr> {
        self.host(10 + number, 0x10 + u16::from(number))
    }

    /// Allowed by its name.
    pub(super) fn allowed(self) -> Vec<IpAddr> {
        self.host(201, 0x201)
    }

    pub(super) fn refused(self) -> Vec<IpAddr> {
        self.host(202, 0x202)
    }

    /// Allowed as addresses.
    pub(super) fn direct(self) -> Vec<IpAddr> {
        self.host(203, 0x203)
    }

    /// Those of the Service kube-dns.
    pub(super) fn dns(self) -> Vec<IpAddr> {
        let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xa);
        self.each(Ipv4Addr::new(10, 96, 0, 10).into(), v6.into())
    }

    /// At which node-local-dns and dnsd answer on each node: of the primary family, for upstream's program takes one.
    pub(super) fn local_dns(self) -> IpAddr {
        let v6 = Ipv6Addr::new(0xfd00, 0xa9fe, 0, 0, 0, 0, 0, 0xa);
        self.each(Ipv4Addr::new(169, 254, 20, 10).into(), v6.into())[0]
    }

    pub(super) fn services(self) -> Vec<String> {
        self.each("10.96.0.0/16".to_owned(), "fd00:10:96::/112".to_owned())
    }

    /// Of all nodes.
    pub(super) fn pods(self) -> Vec<String> {
        self.each("10.244.0.0/16".to_owned(), "fd00:10:244::/48".to_owned())
    }

    pub(super) fn pods_of_node(self, number: u8) -> Vec<String> {
        self.each(
            format!("10.244.{number}.0/24"),
            format!("fd00:10:244:{number}::/64"),
        )
    }

    /// The destinations of default routes.
    pub(super) fn everything(self) -> Vec<String> {
        self.each("0.0.0.0/0".to_owned(), "::/0".to_owned())
    }

    /// The same of each family.
    pub(super) fn alike<T: Clone>(self, of_one: T) -> Vec<T> {
        self.each(of_one.clone(), of_one)
    }

    /// 10.100.0.`last` and fd00:100::`last_6`.
    fn host(self, last: u8, last_6: u16) -> Vec<IpAddr> {
        let v6 = Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0, last_6);
        self.each(Ipv4Addr::new(10, 100, 0, last).into(), v6.into())
    }

    fn each<T: Clone>(self, v4: T, v6: T) -> Vec<T> {
        let of = |family: &Family| match family {
            Family::V4 => v4.clone(),
            Family::V6 => v6.clone(),
        };
        self.0.iter().map(of).collect()
    }
}

/// Of a record that has this address.
pub(super) const fn record_type(address: IpAddr) -> RecordType {
    match address {
        IpAddr::V4(_) => RecordType::A,
        IpAddr::V6(_) => RecordType::AAAA,
    }
}

impl FromStr for Network {
    type Err = String;

    /// The words are those of kind's `ipFamily`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "dual" => Ok(Self::DUAL_STACK),
            "ipv4" => Ok(Self(&[Family::V4])),
            "ipv6" => Ok(Self(&[Family::V6])),
            _ => Err(format!("IP_FAMILY={text}: dual, ipv4 and ipv6 are accepted")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_address(network: Network) -> Vec<String> {
        let addresses = [
            network.control_plane(),
            network.node(3),
            network.allowed(),
            network.refused(),
            network.direct(),
            network.dns(),
            vec![network.local_dns()],
        ];
        let networks = [
            network.services(),
            network.pods(),
            network.pods_of_node(3),
            network.everything(),
        ];
        let addresses = addresses.concat().into_iter().map(|address| address.to_string());
        addresses.chain(networks.concat()).collect()
    }

    #[test]
    fn a_cluster_of_one_family_has_no_address_of_the_other() {
        for (word, is_v6) in [("ipv4", false), ("ipv6", true)] {
            let found = every_address(word.parse().unwrap());
            assert_eq!(found.len(), 11, "{found:?}");
            for address in found {
                assert_eq!(address.contains(':'), is_v6, "{word} has {address}");
            }
        }
    }

    #[test]
    fn a_dual_stack_cluster_has_each_address_twice_and_ipv4_first() {
        let each = |word: &str| every_address(word.parse().unwrap());
        let (dual, v4, v6) = (each("dual"), each("ipv4"), each("ipv6"));
        let pairs = v4.into_iter().zip(v6).flat_map(|(v4, v6)| [v4, v6]);
        // There is one local address in any case, of the primary family.
        let expected = pairs.filter(|address| address != "fd00:a9fe::a");
        assert_eq!(dual, expected.collect::<Vec<_>>());
    }

    #[test]
    fn another_word_is_refused_with_those_that_are_accepted() {
        let error = "IPv6".parse::<Network>().unwrap_err();
        assert_eq!(error, "IP_FAMILY=IPv6: dual, ipv4 and ipv6 are accepted");
    }
}

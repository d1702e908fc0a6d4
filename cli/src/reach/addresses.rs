//! Sets of addresses, written as networks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_shared::net::{Family, IpNet};
use ipnet::{IpSubnets, Ipv4Subnets, Ipv6Subnets};
use serde::{Serialize, Serializer};

use super::ranges::Ranges;

/// Addresses of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses {
    v4: Ranges,
    v6: Ranges,
}

impl Addresses {
    /// The addresses of a family from one number to another.
    #[must_use]
    pub fn range(family: Family, (first, last): (u128, u128)) -> Self {
        let ranges = Ranges::of(first, last);
        match family {
            Family::V4 => Self {
                v4: ranges,
                ..Self::default()
            },
            Family::V6 => Self {
                v6: ranges,
                ..Self::default()
            },
        }
    }

    /// What is in one of them.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self {
            v4: self.v4.union(&other.v4),
            v6: self.v6.union(&other.v6),
        }
    }

    const fn of(&self, family: Family) -> &Ranges {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The fewest networks that have these addresses and no other.
    #[must_use]
    pub fn networks(&self) -> Vec<IpNet> {
        let of_family = |family| networks(family, self.of(family));
        Family::ALL.into_iter().flat_map(of_family).collect()
    }
}

/// The highest address of a family, as a number.
#[must_use]
pub const fn last(family: Family) -> u128 {
    match family {
        Family::V4 => u32::MAX as u128,
        Family::V6 => u128::MAX,
    }
}

/// An address as a number.
#[must_use]
pub const fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u128,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address that a number stands for.
#[must_use]
pub fn address_of(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => {
            let bits = u32::try_from(number).expect("numbers of IPv4 are below 2^32");
            IpAddr::V4(Ipv4Addr::from_bits(bits))
        }
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

/// Cuts a family into ranges between which none of the networks begins or ends: of each range either every
/// address is in a network or none is.
#[must_use]
pub fn partition<'a>(family: Family, networks: impl IntoIterator<Item = &'a IpNet>) -> Vec<(u128, u128)> {
    let mut starts: Vec<u128> = networks
        .into_iter()
        .filter(|network| Family::of_net(network) == family)
        .flat_map(|network| {
            let behind = number_of(network.broadcast()).checked_add(1);
            [Some(number_of(network.network())), behind]
        })
        .flatten()
        .filter(|start| *start <= last(family))
        .chain([0])
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|start| start - 1).chain([last(family)]);
    starts.iter().copied().zip(ends).collect()
}

fn networks(family: Family, ranges: &Ranges) -> Vec<IpNet> {
    let cut = |(first, last)| match (address_of(family, first), address_of(family, last)) {
        (IpAddr::V4(first), IpAddr::V4(last)) => IpSubnets::from(Ipv4Subnets::new(first, last, 0)),
        (IpAddr::V6(first), IpAddr::V6(last)) => IpSubnets::from(Ipv6Subnets::new(first, last, 0)),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            unreachable!("both are of one family")
        }
    };
    ranges.iter().flat_map(cut).collect()
}

/// By networks, or by what is missing from all addresses where that is shorter.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = Family::ALL.into_iter().filter_map(|family| {
            let (there, missing) = (
                self.of(family),
                Ranges::of(0, last(family)).without(self.of(family)),
            );
            let (there, missing) = (networks(family, there), networks(family, &missing));
            match (there.len(), missing.len()) {
                (0, _) => None,
                (there, missing_count) if 0 < missing_count && missing_count < there => {
                    Some(format!("{} but {}", all_of(family), list(&missing)))
                }
                _ => Some(list(&there)),
            }
        });
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}

const fn all_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    }
}

fn list(networks: &[IpNet]) -> String {
    networks
        .iter()
        .map(IpNet::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Serialize for Addresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.networks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks_of(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_family_is_cut_where_networks_begin_and_end() {
        let networks = networks_of(&["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "255.0.0.0/8", "::/0"]);
        let starts: Vec<String> = partition(Family::V4, &networks)
            .into_iter()
            .map(|(start, _)| address_of(Family::V4, start).to_string())
            .collect();
        assert_eq!(
            starts,
            [
                "0.0.0.0",
                "10.0.0.0",
                "10.1.0.0",
                "10.2.0.0",
                "11.0.0.0",
                "255.0.0.0"
            ]
        );
        assert_eq!(partition(Family::V6, &networks), [(0, u128::MAX)]);
    }

    #[test]
    fn addresses_are_written_as_briefly_as_they_can_be() {
        let cut = partition(Family::V4, &networks_of(&["10.0.0.0/8"]));
        let [below, ten, above] = [0, 1, 2].map(|place| Addresses::range(Family::V4, cut[place]));
        assert_eq!(ten.to_string(), "10.0.0.0/8");
        assert_eq!(below.union(&above).to_string(), "0.0.0.0/0 but 10.0.0.0/8");
        assert_eq!(below.union(&above).networks().len(), 8);
        let all = below
            .union(&above)
            .union(&ten)
            .union(&Addresses::range(Family::V6, (0, u128::MAX)));
        assert_eq!(all.to_string(), "0.0.0.0/0, ::/0");
    }
}

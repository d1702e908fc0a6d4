//! What was told of one name, in one piece of memory: there may be a hundred thousand of these, most of one address.
//!
//! ```text
//!  question │ chain │ IPv4 addresses, each with its end │ IPv6 addresses, each with its end
//!  2 octets of length before each name     4 + 8                               16 + 8
//! ```

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_shared::name::DnsName;
use egret_shared::observation::ObservedAddress;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

const LENGTH: usize = 2;
const END: usize = 8;
const IPV4: usize = 4 + END;
const IPV6: usize = 16 + END;

/// A name and its addresses.
#[derive(Debug)]
pub(super) struct Name {
    octets: Box<[u8]>,
    addresses_at: u32,
    ipv6_at: u32,
    latest: Sequence,
    /// The number of each address, where they were not all told with the latest one.
    numbers: Option<Box<Box<[Sequence]>>>,
}

/// An address as it was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) told: ObservedAddress,
    pub(super) sequence: Sequence,
}

impl Name {
    /// Puts it together; of addresses there is at least one, and those of a family are in order.
    pub(super) fn new<'a>(
        names: impl Iterator<Item = &'a str> + Clone,
        addresses: impl Iterator<Item = Address> + Clone,
    ) -> Self {
        let of_family = |is_ipv4| {
            let addresses = addresses.clone();
            addresses.filter(move |address| address.told.address.is_ipv4() == is_ipv4)
        };
        let in_order = || of_family(true).chain(of_family(false));
        let addresses_at = names.clone().map(|name| LENGTH + name.len()).sum();
        let ipv6_at = addresses_at + of_family(true).count() * IPV4;
        let mut octets = Vec::with_capacity(ipv6_at + of_family(false).count() * IPV6);
        for name in names {
            let length = u16::try_from(name.len()).expect("a name's text has a good thousand octets at most");
            octets.extend_from_slice(&length.to_ne_bytes());
            octets.extend_from_slice(name.as_bytes());
        }
        for address in in_order() {
            match address.told.address {
                IpAddr::V4(it) => octets.extend_from_slice(&it.octets()),
                IpAddr::V6(it) => octets.extend_from_slice(&it.octets()),
            }
            octets.extend_from_slice(&address.told.expires.as_millis().to_ne_bytes());
        }
        let mut numbers = addresses.clone().map(|address| address.sequence);
        let latest = numbers.clone().max().unwrap_or(Sequence::ZERO);
        let is_one = numbers.all(|number| number == latest);
        Self {
            octets: octets.into(),
            addresses_at: offset(addresses_at),
            ipv6_at: offset(ipv6_at),
            latest,
            numbers: (!is_one).then(|| Box::new(in_order().map(|address| address.sequence).collect())),
        }
    }

    /// Whether this was asked for.
    pub(super) fn is_of(&self, question: &str) -> bool {
        let behind = self.octets.split_first_chunk::<LENGTH>();
        behind.is_some_and(|(length, behind)| {
            usize::from(u16::from_ne_bytes(*length)) == question.len()
                && behind.starts_with(question.as_bytes())
        })
    }

    /// The text of the name that was asked for.
    pub(super) fn question(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    /// The text of that one and of those on the chain.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let mut rest = &self.octets[..self.addresses_at as usize];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<LENGTH>()?;
            let (name, behind) = behind.split_at_checked(u16::from_ne_bytes(*length).into())?;
            rest = behind;
            str::from_utf8(name).ok()
        })
    }

    /// How many addresses there are.
    pub(super) const fn len(&self) -> usize {
        let (addresses_at, ipv6_at) = (self.addresses_at as usize, self.ipv6_at as usize);
        (ipv6_at - addresses_at) / IPV4 + (self.octets.len() - ipv6_at) / IPV6
    }

    /// The addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Address> {
        (0..self.len()).filter_map(|place| self.address(place))
    }

    /// How an address was told. The same answer has it at the same place, so that is looked at first: an answer of a hundred
    /// is not a hundred searches.
    pub(super) fn find(&self, address: IpAddr, likely: usize) -> Option<Address> {
        let there = self.address(likely).filter(|known| known.told.address == address);
        there.or_else(|| self.search(address))
    }

    /// Among all of them, which are in order.
    fn search(&self, address: IpAddr) -> Option<Address> {
        let (mut first, mut behind) = (0, self.len());
        while first < behind {
            let middle = first.midpoint(behind);
            let known = self.address(middle)?;
            match known.told.address.cmp(&address) {
                Ordering::Less => first = middle + 1,
                Ordering::Equal => return Some(known),
                Ordering::Greater => behind = middle,
            }
        }
        None
    }

    fn address(&self, place: usize) -> Option<Address> {
        let octets = &self.octets[self.addresses_at as usize..];
        let (ipv4, ipv6) = octets.split_at((self.ipv6_at - self.addresses_at) as usize);
        let (ipv4, ipv6) = (ipv4.as_chunks::<IPV4>().0, ipv6.as_chunks::<IPV6>().0);
        let told = match ipv4.get(place) {
            Some(octets) => observed(Ipv4Addr::from(*octets.first_chunk::<4>()?).into(), octets)?,
            None => {
                let octets = ipv6.get(place - ipv4.len())?;
                observed(Ipv6Addr::from(*octets.first_chunk::<16>()?).into(), octets)?
            }
        };
        let numbers = self.numbers.as_ref();
        Some(Address {
            told,
            sequence: numbers.map_or(self.latest, |numbers| numbers[place]),
        })
    }
}

/// A name by the text that it had.
pub(super) fn name_of(text: &str) -> DnsName {
    let is_plain = text != "." && !text.contains('\\');
    let name = if is_plain {
        DnsName::from_labels(text.split('.').map(str::as_bytes))
    } else {
        text.parse()
    };
    name.expect("it is the text of a name")
}

fn observed(address: IpAddr, octets: &[u8]) -> Option<ObservedAddress> {
    let end = u64::from_ne_bytes(*octets.last_chunk()?);
    Some(ObservedAddress {
        address,
        expires: Timestamp::from_millis(end),
    })
}

fn offset(octets: usize) -> u32 {
    u32::try_from(octets).expect("what is told of a name has no 4 GiB")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_told_is_kept_as_it_was_whatever_its_names_and_numbers() {
        let texts = ["a.test", "c\\046\\000d.long.test", "."];
        let [one, two] = [1, 2].map(|steps| (0..steps).fold(Sequence::ZERO, |number, _| number.next()));
        let end = Timestamp::from_millis(u64::MAX / 3);
        let told = |address: &str, seconds, sequence| Address {
            told: ObservedAddress {
                address: address.parse().unwrap(),
                expires: end.after(Duration::from_secs(seconds)),
            },
            sequence,
        };
        for second in [one, two] {
            let addresses = [
                told("192.0.2.1", 1, one),
                told("192.0.2.2", u64::MAX / 1000, one),
                told("2001:db8::1", 3, second),
            ];
            let mixed = [addresses[2], addresses[0], addresses[1]];
            let name = Name::new(texts.into_iter(), mixed.into_iter());
            assert_eq!(name.names().collect::<Vec<_>>(), texts);
            assert_eq!(
                name.addresses().collect::<Vec<_>>(),
                addresses,
                "IPv4 comes first"
            );
            assert_eq!(name.len(), 3);
            for (place, address) in addresses.iter().enumerate() {
                for likely in [place, 0, 7] {
                    assert_eq!(name.find(address.told.address, likely), Some(*address));
                }
            }
            assert_eq!(name.find([192, 0, 2, 3].into(), 0), None);
            for text in texts {
                assert_eq!(name_of(text).as_str(), text);
            }
        }
    }
}

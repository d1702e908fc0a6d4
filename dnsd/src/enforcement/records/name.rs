//! The record of one name, in one piece of memory: there may be a hundred thousand of these, most with one address.
//!
//! ```text
//!  question │ chain │ IPv4 addresses and expiries │ IPv6 addresses and expiries
//!  2 octets of length before each name     4 + 8                               16 + 8
//! ```

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_shared::name::DnsName;
use egret_shared::observation::ObservedAddress;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

const LENGTH: usize = 2;
const EXPIRY: usize = 8;
const IPV4: usize = 4 + EXPIRY;
const IPV6: usize = 16 + EXPIRY;

/// A name and its addresses.
#[derive(Debug)]
pub(super) struct NameRecord {
    octets: Box<[u8]>,
    addresses_at: u32,
    ipv6_at: u32,
    latest: Sequence,
    /// The sequence of each address, where not all have the latest one.
    sequences: Option<Box<Box<[Sequence]>>>,
}

/// An address as it was recorded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRecord {
    pub(super) observed: ObservedAddress,
    pub(super) sequence: Sequence,
}

impl NameRecord {
    /// Makes a record of at least one address; those of a family are in ascending order.
    pub(super) fn new<'a>(
        names: impl Iterator<Item = &'a str> + Clone,
        addresses: impl Iterator<Item = AddressRecord> + Clone,
    ) -> Self {
        let of_family = |is_ipv4| {
            let addresses = addresses.clone();
            addresses.filter(move |address| address.observed.address.is_ipv4() == is_ipv4)
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
            match address.observed.address {
                IpAddr::V4(it) => octets.extend_from_slice(&it.octets()),
                IpAddr::V6(it) => octets.extend_from_slice(&it.octets()),
            }
            octets.extend_from_slice(&address.observed.expires.as_millis().to_ne_bytes());
        }
        let mut sequences = addresses.clone().map(|address| address.sequence);
        let latest = sequences.clone().max().unwrap_or(Sequence::ZERO);
        let is_one = sequences.all(|sequence| sequence == latest);
        Self {
            octets: octets.into(),
            addresses_at: offset(addresses_at),
            ipv6_at: offset(ipv6_at),
            latest,
            sequences: (!is_one).then(|| Box::new(in_order().map(|address| address.sequence).collect())),
        }
    }

    /// Whether it is the record of this question.
    pub(super) fn is_of(&self, question: &str) -> bool {
        let behind = self.octets.split_first_chunk::<LENGTH>();
        behind.is_some_and(|(length, behind)| {
            usize::from(u16::from_ne_bytes(*length)) == question.len()
                && behind.starts_with(question.as_bytes())
        })
    }

    /// The text of the question's name.
    pub(super) fn question(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    /// The texts of the question's name and of the names on its CNAME chain.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let mut rest = &self.octets[..self.addresses_at as usize];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<LENGTH>()?;
            let (name, behind) = behind.split_at_checked(u16::from_ne_bytes(*length).into())?;
            rest = behind;
            str::from_utf8(name).ok()
        })
    }

    /// The number of addresses.
    pub(super) const fn len(&self) -> usize {
        let (addresses_at, ipv6_at) = (self.addresses_at as usize, self.ipv6_at as usize);
        (ipv6_at - addresses_at) / IPV4 + (self.octets.len() - ipv6_at) / IPV6
    }

    /// The addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = AddressRecord> {
        (0..self.len()).filter_map(|index| self.address(index))
    }

    /// Finds an address. An equal answer has it at the same index, `likely`, which is tried before a binary search.
    pub(super) fn find(&self, address: IpAddr, likely: usize) -> Option<AddressRecord> {
        let there = self
            .address(likely)
            .filter(|known| known.observed.address == address);
        there.or_else(|| self.search(address))
    }

    /// Binary search.
    fn search(&self, address: IpAddr) -> Option<AddressRecord> {
        let (mut first, mut behind) = (0, self.len());
        while first < behind {
            let middle = first.midpoint(behind);
            let known = self.address(middle)?;
            match known.observed.address.cmp(&address) {
                Ordering::Less => first = middle + 1,
                Ordering::Equal => return Some(known),
                Ordering::Greater => behind = middle,
            }
        }
        None
    }

    fn address(&self, index: usize) -> Option<AddressRecord> {
        let octets = &self.octets[self.addresses_at as usize..];
        let (ipv4, ipv6) = octets.split_at((self.ipv6_at - self.addresses_at) as usize);
        let (ipv4, ipv6) = (ipv4.as_chunks::<IPV4>().0, ipv6.as_chunks::<IPV6>().0);
        let observed = match ipv4.get(index) {
            Some(octets) => observed_address(Ipv4Addr::from(*octets.first_chunk::<4>()?).into(), octets)?,
            None => {
                let octets = ipv6.get(index - ipv4.len())?;
                observed_address(Ipv6Addr::from(*octets.first_chunk::<16>()?).into(), octets)?
            }
        };
        let sequences = self.sequences.as_ref();
        Some(AddressRecord {
            observed,
            sequence: sequences.map_or(self.latest, |sequences| sequences[index]),
        })
    }
}

/// A name by its text in a record.
pub(super) fn name_of(text: &str) -> DnsName {
    let is_plain = text != "." && !text.contains('\\');
    let name = if is_plain {
        DnsName::from_labels(text.split('.').map(str::as_bytes))
    } else {
        text.parse()
    };
    name.expect("it is the text of a name")
}

fn observed_address(address: IpAddr, octets: &[u8]) -> Option<ObservedAddress> {
    let end = u64::from_ne_bytes(*octets.last_chunk()?);
    Some(ObservedAddress {
        address,
        expires: Timestamp::from_millis(end),
    })
}

fn offset(octets: usize) -> u32 {
    u32::try_from(octets).expect("what is observed of a name has no 4 GiB")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_record_round_trips_for_any_names_and_addresses() {
        let texts = ["a.test", "c\\046\\000d.long.test", "."];
        let [one, two] = [1, 2].map(|steps| (0..steps).fold(Sequence::ZERO, |sequence, _| sequence.next()));
        let end = Timestamp::from_millis(u64::MAX / 3);
        let address_record = |address: &str, seconds, sequence| AddressRecord {
            observed: ObservedAddress {
                address: address.parse().unwrap(),
                expires: end.after(Duration::from_secs(seconds)),
            },
            sequence,
        };
        for second in [one, two] {
            let addresses = [
                address_record("192.0.2.1", 1, one),
                address_record("192.0.2.2", u64::MAX / 1000, one),
                address_record("2001:db8::1", 3, second),
            ];
            let mixed = [addresses[2], addresses[0], addresses[1]];
            let name = NameRecord::new(texts.into_iter(), mixed.into_iter());
            assert_eq!(name.names().collect::<Vec<_>>(), texts);
            assert_eq!(
                name.addresses().collect::<Vec<_>>(),
                addresses,
                "IPv4 comes first"
            );
            assert_eq!(name.len(), 3);
            for (index, address) in addresses.iter().enumerate() {
                for likely in [index, 0, 7] {
                    assert_eq!(name.find(address.observed.address, likely), Some(*address));
                }
            }
            assert_eq!(name.find([192, 0, 2, 3].into(), 0), None);
            for text in texts {
                assert_eq!(name_of(text).as_str(), text);
            }
        }
    }
}

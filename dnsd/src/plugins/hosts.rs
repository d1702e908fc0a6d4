//! `hosts`: names and addresses of a file like /etc/hosts.
//!
//! As in CoreDNS: lines of the block are added to those of the file; a name with addresses of one family has none of
//! the other (NODATA); PTR queries are answered; `*.zone` matches one label. Other names get SERVFAIL, since there is
//! no SOA for NXDOMAIN, or continue with `fallthrough`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Outcome, zone_of};
use crate::config::model::{Hosts, Zone};
use crate::dns::message::{CLASS_IN, Data, Query, ResourceRecord, Response, WireName, kind};

/// The table of names and addresses.
#[derive(Clone, Debug)]
pub struct Table {
    plan: Hosts,
    block_zones: Vec<Zone>,
    names: HashMap<Box<[u8]>, Vec<IpAddr>>,
    addresses: HashMap<IpAddr, Vec<WireName>>,
}

impl Table {
    /// Reads the file's text and the lines of the block. Invalid lines are skipped, as usual for such files.
    #[must_use]
    pub fn new(plan: &Hosts, block_zones: &[Zone], text: &str) -> Self {
        let mut table = Self {
            plan: plan.clone(),
            block_zones: block_zones.to_vec(),
            names: HashMap::new(),
            addresses: HashMap::new(),
        };
        for (address, names) in lines(text) {
            names.iter().for_each(|name| table.add(address, name));
        }
        for (address, names) in &plan.inline {
            names.iter().for_each(|name| table.add(*address, name));
        }
        table
    }

    /// Number of entries (`coredns_hosts_entries`).
    #[must_use]
    pub fn len(&self) -> usize {
        let names: usize = self.names.values().map(Vec::len).sum();
        let addresses: usize = self.addresses.values().map(Vec::len).sum();
        names + addresses
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Answers a query.
    #[must_use]
    pub fn answer(&self, query: &Query, udp_size: u16) -> Outcome {
        let question = &query.question;
        let name = &question.name;
        if question.kind == kind::PTR {
            return self.reverse(query, udp_size);
        }
        if zone_of(&self.plan.zones, &self.block_zones, name).is_none() {
            return Outcome::Next;
        }
        let falls_through = self.plan.fallthrough.takes(name);
        let found = self.addresses_of(name);
        let records: Vec<ResourceRecord> = match question.kind {
            kind::A => self.records(query, found, |address| address.is_ipv4()),
            kind::AAAA => self.records(query, found, |address| address.is_ipv6()),
            _unsupported if self.plan.fallthrough_unsupported && falls_through => return Outcome::Next,
            _unsupported => Vec::new(),
        };
        match found {
            [] if falls_through => Outcome::Next,
            [] => Outcome::Fail,
            _some => written(records, query, udp_size),
        }
    }

    /// A PTR query without a match continues whatever `fallthrough` is, as in CoreDNS.
    fn reverse(&self, query: &Query, udp_size: u16) -> Outcome {
        let names = address_of(&query.question.name).and_then(|address| self.addresses.get(&address));
        let Some(names) = names else {
            return Outcome::Next;
        };
        let record = |name: &WireName| self.record(query, kind::PTR, Data::name(*name));
        written(names.iter().map(record).collect(), query, udp_size)
    }

    fn records(
        &self,
        query: &Query,
        addresses: &[IpAddr],
        is_of_family: impl Fn(&IpAddr) -> bool,
    ) -> Vec<ResourceRecord> {
        let of_family = addresses.iter().filter(|address| is_of_family(address));
        let record = |address: &IpAddr| match address {
            IpAddr::V4(address) => self.record(query, kind::A, Data::octets(&address.octets())),
            IpAddr::V6(address) => self.record(query, kind::AAAA, Data::octets(&address.octets())),
        };
        of_family.map(record).collect()
    }

    fn record(&self, query: &Query, kind: u16, data: Data) -> ResourceRecord {
        ResourceRecord {
            owner: query.question.name,
            kind,
            class: CLASS_IN,
            ttl: u32::try_from(self.plan.ttl.as_secs()).unwrap_or(u32::MAX),
            data,
        }
    }

    fn addresses_of(&self, name: &WireName) -> &[IpAddr] {
        let wildcard = || self.names.get(wildcard(name)?.as_octets());
        self.names
            .get(name.as_octets())
            .or_else(wildcard)
            .map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, address: IpAddr, name: &WireName) {
        if zone_of(&self.plan.zones, &self.block_zones, name).is_none() {
            return;
        }
        let address = address.to_canonical();
        self.names
            .entry(name.as_octets().into())
            .or_default()
            .push(address);
        let is_wildcard = name.labels().next() == Some(b"*");
        if self.plan.reverse && !is_wildcard {
            self.addresses.entry(address).or_default().push(*name);
        }
    }
}

fn written(records: Vec<ResourceRecord>, query: &Query, udp_size: u16) -> Outcome {
    Response::own(records)
        .write(query, udp_size)
        .map_or(Outcome::Fail, Outcome::Answer)
}

/// The lines of a file. The zone of an IPv6 address (`fe80::1%eth0`) is dropped: it has no meaning for clients.
fn lines(text: &str) -> impl Iterator<Item = (IpAddr, Vec<WireName>)> {
    text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address = words.next()?;
        let address: IpAddr = address.split('%').next()?.parse().ok()?;
        let names = words.filter_map(|word| WireName::parse(word).ok()).collect();
        Some((address, names))
    })
}

/// `*.zone` of `label.zone`.
fn wildcard(name: &WireName) -> Option<WireName> {
    let first = name.labels().next()?;
    let rest = &name.as_octets()[1 + first.len()..];
    if rest.len() <= 1 {
        return None;
    }
    WireName::read(&[b"\x01*", rest].concat(), 0)
        .ok()
        .map(|(name, _)| name)
}

/// The address of a name under in-addr.arpa or ip6.arpa (RFC 1035 §3.5, RFC 3596 §2.5).
fn address_of(name: &WireName) -> Option<IpAddr> {
    let labels: Vec<&[u8]> = name.labels().collect();
    match labels.as_slice() {
        [numbers @ .., b"in-addr", b"arpa"] if numbers.len() == 4 => {
            let mut octets = [0; 4];
            for (octet, label) in octets.iter_mut().zip(numbers.iter().rev()) {
                *octet = std::str::from_utf8(label).ok()?.parse().ok()?;
            }
            Some(Ipv4Addr::from(octets).into())
        }
        [digits @ .., b"ip6", b"arpa"] if digits.len() == 32 => {
            let mut address = 0_u128;
            for label in digits.iter().rev() {
                let digit = std::str::from_utf8(label).ok().filter(|text| text.len() == 1)?;
                address = address << 4 | u128::from_str_radix(digit, 16).ok()?;
            }
            Some(IpAddr::V6(Ipv6Addr::from(address)).to_canonical())
        }
        _other => None,
    }
}

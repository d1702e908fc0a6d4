//! What an answer tells its client: addresses whose owner is on the chain that starts at the question.
//!
//! Records of other owners are relayed and never learned: an upstream, or whoever writes the zone of one
//! name, must not open addresses under another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use egret_shared::name::DnsName;
use egret_shared::net::IpNet;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::switch::{self, Switch};
use egret_shared::time::{Timestamp, Ttl};

use crate::answer::Answer;
use crate::exchange::Matched;
use crate::message::{CLASS_IN, Message, Record, Section, WireName, kind, rcode};

/// The most aliases that are followed; resolvers give up earlier.
const MAX_CHAIN: usize = 16;

/// What an answer tells, whoever asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    question: DnsName,
    chain: Vec<DnsName>,
    addresses: Vec<ObservedAddress>,
}

impl Told {
    /// The name that was asked for.
    #[must_use]
    pub const fn question(&self) -> &DnsName {
        &self.question
    }

    /// The addresses, each with its end.
    #[must_use]
    pub fn addresses(&self) -> &[ObservedAddress] {
        &self.addresses
    }

    /// The same as told again after this span, with the TTLs of the first time.
    #[must_use]
    pub fn later(&self, by: Duration) -> Self {
        self.ending(|address| address.expires.after(by))
    }

    /// The same with one end for all addresses: a stale answer says nothing else.
    #[must_use]
    pub fn until(&self, end: Timestamp) -> Self {
        self.ending(|_| end)
    }

    fn ending(&self, end: impl Fn(&ObservedAddress) -> Timestamp) -> Self {
        let addresses = self.addresses.iter().map(|told| ObservedAddress {
            expires: end(told),
            ..*told
        });
        Self {
            addresses: addresses.collect(),
            ..self.clone()
        }
    }

    /// The same with these addresses alone; nothing where there are none.
    #[must_use]
    pub fn only(self, addresses: &[ObservedAddress]) -> Option<Self> {
        (!addresses.is_empty()).then(|| Self {
            addresses: addresses.to_vec(),
            ..self
        })
    }

    /// The same as told to one client.
    #[must_use]
    pub fn to(&self, client: IpAddr) -> Observation {
        Observation {
            client,
            question: self.question.clone(),
            chain: self.chain.clone(),
            addresses: self.addresses.clone(),
        }
    }
}

/// Learns from an answer; nothing where it has no addresses of its question. `protected` addresses are left
/// out and counted.
#[must_use]
pub fn observe(answer: &Matched<Answer>, protected: &[IpNet]) -> (Option<Told>, usize) {
    let answer = answer.get();
    let message = answer.message();
    if message.rcode() != rcode::NOERROR || message.is_truncated() || message.question().class != CLASS_IN {
        return (None, 0);
    }
    let records: Vec<Record> = message
        .records()
        .flatten()
        .filter(|record| record.section == Section::Answer && record.class == CLASS_IN)
        .collect();
    let chain = Chain::follow(&message, &records);
    let mut addresses = chain.addresses(&message, &records, answer.arrived());
    let found = addresses.len();
    let is_protected =
        |address| !switch::is_off(Switch::Protect) && protected.iter().any(|net| net.contains(&address));
    addresses.retain(|told| !is_protected(told.address));
    let left_out = found - addresses.len();
    (chain.told(addresses), left_out)
}

/// The names from the question along its aliases, each with the lowest TTL on the way to it.
struct Chain {
    links: Vec<(WireName, Ttl)>,
}

impl Chain {
    fn follow(message: &Message<'_>, records: &[Record]) -> Self {
        let mut links = vec![(message.question().name, Ttl::from_wire(i32::MAX as u32))];
        while links.len() <= MAX_CHAIN && !switch::is_off(Switch::FollowChain) {
            let (owner, lowest) = links[links.len() - 1];
            let Some((target, ttl)) = alias(message.octets(), records, &owner) else {
                break;
            };
            if links.iter().any(|(name, _)| *name == target) {
                break;
            }
            let lowest = if switch::is_off(Switch::LowestTtl) {
                lowest
            } else {
                ttl.min(lowest)
            };
            links.push((target, lowest));
        }
        Self { links }
    }

    fn lowest_ttl(&self, owner: &WireName) -> Option<Ttl> {
        let found = self.links.iter().find(|(name, _)| name == owner);
        match found {
            Some((_, lowest)) => Some(*lowest),
            None if switch::is_off(Switch::ChainOnly) => Some(self.links[0].1),
            None => None,
        }
    }

    fn addresses(
        &self,
        message: &Message<'_>,
        records: &[Record],
        arrived: Timestamp,
    ) -> Vec<ObservedAddress> {
        let mut told: Vec<ObservedAddress> = Vec::new();
        for record in records {
            let data = &message.octets()[record.data.clone()];
            let Some(lowest) = record
                .owner(message.octets())
                .ok()
                .and_then(|owner| self.lowest_ttl(&owner))
            else {
                continue;
            };
            let expires = arrived.after(record.ttl(message.octets()).min(lowest).as_duration());
            told.extend(
                addresses_of(record.kind, data)
                    .into_iter()
                    .map(|address| ObservedAddress { address, expires }),
            );
        }
        told.sort_by_key(|told| (told.address, told.expires));
        told.dedup_by_key(|told| told.address);
        told
    }

    fn told(&self, addresses: Vec<ObservedAddress>) -> Option<Told> {
        let mut names = self.links.iter().map(|(name, _)| name.to_name());
        let question = names.next()?.ok()?;
        let chain: Result<Vec<DnsName>, _> = names.collect();
        (!addresses.is_empty()).then_some(Told {
            question,
            chain: chain.ok()?,
            addresses,
        })
    }
}

fn alias(octets: &[u8], records: &[Record], owner: &WireName) -> Option<(WireName, Ttl)> {
    let record = records
        .iter()
        .find(|record| record.kind == kind::CNAME && record.owner(octets).is_ok_and(|name| name == *owner))?;
    let (target, end) = WireName::read(octets, record.data.start).ok()?;
    (end == record.data.end).then(|| (target, record.ttl(octets)))
}

fn addresses_of(record_kind: u16, data: &[u8]) -> Vec<IpAddr> {
    match record_kind {
        kind::A if data.len() == 4 => ipv4(data).collect(),
        kind::AAAA if data.len() == 16 => ipv6(data).collect(),
        kind::SVCB | kind::HTTPS => hints(data).unwrap_or_default(),
        _other => Vec::new(),
    }
}

fn ipv4(data: &[u8]) -> impl Iterator<Item = IpAddr> {
    let (addresses, _rest) = data.as_chunks::<4>();
    addresses.iter().map(|octets| IpAddr::V4(Ipv4Addr::from(*octets)))
}

fn ipv6(data: &[u8]) -> impl Iterator<Item = IpAddr> {
    let (addresses, _rest) = data.as_chunks::<16>();
    addresses.iter().map(|octets| IpAddr::V6(Ipv6Addr::from(*octets)))
}

/// The addresses that a service binding hints at (RFC 9460 §2.2, §7.3): clients connect to them without
/// asking for A or AAAA.
fn hints(data: &[u8]) -> Option<Vec<IpAddr>> {
    const IPV4_HINT: u16 = 4;
    const IPV6_HINT: u16 = 6;
    let (_target, mut at) = WireName::read(data, 2).ok()?;
    let mut found = Vec::new();
    while at < data.len() {
        let key = u16::from_be_bytes([data[at], *data.get(at + 1)?]);
        let length = usize::from(u16::from_be_bytes([*data.get(at + 2)?, *data.get(at + 3)?]));
        let value: Range<usize> = at + 4..at + 4 + length;
        let value = data.get(value)?;
        match key {
            IPV4_HINT => found.extend(ipv4(value)),
            IPV6_HINT => found.extend(ipv6(value)),
            _other => {}
        }
        at += 4 + length;
    }
    Some(found)
}

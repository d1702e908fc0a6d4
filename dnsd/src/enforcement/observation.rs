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

use crate::dns::answer::Answer;
use crate::dns::message::{CLASS_IN, Question, Record, Section, WireName, kind, rcode};
use crate::upstream::pending_query::Matched;

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
    pub fn to(self, client: IpAddr) -> Observation {
        Observation {
            client,
            question: self.question,
            chain: self.chain,
            addresses: self.addresses,
        }
    }
}

/// Learns from an answer; nothing where it has no addresses of its question. `protected` addresses are left
/// out and counted.
#[must_use]
pub fn observe(answer: &Matched<Answer>, protected: &[IpNet]) -> (Option<Told>, usize) {
    observe_of(answer.get().message().question(), answer, protected)
}

/// The same where its question was read before.
pub(crate) fn observe_of(
    question: &Question,
    answer: &Matched<Answer>,
    protected: &[IpNet],
) -> (Option<Told>, usize) {
    let answer = answer.get();
    if answer.rcode() != rcode::NOERROR || answer.is_truncated() || question.class != CLASS_IN {
        return (None, 0);
    }
    let chain = Chain::follow(question, answer);
    let mut addresses = chain.addresses(answer);
    let found = addresses.len();
    let is_protected =
        |address| !switch::is_off(Switch::Protect) && protected.iter().any(|net| net.contains(&address));
    addresses.retain(|told| !is_protected(told.address));
    let left_out = found - addresses.len();
    (chain.told(addresses), left_out)
}

/// The records that say what was asked for.
fn records(answer: &Answer) -> impl Iterator<Item = Record> {
    let records = answer.records().flatten();
    records.filter(|record| record.section == Section::Answer && record.class == CLASS_IN)
}

/// No TTL is longer (RFC 2181 §8).
const LONGEST: Ttl = Ttl::from_wire(i32::MAX as u32);

/// The names from the question along its aliases.
struct Chain<'a> {
    question: &'a Question,
    /// Each with the lowest TTL on the way to it.
    aliases: Vec<(WireName, Ttl)>,
}

impl<'a> Chain<'a> {
    fn follow(question: &'a Question, answer: &Answer) -> Self {
        // Most answers have none: then this is no memory.
        let records: Vec<Record> = records(answer).filter(|it| it.kind == kind::CNAME).collect();
        let mut chain = Self {
            question,
            aliases: Vec::new(),
        };
        while chain.aliases.len() < MAX_CHAIN && !switch::is_off(Switch::FollowChain) {
            let Some(next) = chain.next(answer.octets(), &records) else {
                break;
            };
            chain.aliases.push(next);
        }
        chain
    }

    /// Where the last name leads, unless that is a name on the chain.
    fn next(&self, octets: &[u8], records: &[Record]) -> Option<(WireName, Ttl)> {
        let last = self.aliases.last();
        let (owner, lowest) = last.map_or((&self.question.name, LONGEST), |(name, lowest)| (name, *lowest));
        let (target, ttl) = alias(octets, records, owner)?;
        let lowest = if switch::is_off(Switch::LowestTtl) {
            lowest
        } else {
            ttl.min(lowest)
        };
        let is_new = self.names().all(|name| *name != target);
        is_new.then_some((target, lowest))
    }

    fn names(&self) -> impl Iterator<Item = &WireName> {
        std::iter::once(&self.question.name).chain(self.aliases.iter().map(|(name, _)| name))
    }

    /// The lowest TTL on the way to the owner of a record, if it is on the chain.
    fn lowest_ttl(&self, record: &Record, octets: &[u8]) -> Option<Ttl> {
        if record.is_of_question(self.question, octets) {
            return Some(LONGEST);
        }
        let mut aliases = self.aliases.iter();
        let found = aliases.find(|(name, _)| record.is_of(name, octets));
        let found = found.map(|(_, lowest)| *lowest);
        found.or_else(|| switch::is_off(Switch::ChainOnly).then_some(LONGEST))
    }

    fn addresses(&self, answer: &Answer) -> Vec<ObservedAddress> {
        let (octets, mut told) = (answer.octets(), Vec::new());
        for record in records(answer) {
            let Some(lowest) = self.lowest_ttl(&record, octets) else {
                continue;
            };
            let expires = answer
                .arrived()
                .after(record.ttl(octets).min(lowest).as_duration());
            each_address(record.kind, &octets[record.data], |address| {
                told.push(ObservedAddress { address, expires });
            });
        }
        told.sort_by_key(|told| (told.address, told.expires));
        told.dedup_by_key(|told| told.address);
        told
    }

    fn told(&self, addresses: Vec<ObservedAddress>) -> Option<Told> {
        if addresses.is_empty() {
            return None;
        }
        let mut names = self.names().map(WireName::to_name);
        let question = names.next()?.ok()?;
        let chain: Result<Vec<DnsName>, _> = names.collect();
        Some(Told {
            question,
            chain: chain.ok()?,
            addresses,
        })
    }
}

fn alias(octets: &[u8], records: &[Record], owner: &WireName) -> Option<(WireName, Ttl)> {
    let record = records.iter().find(|record| record.is_of(owner, octets))?;
    let (target, end) = WireName::read(octets, record.data.start).ok()?;
    (end == record.data.end).then(|| (target, record.ttl(octets)))
}

fn each_address(record_kind: u16, data: &[u8], tell: impl FnMut(IpAddr)) {
    match record_kind {
        kind::A if data.len() == 4 => ipv4(data).for_each(tell),
        kind::AAAA if data.len() == 16 => ipv6(data).for_each(tell),
        kind::SVCB | kind::HTTPS => hints(data).into_iter().flatten().for_each(tell),
        _other => {}
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

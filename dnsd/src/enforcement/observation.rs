//! Observes the addresses of an answer: those whose owner is on the CNAME chain that starts at the question.
//!
//! Records of other owners are relayed and never observed: an upstream, or the author of one name's zone, must not open
//! addresses under another name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use egret_shared::name::DnsName;
use egret_shared::net::IpNet;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::{Timestamp, Ttl};

use crate::dns::answer::Answer;
use crate::dns::message::{CLASS_IN, Question, Record, Section, WireName, kind, rcode};
use crate::upstream::pending_query::ValidatedResponse;

/// The most aliases that are followed; resolvers give up earlier.
const MAX_CHAIN: usize = 16;

/// The addresses that an answer gives, for any client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerObservation {
    question: DnsName,
    chain: Vec<DnsName>,
    addresses: Vec<ObservedAddress>,
}

impl AnswerObservation {
    /// The question's name.
    #[must_use]
    pub const fn question(&self) -> &DnsName {
        &self.question
    }

    /// The addresses, each with its expiry.
    #[must_use]
    pub fn addresses(&self) -> &[ObservedAddress] {
        &self.addresses
    }

    /// The same observation later by this span: all addresses expire later by it.
    #[must_use]
    pub fn later(&self, by: Duration) -> Self {
        self.with_expiry(|address| address.expires.after(by))
    }

    /// The same with one expiry for all addresses, as a stale answer has it.
    #[must_use]
    pub fn expiring(&self, end: Timestamp) -> Self {
        self.with_expiry(|_| end)
    }

    fn with_expiry(&self, end: impl Fn(&ObservedAddress) -> Timestamp) -> Self {
        let addresses = self.addresses.iter().map(|observed| ObservedAddress {
            expires: end(observed),
            ..*observed
        });
        Self {
            addresses: addresses.collect(),
            ..self.clone()
        }
    }

    /// The same with these addresses alone; `None` where there are none.
    #[must_use]
    pub fn only(self, addresses: &[ObservedAddress]) -> Option<Self> {
        (!addresses.is_empty()).then(|| Self {
            addresses: addresses.to_vec(),
            ..self
        })
    }

    /// The observation of one client.
    #[must_use]
    pub fn for_client(self, client: IpAddr) -> Observation {
        Observation {
            client,
            question: self.question,
            chain: self.chain,
            addresses: self.addresses,
        }
    }
}

/// Observes an answer; `None` where it has no addresses of its question. `protected` addresses are left out and counted.
#[must_use]
pub fn observe(
    answer: &ValidatedResponse<Answer>,
    protected: &[IpNet],
) -> (Option<AnswerObservation>, usize) {
    observe_of(answer.get().message().question(), answer, protected)
}

/// The same for a caller that has read the question.
pub(crate) fn observe_of(
    question: &Question,
    answer: &ValidatedResponse<Answer>,
    protected: &[IpNet],
) -> (Option<AnswerObservation>, usize) {
    let answer = answer.get();
    if answer.rcode() != rcode::NOERROR || answer.is_truncated() || question.class != CLASS_IN {
        return (None, 0);
    }
    let chain = Chain::follow(question, answer);
    let mut addresses = chain.addresses(answer);
    let found = addresses.len();
    let is_protected = |address| protected.iter().any(|net| net.contains(&address));
    addresses.retain(|observed| !is_protected(observed.address));
    let left_out = found - addresses.len();
    (chain.observation(addresses), left_out)
}

/// The records of the answer section.
fn records(answer: &Answer) -> impl Iterator<Item = Record> {
    let records = answer.records().flatten();
    records.filter(|record| record.section == Section::Answer && record.class == CLASS_IN)
}

/// The longest TTL (RFC 2181 §8).
const LONGEST: Ttl = Ttl::from_wire(i32::MAX as u32);

/// The CNAME chain of a question.
struct Chain<'a> {
    question: &'a Question,
    /// The names it leads to, each with the lowest TTL of the CNAME records before it.
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
        while chain.aliases.len() < MAX_CHAIN {
            let Some(next) = chain.next(answer.octets(), &records) else {
                break;
            };
            chain.aliases.push(next);
        }
        chain
    }

    /// The target of the last name, unless it is on the chain already.
    fn next(&self, octets: &[u8], records: &[Record]) -> Option<(WireName, Ttl)> {
        let last = self.aliases.last();
        let (owner, lowest) = last.map_or((&self.question.name, LONGEST), |(name, lowest)| (name, *lowest));
        let (target, ttl) = alias(octets, records, owner)?;
        let lowest = ttl.min(lowest);
        let is_new = self.names().all(|name| *name != target);
        is_new.then_some((target, lowest))
    }

    fn names(&self) -> impl Iterator<Item = &WireName> {
        std::iter::once(&self.question.name).chain(self.aliases.iter().map(|(name, _)| name))
    }

    /// The lowest TTL of the CNAME records that lead to the owner of a record, if it is on the chain.
    fn lowest_ttl(&self, record: &Record, octets: &[u8]) -> Option<Ttl> {
        if record.is_of_question(self.question, octets) {
            return Some(LONGEST);
        }
        let mut aliases = self.aliases.iter();
        let found = aliases.find(|(name, _)| record.is_of(name, octets));
        found.map(|(_, lowest)| *lowest)
    }

    fn addresses(&self, answer: &Answer) -> Vec<ObservedAddress> {
        let (octets, mut observed) = (answer.octets(), Vec::new());
        for record in records(answer) {
            let Some(lowest) = self.lowest_ttl(&record, octets) else {
                continue;
            };
            let expires = answer
                .arrived()
                .after(record.ttl(octets).min(lowest).as_duration());
            each_address(record.kind, &octets[record.data], |address| {
                observed.push(ObservedAddress { address, expires });
            });
        }
        observed.sort_by_key(|observed| (observed.address, observed.expires));
        observed.dedup_by_key(|observed| observed.address);
        observed
    }

    fn observation(&self, addresses: Vec<ObservedAddress>) -> Option<AnswerObservation> {
        if addresses.is_empty() {
            return None;
        }
        let mut names = self.names().map(WireName::to_name);
        let question = names.next()?.ok()?;
        let chain: Result<Vec<DnsName>, _> = names.collect();
        Some(AnswerObservation {
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

/// The address hints of a service binding (RFC 9460 §2.2, §7.3): clients connect to them without querying A or AAAA.
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

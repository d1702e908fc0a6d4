//! Whether and for how long an answer is cached, and with which TTLs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::model::{CacheRules, Capacity, Zone};
use crate::dns::answer::TtlLimits;
use crate::dns::message::{Malformed, Message, Record, Section, WireName, kind, rcode};

/// The most aliases that are followed; resolvers give up earlier.
const MAX_CHAIN: usize = 16;
/// The lifetime of a referral or an answer without records and SOA, as in CoreDNS.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(5);
/// Transfers of zones (RFC 1995, RFC 5936).
const TRANSFERS: [u16; 2] = [251, 252];

/// A half of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Positive answers.
    Success,
    /// NXDOMAIN, NODATA and failures.
    Denial,
}

labels! { Class: Success => "success", Denial => "denial" }

/// Where an answer's content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provenance {
    /// An upstream, with its denial unchanged.
    Upstream,
    /// dnsd: a template, a rewritten code. A name that it denies may exist for other types (a template that denies all AAAA
    /// is common).
    Local,
}

/// What an answer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The queried records.
    Answer,
    /// A referral, or no records at all.
    Other,
    /// NODATA: none of the queried type.
    Denial,
    /// NXDOMAIN, for all types (RFC 2308 §5).
    NameError,
    /// A server failure (RFC 9520).
    Failure,
}

impl Kind {
    /// The half of the cache that stores it.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Self::Answer | Self::Other => Class::Success,
            Self::Denial | Self::NameError | Self::Failure => Class::Denial,
        }
    }
}

/// How an answer is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cacheable {
    /// Its kind.
    pub kind: Kind,
    /// For how long, from its arrival.
    pub lifetime: Duration,
}

/// How an answer is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cacheability {
    /// The bounds of its TTLs, applied before it is sent or observed.
    pub ttls: TtlLimits,
    kind: Option<Kind>,
    lifetime: Option<Duration>,
}

impl Cacheability {
    /// Classifies an answer to a question that the cache covers.
    #[must_use]
    pub fn of(rules: &CacheRules, message: &Message<'_>, provenance: Provenance) -> Self {
        let contents = Contents::read(message).ok();
        let found = contents
            .as_ref()
            .and_then(|contents| Some((contents, contents.kind(message, provenance)?)));
        let Some((contents, kind)) = found else {
            return Self {
                ttls: limits(&rules.success),
                kind: None,
                lifetime: None,
            };
        };
        let lifetime = contents.lifetime(rules, kind);
        let is_kept = !lifetime.is_zero() && !is_disabled(rules, kind, &message.question().name);
        Self {
            ttls: ttls(rules, kind, lifetime),
            kind: Some(kind),
            lifetime: is_kept.then_some(lifetime),
        }
    }

    /// How it is cached, if it is.
    #[must_use]
    pub fn kept(&self) -> Option<Cacheable> {
        let (kind, lifetime) = (self.kind?, self.lifetime?);
        Some(Cacheable { kind, lifetime })
    }

    /// Whether it replaces a stale answer (RFC 8767 §4: no failure does); where positive answers are preferred, only a positive
    /// one does.
    #[must_use]
    pub fn refreshes(&self, rules: &CacheRules) -> bool {
        let prefers_positive = rules.serve_stale.is_some_and(|stale| stale.prefers_positive);
        match self.kind {
            Some(Kind::Answer) => true,
            Some(Kind::Other | Kind::Denial | Kind::NameError) => !prefers_positive,
            Some(Kind::Failure) | None => false,
        }
    }
}

fn ttls(rules: &CacheRules, kind: Kind, lifetime: Duration) -> TtlLimits {
    let at_most = seconds(lifetime);
    match kind {
        Kind::Answer => limits(&rules.success),
        // The SOA's TTL bounds the client's negative cache (RFC 2308 §5): no longer than ours.
        Kind::Other | Kind::Denial | Kind::NameError => TtlLimits {
            at_least: at_most.min(seconds(capacity(rules, kind).min_ttl)),
            at_most,
        },
        Kind::Failure => TtlLimits { at_least: 0, at_most },
    }
}

const fn capacity(rules: &CacheRules, kind: Kind) -> &Capacity {
    match kind.class() {
        Class::Success => &rules.success,
        Class::Denial => &rules.denial,
    }
}

fn limits(capacity: &Capacity) -> TtlLimits {
    let at_most = seconds(capacity.max_ttl);
    TtlLimits {
        at_least: at_most.min(seconds(capacity.min_ttl)),
        at_most,
    }
}

fn seconds(span: Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}

fn is_disabled(rules: &CacheRules, kind: Kind, name: &WireName) -> bool {
    let zones: Option<&Vec<Zone>> = match kind.class() {
        Class::Success => rules.disabled.success.as_ref(),
        Class::Denial => rules.disabled.denial.as_ref(),
    };
    zones.is_some_and(|zones| zones.is_empty() || zones.iter().any(|zone| zone.holds(name)))
}

/// The content of an answer.
#[derive(Debug, Default)]
struct Contents {
    answers: usize,
    has_aliases: bool,
    answers_the_question: bool,
    has_soa: bool,
    /// The OPT has upper bits of the code (RFC 6891 §6.1.3).
    is_extended_code: bool,
    /// Of all records; a denial counts the SOA's MINIMUM too (RFC 2308 §5).
    lowest_ttl: Option<u32>,
    soa_minimum: Option<u32>,
}

impl Contents {
    fn read(message: &Message<'_>) -> Result<Self, Malformed> {
        let mut contents = Self::default();
        for record in message.records() {
            contents.take(message, &record?);
        }
        if contents.has_aliases && !is_for_aliases(message.question().kind) {
            contents.answers_the_question = ends_with_an_answer(message);
        }
        Ok(contents)
    }

    fn take(&mut self, message: &Message<'_>, record: &Record) {
        let octets = message.octets();
        if record.kind == kind::OPT {
            self.is_extended_code |= octets[record.ttl_at] != 0;
            return;
        }
        if record.section == Section::Answer {
            self.answers += 1;
            self.has_aliases |= record.kind == kind::CNAME;
            self.answers_the_question |=
                is_queried(record, message) && record.is_of_question(message.question(), octets);
        }
        let ttl = record.ttl(octets).seconds();
        self.lowest_ttl = Some(self.lowest_ttl.map_or(ttl, |lowest| lowest.min(ttl)));
        if record.section == Section::Authority && record.kind == kind::SOA {
            self.has_soa = true;
            let minimum = octets[record.data.clone()].last_chunk::<4>();
            self.soa_minimum = minimum.map(|octets| u32::from_be_bytes(*octets));
        }
    }

    fn kind(&self, message: &Message<'_>, provenance: Provenance) -> Option<Kind> {
        if message.is_truncated() || self.is_extended_code || TRANSFERS.contains(&message.question().kind) {
            return None;
        }
        match message.rcode() {
            rcode::NOERROR if self.answers_the_question => Some(Kind::Answer),
            rcode::NOERROR if self.has_soa => Some(Kind::Denial),
            // A CNAME chain without an end and without an SOA (RFC 2308 §5).
            rcode::NOERROR if self.answers > 0 => None,
            rcode::NOERROR => Some(Kind::Other),
            rcode::NXDOMAIN if !self.has_soa => None,
            // The denied name is the end of the CNAME chain (RFC 6604 §3), not the queried one.
            rcode::NXDOMAIN if self.answers > 0 || provenance == Provenance::Local => Some(Kind::Denial),
            rcode::NXDOMAIN => Some(Kind::NameError),
            rcode::SERVFAIL | rcode::NOTIMP => Some(Kind::Failure),
            _other => None,
        }
    }

    fn lifetime(&self, rules: &CacheRules, kind: Kind) -> Duration {
        let said = match kind {
            Kind::Failure => return rules.servfail,
            Kind::Other => DEFAULT_LIFETIME,
            Kind::Answer => self
                .lowest_ttl
                .map_or(DEFAULT_LIFETIME, |ttl| Duration::from_secs(ttl.into())),
            Kind::Denial | Kind::NameError => {
                let lowest = self.lowest_ttl.into_iter().chain(self.soa_minimum).min();
                Duration::from_secs(lowest.unwrap_or(0).into())
            }
        };
        let capacity = capacity(rules, kind);
        said.max(capacity.min_ttl).min(capacity.max_ttl)
    }
}

/// Whether a CNAME is itself an answer.
const fn is_for_aliases(asked: u16) -> bool {
    matches!(asked, kind::CNAME | kind::ANY)
}

/// Whether a record is of the queried type.
fn is_queried(record: &Record, message: &Message<'_>) -> bool {
    let asked = message.question().kind;
    record.kind == asked || asked == kind::ANY
}

/// Whether a record of the queried type is at the end of the CNAME chain (RFC 1034 §3.6.2).
fn ends_with_an_answer(message: &Message<'_>) -> bool {
    end_of_aliases(message).is_some_and(|end| {
        answers(message).any(|record| is_queried(&record, message) && record.is_of(&end, message.octets()))
    })
}

/// The end of the CNAME chain; `None` for a loop. CNAME records are in order nearly always: one pass does.
fn end_of_aliases(message: &Message<'_>) -> Option<WireName> {
    let mut end = message.question().name;
    let mut followed = 0;
    loop {
        let before = followed;
        for record in answers(message).filter(|record| record.kind == kind::CNAME) {
            if record.is_of(&end, message.octets()) {
                end = WireName::read(message.octets(), record.data.start).ok()?.0;
                followed += 1;
            }
            if followed > MAX_CHAIN {
                return None;
            }
        }
        if before == followed {
            return Some(end);
        }
    }
}

fn answers<'a>(message: &Message<'a>) -> impl Iterator<Item = Record> + use<'a> {
    let records = message.records().flatten();
    records.filter(|record| record.section == Section::Answer)
}

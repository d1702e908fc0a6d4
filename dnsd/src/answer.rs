//! An answer as it came from an upstream, with the places where it is patched for each client.

use std::time::Duration;

use egret_shared::time::{Timestamp, Ttl};

use crate::message::{HEADER, Malformed, Message, Query, Question, Section, kind, rcode, truncated_reply};

/// The octets of an answer and what dnsd needs to know of them.
#[derive(Clone, Debug)]
pub struct Answer {
    octets: Vec<u8>,
    question_end: usize,
    arrived: Timestamp,
    /// Where TTLs stand; nothing where the records cannot be read: such an answer is relayed as it is, for once.
    ttls: Option<Vec<usize>>,
}

impl Answer {
    /// Takes the octets of a message whose question was read. TTLs are brought between `limits`.
    #[must_use]
    pub fn new(octets: Vec<u8>, question: &Question, arrived: Timestamp, limits: &TtlLimits) -> Self {
        let ttls = Message::read(&octets)
            .and_then(|message| ttl_places(&message))
            .ok();
        let mut answer = Self {
            octets,
            question_end: question.end,
            arrived,
            ttls,
        };
        let places = answer.ttls.as_deref().unwrap_or_default();
        rewrite_ttls(&mut answer.octets, places, |seconds| {
            seconds.clamp(limits.at_least, limits.at_most)
        });
        answer
    }

    /// The message.
    ///
    /// # Panics
    /// Never: it was read before.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        Message::read(&self.octets).expect("the question of an answer was read when it arrived")
    }

    /// When it arrived from the upstream.
    #[must_use]
    pub const fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// Octets that it takes in memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.octets.len()
            + self
                .ttls
                .as_ref()
                .map_or(0, |places| places.len() * size_of::<usize>())
    }

    /// The code of the header.
    #[must_use]
    pub fn rcode(&self) -> u8 {
        self.message().rcode()
    }

    /// How long others may be given this answer; nothing where they may not.
    ///
    /// The lowest TTL of the answers; without an answer of the type asked for, what the SOA allows (RFC 2308 §5).
    /// An answer that was cut, that failed or cannot be read is for nobody else.
    #[must_use]
    pub fn lifetime(&self, at_most_negative: Duration) -> Option<Duration> {
        let message = self.message();
        if self.ttls.is_none() || message.is_truncated() {
            return None;
        }
        let positive = lowest_answer_ttl(&message).map(|seconds| Duration::from_secs(seconds.into()));
        let lifetime = match message.rcode() {
            rcode::NOERROR if has_answer(&message) => positive?,
            rcode::NOERROR | rcode::NXDOMAIN => {
                let negative = negative_ttl(&message)?.min(at_most_negative);
                positive.map_or(negative, |positive| positive.min(negative))
            }
            _other => return None,
        };
        (!lifetime.is_zero()).then_some(lifetime)
    }

    /// Whether its records can be read; if not, it is relayed and nothing is learned from it.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.ttls.is_some()
    }

    /// The reply for one client: its id, its case of the question, TTLs counted down.
    #[must_use]
    pub fn reply(&self, query: &Query, now: Timestamp) -> Vec<u8> {
        let mut reply = self.octets.clone();
        let age = u32::try_from(now.since(self.arrived).as_secs()).unwrap_or(u32::MAX);
        if age > 0 {
            let places = self.ttls.as_deref().unwrap_or_default();
            rewrite_ttls(&mut reply, places, |seconds| seconds.saturating_sub(age));
        }
        reply[..2].copy_from_slice(&query.id.to_be_bytes());
        if self.question_end - HEADER == query.raw_question.len() {
            reply[HEADER..self.question_end].copy_from_slice(&query.raw_question);
        }
        reply
    }

    /// The same, no longer than `limit`, and whether it is whole: an answer that does not fit becomes one without
    /// records that says so (RFC 2181 §9).
    #[must_use]
    pub fn reply_within(
        &self,
        query: &Query,
        now: Timestamp,
        limit: usize,
        udp_size: u16,
    ) -> (Vec<u8>, bool) {
        if self.octets.len() > limit {
            (truncated_reply(query, self.rcode(), udp_size), false)
        } else {
            (self.reply(query, now), true)
        }
    }
}

/// Between what TTLs are brought when an answer arrives; what the client is told is what is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlLimits {
    /// Seconds.
    pub at_least: u32,
    /// Seconds.
    pub at_most: u32,
}

fn rewrite_ttls(octets: &mut [u8], places: &[usize], rewrite: impl Fn(u32) -> u32) {
    for at in places {
        let place = &mut octets[*at..*at + 4];
        let seconds = Ttl::from_wire(u32::from_be_bytes([place[0], place[1], place[2], place[3]]));
        place.copy_from_slice(&rewrite(seconds.seconds()).to_be_bytes());
    }
}

fn ttl_places(message: &Message<'_>) -> Result<Vec<usize>, Malformed> {
    let mut places = Vec::with_capacity(4);
    for record in message.records() {
        let record = record?;
        if record.kind != kind::OPT {
            places.push(record.ttl_at);
        }
    }
    Ok(places)
}

fn has_answer(message: &Message<'_>) -> bool {
    let asked = message.question().kind;
    message
        .records()
        .flatten()
        .any(|record| record.section == Section::Answer && (record.kind == asked || asked == kind::ANY))
}

fn lowest_answer_ttl(message: &Message<'_>) -> Option<u32> {
    message
        .records()
        .flatten()
        .filter(|record| record.section == Section::Answer)
        .map(|record| record.ttl(message.octets()).seconds())
        .min()
}

/// RFC 2308 §5: the lower of the SOA's TTL and its MINIMUM, which is the last field of its data.
fn negative_ttl(message: &Message<'_>) -> Option<Duration> {
    let soa = message
        .records()
        .flatten()
        .find(|record| record.section == Section::Authority && record.kind == kind::SOA)?;
    let minimum = message.octets()[soa.data.clone()]
        .last_chunk::<4>()
        .map(|octets| u32::from_be_bytes(*octets))?;
    let seconds = soa.ttl(message.octets()).seconds().min(minimum);
    Some(Duration::from_secs(seconds.into()))
}

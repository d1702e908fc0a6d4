//! A client's query: what dnsd needs of it, or how it is refused.

use super::malformed::Malformed;
use super::name::WireName;
use super::read::{Message, Question, Record, Section};
use super::{HEADER, flag, kind, rcode};

/// Options that speak of one hop only: they are not passed on, and an answer does not depend on them.
/// Cookie (RFC 7873 §1), keepalive (RFC 7828 §3.3), padding (RFC 7830 §3).
const HOP_BY_HOP: [u16; 3] = [10, 11, 12];

/// What a client said by EDNS (RFC 6891).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edns {
    /// The largest datagram that it takes.
    pub udp_size: u16,
    /// Whether it asks for DNSSEC records.
    pub dnssec: bool,
    /// Options that go on to the upstream; with any, the answer is for this client alone.
    pub options: Vec<u8>,
}

/// A query that dnsd can answer.
#[derive(Clone, Debug)]
pub struct Query {
    /// The id.
    pub id: u16,
    /// The flags.
    pub flags: u16,
    /// The question, its name in lower case.
    pub question: Question,
    /// The question as the client wrote it: name in its case, type, class.
    pub raw_question: Vec<u8>,
    /// What it said by EDNS, if anything.
    pub edns: Option<Edns>,
}

/// What becomes of octets that are no query for dnsd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing: no header, or a response (two servers must not answer each other for ever).
    Silence,
    /// A reply with this code and without records.
    Reply(u8),
    /// The client speaks an EDNS version other than 0 (RFC 6891 §6.1.3).
    BadVersion,
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// How to refuse it.
    pub fn read(octets: &[u8]) -> Result<Self, Refusal> {
        let flags = match octets.get(2..4) {
            Some(pair) if octets.len() >= HEADER => u16::from_be_bytes([pair[0], pair[1]]),
            Some(_) | None => return Err(Refusal::Silence),
        };
        if flags & flag::QR != 0 {
            return Err(Refusal::Silence);
        }
        if flags >> 11 & 0xf != 0 {
            return Err(Refusal::Reply(rcode::NOTIMP));
        }
        let message = Message::read(octets).map_err(|_malformed| Refusal::Reply(rcode::FORMERR))?;
        Self::of(&message)
    }

    /// The same query with another question.
    #[must_use]
    pub fn asking(&self, name: &WireName, kind: u16, class: u16) -> Self {
        let octets = name.as_octets();
        let raw_question = [octets, &kind.to_be_bytes(), &class.to_be_bytes()].concat();
        Self {
            id: self.id,
            flags: self.flags,
            question: Question {
                name: *name,
                kind,
                class,
                end: HEADER + raw_question.len(),
            },
            raw_question,
            edns: self.edns.clone(),
        }
    }

    /// The largest answer that may go to this client in a datagram (RFC 6891 §6.2.3; RFC 1035 §4.2.1).
    #[must_use]
    pub fn datagram_limit(&self, at_most: u16) -> usize {
        let size = self.edns.as_ref().map_or(512, |edns| edns.udp_size.max(512));
        usize::from(size.min(at_most))
    }

    fn of(message: &Message<'_>) -> Result<Self, Refusal> {
        let question = *message.question();
        let raw_question = message.raw_question().to_vec();
        if raw_question.len() != question.name.as_octets().len() + 4 {
            return Err(Refusal::Reply(rcode::FORMERR));
        }
        Ok(Self {
            id: message.id(),
            flags: message.flags(),
            question,
            raw_question,
            edns: read_edns(message)?,
        })
    }
}

fn read_edns(message: &Message<'_>) -> Result<Option<Edns>, Refusal> {
    let mut found = None;
    for record in message.records() {
        let record = record.map_err(|_malformed| Refusal::Reply(rcode::FORMERR))?;
        if record.section != Section::Additional || record.kind != kind::OPT {
            continue;
        }
        if found.is_some() || message.octets()[record.owner_at] != 0 {
            return Err(Refusal::Reply(rcode::FORMERR));
        }
        found = Some(edns_of(message.octets(), &record)?);
    }
    Ok(found)
}

fn edns_of(octets: &[u8], record: &Record) -> Result<Edns, Refusal> {
    let [_extended, version, high, _low] = octets[record.ttl_at..]
        .first_chunk::<4>()
        .copied()
        .expect("a record that was read has a whole TTL");
    if version != 0 {
        return Err(Refusal::BadVersion);
    }
    Ok(Edns {
        udp_size: record.class,
        dnssec: high & 0x80 != 0,
        options: end_to_end(&octets[record.data.clone()])
            .map_err(|_malformed| Refusal::Reply(rcode::FORMERR))?,
    })
}

fn end_to_end(mut data: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut kept = Vec::new();
    while !data.is_empty() {
        let header = data.first_chunk::<4>().ok_or(Malformed::Cut(0))?;
        let code = u16::from_be_bytes([header[0], header[1]]);
        let length = 4 + usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (option, rest) = data.split_at_checked(length).ok_or(Malformed::Cut(0))?;
        if !HOP_BY_HOP.contains(&code) {
            kept.extend_from_slice(option);
        }
        data = rest;
    }
    Ok(kept)
}

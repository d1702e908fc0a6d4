//! A client's query, or the refusal of one.

use std::borrow::Cow;

use super::malformed::Malformed;
use super::name::WireName;
use super::read::{Message, Question, Record, Records, Section};
use super::{CLASS_IN, HEADER, flag, kind, rcode};

/// Options of one hop: cookie (RFC 7873 §1), keepalive (RFC 7828 §3.3), padding (RFC 7830 §3). They are not forwarded,
/// and the answer does not depend on them.
const HOP_BY_HOP: [u16; 3] = [10, 11, 12];

/// The EDNS fields of a query (RFC 6891).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edns {
    /// The largest datagram that the client accepts, in octets.
    pub udp_size: u16,
    /// DO: whether DNSSEC records are requested.
    pub dnssec: bool,
    /// Options that are forwarded. With any, the answer is for this client alone.
    pub options: Vec<u8>,
}

/// A query that dnsd can answer. Its question is borrowed from the datagram while it is processed.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The id.
    pub id: u16,
    /// The flags.
    pub flags: u16,
    /// The question, its name in lower case.
    pub question: Question,
    /// The question as the client sent it: name in its case, type, class.
    pub raw_question: Cow<'a, [u8]>,
    /// EDNS, if the query has an OPT.
    pub edns: Option<Edns>,
}

/// The response to octets that are not an acceptable query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No response: no header, or a response (two servers must not answer each other for ever).
    Silence,
    /// A reply without records, with this code.
    Reply(u8),
    /// The EDNS version is not 0 (RFC 6891 §6.1.3).
    BadVersion,
}

impl Query<'static> {
    /// A query that dnsd itself makes.
    #[must_use]
    pub fn own(name: WireName, kind: u16, recursion: bool) -> Self {
        let mut raw_question = name.as_octets().to_vec();
        raw_question.extend_from_slice(&kind.to_be_bytes());
        raw_question.extend_from_slice(&CLASS_IN.to_be_bytes());
        Self {
            id: 0,
            flags: if recursion { flag::RD } else { 0 },
            question: Question {
                name,
                kind,
                class: CLASS_IN,
                end: HEADER + raw_question.len(),
            },
            raw_question: raw_question.into(),
            edns: None,
        }
    }
}

impl<'a> Query<'a> {
    /// A query that is not read yet.
    pub(crate) const UNREAD: Self = Self {
        id: 0,
        flags: 0,
        question: Question::UNREAD,
        raw_question: Cow::Borrowed(&[]),
        edns: None,
    };

    /// Reads a query.
    ///
    /// # Errors
    /// The refusal.
    pub fn read(octets: &'a [u8]) -> Result<Self, Refusal> {
        let mut query = Self::UNREAD;
        query.fill(octets)?;
        Ok(query)
    }

    /// As [`read`](Self::read), into `self`: a move of 300 octets costs.
    pub(crate) fn fill(&mut self, octets: &'a [u8]) -> Result<(), Refusal> {
        let Some([id, flags, ..]) = octets.first_chunk::<HEADER>().map(|header| header.as_chunks().0) else {
            return Err(Refusal::Silence);
        };
        (self.id, self.flags) = (u16::from_be_bytes(*id), u16::from_be_bytes(*flags));
        if self.flags & flag::QR != 0 {
            return Err(Refusal::Silence);
        }
        if self.flags >> 11 & 0xf != 0 {
            return Err(Refusal::Reply(rcode::NOTIMP));
        }
        self.fill_question(octets)?;
        self.edns = read_edns(octets, self.question.end)?;
        Ok(())
    }

    fn fill_question(&mut self, octets: &'a [u8]) -> Result<(), Refusal> {
        let read = self.question.fill(octets);
        read.map_err(|_malformed| Refusal::Reply(rcode::FORMERR))?;
        let raw_question = &octets[HEADER..self.question.end];
        if raw_question.len() != self.question.name.as_octets().len() + 4 {
            return Err(Refusal::Reply(rcode::FORMERR));
        }
        self.raw_question = Cow::Borrowed(raw_question);
        Ok(())
    }

    /// A copy that outlives the datagram.
    #[must_use]
    pub fn owned(&self) -> Query<'static> {
        Query {
            id: self.id,
            flags: self.flags,
            question: self.question,
            raw_question: Cow::Owned(self.raw_question.to_vec()),
            edns: self.edns.clone(),
        }
    }

    /// The same query with another question.
    #[must_use]
    pub fn asking(&self, name: &WireName, kind: u16, class: u16) -> Query<'static> {
        let octets = name.as_octets();
        let raw_question = [octets, &kind.to_be_bytes(), &class.to_be_bytes()].concat();
        Query {
            id: self.id,
            flags: self.flags,
            question: Question {
                name: *name,
                kind,
                class,
                end: HEADER + raw_question.len(),
            },
            raw_question: Cow::Owned(raw_question),
            edns: self.edns.clone(),
        }
    }

    /// The largest datagram for this client, in octets (RFC 6891 §6.2.3; RFC 1035 §4.2.1).
    #[must_use]
    pub fn datagram_limit(&self, at_most: u16) -> usize {
        let size = self.edns.as_ref().map_or(512, |edns| edns.udp_size.max(512));
        usize::from(size.min(at_most))
    }
}

fn read_edns(octets: &[u8], question_end: usize) -> Result<Option<Edns>, Refusal> {
    let mut found = None;
    for record in Records::behind(question_end, octets) {
        let record = record.map_err(|_malformed| Refusal::Reply(rcode::FORMERR))?;
        if record.section != Section::Additional || record.kind != kind::OPT {
            continue;
        }
        if found.is_some() || octets[record.owner_at] != 0 {
            return Err(Refusal::Reply(rcode::FORMERR));
        }
        found = Some(edns_of(octets, &record)?);
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

/// Whether a valid query has this EDNS option.
pub(crate) fn has_option(octets: &[u8], option: u16) -> bool {
    let Ok(message) = Message::read(octets) else {
        return false;
    };
    let records = message.records().map_while(Result::ok);
    let mut opts = records.filter(|record| record.kind == kind::OPT);
    opts.any(|record| {
        let mut data = &octets[record.data];
        while let Some([code_high, code_low, high, low]) = data.first_chunk::<4>() {
            if u16::from_be_bytes([*code_high, *code_low]) == option {
                return true;
            }
            let length = 4 + usize::from(u16::from_be_bytes([*high, *low]));
            data = data.get(length..).unwrap_or_default();
        }
        false
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

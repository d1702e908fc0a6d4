//! Responses that dnsd encodes: hosts, templates, and answers that a rule changed.
//!
//! The question is repeated as received. Names that occur before become pointers (RFC 1035 §4.1.4). An OPT is added if
//! the client sent one (RFC 6891 §6.1.1).

use std::collections::HashMap;

use super::malformed::Malformed;
use super::name::WireName;
use super::query::Query;
use super::read::Message;
use super::record::{Compression, Part, ResourceRecord, Sections};
use super::{HEADER, flag, kind, rcode};

/// A pointer has 14 bits (RFC 1035 §4.1.4).
const POINTER_LIMIT: usize = 0x4000;
/// The option code of extended errors (RFC 8914 §2).
const EXTENDED_ERROR: u16 = 15;

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The response code. Above 15 it is SERVFAIL for clients without an OPT, which holds the upper bits (RFC 6891
    /// §6.1.3).
    pub rcode: u16,
    /// AA, TC, RA and AD; the other flags are the query's.
    pub flags: u16,
    /// The records.
    pub sections: Sections,
    /// An extended error and its text (RFC 8914), for clients that sent an OPT.
    pub extended_error: Option<(u16, String)>,
    /// Further EDNS options in wire format, for clients that sent an OPT.
    pub options: Vec<u8>,
}

/// The response exceeds 65,535 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the records take more than the 65535 octets of a message")]
pub struct TooLong;

impl Response {
    /// A local answer: authoritative, as of CoreDNS' local plugins.
    #[must_use]
    pub fn own(answer: Vec<ResourceRecord>) -> Self {
        Self {
            flags: flag::AA | flag::RA,
            sections: Sections {
                answer,
                ..Sections::default()
            },
            ..Self::default()
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn read(message: &Message<'_>) -> Result<Self, Malformed> {
        let mut response = Self {
            rcode: message.rcode().into(),
            flags: message.flags(),
            sections: Sections::read(message)?,
            ..Self::default()
        };
        for record in message.records() {
            let record = record?;
            if record.kind == kind::OPT {
                response.rcode |= u16::from(message.octets()[record.ttl_at]) << 4;
                response.options = message.octets()[record.data].to_vec();
            }
        }
        Ok(response)
    }

    /// Encodes it as the reply to a query.
    ///
    /// # Errors
    /// When it exceeds 65,535 octets.
    pub fn write(&self, query: &Query, udp_size: u16) -> Result<Vec<u8>, TooLong> {
        let mut writer = Writer::new(query, self);
        let Sections {
            answer,
            authority,
            additional,
        } = &self.sections;
        for (offset, records) in [(6, answer), (8, authority), (10, additional)] {
            writer.count(offset, records.len())?;
            records.iter().try_for_each(|record| writer.record(record))?;
        }
        if query.edns.is_some() {
            writer.count(10, additional.len() + 1)?;
            writer.opt(query, udp_size, self)?;
        }
        Ok(writer.octets)
    }
}

struct Writer {
    octets: Vec<u8>,
    /// The offsets of written names and their suffixes.
    known: HashMap<Box<[u8]>, u16>,
}

impl Writer {
    fn new(query: &Query, response: &Response) -> Self {
        let own = flag::AA | flag::TC | flag::RA | flag::AD;
        let copied = flag::RD | flag::CD;
        let code = if query.edns.is_none() && response.rcode > 0xf {
            rcode::SERVFAIL.into()
        } else {
            response.rcode & 0xf
        };
        let flags = flag::QR | response.flags & own | query.flags & copied | code;
        let mut octets = Vec::with_capacity(512);
        for field in [query.id, flags, 1, 0, 0, 0] {
            octets.extend_from_slice(&field.to_be_bytes());
        }
        let mut writer = Self {
            octets,
            known: HashMap::new(),
        };
        writer.remember(&query.question.name, HEADER);
        writer.octets.extend_from_slice(&query.raw_question);
        writer
    }

    fn count(&mut self, offset: usize, count: usize) -> Result<(), TooLong> {
        let count = u16::try_from(count).map_err(|_error| TooLong)?;
        self.octets[offset..offset + 2].copy_from_slice(&count.to_be_bytes());
        Ok(())
    }

    fn record(&mut self, record: &ResourceRecord) -> Result<(), TooLong> {
        self.name(&record.owner, Compression::Allowed);
        self.octets.extend_from_slice(&record.kind.to_be_bytes());
        self.octets.extend_from_slice(&record.class.to_be_bytes());
        self.octets.extend_from_slice(&record.ttl.to_be_bytes());
        let start = self.octets.len();
        self.octets.extend_from_slice(&[0, 0]);
        for part in &record.data.0 {
            match part {
                Part::Octets(octets) => self.octets.extend_from_slice(octets),
                Part::Name(name, compression) => self.name(name, *compression),
            }
        }
        self.end_data(start)
    }

    /// Writes a name; a suffix that was written before becomes a pointer.
    fn name(&mut self, name: &WireName, compression: Compression) {
        let octets = name.as_octets();
        let mut at = 0;
        while octets[at] != 0 {
            let known = self.known.get(&octets[at..]).copied();
            if let (Some(offset), Compression::Allowed) = (known, compression) {
                self.octets.extend_from_slice(&(0xc000 | offset).to_be_bytes());
                return;
            }
            if known.is_none() {
                self.remember_one(&octets[at..], self.octets.len());
            }
            let label = 1 + usize::from(octets[at]);
            self.octets.extend_from_slice(&octets[at..at + label]);
            at += label;
        }
        self.octets.push(0);
    }

    fn remember(&mut self, name: &WireName, start: usize) {
        let octets = name.as_octets();
        let mut at = 0;
        while octets[at] != 0 {
            self.remember_one(&octets[at..], start + at);
            at += 1 + usize::from(octets[at]);
        }
    }

    fn remember_one(&mut self, end: &[u8], offset: usize) {
        if let Some(offset) = u16::try_from(offset)
            .ok()
            .filter(|offset| usize::from(*offset) < POINTER_LIMIT)
        {
            self.known.entry(end.into()).or_insert(offset);
        }
    }

    fn opt(&mut self, query: &Query, udp_size: u16, response: &Response) -> Result<(), TooLong> {
        let dnssec = query.edns.as_ref().is_some_and(|edns| edns.dnssec);
        let upper = (response.rcode >> 4 & 0xff) as u8;
        self.octets.push(0);
        self.octets.extend_from_slice(&kind::OPT.to_be_bytes());
        self.octets.extend_from_slice(&udp_size.to_be_bytes());
        self.octets
            .extend_from_slice(&[upper, 0, if dnssec { 0x80 } else { 0 }, 0]);
        let start = self.octets.len();
        self.octets.extend_from_slice(&[0, 0]);
        self.octets.extend_from_slice(&response.options);
        if let Some((code, text)) = &response.extended_error {
            let length = u16::try_from(text.len() + 2).map_err(|_error| TooLong)?;
            for field in [EXTENDED_ERROR, length, *code] {
                self.octets.extend_from_slice(&field.to_be_bytes());
            }
            self.octets.extend_from_slice(text.as_bytes());
        }
        self.end_data(start)
    }

    /// Fills in the length of the data that begins at `start`.
    fn end_data(&mut self, start: usize) -> Result<(), TooLong> {
        if self.octets.len() > usize::from(u16::MAX) {
            return Err(TooLong);
        }
        let length = u16::try_from(self.octets.len() - start - 2).map_err(|_error| TooLong)?;
        self.octets[start..start + 2].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}

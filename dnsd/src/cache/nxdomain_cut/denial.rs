//! The denial of a name, for the replies to queries below it.

use egret_shared::time::Timestamp;

use crate::dns::message::{
    CLASS_IN, Message, Query, Record, Section, WireName, kind, rcode, synthesized_denial, truncated_reply,
};

/// Octets of type, class, TTL and length between the owner of a record and its data (RFC 1035 §4.1.3).
const FIXED: usize = 10;
/// Octets of the five numbers of an SOA (RFC 1035 §3.3.13).
const NUMBERS: usize = 20;

/// The SOA that denies a name (RFC 2308 §3), as it can stand in any message.
#[derive(Debug)]
pub struct Denial {
    soa: Box<[u8]>,
    ttl_at: usize,
    ttl: u32,
    arrived: Timestamp,
}

impl Denial {
    /// Reads it from an NXDOMAIN with an SOA alone: one with NSEC records (RFC 4035 §3.1.3.2) proves nothing of other names.
    #[must_use]
    pub fn read(message: &Message<'_>, arrived: Timestamp) -> Option<Self> {
        let records: Vec<Record> = message.records().collect::<Result<_, _>>().ok()?;
        let mut records = records.iter().filter(|record| record.kind != kind::OPT);
        let (soa, rest) = (records.next()?, records.next());
        let is_alone = rest.is_none() && soa.section == Section::Authority;
        if !is_alone || soa.kind != kind::SOA || soa.class != CLASS_IN || message.rcode() != rcode::NXDOMAIN {
            return None;
        }
        let owner = soa.owner(message.octets()).ok()?;
        if !message.question().name.is_within(&owner) {
            return None;
        }
        let ttl = soa.ttl(message.octets()).seconds();
        let data = data(message.octets(), soa)?;
        let length = u16::try_from(data.len()).ok()?;
        let (owner, ttl_at) = (owner.as_octets(), owner.as_octets().len() + 4);
        let mut octets = Vec::with_capacity(owner.len() + FIXED + data.len());
        octets.extend_from_slice(owner);
        octets.extend_from_slice(&kind::SOA.to_be_bytes());
        octets.extend_from_slice(&CLASS_IN.to_be_bytes());
        octets.extend_from_slice(&ttl.to_be_bytes());
        octets.extend_from_slice(&length.to_be_bytes());
        octets.extend_from_slice(&data);
        Some(Self {
            soa: octets.into(),
            ttl_at,
            ttl,
            arrived,
        })
    }

    /// The reply to a query below, at most `limit` octets. Its TTL is counted down, or the original one with `keepttl`.
    #[must_use]
    pub fn reply(
        &self,
        query: &Query,
        now: Timestamp,
        keeps_ttl: bool,
        limit: usize,
        udp_size: u16,
    ) -> Vec<u8> {
        let age = u32::try_from(now.since(self.arrived).as_secs()).unwrap_or(u32::MAX);
        let ttl = self.ttl.saturating_sub(if keeps_ttl { 0 } else { age });
        let mut soa = self.soa.to_vec();
        soa[self.ttl_at..self.ttl_at + 4].copy_from_slice(&ttl.to_be_bytes());
        let reply = synthesized_denial(query, &soa, udp_size);
        if reply.len() > limit {
            return truncated_reply(query, rcode::NXDOMAIN, udp_size);
        }
        reply
    }
}

/// Two names and five numbers, uncompressed.
fn data(message: &[u8], soa: &Record) -> Option<Vec<u8>> {
    let (server, at) = WireName::read(message, soa.data.start).ok()?;
    let (person, at) = WireName::read(message, at).ok()?;
    let numbers = message
        .get(at..soa.data.end)
        .filter(|numbers| numbers.len() == NUMBERS)?;
    Some([server.as_octets(), person.as_octets(), numbers].concat())
}

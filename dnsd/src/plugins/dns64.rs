//! `dns64`: IPv6 addresses for names that have only IPv4 addresses (RFC 6147).
//!
//! The caller queries AAAA as usual. If `wants_a` returns true it queries A as well, and `synthesize` combines both.

use std::net::{IpAddr, Ipv6Addr};

use egret_shared::net::IpNet;

use super::{QueryEndpoints, Unusable};
use crate::config::model::Dns64;
use crate::dns::message::{
    CLASS_IN, Data, Message, Query, ResourceRecord, Response, Section, flag, kind, rcode,
};

/// The TTL if no SOA limits it, in seconds (RFC 6147 §5.1.7).
const WITHOUT_SOA: u32 = 600;

/// Synthesizes AAAA records.
#[derive(Clone, Debug)]
pub struct Translator(Dns64);

impl Translator {
    /// From the plan of a block.
    #[must_use]
    pub fn new(plan: &Dns64) -> Self {
        Self(plan.clone())
    }

    /// Whether it applies to a query: AAAA over IPv6, or over IPv4 with `allow_ipv4`. A validating client (DO and CD)
    /// gets the original answer (RFC 6147 §5.5).
    #[must_use]
    pub fn applies(&self, query: &Query, endpoints: &QueryEndpoints) -> bool {
        let question = &query.question;
        let validates = query.flags & flag::CD != 0 && query.edns.as_ref().is_some_and(|edns| edns.dnssec);
        let family = self.0.allow_ipv4 || endpoints.client.ip().to_canonical().is_ipv6();
        question.kind == kind::AAAA && question.class == CLASS_IN && family && !validates
    }

    /// Whether A is to be queried: the AAAA answer has no address, or all are translated. NXDOMAIN is final (RFC 6147
    /// §5.1.2); another error counts as empty (§5.1.3).
    #[must_use]
    pub fn wants_a(&self, message: &Message<'_>) -> bool {
        if message.rcode() == rcode::NXDOMAIN {
            return false;
        }
        let mut addresses = message.records().flatten().filter(|record| {
            let data = &message.octets()[record.data.clone()];
            record.section == Section::Answer && record.kind == kind::AAAA && !is_excluded(data)
        });
        self.0.translate_all || addresses.next().is_none()
    }

    /// The query for A.
    #[must_use]
    pub fn question_for_a(&self, query: &Query) -> Query<'static> {
        query.asking(&query.question.name, kind::A, query.question.class)
    }

    /// The answer: A records become AAAA, other records stay (RFC 6147 §5.1.7, §5.3.2, §5.3.3). AD is cleared.
    ///
    /// # Errors
    /// When an answer cannot be read, or does not fit.
    pub fn synthesize(
        &self,
        query: &Query,
        aaaa: &Message<'_>,
        a: &Message<'_>,
        udp_size: u16,
    ) -> Result<Vec<u8>, Unusable> {
        let mut response = Response::read(a)?;
        let at_most = soa_ttl(aaaa).unwrap_or(WITHOUT_SOA);
        for record in &mut response.sections.answer {
            self.translate(record, at_most);
        }
        // Signatures of A records do not cover the new records.
        response
            .sections
            .answer
            .retain(|record| record.kind != kind::RRSIG || !signs(record, kind::A));
        response.flags &= !flag::AD;
        Ok(response.write(query, udp_size)?)
    }

    fn translate(&self, record: &mut ResourceRecord, at_most: u32) {
        let address = record
            .data
            .as_octets()
            .and_then(|octets| <[u8; 4]>::try_from(octets).ok());
        if let (kind::A, Some(address)) = (record.kind, address) {
            record.kind = kind::AAAA;
            record.ttl = record.ttl.min(at_most);
            record.data = Data::octets(&embed(&self.0.prefix, address).octets());
        }
    }
}

/// IPv4-mapped addresses are excluded (RFC 6147 §5.1.4).
fn is_excluded(data: &[u8]) -> bool {
    <[u8; 16]>::try_from(data).is_ok_and(|octets| Ipv6Addr::from(octets).to_ipv4_mapped().is_some())
}

fn signs(record: &ResourceRecord, kind: u16) -> bool {
    record
        .data
        .as_octets()
        .is_some_and(|octets| octets.starts_with(&kind.to_be_bytes()))
}

fn soa_ttl(message: &Message<'_>) -> Option<u32> {
    let mut records = message.records().flatten();
    records
        .find(|record| record.section == Section::Authority && record.kind == kind::SOA)
        .map(|record| record.ttl(message.octets()).seconds())
}

/// Embeds the address in the prefix; bits 64 to 71 stay zero (RFC 6052 §2.2).
fn embed(prefix: &IpNet, address: [u8; 4]) -> Ipv6Addr {
    let mut octets = match prefix.addr() {
        IpAddr::V6(prefix) => prefix.octets(),
        IpAddr::V4(prefix) => prefix.to_ipv6_mapped().octets(),
    };
    let start = usize::from(prefix.prefix_len() / 8);
    let places = (start..16).filter(|place| *place != 8);
    for (place, octet) in places.zip(address) {
        octets[place] = octet;
    }
    Ipv6Addr::from(octets)
}

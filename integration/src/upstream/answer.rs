//! From a question to the right answer, and to the false ones.

use std::net::IpAddr;

use hickory_proto::{
    op::{Edns, Message, Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, SOA},
    },
};

use super::{
    Zone,
    records::{Content, Records},
};
use crate::lookup::Transport;

/// No name has a longer chain here; a loop ends with what was gathered, as resolvers see it.
const LONGEST_CHAIN: usize = 16;
/// What a client without EDNS takes over UDP (RFC 1035 section 4.2.1).
const PLAIN_UDP: usize = 512;
/// What goes into one datagram of this server, whatever the client offers (DNS flag day 2020).
const LARGEST_UDP: usize = 1232;

/// The right answer to `query`, whose name has the records `first`, ready for the wire.
pub(super) fn answer(
    zone: &Zone,
    query: &Message,
    question: &Query,
    first: Option<Records>,
    transport: Transport,
) -> Option<Vec<u8>> {
    let mut message = response_to(query, question);
    match gather(zone, question, first.clone()) {
        Gathered::Silence => return None,
        Gathered::Code(code, minimum, aliases) => {
            message.metadata.response_code = code;
            message.answers = aliases;
            message.authorities = vec![authority(&question.name, minimum)];
        }
        Gathered::Records(records) => message.answers = records,
    }
    if let Some(records) = &first {
        spoil(&mut message.answers, records);
    }
    let told_to = first.is_some_and(|records| records.truncated_over_udp);
    let bytes = message.to_vec().expect("records that were parsed can be written");
    let truncate = transport == Transport::Udp && (told_to || bytes.len() > datagram_size(query));
    Some(if truncate { truncated(message) } else { bytes })
}

/// What a server does to a right answer that does not keep to what resolvers expect.
fn spoil(answers: &mut Vec<Record>, records: &Records) {
    let strays = records.strays.iter();
    answers.extend(
        strays.map(|(owner, address)| Record::from_rdata(parse(owner), records.ttl, data_of(*address))),
    );
    if records.reversed {
        answers.reverse();
    }
}

/// An answer as a forger would send it: well-formed, with his address.
pub(super) fn false_answer(query: &Message, question: &Query, address: IpAddr) -> Message {
    let mut message = response_to(query, question);
    message.answers = vec![Record::from_rdata(question.name.clone(), 3600, data_of(address))];
    message
}

/// A response with the header, the question and the EDNS of its query, and no records.
fn response_to(query: &Message, question: &Query) -> Message {
    let mut message = Message::response(query.metadata.id, query.metadata.op_code);
    message.metadata.recursion_desired = query.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    message.queries = vec![question.clone()];
    message.edns = query.edns.as_ref().map(|_| {
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        edns
    });
    message
}

enum Gathered {
    Records(Vec<Record>),
    /// No records of the asked type at the end of the chain, with the SOA's minimum.
    Code(ResponseCode, u32, Vec<Record>),
    Silence,
}

/// Follows the chain of aliases from the question.
fn gather(zone: &Zone, question: &Query, first: Option<Records>) -> Gathered {
    let mut gathered = Vec::new();
    let (mut name, mut records) = (question.name.clone(), first);
    while gathered.len() < LONGEST_CHAIN {
        let Some(found) = records else {
            return Gathered::Code(ResponseCode::NXDomain, 30, gathered);
        };
        let owner = found.spelling.as_deref().map_or_else(|| name.clone(), parse);
        match found.content {
            Content::Silence => return Gathered::Silence,
            Content::Code(code) => return Gathered::Code(code, found.ttl, gathered),
            Content::Alias(target) => {
                let target = parse(&target);
                gathered.push(Record::from_rdata(
                    owner,
                    found.ttl,
                    RData::CNAME(CNAME(target.clone())),
                ));
                if question.query_type == RecordType::CNAME {
                    return Gathered::Records(gathered);
                }
                records = zone.find(&target.to_ascii());
                name = target;
            }
            Content::Addresses(addresses) => {
                let of_type = addresses
                    .into_iter()
                    .map(data_of)
                    .filter(|data| data.record_type() == question.query_type);
                let last: Vec<_> = of_type
                    .map(|data| Record::from_rdata(owner.clone(), found.ttl, data))
                    .collect();
                if last.is_empty() {
                    return Gathered::Code(ResponseCode::NoError, found.ttl, gathered);
                }
                gathered.extend(last);
                return Gathered::Records(gathered);
            }
        }
    }
    Gathered::Records(gathered)
}

fn data_of(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

/// The SOA of the top-level name: it says how long "no" may be cached (RFC 2308).
fn authority(name: &Name, minimum: u32) -> Record {
    let top = name.trim_to(1);
    let soa = SOA::new(
        parse("ns.example."),
        parse("admin.example."),
        1,
        3600,
        600,
        86_400,
        minimum,
    );
    Record::from_rdata(top, minimum, RData::SOA(soa))
}

fn datagram_size(query: &Message) -> usize {
    query.edns.as_ref().map_or(PLAIN_UDP, |edns| {
        usize::from(edns.max_payload()).clamp(PLAIN_UDP, LARGEST_UDP)
    })
}

fn truncated(mut message: Message) -> Vec<u8> {
    message.metadata.truncation = true;
    message.answers.clear();
    message.authorities.clear();
    message.to_vec().expect("a header and a question can be written")
}

fn parse(name: &str) -> Name {
    let mut name = Name::from_ascii(name).expect("names of the zone are ASCII host names");
    name.set_fqdn(true);
    name
}

//! Messages for tests, written by hickory-proto: the second opinion on what ours reads.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::IpAddr;

use egret_dnsd::dns::answer::{Answer, TtlLimits};
use egret_dnsd::dns::message::Query;
use egret_dnsd::upstream::pending_query::{Case, PendingQuery, Transport, ValidatedResponse};
use egret_shared::time::Timestamp;
use hickory_proto::op::{Edns, Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::{TcpListener, UdpSocket};

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_000_000);
pub(crate) const ANY_TTL: TtlLimits = TtlLimits {
    at_least: 0,
    at_most: u32::MAX,
};

/// A port that both transports have free: one that is drawn for UDP may be in use over TCP.
pub(crate) async fn same_port(ip: IpAddr) -> (UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind((ip, 0)).await.unwrap();
        match TcpListener::bind(udp.local_addr().unwrap()).await {
            Ok(tcp) => return (udp, tcp),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}"),
        }
    }
}

pub(crate) fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap();
    name.set_fqdn(true);
    name
}

/// A client's query.
pub(crate) fn query(text: &str, kind: RecordType, udp_size: Option<u16>) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(hickory_proto::op::Query::query(name(text), kind));
    if let Some(size) = udp_size {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

/// An upstream's answer to a query, which repeats id and question as they came.
pub(crate) fn response(query: &[u8], answers: Vec<Record>) -> Message {
    let asked = Message::from_vec(query).unwrap();
    let mut message = Message::response(asked.metadata.id, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.add_query(asked.queries[0].clone());
    message.add_answers(answers);
    message
}

/// An answer, as an exchange takes it.
pub(crate) fn matched(
    text: &str,
    kind: RecordType,
    write: impl FnOnce(&[u8]) -> Message,
) -> ValidatedResponse<Answer> {
    let client = Query::read(&query(text, kind, None)).unwrap().owned();
    let pending_query = PendingQuery::new(&client, Transport::Udp, Case::Mixed, 1232);
    let octets = write(pending_query.octets()).to_vec().unwrap();
    pending_query.validate(&octets, NOW, &ANY_TTL).unwrap()
}

pub(crate) fn address(owner: &str, ttl: u32, address: &str) -> Record {
    let data = match address.parse().unwrap() {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    };
    Record::from_rdata(name(owner), ttl, data)
}

pub(crate) fn alias(owner: &str, ttl: u32, target: &str) -> Record {
    Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(target))))
}

pub(crate) fn authority(ttl: u32, minimum: u32) -> Record {
    let soa = SOA::new(name("ns.test"), name("admin.test"), 1, 2, 3, 4, minimum);
    Record::from_rdata(name("test"), ttl, RData::SOA(soa))
}

pub(crate) fn with_code(mut message: Message, code: ResponseCode) -> Message {
    message.metadata.response_code = code;
    message
}

/// The code of its extended error (RFC 8914).
pub(crate) fn extended_error(message: &Message) -> Option<u16> {
    let option = message.edns.as_ref()?.option(EdnsCode::Unknown(15))?;
    let octets = Vec::<u8>::try_from(option).ok()?;
    octets.first_chunk().map(|code| u16::from_be_bytes(*code))
}

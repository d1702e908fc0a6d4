//! Replies to datagrams that are too small for the whole answer (RFC 2181 §9, RFC 6891 §6.2.3).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use egret_dnsd::dns::answer::{Answer, Ttls};
use egret_dnsd::dns::message::{Message, Query};
use egret_dnsd::upstream::pending_query::ValidatedResponse;
use hickory_proto::op::Message as Hickory;
use hickory_proto::rr::RecordType;
use support::{NOW, address, alias, matched, query, response};

const NAME: &str = "api.example.test";
/// A pointer to the owner, type, class, TTL, length, four octets.
const RECORD: usize = 16;
const OPT: usize = 11;

/// Thirty addresses. Names are compressed as far as the case allows in which the upstream was asked.
fn answer() -> ValidatedResponse<Answer> {
    let records = (0..30).map(|n| address(NAME, 60, &format!("192.0.2.{n}")));
    matched(NAME, RecordType::A, |asked| response(asked, records.collect()))
}

/// The reply to a client with or without EDNS, within so many octets, 20 seconds after the answer came.
fn reply(answer: &ValidatedResponse<Answer>, edns: bool, limit: usize) -> (Vec<u8>, bool) {
    let client = Query::read(&query("API.example.test", RecordType::A, edns.then_some(1232)))
        .unwrap()
        .owned();
    let later = Ttls::CountedDown(NOW.after(Duration::from_secs(20)));
    answer.get().reply_within(&client, later, limit, 1232)
}

/// Where each record of the whole answer ends.
fn ends(answer: &ValidatedResponse<Answer>) -> Vec<usize> {
    let (octets, is_whole) = reply(answer, false, 65_535);
    assert!(is_whole);
    let message = Message::read(&octets).unwrap();
    message.records().map(|record| record.unwrap().data.end).collect()
}

#[test]
fn a_truncated_reply_has_all_records_that_fit() {
    let answer = answer();
    let ends = ends(&answer);
    assert_eq!(ends.len(), 30);
    for (edns, opt) in [(false, 0), (true, OPT)] {
        for fitting in [1, 7, 29] {
            let (end, next) = (ends[fitting - 1] + opt, ends[fitting] + opt);
            for (limit, expected) in [(end - 1, fitting - 1), (end, fitting), (next - 1, fitting)] {
                let (octets, is_whole) = reply(&answer, edns, limit);
                let message = Hickory::from_vec(&octets).unwrap();
                let told = (is_whole, message.metadata.truncation, message.answers.len());
                assert_eq!(told, (false, true, expected), "EDNS {edns}, {limit} octets");
                assert!(octets.len() <= limit && (limit != end || octets.len() == limit));
                assert_eq!(message.edns.is_some(), edns);
                assert!(message.answers.iter().all(|record| record.ttl == 40));
                assert_eq!(Message::read(&octets).unwrap().raw_question()[..4], *b"\x03API");
            }
        }
        let (octets, is_whole) = reply(&answer, edns, ends[29] + opt);
        let message = Hickory::from_vec(&octets).unwrap();
        let told = (is_whole, message.metadata.truncation, message.answers.len());
        assert_eq!(told, (true, false, 30), "EDNS {edns}: all of it");
    }
}

#[test]
fn a_truncated_reply_keeps_aliases_first_and_drops_other_sections() {
    let mut records = vec![alias(NAME, 60, "edge.example.test")];
    records.extend((0..60).map(|n| address("edge.example.test", 60, &format!("192.0.2.{n}"))));
    let answer = matched(NAME, RecordType::A, |asked| {
        let mut message = response(asked, records);
        message.add_authority(alias("authority.test", 60, "ns.test"));
        message.add_additional(address("ns.test", 60, "192.0.2.200"));
        message
    });
    for edns in [None, Some(700)] {
        let client = Query::read(&query(NAME, RecordType::A, edns)).unwrap().owned();
        let limit = client.datagram_limit(1232);
        let (octets, is_whole) = answer.get().reply_within(&client, Ttls::Original, limit, 1232);
        let message = Hickory::from_vec(&octets).unwrap();
        assert!(!is_whole && message.metadata.truncation && octets.len() <= limit);
        assert!(octets.len() + RECORD > limit, "{} of {limit}", octets.len());
        assert_eq!(message.answers[0].record_type(), RecordType::CNAME);
        assert!(message.answers.len() > 20);
        assert!(message.authorities.is_empty() && message.additionals.is_empty());
    }
}

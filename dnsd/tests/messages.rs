//! The reader of messages against hickory-proto, and against arbitrary octets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_dnsd::dns::answer::{Answer, Ttls};
use egret_dnsd::dns::message::{Message, Query, Refusal, error_reply, rcode, truncated_reply};
use hickory_proto::op::Message as Hickory;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proptest::prelude::*;
use support::{ANY_TTL, NOW, address, alias, query, response};

fn label() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_-]{1,20}".prop_filter("a label that hickory takes", |text| {
        Name::from_ascii(text).is_ok()
    })
}

fn owner() -> impl Strategy<Value = String> {
    proptest::collection::vec(label(), 1..5).prop_map(|labels| labels.join("."))
}

fn record() -> impl Strategy<Value = Record> {
    (owner(), any::<u32>(), any::<u32>(), owner(), 0..3).prop_map(|(owner, ttl, bits, target, kind)| {
        match kind {
            0 => address(&owner, ttl, &Ipv4Addr::from(bits).to_string()),
            1 => address(&owner, ttl, &Ipv6Addr::from(u128::from(bits) << 64).to_string()),
            _ => alias(&owner, ttl, &target),
        }
    })
}

/// What both readers must see alike: owner, TTL and address or alias of each answer.
fn seen_by_hickory(message: &Hickory) -> Vec<(String, u32, Option<IpAddr>)> {
    let seen = message.answers.iter().map(|record| {
        let address = match &record.data {
            RData::A(address) => Some(address.0.into()),
            RData::AAAA(address) => Some(address.0.into()),
            _alias => None,
        };
        (record.name.to_lowercase().to_ascii(), record.ttl, address)
    });
    seen.collect()
}

fn seen_by_us(octets: &[u8]) -> Vec<(String, u32, Option<IpAddr>)> {
    let message = Message::read(octets).unwrap();
    let seen = message.records().map(|record| {
        let record = record.unwrap();
        let data = &octets[record.data.clone()];
        let address = match record.kind {
            1 => Some(<[u8; 4]>::try_from(data).unwrap().into()),
            28 => Some(<[u8; 16]>::try_from(data).unwrap().into()),
            _alias => None,
        };
        let owner = record.owner(octets).unwrap().to_name().unwrap();
        let ttl = u32::from_be_bytes(octets[record.ttl_at..record.ttl_at + 4].try_into().unwrap());
        (format!("{owner}."), ttl, address)
    });
    seen.collect()
}

fn is_read_without_panic(octets: &[u8]) {
    if let Ok(message) = Message::read(octets) {
        for record in message.records().flatten() {
            let _owner = record.owner(octets).map(|name| name.to_name());
        }
        let answer = Answer::new(octets.to_vec(), message.question(), NOW, &ANY_TTL);
        if let Ok(query) = Query::read(octets) {
            let (reply, _whole) = answer.reply_within(&query, Ttls::All(0), 65_535, 1232);
            assert!(Message::read(&reply).is_ok());
        }
    }
    if let Ok(query) = Query::read(octets) {
        assert!(error_reply(&query, rcode::SERVFAIL, 1232).len() > 12);
    }
}

proptest! {
    #[test]
    fn messages_of_hickory_are_read_as_hickory_reads_them(question in owner(), records in proptest::collection::vec(record(), 0..20)) {
        let octets = response(&query(&question, RecordType::A, Some(1232)), records).to_vec().unwrap();
        let theirs = Hickory::from_vec(&octets).unwrap();
        let ours = Message::read(&octets).unwrap();
        prop_assert_eq!(ours.id(), theirs.metadata.id);
        let asked = format!("{}.", ours.question().name.to_name().unwrap());
        prop_assert_eq!(asked, theirs.queries[0].name.to_lowercase().to_ascii());
        prop_assert_eq!(seen_by_us(&octets), seen_by_hickory(&theirs));
    }

    #[test]
    fn no_octets_make_the_reader_panic(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        is_read_without_panic(&octets);
    }

    #[test]
    fn no_damage_makes_the_reader_panic(
        records in proptest::collection::vec(record(), 1..6),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut octets = response(&query("api.example.test", RecordType::A, None), records).to_vec().unwrap();
        for (place, value) in damage {
            let place = place.index(octets.len());
            octets[place] = value;
        }
        is_read_without_panic(&octets);
        octets.truncate(cut.index(octets.len()));
        is_read_without_panic(&octets);
    }

    #[test]
    fn replies_of_our_own_are_read_by_hickory(question in owner(), edns in proptest::option::of(512..4096_u16)) {
        let asked = query(&question, RecordType::AAAA, edns);
        let asked_parsed = Hickory::from_vec(&asked).unwrap();
        let ours = Query::read(&asked).unwrap();
        for octets in [error_reply(&ours, rcode::SERVFAIL, 1232), truncated_reply(&ours, rcode::NOERROR, 1232)] {
            let reply = Hickory::from_vec(&octets).unwrap();
            prop_assert_eq!(reply.metadata.id, asked_parsed.metadata.id);
            prop_assert_eq!(&reply.queries, &asked_parsed.queries);
            prop_assert_eq!(reply.edns.is_some(), edns.is_some());
        }
    }
}

#[test]
fn octets_that_are_no_query_are_refused_or_ignored() {
    let good = query("api.example.test", RecordType::A, Some(1232));
    let change = |at: usize, value: u8| {
        let mut octets = good.clone();
        octets[at] = value;
        octets
    };
    for (what, octets, refusal) in [
        ("nothing", Vec::new(), Refusal::Silence),
        ("half a header", good[..11].to_vec(), Refusal::Silence),
        ("a response", change(2, 0x80), Refusal::Silence),
        ("an update", change(2, 0x28), Refusal::Reply(rcode::NOTIMP)),
        ("two questions", change(5, 2), Refusal::Reply(rcode::FORMERR)),
        ("no question", change(5, 0), Refusal::Reply(rcode::FORMERR)),
        (
            "half a question",
            good[..20].to_vec(),
            Refusal::Reply(rcode::FORMERR),
        ),
        (
            "half an OPT",
            good[..good.len() - 3].to_vec(),
            Refusal::Reply(rcode::FORMERR),
        ),
        (
            "a version from the future",
            change(good.len() - 5, 1),
            Refusal::BadVersion,
        ),
    ] {
        assert_eq!(Query::read(&octets).unwrap_err(), refusal, "{what}");
    }
    assert!(Query::read(&good).is_ok());
}

#[test]
fn hop_by_hop_options_are_not_forwarded_and_others_are() {
    let mut octets = query("api.example.test", RecordType::A, Some(1232));
    let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let subnet = [0, 8, 0, 4, 0, 1, 0, 0];
    let length = octets.len();
    octets[length - 1] = u8::try_from(cookie.len() + subnet.len()).unwrap();
    octets.extend_from_slice(&cookie);
    octets.extend_from_slice(&subnet);
    let edns = Query::read(&octets).unwrap().edns.unwrap();
    assert_eq!(edns.options, subnet);
}

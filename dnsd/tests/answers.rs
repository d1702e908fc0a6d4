//! Answers of upstreams: which are accepted, what is recorded of them, their TTLs, and the replies to clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::net::IpAddr;
use std::time::Duration;

use egret_dnsd::cache::{Key, Provenance, Value};
use egret_dnsd::dns::answer::{Answer, Ttls};
use egret_dnsd::dns::message::{Message, Query};
use egret_dnsd::enforcement::observation::{AnswerObservation, observe};
use egret_dnsd::upstream::pending_query::{Case, Mismatch, PendingQuery, Transport, ValidatedResponse};
use egret_dnsd::zones::{AnswerSource, ResolvedAnswer, StoredAnswer};
use egret_shared::net::IpNet;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::svcb::{IpHint, SVCB, SvcParamKey, SvcParamValue};
use hickory_proto::rr::rdata::{A, AAAA, HTTPS};
use hickory_proto::rr::{RData, Record, RecordType};
use support::{ANY_TTL, NOW, address, alias, matched, name, query, response, with_code};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// Addresses with seconds to live, and the chain.
type Learned = (Vec<(String, u64)>, Vec<String>);

fn learned(kind: RecordType, records: Vec<Record>) -> Learned {
    learned_but(kind, records, &[])
}

fn learned_but(kind: RecordType, records: Vec<Record>, protected: &[IpNet]) -> Learned {
    let answer = matched("api.example.test", kind, |asked| response(asked, records));
    let (told, _left_out) = observe(&answer, protected);
    is_the_same_when_kept("api.example.test", &answer, told.as_ref());
    let Some(observation) = told.map(|told| told.for_client(CLIENT)) else {
        return (Vec::new(), Vec::new());
    };
    assert_eq!(observation.question.as_str(), "api.example.test");
    let addresses = observation.addresses.iter();
    (
        addresses
            .map(|told| (told.address.to_string(), told.expires.since(NOW).as_secs()))
            .collect(),
        observation.chain.iter().map(ToString::to_string).collect(),
    )
}

/// What is kept in one piece tells, and is given, as what was heard.
fn is_the_same_when_kept(text: &str, answer: &ValidatedResponse<Answer>, told: Option<&AnswerObservation>) {
    let known = ResolvedAnswer {
        answer: answer.clone(),
        observation: told.cloned(),
        cacheable: None,
        provenance: Provenance::Upstream,
        source: AnswerSource::Forward,
        error: None,
    };
    let own = Key::of(&Query::read(&query(text, RecordType::A, None)).unwrap()).unwrap();
    let other = Key::of(&Query::read(&query("other.test", RecordType::A, None)).unwrap()).unwrap();
    for key in [other, own.of_kind(0), own] {
        let packed = StoredAnswer::new(&known, key.as_octets()).unwrap();
        assert_eq!(packed.key().to_vec(), key.as_octets());
        for asked in [other, own.of_kind(0), own] {
            assert_eq!(packed.key() == asked.view(), asked == key);
        }
        says_the_same(&packed, text, answer, told);
    }
}

fn says_the_same(
    packed: &StoredAnswer,
    text: &str,
    answer: &ValidatedResponse<Answer>,
    told: Option<&AnswerObservation>,
) {
    assert_eq!(packed.observation(NOW).as_ref(), told);
    assert_eq!(packed.has_addresses(), told.is_some());
    let addresses: Vec<_> = packed.addresses(NOW).collect();
    assert_eq!(addresses, told.map_or(&[][..], AnswerObservation::addresses));
    let question = answer.get().message().question().name.to_name().unwrap();
    let plain = packed.with_question(|name| name == question.as_str());
    assert_eq!(plain, (!question.as_str().contains('\\')).then_some(true));
    for (size, limit) in [(None, 512), (Some(1232), 1232), (Some(1232), 60)] {
        let client = Query::read(&query(text, RecordType::A, size)).unwrap().owned();
        for ttls in [
            Ttls::Original,
            Ttls::All(7),
            Ttls::CountedDown(NOW.after(Duration::from_secs(9))),
        ] {
            assert_eq!(
                packed.answer(NOW).reply_within(&client, ttls, limit, 1232),
                answer.get().reply_within(&client, ttls, limit, 1232)
            );
        }
    }
}

#[test]
fn a_name_with_unusual_octets_is_cached() {
    for text in ["a\\.b.test", "A.test"] {
        let answer = matched(text, RecordType::A, |asked| {
            response(asked, vec![address(text, 60, "192.0.2.1")])
        });
        let (told, _left_out) = observe(&answer, &[]);
        assert!(told.is_some());
        is_the_same_when_kept(text, &answer, told.as_ref());
    }
}

fn told(addresses: &[(&str, u64)]) -> Vec<(String, u64)> {
    addresses
        .iter()
        .map(|(address, ttl)| ((*address).to_owned(), *ttl))
        .collect()
}

#[test]
fn addresses_of_the_question_are_recorded_with_their_own_ttl() {
    let records = vec![
        address("api.example.test", 60, "192.0.2.1"),
        address("API.Example.TEST", 30, "192.0.2.2"),
    ];
    let expected = told(&[("192.0.2.1", 60), ("192.0.2.2", 30)]);
    assert_eq!(learned(RecordType::A, records), (expected, Vec::new()));
}

#[test]
fn the_lowest_ttl_of_the_alias_chain_counts_in_any_order_of_records() {
    let mut records = vec![
        alias("api.example.test", 300, "edge.example.test"),
        alias("edge.example.test", 20, "pop.cdn.test"),
        address("pop.cdn.test", 60, "192.0.2.1"),
        address("pop.cdn.test", 10, "192.0.2.2"),
    ];
    let expected = (
        told(&[("192.0.2.1", 20), ("192.0.2.2", 10)]),
        vec!["edge.example.test".to_owned(), "pop.cdn.test".to_owned()],
    );
    for _ in 0..records.len() {
        assert_eq!(learned(RecordType::A, records.clone()), expected);
        records.rotate_left(1);
    }
    records.reverse();
    assert_eq!(learned(RecordType::A, records), expected);
}

#[test]
fn addresses_of_other_owners_are_not_recorded() {
    let records = vec![
        address("api.example.test", 60, "192.0.2.1"),
        address("victim.test", 60, "192.0.2.66"),
        alias("other.test", 60, "api.example.test"),
        address("other.test", 60, "192.0.2.67"),
    ];
    assert_eq!(learned(RecordType::A, records).0, told(&[("192.0.2.1", 60)]));
}

#[test]
fn a_loop_of_aliases_ends() {
    let records = vec![
        alias("api.example.test", 60, "b.test"),
        alias("b.test", 60, "api.example.test"),
        address("b.test", 60, "192.0.2.1"),
    ];
    assert_eq!(learned(RecordType::A, records).0, told(&[("192.0.2.1", 60)]));
}

#[test]
fn of_an_alias_chain_that_is_too_long_nothing_is_recorded() {
    let mut records = vec![alias("api.example.test", 60, "n0.test")];
    records.extend((0..40).map(|n| alias(&format!("n{n}.test"), 60, &format!("n{}.test", n + 1))));
    records.push(address("n40.test", 60, "192.0.2.1"));
    assert_eq!(learned(RecordType::A, records).0, told(&[]));
}

#[test]
fn address_hints_of_service_bindings_are_recorded() {
    let hints = vec![
        (
            SvcParamKey::Ipv4Hint,
            SvcParamValue::Ipv4Hint(IpHint(vec![A::new(192, 0, 2, 1), A::new(192, 0, 2, 2)])),
        ),
        (
            SvcParamKey::Ipv6Hint,
            SvcParamValue::Ipv6Hint(IpHint(vec![AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)])),
        ),
    ];
    let binding = HTTPS(SVCB::new(1, name("."), hints));
    let records = vec![Record::from_rdata(
        name("api.example.test"),
        45,
        RData::HTTPS(binding),
    )];
    let expected = told(&[("192.0.2.1", 45), ("192.0.2.2", 45), ("2001:db8::1", 45)]);
    assert_eq!(learned(RecordType::HTTPS, records).0, expected);
}

#[test]
fn protected_addresses_are_not_recorded() {
    let records = vec![
        address("api.example.test", 60, "169.254.169.254"),
        address("api.example.test", 60, "192.0.2.1"),
    ];
    let protected = ["169.254.0.0/16".parse().unwrap()];
    let (addresses, _) = learned_but(RecordType::A, records, &protected);
    assert_eq!(addresses, told(&[("192.0.2.1", 60)]));
}

#[test]
fn a_ttl_with_the_top_bit_set_is_zero() {
    let records = vec![address("api.example.test", 0x8000_0001, "192.0.2.1")];
    assert_eq!(learned(RecordType::A, records).0, told(&[("192.0.2.1", 0)]));
}

#[test]
fn of_a_failed_answer_nothing_is_recorded() {
    let answer = matched("api.example.test", RecordType::A, |asked| {
        let records = vec![address("api.example.test", 60, "192.0.2.1")];
        with_code(response(asked, records), ResponseCode::ServFail)
    });
    assert_eq!(observe(&answer, &[]), (None, 0));
}

#[test]
fn only_an_answer_to_the_question_is_accepted() {
    let client = Query::read(&query("api.example.test", RecordType::A, None))
        .unwrap()
        .owned();
    let pending_query = PendingQuery::new(&client, Transport::Udp, Case::Plain, 1232);
    let good = response(
        pending_query.octets(),
        vec![address("api.example.test", 60, "192.0.2.1")],
    )
    .to_vec()
    .unwrap();
    let change = |at: usize, bits: u8| {
        let mut octets = good.clone();
        octets[at] ^= bits;
        octets
    };
    assert!(pending_query.validate(&good, NOW, &ANY_TTL).is_ok());
    for (what, octets, mismatch) in [
        ("another id", change(0, 1), Mismatch::Id),
        ("a query", change(2, 0x80), Mismatch::Unreadable),
        ("another name", change(13, 0x03), Mismatch::Question),
        ("another case", change(13, 0x20), Mismatch::Case),
        ("another type", change(12 + 18 + 1, 0x1d), Mismatch::Question),
        ("cut short", good[..14].to_vec(), Mismatch::Unreadable),
    ] {
        assert_eq!(
            pending_query.validate(&octets, NOW, &ANY_TTL).unwrap_err(),
            mismatch,
            "{what}"
        );
    }
}

#[test]
fn over_tcp_the_letter_case_may_differ() {
    let client = Query::read(&query("api.example.test", RecordType::A, None))
        .unwrap()
        .owned();
    let pending_query = PendingQuery::new(&client, Transport::Tcp, Case::Plain, 1232);
    let mut octets = response(pending_query.octets(), Vec::new()).to_vec().unwrap();
    octets[13] ^= 0x20;
    assert!(pending_query.validate(&octets, NOW, &ANY_TTL).is_ok());
}

#[test]
fn each_query_has_a_random_id_and_random_case() {
    let client = Query::read(&query(
        "a-long-name-with-many-letters.example.test",
        RecordType::A,
        None,
    ))
    .unwrap()
    .owned();
    let drawn: std::collections::HashSet<Vec<u8>> = (0..20)
        .map(|_| PendingQuery::new(&client, Transport::Udp, Case::Mixed, 1232).octets()[2..].to_vec())
        .collect();
    assert!(drawn.len() > 15, "{} different cases", drawn.len());
}

#[test]
fn a_reply_has_the_clients_id_and_case_and_the_remaining_ttl() {
    let answer = matched("api.example.test", RecordType::A, |asked| {
        response(asked, vec![address("api.example.test", 60, "192.0.2.1")])
    });
    let octets = query("aPI.eXAMPLE.tEST", RecordType::A, None);
    let client = Query::read(&octets).unwrap();
    let reply_after = |millis| {
        let now = NOW.after(Duration::from_millis(millis));
        let (reply, _whole) = answer
            .get()
            .reply_within(&client, Ttls::CountedDown(now), 512, 1232);
        reply
    };
    let reply = reply_after(20_900);
    let message = Message::read(&reply).unwrap();
    assert_eq!(message.id(), client.id);
    assert_eq!(message.raw_question(), &*client.raw_question);
    let record = message.records().next().unwrap().unwrap();
    assert_eq!(record.ttl(&reply).seconds(), 40);
    assert_eq!(record.ttl(&reply_after(90_000)).seconds(), 0);
}

#[test]
fn clients_with_and_without_an_opt_share_an_answer() {
    use hickory_proto::op::{Edns, Message as Hickory};
    let exchanged = |has_opt: bool| {
        matched("api.example.test", RecordType::A, |asked| {
            let mut message = response(asked, vec![address("api.example.test", 60, "192.0.2.1")]);
            message.edns = has_opt.then(|| {
                let mut edns = Edns::new();
                edns.set_max_payload(4096);
                edns
            });
            message
        })
    };
    for upstream_has_opt in [false, true] {
        let answer = exchanged(upstream_has_opt);
        assert!(answer.get().is_shareable());
        for client_has_opt in [false, true] {
            let octets = query("api.example.test", RecordType::A, client_has_opt.then_some(1232));
            let client = Query::read(&octets).unwrap();
            let (reply, _whole) = answer.get().reply_within(&client, Ttls::Original, 512, 1232);
            let reply = Hickory::from_vec(&reply).unwrap();
            assert_eq!(
                reply.edns.is_some(),
                client_has_opt,
                "upstream: {upstream_has_opt}"
            );
            assert_eq!((reply.answers.len(), reply.answers[0].ttl), (1, 60));
        }
    }
}

/// An OPT that was added behind them would be read as a part of them.
#[test]
fn octets_after_the_last_record_are_dropped() {
    use hickory_proto::op::Message as Hickory;
    let octets = query("api.example.test", RecordType::A, None);
    let client = Query::read(&octets).unwrap();
    let pending_query = PendingQuery::new(&client, Transport::Udp, Case::Mixed, 1232);
    let answer = response(
        pending_query.octets(),
        vec![address("api.example.test", 60, "192.0.2.1")],
    );
    let whole = answer.to_vec().unwrap();
    for behind in [
        &[][..],
        &[0],
        &[0, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, 9],
        &[7; 500],
    ] {
        let heard = [&whole, behind].concat();
        let answer = pending_query.validate(&heard, NOW, &ANY_TTL).unwrap();
        for size in [None, Some(1232)] {
            let octets = query("api.example.test", RecordType::A, size);
            let client = Query::read(&octets).unwrap();
            let (reply, is_whole) = answer.get().reply_within(&client, Ttls::Original, 512, 1232);
            let read = Hickory::from_vec(&reply).unwrap();
            assert_eq!((read.answers.len(), read.edns.is_some()), (1, size.is_some()));
            let last = Message::read(&reply).unwrap().records().last().unwrap().unwrap();
            assert_eq!((last.data.end, is_whole), (reply.len(), true));
        }
    }
}

#[test]
fn flags_are_the_clients_and_ad_is_set_only_for_clients_that_ask_for_it() {
    use hickory_proto::op::{Edns, Message as Hickory};
    let answer = matched("api.example.test", RecordType::A, |asked| {
        let mut message = response(asked, vec![address("api.example.test", 60, "192.0.2.1")]);
        message.metadata.authentic_data = true;
        message
    });
    let replied = |change: fn(&mut Hickory)| {
        let octets = query("api.example.test", RecordType::A, None);
        let mut message = Hickory::from_vec(&octets).unwrap();
        change(&mut message);
        let client = Query::read(&message.to_vec().unwrap()).unwrap().owned();
        let (reply, _whole) = answer.get().reply_within(&client, Ttls::Original, 512, 1232);
        let flags = Hickory::from_vec(&reply).unwrap().metadata;
        (
            flags.recursion_desired,
            flags.checking_disabled,
            flags.authentic_data,
        )
    };
    assert_eq!(replied(|_| ()), (true, false, false));
    assert_eq!(replied(|m| m.metadata.authentic_data = true), (true, false, true));
    assert_eq!(
        replied(|m| m.metadata.recursion_desired = false),
        (false, false, false)
    );
    assert_eq!(
        replied(|m| m.metadata.checking_disabled = true),
        (true, true, false)
    );
    let with_do = |m: &mut Hickory| {
        let mut edns = Edns::new();
        edns.set_dnssec_ok(true);
        m.set_edns(edns);
    };
    assert_eq!(replied(with_do), (true, false, true));
}

#[test]
fn an_answer_too_large_for_a_datagram_is_truncated() {
    let records = (0..120)
        .map(|n| address("api.example.test", 60, &format!("192.0.2.{n}")))
        .collect();
    let answer = matched("api.example.test", RecordType::A, |asked| {
        response(asked, records)
    });
    for (size, whole) in [
        (None, false),
        (Some(512), false),
        (Some(1232), false),
        (Some(4096), true),
    ] {
        let client = Query::read(&query("api.example.test", RecordType::A, size))
            .unwrap()
            .owned();
        let limit = client.datagram_limit(4096);
        let (reply, is_whole) = answer
            .get()
            .reply_within(&client, Ttls::CountedDown(NOW), limit, 1232);
        let message = Message::read(&reply).unwrap();
        assert_eq!((is_whole, message.is_truncated()), (whole, !whole), "{size:?}");
        assert_eq!(message.raw_question(), &*client.raw_question);
        assert!(reply.len() <= limit);
    }
}

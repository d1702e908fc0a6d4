//! Records as people write them, and responses written and taken apart.

use egret_dnsd::dns::message::{
    Data, InvalidRecord, Message, Query, ResourceRecord, Response, Sections, WireName, kind, parse_record,
};
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use crate::{SIZE, asked, read, support, texts};

fn written(record: ResourceRecord, query: &Query) -> Vec<u8> {
    Response::own(vec![record]).write(query, SIZE).unwrap()
}

fn as_hickory_reads(text: &str) -> String {
    let octets = written(parse_record(text).unwrap(), &asked("a.test", RecordType::A));
    texts(&read(&octets).answers).remove(0)
}

#[test]
fn records_of_all_types_are_written_as_they_are_read() {
    // As hickory writes them: parts of texts one behind the other, a comma behind each of a list.
    let mut differences = Vec::new();
    for (text, expected) in [
        ("a.test 60 IN A 192.0.2.1", "a.test. 60 IN A 192.0.2.1"),
        ("A.Test. A 192.0.2.1", "a.test. 3600 IN A 192.0.2.1"),
        ("a.test IN 1h30m A 192.0.2.1", "a.test. 5400 IN A 192.0.2.1"),
        ("a.test CH 7 A 192.0.2.1", "a.test. 7 CH A 192.0.2.1"),
        ("a.test 60 AAAA 2001:db8::1", "a.test. 60 IN AAAA 2001:db8::1"),
        ("a.test 60 CNAME b.test", "a.test. 60 IN CNAME b.test."),
        ("test 60 NS ns.test", "test. 60 IN NS ns.test."),
        (
            "1.2.0.192.in-addr.arpa 60 PTR a.test",
            "1.2.0.192.in-addr.arpa. 60 IN PTR a.test.",
        ),
        ("a.test 60 MX 10 mail.a.test", "a.test. 60 IN MX 10 mail.a.test."),
        (
            "_s._tcp.a.test 60 SRV 1 2 443 b.a.test",
            "_s._tcp.a.test. 60 IN SRV 1 2 443 b.a.test.",
        ),
        (
            "a.test 60 TXT \"one; two\" three",
            "a.test. 60 IN TXT one; twothree",
        ),
        ("a.test 60 TXT \"\\\"\\065\"", "a.test. 60 IN TXT \"A"),
        (
            "test 60 SOA ns.test admin.test ( 1 7200 ; comment\n 3600 1w 60 )",
            "test. 60 IN SOA ns.test. admin.test. 1 7200 3600 604800 60",
        ),
        ("a.test 60 HINFO \"RFC8482\" \"\"", "a.test. 60 IN HINFO RFC8482 "),
        (
            "a.test 60 CAA 0 issue \"ca.test\"",
            "a.test. 60 IN CAA 0 issue \"ca.test\"",
        ),
        (
            "a.test 60 HTTPS 1 . ipv4hint=192.0.2.1,192.0.2.2 alpn=h2,h3 port=8443 ipv6hint=2001:db8::1",
            "a.test. 60 IN HTTPS 1 . alpn=h2,h3, port=8443 ipv4hint=192.0.2.1,192.0.2.2, ipv6hint=2001:db8::1,",
        ),
        ("a.test 60 HTTPS 0 b.test", "a.test. 60 IN HTTPS 0 b.test."),
        (
            "a.test 60 SVCB 1 b.test mandatory=alpn alpn=\"dot\"",
            "a.test. 60 IN SVCB 1 b.test. mandatory=alpn, alpn=dot,",
        ),
        (
            "a.test 60 NAPTR 1 2 \"s\" \"SIP+D2U\" \"\" _sip._udp.a.test",
            "a.test. 60 IN NAPTR 1 2 \"s\" \"SIP+D2U\" \"\" _sip._udp.a.test.",
        ),
        (
            "a.test 60 TLSA 3 1 1 00ff 0a0b",
            "a.test. 60 IN TLSA 3 1 1 00ff0a0b",
        ),
        ("a.test 60 SSHFP 4 2 00ff", "a.test. 60 IN SSHFP 4 2 00ff"),
        ("a.test 60 TYPE1 \\# 4 c0000201", "a.test. 60 IN A 192.0.2.1"),
    ] {
        let found = as_hickory_reads(text);
        differences.extend((found != expected).then(|| format!("{text}: {found}, not {expected}")));
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn texts_keep_their_parts_and_their_octets() {
    let record = parse_record("a.test 60 TXT \"one; two\" three \"\\\"\\065\\255\" \"\"").unwrap();
    let octets = written(record, &asked("a.test", RecordType::A));
    assert!(octets.ends_with(b"\x08one; two\x05three\x03\"A\xff\x00"));
}

#[test]
fn a_text_over_255_octets_continues_in_the_next() {
    for (length, lengths) in [
        (255, vec![255]),
        (256, vec![255, 1]),
        (510, vec![255, 255]),
        (511, vec![255, 255, 1]),
    ] {
        let text = "x".repeat(length);
        let record = parse_record(&format!("a.test 60 TXT \"{text}\" y")).unwrap();
        let octets = written(record, &asked("a.test", RecordType::A));
        let one = |length: u8| std::iter::once(length).chain(std::iter::repeat_n(b'x', length.into()));
        let mut expected: Vec<u8> = lengths.into_iter().flat_map(one).collect();
        expected.extend_from_slice(b"\x01y");
        assert!(octets.ends_with(&expected), "{length}");
    }
    assert!(parse_record(&format!("a.test 60 HINFO {} y", "x".repeat(256))).is_err());
}

#[test]
fn an_invalid_record_is_refused_with_its_offset() {
    for (text, at, part) in [
        ("", 0, "the owner is expected"),
        ("a..test A 192.0.2.1", 0, "no name"),
        ("a.test 60 IN", 12, "the type is expected"),
        ("a.test 60 IN BOGUS 1", 13, "\"BOGUS\" is no type"),
        ("a.test 60 IN LOC 1", 17, "\"TYPE29\" is no type"),
        ("a.test A 192.0.2.256", 9, "an IPv4 address"),
        ("a.test A 192.0.2.1 x", 19, "behind the end"),
        ("a.test AAAA 192.0.2.1", 12, "an IPv6 address"),
        ("a.test MX 70000 b", 10, "0 to 65535"),
        ("a.test TXT \"open", 11, "not closed"),
        ("a.test SOA a b ( 1 2 3 4 5", 15, "not closed"),
        ("a.test TYPE9 \\# 3 c0", 16, "the number of octets"),
        ("a.test TLSA 3 1 1 0g", 18, "hexadecimal"),
        ("a.test HTTPS 1 . port=x", 17, "port="),
        ("a.test HTTPS 1 . alpn=h2 alpn=h3", 25, "each once"),
        ("a.test HTTPS 1 . ech=???", 17, "ech=BASE64"),
    ] {
        let InvalidRecord { at: found, reason } = parse_record(text).unwrap_err();
        assert!(
            found == at && reason.to_string().contains(part),
            "{text}: {found} {reason}"
        );
    }
}

#[test]
fn names_are_compressed_where_that_is_allowed() {
    let query = asked("a.test", RecordType::A);
    let alone = written(parse_record("a.test 1 A 192.0.2.1").unwrap(), &query).len();
    let start = 12 + query.raw_question.len();
    assert_eq!(
        alone,
        start + 2 + 10 + 4,
        "the owner is a pointer to the question"
    );
    let alias = written(parse_record("a.test 1 CNAME b.a.test").unwrap(), &query).len();
    assert_eq!(alias, start + 2 + 10 + 4, "b and a pointer");
    let service = written(parse_record("a.test 1 SRV 0 0 0 b.a.test").unwrap(), &query).len();
    assert_eq!(
        service,
        start + 2 + 10 + 6 + 10,
        "RFC 2782: a target is not compressed"
    );
}

#[test]
fn clients_get_an_opt_if_they_sent_one_with_the_extended_error_in_it() {
    let response = Response {
        rcode: 16,
        extended_error: Some((21, "not here".to_owned())),
        ..Response::own(Vec::new())
    };
    let plain = read(&response.write(&asked("a.test", RecordType::A), SIZE).unwrap());
    assert!(plain.edns.is_none());
    assert_eq!(
        plain.metadata.response_code.to_string(),
        "Server Failure",
        "16 takes an OPT"
    );
    let query = Query::read(&support::query("a.test", RecordType::A, Some(4096)))
        .unwrap()
        .owned();
    let octets = response.write(&query, SIZE).unwrap();
    let with_opt = read(&octets);
    let edns = with_opt.edns.as_ref().unwrap();
    assert_eq!(edns.max_payload(), SIZE);
    assert_eq!(u16::from(with_opt.metadata.response_code), 16);
    assert!(
        octets
            .windows(12)
            .any(|window| window == b"\x00\x0f\x00\x0a\x00\x15not he")
    );
}

#[test]
fn a_response_that_does_not_fit_is_refused() {
    let text = ResourceRecord {
        data: Data::octets(&[b'x'; 1000]),
        ..parse_record("a.test TXT x").unwrap()
    };
    let response =
        |count| Response::own(vec![text.clone(); count]).write(&asked("a.test", RecordType::TXT), SIZE);
    assert!(response(64).is_ok());
    assert!(response(65).is_err());
}

fn record() -> impl Strategy<Value = ResourceRecord> {
    let name = proptest::collection::vec("[a-c]{1,3}", 0..4)
        .prop_map(|labels| WireName::parse(&labels.join(".")).unwrap());
    (name.clone(), name, any::<[u8; 4]>(), 0..5_usize, any::<u32>()).prop_map(
        |(owner, target, octets, form, ttl)| {
            let (kind, data) = match form {
                0 => (kind::A, Data::octets(&octets)),
                1 => (kind::CNAME, Data::name(target)),
                2 => (39, Data::octets_and_name(&[], target)),
                3 => (
                    kind::SRV,
                    Data::octets_and_name(&[octets, octets].concat()[..6], target),
                ),
                _other => (65_280, Data::octets(&octets)),
            };
            ResourceRecord {
                owner,
                kind,
                class: 1,
                ttl: ttl >> 1,
                data,
            }
        },
    )
}

proptest! {
    #[test]
    fn written_responses_are_read_alike_by_hickory(
        answer in proptest::collection::vec(record(), 0..20),
        authority in proptest::collection::vec(record(), 0..4),
        additional in proptest::collection::vec(record(), 0..4),
    ) {
        let response = Response {
            sections: Sections { answer, authority, additional },
            ..Response::own(Vec::new())
        };
        let octets = response.write(&asked("a.b.c", RecordType::A), SIZE).unwrap();
        let again = Response::read(&Message::read(&octets).unwrap()).unwrap();
        let names = |sections: &Sections| {
            let mut sections = sections.clone();
            sections.iter_mut().map(|record| (record.owner, record.kind, record.ttl, record.data.first_name().copied())).collect::<Vec<_>>()
        };
        prop_assert_eq!(names(&again.sections), names(&response.sections));
        let theirs = read(&octets);
        prop_assert_eq!(theirs.answers.len(), response.sections.answer.len());
        let once_more = again.write(&asked("a.b.c", RecordType::A), SIZE).unwrap();
        prop_assert_eq!(&once_more[2..], &octets[2..]);
    }

    #[test]
    fn no_text_and_no_octets_make_it_panic(text in "[a-c.0-9 \"\\\\();=,#A-Z]{0,60}", octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _read = parse_record(&text);
        if let Ok(message) = Message::read(&octets) {
            let _taken_apart = Response::read(&message);
        }
    }
}

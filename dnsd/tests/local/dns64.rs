//! `dns64`: tables of RFC 6147 and RFC 6052.

use egret_dnsd::config::model::Dns64;
use egret_dnsd::dns::message::{Message, Query};
use egret_dnsd::plugins::QueryEndpoints;
use egret_dnsd::plugins::dns64::Translator;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Record, RecordType};

use crate::support::{address, alias, authority, query, response, with_code};
use crate::{SIZE, asked, endpoints, read, texts};

fn plan(prefix: &str) -> Dns64 {
    Dns64 {
        prefix: prefix.parse().unwrap(),
        translate_all: false,
        allow_ipv4: true,
    }
}

fn octets(kind: RecordType, answers: Vec<Record>) -> Vec<u8> {
    response(&query("a.test", kind, None), answers).to_vec().unwrap()
}

fn synthesized(prefix: &str, aaaa: &[u8], a: &[u8]) -> Vec<String> {
    let translator = Translator::new(&plan(prefix));
    let (aaaa, a) = (Message::read(aaaa).unwrap(), Message::read(a).unwrap());
    let octets = translator
        .synthesize(&asked("a.test", RecordType::AAAA), &aaaa, &a, SIZE)
        .unwrap();
    texts(&read(&octets).answers)
}

#[test]
fn an_address_is_embedded_at_each_length_of_prefix() {
    // RFC 6052 §2.4, with the prefixes of its table.
    for (prefix, expected) in [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100:0"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::c000:221"),
        ("64:ff9b::/96", "64:ff9b::c000:221"),
    ] {
        let empty = octets(RecordType::AAAA, Vec::new());
        let a = octets(RecordType::A, vec![address("a.test", 60, "192.0.2.33")]);
        let expected: std::net::Ipv6Addr = expected.parse().unwrap();
        assert_eq!(
            synthesized(prefix, &empty, &a),
            [format!("a.test. 60 IN AAAA {expected}")],
            "{prefix}"
        );
    }
}

#[test]
fn the_ttl_is_the_lower_of_the_address_and_the_soa() {
    let a = octets(RecordType::A, vec![address("a.test", 900, "192.0.2.1")]);
    let mut with_soa = response(&query("a.test", RecordType::AAAA, None), Vec::new());
    let empty = with_soa.to_vec().unwrap();
    with_soa.authorities.push(authority(30, 5));
    let ttl = |aaaa: &[u8]| {
        synthesized("64:ff9b::/96", aaaa, &a)[0]
            .split(' ')
            .nth(1)
            .unwrap()
            .to_owned()
    };
    assert_eq!(ttl(&empty), "600");
    assert_eq!(ttl(&with_soa.to_vec().unwrap()), "30");
}

#[test]
fn aliases_stay_and_addresses_keep_their_owners() {
    let a = octets(
        RecordType::A,
        vec![alias("a.test", 60, "b.test"), address("b.test", 60, "192.0.2.1")],
    );
    let empty = octets(RecordType::AAAA, Vec::new());
    let expected = [
        "a.test. 60 IN CNAME b.test.",
        "b.test. 60 IN AAAA 64:ff9b::c000:201",
    ];
    assert_eq!(synthesized("64:ff9b::/96", &empty, &a), expected);
}

#[test]
fn which_answers_need_a_query_for_a() {
    let wants = |translate_all, octets: &[u8]| {
        let translator = Translator::new(&Dns64 {
            translate_all,
            ..plan("64:ff9b::/96")
        });
        translator.wants_a(&Message::read(octets).unwrap())
    };
    let empty = response(&query("a.test", RecordType::AAAA, None), Vec::new());
    let coded = |code| with_code(empty.clone(), code).to_vec().unwrap();
    let with = |text| octets(RecordType::AAAA, vec![address("a.test", 60, text)]);
    for (octets, expected) in [
        (empty.to_vec().unwrap(), [true, true]),
        (coded(ResponseCode::NXDomain), [false, false]),
        (coded(ResponseCode::ServFail), [true, true]),
        (with("2001:db8::1"), [false, true]),
        (with("::ffff:192.0.2.1"), [true, true]),
    ] {
        assert_eq!([false, true].map(|all| wants(all, &octets)), expected);
    }
}

#[test]
fn which_queries_are_translated() {
    let six = QueryEndpoints {
        client: "[2001:db8::7]:4000".parse().unwrap(),
        ..endpoints()
    };
    let applies = |allow_ipv4, query: &Query, endpoints: &QueryEndpoints| {
        Translator::new(&Dns64 {
            allow_ipv4,
            ..plan("64:ff9b::/96")
        })
        .applies(query, endpoints)
    };
    let aaaa = asked("a.test", RecordType::AAAA);
    assert_eq!(
        [false, true].map(|allow| applies(allow, &aaaa, &endpoints())),
        [false, true]
    );
    assert!(applies(false, &aaaa, &six));
    assert!(!applies(false, &asked("a.test", RecordType::A), &six));
    assert!(
        !applies(false, &aaaa.asking(&aaaa.question.name, 28, 3), &six),
        "another class"
    );
    let mut message =
        hickory_proto::op::Message::from_vec(&query("a.test", RecordType::AAAA, Some(1232))).unwrap();
    message.metadata.checking_disabled = true;
    message.edns.as_mut().unwrap().set_dnssec_ok(true);
    let validates = Query::read(&message.to_vec().unwrap()).unwrap().owned();
    assert!(!applies(false, &validates, &six), "RFC 6147 §5.5");
}

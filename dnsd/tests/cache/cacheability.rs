//! Cacheability of answers.

use egret_dnsd::cache::{Cacheability, Kind, Provenance};
use egret_dnsd::config::model::{CacheRules, Disabled, Refresh, ServeStale};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::NS;
use hickory_proto::rr::{RData, Record, RecordType};

use crate::support::{address, alias, authority, matched, name, response, with_code};
use crate::{kept, rules, secs, stale, zone};

fn verdict(rules: &CacheRules, provenance: Provenance, write: impl FnOnce(&[u8]) -> Message) -> Cacheability {
    let answer = matched("api.example.test", RecordType::A, write);
    Cacheability::of(rules, &answer.get().message(), provenance)
}

fn a(ttl: u32) -> Record {
    address("api.example.test", ttl, "192.0.2.1")
}

fn with_soa(mut message: Message, ttl: u32, minimum: u32) -> Message {
    message.authorities.push(authority(ttl, minimum));
    message
}

fn nx(message: Message) -> Message {
    with_code(message, ResponseCode::NXDomain)
}

#[test]
fn answers_are_cached_as_the_rfcs_say() {
    use Kind::{Answer, Denial, Failure, NameError, Other};
    type Write = fn(&[u8]) -> Message;
    let cut: Write = |q| {
        let mut message = response(q, vec![a(60)]);
        message.metadata.truncation = true;
        message
    };
    let referral: Write = |q| {
        let mut message = response(q, vec![]);
        let to = RData::NS(NS(name("ns.test")));
        message
            .authorities
            .push(Record::from_rdata(name("test"), 86_400, to));
        message
    };
    type Row = (&'static str, Write, Option<(Kind, u64)>);
    let rows: [Row; 20] = [
        (
            "the lowest TTL counts",
            |q| response(q, vec![a(60), a(30)]),
            Some((Answer, 30)),
        ),
        (
            "a TTL below is raised",
            |q| response(q, vec![a(0)]),
            Some((Answer, 5)),
        ),
        (
            "a TTL above is lowered",
            |q| response(q, vec![a(9_000)]),
            Some((Answer, 3600)),
        ),
        (
            "RFC 2181 §8: the top bit is zero",
            |q| response(q, vec![a(1 << 31)]),
            Some((Answer, 5)),
        ),
        (
            "at the end of aliases",
            |q| {
                let chain = vec![
                    alias("api.example.test", 300, "b.test"),
                    address("b.test", 20, "192.0.2.1"),
                ];
                response(q, chain)
            },
            Some((Answer, 20)),
        ),
        (
            "aliases out of order",
            |q| {
                let chain = vec![
                    address("c.test", 20, "192.0.2.1"),
                    alias("b.test", 9, "c.test"),
                    alias("api.example.test", 300, "b.test"),
                ];
                response(q, chain)
            },
            Some((Answer, 9)),
        ),
        (
            "RFC 2308 §5: the SOA's TTL",
            |q| with_soa(response(q, vec![]), 20, 40),
            Some((Denial, 20)),
        ),
        (
            "RFC 2308 §5: the SOA's MINIMUM",
            |q| with_soa(response(q, vec![]), 300, 40),
            Some((Denial, 40)),
        ),
        (
            "a denial's TTL above is lowered",
            |q| with_soa(response(q, vec![]), 9_000, 9_000),
            Some((Denial, 1800)),
        ),
        (
            "RFC 2308 §2.2: no data behind an alias",
            |q| {
                with_soa(
                    response(q, vec![alias("api.example.test", 10, "gone.test")]),
                    300,
                    40,
                )
            },
            Some((Denial, 10)),
        ),
        (
            "an alias that leads nowhere",
            |q| response(q, vec![alias("api.example.test", 10, "gone.test")]),
            None,
        ),
        (
            "another's address is no answer",
            |q| response(q, vec![address("victim.test", 60, "192.0.2.1")]),
            None,
        ),
        (
            "a loop of aliases",
            |q| {
                response(
                    q,
                    vec![
                        alias("api.example.test", 10, "b.test"),
                        alias("b.test", 10, "api.example.test"),
                    ],
                )
            },
            None,
        ),
        (
            "RFC 2308 §5: a name error",
            |q| nx(with_soa(response(q, vec![]), 20, 40)),
            Some((NameError, 20)),
        ),
        (
            "RFC 2308 §5: without SOA not at all",
            |q| nx(response(q, vec![])),
            None,
        ),
        (
            "RFC 6604: the name at the alias' end",
            |q| {
                nx(with_soa(
                    response(q, vec![alias("api.example.test", 10, "gone.test")]),
                    300,
                    40,
                ))
            },
            Some((Denial, 10)),
        ),
        (
            "RFC 9520: a failure",
            |q| with_code(response(q, vec![]), ResponseCode::ServFail),
            Some((Failure, 5)),
        ),
        (
            "a refusal",
            |q| with_code(response(q, vec![]), ResponseCode::Refused),
            None,
        ),
        ("RFC 2181 §9: what was cut", cut, None),
        ("a referral", referral, Some((Other, 5))),
    ];
    for (what, write, expected) in rows {
        let found = verdict(&rules(), Provenance::Upstream, write).kept();
        assert_eq!(found, expected.map(|(kind, ttl)| kept(kind, ttl)), "{what}");
    }
}

#[test]
fn a_local_denial_is_of_one_type() {
    let found = verdict(&rules(), Provenance::Local, |q| {
        nx(with_soa(response(q, vec![]), 20, 40))
    });
    assert_eq!(found.kept(), Some(kept(Kind::Denial, 20)));
}

#[test]
fn a_disabled_zone_is_not_cached() {
    let answer: fn(&[u8]) -> Message = |q| response(q, vec![a(60)]);
    let denial: fn(&[u8]) -> Message = |q| nx(with_soa(response(q, vec![]), 20, 40));
    let none = Disabled::default();
    let success = |zones: &[&str]| Disabled {
        success: Some(zones.iter().map(|text| zone(text)).collect()),
        denial: None,
    };
    let denials = |zones: &[&str]| Disabled {
        denial: Some(zones.iter().map(|text| zone(text)).collect()),
        success: None,
    };
    for (disabled, keeps) in [
        (none, [true, true]),
        (success(&[]), [false, true]),
        (success(&["example.test"]), [false, true]),
        (success(&["other.test"]), [true, true]),
        (denials(&[]), [true, false]),
        (denials(&["example.test"]), [true, false]),
        (denials(&["xample.test"]), [true, true]),
    ] {
        let rules = CacheRules { disabled, ..rules() };
        let is_kept =
            [answer, denial].map(|write| verdict(&rules, Provenance::Upstream, write).kept().is_some());
        assert_eq!(is_kept, keeps, "{:?}", rules.disabled);
    }
}

#[test]
fn failures_are_cached_for_servfail() {
    let failure: fn(&[u8]) -> Message = |q| with_code(response(q, vec![]), ResponseCode::ServFail);
    for (seconds, expected) in [(0, None), (5, Some(5)), (300, Some(300))] {
        let rules = CacheRules {
            servfail: secs(seconds),
            ..rules()
        };
        let found = verdict(&rules, Provenance::Upstream, failure).kept();
        assert_eq!(found, expected.map(|ttl| kept(Kind::Failure, ttl)));
    }
}

#[test]
fn clients_get_ttls_within_the_bounds_of_the_class() {
    let rules = rules();
    let ttls = |write: fn(&[u8]) -> Message| {
        let ttls = verdict(&rules, Provenance::Upstream, write).ttls;
        (ttls.at_least, ttls.at_most)
    };
    assert_eq!(ttls(|q| response(q, vec![a(60)])), (5, 3600));
    assert_eq!(
        ttls(|q| with_soa(response(q, vec![]), 300, 40)),
        (5, 40),
        "what the SOA tells is what we keep"
    );
    assert_eq!(ttls(|q| with_soa(response(q, vec![]), 300, 1)), (5, 5));
    assert_eq!(
        ttls(|q| with_code(response(q, vec![]), ResponseCode::ServFail)),
        (0, 5)
    );
}

#[test]
fn a_stale_answer_is_replaced_by_an_answer_with_content() {
    type Row = (fn(&[u8]) -> Message, [bool; 2]);
    let rows: [Row; 5] = [
        (|q| response(q, vec![a(0)]), [true, true]),
        (|q| response(q, vec![]), [true, false]),
        (|q| nx(with_soa(response(q, vec![]), 20, 40)), [true, false]),
        (
            |q| with_code(response(q, vec![]), ResponseCode::ServFail),
            [false, false],
        ),
        (
            |q| with_code(response(q, vec![]), ResponseCode::Refused),
            [false, false],
        ),
    ];
    for (write, expected) in rows {
        let refreshes = [false, true].map(|prefers_positive| {
            let serve_stale = Some(ServeStale {
                prefers_positive,
                ..stale(Refresh::Immediate)
            });
            let rules = CacheRules {
                serve_stale,
                ..rules()
            };
            verdict(&rules, Provenance::Upstream, write).refreshes(&rules)
        });
        assert_eq!(refreshes, expected);
    }
}

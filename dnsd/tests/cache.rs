//! What is kept, for how long, and what is given: by tables of the RFCs and of CoreDNS' options, and against a
//! slow and obvious model under random histories.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::answer::Ttls;
use egret_dnsd::cache::{Ask, Cache, Class, Found, Hit, Kept, Key, Kind, Maker, Verdict, Weigh};
use egret_dnsd::message::{Query, WireName};
use egret_dnsd::plan::{CacheRules, Capacity, Disabled, Prefetch, Refresh, ServeStale, Zone};
use egret_shared::time::Timestamp;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::NS;
use hickory_proto::rr::{RData, Record, RecordType};
use support::{NOW, address, alias, authority, matched, name, query, response, with_code};

const LARGE: usize = 64 << 20;

fn rules() -> CacheRules {
    let capacity = |max_ttl| Capacity {
        entries: 9984,
        max_ttl: secs(max_ttl),
        min_ttl: secs(5),
    };
    CacheRules {
        zones: Vec::new(),
        success: capacity(3600),
        denial: capacity(1800),
        prefetch: None,
        serve_stale: None,
        servfail: secs(5),
        disabled: Disabled::default(),
        keep_ttl: false,
    }
}

fn stale(refresh: Refresh) -> ServeStale {
    ServeStale {
        up_to: secs(3600),
        refresh,
        response_ttl: secs(0),
        failure_recheck: secs(0),
        prefers_positive: false,
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Timestamp {
    NOW.after(secs(seconds))
}

/// A value with a number to know it by.
#[derive(Debug)]
struct Numbered(usize);

impl Weigh for Numbered {
    fn weight(&self) -> usize {
        100
    }
}

fn key(text: &str, kind: RecordType) -> Key {
    Key::of(&Query::read(&query(text, kind, None)).unwrap()).unwrap()
}

const fn kept(kind: Kind, seconds: u64) -> Kept {
    Kept {
        kind,
        lifetime: secs(seconds),
    }
}

fn zone(text: &str) -> Zone {
    Zone::new(WireName::parse(text).unwrap())
}

// --- what an answer is ---------------------------------------------------------------------------------------

fn verdict(rules: &CacheRules, maker: Maker, write: impl FnOnce(&[u8]) -> Message) -> Verdict {
    let answer = matched("api.example.test", RecordType::A, write);
    Verdict::of(rules, &answer.get().message(), maker)
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
fn answers_are_kept_as_the_rfcs_say() {
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
        let found = verdict(&rules(), Maker::Upstream, write).kept();
        assert_eq!(found, expected.map(|(kind, ttl)| kept(kind, ttl)), "{what}");
    }
}

#[test]
fn what_dnsd_denies_itself_is_denied_for_one_type() {
    let found = verdict(&rules(), Maker::Own, |q| {
        nx(with_soa(response(q, vec![]), 20, 40))
    });
    assert_eq!(found.kept(), Some(kept(Kind::Denial, 20)));
}

#[test]
fn a_zone_in_which_nothing_is_to_be_kept_is_left_out() {
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
        let is_kept = [answer, denial].map(|write| verdict(&rules, Maker::Upstream, write).kept().is_some());
        assert_eq!(is_kept, keeps, "{:?}", rules.disabled);
    }
}

#[test]
fn failures_are_kept_as_long_as_configured() {
    let failure: fn(&[u8]) -> Message = |q| with_code(response(q, vec![]), ResponseCode::ServFail);
    for (seconds, expected) in [(0, None), (5, Some(5)), (300, Some(300))] {
        let rules = CacheRules {
            servfail: secs(seconds),
            ..rules()
        };
        let found = verdict(&rules, Maker::Upstream, failure).kept();
        assert_eq!(found, expected.map(|ttl| kept(Kind::Failure, ttl)));
    }
}

#[test]
fn clients_are_told_ttls_within_the_bounds_of_the_class() {
    let rules = rules();
    let ttls = |write: fn(&[u8]) -> Message| {
        let ttls = verdict(&rules, Maker::Upstream, write).ttls;
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
fn a_stale_answer_gives_way_to_what_says_something() {
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
            verdict(&rules, Maker::Upstream, write).refreshes(&rules)
        });
        assert_eq!(refreshes, expected);
    }
}

// --- who shares an answer ------------------------------------------------------------------------------------

#[test]
fn answers_are_shared_where_they_are_the_same() {
    let asked = |text: &str, change: fn(&mut Message)| {
        let mut message = Message::from_vec(&query(text, RecordType::A, None)).unwrap();
        change(&mut message);
        Query::read(&message.to_vec().unwrap()).unwrap()
    };
    let with_edns = |message: &mut Message, dnssec: bool| {
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_dnssec_ok(dnssec);
        message.set_edns(edns);
    };
    let plain = Key::of(&asked("a.test", |_| ())).unwrap();
    let same: [fn(&mut Message); 2] = [|m| m.metadata.authentic_data = true, |m| m.metadata.id = 7];
    for change in same {
        assert_eq!(Key::of(&asked("A.tEST", change)).unwrap(), plain);
    }
    let mut edns = Message::from_vec(&query("a.test", RecordType::A, None)).unwrap();
    with_edns(&mut edns, false);
    let of = |message: &Message| Key::of(&Query::read(&message.to_vec().unwrap()).unwrap()).unwrap();
    assert_eq!(of(&edns), plain, "an OPT speaks of one hop");
    with_edns(&mut edns, true);
    assert_ne!(of(&edns), plain, "signatures are for who asks for them");
    let checking = asked("a.test", |m| m.metadata.checking_disabled = true);
    assert_ne!(Key::of(&checking).unwrap(), plain, "RFC 4035 §3.2.2");
    assert_ne!(key("a.test", RecordType::AAAA), plain);
    assert_ne!(key("b.test", RecordType::A), plain);
}

#[test]
fn who_does_not_desire_recursion_gets_what_there_is_and_leaves_nothing() {
    let mut message = Message::from_vec(&query("a.test", RecordType::A, None)).unwrap();
    message.metadata.recursion_desired = false;
    let without = Key::of(&Query::read(&message.to_vec().unwrap()).unwrap()).unwrap();
    let with = key("a.test", RecordType::A);
    assert_ne!(
        with, without,
        "equal questions at once are asked once: these are not"
    );
    let mut cache = Cache::new(&rules(), LARGE);
    cache.insert(&without, Arc::new(Numbered(1)), kept(Kind::Answer, 60), NOW);
    assert!(cache.is_empty());
    cache.insert(&with, Arc::new(Numbered(2)), kept(Kind::Answer, 60), NOW);
    assert!(matches!(cache.get(&without, NOW), Found::Fresh(hit) if hit.value.0 == 2));
}

#[test]
fn a_cache_covers_its_zones() {
    let covers = |zones: &[&str]| {
        let zones = zones.iter().map(|text| zone(text)).collect();
        let cache = Cache::<Numbered>::new(&CacheRules { zones, ..rules() }, LARGE);
        cache.covers(&WireName::parse("a.example.test").unwrap())
    };
    assert_eq!(
        [covers(&[]), covers(&["example.test"]), covers(&["other.test"])],
        [true, true, false]
    );
}

// --- what is given -------------------------------------------------------------------------------------------

#[test]
fn a_name_that_does_not_exist_is_denied_for_all_types_until_it_is_heard_of() {
    let mut cache = Cache::new(&rules(), LARGE);
    let (a, aaaa) = (key("a.test", RecordType::A), key("a.test", RecordType::AAAA));
    cache.insert(&a, Arc::new(Numbered(1)), kept(Kind::NameError, 30), NOW);
    for asked in [&a, &aaaa] {
        assert!(matches!(cache.get(asked, at(29)), Found::Fresh(hit) if hit.class == Class::Denial));
    }
    assert!(
        matches!(cache.get(&key("b.a.test", RecordType::A), NOW), Found::Miss),
        "names below are asked for"
    );
    cache.insert(&aaaa, Arc::new(Numbered(2)), kept(Kind::Answer, 30), at(1));
    assert!(matches!(cache.get(&aaaa, at(2)), Found::Fresh(hit) if hit.value.0 == 2));
    assert!(
        matches!(cache.get(&a, at(2)), Found::Miss),
        "the name exists after all"
    );
}

#[test]
fn stale_answers_are_given_as_configured() {
    let verify = |timeout| Refresh::Verify { timeout };
    let recheck = |refresh| ServeStale {
        failure_recheck: secs(30),
        ..stale(refresh)
    };
    let ttl = |seconds| ServeStale {
        response_ttl: secs(seconds),
        ..stale(Refresh::Immediate)
    };
    // How two questions right after another are answered, one second after the end, and with what TTLs.
    let rows = [
        (None, None),
        (
            Some(stale(Refresh::Immediate)),
            Some((Ask::Behind, Ask::NotNow, Ttls::All(0))),
        ),
        (Some(ttl(30)), Some((Ask::Behind, Ask::NotNow, Ttls::All(30)))),
        (
            Some(stale(verify(None))),
            Some((Ask::First(None), Ask::First(None), Ttls::All(0))),
        ),
        (
            Some(recheck(verify(Some(secs(1))))),
            Some((Ask::First(Some(secs(1))), Ask::NotNow, Ttls::All(0))),
        ),
    ];
    for (serve_stale, expected) in rows {
        let mut cache = Cache::new(
            &CacheRules {
                serve_stale,
                ..rules()
            },
            LARGE,
        );
        let asked = key("a.test", RecordType::A);
        cache.insert(&asked, Arc::new(Numbered(1)), kept(Kind::Answer, 60), NOW);
        let found = match (cache.get(&asked, at(61)), cache.get(&asked, at(61))) {
            (Found::Stale(hit, first), Found::Stale(_, second)) => Some((first, second, hit.ttls)),
            _other => None,
        };
        assert_eq!(found, expected, "{serve_stale:?}");
        assert!(matches!(cache.get(&asked, at(60 + 3600)), Found::Miss));
    }
}

#[test]
fn after_a_refresh_that_failed_the_pause_is_kept() {
    for (pause, asks_at) in [(0, [true, true, true]), (30, [false, false, true])] {
        for (at_second, asks) in [11, 39, 40].into_iter().zip(asks_at) {
            let serve_stale = Some(ServeStale {
                failure_recheck: secs(pause),
                ..stale(Refresh::Immediate)
            });
            let mut cache = Cache::new(
                &CacheRules {
                    serve_stale,
                    ..rules()
                },
                LARGE,
            );
            let asked = key("a.test", RecordType::A);
            cache.insert(&asked, Arc::new(Numbered(1)), kept(Kind::Answer, 5), NOW);
            assert!(matches!(cache.get(&asked, at(10)), Found::Stale(_, Ask::Behind)));
            cache.refresh_failed(&asked, at(10));
            let found = matches!(cache.get(&asked, at(at_second)), Found::Stale(_, Ask::Behind));
            assert_eq!(found, asks, "pause {pause}, at {at_second}");
        }
    }
}

#[test]
fn an_answer_in_use_is_asked_for_again_before_its_end() {
    // Asked for at these seconds of a TTL of 100, which of them asks the upstream again.
    let rows: [(Option<Prefetch>, &[u64], Option<u64>); 6] = [
        (None, &[1, 2, 3, 95], None),
        (prefetch(3, 60, 10), &[1, 2, 3], None),
        (prefetch(3, 60, 10), &[50, 89, 90, 91], Some(90)),
        (prefetch(3, 60, 50), &[48, 49, 50, 51], Some(50)),
        (prefetch(5, 60, 10), &[50, 89, 90, 91], None),
        (prefetch(3, 10, 10), &[50, 89, 90, 91], Some(91)),
    ];
    for (prefetch, seconds, expected) in rows {
        let mut cache = Cache::new(&CacheRules { prefetch, ..rules() }, LARGE);
        let asked = key("a.test", RecordType::A);
        cache.insert(&asked, Arc::new(Numbered(1)), kept(Kind::Answer, 100), NOW);
        let due: Vec<u64> = seconds
            .iter()
            .copied()
            .filter(|second| matches!(cache.get(&asked, at(*second)), Found::FreshAndDue(_)))
            .collect();
        assert_eq!(due, Vec::from_iter(expected), "{prefetch:?} {seconds:?}");
    }
}

fn prefetch(amount: u32, within: u64, percentage: u8) -> Option<Prefetch> {
    Some(Prefetch {
        amount,
        within: secs(within),
        percentage,
    })
}

#[test]
fn a_refreshed_answer_is_in_use_still() {
    let rules = CacheRules {
        prefetch: prefetch(3, 60, 10),
        ..rules()
    };
    let mut cache = Cache::new(&rules, LARGE);
    let asked = key("a.test", RecordType::A);
    cache.insert(&asked, Arc::new(Numbered(1)), kept(Kind::Answer, 20), NOW);
    let due =
        |cache: &mut Cache<Numbered>, second| matches!(cache.get(&asked, at(second)), Found::FreshAndDue(_));
    assert_eq!(
        [17, 18, 19].map(|second| due(&mut cache, second)),
        [false, false, true]
    );
    cache.insert(&asked, Arc::new(Numbered(2)), kept(Kind::Answer, 20), at(19));
    assert_eq!([20, 37].map(|second| due(&mut cache, second)), [false, true]);
}

#[test]
fn ttls_are_kept_where_that_is_said() {
    let ttls = |keep_ttl, seconds, second| {
        let serve_stale = Some(ServeStale {
            response_ttl: secs(seconds),
            ..stale(Refresh::Immediate)
        });
        let mut cache = Cache::new(
            &CacheRules {
                keep_ttl,
                serve_stale,
                ..rules()
            },
            LARGE,
        );
        let asked = key("a.test", RecordType::A);
        cache.insert(&asked, Arc::new(Numbered(1)), kept(Kind::Answer, 60), NOW);
        match cache.get(&asked, at(second)) {
            Found::Fresh(hit) | Found::Stale(hit, _) => hit.ttls,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ttls(false, 0, 20), Ttls::CountedDown(at(20)));
    assert_eq!(ttls(true, 0, 20), Ttls::Original);
    assert_eq!(ttls(false, 0, 70), Ttls::All(0));
    assert_eq!(ttls(true, 0, 70), Ttls::Original);
    assert_eq!(ttls(true, 30, 70), Ttls::All(30));
}

#[test]
fn a_failure_hides_no_answer_and_is_never_stale() {
    let serve_stale = Some(stale(Refresh::Immediate));
    let mut cache = Cache::new(
        &CacheRules {
            serve_stale,
            ..rules()
        },
        LARGE,
    );
    let (answered, denied, failed) = (
        key("a.test", RecordType::A),
        key("d.test", RecordType::A),
        key("f.test", RecordType::A),
    );
    cache.insert(&answered, Arc::new(Numbered(1)), kept(Kind::Answer, 10), NOW);
    cache.insert(&denied, Arc::new(Numbered(2)), kept(Kind::NameError, 10), NOW);
    for asked in [&answered, &denied, &failed] {
        cache.insert(asked, Arc::new(Numbered(9)), kept(Kind::Failure, 5), at(20));
    }
    let found = |cache: &mut Cache<Numbered>, asked, second| number(&cache.get(asked, at(second)));
    assert_eq!(
        [&answered, &denied, &failed].map(|asked| found(&mut cache, asked, 21)),
        [Some(1), Some(2), Some(9)]
    );
    assert_eq!(found(&mut cache, &failed, 25), None);
}

#[test]
fn an_answer_outlives_denials_where_that_is_preferred() {
    for (prefers_positive, expected) in [(false, [2, 4]), (true, [1, 3])] {
        let serve_stale = Some(ServeStale {
            prefers_positive,
            ..stale(Refresh::Immediate)
        });
        let mut cache = Cache::new(
            &CacheRules {
                serve_stale,
                ..rules()
            },
            LARGE,
        );
        let (a, b) = (key("a.test", RecordType::A), key("b.test", RecordType::A));
        cache.insert(&a, Arc::new(Numbered(1)), kept(Kind::Answer, 10), NOW);
        cache.insert(&a, Arc::new(Numbered(2)), kept(Kind::NameError, 60), at(11));
        cache.insert(&b, Arc::new(Numbered(3)), kept(Kind::Answer, 10), NOW);
        cache.insert(&b, Arc::new(Numbered(4)), kept(Kind::Other, 60), at(11));
        let found = [&a, &b].map(|asked| number(&cache.get(asked, at(12))).unwrap());
        assert_eq!(found, expected);
    }
}

// --- room ----------------------------------------------------------------------------------------------------

fn insert_many(cache: &mut Cache<Numbered>, prefix: &str, kind: Kind, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let asked = key(&format!("{prefix}{number}.test"), RecordType::A);
        cache.insert(&asked, Arc::new(Numbered(number)), kept(kind, 60), NOW);
    }
}

#[test]
fn it_holds_no_more_entries_of_a_class_than_configured() {
    let capacity = |entries| Capacity {
        entries,
        ..rules().success
    };
    let rules = CacheRules {
        success: capacity(100),
        denial: capacity(50),
        ..rules()
    };
    let mut cache = Cache::new(&rules, LARGE);
    insert_many(&mut cache, "a", Kind::Answer, 0..1_000);
    insert_many(&mut cache, "d", Kind::NameError, 0..1_000);
    assert_eq!(Class::ALL.map(|class| cache.entries(class)), [100, 50]);
    assert_eq!(Class::ALL.map(|class| cache.evictions(class)), [900, 950]);
}

#[test]
fn a_flood_of_random_names_does_not_flush_what_is_asked_for() {
    // By entries and by octets; of answers and of denials.
    for (entries, limit) in [(1_000, LARGE), (usize::MAX, 400_000)] {
        for kind in [Kind::Answer, Kind::NameError] {
            let capacity = Capacity {
                entries,
                ..rules().success
            };
            let mut cache = Cache::new(
                &CacheRules {
                    success: capacity,
                    denial: capacity,
                    ..rules()
                },
                limit,
            );
            insert_many(&mut cache, "used", Kind::Answer, 0..90);
            let asked_for = |cache: &mut Cache<Numbered>| {
                (0..90)
                    .filter(|n| {
                        number(&cache.get(&key(&format!("used{n}.test"), RecordType::A), NOW)).is_some()
                    })
                    .count()
            };
            assert_eq!(asked_for(&mut cache), 90);
            insert_many(&mut cache, "flood", kind, 0..20_000);
            assert_eq!(asked_for(&mut cache), 90, "{kind:?} {entries} {limit}");
            assert!(cache.weight() <= limit);
        }
    }
}

#[test]
fn an_answer_too_large_for_its_share_is_not_kept() {
    #[derive(Debug)]
    struct Large(usize);
    impl Weigh for Large {
        fn weight(&self) -> usize {
            self.0
        }
    }
    let mut cache = Cache::new(&rules(), 1 << 20);
    cache.insert(
        &key("a.test", RecordType::A),
        Arc::new(Large(70_000)),
        kept(Kind::Answer, 60),
        NOW,
    );
    assert!(cache.is_empty());
    cache.insert(
        &key("a.test", RecordType::A),
        Arc::new(Large(60_000)),
        kept(Kind::Answer, 60),
        NOW,
    );
    assert_eq!(cache.len(), 1);
}

fn number(found: &Found<Numbered>) -> Option<usize> {
    match found {
        Found::Fresh(Hit { value, .. })
        | Found::FreshAndDue(Hit { value, .. })
        | Found::Stale(Hit { value, .. }, _) => Some(value.0),
        Found::Miss => None,
    }
}

//! Cached answers: which queries they answer, and for how long.

use egret_dnsd::cache::{Cache, Class, Found, Key, Kind, StaleRefresh};
use egret_dnsd::config::model::{CacheRules, Prefetch, Refresh, ServeStale};
use egret_dnsd::dns::answer::Ttls;
use egret_dnsd::dns::message::{Query, WireName};
use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;

use crate::support::{NOW, query};
use crate::{LARGE, Numbered, at, kept, key, number, numbered, rules, secs, stale, zone};

#[test]
fn equal_queries_share_a_cached_answer() {
    let asked = |text: &str, change: fn(&mut Message)| {
        let mut message = Message::from_vec(&query(text, RecordType::A, None)).unwrap();
        change(&mut message);
        Query::read(&message.to_vec().unwrap()).unwrap().owned()
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
fn a_query_without_rd_gets_cached_answers_and_caches_none() {
    let mut message = Message::from_vec(&query("a.test", RecordType::A, None)).unwrap();
    message.metadata.recursion_desired = false;
    let without = Key::of(&Query::read(&message.to_vec().unwrap()).unwrap()).unwrap();
    let with = key("a.test", RecordType::A);
    assert_ne!(
        with, without,
        "equal questions at once are asked once: these are not"
    );
    let mut cache = Cache::new(&rules(), LARGE);
    cache.insert(&without, numbered(1), kept(Kind::Answer, 60), NOW);
    assert!(cache.is_empty());
    cache.insert(&with, numbered(2), kept(Kind::Answer, 60), NOW);
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

#[test]
fn nxdomain_covers_all_types_until_the_name_exists() {
    let mut cache = Cache::new(&rules(), LARGE);
    let (a, aaaa) = (key("a.test", RecordType::A), key("a.test", RecordType::AAAA));
    cache.insert(&a, numbered(1), kept(Kind::NameError, 30), NOW);
    for asked in [&a, &aaaa] {
        assert!(matches!(cache.get(asked, at(29)), Found::Fresh(hit) if hit.class == Class::Denial));
    }
    assert!(
        matches!(cache.get(&key("b.a.test", RecordType::A), NOW), Found::Miss),
        "names below are asked for"
    );
    cache.insert(&aaaa, numbered(2), kept(Kind::Answer, 30), at(1));
    assert!(matches!(cache.get(&aaaa, at(2)), Found::Fresh(hit) if hit.value.0 == 2));
    assert!(
        matches!(cache.get(&a, at(2)), Found::Miss),
        "the name exists after all"
    );
}

#[test]
fn stale_answers_follow_serve_stale() {
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
            Some((StaleRefresh::Background, StaleRefresh::None, Ttls::All(0))),
        ),
        (
            Some(ttl(30)),
            Some((StaleRefresh::Background, StaleRefresh::None, Ttls::All(30))),
        ),
        (
            Some(stale(verify(None))),
            Some((
                StaleRefresh::Foreground(None),
                StaleRefresh::Foreground(None),
                Ttls::All(0),
            )),
        ),
        (
            Some(recheck(verify(Some(secs(1))))),
            Some((
                StaleRefresh::Foreground(Some(secs(1))),
                StaleRefresh::None,
                Ttls::All(0),
            )),
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
        cache.insert(&asked, numbered(1), kept(Kind::Answer, 60), NOW);
        let found = match (cache.get(&asked, at(61)), cache.get(&asked, at(61))) {
            (Found::Stale(hit, first), Found::Stale(_, second)) => Some((first, second, hit.ttls)),
            _other => None,
        };
        assert_eq!(found, expected, "{serve_stale:?}");
        assert!(matches!(cache.get(&asked, at(60 + 3600)), Found::Miss));
    }
}

#[test]
fn after_a_failed_refresh_there_is_a_pause() {
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
            cache.insert(&asked, numbered(1), kept(Kind::Answer, 5), NOW);
            assert!(matches!(
                cache.get(&asked, at(10)),
                Found::Stale(_, StaleRefresh::Background)
            ));
            cache.refresh_failed(&asked, at(10));
            let found = matches!(
                cache.get(&asked, at(at_second)),
                Found::Stale(_, StaleRefresh::Background)
            );
            assert_eq!(found, asks, "pause {pause}, at {at_second}");
        }
    }
}

#[test]
fn a_popular_answer_is_prefetched() {
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
        cache.insert(&asked, numbered(1), kept(Kind::Answer, 100), NOW);
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
fn a_prefetched_answer_keeps_its_popularity() {
    let rules = CacheRules {
        prefetch: prefetch(3, 60, 10),
        ..rules()
    };
    let mut cache = Cache::new(&rules, LARGE);
    let asked = key("a.test", RecordType::A);
    cache.insert(&asked, numbered(1), kept(Kind::Answer, 20), NOW);
    let due =
        |cache: &mut Cache<Numbered>, second| matches!(cache.get(&asked, at(second)), Found::FreshAndDue(_));
    assert_eq!(
        [17, 18, 19].map(|second| due(&mut cache, second)),
        [false, false, true]
    );
    cache.insert(&asked, numbered(2), kept(Kind::Answer, 20), at(19));
    assert_eq!([20, 37].map(|second| due(&mut cache, second)), [false, true]);
}

#[test]
fn keep_ttl_leaves_ttls_as_received() {
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
        cache.insert(&asked, numbered(1), kept(Kind::Answer, 60), NOW);
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
    cache.insert(&answered, numbered(1), kept(Kind::Answer, 10), NOW);
    cache.insert(&denied, numbered(2), kept(Kind::NameError, 10), NOW);
    for asked in [&answered, &denied, &failed] {
        cache.insert(asked, numbered(9), kept(Kind::Failure, 5), at(20));
    }
    let found = |cache: &mut Cache<Numbered>, asked, second| number(&cache.get(asked, at(second)));
    assert_eq!(
        [&answered, &denied, &failed].map(|asked| found(&mut cache, asked, 21)),
        [Some(1), Some(2), Some(9)]
    );
    assert_eq!(found(&mut cache, &failed, 25), None);
}

#[test]
fn prefers_positive_keeps_an_answer_after_a_denial() {
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
        cache.insert(&a, numbered(1), kept(Kind::Answer, 10), NOW);
        cache.insert(&a, numbered(2), kept(Kind::NameError, 60), at(11));
        cache.insert(&b, numbered(3), kept(Kind::Answer, 10), NOW);
        cache.insert(&b, numbered(4), kept(Kind::Other, 60), at(11));
        let found = [&a, &b].map(|asked| number(&cache.get(asked, at(12))).unwrap());
        assert_eq!(found, expected);
    }
}

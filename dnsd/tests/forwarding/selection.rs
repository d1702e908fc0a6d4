//! Selection of upstreams: policies, failover, health, and the names of a forward.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use egret_dnsd::config::model::{self, Forward, HealthCheck, Policy, Protocol, UpstreamHost, Zone};
use egret_dnsd::upstream::Metrics;
use egret_dnsd::upstream::{Failure, Forwarder, InvalidForward, look_up};
use hickory_proto::op::ResponseCode;
use tokio::time::Instant;

use super::world::{
    Action, LOOPBACK, PATIENCE, ReceivedQuery, Transport, Upstream, address, ask, ask_for, forwarder,
    join_all, nobody, owner, plan, until, wire_name,
};

async fn honest(count: usize) -> Vec<Upstream> {
    let mut upstreams = Vec::new();
    for _ in 0..count {
        upstreams.push(Upstream::honest().await);
    }
    upstreams
}

fn addresses(upstreams: &[Upstream]) -> Vec<SocketAddr> {
    upstreams.iter().map(|upstream| upstream.address).collect()
}

/// How many questions each was asked. Where the machine is busy, one that is slow is asked again.
async fn counts(policy: Policy, upstreams: &[Upstream], questions: usize) -> Vec<usize> {
    let before: Vec<usize> = upstreams.iter().map(Upstream::asked).collect();
    let forwarder = forwarder(&Forward {
        policy,
        ..plan(&addresses(upstreams))
    });
    for number in 0..questions {
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
    }
    let each = upstreams.iter().zip(before);
    let names = each.map(|(upstream, before)| {
        upstream.received()[before..]
            .iter()
            .map(ReceivedQuery::name)
            .collect()
    });
    names.map(|names: BTreeSet<String>| names.len()).collect()
}

#[tokio::test]
async fn upstreams_are_queried_in_the_order_of_the_policy() {
    let upstreams = honest(3).await;
    assert_eq!(counts(Policy::Sequential, &upstreams, 30).await, [30, 0, 0]);
    let in_turn = counts(Policy::RoundRobin, &upstreams, 30).await;
    let has_its_turns = |count: &usize| (10..15).contains(count);
    assert!(in_turn.iter().all(has_its_turns), "in turn: {in_turn:?}");
    let random = counts(Policy::Random, &upstreams, 90).await;
    assert!(
        random.iter().all(|count| (10..60).contains(count)),
        "at random: {random:?}"
    );
}

#[tokio::test]
async fn lowest_latency_queries_the_fastest_upstream() {
    let slow = Upstream::start(|asked| {
        vec![
            Action::Wait(Duration::from_millis(300)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let fast = Upstream::honest().await;
    let counts = counts(Policy::LowestLatency, &[slow, fast], 60).await;
    assert!(counts[1] > 50, "{counts:?}");
}

#[tokio::test]
async fn failover_follows_an_unreachable_or_silent_upstream() {
    let (dead, alive) = (Upstream::dead().await, Upstream::honest().await);
    for first in [nobody().await, dead.address] {
        let forwarder = forwarder(&Forward {
            read_timeout: Duration::from_millis(500),
            ..plan(&[first, alive.address])
        });
        assert_eq!(owner(&ask(&forwarder, "a.test").await.unwrap()), "a.test.");
    }
}

#[tokio::test]
async fn failover_codes_lead_to_the_next_upstream_and_the_last_answer_counts() {
    let refusing = Upstream::start(|asked| vec![Action::Reply(asked.code(ResponseCode::Refused))]).await;
    let failing = Upstream::start(|asked| vec![Action::Reply(asked.code(ResponseCode::ServFail))]).await;
    let alive = Upstream::honest().await;
    // Upstreams, codes of failover, the code of the answer.
    let rows: [(&[&Upstream], &[u8], u8); 5] = [
        (&[&refusing, &alive], &[], 5),
        (&[&refusing, &alive], &[5], 0),
        (&[&refusing, &alive], &[2], 5),
        (&[&refusing, &failing], &[2, 5], 2),
        (&[&refusing, &failing, &alive], &[2, 5], 0),
    ];
    for (upstreams, failover, code) in rows {
        let addresses: Vec<SocketAddr> = upstreams.iter().map(|upstream| upstream.address).collect();
        let forwarder = forwarder(&Forward {
            failover: failover.to_vec(),
            ..plan(&addresses)
        });
        let answer = ask(&forwarder, "a.test").await.unwrap();
        assert_eq!(answer.get().rcode(), code, "{failover:?}");
    }
}

#[tokio::test]
async fn a_poor_answer_is_better_than_none() {
    let failing = Upstream::start(|asked| vec![Action::Reply(asked.code(ResponseCode::ServFail))]).await;
    let forwarder = forwarder(&Forward {
        failover: vec![2],
        ..plan(&[failing.address, nobody().await])
    });
    assert_eq!(ask(&forwarder, "a.test").await.unwrap().get().rcode(), 2);
}

#[tokio::test]
async fn next_codes_lead_to_the_next_forward() {
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "none.test." => vec![Action::Reply(asked.code(ResponseCode::NXDomain))],
        "empty.test." => vec![Action::Reply(asked.answer(Vec::new()))],
        _other => vec![Action::Reply(asked.one())],
    })
    .await;
    // next, next_on_nodata, which names are passed on.
    let rows: [(&[u8], bool, [bool; 3]); 4] = [
        (&[], false, [false, false, false]),
        (&[3], false, [true, false, false]),
        (&[], true, [false, true, false]),
        (&[0], false, [false, true, true]),
    ];
    for (next, next_on_nodata, passed) in rows {
        let forwarder = forwarder(&Forward {
            next: next.to_vec(),
            next_on_nodata,
            ..plan(&[upstream.address])
        });
        for (name, passed) in ["none.test", "empty.test", "one.test"].into_iter().zip(passed) {
            let answer = ask(&forwarder, name).await.unwrap();
            assert_eq!(forwarder.passes_on(answer.get()), passed, "{next:?} {name}");
        }
    }
}

#[tokio::test]
async fn a_forward_takes_names_below_from_and_not_below_except() {
    let rows = [
        (".", None, "a.test", true),
        ("test", None, "a.test", true),
        ("test", None, "TEST", true),
        ("test", None, "xtest", false),
        ("test", Some("b.test"), "a.b.test", false),
        ("test", Some("b.test"), "xb.test", true),
        ("test", Some("test"), "test", true),
        ("test", Some("test"), "a.test", false),
    ];
    let upstream = nobody().await;
    for (from, except, name, holds) in rows {
        let forwarder = forwarder(&Forward {
            from: Zone::new(wire_name(from)),
            except: except
                .into_iter()
                .map(|name| Zone::new(wire_name(name)))
                .collect(),
            ..plan(&[upstream])
        });
        assert_eq!(
            forwarder.holds(&wire_name(name)),
            holds,
            "{from} {except:?} {name}"
        );
    }
}

/// An upstream that lives or not as it is told.
async fn mortal() -> (Upstream, Arc<AtomicBool>) {
    let lives = Arc::new(AtomicBool::new(false));
    let is_alive = Arc::clone(&lives);
    let upstream = Upstream::start(move |asked| match is_alive.load(Ordering::Relaxed) {
        true => vec![Action::Reply(asked.one())],
        false => vec![],
    })
    .await;
    (upstream, lives)
}

fn checked(upstreams: &[SocketAddr]) -> Forward {
    Forward {
        // Who lives is never that slow, however busy the machine is: it would be asked last as well.
        read_timeout: Duration::from_secs(1),
        max_connect_attempts: Some(1),
        health_check: HealthCheck {
            interval: Duration::from_millis(20),
            recursion: true,
            domain: wire_name("."),
        },
        max_fails: 1,
        ..plan(upstreams)
    }
}

#[tokio::test]
async fn a_failed_upstream_is_health_checked_until_it_is_up() {
    for (recursion, domain, force_tcp) in [
        (true, ".", false),
        (false, "check.test", false),
        (true, ".", true),
    ] {
        let (upstream, lives) = mortal().await;
        let forwarder = forwarder(&Forward {
            force_tcp,
            health_check: HealthCheck {
                interval: Duration::from_millis(20),
                recursion,
                domain: wire_name(domain),
            },
            ..checked(&[upstream.address])
        });
        assert!(upstream.checks().is_empty());
        assert!(ask(&forwarder, "a.test").await.is_err());
        until("it is checked", || !upstream.checks().is_empty()).await;
        let check = upstream.checks().remove(0);
        assert_eq!(check.message().metadata.recursion_desired, recursion);
        assert_eq!(check.name(), wire_name(domain).to_string());
        assert_eq!(
            check.over,
            if force_tcp { Transport::Tcp } else { Transport::Udp }
        );
        lives.store(true, Ordering::Relaxed);
        until("it lives", || upstream.checks().len() >= 2).await;
        ask(&forwarder, "b.test").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let checks = upstream.checks().len();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(upstream.checks().len(), checks, "nobody checks what lives");
    }
}

#[tokio::test]
async fn above_max_fails_failed_checks_an_upstream_is_not_queried() {
    // Nobody is there: a check fails at once, instead of after the second that it is waited for.
    for (max_fails, fails_fast, wanted) in [
        (1, true, Failure::AllDead),
        (1, false, Failure::Unreachable),
        (0, true, Failure::Unreachable),
    ] {
        let forwarder = forwarder(&Forward {
            max_fails,
            fails_fast,
            ..checked(&[nobody().await])
        });
        assert!(ask(&forwarder, "a.test").await.is_err());
        let begun = Instant::now();
        let failure = loop {
            // Enough for some checks, where the machine is not too busy for them.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let failure = ask(&forwarder, "b.test").await.map(|it| owner(&it));
            if failure == Err(wanted) || begun.elapsed() > PATIENCE {
                break failure;
            }
        };
        assert_eq!(
            failure,
            Err(wanted),
            "max_fails {max_fails}, fails_fast {fails_fast}"
        );
    }
}

#[tokio::test]
async fn a_dead_upstream_delays_no_query_and_returns_when_it_is_up() {
    let (mortal, lives) = mortal().await;
    let alive = Upstream::honest().await;
    let forwarder = forwarder(&Forward {
        max_connect_attempts: None,
        ..checked(&[mortal.address, alive.address])
    });
    for number in 0..20 {
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
    }
    assert_eq!(mortal.asked(), 1, "questions to the dead one");
    lives.store(true, Ordering::Relaxed);
    let again = async {
        while mortal.asked() < 2 {
            ask(&forwarder, "again.test").await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("it is asked again");
}

#[tokio::test]
async fn max_connect_attempts_limits_attempts() {
    for (most, asked) in [(Some(1), 1), (Some(3), 3), (None, 4)] {
        let (first, second) = (Upstream::dead().await, Upstream::dead().await);
        let forwarder = forwarder(&Forward {
            read_timeout: Duration::from_millis(30),
            max_connect_attempts: most,
            max_fails: 0,
            ..plan(&[first.address, second.address])
        });
        assert!(ask(&forwarder, "a.test").await.is_err());
        let count = || first.asked() + second.asked();
        until("what was sent last has come", || count() >= asked).await;
        assert_eq!(count(), asked, "{most:?}");
    }
}

#[tokio::test]
async fn without_max_connect_attempts_upstreams_are_tried_until_the_timeout() {
    let forwarder = forwarder(&Forward {
        max_connect_attempts: Some(0),
        max_fails: 0,
        ..plan(&[nobody().await])
    });
    let begun = Instant::now();
    let asking = ask_for(&forwarder, "a.test", Duration::from_millis(600));
    let answer = tokio::time::timeout(PATIENCE, asking).await.expect("it ends");
    assert!(answer.is_err());
    assert!(
        begun.elapsed() >= Duration::from_millis(300),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn above_max_concurrent_queries_are_refused() {
    for (most, refused) in [(0, 0), (3, 2), (5, 0)] {
        let upstream = Upstream::start(|asked| {
            vec![
                Action::Wait(Duration::from_millis(50)),
                Action::Reply(asked.one()),
            ]
        })
        .await;
        let forwarder = forwarder(&Forward {
            max_concurrent: most,
            ..plan(&[upstream.address])
        });
        let names = ["a.test", "b.test", "c.test", "d.test", "e.test"];
        let answers = join_all(names.iter().map(|name| ask(&forwarder, name)).collect()).await;
        let over = answers.iter().filter_map(|answer| answer.as_ref().err());
        let codes: Vec<u8> = over.map(|failure| failure.rcode()).collect();
        assert_eq!(codes, vec![5; refused], "{most}");
        ask(&forwarder, "later.test").await.unwrap();
    }
}

#[tokio::test]
async fn queries_and_health_checks_use_the_source_address() {
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53));
    for force_tcp in [false, true] {
        let upstream = Upstream::start(|asked| match asked.is_check() || asked.name() == "a.test." {
            true => vec![Action::Reply(asked.one())],
            false => Vec::new(),
        })
        .await;
        let forwarder = forwarder(&Forward {
            source: Some(source),
            force_tcp,
            ..checked(&[upstream.address])
        });
        ask(&forwarder, "a.test").await.unwrap();
        assert!(ask(&forwarder, "b.test").await.is_err());
        until("it is checked", || !upstream.checks().is_empty()).await;
        let received = upstream.received().into_iter().chain(upstream.checks());
        assert!(received.into_iter().all(|asked| asked.from.ip() == source));
    }
    let unusable = Forwarder::new(
        &Forward {
            source: Some("::1".parse().unwrap()),
            ..plan(&[nobody().await])
        },
        Arc::new(Metrics::register()),
    );
    assert!(matches!(unusable, Err(InvalidForward::Source { .. })));
}

fn written(host: UpstreamHost) -> Vec<model::Upstream> {
    vec![model::Upstream {
        host,
        protocol: Protocol::Dns,
        server_name: None,
    }]
}

#[tokio::test]
async fn upstreams_come_from_a_file_like_resolv_conf() {
    let path = std::env::temp_dir().join(format!("egret-resolv-{}.conf", std::process::id()));
    let plan = Forward {
        to: written(UpstreamHost::ResolvConf(path.clone())),
        ..plan(&[])
    };
    let make = |plan: &Forward| Forwarder::new(plan, Arc::new(Metrics::register()));
    assert!(matches!(make(&plan), Err(InvalidForward::File { .. })));
    fs::write(&path, "search a.test\n").unwrap();
    assert!(matches!(make(&plan), Err(InvalidForward::Nobody { .. })));
    fs::write(&path, "nameserver 192.0.2.1\n".repeat(16)).unwrap();
    assert!(matches!(
        make(&plan),
        Err(InvalidForward::TooMany { count: 16, .. })
    ));
    fs::write(&path, "nameserver 192.0.2.1\nnameserver 2001:db8::1\n").unwrap();
    assert!(make(&plan).is_ok());
    fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn upstream_names_are_resolved() {
    let upstream = Upstream::honest().await;
    let resolver = Upstream::start(|asked| {
        let is_v4 = asked.octets[asked.octets.len() - 3] == 1;
        match (asked.name().as_str(), is_v4) {
            ("here.test.", true) => {
                vec![Action::Reply(asked.answer(vec![address(
                    "here.test",
                    60,
                    &LOOPBACK.to_string(),
                )]))]
            }
            _other => vec![Action::Reply(asked.answer(Vec::new()))],
        }
    })
    .await;
    let metrics = Arc::new(Metrics::register());
    let with = |name: &str| Forward {
        to: written(UpstreamHost::Name(wire_name(name), upstream.address.port())),
        resolver: vec![resolver.address],
        ..plan(&[])
    };
    assert!(matches!(
        Forwarder::new(&with("here.test"), Arc::clone(&metrics)),
        Err(InvalidForward::Name { .. })
    ));
    let found = look_up(&with("here.test"), &metrics).await.unwrap();
    assert_eq!(
        owner(&ask(&forwarder(&found), "a.test").await.unwrap()),
        "a.test."
    );
    let nowhere = look_up(&with("nowhere.test"), &metrics).await;
    assert!(matches!(nowhere, Err(InvalidForward::Name { .. })));
    let untouched = plan(&[upstream.address]);
    assert_eq!(look_up(&untouched, &metrics).await.unwrap(), untouched);
}

#[tokio::test]
async fn at_most_one_query_in_ten_is_hedged() {
    let mut by_name = BTreeMap::<String, usize>::new();
    let fast = Arc::new(AtomicBool::new(true));
    let is_fast = Arc::clone(&fast);
    let upstream = Upstream::start(move |asked| {
        if is_fast.load(Ordering::Relaxed) {
            return vec![Action::Reply(asked.one())];
        }
        vec![Action::Wait(Duration::from_secs(1)), Action::Reply(asked.one())]
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for number in 0..10 {
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
    }
    fast.store(false, Ordering::Relaxed);
    let names: Vec<String> = (0..200).map(|number| format!("slow{number}.test")).collect();
    let answers = join_all(names.iter().map(|name| ask(&forwarder, name)).collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    for asked in upstream.received() {
        *by_name.entry(asked.name()).or_default() += 1;
    }
    let twice = by_name.values().filter(|count| **count > 1).count();
    assert!(
        (10..=42).contains(&twice),
        "questions that were asked twice: {twice}"
    );
}

//! Connections to upstreams (RFC 7766): sharing, reuse, and pending queries when a connection ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use egret_dnsd::config::model::Forward;
use egret_dnsd::upstream::{Failure, Forwarder};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{RData, Record};
use tokio::time::timeout;

use super::world::{
    Action, PATIENCE, ReceivedQuery, Transport, Upstream, ask, ask_for, forwarder, framed, join_all, nobody,
    owner, plan, read, until,
};

fn by_tcp(upstream: &Upstream) -> Forward {
    Forward {
        force_tcp: true,
        ..plan(&[upstream.address])
    }
}

async fn ask_many(forwarder: &Forwarder, names: &[String]) -> Vec<Result<String, Failure>> {
    let asking = names.iter().map(|name| ask(forwarder, name)).collect();
    let answers = join_all(asking).await;
    answers
        .into_iter()
        .map(|answer| answer.map(|answer| owner(&answer)))
        .collect()
}

fn names(count: usize, zone: &str) -> Vec<String> {
    (0..count).map(|number| format!("n{number}.{zone}")).collect()
}

#[tokio::test]
async fn one_connection_carries_many_queries_with_answers_in_any_order() {
    let upstream = Upstream::start(|asked| match asked.name().starts_with("n0.") {
        true => vec![
            Action::Wait(Duration::from_millis(100)),
            Action::Reply(asked.one()),
        ],
        false => vec![Action::Reply(asked.one())],
    })
    .await;
    let forwarder = forwarder(&by_tcp(&upstream));
    let names = names(20, "test");
    let answers = ask_many(&forwarder, &names).await;
    let wanted: Vec<_> = names.iter().map(|name| Ok(format!("{name}."))).collect();
    assert_eq!(answers, wanted);
    for number in 0..20 {
        ask(&forwarder, &format!("later{number}.test")).await.unwrap();
    }
    // Where the machine is busy, one that is slow is asked again.
    let asked: BTreeSet<String> = upstream.received().iter().map(ReceivedQuery::name).collect();
    assert_eq!(asked.len(), 40, "all of them: {asked:?}");
    assert_eq!(upstream.accepted(), 1, "connections");
}

#[tokio::test]
async fn a_burst_of_queries_opens_few_connections() {
    let upstream = Upstream::start(|asked| {
        vec![
            Action::Wait(Duration::from_millis(50)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let forwarder = forwarder(&by_tcp(&upstream));
    let answers = ask_many(&forwarder, &names(300, "test")).await;
    assert!(answers.iter().all(Result::is_ok));
    let accepted = upstream.accepted();
    assert!((5..=20).contains(&accepted), "connections: {accepted}");
}

#[tokio::test]
async fn max_idle_connections_limits_idle_connections() {
    for (most, left) in [(1, 1), (3, 3)] {
        let upstream = Upstream::start(|asked| {
            vec![
                Action::Wait(Duration::from_millis(50)),
                Action::Reply(asked.one()),
            ]
        })
        .await;
        let forwarder = forwarder(&Forward {
            max_idle_connections: most,
            ..by_tcp(&upstream)
        });
        ask_many(&forwarder, &names(200, "test")).await;
        assert!(upstream.accepted() > 3, "there are more than may be kept");
        until("the rest is closed", || upstream.open() == left).await;
    }
}

#[tokio::test]
async fn an_idle_connection_ends_after_expire() {
    let upstream = Upstream::honest().await;
    let forwarder = forwarder(&Forward {
        expire: Duration::from_millis(100),
        ..by_tcp(&upstream)
    });
    ask(&forwarder, "a.test").await.unwrap();
    let before = upstream.accepted();
    until("it ends", || upstream.open() == 0).await;
    ask(&forwarder, "b.test").await.unwrap();
    assert_eq!(upstream.accepted(), before + 1, "connections");
}

#[tokio::test]
async fn a_busy_connection_ends_after_max_age() {
    const AGE: Duration = Duration::from_millis(90);
    for (max_age, is_replaced) in [(Duration::ZERO, false), (AGE, true)] {
        let upstream = Upstream::honest().await;
        let forwarder = forwarder(&Forward {
            max_age,
            ..by_tcp(&upstream)
        });
        for number in 0..5 {
            ask(&forwarder, &format!("n{number}.test")).await.unwrap();
            tokio::time::sleep(AGE / 3).await;
        }
        assert_eq!(upstream.accepted() > 1, is_replaced, "{max_age:?}");
    }
}

#[tokio::test]
async fn queries_on_a_closed_connection_are_sent_again_on_another() {
    let is_first = AtomicBool::new(true);
    let upstream = Upstream::start(move |asked| {
        if asked.name() == "n2.test." && is_first.swap(false, Ordering::Relaxed) {
            return vec![Action::Close];
        }
        vec![Action::Reply(asked.one())]
    })
    .await;
    let forwarder = forwarder(&Forward {
        max_connect_attempts: Some(1),
        ..by_tcp(&upstream)
    });
    for number in 0..4 {
        let name = format!("n{number}.test");
        let answered = ask(&forwarder, &name).await.map(|answer| owner(&answer));
        assert_eq!(answered, Ok(format!("{name}.")), "the answer to {name}");
    }
    let ports = |name: &str| {
        let received = upstream.received().into_iter();
        let asked = received.filter(|asked| asked.name() == name);
        asked.map(|asked| asked.from.port()).collect::<BTreeSet<_>>()
    };
    assert_eq!(ports("n1.test.").len(), 1, "connections of what was not lost");
    assert_eq!(ports("n2.test.").len(), 2, "connections of what was");
}

#[tokio::test]
async fn an_upstream_that_closes_every_connection_is_given_up() {
    let upstream = Upstream::start(|_| vec![Action::Close]).await;
    let forwarder = forwarder(&by_tcp(&upstream));
    let failure = ask(&forwarder, "a.test").await.map(|it| owner(&it));
    assert_eq!(failure, Err(Failure::Unreachable));
    let accepted = upstream.accepted();
    assert!(accepted <= 4, "connections: {accepted}");
}

#[tokio::test]
async fn a_refused_connection_fails_at_once() {
    let mut plan = plan(&[nobody().await]);
    plan.force_tcp = true;
    let failure = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert_eq!(failure, Err(Failure::Unreachable));
}

#[tokio::test]
async fn an_upstream_that_accepts_and_never_answers_costs_its_timeout() {
    let upstream = Upstream::dead().await;
    let forwarder = forwarder(&Forward {
        read_timeout: Duration::from_millis(100),
        max_connect_attempts: Some(1),
        ..by_tcp(&upstream)
    });
    let asking = ask_for(&forwarder, "a.test", 12 * PATIENCE);
    let answer = timeout(PATIENCE, asking).await.expect("it is given up");
    assert!(answer.is_err());
    until("the connection is given up", || upstream.open() == 0).await;
}

#[tokio::test]
async fn a_connection_that_died_silently_is_replaced_by_another() {
    let silent = Arc::new(AtomicUsize::new(0));
    let is_silent = Arc::clone(&silent);
    // From some moment on, the connection that is there says nothing any more; new ones do.
    let upstream = Upstream::start(move |asked| {
        let dead_port = is_silent.load(Ordering::Relaxed);
        if usize::from(asked.from.port()) == dead_port {
            return Vec::new();
        }
        vec![Action::Reply(asked.one())]
    })
    .await;
    let forwarder = forwarder(&Forward {
        read_timeout: Duration::from_millis(500),
        ..by_tcp(&upstream)
    });
    ask(&forwarder, "a.test").await.unwrap();
    let dead = upstream.received()[0].from;
    silent.store(dead.port().into(), Ordering::Relaxed);
    for name in ["b.test", "c.test", "d.test"] {
        ask(&forwarder, name).await.unwrap();
    }
    assert!(upstream.accepted() >= 2);
    let received = upstream.received();
    let in_vain: BTreeSet<String> = received
        .iter()
        .filter(|asked| asked.from == dead)
        .map(ReceivedQuery::name)
        .collect();
    assert_eq!(Vec::from_iter(in_vain), ["a.test.", "b.test."]);
}

#[tokio::test]
async fn an_incomplete_message_is_no_answer() {
    let cut = |asked: &ReceivedQuery| {
        let whole = framed(&asked.one());
        vec![Action::Raw(whole[..whole.len() - 3].to_vec()), Action::Close]
    };
    let upstream = Upstream::start(cut).await;
    let failure = ask(&forwarder(&by_tcp(&upstream)), "a.test")
        .await
        .map(|it| owner(&it));
    assert_eq!(failure, Err(Failure::Unreachable));
}

#[tokio::test]
async fn a_message_is_read_octet_by_octet() {
    let upstream = Upstream::start(|asked| {
        let whole = framed(&asked.one());
        whole.iter().map(|octet| Action::Raw(vec![*octet])).collect()
    })
    .await;
    let answer = ask(&forwarder(&by_tcp(&upstream)), "a.test").await.unwrap();
    assert_eq!(owner(&answer), "a.test.");
}

fn large(asked: &ReceivedQuery) -> Vec<u8> {
    let name = hickory_proto::rr::Name::from_ascii(asked.name()).unwrap();
    let text = |number: usize| TXT::new(vec![format!("{number:0>250}")]);
    let records = (0..230).map(|number| Record::from_rdata(name.clone(), 60, RData::TXT(text(number))));
    asked.answer(records.collect())
}

#[tokio::test]
async fn an_answer_of_nearly_64_kib_is_complete() {
    let upstream = Upstream::start(|asked| match asked.over {
        Transport::Udp => vec![Action::Reply(asked.cut())],
        Transport::Tcp | Transport::Quic => vec![Action::Reply(large(asked))],
    })
    .await;
    let answer = ask(&forwarder(&plan(&[upstream.address])), "a.test")
        .await
        .unwrap();
    assert_eq!(read(&answer).answers.len(), 230);
    assert!(answer.get().message().octets().len() > 60_000);
}

#[tokio::test]
async fn on_a_connection_a_wrong_question_fails_and_unknown_ids_are_ignored() {
    let upstream = Upstream::start(|asked| {
        let mut other_id = asked.one();
        other_id[0] ^= 1;
        vec![
            Action::Reply(other_id),
            Action::Reply(vec![1]),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let answer = ask(&forwarder(&by_tcp(&upstream)), "a.test").await.unwrap();
    assert_eq!(owner(&answer), "a.test.");
    let liar = Upstream::start(|asked| {
        let mut octets = asked.one();
        octets[13] ^= 3;
        vec![Action::Reply(octets)]
    })
    .await;
    let failure = ask(&forwarder(&by_tcp(&liar)), "a.test")
        .await
        .map(|it| owner(&it));
    assert_eq!(failure, Err(Failure::Nonsense));
}

#[tokio::test]
async fn a_late_answer_on_a_connection_is_given_to_no_other_query() {
    const LATE: Duration = Duration::from_millis(100);
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "slow.test." => vec![Action::Wait(LATE), Action::Reply(asked.one())],
        // Meanwhile the late one comes.
        _other => vec![Action::Wait(2 * LATE), Action::Reply(asked.one())],
    })
    .await;
    let forwarder = forwarder(&Forward {
        max_connect_attempts: Some(1),
        ..by_tcp(&upstream)
    });
    tokio::select! {
        _answered = ask(&forwarder, "slow.test") => panic!("nobody waits for that long"),
        () = until("it is asked", || upstream.asked() > 0) => {}
    }
    for number in 0..3 {
        let name = format!("n{number}.test");
        let answered = ask(&forwarder, &name).await.map(|answer| owner(&answer));
        assert_eq!(answered, Ok(format!("{name}.")), "the answer to {name}");
    }
}

#[tokio::test]
async fn connections_end_with_the_forwarder() {
    let upstream = Upstream::honest().await;
    let forwarder = forwarder(&by_tcp(&upstream));
    ask(&forwarder, "a.test").await.unwrap();
    assert_eq!(upstream.open(), 1);
    drop(forwarder);
    until("it ends", || upstream.open() == 0).await;
}

//! Timeouts: slow queries are hedged, and none outlives its client's timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use egret_dnsd::config::model::{Forward, Policy};
use egret_dnsd::upstream::Failure;
use tokio::time::Instant;

use super::world::{Action, PATIENCE, Upstream, ask, ask_for, forwarder, join_all, nobody, owner, plan};

/// Nobody waits as long for an upstream: what it does not say at once comes from elsewhere, or not at all.
const FOR_EVER: Duration = Duration::from_secs(60);

/// Loses the question of each so many.
async fn losing(every: usize) -> Upstream {
    let seen = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |asked| {
        if seen.fetch_add(1, Ordering::Relaxed) % every == every - 1 {
            return Vec::new();
        }
        vec![Action::Reply(asked.one())]
    })
    .await
}

#[tokio::test]
async fn a_lost_datagram_is_sent_again_before_the_timeout() {
    let upstream = losing(5).await;
    let forwarder = forwarder(&Forward {
        read_timeout: FOR_EVER,
        ..plan(&[upstream.address])
    });
    for number in 0..20 {
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_upstream_is_hedged_by_another() {
    for (policy, is_overtaken) in [(Policy::RoundRobin, true), (Policy::Sequential, false)] {
        let seen = Arc::new(AtomicUsize::new(0));
        let slow = Upstream::start(move |asked| {
            if seen.fetch_add(1, Ordering::Relaxed) < 10 {
                return vec![Action::Reply(asked.one())];
            }
            vec![Action::Wait(FOR_EVER), Action::Reply(asked.one())]
        })
        .await;
        let other = Upstream::honest().await;
        let forwarder = forwarder(&Forward {
            policy,
            read_timeout: FOR_EVER,
            ..plan(&[slow.address, other.address])
        });
        let mut is_answered = true;
        for number in 0..24 {
            is_answered = is_answered && ask(&forwarder, &format!("n{number}.test")).await.is_ok();
        }
        // Where the operator gave an order, the second may not know the same names: it is not asked instead.
        assert_eq!(is_answered, is_overtaken, "{policy:?}");
        assert_eq!(other.asked() > 0, is_overtaken, "{policy:?}");
    }
}

#[tokio::test]
async fn no_attempt_outlives_the_clients_timeout() {
    let (dead, mute) = (Upstream::dead().await, Upstream::dead().await);
    for force_tcp in [false, true] {
        let forwarder = forwarder(&Forward {
            force_tcp,
            max_connect_attempts: Some(0),
            max_fails: 0,
            read_timeout: FOR_EVER,
            ..plan(&[dead.address, mute.address, nobody().await])
        });
        let begun = Instant::now();
        let patience = Duration::from_millis(300);
        let answer = ask_for(&forwarder, "a.test", patience).await;
        assert_eq!(answer.map(|it| owner(&it)), Err(Failure::Timeout));
        let elapsed = begun.elapsed();
        assert!((patience..FOR_EVER / 2).contains(&elapsed), "{elapsed:?}");
    }
}

#[tokio::test]
async fn read_timeout_limits_each_attempt() {
    const LONG: Duration = Duration::from_secs(2);
    for (read_timeout, at_most) in [(Duration::from_millis(60), LONG), (LONG, PATIENCE)] {
        let (dead, alive) = (Upstream::dead().await, Upstream::honest().await);
        let forwarder = forwarder(&Forward {
            read_timeout,
            ..plan(&[dead.address, alive.address])
        });
        let begun = Instant::now();
        ask(&forwarder, "a.test").await.unwrap();
        let elapsed = begun.elapsed();
        assert!((read_timeout..at_most).contains(&elapsed), "{elapsed:?}");
    }
}

#[tokio::test]
async fn a_forward_with_a_dead_upstream_delays_no_other() {
    let (dead, alive) = (Upstream::dead().await, Upstream::honest().await);
    let blocked = forwarder(&Forward {
        read_timeout: FOR_EVER,
        ..plan(&[dead.address])
    });
    let other = forwarder(&plan(&[alive.address]));
    let names: Vec<String> = (0..500).map(|number| format!("n{number}.test")).collect();
    let waiting = names.iter().map(|name| ask_for(&blocked, name, FOR_EVER));
    let asking = async {
        for number in 0..100 {
            ask(&other, &format!("n{number}.test")).await.unwrap();
        }
    };
    tokio::select! {
        _ended = join_all(waiting.collect()) => panic!("the dead answered"),
        () = asking => {}
    }
}

//! Time: what is slow is asked again elsewhere, and nobody waits longer than the client does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use egret_dnsd::forward::Failure;
use egret_dnsd::metrics::Transport;
use egret_dnsd::plan::{Forward, Policy};
use tokio::time::Instant;

use super::world::{Deed, Upstream, ask, forwarder, join_all, limits, nobody, owner, plan, question};

/// Loses the question of each so many.
async fn losing(every: usize) -> Upstream {
    let seen = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |asked| {
        if seen.fetch_add(1, Ordering::Relaxed) % every == every - 1 {
            return Vec::new();
        }
        vec![Deed::Say(asked.one())]
    })
    .await
}

#[tokio::test]
async fn a_datagram_that_is_lost_is_sent_again_long_before_the_time_is_up() {
    let upstream = losing(5).await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for number in 0..20 {
        let begun = Instant::now();
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_millis(500), "{number}: {elapsed:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_becomes_slow_is_overtaken_by_another() {
    for (policy, is_overtaken) in [(Policy::RoundRobin, true), (Policy::Sequential, false)] {
        let seen = Arc::new(AtomicUsize::new(0));
        let slow = Upstream::start(move |asked| {
            if seen.fetch_add(1, Ordering::Relaxed) < 10 {
                return vec![Deed::Say(asked.one())];
            }
            vec![Deed::Wait(Duration::from_millis(700)), Deed::Say(asked.one())]
        })
        .await;
        let other = Upstream::honest().await;
        let forwarder = forwarder(&Forward {
            policy,
            ..plan(&[slow.address, other.address])
        });
        let mut slowest = Duration::ZERO;
        for number in 0..24 {
            let begun = Instant::now();
            ask(&forwarder, &format!("n{number}.test")).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            if slowest > Duration::from_millis(600) {
                break;
            }
        }
        // Where the operator gave an order, the second may not know the same names: it is not asked instead.
        assert_eq!(
            slowest < Duration::from_millis(400),
            is_overtaken,
            "{policy:?} {slowest:?}"
        );
        assert_eq!(other.asked() > 0, is_overtaken, "{policy:?}");
    }
}

#[tokio::test]
async fn nobody_waits_longer_than_the_client() {
    let (dead, mute) = (Upstream::dead().await, Upstream::dead().await);
    for force_tcp in [false, true] {
        let forwarder = forwarder(&Forward {
            force_tcp,
            max_connect_attempts: Some(0),
            max_fails: 0,
            ..plan(&[dead.address, mute.address, nobody().await])
        });
        let begun = Instant::now();
        let patience = Duration::from_millis(300);
        let answer = forwarder
            .ask(&question("a.test"), Transport::Udp, &limits(patience))
            .await;
        assert_eq!(answer.map(|it| owner(&it)), Err(Failure::Timeout));
        let elapsed = begun.elapsed();
        assert!((patience..patience * 2).contains(&elapsed), "{elapsed:?}");
    }
}

#[tokio::test]
async fn each_upstream_is_waited_for_as_long_as_read_timeout() {
    for read_timeout in [Duration::from_millis(60), Duration::from_millis(240)] {
        let (dead, alive) = (Upstream::dead().await, Upstream::honest().await);
        let forwarder = forwarder(&Forward {
            read_timeout,
            ..plan(&[dead.address, alive.address])
        });
        let begun = Instant::now();
        ask(&forwarder, "a.test").await.unwrap();
        let elapsed = begun.elapsed();
        assert!(
            (read_timeout..read_timeout + Duration::from_millis(150)).contains(&elapsed),
            "{elapsed:?}"
        );
    }
}

#[tokio::test]
async fn a_forward_whose_upstream_is_dead_holds_up_no_other() {
    let (dead, alive) = (Upstream::dead().await, Upstream::honest().await);
    let blocked = forwarder(&plan(&[dead.address]));
    let other = forwarder(&plan(&[alive.address]));
    let names: Vec<String> = (0..500).map(|number| format!("n{number}.test")).collect();
    let waiting = join_all(names.iter().map(|name| ask(&blocked, name)).collect());
    let asking = async {
        let mut slowest = Duration::ZERO;
        for number in 0..100 {
            let begun = Instant::now();
            ask(&other, &format!("n{number}.test")).await.unwrap();
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    };
    tokio::select! {
        _ended = waiting => panic!("the dead answered"),
        slowest = asking => assert!(slowest < Duration::from_millis(250), "{slowest:?}"),
    }
}

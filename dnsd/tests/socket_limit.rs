//! Upstream queries without free sockets. Alone in its process: the limit of open files is the process's.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/mod.rs"]
mod support;
#[path = "forwarding/world.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use egret_dnsd::config::model::Forward;
use egret_dnsd::upstream::{Failure, Forwarder};
use tokio::runtime::Handle;
use world::{Action, Transport, Upstream, ask, forwarder, join_all, nobody, plan, until};

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

fn limit_files(to: &str) {
    let pid = std::process::id().to_string();
    let done = Command::new("prlimit")
        .args(["--pid", &pid, &format!("--nofile={to}:")])
        .status()
        .unwrap();
    assert!(done.success());
}

async fn ask_many(forwarder: &Forwarder, count: usize, zone: &str) -> Vec<Result<(), Failure>> {
    let names: Vec<String> = (0..count).map(|number| format!("n{number}.{zone}")).collect();
    let answers = join_all(names.iter().map(|name| ask(forwarder, name)).collect()).await;
    answers.into_iter().map(|answer| answer.map(drop)).collect()
}

/// One after the other, since all count what the process has.
#[tokio::test]
async fn without_free_sockets_queries_fail_at_once_and_leave_nothing() {
    without_files().await;
    after_all_that_can_go_wrong().await;
}

/// Without sockets a client is told so at once; when there are some again, all is as before.
async fn without_files() {
    let upstream = Upstream::start(|asked| {
        vec![
            Action::Wait(Duration::from_millis(50)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    ask(&forwarder, "before.test").await.unwrap();
    limit_files(&(open_files() + 8).to_string());
    // More than the sockets that are left can carry.
    const MANY: usize = 1_000;
    let answers = ask_many(&forwarder, MANY, "short.test").await;
    limit_files("4096");
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    let failures: BTreeSet<&str> = answers
        .iter()
        .filter_map(|answer| answer.as_ref().err())
        .map(|failure| failure.label())
        .collect();
    assert!((4..MANY).contains(&answered), "{answered}");
    assert_eq!(failures, BTreeSet::from(["local"]));
    let later = ask_many(&forwarder, 60, "later.test").await;
    assert!(later.iter().all(Result::is_ok));
}

/// What there is when it does not change any more: what the upstreams of this test leave open for a moment is not the
/// forwarder's.
async fn at_rest() -> (usize, usize) {
    let mut before = (open_files(), tasks());
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = (open_files(), tasks());
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Upstreams of every kind, datagrams and connections; then the forwarders go, and nothing of them is left.
async fn after_all_that_can_go_wrong() {
    let upstreams = [
        Upstream::honest().await,
        Upstream::dead().await,
        Upstream::start(|asked| vec![Action::Reply(asked.one()), Action::Reply(asked.one())]).await,
        Upstream::start(|asked| {
            vec![
                Action::Wait(Duration::from_millis(150)),
                Action::Reply(asked.one()),
            ]
        })
        .await,
        Upstream::start(|asked| match asked.over {
            Transport::Udp => vec![Action::Reply(asked.cut())],
            Transport::Tcp | Transport::Quic => vec![Action::Raw(vec![0, 99, 1]), Action::Close],
        })
        .await,
    ];
    let nobody = nobody().await;
    let before = at_rest().await;
    for force_tcp in [false, true] {
        let addresses = upstreams.iter().map(|upstream| upstream.address);
        for address in addresses.chain([nobody]) {
            let forwarder = forwarder(&Forward {
                force_tcp,
                read_timeout: Duration::from_millis(100),
                ..plan(&[address])
            });
            ask_many(&forwarder, 40, "test").await;
        }
    }
    until("sockets, connections and tasks are gone", || {
        (open_files(), tasks()) == before
    })
    .await;
}

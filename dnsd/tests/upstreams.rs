//! A whole dnsd with two zones while the upstream of one misbehaves: clients of the other zone notice nothing, its own
//! get an answer in time, and nothing is left behind.
//!
//! Alone in its process: open files are the process's.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;
#[path = "forwarding/world.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
mod world;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use support::{extended_error, query};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use whole::{Dnsd, LOOPBACK, with_blocks};
use world::{Action, ReceivedQuery, Transport, Upstream, join_all, nobody, until};

/// Questions to the upstream that misbehaves, at once.
const MANY: usize = 200;
/// Questions to the other one, at least.
const SOME: usize = 30;
/// Who is answered so soon did not wait for what the others wait for, which is twice as long.
const SOON: Duration = Duration::from_secs(1);
const TOTAL_TIMEOUT: &str = "2s";
/// Nobody here waits as long for an upstream.
const FOR_EVER: Duration = Duration::from_secs(60);
/// Long enough that the client has gone, short enough that dnsd still waits.
const LATE: Duration = Duration::from_millis(500);

/// What becomes of a question whose upstream misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It waits until the time is up.
    Timeout,
    /// It ends when the upstream has been tried.
    AtOnce,
    /// Whoever asked has gone before.
    Unheard,
}

/// A way to misbehave.
struct Misbehaviour {
    name: &'static str,
    upstream: SocketAddr,
    /// Further lines of `forward`.
    options: &'static str,
    end: End,
    /// The answer in short: code, extended error, whether it is cut, how many records it has.
    said: &'static str,
}

const NO_ANSWER: &str = "ServFail 22 whole 0";

#[tokio::test]
async fn a_misbehaving_upstream_affects_only_its_own_zone() {
    for misbehaviour in misbehaviours().await {
        play(&misbehaviour).await;
    }
}

async fn misbehaviours() -> Vec<Misbehaviour> {
    let does = |deeds: fn(&ReceivedQuery) -> Vec<Action>| async move { Upstream::start(deeds).await.address };
    let row = |name, upstream, end, said| Misbehaviour {
        name,
        upstream,
        options: "",
        end,
        said,
    };
    let slow = does(|asked| vec![Action::Wait(FOR_EVER), Action::Reply(asked.one())]).await;
    let hole = does(|_| Vec::new()).await;
    let other_id = does(|asked| vec![Action::Reply(with_other_id(asked.one()))]).await;
    let other_question = does(|asked| vec![Action::Reply(of_another_question(asked))]).await;
    let elsewhere = does(|asked| vec![Action::ReplyFromOtherPort(asked.one())]).await;
    let cuts_and_is_silent = does(|asked| match asked.over {
        Transport::Udp => vec![Action::Reply(asked.cut())],
        Transport::Tcp | Transport::Quic => Vec::new(),
    })
    .await;
    let late = does(|asked| vec![Action::Wait(LATE), Action::Reply(asked.one())]).await;
    let twice = does(|asked| vec![Action::Reply(asked.one()), Action::Reply(asked.one())]).await;
    vec![
        row("slow", slow, End::Timeout, NO_ANSWER),
        row(
            "a closed port",
            nobody().await,
            End::AtOnce,
            "ServFail 23 whole 0",
        ),
        row("a black hole", hole, End::Timeout, NO_ANSWER),
        row("another id", other_id, End::Timeout, NO_ANSWER),
        row("another question", other_question, End::Timeout, NO_ANSWER),
        row("another source", elsewhere, End::Timeout, NO_ANSWER),
        row(
            "cut, and no TCP",
            cutting_without_tcp().await,
            End::AtOnce,
            "NoError - cut 0",
        ),
        row(
            "cut, and silent over TCP",
            cuts_and_is_silent,
            End::Timeout,
            NO_ANSWER,
        ),
        Misbehaviour {
            options: "force_tcp",
            ..row("half open", hole, End::Timeout, NO_ANSWER)
        },
        row("late", late, End::Unheard, ""),
        row("twice", twice, End::AtOnce, "NoError - whole 1"),
    ]
}

fn with_other_id(mut answer: Vec<u8>) -> Vec<u8> {
    answer[0] ^= 0x55;
    answer
}

/// An answer with the id of what was asked, and with records for something else.
fn of_another_question(asked: &ReceivedQuery) -> Vec<u8> {
    let mut other = query("other.bad.test", RecordType::A, None);
    other[..2].copy_from_slice(&asked.octets[..2]);
    let records = vec![support::address("other.bad.test", 60, "192.0.2.9")];
    support::response(&other, records).to_vec().unwrap()
}

/// All answers are cut, and nobody is where they should be asked for.
async fn cutting_without_tcp() -> SocketAddr {
    let (socket, listener) = support::same_port(LOOPBACK).await;
    drop(listener);
    let address = socket.local_addr().unwrap();
    let answering = async move {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let mut cut = support::response(&buffer[..length], Vec::new());
            cut.metadata.truncation = true;
            socket.send_to(&cut.to_vec().unwrap(), from).await.unwrap();
        }
    };
    drop(egret_shared::rt::task::spawn_brief(answering));
    address
}

/// Without checks of health: they have a socket of their own for a moment, again and again.
async fn play(misbehaviour: &Misbehaviour) {
    let name = misbehaviour.name;
    let good = Upstream::honest().await;
    let corefile = format!(
        "bad.test {{\n bind 127.0.0.1\n forward . {} {{\n read_timeout 3s\n max_fails 0\n expire 100ms\n {}\n }}\n}}\n\
         good.test {{\n bind 127.0.0.1\n forward . {} {{\n max_fails 0\n expire 100ms\n }}\n}}\n",
        misbehaviour.upstream, misbehaviour.options, good.address
    );
    let config = with_blocks(&corefile, &format!("totalTimeout: {TOTAL_TIMEOUT}")).unwrap();
    let dnsd = Dnsd::run(config, "/nonexistent".into());
    let before = open_files();
    let is_over = AtomicBool::new(false);
    let bad = async {
        suffer(&dnsd, misbehaviour).await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(bad, ask_meanwhile(&dnsd, name, &is_over));
    until(&format!("{name}: nothing waits"), || {
        dnsd.service.resolver.waiting() == 0
    })
    .await;
    until(&format!("{name}: no file is left open"), || {
        open_files() <= before
    })
    .await;
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The clients of the zone whose upstream misbehaves.
async fn suffer(dnsd: &Dnsd, misbehaviour: &Misbehaviour) {
    let name = misbehaviour.name;
    let waiting = || dnsd.service.resolver.waiting();
    if misbehaviour.end == End::Unheard {
        let client = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        for number in 0..MANY {
            let asked = query(&format!("n{number}.bad.test"), RecordType::A, Some(1232));
            client.send_to(&asked, dnsd.address).await.unwrap();
        }
        until(&format!("{name}: they are waited for"), || waiting() > 0).await;
        return;
    }
    let asking = (0..MANY).map(|number| async move { in_brief(dnsd, &format!("n{number}.bad.test")).await });
    let all_wait = async {
        if misbehaviour.end == End::Timeout {
            until(&format!("{name}: all wait at once"), || waiting() >= MANY).await;
        }
    };
    let (said, ()) = tokio::join!(join_all(asking.collect()), all_wait);
    let said: BTreeSet<String> = said.into_iter().collect();
    assert_eq!(said, BTreeSet::from([misbehaviour.said.to_owned()]), "{name}");
}

async fn in_brief(dnsd: &Dnsd, name: &str) -> String {
    let Some(answer) = dnsd.ask(name).await else {
        return "nothing in time".to_owned();
    };
    brief(&answer)
}

fn brief(answer: &Message) -> String {
    let error = extended_error(answer).map_or_else(|| "-".to_owned(), |code| code.to_string());
    let cut = if answer.metadata.truncation {
        "cut"
    } else {
        "whole"
    };
    format!(
        "{:?} {error} {cut} {}",
        answer.metadata.response_code,
        answer.answers.len()
    )
}

/// The clients of the other zone, while the first ones wait.
async fn ask_meanwhile(dnsd: &Dnsd, name: &str, is_over: &AtomicBool) {
    for number in 0.. {
        if number >= SOME && is_over.load(Ordering::Relaxed) {
            return;
        }
        let asked = format!("n{number}.good.test");
        let answer = timeout(SOON, dnsd.says(&asked)).await;
        let answer = answer.unwrap_or_else(|_elapsed| panic!("{name}: {asked} waits for the others"));
        assert_eq!(answer, "NoError 192.0.2.1", "{name}: {asked}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

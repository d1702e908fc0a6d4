//! All rooms together on loopback: real sockets, a scripted upstream and a scripted enforcer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_shared::link::{Frame, FrameDecoder, Interest, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::{DnsdInstance, Sequence};
use egret_shared::rt::task;
use hickory_proto::op::Message;
use hickory_proto::rr::{Record, RecordType};
use support::{address, query, response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, UnixListener, UnixStream};
use tokio::time::timeout;
use whole::{Dnsd, LOOPBACK, PATIENCE, Transport, Upstream, framed, read_framed};

/// An enforcer that has one interest, keeps what it is told, and realizes when it is asked to.
struct Enforcer {
    told: Arc<Mutex<Vec<ToEnforcer>>>,
    realize: tokio::sync::mpsc::Sender<ToDnsd>,
    task: tokio::task::JoinHandle<()>,
}

impl Enforcer {
    fn start(dnsd: &Dnsd, pattern: &str) -> Self {
        drop(std::fs::remove_file(&dnsd.socket));
        let listener = UnixListener::bind(&dnsd.socket).unwrap();
        let told = Arc::<Mutex<Vec<ToEnforcer>>>::default();
        let (realize, commands) = tokio::sync::mpsc::channel(8);
        let interest = Interest {
            pod: LOOPBACK,
            patterns: vec![pattern.parse().unwrap()],
        };
        let task = task::spawn(
            "enforcer",
            Self::serve(listener, interest, Arc::clone(&told), commands),
        );
        Self { told, realize, task }
    }

    async fn serve(
        listener: UnixListener,
        interest: Interest,
        told: Arc<Mutex<Vec<ToEnforcer>>>,
        mut commands: tokio::sync::mpsc::Receiver<ToDnsd>,
    ) {
        let (mut stream, _) = listener.accept().await.unwrap();
        say(&mut stream, &ToDnsd::Interest(interest)).await;
        say(&mut stream, &ToDnsd::InterestComplete).await;
        let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; 65_536]);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => say(&mut stream, &command).await,
                    None => return,
                },
                length = stream.read(&mut buffer) => {
                    decoder.push(&buffer[..length.unwrap()]);
                    while let Some(Frame::Message(_, message)) = decoder.next_frame().unwrap() {
                        told.lock().unwrap().push(message);
                    }
                }
            }
        }
    }

    /// Waits until this many observations were told; gives the last number.
    async fn told(&self, count: usize) -> Sequence {
        let told = async {
            loop {
                let sequences: Vec<Sequence> =
                    self.observed().iter().map(|(sequence, _)| *sequence).collect();
                if sequences.len() >= count {
                    return sequences[sequences.len() - 1];
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, told).await.expect("the observations are told")
    }

    fn observed(&self) -> Vec<(Sequence, String)> {
        let told = self.told.lock().unwrap();
        let observed = told.iter().filter_map(|message| match message {
            ToEnforcer::Observed {
                sequence,
                observation,
            } => Some((*sequence, observation.question.to_string())),
            ToEnforcer::Hello(_)
            | ToEnforcer::ResyncStarted
            | ToEnforcer::ResyncEnded { .. }
            | ToEnforcer::Holding { .. } => None,
        });
        observed.collect()
    }

    /// Waits until the last number of held answers that was told is this one.
    async fn knows_held(&self, answers: u32) {
        let told = async {
            while self.held() != Some(answers) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, told).await.expect("the number is told");
    }

    fn held(&self) -> Option<u32> {
        let told = self.told.lock().unwrap();
        told.iter().rev().find_map(|message| match message {
            ToEnforcer::Holding { answers } => Some(*answers),
            ToEnforcer::Hello(_)
            | ToEnforcer::ResyncStarted
            | ToEnforcer::ResyncEnded { .. }
            | ToEnforcer::Observed { .. } => None,
        })
    }

    async fn realize(&self, through: Sequence) {
        let failed = Vec::new();
        self.realize
            .send(ToDnsd::Realized { through, failed })
            .await
            .unwrap();
    }

    async fn stop(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

async fn say(stream: &mut UnixStream, message: &ToDnsd) {
    let mut frame = Vec::new();
    encode(DnsdInstance::from_random(2), message, &mut frame);
    stream.write_all(&frame).await.unwrap();
}

/// Threads with which dnsd answers.
const THREADS: [usize; 2] = [1, 4];

fn start(name: &str, upstream: &Upstream, threads: usize, options: &str) -> Dnsd {
    let options = format!("threads: {threads}\n{options}");
    Dnsd::start(&format!("{name}-{threads}"), &[upstream], &options)
}

fn one_address() -> Vec<Record> {
    vec![address("api.example.test", 60, "192.0.2.1")]
}

#[tokio::test]
async fn an_answer_with_interest_is_held_until_it_is_realized() {
    for threads in THREADS {
        let upstream = Upstream::with(one_address).await;
        let dnsd = start("held", &upstream, threads, "stallDeadline: 4s\nonStall: drop");
        let enforcer = Enforcer::start(&dnsd, "*.example.test");
        dnsd.is_linked().await;
        let asking = dnsd.ask("api.example.test");
        let realizing = async {
            let told = enforcer.told(1).await;
            assert_eq!(dnsd.gate.stats().held, 1);
            enforcer.realize(told).await;
        };
        let (answer, ()) = tokio::join!(asking, realizing);
        assert_eq!(answer.unwrap().answers.len(), 1);
        // Held again, it would never come.
        assert_eq!(dnsd.ask("API.example.test").await.unwrap().answers.len(), 1);
        assert_eq!((upstream.asked(), enforcer.observed().len()), (1, 1));
    }
}

#[tokio::test]
async fn two_equal_simultaneous_queries_go_upstream_once_and_both_are_held() {
    for threads in THREADS {
        let upstream = Upstream::with(one_address).await;
        let dnsd = start("second", &upstream, threads, "stallDeadline: 4s");
        let enforcer = Enforcer::start(&dnsd, "*.example.test");
        dnsd.is_linked().await;
        let realizing = async {
            let told = enforcer.told(1).await;
            while dnsd.gate.stats().held < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            enforcer.realize(told).await;
        };
        let (first, second, realized) = tokio::join!(
            dnsd.ask("api.example.test"),
            dnsd.ask("api.example.test"),
            timeout(PATIENCE, realizing)
        );
        realized.expect("both are held");
        assert!(first.is_some() && second.is_some());
        assert_eq!(upstream.asked(), 1);
    }
}

#[tokio::test]
async fn a_realized_answer_is_sent_before_later_queries_are_answered() {
    let upstream = Upstream::with(one_address).await;
    let dnsd = Dnsd::start("first", &[&upstream], "stallDeadline: 4s\nonStall: drop");
    let (_listener, mut link) = interested(&dnsd).await;
    let client = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
    client.connect(dnsd.address).await.unwrap();
    let held = query("api.example.test", RecordType::A, None);
    // Nobody is asked about a notification: it is turned down at once.
    let notification = [&[0x55, 0x55, 0x20], &held[3..]].concat();
    client.send(&held).await.unwrap();
    let through = observed_on(&mut link).await;
    // Both come before dnsd has its turn again, the question first.
    client.try_send(&notification).unwrap();
    let (failed, mut frame) = (Vec::new(), Vec::new());
    let realized = ToDnsd::Realized { through, failed };
    encode(DnsdInstance::from_random(2), &realized, &mut frame);
    assert_eq!(link.try_write(&frame).unwrap(), frame.len());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut buffer = [0; 512];
        timeout(PATIENCE, client.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        ids.push([buffer[0], buffer[1]]);
    }
    assert_eq!(ids, [[held[0], held[1]], [0x55, 0x55]]);
}

/// The socket of an enforcer that has told its interest, and the connection.
async fn interested(dnsd: &Dnsd) -> (UnixListener, UnixStream) {
    drop(std::fs::remove_file(&dnsd.socket));
    let listener = UnixListener::bind(&dnsd.socket).unwrap();
    let (mut link, _) = listener.accept().await.unwrap();
    let interest = Interest {
        pod: LOOPBACK,
        patterns: vec!["*.example.test".parse().unwrap()],
    };
    say(&mut link, &ToDnsd::Interest(interest)).await;
    say(&mut link, &ToDnsd::InterestComplete).await;
    dnsd.is_linked().await;
    (listener, link)
}

/// Waits until an observation is told; gives its number.
async fn observed_on(link: &mut UnixStream) -> Sequence {
    let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; 65_536]);
    loop {
        let length = timeout(PATIENCE, link.read(&mut buffer)).await.unwrap().unwrap();
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            if let Frame::Message(_, ToEnforcer::Observed { sequence, .. }) = frame {
                return sequence;
            }
        }
    }
}

#[tokio::test]
async fn the_enforcer_receives_the_number_of_held_answers() {
    let upstream = Upstream::with(one_address).await;
    let dnsd = Dnsd::start("holding", &[&upstream], "stallDeadline: 4s");
    let enforcer = Enforcer::start(&dnsd, "*.example.test");
    dnsd.is_linked().await;
    let asking = dnsd.ask("api.example.test");
    let realizing = async {
        let told = enforcer.told(1).await;
        enforcer.knows_held(1).await;
        enforcer.realize(told).await;
        enforcer.knows_held(0).await;
    };
    let (answer, ()) = tokio::join!(asking, realizing);
    assert!(answer.is_some());
}

#[tokio::test]
async fn a_stalled_answer_ends_as_on_stall_says() {
    let upstream = Upstream::with(one_address).await;
    for (action, code) in [("release", Some(0)), ("servfail", Some(2)), ("drop", None)] {
        let options = format!("onStall: {action}\nstallDeadline: 50ms\n");
        let dnsd = Dnsd::start(action, &[&upstream], &options);
        let _enforcer = Enforcer::start(&dnsd, "*.example.test");
        dnsd.is_linked().await;
        let reply = timeout(Duration::from_secs(1), dnsd.ask("api.example.test")).await;
        let given = reply
            .ok()
            .flatten()
            .map(|reply| u16::from(reply.metadata.response_code));
        assert_eq!(given, code, "{action}");
    }
}

#[tokio::test]
async fn observations_of_an_enforcers_absence_are_sent_when_it_returns() {
    for threads in THREADS {
        let upstream = Upstream::with(one_address).await;
        let dnsd = start("away", &upstream, threads, "stallDeadline: 10ms");
        let enforcer = Enforcer::start(&dnsd, "*.example.test");
        dnsd.is_linked().await;
        enforcer.stop().await;
        assert!(dnsd.ask("api.example.test").await.is_some());
        let enforcer = Enforcer::start(&dnsd, "*.example.test");
        enforcer.told(1).await;
        assert_eq!(enforcer.observed()[0].1, "api.example.test");
    }
}

#[tokio::test]
async fn what_was_realized_stays_so_while_the_next_enforcer_says_nothing() {
    let upstream = Upstream::with(one_address).await;
    let dnsd = Dnsd::start("silent", &[&upstream], "stallDeadline: 4s\nonStall: drop");
    let (listener, mut link) = interested(&dnsd).await;
    let realizing = async {
        let (through, failed) = (observed_on(&mut link).await, Vec::new());
        say(&mut link, &ToDnsd::Realized { through, failed }).await;
    };
    let (answer, ()) = tokio::join!(dnsd.ask("api.example.test"), realizing);
    assert!(answer.is_some());
    // It ends, and its socket takes one more connection meanwhile.
    drop(link);
    let (mut silent, _) = listener.accept().await.unwrap();
    timeout(PATIENCE, silent.read_u8()).await.unwrap().unwrap();
    let again = timeout(Duration::from_secs(2), dnsd.ask("api.example.test")).await;
    assert!(again.is_ok_and(|answer| answer.is_some()), "held, for nobody");
}

#[tokio::test]
async fn a_spoofed_answer_is_ignored_and_the_true_one_relayed() {
    let upstream = Upstream::start(|query, _| {
        let mut wrong_id = response(query, vec![address("api.example.test", 60, "192.0.2.66")])
            .to_vec()
            .unwrap();
        wrong_id[0] ^= 1;
        let other = support::query("evil.example.test", RecordType::A, None);
        let mut wrong_name = response(&other, vec![address("evil.example.test", 60, "192.0.2.66")])
            .to_vec()
            .unwrap();
        wrong_name[..2].copy_from_slice(&query[..2]);
        vec![
            wrong_id,
            wrong_name,
            response(query, one_address()).to_vec().unwrap(),
        ]
    })
    .await;
    let dnsd = Dnsd::start("spoofed", &[&upstream], "stallDeadline: 1ms");
    let answer = dnsd.ask("api.example.test").await.unwrap();
    assert_eq!(answer.answers, one_address());
}

#[tokio::test]
async fn a_truncated_answer_is_queried_over_tcp() {
    let upstream = Upstream::start(|query, over| {
        let mut message = response(query, one_address());
        if over == Transport::Udp {
            message.answers.clear();
            message.metadata.truncation = true;
        }
        vec![message.to_vec().unwrap()]
    })
    .await;
    let dnsd = Dnsd::start("truncated", &[&upstream], "stallDeadline: 1ms");
    let answer = dnsd.ask("api.example.test").await.unwrap();
    assert_eq!((answer.metadata.truncation, answer.answers.len()), (false, 1));
}

#[tokio::test]
async fn an_upstream_that_does_not_preserve_case_is_queried_over_tcp() {
    let upstream = Upstream::start(|query, _| {
        let mut lower = query.to_vec();
        lower[12..].make_ascii_lowercase();
        vec![response(&lower, one_address()).to_vec().unwrap()]
    })
    .await;
    let dnsd = Dnsd::start("case", &[&upstream], "stallDeadline: 1ms");
    assert_eq!(dnsd.ask("api.example.test").await.unwrap().answers.len(), 1);
}

#[tokio::test]
async fn a_dead_upstream_costs_its_timeout_once() {
    let dead = Upstream::start(|_, _| Vec::new()).await;
    let alive = Upstream::start(|query, _| vec![response(query, Vec::new()).to_vec().unwrap()]).await;
    let dnsd = Dnsd::start("dead", &[&dead, &alive], "tryTimeout: 100ms");
    assert!(dnsd.ask("a.example.test").await.is_some());
    for name in ["b.example.test", "c.example.test", "d.example.test"] {
        assert!(dnsd.ask(name).await.is_some());
    }
    assert_eq!(dead.asked(), 1);
}

#[tokio::test]
async fn without_a_live_upstream_the_client_gets_servfail_in_time() {
    let dead = Upstream::start(|_, _| Vec::new()).await;
    let dnsd = Dnsd::start("none", &[&dead], "tryTimeout: 50ms\ntotalTimeout: 100ms");
    let answer = dnsd.ask("api.example.test").await.unwrap();
    assert_eq!(u16::from(answer.metadata.response_code), 2);
    assert_eq!(answer.queries[0].name.to_ascii(), "api.example.test.");
}

/// Answers everything but `slow.example.test`, which it never does.
async fn upstream_with_a_slow_name() -> Upstream {
    Upstream::start(|query, _| {
        let asked = Message::from_vec(query).unwrap().queries[0]
            .name
            .to_lowercase()
            .to_ascii();
        if asked == "slow.example.test." {
            return Vec::new();
        }
        vec![
            response(query, vec![address(&asked, 60, "192.0.2.1")])
                .to_vec()
                .unwrap(),
        ]
    })
    .await
}

#[tokio::test]
async fn on_a_connection_replies_come_as_they_are_ready_for_any_segmentation() {
    let upstream = upstream_with_a_slow_name().await;
    let dnsd = Dnsd::start(
        "pipeline",
        &[&upstream],
        "stallDeadline: 1ms\ntryTimeout: 300ms\ntotalTimeout: 300ms",
    );
    let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut octets = framed(&query("slow.example.test", RecordType::A, None));
    octets.extend(framed(&query("one.example.test", RecordType::A, None)));
    octets.extend(framed(&query("two.example.test", RecordType::A, None)));
    for octet in &octets {
        stream.write_all(std::slice::from_ref(octet)).await.unwrap();
    }
    let mut names = Vec::new();
    for _ in 0..3 {
        let reply = timeout(PATIENCE, read_framed(&mut stream))
            .await
            .expect("a reply");
        names.push(Message::from_vec(&reply).unwrap().queries[0].name.to_ascii());
    }
    names[..2].sort();
    assert_eq!(
        names,
        ["one.example.test.", "two.example.test.", "slow.example.test."]
    );
}

#[tokio::test]
async fn connections_are_limited_for_each_client_and_end_when_they_are_idle() {
    let upstream = upstream_with_a_slow_name().await;
    let dnsd = Dnsd::start("idle", &[&upstream], "tcpConnectionsPerClient: 1\ntcpIdle: 200ms");
    let mut first = TcpStream::connect(dnsd.address).await.unwrap();
    first
        .write_all(&framed(&query("one.example.test", RecordType::A, None)))
        .await
        .unwrap();
    timeout(PATIENCE, read_framed(&mut first))
        .await
        .expect("the first is served");
    let mut second = TcpStream::connect(dnsd.address).await.unwrap();
    assert!(ends(&mut second).await, "the second is one too many");
    assert!(ends(&mut first).await, "the first is idle");
}

async fn ends(stream: &mut TcpStream) -> bool {
    let read = timeout(PATIENCE, stream.read_u8())
        .await
        .expect("the connection ends");
    read.is_err()
}

#[tokio::test]
async fn a_client_above_waiting_per_client_gets_servfail() {
    let upstream = upstream_with_a_slow_name().await;
    let options = "waitingPerClient: 1\ntryTimeout: 300ms\ntotalTimeout: 300ms\nstallDeadline: 1ms";
    let dnsd = Dnsd::start("waiting", &[&upstream], options);
    let second = async {
        while upstream.asked() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        dnsd.ask("one.example.test").await.unwrap()
    };
    let (_slow, refused) = tokio::join!(dnsd.ask("slow.example.test"), second);
    assert_eq!(u16::from(refused.metadata.response_code), 2);
    assert!(refused.answers.is_empty());
    let later = dnsd.ask("one.example.test").await.unwrap();
    assert_eq!(later.answers.len(), 1);
}

#[tokio::test]
async fn a_client_above_its_rate_is_refused() {
    let upstream = upstream_with_a_slow_name().await;
    for (options, refused) in [("", 0), ("queriesPerSecondPerClient: 2", 3)] {
        let dnsd = Dnsd::start(&format!("rate-{refused}"), &[&upstream], options);
        let mut codes = Vec::new();
        for _ in 0..5 {
            let answer = dnsd.ask("one.example.test").await.unwrap();
            codes.push(u16::from(answer.metadata.response_code));
        }
        assert_eq!(
            codes.iter().filter(|code| **code == 5).count(),
            refused,
            "{codes:?}"
        );
    }
}

#[tokio::test]
async fn shutdown_waits_for_queries_under_way() {
    for threads in THREADS {
        let upstream = upstream_with_a_slow_name().await;
        let dnsd = start(
            "stop",
            &upstream,
            threads,
            "tryTimeout: 200ms\ntotalTimeout: 200ms",
        );
        let asking = dnsd.ask("slow.example.test");
        let stopping = async {
            while upstream.asked() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            dnsd.service.stop.cancel();
            dnsd.service.under_way.close();
            timeout(PATIENCE, dnsd.service.under_way.wait()).await
        };
        let (answer, drained) = tokio::join!(asking, stopping);
        assert!(answer.is_some() && drained.is_ok());
    }
}

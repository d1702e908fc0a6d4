//! Several threads with equal simultaneous queries of the same pods: answers are held, recorded, and queried upstream
//! once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use egret_dnsd::telemetry::metrics::{BUCKETS, COREDNS_BUCKETS};
use egret_shared::link::{Frame, FrameDecoder, Interest, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::{DnsdInstance, Sequence};
use egret_shared::rt::telemetry;
use hickory_proto::op::Message;
use hickory_proto::rr::{RData, RecordType};
use support::{address, query, response};
use tokio::sync::oneshot;
use tokio::time::timeout;
use whole::{Dnsd, PATIENCE, Upstream};

/// Names of a round, asked by each client at once.
const NAMES: usize = 24;
const ROUNDS: usize = 40;
/// Clients of each pod.
const CLIENTS: usize = 3;
/// Pods; of the last one no policy mentions names.
const PODS: u8 = 3;

const WAITING: [u8; 2] = [1, 2];

fn pod(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, number).into()
}

/// What the enforcer knows.
#[derive(Default)]
struct EnforcerState {
    /// By pod and name: addresses, and the number under which each was told first.
    told: HashMap<(IpAddr, String), BTreeMap<IpAddr, Sequence>>,
    last: Option<Sequence>,
    /// Through which number it said that the kernel has them, or is about to say so.
    realized: Option<Sequence>,
}

impl EnforcerState {
    fn note(&mut self, message: ToEnforcer) {
        let ToEnforcer::Observed {
            sequence,
            observation,
        } = message
        else {
            return;
        };
        let key = (observation.client, observation.question.to_string());
        let of_name = self.told.entry(key).or_default();
        for told in observation.addresses {
            of_name.entry(told.address).or_insert(sequence);
        }
        self.last = Some(sequence);
    }

    /// Those of an answer that were not told, or, where they are waited for, of which it was not said that the kernel has them.
    fn missing(&self, pod: IpAddr, name: &str, answer: &BTreeSet<IpAddr>, waits: bool) -> Vec<IpAddr> {
        let told = self.told.get(&(pod, name.to_owned()));
        let is_there = |address: &IpAddr| {
            let number = told.and_then(|told| told.get(address));
            number.is_some_and(|number| !waits || Some(*number) <= self.realized)
        };
        answer
            .iter()
            .filter(|address| !is_there(address))
            .copied()
            .collect()
    }
}

/// An enforcer that takes its time, now and then much of it.
fn enforce(listener: &UnixListener, state: &Mutex<EnforcerState>) {
    let (mut link, _) = listener.accept().unwrap();
    for number in WAITING {
        let patterns = vec!["*.example.test".parse().unwrap()];
        let pod = pod(number);
        say(&mut link, &ToDnsd::Interest(Interest { pod, patterns }));
    }
    say(&mut link, &ToDnsd::InterestComplete);
    let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; 65_536]);
    for turn in 0_usize.. {
        let length = match link.read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            read => read.unwrap(),
        };
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            if let Frame::Message(_, message) = frame {
                state.lock().unwrap().note(message);
            }
        }
        let stall = if turn.is_multiple_of(16) { 20 } else { 1 };
        thread::sleep(Duration::from_millis(stall));
        let last = state.lock().unwrap().last;
        let Some(through) = last else {
            continue;
        };
        // Before it is said, so that nobody can have heard of it earlier.
        state.lock().unwrap().realized = last;
        let failed = Vec::new();
        say(&mut link, &ToDnsd::Realized { through, failed });
    }
}

fn say(link: &mut UnixStream, message: &ToDnsd) {
    let mut frame = Vec::new();
    encode(DnsdInstance::from_random(2), message, &mut frame);
    // Where dnsd is gone, the next read says so.
    drop(link.write_all(&frame));
}

/// Answers at once, on a thread of its own; counts by name what it is asked.
fn upstream(asked: &Arc<Mutex<HashMap<String, usize>>>) -> (Upstream, oneshot::Sender<()>) {
    let (asked, (tell, told)) = (Arc::clone(asked), std::sync::mpsc::channel());
    let (end, ended) = oneshot::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let upstream = Upstream::start(move |question, _| {
                let name = Message::from_vec(question).unwrap().queries[0]
                    .name
                    .to_lowercase()
                    .to_ascii();
                *asked.lock().unwrap().entry(name.clone()).or_default() += 1;
                let host = name
                    .strip_prefix('n')
                    .and_then(|rest| rest.split('.').next()?.parse().ok());
                let [high, low] = host.unwrap_or(0_u16).to_be_bytes();
                let records = vec![address(&name, 600, &format!("198.18.{high}.{low}"))];
                vec![response(question, records).to_vec().unwrap()]
            });
            tell.send(upstream.await).unwrap();
            drop(ended.await);
        });
    });
    (told.recv().unwrap(), end)
}

/// Asks for these names at once; what is wrong with the answers.
fn ask(number: u8, server: SocketAddr, names: &[String], state: &Mutex<EnforcerState>) -> Vec<String> {
    let pod = pod(number);
    let socket = UdpSocket::bind((pod, 0)).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut waited: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    for name in names {
        socket.send(&query(name, RecordType::A, None)).unwrap();
    }
    let (mut wrong, mut buffer) = (Vec::new(), [0; 1500]);
    while !waited.is_empty() {
        let Ok(length) = socket.recv(&mut buffer) else {
            wrong.push(format!("{pod}: no answer for {waited:?}"));
            return wrong;
        };
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        let name = answer.queries[0].name.to_ascii();
        let name = name.trim_end_matches('.');
        assert!(waited.remove(name), "{name} is answered once");
        let addresses: BTreeSet<IpAddr> = answer
            .answers
            .iter()
            .filter_map(|record| match &record.data {
                RData::A(a) => Some(IpAddr::V4(a.0)),
                _ => None,
            })
            .collect();
        if addresses.len() != 1 {
            wrong.push(format!("{pod}: {name} has {addresses:?}"));
        }
        if WAITING.contains(&number) {
            let missing = state.lock().unwrap().missing(pod, name, &addresses, true);
            if !missing.is_empty() {
                wrong.push(format!(
                    "{pod}: {name} was given before the kernel had {missing:?}"
                ));
            }
        }
    }
    wrong
}

/// All clients of all pods ask for the names of a round at once, each in another order.
fn hammer(server: SocketAddr, round: usize, state: &Mutex<EnforcerState>) -> Vec<String> {
    let first = round * NAMES;
    thread::scope(|scope| {
        let asking = (0..usize::from(PODS) * CLIENTS).map(|client| {
            scope.spawn(move || {
                let name = |place| format!("n{}.example.test", first + (place + client) % NAMES);
                let names: Vec<String> = (0..NAMES).map(name).collect();
                let number = 1 + u8::try_from(client / CLIENTS).unwrap();
                // Again at once: now they are kept, but not everybody was told.
                (0..2)
                    .flat_map(|_| ask(number, server, &names, state))
                    .collect::<Vec<_>>()
            })
        });
        let asking: Vec<_> = asking.collect();
        asking
            .into_iter()
            .flat_map(|asking| asking.join().unwrap())
            .collect()
    })
}

/// What was counted so far, under all labels.
fn counted(recorder: &telemetry::Metrics, metric: &str) -> usize {
    let text = recorder.render();
    let of_it = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(metric)?;
        rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next())?
    });
    of_it.map(|count| count.parse::<usize>().unwrap()).sum()
}

#[tokio::test]
async fn threads_with_equal_simultaneous_queries_query_once_and_hold_all() {
    let recorder = telemetry::Metrics::install(&BUCKETS, &COREDNS_BUCKETS).unwrap();
    for threads in [1, 4] {
        let asked = Arc::default();
        let (upstream, _end) = upstream(&asked);
        let name = format!("threads-{threads}");
        let options = format!("threads: {threads}\nstallDeadline: 4s\nonStall: drop");
        let dnsd = Dnsd::start(&name, &[&upstream], &options);
        drop(std::fs::remove_file(&dnsd.socket));
        let listener = UnixListener::bind(&dnsd.socket).unwrap();
        let state = Arc::<Mutex<EnforcerState>>::default();
        let enforcer = Arc::clone(&state);
        thread::spawn(move || enforce(&listener, &enforcer));
        dnsd.is_linked().await;
        let (done, rounds) = oneshot::channel();
        let (server, of_clients) = (dnsd.address, Arc::clone(&state));
        thread::spawn(move || {
            let wrong = (0..ROUNDS).flat_map(|round| hammer(server, round, &of_clients));
            done.send(wrong.collect::<Vec<_>>()).unwrap();
        });
        let wrong = rounds.await.unwrap();
        assert!(
            wrong.is_empty(),
            "{threads}: {} answers: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(10)]
        );
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.len(), ROUNDS * NAMES, "{threads}");
        let again: usize = asked.values().map(|times| times - 1).sum();
        // Where this machine is slow, a datagram may have been taken for lost.
        let lost = counted(&recorder, "egret_dnsd_upstream_retries_total");
        assert!(
            again <= lost,
            "{threads}: {again} were asked again, {lost} as lost"
        );
        timeout(PATIENCE, dnsd.gate.tell_rest())
            .await
            .expect("all is told");
        is_told(&state, threads).await;
        let helped = counted(&recorder, "egret_dnsd_further_threads_datagrams_total");
        assert_eq!(helped > 0, threads > 1, "{threads} threads: {helped}");
    }
}

/// Waits until all that was given to each pod has come to the enforcer.
async fn is_told(state: &Mutex<EnforcerState>, threads: usize) {
    let left = || {
        let state = state.lock().unwrap();
        let all = (0..ROUNDS * NAMES).flat_map(|number| (1..=PODS).map(move |of| (number, of)));
        let missing = all.filter(|(number, of)| {
            let [high, low] = u16::try_from(*number).unwrap().to_be_bytes();
            let address = BTreeSet::from([IpAddr::from([198, 18, high, low])]);
            let name = format!("n{number}.example.test");
            !state.missing(pod(*of), &name, &address, false).is_empty()
        });
        missing.count()
    };
    let told = async {
        while left() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let told = timeout(PATIENCE, told).await;
    assert!(told.is_ok(), "{threads}: {} were given and not told", left());
}

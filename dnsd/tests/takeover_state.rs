//! The state that a new process inherits, by a table of rules, and queries at the instant of a takeover, with real
//! processes; damaged state.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::cache::{Demand, Provenance};
use egret_dnsd::enforcement::gate::GateRecord;
use egret_dnsd::takeover::state::{STATE_VERSION, StateRecord, read, write};
use egret_dnsd::takeover::transfer::{ProcessState, TransferSummary, inherit};
use egret_dnsd::takeover::{OldProcess, SocketName, StateSource, TakeoverEvent, TakeoverSocket, take};
use egret_dnsd::zones::{AnswerRecord, AnswerSource, BlockRecord};
use egret_integration::within;
use egret_shared::rt::clock;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use proptest::prelude::*;
use support::{address, alias, authority, query, response, with_code};
use tokio::sync::mpsc::unbounded_channel;
use whole::Dnsd;

const PATIENCE: Duration = Duration::from_secs(30);

/// One name for each kind of entry.
const KINDS: [&str; 6] = ["answer", "alias", "low", "nodata", "nx", "failure"];

/// What the upstream says of a name, by its first label.
fn said(query: &[u8]) -> Message {
    let name = Message::from_vec(query).unwrap().queries[0].name().to_ascii();
    let empty = |code| {
        let mut message = with_code(response(query, vec![]), code);
        message.authorities.push(authority(300, 300));
        message
    };
    match name.to_lowercase().split('.').next().unwrap() {
        "answer" => response(query, vec![address(&name, 300, "192.0.2.1")]),
        "alias" => response(
            query,
            vec![
                alias(&name, 300, "end.example.test"),
                address("end.example.test", 300, "192.0.2.2"),
            ],
        ),
        "low" => response(query, vec![address(&name, 1, "192.0.2.3")]),
        "nodata" => empty(ResponseCode::NoError),
        "nx" => empty(ResponseCode::NXDomain),
        _failure => with_code(response(query, vec![]), ResponseCode::ServFail),
    }
}

/// Answers, and counts what it is asked by name.
struct Upstream {
    address: SocketAddr,
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Upstream {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let counts = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let asked = Message::from_vec(&buffer[..length]).unwrap();
                let name = asked.queries[0].name().to_ascii().to_lowercase();
                *counts.lock().unwrap().entry(name).or_default() += 1;
                let reply = said(&buffer[..length]).to_vec().unwrap();
                socket.send_to(&reply, from).unwrap();
            }
        });
        Self { address, asked }
    }

    fn asked(&self, name: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.get(&format!("{name}.")).copied().unwrap_or(0)
    }
}

/// A folder, an address, and an upstream.
struct TestProcess {
    folder: PathBuf,
    address: SocketAddr,
    upstream: Upstream,
}

impl TestProcess {
    /// Each has an address that is nobody else's: the whole of 127/8 is this host's.
    fn new(name: &str, number: u8) -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let folder = std::env::temp_dir().join(format!("egret-heritage-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            folder,
            address: SocketAddr::new(Ipv4Addr::new(127, 100 + 2 * a + number, b, c).into(), 5353),
            upstream: Upstream::start(),
        }
    }

    /// Asks who answers there.
    fn ask(&self, name: &str) -> Message {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let asked = query(name, RecordType::A, None);
        client.send_to(&asked, self.address).unwrap();
        let mut buffer = [0; 4096];
        let (length, _from) = client.recv_from(&mut buffer).unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    fn is_answered(&self, name: &str) -> bool {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let asked = query(name, RecordType::A, None);
        client.send_to(&asked, self.address).unwrap();
        client.recv(&mut [0; 4096]).is_ok()
    }

    /// Runs a dnsd with this Corefile until it is ready; `ADDRESS` and `UPSTREAM` in it are replaced.
    fn run(&self, corefile: &str) -> Running {
        self.run_as("", corefile)
    }

    /// The same as a unit of systemd, if it has a name.
    fn run_as(&self, unit: &str, corefile: &str) -> Running {
        let text = corefile
            .replace("ADDRESS", &self.address.ip().to_string())
            .replace("UPSTREAM", &self.upstream.address.to_string());
        let path = self.folder.join("Corefile");
        std::fs::write(&path, text).unwrap();
        Running::start(unit, &path, &self.folder)
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Running {
    fn start(unit: &str, corefile: &Path, folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(["--admin", "127.0.0.1:0", "--corefile"])
            .arg(corefile)
            .arg("--link")
            .arg(folder.join("nobody.sock"))
            .arg("--handover")
            .arg(folder.join("handover.sock"))
            .env("INVOCATION_ID", unit)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, log };
        running.says("\"ready\"");
        running
    }

    /// Reads the log up to the first line that has this.
    fn says(&mut self, wanted: &str) {
        let mut log = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "no {wanted} in {log}");
            if line.contains(wanted) {
                return;
            }
            log += &line;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A block with these rules for its cache.
fn block(zone: &str, cache: &str, more: &str) -> String {
    format!("{zone}:5353 {{\n bind ADDRESS\n {cache}\n forward . UPSTREAM\n {more}\n}}\n")
}

const CACHE: &str = "cache {\n servfail 5m\n }";

#[test]
fn the_new_process_inherits_cached_answers_within_its_own_rules() {
    let test_process = TestProcess::new("table", 0);
    let all = KINDS.as_slice();
    let here = |cache: &str, more: &str| block("example.test", cache, more);
    let rows: [(&str, String, &[&str]); 10] = [
        ("the same", here(CACHE, ""), all),
        ("what is logged", here(CACHE, "log\n errors\n prometheus"), all),
        ("shorter TTLs", here("cache 20 {\n servfail 5m\n }", ""), all),
        (
            "TTLs that were raised to more than is right now",
            here("cache {\n servfail 5m\n success 9984 3600 1\n }", ""),
            &["nodata", "nx", "failure"],
        ),
        (
            "no failures",
            here("cache {\n servfail 0\n }", ""),
            &["answer", "alias", "low", "nodata", "nx"],
        ),
        (
            "no denials",
            here("cache {\n servfail 5m\n disable denial\n }", ""),
            &["answer", "alias", "low"],
        ),
        (
            "other names",
            here("cache 3600 other.example.test {\n servfail 5m\n }", ""),
            &[],
        ),
        ("no cache", here("", ""), &[]),
        ("another chain", here(CACHE, "bufsize 700"), &[]),
        (
            "a block of two",
            here(CACHE, "") + &block("example.org", CACHE, "bufsize 700"),
            all,
        ),
    ];
    for (what, successor, expected) in rows {
        let old = test_process.run(&(here(CACHE, "") + &block("example.org", CACHE, "")));
        for kind in KINDS {
            test_process.ask(&format!("{kind}.example.test"));
            test_process.ask(&format!("{kind}.example.org"));
        }
        let before: Vec<usize> = KINDS
            .iter()
            .map(|kind| test_process.upstream.asked(&format!("{kind}.example.test")))
            .collect();
        let new = test_process.run(&successor);
        drop(old);
        let mut kept = Vec::new();
        for (kind, before) in KINDS.into_iter().zip(before) {
            let name = format!("{kind}.example.test");
            let reply = test_process.ask(&name);
            let wanted = said(&query(&name, RecordType::A, None));
            assert_eq!(
                reply.metadata.response_code, wanted.metadata.response_code,
                "{what}: {name}"
            );
            let ttl = reply.answers.first().map(|record| record.ttl);
            let most = if what == "shorter TTLs" { 20 } else { 300 };
            assert!(ttl.is_none_or(|ttl| ttl <= most), "{what}: {name}: {ttl:?}");
            if test_process.upstream.asked(&name) == before {
                kept.push(kind);
            }
        }
        assert_eq!(kept, expected, "{what}");
        let other = test_process.upstream.asked("answer.example.org");
        if successor.contains("example.org") {
            test_process.ask("answer.example.org");
            assert!(
                test_process.upstream.asked("answer.example.org") > other,
                "{what}"
            );
        }
        drop(new);
    }
}

#[test]
fn ttls_count_down_across_two_takeovers() {
    let test_process = TestProcess::new("ttls", 1);
    let corefile = block("example.test", CACHE, "");
    let first = test_process.run(&corefile);
    test_process.ask("answer.example.test");
    let second = test_process.run(&corefile);
    drop(first);
    let third = test_process.run(&corefile);
    drop(second);
    let end = clock::now().after(PATIENCE);
    while test_process.ask("answer.example.test").answers[0].ttl > 299 {
        assert!(clock::now() < end, "the TTL is counted down");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(test_process.upstream.asked("answer.example.test"), 1);
    drop(third);
}

/// The test stands between two dnsds for a moment: what comes meanwhile is unread, and accepted by nobody.
#[test]
fn unread_datagrams_and_connections_are_answered_by_the_new_process() {
    // The node is one client at both of its addresses: all of them are as many connections as one may have.
    const MANY: usize = 50;
    let test_process = TestProcess::new("waits", 2);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let v6 = SocketAddr::new(
        "::1".parse().unwrap(),
        20_000 + u16::from_be_bytes([b, c]) % 10_000 + u16::from(a),
    );
    // dnsd answers by itself, and waits for who has said nothing yet: nothing here is a matter of time.
    let own = "timeouts {\n read 5m\n }\n template IN A {\n answer \"{{ .Name }} 300 IN A 192.0.2.1\"\n }";
    let corefile =
        block("example.test", "", own) + &format!("example.test:{} {{\n bind ::1\n {own}\n}}\n", v6.port());
    let first = test_process.run(&corefile);
    test_process.ask("answer.example.test");
    let path = test_process.folder.join("handover.sock");
    let (taken, mut sockets) = take(&path, PATIENCE).unwrap().unwrap();
    let names: Vec<SocketName> = sockets.left().copied().collect();
    assert!(names.iter().any(|name| name.address == v6), "{names:?}");
    let held: Vec<(SocketName, OwnedFd)> = names
        .into_iter()
        .map(|name| (name, sockets.socket(name).unwrap()))
        .collect();
    taken.pause().unwrap().serving();
    drop(first);

    let asked = query("answer.example.test", RecordType::A, None);
    let framed = whole::framed(&asked);
    let (mut datagrams, mut streams) = (Vec::new(), Vec::new());
    for server in [test_process.address, v6] {
        for number in 0..MANY {
            let any = if server.is_ipv4() {
                "127.0.0.1:0"
            } else {
                "[::1]:0"
            };
            let socket = UdpSocket::bind(any).unwrap();
            socket.send_to(&asked, server).unwrap();
            datagrams.push(socket);
            // Some have asked, some have begun to, some have said nothing.
            let written = [framed.len(), 1, 0][number % 3];
            let mut stream = TcpStream::connect(server).unwrap();
            stream.write_all(&framed[..written]).unwrap();
            streams.push((stream, written));
        }
    }

    let (sender, mut events) = unbounded_channel();
    let nothing = Arc::new(StateSourceOf {
        pieces: vec![StateRecord::End],
        for_ever: false,
    });
    TakeoverSocket::at(&path).unwrap().serve(sender, nothing).unwrap();
    let giving = std::thread::spawn(move || {
        let mut held = Some(held);
        while let Some(event) = events.blocking_recv() {
            match event {
                TakeoverEvent::Sockets(answer) => drop(answer.send(held.take().unwrap())),
                TakeoverEvent::Pause(stopped) => stopped.send(()).unwrap(),
                TakeoverEvent::Resume => panic!("the successor serves"),
                TakeoverEvent::Leave(_) => return,
            }
        }
    });
    let _second = test_process.run(&corefile);
    giving.join().unwrap();
    let mut buffer = [0; 4096];
    for socket in datagrams {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (length, _from) = socket.recv_from(&mut buffer).expect("an answer");
        assert_eq!(Message::from_vec(&buffer[..length]).unwrap().answers.len(), 1);
    }
    for (mut stream, written) in streams {
        stream.write_all(&framed[written..]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("an answer");
        let mut octets = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut octets).unwrap();
        assert_eq!(Message::from_vec(&octets).unwrap().answers.len(), 1);
    }
}

/// The question is there when it goes on, and so is the order to stop.
#[test]
fn queries_on_a_connection_are_answered_while_the_server_stops() {
    const MANY: usize = 50;
    let test_process = TestProcess::new("stops", 4);
    let own = "template IN A {\n answer \"{{ .Name }} 300 IN A 192.0.2.1\"\n }";
    let mut dnsd = test_process.run(&block("example.test", "", own));
    let framed = whole::framed(&query("answer.example.test", RecordType::A, None));
    let hear = |stream: &mut TcpStream| {
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("an answer");
        let mut octets = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut octets).unwrap();
        assert_eq!(Message::from_vec(&octets).unwrap().answers.len(), 1);
    };
    let mut streams: Vec<TcpStream> = (0..MANY)
        .map(|_| TcpStream::connect(test_process.address).unwrap())
        .collect();
    for stream in &mut streams {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&framed).unwrap();
        hear(stream);
    }
    let pid = Pid::from_raw(dnsd.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    for stream in &mut streams {
        stream.write_all(&framed).unwrap();
    }
    kill(pid, Signal::SIGTERM).unwrap();
    kill(pid, Signal::SIGCONT).unwrap();
    streams.iter_mut().for_each(hear);
    assert!(dnsd.child.wait().unwrap().success());
}

#[test]
fn a_replaced_process_ends_unless_a_supervisor_restarts_it() {
    let test_process = TestProcess::new("ends", 3);
    let corefile = block("example.test", CACHE, "");
    for (unit, waits) in [("", false), ("4c6e", true)] {
        let mut old = test_process.run_as(unit, &corefile);
        let new = test_process.run(&corefile);
        if waits {
            old.says("waiting to be stopped");
            assert_eq!(old.child.try_wait().unwrap(), None);
            kill(Pid::from_raw(old.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        }
        assert!(old.child.wait().unwrap().success());
        assert_eq!(
            test_process.ask("answer.example.test").answers.len(),
            1,
            "{unit:?}"
        );
        drop(new);
    }
}

/// Kubernetes may end the new pod, or the node may run out of memory, before it ends the old one.
#[test]
fn a_replaced_process_answers_again_when_the_new_one_is_killed() {
    let test_process = TestProcess::new("again", 6);
    let corefile = block("example.test", CACHE, "");
    let mut old = test_process.run_as("4c6e", &corefile);
    let mut new = test_process.run(&corefile);
    old.says("waiting to be stopped");
    new.child.kill().unwrap();
    new.child.wait().unwrap();
    within(PATIENCE, "the old one answers", || {
        test_process.is_answered("answer.example.test")
    });
    kill(Pid::from_raw(old.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(old.child.wait().unwrap().success());
}

/// Who balances load sends to the old one for as long as it says that it is well.
#[test]
fn a_process_that_stops_slowly_can_be_taken_over() {
    let test_process = TestProcess::new("limps", 5);
    let corefile = block("example.test", CACHE, "health ADDRESS:8080 {\n lameduck 5m\n }");
    let mut old = test_process.run_as("4c6e", &corefile);
    kill(Pid::from_raw(old.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    old.says("going into lameduck mode");
    let _new = test_process.run(&corefile);
    assert!(old.child.wait().unwrap().success());
    assert_eq!(test_process.ask("answer.example.test").answers.len(), 1);
}

// --- what is damaged --------------------------------------------------------------------------------------------

/// The key of a question of class IN.
fn key(name: &str, kind: u16) -> Vec<u8> {
    let mut key = vec![0];
    key.extend(kind.to_be_bytes());
    key.extend(1_u16.to_be_bytes());
    for label in name.split('.') {
        key.push(u8::try_from(label.len()).unwrap());
        key.extend(label.as_bytes());
    }
    key.push(0);
    key
}

fn answer(name: &str) -> AnswerRecord {
    let asked = query(name, RecordType::A, None);
    AnswerRecord {
        key: key(name, 1),
        octets: response(&asked, vec![address(name, 300, "192.0.2.1")])
            .to_vec()
            .unwrap(),
        arrived: clock::now(),
        provenance: Provenance::Upstream,
        source: AnswerSource::Forward,
        error: None,
        demand: Demand::default(),
    }
}

const ONE_BLOCK: &str = "example.test {\n bind 127.0.0.1\n cache\n forward . 192.0.2.53\n}\n";

/// Who says these pieces, over and over where it never ends.
struct StateSourceOf {
    pieces: Vec<StateRecord>,
    for_ever: bool,
}

impl StateSource for StateSourceOf {
    fn export(&self, emit: &mut dyn FnMut(&[StateRecord]) -> io::Result<()>) -> io::Result<()> {
        loop {
            for piece in &self.pieces {
                emit(std::slice::from_ref(piece))?;
            }
            if !self.for_ever {
                return Ok(());
            }
        }
    }
}

/// Takes over from who has this memory.
fn taken(name: &str, memory: Arc<dyn StateSource>) -> OldProcess {
    let folder = std::env::temp_dir().join(format!("egret-memory-{name}-{}", std::process::id()));
    let path = folder.join("handover.sock");
    let (sender, mut events) = unbounded_channel();
    TakeoverSocket::at(&path).unwrap().serve(sender, memory).unwrap();
    let answering = std::thread::spawn(move || {
        if let Some(TakeoverEvent::Sockets(answer)) = events.blocking_recv() {
            drop(answer.send(Vec::new()));
        }
        events
    });
    let (taken, _sockets) = take(&path, PATIENCE).unwrap().unwrap();
    drop(answering.join().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    taken
}

fn begins_with(
    name: &str,
    dnsd: &Dnsd,
    pieces: Vec<StateRecord>,
    for_ever: bool,
) -> Result<TransferSummary, String> {
    let taken = taken(name, Arc::new(StateSourceOf { pieces, for_ever }));
    inherit(&taken, &dnsd.service.resolver, &dnsd.gate).map_err(|error| error.to_string())
}

fn kept(dnsd: &Dnsd) -> usize {
    dnsd.service.resolver.serving().cache_figures().0
}

/// The block as a dnsd with the same blocks tells it.
fn told_block() -> StateRecord {
    let dnsd = Dnsd::with("told-block", ONE_BLOCK);
    let mut found = None;
    let remembering = ProcessState {
        resolver: Arc::clone(&dnsd.service.resolver),
        gate: Arc::clone(&dnsd.gate),
    };
    remembering
        .export(&mut |pieces| {
            found = found.take().or_else(|| {
                pieces
                    .iter()
                    .find(|it| matches!(it, StateRecord::Block(_)))
                    .cloned()
            });
            Ok(())
        })
        .unwrap();
    found.unwrap()
}

#[tokio::test]
async fn impossible_state_is_not_inherited() {
    let right = || StateRecord::Answer(answer("api.example.test"));
    let with = |change: fn(&mut AnswerRecord)| {
        let mut answer = answer("other.example.test");
        change(&mut answer);
        StateRecord::Answer(answer)
    };
    let block = told_block();
    for (what, wrong) in [
        ("a key of nothing", with(|it| it.key.clear())),
        ("a cut key", with(|it| it.key.truncate(9))),
        (
            "another name's key",
            with(|it| it.key = key("api.example.test", 1)),
        ),
        (
            "another type's key",
            with(|it| it.key = key("other.example.test", 28)),
        ),
        ("an unknown flag", with(|it| it.key[0] = 4)),
        ("no message", with(|it| it.octets.truncate(11))),
        ("a cut question", with(|it| it.octets.truncate(16))),
        ("a query", with(|it| it.octets[2] &= 0x7f)),
        (
            "an answer of tomorrow",
            with(|it| it.arrived = clock::now().after(Duration::from_secs(86_400))),
        ),
        (
            "an enforcer of tomorrow",
            StateRecord::Gate(GateRecord::Enforcer {
                since: clock::now().after(Duration::from_secs(86_400)),
                is_connected: true,
            }),
        ),
    ] {
        let dnsd = Dnsd::with("wrong", ONE_BLOCK);
        let pieces = vec![block.clone(), right(), wrong, StateRecord::End];
        let error = begins_with("wrong", &dnsd, pieces, false).expect_err(what);
        assert!(error.contains("the other dnsd's state has"), "{what}: {error}");
        assert_eq!(kept(&dnsd), 0, "{what}");
    }
}

#[tokio::test]
async fn state_received_before_a_crash_or_the_timeout_counts() {
    let right = StateRecord::Answer(answer("api.example.test"));
    let block = told_block();
    for (what, pieces, for_ever, expected) in [
        (
            "all",
            vec![block.clone(), right.clone(), StateRecord::End],
            false,
            (1, true),
        ),
        ("dies", vec![block.clone(), right.clone()], false, (1, false)),
        ("never ends", vec![block.clone(), right.clone()], true, (1, false)),
        (
            "a block of others",
            vec![
                StateRecord::Block(BlockRecord {
                    digest: [0; 32],
                    min_ttl: [Duration::ZERO; 2],
                }),
                right,
                StateRecord::End,
            ],
            false,
            (0, true),
        ),
    ] {
        let dnsd = Dnsd::with("heard", ONE_BLOCK);
        let begun = begins_with("heard", &dnsd, pieces, for_ever).expect(what);
        assert_eq!((kept(&dnsd), begun.is_whole), expected, "{what}");
    }
}

#[test]
fn written_state_is_read_as_equal() {
    let pieces = vec![
        StateRecord::Gate(GateRecord::Enforcer {
            since: clock::now(),
            is_connected: true,
        }),
        StateRecord::Gate(GateRecord::InterestComplete),
        StateRecord::Answer(answer("api.example.test")),
        StateRecord::End,
    ];
    let octets = write(&pieces);
    assert_eq!(read(&octets), Ok(pieces));
    let longer = [octets.as_slice(), b"x"].concat();
    assert!(read(&longer).is_err(), "what stands behind is not skipped");
    const { assert!(STATE_VERSION > 0, "0 is nobody's") };
}

proptest! {
    #[test]
    fn damaged_state_is_read_to_its_end(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut octets = write(&[StateRecord::Answer(answer("api.example.test")), StateRecord::End]);
        for (at, octet) in edits {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        for octets in [&octets[..], &octets[..cut.index(octets.len())]] {
            if let Ok(pieces) = read(octets) {
                prop_assert_eq!(read(&write(&pieces)), Ok(pieces));
            }
        }
    }
}

//! The program with few open files while an outside upstream is silent: each query to it needs a socket, and there are
//! more queries than sockets. Queries for other zones are answered.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/fresh.rs"]
mod fresh;
mod support;
#[path = "forwarding/world.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
mod world;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use egret_shared::rt::task;
use fresh::{enter_fresh_namespace, in_a_thread, run};
use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use support::{extended_error, query};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use world::{Action, LOOPBACK, PATIENCE, ReceivedQuery, Upstream, until};

/// Two outside, where each question has a socket of its own, and one inside, where they share some.
const SILENT: &str = "203.0.113.1";
const OUTSIDE: &str = "198.51.100.1";
const INSIDE: &str = "10.96.0.10";
const DNSD: &str = "127.0.0.1:5300";

/// Files that dnsd may have open.
const FILES: usize = 128;
/// Questions to the silent one, from so many clients each.
const MANY: usize = 500;
const CLIENTS: usize = 10;
/// Rounds of questions to the others, at least: more than a shared socket is used for.
const ROUNDS: usize = 100;

/// Extended errors (RFC 8914): nobody answered; no sockets left.
const NOBODY_ANSWERED: u16 = 22;
const NOT_READY: u16 = 14;

#[test]
fn other_zones_are_answered_while_one_upstream_uses_up_its_sockets() {
    in_a_thread(|| {
        enter_fresh_namespace().unwrap();
        for address in [SILENT, OUTSIDE, INSIDE] {
            run(&format!("ip addr add {address}/32 dev lo"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(story());
    });
}

async fn story() {
    let silent = Upstream::at(ip(SILENT), |asked| match asked.name().starts_with("silent") {
        true => Vec::new(),
        false => say(asked),
    });
    let (silent, outside) = (silent.await, Upstream::at(ip(OUTSIDE), say).await);
    let inside = Upstream::at(ip(INSIDE), say).await;
    let zones = [
        ("silent.test", silent.address),
        ("outside.test", outside.address),
        ("inside.test", inside.address),
    ];
    let dnsd = Dnsd::start(&zones).await;
    assert_eq!(answer("kept.inside.test").await, "NoError");
    let before = dnsd.open_files();

    let askers: Vec<_> = (0..CLIENTS)
        .map(|client| task::spawn("asker", ask_the_silent(client)))
        .collect();
    until("its questions have sockets", || dnsd.open_files() > before + 10).await;
    for round in 0.. {
        if round >= ROUNDS && askers.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        for name in [
            "kept.inside.test".to_owned(),
            format!("n{round}.inside.test"),
            format!("n{round}.outside.test"),
        ] {
            assert_eq!(answer(&name).await, "NoError", "{name}");
        }
    }
    let mut said = BTreeSet::new();
    for asker in askers {
        said.extend(asker.await.unwrap());
    }
    assert_eq!(said, BTreeSet::from([Some(NOT_READY), Some(NOBODY_ANSWERED)]));
    until("the sockets are free again", || dnsd.open_files() <= before).await;
    for number in 0..20 {
        assert_eq!(answer(&format!("later{number}.silent.test")).await, "NoError");
    }
}

fn say(asked: &ReceivedQuery) -> Vec<Action> {
    vec![Action::Reply(asked.one())]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What its clients are told why: all that is said within its time.
async fn ask_the_silent(client: usize) -> BTreeSet<Option<u16>> {
    let socket = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
    socket.connect(DNSD).await.unwrap();
    for number in 0..MANY / CLIENTS {
        let name = format!("silent{client}-{number}.silent.test");
        socket
            .send(&query(&name, RecordType::A, Some(1232)))
            .await
            .unwrap();
    }
    let (mut said, mut buffer) = (BTreeSet::new(), [0; 4096]);
    for _ in 0..MANY / CLIENTS {
        let Ok(length) = timeout(2 * PATIENCE, socket.recv(&mut buffer)).await else {
            break;
        };
        said.insert(extended_error(
            &Message::from_vec(&buffer[..length.unwrap()]).unwrap(),
        ));
    }
    said
}

/// The code of an answer; nobody asks twice.
async fn answer(name: &str) -> String {
    let socket = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
    socket.connect(DNSD).await.unwrap();
    socket
        .send(&query(name, RecordType::A, Some(1232)))
        .await
        .unwrap();
    let mut buffer = [0; 4096];
    let Ok(Ok(length)) = timeout(PATIENCE, socket.recv(&mut buffer)).await else {
        return "nothing".to_owned();
    };
    let message = Message::from_vec(&buffer[..length]).unwrap();
    match extended_error(&message) {
        None => format!("{:?}", message.metadata.response_code),
        Some(error) => format!("{:?} {error}", message.metadata.response_code),
    }
}

struct Dnsd {
    child: Child,
    files: PathBuf,
}

impl Dnsd {
    async fn start(zones: &[(&str, SocketAddr)]) -> Self {
        let files = std::env::temp_dir().join(format!("egret-dnsd-out-of-sockets-{}", std::process::id()));
        std::fs::create_dir_all(&files).unwrap();
        let blocks = zones.iter().map(|(zone, upstream)| {
            format!("{zone}:5300 {{\n bind 127.0.0.1\n cache 30\n forward . {upstream}\n}}\n")
        });
        let corefile = files.join("Corefile");
        std::fs::write(&corefile, blocks.collect::<String>()).unwrap();
        let child = Command::new("prlimit")
            .arg(format!("--nofile={FILES}:{FILES}"))
            .arg(env!("CARGO_BIN_EXE_dnsd"))
            .args(["--corefile".as_ref(), corefile.as_os_str()])
            .args(["--link".as_ref(), files.join("link.sock").as_os_str()])
            .spawn()
            .unwrap();
        let dnsd = Self { child, files };
        while answer("first.inside.test").await != "NoError" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        dnsd
    }

    fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }
}

impl Drop for Dnsd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.files));
    }
}

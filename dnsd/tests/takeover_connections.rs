//! Open TCP connections go from one process to the next: clients that ask on and on notice none of many takeovers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "clients ask at a pace")]

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use egret_integration::lookup::{read_framed, write_framed};
use egret_integration::{Daemon, DaemonSpec, Lookup, RecordType, Records, World, node, within};

const ROLLS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// A query of a connection; eight of them ask a thousand times a second.
const PACE: Duration = Duration::from_millis(8);
/// How long the upstream takes for a name that is always waited for.
const SLOW: Duration = Duration::from_millis(50);

/// Queries that are always under way.
const WIDTH: u16 = 4;

/// How a client uses its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Asks when it was answered.
    InTurn,
    /// Always has several queries under way.
    Pipelined,
    /// Sends the octets of a query one by one.
    InPieces,
    /// Asks once for each takeover.
    Seldom,
}

const HABITS: [Habit; 8] = [
    Habit::InTurn,
    Habit::InTurn,
    Habit::InTurn,
    Habit::InTurn,
    Habit::Pipelined,
    Habit::InPieces,
    Habit::InPieces,
    Habit::Seldom,
];

#[test]
fn open_connections_lose_no_query_in_ten_takeovers() {
    let Some(world) = World::or_skip() else { return };
    let world = world.with_pod("client").unwrap();
    let records = || Records::addresses(["203.0.113.7"]).ttl(30);
    let upstream = world.upstream();
    upstream.set("kept.example.test", records());
    upstream.set("*.asked.example.test", records());
    upstream.set("*.slow.example.test", records().after(SLOW));
    let spec = by_hand(&world);
    let mut serving = world.start(spec.clone()).unwrap();
    let (stop, rolls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let answered: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = HABITS
            .into_iter()
            .enumerate()
            .map(|(number, habit)| {
                let server = if number % 2 == 0 {
                    node::DNS.into()
                } else {
                    node::DNS_V6.into()
                };
                let outcome = world
                    .pod("client")
                    .connect_tcp(SocketAddr::new(server, 53), PATIENCE);
                let mut connection = outcome.connection();
                let (stop, rolls) = (&stop, &rolls);
                scope.spawn(move || {
                    let asked = ask(connection.stream(), habit, stop, rolls);
                    (habit, asked)
                })
            })
            .collect();
        let _end = SetWhenDropped(&stop);
        for roll in 1..=ROLLS {
            replace(&world, &mut serving, &spec, roll);
            rolls.store(roll, Ordering::SeqCst);
        }
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for (habit, answered) in answered {
        let answered = answered.unwrap_or_else(|error| panic!("{habit:?}: a query was lost: {error}"));
        assert!(answered >= ROLLS, "{habit:?}: {answered} queries");
    }
    serving.terminate().unwrap();
}

/// Asks until `stop` is set; returns the number of answers, or why one is missing.
fn ask(stream: &mut TcpStream, habit: Habit, stop: &AtomicBool, rolls: &AtomicUsize) -> io::Result<usize> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let (mut under_way, mut answered, mut rolls_seen) = (BTreeSet::new(), 0, 0);
    let width = if habit == Habit::Pipelined { WIDTH } else { 1 };
    for id in 1_u16.. {
        if stop.load(Ordering::SeqCst) && habit != Habit::Seldom {
            break;
        }
        let name = match (habit, id % 2) {
            (Habit::Pipelined, _) => format!("n{id}.slow.example.test"),
            (_, 0) => "kept.example.test".to_owned(),
            (..) => format!("n{id}.asked.example.test"),
        };
        let query = Lookup::of(&name, RecordType::A).with_id(id).to_vec();
        if habit == Habit::InPieces {
            let length = u16::try_from(query.len()).unwrap().to_be_bytes();
            for octet in length.into_iter().chain(query) {
                stream.write_all(&[octet])?;
                sleep(PACE / 32);
            }
        } else {
            write_framed(stream, &query)?;
        }
        under_way.insert(id);
        while under_way.len() >= width.into() {
            let reply = read_framed(stream)?;
            let id = u16::from_be_bytes(*reply.first_chunk().unwrap());
            assert!(under_way.remove(&id), "nobody asked with {id}");
            assert_eq!(reply[3] & 0xf, 0, "NOERROR");
            answered += 1;
        }
        match habit {
            // The answers come one after the other from now on.
            Habit::Pipelined if id < WIDTH => sleep(SLOW / u32::from(WIDTH)),
            Habit::Pipelined => {}
            Habit::InTurn | Habit::InPieces => sleep(PACE),
            Habit::Seldom => {
                while rolls.load(Ordering::SeqCst) == rolls_seen && !stop.load(Ordering::SeqCst) {
                    sleep(PACE);
                }
                rolls_seen = rolls.load(Ordering::SeqCst);
                if rolls_seen == ROLLS || stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        }
    }
    for _left in under_way {
        read_framed(stream)?;
        answered += 1;
    }
    Ok(answered)
}

/// Nobody starts the old process again: it ends when it has handed everything over.
fn by_hand(world: &World) -> DaemonSpec {
    let path = world.files().join("handover.sock");
    let handover = ["--handover".to_owned(), path.display().to_string()];
    world.dnsd().with(handover).with_variable("INVOCATION_ID", "")
}

fn replace(world: &World, serving: &mut Daemon, spec: &DaemonSpec, roll: usize) {
    let mut spec = spec.clone();
    spec.name = format!("dnsd-{roll}");
    let mut successor = world.launch(spec).unwrap();
    let mut end = None;
    within(PATIENCE * 2, "the old process has gone", || {
        assert!(successor.is_running(), "{}", successor.log());
        end = serving.ended();
        end.is_some()
    });
    assert!(end.unwrap().success(), "{end:?}");
    std::mem::swap(serving, &mut successor);
}

/// The clients end also where the test ends early.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

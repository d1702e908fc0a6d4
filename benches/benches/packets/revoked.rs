//! What it costs that a policy forbids what is open: a pod's 500 connections among 50,000 flows, and all of 50,000.
//!
//! Times are from the file's change on, so that the enforcer notices and reads it is in them.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::ruleset::Ruleset;
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_integration::Daemon;
use egret_kernel::Family;
use egret_kernel::conntrack::{Conntrack, FlowFilter};
use egret_policies::rules::Direction;
use socket2::{Domain, Socket, Type};

use crate::cluster::{FIRST, LAST, PORT, Size};
use crate::cpu;
use crate::load::{self, micros};
use crate::report::median;
use crate::testbed::Testbed;

/// Open at once.
const FLOWS: u16 = 50_000;
/// Where their ports begin.
const LOWEST: u16 = 10_000;
/// Of the pod that is forbidden, where most are another's.
const CONNECTIONS: usize = 500;
/// More rounds tell no more.
const MOST_ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one change took.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// Until the last one was ended.
    time: Duration,
    /// Of the enforcer and of the programs that it ran, until it had nothing more to do.
    own: Duration,
    programs: Duration,
}

type Situation = fn(&Testbed, &Daemon) -> anyhow::Result<Took>;

pub(crate) fn revocation(rounds: usize) -> anyhow::Result<()> {
    println!("\n### A policy forbids what is open, of {FLOWS} flows; medians (most)\n");
    println!("| | until the last one ended, ms | CPU of the enforcer, ms | of programs, ms |");
    println!("|---|---|---|---|");
    for ruleset in Ruleset::ALL {
        let testbed = Testbed::new(Size::TARGET)?;
        let enforcer = testbed.start_enforcer(ruleset)?;
        testbed.wait_until_enforced().with_context(|| enforcer.log())?;
        let situations: [(&str, Situation); 3] = [
            ("a pod's 500 TCP connections, nothing else open", few_alone),
            (
                "a pod's 500 TCP connections, the others another pod's",
                few_of_many,
            ),
            ("all of them, UDP without answers", all),
        ];
        for (name, situation) in situations {
            let mut seen = Vec::new();
            for _ in 0..rounds.min(MOST_ROUNDS) {
                seen.push(situation(&testbed, &enforcer).with_context(|| enforcer.log())?);
                testbed.allow_first(true)?;
                testbed.wait_until_enforced()?;
                testbed.forget_flows()?;
                cpu::when_idle(enforcer.pid())?;
            }
            print(&format!("{}: {name}", ruleset.name()), &seen);
        }
    }
    Ok(())
}

fn print(name: &str, seen: &[Took]) {
    let cell = |of: fn(&Took) -> Duration| {
        let figures = || seen.iter().map(|took| micros(of(took)) / 1e3);
        format!("{:.0} ({:.0})", median(figures()), figures().fold(0.0, f64::max))
    };
    println!(
        "| {name} | {} | {} | {} |",
        cell(|took| took.time),
        cell(|took| took.own),
        cell(|took| took.programs)
    );
}

fn few_alone(testbed: &Testbed, enforcer: &Daemon) -> anyhow::Result<Took> {
    let connections = open_connections(testbed)?;
    forbid(testbed, enforcer, || Ok(connections.client.iter().all(is_ended)))
}

fn few_of_many(testbed: &Testbed, enforcer: &Daemon) -> anyhow::Result<Took> {
    open_flows(testbed, LAST)?;
    let connections = open_connections(testbed)?;
    forbid(testbed, enforcer, || Ok(connections.client.iter().all(is_ended)))
}

fn all(testbed: &Testbed, enforcer: &Daemon) -> anyhow::Result<Took> {
    open_flows(testbed, FIRST)?;
    let node = load::namespace(testbed.world.node().namespace())?;
    let mut conntrack = load::within(&node, Conntrack::open)??;
    let marks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS)?;
    let ended = FlowFilter {
        mark: Some(marks.revoked(Direction::Egress)),
        ..FlowFilter::family(Family::V4)
    };
    forbid(testbed, enforcer, || {
        // The list is long, and who marks flows waits for it.
        std::thread::sleep(Duration::from_millis(100));
        Ok(conntrack.dump(&ended)?.len() >= usize::from(FLOWS))
    })
}

/// Writes the policies that forbid it, and waits until all that was open is ended.
fn forbid(
    testbed: &Testbed,
    enforcer: &Daemon,
    mut is_over: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Took> {
    let process = enforcer.pid();
    let (own, programs) = (cpu::when_idle(process)?, cpu::of_children(process)?);
    ensure!(!is_over()?, "nothing is to be ended");
    let start = Instant::now();
    testbed.allow_first(false)?;
    while !is_over()? {
        ensure!(start.elapsed() < PATIENCE, "what is forbidden goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Took {
        time: start.elapsed(),
        own: cpu::when_idle(process)? - own,
        programs: cpu::of_children(process)? - programs,
    })
}

/// Of the client and of the server.
struct Open {
    client: Vec<Socket>,
    _server: Vec<TcpStream>,
}

fn open_connections(testbed: &Testbed) -> anyhow::Result<Open> {
    let to = SocketAddr::from((testbed.path.server(), PORT));
    let client = load::namespace(testbed.world.pod(FIRST.1).netns_name())?;
    let open = || {
        let one = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.connect(&to.into())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        (0..CONNECTIONS).map(|_| one()).collect()
    };
    let open: std::io::Result<_> = load::within(&client, open)?;
    Ok(Open {
        client: open?,
        _server: testbed.path.take_in(CONNECTIONS)?,
    })
}

fn is_ended(socket: &Socket) -> bool {
    let read = socket.peek(&mut [std::mem::MaybeUninit::uninit()]);
    !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Datagrams that nobody answers, each from a port of its own.
fn open_flows(testbed: &Testbed, (_, pod): (&str, &str)) -> anyhow::Result<()> {
    let to = SocketAddr::from((testbed.path.server(), PORT + 1));
    let client = load::namespace(testbed.world.pod(pod).netns_name())?;
    let send = || {
        (LOWEST..LOWEST + FLOWS).try_for_each(|port| {
            let socket = UdpSocket::bind(("0.0.0.0", port))?;
            socket.send_to(&[0; 32], to).map(drop)
        })
    };
    Ok(load::within(&client, send)??)
}

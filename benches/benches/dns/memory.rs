//! What dnsd takes: memory with many names, memory under a flood of names that nobody asks twice, and the time from its
//! start to its first answer.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::Situations;
use crate::answers::round;
use crate::configurations::Configuration;
use crate::enforcer;
use crate::generator::Pace;
use crate::meter::on_the_servers_cpu;
use crate::node::{ASKING, Node};
use crate::questions::of_numbers;
use crate::servers;

const NAMES: u32 = 100_000;
/// An hour of 500 names a second.
const FLOOD: u32 = 1_800_000;
const STEPS: u32 = 6;
/// In each round.
const STARTS: usize = 9;
/// Within which the first answer is promised.
const MOST_BEFORE_AN_ANSWER: Duration = Duration::from_millis(20);

/// With all of them in the cache, and in dnsd's records.
pub(crate) fn names(_: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let servers = servers::all(&node, Configuration::Large)?;
    println!("\n### Memory, MiB (RSS)\n\n| server | empty | {NAMES} names |\n|---|---|---|");
    for server in servers.iter().filter(|server| !server.is_echo()) {
        let sockets = node.plain_sockets(server.address, ASKING)?;
        let empty = server.meter.memory()?;
        round(
            server,
            &sockets,
            Pace::Window(64),
            &of_numbers("hit.example.test", 0..NAMES),
        )?;
        println!(
            "| {} | {:.0} | {:.0} |",
            server.name,
            empty,
            server.meter.memory()?
        );
        if server.name == "dnsd" {
            let of = |metric| server.counted(metric);
            println!(
                "\ndnsd: {} answers in {} octets of cache, {} records\n",
                of("egret_dnsd_cache_entries")?,
                of("egret_dnsd_cache_bytes")?,
                of("egret_dnsd_ledger_entries")?
            );
        }
    }
    Ok(Vec::new())
}

/// With dnsd's defaults: what is bounded has to be bounded without being told.
pub(crate) fn flood(_: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let server = servers::dnsd(&node.world, Configuration::Stock)?;
    let sockets = node.sockets(server.address, ASKING)?;
    println!("\n### Memory of dnsd while random names are asked, MiB (RSS)\n\n| names | RSS |\n|---|---|");
    println!("| 0 | {:.0} |", server.meter.memory()?);
    for step in 0..STEPS {
        let names = step * (FLOOD / STEPS)..(step + 1) * (FLOOD / STEPS);
        let (last, asked) = (names.end, of_numbers("flood.example.test", names));
        round(&server, &sockets, Pace::Window(64), &asked)?;
        println!("| {last} | {:.0} |", server.meter.memory()?);
    }
    Ok(Vec::new())
}

/// From the fork of its process, with the Corefile of node-local-dns, as a pod sees it. Without an enforcer this would be how long an
/// answer is held for it.
pub(crate) fn start(rounds: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let _enforcer = enforcer::start(&node.world)?;
    let question = of_numbers("hit.example.test", 0..1).remove(0);
    let mut took = Vec::new();
    let server = servers::dnsd(&node.world, Configuration::Stock)?;
    let (spec, address) = (
        server.daemon.as_ref().expect("dnsd is a process").spec().clone(),
        server.address,
    );
    drop(server);
    for _ in 0..STARTS * usize::try_from(rounds)? {
        let socket = node.plain_sockets(address, 1)?.remove(0);
        let begun = Instant::now();
        let daemon = on_the_servers_cpu(|| Ok(node.world.launch(spec.clone())?))?;
        wait_for_an_answer(&socket, &question)?;
        took.push(begun.elapsed());
        drop(daemon);
    }
    took.sort_unstable();
    let starts = took.len();
    let late = took.iter().filter(|one| **one > MOST_BEFORE_AN_ANSWER).count();
    println!(
        "\nfirst answer after start, with the process: {:?} (least {:?}, 99 of 100 within {:?}, most {:?} of {starts}; {late} later than {MOST_BEFORE_AN_ANSWER:?})",
        took[starts / 2],
        took[0],
        took[starts * 99 / 100],
        took[starts - 1]
    );
    Ok(Vec::new())
}

/// Asks until there is one: what is asked before somebody listens is lost, or refused, which the socket says later.
fn wait_for_an_answer(socket: &UdpSocket, question: &[u8]) -> anyhow::Result<()> {
    let (begun, mut octets) = (Instant::now(), [0; 512]);
    while begun.elapsed() < Duration::from_secs(10) {
        let _refused = socket.send(question);
        std::thread::sleep(Duration::from_micros(200));
        if socket.recv(&mut octets).is_ok() {
            return Ok(());
        }
    }
    bail!("no answer within 10 s")
}

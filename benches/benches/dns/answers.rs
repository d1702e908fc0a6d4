//! What an answer costs: from the cache, from upstream, with many addresses, to many pods.

use std::net::UdpSocket;
use std::slice;

use anyhow::{Context as _, ensure};

use crate::Situations;
use crate::configurations::Configuration;
use crate::enforcer::{self, Enforcer};
use crate::generator::{Pace, Run, ask};
use crate::node::{ASKING, Node};
use crate::questions::{self, A, of_numbers, question, with_room};
use crate::report::{Round, Situation, count};
use crate::servers::{self, Server};

/// Names that are in the cache.
const CACHED: u32 = 4_000;
/// … where all pods ask for all of them.
const NAMES_OF_EACH: u32 = 1_000;
const CACHED_ZONE: &str = "hit.example.test";
/// Questions under way at any time: as many as fit into a socket's buffer where nobody made it larger.
const OUTSTANDING: Pace = Pace::Window(128);
/// Questions of a round: a fifth of a second or more.
const CACHED_ROUND: u32 = 60_000;
const FORWARDED_ROUND: u32 = 10_000;
const LARGE_ROUND: usize = 20_000;
const PACED: [(u32, Pace); 2] = [
    (20_000, Pace::PerSecond(10_000.0)),
    (10_000, Pace::PerSecond(5_000.0)),
];

/// From the cache, as fast as they come.
pub(crate) fn cached(rounds: u32) -> anyhow::Result<Situations> {
    let side = SideBySide::new()?;
    side.fill()?;
    let situation = Situation::new(
        "cached",
        "Cached answer, 16 of 110 pods, 4,000 names, 128 outstanding",
    );
    Ok(vec![side.in_turn(situation, rounds, OUTSTANDING, || {
        cached_questions(CACHED, CACHED_ROUND)
    })?])
}

/// From upstream; each answer is a record, for the pod that asked.
pub(crate) fn forwarded(rounds: u32) -> anyhow::Result<Situations> {
    let side = SideBySide::new()?;
    let situation = Situation::new(
        "forwarded",
        "Forwarded answer, 16 of 110 pods, every name new, 128 outstanding",
    );
    let before = side.enforcer.records()?;
    let mut fresh = Fresh(0);
    let seen = side.in_turn(situation, rounds, OUTSTANDING, || fresh.take(FORWARDED_ROUND))?;
    side.ensure_records(before + f64::from(rounds) * f64::from(FORWARDED_ROUND))?;
    Ok(vec![seen])
}

/// Both, at rates at which nodes are asked.
pub(crate) fn paced(rounds: u32) -> anyhow::Result<Situations> {
    let side = SideBySide::new()?;
    side.fill()?;
    let [(size, pace), (fresh_size, fresh_pace)] = PACED;
    let cached = Situation::new(
        "cached, 10,000/s",
        "Cached answer, 16 of 110 pods, 4,000 names, 10,000 a second",
    );
    let cached = side.in_turn(cached, rounds, pace, || cached_questions(CACHED, size))?;
    let forwarded = Situation::new(
        "forwarded, 5,000/s",
        "Forwarded answer, 16 of 110 pods, every name new, 5,000 a second",
    );
    let mut fresh = Fresh(0);
    let forwarded = side.in_turn(forwarded, rounds, fresh_pace, || fresh.take(fresh_size))?;
    Ok(vec![cached, forwarded])
}

/// One address, and a hundred: 1,644 octets, which one datagram in two fragments takes.
pub(crate) fn large(rounds: u32) -> anyhow::Result<Situations> {
    let side = SideBySide::new()?;
    side.fill()?;
    let one = with_room(of_numbers(CACHED_ZONE, 0..1).remove(0), 4_096);
    let hundred = with_room(question("big.example.test", A), 4_096);
    let kinds = [
        ("1 address", "Cached answer with 1 address, EDNS 4096", one),
        (
            "100 addresses",
            "Cached answer with 100 addresses, EDNS 4096",
            hundred,
        ),
    ];
    let kinds = kinds.into_iter().map(|(name, title, question)| {
        side.each(|server, sockets| {
            round(server, sockets, Pace::Window(1), slice::from_ref(&question)).map(drop)
        })?;
        let asked = vec![question; LARGE_ROUND];
        side.in_turn(Situation::new(name, title), rounds, OUTSTANDING, || asked.clone())
    });
    kinds.collect()
}

/// Whether it matters how many pods ask: all of them ask as many questions together as one.
pub(crate) fn by_pods(rounds: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let _enforcer = enforcer::start(&node.world)?;
    let dnsd = servers::dnsd(&node.world, Configuration::Large)?;
    dnsd.wait_for_interest()?;
    let mut situation = Situation::new("pods", "Cached answer by pods, 1,000 names, 128 outstanding");
    let ways = [
        ("dnsd, 1 pod", 1),
        ("dnsd, 16 pods", ASKING),
        ("dnsd, 109 pods", 109),
    ];
    fill(&dnsd, &node.sockets(dnsd.address, 109)?, NAMES_OF_EACH)?;
    let asked = cached_questions(NAMES_OF_EACH, CACHED_ROUND);
    for _ in 0..rounds {
        for (name, pods) in ways {
            let sockets = node.sockets(dnsd.address, pods)?;
            situation.note(name, round(&dnsd, &sockets, OUTSTANDING, &asked)?);
        }
    }
    situation.print();
    Ok(vec![situation])
}

/// All servers on one node.
struct SideBySide {
    enforcer: Enforcer,
    servers: Vec<Server>,
    node: Node,
}

impl SideBySide {
    fn new() -> anyhow::Result<Self> {
        let node = Node::new()?;
        let enforcer = enforcer::start(&node.world)?;
        let servers = servers::all(&node, Configuration::Large)?;
        let ours = servers.iter().find(|server| server.name == "dnsd");
        ours.context("dnsd is one of them")?.wait_for_interest()?;
        Ok(Self {
            enforcer,
            servers,
            node,
        })
    }

    /// Fills the caches, and the records of the pods that will ask.
    fn fill(&self) -> anyhow::Result<()> {
        self.each(|server, sockets| fill(server, sockets, CACHED))
    }

    fn each(&self, tell: impl Fn(&Server, &[UdpSocket]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut servers = self.servers.iter();
        servers.try_for_each(|server| tell(server, &self.node.sockets(server.address, ASKING)?))
    }

    fn in_turn(
        &self,
        mut situation: Situation,
        rounds: u32,
        pace: Pace,
        mut questions: impl FnMut() -> Vec<Vec<u8>>,
    ) -> anyhow::Result<Situation> {
        let sockets = self.servers.iter();
        let sockets = sockets.map(|server| self.node.sockets(server.address, ASKING));
        let sockets: Vec<_> = sockets.collect::<Result<_, _>>()?;
        for _ in 0..rounds {
            for (server, sockets) in self.servers.iter().zip(&sockets) {
                situation.note(server.name, round(server, sockets, pace, &questions())?);
            }
        }
        situation.print();
        Ok(situation)
    }

    /// As many records as answers with one new address were given; the last may be on their way.
    fn ensure_records(&self, expected: f64) -> anyhow::Result<()> {
        let mut written = 0.0;
        for _ in 0..100 {
            written = self.enforcer.records()?;
            if written >= expected {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        ensure!(
            written == expected,
            "{written} records of {expected} answers with an address each"
        );
        println!("\nrecords of the enforcer: {written}, as many as answers with an address");
        Ok(())
    }
}

/// Names that nobody has asked yet; the first so many numbers were taken.
pub(crate) struct Fresh(pub(crate) u32);

impl Fresh {
    pub(crate) fn take(&mut self, size: u32) -> Vec<Vec<u8>> {
        self.0 += size;
        of_numbers("miss.example.test", self.0 - size..self.0)
    }
}

/// Asks, and meters the server. Whatever is no answer ends the bench: it would be cheaper than one; and so does an
/// answer of dnsd that it did not note.
pub(crate) fn round(
    server: &Server,
    sockets: &[UdpSocket],
    pace: Pace,
    questions: &[Vec<u8>],
) -> anyhow::Result<Round> {
    let observed = server.observed()?;
    let round = unchecked(server, sockets, pace, questions)?;
    let Run { others, answered, .. } = &round.run;
    ensure!(
        *others == 0 || server.is_echo(),
        "{}: {others} responses are no answers",
        server.name
    );
    if let Some((before, after)) = observed.zip(server.observed()?) {
        ensure!(
            after - before >= count(*answered),
            "dnsd noted {} of {answered} answers",
            after - before
        );
    }
    Ok(round)
}

/// The same where some responses say that there is nothing.
pub(crate) fn unchecked(
    server: &Server,
    sockets: &[UdpSocket],
    pace: Pace,
    questions: &[Vec<u8>],
) -> anyhow::Result<Round> {
    let (before, queries) = (server.meter.cpu()?, server.upstream_queries());
    let run = ask(sockets, pace, questions)?;
    Ok(Round {
        run,
        cpu: server.meter.cpu()? - before,
        upstream: server.upstream_queries() - queries,
    })
}

/// So many questions for names that are in the cache once all were asked; pods that ask in turn ask for all of them.
pub(crate) fn cached_questions(names: u32, count: u32) -> Vec<Vec<u8>> {
    let shifted = |number| (number + number / names) % names;
    questions::of_numbers(CACHED_ZONE, (0..count).map(shifted))
}

/// Fills the cache, and the records of each of these pods.
pub(crate) fn fill(server: &Server, sockets: &[UdpSocket], names: u32) -> anyhow::Result<()> {
    for socket in sockets.chunks(1) {
        round(server, socket, Pace::Window(64), &cached_questions(names, names))?;
    }
    Ok(())
}

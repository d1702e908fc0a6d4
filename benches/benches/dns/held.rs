//! How much later an answer comes when the kernel has to know it first, with both daemons on one CPU.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::ruleset::Ruleset;
use egret_kernel::iptables::Flavour;

use crate::Situations;
use crate::answers::{cached_questions, fill, round};
use crate::configurations::Configuration;
use crate::enforcer::{self, Enforcer};
use crate::generator::Pace;
use crate::meter;
use crate::node::Node;
use crate::questions::of_numbers;
use crate::report::{Round, Situation, median, micros};
use crate::servers::{self, Server};

/// The load: how many sockets of the pod ask for new names, and how many of other pods for cached ones.
struct Load {
    pace: Pace,
    own: usize,
    others: usize,
    /// Questions of the pod in a round.
    size: u32,
    title: &'static str,
}

const LOADS: [Load; 4] = [
    Load {
        pace: Pace::Window(1),
        own: 1,
        others: 0,
        size: 250,
        title: "Held answer, one by one",
    },
    Load {
        pace: Pace::Window(16),
        own: 16,
        others: 0,
        size: 1_000,
        title: "Held answers, 16 outstanding",
    },
    Load {
        pace: Pace::PerSecond(1_000.0),
        own: 1,
        others: 0,
        size: 2_000,
        title: "Held answers, 1,000 a second",
    },
    Load {
        pace: Pace::PerSecond(10_000.0),
        own: 1,
        others: 9,
        size: 2_000,
        title: "10,000 answers a second, of which 1,000 are held",
    },
];

/// The same questions by the pod whose answers wait for the kernel, and by the one whose answers do not. Backends take turns, and the first
/// turn of each load does not count.
pub(crate) fn measure(rounds: u32) -> anyhow::Result<Situations> {
    let rulesets = [Ruleset::Nftables, Ruleset::Netfilter(Flavour::Nft)];
    let mut all = rulesets
        .into_iter()
        .map(Holding::begin)
        .collect::<anyhow::Result<Vec<_>>>()?;
    println!(
        "\na message to another process on the same CPU and its reply take {:.1} µs (p50)",
        micros(floor()?)
    );
    for load in &LOADS {
        for holding in &mut all {
            holding.turn(load)?;
        }
        let mut seen = rulesets.map(|ruleset| Seen::new(load, ruleset));
        for _ in 0..rounds {
            for (holding, seen) in all.iter_mut().zip(&mut seen) {
                seen.note(load, holding.turn(load)?);
            }
        }
        for seen in &seen {
            seen.print();
        }
    }
    for holding in &all {
        ensure!(
            holding.dnsd.counted("egret_dnsd_stalls_total")? == 0.0,
            "answers were given before they were realized"
        );
    }
    Ok(Vec::new())
}

/// What a message to another process on the servers' CPU and its reply take: as two daemons do, each waits for the other.
fn floor() -> anyhow::Result<Duration> {
    const TIMES: usize = 2_000;
    /// About what an answer has on the link.
    const MESSAGE: [u8; 64] = [0; 64];
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut echo = meter::on_the_servers_cpu(|| {
        let input = OwnedFd::from(theirs.try_clone()?);
        Command::new("cat")
            .stdin(input)
            .stdout(OwnedFd::from(theirs))
            .spawn()
            .context("cat")
    })?;
    let mut times = meter::on_the_servers_cpu(|| {
        let mut reply = MESSAGE;
        let mut once = || -> anyhow::Result<Duration> {
            let begin = Instant::now();
            ours.write_all(&MESSAGE)?;
            ours.read_exact(&mut reply)?;
            Ok(begin.elapsed())
        };
        (0..TIMES).map(|_| once()).collect::<anyhow::Result<Vec<_>>>()
    })?;
    drop(ours);
    echo.wait()?;
    times.sort_unstable();
    Ok(times[TIMES / 2])
}

/// Names in the cache.
const CACHED: u32 = 1_000;
const HELD: &str = "held";
const FREE: &str = "not held";

/// What the turns of a backend took.
struct Seen {
    situation: Situation,
    /// How much later answers that are held come, in µs: p50 and p99.
    later: Vec<[f64; 2]>,
    /// Those percentiles of answers that are held.
    whole: Vec<[f64; 2]>,
    /// Of the enforcer for each answer, held and not held, in µs.
    cpu: Vec<[f64; 2]>,
}

impl Seen {
    fn new(load: &Load, ruleset: Ruleset) -> Self {
        Self {
            situation: Situation::new("held", format!("{}, {}", load.title, ruleset.name())),
            later: Vec::new(),
            whole: Vec::new(),
            cpu: Vec::new(),
        }
    }

    fn note(&mut self, load: &Load, Turn { free, held }: Turn) {
        let percentiles = |of: &MeasuredRound| {
            [50, 99].map(|percent| micros(of.round.run.percentile_of(load.own, percent)))
        };
        let (of_free, of_held) = (percentiles(&free), percentiles(&held));
        self.later
            .push([of_held[0] - of_free[0], of_held[1] - of_free[1]]);
        self.whole.push(of_held);
        self.cpu.push([held.enforcer, free.enforcer]);
        self.situation.note(FREE, free.round);
        self.situation.note(HELD, held.round);
    }

    fn print(&self) {
        self.situation.print();
        let of = |rounds: &[[f64; 2]], at: usize| median(rounds.iter().map(|both| both[at]));
        let figure = |at| format!("{:+.0} µs (to {:.0})", of(&self.later, at), of(&self.whole, at));
        println!("\nadded by holding: p50 {}, p99 {}", figure(0), figure(1));
        println!(
            "enforcer: {:.1} µs of CPU an answer held, {:.1} not held",
            of(&self.cpu, 0),
            of(&self.cpu, 1)
        );
    }
}

/// Both daemons with a backend, and pods that ask.
struct Holding {
    enforcer: Enforcer,
    dnsd: Server,
    node: Node,
    /// Number of the first name that is still unused, and so is neither cached nor recorded.
    next: u32,
}

impl Holding {
    /// Fills the cache and the other pods' records.
    fn begin(ruleset: Ruleset) -> anyhow::Result<Self> {
        let node = Node::new()?;
        let enforcer = enforcer::start_with(&node.world, ruleset)?;
        let dnsd = servers::dnsd(&node.world, Configuration::Large)?;
        dnsd.wait_for_interest()?;
        let sockets = node.sockets(dnsd.address, 10)?;
        fill(&dnsd, &sockets, CACHED)?;
        Ok(Self {
            enforcer,
            dnsd,
            node,
            next: 0,
        })
    }

    fn turn(&mut self, load: &Load) -> anyhow::Result<Turn> {
        Ok(Turn {
            free: self.ask(load, FREE)?,
            held: self.ask(load, HELD)?,
        })
    }

    /// A round; ends the bench unless exactly what should be held was.
    fn ask(&mut self, load: &Load, name: &str) -> anyhow::Result<MeasuredRound> {
        let mut sockets = if name == HELD {
            self.node.named_sockets(self.dnsd.address, load.own)?
        } else {
            self.node.plain_sockets(self.dnsd.address, load.own)?
        };
        sockets.extend(self.node.sockets(self.dnsd.address, load.others + 1)?.drain(1..));
        let questions = self.questions(load);
        let (cpu, before) = (self.enforcer.meter.cpu()?, self.answers_held()?);
        let round = round(&self.dnsd, &sockets, load.pace, &questions)?;
        let now_held = self.answers_held()? - before;
        let expected = if name == HELD { f64::from(load.size) } else { 0.0 };
        ensure!(
            now_held == expected,
            "{name}: {now_held} answers of {expected} were held"
        );
        Ok(MeasuredRound {
            round,
            enforcer: micros(self.enforcer.meter.cpu()? - cpu) / f64::from(load.size),
        })
    }

    /// The first of each turn is new, the others are in the cache.
    fn questions(&mut self, load: &Load) -> Vec<Vec<u8>> {
        let first = self.next;
        self.next += load.size;
        let cached = cached_questions(CACHED, CACHED);
        let turn = |(number, fresh): (usize, Vec<u8>)| {
            let others = cached.iter().cycle().skip(number * load.others % cached.len());
            std::iter::once(fresh).chain(others.take(load.others).cloned())
        };
        let fresh = of_numbers("held.example.test", first..self.next).into_iter();
        fresh.enumerate().flat_map(turn).collect()
    }

    fn answers_held(&self) -> anyhow::Result<f64> {
        self.dnsd.counted("egret_dnsd_held_seconds_count")
    }
}

struct Turn {
    free: MeasuredRound,
    held: MeasuredRound,
}

/// A round, and the CPU time of the enforcer for each answer, in µs.
struct MeasuredRound {
    round: Round,
    enforcer: f64,
}

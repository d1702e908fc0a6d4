//! Promise P-5: what an answer costs dnsd, and how much later it comes when the kernel has to know it first.
//!
//! CPU time a query, next to an echo (the floor: what the kernel takes to receive and to send) and to unbound, in the
//! same run: rounds of all servers in turn, medians. Everything is inside the namespaces of a world; needs root.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real packets and processes take"
)]

mod generator;
mod servers;
mod responders;
mod meter;
mod report;

use std::net::UdpSocket;
use std::ops::Range;

use anyhow::ensure;
use egret_integration::{Daemon, Pod, PodSpec, World, WorldError};

use generator::{ask, questions};
use meter::Meter;
use report::{Round, Situation, micros};
use servers::Server;

/// Names that are in the cache.
const CACHED: Range<u32> = 0..4_000;
const CACHED_ZONE: &str = "hit.example.test";
/// Questions under way at any time.
const OUTSTANDING: usize = 64;
/// Questions of a round: a quarter of a second or more.
const CACHED_ROUND: u32 = 50_000;
const FORWARDED_ROUND: u32 = 10_000;
const HELD_ROUND_ONE_BY_ONE: u32 = 250;
const HELD_ROUND_MANY: u32 = 1_000;
const HELD_OUTSTANDING: usize = 16;
/// Beyond what all rounds bring.
const ROOM: &str = "200000";

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        println!("NOT MEASURED: built without optimisation; run `make bench`");
        return Ok(());
    }
    match World::new() {
        Err(WorldError::NotRoot) => println!("NOT MEASURED: {}", WorldError::NotRoot),
        Err(error) => return Err(error.into()),
        Ok(world) => {
            let rounds = rounds()?;
            println!(
                "{rounds} rounds; /proc/loadavg: {}",
                std::fs::read_to_string("/proc/loadavg")?
            );
            meter::pin_this_thread(meter::GENERATOR)?;
            on_loopback(&world, rounds)?;
            drop(world);
            from_pods(rounds)?;
        }
    }
    Ok(())
}

fn rounds() -> anyhow::Result<u32> {
    let given = std::env::var("EGRET_BENCH_ROUNDS").ok();
    let rounds = given.map_or(Ok(7), |text| text.parse())?;
    ensure!(rounds > 0, "EGRET_BENCH_ROUNDS: want a number above 0");
    Ok(rounds)
}

/// dnsd alone, asked by its own node: no pod, no records, no netfilter rules.
fn on_loopback(world: &World, rounds: u32) -> anyhow::Result<()> {
    let mut servers = vec![servers::echo(world)?, servers::dnsd(world, &[])?];
    servers.extend(servers::unbound(world)?);
    let sockets = servers
        .iter()
        .map(|server| servers::node_sockets(world, server.address));
    let sockets: Vec<_> = sockets.collect::<Result<_, _>>()?;
    let (mut cached, mut forwarded) = (Situation::default(), Situation::default());
    let mut fresh = Fresh::default();
    for (server, sockets) in servers.iter().zip(&sockets) {
        measure(server, sockets, OUTSTANDING, &cached_questions(CACHED.end))?;
    }
    for _ in 0..rounds {
        for (server, sockets) in servers.iter().zip(&sockets) {
            let round = measure(server, sockets, OUTSTANDING, &cached_questions(CACHED_ROUND))?;
            cached.note(server.name, round);
        }
        for (server, sockets) in servers.iter().zip(&sockets) {
            let asked = fresh.questions("miss.example.test", FORWARDED_ROUND);
            forwarded.note(server.name, measure(server, sockets, OUTSTANDING, &asked)?);
        }
    }
    cached.print("Cached answer, loopback, 4,000 names, 64 outstanding");
    forwarded.print("Forwarded answer, loopback, every name new, 64 outstanding");
    Ok(())
}

/// Pods ask over their cables, with the enforcer's rules in force; one of them has a policy with names.
fn from_pods(rounds: u32) -> anyhow::Result<()> {
    let world = World::new()?
        .with(PodSpec::new("plain"))?
        .with(PodSpec::new("named"))?;
    world.manifests().write("policy.yaml", POLICY)?;
    let (_enforcer, enforcer) =
        servers::enforcer(&world, &["--names-per-pod", ROOM, "--records-total", ROOM])?;
    let echo = servers::echo(&world)?;
    let dnsd = servers::dnsd(&world, &["--records-per-client", ROOM, "--records-total", ROOM])?;
    let node = Node {
        echo,
        dnsd,
        enforcer,
        plain: world.pod("plain"),
        named: world.pod("named"),
    };
    node.learn_interest()?;
    node.cached(rounds)?;
    let mut fresh = Fresh::default();
    node.held(rounds, 1, HELD_ROUND_ONE_BY_ONE, &mut fresh)?;
    node.held(rounds, HELD_OUTSTANDING, HELD_ROUND_MANY, &mut fresh)
}

struct Node<'a> {
    echo: Server,
    dnsd: Server,
    enforcer: Meter,
    plain: &'a Pod,
    named: &'a Pod,
}

impl Node<'_> {
    /// Waits until an answer to the pod with the policy is held; also fills the cache, and the records of both pods.
    fn learn_interest(&self) -> anyhow::Result<()> {
        for pod in [self.plain, self.named] {
            let sockets = servers::pod_sockets(pod, self.dnsd.address)?;
            measure(&self.dnsd, &sockets, OUTSTANDING, &cached_questions(CACHED.end))?;
        }
        ensure!(
            self.answers_held()? > 0.0,
            "dnsd holds nothing: it has not heard of the policy"
        );
        Ok(())
    }

    fn cached(&self, rounds: u32) -> anyhow::Result<()> {
        let mut situation = Situation::default();
        let ways = [
            ("echo (floor)", self.plain, &self.echo),
            ("dnsd, pod without names in its policy", self.plain, &self.dnsd),
            ("dnsd, pod with, all realized", self.named, &self.dnsd),
        ];
        for _ in 0..rounds {
            for (name, pod, server) in ways {
                let sockets = servers::pod_sockets(pod, server.address)?;
                let round = measure(server, &sockets, OUTSTANDING, &cached_questions(CACHED_ROUND))?;
                situation.note(name, round);
            }
        }
        situation.print("Cached answer, pod to node, 4,000 names, 64 outstanding");
        Ok(())
    }

    /// The same questions by the pod whose answers wait for the kernel and by the one whose answers do not.
    fn held(&self, rounds: u32, outstanding: usize, size: u32, fresh: &mut Fresh) -> anyhow::Result<()> {
        let [held, free] = ["held", "not held"];
        let (mut dnsd, mut enforcer) = (Situation::default(), Situation::default());
        for _ in 0..rounds {
            for (name, pod) in [(free, self.plain), (held, self.named)] {
                let before = (self.enforcer.cpu()?, self.answers_held()?);
                let sockets = servers::pod_sockets(pod, self.dnsd.address)?;
                let asked = fresh.questions("held.example.test", size);
                let round = measure(&self.dnsd, &sockets, outstanding, &asked)?;
                let now_held = self.answers_held()? - before.1;
                let expected = if name == held { f64::from(size) } else { 0.0 };
                ensure!(
                    now_held == expected,
                    "{name}: {now_held} answers of {expected} were held"
                );
                let cpu = (self.enforcer.cpu()? - before.0).div_f64(f64::from(size));
                enforcer.note(
                    name,
                    Round {
                        cpu,
                        ..Round::default()
                    },
                );
                dnsd.note(name, round);
            }
        }
        ensure!(
            self.counted("egret_dnsd_stalls_total")? == 0.0,
            "answers were given before they were realized"
        );
        dnsd.print(&format!(
            "Held answer, pod to node, every address new, {outstanding} outstanding"
        ));
        let later = |percent| dnsd.difference(held, free, |round| micros(round.run.percentile(percent)));
        println!(
            "\nheld − not held: p50 {:+.0} µs, p99 {:+.0} µs",
            later(50),
            later(99)
        );
        let cost = |name| enforcer.median(name, |round| micros(round.cpu));
        println!(
            "enforcer: {:.1} µs of CPU an answer held, {:.1} not held",
            cost(held),
            cost(free)
        );
        Ok(())
    }

    fn answers_held(&self) -> anyhow::Result<f64> {
        self.counted("egret_dnsd_held_seconds_count")
    }

    fn counted(&self, metric: &str) -> anyhow::Result<f64> {
        let daemon = self.dnsd.daemon.as_ref().expect("dnsd is a process");
        Ok(Daemon::metrics(daemon)?.sum(metric, &[]))
    }
}

/// Asks, and meters the server. Whatever is no answer ends the bench: it would be cheaper than one.
fn measure(
    server: &Server,
    sockets: &[UdpSocket],
    outstanding: usize,
    questions: &[Vec<u8>],
) -> anyhow::Result<Round> {
    let before = server.meter.cpu()?;
    let run = ask(sockets, outstanding, questions)?;
    let cpu = server.meter.cpu()? - before;
    let is_answered = run.others == 0 || server.daemon.is_none();
    ensure!(
        is_answered,
        "{}: {} responses are no answers",
        server.name,
        run.others
    );
    Ok(Round { run, cpu })
}

fn cached_questions(count: u32) -> Vec<Vec<u8>> {
    questions(CACHED_ZONE, (0..count).map(|number| number % CACHED.end))
}

/// Names that nobody has asked yet, with addresses that the cached ones do not have.
struct Fresh(u32);

impl Default for Fresh {
    fn default() -> Self {
        Self(CACHED.end)
    }
}

impl Fresh {
    fn questions(&mut self, zone: &str, count: u32) -> Vec<Vec<u8>> {
        let first = self.0;
        self.0 += count;
        questions(zone, first..self.0)
    }
}

const POLICY: &str = "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {app: named}}
  egress:
  - action: Accept
    to:
    - domainNames: [\"*.hit.example.test\", \"*.held.example.test\"]
  - action: Deny
    to:
    - networks: [198.18.0.0/15]
";

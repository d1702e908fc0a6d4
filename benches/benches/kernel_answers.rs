//! Promise S-12: what an answer of the kernel costs, next to an echo, which is the floor of any server, and to a cached answer of dnsd.
//!
//! Asker and servers are on one CPU, so what the kernel does with a packet is the time of one of them. Each round asks all three in
//! turn, from pods of one node, over their veth pairs, with the enforcer's rules in force. Needs root; prints Markdown.
//! `EGRET_BENCH_ROUNDS` says how often.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real packets take"
)]

use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use egret_integration::{Daemon, Lookup, PodSpec, RecordType, Records, World, node};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::{Pid, gettid};

const NAME: &str = "api.example.test";
const ECHO_PORT: u16 = 5300;
/// Queries under way at once.
const WINDOW: usize = 32;
const QUERIES: usize = 64_000;
/// Whether it lets this pod ask is in a set: dnsd answers.
const POLICY: &str = "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: dns}
spec:
  tier: Admin
  priority: 10
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {app: asks-dnsd}}
  egress:
  - action: Accept
    to:
    - networks: [169.254.20.10/32]
";

/// CPU time for one query: of the asker and of the server.
#[derive(Clone, Copy, Debug)]
struct Cost {
    asker: f64,
    server: f64,
}

impl Cost {
    fn all(self) -> f64 {
        self.asker + self.server
    }
}

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        println!("NOT MEASURED: built without optimisation; run `make bench`");
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        println!("NOT MEASURED: worlds need root");
        return Ok(());
    }
    let rounds = std::env::var("EGRET_BENCH_ROUNDS").map_or(Ok(7), |text| text.parse::<usize>())?;
    pin(gettid())?;
    let world = World::new()?
        .with(PodSpec::new("asks-kernel"))?
        .with(PodSpec::new("asks-dnsd"))?;
    world.manifests().write("policy.yaml", POLICY)?;
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    // The echo has no conntrack either.
    for (chain, end) in [("PREROUTING", "-d"), ("OUTPUT", "-s")] {
        let address = node::DNS.to_string();
        let rule = [
            "iptables", "-t", "raw", "-A", chain, end, &address, "-p", "udp", "-j", "NOTRACK",
        ];
        world.node().run_well(&rule)?;
    }
    let pins = world.bpf_pins().display().to_string();
    let permits = world.dns_permits().display().to_string();
    let enforcer = world.start(world.enforcer("netfilter").with(["--bpf-pins", &pins]))?;
    let dnsd = world.dnsd().with(["--rules", "--fallback", "none"]);
    let dnsd = world.start(dnsd.with(["--kernel-answers", &permits]))?;
    for task in fs::read_dir(format!("/proc/{}/task", dnsd.pid()))? {
        let id = task?.file_name().to_string_lossy().parse()?;
        pin(Pid::from_raw(id))?;
    }
    let echo = echo(&world)?;
    let query = Lookup::of(NAME, RecordType::A).to_vec();
    let server = SocketAddr::new(node::DNS.into(), 53);
    let own = format!("/proc/self/task/{}", gettid());
    let of_dnsd = format!("/proc/{}/task", dnsd.pid());
    let by_kernel = connected(&world, "asks-kernel", server)?;
    let by_dnsd = connected(&world, "asks-dnsd", server)?;
    let by_echo = connected(
        &world,
        "asks-kernel",
        SocketAddr::new(node::DNS.into(), ECHO_PORT),
    )?;
    let mut costs = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let before = answered(&dnsd)?;
        costs[0].push(ask(&by_echo, &query, [&own, &echo])?);
        costs[1].push(ask(&by_dnsd, &query, [&own, &of_dnsd])?);
        ensure!(
            answered(&dnsd)? <= before,
            "the kernel answered what dnsd was to answer"
        );
        costs[2].push(ask(&by_kernel, &query, [&own, &of_dnsd])?);
        let share = (answered(&dnsd)? - before) / QUERIES as f64;
        // In the first round it is learned, and the program attached.
        ensure!(
            round == 0 || share > 0.99,
            "the kernel answered only {share} of its queries"
        );
    }
    // Every list has one of these to warm up.
    let [echo, dnsd_alone, kernel] = costs.map(|costs| median(costs[1..].to_vec()));
    println!("| who answers | CPU time a query, µs: all | of it the server's | of echo: all |");
    println!("|---|---|---|---|");
    for (name, cost) in [
        ("echo", echo),
        ("dnsd, from the cache", dnsd_alone),
        ("the kernel", kernel),
    ] {
        let ratio = cost.all() / echo.all();
        println!("| {name} | {:.2} | {:.2} | {ratio:.2} |", cost.all(), cost.server);
    }
    drop((dnsd, enforcer));
    Ok(())
}

fn answered(dnsd: &Daemon) -> anyhow::Result<f64> {
    Ok(dnsd.metrics()?.sum("egret_dnsd_kernel_answers_total", &[]))
}

fn connected(world: &World, pod: &str, to: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = world.pod(pod).udp_socket(to)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

/// Sends everything back. The thread ends with the process; returns its folder in `/proc`.
fn echo(world: &World) -> anyhow::Result<String> {
    let namespace = File::open(format!("/run/netns/{}", world.node().namespace()))?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let begun = || -> anyhow::Result<UdpSocket> {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            pin(gettid())?;
            Ok(UdpSocket::bind((node::DNS, ECHO_PORT))?)
        };
        match begun() {
            Ok(socket) => {
                drop(tell.send(Ok(format!("/proc/self/task/{}", gettid()))));
                let mut octets = [0; 1500];
                while let Ok((length, asker)) = socket.recv_from(&mut octets) {
                    if let Err(error) = socket.send_to(&octets[..length], asker) {
                        eprintln!("the echo cannot send: {error}");
                    }
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    });
    told.recv()?
}

fn ask(socket: &UdpSocket, query: &[u8], tasks: [&str; 2]) -> anyhow::Result<Cost> {
    let mut reply = [0; 1500];
    let [asker, server] = tasks.map(cpu);
    for _ in 0..QUERIES / WINDOW {
        for _ in 0..WINDOW {
            socket.send(query)?;
        }
        for _ in 0..WINDOW {
            socket.recv(&mut reply).context("a query is lost")?;
        }
    }
    let per_query = |task: &str, before: anyhow::Result<Duration>| -> anyhow::Result<f64> {
        Ok((cpu(task)? - before?).as_secs_f64() * 1e6 / QUERIES as f64)
    };
    Ok(Cost {
        asker: per_query(tasks[0], asker)?,
        server: per_query(tasks[1], server)?,
    })
}

/// The first number of `schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst): of a task, or of all of a process.
fn cpu(task: &str) -> anyhow::Result<Duration> {
    if let Ok(text) = fs::read_to_string(format!("{task}/schedstat")) {
        let first = text.split(' ').next().context("schedstat has numbers")?;
        return Ok(Duration::from_nanos(first.parse()?));
    }
    let tasks = fs::read_dir(task)?;
    tasks.map(|task| cpu(&task?.path().display().to_string())).sum()
}

fn pin(task: Pid) -> anyhow::Result<()> {
    let mut first = CpuSet::new();
    first.set(0)?;
    Ok(sched_setaffinity(task, &first)?)
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|one, other| one.all().total_cmp(&other.all()));
    costs[costs.len() / 2]
}

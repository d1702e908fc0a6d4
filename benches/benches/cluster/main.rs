//! A cluster at its API server: 10,000 policies, 5,000 pods, 500 namespaces, and what the enforcers of many nodes cost it.
//!
//! A real kube-apiserver and etcd run in the node of a world. One enforcer writes the rules of 110 pods; `AGENTS` others are those
//! of other nodes: real processes with the real client, which compute and write no rules. Prints Markdown. Needs root and Go
//! (or a kube-apiserver that is built already).
//!
//! `EGRET_BENCH_AGENTS=20 cargo bench -p egret-benches --bench cluster` takes another number of agents; with 0 it ends before them.
//! `EGRET_BENCH_BACKEND=nftables` has the rules written by another backend than `netfilter`.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real processes take"
)]

mod addresses;
mod api;
mod change;
mod objects;
mod process;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::Api;
use egret_integration::{Daemon, DaemonSpec, Kubernetes, World, WorldError};
use process::Usage;

/// The enforcers of other nodes.
const AGENTS: usize = 100;
/// How long the cluster is watched while nothing changes, and while pods do.
const SPAN: Duration = Duration::from_secs(30);
/// Pods that change in a second: those of 100 nodes, each of which starts one every 5 s.
const CHURN: u32 = 20;
const CHANGES: usize = 100;
const REPORTS: usize = 20;
/// For all agents at once, on two cores.
const PATIENCE: Duration = Duration::from_secs(300);
/// The admin port of the first agent.
const FIRST_PORT: u16 = 20_000;

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) && std::env::var_os("EGRET_BENCH_ANYWAY").is_none() {
        println!("NOT MEASURED: built without optimisation; run `make bench`");
        return Ok(());
    }
    let world = match World::new() {
        Err(WorldError::NotRoot) => {
            println!("NOT MEASURED: {}", WorldError::NotRoot);
            return Ok(());
        }
        world => world?.with_pod(change::CLIENT)?,
    };
    let Some(kubernetes) = Kubernetes::start_audited(&world).map_err(whole)? else {
        println!("NOT MEASURED: no kube-apiserver");
        return Ok(());
    };
    let (agents, api) = (agents()?, Api::new(&world, &kubernetes)?);
    objects::define(&world, &kubernetes)?;
    kubernetes.apply_world(&world).map_err(whole)?;
    objects::make_links(&world)?;
    let begun = Instant::now();
    let stored = api.store(objects::all())?;
    println!(
        "{stored} objects stored in {:.0} s\n",
        begun.elapsed().as_secs_f64()
    );
    measure(&world, &kubernetes, &api, agents)
}

fn measure(world: &World, kubernetes: &Kubernetes, api: &Api, agents: usize) -> anyhow::Result<()> {
    println!("| what | measured |\n|---|---|");
    let mut enforcer = world.launch(kubernetes.enforcer(world, &backend()?))?;
    let first = ready(&mut enforcer)?;
    let usage = Usage::of(enforcer.pid())?;
    row(
        "first sync: start to ready",
        &format!(
            "{:.2} s, {:.2} s of CPU",
            first.as_secs_f64(),
            usage.cpu.as_secs_f64()
        ),
    );
    row(
        "RSS of the enforcer; most",
        &format!("{:.0} MiB; {:.0} MiB", usage.rss_mib, usage.peak_mib),
    );

    let rest = at_rest(kubernetes, 1)?;
    row("requests at rest, one enforcer", &rest);
    for (pod, is_busy) in [("idle pod", false), ("pod with 10,000 connections", true)] {
        change::prepare(world, is_busy)?;
        let before = Usage::of(enforcer.pid())?;
        let (allowed, refused) = change::measure(world, api, CHANGES)?;
        let cpu = Usage::of(enforcer.pid())?.cpu - before.cpu;
        row(&format!("watch event to allowed, p50 and p99, {pod}"), &allowed);
        row("… to refused", &refused);
        let of_each = cpu.as_secs_f64() * 1e3 / f64::from(u16::try_from(CHANGES)?);
        row(
            "… CPU of the enforcer for each change",
            &format!("{of_each:.0} ms"),
        );
    }
    row(
        "an address of the node until it is reported",
        &addresses::measure(world, api, REPORTS)?,
    );
    let usage = Usage::of(enforcer.pid())?;
    row(
        "RSS of the enforcer after these changes",
        &format!("{:.0} MiB", usage.rss_mib),
    );

    if agents == 0 {
        return Ok(());
    }
    let server = Usage::of(kubernetes.server_pid())?;
    let begun = Instant::now();
    let mut others = start_agents(world, kubernetes, agents)?;
    for agent in &mut others {
        ready(agent)?;
    }
    let after = Usage::of(kubernetes.server_pid())?;
    row(
        &format!("{agents} agents at once: all ready"),
        &format!("{:.1} s", begun.elapsed().as_secs_f64()),
    );
    row(
        "… the API server: CPU; RSS before and after",
        &format!(
            "{:.1} s; {:.0} and {:.0} MiB",
            (after.cpu - server.cpu).as_secs_f64(),
            server.rss_mib,
            after.rss_mib
        ),
    );
    let rss = others
        .iter()
        .map(|agent| Ok(Usage::of(agent.pid())?.rss_mib))
        .collect::<anyhow::Result<Vec<f64>>>()?;
    row(
        "… RSS of an agent, least and most",
        &format!(
            "{:.0} and {:.0} MiB",
            rss.iter().copied().reduce(f64::min).context("an agent")?,
            rss.iter().copied().reduce(f64::max).context("an agent")?
        ),
    );
    let before = Usage::of(kubernetes.server_pid())?;
    row("requests at rest, all", &at_rest(kubernetes, agents + 1)?);
    let idle = Usage::of(kubernetes.server_pid())?.cpu - before.cpu;
    let (before, of_enforcer) = (Usage::of(kubernetes.server_pid())?, Usage::of(enforcer.pid())?);
    let made = api.churn(SPAN, CHURN)?;
    let churning = Usage::of(kubernetes.server_pid())?.cpu - before.cpu;
    let own = Usage::of(enforcer.pid())?.cpu - of_enforcer.cpu;
    row("CPU of the API server at rest", &share(idle));
    row(&format!("… with {made} changes of pods"), &share(churning));
    row("… CPU of the enforcer", &share(own));
    ensure!(others.iter_mut().all(Daemon::is_running), "an agent has ended");
    Ok(())
}

fn row(what: &str, measured: &str) {
    println!("| {what} | {measured} |");
}

fn share(cpu: Duration) -> String {
    format!(
        "{:.1} % of a core",
        100.0 * cpu.as_secs_f64() / SPAN.as_secs_f64()
    )
}

fn backend() -> anyhow::Result<String> {
    match std::env::var("EGRET_BENCH_BACKEND") {
        Err(std::env::VarError::NotPresent) => Ok("netfilter".to_owned()),
        named => named.context("EGRET_BENCH_BACKEND is the name of a backend"),
    }
}

fn agents() -> anyhow::Result<usize> {
    std::env::var("EGRET_BENCH_AGENTS").map_or(Ok(AGENTS), |number| {
        number.parse().context("EGRET_BENCH_AGENTS is a number of agents")
    })
}

fn start_agents(world: &World, kubernetes: &Kubernetes, agents: usize) -> anyhow::Result<Vec<Daemon>> {
    (0..agents)
        .map(|number| {
            let mut spec = DaemonSpec::enforcer(FIRST_PORT + u16::try_from(number)?);
            spec.name = "agent".to_owned();
            let spec = spec
                .with([
                    "--source",
                    "kube",
                    "--backend",
                    "none",
                    "--cni=",
                    "--state=",
                    "--state-objects=",
                ])
                .with([format!(
                    "--link={}",
                    world.files().join(format!("agent-{number}.sock")).display()
                )])
                .with(["--node".to_owned(), objects::other_node(number % 49 + 1)])
                .with([
                    "--kubeconfig".to_owned(),
                    kubernetes.kubeconfig().display().to_string(),
                ]);
            Ok(world.launch(spec)?)
        })
        .collect()
}

/// Waits for `/readyz`, longer than a world does.
fn ready(daemon: &mut Daemon) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    loop {
        if daemon.get("/readyz").is_ok_and(|(status, _)| status == 200) {
            return Ok(begun.elapsed());
        }
        ensure!(
            daemon.is_running() && begun.elapsed() < PATIENCE,
            "it does not become ready:\n{}",
            daemon.log()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The requests of enforcers within a span, by verb.
fn at_rest(kubernetes: &Kubernetes, enforcers: usize) -> anyhow::Result<String> {
    let before = kubernetes.audit_log().map_err(whole)?.len();
    std::thread::sleep(SPAN);
    let log = kubernetes.audit_log().map_err(whole)?;
    let mut verbs = std::collections::BTreeMap::<String, usize>::new();
    for line in log[before..].lines() {
        let event: serde_json::Value = serde_json::from_str(line)?;
        let is_ours = event["userAgent"]
            .as_str()
            .is_some_and(|agent| agent.contains("egret"));
        if is_ours && event["stage"] == "ResponseComplete" {
            *verbs
                .entry(format!("{} {}", event["verb"], event["objectRef"]["resource"]))
                .or_default() += 1;
        }
    }
    let said: Vec<String> = verbs
        .iter()
        .map(|(verb, times)| format!("{times} × {}", verb.replace('"', "")))
        .collect();
    let said = if said.is_empty() {
        "none".to_owned()
    } else {
        said.join(", ")
    };
    Ok(format!("{said} ({enforcers} enforcers, {} s)", SPAN.as_secs()))
}

fn whole(failure: Box<dyn std::error::Error>) -> anyhow::Error {
    anyhow::anyhow!("{failure}")
}

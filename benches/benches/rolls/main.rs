//! Promise N-4: what pods notice when one dnsd takes over from another.
//!
//! Two pods ask at a steady rate over their cables, over UDP and TCP and in both families, each question once and from a
//! socket of its own, and take the time from when a question was due. Stretches in which a dnsd is replaced once a second stand
//! beside stretches without, in one run. Needs root.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long real packets and processes take"
)]

mod client;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use client::{Client, Outcomes};
use egret_integration::{Daemon, DaemonSpec, PodSpec, Records, World, WorldError};

/// Questions a second, of all pods together; `EGRET_BENCH_RATE` says another number.
const RATE: u32 = 5_000;
/// How often dnsd is replaced, in all.
const ROLLS: usize = 20;
/// Replacements in a stretch; one without has as many seconds.
const IN_A_STRETCH: usize = 5;
/// Names that are asked for.
const NAMES: u32 = 200;
/// The pods.
const PODS: [&str; 2] = ["one", "two"];

const POLICY: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: names
spec:
  tier: Admin
  priority: 10
  subject:
    namespaces: {}
  egress:
  - name: dns
    action: Accept
    to:
    - networks: [169.254.20.10/32, "fd00::20:10/128"]
  - name: names
    action: Accept
    to:
    - domainNames: ["*.example.test"]
"#;

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) && std::env::var_os("EGRET_BENCH_ANYWAY").is_none() {
        println!("NOT MEASURED: built without optimisation; run `make bench`");
        return Ok(());
    }
    let mut world = match World::new() {
        Err(WorldError::NotRoot) => {
            println!("NOT MEASURED: {}", WorldError::NotRoot);
            return Ok(());
        }
        world => world?,
    };
    for pod in PODS {
        world.add(PodSpec::new(pod))?;
    }
    for number in 0..NAMES {
        let records = Records::addresses(["203.0.113.7"]).ttl(3_600);
        world.upstream().set(&format!("n{number}.example.test"), records);
    }
    world.manifests().write("policy.yaml", POLICY)?;
    println!(
        "{} questions/s; /proc/loadavg: {}",
        rate()?,
        std::fs::read_to_string("/proc/loadavg")?
    );
    run(&world)
}

fn rate() -> anyhow::Result<u32> {
    match std::env::var("EGRET_BENCH_RATE") {
        Ok(rate) => rate.parse().with_context(|| format!("EGRET_BENCH_RATE={rate}")),
        Err(_unset) => Ok(RATE),
    }
}

fn run(world: &World) -> anyhow::Result<()> {
    let folder = release_folder()?;
    let _enforcer = world.start(world.enforcer("netfilter").in_folder(&folder))?;
    let handover = world.files().join("handover.sock");
    let spec = world
        .dnsd()
        .in_folder(&folder)
        .with(["--handover".to_owned(), handover.display().to_string()])
        .with(["--rules", "--fallback", "none"]);
    let mut serving = world.start(spec.clone())?;
    drop(stretch(world, || wait(IN_A_STRETCH))?);
    let (mut still, mut rolling, mut rolls) = (Outcomes::default(), Outcomes::default(), 0);
    while rolls < ROLLS {
        still.add(stretch(world, || wait(IN_A_STRETCH))?);
        rolling.add(stretch(world, || {
            for _ in 0..IN_A_STRETCH {
                let second = Instant::now() + Duration::from_secs(1);
                rolls += 1;
                serving = replace(world, &spec, &mut serving, rolls)?;
                std::thread::sleep(second.saturating_duration_since(Instant::now()));
            }
            Ok(())
        })?);
    }
    println!(
        "\n| | questions | lost | p50 µs | p99 µs | p99.9 µs | worst µs |\n|---|---|---|---|---|---|---|"
    );
    still.print("without rolls");
    rolling.print(&format!("{rolls} rolls, one a second"));
    let millis = |outcomes: &mut Outcomes| outcomes.percentile(990).as_secs_f64() * 1e3;
    let moved = millis(&mut rolling) - millis(&mut still);
    println!("\np99 with rolls less p99 without: {moved:+.2} ms");
    ensure!(
        rolling.lost() + still.lost() == 0,
        "questions were lost; see above"
    );
    Ok(())
}

fn wait(seconds: usize) -> anyhow::Result<()> {
    std::thread::sleep(Duration::from_secs(seconds as u64));
    Ok(())
}

/// All pods ask while something is done.
fn stretch(world: &World, act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Outcomes> {
    let stop = AtomicBool::new(false);
    let rate = rate()? / u32::try_from(PODS.len())?;
    std::thread::scope(|scope| {
        let pods = PODS.map(|name| world.pod(name).netns_name().to_owned());
        let clients = pods.map(|pod| {
            let stop = &stop;
            scope.spawn(move || Client::within(&pod, rate, NAMES)?.ask_until(stop))
        });
        let acted = act();
        stop.store(true, Ordering::Relaxed);
        let mut outcomes = Outcomes::default();
        for client in clients {
            outcomes.add(client.join().expect("a client does not panic")?);
        }
        acted.map(|()| outcomes)
    })
}

/// Starts another one, waits until it has taken over, and ends the first.
fn replace(world: &World, spec: &DaemonSpec, serving: &mut Daemon, number: usize) -> anyhow::Result<Daemon> {
    let mut spec = spec.clone();
    spec.name = format!("dnsd-{number}");
    let successor = world.launch(spec)?;
    let end = Instant::now() + Duration::from_secs(30);
    while !successor.log().contains("\"message\":\"ready\"") {
        ensure!(
            Instant::now() < end,
            "the successor is not ready: {}",
            successor.log()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    serving.terminate()?;
    Ok(successor)
}

/// Where the daemons of this build are: a bench runs in `<profile>/deps`.
fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}

//! Promise S-11: `proxy-server` and `proxy-agent` beside upstream's, in one run: throughput and CPU, dials, idle connections, what a stuck or a closed
//! connection costs its neighbours, and what is left of 200,000 connections.
//!
//! `EGRET_BIN_DIR` is the folder of our programs. Words choose parts: `throughput`, `dials`, `idle`, `neighbours`, `churn`; `grpc` and `http-connect` one of
//! the modes. `EGRET_BENCH_ROUNDS` is how often the first two parts are repeated.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long processes take"
)]

mod client;
mod pair;
mod target;

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::process::{self, Whose};
use tokio::task::JoinSet;

use client::{Mode, Tunnel};
use pair::{Pair, Programs};
use target::{Order, Target};

const BOTH: [Programs; 2] = [Programs::Upstream, Programs::Ours];
const GIBIBYTE: u64 = 1 << 30;
const IDLE: usize = 10_000;
const CHURN: usize = 200_000;
/// The server gives free memory back every 10 s, and the thread that does it ends 10 s later.
const GIVEN_BACK: Duration = Duration::from_secs(22);
/// A dial that takes longer is given up and counted.
const HANGS: Duration = Duration::from_secs(5);
/// The longest time for one row of dials: what hangs is no reason to measure nothing else.
const ROW: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if words.first().is_some_and(|word| word == target::WORD) {
        return runtime.block_on(target::serve());
    }
    let has = |asked: &str| words.iter().any(|word| word == asked);
    let parts = ["throughput", "dials", "idle", "neighbours", "churn"];
    let wanted = |part: &str| has(part) || !parts.into_iter().any(has);
    let modes = match (has("grpc"), has("http-connect")) {
        (true, false) => vec![Mode::Grpc],
        (false, true) => vec![Mode::HttpConnect],
        _ => vec![Mode::Grpc, Mode::HttpConnect],
    };
    println!("/proc/loadavg: {}", std::fs::read_to_string("/proc/loadavg")?);
    runtime.block_on(async {
        let target = Target::start()?;
        if wanted("throughput") {
            throughput(&target, &modes).await?;
        }
        if wanted("dials") {
            dials(&target, &modes).await?;
        }
        if wanted("idle") {
            idle(&target, &modes).await?;
        }
        if wanted("neighbours") {
            neighbours(&target, &modes).await?;
        }
        if wanted("churn") {
            churn(&target, &modes).await?;
        }
        anyhow::Ok(())
    })
}

fn rounds() -> anyhow::Result<usize> {
    match env::var("EGRET_BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse().context("EGRET_BENCH_ROUNDS is a number"),
        Err(_unset) => Ok(3),
    }
}

/// One connection, a GiB in one direction; a pair is started for each round, the two kinds in turn.
async fn throughput(target: &Target, modes: &[Mode]) -> anyhow::Result<()> {
    println!(
        "\n| mode | direction | programs | MiB/s | CPU s per GiB: server | agent | both |\n|---|---|---|---|---|---|---|"
    );
    for &mode in modes {
        for down in [true, false] {
            for _ in 0..rounds()? {
                for programs in BOTH {
                    let pair = Pair::start(programs, mode)?;
                    let before = pair.cpu()?;
                    let began = Instant::now();
                    let mut tunnel = Tunnel::connect(mode, &pair.socket(), &target.address(0)).await?;
                    if down {
                        tunnel.write(&Order::Send(GIBIBYTE).octets()).await?;
                        let mut left = GIBIBYTE;
                        while left > 0 {
                            left -= tunnel.read().await? as u64;
                        }
                    } else {
                        tunnel.write(&Order::Take(GIBIBYTE).octets()).await?;
                        // Records of TLS, as an API server writes them.
                        let piece = vec![0x5a; 16 << 10];
                        for _ in 0..GIBIBYTE / piece.len() as u64 {
                            tunnel.write(&piece).await?;
                        }
                        ensure!(tunnel.read().await? == 1, "the target has not taken all");
                    }
                    let took = began.elapsed().as_secs_f64();
                    let after = pair.cpu()?;
                    let [server, agent] = [0, 1].map(|at| (after[at] - before[at]).as_secs_f64());
                    println!(
                        "| {mode:?} | {} | {programs:?} | {:.0} | {server:.2} | {agent:.2} | {:.2} |",
                        if down { "down" } else { "up" },
                        1024.0 / took,
                        server + agent
                    );
                }
            }
        }
    }
    Ok(())
}

/// How long it takes; none where it hangs.
async fn timed_dial(mode: Mode, pair: &Pair, address: &str) -> anyhow::Result<Option<Duration>> {
    match tokio::time::timeout(HANGS, one_dial(mode, pair, address)).await {
        Ok(took) => took.map(Some),
        Err(_elapsed) => Ok(None),
    }
}

/// A connection, an octet there and back, and its close.
async fn one_dial(mode: Mode, pair: &Pair, address: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tunnel = Tunnel::connect(mode, &pair.socket(), address).await?;
    tunnel.write(&Order::Echo.octets()).await?;
    tunnel.write(b"x").await?;
    ensure!(tunnel.read().await? == 1, "no echo");
    tunnel.close().await?;
    Ok(began.elapsed())
}

async fn dials(target: &Target, modes: &[Mode]) -> anyhow::Result<()> {
    println!(
        "\n| mode | clients | programs | dials/s | p50 ms | p99 ms | CPU µs per dial, both | hung |\n|---|---|---|---|---|---|---|---|"
    );
    for &mode in modes {
        for (clients, each) in [(1, 2_000), (64, 200)] {
            for _ in 0..rounds()? {
                for programs in BOTH {
                    let pair = std::sync::Arc::new(Pair::start(programs, mode)?);
                    let before = pair.cpu()?;
                    let began = Instant::now();
                    let mut running = JoinSet::new();
                    let ended = std::sync::Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
                    for client in 0..clients {
                        let (pair, address) = (std::sync::Arc::clone(&pair), target.address(client));
                        let ended = std::sync::Arc::clone(&ended);
                        running.spawn(async move {
                            let mut took = Vec::with_capacity(each);
                            for _ in 0..each {
                                let one = timed_dial(mode, &pair, &address).await?;
                                ended[usize::from(one.is_none())].fetch_add(1, Ordering::Relaxed);
                                took.push(one);
                            }
                            anyhow::Ok(took)
                        });
                    }
                    let mut took = Vec::new();
                    let all = async {
                        while let Some(one) = running.join_next().await {
                            took.extend(one??);
                        }
                        anyhow::Ok(())
                    };
                    if let Ok(all) = tokio::time::timeout(ROW, all).await {
                        all?;
                    } else {
                        let [done, hung] = [0, 1].map(|at| ended[at].load(Ordering::Relaxed));
                        println!(
                            "| {mode:?} | {clients} | {programs:?} | not ended in {ROW:?}: {done} done | | | | {hung} |"
                        );
                        continue;
                    }
                    let hung = took.iter().filter(|took| took.is_none()).count();
                    let mut took: Vec<Duration> = took.into_iter().flatten().collect();
                    let rate = took.len() as f64 / began.elapsed().as_secs_f64();
                    let after = pair.cpu()?;
                    let cpu: f64 = [0, 1]
                        .map(|at| (after[at] - before[at]).as_secs_f64())
                        .iter()
                        .sum();
                    let per_dial = cpu * 1e6 / took.len() as f64;
                    let (p50, p99) = (quantile(&mut took, 50), quantile(&mut took, 99));
                    println!(
                        "| {mode:?} | {clients} | {programs:?} | {rate:.0} | {p50:.2} | {p99:.2} | {per_dial:.0} | {hung} |"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Connections on which one octet went there and back, and then nothing.
async fn idle(target: &Target, modes: &[Mode]) -> anyhow::Result<()> {
    println!(
        "\n| mode | programs | RSS MiB without connections: server | agent | connections | octets of each: server | agent |\n|---|---|---|---|---|---|---|"
    );
    for &mode in modes {
        for programs in BOTH {
            let pair = Pair::start(programs, mode)?;
            let before = pair.memory()?;
            let mut open = Vec::with_capacity(IDLE);
            for number in 0..IDLE {
                let mut tunnel = Tunnel::connect(mode, &pair.socket(), &target.address(number)).await?;
                tunnel.write(&Order::Echo.octets()).await?;
                tunnel.write(b"x").await?;
                ensure!(tunnel.read().await? == 1, "no echo");
                open.push(tunnel);
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            let after = pair.memory()?;
            let each = |at: usize| (after[at] - before[at]) * 1_048_576.0 / IDLE as f64;
            println!(
                "| {mode:?} | {programs:?} | {:.1} | {:.1} | {IDLE} | {:.0} | {:.0} |",
                before[0],
                before[1],
                each(0),
                each(1)
            );
        }
    }
    Ok(())
}

/// Round trips of one octet on another connection, one each 2 ms, until the time is over. One that takes longer than 15 s counts so long.
async fn round_trips(tunnel: &mut Tunnel, until: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut took = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        let trip = async {
            tunnel.write(b"x").await?;
            ensure!(tunnel.read().await? == 1, "no echo");
            anyhow::Ok(())
        };
        match tokio::time::timeout(Duration::from_secs(15), trip).await {
            Ok(done) => done?,
            Err(_elapsed) => {
                took.push(began.elapsed());
                return Ok(took);
            }
        }
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(took)
}

/// What a neighbour waits: alone; beside a connection whose client reads nothing; while one with octets on the way is closed.
async fn neighbours(target: &Target, modes: &[Mode]) -> anyhow::Result<()> {
    println!("\n| mode | programs | beside | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|---|");
    for &mode in modes {
        for programs in BOTH {
            for beside in [
                "nothing",
                "a reader that stops",
                "a busy connection that is closed",
            ] {
                let pair = Pair::start(programs, mode)?;
                let mut tunnel = Tunnel::connect(mode, &pair.socket(), &target.address(0)).await?;
                tunnel.write(&Order::Echo.octets()).await?;
                tunnel.write(b"x").await?;
                ensure!(tunnel.read().await? == 1, "no echo");
                let until = Instant::now() + Duration::from_secs(4);
                let other = async {
                    if beside == "nothing" {
                        return anyhow::Ok(None);
                    }
                    let mut busy = Tunnel::connect(mode, &pair.socket(), &target.address(1)).await?;
                    busy.write(&Order::Send(GIBIBYTE).octets()).await?;
                    for _ in 0..64 {
                        busy.read().await?;
                    }
                    // What is on its way fills what there is of buffers.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    if beside == "a reader that stops" {
                        return Ok(Some(busy));
                    }
                    // HTTP CONNECT has no close but the end of the connection, in both directions.
                    if mode == Mode::HttpConnect {
                        return Ok(None);
                    }
                    busy.begin_close().await?;
                    Ok(Some(busy))
                };
                let (took, held) = tokio::join!(round_trips(&mut tunnel, until), other);
                let (mut took, _held) = (took?, held?);
                let longest = took.iter().max().map_or(0.0, milliseconds);
                println!(
                    "| {mode:?} | {programs:?} | {beside} | {:.2} | {:.2} | {longest:.1} |",
                    quantile(&mut took, 50),
                    quantile(&mut took, 99)
                );
            }
        }
    }
    Ok(())
}

/// Connections that end in five ways, 64 at a time, and what is left of them.
async fn churn(target: &Target, modes: &[Mode]) -> anyhow::Result<()> {
    println!(
        "\n| mode | programs | after | files: server | agent | threads: server | agent | connections | RSS MiB: server | agent | took s |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for &mode in modes {
        for programs in [Programs::Ours] {
            let pair = std::sync::Arc::new(Pair::start(programs, mode)?);
            let mut done = 0;
            for tenths in [0, 1, 4, 7, 10] {
                let upto = CHURN / 10 * tenths;
                let began = Instant::now();
                let mut running = JoinSet::new();
                for client in 0..64 {
                    let (pair, address) = (std::sync::Arc::clone(&pair), target.address(client));
                    let closed = target.closed_address(client);
                    let numbers = (done + client..upto).step_by(64);
                    running.spawn(async move {
                        for number in numbers {
                            end_somehow(mode, &pair, &address, &closed, number).await?;
                        }
                        anyhow::Ok(())
                    });
                }
                while let Some(one) = running.join_next().await {
                    one??;
                }
                done = upto;
                let took = began.elapsed().as_secs_f64();
                pair.wait_until_unused().await?;
                tokio::time::sleep(GIVEN_BACK).await;
                let ([files, others], [threads, more]) = (pair.files()?, pair.threads()?);
                let ([server, agent], open) = (pair.memory()?, pair.open_connections()?);
                println!(
                    "| {mode:?} | {programs:?} | {done} | {files} | {others} | {threads} | {more} | {open} | {server:.1} | {agent:.1} | {took:.0} |"
                );
            }
        }
    }
    Ok(())
}

async fn end_somehow(
    mode: Mode,
    pair: &Pair,
    address: &str,
    closed: &str,
    number: usize,
) -> anyhow::Result<()> {
    // A hash: the ways mix, and two runs have the same.
    match (number.wrapping_mul(0x9e37_79b9) >> 7) % 5 {
        0 => drop(Tunnel::ask(mode, &pair.socket(), address).await?),
        1 => {
            let asked = Tunnel::ask(mode, &pair.socket(), address).await?;
            tokio::time::sleep(Duration::from_micros((number % 1500) as u64)).await;
            drop(asked);
        }
        2 => {
            let refused = Tunnel::connect(mode, &pair.socket(), closed).await;
            ensure!(refused.is_err(), "nobody listens there");
        }
        3 => {
            let mut tunnel = Tunnel::connect(mode, &pair.socket(), address).await?;
            tunnel.write(&Order::Send(1 << 20).octets()).await?;
            tunnel.read().await?;
        }
        _ => {
            one_dial(mode, pair, address).await?;
        }
    }
    Ok(())
}

fn milliseconds(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn quantile(durations: &mut [Duration], per_cent: usize) -> f64 {
    durations.sort_unstable();
    let at = (durations.len() * per_cent / 100).min(durations.len().saturating_sub(1));
    durations.get(at).map_or(0.0, milliseconds)
}

/// CPU time of a process.
fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    process::cpu(&pid.to_string(), Whose::Own)
}

//! Promise S-1, its part on cores: how much threads that answer from one cache slow each other down. Each thread answers cached
//! questions in batches, without sockets: these have locks of the kernel, and need a load generator.
//!
//! Prints the answers of all threads per answer of a single thread. The ideal is the number of threads. The figure has no meaning
//! with more threads than processors.

#![allow(
    clippy::disallowed_methods,
    reason = "a bench is an edge: it measures how long threads take"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use egret_dnsd::config::{Config, RawConfig};
use egret_dnsd::enforcement::client::{ClientLookup, InterfaceRole, Route, Routes};
use egret_dnsd::enforcement::gated::ResponseGate;
use egret_dnsd::net::Transport;
use egret_dnsd::pipeline::{Disposition, Metrics, ReceivedAt, Resolver};
use egret_dnsd::zones::{ActiveConfig, LogWriter, PacketInfo, Telemetry, ZoneTable, host_interfaces};
use egret_kernel::links::Attachment;
use egret_shared::rt::{clock, task};
use tokio::task::JoinSet;

const NAMES: usize = 4_000;
/// Questions that come together: what a busy dnsd reads in one call.
const BATCH: usize = 8;
/// Questions that wait at a time while the cache is filled.
const AT_ONCE: usize = 256;
const SPAN: Duration = Duration::from_millis(500);
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let server = Arc::new(Server::new()?);
    let most = thread::available_parallelism()?.get().min(16);
    runtime.block_on(server.fill(most))?;
    println!("/proc/loadavg: {}", std::fs::read_to_string("/proc/loadavg")?);
    println!("| threads | answers a second of each | as many as one makes × |\n|---|---|---|");
    let counts: Vec<usize> = [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|count| *count <= most)
        .collect();
    let mut made = vec![Vec::new(); counts.len()];
    for _ in 0..ROUNDS {
        for (count, made) in counts.iter().zip(&mut made) {
            made.push(answers(&server, *count)?);
        }
    }
    let alone = median(&mut made[0]);
    for (count, made) in counts.iter().zip(&mut made) {
        let made = median(made);
        let (each, gain) = (made / count, per_cent(made, alone));
        println!("| {count} | {each} | {}.{:02} |", gain / 100, gain % 100);
    }
    Ok(())
}

/// A dnsd without sockets.
struct Server {
    resolver: Arc<Resolver>,
    table: Arc<ZoneTable>,
    questions: Vec<Vec<u8>>,
}

impl Server {
    fn new() -> anyhow::Result<Self> {
        let yaml = format!("listen: [\"127.0.0.1:0\"]\nupstreams: [\"{}\"]\n", upstream()?);
        let written: RawConfig = serde_saphyr::from_str(&yaml)?;
        let config: Config = written.validate()?;
        let (metrics, hold) = (Arc::new(Metrics::register()), config.hold);
        let telemetry = Telemetry {
            metrics: Arc::clone(&metrics.zones),
            upstream: Arc::clone(&metrics.upstream),
            counts: Arc::default(),
            log_writer: LogWriter::to(std::io::sink())?,
            kernel_answers: Arc::default(),
        };
        let serving = ActiveConfig::new(config, None, &host_interfaces, &telemetry)?;
        let (_, table) = serving.tables.first_key_value().context("one address")?;
        let table = Arc::clone(table);
        let client_lookup = Arc::new(ClientLookup::new(Box::new(OneInterface)));
        let gate = ResponseGate::new(
            hold,
            clock::now(),
            Arc::clone(&client_lookup),
            Arc::clone(&metrics.gate),
        );
        let gate = Arc::new(gate);
        drop(task::spawn("deadlines", Arc::clone(&gate).keep_time()));
        let resolver = Resolver::new(serving, client_lookup, gate, metrics);
        Ok(Self {
            resolver: Arc::new(resolver),
            table,
            questions: (0..NAMES).map(question).collect(),
        })
    }

    /// Asks for each name from each of these pods, until no answer is held any more: dnsd waits some time for an enforcer.
    async fn fill(&self, pods: usize) -> anyhow::Result<()> {
        for pod in 0..pods {
            let mut passes = 0;
            while self.ask_each(pod).await? > 0 {
                passes += 1;
                ensure!(passes < 100, "answers are held for ever");
            }
        }
        Ok(())
    }

    /// Asks for each name from a pod. Returns the number of answers that were not in the cache.
    async fn ask_each(&self, pod: usize) -> anyhow::Result<usize> {
        let (mut waiting, mut waited) = (JoinSet::new(), 0);
        for question in &self.questions {
            let step = self
                .resolver
                .answer(question, packet_info(pod), &self.table, ReceivedAt::now());
            if let Disposition::Pending(pending) = step {
                waiting.spawn(pending.reply());
                waited += 1;
            }
            if waiting.len() == AT_ONCE {
                let reply = waiting.join_next().await.context("they wait")?;
                reply?.context("an answer")?;
            }
        }
        while let Some(reply) = waiting.join_next().await {
            reply?.context("an answer")?;
        }
        Ok(waited)
    }

    /// Answers for `SPAN`. Returns the number of answers.
    fn answer(&self, thread: usize) -> anyhow::Result<usize> {
        let (begun, mut made) = (Instant::now(), 0);
        let mut questions = self.questions.iter().cycle().skip(thread * NAMES / 16);
        while begun.elapsed() < SPAN {
            let batch = self.resolver.batch(&self.table, ReceivedAt::now());
            for question in questions.by_ref().take(BATCH) {
                let Disposition::Reply(_) = batch.answer(question, packet_info(thread)) else {
                    bail!("all of them are in the cache");
                };
                made += 1;
            }
        }
        Ok(made)
    }
}

/// Each thread answers a pod of its own.
fn packet_info(thread: usize) -> PacketInfo {
    let pod = u8::try_from(thread + 1).expect("16 threads");
    PacketInfo {
        source: SocketAddr::from((Ipv4Addr::new(10, 0, 0, pod), 5_353)),
        asked: None,
        interface: Some(1),
        transport: Transport::Udp,
    }
}

fn answers(server: &Arc<Server>, threads: usize) -> anyhow::Result<usize> {
    let together = Arc::new(Barrier::new(threads));
    let threads = (0..threads).map(|number| {
        let (server, together) = (Arc::clone(server), Arc::clone(&together));
        thread::spawn(move || {
            together.wait();
            server.answer(number)
        })
    });
    let threads: Vec<_> = threads.collect();
    let made = threads
        .into_iter()
        .map(|thread| thread.join().expect("answering does not panic"));
    made.sum()
}

fn median(numbers: &mut [usize]) -> usize {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

const fn per_cent(part: usize, whole: usize) -> usize {
    part * 100 / whole
}

/// RFC 1035 section 4.1.1: an id, RD, one question, for A in IN.
fn question(number: usize) -> Vec<u8> {
    let label = format!("n{number}");
    let mut octets = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [label.as_bytes(), b"threads", b"test"] {
        octets.push(u8::try_from(label.len()).expect("a short label"));
        octets.extend_from_slice(label);
    }
    octets.extend_from_slice(&[0, 0, 1, 0, 1]);
    octets
}

/// Answers everything with one address for an hour; its thread ends with the program.
fn upstream() -> anyhow::Result<SocketAddr> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    thread::spawn(move || {
        let mut octets = [0; 1_500];
        while let Ok((length, asker)) = socket.recv_from(&mut octets) {
            // The OPT behind the question goes: one address, whose name is the question's.
            let end = 12
                + octets[12..length]
                    .iter()
                    .position(|octet| *octet == 0)
                    .unwrap_or(0)
                + 5;
            let mut answer = octets[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 1]);
            if let Err(error) = socket.send_to(&answer, asker) {
                eprintln!("the upstream cannot send: {error}");
            }
        }
    });
    Ok(address)
}

/// Every pod is behind interface 1.
struct OneInterface;

impl Routes for OneInterface {
    fn route_to(&mut self, _address: IpAddr) -> std::io::Result<Route> {
        Ok(Route::Interface(1))
    }

    fn attachment(&mut self, interface: u32, _address: IpAddr) -> std::io::Result<Option<Attachment>> {
        Ok(Some(Attachment::to(&interface)))
    }

    fn role(&mut self, _interface: u32) -> std::io::Result<InterfaceRole> {
        Ok(InterfaceRole::Other)
    }
}

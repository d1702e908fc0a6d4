//! What it costs the enforcer that pods are told addresses, a thousand new ones in each second: the bench is the dnsd.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_integration::Daemon;
use egret_kernel::iptables::Flavour;
use egret_shared::link::{Decoder, Frame, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::{Instance, Sequence};
use egret_shared::rt::clock;
use serde_json::json;

use crate::cluster::{STAND_INS, Size, stand_in_address};
use crate::cpu;
use crate::place::Place;
use crate::report::median;

const EACH_SECOND: u64 = 1_000;
/// Of a round.
const SECONDS: u64 = 5;
/// Of a round of the floor.
const FLOOR_SECONDS: u64 = 2;
/// About what an answer has on the link.
const OCTETS_OF_ANSWER: usize = 64;
/// More rounds tell no more: each address is kept for minutes.
const MOST_ROUNDS: usize = 5;
const LIFETIME: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(20);
const DNSD: Instance = Instance::from_random(7);

/// How answers come.
struct Burst {
    name: &'static str,
    /// So many at once.
    answers: u64,
}

const BURSTS: [Burst; 4] = [
    Burst {
        name: "none",
        answers: 0,
    },
    Burst {
        name: "one by one",
        answers: 1,
    },
    Burst {
        name: "10 at once",
        answers: 10,
    },
    Burst {
        name: "100 at once",
        answers: 100,
    },
];

/// New names with an address each, for all pods in turn, of a policy that allows them.
pub(crate) fn addresses(rounds: usize) -> anyhow::Result<()> {
    let mut place = Place::new(Size::TARGET)?;
    place.objects.push(json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "names"},
        "spec": {
            "tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
            "egress": [{"name": "names", "action": "Accept", "to": [{"domainNames": ["*.bench.example"]}]}],
        },
    }));
    let enforcer = place.start_enforcer(Flavour::Nft)?;
    let mut dnsd = Dnsd::join(&place)?;
    let mut shares = [const { Vec::<f64>::new() }; BURSTS.len()];
    let mut floors = [const { Vec::<f64>::new() }; BURSTS.len()];
    let memory = cpu::memory_of_process(enforcer.pid())?;
    for _ in 0..rounds.min(MOST_ROUNDS) {
        for ((burst, shares), floors) in BURSTS.iter().zip(&mut shares).zip(&mut floors) {
            let share = dnsd.tell(burst.answers, &enforcer);
            shares.push(share.with_context(|| enforcer.log())?);
            floors.push(floor(burst.answers)?);
        }
    }
    let more = cpu::memory_of_process(enforcer.pid())?.saturating_sub(memory);
    println!(
        "\n{} addresses were told; the enforcer had {} KiB before and {} octets more for each",
        dnsd.sequence.as_u64(),
        memory / 1024,
        more / dnsd.sequence.as_u64().max(1)
    );
    println!("\n### {EACH_SECOND} new addresses a second, told to {STAND_INS} pods in turn\n");
    println!(
        "| answers come | the enforcer's share of a core, % | most | a thread that only reads and replies, % |"
    );
    println!("|---|---|---|---|");
    for ((burst, shares), floors) in BURSTS.iter().zip(&shares).zip(&floors) {
        let most = shares.iter().copied().fold(0.0, f64::max);
        println!(
            "| {} | {:.2} | {most:.2} | {:.2} |",
            burst.name,
            median(shares.iter().copied()),
            median(floors.iter().copied())
        );
    }
    Ok(())
}

struct Dnsd {
    stream: UnixStream,
    sequence: Sequence,
    realized: Arc<AtomicU64>,
}

impl Dnsd {
    fn join(place: &Place) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(place.world.link())?;
        let realized = Arc::new(AtomicU64::new(0));
        let mut dnsd = Self {
            stream: stream.try_clone()?,
            sequence: Sequence::ZERO,
            realized: Arc::clone(&realized),
        };
        std::thread::spawn(move || listen(stream, &realized));
        let program = "bench".to_owned();
        let through = Sequence::ZERO;
        dnsd.say(&[
            ToEnforcer::Hello(Hello { program }),
            ToEnforcer::ResyncStarted,
            ToEnforcer::ResyncEnded { through },
        ])?;
        Ok(dnsd)
    }

    /// The share of a core, in per cent, that the enforcer needs for a round.
    fn tell(&mut self, at_once: u64, enforcer: &Daemon) -> anyhow::Result<f64> {
        let process = enforcer.pid();
        let before = cpu::of_process(process)?;
        let start = Instant::now();
        let end = start + Duration::from_secs(SECONDS);
        let mut told = 0;
        while at_once > 0 && told < EACH_SECOND * SECONDS {
            let messages: Vec<ToEnforcer> = (0..at_once).map(|_| self.next_answer()).collect();
            self.say(&messages)?;
            told += at_once;
            let next = start + Duration::from_micros(told * 1_000_000 / EACH_SECOND);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let seconds = start.elapsed().as_secs_f64();
        let share = (cpu::of_process(process)? - before).as_secs_f64() / seconds * 100.0;
        while self.realized.load(Ordering::Relaxed) < self.sequence.as_u64() {
            ensure!(end.elapsed() < PATIENCE, "what was told is not realized");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(share)
    }

    fn next_answer(&mut self) -> ToEnforcer {
        self.sequence = self.sequence.next();
        let number = self.sequence.as_u64();
        let low = u32::try_from(number).expect("a bench has fewer answers");
        let pod = usize::try_from(number).expect("so do its pods") % STAND_INS;
        let name = format!("n{number}.bench.example");
        let address = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + low;
        let observation = Observation {
            client: stand_in_address(pod),
            question: name.parse().expect("it is a name"),
            chain: Vec::new(),
            addresses: vec![ObservedAddress {
                address: IpAddr::from(Ipv4Addr::from(address)),
                expires: clock::now().after(LIFETIME),
            }],
        };
        ToEnforcer::Observed {
            sequence: self.sequence,
            observation,
        }
    }

    fn say(&mut self, messages: &[ToEnforcer]) -> anyhow::Result<()> {
        let mut octets = Vec::new();
        for message in messages {
            encode(DNSD, message, &mut octets);
        }
        Ok(self.stream.write_all(&octets)?)
    }
}

/// What a thread needs that is woken as often, reads as much, and replies: the share of a core, in per cent.
fn floor(at_once: u64) -> anyhow::Result<f64> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || -> anyhow::Result<Duration> {
        let mut octets = [0; 1 << 16];
        while let Ok(1..) = theirs.read(&mut octets) {
            theirs.write_all(&octets[..32])?;
        }
        cpu::of_thread()
    });
    let (start, mut told) = (Instant::now(), 0);
    while at_once > 0 && told < EACH_SECOND * FLOOR_SECONDS {
        let many = usize::try_from(at_once)?;
        ours.write_all(&vec![0; many * OCTETS_OF_ANSWER])?;
        ours.read_exact(&mut [0; 32])?;
        told += at_once;
        let next = start + Duration::from_micros(told * 1_000_000 / EACH_SECOND);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let end = start + Duration::from_secs(FLOOR_SECONDS);
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    ours.shutdown(std::net::Shutdown::Both)?;
    let spent = echo
        .join()
        .map_err(|_panic| anyhow::anyhow!("the floor's thread died"))??;
    Ok(spent.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// Until the connection ends: whoever does not read is dropped.
fn listen(mut stream: UnixStream, realized: &AtomicU64) {
    let (mut decoder, mut octets) = (Decoder::default(), [0; 1 << 16]);
    while let Ok(length @ 1..) = stream.read(&mut octets) {
        decoder.push(&octets[..length]);
        while let Ok(Some(frame)) = decoder.next_frame::<ToDnsd>() {
            if let Frame::Message(_, ToDnsd::Realized { through, failed }) = frame
                && failed.is_empty()
            {
                realized.store(through.as_u64(), Ordering::Relaxed);
            }
        }
    }
}

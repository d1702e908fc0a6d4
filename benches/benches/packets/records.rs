//! The CPU time of the enforcer for 1,000 new records a second; the bench takes the place of dnsd.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::ruleset::Ruleset;
use egret_integration::Daemon;
use egret_kernel::Family;
use egret_kernel::ipset::{IpSets, Kind, Member, MemberChange, SetEntry, SetSpec};
use egret_kernel::iptables::Flavour;
use egret_shared::link::{Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::{DnsdInstance, Sequence};
use egret_shared::rt::clock;
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::json;

use crate::cluster::{STAND_INS, Size, stand_in_address};
use crate::cpu;
use crate::report::median;
use crate::testbed::Testbed;

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
/// About what a reply has.
const REPLY: usize = 32;
const PATIENCE: Duration = Duration::from_secs(20);
const DNSD: DnsdInstance = DnsdInstance::from_random(7);

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
    [Ruleset::Netfilter(Flavour::Nft), Ruleset::Nftables]
        .into_iter()
        .try_for_each(|ruleset| addresses_with(ruleset, rounds))
}

fn addresses_with(ruleset: Ruleset, rounds: usize) -> anyhow::Result<()> {
    let mut testbed = Testbed::new(Size::TARGET)?;
    testbed.objects.push(json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "names"},
        "spec": {
            "tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
            "egress": [{"name": "names", "action": "Accept", "to": [{"domainNames": ["*.bench.example"]}]}],
        },
    }));
    let enforcer = testbed.start_enforcer(ruleset)?;
    let mut dnsd = Dnsd::join(&testbed)?;
    let mut shares = [const { Vec::<f64>::new() }; BURSTS.len()];
    let mut floors = [const { Vec::<f64>::new() }; BURSTS.len()];
    let mut with_sets = [const { Vec::<f64>::new() }; BURSTS.len()];
    let sets = testbed.world.node().ipset_list()?.matches("Name: ").count();
    let memory = cpu::memory_of_process(enforcer.pid())?;
    for _ in 0..rounds.min(MOST_ROUNDS) {
        for (number, burst) in BURSTS.iter().enumerate() {
            let share = dnsd.tell(burst.answers, &enforcer);
            shares[number].push(share.with_context(|| enforcer.log())?);
            floors[number].push(floor(burst.answers, || Ok(|| Ok(())))?);
            let writes = move || Writes::prepare(sets, burst.answers).map(|mut writes| move || writes.one());
            with_sets[number].push(floor(burst.answers, writes)?);
        }
    }
    let more = cpu::memory_of_process(enforcer.pid())?.saturating_sub(memory);
    println!(
        "\n{} addresses were sent; the enforcer had {} KiB before and {} octets more for each",
        dnsd.sequence.as_u64(),
        memory / 1024,
        more / dnsd.sequence.as_u64().max(1)
    );
    print(ruleset, sets, [&shares, &floors, &with_sets]);
    Ok(())
}

/// Of each kind of burst the enforcer's shares and those of what there is at least.
fn print(ruleset: Ruleset, sets: usize, all: [&[Vec<f64>; BURSTS.len()]; 3]) {
    println!(
        "\n### {}: {EACH_SECOND} new addresses a second, sent to {STAND_INS} pods in turn, beside {sets} sets of ipset\n",
        ruleset.name()
    );
    println!(
        "| answers come | the enforcer's share of a core, % | most | a thread that only reads and replies, % \
         | … and puts them into sets and a file |"
    );
    println!("|---|---|---|---|---|");
    for (number, burst) in BURSTS.iter().enumerate() {
        let most = all[0][number].iter().copied().fold(0.0, f64::max);
        let [share, floor, with_sets] = all.map(|shares| median(shares[number].iter().copied()));
        let name = burst.name;
        println!("| {name} | {share:.2} | {most:.2} | {floor:.2} | {with_sets:.2} |");
    }
}

struct Dnsd {
    stream: UnixStream,
    sequence: Sequence,
    realized: Arc<AtomicU64>,
}

impl Dnsd {
    fn join(testbed: &Testbed) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(testbed.world.link())?;
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
        let mut sent = 0;
        while at_once > 0 && sent < EACH_SECOND * SECONDS {
            let messages: Vec<ToEnforcer> = (0..at_once).map(|_| self.next_answer()).collect();
            self.say(&messages)?;
            sent += at_once;
            let next = start + Duration::from_micros(sent * 1_000_000 / EACH_SECOND);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let seconds = start.elapsed().as_secs_f64();
        let share = (cpu::of_process(process)? - before).as_secs_f64() / seconds * 100.0;
        while self.realized.load(Ordering::Relaxed) < self.sequence.as_u64() {
            ensure!(end.elapsed() < PATIENCE, "what was sent is not realized");
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

/// What a thread needs that is woken as often, reads as much, works and replies: the share of a core, in per cent.
fn floor<W: FnMut() -> anyhow::Result<()>>(
    at_once: u64,
    prepare: impl FnOnce() -> anyhow::Result<W> + Send + 'static,
) -> anyhow::Result<f64> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || -> anyhow::Result<Duration> {
        let mut octets = [0; 1 << 16];
        let mut work = prepare()?;
        theirs.write_all(&octets[..REPLY])?;
        let before = cpu::of_thread()?;
        while let Ok(1..) = theirs.read(&mut octets) {
            work()?;
            theirs.write_all(&octets[..REPLY])?;
        }
        Ok(cpu::of_thread()? - before)
    });
    ours.read_exact(&mut [0; REPLY])?;
    let (start, mut sent) = (Instant::now(), 0);
    while at_once > 0 && sent < EACH_SECOND * FLOOR_SECONDS {
        let many = usize::try_from(at_once)?;
        ours.write_all(&vec![0; many * OCTETS_OF_ANSWER])?;
        ours.read_exact(&mut [0; REPLY])?;
        sent += at_once;
        let next = start + Duration::from_micros(sent * 1_000_000 / EACH_SECOND);
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

/// What the kernel is asked for at least: new addresses into sets of pods, behind as many others as the enforcer has, in a namespace of
/// the thread's own, and as many octets as a file in memory is to keep.
struct Writes {
    sets: IpSets,
    names: Vec<String>,
    file: File,
    at_once: u64,
    sent: u32,
}

impl Writes {
    fn prepare(sets: usize, at_once: u64) -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        // As names of digests do, they differ from the first letter on.
        let name = |number: usize| format!("{:08x}-egret-4", number.wrapping_mul(0x9E37_79B1) & 0xFFFF_FFFF);
        let names: Vec<String> = (0..sets.max(STAND_INS)).map(name).collect();
        let mut ipsets = IpSets::open()?;
        for name in &names {
            ipsets.create(&SetSpec {
                timeout: Some(0),
                hashsize: 64,
                maxelem: 1 << 20,
                ..SetSpec::new(name, Kind::HashIp, Family::V4)
            })?;
        }
        Ok(Self {
            sets: ipsets,
            names: names[names.len() - STAND_INS..].to_vec(),
            file: File::from(memfd_create("records", MFdFlags::empty())?),
            at_once,
            sent: 0,
        })
    }

    fn one(&mut self) -> anyhow::Result<()> {
        let changes: Vec<MemberChange> = (0..self.at_once).map(|_| self.change()).collect();
        self.sets
            .change_all(&changes)
            .into_iter()
            .collect::<Result<(), _>>()?;
        let octets = usize::try_from(self.at_once)? * OCTETS_OF_ANSWER;
        Ok(self.file.write_all(&vec![0; octets])?)
    }

    fn change(&mut self) -> MemberChange {
        self.sent += 1;
        let pod = usize::try_from(self.sent).expect("it fits") % STAND_INS;
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + self.sent);
        let lifetime = NonZeroU32::new(300).expect("300 is not 0");
        MemberChange {
            name: self.names[pod].clone(),
            added: vec![SetEntry::living(Member::Address(address.into()), lifetime)],
            deleted: Vec::new(),
        }
    }
}

/// Until the connection ends: whoever does not read is dropped.
fn listen(mut stream: UnixStream, realized: &AtomicU64) {
    let (mut decoder, mut octets) = (FrameDecoder::default(), [0; 1 << 16]);
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

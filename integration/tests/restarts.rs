//! Either daemon killed or hung, again and again, while a pod lives on: what was realized before stays as it is.
//!
//! `EGRET_RESTARTS` says how often (20), `EGRET_SEED` when: a failure names its seed.

#![allow(
    clippy::disallowed_methods,
    reason = "how long real processes are gone is what these tests are about"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::{
    collections::VecDeque,
    env,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use egret_integration::{Daemon, Load, LoadPlan, LoadReport, Lookup, Pod, RecordType, Records, World};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PORT: u16 = 7;
const API: &str = "203.0.113.7";
const API_V6: &str = "2001:db8::7";
const ELSEWHERE: &str = "203.0.113.8";
/// Told to both pods, allowed to none.
const BLOG: &str = "203.0.113.50";
const NEVER_TOLD: &str = "203.0.113.99";
/// Long enough for a busy machine, shorter than the second after which the kernel repeats a SYN.
const ATTEMPT: Duration = Duration::from_millis(900);
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// Short, so that records end and new ones come all the while.
const FRESH_TTL: u32 = 10;
const BRIEF_TTL: u32 = 1;
const GRACE: &str = "1s";
/// TTL, grace, the kernel's rounding to whole seconds, and the time that an attempt takes.
const BRIEF_ENDS_WITHIN: Duration = Duration::from_millis(3_500);
/// How long an attempt that must fail is waited for: the shorter, the more of them.
const KNOCK: Duration = Duration::from_millis(150);

/// Two pods that may reach the same names, and nothing else but the node's DNS.
const POLICY: &str = r#"
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: by-name}
spec:
  tier: Admin
  priority: 100
  subject:
    pods:
      namespaceSelector: {}
      podSelector:
        matchExpressions: [{key: app, operator: In, values: [client, other]}]
  egress:
  - name: dns
    action: Accept
    to: [{networks: [169.254.20.10/32, "fd00::20:10/128"]}]
  - name: by-name
    action: Accept
    to: [{domainNames: [api.example.test, elsewhere.example.test, "*.fresh.example.test", "*.again.example.test", "*.brief.example.test"]}]
  - name: everything-else
    action: Deny
    to: [{networks: [0.0.0.0/0, "::/0"]}]
"#;

/// Says something about another pod, so that the enforcer has rules to write.
const UNRELATED: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: unrelated, namespace: default}
spec:
  podSelector: {matchLabels: {app: sideline}}
  policyTypes: [Ingress, Egress]
";

#[test]
fn nothing_is_lost_and_nothing_leaks_while_either_daemon_is_killed_or_hangs() -> TestResult {
    let rounds = env::var("EGRET_RESTARTS").map_or(Ok(20), |text| text.parse())?;
    let mut random = Seeded::from_environment()?;
    let Some(world) = world_with_names(rounds) else {
        return Ok(());
    };
    let mut daemons = Daemons::start(&world)?;
    let [life, client_knocks, other_knocks] = start_loads(&world);
    assert!(
        life.wait_for(WHOLE_WITHIN, |seen| seen.connections > 40 && seen.echoes > 10),
        "{:#?}",
        life.report()
    );
    let mut unanswered = Unanswered::default();
    let over = &AtomicBool::new(false);
    let ended = std::thread::scope(|threads| {
        let _end = SetWhenDropped(over);
        let knocks = threads.spawn(|| knock_where_records_ended(&world, over));
        for round in 0..rounds {
            let blow = Blow::of_round(round, &mut random);
            std::thread::sleep(random.span(20..400));
            let before = life.report().lookups_unanswered;
            daemons.strike(&blow)?;
            daemons.wait_until_whole(&world)?;
            // The look-up that was under way, and one more, are over: what they met belongs to this round.
            let lookups = life.report().lookups;
            assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.lookups > lookups + 1));
            unanswered.note(blow.victim, life.report().lookups_unanswered - before);
        }
        over.store(true, Ordering::SeqCst);
        Ok::<_, Box<dyn std::error::Error>>(knocks.join().unwrap())
    })?;
    let seen = Seen {
        life: life.stop(),
        knocks: [client_knocks.stop(), other_knocks.stop(), ended],
        unanswered,
    };
    say(&seen.summary(&random, rounds));
    assert_eq!(
        (seen.life.lost, seen.leaked()),
        (0, 0),
        "seed {}: {seen:#?}",
        random.seed
    );
    assert_eq!(
        seen.unanswered.without_enforcer, 0,
        "dnsd answers while the enforcer is gone; seed {}",
        random.seed
    );
    let enough = |knocks: &LoadReport| knocks.refusals > rounds;
    assert!(
        seen.life.connections > rounds * 10 && seen.knocks.iter().all(enough),
        "{seen:#?}"
    );
    Ok(())
}

#[test]
fn no_moment_of_a_daemons_death_changes_a_verdict_on_what_is_realized() -> TestResult {
    let mut random = Seeded::from_environment()?;
    let Some(world) = world_with_names(1) else {
        return Ok(());
    };
    let mut daemons = Daemons::start(&world)?;
    realize(&world)?;
    let watch = &Watch::default();
    std::thread::scope(|threads| {
        let _end = SetWhenDropped(&watch.over);
        for (row, verdict) in VERDICTS.iter().enumerate() {
            let pod = world.pod(verdict.pod);
            threads.spawn(move || watch.look_at(pod, verdict, row));
        }
        for (moment, happen) in MOMENTS {
            for victim in [Victim::Dnsd, Victim::Enforcer] {
                happen(&mut daemons, &world, victim, &mut random)?;
                daemons.bring_back(&world)?;
                watch.wait_for_rounds(2);
                let changed = watch.changed();
                assert!(
                    changed.is_empty(),
                    "{victim:?} {moment}, seed {}:\n{}",
                    random.seed,
                    changed.join("\n")
                );
            }
        }
        say(&format!(
            "moments: seed {}, {} moments of 2 daemons, {} verdicts looked at, none changed",
            random.seed,
            MOMENTS.len(),
            watch.looks()
        ));
        Ok(())
    })
}

// === The world ===

fn world_with_names(rounds: usize) -> Option<World> {
    let world = World::or_skip()?
        .with_pod("client")
        .and_then(|world| world.with_pod("other"))
        .and_then(|world| world.with_pod("bystander"))
        .and_then(|world| world.with_pod("sideline"))
        .unwrap();
    let upstream = world.upstream();
    let set = |name: &str, addresses: &[&str]| {
        upstream.set(name, Records::addresses(addresses.iter().copied()).ttl(3600));
    };
    set("api.example.test", &[API, API_V6]);
    set("elsewhere.example.test", &[ELSEWHERE]);
    set("blog.example.test", &[BLOG]);
    // The load asks for twenty names a second, the tests for one after each blow.
    for number in 0..2_000 + rounds * 60 {
        let of_kind = |kind: &str, prefix: u8| {
            let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
            let own = Records::addresses([IpAddr::from([198, prefix, high, low])]).ttl(FRESH_TTL);
            upstream.set(&format!("{number}.{kind}.example.test"), own);
        };
        of_kind("fresh", 18);
        of_kind("again", 19);
    }
    // Asked for ten times a second at most; an address may come again when it has ended.
    for number in 0..1_000 + rounds * 30 {
        let own = Records::addresses([format!("198.51.100.{}", number % 250 + 1)]).ttl(BRIEF_TTL);
        upstream.set(&format!("{number}.brief.example.test"), own);
    }
    world.manifests().write("policy.yaml", POLICY).unwrap();
    Some(world)
}

/// The life of a pod that may, and knocks of two pods that may not: at what no policy allows, and at what only the
/// other pod was told.
fn start_loads(world: &World) -> [Load; 3] {
    let life = LoadPlan {
        attempt: ATTEMPT,
        ..LoadPlan::of(["api.example.test", "{}.fresh.example.test"])
    };
    let knocks = |doors: &[&str]| LoadPlan {
        attempt: KNOCK,
        ..LoadPlan::of(Vec::<String>::new()).forbidding(doors.iter().copied().map(at))
    };
    for (pod, name) in [
        ("client", "blog.example.test"),
        ("other", "blog.example.test"),
        ("other", "elsewhere.example.test"),
    ] {
        world.pod(pod).resolve(name, RecordType::A).unwrap();
    }
    [
        world.load("client", life),
        world.load("client", knocks(&[BLOG, NEVER_TOLD, ELSEWHERE])),
        world.load("other", knocks(&[BLOG, NEVER_TOLD, API, API_V6])),
    ]
}

/// Asks for names that end soon, and knocks at their addresses when they have ended.
fn knock_where_records_ended(world: &World, over: &AtomicBool) -> LoadReport {
    let client = world.pod("client");
    let mut report = LoadReport::default();
    let mut told = VecDeque::new();
    while !over.load(Ordering::SeqCst) {
        let name = format!("{}.brief.example.test", report.lookups);
        report.lookups += 1;
        let lookup = Lookup::of(&name, RecordType::A).patience(Duration::from_millis(500));
        if let Ok(reply) = client.look_up(&lookup) {
            let ended = Instant::now() + BRIEF_ENDS_WITHIN;
            told.extend(
                reply
                    .addresses()
                    .into_iter()
                    .map(|address| (ended, address, name.clone())),
            );
        }
        while let Some((_, address, name)) = told.pop_front_if(|(ended, ..)| *ended < Instant::now()) {
            let door = SocketAddr::new(address, PORT);
            if client.connect_tcp(door, KNOCK).is_connected() {
                report.leaked += 1;
                report
                    .notes
                    .push(format!("{name}: {door} is open though its time is over"));
            } else {
                report.refusals += 1;
            }
        }
        std::thread::sleep(KNOCK / 2);
    }
    report
}

fn at(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), PORT)
}

// === Both daemons, and what befalls them ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Dnsd,
    Enforcer,
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    /// SIGKILL; started again after this span.
    Killed(Duration),
    /// SIGSTOP; SIGCONT after this span.
    Hung(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Blow {
    victim: Victim,
    manner: Manner,
}

impl Blow {
    /// Each pair of victim and manner equally often, each instant and span from the seed.
    fn of_round(round: usize, random: &mut Seeded) -> Self {
        let victim = if round % 2 == 0 {
            Victim::Enforcer
        } else {
            Victim::Dnsd
        };
        let manner = if round % 4 < 2 {
            Manner::Killed(random.span(0..500))
        } else {
            Manner::Hung(random.span(20..900))
        };
        Self { victim, manner }
    }
}

struct Daemons {
    dnsd: Daemon,
    enforcer: Daemon,
    /// Every one has a name of its own that nobody asked for before.
    checks: usize,
}

impl Daemons {
    fn start(world: &World) -> Result<Self, Box<dyn std::error::Error>> {
        let mut daemons = Self {
            enforcer: world.start(world.enforcer("netfilter").with(["--record-grace", GRACE]))?,
            dnsd: world.start(world.dnsd())?,
            checks: 0,
        };
        daemons.wait_until_whole(world)?;
        Ok(daemons)
    }

    fn of(&mut self, victim: Victim) -> &mut Daemon {
        match victim {
            Victim::Dnsd => &mut self.dnsd,
            Victim::Enforcer => &mut self.enforcer,
        }
    }

    fn strike(&mut self, blow: &Blow) -> TestResult {
        let victim = self.of(blow.victim);
        match blow.manner {
            Manner::Killed(span) => {
                victim.kill()?;
                std::thread::sleep(span);
                victim.restart()?;
            }
            Manner::Hung(span) => {
                victim.stop()?;
                std::thread::sleep(span);
                victim.cont()?;
            }
        }
        Ok(victim.wait_until_ready().map(drop)?)
    }

    fn bring_back(&mut self, world: &World) -> TestResult {
        for daemon in [&mut self.enforcer, &mut self.dnsd] {
            if !daemon.is_running() {
                daemon.restart()?;
            }
            daemon.wait_until_ready()?;
        }
        self.wait_until_whole(world)
    }

    /// Until an address is usable at once when it is told: then all that was told before is realized, too, because
    /// the link keeps its order.
    fn wait_until_whole(&mut self, world: &World) -> TestResult {
        let begun = Instant::now();
        while begun.elapsed() < WHOLE_WITHIN {
            self.checks += 1;
            if is_usable_at_once(world, &format!("{}.again.example.test", self.checks)) {
                return Ok(());
            }
        }
        Err(format!("no fresh name is usable at once within {WHOLE_WITHIN:?} of a return").into())
    }
}

fn is_usable_at_once(world: &World, name: &str) -> bool {
    let client = world.pod("client");
    let lookup = Lookup::of(name, RecordType::A).patience(Duration::from_millis(500));
    client.look_up(&lookup).is_ok_and(|reply| {
        let told = reply.addresses();
        let usable = |address: &IpAddr| {
            client
                .connect_tcp(SocketAddr::new(*address, PORT), ATTEMPT)
                .is_connected()
        };
        !told.is_empty() && told.iter().all(usable)
    })
}

// === The moments of a death ===

type Happening = fn(&mut Daemons, &World, Victim, &mut Seeded) -> TestResult;

const MOMENTS: &[(&str, Happening)] = &[
    ("killed at rest", |daemons, _, victim, _| {
        Ok(daemons.of(victim).kill().map(drop)?)
    }),
    ("asked to end", |daemons, _, victim, _| {
        let end = daemons.of(victim).terminate()?;
        assert!(end.success(), "{victim:?}: {end}");
        Ok(())
    }),
    ("hung, then killed", |daemons, _, victim, random| {
        daemons.of(victim).stop()?;
        std::thread::sleep(random.span(10..400));
        Ok(daemons.of(victim).kill().map(drop)?)
    }),
    (
        "killed while it answers and realizes",
        |daemons, world, victim, random| {
            let load = world.load("client", LoadPlan::of(["{}.fresh.example.test"]));
            load.wait_for(WHOLE_WITHIN, |seen| seen.connections > 3);
            std::thread::sleep(random.span(0..60));
            Ok(daemons.of(victim).kill().map(drop)?)
        },
    ),
    (
        "killed while it starts, four times",
        |daemons, _, victim, random| {
            for _ in 0..4 {
                daemons.of(victim).restart()?;
                std::thread::sleep(random.span(0..80));
                daemons.of(victim).kill()?;
            }
            Ok(())
        },
    ),
    (
        "killed while policies change",
        |daemons, world, victim, random| {
            world.manifests().write("unrelated.yaml", UNRELATED)?;
            std::thread::sleep(random.span(0..60));
            daemons.of(victim).kill()?;
            daemons.bring_back(world)?;
            world.manifests().remove("unrelated.yaml")?;
            std::thread::sleep(random.span(0..60));
            Ok(daemons.of(victim).kill().map(drop)?)
        },
    ),
    ("killed together with the other", |daemons, _, victim, random| {
        daemons.dnsd.kill()?;
        daemons.enforcer.kill()?;
        std::thread::sleep(random.span(0..200));
        daemons.of(victim).restart()?;
        std::thread::sleep(random.span(0..200));
        Ok(())
    }),
];

// === Verdicts that stay ===

struct Verdict {
    pod: &'static str,
    address: &'static str,
    allowed: bool,
    because: &'static str,
}

const fn verdict(pod: &'static str, address: &'static str, allowed: bool, because: &'static str) -> Verdict {
    Verdict {
        pod,
        address,
        allowed,
        because,
    }
}

const VERDICTS: &[Verdict] = &[
    verdict("client", API, true, "it was told"),
    verdict("client", API_V6, true, "it was told"),
    verdict("other", ELSEWHERE, true, "it was told"),
    verdict("bystander", NEVER_TOLD, true, "no policy is about it"),
    verdict("client", ELSEWHERE, false, "another pod was told"),
    verdict("other", API, false, "another pod was told"),
    verdict("client", BLOG, false, "it was told, no policy allows it"),
    verdict("client", NEVER_TOLD, false, "nobody was told"),
];

/// Asks for what the table says was told.
fn realize(world: &World) -> TestResult {
    for (pod, name, record_type) in [
        ("client", "api.example.test", RecordType::A),
        ("client", "api.example.test", RecordType::AAAA),
        ("client", "blog.example.test", RecordType::A),
        ("other", "elsewhere.example.test", RecordType::A),
    ] {
        let reply = world.pod(pod).resolve(name, record_type)?;
        assert!(!reply.addresses().is_empty(), "{name} {record_type}");
    }
    Ok(())
}

/// Eyes on every row of the table, until it is dropped.
#[derive(Default)]
struct Watch {
    looks: [AtomicUsize; VERDICTS.len()],
    changed: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl Watch {
    fn look_at(&self, pod: &Pod, verdict: &Verdict, row: usize) {
        let begun = Instant::now();
        // A refusal shows by silence: the shorter it is waited for, the more often it is looked at.
        let patience = if verdict.allowed { ATTEMPT } else { KNOCK };
        while !self.over.load(Ordering::SeqCst) {
            let outcome = pod.connect_tcp(at(verdict.address), patience);
            if outcome.is_connected() != verdict.allowed {
                let after = begun.elapsed().as_millis();
                let Verdict {
                    pod,
                    address,
                    because,
                    ..
                } = verdict;
                let line = format!("after {after} ms {pod} to {address} ({because}): {outcome:?}");
                self.changed.lock().unwrap().push(line);
            }
            self.looks[row].fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Until every row was looked at so many times more, from beginning to end.
    fn wait_for_rounds(&self, rounds: usize) {
        let counts = || self.looks.each_ref().map(|looks| looks.load(Ordering::SeqCst));
        let before = counts();
        // One more: the look that was under way may have begun earlier.
        let done =
            |now: [usize; VERDICTS.len()]| now.iter().zip(before).all(|(now, before)| *now > before + rounds);
        while !done(counts()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn changed(&self) -> Vec<String> {
        self.changed.lock().unwrap().clone()
    }

    fn looks(&self) -> usize {
        self.looks.iter().map(|looks| looks.load(Ordering::SeqCst)).sum()
    }
}

// === Chance, and the report ===

struct Seeded {
    seed: u64,
    random: StdRng,
}

impl Seeded {
    fn from_environment() -> Result<Self, std::num::ParseIntError> {
        let seed = env::var("EGRET_SEED").map_or_else(|_| Ok(rand::random()), |text| text.parse())?;
        say(&format!("EGRET_SEED={seed}"));
        let random = StdRng::seed_from_u64(seed);
        Ok(Self { seed, random })
    }

    fn span(&mut self, milliseconds: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(milliseconds))
    }
}

/// What all loads have seen together.
#[derive(Debug)]
struct Seen {
    life: LoadReport,
    /// At doors that were never open for the pod, of both pods, and at those that were.
    knocks: [LoadReport; 3],
    unanswered: Unanswered,
}

/// Look-ups that nobody answered, by who was gone.
#[derive(Debug, Default)]
struct Unanswered {
    without_dnsd: usize,
    without_enforcer: usize,
}

impl Unanswered {
    fn note(&mut self, victim: Victim, number: usize) {
        match victim {
            Victim::Dnsd => self.without_dnsd += number,
            Victim::Enforcer => self.without_enforcer += number,
        }
    }
}

impl Seen {
    fn leaked(&self) -> usize {
        self.knocks.iter().map(|knocks| knocks.leaked).sum()
    }

    fn summary(&self, random: &Seeded, rounds: usize) -> String {
        let Self {
            life,
            knocks,
            unanswered,
        } = self;
        format!(
            "restarts: seed {}, {rounds} of them: lost {}, leaked {}, late {} (the latest {} ms)\n\
             restarts: {} connections, {} echoes on open ones; knocks: {} where nothing was told or allowed, \
             {} where a record had ended; {} look-ups, not answered: {} without dnsd, {} without enforcer",
            random.seed,
            life.lost,
            self.leaked(),
            life.late,
            life.latest.as_millis(),
            life.connections,
            life.echoes,
            knocks[0].refusals + knocks[1].refusals,
            knocks[2].refusals,
            life.lookups,
            unanswered.without_dnsd,
            unanswered.without_enforcer,
        )
    }
}

/// So that threads end with the test, also when it fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Past the test harness, which keeps what is printed to itself.
fn say(text: &str) {
    writeln!(io::stderr(), "{text}").unwrap();
}

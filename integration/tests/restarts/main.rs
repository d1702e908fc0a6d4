//! Kills or stops either daemon repeatedly while a pod lives on: what was realized before stays in force.
//!
//! `EGRET_RESTARTS` is the number of rounds (20), `EGRET_SEED` the seed of the times: a failure names its seed.

#![allow(
    clippy::disallowed_methods,
    reason = "how long real processes are gone is what these tests are about"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

mod daemons;
mod failures;
mod steps;
mod updates;
mod verdicts;
mod report;

use std::{
    collections::VecDeque,
    env,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use egret_integration::{Load, LoadPlan, LoadReport, Lookup, RecordType, Records, World};

use self::{
    daemons::{Blow, Daemons, EnforcedBy, Victim, WHOLE_WITHIN},
    failures::FAILURES,
    report::{Seeded, Seen, SetWhenDropped, Unanswered, say},
    verdicts::{VERDICTS, Watch, realize},
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PORT: u16 = 7;
const API: &str = "203.0.113.7";
const API_V6: &str = "2001:db8::7";
const ELSEWHERE: &str = "203.0.113.8";
/// Observed by both pods, allowed to none.
const BLOG: &str = "203.0.113.50";
const NEVER_TOLD: &str = "203.0.113.99";
/// Long enough for a busy machine, shorter than the second after which the kernel repeats a SYN.
const ATTEMPT: Duration = Duration::from_millis(900);
/// The promised time until a restarted enforcer has caught up.
const CAUGHT_UP_WITHIN: Duration = Duration::from_millis(200);
/// Short, so that records expire and new ones arrive during the test.
const FRESH_TTL: u32 = 10;
const BRIEF_TTL: u32 = 1;
const GRACE: &str = "1s";
/// TTL, grace, the kernel's rounding to whole seconds, and the time that an attempt takes.
const BRIEF_ENDS_WITHIN: Duration = Duration::from_millis(3_500);
/// The timeout of an attempt that must fail: the shorter, the more attempts.
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

#[test]
fn nothing_is_lost_and_nothing_leaks_while_either_daemon_is_killed_or_hangs() -> TestResult {
    let rounds = env::var("EGRET_RESTARTS").map_or(Ok(20), |text| text.parse())?;
    strike_daemons(EnforcedBy::Netfilter, rounds)
}

/// Programs, maps and attachments are pinned: nothing of this needs the enforcer.
#[test]
fn nothing_is_lost_and_nothing_leaks_on_ebpf_while_either_daemon_is_killed_or_hangs() -> TestResult {
    let rounds = env::var("EGRET_RESTARTS").map_or(Ok(8), |text| text.parse())?;
    strike_daemons(EnforcedBy::Ebpf, rounds)
}

fn strike_daemons(by: EnforcedBy, rounds: usize) -> TestResult {
    let mut random = Seeded::from_environment()?;
    let Some(world) = world_with_names(by, rounds) else {
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
    let mut catching_up = Vec::new();
    let over = &AtomicBool::new(false);
    let ended = std::thread::scope(|threads| {
        let _end = SetWhenDropped(over);
        let knocks = threads.spawn(|| knock_where_records_ended(&world, over));
        for round in 0..rounds {
            let blow = Blow::of_round(round, &mut random);
            std::thread::sleep(random.span(20..400));
            let before = life.report().lookups_unanswered;
            catching_up.extend(daemons.strike(&blow, &world)?);
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
        catching_up: catching_up.into_iter().max().unwrap_or_default(),
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
    assert!(
        seen.catching_up <= CAUGHT_UP_WITHIN,
        "seed {}: {seen:#?}",
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
    inject_failures(EnforcedBy::Netfilter)
}

#[test]
fn no_moment_of_a_daemons_death_changes_a_verdict_of_ebpf_on_what_is_realized() -> TestResult {
    inject_failures(EnforcedBy::Ebpf)
}

fn inject_failures(by: EnforcedBy) -> TestResult {
    let mut random = Seeded::from_environment()?;
    let Some(world) = world_with_names(by, 1) else {
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
        for (failure, inject) in FAILURES {
            for victim in [Victim::Dnsd, Victim::Enforcer] {
                inject(&mut daemons, &world, victim, &mut random)?;
                daemons.bring_back(&world)?;
                watch.wait_for_rounds(2);
                let changed = watch.changed();
                assert!(
                    changed.is_empty(),
                    "{victim:?} {failure}, seed {}:\n{}",
                    random.seed,
                    changed.join("\n")
                );
            }
        }
        say(&format!(
            "failures: seed {}, {} failures of 2 daemons, {} verdicts looked at, none changed",
            random.seed,
            FAILURES.len(),
            watch.looks()
        ));
        Ok(())
    })
}

// === The world ===

fn world_with_names(by: EnforcedBy, rounds: usize) -> Option<World> {
    let mut world = World::or_skip()?;
    if by == EnforcedBy::Ebpf {
        world.put_pods_in_cgroups().unwrap();
    }
    let world = world
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

/// The load of an allowed pod, and attempts of two pods that are denied: to addresses that no policy allows, and to addresses that
/// only the other pod observed.
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

/// Looks up names with a short TTL, and connects to their addresses after the records have expired.
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

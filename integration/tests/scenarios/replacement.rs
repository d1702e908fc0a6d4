//! dnsd in the place of node-local-dns: what pods get while it is dead, hangs, or is replaced.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use egret_integration::{Daemon, Lookup, PodSpec, RecordType, Records, World, node, upstream};

use super::stage::{CLIENT_ALONE, QUICK, Told, eventually, ip, within};

/// How long pods may be without DNS.
const GAP: Duration = Duration::from_secs(2);
/// How often dnsd is replaced in a story.
const ROLLS: usize = 6;

const NAME: &str = "api.example.test";

/// The four ways to the node's DNS: two families, two protocols.
fn ways() -> [Lookup; 4] {
    let lookup = || Lookup::of(NAME, RecordType::A).patience(QUICK);
    [
        lookup().at(node::DNS),
        lookup().at(node::DNS).over_tcp(),
        lookup().at(node::DNS_V6),
        lookup().at(node::DNS_V6).over_tcp(),
    ]
}

fn answers(world: &World, pod: &str, way: &Lookup) -> bool {
    world.pod(pod).look_up(way).is_ok()
}

/// Who asked the upstream last: a pod itself, or dnsd for it.
fn last_asked_by_pod(world: &World, pod: &str) -> bool {
    let log = world.upstream().log();
    let addresses = world.pod(pod).addresses();
    log.last()
        .is_some_and(|asked| addresses.contains(&asked.from.ip()))
}

pub(super) fn pods_reach_the_cluster_dns_soon_after_dnsd_died_or_hangs(world: &mut World) -> Told {
    world.add(PodSpec::new("client"))?;
    world
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    let endpoints = [
        format!("{}:{}", upstream::ADDRESS, upstream::PORT),
        format!("[{}]:{}", upstream::ADDRESS_V6, upstream::PORT),
    ];
    let spec = world.dnsd().with(["--rules"]);
    let with_fallback = endpoints.iter().fold(spec.clone(), |spec, endpoint| {
        spec.with(["--fallback-server".to_owned(), endpoint.clone()])
    });
    let mut dnsd = world.start(with_fallback)?;
    let by_dnsd = || {
        ways()
            .iter()
            .all(|way| answers(world, "client", way) && !last_asked_by_pod(world, "client"))
    };
    let by_cluster_dns = || {
        ways()
            .iter()
            .all(|way| answers(world, "client", way) && last_asked_by_pod(world, "client"))
    };
    eventually("dnsd answers", by_dnsd);

    dnsd.kill()?;
    within(GAP, "the cluster DNS answers after a death", by_cluster_dns);
    dnsd.restart()?;
    dnsd.wait_until_ready()?;
    eventually("dnsd answers again", by_dnsd);

    dnsd.stop()?;
    within(GAP, "the cluster DNS answers while dnsd hangs", by_cluster_dns);
    dnsd.cont()?;
    eventually("dnsd answers when it goes on", by_dnsd);

    dnsd.terminate()?;
    assert!(!rules(world)?.contains("NodeLocal"), "what was set up is removed");
    let mut alone = world.start(spec.with(["--fallback", "none"]))?;
    eventually("dnsd answers", by_dnsd);
    alone.kill()?;
    std::thread::sleep(GAP);
    for way in ways() {
        assert!(
            !answers(world, "client", &way),
            "without a fallback nobody else answers: {way:?}"
        );
    }
    alone.restart()?;
    alone.wait_until_ready()?;
    alone.terminate()?;
    Ok(())
}

fn rules(world: &World) -> Result<String, Box<dyn std::error::Error>> {
    let both = [egret_integration::Family::V4, egret_integration::Family::V6];
    let saved: Result<Vec<String>, _> = both
        .into_iter()
        .map(|family| world.node().iptables_save(family))
        .collect();
    Ok(saved?.concat())
}

pub(super) fn dns_is_judged_although_dnsd_lets_it_in(world: &mut World) -> Told {
    world.add(PodSpec::new("client").labelled("app", "client"))?;
    world.add(PodSpec::new("other"))?;
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    world.manifests().write("policy.yaml", CLIENT_ALONE)?;
    for enforcer_first in [true, false] {
        let start_dnsd = || world.start(world.dnsd().with(["--rules"]));
        let start_enforcer = || world.start(world.enforcer("netfilter"));
        let (mut enforcer, mut dnsd) = if enforcer_first {
            let enforcer = start_enforcer()?;
            (enforcer, start_dnsd()?)
        } else {
            let dnsd = start_dnsd()?;
            eventually("dnsd lets DNS in", || lets_in(world));
            (start_enforcer()?, dnsd)
        };
        eventually("dnsd lets DNS in", || lets_in(world));
        eventually("others are answered", || {
            ways().iter().all(|way| answers(world, "other", way))
        });
        for way in ways() {
            assert!(
                !answers(world, "client", &way),
                "enforcer first: {enforcer_first}: {way:?}"
            );
        }
        dnsd.terminate()?;
        enforcer.terminate()?;
        world.node().run_well(&["true"])?;
    }
    Ok(())
}

fn lets_in(world: &World) -> bool {
    rules(world).is_ok_and(|rules| rules.matches("allow DNS traffic").count() == 8)
}

pub(super) fn dnsds_that_take_over_from_each_other_lose_no_question(world: &mut World) -> Told {
    world.add(PodSpec::new("client"))?;
    for number in 0..50 {
        let name = format!("n{number}.example.test");
        world
            .upstream()
            .set(&name, Records::addresses(["203.0.113.7"]).ttl(1));
    }
    let path = world.files().join("handover.sock");
    let spec = world
        .dnsd()
        .with(["--rules"])
        .with(["--handover".to_owned(), path.display().to_string()]);
    // It tells each of them what is interesting: one that hears of nobody holds each answer in its first two seconds.
    let _enforcer = world.start(world.enforcer("netfilter"))?;
    let mut serving = world.start(spec.clone())?;
    let (stop, asked, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let rolled: Told = std::thread::scope(|scope| {
        for asker in 0..4 {
            let (world, stop, asked, lost) = (&*world, &stop, &asked, &lost);
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // A socket of its own for each question, and nobody asks twice.
                    let name = format!("n{}.example.test", (number + asker) % 50);
                    let lookup = Lookup::of(&name, RecordType::A).patience(GAP);
                    let lookup = if asker % 2 == 0 { lookup } else { lookup.over_tcp() };
                    asked.fetch_add(1, Ordering::Relaxed);
                    if let Err(failure) = world.pod("client").look_up(&lookup) {
                        eprintln!("lost: {failure}");
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let rolled = (0..ROLLS).try_for_each(|roll| replace(world, &mut serving, &spec, roll));
        stop.store(true, Ordering::Relaxed);
        rolled
    });
    rolled?;
    assert_eq!(
        lost.load(Ordering::Relaxed),
        0,
        "of {} questions",
        asked.load(Ordering::Relaxed)
    );
    assert!(
        asked.load(Ordering::Relaxed) > 20 * ROLLS,
        "{} questions",
        asked.load(Ordering::Relaxed)
    );
    assert!(
        rules(world)?.contains("NodeLocal"),
        "what was set up stays for the last"
    );
    assert!(
        world
            .pod("client")
            .look_up(&Lookup::of("n1.example.test", RecordType::A).at(ip("169.254.20.10")))
            .is_ok()
    );
    serving.terminate()?;
    assert!(!rules(world)?.contains("NodeLocal"));
    Ok(())
}

fn replace(world: &World, serving: &mut Daemon, spec: &egret_integration::DaemonSpec, roll: usize) -> Told {
    let mut spec = spec.clone();
    spec.name = format!("dnsd-{roll}");
    let mut successor = world.launch(spec)?;
    eventually("the successor answers, and the predecessor has gone", || {
        assert!(successor.is_running(), "{}", successor.log());
        serving.log().contains("\"message\":\"stopped\"")
    });
    let ended = serving.terminate()?;
    assert!(ended.success(), "{ended}");
    std::mem::swap(serving, &mut successor);
    Ok(())
}

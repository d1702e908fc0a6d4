//! dnsd on several threads: replaced under a load that calls all of them, and when one of them hangs.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use egret_integration::{
    Daemon, DaemonSpec, Lookup, PodSpec, RecordType, Records, World, node, uninterrupted,
};
use nix::sys::signal::Signal;

use super::backend_override;
use super::deployment::{QUICK, Setup, TestResult, eventually, ip, is_soon, metrics, only_names, within};
use super::replacement::{EndOfQuestions, GAP, ROLLS, by_hand, replace, with_fallback};

const THREADS: [&str; 2] = ["--threads", "4"];
/// Names that are asked for; they live for a second, so some are always asked of the upstream.
const NAMES: usize = 50;
/// What the upstream takes for an answer, where all of them are to be under way at the same time.
const SLOWLY: Duration = Duration::from_secs(1);
/// Questions that a client sends at once: far more than make a thread call another.
const BURST: u16 = 64;

pub(super) fn a_dnsd_of_several_threads_is_replaced_under_load_and_loses_no_question(
    world: &mut World,
) -> TestResult {
    world.add(PodSpec::new("client"))?;
    for number in 0..NAMES {
        let records = Records::addresses(["203.0.113.7"]).ttl(1);
        world.upstream().set(&name(number), records);
    }
    let spec = by_hand(world).with(THREADS);
    let _enforcer = world.start(backend_override::enforcer(world))?;
    let mut serving = world.start(spec.clone())?;
    let (stop, asked, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let servers: [IpAddr; 2] = [node::DNS.into(), node::DNS_V6.into()];
    let rolled: TestResult = std::thread::scope(|scope| {
        for (asker, server) in servers.into_iter().cycle().take(4).enumerate() {
            let (world, stop, asked, lost) = (&*world, &stop, &asked, &lost);
            scope.spawn(move || {
                let pod = world.pod("client");
                let source = if server.is_ipv4() {
                    pod.address()
                } else {
                    pod.address_v6()
                };
                let socket = pod.udp_socket_at(SocketAddr::new(source, 0)).unwrap();
                socket.connect((server, 53)).unwrap();
                socket.set_read_timeout(Some(GAP)).unwrap();
                for turn in 0_u16.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let first = turn.wrapping_mul(BURST);
                    asked.fetch_add(BURST.into(), Ordering::Relaxed);
                    lost.fetch_add(burst(&socket, first, asker), Ordering::Relaxed);
                }
            });
        }
        let _end = EndOfQuestions(&stop);
        (0..ROLLS).try_for_each(|roll| {
            eventually("threads beside the first read some of it", || {
                read_by_further(&serving) > 0.0
            });
            replace(world, &mut serving, &spec, roll)
        })
    });
    rolled?;
    let (asked, lost) = (asked.into_inner(), lost.into_inner());
    println!("{asked} questions, {ROLLS} times replaced");
    assert_eq!(lost, 0, "of {asked} questions");
    assert!(asked > usize::from(BURST) * ROLLS, "{asked} questions");
    serving.terminate()?;
    Ok(())
}

/// Everything that is under way waits for the upstream while dnsd is replaced.
pub(super) fn what_further_threads_were_asked_they_answer_before_dnsd_ends(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    for number in 0..usize::from(BURST) {
        let records = Records::addresses(["203.0.113.7"]).ttl(0).after(SLOWLY);
        world.upstream().set(&name(number), records);
    }
    let spec = by_hand(world).with(THREADS);
    let _enforcer = world.start(backend_override::enforcer(world))?;
    let mut serving = world.start(spec.clone())?;
    let socket = world.pod("client").udp_socket_at("0.0.0.0:0".parse()?)?;
    socket.connect((node::DNS, 53))?;
    socket.set_read_timeout(Some(GAP))?;
    eventually(
        "a thread beside the first reads a part of what comes at once",
        || {
            let before = read_by_further(&serving);
            ask_at_once(&socket, 0, usize::from);
            let is_read = is_soon(SLOWLY / 4, || read_by_further(&serving) > before);
            is_read || {
                assert_eq!(missing(&socket, 0), 0);
                false
            }
        },
    );
    replace(world, &mut serving, &spec, 0)?;
    assert_eq!(missing(&socket, 0), 0, "of {BURST} that were under way");
    serving.terminate()?;
    Ok(())
}

/// What waits in the sockets need not wait for it.
pub(super) fn a_thread_that_hangs_keeps_no_successor_waiting(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]).ttl(0));
    let spec = by_hand(world).with(THREADS);
    let mut replaced = world.start(spec.clone())?;
    let hanging = replaced.stop_thread("dnsd-4")?;
    let mut successor = world.launch(DaemonSpec {
        name: "dnsd-next".to_owned(),
        ..spec
    })?;
    let leaves = || replaced.log().contains("a new process answers");
    eventually(
        "who has a thread that hangs leaves the sockets to its successor",
        leaves,
    );
    let unsaid = "the predecessor did not say that it stopped";
    assert!(!successor.log().contains(unsaid), "{}", successor.log());
    let lookup = || Lookup::of("api.example.test", RecordType::A);
    for way in [lookup().at(node::DNS), lookup().at(node::DNS_V6)] {
        assert!(world.pod("client").look_up(&way).is_ok(), "{way:?}");
    }
    drop(hanging);
    eventually("it ends", || !replaced.is_running());
    successor.terminate()?;
    Ok(())
}

/// Nobody waits for it at the end either: what else is under way is answered, and the enforcer is told of it.
pub(super) fn a_thread_that_hangs_keeps_nothing_from_being_told_when_dnsd_ends(
    world: &mut World,
) -> TestResult {
    let (name, address) = ("late.example.test", "203.0.113.8");
    let mut deployment = Setup::of(only_names(&["api.example.test"]))
        .dnsd(&THREADS)
        .deploy(world)?;
    deployment
        .upstream()
        .set(name, Records::addresses([address]).after(SLOWLY));
    let hanging = deployment.dnsd.stop_thread("dnsd-4")?;
    let socket = deployment.pod("client").udp_socket_at("0.0.0.0:0".parse()?)?;
    socket.connect((node::DNS, 53))?;
    socket.set_read_timeout(Some(GAP * 2))?;
    socket.send(&Lookup::of(name, RecordType::A).to_vec())?;
    eventually("it is under way", || deployment.upstream().asked(name) > 0);
    deployment.dnsd.signal(Signal::SIGTERM)?;
    uninterrupted(|| socket.recv(&mut [0; 1500]))?;
    eventually("it says that it ends", || {
        deployment.dnsd.log().contains("\"stopped")
    });
    drop(hanging);
    eventually("it ends", || !deployment.dnsd.is_running());
    let log = deployment.dnsd.log();
    assert!(!log.contains("stopped before"), "{log}");
    let policy = only_names(&[name]);
    deployment.world.manifests().write("policy.yaml", &policy)?;
    eventually("what was told last is known", || {
        deployment.kernel_records("client").contains(&ip(address))
    });
    Ok(())
}

fn read_by_further(dnsd: &Daemon) -> f64 {
    metrics(dnsd).sum("egret_dnsd_further_threads_datagrams_total", &[])
}

fn name(number: usize) -> String {
    format!("n{number}.example.test")
}

/// Asks for so many names at once, by numbers of their own; how many had no answer.
fn burst(socket: &UdpSocket, first: u16, asker: usize) -> usize {
    ask_at_once(socket, first, |id| (usize::from(id) + asker) % NAMES);
    missing(socket, first)
}

fn ids(first: u16) -> impl Iterator<Item = u16> {
    (0..BURST).map(move |place| first.wrapping_add(place))
}

fn ask_at_once(socket: &UdpSocket, first: u16, number: impl Fn(u16) -> usize) {
    for id in ids(first) {
        let question = Lookup::of(&name(number(id)), RecordType::A).with_id(id);
        socket.send(&question.to_vec()).unwrap();
    }
}

/// Waits for the answers; how many did not come.
fn missing(socket: &UdpSocket, first: u16) -> usize {
    let mut missing: Vec<u16> = ids(first).collect();
    let mut buffer = [0; 1500];
    while !missing.is_empty() {
        match socket.recv(&mut buffer) {
            // Whatever it says: SERVFAIL is an answer, and another story's.
            Ok(_) => missing.retain(|id| id.to_be_bytes() != buffer[..2]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                eprintln!("lost: {} questions: {error}", missing.len());
                break;
            }
        }
    }
    missing.len()
}

pub(super) fn one_thread_that_hangs_leaves_pods_to_the_cluster_dns(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    let name = "api.example.test";
    world
        .upstream()
        .set(name, Records::addresses(["203.0.113.7"]).ttl(0));
    let spec = world
        .dnsd()
        .with(["--rules", "--sync-interval", "1s"])
        .with(THREADS);
    let mut dnsd = world.start(with_fallback(spec))?;
    let lookup = || Lookup::of(name, RecordType::A).patience(QUICK);
    let is_answered_by_dnsd = || {
        let ways = [lookup().at(node::DNS), lookup().at(node::DNS_V6)];
        let by_dnsd = ways.iter().map(|way| {
            let is_answered = world.pod("client").look_up(way).is_ok();
            let log = world.upstream().log();
            let by_pod = |ip| world.pod("client").addresses().contains(&ip);
            is_answered.then(|| !log.last().is_some_and(|asked| by_pod(asked.from.ip())))
        });
        by_dnsd.collect::<Option<Vec<bool>>>()
    };
    eventually("dnsd answers", || is_answered_by_dnsd() == Some(vec![true, true]));
    let hanging = dnsd.stop_thread("dnsd-4")?;
    within(GAP, "the cluster DNS answers while one thread hangs", || {
        is_answered_by_dnsd() == Some(vec![false, false])
    });
    within(GAP * 2, "its health says so", || {
        dnsd.get("/healthz")
            .is_ok_and(|(code, page)| code != 200 && page.contains("a serving thread has not had a turn"))
    });
    drop(hanging);
    eventually("dnsd answers when it goes on", || {
        is_answered_by_dnsd() == Some(vec![true, true])
    });
    // A second is longer than a sign of life counts.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        is_answered_by_dnsd(),
        Some(vec![true, true]),
        "and goes on answering"
    );
    dnsd.terminate()?;
    Ok(())
}

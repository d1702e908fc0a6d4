//! The backend `nftables` by itself: without any program of iptables, when it is killed at any moment, and when the backend changes
//! under traffic, also to and from `ebpf`. And when it is chosen.

#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use egret_integration::{Attachment, Daemon, DaemonSpec, Outcome, PodSpec, Service, World, within};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const ALLOWED: &str = "203.0.113.7:7";
const FORBIDDEN: &str = "203.0.113.8:7";
const QUICK: Duration = Duration::from_millis(500);
const SHORT: Duration = Duration::from_millis(60);
/// A first packet that goes astray at the moment of a change is sent again after one second, and again after two.
const WITH_RETRANSMISSIONS: Duration = Duration::from_secs(4);

/// Allows the first address, and others that concern nobody.
fn policy(others: usize) -> String {
    let blocks: String = (0..others)
        .map(|other| format!("\n    - ipBlock: {{cidr: 198.51.100.{other}/32}}"))
        .collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: one, namespace: default}}\nspec:\n  \
         podSelector: {{}}\n  policyTypes: [Egress, Ingress]\n  egress:\n  - to:\n    - ipBlock: {{cidr: 203.0.113.7/32}}{blocks}\n"
    )
}

fn world_with_client() -> Option<World> {
    let mut world = World::or_skip()?;
    world.add(PodSpec::new("client")).unwrap();
    world.manifests().write("policy.yaml", &policy(0)).unwrap();
    Some(world)
}

fn connect(world: &World, to: &str, patience: Duration) -> Outcome {
    let to: SocketAddr = to.parse().unwrap();
    world.pod("client").connect_tcp(to, patience)
}

/// What was tried while something was done.
struct Tried {
    forbidden: AtomicUsize,
    reached: AtomicUsize,
    allowed: AtomicUsize,
    refused: AtomicUsize,
}

/// Tries the forbidden address in two threads, and the allowed one in a third, while something is done.
fn while_connecting(
    world: &World,
    work: impl FnOnce() -> TestResult,
) -> Result<Tried, Box<dyn std::error::Error>> {
    let is_over = AtomicBool::new(false);
    let tried = Tried {
        forbidden: AtomicUsize::new(0),
        reached: AtomicUsize::new(0),
        allowed: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
    };
    let try_often = |to: &str,
                     patience: Duration,
                     number: &AtomicUsize,
                     wrong: &AtomicUsize,
                     is_wrong: fn(bool) -> bool| {
        while !is_over.load(Ordering::Relaxed) {
            let outcome = connect(world, to, patience);
            number.fetch_add(1, Ordering::Relaxed);
            wrong.fetch_add(usize::from(is_wrong(outcome.is_connected())), Ordering::Relaxed);
        }
    };
    let done = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                try_often(FORBIDDEN, SHORT, &tried.forbidden, &tried.reached, |connected| {
                    connected
                })
            });
        }
        scope.spawn(|| {
            let (number, wrong) = (&tried.allowed, &tried.refused);
            try_often(ALLOWED, WITH_RETRANSMISSIONS, number, wrong, |connected| {
                !connected
            });
        });
        // Also where an assertion fails: the threads are waited for.
        let _end = SetOnDrop(&is_over);
        work()
    });
    done?;
    Ok(tried)
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn assert_exact(tried: Tried) {
    let [forbidden, reached, allowed, refused] =
        [tried.forbidden, tried.reached, tried.allowed, tried.refused].map(AtomicUsize::into_inner);
    assert!(forbidden > 0 && allowed > 0);
    assert_eq!(reached, 0, "of {forbidden}");
    assert_eq!(refused, 0, "of {allowed}");
}

fn has_table(world: &World) -> bool {
    world.node().nftables_list().is_some()
}

fn has_chains(world: &World) -> bool {
    let listed = [egret_integration::Family::V4, egret_integration::Family::V6]
        .map(|family| world.node().iptables_save(family).unwrap());
    let sets = world.node().ipset_save().unwrap();
    listed.iter().any(|listed| listed.contains("EGRET-")) || sets.contains("-egret-")
}

/// Changes the backend under traffic, from `netfilter` on: nothing forbidden passes, nothing that is open ends, and nothing is left of the
/// one before.
fn change_backends(world: &World, backends: &[&str], with: impl Fn(&str) -> DaemonSpec) -> TestResult {
    let mut enforcer = world.start(with("netfilter"))?;
    let mut open = connect(world, ALLOWED, QUICK).connection();
    let tried = while_connecting(world, || {
        for (round, backend) in backends.iter().copied().enumerate() {
            let end = [Daemon::terminate, Daemon::kill][round % 2];
            end(&mut enforcer)?;
            enforcer = world.start(with(backend))?;
            assert!(open.is_alive(), "with {backend}");
            let there = (world.bpf_pins().exists(), has_table(world), has_chains(world));
            let wanted = (backend == "ebpf", backend == "nftables", backend == "netfilter");
            assert_eq!(there, wanted, "of {backend} alone there is something");
            assert!(connect(world, ALLOWED, QUICK).is_connected(), "with {backend}");
        }
        Ok(())
    })?;
    assert_exact(tried);
    drop(enforcer);
    Ok(())
}

#[test]
fn a_change_of_backend_under_traffic_lets_nothing_through_and_ends_nothing() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    let with = |backend: &str| world.enforcer(backend);
    change_backends(&world, &["nftables", "netfilter", "nftables"], with)
}

#[test]
fn a_change_to_programs_and_back_under_traffic_leaves_nothing_of_the_other() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.put_pods_in_cgroups()?;
    world.add(PodSpec::new("client"))?;
    world.manifests().write("policy.yaml", &policy(0))?;
    let with = |backend: &str| world.enforcer_at_cgroups(backend);
    change_backends(&world, &["ebpf", "nftables", "ebpf", "netfilter"], with)
}

#[test]
fn an_enforcer_that_is_killed_at_any_moment_of_a_change_lets_nothing_through() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    let mut enforcer = world.start(world.enforcer("nftables"))?;
    let mut open = connect(&world, ALLOWED, QUICK).connection();
    let tried = while_connecting(&world, || {
        for round in 0..12 {
            world.manifests().write("policy.yaml", &policy(1 + round % 5))?;
            // The change is under way, or is not: either will do.
            #[allow(clippy::disallowed_methods, reason = "the moment is arbitrary on purpose")]
            std::thread::sleep(Duration::from_millis(7 * u64::try_from(round)?));
            enforcer.kill()?;
            enforcer.restart()?;
            enforcer.wait_until_ready()?;
            assert!(open.is_alive());
        }
        Ok(())
    })?;
    assert_exact(tried);
    assert!(connect(&world, ALLOWED, QUICK).is_connected());
    drop(enforcer);
    Ok(())
}

#[test]
fn no_program_is_needed_and_cleanup_leaves_no_table() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    let programs = world.files().join("programs");
    std::fs::create_dir(&programs)?;
    let without_programs = |backend| {
        let enforcer = world.enforcer(backend);
        enforcer.with_variable("PATH", &programs.display().to_string())
    };
    let enforcer = world.start(without_programs("auto"))?;
    assert!(connect(&world, ALLOWED, QUICK).is_connected());
    assert!(!connect(&world, FORBIDDEN, QUICK).is_connected());
    let binary = enforcer.spec().binary.display().to_string();
    drop(enforcer);
    assert!(has_table(&world));
    let clean = [binary.as_str(), "cleanup", "--state", "", "--state-objects", ""];
    world.node().run_well(&clean)?;
    assert!(!has_table(&world));
    assert!(connect(&world, FORBIDDEN, QUICK).is_connected());
    Ok(())
}

/// Starts the enforcer without a named backend, and asks which one it chose.
fn chosen(world: &World, also: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let enforcer = world.start(world.enforcer("auto").with(also.iter().copied()))?;
    let (_, ready) = enforcer.get("/readyz")?;
    let line = ready.lines().find_map(|line| line.strip_prefix("backend: "));
    let line = line.ok_or("/readyz names no backend")?.to_owned();
    let backend = line.split(',').next().unwrap_or_default();
    let metrics = enforcer.metrics()?;
    assert!(
        metrics.has("egret_enforcer_backend", &[("backend", backend)]),
        "{line}"
    );
    assert_eq!(
        (has_table(world), has_chains(world)),
        (backend == "nftables", backend == "netfilter")
    );
    Ok(line)
}

#[test]
fn a_node_without_rules_gets_nftables_and_each_start_keeps_what_it_finds() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    assert_eq!(
        chosen(&world, &[])?,
        "nftables, since the kernel has all that it needs"
    );
    assert_eq!(chosen(&world, &[])?, "nftables, whose table is there");
    drop(world.start(world.enforcer("netfilter"))?);
    assert_eq!(chosen(&world, &[])?, "netfilter, whose chains are there");
    Ok(())
}

#[test]
fn where_legacy_iptables_is_in_use_a_node_without_rules_gets_netfilter() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    let hint = ["iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"];
    world.node().run_well(&hint)?;
    assert_eq!(chosen(&world, &[])?, "netfilter, since legacy iptables is in use");
    assert_eq!(chosen(&world, &[])?, "netfilter, whose chains are there");
    Ok(())
}

#[test]
fn who_configures_a_flavour_of_iptables_gets_netfilter() -> TestResult {
    let Some(world) = world_with_client() else {
        return Ok(());
    };
    let named = chosen(&world, &["--iptables", "nft"])?;
    assert_eq!(named, "netfilter, since a flavour of iptables is configured");
    Ok(())
}

/// The server, which nobody may reach.
const NOBODY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
";

#[test]
fn a_change_of_backend_leaves_no_port_of_a_bridge_unjudged() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    for name in ["client", "server"] {
        world.add(PodSpec::new(name).attached(Attachment::Bridge { hairpin: false }))?;
    }
    world.pod("server").serve(8081, Service::TcpEcho)?;
    world.manifests().write("policy.yaml", NOBODY)?;
    let with = |backend| world.enforcer(backend).with(["--bridge-netfilter", "enable"]);
    let to = SocketAddr::new(world.pod("server").address(), 8081);
    let reaches = |patience| world.pod("client").connect_tcp(to, patience).is_connected();
    let mut enforcer = world.start(with("netfilter"))?;
    while reaches(SHORT) {}
    let (is_over, tried) = (AtomicBool::new(false), AtomicUsize::new(0));
    let reached = std::thread::scope(|scope| {
        let trying = scope.spawn(|| {
            let mut reached = 0;
            while !is_over.load(Ordering::Relaxed) {
                tried.fetch_add(1, Ordering::Relaxed);
                reached += usize::from(reaches(SHORT));
            }
            reached
        });
        let changed: TestResult = ["nftables", "netfilter", "nftables"]
            .into_iter()
            .try_for_each(|backend| {
                enforcer.terminate()?;
                enforcer = world.start(with(backend))?;
                enforcer.wait_until_ready()?;
                Ok(())
            });
        is_over.store(true, Ordering::Relaxed);
        (changed, trying.join().unwrap())
    });
    let (changed, reached) = reached;
    changed?;
    assert_eq!(reached, 0, "of {}", tried.into_inner());

    // What comes by another port than the address is counted.
    let spoofed = || -> Result<f64, Box<dyn std::error::Error>> {
        let (_, text) = enforcer.get("/metrics")?;
        let lines = text
            .lines()
            .filter(|line| line.contains("tier=\"spoofed-source\""));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(values.sum())
    };
    let before = spoofed()?;
    let in_its_name = SocketAddr::new(world.pod("server").address(), 5353);
    world
        .pod("client")
        .send_udp_as(in_its_name, "203.0.113.7:53".parse()?, b"x")?;
    within(Duration::from_secs(10), "it is counted", || {
        spoofed().unwrap() > before
    });

    // What was turned on is known, whoever turned it on first.
    let binary = enforcer.spec().binary.display().to_string();
    drop(enforcer);
    let clean = [binary.as_str(), "cleanup", "--state", "", "--state-objects", ""];
    world.node().run_well(&clean)?;
    let shown = world.node().run(&["ip", "-d", "link", "show", "cni0"])?.stdout;
    for off in ["nf_call_iptables 0", "nf_call_ip6tables 0"] {
        assert!(shown.contains(off), "{shown}");
    }
    let tables = world.node().run(&["nft", "list", "tables"])?.stdout;
    assert!(!tables.contains("egret"), "{tables}");
    Ok(())
}

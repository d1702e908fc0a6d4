//! Pods that nobody knows yet: what they send gets nowhere before they are known with their rules.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use egret_integration::{Daemon, Outcome, Pod, PodSpec, Service, World};

use super::backend_override;
use super::deployment::{Deployment, PATIENCE, QUICK, Setup, TestResult, eventually, ip, metrics};

const ALLOWED: [&str; 2] = ["203.0.113.7", "2001:db8::7"];
const FORBIDDEN: [&str; 2] = ["203.0.113.8", "2001:db8::8"];
const ECHO: u16 = 7;
/// New pods in each order of events.
const TRIES: usize = 20;

/// Every pod may send to the same address of each family, and nowhere else.
fn one_address() -> String {
    let [v4, v6] = ALLOWED;
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: one-address, namespace: default}}
spec:
  podSelector: {{}}
  policyTypes: [Egress]
  egress:
  - to: [{{ipBlock: {{cidr: {v4}/32}}}}, {{ipBlock: {{cidr: "{v6}/128"}}}}]
"#
    )
}

/// CASE-3, NP-28. The pod has its network, and its program sends all the time; its object comes later.
pub(super) fn a_new_pod_sends_nothing_before_its_policy_is_in_force(world: &mut World) -> TestResult {
    let setting = Setup::of(one_address()).and(PodSpec::new("late").unannounced());
    let deployment = setting.deploy(world)?;
    let late = deployment.pod("late");
    let arrived = Arrivals::count(deployment.world, late.addresses())?;
    while_sending_everywhere(late, || {
        assert_unknown(&deployment)?;
        for (to, packets) in arrived.by_destination()? {
            assert_eq!(packets, 0, "{to}");
        }
        deployment.world.announce("late")?;
        for to in ALLOWED {
            eventually("it may send what its policy allows", || {
                deployment.reach("late", to).is_connected()
            });
        }
        Ok(())
    })?;
    for (to, packets) in arrived.by_destination()? {
        let is_allowed = ALLOWED.contains(&to.as_str());
        assert_eq!(packets > 0, is_allowed, "{packets} packets to {to}");
    }
    for to in FORBIDDEN {
        deployment.assert_refused("late", to);
    }
    Ok(())
}

/// Nothing passes from it and to it but what its own node asks.
fn assert_unknown(deployment: &Deployment<'_>) -> TestResult {
    let late = deployment.pod("late");
    late.serve(8080, Service::TcpEcho)?;
    for to in ALLOWED.into_iter().chain(FORBIDDEN) {
        deployment.assert_refused("late", to);
        assert!(!late.is_echoed(ip(to), QUICK)?, "an echo of {to}");
    }
    for to in deployment.world.node().addresses() {
        let outcome = late.connect_tcp(SocketAddr::new(to, 9), QUICK);
        assert!(
            matches!(outcome, Outcome::TimedOut),
            "late to its node: {outcome:?}"
        );
    }
    for to in late.addresses() {
        let to = SocketAddr::new(to, 8080);
        let outcome = deployment.world.client_outside().connect_tcp(to, QUICK);
        assert!(
            matches!(outcome, Outcome::TimedOut),
            "outside to late: {outcome:?}"
        );
        let outcome = deployment.world.client_on_node().connect_tcp(to, QUICK);
        assert!(outcome.is_connected(), "its node to late: {outcome:?}");
    }
    for direction in ["egress", "ingress"] {
        let labels = [
            ("tier", "unknown-pod"),
            ("action", "deny"),
            ("direction", direction),
        ];
        let counted = metrics(&deployment.enforcer).sum("egret_enforcer_verdicts_total", &labels);
        assert!(counted > 0.0, "{direction}");
    }
    Ok(())
}

/// The pod sends a datagram to each address every millisecond.
fn while_sending_everywhere(pod: &Pod, during: impl FnOnce() -> TestResult) -> TestResult {
    let targets = ALLOWED
        .into_iter()
        .chain(FORBIDDEN)
        .map(|to| SocketAddr::new(ip(to), ECHO));
    let sockets = targets
        .map(|to| pod.udp_socket(to))
        .collect::<Result<Vec<_>, _>>()?;
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                for socket in &sockets {
                    // An error is one that an earlier datagram met.
                    drop(socket.send(b"x"));
                }
            }
        });
        let told = during();
        drop(stop);
        told
    })
}

/// Counts, where they would arrive, packets of some senders.
struct Arrivals<'w> {
    world: &'w World,
}

impl<'w> Arrivals<'w> {
    fn count(world: &'w World, senders: [IpAddr; 2]) -> Result<Self, Box<dyn std::error::Error>> {
        let arrivals = Self { world };
        for to in ALLOWED.into_iter().chain(FORBIDDEN) {
            let sender = senders.iter().find(|sender| sender.is_ipv4() == ip(to).is_ipv4());
            let sender = sender.expect("a pod has both").to_string();
            let rule = ["-t", "raw", "-A", "PREROUTING", "-s", &sender, "-d", to];
            arrivals.iptables(to, &rule)?;
        }
        Ok(arrivals)
    }

    fn by_destination(&self) -> Result<Vec<(String, u64)>, Box<dyn std::error::Error>> {
        let mut counted = Vec::new();
        for family_of in [ALLOWED[0], ALLOWED[1]] {
            let listing = self.iptables(family_of, &["-t", "raw", "-vxnL", "PREROUTING"])?;
            for line in listing.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                if let [packets, _octets, .., to] = words[..]
                    && let Ok(packets) = packets.parse()
                {
                    counted.push((to.to_owned(), packets));
                }
            }
        }
        assert_eq!(counted.len(), ALLOWED.len() + FORBIDDEN.len(), "{counted:?}");
        Ok(counted)
    }

    fn iptables(&self, family_of: &str, rule: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
        let program = if ip(family_of).is_ipv4() {
            "iptables"
        } else {
            "ip6tables"
        };
        let inside = [
            "ip",
            "netns",
            "exec",
            self.world.upstream_network_namespace(),
            program,
        ];
        let done = self.world.node().run(&[inside.as_slice(), rule].concat())?;
        assert!(done.success(), "{done:?}");
        Ok(done.stdout)
    }
}

/// E-10. Nothing is known of an earlier life, and the source does not answer: as if there were a policy. There is
/// none, so all opens when it answers.
pub(super) fn a_node_that_booted_without_its_source_closes_pods_until_it_answers(
    world: &mut World,
) -> TestResult {
    world.add(PodSpec::new("client"))?;
    let mut enforcer = start_without_source(world, &[])?;
    let reach = |to: &str| {
        world
            .pod("client")
            .connect_tcp(SocketAddr::new(ip(to), ECHO), QUICK)
    };
    for to in ALLOWED.into_iter().chain(FORBIDDEN) {
        let outcome = reach(to);
        assert!(
            matches!(outcome, Outcome::TimedOut),
            "client to {to}: {outcome:?}"
        );
    }
    // As a probe does.
    world.pod("client").serve(8080, Service::TcpEcho)?;
    let to = SocketAddr::new(world.pod("client").address(), 8080);
    let outcome = world.client_on_node().connect_tcp(to, QUICK);
    assert!(outcome.is_connected(), "the node to client: {outcome:?}");

    // A life that ended before the source answered leaves pods closed, and says so.
    enforcer.kill()?;
    assert!(!reach(ALLOWED[0]).is_connected());
    enforcer.restart()?;
    wait_until_closed(&enforcer);
    let folder = world.manifests().folder();
    std::fs::rename(folder.with_extension("away"), folder)?;
    enforcer.wait_until_ready()?;
    for to in ALLOWED.into_iter().chain(FORBIDDEN) {
        assert!(reach(to).is_connected(), "client to {to}");
    }
    Ok(())
}

fn start_without_source(world: &World, arguments: &[&str]) -> Result<Daemon, Box<dyn std::error::Error>> {
    let folder = world.manifests().folder();
    std::fs::rename(folder, folder.with_extension("away"))?;
    let enforcer = world.launch(backend_override::enforcer(world).with(arguments.iter().copied()))?;
    wait_until_closed(&enforcer);
    Ok(enforcer)
}

#[track_caller]
fn wait_until_closed(enforcer: &Daemon) {
    eventually("it says that pods are closed", || {
        let answer = enforcer.get("/readyz");
        answer.is_ok_and(|(code, text)| code == 503 && text.contains("pods are closed until it is known"))
    });
}

/// From the moment at which an address is known to be a pod's and where it is, whichever comes last. The backend `ebpf` looks
/// at no interface.
pub(super) fn a_new_pod_is_judged_by_its_policy_as_soon_as_it_is_known(world: &mut World) -> TestResult {
    let names = |order: &str| {
        (0..TRIES)
            .map(|number| format!("{order}-{number}"))
            .collect::<Vec<_>>()
    };
    let cable_first = names("cable");
    let object_first = match backend_override::is_ebpf() {
        true => Vec::new(),
        false => names("object"),
    };
    let pods = cable_first.iter().chain(&object_first);
    let setting = Setup::of(one_address());
    let deployment = setting
        .instead(pods.map(|name| PodSpec::new(name).unannounced()))
        .deploy(world)?;
    let mut told = Vec::new();
    for name in &cable_first {
        told.push(answered_after(&deployment, name, || {
            deployment.world.announce(name)
        })?);
    }
    println!("the object comes last: {}", distribution(&mut told));
    let mut located = Vec::new();
    for name in &object_first {
        route(&deployment, name, "del")?;
        deployment.world.announce(name)?;
        eventually("it waits for its interface", || {
            let pending = [("state", "pending")];
            metrics(&deployment.enforcer).sum("egret_enforcer_pods", &pending) == 1.0
        });
        located.push(answered_after(&deployment, name, || {
            route(&deployment, name, "add")
        })?);
    }
    if !located.is_empty() {
        println!("the route comes last: {}", distribution(&mut located));
    }
    Ok(())
}

/// How long after something happened a pod that asks every millisecond has its first echo; it has none before.
fn answered_after<E>(
    deployment: &Deployment<'_>,
    name: &str,
    happens: impl FnOnce() -> Result<(), E>,
) -> Result<Duration, Box<dyn std::error::Error>>
where
    Box<dyn std::error::Error>: From<E>,
{
    let pod = deployment.pod(name);
    let socket = pod.udp_socket(SocketAddr::new(ip(ALLOWED[0]), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    for _ in 0..5 {
        drop(socket.send(b"x"));
        assert!(
            socket.recv(&mut [0; 8]).is_err(),
            "{name} is not known, and has an echo"
        );
    }
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(socket.send(b"x"));
                if socket.recv(&mut [0; 8]).is_ok() {
                    return Some(begun.elapsed());
                }
            }
            None
        });
        let happened = happens();
        let waited = Instant::now();
        while happened.is_ok() && !answered.is_finished() && waited.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        let answered = answered.join().expect("it only sends and waits");
        happened?;
        Ok(answered.unwrap_or_else(|| panic!("{name} has no echo within {PATIENCE:?}")))
    })
}

/// The routes to a pod's addresses, of both families at once.
fn route(deployment: &Deployment<'_>, name: &str, verb: &str) -> Result<(), Box<dyn std::error::Error>> {
    let pod = deployment.pod(name);
    let [v4, v6] = pod.addresses();
    let interface = pod.interface();
    for (family, prefix) in [("-6", format!("{v6}/128")), ("-4", format!("{v4}/32"))] {
        deployment
            .world
            .node()
            .run_well(&["ip", family, "route", verb, &prefix, "dev", interface])?;
    }
    Ok(())
}

fn distribution(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let mut text = String::new();
    for (word, place) in [
        ("least", 0),
        ("median", times.len() / 2),
        ("most", times.len() - 1),
    ] {
        write!(text, "{word} {:.1} ms ", times[place].as_secs_f64() * 1000.0)
            .expect("a String takes any text");
    }
    text.trim_end().to_owned()
}

//! Addresses that are used again, and flows that are older than the rules: what was allowed to another, or by nobody, is
//! allowed to nobody.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use egret_integration::{Daemon, Pod, PodSpec, ProxyMode, Records, Service, World};

use super::deployment::{
    Deployment, MOMENT, QUICK, Setup, TestResult, eventually, ip, only_names, patient_question,
};

/// Pods may open what they like. To some of them the neighbour may, and to the others nobody.
const CLOSED: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Ingress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open, namespace: default}
spec:
  podSelector: {matchLabels: {open: to-neighbour}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: neighbour}}}]
";

const PUSHER: u16 = 5005;
/// Where pods listen: each uses the ports that the one before it had.
const LISTENER: u16 = 40000;

/// What happens between one pod and the next at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// The next is there when the first is hardly gone.
    Nothing,
    /// The address is nobody's for a while.
    APause,
    /// The same, and the enforcer starts anew meanwhile: what it knew is in the kernel alone.
    ARestart,
    /// The enforcer is away while one goes and the other comes.
    AnAbsence,
}

/// OPEN-4: servers push to the pod, and a neighbour sends to it; the next pod at its address hears neither, though it
/// listens at the same ports and might open the same itself. When it does, that is its own.
pub(super) fn a_pod_at_a_used_address_inherits_no_connection(world: &mut World) -> TestResult {
    let setting = Setup::of(CLOSED).instead([PodSpec::new("neighbour")]);
    let Deployment {
        dnsd: _dnsd,
        mut enforcer,
        ..
    } = setting.deploy(world)?;
    world.serve(PUSHER, Service::UdpPush)?;
    succeed(world, &mut enforcer, Between::Nothing, ["old-1", "new-1"])?;
    succeed(world, &mut enforcer, Between::APause, ["old-2", "new-2"])?;
    succeed(world, &mut enforcer, Between::ARestart, ["old-3", "new-3"])?;
    succeed(world, &mut enforcer, Between::AnAbsence, ["old-4", "new-4"])?;
    // As the pods of a StatefulSet are called.
    succeed(world, &mut enforcer, Between::Nothing, ["web-0", "web-0"])
}

fn succeed(world: &mut World, enforcer: &mut Daemon, between: Between, [old, new]: [&str; 2]) -> TestResult {
    world.add(PodSpec::new(old).labelled("open", "to-neighbour"))?;
    eventually("its rules are there", || is_known(world, world.pod(old)));
    let listeners = listen(world.pod(old))?;
    // The one before may have had the same name, and rules under it.
    for listener in &listeners {
        eventually("what it asked for is pushed", || {
            listener.ask().is_ok() && listener.hears()
        });
    }
    // Sockets that nobody can end from outside.
    let senders = listeners
        .each_ref()
        .map(|listener| world.pod("neighbour").open_udp_socket(listener.server));
    let senders: Vec<UdpSocket> = senders.into_iter().collect::<io::Result<_>>()?;
    for (listener, sender) in listeners.iter().zip(&senders) {
        assert!(listener.hears_of(sender), "{between:?}: the neighbour may");
    }

    if between == Between::AnAbsence {
        enforcer.kill()?;
    }
    let interface = world.pod(old).interface().to_owned();
    let seat = world.remove(old)?;
    if matches!(between, Between::APause | Between::ARestart) {
        eventually("it is forgotten", || !is_in_rules(world, &interface));
    }
    if between == Between::ARestart {
        enforcer.restart()?;
        enforcer.wait_until_ready()?;
    }
    world.add_at(seat, PodSpec::new(new))?;
    if between == Between::AnAbsence {
        enforcer.restart()?;
        enforcer.wait_until_ready()?;
    }
    let listeners = listen(world.pod(new))?;
    eventually("the next one's rules are there", || {
        is_known(world, world.pod(new))
    });
    eventually("what the other one opened ends", || {
        listeners.iter().all(|listener| !listener.hears())
    });
    for (listener, sender) in listeners.iter().zip(&senders) {
        assert!(
            !listener.hears_of(sender),
            "{between:?}: what was opened to the other one"
        );
        eventually("what it asks for itself is pushed", || {
            listener.ask().is_ok() && listener.hears()
        });
    }
    Ok(())
}

/// OPEN-4: while the enforcer is away a pod takes the address of another. What dnsd tells again then is told of who is still
/// there, and the next one is told for itself when it asks, though the answer is in the cache.
pub(super) fn what_dnsd_told_is_told_again_to_the_same_pod_alone(world: &mut World) -> TestResult {
    let setting = Setup::of(only_names(&[NAME]))
        .and_pod("stays")
        .dnsd(&["--stall-deadline", "20ms"]);
    let Deployment {
        dnsd: _dnsd,
        mut enforcer,
        ..
    } = setting.deploy(world)?;
    world.upstream().set(NAME, Records::addresses([SERVER]));
    ask(world, "client");
    // An answer that is held no longer than this may come before it is in force.
    eventually("it is told", || is_told(world, "client"));
    assert!(reaches(world, "client"));
    enforcer.kill()?;
    ask(world, "stays");
    let seat = world.remove("client")?;
    world.add_at(seat, PodSpec::new("next"))?;
    enforcer.restart()?;
    enforcer.wait_until_ready()?;
    eventually("all is told again", || is_told(world, "stays"));
    eventually("its rules are there", || is_known(world, world.pod("next")));
    assert!(!reaches(world, "next"), "it did not ask");
    assert!(reaches(world, "stays"));
    ask(world, "next");
    eventually("it is told for itself", || is_told(world, "next"));
    assert!(reaches(world, "next"));
    Ok(())
}

/// OPEN-4: what dnsd told to one pod it did not tell to the next one at its address, also under the same name: that one is told
/// when it asks, and its answer is held, though it comes from the cache.
pub(super) fn the_next_pod_at_an_address_is_told_for_itself(world: &mut World) -> TestResult {
    let Deployment {
        dnsd: _dnsd,
        enforcer: _enforcer,
        ..
    } = Setup::of(only_names(&[NAME])).patient().deploy(world)?;
    world.upstream().set(NAME, Records::addresses([SERVER]));
    ask(world, "client");
    assert!(reaches(world, "client"));
    let mut last = "client";
    for next in ["web-0", "web-0"] {
        // Said at once, so that the address never was without a pod that waits for the name.
        world.succeed_unsaid(last, PodSpec::new(next).unannounced())?;
        world.announce(next)?;
        eventually("its rules are there", || is_known(world, world.pod(next)));
        assert!(!reaches(world, next), "it did not ask");
        ask(world, next);
        assert!(reaches(world, next));
        last = next;
    }
    Ok(())
}

/// OPEN-4: an address leads to another cable, and the source does not say yet that its pod is gone. What is behind the cable has
/// nothing of the one before, and is closed.
pub(super) fn another_cable_is_another_pods_before_the_source_says_so(world: &mut World) -> TestResult {
    let Deployment {
        dnsd: _dnsd,
        enforcer: _enforcer,
        ..
    } = Setup::of(only_names(&[NAME])).patient().deploy(world)?;
    world.upstream().set(NAME, Records::addresses([SERVER]));
    ask(world, "client");
    assert!(reaches(world, "client"));
    let old = world.pod("client").interface().to_owned();
    world.succeed_unsaid("client", PodSpec::new("next").unannounced())?;
    eventually("the new cable is seen", || {
        is_in_rules(world, world.pod("next").interface()) && !is_in_rules(world, &old)
    });
    assert!(!reaches(world, "next"), "nobody knows it");
    world.announce("next")?;
    eventually("its rules are there", || is_known(world, world.pod("next")));
    assert!(!reaches(world, "next"), "it did not ask");
    ask(world, "next");
    assert!(reaches(world, "next"));
    Ok(())
}

/// Flows that were there before any rule was: what the first rules allow goes on, what they forbid ends, though only the other
/// side sends. (A node without a rule that asks conntrack tracks nothing; kube-proxy's do.)
pub(super) fn what_was_open_before_the_first_start_is_judged(world: &mut World) -> TestResult {
    world.proxy(ProxyMode::Iptables, &[])?;
    world.serve(PUSHER, Service::UdpPush)?;
    world.add(PodSpec::new("client"))?;
    let pod = world.pod("client");
    let own = pod.address();
    let open = |server: &str, port| Listener::open(pod, SocketAddr::new(own, port), ip(server));
    let [kept, dropped] = [open("203.0.113.7", LISTENER)?, open("203.0.113.8", LISTENER + 1)?];
    for listener in [&kept, &dropped] {
        listener.ask()?;
        assert!(listener.hears());
    }
    let policy = CLOSED.to_owned()
        + "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 203.0.113.7/32}}]}]
";
    let deployment = Setup::of(policy).instead([]).deploy(world)?;
    eventually("what is forbidden ends", || !dropped.hears());
    assert!(kept.hears(), "what is allowed goes on");
    // A backend may refuse the call itself.
    drop(dropped.ask());
    assert!(!dropped.hears(), "it is asked for in vain");
    drop(deployment);
    Ok(())
}

/// What pods are told here, and the server that it opens.
const NAME: &str = "api.example.test";
const SERVER: &str = "203.0.113.7";

#[track_caller]
fn ask(world: &World, pod: &str) {
    let reply = world.pod(pod).look_up(&patient_question(NAME));
    assert!(reply.is_ok(), "{pod}: {reply:?}");
}

#[track_caller]
fn reaches(world: &World, pod: &str) -> bool {
    let server = SocketAddr::new(ip(SERVER), 7);
    world.pod(pod).connect_tcp(server, QUICK).is_connected()
}

fn is_told(world: &World, pod: &str) -> bool {
    let held = world.node().holdings().expect("the kernel can be asked");
    held.holds(world.pod(pod), ip(SERVER))
}

/// A UDP socket of a pod, and a server that pushes to whoever asked once.
struct Listener {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Listener {
    fn open(pod: &Pod, at: SocketAddr, server: std::net::IpAddr) -> io::Result<Self> {
        let socket = pod.udp_socket_at(at)?;
        let server = SocketAddr::new(server, PUSHER);
        Ok(Self { socket, server })
    }

    fn ask(&self) -> io::Result<()> {
        self.socket.send_to(b"more", self.server).map(drop)
    }

    /// Whether something new arrives: what had arrived before is read over.
    fn hears(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 8]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
        self.socket.set_read_timeout(Some(MOMENT)).unwrap();
        self.socket.recv(&mut [0; 8]).is_ok()
    }

    /// Whether what the neighbour sends to it arrives, among what the server pushes every 50 ms.
    fn hears_of(&self, neighbour: &UdpSocket) -> bool {
        neighbour
            .send_to(b"hello", self.socket.local_addr().unwrap())
            .unwrap();
        self.socket.set_read_timeout(Some(MOMENT)).unwrap();
        let mut word = [0; 8];
        let mut are_its = (0..8).map_while(|_| {
            let length = self.socket.recv(&mut word).ok()?;
            Some(word[..length] == *b"hello")
        });
        are_its.any(|is_its| is_its)
    }
}

/// In both families.
fn listen(pod: &Pod) -> io::Result<[Listener; 2]> {
    let at = pod.addresses().map(|own| SocketAddr::new(own, LISTENER));
    Ok([
        Listener::open(pod, at[0], ip("203.0.113.8"))?,
        Listener::open(pod, at[1], ip("2001:db8::8"))?,
    ])
}

/// Whether it is judged by rules of its own.
fn is_known(world: &World, pod: &Pod) -> bool {
    lines_about(world, pod.interface())
        .iter()
        .any(|line| !line.contains("EGRET-UNKNOWN"))
}

fn is_in_rules(world: &World, interface: &str) -> bool {
    !lines_about(world, interface).is_empty()
}

fn lines_about(world: &World, interface: &str) -> Vec<String> {
    let word = format!(" {interface} ");
    let holdings = world.node().holdings().unwrap();
    holdings
        .rules()
        .filter(|line| line.contains(&word))
        .map(str::to_owned)
        .collect()
}

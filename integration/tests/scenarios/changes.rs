//! Policies change while traffic runs.

use std::{
    io::{ErrorKind, Read as _},
    net::{SocketAddr, UdpSocket},
    thread::JoinHandle,
};

use egret_integration::{Connection, Forwarding, Front, Records, Service, World};

use super::deployment::{
    Deployment, MOMENT, PATIENCE, QUICK, Setup, TestResult, eventually, metrics, only_names,
};

/// No policy asked for the name when the pod was told its address.
pub(super) fn a_policy_that_comes_later_works_from_history(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    deployment
        .upstream()
        .set("later.example.test", Records::addresses(["203.0.113.8"]));
    deployment.ask("client", "later.example.test");
    deployment.assert_refused("client", "203.0.113.8");
    let both = only_names(&["api.example.test", "later.example.test"]);
    deployment.world.manifests().write("policy.yaml", &both)?;
    eventually("the kernel has it", || {
        deployment.kernel_holds("client", "203.0.113.8")
    });
    deployment.assert_reaches("client", "203.0.113.8");
    assert_eq!(deployment.upstream().asked("later.example.test"), 1);
    Ok(())
}

pub(super) fn a_change_of_policy_ends_what_it_forbids_and_nothing_else(world: &mut World) -> TestResult {
    let both = only_names(&["keep.example.test", "drop.example.test"]);
    let deployment = Setup::of(both).and_pod("other").deploy(world)?;
    deployment.upstream().set(
        "keep.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]),
    );
    deployment
        .upstream()
        .set("drop.example.test", Records::addresses(["203.0.113.8"]));
    for pod in ["client", "other"] {
        deployment.ask(pod, "keep.example.test");
        deployment.ask(pod, "drop.example.test");
    }
    let mut kept = [
        deployment.assert_reaches("client", "203.0.113.7"),
        deployment.assert_reaches("other", "203.0.113.7"),
    ];
    let mut dropped = deployment.assert_reaches("client", "203.0.113.8");
    assert!(dropped.is_alive() && kept.iter_mut().all(Connection::is_alive));
    deployment
        .world
        .manifests()
        .write("policy.yaml", &only_names(&["keep.example.test"]))?;
    eventually("the kernel has forgotten it", || {
        !deployment.kernel_holds("client", "203.0.113.8")
    });
    deployment.assert_refused("client", "203.0.113.8");
    let carried = dropped.echo_within(QUICK);
    assert!(carried.is_err(), "the open connection goes on: {carried:?}");
    assert!(
        kept.iter_mut().all(Connection::is_alive),
        "nothing changed for these"
    );
    deployment.assert_reaches("client", "203.0.113.7");
    Ok(())
}

/// The pod has asked once and only listens, on a socket that nobody can end from outside. What was forbidden and is allowed
/// again works on the same ports.
pub(super) fn a_change_of_policy_ends_what_only_the_other_side_sends(world: &mut World) -> TestResult {
    let (both, one) = (
        only_names(&["keep.example.test", "drop.example.test"]),
        only_names(&["keep.example.test"]),
    );
    let deployment = Setup::of(both.clone()).and_pod("other").deploy(world)?;
    deployment.world.serve(PUSHED, Service::UdpPush)?;
    told_of_both(&deployment);
    let mut kept = [
        Stream::open(&deployment, "client", "203.0.113.7")?,
        Stream::open(&deployment, "other", "203.0.113.7")?,
    ];
    let mut dropped = Stream::open(&deployment, "client", "203.0.113.8")?;
    assert!(dropped.flows() && kept.iter_mut().all(Stream::flows));
    deployment.world.manifests().write("policy.yaml", &one)?;
    await_forgotten(&deployment);
    eventually("the stream ends", || !dropped.flows());
    assert!(kept.iter_mut().all(Stream::flows), "nothing changed for these");
    // The programs of eBPF refuse the call.
    let asked = dropped.ask();
    assert!(!dropped.flows(), "it is asked for in vain: {asked:?}");

    deployment.world.manifests().write("policy.yaml", &both)?;
    eventually("the kernel has it again", || {
        deployment.kernel_holds("client", "203.0.113.8")
    });
    eventually("the stream flows again", || {
        dropped.ask().is_ok() && dropped.flows()
    });
    assert!(kept.iter_mut().all(Stream::flows));
    Ok(())
}

/// One to the address itself, one to a Service that leads there; the program waits for the server.
pub(super) fn a_program_learns_at_once_that_its_connection_is_forbidden(world: &mut World) -> TestResult {
    const SERVICE: &str = "10.96.0.8";
    let both = only_names(&["keep.example.test", "drop.example.test"]);
    let deployment = Setup::of(both).and_pod("other").deploy(world)?;
    deployment.world.forward(&[Forwarding {
        front: Front::Cluster(format!("{SERVICE}:7").parse()?),
        endpoint: "203.0.113.8:7".parse()?,
    }])?;
    told_of_both(&deployment);
    let mut kept = [
        deployment.assert_reaches("client", "203.0.113.7"),
        deployment.assert_reaches("other", "203.0.113.7"),
    ];
    let dropped = ["203.0.113.8", SERVICE].map(|to| deployment.assert_reaches("client", to));
    let waiting = dropped.map(await_abort);
    deployment
        .world
        .manifests()
        .write("policy.yaml", &only_names(&["keep.example.test"]))?;
    for waiting in waiting {
        assert_learned(waiting);
    }
    assert!(
        kept.iter_mut().all(Connection::is_alive),
        "nothing changed for these"
    );
    let counted = metrics(&deployment.enforcer).sum("egret_enforcer_sockets_ended_total", &[]);
    assert!(counted >= 2.0, "{counted} sockets were ended");
    Ok(())
}

/// What forbids it is the other pod's ingress; over IPv6, and the client's own rules stay as they are.
pub(super) fn a_client_on_the_node_learns_that_a_server_does_not_want_it_any_more(
    world: &mut World,
) -> TestResult {
    let from = |app: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: clients, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: server}}}}
  policyTypes: [Ingress]
  ingress:
  - from: [{{podSelector: {{matchExpressions: [{{key: app, operator: In, values: [{app}]}}]}}}}]
"
        )
    };
    let deployment = Setup::of(from("client, other"))
        .and_pod("other")
        .and_pod("server")
        .deploy(world)?;
    deployment.pod("server").serve(8000, Service::TcpEcho)?;
    let to = SocketAddr::new(deployment.pod("server").address_v6(), 8000);
    let connect = |pod: &str| deployment.pod(pod).connect_tcp(to, QUICK).connection();
    let (mut kept, dropped) = (connect("other"), connect("client"));
    let waiting = await_abort(dropped);
    deployment
        .world
        .manifests()
        .write("policy.yaml", &from("other"))?;
    assert_learned(waiting);
    assert!(kept.is_alive(), "nothing changed for this one");
    assert!(!deployment.pod("client").connect_tcp(to, QUICK).is_connected());
    Ok(())
}

/// Pods of another node lose the label by which they are reached.
pub(super) fn only_what_is_open_to_members_that_go_is_asked_again(world: &mut World) -> TestResult {
    const POLICY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: peers, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {is: peer}}}]}]
";
    let elsewhere = |labels: [&str; 2]| {
        let pod = |(address, label): (&str, &str)| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: at-{}, namespace: default, labels: {{is: {label}}}}}\n\
                 spec: {{nodeName: elsewhere}}\nstatus: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n---\n",
                address.replace('.', "-")
            )
        };
        ["203.0.113.7", "203.0.113.8"]
            .into_iter()
            .zip(labels)
            .map(pod)
            .collect::<String>()
    };
    world
        .manifests()
        .write("elsewhere.yaml", &elsewhere(["peer", "peer"]))?;
    let deployment = Setup::of(POLICY).and_pod("other").deploy(world)?;
    let mut kept = [
        deployment.assert_reaches("client", "203.0.113.7"),
        deployment.assert_reaches("other", "203.0.113.7"),
    ];
    let waiting = ["client", "other"].map(|pod| await_abort(deployment.assert_reaches(pod, "203.0.113.8")));
    let written = || metrics(&deployment.enforcer).sum("egret_enforcer_restored_bytes_total", &[]);
    let before = written();
    deployment
        .world
        .manifests()
        .write("elsewhere.yaml", &elsewhere(["peer", "other"]))?;
    for waiting in waiting {
        assert_learned(waiting);
    }
    deployment.assert_refused("client", "203.0.113.8");
    assert!(
        kept.iter_mut().all(Connection::is_alive),
        "nothing changed for these"
    );
    assert_eq!(written(), before, "everybody is asked again");
    Ok(())
}

/// A program that waits for the server's next word; when it heard that there is no connection any more.
fn await_abort(mut connection: Connection) -> JoinHandle<std::io::Result<()>> {
    assert!(connection.is_alive());
    std::thread::spawn(move || {
        let stream = connection.stream();
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(ErrorKind::InvalidData.into()),
        }
    })
}

#[track_caller]
fn assert_learned(waiting: JoinHandle<std::io::Result<()>>) {
    let heard = waiting
        .join()
        .expect("the program goes on until it hears something");
    assert!(heard.is_ok(), "the program never heard of it: {heard:?}");
}

const PUSHED: u16 = 5005;

/// What a server pushes to a pod.
struct Stream {
    socket: UdpSocket,
    from: SocketAddr,
}

impl Stream {
    fn open(deployment: &Deployment<'_>, pod: &str, address: &str) -> std::io::Result<Self> {
        let from = SocketAddr::new(address.parse().unwrap(), PUSHED);
        let socket = deployment.pod(pod).open_udp_socket(from)?;
        socket.set_nonblocking(false)?;
        let stream = Self { socket, from };
        stream.ask()?;
        Ok(stream)
    }

    fn ask(&self) -> std::io::Result<()> {
        self.socket.send_to(b"more", self.from).map(drop)
    }

    /// Whether something new arrives: what had arrived before is read over.
    fn flows(&mut self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 8]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
        self.socket.set_read_timeout(Some(MOMENT)).unwrap();
        self.socket.recv(&mut [0; 8]).is_ok()
    }
}

fn told_of_both(deployment: &Deployment<'_>) {
    for (name, address) in [
        ("keep.example.test", "203.0.113.7"),
        ("drop.example.test", "203.0.113.8"),
    ] {
        deployment.upstream().set(name, Records::addresses([address]));
        for pod in ["client", "other"] {
            deployment.ask(pod, name);
        }
    }
}

#[track_caller]
fn await_forgotten(deployment: &Deployment<'_>) {
    eventually("the kernel has forgotten it", || {
        !deployment.kernel_holds("client", "203.0.113.8")
    });
}

/// A text that is no YAML at all, and an object with a field that says nothing sensible.
pub(super) fn a_bad_policy_file_is_named_and_what_worked_stays_in_force(world: &mut World) -> TestResult {
    let good = only_names(&["api.example.test"]);
    let deployment = Setup::of(good.clone()).deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("client", "api.example.test");
    deployment.assert_reaches("client", "203.0.113.7");
    let bad = [
        (
            good.replace("  egress:", "  egress: ]"),
            vec!["policy.yaml:10:11", "accepted"],
        ),
        (
            good.replace("priority: 10", "priority: ten"),
            vec!["policy.yaml", "spec.priority", "line 7", "accepted"],
        ),
    ];
    for (text, said) in bad {
        deployment.world.manifests().write("policy.yaml", &text)?;
        await_log(&deployment, &said);
        await_bad_files(&deployment, 1.0);
        deployment.assert_reaches("client", "203.0.113.7");
        deployment.assert_refused("client", "203.0.113.8");
        deployment.world.manifests().write("policy.yaml", &good)?;
        await_bad_files(&deployment, 0.0);
        deployment.assert_reaches("client", "203.0.113.7");
    }
    Ok(())
}

#[track_caller]
fn await_log(deployment: &Deployment<'_>, words: &[&str]) {
    eventually("the log names the file and the place", || {
        let log = deployment.enforcer.log();
        log.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    });
}

#[track_caller]
fn await_bad_files(deployment: &Deployment<'_>, number: f64) {
    eventually("bad files are counted", || {
        metrics(&deployment.enforcer).sum("egret_enforcer_source_bad_files", &[]) == number
    });
}

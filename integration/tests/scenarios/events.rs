//! What is denied is told: to who operates the node, as lines; to who sent it, at once if that is wanted.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use egret_integration::{Forwarding, Front, Outcome, PodSpec, Records, Service, UdpOutcome, World, node};
use serde_json::Value;

use super::backend_override;
use super::deployment::{
    Deployment, PATIENCE, QUICK, Setup, TestResult, eventually, ip, metrics, only_names, within,
};

/// Starts with events in a file of the world.
pub(super) fn telling(
    world: &mut World,
    setting: Setup,
) -> Result<(Deployment<'_>, Events), Box<dyn std::error::Error>> {
    let events = Events(world.files().join("events.jsonl"));
    let path = events.0.display().to_string();
    Ok((setting.enforcer(&["--events", &path]).deploy(world)?, events))
}

/// The lines that were written.
pub(super) struct Events(std::path::PathBuf);

impl Events {
    pub(super) fn all(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Those about single packets to or from this port.
    fn of_port(&self, port: u16) -> Vec<Value> {
        let is_meant = |line: &Value| line["type"] == "denied" && line["port"] == port;
        self.all().into_iter().filter(is_meant).collect()
    }

    #[track_caller]
    fn one_of_port(&self, port: u16) -> Value {
        eventually("it is told", || !self.of_port(port).is_empty());
        let [line] = self.of_port(port).try_into().expect("it is told once");
        line
    }
}

/// The first attempt is one packet: the kernel repeats it after a second.
pub(super) fn a_denied_connection_is_told_with_its_rule_and_the_name_that_the_pod_was_told(
    world: &mut World,
) -> TestResult {
    let setting = Setup::of(only_names(&["api.example.test"])).and_pod("other");
    let (deployment, events) = telling(world, setting)?;
    for (name, address) in [
        ("other.example.test", "203.0.113.8"),
        ("api.example.test", "203.0.113.7"),
    ] {
        deployment.upstream().set(name, Records::addresses([address]));
        deployment.ask("client", name);
    }
    assert!(deployment.reach_port("client", "203.0.113.7", 7).is_connected());
    for (port, address, name) in [
        (7001, "203.0.113.8", Some("other.example.test")),
        (7002, "203.0.113.9", None),
        (7003, "2001:db8::7", None),
    ] {
        assert!(!deployment.reach_port("client", address, port).is_connected());
        let line = events.one_of_port(port);
        let said = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            [
                "verdict",
                "reason",
                "direction",
                "tier",
                "policy",
                "namespace",
                "pod",
                "protocol"
            ]
            .map(said),
            [
                "deny",
                "rule",
                "egress",
                "admin",
                "ClusterNetworkPolicy/names",
                "default",
                "client",
                "TCP"
            ],
            "{line}"
        );
        assert_eq!(
            (&line["rule"], &line["peer"]["address"]),
            (&2.into(), &address.into())
        );
        assert_eq!(line["peer"]["name"].as_str(), name, "{line}");
        if backend_override::judges_sockets() {
            // This process calls connect(2), with a socket of the pod.
            assert_eq!(line["process"]["pid"], std::process::id(), "{line}");
        } else {
            assert_eq!(line["interface"], deployment.pod("client").interface());
        }
    }
    deployment.assert_refused("other", "203.0.113.8");
    let line = events.one_of_port(7);
    assert_eq!(
        (&line["pod"], &line["peer"]["name"]),
        (&"other".into(), &Value::Null),
        "it did not ask"
    );
    Ok(())
}

/// Nobody may come in.
const CLOSED: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
"#;

pub(super) fn a_denied_ingress_is_told_of_the_pod_that_was_to_be_reached(world: &mut World) -> TestResult {
    let (deployment, events) = telling(world, Setup::of(CLOSED).and_pod("server"))?;
    for (port, to) in [
        (7001, deployment.pod("server").address()),
        (7002, deployment.pod("server").address_v6()),
    ] {
        // The programs of eBPF see what reaches a socket.
        deployment.pod("server").serve(port, Service::TcpEcho)?;
        let outcome = deployment
            .pod("client")
            .connect_tcp(SocketAddr::new(to, port), QUICK);
        assert!(!outcome.is_connected(), "{outcome:?}");
        let line = events.one_of_port(port);
        assert_eq!(
            ["reason", "direction", "namespace", "pod"].map(|field| line[field].as_str()),
            ["isolation", "ingress", "default", "server"].map(Some),
            "{line}"
        );
        assert_eq!(
            (&line["peer"]["namespace"], &line["peer"]["pod"]),
            (&"default".into(), &"client".into())
        );
        assert_eq!(line["destination"]["address"], to.to_string());
    }
    Ok(())
}

/// No Service may lead a client outside to the address; and the server is open, until it is closed.
const EXPOSED: &str = r#"apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: inside}
spec:
  rules:
  - {name: restricted, action: Deny, to: [{networks: [203.0.113.64/26]}]}
---
"#;

/// A pod without an object, a client outside whom a Service leads on, and a connection that was open before.
pub(super) fn what_no_rule_of_a_pod_denies_is_told_with_its_reason(world: &mut World) -> TestResult {
    let open = CLOSED.replace(
        "policyTypes: [Ingress]",
        "policyTypes: [Ingress]\n  ingress: [{}]",
    );
    let setting = Setup::of(EXPOSED.to_owned() + &open)
        .and(PodSpec::new("late").unannounced())
        .and_pod("server");
    let (deployment, events) = telling(world, setting)?;
    assert!(!deployment.reach_port("late", "203.0.113.7", 7001).is_connected());
    let line = events.one_of_port(7001);
    assert_eq!(
        (&line["reason"], &line["pod"]),
        (&"unknown-pod".into(), &Value::Null),
        "{line}"
    );
    assert_eq!(
        line["source"]["address"],
        deployment.pod("late").address().to_string()
    );

    let (front, endpoint) = (Front::NodePort(30066), "203.0.113.66:7002".parse()?);
    deployment.world.forward(&[Forwarding { front, endpoint }])?;
    let outside = deployment.world.client_outside();
    let outcome = outside.connect_tcp(SocketAddr::new(node::ADDRESS.into(), 30066), QUICK);
    assert!(!outcome.is_connected(), "{outcome:?}");
    let line = events.one_of_port(7002);
    assert_eq!(
        ["reason", "policy", "pod"].map(|field| line[field].as_str()),
        [Some("exposure"), Some("ClusterEgressFirewall/inside"), None],
        "{line}"
    );
    assert_eq!(line["peer"]["address"], line["source"]["address"]);

    deployment.pod("server").serve(7003, Service::TcpEcho)?;
    let to = SocketAddr::new(deployment.pod("server").address(), 7003);
    let mut connection = outside.connect_tcp(to, PATIENCE).connection();
    assert!(connection.is_alive());
    deployment
        .world
        .manifests()
        .write("policy.yaml", &(EXPOSED.to_owned() + CLOSED))?;
    // The programs of eBPF judge it at its next packet.
    eventually("it is revoked", || match backend_override::is_ebpf() {
        true => connection.echo_within(QUICK).is_err(),
        false => metrics(&deployment.enforcer).sum("egret_enforcer_flows_revoked_total", &[]) >= 1.0,
    });
    assert!(connection.echo_within(QUICK).is_err());
    eventually("it is told", || {
        let is_meant = |line: &Value| line["reason"] == "revoked" && line["pod"] == "server";
        // Or of what the server was about to acknowledge, towards the client's port.
        events.all().iter().any(is_meant)
    });
    Ok(())
}

/// Each datagram is one that was never seen before: from a port of its own, with the pod's rules asked.
pub(super) fn a_flood_is_told_in_few_lines_and_in_sums_that_are_right(world: &mut World) -> TestResult {
    const SENT: u64 = 4000;
    let setting = Setup::of(only_names(&["api.example.test"])).and_pod("other");
    let (deployment, events) = telling(world, setting)?;
    let to = SocketAddr::new(ip("203.0.113.9"), 7009);
    let begun = Instant::now();
    for _ in 0..SENT {
        let socket = deployment.pod("client").open_udp_socket(to)?;
        match socket.send_to(b"flood", to) {
            // The programs of eBPF refuse the call.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            sent => drop(sent?),
        }
    }
    let seconds = begun.elapsed().as_secs() + 3;
    let counted = || {
        let all = events.all();
        let sum = |line: &Value, list: &str| -> u64 {
            let counts = line[list].as_array().into_iter().flatten();
            counts.filter_map(|counted| counted["packets"].as_u64()).sum()
        };
        let of_summaries: u64 = all
            .iter()
            .map(|line| sum(line, "withheld") + sum(line, "suppressed") + line["lost"].as_u64().unwrap_or(0))
            .sum();
        of_summaries + events.of_port(7009).len() as u64
    };
    within(2 * PATIENCE, "all are accounted for", || counted() >= SENT);
    assert_eq!(counted(), SENT, "{:#?}", events.all());
    // Ten a second for one reason, twenty at first.
    let lines = events.of_port(7009).len() as u64;
    assert!(lines <= 20 + 10 * seconds, "{lines} lines in {seconds} s");
    let all = events.all();
    let summary = all
        .iter()
        .find(|line| line["type"] == "summary")
        .expect("there is one");
    assert_eq!(
        summary["suppressed"][0]["policy"], "ClusterNetworkPolicy/names",
        "{summary}"
    );
    // The engine is unharmed.
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("other", "api.example.test");
    deployment.assert_reaches("other", "203.0.113.7");
    Ok(())
}

/// Nothing may leave the client, and nobody may come in to the server.
const REJECTED: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: in, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
"#;

/// TCP hears a reset, the rest an error of ICMP; who sent it hears it, whichever policy it was.
pub(super) fn a_refused_sender_hears_it_at_once_in_both_directions_and_families(
    world: &mut World,
) -> TestResult {
    let setting = Setup::of(REJECTED).and_pod("other").and_pod("server");
    let deployment = setting.enforcer(&["--deny-action", "reject"]).deploy(world)?;
    deployment.pod("server").serve(7, Service::TcpEcho)?;
    for to in ["203.0.113.7", "2001:db8::7"].map(ip) {
        assert_rejected(&deployment, "client", to);
    }
    for to in deployment.pod("server").addresses() {
        assert_rejected(&deployment, "other", to);
        let outcome = deployment
            .world
            .client_outside()
            .connect_tcp(SocketAddr::new(to, 7), PATIENCE);
        assert!(
            matches!(outcome, Outcome::Refused),
            "from outside to {to}: {outcome:?}"
        );
    }
    Ok(())
}

#[track_caller]
fn assert_rejected(deployment: &Deployment<'_>, pod: &str, to: IpAddr) {
    let outcome = deployment.pod(pod).connect_tcp(SocketAddr::new(to, 7), PATIENCE);
    assert!(matches!(outcome, Outcome::Refused), "{pod} to {to}: {outcome:?}");
    let outcome = deployment
        .pod(pod)
        .exchange_udp(SocketAddr::new(to, 7), b"hello", PATIENCE);
    assert!(
        matches!(outcome, UdpOutcome::Refused | UdpOutcome::NotPermitted),
        "{pod} to {to}: {outcome:?}"
    );
}

/// A client outside has a connection to a pod, of which it hears at once when it sends the next time.
pub(super) fn a_client_outside_is_reset_when_its_open_connection_is_forbidden(
    world: &mut World,
) -> TestResult {
    let open = CLOSED.replace(
        "policyTypes: [Ingress]",
        "policyTypes: [Ingress]\n  ingress: [{}]",
    );
    let setting = Setup::of(open).and_pod("server");
    let deployment = setting.enforcer(&["--deny-action", "reject"]).deploy(world)?;
    deployment.pod("server").serve(7, Service::TcpEcho)?;
    let outside = deployment.world.client_outside();
    let mut connections = deployment
        .pod("server")
        .addresses()
        .map(|to| outside.connect_tcp(SocketAddr::new(to, 7), PATIENCE).connection());
    assert!(connections.iter_mut().all(|connection| connection.is_alive()));
    deployment.world.manifests().write("policy.yaml", CLOSED)?;
    eventually("they are revoked", || {
        metrics(&deployment.enforcer).sum("egret_enforcer_flows_revoked_total", &[]) >= 2.0
    });
    for connection in &mut connections {
        let error = connection.echo_within(QUICK).expect_err("it is forbidden");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    Ok(())
}

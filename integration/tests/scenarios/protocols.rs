//! What is no plain TCP: ICMP and its errors, neighbours, SCTP, UDP that nobody answers, fragments; and ports of the
//! node that lead to a pod.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr},
};

use egret_integration::{Greeting, PodSpec, Service, World, node, remote_host};

use super::deployment::{Deployment, MOMENT, PATIENCE, QUICK, Setup, TestResult, eventually, ip, metrics};

const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

/// The pods `all` and `ports` may send to the same place, one of them to a port only; `client` nowhere.
const ECHO: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing, namespace: default}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: all, namespace: default}
spec:
  podSelector: {matchLabels: {app: all}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: "2001:db8::/32"}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: ports, namespace: default}
spec:
  podSelector: {matchLabels: {app: ports}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: "2001:db8::/32"}}]
    ports: [{protocol: TCP, port: 7}, {protocol: UDP, port: 7}]
"#;

/// CROSS-15, CASE-30.
pub(super) fn echo_passes_by_a_rule_without_ports_alone(world: &mut World) -> TestResult {
    let setting = Setup::of(ECHO).and_pod("all").and_pod("ports");
    let deployment = setting.deploy(world)?;
    for to in OUTSIDE.map(ip) {
        for (pod, is_open) in [("all", true), ("ports", false), ("client", false)] {
            assert_eq!(
                deployment.pod(pod).is_echoed(to, QUICK)?,
                is_open,
                "{pod} to {to}"
            );
        }
    }
    for to in deployment.pod("client").addresses() {
        assert!(
            !deployment.pod("all").is_echoed(to, QUICK)?,
            "nobody reaches {to}"
        );
    }
    deployment.assert_reaches("ports", OUTSIDE[0]);
    deployment.assert_reaches("ports", OUTSIDE[1]);
    Ok(())
}

/// Nothing may be sent or come in, to and from the own node neither.
const NOTHING_AT_ALL: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nothing}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress:
  - {name: nobody, action: Deny, from: [{namespaces: {}}]}
  egress:
  - {name: nowhere, action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}
"#;

/// CASE-30, RULE-1: each side has forgotten the other's hardware address, and asks for it again.
pub(super) fn neighbours_are_found_where_everything_is_denied(world: &mut World) -> TestResult {
    let deployment = Setup::of(NOTHING_AT_ALL).deploy(world)?;
    let pod = deployment.pod("client");
    pod.serve(7, Service::TcpEcho)?;
    let flushed = pod.run(&["ip", "-6", "neigh", "flush", "dev", "eth0"])?;
    assert!(flushed.success(), "{}", flushed.stderr);
    deployment.assert_refused("client", OUTSIDE[1]);
    assert_knows_neighbour(&pod.run(&["ip", "-6", "neigh", "show", "dev", "eth0"])?.stdout);
    let node = deployment.world.node();
    node.run_well(&["ip", "-6", "neigh", "flush", "dev", pod.interface()])?;
    let to = SocketAddr::new(pod.address_v6(), 7);
    let outcome = deployment.world.client_on_node().connect_tcp(to, PATIENCE);
    assert!(outcome.is_connected(), "the own node: {outcome:?}");
    Ok(())
}

/// `<address> lladdr <hardware address> [router] <state>`.
#[track_caller]
fn assert_knows_neighbour(listed: &str) {
    let is_known = |line: &&str| line.contains(" lladdr ") && !line.ends_with("FAILED");
    assert!(
        listed.lines().any(|line| is_known(&line.trim_end())),
        "{listed:?}"
    );
}

/// The client may send to one place, by TCP; nothing may come in.
fn one_way() -> String {
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: one-way, namespace: default}}
spec:
  podSelector: {{}}
  policyTypes: [Ingress, Egress]
  egress:
  - to: [{{ipBlock: {{cidr: {}/32}}}}, {{ipBlock: {{cidr: "{}/128"}}}}]
    ports: [{{protocol: TCP, port: 7}}]
"#,
        remote_host::ADDRESS,
        remote_host::ADDRESS_V6
    )
}

/// CASE-29: a router in the upstream network says "fragmentation needed" or "packet too big"; nothing else of it may come in.
pub(super) fn errors_of_path_mtu_reach_who_may_send_and_no_other_icmp_does(world: &mut World) -> TestResult {
    const MTU: u16 = 1300;
    let deployment = Setup::of(one_way()).deploy(world)?;
    let _remote_host = deployment.world.add_remote_host(MTU, 7)?;
    for to in [remote_host::ADDRESS, remote_host::ADDRESS_V6] {
        // A first packet may be lost while the new link comes up.
        let to_server = SocketAddr::new(ip(to), 7);
        let mut connection = deployment
            .pod("client")
            .connect_tcp(to_server, PATIENCE)
            .connection();
        let stream = connection.stream();
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[1; 60_000])?;
        let mut back = vec![0; 60_000];
        let read = stream.read_exact(&mut back);
        assert!(read.is_ok(), "{to}: a large transfer hangs: {read:?}");
        let route = deployment.pod("client").run(&["ip", "route", "get", to])?.stdout;
        assert!(route.contains(&format!("mtu {MTU}")), "no error came: {route}");
        assert!(
            !deployment.pod("client").is_echoed(ip(to), QUICK)?,
            "no echo to {to}"
        );
    }
    Ok(())
}

/// SCTP to 7, TCP to 8080.
const SCTP: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: "2001:db8::/32"}}]
    ports: [{protocol: SCTP, port: 7}, {protocol: TCP, port: 8080}]
"#;

/// CASE-28, CROSS-16.
pub(super) fn a_rule_of_sctp_opens_sctp_alone_and_one_of_tcp_does_not(world: &mut World) -> TestResult {
    // Without it every packet of SCTP would be INVALID or of the generic tracker, and this would show nothing.
    let tracker = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established";
    if File::open(tracker).is_err() {
        return Err("the kernel does not track SCTP (CONFIG_NF_CT_PROTO_SCTP)".into());
    }
    let deployment = Setup::of(SCTP).deploy(world)?;
    for to in OUTSIDE {
        let greet = |port| {
            deployment
                .world
                .greet_by_sctp("client", SocketAddr::new(ip(to), port), QUICK)
        };
        assert_eq!(greet(7)?, Greeting::Answered, "{to}");
        assert_eq!(greet(8)?, Greeting::Lost, "another port of {to}");
        assert_eq!(greet(8080)?, Greeting::Lost, "the port of TCP at {to}");
        assert!(deployment.reach_port("client", to, 8080).is_connected(), "{to}");
        deployment.assert_refused("client", to);
    }
    Ok(())
}

fn datagrams_to(port: u16) -> String {
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: datagrams, namespace: default}}
spec:
  podSelector: {{}}
  policyTypes: [Egress]
  egress:
  - to: [{{ipBlock: {{cidr: 203.0.113.0/24}}}}, {{ipBlock: {{cidr: "2001:db8::/32"}}}}]
    ports: [{{protocol: UDP, port: {port}}}]
"#
    )
}

/// Such a flow stays NEW for netfilter, however long it lasts.
pub(super) fn datagrams_that_nobody_answers_are_judged_once_and_again_when_the_policy_changes(
    world: &mut World,
) -> TestResult {
    const SENT: usize = 50;
    let deployment = Setup::of(datagrams_to(514)).deploy(world)?;
    let mute = deployment.world.mute_on_upstream_network(514)?;
    let flow = |to| deployment.pod("client").udp_socket(SocketAddr::new(ip(to), 514));
    let flows = [flow(OUTSIDE[0])?, flow(OUTSIDE[1])?];
    mute.set_read_timeout(Some(PATIENCE))?;
    for number in 0..SENT {
        for flow in &flows {
            flow.send(b"log")?;
            let arrived = mute.recv(&mut [0; 64]);
            assert!(arrived.is_ok(), "only {number} of {SENT} arrive: {arrived:?}");
        }
    }
    let judged = || {
        let labels = [("tier", "np"), ("action", "allow"), ("direction", "egress")];
        metrics(&deployment.enforcer).sum("egret_enforcer_verdicts_total", &labels)
    };
    eventually("the first of each flow is counted", || judged() >= 2.0);
    assert_eq!(judged(), 2.0, "only the first of {SENT} in each flow is judged");
    deployment
        .world
        .manifests()
        .write("policy.yaml", &datagrams_to(515))?;
    mute.set_read_timeout(Some(MOMENT))?;
    for flow in &flows {
        // Its socket may be ended as well: then its program cannot send.
        eventually("the open flow ends", || {
            flow.send(b"log").is_err() || mute.recv(&mut [0; 64]).is_err()
        });
    }
    Ok(())
}

/// UDP to port 7 only.
const FRAGMENTS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: "2001:db8::/32"}}]
    ports: [{protocol: UDP, port: 7}]
"#;

/// Only the first fragment of a datagram bears its ports; both servers would answer.
pub(super) fn fragments_share_the_verdict_of_their_datagram(world: &mut World) -> TestResult {
    let deployment = Setup::of(FRAGMENTS).deploy(world)?;
    let datagram = [7; 4000];
    let send = |to, port, patience| {
        let to = SocketAddr::new(ip(to), port);
        deployment.pod("client").exchange_udp(to, &datagram, patience)
    };
    for to in OUTSIDE {
        let before = fragments_in(&deployment)?;
        let refused = send(to, 5000, QUICK);
        assert!(!refused.is_answered(), "{to}: {refused:?}");
        assert_eq!(
            fragments_in(&deployment)?,
            before,
            "not one fragment of it passes to {to}"
        );
        let answered = send(to, 7, PATIENCE);
        assert!(answered.is_answered(), "{to}: {answered:?}");
        assert!(fragments_in(&deployment)? > before, "{to} got it in one piece");
    }
    Ok(())
}

/// How many fragments came to the upstream network (RFC 4293, ipReasmReqds), of both families.
fn fragments_in(deployment: &Deployment<'_>) -> Result<[u64; 2], Box<dyn std::error::Error>> {
    let pin = format!(
        "--net=/run/netns/{}",
        deployment.world.upstream_network_namespace()
    );
    let read = |file| deployment.world.node().run(&["nsenter", &pin, "cat", file]);
    let v4 = read("/proc/net/snmp")?.stdout;
    let mut ip_lines = v4.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (ip_lines.next(), ip_lines.next());
    let place = names.and_then(|names| names.split(' ').position(|name| name == "ReasmReqds"));
    let v4 = place.and_then(|place| values?.split(' ').nth(place)?.parse().ok());
    let v6 = read("/proc/net/snmp6")?.stdout;
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Ip6ReasmReqds"));
    let v6 = v6.and_then(|value| value.trim().parse().ok());
    Ok([v4.ok_or("no Ip ReasmReqds")?, v6.ok_or("no Ip6ReasmReqds")?])
}

/// Two pods that serve the same; one may be reached at the port of the container, one at that of the host.
const HOST_PORTS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: of-the-container, namespace: default}
spec:
  podSelector: {matchLabels: {app: container}}
  ingress: [{ports: [{port: 70}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: of-the-host, namespace: default}
spec:
  podSelector: {matchLabels: {app: host}}
  ingress: [{ports: [{port: 8081}]}]
"#;

/// RULE-8: as the CNI plugin `portmap` does it, behind which the packet has the address and port of the container.
pub(super) fn a_port_of_the_host_is_judged_as_the_port_of_the_container(world: &mut World) -> TestResult {
    let pods = ["container", "host"].map(PodSpec::new);
    let deployment = Setup::of(HOST_PORTS).instead(pods).deploy(world)?;
    let hosts: [IpAddr; 2] = [node::ADDRESS.into(), node::ADDRESS_V6.into()];
    let outside = deployment.world.client_outside();
    for (pod, port, is_open) in [("container", 8080, true), ("host", 8081, false)] {
        deployment.pod(pod).serve(70, Service::TcpEcho)?;
        for (host, own) in hosts.into_iter().zip(deployment.pod(pod).addresses()) {
            map_port(&deployment, port, SocketAddr::new(own, 70))?;
            let outcome = outside.connect_tcp(SocketAddr::new(host, port), QUICK);
            assert_eq!(outcome.is_connected(), is_open, "{pod} by {host}: {outcome:?}");
        }
    }
    Ok(())
}

fn map_port(deployment: &Deployment<'_>, port: u16, to: SocketAddr) -> TestResult {
    let program = if to.is_ipv4() { "iptables" } else { "ip6tables" };
    let (port, to) = (port.to_string(), to.to_string());
    let rule = format!("-m addrtype --dst-type LOCAL -p tcp --dport {port} -j DNAT --to-destination {to}");
    let argv = [program, "-w", "-t", "nat", "-A", "PREROUTING"].into_iter();
    let argv: Vec<_> = argv.chain(rule.split(' ')).collect();
    Ok(deployment.world.node().run_well(&argv)?)
}

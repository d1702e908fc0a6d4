//! What a ClusterEgressFirewall says of the outside, of names, of ICMP and of chosen nodes.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
};

use egret_integration::{Records, Service, World, node, other_node};

use super::{
    deployment::{QUICK, Setup, TestResult, eventually, ip},
    rules::{Probe, assert_verdicts},
};

const OUTSIDE: [&str; 2] = ["203.0.113.1", "2001:db8::1"];

fn firewall(rules: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: firewall}}
spec:
  rules:
{rules}"
    )
}

const LISTED: &str = r#"  - name: dns
    action: Allow
    to: [{networks: [169.254.20.10/32, "fd00::20:10/128"]}]
    protocols: [{udp: {destinationPort: {number: 53}}}]
  - name: listed
    action: Allow
    to: [{domainNames: ["*.listed.example.test"]}]
  - name: rest
    action: Deny
    to: [{external: {}}]
"#;

/// R-21, E-4: pods are inside, on whichever node; nodes are outside, and a name opens what the pod was told.
pub(super) fn what_is_external_is_refused_but_for_names_that_are_listed(world: &mut World) -> TestResult {
    let elsewhere = world.lay_other_node()?;
    elsewhere.serve(7, Service::TcpEcho)?;
    let far = other_node::pod_addresses(5);
    let document = other_node::pod_document("far", far, false);
    world.manifests().write("far.yaml", &document)?;
    world.serve_on_node(7, Service::TcpEcho)?;
    let deployment = Setup::of(firewall(LISTED)).and_pod("server").deploy(world)?;
    deployment.pod("server").serve(7, Service::TcpEcho)?;
    for (name, address) in [
        ("a.listed.example.test", "203.0.113.7"),
        ("other.example.test", "203.0.113.8"),
    ] {
        deployment.upstream().set(name, Records::addresses([address]));
        assert_eq!(deployment.ask("client", name).addresses(), [ip(address)]);
    }
    let nodes: [IpAddr; 4] = [
        node::ADDRESS.into(),
        node::ADDRESS_V6.into(),
        other_node::ADDRESS.into(),
        other_node::ADDRESS_V6.into(),
    ];
    let inside = [deployment.pod("server").addresses(), far].concat();
    let mut probes: Vec<Probe<'_>> = Vec::new();
    probes.extend(inside.into_iter().map(|to| ("client", to, 7, true)));
    probes.extend(nodes.map(|to| ("client", to, 7, false)));
    probes.extend(OUTSIDE.map(|to| ("client", ip(to), 7, false)));
    probes.extend([
        ("client", ip("203.0.113.7"), 7, true),
        ("client", ip("203.0.113.8"), 7, false),
        ("server", ip("203.0.113.7"), 7, false),
    ]);
    assert_verdicts(&deployment, &probes);
    Ok(())
}

const ICMP: &str = r#"  - action: Deny
    to: [{networks: [203.0.113.1/32, "2001:db8::1/128"]}]
    protocols: [{icmp: {}}]
"#;

/// E-7: `icmp` is ICMP of IPv4 and ICMPv6.
pub(super) fn a_firewall_of_icmp_refuses_echo_and_nothing_else(world: &mut World) -> TestResult {
    let deployment = Setup::of(firewall(ICMP)).deploy(world)?;
    let client = deployment.pod("client");
    for (to, is_open) in OUTSIDE
        .map(|to| (to, false))
        .into_iter()
        .chain([("203.0.113.2", true), ("2001:db8::2", true)])
    {
        assert_eq!(client.is_echoed(ip(to), QUICK)?, is_open, "echo of {to}");
        deployment.assert_reaches("client", to);
        let udp = client.exchange_udp(SocketAddr::new(ip(to), 7), b"?", QUICK);
        assert!(udp.is_answered(), "UDP to {to}: {udp:?}");
    }
    Ok(())
}

const CHOSEN: &str = "  - action: Deny
    to: [{nodes: {selector: {matchLabels: {kubernetes.io/hostname: node-2}}}}]
    protocols: [{tcp: {destinationPort: {range: {start: 22623, end: 22624}}}}]
";

const REPORT: &str = "apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: node-2}
addresses: [{ip: 10.76.2.2}, {ip: 10.76.2.3}, {ip: 'fd76:0:0:2::2'}]
";

/// U-2, R-4, R-5: an address that its Node object does not name is in its report. Both are followed as they change.
pub(super) fn nodes_of_a_selector_are_refused_at_all_their_addresses(world: &mut World) -> TestResult {
    let elsewhere = world.lay_other_node()?;
    world.manifests().write("report.yaml", REPORT)?;
    for port in [22623, 22625] {
        world.serve_on_node(port, Service::TcpEcho)?;
        elsewhere.serve(port, Service::TcpEcho)?;
    }
    let deployment = Setup::of(firewall(CHOSEN)).deploy(world)?;
    let own: [IpAddr; 2] = [node::ADDRESS.into(), node::ADDRESS_V6.into()];
    let chosen: [IpAddr; 3] = [
        other_node::ADDRESS.into(),
        other_node::ADDRESS_V6.into(),
        other_node::UNREPORTED.into(),
    ];
    let assert_open = |is_open: [bool; 3]| {
        let mut probes: Vec<Probe<'_>> = Vec::new();
        for port in [22623, 22625] {
            probes.extend(own.map(|to| ("client", to, port, true)));
            let chosen = chosen.into_iter().zip(is_open);
            probes.extend(chosen.map(|(to, is_open)| ("client", to, port, is_open || port == 22625)));
        }
        assert_verdicts(&deployment, &probes);
    };
    let reach = |to| {
        let outcome = deployment
            .pod("client")
            .connect_tcp(SocketAddr::new(to, 22623), QUICK);
        outcome.is_connected()
    };
    assert_open([false; 3]);
    let manifests = deployment.world.manifests();
    manifests.write("report.yaml", &REPORT.replace(", {ip: 10.76.2.3}", ""))?;
    eventually("its report has changed", || reach(chosen[2]));
    assert_open([false, false, true]);
    let document = std::fs::read_to_string(manifests.folder().join("node-2.yaml"))?;
    manifests.write("report.yaml", REPORT)?;
    eventually("its report is as before", || !reach(chosen[2]));
    manifests.write(
        "node-2.yaml",
        &document.replace("hostname: node-2", "hostname: other"),
    )?;
    eventually("it has another label", || reach(chosen[0]));
    assert_open([true; 3]);
    manifests.write("node-2.yaml", &document)?;
    eventually("it has its label again", || !reach(chosen[0]));
    assert_open([false; 3]);
    manifests.remove("node-2.yaml")?;
    eventually("it has gone", || reach(chosen[0]));
    assert_open([true; 3]);
    Ok(())
}

const NOWHERE: &str = "  - {action: Deny, to: [{external: {}}]}
";

/// E-7: of TCP and UDP, in both families, and the ICMP error about a port of the pod that nobody serves.
pub(super) fn who_connects_to_a_pod_gets_replies_though_the_pod_may_reach_nobody(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(firewall(NOWHERE)).deploy(world)?;
    let client = deployment.pod("client");
    client.serve(7, Service::TcpEcho)?;
    client.serve(7, Service::UdpEcho)?;
    let outside = deployment.world.client_outside();
    for (address, to) in client.addresses().into_iter().zip(OUTSIDE) {
        let at = SocketAddr::new(address, 7);
        let outcome = outside.connect_tcp(at, QUICK);
        assert!(outcome.is_connected(), "TCP to {at}: {outcome:?}");
        let echo = outcome.connection().echo_within(QUICK);
        assert!(echo.is_ok(), "TCP from {at}: {echo:?}");
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = outside.udp_socket_at(any.parse()?)?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(QUICK))?;
        socket.send_to(b"?", at)?;
        let reply = socket.recv(&mut [0; 8]);
        assert!(reply.is_ok(), "UDP from {at}: {reply:?}");
        let closed = SocketAddr::new(address, 9);
        let is_told = || {
            let socket = outside
                .udp_socket_at(any.parse().expect("an address"))
                .expect("a socket");
            socket.set_nonblocking(false).expect("it blocks");
            socket.set_read_timeout(Some(QUICK)).expect("it has a timeout");
            socket.connect(closed).expect("a route");
            socket.send(b"?").expect("it is sent");
            let told = socket.recv(&mut [0; 8]);
            told.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        // The kernel of the pod tells few of them in a second.
        eventually("an error of the pod about an inbound datagram arrives", is_told);
        deployment.assert_refused("client", to);
        assert!(!client.is_echoed(ip(to), QUICK)?, "echo of {to}");
    }
    Ok(())
}

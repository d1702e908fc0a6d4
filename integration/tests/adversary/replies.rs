//! A pod writes a packet to itself in the name of somebody whom it may not reach, so that its own packets are replies.

use egret_integration::{Packet, PodSpec, Segment, Service, World};

use crate::{
    Enforcement,
    deployment::{Deployment, PATIENCE, QUICK, Setup, TestResult},
    words::{
        HONEST, STOLEN, TCP_ECHO, UDP_ECHO, allowed_alone, assert_honest_alone, assert_nothing_stolen, at,
        families,
    },
};

const PORT: u16 = 40_001;
const SERVED: u16 = 8081;

/// Numbers out of the window are no reason to drop, as with kube-proxy's `conntrack.tcpBeLiberal`: nobody knows the first
/// number of the other end before it has said it.
fn ask_no_windows(deployment: &Deployment<'_>) -> TestResult {
    let node = deployment.world.node();
    Ok(node.sysctl("netfilter/nf_conntrack_tcp_be_liberal", "1")?)
}

pub(crate) fn a_datagram_of_its_own_making_opens_no_way_back_to_an_address_outside(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(allowed_alone("client"))).deploy(world)?;
    let (client, adversary) = (deployment.pod("client"), deployment.world.adversary("client")?);
    let outside = deployment.world.router_outside()?.sniff()?;
    for family in families(client) {
        let (own, denied) = (at(family.own, PORT), at(family.denied, UDP_ECHO));
        let before = client.exchange_udp(denied, STOLEN, QUICK);
        assert!(!before.is_answered(), "{denied}: {before:?}");
        adversary.send(&Packet::udp(denied, own, b"opening"))?;
        adversary.send(&Packet::udp(own, denied, STOLEN))?;
        adversary.send(&Packet::udp(own, at(family.allowed, UDP_ECHO), HONEST))?;
        assert_honest_alone(&outside, denied);
    }
    // Who is outside opens flows to the pod as ever, and the pod answers.
    client.serve(SERVED, Service::UdpEcho)?;
    for own in client.addresses() {
        let family_of = if own.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = deployment
            .world
            .client_outside()
            .udp_socket_at(family_of.parse()?)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(HONEST, at(own, SERVED))?;
        let answered = socket.recv_from(&mut [0; 64]);
        assert!(answered.is_ok(), "the pod answers from {own}: {answered:?}");
    }
    Ok(())
}

pub(crate) fn a_segment_of_its_own_making_opens_no_way_back_to_an_address_outside(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(allowed_alone("client"))).deploy(world)?;
    ask_no_windows(&deployment)?;
    let (client, adversary) = (deployment.pod("client"), deployment.world.adversary("client")?);
    let outside = deployment.world.router_outside()?.sniff()?;
    for port in PORT..PORT + 4 {
        adversary.keep_from_kernel(port)?;
    }
    for family in families(client) {
        let denied = at(family.denied, TCP_ECHO);
        let (own, allowed) = (at(family.own, PORT + 2), at(family.allowed, TCP_ECHO));
        for (port, opening) in [(PORT, Segment::syn(1)), (PORT + 1, Segment::ack(1, 1))] {
            let own = at(family.own, port);
            adversary.send(&Packet::tcp(denied, own, opening, &[]))?;
            let reached = adversary.converse(own, denied, STOLEN, QUICK)?;
            assert!(!reached, "a whole conversation with {denied} after {opening:?}");
        }
        // Without a handshake.
        let unasked = at(family.own, PORT + 3);
        adversary.send(&Packet::tcp(denied, unasked, Segment::syn(1), &[]))?;
        adversary.send(&Packet::tcp(unasked, denied, Segment::ack(1, 2), STOLEN))?;
        assert!(adversary.converse(own, allowed, HONEST, PATIENCE)?, "{allowed}");
        assert_honest_alone(&outside, denied);
    }
    client.serve(SERVED, Service::TcpEcho)?;
    for own in client.addresses() {
        let outcome = deployment
            .world
            .client_outside()
            .connect_tcp(at(own, SERVED), PATIENCE);
        assert!(outcome.connection().is_alive(), "outside to {own}");
    }
    Ok(())
}

/// Nobody enters the server; the client may send to one place outside, nobody says what `loose` may.
fn closed_server() -> String {
    format!(
        r#"{}---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: server, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: server}}}}
  policyTypes: [Ingress]
  ingress: []
"#,
        allowed_alone("client")
    )
}

pub(crate) fn a_packet_of_its_own_making_opens_no_way_back_to_a_pod_that_nobody_may_enter(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let pods = ["client", "loose", "server"].map(PodSpec::new);
    let setting = Setup::of(closed_server()).instead(pods);
    let deployment = enforcement.of(setting).deploy(world)?;
    ask_no_windows(&deployment)?;
    let server = deployment.pod("server");
    server.serve(SERVED, Service::TcpEcho)?;
    let inside = deployment.world.adversary("server")?.sniff()?;
    for name in ["client", "loose"] {
        let adversary = deployment.world.adversary(name)?;
        adversary.keep_from_kernel(PORT)?;
        for (own, server) in deployment
            .pod(name)
            .addresses()
            .into_iter()
            .zip(server.addresses())
        {
            let (own, to) = (at(own, PORT), at(server, UDP_ECHO));
            adversary.send(&Packet::udp(to, own, b"opening"))?;
            adversary.send(&Packet::udp(own, to, STOLEN))?;
            assert_nothing_stolen(&inside, format!("{name} by UDP to {server}"));
            let to = at(server, SERVED);
            adversary.send(&Packet::tcp(to, own, Segment::syn(1), &[]))?;
            let reached = adversary.converse(own, to, STOLEN, QUICK)?;
            assert!(!reached, "{name} converses with {to}");
        }
    }
    // The server reaches others, and hears their replies.
    deployment.pod("loose").serve(SERVED, Service::TcpEcho)?;
    for loose in deployment.pod("loose").addresses() {
        let outcome = server.connect_tcp(at(loose, SERVED), PATIENCE);
        assert!(outcome.connection().is_alive(), "the server to {loose}");
    }
    Ok(())
}

/// All pods reach each other and one place outside; their node they do not.
fn no_node() -> String {
    let [v4, v6] = crate::words::ALLOWED;
    format!(
        r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: no-node}}
spec:
  tier: Admin
  priority: 10
  subject: {{namespaces: {{}}}}
  egress:
  - name: pods
    action: Accept
    to:
    - networks: [10.77.0.0/16, "fd77::/64", {v4}/32, "{v6}/128"]
  - name: rest
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#
    )
}

/// The kernel drops IPv4 packets that come in from an address of the node; of IPv6 it does not.
pub(crate) fn a_packet_of_its_own_making_opens_no_way_back_to_a_node_that_is_denied(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(no_node())).deploy(world)?;
    ask_no_windows(&deployment)?;
    deployment.world.serve_on_node(SERVED, Service::TcpEcho)?;
    let (client, adversary) = (deployment.pod("client"), deployment.world.adversary("client")?);
    adversary.keep_from_kernel(PORT)?;
    adversary.keep_from_kernel(PORT + 1)?;
    for (own, node) in client
        .addresses()
        .into_iter()
        .zip(deployment.world.node().addresses())
    {
        let (own, node) = (at(own, PORT), at(node, SERVED));
        assert!(
            !client.connect_tcp(node, QUICK).is_connected(),
            "{node} is denied"
        );
        adversary.send(&Packet::tcp(node, own, Segment::syn(1), &[]))?;
        let reached = adversary.converse(own, node, STOLEN, QUICK)?;
        assert!(!reached, "a whole conversation with {node}");
    }
    for family in families(client) {
        let (own, allowed) = (at(family.own, PORT + 1), at(family.allowed, TCP_ECHO));
        assert!(adversary.converse(own, allowed, HONEST, PATIENCE)?, "{allowed}");
    }
    client.serve(SERVED, Service::TcpEcho)?;
    for own in client.addresses() {
        let outcome = deployment
            .world
            .client_on_node()
            .connect_tcp(at(own, SERVED), PATIENCE);
        assert!(outcome.connection().is_alive(), "the node to {own}");
    }
    Ok(())
}

//! Packets in packets: what a node unwraps comes in by the tunnel's interface, which is nobody's.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{MacAddress, Packet, PodSpec, Service, World};

use crate::{
    Enforcement,
    deployment::{Deployment, PATIENCE, Setup, TestResult, ip},
    words::{ALLOWED, DENIED, HONEST, STOLEN, UDP_ECHO, assert_honest_alone, at},
};

/// As Linux, flannel and Cilium have it, and as IANA assigned it.
const VXLAN_PORTS: [u16; 2] = [8472, 4789];
const GENEVE: u16 = 6081;
/// IPv4, IPv6 and GRE in IP.
const PROTOCOLS: [u8; 3] = [4, 41, 47];
const SERVED: u16 = 8081;
/// Pods of another node.
const REMOTE: [&str; 2] = ["10.77.200.5", "fd77::c8:5"];

/// Nobody but remote pods enters the server, the isolated pod may send nothing; nobody says what `loose` may.
fn isolated() -> String {
    r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {matchLabels: {app: isolated}}
  policyTypes: [Egress]
  egress: []
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{ipBlock: {cidr: 10.77.200.0/24}}, {ipBlock: {cidr: "fd77::c8:0/112"}}]
"#
    .into()
}

fn setting() -> Setup {
    Setup::of(isolated()).instead(["isolated", "loose", "server"].map(PodSpec::new))
}

/// A tunnel device of the node.
struct Vxlan {
    network: u32,
    at: SocketAddr,
    mac: MacAddress,
}

/// One device for each family and port.
fn lay_vxlan(deployment: &Deployment<'_>) -> Result<Vec<Vxlan>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for (own, port) in deployment
        .world
        .node()
        .addresses()
        .into_iter()
        .flat_map(|own| VXLAN_PORTS.map(|port| (own, port)))
    {
        let network = u32::try_from(all.len())? + 1;
        let name = format!("vxlan{network}");
        let lines = format!(
            "ip link add {name} type vxlan id {network} dstport {port} local {own} dev uplink\n\
             ip link set {name} up"
        );
        deployment.world.node().run_well(&["sh", "-e", "-c", &lines])?;
        let mac = deployment.world.mac_on_node(&name)?;
        let at = at(own, port);
        all.push(Vxlan { network, at, mac });
    }
    Ok(all)
}

/// In the name of remote pods: to where the sender may not go, and to a pod that remote pods may enter.
fn inner(deployment: &Deployment<'_>, payload: &[u8]) -> Vec<Packet> {
    let targets = deployment.pod("server").addresses();
    let outside = DENIED.map(ip);
    let remote = REMOTE.map(ip);
    let packet = |to: IpAddr| {
        let from = if to.is_ipv4() { remote[0] } else { remote[1] };
        Packet::udp(at(from, 4000), at(to, UDP_ECHO), payload)
    };
    targets.into_iter().chain(outside).map(packet).collect()
}

pub(crate) fn what_a_pod_wraps_in_vxlan_is_not_forwarded(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(UDP_ECHO + 1)?;
    let tunnels = lay_vxlan(&deployment)?;
    let router = deployment.world.router_outside()?;
    let (outside, inside) = (router.sniff()?, deployment.world.adversary("server")?.sniff()?);
    for name in ["isolated", "loose"] {
        let adversary = deployment.world.adversary(name)?;
        for tunnel in &tunnels {
            let own = deployment.pod(name).addresses().into_iter();
            let own: Vec<IpAddr> = own.filter(|own| own.is_ipv4() == tunnel.at.is_ipv4()).collect();
            let vtep = if tunnel.at.is_ipv4() {
                ALLOWED[0]
            } else {
                ALLOWED[1]
            };
            for (source, packet) in own.iter().chain([&ip(vtep)]).flat_map(|source| {
                inner(&deployment, STOLEN)
                    .into_iter()
                    .map(move |packet| (source, packet))
            }) {
                let wrapped = packet.vxlan(tunnel.network, tunnel.mac);
                adversary.send(&Packet::udp(at(*source, 4001), tunnel.at, &wrapped))?;
            }
            // A tunnel's other end, outside, is another node's.
            for packet in inner(&deployment, HONEST) {
                let wrapped = packet.vxlan(tunnel.network, tunnel.mac);
                router.send(&Packet::udp(at(ip(vtep), 4001), tunnel.at, &wrapped))?;
            }
            let what = format!("{name} by {}", tunnel.at);
            assert_honest_alone(&inside, format!("to the server, {what}"));
            assert_honest_alone(&inside, format!("to the server, {what}"));
            assert_honest_alone(&outside, format!("outside, {what}"));
            assert_honest_alone(&outside, format!("outside, {what}"));
        }
    }
    assert_node_is_reached(&deployment)
}

/// By ordinary datagrams and connections, from whatever port.
fn assert_node_is_reached(deployment: &Deployment<'_>) -> TestResult {
    deployment.world.serve_on_node(SERVED, Service::TcpEcho)?;
    deployment.world.serve_on_node(SERVED, Service::UdpEcho)?;
    for name in ["isolated", "loose"] {
        let pod = deployment.pod(name);
        for (own, node) in pod
            .addresses()
            .into_iter()
            .zip(deployment.world.node().addresses())
        {
            let to = at(node, SERVED);
            assert!(
                pod.connect_tcp(to, PATIENCE).connection().is_alive(),
                "{name} to {to}"
            );
            let answered = pod.exchange_udp(to, HONEST, PATIENCE);
            assert!(answered.is_answered(), "{name} to {to}: {answered:?}");
            let socket = pod.udp_socket_at(at(own, VXLAN_PORTS[0]))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.send_to(HONEST, to)?;
            let answered = socket.recv(&mut [0; 64]);
            assert!(
                answered.is_ok(),
                "{name} to {to} from the port of VXLAN: {answered:?}"
            );
        }
    }
    Ok(())
}

/// A raw socket of the node gets what a device for the protocol would get.
pub(crate) fn what_a_pod_wraps_in_ip_or_gre_does_not_come_to_the_node(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let router = deployment.world.router_outside()?;
    for (node, remote) in deployment
        .world
        .node()
        .addresses()
        .into_iter()
        .zip(ALLOWED.map(ip))
    {
        for protocol in PROTOCOLS {
            let device = deployment.world.receive_on_node(node.is_ipv4(), protocol)?;
            for name in ["isolated", "loose"] {
                let adversary = deployment.world.adversary(name)?;
                for own in deployment.pod(name).addresses() {
                    if own.is_ipv4() != node.is_ipv4() {
                        continue;
                    }
                    wrap(&deployment, STOLEN, own, node, protocol)
                        .iter()
                        .try_for_each(|packet| adversary.send(packet))?;
                }
                wrap(&deployment, HONEST, remote, node, protocol)
                    .iter()
                    .take(1)
                    .try_for_each(|packet| router.send(packet))?;
                assert_honest_alone(&device, format!("{name} to {node}, protocol {protocol}"));
            }
        }
    }
    assert_node_is_reached(&deployment)
}

fn wrap(deployment: &Deployment<'_>, payload: &[u8], from: IpAddr, to: IpAddr, protocol: u8) -> Vec<Packet> {
    let inner = inner(deployment, payload).into_iter();
    match protocol {
        47 => inner.map(|packet| packet.in_gre(from, to)).collect(),
        _ => inner
            .filter(|packet| (packet.bytes()[0] >> 4 == 4) == (protocol == 4))
            .map(|packet| packet.in_ip(from, to))
            .collect(),
    }
}

/// This kernel has no device of Geneve; a socket at its port gets what one would get.
pub(crate) fn what_a_pod_wraps_in_geneve_does_not_come_to_the_node(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let router = deployment.world.router_outside()?;
    for (node, remote) in deployment
        .world
        .node()
        .addresses()
        .into_iter()
        .zip(ALLOWED.map(ip))
    {
        let device = deployment
            .world
            .client_on_node()
            .udp_socket_at(at(node, GENEVE))?;
        device.set_read_timeout(Some(PATIENCE))?;
        for name in ["isolated", "loose"] {
            let adversary = deployment.world.adversary(name)?;
            for own in deployment.pod(name).addresses() {
                if own.is_ipv4() != node.is_ipv4() {
                    continue;
                }
                for packet in inner(&deployment, STOLEN) {
                    let wrapped = packet.geneve(1, MacAddress::ANY);
                    adversary.send(&Packet::udp(at(own, 4001), at(node, GENEVE), &wrapped))?;
                }
            }
            for packet in inner(&deployment, HONEST).iter().take(1) {
                let wrapped = packet.geneve(1, MacAddress::ANY);
                router.send(&Packet::udp(at(remote, 4001), at(node, GENEVE), &wrapped))?;
            }
            let mut bytes = [0; 2048];
            let (length, from) = device.recv_from(&mut bytes)?;
            let is_stolen = bytes[..length].windows(STOLEN.len()).any(|part| part == STOLEN);
            assert!(!is_stolen, "{name}: the node gets it from {from}");
        }
    }
    assert_node_is_reached(&deployment)
}

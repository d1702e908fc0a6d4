//! ICMP errors about flows of others.

use std::{io, net::UdpSocket};

use egret_integration::{Adversary, Packet, Pod, World, node, remote_host};

use crate::{
    Enforcement,
    deployment::{PATIENCE, QUICK, Setup, TestResult},
    words::{ALLOWED, DENIED, HONEST, UDP_ECHO, allowed_alone, at, families},
};

const MUTE: u16 = 5140;

/// Whether the program hears of an error within a while. The socket is connected.
fn hears_of_error(socket: &UdpSocket, patience: std::time::Duration) -> io::Result<Option<io::Error>> {
    socket.set_read_timeout(Some(patience))?;
    match socket.recv(&mut [0; 64]) {
        Ok(_) => Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
        Err(error) => Ok(Some(error)),
    }
}

/// Both who may send where the victim does, and who may not.
fn setting() -> Setup {
    Setup::of(format!(
        "{}---\n{}",
        allowed_alone("victim"),
        allowed_alone("confined")
    ))
    .and_pod("victim")
    .and_pod("confined")
}

/// The sources that an error may claim: the destination, a router, the adversary itself.
fn claims(adversary: &Pod, destination: std::net::IpAddr) -> Vec<std::net::IpAddr> {
    let router = if destination.is_ipv4() {
        DENIED[0]
    } else {
        DENIED[1]
    };
    let own = adversary.addresses().into_iter();
    let own = own.filter(|own| own.is_ipv4() == destination.is_ipv4());
    [destination, router.parse().unwrap()]
        .into_iter()
        .chain(own)
        .collect()
}

pub(crate) fn an_error_that_a_pod_makes_up_ends_no_flow_of_its_neighbour(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    let victim = deployment.pod("victim");
    for name in ["client", "confined"] {
        let adversary = deployment.world.adversary(name)?;
        for family in families(victim) {
            let to = at(family.allowed, MUTE);
            let flow = victim.udp_socket(to)?;
            flow.send(HONEST)?;
            let sent = Packet::udp(flow.local_addr()?, to, HONEST);
            for claimed in claims(deployment.pod(name), family.allowed) {
                adversary.send(&Packet::port_unreachable(claimed, family.own, &sent))?;
                let heard = hears_of_error(&flow, QUICK)?;
                assert!(heard.is_none(), "{name} as {claimed}: the victim hears {heard:?}");
            }
        }
    }
    Ok(())
}

fn route_of(pod: &Pod, to: std::net::IpAddr) -> Result<String, Box<dyn std::error::Error>> {
    Ok(pod.run(&["ip", "route", "get", &to.to_string()])?.stdout)
}

pub(crate) fn an_error_that_a_pod_makes_up_changes_no_route_of_its_neighbour(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    let victim = deployment.pod("victim");
    // For this kernel a gateway is who may redirect; some distributions ask for less.
    let inside = deployment.world.adversary("victim")?;
    inside.run(&[
        "sysctl",
        "-qw",
        "net.ipv4.conf.all.secure_redirects=0",
        "net.ipv4.conf.eth0.secure_redirects=0",
    ])?;
    for name in ["client", "confined"] {
        let adversary = deployment.world.adversary(name)?;
        for family in families(victim) {
            let to = at(family.allowed, MUTE);
            let flow = victim.udp_socket(to)?;
            flow.send(HONEST)?;
            let sent = Packet::udp(flow.local_addr()?, to, HONEST);
            let before = route_of(victim, family.allowed)?;
            for claimed in claims(deployment.pod(name), family.allowed) {
                adversary.send(&Packet::too_big(claimed, family.own, 1280, &sent))?;
                adversary.send(&Packet::too_big(claimed, family.own, 600, &sent))?;
            }
            redirect(&adversary, &family, &sent)?;
            // An honest packet by the same way is answered later than all of these.
            let answered = victim.exchange_udp(at(family.allowed, UDP_ECHO), HONEST, PATIENCE);
            assert!(answered.is_answered(), "{answered:?}");
            assert_eq!(
                route_of(victim, family.allowed)?,
                before,
                "{name} to {}",
                family.allowed
            );
        }
    }
    Ok(())
}

/// In the name of the victim's gateway, to an address that is nobody's.
fn redirect(adversary: &Adversary, family: &crate::words::Family, sent: &Packet) -> TestResult {
    if family.own.is_ipv4() {
        let gateway = "169.254.1.1".parse()?;
        let elsewhere = "10.77.99.99".parse()?;
        adversary.send(&Packet::redirect(gateway, family.own, elsewhere, sent))?;
    }
    Ok(())
}

/// A program of the node, such as dnsd, whose datagram is not yet answered.
pub(crate) fn an_error_that_a_pod_makes_up_ends_no_flow_of_the_node(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(setting()).deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    for name in ["client", "confined"] {
        let adversary = deployment.world.adversary(name)?;
        for (own, to) in deployment.world.node().addresses().into_iter().zip(ALLOWED) {
            let to = at(to.parse()?, MUTE);
            let flow = deployment.world.client_on_node().udp_socket_at(at(own, 0))?;
            flow.connect(to)?;
            flow.send(HONEST)?;
            let sent = Packet::udp(flow.local_addr()?, to, HONEST);
            let before = deployment
                .world
                .node()
                .run(&["ip", "route", "get", &to.ip().to_string()])?;
            for claimed in claims(deployment.pod(name), to.ip()) {
                adversary.send(&Packet::port_unreachable(claimed, own, &sent))?;
                adversary.send(&Packet::too_big(claimed, own, 1280, &sent))?;
                adversary.send(&Packet::too_big(claimed, own, 600, &sent))?;
                let heard = hears_of_error(&flow, QUICK)?;
                assert!(heard.is_none(), "{name} as {claimed}: the node hears {heard:?}");
            }
            let after = deployment
                .world
                .node()
                .run(&["ip", "route", "get", &to.ip().to_string()])?;
            assert_eq!(before.stdout, after.stdout, "{name} to {to}");
        }
    }
    Ok(())
}

/// The honest ones: of a destination, of a router, and of a pod about a flow of its own.
pub(crate) fn errors_of_those_whom_they_concern_arrive(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    const MTU: u16 = 1300;
    const CLOSED: u16 = 5999;
    let deployment = enforcement.of(setting()).deploy(world)?;
    let _remote_host = deployment.world.add_remote_host(MTU, 7)?;
    for name in ["client", "victim"] {
        for to in ALLOWED {
            let flow = deployment.pod(name).udp_socket(at(to.parse()?, CLOSED))?;
            flow.send(HONEST)?;
            let heard = hears_of_error(&flow, PATIENCE)?;
            assert!(heard.is_some(), "{name}: {to} says that nobody listens there");
        }
        for own in deployment.pod(name).addresses() {
            let flow = deployment
                .world
                .client_outside()
                .udp_socket_at(if own.is_ipv4() {
                    "0.0.0.0:0".parse()?
                } else {
                    "[::]:0".parse()?
                })?;
            flow.connect(at(own, CLOSED))?;
            flow.send(HONEST)?;
            let heard = hears_of_error(&flow, PATIENCE)?;
            assert!(
                heard.is_some(),
                "{name} says to who is outside that nobody listens at {own}"
            );
        }
        for node in deployment.world.node().addresses() {
            let flow = deployment.pod(name).udp_socket(at(node, CLOSED))?;
            flow.send(HONEST)?;
            let heard = hears_of_error(&flow, PATIENCE)?;
            assert!(
                heard.is_some(),
                "the node says to {name} that nobody listens there"
            );
        }
    }
    // The unconfined pod alone may send there.
    for to in [remote_host::ADDRESS, remote_host::ADDRESS_V6] {
        let flow = deployment.pod("client").udp_socket(at(to.parse()?, CLOSED))?;
        crate::deployment::eventually("the router's error arrives", || {
            // An error of an earlier datagram.
            drop(flow.send(&[7; 1400]));
            route_of(deployment.pod("client"), to.parse().unwrap())
                .is_ok_and(|route| route.contains(&format!("mtu {MTU}")))
        });
    }
    // To the node: a pod's error about what the node sent it.
    for own in deployment.pod("victim").addresses() {
        let from = if own.is_ipv4() {
            node::ADDRESS.into()
        } else {
            node::ADDRESS_V6.into()
        };
        let flow = deployment.world.client_on_node().udp_socket_at(at(from, 0))?;
        flow.connect(at(own, CLOSED))?;
        flow.send(HONEST)?;
        let heard = hears_of_error(&flow, PATIENCE)?;
        assert!(
            heard.is_some(),
            "the victim says to its node that nobody listens at {own}"
        );
    }
    Ok(())
}

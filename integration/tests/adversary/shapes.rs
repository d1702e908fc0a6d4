//! Packets of unusual shape in the pod's own name, and sources that no host may have.

use std::net::IpAddr;

use egret_integration::{MacAddress, Packet, Segment, World};

use crate::{
    Enforcement,
    deployment::{Setup, TestResult, ip},
    words::{
        HONEST, STOLEN, TCP_ECHO, UDP_ECHO, allowed_alone, assert_honest_alone, at, families, one_of_each,
        send_all,
    },
};

/// Padding alone: RFC 8200 sections 4.2, 4.3 and 4.6.
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];
const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;
/// SCTP, ESP, AH, DCCP, UDP-Lite, and one for experiments.
const PROTOCOLS: [u8; 6] = [132, 50, 51, 33, 136, 253];

fn unusual(from: IpAddr, to: IpAddr) -> Vec<Packet> {
    let (from, to) = (at(from, 4000), at(to, UDP_ECHO));
    let datagram = Packet::udp(from, to, STOLEN);
    let mut all = vec![
        datagram.clone().with_hop_limit(255),
        datagram.clone().without_udp_checksum(),
        // Simultaneous open.
        Packet::tcp(
            from,
            at(to.ip(), TCP_ECHO),
            Segment {
                acknowledgment: Some(1),
                ..Segment::syn(1)
            },
            STOLEN,
        ),
    ];
    all.extend(PROTOCOLS.map(|number| Packet::of_protocol(from.ip(), to.ip(), number, STOLEN)));
    // Eight octets hold the ports; what overlaps says other ones.
    all.extend(datagram.fragments(8));
    all.push(datagram.fragment_of(0, 24, false));
    all.push(datagram.fragment_of(8, 28, true));
    if from.is_ipv4() {
        // No operation, record route, router alert.
        all.push(datagram.clone().with_options(&[1, 1, 1, 0]));
        all.push(datagram.clone().with_options(&[7, 7, 4, 0, 0, 0, 0, 0]));
        all.push(datagram.with_options(&[148, 4, 0, 0]));
    } else {
        all.push(datagram.clone().with_extension(HOP_BY_HOP, &PADDING));
        all.push(datagram.clone().with_extension(DESTINATION, &PADDING));
        let both = datagram.with_extension(DESTINATION, &PADDING);
        all.push(both.with_extension(HOP_BY_HOP, &PADDING));
    }
    all
}

pub(crate) fn a_packet_of_unusual_shape_is_judged_as_any_other(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(allowed_alone("client"))).deploy(world)?;
    let adversary = deployment.world.adversary("client")?;
    let outside = deployment.world.router_outside()?.sniff()?;
    for family in families(deployment.pod("client")) {
        for packet in unusual(family.own, family.denied) {
            adversary.send(&packet)?;
            adversary.send_as(MacAddress::ANY, &packet)?;
            adversary.send_tagged(7, &packet)?;
        }
        let to = at(family.allowed, UDP_ECHO);
        adversary.send_as(MacAddress::ANY, &Packet::udp(at(family.own, 4001), to, HONEST))?;
        assert_honest_alone(&outside, family.denied);
    }
    Ok(())
}

pub(crate) fn a_source_that_no_host_may_have_gets_nowhere(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement
        .of(Setup::of(allowed_alone("another")))
        .deploy(world)?;
    let adversary = deployment.world.adversary("client")?;
    let outside = deployment.world.router_outside()?.sniff()?;
    let node = deployment.world.node().addresses();
    let sources = [
        [
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "169.254.20.10",
            "169.254.1.1",
        ]
        .map(ip),
        [
            "::1",
            "::",
            "ff02::1",
            "fd00::20:10",
            "::ffff:10.77.0.1",
            "fe80::1",
        ]
        .map(ip),
    ];
    for ((family, node), sources) in families(deployment.pod("client")).zip(node).zip(sources) {
        let to = at(family.allowed, UDP_ECHO);
        for source in sources.into_iter().chain([node]) {
            send_all(&adversary, &one_of_each(at(source, 4000), to, STOLEN))?;
        }
        adversary.send(&Packet::udp(at(family.own, 4001), to, HONEST))?;
        assert_honest_alone(&outside, format!("to {to}"));
    }
    Ok(())
}

/// Loose and strict source routing (RFC 791) by way of the node, which pods may reach; the kernel takes none unless it is told to.
pub(crate) fn a_source_route_by_way_of_the_node_leads_nowhere(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(allowed_alone("client"))).deploy(world)?;
    let adversary = deployment.world.adversary("client")?;
    let outside = deployment.world.router_outside()?.sniff()?;
    let family = families(deployment.pod("client")).next().unwrap();
    let IpAddr::V4(denied) = family.denied else {
        return Err("the first family is not IPv4".into());
    };
    let node = deployment.world.node().addresses()[0];
    for kind in [131, 137] {
        let options = [&[kind, 7, 4][..], &denied.octets(), &[0]].concat();
        let packet = Packet::udp(at(family.own, 4000), at(node, UDP_ECHO), STOLEN);
        adversary.send(&packet.with_options(&options))?;
    }
    let to = at(family.allowed, UDP_ECHO);
    adversary.send(&Packet::udp(at(family.own, 4001), to, HONEST))?;
    assert_honest_alone(&outside, denied);
    Ok(())
}

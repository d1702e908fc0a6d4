//! Neighbour discovery and multicast listening of IPv6 (RFC 4861, RFC 4862, RFC 3810) between a pod and its node.

use std::net::{IpAddr, Ipv6Addr};

use egret_integration::{Adversary, MacAddress, Packet, Seen, Segment, Service, World};

use crate::{
    Enforcement,
    deployment::{Deployment, PATIENCE, Setup, TestResult, eventually},
    words::at,
};

const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The node's address on every pod's link.
const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
const SOLICITATION: (u8, u8) = (135, 0);
const ADVERTISEMENT: (u8, u8) = (136, 0);
const ROUTER_SOLICITATION: (u8, u8) = (133, 0);
const ROUTER_ADVERTISEMENT: (u8, u8) = (134, 0);
const REDIRECT: (u8, u8) = (137, 0);
const REPORT: (u8, u8) = (143, 0);

/// No pod may send anything or be sent anything, to and from its node neither.
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

const ISOLATED: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress, Ingress]
";

fn message(from: Ipv6Addr, to: Ipv6Addr, kind: (u8, u8), octets: [u8; 4], rest: &[u8]) -> Packet {
    Packet::icmp(from.into(), to.into(), kind, octets, rest).with_hop_limit(255)
}

/// RFC 4861 section 4.6.1: the hardware address of the source (1) or of the target (2).
fn link_layer(kind: u8, mac: MacAddress) -> Vec<u8> {
    [&[kind, 1], &mac.0[..]].concat()
}

fn solicited(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    )
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(_) => panic!("{address} is not of IPv6"),
    }
}

/// As EUI-64 makes it (RFC 4291, appendix A).
fn link_local(mac: MacAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let words = [
        u16::from_be_bytes([a ^ 2, b]),
        u16::from_be_bytes([c, 0xff]),
        u16::from_be_bytes([0xfe, d]),
        u16::from_be_bytes([e, f]),
    ];
    Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
}

/// How often the node took in a message of this type (RFC 4293): counted behind all rules.
fn taken_in(deployment: &Deployment<'_>, kind: u8) -> u64 {
    let counters = deployment.world.node().run(&["cat", "/proc/net/snmp6"]).unwrap();
    let name = format!("Icmp6InType{kind}");
    let mut lines = counters.stdout.lines().map(str::split_whitespace);
    let value = lines.find_map(|mut words| (words.next()? == name).then(|| words.next())?);
    value.map_or(0, |value| value.parse().unwrap())
}

#[track_caller]
fn assert_taken_in(deployment: &Deployment<'_>, adversary: &Adversary, packets: &[Packet], kind: u8) {
    for packet in packets {
        let before = taken_in(deployment, kind);
        adversary.send(packet).unwrap();
        eventually(&format!("the node takes in {packet:02x?}"), || {
            taken_in(deployment, kind) > before
        });
    }
}

/// Each from the addresses that it may be sent from: RFC 4861 sections 4.1, 4.3 and 4.4, RFC 3810 section 5.2.13.
pub(crate) fn a_pod_and_its_node_discover_each_other_though_all_is_denied(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(NOTHING_AT_ALL)).deploy(world)?;
    let adversary = deployment.world.adversary("client")?;
    let (local, own) = (
        link_local(adversary.mac()),
        v6(deployment.pod("client").address_v6()),
    );
    let mac = link_layer(1, adversary.mac());
    let target = GATEWAY.octets();
    let solicitation = |from| {
        message(
            from,
            solicited(GATEWAY),
            SOLICITATION,
            [0; 4],
            &[&target[..], &mac].concat(),
        )
    };
    let probe = message(
        Ipv6Addr::UNSPECIFIED,
        solicited(GATEWAY),
        SOLICITATION,
        [0; 4],
        &target,
    );
    assert_taken_in(
        &deployment,
        &adversary,
        &[solicitation(local), solicitation(own), probe],
        135,
    );
    let advertised = [&own.octets()[..], &link_layer(2, adversary.mac())].concat();
    let advertisement = |from, to| message(from, to, ADVERTISEMENT, [0x20, 0, 0, 0], &advertised);
    let advertisements = [
        advertisement(local, GATEWAY),
        advertisement(own, GATEWAY),
        advertisement(own, ALL_NODES),
    ];
    assert_taken_in(&deployment, &adversary, &advertisements, 136);
    let routers = [
        message(local, ALL_ROUTERS, ROUTER_SOLICITATION, [0; 4], &mac),
        message(
            Ipv6Addr::UNSPECIFIED,
            ALL_ROUTERS,
            ROUTER_SOLICITATION,
            [0; 4],
            &[],
        ),
    ];
    assert_taken_in(&deployment, &adversary, &routers, 133);
    // The kernel takes in what is for ff02::16 where it routes multicast alone; a rule cannot tell the two.
    let record = [&[4, 0, 0, 0][..], &solicited(own).octets()].concat();
    let report = |from| {
        let report = message(from, ALL_ROUTERS, REPORT, [0, 0, 0, 1], &record).with_hop_limit(1);
        // Router alert: RFC 2711.
        report.with_extension(0, &[0, 5, 2, 0, 0, 1, 0])
    };
    let reports = [report(local), report(Ipv6Addr::UNSPECIFIED)];
    assert_taken_in(&deployment, &adversary, &reports, 143);
    // The kernel's own: an address that is the node's is found to be a duplicate.
    adversary.run(&[
        "sysctl",
        "-qw",
        "net.ipv6.conf.all.accept_dad=1",
        "net.ipv6.conf.eth0.accept_dad=1",
    ])?;
    adversary.run(&[
        "ip",
        "-6",
        "address",
        "add",
        &format!("{GATEWAY}/64"),
        "dev",
        "eth0",
    ])?;
    eventually("it is a duplicate", || {
        let shown = adversary.run(&["ip", "-6", "address", "show", "dev", "eth0"]);
        shown.is_ok_and(|shown| shown.contains("dadfailed"))
    });
    Ok(())
}

/// By the pod's link-local address and by its own; the exemption of a pod's own node is for both.
pub(crate) fn a_pod_and_its_node_talk_by_link_local_addresses(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(ISOLATED)).deploy(world)?;
    deployment.world.serve_on_node(8081, Service::TcpEcho)?;
    let adversary = deployment.world.adversary("client")?;
    let own = deployment.pod("client").address_v6();
    let sniffer = adversary.sniff()?;
    for from in [link_local(adversary.mac()).into(), own] {
        let (from, to) = (at(from, 4000), at(GATEWAY.into(), 8081));
        adversary.send(&Packet::tcp(from, to, Segment::syn(1), &[]))?;
        let accepted = sniffer.next(PATIENCE, |seen| {
            seen.ends() == Some((to, from)) && seen.segment().is_some_and(|(segment, _)| segment.syn)
        })?;
        assert!(accepted.is_some(), "the node accepts {from}");
    }
    for from in [link_local(adversary.mac()), v6(own)] {
        adversary.send(&Packet::echo_request(from.into(), GATEWAY.into(), b"echo"))?;
        let is_reply = |seen: &Seen| {
            seen.icmp() == Some((129, 0)) && seen.addresses() == Some((GATEWAY.into(), from.into()))
        };
        assert!(sniffer.next(PATIENCE, is_reply)?.is_some(), "an echo for {from}");
    }
    Ok(())
}

/// Whatever the node's kernel decides for itself by what it takes in.
fn routes(deployment: &Deployment<'_>) -> String {
    let all = "ip -6 route show table all | sed 's/expires [0-9]*sec//'; ip -6 address show";
    deployment.world.node().run(&["sh", "-c", all]).unwrap().stdout
}

/// A lifetime, a prefix to make addresses of, and a route: RFC 4861 section 4.2, RFC 4191.
fn advertisement(from: Ipv6Addr, to: Ipv6Addr, mac: MacAddress) -> Packet {
    let reachable = [0; 8];
    let prefix = [
        &[3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..],
        &"2001:db8:bad::".parse::<Ipv6Addr>().unwrap().octets(),
    ];
    let rest = [&reachable[..], &prefix.concat(), &link_layer(1, mac)].concat();
    message(from, to, ROUTER_ADVERTISEMENT, [64, 0, 0x07, 0x08], &rest)
}

pub(crate) fn a_pod_is_no_router_of_its_node(world: &mut World, enforcement: Enforcement) -> TestResult {
    let deployment = enforcement.of(Setup::of(ISOLATED)).deploy(world)?;
    let node = deployment.world.node();
    let interface = deployment.pod("client").interface();
    for interface in [interface, "uplink"] {
        node.sysctl(&format!("ipv6/conf/{interface}/accept_ra"), "2")?;
        node.sysctl(&format!("ipv6/conf/{interface}/accept_ra_from_local"), "1")?;
        node.sysctl(&format!("ipv6/conf/{interface}/accept_redirects"), "1")?;
    }
    let adversary = deployment.world.adversary("client")?;
    let local = link_local(adversary.mac());
    let own = v6(deployment.pod("client").address_v6());
    let before = (
        routes(&deployment),
        taken_in(&deployment, 134),
        taken_in(&deployment, 137),
    );
    let target = "2001:db8::7".parse::<Ipv6Addr>()?.octets();
    for from in [local, "fe80::1234".parse()?] {
        adversary.send(&advertisement(from, ALL_NODES, adversary.mac()))?;
        adversary.send(&advertisement(from, GATEWAY, adversary.mac()))?;
        let better = [&local.octets()[..], &target].concat();
        adversary.send(&message(from, GATEWAY, REDIRECT, [0; 4], &better))?;
    }
    // What comes after these by the same way.
    let mac = link_layer(1, adversary.mac());
    let solicitation = [&GATEWAY.octets()[..], &mac].concat();
    let last = message(local, solicited(GATEWAY), SOLICITATION, [0; 4], &solicitation);
    assert_taken_in(&deployment, &adversary, std::slice::from_ref(&last), 135);
    let after = (
        routes(&deployment),
        taken_in(&deployment, 134),
        taken_in(&deployment, 137),
    );
    assert_eq!(
        before, after,
        "routes and addresses, advertisements and redirects that the node took in"
    );
    // Who speaks from another address than a link-local one is no router to anybody (RFC 4861, sections 6.1.2 and 8.1).
    adversary.send(&advertisement(own, ALL_NODES, adversary.mac()))?;
    assert_taken_in(&deployment, &adversary, &[last], 135);
    assert_eq!(routes(&deployment), before.0);
    // A router outside is one.
    let router = deployment.world.router_outside()?;
    router.send(&advertisement(link_local(router.mac()), ALL_NODES, router.mac()))?;
    eventually("the router outside is taken for one", || {
        routes(&deployment).contains("2001:db8:bad:")
    });
    Ok(())
}

/// The node has one entry for a neighbour and link: what is said on another link changes nothing.
pub(crate) fn a_pod_that_says_it_is_its_neighbour_is_not_believed(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement
        .of(Setup::of(ISOLATED).and_pod("victim"))
        .deploy(world)?;
    let victim = deployment.pod("victim");
    victim.serve(8081, Service::TcpEcho)?;
    let to = at(victim.address_v6(), 8081);
    let reach = || deployment.world.client_on_node().connect_tcp(to, PATIENCE);
    assert!(reach().is_connected());
    let adversary = deployment.world.adversary("client")?;
    let claimed = [
        &v6(victim.address_v6()).octets()[..],
        &link_layer(2, adversary.mac()),
    ]
    .concat();
    for (from, to) in [
        (link_local(adversary.mac()), GATEWAY),
        (link_local(adversary.mac()), ALL_NODES),
        (v6(victim.address_v6()), ALL_NODES),
    ] {
        adversary.send(&message(from, to, ADVERTISEMENT, [0x20, 0, 0, 0], &claimed))?;
    }
    let sniffer = adversary.sniff()?;
    assert!(reach().connection().is_alive(), "the node reaches the victim");
    let strayed = sniffer.next(crate::deployment::MOMENT, |seen| {
        seen.ends().is_some_and(|(_, end)| end == to)
    })?;
    assert!(strayed.is_none(), "what is for the victim comes to the adversary");
    Ok(())
}

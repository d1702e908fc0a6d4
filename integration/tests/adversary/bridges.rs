//! Pods on one bridge, where the port by which a packet comes can be seen.

use egret_integration::{Attachment, Lookup, Packet, PodSpec, RecordType, Records, World, node, upstream};

use crate::{
    Enforcement,
    deployment::{PATIENCE, QUICK, Setup, TestResult, eventually, only_names},
    words::{HONEST, STOLEN, UDP_ECHO, assert_honest_alone, at, one_of_each, send_all},
};

fn bridged(name: &str) -> PodSpec {
    PodSpec::new(name).attached(Attachment::Bridge { hairpin: false })
}

const NAME: &str = "api.example.test";
const ADDRESS: &str = "203.0.113.7";

pub(crate) fn a_question_in_a_neighbours_name_teaches_nothing_on_a_bridge(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let setting = Setup::of(only_names(&["*.example.test"])).instead(["client", "victim"].map(bridged));
    let setting = setting.enforcer(&["--bridge-netfilter", "enable"]);
    let deployment = enforcement.of(setting).deploy(world)?;
    deployment.upstream().set(NAME, Records::addresses([ADDRESS]));
    deployment
        .upstream()
        .set("own.example.test", Records::addresses(["203.0.113.8"]));
    let adversary = deployment.world.adversary("client")?;
    let victim_mac = deployment.world.adversary("victim")?.mac();
    let servers = [node::DNS.into(), node::DNS_V6.into()];
    for (victim, server) in deployment.pod("victim").addresses().into_iter().zip(servers) {
        let question = Lookup::of(NAME, RecordType::A).to_vec();
        let packet = Packet::udp(at(victim, 5353), at(server, 53), &question);
        adversary.send(&packet)?;
        adversary.send_as(victim_mac, &packet)?;
    }
    // dnsd takes questions in their order.
    deployment.ask("victim", "own.example.test");
    deployment.assert_reaches("victim", "203.0.113.8");
    assert_eq!(deployment.upstream().asked(NAME), 0, "it is asked");
    deployment.assert_refused("victim", ADDRESS);
    // In its own name the adversary asks as ever.
    deployment.ask("client", NAME);
    deployment.assert_reaches("client", ADDRESS);
    Ok(())
}

const FRIENDS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
"#;

pub(crate) fn nobody_enters_a_pod_in_its_neighbours_name_on_a_bridge(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let setting = Setup::of(FRIENDS).instead(["client", "friend", "server"].map(bridged));
    let setting = setting.enforcer(&["--bridge-netfilter", "enable"]);
    let deployment = enforcement.of(setting).deploy(world)?;
    let (client, friend) = (
        deployment.world.adversary("client")?,
        deployment.world.adversary("friend")?,
    );
    let server = deployment.world.adversary("server")?;
    let inside = server.sniff()?;
    let outside = deployment.world.router_outside()?.sniff()?;
    let friends = deployment.pod("friend").addresses();
    let upstreams = [upstream::ADDRESS.into(), upstream::ADDRESS_V6.into()];
    for ((from, to), upstream) in friends
        .into_iter()
        .zip(deployment.pod("server").addresses())
        .zip(upstreams)
    {
        let to = at(to, UDP_ECHO);
        for packet in one_of_each(at(from, 4000), to, STOLEN) {
            client.send_to(server.mac(), &packet)?;
            client.send_frame(&frame_as(friend.mac(), server.mac(), &packet))?;
        }
        // By way of the node, too.
        send_all(&client, &one_of_each(at(from, 4010), to, STOLEN))?;
        friend.send_to(server.mac(), &Packet::udp(at(from, 4020), to, HONEST))?;
        assert_honest_alone(&inside, format!("to {to} as {from}"));
        send_all(
            &client,
            &one_of_each(at(from, 4030), at(upstream, UDP_ECHO), STOLEN),
        )?;
        friend.send(&Packet::udp(at(from, 4040), at(upstream, UDP_ECHO), HONEST))?;
        assert_honest_alone(&outside, format!("to {upstream} as {from}"));
    }
    // Who has moved the bridge's memory of hardware addresses gives it back by sending.
    deployment
        .pod("friend")
        .serve(8081, egret_integration::Service::TcpEcho)?;
    let to = at(deployment.pod("friend").address(), 8081);
    eventually("the friend is reached", || {
        deployment.pod("server").connect_tcp(to, QUICK).is_connected()
    });
    let answered = deployment
        .pod("client")
        .exchange_udp(at(upstreams[0], UDP_ECHO), HONEST, PATIENCE);
    assert!(answered.is_answered(), "the client in its own name: {answered:?}");
    Ok(())
}

fn frame_as(
    from: egret_integration::MacAddress,
    to: egret_integration::MacAddress,
    packet: &Packet,
) -> Vec<u8> {
    let kind: [u8; 2] = if packet.bytes()[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&to.0[..], &from.0, &kind, packet.bytes()].concat()
}

//! What else a source address, a reply or a memory of the kernel could be good for.

use egret_integration::{Packet, PodSpec, ProxyMode, SecondInterface, Service, ServicePort, World};

use crate::{
    Enforcement,
    deployment::{PATIENCE, QUICK, Setup, TestResult},
    words::{
        ALLOWED, HONEST, STOLEN, UDP_ECHO, allowed_alone, assert_honest_alone, assert_nothing_stolen, at,
        families, one_of_each, send_all,
    },
};

const MUTE: u16 = 5140;

/// A pod that is known, one that may send nothing there, and one that nobody knows yet.
pub(crate) fn nobody_answers_a_neighbours_question_in_anothers_name(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let policies = format!("{}---\n{}", allowed_alone("victim"), allowed_alone("confined"));
    let setting = Setup::of(policies)
        .and_pod("victim")
        .and_pod("confined")
        .and(PodSpec::new("unknown").unannounced());
    let deployment = enforcement.of(setting).deploy(world)?;
    let mute = deployment.world.mute_on_upstream_network(MUTE)?;
    mute.set_read_timeout(Some(PATIENCE))?;
    let victim = deployment.pod("victim");
    let inside = deployment.world.adversary("victim")?.sniff()?;
    for name in ["client", "confined", "unknown"] {
        let adversary = deployment.world.adversary(name)?;
        for family in families(victim) {
            let to = at(family.allowed, MUTE);
            let flow = victim.udp_socket(to)?;
            flow.send(HONEST)?;
            mute.recv_from(&mut [0; 64])?;
            adversary.send(&Packet::udp(to, flow.local_addr()?, STOLEN))?;
            assert_nothing_stolen(&inside, format!("{name} as {to}"));
            let answered = victim.exchange_udp(at(family.allowed, UDP_ECHO), HONEST, PATIENCE);
            assert!(answered.is_answered(), "{answered:?}");
        }
    }
    Ok(())
}

/// How many entries the node's connection tracking has.
fn entries(world: &World) -> Result<usize, Box<dyn std::error::Error>> {
    let counted = world.node().run(&["conntrack", "-C"])?.stdout;
    Ok(counted.trim().parse()?)
}

pub(crate) fn forged_sources_take_no_room_in_connection_tracking(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    const FORGED: u16 = 5_000;
    const OWN: u16 = 100;
    let deployment = enforcement
        .of(Setup::of(allowed_alone("victim")).and_pod("victim"))
        .deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    let adversary = deployment.world.adversary("client")?;
    for family in families(deployment.pod("victim")) {
        let to = at(family.allowed, MUTE);
        let before = entries(deployment.world)?;
        for number in 0..FORGED {
            adversary.send(&Packet::udp(at(family.own, 10_000 + number), to, STOLEN))?;
        }
        let after = entries(deployment.world)?;
        // The daemons have flows of their own.
        assert!(after < before + 50, "{before} entries became {after}");
    }
    for family in families(deployment.pod("client")) {
        let before = entries(deployment.world)?;
        for number in 0..OWN {
            let own = at(family.own, 20_000 + number);
            adversary.send(&Packet::udp(own, at(family.allowed, MUTE), HONEST))?;
        }
        let after = entries(deployment.world)?;
        assert!(
            after + 10 > before + usize::from(OWN),
            "its own are tracked: {before}, {after}"
        );
    }
    Ok(())
}

/// TCP to port 21 alone. Nobody there speaks FTP: the server sends back what the pod says.
fn ftp_alone() -> String {
    let [v4, v6] = ALLOWED;
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: ftp-alone, namespace: default}}
spec:
  podSelector: {{}}
  policyTypes: [Egress]
  egress:
  - to: [{{ipBlock: {{cidr: {v4}/32}}}}, {{ipBlock: {{cidr: "{v6}/128"}}}}]
    ports: [{{protocol: TCP, port: 21}}]
"#
    )
}

/// A helper expects the connection that a line announces, and marks it as it marks the first one.
pub(crate) fn what_a_helper_expects_is_judged_as_any_connection(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement.of(Setup::of(ftp_alone())).deploy(world)?;
    deployment.world.serve(21, Service::TcpEcho)?;
    let rule = "-w -t raw -A PREROUTING -p tcp --dport 21 -j CT --helper ftp";
    let argv: Vec<&str> = ["iptables"].into_iter().chain(rule.split(' ')).collect();
    deployment.world.node().run_well(&argv)?;
    let client = deployment.pod("client");
    let to = |port| at(ALLOWED[0].parse().unwrap(), port);
    assert!(
        !client.connect_tcp(to(7), QUICK).is_connected(),
        "port 7 is denied"
    );
    let mut control = client.connect_tcp(to(21), PATIENCE).connection();
    control.stream().set_read_timeout(Some(PATIENCE))?;
    // The helper reads a line only behind the end of another one.
    for line in ["220 ready\r\n", "227 Entering Passive Mode (203,0,113,7,0,7)\r\n"] {
        std::io::Write::write_all(control.stream(), line.as_bytes())?;
        std::io::Read::read_exact(control.stream(), &mut vec![0; line.len()])?;
    }
    let expected = deployment
        .world
        .node()
        .run(&["conntrack", "-L", "expect"])?
        .stdout;
    assert!(
        expected.contains("dport=7 "),
        "the helper expects a connection: {expected}"
    );
    let outcome = client.connect_tcp(to(7), QUICK);
    assert!(!outcome.is_connected(), "what was announced passes: {outcome:?}");
    assert!(control.is_alive(), "the control connection goes on");
    Ok(())
}

/// The friend alone enters the server.
const FRIENDS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
"#;

pub(crate) fn a_service_leads_nobody_to_a_pod_in_anothers_name(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    for name in ["client", "friend", "server"] {
        world.add(PodSpec::new(name))?;
    }
    let services = ["10.96.0.80:80", "[fd96::80]:80"].map(|at| at.parse().unwrap());
    let leading: Vec<ServicePort> = services
        .into_iter()
        .zip(world.pod("server").addresses())
        .map(|(service, pod)| ServicePort::udp("server").at(service).to(at(pod, UDP_ECHO)))
        .collect();
    world.proxy(ProxyMode::Iptables, &leading)?;
    let deployment = enforcement.of(Setup::of(FRIENDS).instead([])).deploy(world)?;
    let (client, friend) = (
        deployment.world.adversary("client")?,
        deployment.world.adversary("friend")?,
    );
    let inside = deployment.world.adversary("server")?.sniff()?;
    for (from, service) in deployment.pod("friend").addresses().into_iter().zip(services) {
        client.send(&Packet::udp(at(from, 4000), service, STOLEN))?;
        friend.send(&Packet::udp(at(from, 4001), service, HONEST))?;
        assert_honest_alone(&inside, format!("{service} as {from}"));
    }
    Ok(())
}

/// The second cable's own addresses stand in no object.
pub(crate) fn nothing_leaves_by_a_second_cable_in_anothers_name(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let client = PodSpec::new("client").with_second(SecondInterface::Veth);
    let setting = Setup::of(FRIENDS).instead([client, PodSpec::new("friend")]);
    let deployment = enforcement.of(setting).deploy(world)?;
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    let adversary = deployment.world.adversary_at_second("client")?;
    let outside = deployment.world.router_outside()?.sniff()?;
    let second = deployment.pod("client").second_addresses().unwrap();
    for ((family, friend), own) in families(deployment.pod("client"))
        .zip(deployment.pod("friend").addresses())
        .zip(second)
    {
        let to = at(family.allowed, MUTE);
        send_all(&adversary, &one_of_each(at(friend, 4000), to, STOLEN))?;
        send_all(&adversary, &one_of_each(at(family.denied, 4010), to, STOLEN))?;
        adversary.send(&Packet::udp(at(own, 4020), to, HONEST))?;
        assert_honest_alone(&outside, format!("to {to} by the second cable"));
    }
    Ok(())
}

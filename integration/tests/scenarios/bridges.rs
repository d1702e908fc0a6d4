//! Pods on a bridge.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{
    Attachment, Lookup, PodSpec, ProxyMode, RecordType, Service, ServicePort, World, node, upstream,
};

use super::deployment::{CLIENT_ALONE, Deployment, PATIENCE, QUICK, Setup, TestResult, eventually, metrics};

const PORT: u16 = 8081;

/// The server takes from friends alone, and asks nobody; the client may ask the server alone.
const RULES: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend, namespace: default}
spec:
  podSelector: {matchLabels: {app: friend}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
"#;

fn bridged(name: &str) -> PodSpec {
    PodSpec::new(name).attached(Attachment::Bridge { hairpin: false })
}

fn setting(policy: &str) -> Setup {
    Setup::of(policy).instead(["client", "friend", "server"].map(bridged))
}

fn reaches(deployment: &Deployment<'_>, pod: &str, to: IpAddr, port: u16) -> bool {
    deployment
        .pod(pod)
        .connect_tcp(SocketAddr::new(to, port), QUICK)
        .is_connected()
}

const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

#[track_caller]
fn assert_judged_from_pod_to_pod(deployment: &Deployment<'_>) {
    for server in deployment.pod("server").addresses() {
        eventually("the stranger is refused", || {
            !reaches(deployment, "client", server, PORT)
        });
        assert!(reaches(deployment, "friend", server, PORT), "{server}");
    }
}

/// What is routed is judged in any case: to the outside, from there, and to the node.
#[track_caller]
fn assert_judged_where_routed(deployment: &Deployment<'_>) {
    for outside in OUTSIDE.map(|address| address.parse().unwrap()) {
        assert!(reaches(deployment, "client", outside, 7), "{outside}");
        assert!(!reaches(deployment, "friend", outside, 7), "{outside}");
    }
    for server in deployment.pod("server").addresses() {
        let outcome = deployment
            .world
            .client_outside()
            .connect_tcp(SocketAddr::new(server, PORT), QUICK);
        assert!(!outcome.is_connected(), "{server}");
        let outcome = deployment
            .world
            .client_on_node()
            .connect_tcp(SocketAddr::new(server, PORT), QUICK);
        assert!(outcome.is_connected(), "the node reaches its pods: {outcome:?}");
    }
    for address in [node::ADDRESS.into(), node::ADDRESS_V6.into()] {
        assert!(reaches(deployment, "client", address, PORT), "{address}");
        assert!(!reaches(deployment, "server", address, PORT), "{address}");
    }
}

fn settings_of_the_bridge(world: &World) -> String {
    let shown = world
        .node()
        .run(&["ip", "-d", "link", "show", "cni0"])
        .unwrap()
        .stdout;
    let mut words = shown.split_whitespace();
    let mut after = |word| {
        words
            .find(|found| *found == word)
            .and_then(|_| words.next())
            .unwrap()
            .to_owned()
    };
    [after("nf_call_iptables"), after("nf_call_ip6tables")].concat()
}

pub(super) fn pods_of_one_bridge_are_judged_where_that_is_enabled(world: &mut World) -> TestResult {
    judged_where_enabled(world, "nft")
}

pub(super) fn pods_of_one_bridge_are_judged_in_the_legacy_flavour_as_well(world: &mut World) -> TestResult {
    judged_where_enabled(world, "legacy")
}

fn judged_where_enabled(world: &mut World, flavour: &str) -> TestResult {
    let deployment = setting(RULES)
        .enforcer(&["--bridge-netfilter", "enable", "--pod-to-own-node", "enforce"])
        .enforcer(&["--iptables", flavour])
        .deploy(world)?;
    deployment.pod("server").serve(PORT, Service::TcpEcho)?;
    deployment.world.serve_on_node(PORT, Service::TcpEcho)?;
    assert_eq!(settings_of_the_bridge(deployment.world), "11");
    assert_judged_from_pod_to_pod(&deployment);
    assert_judged_where_routed(&deployment);
    assert_eq!(
        metrics(&deployment.enforcer).sum("egret_enforcer_unjudged", &[]),
        0.0
    );

    // It is written down in the kernel, so that cleanup knows it after a crash.
    let binary = deployment.enforcer.spec().binary.display().to_string();
    drop(deployment);
    let clean = [binary.as_str(), "cleanup", "--state", "", "--state-objects", ""];
    world.node().run_well(&clean)?;
    assert_eq!(settings_of_the_bridge(world), "00");
    Ok(())
}

/// K-7: nothing of a node is changed unasked, and what that leaves open is told.
pub(super) fn a_bridge_that_is_not_judged_is_told(world: &mut World) -> TestResult {
    let deployment = setting(RULES)
        .enforcer(&["--pod-to-own-node", "enforce"])
        .deploy(world)?;
    deployment.pod("server").serve(PORT, Service::TcpEcho)?;
    deployment.world.serve_on_node(PORT, Service::TcpEcho)?;
    assert_eq!(settings_of_the_bridge(deployment.world), "00");
    assert!(
        reaches(&deployment, "client", deployment.pod("server").address(), PORT),
        "unseen"
    );
    assert_judged_where_routed(&deployment);
    let told = "what goes from pod to pod on the bridge cni0 is not judged, and a pod there may use another's address";
    eventually("it is told", || {
        deployment
            .enforcer
            .get("/readyz")
            .is_ok_and(|(_, text)| text.contains(told))
    });
    assert!(deployment.enforcer.log().contains(told));
    let bridges = metrics(&deployment.enforcer).sum("egret_enforcer_unjudged", &[("kind", "bridge")]);
    assert_eq!(bridges, 1.0);
    Ok(())
}

/// The client may reach nobody, the server whom it likes; the upstream's log shows whose packets got there.
pub(super) fn a_neighbours_address_gains_nothing_behind_another_port(world: &mut World) -> TestResult {
    let deployment = setting(CLIENT_ALONE)
        .enforcer(&["--bridge-netfilter", "enable"])
        .deploy(world)?;
    let (client, server) = (deployment.pod("client"), deployment.pod("server"));
    let servers = [upstream::ADDRESS.into(), upstream::ADDRESS_V6.into()];
    for (source, upstream) in server.addresses().into_iter().zip(servers) {
        let to = SocketAddr::new(upstream, 53);
        let question = Lookup::of("stolen.example.test", RecordType::A);
        client.send_udp_as(SocketAddr::new(source, 5353), to, &question.to_vec())?;
        deployment.ask_as(
            "server",
            &Lookup::of("own.example.test", RecordType::A).at(upstream),
        );
    }
    assert!(
        deployment
            .upstream()
            .wait_until_asked("own.example.test", 2, PATIENCE)
    );
    assert_eq!(deployment.upstream().asked("stolen.example.test"), 0);
    Ok(())
}

const ISOLATED: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress, Ingress]
";

/// X-12, where what comes back leaves by the port that it came by.
pub(super) fn a_pod_on_a_bridge_meets_itself_by_a_service_and_its_neighbour_does_not(
    world: &mut World,
) -> TestResult {
    let services = ["10.96.0.80:80", "[fd96::80]:80"].map(|at| at.parse::<SocketAddr>().unwrap());
    for name in ["client", "other"] {
        world.add(PodSpec::new(name).attached(Attachment::Bridge { hairpin: true }))?;
    }
    world.pod("client").serve(PORT, Service::TcpEcho)?;
    let own = world.pod("client").addresses();
    let leading: Vec<ServicePort> = services
        .into_iter()
        .zip(own)
        .map(|(at, own)| ServicePort::tcp("itself").at(at).to(SocketAddr::new(own, PORT)))
        .collect();
    world.proxy(ProxyMode::Iptables, &leading)?;
    let deployment = Setup::of(ISOLATED)
        .instead([])
        .enforcer(&["--bridge-netfilter", "enable"])
        .deploy(world)?;
    for at in services {
        assert!(reaches(&deployment, "client", at.ip(), at.port()), "{at}");
        assert!(!reaches(&deployment, "other", at.ip(), at.port()), "{at}");
    }
    Ok(())
}

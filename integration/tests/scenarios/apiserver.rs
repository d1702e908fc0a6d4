//! The API server and the nodes, by every way that leads there: what a ClusterEgressFirewall says about them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use egret_integration::{OtherNode, PodSpec, ProxyMode, Service, ServicePort, World, node, other_node};

use super::deployment::{Deployment, MOMENT, QUICK, Setup, TestResult, eventually};

/// Where the API server listens, on this node and on the other one.
const API: u16 = 6443;
/// Something else on both nodes.
const ELSE: u16 = 7070;
const NODE_PORT: u16 = 30443;
const KUBERNETES: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 443);
/// A Service that somebody wrote by hand.
const SLY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 90)), 8443);
const DECLARED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 60)), 7);
const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 7);
/// The API server's port where no API server is.
const SAME_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), API);

/// R-8, E-4, E-5: its Service, which leads to this node (INPUT) and to another one; its endpoints; the other addresses of
/// their nodes, also those that no Node object names; Services that lead there; what is declared. The nodes themselves are exempt, and so are
/// other ports.
pub(super) fn the_api_server_is_refused_by_every_way_that_leads_there(world: &mut World) -> TestResult {
    let elsewhere = two_servers(world)?;
    let services = services();
    world.proxy(ProxyMode::Iptables, &services)?;
    let deployment = Setup::of(firewall("apiServer: {}", "")).deploy(world)?;
    let is_open = |to: SocketAddr| deployment.pod("client").connect_tcp(to, QUICK).is_connected();
    let on = |address: IpAddr, port| SocketAddr::new(address, port);
    let refused = [
        on(node::ADDRESS.into(), API),
        on(node::ADDRESS_V6.into(), API),
        on(other_node::ADDRESS.into(), API),
        on(other_node::UNREPORTED.into(), API),
        on(other_node::ADDRESS_V6.into(), API),
        DECLARED,
    ];
    eventually("it is refused", || !is_open(refused[0]));
    assert_eq!(refused.map(is_open), [false; 6], "{refused:?}");
    let [here, there] = [node::ADDRESS, other_node::ADDRESS].map(|address| on(address.into(), ELSE));
    let others = [here, there, OTHER, SAME_PORT];
    assert_eq!(others.map(is_open), [true; 4], "{others:?}");
    for mode in ProxyMode::ALL {
        deployment.world.proxy(mode, &services)?;
        eventually("the mode of kube-proxy is in force", || {
            deployment
                .world
                .client_on_node()
                .connect_tcp(SLY, QUICK)
                .is_connected()
        });
        let led = [
            KUBERNETES,
            KUBERNETES,
            KUBERNETES,
            SLY,
            on(node::ADDRESS.into(), NODE_PORT),
        ];
        assert_eq!(led.map(is_open), [false; 5], "{mode:?}: {led:?}");
        for from in [deployment.world.client_on_node(), elsewhere.client()] {
            let outcome = from.connect_tcp(on(node::ADDRESS.into(), API), QUICK);
            assert!(outcome.is_connected(), "{mode:?}: a node: {outcome:?}");
        }
        let outcome = deployment.world.client_on_node().connect_tcp(KUBERNETES, QUICK);
        assert!(
            outcome.is_connected(),
            "{mode:?}: the node by the Service: {outcome:?}"
        );
    }

    // By ports: that of the Service stands for those behind it, and for no others.
    let by_port = firewall(
        "apiServer: {}",
        "protocols: [{tcp: {destinationPort: {number: 443}}}]",
    );
    deployment.world.manifests().write("policy.yaml", &by_port)?;
    eventually("other ports of what is declared are open", || is_open(DECLARED));
    let behind = [KUBERNETES, KUBERNETES, on(other_node::ADDRESS.into(), API)];
    assert_eq!(behind.map(is_open), [false; 3], "{behind:?}");

    // The nodes: this one by where packets arrive, the other one by its report.
    deployment
        .world
        .manifests()
        .write("policy.yaml", &firewall("nodes: {}", ""))?;
    let unreported = on(other_node::UNREPORTED.into(), ELSE);
    eventually("nodes are refused", || !is_open(unreported));
    let nodes = [here, there, KUBERNETES, SLY, on(node::DNS.into(), ELSE)];
    assert_eq!(nodes.map(is_open), [false; 5], "{nodes:?}");
    assert!(is_open(OTHER) && is_open(SAME_PORT), "what is no node");
    Ok(())
}

/// R-27, E-5: both nodes have addresses that no Node object names. Each reports its own, in the folder that both read.
pub(super) fn a_node_is_refused_at_what_it_reports_of_itself(world: &mut World) -> TestResult {
    /// On this node; on the other one, from some time on.
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 9);
    const LATER: Ipv4Addr = Ipv4Addr::new(10, 76, 2, 4);
    let elsewhere = world.lay_other_node()?;
    elsewhere.serve(ELSE, Service::TcpEcho)?;
    world.serve_on_node(ELSE, Service::TcpEcho)?;
    let own = format!("{OWN}/32");
    world
        .node()
        .run_well(&["ip", "address", "add", &own, "dev", "uplink"])?;
    let folder = world.manifests().folder().to_owned();
    let report = |node: &str| folder.join(format!("node-address-report-{node}.yaml"));
    let reports = |node: &str, address: Ipv4Addr| {
        let text = std::fs::read_to_string(report(node)).unwrap_or_default();
        text.contains(&format!("\"{address}\""))
    };
    let report_dir = ["--report-dir", &folder.display().to_string()];
    let mut there = elsewhere.launch(elsewhere.enforcer(world).with(report_dir))?;
    let setting = Setup::of(firewall("nodes: {}", "")).enforcer(&report_dir);
    let deployment = setting.deploy(world)?;
    there.wait_until_ready()?;
    let is_open = |to: Ipv4Addr| {
        deployment
            .pod("client")
            .connect_tcp(SocketAddr::new(to.into(), ELSE), QUICK)
            .is_connected()
    };
    let on_node = deployment.world.client_on_node();
    let is_there = |to: Ipv4Addr| {
        on_node
            .connect_tcp(SocketAddr::new(to.into(), ELSE), QUICK)
            .is_connected()
    };
    eventually("the other node's is refused", || !is_open(other_node::UNREPORTED));
    assert!(is_there(other_node::UNREPORTED) && is_there(OWN));
    assert!(!is_open(OWN));
    eventually("this node's is reported", || reports(node::NAME, OWN));
    assert!(!reports(node::NAME, node::DNS));
    assert!(is_open_elsewhere(&deployment), "what is no node");

    // What comes is reported as it comes, and taken back when it goes.
    elsewhere.address("add", LATER)?;
    eventually("it is there, and refused", || is_there(LATER) && !is_open(LATER));
    elsewhere.address("del", LATER)?;
    eventually("it is not reported any more", || {
        !reports(other_node::NAME, LATER)
    });
    // It says so after it has written. Reading what it wrote itself is no reason to write.
    let written = || there.log().matches("reported the addresses of this node").count();
    eventually("it says that it has written", || written() >= 3);
    std::thread::sleep(MOMENT);
    assert_eq!(written(), 3, "{}", there.log());

    // A report that somebody else wrote is the one that counts.
    let theirs = format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {{name: {}}}\naddresses: [{{ip: {}}}]\n",
        other_node::NAME,
        other_node::ADDRESS
    );
    std::fs::write(report(other_node::NAME), &theirs)?;
    eventually("theirs counts", || is_open(other_node::UNREPORTED));
    elsewhere.address("add", LATER)?;
    eventually("it says that it does not write", || {
        there.log().contains("was not written by an enforcer")
    });
    assert_eq!(std::fs::read_to_string(report(other_node::NAME))?, theirs);
    Ok(())
}

fn is_open_elsewhere(deployment: &Deployment<'_>) -> bool {
    deployment.pod("client").connect_tcp(OTHER, QUICK).is_connected()
}

/// Both nodes run an API server and something else.
fn two_servers(world: &mut World) -> Result<OtherNode, Box<dyn std::error::Error>> {
    let elsewhere = world.lay_other_node()?;
    for port in [API, ELSE] {
        world.serve_on_node(port, Service::TcpEcho)?;
        elsewhere.serve(port, Service::TcpEcho)?;
    }
    world.serve(API, Service::TcpEcho)?;
    world.manifests().write("kubernetes.yaml", &cluster())?;
    Ok(elsewhere)
}

fn services() -> [ServicePort; 3] {
    let [here, there] =
        [node::ADDRESS, other_node::ADDRESS].map(|address| SocketAddr::new(address.into(), API));
    [
        ServicePort::tcp("kubernetes").at(KUBERNETES).to(here).to(there),
        ServicePort::tcp("sly").at(SLY).to(there),
        ServicePort::tcp("port").at_node_port(NODE_PORT).to(there),
    ]
}

fn firewall(to: &str, protocols: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: inside}}
spec:
  rules:
  - action: Deny
    to: [{{{to}}}]
    {protocols}
"
    )
}

fn cluster() -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kubernetes, namespace: default}}
spec: {{clusterIP: {}, clusterIPs: [{}], ports: [{{name: https, port: 443, targetPort: {API}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: kubernetes, namespace: default, labels: {{kubernetes.io/service-name: kubernetes}}}}
addressType: IPv4
endpoints: [{{addresses: [{}]}}, {{addresses: [{}]}}]
ports: [{{name: https, port: {API}}}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {{name: {}}}
addresses: [{{ip: {}}}, {{ip: {}}}, {{ip: '{}'}}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {{name: cloud}}
spec: {{addresses: [{}]}}
",
        KUBERNETES.ip(),
        KUBERNETES.ip(),
        node::ADDRESS,
        other_node::ADDRESS,
        other_node::NAME,
        other_node::ADDRESS,
        other_node::UNREPORTED,
        other_node::ADDRESS_V6,
        DECLARED.ip(),
    )
}

/// What is from a node and what only says so.
const ISOLATED: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: far}}}, {podSelector: {matchLabels: {app: of-node}}}]
";

/// CASE-34, CASE-35, CROSS-4, CROSS-6, CROSS-8: the own node is where packets start, from whichever of its addresses: neither a
/// pod nor somebody outside gains anything by using one. A pod of another node's network is that node, not a pod.
pub(super) fn the_own_node_is_where_packets_start_and_not_what_they_bear(world: &mut World) -> TestResult {
    let elsewhere = world.lay_other_node()?;
    let far = other_node::pod_addresses(9);
    let nodes = [other_node::ADDRESS.into(), other_node::ADDRESS_V6.into()];
    let pods = [
        other_node::pod_document("far", far, false),
        other_node::pod_document("of-node", nodes, true),
    ];
    world.manifests().write("pods.yaml", &pods.join("---\n"))?;
    // Linux refuses to take in, though not to forward, what comes from outside in its own name.
    for interface in ["all", "default", "uplink"] {
        world
            .node()
            .sysctl(&format!("ipv4/conf/{interface}/accept_local"), "1")?;
    }
    world.add(PodSpec::new("client"))?;
    world.add(PodSpec::new("other"))?;
    let pod = world.pod("other");
    world
        .node()
        .sysctl(&format!("ipv4/conf/{}/accept_local", pod.interface()), "1")?;
    let deployment = Setup::of(ISOLATED).instead([]).deploy(world)?;
    let own = [
        [IpAddr::from(node::ADDRESS), node::ADDRESS_V6.into()],
        [node::DNS.into(), node::DNS_V6.into()],
    ];
    let client = deployment.pod("client");
    for (family, address) in client.addresses().into_iter().enumerate() {
        let to = SocketAddr::new(address, 9000);
        let socket = client.udp_socket_at(to)?;
        let mut heard = [0; 16];
        for own in own.map(|own| SocketAddr::new(own[family], 5000)) {
            deployment.pod("other").send_udp_as(own, to, b"pod")?;
            deployment
                .world
                .client_outside()
                .udp_socket_at(own)?
                .send_to(b"outside", to)?;
            deployment
                .world
                .client_on_node()
                .udp_socket_at(own)?
                .send_to(b"node", to)?;
            socket.set_read_timeout(Some(2 * QUICK))?;
            let (length, from) = socket.recv_from(&mut heard)?;
            assert_eq!((&heard[..length], from), (&b"node"[..], own));
            socket.set_read_timeout(Some(QUICK / 2))?;
            let more = socket.recv(&mut heard).map(|length| heard[..length].to_vec());
            assert!(more.is_err(), "in the name of {own}: {more:?}");
        }
        for (from, is_heard) in [(far[family], true), (nodes[family], false)] {
            let from = SocketAddr::new(from, 5000);
            elsewhere.client().udp_socket_at(from)?.send_to(b"far", to)?;
            socket.set_read_timeout(Some(QUICK))?;
            assert_eq!(socket.recv(&mut heard).is_ok(), is_heard, "from {from}");
        }
    }
    Ok(())
}

/// CASE-41: a hostNetwork pod on a node with several addresses answers from another one than was asked. From the own node that
/// is no news; from another node it is a connection of its own, which nobody allowed.
pub(super) fn an_answer_from_another_address_is_the_own_nodes_or_nobodys(world: &mut World) -> TestResult {
    const ASKED: u16 = 5300;
    let elsewhere = world.lay_other_node()?;
    world.add(PodSpec::new("client"))?;
    let deployment = Setup::of(ISOLATED).instead([]).deploy(world)?;
    let pod = deployment.pod("client");
    let here = deployment.world.client_on_node();
    let there = elsewhere.client();
    let ways = [
        (&here, node::ADDRESS.into(), node::DNS.into(), true),
        (&here, node::ADDRESS_V6.into(), node::DNS_V6.into(), true),
        (
            &there,
            other_node::ADDRESS.into(),
            other_node::UNREPORTED.into(),
            false,
        ),
    ];
    for (server, asked, answers, is_heard) in ways {
        let (asked, answers): (IpAddr, IpAddr) = (asked, answers);
        let listening = server.udp_socket_at(SocketAddr::new(asked, ASKED))?;
        let other = server.udp_socket_at(SocketAddr::new(answers, ASKED))?;
        let socket = pod.open_udp_socket(SocketAddr::new(asked, ASKED))?;
        let mut heard = [0; 16];
        // First as it should be: the question passes, and so does an answer from where it went.
        for (socket_of_answer, is_heard) in [(&listening, true), (&other, is_heard)] {
            socket.send_to(b"question", SocketAddr::new(asked, ASKED))?;
            listening.set_read_timeout(Some(2 * QUICK))?;
            let (_, from) = listening.recv_from(&mut heard)?;
            socket_of_answer.send_to(b"answer", from)?;
            socket.set_read_timeout(Some(QUICK))?;
            let answer = socket.recv_from(&mut heard);
            assert_eq!(answer.is_ok(), is_heard, "{asked} by {answers}: {answer:?}");
        }
    }
    Ok(())
}

//! Services as kube-proxy leads them on, by iptables and by nftables: what is judged is who connects, the pod behind the
//! Service, and the pod's port.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{OtherNode, PodSpec, ProxyMode, Service, ServicePort, World, node, other_node};

use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually};

/// Where the pods behind the Services listen; their Services are reached elsewhere.
const TARGET: u16 = 8000;
const WEB: u8 = 20;
const FAR: u8 = 21;
const BOTH: u8 = 22;

/// CROSS-11, NP-30, CASE-15, CASE-27: an egress rule about pods and their port opens the Service that leads there, and one
/// about the Service's own address or port opens nothing; the ingress of the pod behind it sees the pod that connects.
pub(super) fn a_service_is_judged_by_the_pod_behind_it_and_its_port(world: &mut World) -> TestResult {
    let far = a_pod_elsewhere(world, "far")?;
    for name in ["client", "other", "web"] {
        world.add(PodSpec::new(name))?;
    }
    world.pod("web").serve(TARGET, Service::TcpEcho)?;
    let web = world.pod("web").addresses();
    let services: Vec<ServicePort> = [0, 1]
        .into_iter()
        .flat_map(|family| {
            let [web, far] = [web, far.addresses].map(|pod| SocketAddr::new(pod[family], TARGET));
            [
                ServicePort::tcp("web").at(virtual_address(WEB)[family]).to(web),
                ServicePort::tcp("far").at(virtual_address(FAR)[family]).to(far),
                ServicePort::tcp("both")
                    .at(virtual_address(BOTH)[family])
                    .to(web)
                    .to(far),
            ]
        })
        .collect();
    world.proxy(ProxyMode::Iptables, &services)?;
    let pods = |port: u16| {
        egress(&format!(
            "[{{podSelector: {{matchExpressions: [{{key: app, operator: In, values: [web, far]}}]}}}}]
    ports: [{{port: {port}}}]"
        ))
    };
    let deployment = Setup::of(pods(TARGET)).instead([]).deploy(world)?;
    deployment.world.manifests().write("web.yaml", FROM_CLIENT)?;
    let is_open = |pod: &str, service: u8, family: usize| {
        let to = virtual_address(service)[family];
        deployment.pod(pod).connect_tcp(to, QUICK).is_connected()
    };
    eventually("the ingress of the pod behind it is closed to others", || {
        !is_open("other", WEB, 0)
    });
    for mode in ProxyMode::ALL {
        deployment.world.proxy(mode, &services)?;
        first_again(&deployment);
        for family in [0, 1] {
            assert!(
                is_open("client", WEB, family),
                "{mode:?}: to the pod of this node"
            );
            assert!(
                is_open("client", FAR, family),
                "{mode:?}: to the pod of another node"
            );
            let several = (0..4).all(|_| is_open("client", BOTH, family));
            assert!(several, "{mode:?}: to either");
            assert!(!is_open("other", WEB, family), "{mode:?}: it is not the client");
            assert!(is_open("other", FAR, family), "{mode:?}: nobody isolates it");
        }
    }
    let addresses = [WEB, FAR, BOTH].map(virtual_address).concat();
    let blocks: Vec<String> = addresses
        .iter()
        .map(|at| format!("{{ipBlock: {{cidr: '{}'}}}}", net(at.ip())))
        .collect();
    for rule in [pods(80), egress(&format!("[{}]", blocks.join(", ")))] {
        deployment.world.manifests().write("policy.yaml", &rule)?;
        eventually("the Service's own address and port are nobody's", || {
            !is_open("client", WEB, 0)
        });
        for mode in ProxyMode::ALL {
            deployment.world.proxy(mode, &services)?;
            first_again(&deployment);
            let open =
                [(WEB, 1), (FAR, 0), (FAR, 1)].map(|(service, family)| is_open("client", service, family));
            assert_eq!(open, [false; 3], "{mode:?}: {rule}");
        }
    }
    Ok(())
}

/// CROSS-12, CASE-36: the node on which the pod is judges before it masquerades, so it sees the client, whatever the
/// traffic policy; another node has masqueraded by then, and the client is that node. What is masqueraded to the own node is not
/// from it.
pub(super) fn a_client_of_a_node_port_is_itself_until_another_node_masquerades(
    world: &mut World,
) -> TestResult {
    const CLUSTER: u16 = 30080;
    const LOCAL: u16 = 30081;
    let elsewhere = world.lay_other_node()?;
    world.add(PodSpec::new("web"))?;
    world.pod("web").serve(TARGET, Service::TcpEcho)?;
    let web = world
        .pod("web")
        .addresses()
        .map(|pod| SocketAddr::new(pod, TARGET));
    let services: Vec<ServicePort> = web
        .iter()
        .flat_map(|web| {
            [
                ServicePort::tcp("cluster").at_node_port(CLUSTER).to(*web),
                ServicePort::tcp("local")
                    .at_node_port(LOCAL)
                    .keeping_clients()
                    .to(*web),
            ]
        })
        .collect();
    world.proxy(ProxyMode::Iptables, &services)?;
    elsewhere.proxy(ProxyMode::Iptables, &services)?;
    let clients: [IpAddr; 2] = ["10.76.0.1".parse()?, "fd76::1".parse()?];
    let strangers: [IpAddr; 2] = ["203.0.113.7".parse()?, "2001:db8::7".parse()?];
    let deployment = Setup::of(ingress(&clients)).instead([]).deploy(world)?;
    let here = |port| {
        deployment
            .world
            .node()
            .addresses()
            .map(|own| SocketAddr::new(own, port))
    };
    let outside = deployment.world.client_outside();
    let is_open = |from: IpAddr, to: SocketAddr| outside.connect_tcp_from(from, to, QUICK).is_connected();
    for mode in ProxyMode::ALL {
        deployment.world.proxy(mode, &services)?;
        elsewhere.proxy(mode, &services)?;
        first_again(&deployment);
        for family in [0, 1] {
            let (client, stranger) = (clients[family], strangers[family]);
            for port in [CLUSTER, LOCAL] {
                assert!(
                    is_open(client, here(port)[family]),
                    "{mode:?}: the client at {port}"
                );
                assert!(
                    !is_open(stranger, here(port)[family]),
                    "{mode:?}: not from the node"
                );
                let on_node = deployment.world.client_on_node();
                let itself = on_node.connect_tcp(here(port)[family], QUICK);
                assert!(
                    itself.is_connected(),
                    "{mode:?}: the node itself at {port}: {itself:?}"
                );
            }
            assert!(
                !is_open(client, OtherNode::at(CLUSTER)[family]),
                "{mode:?}: it is a node now"
            );
        }
        assert!(
            !is_open(clients[0], OtherNode::at(LOCAL)[0]),
            "{mode:?}: no endpoint is there"
        );
    }
    let nodes = [other_node::ADDRESS.into(), other_node::ADDRESS_V6.into()];
    deployment
        .world
        .manifests()
        .write("policy.yaml", &ingress(&nodes))?;
    eventually("who comes by another node is that node", || {
        is_open(clients[0], OtherNode::at(CLUSTER)[0]) && is_open(clients[1], OtherNode::at(CLUSTER)[1])
    });
    let others = [0, 1].map(|family| is_open(clients[family], here(CLUSTER)[family]));
    assert_eq!(others, [false; 2], "and nobody else");
    Ok(())
}

/// R-13, CROSS-11: a pod's own node leads it on before it is judged, also by an address of a load balancer whose Service
/// keeps its clients; of another node's port only the node is seen.
pub(super) fn a_node_port_is_the_pod_behind_it_here_and_a_node_elsewhere(world: &mut World) -> TestResult {
    const PORT: u16 = 30080;
    let balanced: [SocketAddr; 2] = ["198.18.0.50:80".parse()?, "[2001:db8:50::50]:80".parse()?];
    let far = a_pod_elsewhere(world, "far")?;
    for name in ["client", "web"] {
        world.add(PodSpec::new(name))?;
    }
    world.pod("web").serve(TARGET, Service::TcpEcho)?;
    let web = world
        .pod("web")
        .addresses()
        .map(|pod| SocketAddr::new(pod, TARGET));
    let at_far = far.addresses.map(|pod| SocketAddr::new(pod, TARGET));
    let here: Vec<ServicePort> = [0, 1]
        .into_iter()
        .flat_map(|family| {
            [
                ServicePort::tcp("web").at_node_port(PORT).to(web[family]),
                ServicePort::tcp("balanced")
                    .at_outside(balanced[family])
                    .keeping_clients()
                    .to(at_far[family]),
            ]
        })
        .collect();
    let there: Vec<ServicePort> = at_far
        .iter()
        .map(|far| ServicePort::tcp("far").at_node_port(PORT).to(*far))
        .collect();
    far.node.proxy(ProxyMode::Iptables, &there)?;
    world.proxy(ProxyMode::Iptables, &here)?;
    let to_web = egress("[{podSelector: {matchLabels: {app: web}}}]");
    let nodes = [other_node::ADDRESS.into(), other_node::ADDRESS_V6.into()].map(net);
    let to_others = egress(&format!(
        "[{{podSelector: {{matchLabels: {{app: far}}}}}}, {{ipBlock: {{cidr: '{}'}}}}, {{ipBlock: {{cidr: '{}'}}}}]",
        nodes[0], nodes[1]
    ));
    let deployment = Setup::of(to_web).instead([]).deploy(world)?;
    let own = node_addresses(PORT);
    let reach = |to: SocketAddr| deployment.pod("client").connect_tcp(to, QUICK).is_connected();
    for (policy, is_web_open) in [(None, true), (Some(to_others), false)] {
        if let Some(policy) = policy {
            deployment.world.manifests().write("policy.yaml", &policy)?;
            eventually("the policy has changed", || !reach(own[0]));
        }
        for mode in ProxyMode::ALL {
            deployment.world.proxy(mode, &here)?;
            first_again(&deployment);
            for family in [0, 1] {
                let open = [own[family], balanced[family], OtherNode::at(PORT)[family]].map(reach);
                let expected = [is_web_open, !is_web_open, !is_web_open];
                assert_eq!(
                    open, expected,
                    "{mode:?}: own port, load balancer, another node's port"
                );
            }
        }
    }
    Ok(())
}

/// Nobody may connect to the client, and it may connect to nobody.
const ISOLATED: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: isolated
  namespace: default
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Ingress, Egress]
"#;

const DENIED: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: not-even-itself
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}
  ingress:
  - action: Deny
    from:
    - pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}
"#;

/// X-12, CASE-37. What comes back to where it came from bears the node's address behind us.
pub(super) fn no_network_policy_keeps_a_pod_from_itself_and_a_cluster_wide_one_does(
    world: &mut World,
) -> TestResult {
    for name in ["client", "other"] {
        world.add(PodSpec::new(name))?;
    }
    world.pod("client").serve(7, Service::TcpEcho)?;
    let services: Vec<ServicePort> = virtual_address(WEB)
        .into_iter()
        .zip(world.pod("client").addresses())
        .map(|(at, own)| ServicePort::tcp("itself").at(at).to(SocketAddr::new(own, 7)))
        .collect();
    world.proxy(ProxyMode::Iptables, &services)?;
    let deployment = Setup::of(ISOLATED).instead([]).deploy(world)?;
    let by_service = |pod: &str, family: usize| {
        let to = virtual_address(WEB)[family];
        deployment.pod(pod).connect_tcp(to, QUICK).is_connected()
    };
    for mode in ProxyMode::ALL {
        deployment.world.manifests().write("denied.yaml", "")?;
        deployment.world.proxy(mode, &services)?;
        first_again(&deployment);
        eventually("a Service leads the client to itself", || {
            by_service("client", 0) && by_service("client", 1)
        });
        assert!(!by_service("other", 0), "{mode:?}: and nobody else to it");
        deployment.assert_refused("client", "203.0.113.7");
        deployment.world.manifests().write("denied.yaml", DENIED)?;
        eventually("a cluster-wide policy denies it", || {
            !by_service("client", 0) && !by_service("client", 1)
        });
        let own = deployment.pod("client").address().to_string();
        deployment.assert_reaches("client", &own);
    }
    Ok(())
}

/// kube-proxy puts its jumps in front of everybody's when it starts, and accepts what it masquerades and what is
/// established: what it comes before would not be judged.
pub(super) fn what_kube_proxy_accepts_is_judged_though_it_comes_later(world: &mut World) -> TestResult {
    const PORT: u16 = 30080;
    world.add(PodSpec::new("web"))?;
    world.pod("web").serve(TARGET, Service::TcpEcho)?;
    let web = world
        .pod("web")
        .addresses()
        .map(|pod| SocketAddr::new(pod, TARGET));
    let setting = Setup::of(ingress(&[])).instead([]);
    let deployment = setting.enforcer(&["--resync", "1s"]).deploy(world)?;
    let services = web.map(|web| ServicePort::tcp("web").at_node_port(PORT).to(web));
    deployment.world.proxy(ProxyMode::Iptables, &services)?;
    first_again(&deployment);
    for to in node_addresses(PORT) {
        let outcome = deployment.world.client_outside().connect_tcp(to, QUICK);
        assert!(outcome.is_denied(), "{to}: {outcome:?}");
    }
    Ok(())
}

/// Waits until nobody's rule in `FORWARD` is in front of ours.
#[track_caller]
fn first_again(deployment: &Deployment<'_>) {
    use egret_integration::Family;
    // A table and programs have hooks of their own.
    if super::backend_override::is_ebpf() || super::backend_override::packet_filter() == "nftables" {
        return;
    }
    let is_first = |family: Family| {
        let rules = deployment.world.node().iptables_save(family).unwrap();
        let first = rules.lines().find(|line| line.starts_with("-A FORWARD "));
        first.is_some_and(|line| line.ends_with("-j EGRET-FORWARD"))
    };
    super::deployment::within(
        std::time::Duration::from_secs(6),
        "our rules are the first again",
        || is_first(Family::V4) && is_first(Family::V6),
    );
}

/// A pod of another node that listens at the target port.
struct FarPod {
    node: OtherNode,
    addresses: [IpAddr; 2],
}

fn a_pod_elsewhere(world: &World, name: &str) -> Result<FarPod, Box<dyn std::error::Error>> {
    let node = world.lay_other_node()?;
    node.serve(TARGET, Service::TcpEcho)?;
    let addresses = other_node::pod_addresses(5);
    world
        .manifests()
        .write("far.yaml", &other_node::pod_document(name, addresses, false))?;
    Ok(FarPod { node, addresses })
}

/// Of the Service of this number, at port 80.
fn virtual_address(number: u8) -> [SocketAddr; 2] {
    [
        SocketAddr::from(([10, 96, 0, number], 80)),
        SocketAddr::from(([0xfd96, 0, 0, 0, 0, 0, 0, number.into()], 80)),
    ]
}

fn node_addresses(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::new(node::ADDRESS.into(), port),
        SocketAddr::new(node::ADDRESS_V6.into(), port),
    ]
}

fn net(address: IpAddr) -> String {
    let length = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{length}")
}

const FROM_CLIENT: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 8000}]
";

/// The client may reach these, and nothing else.
fn egress(to: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: client, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Egress]
  egress:
  - to: {to}
"
    )
}

/// These may reach the web pod, and nobody else.
fn ingress(from: &[IpAddr]) -> String {
    let blocks: Vec<String> = from
        .iter()
        .map(|from| format!("\n  - from: [{{ipBlock: {{cidr: '{}'}}}}]", net(*from)))
        .collect();
    let rules = if blocks.is_empty() {
        " []".into()
    } else {
        blocks.concat()
    };
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: web, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  policyTypes: [Ingress]
  ingress:{rules}
"
    )
}

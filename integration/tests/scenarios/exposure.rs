//! ClusterEgressFirewall and Services that lead to what it denies: from pods, from outside, and from the node.

use std::net::SocketAddr;

use egret_integration::{Client, Connection, Forwarding, Front, Service, World, node};

use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually, metrics};

const DENIED: &str = "203.0.113.66:7";
const DENIED_V6: &str = "[2001:db8:66::66]:7";
const OTHER: &str = "203.0.113.7:7";
/// A Service that leads to what is denied.
const SLY: &str = "10.96.0.66:80";
/// Only the node itself serves it.
const LOCAL: u16 = 7070;

const PODS: &str = "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: pods}
spec:
  priority: 1
  services: {exposure: Ignore}
  rules: [{action: Allow, to: [{networks: [203.0.113.64/26]}]}]
";

fn firewall(services: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: inside}}
spec:
  services: {services}
  rules:
  - name: restricted
    action: Deny
    to:
    - networks: [203.0.113.64/26, '2001:db8:66::/48']
  - name: nodes
    action: Deny
    to:
    - nodes: {{}}
    protocols:
    - tcp: {{destinationPort: {{number: {LOCAL}}}}}
"
    )
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn leading(front: Front, endpoint: &str) -> Forwarding {
    Forwarding {
        front,
        endpoint: at(endpoint),
    }
}

/// whoever may write endpoints by hand sends a Service where pods may not go; what the pod sends is judged
/// behind the rewriting. R-14: an Ingress controller is such a pod, whoever it connects for.
pub(super) fn a_service_leads_no_pod_to_what_is_denied(world: &mut World) -> TestResult {
    let deployment = Setup::of(firewall("{exposure: Ignore}")).deploy(world)?;
    let (honest, sly_v6) = ("10.96.0.7:80", "[fd76::96:66]:80");
    deployment.world.forward(&[
        leading(Front::Cluster(at(SLY)), DENIED),
        leading(Front::Cluster(at(honest)), OTHER),
        leading(Front::Cluster(at(sly_v6)), DENIED_V6),
        leading(
            Front::NodePort(30080),
            &SocketAddr::new(deployment.pod("client").address(), 8000).to_string(),
        ),
    ])?;
    let pod = deployment.pod("client");
    pod.serve(8000, Service::TcpEcho)?;
    let ingress = SocketAddr::new(node::ADDRESS.into(), 30080);
    assert_connects(&deployment.world.client_outside(), &ingress.to_string());
    for (to, is_open) in [(honest, true), (SLY, false), (sly_v6, false), (DENIED, false)] {
        let outcome = pod.connect_tcp(at(to), QUICK);
        assert_eq!(outcome.is_connected(), is_open, "{to}: {outcome:?}");
    }
    let node = deployment.world.client_on_node();
    assert_connects(&node, SLY);
    Ok(())
}

/// NodePorts, external IPs and addresses of load balancers, from outside; what is led to the node itself; and
/// the node, which is never refused. A change counts for open connections as well.
pub(super) fn a_client_outside_is_refused_where_a_service_leads_to_what_is_denied(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(firewall("{exposure: Ignore}")).deploy(world)?;
    deployment.world.serve_on_node(LOCAL, Service::TcpEcho)?;
    let local = SocketAddr::new(node::ADDRESS.into(), LOCAL);
    let external = at("198.18.0.66:80");
    deployment.world.node().run_well(&[
        "ip",
        "-n",
        deployment.world.upstream_network_namespace(),
        "route",
        "add",
        "198.18.0.66",
        "via",
        &node::ADDRESS.to_string(),
        "table",
        "local",
    ])?;
    deployment.world.forward(&[
        leading(Front::NodePort(30066), DENIED),
        leading(Front::NodePort(30007), OTHER),
        leading(Front::External(external), DENIED),
        leading(Front::NodePort(30070), &local.to_string()),
        leading(Front::NodePort(30066), DENIED_V6),
        leading(Front::Cluster(at(SLY)), DENIED),
    ])?;
    let at_node = |port| SocketAddr::new(node::ADDRESS.into(), port);
    let denied = [
        at_node(30066),
        external,
        at_node(30070),
        SocketAddr::new(node::ADDRESS_V6.into(), 30066),
    ];
    let (outside, on_node) = (
        deployment.world.client_outside(),
        deployment.world.client_on_node(),
    );
    let mut open: Vec<Connection> = denied.map(|to| connect(&outside, to)).into();

    deployment
        .world
        .manifests()
        .write("policy.yaml", &firewall("{}"))?;
    eventually("open connections end", || {
        open.iter_mut()
            .all(|connection| connection.echo_within(QUICK).is_err())
    });
    for to in denied {
        let outcome = outside.connect_tcp(to, QUICK);
        assert!(!outcome.is_connected(), "from outside to {to}: {outcome:?}");
        assert_connects(&on_node, &to.to_string());
    }
    // What leads elsewhere, and what no Service leads there, is no concern of it.
    assert_connects(&outside, &at_node(30007).to_string());
    assert_connects(&outside, &local.to_string());
    assert_counted(&deployment);

    // What one object allows to pods alone: they are judged by their own rules, and outside it does not count.
    deployment.world.manifests().write("pods.yaml", PODS)?;
    eventually("a pod is led where only pods may go", || {
        let outcome = deployment.pod("client").connect_tcp(at(SLY), QUICK);
        outcome.is_connected()
    });
    assert!(!outside.connect_tcp(at_node(30066), QUICK).is_connected());

    deployment.world.manifests().remove("policy.yaml")?;
    eventually("what no rule denies is open again", || {
        outside.connect_tcp(at_node(30066), QUICK).is_connected()
    });
    Ok(())
}

/// Two rules of one object: the networks', and the nodes'.
#[track_caller]
fn assert_counted(deployment: &Deployment<'_>) {
    let refused = metrics(&deployment.enforcer).sum(
        "egret_enforcer_verdicts_total",
        &[("tier", "cef"), ("action", "deny"), ("direction", "egress")],
    );
    assert!(refused >= 4.0, "{refused} packets were counted");
}

#[track_caller]
fn connect(client: &Client, to: SocketAddr) -> Connection {
    let outcome = client.connect_tcp(to, QUICK);
    assert!(outcome.is_connected(), "to {to}: {outcome:?}");
    outcome.connection()
}

#[track_caller]
fn assert_connects(client: &Client, to: &str) {
    connect(client, at(to));
}

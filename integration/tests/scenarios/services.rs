//! What a Service leads on.

use egret_integration::{Service, World};

use super::stage::{Setting, Stage, Told, eventually};

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

const VIRTUAL: &str = "10.96.0.20";

/// What kube-proxy writes for a Service with one endpoint: its address becomes the endpoint's, and what comes back to
/// where it came from bears the node's address, so that it is answered by way of the node.
fn lead_to(stage: &Stage<'_>, pod: &str) -> Told {
    let own = stage.pod(pod).address().to_string();
    let there = format!("{own}:7");
    let to_service = [
        "-d",
        VIRTUAL,
        "-p",
        "tcp",
        "--dport",
        "80",
        "-j",
        "DNAT",
        "--to-destination",
        &there,
    ];
    let back = ["-s", &own, "-d", &own, "-j", "MASQUERADE"];
    for (chain, rule) in [("PREROUTING", to_service.as_slice()), ("POSTROUTING", &back)] {
        let argv = [&["iptables", "-w", "-t", "nat", "-A", chain], rule].concat();
        let output = stage.world.node().run(&argv)?;
        assert!(output.success(), "{argv:?}: {}", output.stderr);
    }
    Ok(())
}

/// X-12.
pub(super) fn no_network_policy_keeps_a_pod_from_itself_and_a_cluster_wide_one_does(
    world: &mut World,
) -> Told {
    let stage = Setting::of(ISOLATED).and_pod("other").play(world)?;
    stage.pod("client").serve(7, Service::TcpEcho)?;
    lead_to(&stage, "client")?;
    let by_service = |pod: &str| stage.reach_port(pod, VIRTUAL, 80).is_connected();
    assert!(by_service("client"), "a Service leads the client to itself");
    assert!(!by_service("other"), "and nobody else to it");
    stage.assert_refused("client", "203.0.113.7");
    stage.world.manifests().write("denied.yaml", DENIED)?;
    eventually("a cluster-wide policy denies it", || !by_service("client"));
    let own = stage.pod("client").address().to_string();
    stage.assert_reaches("client", &own);
    Ok(())
}

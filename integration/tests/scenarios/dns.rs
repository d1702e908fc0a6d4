//! dnsd in the place of kube-dns.

use egret_integration::{Lookup, PodSpec, RecordType, Records, World, node};

use super::deployment::{Deployment, QUICK, Setup, TestResult};

/// The Service and the policies as users have them, written when there was no dnsd: pods of `default` may ask
/// kube-dns and nothing else, those of `apart` other pods of `kube-system`, and `app: mute` nobody.
const KUBE_DNS: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
spec:
  clusterIP: 10.96.0.10
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, protocol: UDP, port: 53}
  - {name: dns-tcp, protocol: TCP, port: 53}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: default-deny-but-dns
  namespace: default
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  egress:
  - to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
    ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: others-alone
  namespace: apart
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: metrics}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: mute
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: mute}}}}
  egress:
  - name: dns
    action: Deny
    to:
    - pods: {namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}
    protocols:
    - udp: {destinationPort: {number: 53}}
    - tcp: {destinationPort: {number: 53}}
"#;

/// The four ways to dnsd: two families, two protocols.
fn ways(name: &str) -> [Lookup; 4] {
    let lookup = || Lookup::of(name, RecordType::A).patience(QUICK);
    [
        lookup().at(node::DNS),
        lookup().at(node::DNS).over_tcp(),
        lookup().at(node::DNS_V6),
        lookup().at(node::DNS_V6).over_tcp(),
    ]
}

fn answers(deployment: &Deployment<'_>, pod: &str) -> Vec<bool> {
    let ways = ways("api.example.test");
    let asked = ways.iter().map(|way| deployment.pod(pod).look_up(way).is_ok());
    asked.collect()
}

/// The own node is no way around the policies here, so that it is the rule for kube-dns that lets the pod ask.
pub(super) fn dns_rules_that_were_written_for_kube_dns_go_on_working(world: &mut World) -> TestResult {
    let (v4, v6) = (node::DNS.to_string(), node::DNS_V6.to_string());
    let setting = Setup::of(KUBE_DNS)
        .and_pod("mute")
        .and(PodSpec::new("elsewhere").in_namespace("apart"))
        .and(
            PodSpec::new("coredns")
                .in_namespace("kube-system")
                .labelled("k8s-app", "kube-dns"),
        )
        .enforcer(&["--pod-to-own-node", "enforce", "--dns-address", &v4, &v6]);
    let deployment = setting.deploy(world)?;
    let address = Records::addresses(["203.0.113.7"]);
    deployment.upstream().set("api.example.test", address);
    assert_eq!(
        answers(&deployment, "client"),
        [true; 4],
        "allowed by the rule for kube-dns"
    );
    assert_eq!(
        answers(&deployment, "mute"),
        [false; 4],
        "denied by the rule for kube-dns"
    );
    assert_eq!(
        answers(&deployment, "elsewhere"),
        [false; 4],
        "a rule for other pods"
    );
    // Nobody listens there: what is let through is refused by the node at once.
    let beside = deployment.reach_port("client", &v4, 54);
    assert!(beside.is_denied(), "another port: {beside:?}");
    deployment.assert_refused("client", "203.0.113.7");
    Ok(())
}

//! What is applied to the cluster.

use std::net::{IpAddr, SocketAddr};

use super::{
    NODES,
    control_plane::{ALLOWED_ADDRESSES, DIRECT_ADDRESSES, DNS_ADDRESSES, REFUSED_ADDRESSES},
    image::TOOLS,
};

/// Pods reach the cluster DNS, the API server, one host by its addresses and some names outside the cluster; the agents of the API server's proxy also its
/// server and kubelets.
pub(super) const POLICY: &str = "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: one-name}
spec:
  rules:
  - name: dns
    action: Allow
    to: [{networks: [169.254.20.10/32, 10.100.0.1/32, 'fd00:100::1/128']}]
    protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]
  - name: api-server
    action: Allow
    to: [{apiServer: {}}]
  - name: proxy-server
    action: Allow
    to: [{networks: [10.100.0.1/32]}]
    protocols: [{tcp: {destinationPort: {number: 8132}}}]
  - name: kubelets
    action: Allow
    to: [{nodes: {}}]
    protocols: [{tcp: {destinationPort: {number: 10250}}}]
  - name: by-address
    action: Allow
    to: [{networks: [10.100.0.203/32, 'fd00:100::203/128']}]
  - name: by-name
    action: Allow
    to: [{domainNames: [allowed.example.test]}]
  - name: internet
    action: Deny
    to: [{external: {}}]
";
pub(super) const ALLOWED: &str = "allowed.example.test";
pub(super) const REFUSED: &str = "refused.example.test";

/// CoreDNS behind the Service kube-dns, as clusters have it, and a client on each node.
pub(super) fn dns_and_clients() -> String {
    let [dns, dns_6] = DNS_ADDRESSES;
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system}}
spec:
  ipFamilyPolicy: RequireDualStack
  clusterIP: {dns}
  clusterIPs: [{dns}, '{dns_6}']
  selector: {{k8s-app: kube-dns}}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: coredns, namespace: kube-system}}
data:
  Corefile: |
    cluster.local:53 {{
        template ANY ANY {{
            rcode NXDOMAIN
        }}
    }}
    .:53 {{
        forward . /etc/resolv.conf
    }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system}}
spec:
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 2
      containers:
      - name: coredns
        image: {TOOLS}
        command: [/bin/coredns, -conf, /config/Corefile]
        volumeMounts: [{{name: config, mountPath: /config}}]
      volumes: [{{name: config, configMap: {{name: coredns}}}}]
---
apiVersion: v1
kind: Namespace
metadata: {{name: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: client, namespace: shop}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: client}}}}
  template:
    metadata: {{labels: {{app: client}}}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{app: client}}}}}}
      containers: [{{name: client, image: {TOOLS}}}]
",
        replicas = NODES.len()
    )
}

/// A pod whose first actions are connections to an allowed host, by IPv4 and by IPv6. It prints both pages, how many segments its kernel sent again,
/// what comes of the refused addresses, and the pages of the allowed name after a lookup.
pub(super) fn new_pod(name: &str, node: &str) -> String {
    let mut script = String::new();
    for direct in DIRECT_ADDRESSES.map(page) {
        script += &format!("busybox timeout 20 wget -q -O - {direct}\n");
    }
    script += "busybox awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp\n";
    for refused in REFUSED_ADDRESSES.map(page) {
        script += &format!("busybox timeout 3 wget -q -O - {refused} 2>/dev/null || echo refused\n");
    }
    script += &format!("nslookup {ALLOWED} >/dev/null\n");
    for allowed in ALLOWED_ADDRESSES.map(page) {
        script += &format!("busybox timeout 3 wget -q -O - {allowed}\n");
    }
    pod(name, node, &script)
}

/// What a pod of [`new_pod`] prints.
pub(super) const NEW_POD_PRINTS: [&str; 7] = ["hello", "hello", "0", "refused", "refused", "hello", "hello"];

/// A pod that connects to an allowed host by IPv4 and by IPv6, first once and then until it succeeds.
pub(super) fn unknown_pod(name: &str, node: &str) -> String {
    let mut script = String::new();
    for direct in DIRECT_ADDRESSES.map(page) {
        script += &format!("busybox timeout 2 wget -q -O - {direct} 2>/dev/null || echo closed\n");
    }
    for direct in DIRECT_ADDRESSES.map(page) {
        script += &format!("until busybox timeout 2 wget -q -O - {direct} 2>/dev/null; do sleep 1; done\n");
    }
    pod(name, node, &script)
}

/// The address of its page.
pub(super) fn page(address: IpAddr) -> String {
    format!("http://{}/", SocketAddr::new(address, 80))
}

/// A pod of this node that runs a script to its end.
fn pod(name: &str, node: &str, script: &str) -> String {
    let script = script.replace('\n', "\n      ");
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  nodeName: {node}
  containers:
  - name: new
    image: {TOOLS}
    command:
    - sh
    - -c
    - |
      {script}
"
    )
}

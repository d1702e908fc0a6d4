//! What is applied to the cluster.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
};

use egret_shared::net::IpNet;

use super::{NODES, image::TOOLS, network::Network};

pub(super) const ALLOWED: &str = "allowed.example.test";
pub(super) const REFUSED: &str = "refused.example.test";

/// Pods reach the cluster DNS, the API server, one host by its addresses and some names outside the cluster; the agents of the API server's proxy also its
/// server and kubelets.
pub(super) fn policy(network: Network) -> String {
    let control_plane = network.control_plane();
    let dns = networks([&[network.local_dns()][..], &control_plane].concat());
    let proxy_server = networks([control_plane[0]]);
    let direct = networks(network.direct());
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: one-name}}
spec:
  rules:
  - name: dns
    action: Allow
    to: [{{networks: {dns}}}]
    protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}, {{tcp: {{destinationPort: {{number: 53}}}}}}]
  - name: api-server
    action: Allow
    to: [{{apiServer: {{}}}}]
  - name: proxy-server
    action: Allow
    to: [{{networks: {proxy_server}}}]
    protocols: [{{tcp: {{destinationPort: {{number: 8132}}}}}}]
  - name: kubelets
    action: Allow
    to: [{{nodes: {{}}}}]
    protocols: [{{tcp: {{destinationPort: {{number: 10250}}}}}}]
  - name: by-address
    action: Allow
    to: [{{networks: {direct}}}]
  - name: by-name
    action: Allow
    to: [{{domainNames: [{ALLOWED}]}}]
  - name: internet
    action: Deny
    to: [{{external: {{}}}}]
"
    )
}

/// CoreDNS behind the Service kube-dns, as clusters have it, and a client on each node. Without kubeadm's request of CPU a busy machine runs it hardly at all.
pub(super) fn dns_and_clients(network: Network) -> String {
    let dns = network.dns();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system}}
spec:
  ipFamilyPolicy: PreferDualStack
  clusterIP: '{first}'
  clusterIPs: {all}
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
        resources: {{requests: {{cpu: 100m, memory: 70Mi}}}}
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
        first = dns[0],
        all = list(&dns),
        replicas = NODES.len()
    )
}

/// A pod whose first actions are connections to an allowed host, by each family. It prints the pages, how many segments its kernel sent again,
/// what comes of the refused addresses, and the pages of the allowed name after a lookup.
pub(super) fn new_pod(name: &str, node: &str, network: Network) -> String {
    let mut script = String::new();
    for direct in network.direct().into_iter().map(page) {
        script += &format!("busybox timeout 20 wget -q -O - {direct}\n");
    }
    script += "busybox awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp\n";
    for refused in network.refused().into_iter().map(page) {
        script += &format!("busybox timeout 3 wget -q -O - {refused} 2>/dev/null || echo refused\n");
    }
    script += &format!("nslookup {ALLOWED} >/dev/null\n");
    for allowed in network.allowed().into_iter().map(page) {
        script += &format!("busybox timeout 3 wget -q -O - {allowed}\n");
    }
    pod(name, node, &script)
}

/// What a pod of [`new_pod`] prints.
pub(super) fn new_pod_prints(network: Network) -> Vec<&'static str> {
    let [hello, refused] = ["hello", "refused"].map(|line| network.alike(line));
    [&*hello, &["0"], &*refused, &*hello].concat()
}

/// A pod that connects to an allowed host by each family, first once and then until it succeeds.
pub(super) fn unknown_pod(name: &str, node: &str, network: Network) -> String {
    let mut script = String::new();
    for direct in network.direct().into_iter().map(page) {
        script += &format!("busybox timeout 2 wget -q -O - {direct} 2>/dev/null || echo closed\n");
    }
    for direct in network.direct().into_iter().map(page) {
        script += &format!("until busybox timeout 2 wget -q -O - {direct} 2>/dev/null; do sleep 1; done\n");
    }
    pod(name, node, &script)
}

/// A list of YAML.
pub(super) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items = items.into_iter().map(|item| format!("'{item}'"));
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// The same of networks that are one address each.
pub(super) fn networks(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    list(addresses.into_iter().map(IpNet::from))
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

//! ClusterEgressFirewall by its goals, paths, stories and rules of evaluation; asked from outside of the program.

mod invocation;
mod texts;

use invocation::network_policy;
use texts::{CLUSTER, Table, WORLD, WORLD_6, cnp, firewall};

/// What nodes have besides their status, the API server, and Services at addresses that nobody should reach.
const MORE: &str = r#"---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: n1}
addresses: [{ip: 10.9.0.1, interface: eth0}, {ip: "fd09::1", interface: eth0}, {ip: 172.17.0.1, interface: docker0}, {ip: 10.0.0.254, interface: cni0}, {ip: 169.254.20.10, interface: nodelocaldns}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: n2}
addresses: [{ip: 10.9.0.2}, {ip: 192.0.2.77, interface: eth1}, {ip: 10.0.1.254, interface: cni0}]
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 443, targetPort: 6443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [10.9.0.2]}]
ports: [{port: 6443, protocol: TCP}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {name: cloud}
spec: {addresses: [203.0.113.60]}
---
apiVersion: v1
kind: Service
metadata: {name: meta, namespace: shop}
spec: {clusterIP: 10.96.0.66, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: meta, namespace: shop, labels: {kubernetes.io/service-name: meta}}
addressType: IPv4
endpoints: [{addresses: [169.254.169.254]}]
ports: [{port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Pod
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec: {nodeName: n2, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.1.53}]}
"#;

fn table(name: &'static str) -> Table {
    Table::over(name, &format!("{CLUSTER}{MORE}"))
}

const METADATA: &str = "{action: Deny, to: [{networks: [169.254.169.254/32, \"fd00:ec2::254/128\"]}]}";
const NODES: &str = "{action: Deny, to: [{nodes: {}}]}";
const EXTERNAL: &str = "{action: Deny, to: [{external: {}}]}";
const API_SERVER: &str = "{action: Deny, to: [{apiServer: {}}]}";

fn at(priority: u32, name: &str, rules: &str) -> String {
    firewall(name, rules).replace("spec: {", &format!("spec: {{priority: {priority}, "))
}

#[test]
fn whom_and_what_it_is_about() {
    table("firewall_goals")
        .text("R-1 R-11 U-1 EXAMPLE-1", &firewall("f", METADATA), &[
            ("shop/web", "169.254.169.254", "TCP/80", "deny cef none"),
            ("shop/web", "fd00:ec2::254", "TCP/80", "deny cef none"),
            ("tools/job", "169.254.169.254", "UDP/80", "deny cef none"),
            ("bare/pod", "169.254.169.254", "ICMP", "deny cef none"),
            ("shop/web", "169.254.169.253", "TCP/80", "allow default none"),
        ])
        .text("U-1 EXAMPLE-1", &network_policy("tools/p", "{podSelector: {}}"), &[
            ("shop/web", "169.254.169.254", "TCP/80", "allow default none"),
        ])
        .text("R-2 R-12 CASE-42", &firewall("f", METADATA), &[
            ("shop/web", r#"{"service":"shop/meta"}"#, "TCP/80", "deny cef none"),
            ("shop/web", "10.96.0.66", "TCP/80", "deny cef none"),
        ])
        .text("R-3 R-5 EXAMPLE-2", &firewall("f", NODES), &[
            ("shop/web", "172.17.0.1", "TCP/22", "deny cef none"),
            ("shop/web", "10.0.0.254", "TCP/22", "deny cef none"),
            ("shop/web", "192.0.2.77", "TCP/22", "deny cef none"),
            ("shop/web", "10.0.1.254", "TCP/22", "deny cef none"),
            ("shop/web", "198.51.100.2", "TCP/22", "deny cef none"),
            ("tools/job", "172.17.0.1", "TCP/22", "deny cef none"),
            ("shop/web", "shop/db", "TCP/22", "allow default default"),
            ("shop/web", WORLD, "TCP/22", "allow default none"),
        ])
        .text("R-6 EXAMPLE-2", &firewall("f", &format!("{{action: Allow, to: [{{nodes: {{}}}}], protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}, {{tcp: {{destinationPort: {{number: 53}}}}}}]}}, {NODES}")), &[
            ("shop/web", "169.254.20.10", "UDP/53", "allow default none"),
            ("shop/web", "169.254.20.10", "TCP/53", "allow default none"),
            ("shop/web", "169.254.20.10", "TCP/80", "deny cef none"),
            ("shop/web", "10.9.0.2", "UDP/53", "allow default none"),
            ("shop/web", "10.9.0.2", "TCP/10250", "deny cef none"),
        ])
        .text("R-7 R-8 U-5 E-4 EXAMPLE-3", &firewall("f", API_SERVER), &[
            ("shop/web", r#"{"service":"default/kubernetes"}"#, "TCP/443", "deny cef none"),
            ("shop/web", "10.96.0.1", "TCP/443", "deny cef none"),
            ("shop/web", "10.9.0.2", "TCP/6443", "deny cef none"),
            ("shop/web", "192.0.2.77", "TCP/6443", "deny cef none"),
            ("shop/web", "203.0.113.60", "TCP/443", "deny cef none"),
            ("shop/web", "10.9.0.2", "TCP/22", "allow default none"),
            ("shop/web", "10.9.0.1", "TCP/6443", "allow"),
        ])
        .text("R-8 U-5", &firewall("f", "{action: Deny, to: [{apiServer: {additionalAddresses: [203.0.113.61]}}]}"), &[
            ("shop/web", "203.0.113.61", "TCP/443", "deny cef none"),
            ("shop/web", "203.0.113.62", "TCP/443", "allow default none"),
        ])
        .text("R-8", &firewall("f", "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}"), &[
            ("shop/web", r#"{"service":"default/kubernetes"}"#, "TCP/443", "deny cef none"),
            ("shop/web", "10.96.0.1", "TCP/443", "deny cef none"),
            ("shop/web", "192.0.2.77", "TCP/6443", "deny cef none"),
            ("shop/web", "192.0.2.77", "TCP/22", "allow default none"),
        ])
        .text("E-3 R-20", &firewall("f", EXTERNAL), &[
            ("kube-system/coredns", WORLD, "UDP/53", "deny cef none"),
            ("shop/remote", WORLD, "UDP/53", "allow none none"),
            ("shop/web", WORLD_6, "TCP/80", "deny cef none"),
            (WORLD, "shop/web", "TCP/80", "allow none default"),
            (r#"{"node":"n1"}"#, WORLD, "TCP/80", "allow none none"),
        ])
        .check();
}

#[test]
fn in_which_order_objects_are_asked() {
    let allow = "{action: Allow, to: [{networks: [203.0.113.0/24]}]}";
    let metadata = firewall("a-metadata", METADATA);
    let grant = cnp("egress: [{action: Accept, to: [{networks: [0.0.0.0/0]}]}]")
        .replace("priority: 10,", "priority: 0,");
    table("firewall_order")
        .text(
            "R-10 R-22",
            &(metadata.clone() + &firewall("b-log", "{action: Deny, to: [{networks: [198.51.100.9/32]}]}")),
            &[
                ("shop/web", "169.254.169.254", "TCP/80", "deny cef none"),
                ("shop/web", "198.51.100.9", "TCP/80", "deny cef none"),
                ("shop/web", WORLD, "TCP/80", "allow default none"),
            ],
        )
        .text(
            "R-10 R-22 U-3 EXAMPLE-6",
            &firewall("b-log", "{action: Deny, to: [{networks: [198.51.100.9/32]}]}"),
            &[
                ("shop/web", "169.254.169.254", "TCP/80", "allow default none"),
                ("shop/web", "198.51.100.9", "TCP/80", "deny cef none"),
            ],
        )
        .text(
            "R-21 EXAMPLE-4",
            &firewall("f", &format!("{allow}, {EXTERNAL}")),
            &[
                ("shop/web", WORLD, "TCP/80", "allow default none"),
                ("shop/web", "198.51.100.9", "TCP/80", "deny cef none"),
                ("shop/web", "10.9.0.2", "TCP/80", "deny cef none"),
                ("shop/web", "shop/db", "TCP/80", "allow default default"),
            ],
        )
        .text(
            "R-21",
            &firewall(
                "f",
                "{action: Deny, to: [{networks: [203.0.113.0/24, 198.51.100.0/24]}]}",
            ),
            &[
                ("shop/web", WORLD, "TCP/80", "deny cef none"),
                ("shop/web", "192.0.2.9", "TCP/80", "allow default none"),
            ],
        )
        .text(
            "E-1",
            &(firewall("a", allow) + &firewall("z", EXTERNAL)),
            &[("shop/web", WORLD, "TCP/80", "deny cef none")],
        )
        .text(
            "E-1",
            &(firewall("z", allow) + &firewall("a", EXTERNAL)),
            &[("shop/web", WORLD, "TCP/80", "deny cef none")],
        )
        .text(
            "E-1",
            &(at(499, "z", allow) + &firewall("a", EXTERNAL)),
            &[
                ("shop/web", WORLD, "TCP/80", "allow default none"),
                ("shop/web", "198.51.100.9", "TCP/80", "deny cef none"),
            ],
        )
        .text(
            "E-1",
            &(at(501, "a", allow) + &firewall("z", EXTERNAL)),
            &[("shop/web", WORLD, "TCP/80", "deny cef none")],
        )
        .text(
            "E-2",
            &(firewall("f", EXTERNAL) + &grant),
            &[("shop/web", WORLD, "TCP/80", "deny cef none")],
        )
        .text(
            "E-2",
            &(firewall("f", allow) + &network_policy("shop/p", "{podSelector: {}, policyTypes: [Egress]}")),
            &[("shop/web", WORLD, "TCP/80", "deny np none")],
        )
        .check();
}

#[test]
fn destinations_and_protocols() {
    table("firewall_destinations")
        .text("E-4", &firewall("f", "{action: Deny, to: [{networks: [10.0.0.0/8, \"fd00::/8\"]}]}"), &[
            ("shop/web", "shop/db", "TCP/80 IPv4", "allow default default"),
            ("shop/web", "shop/db", "TCP/80 IPv6", "allow default default"),
            ("shop/web", "10.0.0.200", "TCP/80", "allow default none"),
            ("shop/web", "10.0.0.254", "TCP/80", "deny cef none"),
            ("shop/web", "10.0.3.1", "TCP/80", "deny cef none"),
            ("shop/web", r#"{"service":"shop/db"}"#, "TCP/80", "allow default default"),
        ])
        .text("E-4", &firewall("f", EXTERNAL), &[
            ("shop/web", "172.17.0.1", "TCP/80", "deny cef none"),
            ("shop/web", "10.0.0.254", "TCP/80", "deny cef none"),
            ("shop/web", "10.0.0.200", "TCP/80", "allow default none"),
            ("shop/web", "bare/pod", "TCP/80", "allow default default"),
        ])
        .text("E-5 CASE-40 CASE-35", &firewall("f", NODES), &[
            ("shop/web", "10.0.0.254", "TCP/80", "deny cef none"),
            ("shop/web", r#"{"node":"n1"}"#, "TCP/80", "deny cef none"),
            ("shop/web", r#"{"service":"shop/db"}"#, "TCP/80", "allow default default"),
        ])
        .text("E-4", &firewall("f", "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}"), &[
            ("shop/web", r#"{"service":"default/kubernetes"}"#, "TCP/443", "deny cef none"),
            ("shop/web", "10.96.0.1", "TCP/443", "deny cef none"),
            ("shop/web", "203.0.113.60", "TCP/443", "deny cef none"),
            ("shop/web", "10.9.0.2", "TCP/443", "allow default none"),
            ("shop/web", "10.9.0.2", "TCP/22", "allow default none"),
        ])
        .text("E-4", &firewall("f", "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 444}}}]}"), &[
            ("shop/web", r#"{"service":"default/kubernetes"}"#, "TCP/443", "allow default none"),
            ("shop/web", "10.9.0.2", "TCP/6443", "allow default none"),
        ])
        .text("CASE-35 RULE-6 DECIDE-15 NP-26 CROSS-6", &network_policy("shop/p", "{podSelector: {}, policyTypes: [Ingress, Egress]}"), &[
            ("172.17.0.1", "shop/web", "TCP/80", "allow none exempt"),
            ("10.0.0.254", "shop/web", "TCP/80", "allow none exempt"),
            ("10.0.1.254", "shop/web", "TCP/80", "deny none np"),
            ("192.0.2.77", "shop/web", "TCP/80", "deny none np"),
            ("shop/web", "172.17.0.1", "TCP/80", "allow np none"),
            ("shop/web", "169.254.20.10", "UDP/53", "allow np none"),
            ("shop/web", "192.0.2.77", "TCP/80", "deny np none"),
        ])
        .text("E-7", &firewall("f", EXTERNAL), &[
            ("shop/web", WORLD, "ICMP", "deny cef none"),
            ("shop/web", WORLD, "SCTP/9", "deny cef none"),
            (WORLD, "shop/web", "ICMP", "allow none default"),
        ])
        .text("E-7", &firewall("f", "{action: Deny, to: [{external: {}}], protocols: [{icmp: {}}, {tcp: {destinationPort: {range: {start: 5, end: 5}}}}]}"), &[
            ("shop/web", WORLD, "ICMP", "deny cef none"),
            ("shop/web", WORLD, "TCP/5", "deny cef none"),
            ("shop/web", WORLD, "TCP/6", "allow default none"),
            ("shop/web", WORLD, "UDP/5", "allow default none"),
        ])
        .text("U-2 EXAMPLE-5", &firewall("f", "{action: Deny, to: [{nodes: {selector: {matchLabels: {role: master}}}}], protocols: [{tcp: {destinationPort: {range: {start: 22623, end: 22624}}}}]}"), &[
            ("shop/web", "10.9.0.2", "TCP/22623", "deny cef none"),
            ("shop/web", "192.0.2.77", "TCP/22624", "deny cef none"),
            ("shop/web", "10.9.0.2", "TCP/22625", "allow default none"),
            ("shop/web", "172.17.0.1", "TCP/22623", "allow"),
        ])
        .text("U-4", &firewall("f", "{action: Deny, to: [{networks: [203.0.113.9/32]}], protocols: [{tcp: {destinationPort: {number: 2049}}}, {udp: {destinationPort: {number: 2049}}}]}"), &[
            ("shop/web", "203.0.113.9", "TCP/2049", "deny cef none"),
            ("shop/web", "203.0.113.9", "UDP/2049", "deny cef none"),
            ("shop/web", "203.0.113.9", "TCP/443", "allow default none"),
        ])
        .check();
}

#[test]
fn names_and_what_is_not_understood() {
    table("firewall_closed")
        .told("shop/web", "log.example.com", WORLD, 60)
        .text("R-23 R-21", &firewall("f", &format!("{{action: Allow, to: [{{domainNames: [\"*.example.com\"]}}]}}, {EXTERNAL}")), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("shop/db", WORLD, "TCP/80", "deny cef none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny cef none"),
        ])
        .text("R-23 E-12", &firewall("f", "{action: Deny, to: [{domainNames: [log.example.com]}]}"), &[
            ("shop/web", "198.51.100.9", "TCP/80", "deny cef none EG0402"),
            ("shop/web", "shop/db", "TCP/80", "allow default default"),
        ])
        .text("R-24", &firewall("f", "{action: Allow, to: [{external: {}}]}").replace("rules:", "namespaces: [shop], rules:"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0103"),
            ("tools/job", WORLD, "TCP/80", "deny cef none"),
        ])
        .text("E-9 R-29", &firewall("f", &format!("{{action: Allow, to: [{{fqdnSets: {{}}}}]}}, {EXTERNAL}")), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0103"),
        ])
        .text("E-9 R-29", &firewall("f", "{action: Deny, to: [{fqdnSets: {}}], protocols: [{tcp: {destinationPort: {number: 1}}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0103"),
            ("shop/web", WORLD, "ICMP", "deny cef none"),
            ("shop/web", "10.9.0.2", "TCP/80", "deny cef none"),
            ("shop/web", "shop/db", "TCP/80", "allow default default"),
        ])
        .text("E-9 R-29", &firewall("f", "{action: Deny, to: [{networks: [198.51.100.0/24]}], protocols: [{gre: {}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0103"),
        ])
        .text("E-9 R-29", &firewall("f", METADATA).replace("v1alpha1", "v2"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0102"),
        ])
        .text("E-12", &firewall("f", "{action: Deny, to: [{networks: [198.51.100.0/24], nodes: {}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0108"),
        ])
        .text("E-12", &firewall("f", "{action: Deny, to: []}"), &[("shop/web", WORLD, "TCP/80", "deny cef none EG0106")])
        .text("E-12", &firewall("f", "{name: a, action: Deny, to: [{networks: [198.51.100.0/24]}]}, {name: a, action: Deny, to: [{networks: [192.0.2.0/24]}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none EG0123"),
        ])
        .text("E-12", &firewall("f", "{action: Deny, to: [{networks: [198.51.100.0/24]}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: 8}}}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none EG0201"),
        ])
        .text("E-12", &firewall("f", "{action: Deny, to: [{networks: [\"fe80::/64\"]}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none EG0304"),
        ])
        .check();
}

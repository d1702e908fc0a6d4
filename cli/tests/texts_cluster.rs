//! What holds for all kinds of policies: nodes, pods of all sorts, Services, families, and what was decided where
//! the texts are silent.

mod invocation;
mod texts;

use invocation::network_policy;
use texts::{CLUSTER, Table, WORLD, WORLD_6, banp, baseline, cnp, firewall, np, np_egress, np_ingress};

const ISOLATED: &str = "policyTypes: [Ingress, Egress]";
const TO_WEB: &str = r#"{"service":"shop/web"}"#;
const TO_DB: &str = r#"{"service":"shop/db"}"#;

#[test]
fn a_pod_and_nodes() {
    let no_nodes = "egress: [{action: Deny, to: [{nodes: {}}]}]";
    let (n1, n2) = (r#"{"node":"n1"}"#, r#"{"node":"n2"}"#);
    Table::of("cluster_nodes")
        .text(
            "CROSS-6 X-7 NP-26 CASE-33",
            &np(ISOLATED),
            &[
                ("10.9.0.1", "shop/web", "TCP/80", "allow none"),
                ("fd09::1", "shop/web", "TCP/80", "allow none"),
                (n1, "shop/web", "UDP/80", "allow none"),
                ("10.9.0.2", "shop/web", "TCP/80", "deny none np"),
                (n2, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "CROSS-6 CASE-22 CASE-33",
            &(cnp("ingress: [{action: Deny, from: [{namespaces: {}}]}]")
                + &baseline("ingress: [{action: Deny, from: [{namespaces: {}}]}]")),
            &[
                (n1, "shop/web", "TCP/80", "allow none"),
                (n2, "shop/web", "TCP/80", "allow none default"),
                ("tools/job", "shop/web", "TCP/80", "deny default admin"),
            ],
        )
        .text(
            "CROSS-7 X-1 NP-26 DECIDE-1 DECIDE-16",
            &np(ISOLATED),
            &[
                ("shop/web", "10.9.0.1", "TCP/22", "allow np none"),
                ("shop/web", "fd09::1", "TCP/22", "allow np none"),
                ("shop/web", n1, "TCP/22", "allow np none"),
                ("shop/web", "10.9.0.2", "TCP/22", "deny np none"),
            ],
        )
        .text(
            "CROSS-7 X-1 DECIDE-1",
            &(np(ISOLATED) + &cnp(no_nodes)),
            &[
                ("shop/web", n1, "TCP/22", "deny admin none"),
                ("shop/web", "198.51.100.1", "TCP/22", "deny admin none"),
            ],
        )
        .text(
            "X-1 CROSS-7",
            &(np(ISOLATED) + &cnp("egress: [{action: Deny, to: [{networks: [10.9.0.0/16]}]}]")),
            &[("shop/web", n1, "TCP/22", "deny admin none")],
        )
        .text(
            "X-1 DECIDE-1",
            &(np(ISOLATED) + &firewall("f", "{action: Deny, to: [{nodes: {}}]}")),
            &[("shop/web", n1, "TCP/22", "deny cef none")],
        )
        .text(
            "DECIDE-1",
            &(np(ISOLATED) + &banp(no_nodes)),
            &[
                ("shop/web", n1, "TCP/22", "allow np none"),
                ("shop/db", n1, "TCP/22", "deny baseline none"),
            ],
        )
        .text(
            "DECIDE-1",
            &(np("policyTypes: [Ingress]") + &banp(no_nodes)),
            &[("shop/web", n1, "TCP/22", "deny baseline none")],
        )
        .text(
            "CROSS-8",
            &np_ingress("{from: [{ipBlock: {cidr: 10.9.0.2/32}}]}"),
            &[
                (n2, "shop/web", "TCP/80", "allow none np"),
                ("10.9.0.3", "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .check();
}

#[test]
fn pods_of_the_nodes_network() {
    Table::of("cluster_host")
        .text("CROSS-3 NP-27", &(network_policy("shop/p", "{podSelector: {}, policyTypes: [Ingress, Egress]}") + &cnp("egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}], ingress: [{action: Deny, from: [{namespaces: {}}]}]")), &[
            ("shop/remote", WORLD, "TCP/80", "allow none none"),
            ("tools/job", "shop/remote", "TCP/80", "allow default none"),
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
        ])
        .text("CROSS-4 NP-27 RULE-7 CASE-5", &np_egress("{to: [{podSelector: {}}]}"), &[
            ("shop/web", "shop/remote", "TCP/80", "deny np none"),
            ("shop/web", "10.9.0.2", "TCP/80", "deny np none"),
            ("shop/web", "shop/db", "TCP/80", "allow np default"),
        ])
        .text("CROSS-4 RULE-7 CASE-5", &np_ingress("{from: [{podSelector: {matchLabels: {app: remote}}}]}"), &[
            ("shop/remote", "shop/web", "TCP/80", "deny none np"),
            ("10.9.0.2", "shop/web", "TCP/80", "deny none np"),
        ])
        .text("CROSS-4", &np_ingress("{from: [{ipBlock: {cidr: 10.9.0.2/32}}]}"), &[
            ("shop/remote", "shop/web", "TCP/80", "allow none np"),
        ])
        .text("CROSS-4", &cnp("egress: [{action: Deny, to: [{pods: {podSelector: {}}}]}], ingress: [{action: Deny, from: [{pods: {podSelector: {matchLabels: {app: remote}}}}]}]"), &[
            ("shop/web", "shop/remote", "TCP/80", "allow default none"),
            ("shop/remote", "shop/web", "TCP/80", "allow none default"),
            ("shop/web", "shop/db", "TCP/80", "deny admin default"),
        ])
        .text("CROSS-5", &cnp("egress: [{action: Deny, to: [{nodes: {matchLabels: {role: master}}}]}]"), &[
            ("shop/web", "shop/remote", "TCP/80", "deny admin none"),
        ])
        .text("X-13 R-20 E-3", &firewall("f", "{action: Deny, to: [{external: {}}]}"), &[
            ("shop/remote", WORLD, "TCP/80", "allow none none"),
            ("shop/agent", WORLD, "TCP/80", "allow none none"),
            ("bare/pod", WORLD, "TCP/80", "deny cef none"),
        ])
        .check();
}

#[test]
fn pods_that_end_and_addresses_that_move() {
    let reused = format!(
        "{CLUSTER}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: next, namespace: tools, labels: {{app: next}}}}\n\
         spec: {{nodeName: n1, containers: []}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.9}}]}}\n"
    );
    Table::of("cluster_ended")
        .text(
            "RULE-2 CASE-1 DECIDE-5",
            &np_egress("{to: [{podSelector: {matchLabels: {app: web}}}]}"),
            &[
                ("shop/web", "10.0.0.9", "TCP/80", "deny np none"),
                ("shop/web", "shop/leaving", "TCP/80", "allow np default"),
                ("shop/web", "shop/done", "TCP/80", "error"),
                ("10.0.0.9", "shop/db", "TCP/80", "allow none default"),
            ],
        )
        .text(
            "RULE-2 CASE-1",
            &np_ingress("{from: [{podSelector: {}}]}"),
            &[("10.0.0.9", "shop/web", "TCP/80", "deny none np")],
        )
        .text(
            "RULE-2 CASE-2",
            &np(ISOLATED),
            &[
                ("shop/leaving", WORLD, "TCP/80", "deny np none"),
                (WORLD, "shop/leaving", "TCP/80", "deny none np"),
                (WORLD, "10.0.0.8", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "CASE-2",
            &np_ingress("{from: [{podSelector: {matchLabels: {app: web}}}]}"),
            &[("shop/leaving", "shop/web", "TCP/80", "allow default np")],
        )
        .text(
            "DECIDE-8",
            &np(ISOLATED),
            &[
                ("shop/nobody", WORLD, "TCP/80", "error"),
                ("shop/done", WORLD, "TCP/80", "error"),
                ("shop/web", r#"{"name":"api.example.com"}"#, "TCP/80", "error"),
                ("tools/web", WORLD_6, "TCP/80", "error"),
                ("shop/web", WORLD, "TCP/80", "deny np none"),
            ],
        )
        .check();
    Table::over("cluster_reused", &reused)
        .text(
            "RULE-2 CASE-1",
            &np_egress("{to: [{podSelector: {matchLabels: {app: web}}}]}"),
            &[
                ("shop/web", "10.0.0.9", "TCP/80", "deny np default"),
                ("shop/web", "tools/next", "TCP/80", "deny np default"),
            ],
        )
        .text(
            "RULE-2 CASE-1",
            &np(ISOLATED),
            &[
                (WORLD, "tools/next", "TCP/80", "allow none default"),
                ("tools/next", WORLD, "TCP/80", "allow default none"),
            ],
        )
        .text(
            "CASE-1",
            &np_egress("{to: [{namespaceSelector: {matchLabels: {team: b}}}]}"),
            &[("shop/web", "10.0.0.9", "TCP/80", "allow np default")],
        )
        .check();
}

#[test]
fn families_and_a_pod_itself() {
    let pending = format!(
        "{CLUSTER}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: waiting, namespace: shop, labels: {{app: web}}}}\n\
         spec: {{nodeName: n1, containers: []}}\nstatus: {{phase: Pending}}\n"
    );
    Table::of("cluster_families")
        .text("RULE-4 CASE-6", &np_egress("{to: [{podSelector: {matchLabels: {app: db}}}]}"), &[
            ("shop/web", "shop/db", "TCP/80 IPv4", "allow np default"),
            ("shop/web", "shop/db", "TCP/80 IPv6", "allow np default"),
            ("shop/web", "fd00::2", "TCP/80", "allow np default"),
            ("shop/web", "tools/job", "TCP/80 IPv6", "deny np default"),
            ("shop/web", WORLD_6, "TCP/80", "deny np none"),
        ])
        .text("RULE-4 CASE-6 NP-4", &np(ISOLATED), &[
            (WORLD_6, "fd00::1", "TCP/80", "deny none np"),
            (WORLD, "10.0.0.1", "TCP/80", "deny none np"),
            ("fd00::1", WORLD_6, "TCP/80", "deny np none"),
        ])
        .text("DECIDE-6", &np_egress("{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}"), &[
            ("shop/web", "tools/job", "TCP/80", "allow np default"),
            ("shop/web", "tools/job", "TCP/80 IPv6", "deny np default"),
            ("tools/web", "tools/job", "TCP/80 IPv6", "error"),
        ])
        .text("CROSS-9 NP-25", &(np(ISOLATED) + &cnp("egress: [{action: Deny, to: [{namespaces: {}}, {networks: [0.0.0.0/0]}]}], ingress: [{action: Deny, from: [{namespaces: {}}]}]")), &[
            ("shop/web", "shop/web", "TCP/80", "allow exempt exempt"),
            ("shop/web", "10.0.0.1", "TCP/80", "allow exempt exempt"),
            ("shop/web", "shop/leaving", "TCP/80", "deny admin admin"),
        ])
        .text("CROSS-15", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}, {to: [{ipBlock: {cidr: 198.51.100.0/24}}], ports: [{}]}"), &[
            ("shop/web", WORLD, "ICMP", "allow np none"),
            ("shop/web", "198.51.100.9", "ICMP", "deny np none"),
            ("shop/web", "198.51.100.9", "TCP/80", "allow np none"),
            ("shop/web", "shop/db", "ICMP", "deny np default"),
        ])
        .text("CROSS-15", &baseline("egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}], protocols: [{tcp: {}}, {udp: {}}, {sctp: {}}]}]"), &[
            ("shop/web", WORLD, "ICMP", "allow default none"),
            ("shop/web", WORLD, "SCTP/1", "deny baseline none"),
        ])
        .check();
    Table::over("cluster_pending", &pending)
        .text(
            "RULE-3 DECIDE-7",
            &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}"),
            &[
                ("shop/waiting", "198.51.100.9", "TCP/80", "deny np none"),
                ("shop/waiting", WORLD, "TCP/80", "allow np none"),
            ],
        )
        .text(
            "DECIDE-7",
            &np_ingress("{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}"),
            &[
                ("shop/db", "shop/waiting", "TCP/80", "allow default np"),
                (
                    "shop/waiting",
                    "shop/web",
                    "TCP/80",
                    "deny default np made-up-address",
                ),
            ],
        )
        .check();
}

#[test]
fn services_are_what_is_behind_them() {
    Table::of("cluster_services")
        .text(
            "CROSS-11 CASE-15 DECIDE-10",
            &np_ingress("{ports: [{port: 80}]}"),
            &[
                ("tools/job", TO_WEB, "TCP/80", "deny default np"),
                ("tools/job", "10.96.0.10", "TCP/80", "deny default np"),
            ],
        )
        .text(
            "CROSS-11 CASE-15 DECIDE-10",
            &np_ingress("{ports: [{port: 8080}]}"),
            &[("tools/job", TO_WEB, "TCP/80", "allow default np")],
        )
        .text(
            "CASE-15",
            &network_policy(
                "shop/q",
                "{podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: http}]}]}",
            ),
            &[
                ("tools/job", TO_DB, "TCP/80", "allow default np"),
                ("tools/job", "shop/db", "TCP/80", "deny default np"),
            ],
        )
        .text(
            "CROSS-11 CASE-27 NP-30",
            &np_egress("{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}"),
            &[
                ("shop/web", TO_DB, "TCP/80", "deny np default"),
                ("shop/web", "10.96.0.11", "TCP/80", "deny np default"),
            ],
        )
        .text(
            "CROSS-11 CASE-27 NP-30",
            &np_egress("{to: [{ipBlock: {cidr: 10.0.0.0/24}}]}"),
            &[("shop/web", TO_DB, "TCP/80", "allow np default")],
        )
        .text(
            "CROSS-11",
            &cnp("egress: [{action: Deny, to: [{networks: [10.96.0.11/32]}]}]"),
            &[("shop/web", TO_DB, "TCP/80", "allow default default")],
        )
        .check();
}

#[test]
fn what_is_in_the_files() {
    let workload = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: db, namespace: shop}\n\
                    spec: {template: {metadata: {labels: {app: other}}, spec: {containers: []}}}\n";
    let default = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pod, labels: {on: \"true\", n: \"1\", empty: \"\"}}\n\
                   spec: {nodeName: n1, containers: []}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.50}]}\n";
    let list = "---\napiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: listed, namespace: shop, labels: {app: web}}\n  \
                spec: {containers: []}\n  status: {phase: Running, podIPs: [{ip: 10.0.0.60}]}\n\
                ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    let cluster = format!("{CLUSTER}{workload}{default}{list}");
    Table::over("cluster_files", &cluster)
        .text("DECIDE-11", &np_egress("{to: [{podSelector: {matchLabels: {app: db}}}]}"), &[
            ("shop/web", "shop/db", "TCP/80", "allow np default same-name"),
        ])
        .text("DECIDE-12", &network_policy("default/p", "{podSelector: {matchLabels: {on: \"true\", n: \"1\", empty: \"\"}}}"), &[
            (WORLD, "default/pod", "TCP/80", "deny none np"),
        ])
        .text("DECIDE-12", &np_ingress("{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}, podSelector: null}]}"), &[
            ("default/pod", "shop/listed", "TCP/80", "allow default np"),
            ("tools/job", "shop/listed", "TCP/80", "deny default np"),
        ])
        .check();
}

#[test]
fn words_of_a_row() {
    Table::of("cluster_words")
        .text(
            "DECIDE-18",
            &firewall("f", "{action: Deny, to: [{networks: [203.0.113.0/24]}]}"),
            &[
                ("shop/web", WORLD, "TCP/80", "deny cef none"),
                ("shop/web", "shop/web", "TCP/80", "allow exempt exempt"),
                ("shop/web", "198.51.100.9", "TCP/80", "allow default none"),
                (WORLD, "198.51.100.9", "TCP/80", "allow none none"),
            ],
        )
        .text(
            "DECIDE-18",
            &(cnp("egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]")
                + &np_egress("{to: [{ipBlock: {cidr: 198.51.100.0/24}}]}")
                + &baseline("egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]")),
            &[
                ("shop/web", WORLD, "TCP/80", "deny admin none"),
                ("shop/web", "198.51.100.9", "TCP/80", "allow np none"),
                ("shop/db", "198.51.100.9", "TCP/80", "deny baseline none"),
            ],
        )
        .check();
}

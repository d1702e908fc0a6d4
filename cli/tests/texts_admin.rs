//! AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy by the comments of their types and by
//! NPEP-133, 187, 248 and 285; and the order in which all tiers are asked.

mod invocation;
mod texts;

use invocation::network_policy;
use texts::{Table, WORLD, WORLD_6, admin, anp, banp, baseline, cnp, firewall, np_egress, np_ingress};

const DENY_WORLD: &str = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
const ALLOW_WORLD: &str = "egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]";

fn of_priority(name: &str, priority: u32, action: &str) -> String {
    cnp(&format!(
        "egress: [{{action: {action}, to: [{{networks: [203.0.113.0/24]}}]}}]"
    ))
    .replace("name: p}", &format!("name: {name}}}"))
    .replace("priority: 10,", &format!("priority: {priority},"))
}

/// The older kind with the same rule.
fn older(name: &str, priority: u32, action: &str) -> String {
    of_priority(name, priority, action)
        .replace("ClusterNetworkPolicy", "AdminNetworkPolicy")
        .replace("v1alpha2", "v1alpha1")
        .replace("tier: Admin, ", "")
}

#[test]
fn subjects_and_objects() {
    let subject = |text: &str| cnp(DENY_WORLD).replace("namespaces: {matchLabels: {team: a}}", text);
    let older_subject = |text: &str| anp(DENY_WORLD).replace("namespaces: {matchLabels: {team: a}}", text);
    Table::of("admin_subjects")
        .text("ANP-2 CNP-3", &subject("namespaces: {matchLabels: {team: a}}"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/db", WORLD, "TCP/80", "deny admin none"),
            ("tools/job", WORLD, "TCP/80", "allow default none"),
            ("bare/pod", WORLD, "TCP/80", "allow default none"),
        ])
        .text("CNP-3 MOVE-9", &subject("pods: {podSelector: {matchLabels: {app: web}}}"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("tools/web", WORLD, "TCP/80", "deny admin none"),
            ("tools/job", WORLD, "TCP/80", "allow default none"),
        ])
        .text("ANP-2", &older_subject("pods: {namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}"), &[
            ("tools/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("tools/job", WORLD, "TCP/80", "allow default none"),
        ])
        .text("ANP-11 MOVE-9", &older_subject("pods: {podSelector: {matchLabels: {app: web}}}"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0115"),
            ("tools/web", WORLD, "TCP/80", "deny admin none"),
            ("tools/job", WORLD, "TCP/80", "allow default none"),
        ])
        .text("ANP-2", &subject("namespaces: {}, pods: {podSelector: {}}"), &[
            ("tools/job", WORLD, "TCP/80", "deny admin none EG0108"),
        ])
        .text("RULE-10", &subject("pods: {podSelector: {matchLabels: {app: web}, matchExpressions: [{key: x, operator: Foo}]}}"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0109"),
            ("shop/db", WORLD, "TCP/80", "allow default none"),
        ])
        .text("ANP-12", &banp(DENY_WORLD), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none"),
        ])
        .text("ANP-12", &banp("egress: [{action: Allow, to: [{networks: [203.0.113.1/32]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]").replace("name: default", "name: other"), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none EG0113"),
        ])
        .text("ANP-13 MOVE-2", &banp("egress: [{action: Pass, to: [{networks: [203.0.113.1/32]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none EG0112"),
            ("shop/web", "shop/db", "TCP/80", "deny baseline default"),
        ])
        .text("ANP-14 API-3 MOVE-11 F-32", &banp("egress: [{action: Allow, to: [{domainNames: [api.example.com]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none EG0103"),
        ])
        .text("CNP-1", &cnp(DENY_WORLD).replace("tier: Admin, ", ""), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0105"),
        ])
        .text("CNP-1", &cnp(DENY_WORLD).replace("Admin", "Platform"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0111"),
        ])
        .text("CNP-9 MOVE-1", &(baseline("egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]") + &baseline("egress: [{action: Deny, to: [{networks: [198.51.100.0/24]}]}]").replace("name: b}", "name: c}").replace("priority: 10", "priority: 11")), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny baseline none"),
            ("shop/web", "192.0.2.9", "TCP/80", "allow default none"),
        ])
        .text("API-1", &cnp(DENY_WORLD).replace("v1alpha2", "v1beta1"), &[
            ("shop/web", "shop/db", "TCP/80", "deny admin default EG0102"),
            (WORLD, "shop/web", "TCP/80", "allow none default"),
        ])
        .check();
}

#[test]
fn what_each_verb_does() {
    let db = "[{pods: {podSelector: {matchLabels: {app: db}}}}]";
    Table::of("admin_verbs")
        .text("ANP-4 CNP-5 CNP-10", &(cnp(&format!("egress: [{{action: Accept, to: {db}}}, {{action: Deny, to: {db}}}]")) + &np_egress("{ports: [{port: 1}]}")), &[
            ("shop/web", "shop/db", "TCP/80", "allow admin default"),
            ("shop/web", "tools/job", "TCP/80", "deny np default"),
        ])
        .text("CNP-10", &(cnp(&format!("egress: [{{action: Accept, to: {db}}}]")) + &network_policy("shop/q", "{podSelector: {}}")), &[
            ("shop/web", "shop/db", "TCP/80", "deny admin np"),
        ])
        .text("CNP-5 CNP-12 CASE-19", &(cnp(&format!("egress: [{{action: Pass, to: {db}}}, {{action: Deny, to: {db}}}]")) + &baseline(&format!("egress: [{{action: Deny, to: {db}}}]"))), &[
            ("shop/web", "shop/db", "TCP/80", "deny baseline default"),
            ("shop/web", "tools/job", "TCP/80", "allow default default"),
        ])
        .text("CNP-12 CASE-19", &(cnp(&format!("egress: [{{action: Pass, to: {db}}}, {{action: Deny, to: {db}}}]")) + &np_egress("{to: [{podSelector: {}}]}") + &baseline(&format!("egress: [{{action: Deny, to: {db}}}]"))), &[
            ("shop/web", "shop/db", "TCP/80", "allow np default"),
            ("shop/leaving", "shop/db", "TCP/80", "allow np default"),
        ])
        .text("CNP-12", &(of_priority("a", 1, "Pass") + &of_priority("z", 2, "Deny")), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
        ])
        .text("CNP-12 MOVE-2", &(baseline("egress: [{action: Pass, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]") + &banp(DENY_WORLD)), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny baseline none"),
        ])
        .text("ANP-4 MOVE-3 MOVE-14", &anp("egress: [{action: Accept, to: [{networks: [203.0.113.0/24]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0112"),
        ])
        .text("CNP-5 MOVE-3 MOVE-14", &cnp("egress: [{action: Allow, to: [{networks: [203.0.113.0/24]}]}]"), &[
            ("shop/web", "198.51.100.9", "TCP/80", "deny admin none EG0112"),
        ])
        .text("CNP-16", &cnp(DENY_WORLD), &[
            ("shop/web", "shop/db", "TCP/80 IPv4", "deny admin default"),
            ("shop/web", "tools/job", "TCP/80", "deny admin default"),
            ("tools/job", "shop/web", "TCP/80", "allow default default"),
        ])
        .text("CNP-16", &cnp("egress: [{action: Pass, to: [{namespaces: {}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"), &[
            ("shop/web", "shop/db", "TCP/80", "allow default default"),
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
        ])
        .text("CNP-15 CNP-17 CASE-25 F-33", &cnp(DENY_WORLD), &[
            ("shop/web", WORLD, "ICMP", "deny admin none"),
            ("shop/web", WORLD, "SCTP/80", "deny admin none"),
            ("shop/web", WORLD_6, "TCP/80", "allow default none"),
        ])
        .text("CNP-15 CNP-17", &cnp("egress: [{action: Deny, to: [{networks: [0.0.0.0/0, \"::/0\"]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/web", WORLD_6, "TCP/80", "deny admin none"),
            ("shop/web", WORLD_6, "ICMP", "deny admin none"),
        ])
        .check();
}

#[test]
fn peers_and_ports_of_both_versions() {
    let to = |peer: &str, ports: &str| format!("egress: [{{action: Deny, to: [{peer}]{ports}}}]");
    let all = "{networks: [0.0.0.0/0]}";
    Table::of("admin_peers")
        .text("ANP-8 CROSS-5", &anp(&to("{nodes: {matchLabels: {role: master}}}", "")), &[
            ("shop/web", "10.9.0.2", "TCP/80", "deny admin none"),
            ("shop/web", "198.51.100.2", "TCP/80", "deny admin none"),
            ("shop/web", "shop/remote", "TCP/80", "deny admin none"),
            ("shop/web", "10.9.0.1", "TCP/80", "allow default none"),
        ])
        .text("ANP-8 CROSS-5", &cnp(&to("{nodes: {}}", "")), &[
            ("shop/web", "198.51.100.1", "TCP/80", "deny admin none"),
            ("shop/web", "10.9.0.2", "TCP/80", "deny admin none"),
            ("shop/web", "10.9.0.77", "TCP/80", "allow default none"),
            ("shop/web", "tools/job", "TCP/80", "allow default default"),
        ])
        .text("ANP-8", &anp(&to("{pods: {namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}}", "")), &[
            ("shop/web", "tools/web", "TCP/80", "deny admin default"),
            ("shop/web", "tools/job", "TCP/80", "allow default default"),
            ("shop/web", "shop/leaving", "TCP/80", "allow default default"),
        ])
        .text("ANP-8 API-7 CROSS-8", &cnp("ingress: [{action: Accept, from: [{networks: [203.0.113.0/24]}]}, {action: Deny, from: [{namespaces: {matchLabels: {team: b}}}]}]"), &[
            (WORLD, "shop/web", "TCP/80", "allow none default EG0103"),
            ("tools/job", "shop/web", "TCP/80", "deny default admin"),
            ("10.9.0.2", "shop/web", "TCP/80", "allow none default"),
        ])
        .text("API-7 CASE-21", &cnp("ingress: [{action: Deny, from: [{networks: [192.0.2.0/24]}]}]"), &[
            (WORLD, "shop/web", "TCP/80", "deny none admin EG0103"),
        ])
        .text("API-7", &cnp("egress: [{action: Accept, to: [{all: {}}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none EG0103"),
        ])
        .text("API-6", &anp("egress: [{action: Allow, to: [{namespaces: {sameLabels: [team]}}]}, {action: Deny, to: [{namespaces: {}}]}]"), &[
            ("shop/web", "shop/db", "TCP/80", "deny admin default EG0103"),
        ])
        .text("ANP-6", &anp(&to(all, ", ports: [{portNumber: {port: 80}}, {portRange: {start: 90, end: 92, protocol: UDP}}, {portNumber: {port: 7, protocol: SCTP}}]")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/web", WORLD, "UDP/80", "allow default none"),
            ("shop/web", WORLD, "UDP/90", "deny admin none"),
            ("shop/web", WORLD, "UDP/92", "deny admin none"),
            ("shop/web", WORLD, "UDP/93", "allow default none"),
            ("shop/web", WORLD, "SCTP/7", "deny admin none"),
            ("shop/web", WORLD, "TCP/7", "allow default none"),
            ("shop/web", WORLD, "ICMP", "allow default none"),
        ])
        .text("ANP-7 X-4 MOVE-8", &anp(&to(all, ", ports: [{portRange: {start: 10, end: 1}}, {portRange: {start: 20, end: 20}}]")), &[
            ("shop/web", WORLD, "TCP/5", "allow default none EG0205"),
            ("shop/web", WORLD, "TCP/10", "allow default none"),
            ("shop/web", WORLD, "TCP/20", "deny admin none"),
            ("shop/web", WORLD, "TCP/21", "allow default none"),
        ])
        .text("ANP-10", &anp(&to(all, ", ports: [{portNumber: {port: 80, protocol: QUIC}}]")), &[
            ("shop/web", WORLD, "TCP/80", "allow default none EG0204"),
            ("shop/web", WORLD, "UDP/80", "allow default none"),
        ])
        .text("CNP-6 MOVE-6", &cnp(&to(all, ", protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 90, end: 92}}}}]")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/web", WORLD, "TCP/81", "allow default none"),
            ("shop/web", WORLD, "UDP/91", "deny admin none"),
            ("shop/web", WORLD, "TCP/91", "allow default none"),
        ])
        .text("CNP-7 X-3 MOVE-7", &cnp(&to(all, ", protocols: [{tcp: {}}]")), &[
            ("shop/web", WORLD, "TCP/1", "deny admin none EG0208"),
            ("shop/web", WORLD, "TCP/65535", "deny admin none"),
            ("shop/web", WORLD, "UDP/1", "allow default none"),
            ("shop/web", WORLD, "ICMP", "allow default none"),
        ])
        .text("CNP-8 MOVE-8", &cnp(&to(all, ", protocols: [{tcp: {destinationPort: {range: {start: 80, end: 80}}}}]")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0206"),
            ("shop/web", WORLD, "TCP/81", "allow default none"),
        ])
        .text("CNP-8 CROSS-14", &cnp(&to(all, ", protocols: [{tcp: {destinationPort: {range: {start: 81, end: 80}}}}]")), &[
            ("shop/web", WORLD, "UDP/1", "deny admin none EG0201"),
        ])
        .text("X-5 CROSS-13", &cnp(&to("{namespaces: {}}", ", protocols: [{destinationNamedPort: http}, {destinationNamedPort: sig}]")), &[
            ("shop/web", "shop/db", "TCP/9000", "deny admin default"),
            ("shop/web", "shop/db", "TCP/8080", "allow default default"),
            ("shop/web", "tools/web", "TCP/7070", "deny admin default"),
            ("shop/web", "shop/db", "SCTP/3868", "deny admin default"),
            ("shop/web", "shop/db", "TCP/3868", "allow default default"),
        ])
        .text("CROSS-13", &anp("ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: dns}]}]"), &[
            ("tools/job", "shop/web", "UDP/5353", "deny default admin"),
            ("tools/job", "shop/web", "TCP/5353", "allow default default"),
            ("tools/job", "shop/db", "UDP/5353", "allow default default"),
        ])
        .text("API-2 DECIDE-2 MOVE-10", &cnp(&to(all, ", protocols: [{destinationNamedPort: http}]")), &[
            ("shop/web", "shop/db", "TCP/9000 IPv4", "allow default default EG0207"),
            ("shop/web", WORLD, "TCP/8080", "allow default none"),
        ])
        .text("API-2 DECIDE-2", &cnp("egress: [{action: Accept, to: [{networks: [0.0.0.0/0]}], protocols: [{destinationNamedPort: http}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"), &[
            ("shop/web", "shop/db", "TCP/9000 IPv4", "deny admin default EG0207"),
        ])
        .text("CROSS-15", &cnp(&to("{namespaces: {}}", "")), &[
            ("shop/web", "shop/db", "ICMP", "deny admin default"),
            ("shop/web", "shop/db", "SCTP/1", "deny admin default"),
        ])
        .check();
}

#[test]
fn what_is_not_understood_is_closed() {
    let closes = |fields: &str, ids: &'static str, table: Table| {
        let rules = |action: &str| cnp(&format!("egress: [{{action: {action}, {fields}}}]"));
        table
            .text(
                ids,
                &(rules("Accept") + &network_policy("shop/q", "{podSelector: {}, policyTypes: [Egress]}")),
                &[
                    ("shop/web", "shop/db", "TCP/80", "deny np default"),
                    ("shop/web", WORLD, "TCP/80", "deny np none"),
                ],
            )
            .text(
                ids,
                &rules("Deny"),
                &[
                    ("shop/web", "shop/db", "TCP/80", "deny admin default"),
                    ("shop/web", WORLD_6, "UDP/80", "deny admin none"),
                    ("shop/web", WORLD, "ICMP", "deny admin none"),
                    (WORLD, "shop/web", "TCP/80", "allow none default"),
                ],
            )
            .text(
                ids,
                &rules("Pass"),
                &[
                    ("shop/web", "shop/db", "TCP/80", "deny admin default"),
                    ("shop/web", WORLD, "TCP/80", "deny admin none"),
                ],
            )
    };
    let table = Table::of("admin_closed");
    let table = closes("to: [{fqdnSets: [x]}]", "CNP-13 CASE-21 MOVE-12", table);
    let table = closes("to: [{}]", "CNP-13 CASE-21 MOVE-12", table);
    let table = closes(
        "to: [{namespaces: {}}], protocols: [{icmp: {}}]",
        "CNP-14 MOVE-12",
        table,
    );
    let table = closes("to: [{namespaces: {}}], protocols: [{}]", "CNP-14", table);
    let table = closes("to: [{namespaces: {}}], protocols: []", "CROSS-1", table);
    let table = closes("to: []", "ANP-5 CROSS-1", table);
    let table = closes("to: null", "ANP-5", table);
    let table = closes("to: [{networks: [203.0.113.0/33]}]", "RULE-10", table);
    let table = closes(
        "to: [{namespaces: {matchExpressions: [{key: a, operator: Foo}]}}]",
        "RULE-10",
        table,
    );
    let table = closes(
        "to: [{namespaces: {}}], ports: [{portNumber: {port: 80}}]",
        "DECIDE-4 MOVE-6",
        table,
    );
    let table = closes("to: [{namespaces: {namespaceSelector: {}}}]", "MOVE-14", table);
    let table = closes("from: [{namespaces: {}}]", "MOVE-14 X-10", table);
    table
        .text(
            "X-6 API-9 F-6 G-1",
            &cnp("egress: [{action: Deny, to: [{domainNames: [api.example.com]}]}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "deny admin none EG0402"),
                ("shop/web", "shop/db", "TCP/80", "deny admin default"),
            ],
        )
        .text(
            "X-6 API-9 F-6 G-1",
            &anp("egress: [{action: Pass, to: [{domainNames: [api.example.com]}]}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "deny admin none EG0402"),
                ("shop/web", "shop/db", "TCP/80", "deny admin default"),
            ],
        )
        .text(
            "DECIDE-4",
            &cnp("egres: [], ingress: [{action: Accept, from: [{namespaces: {}}]}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "deny admin none EG0103"),
                ("tools/job", "shop/web", "TCP/80", "deny default admin"),
                ("tools/job", WORLD, "TCP/80", "allow default none"),
            ],
        )
        .check();
}

#[test]
fn tiers_priorities_and_ties() {
    let to_db = "[{pods: {podSelector: {matchLabels: {app: db}}}}]";
    Table::of("admin_order")
        .text("STACK-2", &(firewall("f", "{action: Deny, to: [{external: {}}]}") + &of_priority("p", 0, "Accept")), &[
            ("shop/web", WORLD, "TCP/80", "deny cef none"),
        ])
        .text("STACK-2", &(firewall("f", "{action: Allow, to: [{external: {}}]}") + &of_priority("p", 0, "Deny")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
        ])
        .text("STACK-3", &cnp("egress: [{action: Deny, to: [{networks: [203.0.113.1/32]}]}, {action: Accept, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{networks: [203.0.112.0/22]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
            ("shop/web", "203.0.113.2", "TCP/80", "allow admin none"),
            ("shop/web", "203.0.112.2", "TCP/80", "deny admin none"),
            ("shop/web", "203.0.116.2", "TCP/80", "allow default none"),
        ])
        .text("STACK-3 STACK-4", &(of_priority("p", 5, "Accept") + &network_policy("shop/q", "{podSelector: {}, policyTypes: [Egress]}")), &[
            ("shop/web", WORLD, "TCP/80", "allow admin none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny np none"),
        ])
        .text("STACK-4", &(np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}") + &baseline(DENY_WORLD)), &[
            ("shop/web", WORLD, "TCP/80", "allow np none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny np none"),
            ("shop/db", WORLD, "TCP/80", "deny baseline none"),
        ])
        .text("STACK-5 DECIDE-3", &(banp("egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]") + &baseline("egress: [{action: Accept, to: [{networks: [203.0.113.0/24]}]}]").replace("priority: 10", "priority: 1000")), &[
            ("shop/web", WORLD, "TCP/80", "allow baseline none"),
            ("shop/web", "198.51.100.9", "TCP/80", "deny baseline none"),
        ])
        .text("STACK-6 CROSS-2", &cnp("egress: [{action: Deny, to: [{networks: [198.51.100.0/24]}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("tools/job", "198.51.100.9", "TCP/80", "allow default none"),
        ])
        .text("STACK-7", &cnp("ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: b}}}]}]"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("tools/job", "shop/web", "TCP/80", "deny default admin"),
            (WORLD, "shop/web", "TCP/80", "allow none default"),
        ])
        .text("STACK-7", &cnp("egress: []"), &[
            ("shop/web", WORLD, "TCP/80", "allow default none"),
        ])
        .text("STACK-9 X-2 CASE-18", &(np_egress("{}") + &baseline("ingress: [{action: Deny, from: [{namespaces: {}}]}], egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]")), &[
            ("tools/job", "shop/web", "TCP/80", "deny default baseline"),
            ("shop/web", WORLD, "TCP/80", "allow np none"),
            ("shop/db", WORLD, "TCP/80", "deny baseline none"),
        ])
        .text("STACK-9 X-2 CASE-18", &(np_ingress("{}") + &banp("ingress: [{action: Deny, from: [{namespaces: {}}]}], egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]")), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("shop/web", WORLD, "TCP/80", "deny baseline none"),
        ])
        .text("CASE-19", &banp("ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 80}}]}]"), &[
            ("tools/job", "shop/web", "TCP/80", "deny default baseline"),
            ("tools/job", "shop/web", "TCP/443", "allow default default"),
        ])
        .text("STACK-10 CASE-20", &(of_priority("b", 5, "Deny") + &of_priority("a", 5, "Accept")), &[
            ("shop/web", WORLD, "TCP/80", "allow admin none EG0119"),
        ])
        .text("STACK-10 STACK-11 DECIDE-3", &(older("a", 5, "Deny") + &of_priority("b", 5, "Accept")), &[
            ("shop/web", WORLD, "TCP/80", "allow admin none EG0119"),
        ])
        .text("STACK-11 DECIDE-3", &(older("a", 4, "Deny") + &of_priority("b", 5, "Accept")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none"),
        ])
        .text("ANP-1 STACK-12 CASE-20", &(older("a", 1000, "Deny") + &older("b", 999, "Allow")), &[
            ("shop/web", WORLD, "TCP/80", "allow admin none"),
        ])
        .text("CNP-2 STACK-12 CASE-20", &(of_priority("a", 1, "Deny") + &of_priority("b", 0, "Accept")), &[
            ("shop/web", WORLD, "TCP/80", "allow admin none"),
        ])
        .text("CNP-2", &(of_priority("c", 1000, "Pass") + &baseline("egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]").replace("priority: 10,", "priority: 0,")), &[
            ("shop/web", WORLD, "TCP/80", "deny baseline none"),
        ])
        .text("ANP-1 CNP-2", &(of_priority("a", 1001, "Accept") + &of_priority("b", 0, "Deny")), &[
            ("shop/web", WORLD, "TCP/80", "deny admin none EG0110"),
        ])
        .text("STACK-1", &(cnp(&format!("egress: [{{action: Accept, to: {to_db}}}]")) + &banp("ingress: [{action: Deny, from: [{namespaces: {}}]}]")), &[
            ("shop/web", "shop/db", "TCP/80", "deny admin baseline"),
        ])
        .text("API-8", &network_policy("shop/q", &format!("{{podSelector: {{}}, policyTypes: [Egress], {ALLOW_WORLD}}}")).replace("networking.k8s.io/v1", "extensions/v1"), &[
            ("shop/web", WORLD, "TCP/80", "deny np none EG0102"),
        ])
        .check();
}

/// What an API server refuses for its length is enforced as it is written.
#[test]
fn limits_are_warned_of() {
    let many = |count: usize, item: &str| vec![item; count].join(", ");
    let rule = "{action: Deny, to: [{networks: [203.0.113.0/24]}]}";
    let peers = |count| {
        format!(
            "egress: [{{action: Deny, to: [{}]}}]",
            many(count, "{networks: [203.0.113.0/24]}")
        )
    };
    let ports = |word: &str, count, item: &str| {
        rule.replacen("]}]", &format!("]}}], {word}: [{}]", many(count, item)), 1)
    };
    let rules = |count| format!("egress: [{}]", many(count, rule));
    let (tcp, first) = (
        "{tcp: {destinationPort: {number: 80}}}",
        "{portNumber: {port: 80}}",
    );
    let named = rule.replace("{action", &format!("{{name: {}, action", "n".repeat(101)));
    let over: &[texts::Line] = &[("shop/web", WORLD, "TCP/80", "deny admin none EG0114")];
    let within: &[texts::Line] = &[("shop/web", WORLD, "TCP/80", "deny admin none !EG0114")];
    Table::of("admin_limits")
        .text("ANP-3 MOVE-4", &anp(&rules(101)), over)
        .text("ANP-3 MOVE-4", &anp(&rules(100)), within)
        .text("ANP-3 MOVE-5", &anp(&peers(101)), over)
        .text("ANP-3 MOVE-5", &anp(&peers(100)), within)
        .text(
            "ANP-3",
            &anp(&format!("egress: [{}]", ports("ports", 101, first))),
            over,
        )
        .text(
            "ANP-3",
            &anp(&format!("egress: [{}]", ports("ports", 100, first))),
            within,
        )
        .text("ANP-3", &anp(&format!("egress: [{named}]")), over)
        .text("CNP-4 MOVE-4", &cnp(&rules(26)), over)
        .text("CNP-4 MOVE-4", &cnp(&rules(25)), within)
        .text("CNP-4 MOVE-5", &cnp(&peers(26)), over)
        .text("CNP-4 MOVE-5", &cnp(&peers(25)), within)
        .text(
            "CNP-4",
            &cnp(&format!("egress: [{}]", ports("protocols", 26, tcp))),
            over,
        )
        .text(
            "CNP-4",
            &cnp(&format!("egress: [{}]", ports("protocols", 25, tcp))),
            within,
        )
        .text("CNP-4", &cnp(&format!("egress: [{named}]")), over)
        .check();
}

/// The two versions say the same thing in different words.
#[test]
fn an_old_policy_and_its_new_form_decide_alike() {
    let lines: &[texts::Line] = &[
        ("shop/web", "shop/db", "TCP/9000", "allow admin default"),
        ("shop/web", WORLD, "TCP/443", "allow admin none"),
        ("shop/web", WORLD, "TCP/444", "deny admin none"),
        ("shop/web", "10.9.0.2", "UDP/53", "deny admin none"),
        ("shop/web", "tools/job", "TCP/80", "deny admin default"),
        ("shop/web", WORLD_6, "TCP/80", "allow default none"),
        ("tools/job", "shop/web", "TCP/80", "allow default default"),
    ];
    let (first, last) = (
        "{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}",
        "{action: Pass, to: [{networks: [203.0.114.0/24]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}",
    );
    let old = format!(
        "egress: [{{action: Allow, to: [{first}], ports: [{{namedPort: http}}]}}, {{action: Allow, to: [{{networks: [203.0.113.0/24]}}], ports: [{{portNumber: {{port: 443}}}}]}}, {last}]"
    );
    let new = format!(
        "egress: [{{action: Accept, to: [{first}], protocols: [{{destinationNamedPort: http}}]}}, {{action: Accept, to: [{{networks: [203.0.113.0/24]}}], protocols: [{{tcp: {{destinationPort: {{number: 443}}}}}}]}}, {last}]"
    );
    Table::of("admin_moved")
        .text("MOVE-1 MOVE-3 MOVE-6 MOVE-7", &anp(&old), lines)
        .text("MOVE-1 MOVE-3 MOVE-6 MOVE-7", &cnp(&new), lines)
        .text(
            "MOVE-1",
            &admin(
                "ClusterNetworkPolicy",
                "p",
                &format!("{{tier: Baseline, priority: 0, subject: {{namespaces: {{}}}}, {DENY_WORLD}}}"),
            ),
            &[("bare/pod", WORLD, "TCP/80", "deny baseline none")],
        )
        .check();
}

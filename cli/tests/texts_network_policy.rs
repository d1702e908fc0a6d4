//! NetworkPolicy v1 by the lines of its API documentation, and endPort by those of KEP-2079.

mod invocation;
mod texts;

use invocation::network_policy;
use texts::{Table, WORLD, WORLD_6, np, np_egress, np_ingress};

#[test]
fn isolation_follows_policy_types() {
    Table::of("np_types")
        .text(
            "NP-1 API-1",
            &network_policy("shop/p", "{}"),
            &[
                ("tools/job", "shop/web", "TCP/80", "deny default np"),
                ("tools/job", "shop/db", "TCP/80", "deny default np"),
                ("shop/web", "tools/job", "TCP/80", "allow default default"),
            ],
        )
        .text(
            "NP-1",
            &network_policy("shop/p", "{podSelector: null}"),
            &[
                ("tools/job", "shop/db", "TCP/80", "deny default np"),
                ("shop/db", "tools/job", "TCP/80", "allow default default"),
            ],
        )
        .text(
            "NP-2 CASE-59",
            &np("egress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "allow np none"),
                ("shop/web", "198.51.100.9", "TCP/80", "deny np none"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "NP-2 CASE-59",
            &np("egress: []"),
            &[
                ("shop/web", WORLD, "TCP/80", "allow default none"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "NP-3",
            &np("policyTypes: []"),
            &[
                ("shop/web", WORLD, "TCP/80", "allow default none"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "NP-3",
            &np("policyTypes: [], egress: [{}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "allow np none"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "NP-4 CASE-16",
            &np("policyTypes: [Egress], egress: []"),
            &[
                ("shop/web", WORLD, "TCP/80", "deny np none"),
                ("shop/web", WORLD_6, "TCP/80", "deny np none"),
                (WORLD, "shop/web", "TCP/80", "allow none default"),
            ],
        )
        .text(
            "NP-4 CASE-16",
            &np("policyTypes: [Ingress], ingress: []"),
            &[
                (WORLD, "shop/web", "TCP/80", "deny none np"),
                (WORLD_6, "shop/web", "TCP/80", "deny none np"),
                ("shop/web", WORLD, "TCP/80", "allow default none"),
            ],
        )
        .text(
            "NP-4",
            &np("policyTypes: [Ingress, Egress]"),
            &[
                (WORLD, "shop/web", "TCP/80", "deny none np"),
                ("shop/web", WORLD, "TCP/80", "deny np none"),
                ("shop/db", WORLD, "TCP/80", "allow default none"),
            ],
        )
        .text(
            "NP-5",
            &np("policyTypes: [Egress], ingress: [{}], egress: [{}]"),
            &[
                (WORLD, "shop/web", "TCP/80", "allow none default EG0117"),
                ("shop/web", WORLD, "TCP/80", "allow np none"),
            ],
        )
        .text(
            "NP-5",
            &np("policyTypes: [Ingress], egress: [{to: [{podSelector: {}}]}]"),
            &[
                ("shop/web", WORLD, "TCP/80", "allow default none EG0117"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
            ],
        )
        .text(
            "NP-23",
            &(np_ingress("{from: [{podSelector: {}}], ports: [{port: 1}]}")
                + &network_policy("shop/q", "{podSelector: {}, ingress: [{ports: [{port: 2}]}]}")),
            &[
                ("shop/db", "shop/web", "TCP/1", "allow default np"),
                ("shop/db", "shop/web", "TCP/2", "allow default np"),
                ("shop/db", "shop/web", "TCP/3", "deny default np"),
                ("shop/web", "shop/db", "TCP/1", "deny default np"),
                ("shop/web", "tools/web", "TCP/1", "allow default default"),
            ],
        )
        .text(
            "NP-24 STACK-1 CASE-17",
            &(np_egress("{}") + &network_policy("shop/q", "{podSelector: {matchLabels: {app: db}}}")),
            &[
                ("shop/web", "shop/db", "TCP/80", "deny np np"),
                ("shop/web", "tools/job", "TCP/80", "allow np default"),
                ("tools/job", "shop/db", "TCP/80", "deny default np"),
            ],
        )
        .check();
}

#[test]
fn lists_peers_and_ports_of_a_rule() {
    Table::of("np_rules")
        .text("NP-6 CROSS-1", &np_ingress("{from: [{podSelector: {}}], ports: []}"), &[
            ("shop/db", "shop/web", "UDP/9", "allow default np"),
            ("shop/db", "shop/web", "ICMP", "allow default np"),
            ("tools/job", "shop/web", "UDP/9", "deny default np"),
        ])
        .text("NP-6", &np_ingress("{from: [{podSelector: {}}]}"), &[
            ("shop/db", "shop/web", "SCTP/9", "allow default np"),
        ])
        .text("NP-7 CROSS-1 CASE-60", &np_ingress("{from: [], ports: [{port: 80}]}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD_6, "shop/web", "TCP/80", "allow none np"),
            ("tools/job", "shop/web", "TCP/81", "deny default np"),
        ])
        .text("NP-7", &np_egress("{ports: [{port: 80}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow np none"),
            ("shop/web", "tools/job", "TCP/80", "allow np default"),
            ("shop/web", WORLD, "TCP/443", "deny np none"),
        ])
        .text("NP-8", &np_ingress("{from: [{podSelector: {matchLabels: {app: db}}}, {ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 80}, {port: 53, protocol: UDP}]}"), &[
            ("shop/db", "shop/web", "TCP/80", "allow default np"),
            ("shop/db", "shop/web", "UDP/53", "allow default np"),
            ("shop/db", "shop/web", "TCP/53", "deny default np"),
            (WORLD, "shop/web", "UDP/53", "allow none np"),
            (WORLD, "shop/web", "UDP/80", "deny none np"),
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-9 CROSS-16 CASE-28", &np_ingress("{ports: [{port: 80}, {port: 81, protocol: UDP}, {port: 82, protocol: SCTP}]}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD, "shop/web", "UDP/80", "deny none np"),
            (WORLD, "shop/web", "SCTP/80", "deny none np"),
            (WORLD, "shop/web", "UDP/81", "allow none np"),
            (WORLD, "shop/web", "TCP/81", "deny none np"),
            (WORLD, "shop/web", "SCTP/82", "allow none np"),
            (WORLD, "shop/web", "TCP/82", "deny none np"),
        ])
        .text("NP-10", &np_ingress("{ports: [{port: http}]}"), &[
            (WORLD, "shop/web", "TCP/8080", "allow none np"),
            (WORLD, "shop/web", "TCP/80", "deny none np"),
        ])
        .text("NP-10", &np_ingress("{ports: [{port: \"80\"}]}, {ports: [{port: 443}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np"),
            (WORLD, "shop/web", "TCP/443", "allow none np"),
        ])
        .text("NP-11 CASE-32", &np_ingress("{ports: [{}]}"), &[
            (WORLD, "shop/web", "TCP/1", "allow none np"),
            (WORLD, "shop/web", "TCP/65535", "allow none np"),
            (WORLD, "shop/web", "UDP/1", "deny none np"),
            (WORLD, "shop/web", "ICMP", "deny none np"),
        ])
        .text("NP-11 CASE-32 CASE-28", &np_ingress("{ports: [{protocol: SCTP}]}"), &[
            (WORLD, "shop/web", "SCTP/1", "allow none np"),
            (WORLD, "shop/web", "TCP/1", "deny none np"),
        ])
        .text("NP-13", &np_ingress("{from: [{}]}, {ports: [{port: 1}]}"), &[
            ("shop/db", "shop/web", "TCP/80", "deny default np EG0107"),
            ("shop/db", "shop/web", "TCP/1", "allow default np"),
        ])
        .text("NP-13", &np_ingress("{from: [{podSelector: {}, ipBlock: {cidr: 0.0.0.0/0}}]}"), &[
            ("shop/db", "shop/web", "TCP/80", "deny default np EG0108"),
        ])
        .check();
}

#[test]
fn selectors_and_namespaces_of_peers() {
    Table::of("np_peers")
        .text("NP-16", &np_ingress("{from: [{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [front]}]}, namespaceSelector: {}}]}"), &[
            ("shop/db", "shop/web", "TCP/80", "allow default np"),
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("bare/pod", "shop/web", "TCP/80", "allow default np"),
        ])
        .text("NP-16", &np_ingress("{from: [{podSelector: {matchExpressions: [{key: tier, operator: In, values: [back, side]}]}, namespaceSelector: {}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-16", &np_ingress("{from: [{podSelector: {matchExpressions: [{key: tier, operator: Exists}]}, namespaceSelector: {}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-16", &np_ingress("{from: [{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}, namespaceSelector: {}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
            ("shop/db", "shop/web", "TCP/80", "allow default np"),
            ("bare/pod", "shop/web", "TCP/80", "allow default np"),
        ])
        .text("NP-16", &np_ingress("{from: [{podSelector: {matchLabels: {app: job}, matchExpressions: [{key: tier, operator: In, values: [front]}]}, namespaceSelector: {}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-17", &np_ingress("{from: [{podSelector: null, namespaceSelector: {}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
        ])
        .text("NP-17", &np_ingress("{from: [{podSelector: {}, namespaceSelector: null}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
            ("shop/db", "shop/web", "TCP/80", "allow default np"),
        ])
        .text("NP-18", &np_ingress("{from: [{podSelector: {matchLabels: {app: web}}}]}"), &[
            ("shop/leaving", "shop/web", "TCP/80", "allow default np"),
            ("tools/web", "shop/web", "TCP/80", "deny default np"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-19", &np_ingress("{from: [{namespaceSelector: {matchLabels: {team: b}}}]}"), &[
            ("tools/web", "shop/web", "TCP/80", "allow default np"),
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
            ("bare/pod", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-20", &np_ingress("{from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}"), &[
            ("tools/web", "shop/web", "TCP/80", "allow default np"),
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
            ("shop/leaving", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-20", &np_ingress("{from: [{namespaceSelector: {matchLabels: {team: b}}}, {podSelector: {matchLabels: {app: db}}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("shop/db", "shop/web", "TCP/80", "allow default np"),
            ("bare/pod", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("NP-21 CASE-61", &np_ingress("{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: bare}}}]}"), &[
            ("bare/pod", "shop/web", "TCP/80", "allow default np"),
            ("tools/job", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("CASE-61", &np_ingress("{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}}]}"), &[
            ("bare/pod", "shop/web", "TCP/80", "deny default np"),
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
        ])
        .text("CASE-7", &np_egress("{to: [{namespaceSelector: {}}]}"), &[
            ("shop/web", "bare/pod", "TCP/80", "allow np default"),
            ("shop/web", WORLD, "TCP/80", "deny np none"),
            ("shop/web", "10.0.0.200", "TCP/80", "deny np none"),
        ])
        .text("CASE-7", &np_egress("{to: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}}]}"), &[
            ("shop/web", "bare/pod", "TCP/80", "allow np default"),
            ("shop/web", "shop/db", "TCP/80", "deny np default"),
            ("shop/web", WORLD_6, "TCP/80", "deny np none"),
        ])
        .check();
}

#[test]
fn blocks_of_addresses() {
    Table::of("np_blocks")
        .text("NP-14", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.128/25]}}]}"), &[
            ("shop/web", "203.0.113.127", "TCP/80", "allow np none"),
            ("shop/web", "203.0.113.128", "TCP/80", "deny np none"),
            ("shop/web", "203.0.114.1", "TCP/80", "deny np none"),
        ])
        .text("NP-14", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.0/24]}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny np none EG0303"),
        ])
        .text("NP-14", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [198.51.100.0/25]}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny np none EG0303"),
        ])
        .text("CASE-23", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.128/25]}}, {ipBlock: {cidr: 203.0.113.192/26}}]}"), &[
            ("shop/web", "203.0.113.129", "TCP/80", "deny np none"),
            ("shop/web", "203.0.113.193", "TCP/80", "allow np none"),
        ])
        .text("CASE-23", &(np_egress("{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.128/25]}}]}") + &network_policy("shop/q", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.192/26}}]}]}")), &[
            ("shop/web", "203.0.113.129", "TCP/80", "deny np none"),
            ("shop/web", "203.0.113.193", "TCP/80", "allow np none"),
            ("shop/db", "203.0.113.1", "TCP/80", "deny np none"),
        ])
        .text("NP-15 CASE-26", &np_egress("{to: [{ipBlock: {cidr: 203.0.113.77/24}}]}, {to: [{ipBlock: {cidr: 198.051.100.0/24}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow np none EG0302"),
            ("shop/web", "198.51.100.9", "TCP/80", "allow np none"),
            ("shop/web", "198.51.101.9", "TCP/80", "deny np none"),
        ])
        .text("RULE-5", &np_egress("{to: [{ipBlock: {cidr: \"::ffff:203.0.113.0/120\"}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow np none"),
            ("shop/web", "203.0.114.1", "TCP/80", "deny np none"),
            ("shop/web", WORLD_6, "TCP/80", "deny np none"),
        ])
        .text("RULE-5", &np_egress("{to: [{ipBlock: {cidr: \"::/0\"}}]}"), &[
            ("shop/web", WORLD_6, "TCP/80", "allow np none"),
            ("shop/web", WORLD, "TCP/80", "deny np none"),
        ])
        .text("NP-22 CASE-24", &np_egress("{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}"), &[
            ("shop/web", "tools/job", "TCP/80", "allow np default"),
            ("shop/web", "shop/remote", "TCP/80", "allow np none"),
            ("shop/web", "10.9.0.2", "TCP/80", "allow np none"),
            ("shop/web", WORLD, "TCP/80", "deny np none"),
        ])
        .text("NP-22 CASE-24", &np_ingress("{from: [{ipBlock: {cidr: 10.0.1.1/32}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np"),
            ("tools/web", "shop/web", "TCP/80", "deny default np"),
            ("tools/job", "shop/web", "TCP/80 IPv6", "deny default np"),
        ])
        .text("RULE-4 CASE-25", &np_egress("{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.0/24]}}, {ipBlock: {cidr: \"::/0\", except: [\"2001:db8::/64\"]}}]}"), &[
            ("shop/web", "198.51.100.9", "TCP/80", "allow np none"),
            ("shop/web", WORLD, "TCP/80", "deny np none"),
            ("shop/web", "2001:db8:1::1", "TCP/80", "allow np none"),
            ("shop/web", WORLD_6, "TCP/80", "deny np none"),
        ])
        .text("RULE-4 CASE-25", &np_egress("{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [\"2001:db8::/64\"]}}]}, {ports: [{port: 1}]}"), &[
            ("shop/web", WORLD, "TCP/80", "deny np none EG0303"),
            ("shop/web", WORLD, "TCP/1", "allow np none"),
        ])
        .text("RULE-4", &np_egress("{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}"), &[
            ("shop/web", WORLD, "TCP/80", "allow np none"),
            ("shop/web", WORLD_6, "TCP/80", "deny np none"),
            ("shop/web", "shop/db", "TCP/80 IPv6", "deny np default"),
            ("shop/web", "shop/db", "TCP/80 IPv4", "allow np default"),
        ])
        .check();
}

#[test]
fn named_ports_are_those_of_the_destination() {
    Table::of("np_named")
        .text(
            "CROSS-13 CASE-9 CASE-10",
            &np_egress("{to: [{namespaceSelector: {}}], ports: [{port: http}]}"),
            &[
                ("shop/web", "shop/db", "TCP/9000", "allow np default"),
                ("shop/web", "shop/db", "TCP/8080", "deny np default"),
                ("shop/web", "tools/web", "TCP/7070", "allow np default"),
                ("shop/web", "tools/web", "TCP/9000", "deny np default"),
            ],
        )
        .text(
            "CASE-10",
            &network_policy("shop/p", "{podSelector: {}, ingress: [{ports: [{port: http}]}]}"),
            &[
                ("tools/job", "shop/web", "TCP/8080", "allow default np"),
                ("tools/job", "shop/web", "TCP/9000", "deny default np"),
                ("tools/job", "shop/db", "TCP/9000", "allow default np"),
                ("tools/job", "shop/db", "TCP/8080", "deny default np"),
            ],
        )
        .text(
            "CASE-11",
            &np_ingress("{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: http}]}"),
            &[
                (WORLD, "shop/web", "TCP/8080", "allow none np"),
                (WORLD, "shop/web", "TCP/80", "deny none np"),
                ("198.51.100.9", "shop/web", "TCP/8080", "deny none np"),
            ],
        )
        .text(
            "CROSS-13 DECIDE-2",
            &np_egress("{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: http}]}"),
            &[
                ("shop/web", WORLD, "TCP/8080", "deny np none EG0207"),
                ("shop/web", "shop/db", "TCP/9000", "deny np default EG0207"),
            ],
        )
        .text(
            "CASE-12",
            &np_ingress("{ports: [{port: nowhere}]}"),
            &[
                (WORLD, "shop/web", "TCP/80", "deny none np"),
                (WORLD, "shop/web", "TCP/8080", "deny none np"),
            ],
        )
        .text(
            "CASE-12",
            &np_ingress("{ports: [{port: nowhere}, {port: 443}]}"),
            &[
                (WORLD, "shop/web", "TCP/8080", "deny none np"),
                (WORLD, "shop/web", "TCP/443", "allow none np"),
            ],
        )
        .text(
            "CASE-13",
            &np_egress("{ports: [{port: http}]}"),
            &[
                ("shop/web", "tools/web", "TCP/7070", "allow np default"),
                ("shop/web", "tools/web", "TCP/8080", "deny np default"),
                ("shop/web", WORLD, "TCP/7070", "deny np none"),
            ],
        )
        .text(
            "CROSS-13",
            &np_ingress("{ports: [{port: dns}]}, {ports: [{port: dns, protocol: TCP}]}"),
            &[
                (WORLD, "shop/web", "UDP/5353", "deny none np"),
                (WORLD, "shop/web", "TCP/5353", "deny none np"),
            ],
        )
        .text(
            "CROSS-13",
            &np_ingress("{ports: [{port: dns, protocol: UDP}]}"),
            &[
                (WORLD, "shop/web", "UDP/5353", "allow none np"),
                (WORLD, "shop/web", "TCP/5353", "deny none np"),
            ],
        )
        .text(
            "RULE-9",
            &np_ingress("{ports: [{port: http}]}"),
            &[
                (WORLD, "shop/web", "TCP/8080", "allow none np"),
                (WORLD, "shop/web", "TCP/8081", "allow none np"),
            ],
        )
        .text(
            "RULE-9 CASE-14",
            &np_ingress("{ports: [{port: metrics}, {port: setup}]}"),
            &[
                (WORLD, "shop/web", "TCP/9090", "allow none np"),
                (WORLD, "shop/web", "TCP/1111", "deny none np"),
            ],
        )
        .check();
}

#[test]
fn ranges_of_ports() {
    Table::of("np_ranges")
        .text("K-1 K-6 K-14 CROSS-14", &np_ingress("{ports: [{port: 70, endPort: 90}]}"), &[
            (WORLD, "shop/web", "TCP/69", "deny none np"),
            (WORLD, "shop/web", "TCP/70", "allow none np"),
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD, "shop/web", "TCP/90", "allow none np"),
            (WORLD, "shop/web", "TCP/91", "deny none np"),
            (WORLD, "shop/web", "TCP/65535", "deny none np"),
        ])
        .text("K-14", &np_ingress("{ports: [{port: 70, endPort: 79}]}"), &[
            (WORLD, "shop/web", "TCP/78", "allow none np"),
            (WORLD, "shop/web", "TCP/79", "allow none np"),
            (WORLD, "shop/web", "TCP/80", "deny none np"),
        ])
        .text("K-2 K-12 K-15 X-9", &np_ingress("{ports: [{endPort: 90}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0203"),
            (WORLD, "shop/web", "TCP/90", "deny none np"),
        ])
        .text("K-3 K-15", &np_ingress("{ports: [{port: http, endPort: 9000}]}"), &[
            (WORLD, "shop/web", "TCP/8080", "deny none np EG0203"),
        ])
        .text("K-4 K-15", &np_ingress("{ports: [{port: 80, endPort: 79}]}, {ports: [{port: 443, endPort: 443}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0203"),
            (WORLD, "shop/web", "TCP/79", "deny none np"),
            (WORLD, "shop/web", "TCP/443", "allow none np"),
            (WORLD, "shop/web", "TCP/444", "deny none np"),
        ])
        .text("K-5", &np_ingress("{ports: [{port: 80, endPort: 65536}]}, {ports: [{port: 65535, endPort: 65535}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0203"),
            (WORLD, "shop/web", "TCP/65535", "allow none np"),
        ])
        .text("K-7", &np_ingress("{ports: [{port: 70, endPort: 90}, {port: 170, endPort: 190, protocol: UDP}, {port: 270, endPort: 290, protocol: SCTP}]}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD, "shop/web", "UDP/80", "deny none np"),
            (WORLD, "shop/web", "UDP/180", "allow none np"),
            (WORLD, "shop/web", "TCP/180", "deny none np"),
            (WORLD, "shop/web", "SCTP/290", "allow none np"),
            (WORLD, "shop/web", "UDP/290", "deny none np"),
        ])
        .text("K-8 K-13", &np_egress("{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 30000, endPort: 32767}]}"), &[
            ("shop/web", "10.9.0.2", "TCP/29999", "deny np none"),
            ("shop/web", "10.9.0.2", "TCP/30000", "allow np none"),
            ("shop/web", "10.9.0.2", "TCP/32767", "allow np none"),
            ("shop/web", "10.9.0.2", "TCP/32768", "deny np none"),
            ("shop/web", WORLD, "TCP/30000", "deny np none"),
        ])
        .text("K-9 K-10 K-13", &np_egress("{ports: [{port: 1, endPort: 110}, {port: 112, endPort: 444}, {port: 446, endPort: 65535}]}"), &[
            ("shop/web", WORLD, "TCP/1", "allow np none"),
            ("shop/web", WORLD, "TCP/110", "allow np none"),
            ("shop/web", WORLD, "TCP/111", "deny np none"),
            ("shop/web", WORLD, "TCP/112", "allow np none"),
            ("shop/web", WORLD, "TCP/445", "deny np none"),
            ("shop/web", WORLD, "TCP/446", "allow np none"),
            ("shop/web", WORLD, "TCP/65535", "allow np none"),
        ])
        .text("K-13", &np_ingress("{ports: [{port: 21}, {port: 49152, endPort: 65535}]}"), &[
            (WORLD, "shop/web", "TCP/21", "allow none np"),
            (WORLD, "shop/web", "TCP/22", "deny none np"),
            (WORLD, "shop/web", "TCP/49151", "deny none np"),
            (WORLD, "shop/web", "TCP/49152", "allow none np"),
            (WORLD, "shop/web", "TCP/65535", "allow none np"),
        ])
        .text("K-10", &np_ingress("{ports: [{port: 70, endPort: 90, except: [80]}]}"), &[
            (WORLD, "shop/web", "TCP/71", "deny none np EG0103"),
        ])
        .text("K-16", &np_ingress("{ports: [{port: 1, endPort: 65535}]}"), &[
            (WORLD, "shop/web", "TCP/1", "allow none np"),
            (WORLD, "shop/web", "TCP/65535", "allow none np"),
            (WORLD, "shop/web", "UDP/1", "deny none np"),
        ])
        .check();
}

#[test]
fn what_an_api_server_would_have_dropped() {
    Table::of("np_stored")
        .text("DECIDE-4", &np_ingress("{form: [{podSelector: {}}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0103"),
        ])
        .stored("DECIDE-4", &np_ingress("{form: [{podSelector: {}}]}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np EG0103"),
        ])
        .text("DECIDE-4", &np_ingress("{ports: [{port: 80, endport: 90}]}, {ports: [{port: 443}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0103"),
            (WORLD, "shop/web", "TCP/443", "allow none np"),
        ])
        .stored("DECIDE-4 K-11", &np_ingress("{ports: [{port: 80, endport: 90}]}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD, "shop/web", "TCP/85", "deny none np"),
        ])
        .text("DECIDE-4", &np_ingress("{}").replace("spec:", "extra: 1\nspec:"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np EG0011"),
        ])
        .text("RULE-10", &network_policy("shop/p", "{podSelector: {matchLabels: {app: web}, matchExpressions: [{key: x, operator: Foo}]}, ingress: [{}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0109"),
            (WORLD, "shop/db", "TCP/80", "allow none default"),
        ])
        .text("RULE-10", &np_ingress("{from: [{ipBlock: {cidr: 0.0.0.0/33}}]}, {from: [{podSelector: {matchExpressions: [{key: app, operator: In}]}}]}, {ports: [{port: 1}]}"), &[
            (WORLD, "shop/web", "TCP/80", "deny none np EG0301 EG0109"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
            (WORLD, "shop/web", "TCP/1", "allow none np"),
        ])
        .check();
}

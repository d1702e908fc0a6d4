//! In clusters drawn at random every explanation leads to what the rules of a node decide.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

mod invocation;

use invocation::{Invocation, leads_to_its_end};

const CLUSTER: &str = r#"apiVersion: v1
kind: Node
metadata: {name: n1, labels: {pool: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: red, labels: {color: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blue, annotations: {net.beta.kubernetes.io/network-policy: '{"ingress": {"isolation": "DefaultDeny"}}'}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: red}
spec: {selector: {app: web}, clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.9, ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.2]}]
ports: [{port: 443, protocol: TCP}]
"#;

const ENDS: [&str; 9] = [
    "red/web",
    "red/client",
    "blue/web",
    "192.0.2.1",
    r#"{"node":"n2"}"#,
    "198.51.100.1",
    "203.0.113.7",
    r#"{"service":"red/web"}"#,
    r#"{"name":"api.example.com"}"#,
];

fn pod(key: &str, app: &str, address: &str) -> String {
    invocation::pod(key, &format!("app: {app}"), &[address]).replace(
        "containers: []",
        "containers: [{name: c, ports: [{name: http, containerPort: 80}]}]",
    )
}

fn asked() -> Invocation {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 4;
    let mut asked = Invocation::of(&format!("explain-agreement-{number}"))
        .manifest(CLUSTER)
        .manifest(&pod("red/web", "web", "10.0.0.1"))
        .manifest(&pod("red/client", "client", "10.0.0.2"))
        .manifest(&pod("blue/web", "web", "10.0.0.3"))
        .record("red/client", "api.example.com", "203.0.113.7")
        .record("blue/web", "api.example.com", "10.96.0.1");
    for from in &ENDS[..6] {
        for to in ENDS {
            for port in [53, 80, 443] {
                asked = asked.tcp(from, to, port);
            }
        }
    }
    asked.probe(r#"{"id":"icmp","from":"red/client","to":"red/web","protocol":"ICMP"}"#)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 10,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_explanation_leads_to_the_decision(policies in vec(policy(), 0..6)) {
        let mut asked = asked();
        for (number, policy) in policies.iter().enumerate() {
            asked = asked.file(&format!("p{number}.yaml"), &policy.replace("NUMBER", &number.to_string()));
        }
        for explanation in asked.explanations() {
            for way in explanation["connections"].as_array().unwrap() {
                for side in ["egress", "ingress"] {
                    let led = leads_to_its_end(&way[side]);
                    prop_assert!(led.is_ok(), "{}\n{}\n{}", explanation["id"], way[side], policies.join("\n"));
                }
            }
        }
    }
}

fn policy() -> impl Strategy<Value = String> {
    prop_oneof![
        network_policy("networking.k8s.io/v1"),
        network_policy("extensions/v1beta1"),
        cluster_policy(),
        firewall(),
    ]
}

fn network_policy(version: &'static str) -> impl Strategy<Value = String> {
    let peer = select(vec![
        "podSelector: {}",
        "podSelector: {matchLabels: {app: client}}",
        "namespaceSelector: {matchLabels: {color: red}}",
        "namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
        "ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.0/24]}",
    ]);
    let ports = select(vec![
        "",
        ", ports: [{port: 80}]",
        ", ports: [{port: http}]",
        ", ports: [{protocol: UDP}]",
    ]);
    let namespace = select(vec!["red", "blue"]);
    let rules = vec((peer, ports), 0..3);
    let is_legacy = version != "networking.k8s.io/v1";
    let directions = if is_legacy {
        vec!["Ingress"]
    } else {
        vec!["Ingress", "Egress"]
    };
    (namespace, select(directions), rules).prop_map(move |(namespace, direction, rules)| {
        let (list, side) = if direction == "Ingress" { ("ingress", "from") } else { ("egress", "to") };
        let rules: Vec<String> = rules
            .iter()
            .map(|(peer, ports)| format!("{{{side}: [{{{peer}}}]{ports}}}"))
            .collect();
        let types = if is_legacy {
            String::new()
        } else {
            format!(", policyTypes: [{direction}]")
        };
        format!(
            "apiVersion: {version}\nkind: NetworkPolicy\nmetadata: {{name: pNUMBER, namespace: {namespace}}}\n\
             spec: {{podSelector: {{}}{types}, {list}: [{}]}}\n",
            rules.join(", ")
        )
    })
}

fn cluster_policy() -> impl Strategy<Value = String> {
    let peer = select(vec![
        "namespaces: {}",
        "pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}",
        "networks: [203.0.113.0/24, 10.0.0.0/31]",
        "nodes: {matchLabels: {pool: a}}",
        "domainNames: [\"*.example.com\"]",
    ]);
    let ports = select(vec![
        "",
        ", protocols: [{tcp: {destinationPort: {number: 80}}}]",
        ", protocols: [{destinationNamedPort: http}]",
    ]);
    let rule = (select(vec!["Accept", "Deny", "Pass"]), peer, ports);
    (select(vec!["Admin", "Baseline"]), select(vec!["egress", "ingress"]), 0..2_u32, vec(rule, 1..4)).prop_map(
        |(tier, direction, priority, rules)| {
            let side = if direction == "egress" { "to" } else { "from" };
            let rules: Vec<String> = rules
                .iter()
                .map(|(action, peer, ports)| format!("{{action: {action}, {side}: [{{{peer}}}]{ports}}}"))
                .collect();
            format!(
                "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: pNUMBER}}\n\
                 spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, {direction}: [{}]}}\n",
                rules.join(", ")
            )
        },
    )
}

fn firewall() -> impl Strategy<Value = String> {
    let peer = select(vec![
        "networks: [203.0.113.0/24]",
        "nodes: {}",
        "nodes: {selector: {matchLabels: {pool: a}}}",
        "apiServer: {}",
        "external: {}",
        "domainNames: [api.example.com]",
    ]);
    let ports = select(vec![
        "",
        ", protocols: [{tcp: {destinationPort: {number: 443}}}]",
        ", protocols: [{icmp: {}}]",
    ]);
    let rule = (select(vec!["Allow", "Deny"]), peer, ports);
    (0..2_u32, vec(rule, 1..4)).prop_map(|(priority, rules)| {
        let rules: Vec<String> = rules
            .iter()
            .map(|(action, peer, ports)| format!("{{action: {action}, to: [{{{peer}}}]{ports}}}"))
            .collect();
        format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: pNUMBER}}\n\
             spec: {{priority: {priority}, services: {{exposure: Ignore}}, rules: [{}]}}\n",
            rules.join(", ")
        )
    })
}

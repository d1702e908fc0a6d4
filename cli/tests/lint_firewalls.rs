//! What `egret lint` finds about ClusterEgressFirewalls: DNS that is taken from pods, Services that lead to what is
//! denied, and what is said of mistakes in them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{Invocation, pod};

fn lint(test: &str, manifests: &str, options: &[&str]) -> Vec<Value> {
    let asked = Invocation::of(&format!("lint-firewalls-{test}")).file("all.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["lint", "-o", "json", "--manifests"])
        .arg(asked.folder().join("manifests"))
        .args(options);
    let answered = invocation::run(command, "");
    assert_ne!(answered.status, Some(2), "{}", answered.stderr);
    answered.rows()
}

fn word<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or("-")
}

/// Code, object and field of what is found.
fn found(test: &str, manifests: &str, options: &[&str]) -> Vec<String> {
    let place = |row: &Value| {
        let [code, object, field] = ["code", "object", "field"].map(|key| word(row, key));
        format!("{code} {object} {field}")
    };
    lint(test, manifests, options).iter().map(place).collect()
}

fn firewall(name: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: {name}}}\nspec: {{rules: [{rules}]}}\n"
    )
}

const NODES: &str = "---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: n1}
addresses: [{ip: 192.0.2.1}]
";

const NODE_LOCAL: &str = "169.254.20.10";

#[test]
fn a_firewall_that_takes_dns_from_pods_is_found_wherever_dns_is_said_to_be() {
    let pods = NODES.to_owned() + &pod("a/web", "", &["10.0.0.1"]) + &pod("a/db", "", &["10.0.0.2"]);
    let allow = "{action: Allow, to: [{networks: [169.254.20.10/32]}], protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]}, ";
    for (place, peer) in ["external", "nodes"].into_iter().enumerate() {
        for option in ["--dns", "--dns-address"] {
            let test = format!("dns-{place}{option}");
            let deny = format!("{{action: Deny, to: [{{{peer}: {{}}}}]}}");
            let rows = lint(
                &test,
                &(pods.clone() + &firewall("f", &deny)),
                &[option, NODE_LOCAL],
            );
            let [row] = rows.as_slice() else {
                panic!("{test}: {rows:?}");
            };
            assert_eq!(
                (word(row, "code"), word(row, "object"), word(row, "field")),
                ("EG1012", "ClusterEgressFirewall/f", "spec.rules[0]"),
                "{test}"
            );
            assert_eq!(
                word(row, "found"),
                "a/db and 1 other pod may not ask the DNS server 169.254.20.10 over UDP and TCP"
            );
            let mended = pods.clone() + &firewall("f", &(allow.to_owned() + &deny));
            assert!(found(&format!("{test}-allowed"), &mended, &[option, NODE_LOCAL]).is_empty());
        }
    }
}

#[test]
fn a_firewall_is_not_blamed_where_one_server_can_be_asked() {
    let manifests = pod("a/web", "", &["10.0.0.1"])
        + &pod("kube-system/dns", "k8s-app: kube-dns", &["10.0.0.3"])
        + &firewall("f", "{action: Deny, to: [{external: {}}]}");
    assert!(found("dns-pod", &manifests, &[]).is_empty());
    let options = ["--dns", "192.0.2.53", "--dns", "10.0.0.3"];
    assert!(found("dns-two", &manifests, &options).is_empty());
    assert_eq!(
        found("dns-none", &manifests, &options[..2]),
        ["EG1012 ClusterEgressFirewall/f spec.rules[0]"]
    );
}

#[test]
fn a_service_that_leads_to_what_a_firewall_denies_is_found() {
    let slice = |address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: sly, namespace: a}}\nspec: {{clusterIP: 10.96.0.7, ports: [{{port: 80}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: sly-1, namespace: a, labels: {{kubernetes.io/service-name: sly}}}}\n\
             addressType: IPv4\nendpoints: [{{addresses: [{address}]}}]\nports: [{{port: 8080}}]\n"
        )
    };
    let deny = firewall("f", "{action: Deny, to: [{networks: [169.254.169.254/32]}]}");
    let ignoring = deny.replace("spec: {", "spec: {services: {exposure: Ignore}, ");
    let web = pod("a/web", "", &["10.0.0.1"]);
    for (test, firewall) in [("service", &deny), ("service-ignoring", &ignoring)] {
        let rows = lint(test, &(slice("169.254.169.254") + firewall + &web), &[]);
        let [row] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        assert_eq!(
            (word(row, "code"), word(row, "object")),
            ("EG1013", "Service/a/sly")
        );
        assert_eq!(
            word(row, "found"),
            "its endpoint 169.254.169.254 port 8080 is denied to pods by rule 0 of ClusterEgressFirewall/f"
        );
        assert_eq!(row["line"], 2, "where the Service is");
    }
    assert!(found("service-well", &(slice("198.51.100.1") + &deny + &web), &[]).is_empty());
    assert!(found("service-pod", &(slice("10.0.0.1") + &deny + &web), &[]).is_empty());
}

/// What is accepted at a place and what to do about it say the same.
#[test]
fn the_fix_of_a_mistake_offers_nothing_that_is_not_accepted() {
    let of_2016 = |protocol: &str| {
        format!(
            "---\napiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: a}}\n\
             spec: {{podSelector: {{}}, ingress: [{{ports: [{{protocol: {protocol}, port: 80}}]}}]}}\n"
        )
    };
    for (test, manifests, code, accepted, fix) in [
        (
            "sctp",
            of_2016("SCTP"),
            "EG0204",
            "accepted: TCP or UDP;",
            "in the form of 2016 (extensions/v1beta1) TCP or UDP",
        ),
        (
            "gre",
            of_2016("GRE"),
            "EG0204",
            "accepted: TCP or UDP;",
            "in the form of 2016 (extensions/v1beta1) TCP or UDP",
        ),
        (
            "pass",
            firewall("f", "{action: Pass, to: [{external: {}}]}"),
            "EG0112",
            "accepted: Allow or Deny;",
            "ClusterEgressFirewall Allow and Deny",
        ),
        (
            "stars",
            firewall("f", "{action: Allow, to: [{domainNames: [\"**.example.com\"]}]}"),
            "EG0401",
            "\"*.\" once, which covers one label and several",
            "behind \"*.\", which stands for one label or several",
        ),
        (
            "boolean",
            pod("a/web", "", &["10.0.0.1"])
                + &invocation::network_policy("a/p", "{podSelector: {matchLabels: {debug: on}}}"),
            "EG0008",
            "accepted: \"on\";",
            "on and off are booleans in YAML",
        ),
    ] {
        let rows = lint(test, &manifests, &[]);
        let row = rows.iter().find(|row| word(row, "code") == code);
        let row = row.unwrap_or_else(|| panic!("{test}: {rows:?}"));
        assert!(word(row, "found").contains(accepted), "{test}: {row}");
        assert!(word(row, "fix").contains(fix), "{test}: {row}");
    }
}

#[test]
fn an_unknown_subject_hides_no_other_mistake() {
    let manifests = firewall("f", "{action: Pass, to: [{networks: [10.0.0.0/33]}]}")
        .replace("spec: {", "spec: {subject: {namespaces: {}}, ");
    assert_eq!(
        found("subject", &manifests, &[]),
        [
            "EG0103 ClusterEgressFirewall/f spec.subject",
            "EG0112 ClusterEgressFirewall/f spec.rules[0].action",
            "EG0301 ClusterEgressFirewall/f spec.rules[0].to[0].networks[0]",
        ]
    );
}

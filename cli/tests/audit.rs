//! Policies in audit: every command takes them for what they are, which is not in force.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

mod invocation;

use std::process::Command;

use invocation::{Invocation, ProgramOutput, network_policy, pod, words};
use serde_json::{Value, json};

const TRIED: &str = "annotations: {policy.egret.dev/enforcement: audit}";

fn pods() -> String {
    pod("a/web", "app: web", &["10.0.0.1"]) + &pod("a/db", "app: db", &["10.0.0.2"])
}

/// Nobody may reach the database; with these metadata besides the name.
fn closed(metadata: &str) -> String {
    network_policy(
        "a/closed",
        "{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}",
    )
    .replace("name: closed", &format!("name: closed, {metadata}"))
}

fn namespace(metadata: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: a, {metadata}}}\n")
}

fn ask(test: &str, manifests: &str) -> Invocation {
    Invocation::of(&format!("audit-{test}")).file("all.yaml", manifests)
}

fn egret(subcommand: &str, asked: &Invocation, options: &[&str]) -> ProgramOutput {
    let manifests = asked.folder().join("manifests");
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .arg(subcommand)
        .arg("--manifests")
        .arg(&manifests)
        .args(options);
    if subcommand == "diff" {
        command.arg("--against").arg(&manifests);
    }
    invocation::run(command, "")
}

fn tried_rows() -> [(&'static str, String); 3] {
    [
        ("policy", pods() + &closed(TRIED)),
        ("namespace", pods() + &namespace(TRIED) + &closed("labels: {}")),
        ("both", pods() + &namespace(TRIED) + &closed(TRIED)),
    ]
}

#[test]
fn a_verdict_is_the_one_in_force_and_says_who_would_deny() {
    for (test, manifests) in tried_rows() {
        let row = &ask(test, &manifests).tcp("a/web", "a/db", 80).rows()[0];
        assert_eq!(words(row), "allow default default", "{test}");
        let would = json!({"tier": "np", "policy": null, "rule": null});
        assert_eq!(row["ingress"]["wouldDeny"], would, "{test}");
        assert_eq!(row["egress"]["wouldDeny"], Value::Null, "{test}");
    }
    let enforced = ask("enforced", &(pods() + &closed("labels: {}"))).tcp("a/web", "a/db", 80);
    let row = &enforced.rows()[0];
    assert_eq!(
        (words(row).as_str(), &row["ingress"]["wouldDeny"]),
        ("deny default np", &Value::Null)
    );
}

#[test]
fn a_policy_whose_annotation_is_not_understood_is_in_force_and_that_is_said() {
    let manifests = pods() + &closed("annotations: {policy.egret.dev/enforcement: Audit}");
    let row = &ask("invalid", &manifests).tcp("a/web", "a/db", 80).rows()[0];
    assert_eq!(words(row), "deny default np");
    assert_eq!(row["diagnostics"][0]["code"], "EG0126");
}

#[test]
fn an_explanation_names_what_is_tried_and_what_it_would_do() {
    for (test, manifests) in tried_rows() {
        let asked = ask(&format!("explain-{test}"), &manifests).tcp("a/web", "a/db", 80);
        let explanation = &asked.explanations()[0];
        let side = &explanation["connections"][0]["ingress"];
        assert_eq!(side["audit"], json!(["NetworkPolicy/a/closed"]), "{test}");
        assert_eq!(side["wouldDeny"]["tier"], "np", "{test}");
        let policies = side["tiers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tier| tier["policies"].as_array().unwrap().len());
        assert_eq!(policies.sum::<usize>(), 0, "{test}");
    }
}

/// What is in force is listed, and said what is not; `--as-enforced` lists the other.
#[test]
fn what_is_listed_is_in_force_and_can_be_asked_as_if_all_were() {
    for (test, manifests) in tried_rows() {
        let asked = ask(&format!("list-{test}"), &manifests);
        let to_db = |options: &[&str]| {
            let answered = egret("list", &asked, &[&["-o", "json"], options].concat());
            let rows = answered.rows();
            let is_there = rows
                .iter()
                .any(|row| row["from"]["workload"] == "a/web" && row["to"]["workload"] == "a/db");
            (is_there, answered.stderr.contains("in audit, and not in force"))
        };
        assert_eq!(to_db(&[]), (true, true), "{test}");
        assert_eq!(to_db(&["--as-enforced"]), (false, false), "{test}");
        assert_eq!(egret("diff", &asked, &[]).status, Some(0), "{test}");
        assert_eq!(
            egret("diff", &asked, &["--as-enforced"]).status,
            Some(1),
            "{test}"
        );
    }
}

#[test]
fn a_firewall_in_audit_is_not_asked_of_clients_outside() {
    let firewall = |metadata: &str| {
        format!(
            "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: db, {metadata}}}\n\
             spec: {{services: {{exposure: Reject}}, rules: [{{name: db, action: Deny, to: [{{networks: [192.0.2.0/24]}}]}}]}}\n"
        )
    };
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: out, namespace: a}\n\
                   spec: {type: LoadBalancer, clusterIP: 10.96.0.7, externalIPs: [198.51.100.7], ports: [{port: 80}]}\n\
                   ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                   metadata: {name: out-1, namespace: a, labels: {kubernetes.io/service-name: out}}\n\
                   addressType: IPv4\nendpoints: [{addresses: [192.0.2.7]}]\nports: [{port: 8080}]\n";
    for (test, metadata, verdict) in [("tried", TRIED, "allow"), ("in-force", "labels: {}", "deny")] {
        let manifests = pods() + service + &firewall(metadata);
        let asked = ask(&format!("exposure-{test}"), &manifests);
        let row = &asked.tcp("198.51.100.99", "198.51.100.7", 80).rows()[0];
        assert_eq!(row["verdict"], verdict, "{test}: {row}");
    }
}

/// It stays in audit, and what it would do once it is in force is proved as well.
#[test]
fn a_policy_in_audit_is_converted_to_one_in_audit() {
    let tried = "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\n\
                 metadata: {name: tried, annotations: {policy.egret.dev/enforcement: audit}}\n\
                 spec:\n  priority: 5\n  subject: {namespaces: {}}\n  egress:\n  - {action: Deny, to: [{networks: [192.0.2.0/24]}]}\n";
    let asked = ask("convert", &(pods() + tried));
    let answered = egret("convert", &asked, &[]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    assert!(answered.stdout.contains("kind: ClusterNetworkPolicy"));
    assert!(
        answered.stdout.contains("policy.egret.dev/enforcement: audit"),
        "{}",
        answered.stdout
    );
    assert!(!answered.stderr.contains(" 0 connections"), "{}", answered.stderr);
}

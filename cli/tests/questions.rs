//! One question on the command line, nodes as ends, and moments after the records were learned.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{Invocation, ProgramOutput, cluster_policy, network_policy, pod};

const NODES: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.1}, {type: InternalIP, address: \"fd09::1\"}]}\n\
                     ---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.2}]}\n\
                     ---\napiVersion: v1\nkind: Node\nmetadata: {name: bare}\n";
const BY_NAME: &str = "egress: [{name: by-name, action: Accept, to: [{domainNames: [\"*.example.com\"]}]}, \
                       {name: rest, action: Deny, to: [{networks: [0.0.0.0/0]}]}]";

/// Asks on the command line.
fn question(folder: &Path, arguments: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["verdict", "-o", "json", "--manifests"])
        .arg(folder.join("manifests"));
    let records = folder.join("records.jsonl");
    if records.exists() {
        command.arg("--records").arg(records);
    }
    command.args(arguments);
    invocation::run(command, "")
}

fn shop(test: &str) -> Invocation {
    Invocation::of(test)
        .manifest(NODES)
        .manifest(&pod("shop/client", "app: client", &["10.0.0.1", "fd00::1"]))
        .manifest(&pod("shop/web", "app: web", &["10.0.0.2"]))
        .manifest(&network_policy(
            "shop/web",
            "{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}",
        ))
        .manifest(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
             spec: {selector: {app: web}, ports: [{port: 8080, targetPort: 80}]}\n",
        )
}

#[test]
fn the_exit_status_of_a_question_is_its_answer() {
    let asked = shop("one_question");
    for (arguments, status, verdict) in [
        ("--from shop/client --to shop/web --port 80", 0, "allow"),
        ("--from shop/client --to shop/web --port 81", 1, "deny"),
        (
            "--from shop/client --to shop/web --port 80 --protocol UDP",
            1,
            "deny",
        ),
        ("--from shop/client --to shop/web --protocol ICMP", 1, "deny"),
        ("--from shop/client --to service:shop/web --port 8080", 0, "allow"),
        ("--from 192.0.2.1 --to 10.0.0.2 --port 80", 0, "allow"),
        ("--from ip:192.0.2.1 --to pod:shop/web --port 443", 1, "deny"),
        ("--from node:n2 --to shop/web --port 443", 1, "deny"),
        ("--from node:n1 --to shop/web --port 443", 0, "allow"),
        ("--from shop/web --to fd00::1 --port 443", 2, "error"),
        ("--from shop/nobody --to shop/web --port 80", 2, "error"),
        (
            "--from shop/client --to node:n1 --port 22 --family IPv6",
            0,
            "allow",
        ),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let answered = question(asked.folder(), &arguments);
        let rows = answered.rows();
        assert_eq!(rows.len(), 1, "{arguments:?}: {}", answered.stderr);
        assert_eq!(rows[0]["verdict"], verdict, "{arguments:?}: {}", rows[0]);
        assert_eq!(answered.status, Some(status), "{arguments:?}");
    }
}

#[test]
fn a_question_that_is_none_names_the_option() {
    let asked = shop("bad_question");
    for (arguments, said) in [
        (
            "--from client --to shop/web --port 80",
            "egret: --from: \"client\" is no end",
        ),
        (
            "--from shop/client --to web --port 80",
            "egret: --to: \"web\" is no end",
        ),
        (
            "--from shop/client --to shop/web",
            "egret: --port: missing; a connection over TCP has one, from 1 to 65535",
        ),
        (
            "--from shop/client --to shop/web --port 80 --protocol GRE",
            "egret: --protocol: \"GRE\" is none of TCP, UDP, SCTP, ICMP",
        ),
        (
            "--from shop/client --to shop/web --port 80 --family v4",
            "egret: --family: \"v4\" is neither",
        ),
        (
            "--from service:shop/web --to shop/web --port 80",
            "egret: --from: a source is",
        ),
        ("--from shop/client", "error: "),
        (
            "--from shop/client --to shop/web --port 0",
            "error: invalid value '0' for '--port <PORT>': a number from 1 to 65535 is expected",
        ),
        ("--port 80", "error: "),
        ("--from shop/client --to shop/web --port 80 --probes -", "error: "),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let answered = question(asked.folder(), &arguments);
        assert_eq!(
            (answered.status, answered.stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        assert!(
            answered.stderr.starts_with(said),
            "{arguments:?}: {}",
            answered.stderr
        );
    }
}

fn words(rows: &[Value]) -> Vec<String> {
    rows.iter().map(invocation::words).collect()
}

#[test]
fn a_node_is_its_addresses() {
    let node = |name: &str| format!(r#"{{"node":"{name}"}}"#);
    let answered = shop("nodes")
        .manifest(&network_policy(
            "shop/client",
            "{podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress, Egress]}",
        ))
        .tcp(&node("n1"), "shop/client", 80)
        .tcp(&node("n2"), "shop/client", 80)
        .tcp("shop/client", &node("n1"), 80)
        .tcp("shop/client", &node("n2"), 80)
        .tcp(&node("n1"), &node("n2"), 80)
        .tcp("shop/client", &node("n3"), 80)
        .tcp("shop/client", &node("bare"), 80)
        .tcp(&node("n1"), r#"{"name":"api.example.com"}"#, 80)
        .answer();
    let rows = answered.rows();
    assert_eq!(
        words(&rows),
        [
            "allow none exempt",
            "deny none np",
            "allow np none",
            "deny np none",
            "allow none none",
            "error - -",
            "error - -",
            "error - -",
        ]
    );
    for (row, said) in [
        (5, "no node n3"),
        (6, "node bare has no address"),
        (7, "node n1 is no pod"),
    ] {
        assert!(
            rows[row]["reason"].as_str().unwrap().contains(said),
            "{}",
            rows[row]
        );
    }
    assert_eq!(answered.status, Some(2));
}

/// 30 s of time to live and the 30 s for which a node keeps every record longer.
#[test]
fn records_end_by_the_moment_that_is_asked_about() {
    let probe = |to: &str, at: &str| {
        format!(r#"{{"id":"x","from":"shop/client","to":{to},"protocol":"TCP","port":443,"at":{at}}}"#)
    };
    let address = r#"{"ip":"203.0.113.7"}"#;
    let name = r#"{"name":"api.example.com"}"#;
    let answered = shop("moments")
        .manifest(&cluster_policy("by-name", "Admin", BY_NAME))
        .record("shop/client", "api.example.com", "203.0.113.7")
        .probe(&probe(address, "0"))
        .probe(&probe(address, "59.9"))
        .probe(&probe(address, "60"))
        .probe(&probe(name, "59"))
        .probe(&probe(name, "61"))
        .answer();
    let rows = answered.rows();
    assert_eq!(
        words(&rows),
        [
            "allow admin none",
            "allow admin none",
            "deny admin none",
            "allow admin none",
            "error - -"
        ]
    );
    let reason = rows[4]["reason"].as_str().unwrap();
    assert!(
        reason.contains("every record of shop/client for api.example.com is over 61 s after it was learned"),
        "{reason}"
    );
}

#[test]
fn a_name_may_be_asked_about_on_the_command_line() {
    let asked = shop("name_question").manifest(&cluster_policy("by-name", "Admin", BY_NAME));
    let record = r#"{"pod":"shop/client","name":"api.example.com","address":"203.0.113.7","ttl":30}"#;
    fs::write(asked.folder().join("records.jsonl"), record).unwrap();
    let arguments = [
        "--from",
        "shop/client",
        "--to",
        "api.example.com",
        "--port",
        "443",
    ];
    let answered = question(asked.folder(), &arguments);
    assert_eq!(answered.rows()[0]["addresses"][0]["address"], "203.0.113.7");
    assert_eq!(answered.status, Some(0));
    let late = [&arguments[..], &["--at", "61"]].concat();
    assert_eq!(question(asked.folder(), &late).status, Some(2));
}

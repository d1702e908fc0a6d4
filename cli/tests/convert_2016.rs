//! The form of 2016 as NetworkPolicies of `networking.k8s.io/v1`, asked of the built program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{Invocation, ProgramOutput, network_policy, pod};

fn convert(test: &str, manifests: &str, options: &[&str]) -> ProgramOutput {
    let asked = Invocation::of(&format!("convert-2016-{test}")).file("all.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["convert", "--manifests"])
        .arg(asked.folder().join("manifests"))
        .args(options);
    invocation::run(command, "")
}

const OLD: &str = r#"# Closed by default.
apiVersion: v1
kind: Namespace
metadata:
  name: old
  labels: {team: a}
  annotations:
    # since 2016
    net.beta.kubernetes.io/network-policy: |
      {"ingress": {"isolation": "DefaultDeny"}}
"#;

fn object(key: &str, spec: &str) -> String {
    network_policy(key, spec).replace("networking.k8s.io/v1", "extensions/v1beta1")
}

#[track_caller]
fn refused(test: &str, manifests: &str, options: &[&str], said: &str) {
    let answered = convert(test, manifests, options);
    assert_eq!(
        (answered.status, answered.stdout.as_str()),
        (Some(2), ""),
        "{test}"
    );
    assert!(answered.stderr.contains(said), "{test}: {}", answered.stderr);
}

#[test]
fn the_annotation_and_its_objects_become_network_policies() {
    let redis = "---\n# Who may use redis.\napiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: redis, namespace: old}\n\
                 spec:\n  podSelector: {matchLabels: {app: redis}}\n  ingress:\n  - from: [{podSelector: {matchLabels: {app: web}}}] # of old\n    ports: [{port: 6379}]\n\
                 \x20 - from: []\n    ports: [{port: 6380}]\n  - ports: [{protocol: UDP, port: 6381}]\n";
    let answered = convert("all", &(OLD.to_owned() + redis), &[]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    let expected = r#"# Closed by default.
apiVersion: v1
kind: Namespace
metadata:
  name: old
  labels: {team: a}
---
# since 2016
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: default-deny
  namespace: old
spec:
  podSelector: {}
  policyTypes: [Ingress]
---
# Who may use redis.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: redis, namespace: old}
spec:
  podSelector: {matchLabels: {app: redis}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}] # of old
    ports: [{port: 6379}]
  - ports: [{protocol: UDP, port: 6381}]
"#;
    assert_eq!(answered.stdout, expected);
    for said in [
        "Namespace/old (",
        "kubectl annotate namespace old net.beta.kubernetes.io/network-policy-",
        "spec.ingress[1] is left out: with an empty from it matches nothing",
        "converted: 2 in the form of 2016 to 3 of kinds Namespace and NetworkPolicy",
        "proved: ",
    ] {
        assert!(answered.stderr.contains(said), "{said}: {}", answered.stderr);
    }
    let again = convert("again", &answered.stdout, &[]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(0), ""));
    assert!(again.stderr.contains("nothing to convert"), "{}", again.stderr);
}

#[test]
fn an_object_that_has_no_effect_does_not_begin_to_isolate() {
    let manifests = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {net.beta.kubernetes.io/network-policy: '{}'}}\n"
        .to_owned()
        + &object("shop/nobody", "{podSelector: {}, ingress: []}")
        + &object("tools/nobody", "{podSelector: {}}");
    let answered = convert("no-effect", &manifests, &[]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    assert_eq!(
        answered.stdout,
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
    );
    for said in [
        "what it has of the form of 2016 isolates nobody, and is left out",
        "as Namespace shop is not isolated by the annotation",
        "as Namespace tools is not isolated by the annotation",
    ] {
        assert!(answered.stderr.contains(said), "{said}: {}", answered.stderr);
    }
}

#[test]
fn what_no_namespace_asks_for_is_written_out() {
    let manifests = OLD.to_owned() + &object("old/p", "{}") + &object("old/q", "{ingress: [{from: []}]}");
    let answered = convert("defaults", &manifests, &["-o", "json"]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    let list: Value = serde_json::from_str(&answered.stdout).unwrap();
    let spec = |index: usize| list["items"][index]["spec"].to_string();
    assert_eq!(spec(2), r#"{"podSelector":{},"policyTypes":["Ingress"]}"#);
    assert_eq!(
        spec(3),
        r#"{"ingress":[],"podSelector":{},"policyTypes":["Ingress"]}"#
    );
}

#[test]
fn the_name_of_the_isolation_is_one_that_nobody_has() {
    let deny = |name: &str| network_policy(&format!("old/{name}"), "{podSelector: {matchLabels: {app: x}}}");
    let answered = convert("name", &(OLD.to_owned() + &deny("default-deny")), &[]);
    assert!(
        answered.stdout.contains("name: default-deny-ingress"),
        "{}",
        answered.stderr
    );
    let both = OLD.to_owned() + &deny("default-deny") + &deny("default-deny-ingress");
    refused("names", &both, &[], "give one of them another name");
}

#[test]
fn what_is_not_understood_is_refused() {
    let with = |spec: &str| OLD.to_owned() + &object("old/p", spec);
    refused(
        "sctp",
        &with("{ingress: [{ports: [{protocol: SCTP}]}]}"),
        &[],
        "EG0204",
    );
    refused(
        "both",
        &with("{ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}"),
        &[],
        "EG0108",
    );
    let unknown = with("{policyTypes: [Egress], ingress: [{from: [{podSelector: {}}], port: [1]}]}");
    refused("unknown", &unknown, &[], "--as-stored reads and converts it");
    let stored = convert("stored", &unknown, &["--as-stored"]);
    assert_eq!(stored.status, Some(0), "{}", stored.stderr);
    assert!(
        stored.stdout.ends_with(
            "spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {}}]}]}\n"
        ),
        "{}",
        stored.stdout
    );
}

#[test]
fn with_all_everything_else_is_printed_as_it_is_written() {
    let manifests = OLD.to_owned()
        + &pod("old/web", "app: web", &["10.0.0.1"])
        + &network_policy("old/new", "{podSelector: {}}");
    let answered = convert("rest", &manifests, &["--all"]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    for kept in [
        "kind: Pod\n",
        "metadata: {name: new, namespace: old}\n",
        "name: default-deny\n",
    ] {
        assert!(answered.stdout.contains(kept), "{}", answered.stdout);
    }
    assert!(
        answered.stderr.contains("of the pod in the manifests and"),
        "{}",
        answered.stderr
    );
}

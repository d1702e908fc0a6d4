//! Connections to a port of a node at which a Service takes them: by the own node, by another one, from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::Value;

mod invocation;

use invocation::{Invocation, codes, network_policy, pod, words};

const NODES: &str = "---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: \"2001:db8::1\"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: \"2001:db8::2\"}]}
";

const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
";

/// Endpoints on both nodes, a client on the first.
fn cluster(test: &str) -> Invocation {
    let on_n2 = |pod: String| pod.replace("nodeName: n1", "nodeName: n2");
    let pods = pod("shop/client", "app: client", &["10.0.0.1"])
        + &pod("shop/web-1", "app: web", &["10.0.0.11"])
        + &on_n2(pod("shop/web-2", "app: web", &["10.0.0.12"]));
    Invocation::of(test).manifest(&(NODES.to_owned() + SERVICE + &pods))
}

fn from_client(more: &str) -> String {
    network_policy(
        "shop/web",
        &format!(
            "{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: client}}}}}}{more}], ports: [{{port: 8080}}]}}]}}"
        ),
    )
}

const N1: &str = r#"{"node":"n1"}"#;
const N2: &str = r#"{"node":"n2"}"#;

fn endpoints(row: &Value) -> Vec<(&str, &str)> {
    let parts = row["endpoints"].as_array().unwrap().iter();
    parts
        .map(|part| (part["pod"].as_str().unwrap(), part["verdict"].as_str().unwrap()))
        .collect()
}

#[test]
fn a_node_by_name_and_by_address_is_what_its_port_leads_to() {
    let rows = cluster("node_port_own")
        .manifest(&from_client(""))
        .tcp("shop/client", N1, 30080)
        .tcp("shop/client", "192.0.2.1", 30080)
        .tcp("shop/client", N1, 30081)
        .rows();
    for row in &rows[..2] {
        assert_eq!(words(row), "allow default np");
        assert_eq!(endpoints(row), [("shop/web-1", "allow"), ("shop/web-2", "allow")]);
        assert_eq!(codes(row), ["service-address"]);
    }
    assert_eq!(words(&rows[2]), "allow default none", "no Service is there");
    assert_eq!(rows[2]["endpoints"], Value::Null);
}

#[test]
fn an_endpoint_that_is_not_on_the_node_that_takes_the_connection_sees_that_node() {
    let asked = |test: &str, policy: &str| {
        cluster(test)
            .manifest(policy)
            .tcp("shop/client", N2, 30080)
            .tcp("shop/client", "192.0.2.2", 30080)
            .tcp("198.51.100.9", N2, 30080)
            .tcp(N1, N1, 30080)
            .rows()
    };
    let masked = asked("node_port_masked", &from_client(""));
    for row in &masked[..2] {
        assert_eq!(words(row), "deny default np");
        assert_eq!(endpoints(row), [("shop/web-1", "deny"), ("shop/web-2", "allow")]);
        let note = row["diagnostics"][0]["message"].as_str().unwrap();
        assert!(note.contains("see 192.0.2.2"), "{note}");
    }
    assert_eq!(
        endpoints(&masked[2]),
        [("shop/web-1", "deny"), ("shop/web-2", "deny")]
    );
    assert_eq!(
        endpoints(&masked[3]),
        [("shop/web-1", "allow"), ("shop/web-2", "deny")],
        "the own node is exempt, at another it is a client"
    );
    let named = asked(
        "node_port_named",
        &from_client(", {ipBlock: {cidr: 192.0.2.2/32}}"),
    );
    assert_eq!(words(&named[0]), "allow default np");
    assert_eq!(
        endpoints(&named[2]),
        [("shop/web-1", "allow"), ("shop/web-2", "deny")]
    );
}

#[test]
fn the_policies_of_the_source_see_another_node_and_its_port() {
    let egress = network_policy(
        "shop/client",
        "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.2/32}}], ports: [{port: 30080}]}]}",
    );
    let asked = || {
        cluster("node_port_egress")
            .manifest(&egress)
            .tcp("shop/client", N2, 30080)
            .tcp("shop/client", N1, 30080)
    };
    let rows = asked().rows();
    assert_eq!(words(&rows[0]), "allow np default");
    assert_eq!(
        words(&rows[1]),
        "deny np default",
        "the own node has rewritten it: {}",
        rows[1]
    );
    let explained = asked().explanations();
    let egress = &explained[0]["connections"][0]["egress"];
    assert_eq!(
        (egress["peer"].as_str(), egress["port"].as_u64()),
        (Some("192.0.2.2"), Some(30080))
    );
    let ingress = &explained[0]["connections"][0]["ingress"];
    assert_eq!(
        (ingress["peer"].as_str(), ingress["port"].as_u64()),
        (Some("192.0.2.2"), Some(8080))
    );
    for connection in explained[0]["connections"].as_array().unwrap() {
        invocation::leads_to_its_end(&connection["egress"]).unwrap();
    }
}

#[test]
fn an_address_of_a_node_leads_to_endpoints_of_its_family() {
    let rows = cluster("node_port_family")
        .manifest(&pod("shop/both", "app: both", &["10.0.0.2", "fd00::2"]))
        .manifest(&pod("shop/web-3", "app: web", &["10.0.0.13", "fd00::13"]))
        .tcp("shop/both", "2001:db8::1", 30080)
        .rows();
    assert_eq!(endpoints(&rows[0]), [("shop/web-3", "allow")]);
    assert_eq!(rows[0]["endpoints"][0]["address"], "fd00::13");
}

//! Clients outside, and Services that lead to what a ClusterEgressFirewall denies (R-2, R-9, R-12, R-13, E-6).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

mod invocation;

use invocation::{Invocation, pod, words};

const NODE: &str = "---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
";

/// A Service without selector; whoever may write endpoints sends it to the metadata of the cloud.
const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: sly, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.7, externalIPs: [198.51.100.7], ports: [{port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.8}]}}
";
const SLICE: &str = "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sly-1, namespace: shop, labels: {kubernetes.io/service-name: sly}}
addressType: IPv4
endpoints: [{addresses: [169.254.169.254]}]
ports: [{port: 8080}]
";
const ENDPOINTS: &str = "---
apiVersion: v1
kind: Endpoints
metadata: {name: sly, namespace: shop}
subsets: [{addresses: [{ip: 169.254.169.254}], ports: [{port: 8080}]}]
";
const OUTSIDE: &str = "198.51.100.99";

fn metadata(services: &str) -> String {
    format!(
        "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: metadata}}\n\
         spec: {{{services}rules: [{{name: cloud, action: Deny, to: [{{networks: [169.254.169.254/32]}}]}}]}}\n"
    )
}

fn cluster(test: &str, endpoints: &str, services: &str) -> Invocation {
    Invocation::of(test)
        .manifest(&(NODE.to_owned() + &pod("shop/web", "app: web", &["10.0.0.1"])))
        .manifest(&(SERVICE.to_owned() + endpoints))
        .manifest(&metadata(services))
}

/// Each way to the Service, from a pod, from outside and from a node.
fn asking(asked: Invocation) -> Invocation {
    let service = r#"{"service":"shop/sly"}"#;
    asked
        .tcp("shop/web", service, 80)
        .tcp("shop/web", "198.51.100.7", 80)
        .tcp(OUTSIDE, service, 80)
        .tcp(OUTSIDE, "198.51.100.7", 80)
        .tcp(OUTSIDE, "198.51.100.8", 80)
        .tcp(OUTSIDE, "192.0.2.2", 30080)
        .tcp(OUTSIDE, "192.0.2.2", 80)
        .tcp(OUTSIDE, "169.254.169.254", 8080)
        .tcp("192.0.2.1", service, 80)
}

fn verdicts(asked: Invocation) -> Vec<String> {
    asking(asked).rows().iter().map(words).collect()
}

#[test]
fn a_client_outside_is_refused_where_a_service_leads_to_what_is_denied() {
    for (place, endpoints) in [SLICE, ENDPOINTS].into_iter().enumerate() {
        let seen = verdicts(cluster(&format!("exposure_reject_{place}"), endpoints, ""));
        assert_eq!(
            seen,
            [
                "deny cef none",
                "deny cef none",
                "deny cef none",
                "deny cef none",
                "deny cef none",
                "deny cef none",
                "allow none none",
                "allow none none",
                "allow none none",
            ],
            "a pod, then somebody outside by every address of the Service; then outside and directly, and a node"
        );
    }
}

#[test]
fn an_object_that_ignores_exposure_is_about_pods_alone() {
    let seen = verdicts(cluster(
        "exposure_ignore",
        SLICE,
        "services: {exposure: Ignore}, ",
    ));
    let allowed = std::iter::repeat_n("allow none none", 7);
    let expected: Vec<&str> = ["deny cef none"; 2].into_iter().chain(allowed).collect();
    assert_eq!(seen, expected);
}

/// A pod meets the node port at its own node; what it sends to another comes to that node from outside (E-5).
#[test]
fn a_node_port_leads_a_pod_on_at_its_own_node_and_at_another() {
    let on_node = |name: &str, node: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{nodeName: {node}}}\n\
             status: {{phase: Running, podIPs: [{{ip: 10.0.0.{}}}]}}\n",
            if node == "n1" { 11 } else { 12 }
        )
    };
    let rows = cluster("exposure_node_port", SLICE, "")
        .manifest(&(on_node("here", "n1") + &on_node("there", "n2")))
        .tcp("shop/here", "192.0.2.1", 30080)
        .tcp("shop/there", "192.0.2.1", 30080)
        .rows();
    let seen: Vec<String> = rows.iter().map(words).collect();
    assert_eq!(
        seen, ["deny cef none"; 2],
        "by the own node, and by another as anybody outside"
    );
}

/// What is wrong with an object is said where it is asked, and it rejects.
#[test]
fn a_row_carries_what_is_wrong_with_the_objects_that_were_asked() {
    let rows = cluster("exposure_notes", SLICE, "services: {exposure: Hide}, ")
        .tcp(OUTSIDE, r#"{"service":"shop/sly"}"#, 80)
        .rows();
    assert_eq!(words(&rows[0]), "deny cef none");
    assert_eq!(invocation::codes(&rows[0]), ["EG0122"]);
    assert_eq!(rows[0]["egress"]["policy"], "ClusterEgressFirewall/metadata");
    assert_eq!(rows[0]["egress"]["ruleName"], "cloud");
}

#[test]
fn explain_says_why_and_what_to_change() {
    let explanations = cluster("exposure_explained", SLICE, "")
        .tcp(OUTSIDE, r#"{"service":"shop/sly"}"#, 80)
        .explanations();
    let way = &explanations[0]["connections"][0];
    assert_eq!(
        way["egress"]["because"],
        "a Service leads 198.51.100.99 there from outside, and rule 0 (cloud) of ClusterEgressFirewall/metadata denies it"
    );
    let how = way["change"]["how"][0].as_str().unwrap();
    assert!(
        how.contains("services: {exposure: Ignore} in ClusterEgressFirewall/metadata"),
        "{how}"
    );
}

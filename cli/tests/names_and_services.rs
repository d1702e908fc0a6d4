//! Destinations that stand for several: names, and Services.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::{Value, json};

mod invocation;

use invocation::{Invocation, cluster_policy, codes, network_policy, pod};

const BY_NAME: &str = "egress: [{name: by-name, action: Accept, to: [{domainNames: [api.example.com]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}, \
                       {action: Accept, to: [{networks: [203.0.113.64/26]}]}, {action: Deny, to: [{networks: [0.0.0.0/0, \"::/0\"]}]}]";
const API: &str = r#"{"name":"API.example.com."}"#;

/// Addresses and verdicts of the parts of a row.
fn parts<'a>(row: &'a Value, list: &str) -> Vec<(&'a str, &'a str)> {
    let words = |part: &'a Value| {
        (
            part["address"].as_str().unwrap(),
            part["verdict"].as_str().unwrap(),
        )
    };
    row[list].as_array().unwrap().iter().map(words).collect()
}

#[test]
fn a_name_is_every_address_that_this_pod_was_told_for_it() {
    let answered = Invocation::of("name")
        .manifest(&(pod("a/web", "app: web", &["10.0.0.1", "fd00::1"]) + &pod("a/db", "app: db", &["10.0.0.2"])))
        .manifest(&cluster_policy("by-name", "Admin", BY_NAME))
        .record("a/web", "api.example.com", "203.0.113.7")
        .record("a/web", "api.example.com", "2001:db8::7")
        .record("a/web", "www.example.com", "203.0.113.9")
        .record("a/db", "api.example.com", "203.0.113.8")
        .record("a/db", "api.example.com", "2001:db8::8")
        .tcp("a/web", API, 443)
        .tcp("a/web", API, 80)
        .tcp("a/web", r#"{"name":"www.example.com"}"#, 443)
        .tcp("10.0.0.2", API, 443)
        .tcp("a/web", "203.0.113.8", 443)
        .tcp("a/db", "203.0.113.8", 443)
        .tcp("a/db", r#"{"name":"www.example.com"}"#, 443)
        .probe(r#"{"id":"v6","from":"a/web","to":{"name":"api.example.com"},"protocol":"TCP","port":443,"family":"IPv6"}"#)
        .answer();
    let rows = answered.rows();
    let words: Vec<String> = rows.iter().map(invocation::words).collect();
    assert_eq!(
        words,
        [
            "allow admin none",
            "deny admin none",
            "deny admin none",
            "allow admin none",
            "deny admin none",
            "allow admin none",
            "error - -",
            "allow admin none",
        ]
    );
    assert_eq!(
        parts(&rows[0], "addresses"),
        [("203.0.113.7", "allow"), ("2001:db8::7", "allow")]
    );
    assert_eq!(
        parts(&rows[3], "addresses"),
        [("203.0.113.8", "allow"), ("2001:db8::8", "error")],
        "a pod without IPv6 has no use for an IPv6 address"
    );
    assert_eq!(parts(&rows[7], "addresses"), [("2001:db8::7", "allow")]);
}

#[test]
fn a_name_is_allowed_only_if_all_its_addresses_are() {
    let rows = Invocation::of("name_all")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&cluster_policy("by-name", "Admin", BY_NAME))
        .record("a/web", "other.example.com", "203.0.113.65")
        .record("a/web", "other.example.com", "203.0.113.7")
        .tcp("a/web", r#"{"name":"other.example.com"}"#, 443)
        .rows();
    assert_eq!(rows[0]["verdict"], "deny");
    assert_eq!(
        parts(&rows[0], "addresses"),
        [("203.0.113.7", "deny"), ("203.0.113.65", "allow")]
    );
    assert_eq!(
        rows[0]["egress"]["rule"], 2,
        "the first that is denied speaks for all"
    );
}

#[test]
fn records_of_nobody_are_reported_and_not_used() {
    let answered = Invocation::of("records_of_nobody")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .record("a/gone", "api.example.com", "203.0.113.7")
        .tcp("a/web", "203.0.113.7", 443)
        .answer();
    assert_eq!(answered.status, Some(0));
    assert!(
        answered.stderr.contains("records of a/gone are not used"),
        "{}",
        answered.stderr
    );
}

#[test]
fn a_name_with_more_than_a_hundred_addresses_has_them_all() {
    let mut asked = Invocation::of("name_many")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&cluster_policy("by-name", "Admin", BY_NAME));
    for last in 1..=120 {
        asked = asked.record("a/web", "api.example.com", &format!("198.51.100.{last}"));
    }
    let rows = asked.tcp("a/web", API, 443).rows();
    assert_eq!(rows[0]["verdict"], "allow");
    assert_eq!(rows[0]["addresses"].as_array().unwrap().len(), 120);
}

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: a}\n\
                       spec: {selector: {app: web}, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, targetPort: http}, {name: dns, protocol: UDP, port: 53}]}\n";
const TO_WEB: &str = r#"{"service":"a/web"}"#;

fn serving(key: &str, labels: &str, address: &str, port: u16) -> String {
    let ports = format!("containers: [{{name: c, ports: [{{name: http, containerPort: {port}}}]}}]");
    pod(key, labels, &[address]).replace("containers: []", &ports)
}

fn three_servers() -> String {
    serving("a/one", "app: web", "10.0.0.1", 8080)
        + &serving("a/two", "app: web", "10.0.0.2", 8081)
        + &serving("a/else", "app: else", "10.0.0.3", 8080)
        + &serving("b/one", "app: web", "10.0.0.4", 8080)
        + &pod("a/client", "app: client", &["10.0.0.9"])
}

#[test]
fn a_service_is_the_ready_pods_of_its_selector_each_at_its_own_port() {
    let unready = serving("a/unready", "app: web", "10.0.0.5", 8080).replace(
        "phase: Running",
        "phase: Running, conditions: [{type: Ready, status: \"False\"}]",
    );
    let pending = serving("a/pending", "app: web", "10.0.0.6", 8080).replace("Running", "Pending");
    let ending = serving("a/ending", "app: web", "10.0.0.7", 8080).replace(
        "namespace: a,",
        "namespace: a, deletionTimestamp: \"2026-01-01T00:00:00Z\",",
    );
    let nameless = pod("a/nameless", "app: web", &["10.0.0.8"]);
    let rows = Invocation::of("service_selector")
        .manifest(&(three_servers() + &unready + &pending + &ending + &nameless + SERVICE))
        .manifest(&network_policy(
            "a/servers",
            "{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 8080}]}]}",
        ))
        .tcp("a/client", TO_WEB, 80)
        .rows();
    let row = &rows[0];
    assert_eq!(
        parts(row, "endpoints"),
        [("10.0.0.1", "allow"), ("10.0.0.2", "deny")]
    );
    let ports: Vec<&Value> = row["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["port"])
        .collect();
    assert_eq!(ports, [8080, 8081]);
    assert_eq!(row["endpoints"][1]["pod"], "a/two");
    assert_eq!(row["verdict"], "deny", "allowed only if every endpoint is");
    assert_eq!(
        row["ingress"],
        json!({"verdict": "deny", "tier": "np", "policy": null, "rule": null})
    );
}

#[test]
fn a_services_endpoint_slices_count_more_than_its_selector() {
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                 metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}}\n\
                 ports: [{name: http, port: 9090, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}]\n\
                 endpoints: [{addresses: [10.0.0.3]}, {addresses: [192.0.2.7], conditions: {ready: true}}, {addresses: [192.0.2.8], conditions: {ready: false}}]\n";
    let rows = Invocation::of("service_slices")
        .manifest(&(three_servers() + SERVICE + slice))
        .tcp("a/client", TO_WEB, 80)
        .rows();
    assert_eq!(
        parts(&rows[0], "endpoints"),
        [("10.0.0.3", "allow"), ("192.0.2.7", "allow")]
    );
    assert_eq!(rows[0]["endpoints"][0]["port"], 9090);
    assert_eq!(rows[0]["endpoints"][0]["pod"], "a/else");
    assert_eq!(rows[0]["endpoints"][1]["pod"], Value::Null);
}

#[test]
fn a_service_without_endpoints_is_denied() {
    let rows = Invocation::of("service_empty")
        .manifest(&(pod("a/client", "app: client", &["10.0.0.9"]) + SERVICE))
        .tcp("a/client", TO_WEB, 80)
        .rows();
    assert_eq!(
        (&rows[0]["verdict"], &rows[0]["reason"]),
        (&json!("deny"), &json!("no endpoints"))
    );
    assert_eq!(rows[0]["endpoints"], json!([]));
}

#[test]
fn the_address_of_a_service_is_its_endpoints_and_nothing_else_of_it_can_be_judged() {
    let icmp = r#"{"id":"icmp","from":"a/client","to":{"service":"a/web"},"protocol":"ICMP"}"#;
    let answered = Invocation::of("service_address")
        .manifest(&(three_servers() + SERVICE))
        .tcp("a/client", "10.96.0.10", 80)
        .tcp("a/client", TO_WEB, 8080)
        .probe(icmp)
        .answer();
    let rows = answered.rows();
    assert_eq!(
        parts(&rows[0], "endpoints"),
        [("10.0.0.1", "allow"), ("10.0.0.2", "allow")]
    );
    assert_eq!(codes(&rows[0]), ["service-address"]);
    assert_eq!(
        rows[1]["reason"],
        "service a/web has no port TCP/8080; it has TCP/80, UDP/53"
    );
    assert_eq!(
        rows[2]["reason"],
        "a Service forwards TCP, UDP and SCTP, not ICMP"
    );
    assert_eq!(answered.status, Some(2));
}

#[test]
fn a_pod_that_meets_itself_behind_a_service_is_judged_by_cluster_wide_policies_alone() {
    let alone = serving("a/one", "app: web", "10.0.0.1", 8080) + SERVICE;
    let isolated = network_policy("a/isolated", "{podSelector: {}, policyTypes: [Ingress, Egress]}");
    let deny = cluster_policy(
        "deny",
        "Admin",
        "ingress: [{name: no, action: Deny, from: [{namespaces: {}}]}]",
    );
    let by_network_policy = Invocation::of("hairpin_np")
        .manifest(&alone)
        .manifest(&isolated)
        .tcp("a/one", TO_WEB, 80);
    assert_eq!(by_network_policy.words(), ["allow exempt exempt"]);
    let by_admin = Invocation::of("hairpin_admin")
        .manifest(&alone)
        .manifest(&isolated)
        .manifest(&deny)
        .tcp("a/one", TO_WEB, 80)
        .tcp("a/one", "a/one", 8080);
    assert_eq!(by_admin.words(), ["deny exempt admin", "allow exempt exempt"]);
}

#[test]
fn the_family_of_a_service_is_the_first_of_the_source_that_is_served() {
    let both = serving("a/one", "app: web", "10.0.0.1", 8080)
        .replace("[{ip: \"10.0.0.1\"}]", "[{ip: \"10.0.0.1\"}, {ip: \"fd00::1\"}]");
    let v6 = |family: &str| {
        format!(r#"{{"id":1,"from":"a/v6","to":{TO_WEB},"protocol":"TCP","port":80{family}}}"#)
    };
    let answered = Invocation::of("service_family")
        .manifest(&(both + SERVICE + &pod("a/v6", "app: client", &["fd00::9", "10.0.0.9"])))
        .probe(&v6(""))
        .probe(&v6(r#","family":"IPv4""#))
        .answer();
    let rows = answered.rows();
    assert_eq!(parts(&rows[0], "endpoints"), [("fd00::1", "allow")]);
    assert_eq!(parts(&rows[1], "endpoints"), [("10.0.0.1", "allow")]);
}

#[test]
fn a_name_that_leads_to_a_service_is_judged_at_its_endpoints() {
    let elsewhere = SERVICE
        .replace("name: web", "name: empty")
        .replace("app: web", "app: nobody")
        .replace("10.96.0.10", "10.96.0.11");
    let by_name = "egress: [{action: Accept, to: [{domainNames: [web.example.com]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let rows = Invocation::of("name_of_service")
        .manifest(&(three_servers() + SERVICE + &elsewhere))
        .manifest(&cluster_policy("by-name", "Admin", by_name))
        .record("a/client", "web.example.com", "10.96.0.10")
        .record("a/client", "empty.example.com", "10.96.0.11")
        .tcp("a/client", r#"{"name":"web.example.com"}"#, 80)
        .tcp("a/client", r#"{"name":"empty.example.com"}"#, 80)
        .rows();
    assert_eq!(
        parts(&rows[0], "addresses"),
        [("10.96.0.10", "deny"), ("10.96.0.10", "deny")],
        "what leaves the node has the address of an endpoint, which nobody was told"
    );
    assert_eq!(rows[0]["addresses"][1]["pod"], "a/two");
    assert_eq!(
        (&rows[1]["verdict"], &rows[1]["reason"]),
        (&json!("deny"), &json!("no endpoints"))
    );
}

#[test]
fn what_owns_pods_of_the_manifests_is_no_endpoint_beside_them() {
    let workload = |kind: &str, name: &str, more: &str, replicas: u8| {
        format!(
            "---\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: a{more}}}\n\
             spec: {{replicas: {replicas}, template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{ports: [{{name: http, containerPort: 8080}}]}}]}}}}}}\n"
        )
    };
    let owned = |kind: &str, name: &str| format!(", ownerReferences: [{{kind: {kind}, name: {name}}}]");
    let pod = serving("a/web-1-x", "app: web", "10.0.0.1", 8080).replace(
        "namespace: a,",
        &format!("namespace: a{},", owned("ReplicaSet", "web-1")),
    );
    let printed = workload("Deployment", "web", "", 1)
        + &workload("ReplicaSet", "web-0", &owned("Deployment", "web"), 0)
        + &workload("ReplicaSet", "web-1", &owned("Deployment", "web"), 1)
        + &invocation::pod("a/client", "app: client", &["10.0.0.9"]);
    let rows = |test: &str, text: &str| {
        Invocation::of(test)
            .manifest(&(text.to_owned() + SERVICE))
            .tcp("a/client", TO_WEB, 80)
            .rows()
    };
    let with_pod = rows("owners_with_pod", &(printed.clone() + &pod));
    assert_eq!(parts(&with_pod[0], "endpoints"), [("10.0.0.1", "allow")]);
    let without = rows("owners_without_pod", &printed);
    assert_eq!(without[0]["endpoints"].as_array().unwrap().len(), 1);
    assert_eq!(without[0]["endpoints"][0]["pod"], "a/web-1");
}

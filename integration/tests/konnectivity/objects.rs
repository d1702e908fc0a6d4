//! Policies and the objects that they ask for, by watches of a real API server, with the rights of deploy/konnectivity.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::api_server::Cluster;
use super::echo;
use super::policy::{Policed, is_closed};
use super::process::{PATIENCE, within};
use super::targets::Target;

const CONNECTED: &str = "HTTP/1.1 200 Connection Established";
const POLICIES: &str = "/apis/policy.egret.dev/v1alpha1/apiserveregresspolicies";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// No API server asks in these tests.
const NO_SELECTION: &str =
    "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: []\n";

/// A server whose objects come from an API server, and the folder of its kubeconfig.
fn watching(spec: &str) -> (Policed, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = format!("--kubeconfig={}", folder.path().join("kubeconfig").display());
    let policed = Policed::start_with(spec, &["--egress-source=kube", &kubeconfig]);
    (policed, folder)
}

fn connect(folder: &TempDir, cluster: &Cluster) {
    let kubeconfig = cluster.kubeconfig_as("system:konnectivity-server");
    fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
}

fn define_policies(cluster: &Cluster) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/konnectivity/apiserveregresspolicies.policy.egret.dev.yaml"
    );
    let definition: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.curl("POST", definitions, &definition.to_string());
    within("the kind is served", || {
        cluster.curl("GET", POLICIES, "").contains("\"items\"")
    });
}

fn put_policy(cluster: &Cluster, name: &str, spec: Value) {
    cluster.curl("DELETE", &format!("{POLICIES}/{name}"), "");
    let object = json!({
        "apiVersion": "policy.egret.dev/v1alpha1", "kind": "APIServerEgressPolicy",
        "metadata": {"name": name}, "spec": spec,
    });
    let made = cluster.curl("POST", POLICIES, &object.to_string());
    assert!(made.contains("creationTimestamp"), "{made}");
}

fn put_node(cluster: &Cluster, name: &str, address: &str) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    });
    let made = cluster.curl("POST", "/api/v1/nodes", &node.to_string());
    assert!(made.contains("creationTimestamp"), "{made}");
}

/// A pod that runs, with this label and address.
fn put_pod(cluster: &Cluster, name: &str, label: &str, address: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": label}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}]}]},
    });
    within("the namespace is there", || {
        let made = cluster.curl("POST", PODS, &pod.to_string());
        made.contains("creationTimestamp") || made.contains("AlreadyExists")
    });
    let status = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    });
    let read = cluster.curl("GET", &format!("{PODS}/{name}"), "");
    let mut whole: Value = serde_json::from_str(&read).unwrap();
    whole["status"] = status["status"].clone();
    let put = cluster.curl("PUT", &format!("{PODS}/{name}/status"), &whole.to_string());
    assert!(put.contains(address), "{put}");
}

#[test]
fn nothing_is_allowed_before_everything_is_known_and_what_is_known_stays() {
    let (policed, folder) =
        watching("{rules: [{action: Allow, to: [{nodes: {}}]}, {action: Deny, to: [{external: {}}]}]}");
    let target = Target::echo();
    let port = target.port();
    let head = policed.head(&target.address());
    let expected = "HTTP/1.1 403 egress denied, not everything is known of the API server yet: namespaces";
    assert!(head.starts_with(expected), "{head}");
    let Some(cluster) = Cluster::start(NO_SELECTION) else {
        return;
    };
    put_node(&cluster, "n", "127.0.0.1");
    // Who may not list says so, and everything is refused.
    connect(&folder, &cluster);
    within("it is told why", || {
        policed.pair.server_log().contains("forbidden")
    });
    assert!(policed.head(&target.address()).starts_with(expected));
    cluster.grant_rights();
    within("the objects are known", || {
        policed.head(&target.address()) == CONNECTED
    });
    let by_class = |host: &str| policed.head(&format!("{host}:{port}"));
    assert!(by_class("127.0.0.2").contains("APIServerEgressPolicy/p rule 1"));
    // A node comes, and goes with what is open to it.
    put_node(&cluster, "m", "127.0.0.2");
    within("the node is known", || by_class("127.0.0.2") == CONNECTED);
    let mut to_first = policed.pair.connect(&target.address()).1.unwrap();
    let mut to_second = policed.pair.connect(&format!("127.0.0.2:{port}")).1.unwrap();
    assert_eq!(echo(&mut to_second, b"there"), b"there");
    cluster.curl("DELETE", "/api/v1/nodes/m", "");
    within("it ends", || is_closed(&mut to_second));
    assert_eq!(echo(&mut to_first, b"goes on"), b"goes on");
    let records = policed.all_records();
    let of_node = records
        .iter()
        .find(|it| it["class"] == "nodes" && it["object"] == "m");
    assert!(of_node.is_some(), "{records:#?}");
    // The API server goes.
    drop(cluster);
    within("it is noticed", || {
        policed.pair.server_log().contains("the API server is not read")
    });
    assert_eq!(policed.head(&target.address()), CONNECTED);
    assert!(by_class("127.0.0.2").contains("APIServerEgressPolicy/p rule 1"));
    assert_eq!(echo(&mut to_first, b"goes on"), b"goes on");
}

#[test]
fn policies_are_objects_and_pods_are_judged_by_their_labels() {
    let Some(cluster) = Cluster::start(NO_SELECTION) else {
        return;
    };
    cluster.grant_rights();
    define_policies(&cluster);
    let no = |app: &str| {
        json!({"rules": [{"name": "no", "action": "Deny",
            "to": [{"pods": {"podSelector": {"matchLabels": {"app": app}}}}]}]})
    };
    put_policy(&cluster, "p", no("db"));
    put_pod(&cluster, "a", "web", "127.0.0.3");
    put_pod(&cluster, "b", "db", "127.0.0.4");
    let (policed, folder) = watching("{rules: [{action: Deny, to: [{networks: [127.0.0.9/32]}]}]}");
    connect(&folder, &cluster);
    let target = Target::echo();
    let to = |host: &str| format!("{host}:{}", target.port());
    within("the objects are known", || {
        policed.head(&to("127.0.0.3")) == CONNECTED
    });
    // The file has a policy of the same name: both count.
    assert!(
        policed
            .head(&to("127.0.0.9"))
            .contains("APIServerEgressPolicy/p rule 0: cluster")
    );
    let refused = policed.head(&to("127.0.0.4"));
    assert!(
        refused.contains("APIServerEgressPolicy/p (API server) rule 0 (no): cluster"),
        "{refused}"
    );
    let mut web = policed.pair.connect(&to("127.0.0.3")).1.unwrap();
    web.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(echo(&mut web, b"hello"), b"hello");
    // The pod gets the label that is denied.
    let read = cluster.curl("GET", &format!("{PODS}/a"), "");
    let mut pod: Value = serde_json::from_str(&read).unwrap();
    pod["metadata"]["labels"]["app"] = "db".into();
    cluster.curl("PUT", &format!("{PODS}/a"), &pod.to_string());
    within("it ends", || is_closed(&mut web));
    assert!(policed.head(&to("127.0.0.3")).contains("rule 0 (no)"));
    // Another policy in its place.
    put_policy(&cluster, "p", no("none"));
    within("it is allowed again", || {
        policed.head(&to("127.0.0.3")) == CONNECTED
    });
    // A field that nobody knows: the rule denies everything.
    let mut unknown = no("none");
    unknown["rules"][0]["unless"] = "monday".into();
    put_policy(&cluster, "p", unknown);
    within("it is closed", || {
        policed.head(&to("127.0.0.3")).contains("rule 0 (no)")
    });
    assert!(policed.pair.server_log().contains("unless"), "it is told what");
    put_policy(&cluster, "p", json!({"rules": "none"}));
    within("it is closed", || {
        policed
            .head(&to("127.0.0.3"))
            .contains("APIServerEgressPolicy/p (API server) rule 0:")
    });
    // The definition goes, and its policies with it.
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.curl(
        "DELETE",
        &format!("{definitions}/apiserveregresspolicies.policy.egret.dev"),
        "",
    );
    within("it is open again", || policed.head(&to("127.0.0.3")) == CONNECTED);
    assert!(
        policed
            .head(&to("127.0.0.9"))
            .contains("APIServerEgressPolicy/p rule 0: cluster")
    );
}

/// It is stopped, not ended: its connections stay and say nothing.
#[test]
fn an_api_server_that_does_not_answer_changes_nothing_and_is_heard_when_it_goes_on() {
    let Some(cluster) = Cluster::start(NO_SELECTION) else {
        return;
    };
    cluster.grant_rights();
    put_node(&cluster, "n", "127.0.0.1");
    let (policed, folder) =
        watching("{rules: [{action: Allow, to: [{nodes: {}}]}, {action: Deny, to: [{external: {}}]}]}");
    connect(&folder, &cluster);
    let target = Target::echo();
    let by_class = |host: &str| policed.head(&format!("{host}:{}", target.port()));
    within("the node is known", || by_class("127.0.0.1") == CONNECTED);
    let mut open = policed.pair.connect(&target.address()).1.unwrap();
    cluster.process().stop();
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(5) {
        assert_eq!(by_class("127.0.0.1"), CONNECTED);
        assert!(by_class("127.0.0.2").contains("APIServerEgressPolicy/p rule 1"));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    cluster.process().signal("CONT");
    assert_eq!(echo(&mut open, b"goes on"), b"goes on");
    put_node(&cluster, "m", "127.0.0.2");
    within("what changes is heard", || by_class("127.0.0.2") == CONNECTED);
}

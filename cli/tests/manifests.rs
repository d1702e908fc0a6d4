//! What counts as a manifest, and what is made of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::json;

mod invocation;

use invocation::{Invocation, codes, network_policy, pod};

#[test]
fn a_workload_counts_as_one_pod_of_its_template() {
    let template = "template: {metadata: {labels: {app: guarded}}, spec: {containers: []}}";
    let mut asked = Invocation::of("workloads").manifest(&network_policy(
        "a/guard",
        "{podSelector: {matchLabels: {app: guarded}}}",
    ));
    for (kind, api_version, spec) in [
        ("Deployment", "apps/v1", template.to_owned()),
        ("StatefulSet", "apps/v1", template.to_owned()),
        ("DaemonSet", "apps/v1", template.to_owned()),
        ("ReplicaSet", "apps/v1", template.to_owned()),
        ("Job", "batch/v1", template.to_owned()),
        (
            "CronJob",
            "batch/v1",
            format!("jobTemplate: {{spec: {{{template}}}}}"),
        ),
    ] {
        let name = kind.to_lowercase();
        asked = asked
            .manifest(&format!(
                "apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: a}}\nspec: {{{spec}}}\n"
            ))
            .tcp("192.0.2.1", &format!("a/{name}"), 80);
    }
    assert_eq!(asked.words(), ["deny none np"; 6]);
}

#[test]
fn of_a_pod_and_a_workload_with_one_name_the_pod_is_meant() {
    let deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: a}\n\
                      spec: {template: {metadata: {labels: {app: guarded}}}}\n";
    let guard = network_policy("a/guard", "{podSelector: {matchLabels: {app: guarded}}}");
    let pod = pod("a/web", "app: free", &["10.0.0.1"]);
    for (test, first, second) in [
        ("same_name_1", deployment, pod.as_str()),
        ("same_name_2", &pod, deployment),
    ] {
        let rows = Invocation::of(test)
            .file("1.yaml", first)
            .file("2.yaml", second)
            .manifest(&guard)
            .tcp("192.0.2.1", "a/web", 80)
            .rows();
        assert_eq!(invocation::words(&rows[0]), "allow none default", "{test}");
        assert_eq!(codes(&rows[0]), ["same-name"], "{test}");
        let message = rows[0]["diagnostics"][0]["message"].as_str().unwrap();
        assert_eq!(
            message,
            "Pod/a/web and Deployment/a/web have one name; a/web is taken to mean Pod/a/web"
        );
    }
}

#[test]
fn of_two_workloads_with_one_name_the_first_is_meant() {
    let workload = |kind: &str, app: &str| {
        format!(
            "---\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web, namespace: a}}\nspec: {{template: {{metadata: {{labels: {{app: {app}}}}}}}}}\n"
        )
    };
    let rows = Invocation::of("same_name_workloads")
        .manifest(&(workload("StatefulSet", "guarded") + &workload("Deployment", "free")))
        .manifest(&network_policy(
            "a/guard",
            "{podSelector: {matchLabels: {app: guarded}}}",
        ))
        .tcp("192.0.2.1", "a/web", 80)
        .rows();
    assert_eq!(invocation::words(&rows[0]), "deny none np");
    assert_eq!(codes(&rows[0]), ["same-name"]);
}

#[test]
fn folders_are_read_to_the_bottom_and_only_yaml_and_json_by_name() {
    let answered = Invocation::of("folders")
        .file("deep/er/pod.yml", &pod("a/web", "app: web", &["10.0.0.1"]))
        .file(
            "policy.json",
            r#"{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"guard","namespace":"a"},"spec":{"podSelector":{}}}"#,
        )
        .file("README.md", "kind: [this is no manifest")
        .file(".hidden/policy.yaml", "kind: [nor is this")
        .tcp("192.0.2.1", "a/web", 80)
        .answer();
    assert_eq!(answered.stderr, "");
    let words: Vec<String> = answered.rows().iter().map(invocation::words).collect();
    assert_eq!(words, ["deny none np"]);
}

#[test]
fn lists_are_read_and_other_kinds_are_counted_and_skipped() {
    let list = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: web, labels: {app: \"1\"}}\n  status: {podIP: 10.0.0.1}\n- metadata: {name: db, labels: {app: \"true\"}}\n\
                ---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: c}\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: d}\n\
                ---\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: guard, namespace: null}\nspec: {podSelector: {matchLabels: {app: \"1\"}}, ingress: null}\n";
    let answered = Invocation::of("lists")
        .manifest(list)
        .tcp("192.0.2.1", "default/web", 80)
        .tcp("192.0.2.1", "default/db", 80)
        .answer();
    let words: Vec<String> = answered.rows().iter().map(invocation::words).collect();
    assert_eq!(words, ["deny none np", "allow none default"]);
    assert!(
        answered.stderr.contains("skipped 2 of kind v1 ConfigMap"),
        "{}",
        answered.stderr
    );
}

#[test]
fn a_namespace_without_an_object_has_its_default_label() {
    let by_name = "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}}]}]}";
    let by_label = "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: x}}}]}]}";
    let words = Invocation::of("namespaces")
        .manifest(&(pod("a/web", "app: web", &["10.0.0.1"]) + &pod("b/db", "app: db", &["10.0.0.2"])))
        .manifest(&pod("c/api", "app: api", &["10.0.0.3"]))
        .manifest("apiVersion: v1\nkind: Namespace\nmetadata: {name: c, labels: {team: x}}\n")
        .manifest(&network_policy("a/by-name", by_name))
        .manifest(&network_policy("b/by-label", by_label))
        .tcp("b/db", "a/web", 80)
        .tcp("c/api", "a/web", 80)
        .tcp("c/api", "b/db", 80)
        .tcp("a/web", "b/db", 80)
        .words();
    assert_eq!(
        words,
        [
            "allow default np",
            "deny default np",
            "allow default np",
            "deny default np"
        ]
    );
}

#[test]
fn a_file_that_is_named_twice_is_read_once_and_an_object_that_is_there_twice_is_refused() {
    let web = pod("a/web", "app: web", &["10.0.0.1"]);
    let asked = Invocation::of("twice")
        .file("1.yaml", &web)
        .tcp("192.0.2.1", "a/web", 80);
    let folder: &'static str = Box::leak(
        asked
            .folder()
            .join("manifests/1.yaml")
            .display()
            .to_string()
            .into_boxed_str(),
    );
    let answered = asked.option("--manifests").option(folder).answer();
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(0), ""));
    let answered = Invocation::of("duplicate")
        .file("1.yaml", &web)
        .file("2.yaml", &web)
        .tcp("192.0.2.1", "a/web", 80)
        .answer();
    assert_eq!(answered.status, Some(2));
    assert!(
        answered
            .stderr
            .contains("2.yaml:2:1: error EG0006: metadata.name: found Pod/a/web again"),
        "{}",
        answered.stderr
    );
}

#[test]
fn what_cannot_be_read_is_named_by_file_line_and_field() {
    for (test, text, said) in [
        (
            "broken_yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n",
            "1.yaml:",
        ),
        (
            "no_name",
            "apiVersion: v1\nkind: Pod\nmetadata: {labels: {}}\n",
            "1.yaml:3:11: error EG0004: metadata",
        ),
        ("no_object", "hello\n", "1.yaml:1:1: error EG0003"),
    ] {
        let answered = Invocation::of(test)
            .file("1.yaml", text)
            .file("2.yaml", &pod("a/web", "app: web", &["10.0.0.1"]))
            .tcp("192.0.2.1", "a/web", 80)
            .answer();
        assert_eq!(answered.status, Some(2), "{test}");
        assert!(answered.stderr.contains(said), "{test}: {}", answered.stderr);
        assert_eq!(answered.stdout, "", "{test}: nobody can say what is missing");
    }
}

#[test]
fn a_pod_ip_that_is_no_address_is_noted() {
    let answered = Invocation::of("bad_address")
        .manifest(&pod("a/web", "app: web", &["10.0.0"]))
        .tcp("192.0.2.1", "a/web", 80)
        .answer();
    assert!(answered.stderr.contains("EG0501"), "{}", answered.stderr);
    assert_eq!(answered.rows()[0]["verdict"], json!("allow"));
}

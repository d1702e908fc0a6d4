//! Files: documents, lists, what is skipped and what is wrong, with the place of everything.

use egret_policies::api::manifest::{Manifest, read};
use egret_policies::diagnostic::{Code, Position};

fn names(manifest: &Manifest) -> Vec<String> {
    manifest
        .documents
        .iter()
        .map(|document| document.object.reference().to_string())
        .collect()
}

fn problems(manifest: &Manifest) -> Vec<String> {
    manifest.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn documents_of_a_file_are_read_in_their_order() {
    let manifest = read(
        "# a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n---\n\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\n...\n",
        "f.yaml",
    );
    assert_eq!(names(&manifest), ["Namespace/shop", "Pod/default/web"]);
    assert_eq!(manifest.documents[1].position, Position { line: 10, column: 1 });
    assert_eq!(manifest.problems, []);
}

#[test]
fn json_is_read_as_well() {
    let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"a\\/b\\u00e9\", \"labels\": {\"x\": \"\"}}\n}\n";
    let manifest = read(text, "f.json");
    assert_eq!(problems(&manifest), [] as [&str; 0]);
    assert_eq!(names(&manifest), ["Pod/default/a/bé"]);
}

#[test]
fn lists_hold_objects() {
    let manifest = read(
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n---\napiVersion: v1\nkind: PodList\nmetadata: {resourceVersion: \"1\"}\nitems:\n- {metadata: {name: b}}\n- {metadata: {name: c, namespace: x}}\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems: [{metadata: {name: p}}]\n---\napiVersion: v1\nkind: PodList\nitems: []\n",
        "f.yaml",
    );
    assert_eq!(
        names(&manifest),
        [
            "Pod/default/a",
            "Pod/default/b",
            "Pod/x/c",
            "NetworkPolicy/default/p"
        ]
    );
    assert_eq!(manifest.skipped.get("v1 ConfigMap"), Some(&1));
    assert_eq!(manifest.problems, []);
}

#[test]
fn kinds_that_do_not_matter_are_counted() {
    let manifest = read(
        "apiVersion: v1\nkind: Secret\n---\napiVersion: v1\nkind: Secret\n---\napiVersion: example.com/v1\nkind: AllowList\nspec: {}\n",
        "f",
    );
    assert_eq!(
        manifest.skipped.into_iter().collect::<Vec<_>>(),
        [("example.com/v1 AllowList".into(), 1), ("v1 Secret".into(), 2)]
    );
    assert_eq!(manifest.problems, []);
}

#[test]
fn policies_that_nobody_knows_are_never_skipped_silently() {
    let manifest = read(
        "apiVersion: policy.networking.k8s.io/v1alpha3\nkind: TenantPolicy\nmetadata: {name: a}\n---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: b}\n",
        "f.yaml",
    );
    assert_eq!(manifest.documents, []);
    assert_eq!(
        problems(&manifest),
        [
            "f.yaml:1:1: error EG0010: kind: found \"TenantPolicy\" of \"policy.networking.k8s.io/v1alpha3\"; accepted: AdminNetworkPolicy, BaselineAdminNetworkPolicy (v1alpha1), ClusterNetworkPolicy (v1alpha2)",
            "f.yaml:5:1: warning EG0009: kind: found \"GlobalNetworkPolicy\" of \"projectcalico.org/v3\"; accepted: NetworkPolicy, AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy",
        ]
    );
}

/// A policy kind in a group of Kubernetes that does not have it is a mistake, not somebody else's.
#[test]
fn a_policy_of_the_wrong_group_is_an_error() {
    for (version, kind) in [
        ("v1", "NetworkPolicy"),
        ("apps/v1", "NetworkPolicy"),
        ("networking.k8s.io/v1", "ClusterNetworkPolicy"),
        ("policy.networking.k8s.io/v1alpha2", "NetworkPolicy"),
        ("policy.egret.dev/v1alpha1", "Firewall"),
    ] {
        let manifest = read(
            &format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n"),
            "f",
        );
        let codes: Vec<_> = manifest.problems.iter().map(|problem| problem.code).collect();
        assert_eq!(
            (codes, manifest.is_whole()),
            (vec![Code::UnknownPolicyKind], false),
            "{version} {kind}"
        );
    }
}

#[test]
fn workloads_of_one_name_are_different_objects() {
    let of =
        |kind: &str, version: &str| format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
    let manifest = read(
        &format!("{}---\n{}", of("Deployment", "apps/v1"), of("Job", "batch/v1")),
        "f",
    );
    assert_eq!(manifest.problems, []);
    let manifest = read(
        &format!(
            "{}---\n{}",
            of("NetworkPolicy", "networking.k8s.io/v1"),
            of("NetworkPolicy", "extensions/v1beta1")
        ),
        "f",
    );
    assert_eq!(
        manifest.problems[0].code,
        Code::DuplicateObject,
        "versions of one kind are one object"
    );
}

/// Text; code, line, column and field of its only problem; whether the file is whole nevertheless.
#[test]
fn problems_name_file_line_column_and_field() {
    let pod = "apiVersion: v1\nkind: Pod\n";
    for (text, code, (line, column), field, whole) in [
        ("a: [1\n", Code::Syntax, (1, 4), "", false),
        ("a:\n\t- b\n", Code::Syntax, (2, 2), "", false),
        ("a: *b\n", Code::Syntax, (1, 4), "", false),
        ("[1]\n", Code::NotAnObject, (1, 1), "", false),
        ("text\n", Code::NotAnObject, (1, 1), "", false),
        ("kind: Pod\n", Code::NotAnObject, (1, 1), "", false),
        ("apiVersion: v1\n", Code::NotAnObject, (1, 1), "", false),
        (
            "apiVersion: v1\nkind: [Pod]\n",
            Code::WrongType,
            (2, 7),
            "kind",
            false,
        ),
        (pod, Code::NameMissing, (1, 1), "metadata", false),
        (
            &format!("{pod}metadata: {{}}\n"),
            Code::NameMissing,
            (3, 11),
            "metadata",
            false,
        ),
        (
            &format!("{pod}metadata: {{name: ''}}\n"),
            Code::NameMissing,
            (3, 18),
            "metadata.name",
            false,
        ),
        (
            &format!("{pod}metadata: {{name: [a]}}\n"),
            Code::Metadata,
            (3, 18),
            "metadata.name",
            false,
        ),
        (
            &format!("{pod}metadata: {{name: a, labels: [b]}}\n"),
            Code::Metadata,
            (3, 29),
            "metadata.labels",
            false,
        ),
        (
            &format!("{pod}metadata: {{name: a, labels: {{x/y: {{}}}}}}\n"),
            Code::Metadata,
            (3, 35),
            "metadata.labels[\"x/y\"]",
            false,
        ),
        (
            &format!("{pod}metadata: {{name: a, labels: {{x: true}}}}\n"),
            Code::UnquotedText,
            (3, 33),
            "metadata.labels.x",
            true,
        ),
        (
            &format!("{pod}metadata: {{name: a, labels: {{x: 1.10}}}}\n"),
            Code::UnquotedText,
            (3, 33),
            "metadata.labels.x",
            true,
        ),
        (
            &format!("{pod}metadata: {{name: a}}\nstatus:\n  a: 1\n  a: 2\n"),
            Code::DuplicateField,
            (6, 3),
            "status.a",
            true,
        ),
        (
            &format!("{pod}metadata: {{name: a}}\nspec: {{}}\nspec: {{}}\n"),
            Code::DuplicateField,
            (5, 1),
            "spec",
            false,
        ),
        (
            "apiVersion: v1\nkind: PodList\nitems: [{metadata: {}}]\n",
            Code::NameMissing,
            (3, 20),
            "items[0].metadata",
            false,
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [1]\n",
            Code::NotAnObject,
            (3, 9),
            "items[0]",
            false,
        ),
        (
            "apiVersion: v1\nkind: List\nitems: {a: b}\n",
            Code::WrongType,
            (1, 1),
            "items",
            false,
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n",
            Code::NotAnObject,
            (3, 9),
            "items[0]",
            false,
        ),
    ] {
        let manifest = read(text, "dir/f.yaml");
        let seen: Vec<_> = manifest
            .problems
            .iter()
            .map(|problem| (problem.code, problem.position, problem.field.as_str()))
            .collect();
        assert_eq!(seen, [(code, Position { line, column }, field)], "{text}");
        assert_eq!(&*manifest.problems[0].file, "dir/f.yaml");
        assert_eq!(manifest.is_whole(), whole, "{text}");
    }
}

#[test]
fn what_follows_a_broken_document_is_read() {
    let manifest = read(
        "a: [1\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
        "f.yaml",
    );
    assert_eq!(names(&manifest), ["Pod/default/a"]);
    assert!(!manifest.is_whole());
}

#[test]
fn the_same_object_twice_is_an_error() {
    let manifest = read(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: default}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: other}\n",
        "f.yaml",
    );
    assert_eq!(
        problems(&manifest),
        [
            "f.yaml:5:1: error EG0006: metadata.name: found Pod/default/a again, first at line 1, column 1; accepted: each object once"
        ]
    );
}

#[test]
fn anchors_aliases_and_merge_keys_are_resolved() {
    let manifest = read(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: &labels {app: web, tier: x}\nspec: {}\nother:\n  labels:\n    <<: *labels\n    tier: y\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b, labels: {<<: [{a: b}, {a: c, d: e}]}}\n",
        "f.yaml",
    );
    assert_eq!(problems(&manifest), [] as [&str; 0]);
    let labels: Vec<_> = manifest.documents[1].object.metadata.labels.iter().collect();
    assert_eq!(labels, [("a", "b"), ("d", "e")]);
}

/// A few lines that stand for 10^30 values; the sentence comes before the memory is gone.
#[test]
fn an_alias_bomb_is_refused_with_a_sentence() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let manifest = read(&bomb, "bomb.yaml");
    assert_eq!(manifest.problems.len(), 1);
    assert_eq!(manifest.problems[0].code, Code::TooLarge);
}

#[test]
fn a_value_that_repeats_itself_is_refused() {
    let manifest = read("a: &a [*a]\n", "f.yaml");
    assert_eq!(manifest.problems[0].code, Code::Syntax);
}

#[test]
fn what_is_too_large_or_too_deep_is_refused_with_a_sentence() {
    for text in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
        "---\n".repeat(100_001),
    ] {
        let manifest = read(&text, "f.yaml");
        assert!(!manifest.is_whole(), "{}", &text[..10]);
        assert_eq!(manifest.problems.len(), 1, "{}", &text[..10]);
    }
}

#[test]
fn a_field_that_is_repeated_without_end_is_told_a_few_times() {
    let manifest = read(&format!("{POD}{}", "a: b\n".repeat(10_000)), "f.yaml");
    assert_eq!(manifest.documents.len(), 1);
    assert_eq!(manifest.problems.len(), 50);
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";

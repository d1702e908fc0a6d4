//! Whatever stands in files and on the command line, no command prints what a terminal obeys.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

mod invocation;

use invocation::{Invocation, ProgramOutput};

/// Escape sequences, C0, DEL, C1, bidi, zero width, separators, BOM.
const HOSTILE: &str =
    "a\u{1b}[31m\u{7}\u{8}\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{200b}\u{200f}\u{2028}\u{2029}\u{feff}z";
/// What names may have besides: control characters in names are refused.
const FORMATS: &str = "a\u{202e}\u{2066}\u{200b}\u{200f}\u{2028}\u{2029}\u{feff}z";
const ORDINARY: &str = "aü日本z";

fn is_obeyed(char: char) -> bool {
    (char.is_control() && char != '\n' && char != '\t')
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn meta(name: &str, text: &str) -> Value {
    json!({"name": format!("{name}-{text}"), "namespace": format!("ns-{text}"),
        "labels": {"app": text, format!("key-{text}"): "v"}, "annotations": {"note": text}})
}

/// Objects whose every text of choice is `text`, as JSON, which escapes what YAML cannot have raw.
fn objects(text: &str) -> Vec<Value> {
    let namespaced = json!({"matchLabels": {"kubernetes.io/metadata.name": format!("ns-{text}")}});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{text}"), "labels": {"team": text}}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("web", text), "spec": {"nodeName": format!("node-{text}"),
            "containers": [{"name": text, "ports": [{"name": text, "containerPort": 80}]}]},
            "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("db", text), "spec": {"containers": []},
            "status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}}),
        json!({"apiVersion": "v1", "kind": text, "metadata": meta("other", text)}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{text}"), "labels": {"zone": text}},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.1.0.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("svc", text),
            "spec": {"clusterIP": "10.96.0.9", "selector": {"app": text}, "ports": [{"name": text, "port": 80, "targetPort": text}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("np", text),
            "spec": {"podSelector": {"matchLabels": {"app": text}}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": text}}}], "ports": [{"port": text}]}],
                "egress": [{"to": [{"podSelector": {"matchLabels": {"nobody": text}}}]}, {"ports": [{"port": text}]}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("bad", text),
            "spec": {"podSelector": {}, "policyTypes": [text], text: 1}}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": format!("cnp-{text}")},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": namespaced},
                "egress": [{"name": text, "action": "Deny", "to": [{"domainNames": [format!("{text}.example")]}]}]}}),
    ]
}

/// What `convert` converts, and with `--all` what it keeps.
fn convertible(text: &str) -> Vec<Value> {
    vec![
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy",
            "metadata": {"name": "anp", "labels": {"team": text}, "annotations": {"note": text}},
            "spec": {"priority": 1, "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
                "egress": [{"name": text, "action": "Deny", "to": [{"namespaces": {"matchLabels": {"team": "b"}}}]}]}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {"text": text}}),
    ]
}

/// A file of documents in blocks, with comments, the texts as raw as YAML takes them.
fn file(objects: &[Value], text: &str) -> String {
    let raw: String = text.chars().filter(|char| !char.is_control()).collect();
    let escaped = |object: &Value| -> String {
        let object = object.to_string();
        let letters = object.chars().map(|char| match char {
            '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(char)),
            _ => char.to_string(),
        });
        letters.collect()
    };
    let document = |object: &Value| format!("# above {raw}\n{} # beside {raw}\n", escaped(object));
    objects.iter().map(document).collect::<Vec<_>>().join("---\n")
}

fn egret(arguments: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(arguments);
    invocation::run(command, "")
}

/// Every command in every form.
fn everything(test: &str, text: &str) -> Vec<(String, ProgramOutput)> {
    let asked = Invocation::of(test)
        .file(
            &format!("{}.yaml", text.replace('/', "")),
            &file(&objects(text), text),
        )
        .file("broken.yaml", &format!("kind: Pod\nmetadata: [{}\n", json!(text)));
    let only_good = Invocation::of(&format!("{test}-good")).file(
        &format!("{}.yaml", text.replace('/', "")),
        &file(&objects(text), text),
    );
    let convert = Invocation::of(&format!("{test}-convert"))
        .file("convert.yaml", &file(&convertible(text), text))
        .file("block.yaml", &format!(
            "kind: ConfigMap\napiVersion: v1\nmetadata: {{name: d, namespace: n}}\ndata:\n  plain: {0}\n  block: |\n    {0}\n",
            text.chars().filter(|char| !char.is_control() && *char != '\u{2028}' && *char != '\u{2029}').collect::<String>()
        ));
    let folder = |asked: &Invocation| asked.folder().join("manifests").to_str().unwrap().to_owned();
    let empty = asked.folder().join("empty.yaml");
    fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let probes = asked.folder().join("probes.jsonl");
    let pod = |name: &str| format!("ns-{text}/{name}-{text}");
    let probe = json!({"id": text, "from": pod("web"), "to": pod("db"), "protocol": "TCP", "port": 80});
    let lost = json!({"id": text, "from": format!("no/{text}"), "to": text, "protocol": "TCP", "port": 80});
    fs::write(&probes, format!("{probe}\n{lost}\n")).unwrap();
    let probes = probes.to_str().unwrap();
    let mut said = Vec::new();
    let mut run = |arguments: &[&str]| said.push((format!("{arguments:?}"), egret(arguments)));
    for folder in [folder(&asked), folder(&only_good)] {
        for form in ["table", "json", "yaml", "dot", "markdown"] {
            run(&["lint", "--manifests", &folder, "-o", form]);
            run(&["list", "--manifests", &folder, "-o", form]);
            run(&["matrix", "--manifests", &folder, "--port", "80", "-o", form]);
            run(&["diff", "--manifests", &folder, "--against", empty, "-o", form]);
            run(&["diff", "--manifests", empty, "--against", &folder, "-o", form]);
            for command in ["verdict", "explain"] {
                run(&[command, "--manifests", &folder, "--probes", probes, "-o", form]);
                let (from, to) = (pod("web"), pod("db"));
                run(&[
                    command,
                    "--manifests",
                    &folder,
                    "--from",
                    &from,
                    "--to",
                    &to,
                    "--port",
                    "80",
                    "-o",
                    form,
                ]);
                run(&[
                    command,
                    "--manifests",
                    &folder,
                    "--from",
                    text,
                    "--to",
                    text,
                    "--port",
                    text,
                    "-o",
                    form,
                ]);
            }
        }
        run(&["convert", "--manifests", &folder]);
    }
    for options in [&["-o", "yaml"][..], &["-o", "json"], &["--all"]] {
        run(&[&["convert", "--manifests", &folder(&convert)], options].concat());
    }
    run(&["lint", "--manifests", text]);
    run(&[text]);
    run(&["lint", &format!("--{text}")]);
    run(&["list", "--manifests", empty, "-o", text]);
    run(&["completion", text]);
    said
}

#[test]
fn no_command_prints_what_a_terminal_obeys() {
    let said = [everything("hostile", HOSTILE), everything("formats", FORMATS)].concat();
    for (command, answered) in &said {
        for (stream, text) in [("stdout", &answered.stdout), ("stderr", &answered.stderr)] {
            let obeyed = text.lines().find(|line| line.contains(is_obeyed));
            assert_eq!(obeyed, None, "{stream} of {command:?}");
        }
    }
    let is_told = |(_, answered): &&(String, ProgramOutput)| {
        format!("{}{}", answered.stdout, answered.stderr).contains("202e")
    };
    assert!(
        said.iter().filter(is_told).count() > said.len() / 3,
        "the text is shown, in escapes"
    );
}

#[test]
fn what_people_write_is_printed_as_it_is() {
    let said = everything("ordinary", ORDINARY);
    let is_told = |(_, answered): &&(String, ProgramOutput)| {
        format!("{}{}", answered.stdout, answered.stderr).contains(ORDINARY)
    };
    assert!(said.iter().filter(is_told).count() > said.len() / 3);
    for (command, answered) in &said {
        let text = format!("{}{}", answered.stdout, answered.stderr);
        assert!(!text.contains("\\u"), "{command}: {text}");
    }
}

#[test]
fn escaped_forms_for_programs_say_the_same() {
    let asked = Invocation::of("hostile-values").file("convert.yaml", &file(&convertible(HOSTILE), HOSTILE));
    let folder = asked.folder().join("manifests");
    let folder = folder.to_str().unwrap();
    let json: Value =
        serde_json::from_str(&egret(&["convert", "--manifests", folder, "-o", "json"]).stdout).unwrap();
    assert_eq!(json["items"][0]["metadata"]["annotations"]["note"], HOSTILE);
    let answered = egret(&["convert", "--manifests", folder, "--all"]);
    let documents: Vec<Value> = answered
        .stdout
        .split("---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect();
    assert_eq!(
        documents[0]["metadata"]["annotations"]["note"], HOSTILE,
        "{}",
        answered.stdout
    );
    assert_eq!(documents[1]["data"]["text"], HOSTILE, "{}", answered.stdout);
    let asked = Invocation::of("hostile-rows").file("all.yaml", &file(&objects(FORMATS), FORMATS));
    let folder = asked.folder().join("manifests");
    let folder = folder.to_str().unwrap();
    let of = |form| egret(&["lint", "--manifests", folder, "-o", form]).stdout;
    let rows: Vec<Value> = of("json")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!rows.is_empty());
    assert_eq!(rows, serde_saphyr::from_str::<Vec<Value>>(&of("yaml")).unwrap());
}

//! Every command prints in the same forms, ends with the same exit codes, and colours only what somebody looks at.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{ProgramOutput, network_policy, pod};

/// A folder with two pods, of which one is closed, and one with neither.
fn folder(test: &str) -> (String, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("output-{test}"));
    let (closed, open) = (folder.join("closed"), folder.join("open"));
    fs::create_dir_all(&closed).unwrap();
    fs::create_dir_all(&open).unwrap();
    let pods = pod("a/web", "app: web", &["10.0.0.1"]) + &pod("a/db", "app: db", &["10.0.0.2"]);
    let guard = network_policy("a/guard", "{podSelector: {matchLabels: {app: db}}}");
    fs::write(open.join("pods.yaml"), &pods).unwrap();
    fs::write(closed.join("pods.yaml"), pods + &guard).unwrap();
    (closed.display().to_string(), open.display().to_string())
}

fn egret(arguments: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(arguments);
    invocation::run(command, "")
}

const TO_DB: &str = "--from a/web --to a/db --port 80";
const TO_WEB: &str = "--from a/db --to a/web --port 80";

/// Command and options, what it ends with, the forms that it has besides table, JSON and YAML.
const COMMANDS: [(&str, &str, i32, &[&str]); 10] = [
    ("verdict", TO_DB, 1, &[]),
    ("verdict", TO_WEB, 0, &[]),
    ("explain", TO_DB, 1, &[]),
    ("explain", TO_WEB, 0, &[]),
    ("list", "", 0, &["dot"]),
    ("matrix", "--port 80", 0, &[]),
    ("diff", "--against OPEN", 1, &["markdown"]),
    ("diff", "--against CLOSED", 0, &["markdown"]),
    ("lint", "", 0, &[]),
    ("lint", "--manifests FOUND", 1, &[]),
];

fn arguments(test: &str, command: &str, options: &str, form: &str) -> Vec<String> {
    let (closed, open) = folder(test);
    let found = format!("{closed}/../found-{}.yaml", command);
    // A policy that selects nothing is a finding.
    fs::write(
        &found,
        network_policy("a/lost", "{podSelector: {matchLabels: {app: nobody}}}"),
    )
    .unwrap();
    let options = options
        .replace("OPEN", &open)
        .replace("CLOSED", &closed)
        .replace("FOUND", &found);
    let words = format!("{command} --manifests {closed} {options} -o {form}");
    words.split_whitespace().map(str::to_owned).collect()
}

fn run(test: &str, command: &str, options: &str, form: &str) -> ProgramOutput {
    let arguments = arguments(test, command, options, form);
    egret(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_command_has_every_form_and_its_exit_code_does_not_depend_on_it() {
    for (command, options, status, others) in COMMANDS {
        let of = |form: &str| {
            let answered = run("forms", command, options, form);
            assert_eq!(
                answered.status,
                Some(status),
                "{command} {options} -o {form}: {}",
                answered.stderr
            );
            answered
        };
        for form in [&["table"], others].concat() {
            let answered = of(form);
            assert!(!answered.stdout.contains('\u{1b}'), "{command} -o {form}");
            assert!(!answered.stdout.is_empty(), "{command} -o {form}");
        }
        for line in of("table").stdout.lines() {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
        assert_eq!(
            in_yaml(&of("yaml").stdout),
            of("json").rows(),
            "{command} {options}"
        );
    }
}

/// A list, or a document for each row.
fn in_yaml(text: &str) -> Vec<Value> {
    if text.starts_with("---\n") {
        let documents = text.split("---\n").skip(1);
        return documents
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();
    }
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn what_cannot_be_read_or_is_no_form_ends_every_command_with_2() {
    for (command, options, _, _) in COMMANDS {
        let answered = run("bad", command, options, "xml");
        assert_eq!(answered.status, Some(2), "{command}");
        assert!(
            answered.stderr.contains("table, json, yaml"),
            "{command}: {}",
            answered.stderr
        );
        let mut arguments = arguments("bad", command, options, "table");
        arguments[2] = "/nowhere".to_owned();
        let answered = egret(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(
            (answered.status, answered.stdout.as_str()),
            (Some(2), ""),
            "{command}"
        );
        assert!(
            answered.stderr.starts_with("egret: /nowhere: "),
            "{command}: {}",
            answered.stderr
        );
        let answered = egret(&[command, "-o", "json"]);
        assert_eq!(answered.status, Some(2), "{command}");
        assert!(answered.stderr.contains("--manifests <PATH>..."), "{command}");
    }
}

/// In a terminal that `script` (util-linux) makes.
fn in_terminal(arguments: &[String], variables: &[(&str, &str)]) -> String {
    let line = format!("{} {}", env!("CARGO_BIN_EXE_egret"), arguments.join(" "));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .envs(variables.iter().copied());
    invocation::run(command, "").stdout
}

#[test]
fn colours_are_for_terminals_that_have_them_and_people_who_want_them() {
    for (command, options, _, others) in COMMANDS {
        let table = arguments("colours", command, options, "table");
        let shown = in_terminal(&table, &[]);
        // What has nothing to show has nothing to colour.
        let is_empty = matches!((command, options), ("lint", "") | ("diff", "--against CLOSED"));
        assert_eq!(
            shown.contains("\u{1b}["),
            !is_empty,
            "{command} {options}: {shown:?}"
        );
        for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let shown = in_terminal(&table, &[variables]);
            assert!(
                !shown.is_empty() && !shown.contains('\u{1b}'),
                "{command} {variables:?}: {shown:?}"
            );
        }
        for form in [&["json", "yaml"], others].concat() {
            let shown = in_terminal(&arguments("colours", command, options, form), &[]);
            assert!(!shown.contains('\u{1b}'), "{command} -o {form}: {shown:?}");
        }
    }
}

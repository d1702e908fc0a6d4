//! Manifests from standard input, as `-`: every command reads them, once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;

mod invocation;

use invocation::{Invocation, ProgramOutput, network_policy, pod};

fn egret(arguments: &[&str], input: &str) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(arguments);
    invocation::run(command, input)
}

/// A pod that a NetworkPolicy isolates, and one that nothing is about.
fn manifests() -> String {
    pod("a/web", "app: web", &["10.0.0.1"])
        + &pod("a/free", "app: free", &["10.0.0.2"])
        + &network_policy("a/guard", "{podSelector: {matchLabels: {app: web}}}")
}

#[test]
fn a_question_is_answered_from_standard_input() {
    for (to, status) in [("a/web", 1), ("a/free", 0)] {
        let question = ["--from", "192.0.2.1", "--to", to, "--port", "80"];
        for subcommand in ["verdict", "explain"] {
            let arguments = [&[subcommand, "--manifests", "-"], &question[..]].concat();
            let answered = egret(&arguments, &manifests());
            assert_eq!(
                answered.status,
                Some(status),
                "{subcommand} {to}: {}",
                answered.stderr
            );
        }
    }
}

#[test]
fn standard_input_and_files_are_read_together() {
    let asked = Invocation::of("stdin-and-files").manifest(&pod("b/other", "app: other", &["10.0.0.3"]));
    let folder = asked.folder().join("manifests");
    let arguments = ["list", "--manifests", folder.to_str().unwrap(), "-", "-o", "json"];
    let answered = egret(&arguments, &manifests());
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    for pod in ["a/web", "a/free", "b/other"] {
        assert!(answered.stdout.contains(pod), "{pod}: {}", answered.stdout);
    }
}

#[test]
fn what_is_wrong_with_standard_input_has_a_line() {
    let policy = network_policy("a/guard", "{podSelector: {}, policyTypes: [Ingress], ingres: []}");
    let answered = egret(&["lint", "--manifests", "-", "-o", "json"], &policy);
    assert_eq!(answered.status, Some(1), "{}", answered.stderr);
    let finding = &answered.rows()[0];
    assert_eq!(finding["file"], "<stdin>");
    assert_eq!(finding["line"], 5);
    let answered = egret(&["list", "--manifests", "-"], "kind: [\n");
    assert_eq!(answered.status, Some(2));
    assert!(
        answered.stderr.starts_with("egret: <stdin>:"),
        "{}",
        answered.stderr
    );
}

#[test]
fn standard_input_is_read_once() {
    let probe = r#"{"id":"1","from":"192.0.2.1","to":"a/web","protocol":"TCP","port":80}"#;
    for arguments in [
        &["list", "--manifests", "-", "-"][..],
        &["lint", "--manifests", "-", "-"],
        &["diff", "--manifests", "-", "--against", "-"],
        &["verdict", "--manifests", "-", "--probes", "-"],
        &[
            "verdict",
            "--manifests",
            "-",
            "--records",
            "-",
            "--from",
            "a/web",
            "--to",
            "192.0.2.1",
            "--port",
            "80",
        ],
    ] {
        let answered = egret(arguments, probe);
        assert_eq!(answered.status, Some(2), "{arguments:?}");
        assert_eq!(
            answered.stderr, "egret: - is standard input, which can be read only once\n",
            "{arguments:?}"
        );
        assert_eq!(answered.stdout, "");
    }
}

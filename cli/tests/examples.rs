//! The examples of the repository mean what they say, and docs/policies.md shows them as they are.
//!
//! An example is a folder of `deploy/examples` with manifests, `probes.jsonl`, perhaps `records.jsonl`, and what is
//! expected, which is only ever written by hand: `expected.jsonl`, the rows of `egret verdict` with the diagnostics cut
//! down to what stays the same; where there is something, `findings.jsonl`, what `egret lint` finds, and `remarks.txt`,
//! what `egret verdict` says besides.
//! `EGRET_UPDATE=1` writes the files anew into the document.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

mod invocation;
#[path = "examples/document.rs"]
mod document;
#[path = "examples/verdicts.rs"]
mod verdicts;

use invocation::ProgramOutput;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples")
}

fn read(path: &str) -> String {
    fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rows(path: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{path}: {error}"));
    read(path).lines().map(parse).collect()
}

/// The names of the examples.
fn examples() -> BTreeSet<String> {
    let entries = fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| folder().join(name).join("probes.jsonl").exists())
        .collect()
}

/// Asks the program, in the folder of the examples, so that what it says of files does not depend on the machine.
fn egret<'a>(arguments: impl IntoIterator<Item = &'a str>) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.current_dir(folder()).args(arguments);
    invocation::run(command, "")
}

/// The manifests of an example: with the cluster that they share, unless it brings its own.
fn manifests(example: &str) -> Vec<&str> {
    let own = folder().join(example).join("cluster.yaml").exists();
    let shared = (!own).then_some("cluster");
    ["--manifests"]
        .into_iter()
        .chain(shared)
        .chain([example])
        .collect()
}

/// What is stable of diagnostics and findings.
fn in_short(notes: &[Value]) -> Vec<Value> {
    let short = notes.iter().map(|note| {
        let known = ["code", "object", "field"]
            .into_iter()
            .filter(|key| !note[*key].is_null());
        known.map(|key| (key.to_owned(), note[key].clone())).collect()
    });
    short.collect()
}

#[test]
fn egret_verdict_answers_every_probe_as_is_written_beside_it() {
    for example in examples() {
        let [probes, records] = ["probes", "records"].map(|name| format!("{example}/{name}.jsonl"));
        let mut arguments = vec!["verdict", "-o", "json"];
        arguments.extend(manifests(&example));
        arguments.extend(["--probes", &probes]);
        if folder().join(&records).exists() {
            arguments.extend(["--records", &records]);
        }
        let answered = egret(arguments);
        let remarks = format!("{example}/remarks.txt");
        let remarks = match folder().join(&remarks).exists() {
            true => read(&remarks),
            false => String::new(),
        };
        assert_eq!(
            (answered.status, answered.stderr.as_str()),
            (Some(0), remarks.as_str()),
            "{example}"
        );
        let expected = rows(&format!("{example}/expected.jsonl"));
        assert_eq!(answered.rows().len(), expected.len(), "{example}");
        for (mut row, expected) in answered.rows().into_iter().zip(expected) {
            row["diagnostics"] = json!(in_short(row["diagnostics"].as_array().unwrap()));
            assert_eq!(row, expected, "{example}");
        }
    }
}

#[test]
fn egret_lint_finds_in_the_examples_what_is_written_beside_them() {
    for example in examples() {
        let mut arguments = vec!["lint", "-o", "json"];
        arguments.extend(manifests(&example));
        arguments.extend([
            "--dns",
            "169.254.20.10",
            "--dns",
            "10.77.2.3",
            "--dns",
            "fd00:53::10",
        ]);
        let expected = format!("{example}/findings.jsonl");
        let expected = match folder().join(&expected).exists() {
            true => rows(&expected),
            false => Vec::new(),
        };
        assert_eq!(in_short(&egret(arguments).rows()), expected, "{example}");
    }
}

#[test]
fn the_document_shows_the_examples_as_they_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/policies.md");
    let written = fs::read_to_string(&path).unwrap();
    let document = document::renew(&written);
    if std::env::var_os("EGRET_UPDATE").is_some() {
        fs::write(&path, &document.text).unwrap();
    } else {
        let differs = written
            .lines()
            .zip(document.text.lines())
            .find(|(was, is)| was != is);
        assert_eq!(differs, None, "EGRET_UPDATE=1 writes docs/policies.md anew");
        assert_eq!(
            written.len(),
            document.text.len(),
            "EGRET_UPDATE=1 writes docs/policies.md anew"
        );
    }
    assert_eq!(
        document.tables,
        examples(),
        "every example has its table of verdicts"
    );
    assert!(document.manifests >= examples().len(), "manifests are shown");
    assert!(document.commands >= 2, "commands are shown");
}

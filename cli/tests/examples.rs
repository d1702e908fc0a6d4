//! The examples of the repository mean what they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod asked;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/examples/by-name")
        .join(name)
}

fn rows(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn egret_verdict_answers_the_probes_of_the_repositorys_examples() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .arg("verdict")
        .arg("--manifests")
        .arg(example(""))
        .args(["-o", "json"]);
    command.arg("--probes").arg(example("probes.jsonl"));
    command.arg("--records").arg(example("records.jsonl"));
    let answered = asked::run(command, "");
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(0), ""));
    let expected = rows(&fs::read_to_string(example("expected.jsonl")).unwrap());
    assert!(expected.len() > 20);
    assert_eq!(answered.rows().len(), expected.len());
    for (row, expected) in answered.rows().iter().zip(&expected) {
        assert_eq!(row, expected);
    }
}

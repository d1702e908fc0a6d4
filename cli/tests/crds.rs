//! `egret crds` and the files under `deploy/crds` that are made by it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use egret_cli::crds::render;
use egret_policies::schema::definitions;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds")
}

#[test]
fn the_files_are_what_the_command_prints() {
    let mut printed = Vec::new();
    let mut names = BTreeSet::new();
    for definition in definitions() {
        let text = render(&definition).unwrap();
        let name = format!("{}.yaml", definition.name());
        let path = folder().join(&name);
        if std::env::var_os("EGRET_UPDATE").is_some() {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == text,
            "deploy/crds/{name} differs from the schema; write it again with:\n\
             EGRET_UPDATE=1 cargo test -p egret-cli --test crds"
        );
        printed.push(text);
        names.insert(name);
    }
    let output = Command::new(env!("CARGO_BIN_EXE_egret"))
        .arg("crds")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), printed.join("---\n"));
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files, names);
}

#[test]
fn what_is_printed_reads_as_what_was_meant() {
    for definition in definitions() {
        let read: serde_json::Value = serde_saphyr::from_str(&render(&definition).unwrap()).unwrap();
        assert_eq!(read, definition.object());
    }
}

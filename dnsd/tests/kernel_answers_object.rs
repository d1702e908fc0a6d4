//! The compiled eBPF program that is checked in is that of its source.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write;
use std::process::Command;

#[test]
fn the_committed_object_is_built_from_its_source() {
    if Command::new("clang-14").arg("--version").output().is_err() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "clang-14 is missing");
        // Past the harness, which would swallow it.
        std::io::stderr()
            .write_all(b"SKIPPED: there is no clang-14, the eBPF object was not compared\n")
            .unwrap();
        return;
    }
    let build = std::env::temp_dir().join(format!("eg-answers-object-{}", std::process::id()));
    std::fs::create_dir_all(&build).unwrap();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
    let make = Command::new("make")
        .args(["-s", "-C", sources, "check"])
        .arg(format!("BUILD={}", build.display()))
        .output();
    std::fs::remove_dir_all(&build).unwrap();
    let make = make.unwrap();
    assert!(
        make.status.success(),
        "run `make -C dnsd/bpf`: {}",
        String::from_utf8_lossy(&make.stderr)
    );
}

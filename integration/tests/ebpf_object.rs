//! The compiled eBPF programs that are checked in are those of their source.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write;
use std::process::Command;

#[test]
fn the_committed_objects_are_built_from_their_source() {
    if Command::new("clang-14").arg("--version").output().is_err() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "clang-14 is missing");
        // Past the harness, which would swallow it.
        std::io::stderr()
            .write_all(b"SKIPPED: there is no clang-14, the eBPF objects were not compared\n")
            .unwrap();
        return;
    }
    for member in ["dnsd", "enforcer"] {
        let build = tempfile::tempdir().unwrap();
        let sources = format!("{}/../{member}/bpf", env!("CARGO_MANIFEST_DIR"));
        let make = Command::new("make")
            .args(["-s", "-C", &sources, "check"])
            .arg(format!("BUILD={}", build.path().display()))
            .output()
            .unwrap();
        assert!(
            make.status.success(),
            "run `make -C {member}/bpf`: {}",
            String::from_utf8_lossy(&make.stderr)
        );
    }
}

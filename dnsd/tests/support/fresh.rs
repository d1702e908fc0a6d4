//! A network namespace of its own for a thread, as root.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::Write as _;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs something that enters a fresh namespace, on a thread of its own. Where none can be made it says so, gives nothing, and
/// fails where `CI=true`.
pub(crate) fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if let Err(errno) = std::thread::scope(|scope| scope.spawn(enter_fresh_namespace).join().unwrap()) {
        let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!is_ci, "a network namespace is needed: {errno}");
        let words = format!("NOT TESTED: no network namespace ({errno}); run as root");
        writeln!(std::io::stderr(), "{words}").expect("standard error is open");
        return None;
    }
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => Some(done),
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// `/run` is its own, for the lock of iptables.
pub(crate) fn enter_fresh_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)?;
    run("ip link set lo up");
    Ok(())
}

/// What a command prints; it must succeed.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

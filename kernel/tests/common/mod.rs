//! A network namespace for each test, gone when the test ends: the thread that owns it is the only one in it.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::io::Write as _;
use std::panic::resume_unwind;
use std::process::Command;

/// Runs a test on a thread of its own in a fresh network namespace with `lo` up. `/run` is private and empty there,
/// so the lock of legacy iptables is not shared with the host.
///
/// Without the rights to make a namespace the test cannot run: it says so, and fails where `CI=true`.
pub(crate) fn in_fresh_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| {
        if let Err(errno) = enter_fresh_namespace() {
            return Some(errno);
        }
        test();
        None
    });
    match outcome.join() {
        Ok(None) => {}
        Ok(Some(errno)) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            panic!("a network namespace is needed to test against the kernel: {errno}")
        }
        Ok(Some(errno)) => say(&format!(
            "NOT TESTED: no network namespace ({errno}); run as root to test against the kernel"
        )),
        Err(panic) => resume_unwind(panic),
    }
}

/// Past the test harness, which would keep a macro's words to itself.
#[allow(dead_code, reason = "not every test has something to leave out")]
pub(crate) fn say(words: &str) {
    writeln!(std::io::stderr(), "{words}").expect("standard error is open");
}

fn enter_fresh_namespace() -> nix::Result<()> {
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
    run("ip", &["link", "set", "lo", "up"]);
    Ok(())
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("the tests need iproute2, ipset and iptables");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

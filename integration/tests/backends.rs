//! Every story that uses the usual setup, on the backend `ebpf`: the table of scenario and backend.
//!
//! Each is told by a child process of this program. `LIMITS` lists what the backend cannot do; a story of that list that
//! goes well fails the test as well, so that the list stays true.

#![allow(
    clippy::disallowed_methods,
    reason = "a child that hangs is ended at a real moment"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::{
    env, fs,
    io::Read as _,
    panic,
    path::PathBuf,
    process::{Command, Stdio, exit},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use comfy_table::Table;

#[path = "scenarios/mod.rs"]
#[allow(unused_macros, reason = "the list makes tests in the other program")]
mod scenarios;

use scenarios::{SCENARIOS, Scenario, backend_override};

/// Names the scenario that a child is to tell.
const TELL: &str = "EGRET_SCENARIO";
/// How a child says what came of it.
const FAILED: i32 = 10;
const OWN_SETUP: i32 = 12;
/// Stories are short; this is for one that hangs.
const LONGEST: Duration = Duration::from_secs(60);
/// Worlds at once.
const AT_ONCE: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Holds,
    /// An assertion of the story, in its words.
    Fails(String),
    /// The story starts its enforcer itself, on netfilter.
    OwnSetup,
}

#[test]
fn every_scenario_holds_on_ebpf_or_is_a_known_limit() {
    if let Ok(name) = env::var(TELL) {
        tell(&name);
    }
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(env::var("CI").as_deref(), Ok("true"), "not root");
        eprintln!("*** NOT TESTED: worlds need root ***");
        return;
    }
    let only = env::var("EGRET_ONLY").unwrap_or_default();
    let chosen: Vec<_> = SCENARIOS
        .iter()
        .filter(|scenario| scenario.name.contains(&only))
        .collect();
    let results = run_all(&chosen);
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["scenario", "ebpf"]);
    let mut wrong = Vec::new();
    for (scenario, end) in &results {
        let limit = limit_of(scenario.name);
        let text = match (end, limit) {
            (End::Holds, None) => "holds".to_owned(),
            (End::OwnSetup, _) => "not run: a setup of its own".to_owned(),
            (End::Fails(_), Some(why)) => format!("limit: {why}"),
            (End::Fails(why), None) => format!("FAILS: {why}"),
            (End::Holds, Some(why)) => format!("HOLDS, but is listed: {why}"),
        };
        if text.starts_with("FAILS") || text.starts_with("HOLDS") {
            wrong.push(scenario.name);
        }
        table.add_row([scenario.name, &text]);
    }
    println!("{table}");
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        results.len()
    );
}

/// What the backend `ebpf` cannot do, and the stories that need it.
const LIMITS: &[(&str, &[&str])] = &[];

fn limit_of(scenario: &str) -> Option<&'static str> {
    LIMITS
        .iter()
        .find(|(_, scenarios)| scenarios.contains(&scenario))
        .map(|(why, _)| *why)
}

/// The child: tells one story and exits with what came of it.
fn tell(name: &str) -> ! {
    let scenario = SCENARIOS
        .iter()
        .find(|scenario| scenario.name == name)
        .expect("the parent knows the list");
    let ended = panic::catch_unwind(|| scenario.tell());
    if !backend_override::was_used() {
        exit(OWN_SETUP);
    }
    match ended {
        Ok(Ok(())) => exit(0),
        Ok(Err(error)) => {
            eprintln!("panicked at {error}");
            exit(FAILED)
        }
        Err(_) => exit(FAILED),
    }
}

fn run_all<'a>(chosen: &[&'a Scenario]) -> Vec<(&'a Scenario, End)> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let end = run(scenario);
                    results.lock().unwrap().push((*scenario, end));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(scenario, _)| chosen.iter().position(|other| other.name == scenario.name));
    results
}

fn run(scenario: &Scenario) -> End {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let pins = PathBuf::from(format!("/sys/fs/bpf/eg-backends-{}-{number}", std::process::id()));
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "every_scenario_holds_on_ebpf_or_is_a_known_limit",
            "--exact",
            "--nocapture",
        ])
        .env(TELL, scenario.name)
        .env(backend_override::BACKEND, "ebpf")
        .env(backend_override::PINS, &pins)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = child.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        said.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > LONGEST {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().unwrap();
    if pins.exists() {
        fs::remove_dir_all(&pins).unwrap();
    }
    match status.map(|status| status.code()) {
        Some(Some(0)) => End::Holds,
        Some(Some(OWN_SETUP)) => End::OwnSetup,
        Some(_) => End::Fails(first_assertion(&text)),
        None => End::Fails("hangs".to_owned()),
    }
}

fn first_assertion(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let place = lines.next().unwrap_or_default();
    let place = place.split("panicked at ").nth(1).unwrap_or_default();
    let words: String = lines.next().unwrap_or_default().chars().take(160).collect();
    format!("{place} {words}")
}

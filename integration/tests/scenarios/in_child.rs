//! Scenarios that a child process of the test runs, several at a time: one that hangs is ended, one that panics harms no other.

use std::{
    env,
    fs::{self, File},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::scenarios::{SCENARIOS, Scenario};

/// Names the scenario that a child is to run.
const NAME: &str = "EGRET_SCENARIO";
/// How a child says that an assertion of the scenario failed.
pub(crate) const FAILED: i32 = 10;
/// Scenarios are short; this is for one that hangs.
const LONGEST: Duration = Duration::from_secs(60);
/// Worlds at once. They mostly wait: six leave half of two CPUs idle.
const AT_ONCE: usize = 6;

/// The scenario of this process, if it is a child.
pub(crate) fn of_child() -> Option<&'static Scenario> {
    let name = env::var(NAME).ok()?;
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    Some(scenario.expect("the parent names scenarios of the list"))
}

/// Those whose name contains `EGRET_ONLY`.
pub(crate) fn chosen() -> Vec<&'static Scenario> {
    let only = env::var("EGRET_ONLY").unwrap_or_default();
    SCENARIOS
        .iter()
        .filter(|scenario| scenario.name.contains(&only))
        .collect()
}

/// Runs each, some at once; the results are in the order of the scenarios.
pub(crate) fn run_all<R: Send>(
    chosen: &[&'static Scenario],
    run: impl Fn(&'static Scenario) -> R + Sync,
) -> Vec<(&'static Scenario, R)> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = chosen.get(place) else { return };
                    let result = run(scenario);
                    results.lock().unwrap().push((place, *scenario, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(place, ..)| *place);
    results
        .into_iter()
        .map(|(_, scenario, result)| (scenario, result))
        .collect()
}

/// Runs the ignored `test` of this program for one scenario in a child. Returns its exit code, none for one that hangs, and what it
/// said.
pub(crate) fn run(scenario: &Scenario, test: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let log = env::temp_dir().join(format!("egret-{}-{}.log", std::process::id(), scenario.name));
    let file = File::create(&log).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(NAME, scenario.name)
        .env("CI", "true")
        .env("RUST_BACKTRACE", "0")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let mut status = None;
    let has_ended = egret_integration::is_soon(LONGEST, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !has_ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let said = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    fs::remove_file(&log).unwrap();
    (status.and_then(|status| status.code()), said)
}

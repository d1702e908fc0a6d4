//! `make switches`: every story is told again without the mechanism that it is about, and must fail.
//!
//! Each is told twice by a child process of this program, with the same binaries: first as it is, which must go well
//! (so that a story that cannot be told is not taken for one that fails as it should), then with its switch in
//! `EGRET_SWITCH_OFF`, which the daemons inherit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::{
    panic,
    path::Path,
    process::{Command, exit},
};

use comfy_table::Table;

#[path = "scenarios/mod.rs"]
#[allow(unused_macros, reason = "the list makes tests in the other program")]
mod scenarios;
#[path = "scenarios/in_child.rs"]
mod in_child;

use in_child::FAILED;
use scenarios::{Scenario, switch::Switch};

/// How a child says that the story could not begin.
const COULD_NOT_BE_TOLD: i32 = 11;

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    WentWell,
    /// An assertion of the story, in its words.
    Failed(String),
    CouldNotBeTold(String),
}

#[test]
fn the_copy_of_the_source_has_every_switch() {
    let folder = tempfile::tempdir().unwrap();
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("switches/copy");
    let made = Command::new(copy).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut source = String::new();
    for program in ["shared", "policies", "dnsd", "enforcer"] {
        read_all(&folder.path().join(program).join("src"), &mut source);
    }
    let is_asked = |switch: &&Switch| source.contains(&format!("is_off(Switch::{switch:?})"));
    let idle: Vec<_> = Switch::ALL.iter().filter(|switch| !is_asked(switch)).collect();
    assert!(idle.is_empty(), "nothing asks for {idle:?}");
}

fn read_all(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, text);
        } else {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
#[ignore = "needs daemons with switches: make switches"]
fn every_scenario_fails_without_its_mechanism() {
    if let Some(scenario) = in_child::of_child() {
        tell(scenario);
    }
    assert!(nix::unistd::geteuid().is_root(), "worlds need root");
    let results = in_child::run_all(&in_child::chosen(), |scenario| {
        let ends = [None, Some(scenario.switch.name())].map(|off| run(scenario, off));
        let [as_it_is, without] = &ends;
        eprintln!(
            "{}: {} / {}",
            scenario.name,
            verdict_as_it_is(as_it_is),
            verdict_without(without)
        );
        ends
    });
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["scenario", "switch", "as it is", "without its mechanism"]);
    for (scenario, [as_it_is, without]) in &results {
        let switch = scenario.switch.name();
        table.add_row([
            scenario.name,
            switch,
            &verdict_as_it_is(as_it_is),
            &verdict_without(without),
        ]);
    }
    println!("{table}");
    let wrong = results
        .iter()
        .filter(|(_, [as_it_is, without])| *as_it_is != End::WentWell || !matches!(without, End::Failed(_)));
    let wrong: Vec<_> = wrong.map(|(scenario, ..)| scenario.name).collect();
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        results.len()
    );
}

fn verdict_as_it_is(end: &End) -> String {
    match end {
        End::WentWell => "passes".into(),
        End::Failed(why) => format!("FAILS: {why}"),
        End::CouldNotBeTold(why) => format!("COULD NOT RUN: {why}"),
    }
}

fn verdict_without(end: &End) -> String {
    match end {
        End::WentWell => "STILL PASSES".into(),
        End::Failed(why) => format!("fails as it should: {why}"),
        End::CouldNotBeTold(why) => format!("COULD NOT RUN: {why}"),
    }
}

/// The child: tells one story and exits with what came of it.
fn tell(scenario: &Scenario) -> ! {
    match panic::catch_unwind(|| scenario.tell()) {
        Ok(Ok(())) => exit(0),
        Ok(Err(error)) => {
            eprintln!("could not be told: {error}");
            exit(COULD_NOT_BE_TOLD)
        }
        Err(_panic) => exit(FAILED),
    }
}

fn run(scenario: &Scenario, off: Option<&str>) -> End {
    let off = [("EGRET_SWITCH_OFF", off.unwrap_or_default())];
    let (status, said) = in_child::run(scenario, "every_scenario_fails_without_its_mechanism", &off);
    match status {
        Some(0) => End::WentWell,
        Some(FAILED) => End::Failed(assertion(&said)),
        Some(_) | None => End::CouldNotBeTold(last_words(&said)),
    }
}

/// What stands below the last `panicked at`.
fn assertion(said: &str) -> String {
    let below = said.split("panicked at ").nth(1).unwrap_or_default();
    let words = below
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with("note:"));
    shortened(words.take(3))
}

fn last_words(said: &str) -> String {
    let told = said.split("could not be told: ").nth(1);
    shortened(told.unwrap_or(said).lines().take(4))
}

fn shortened<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let text = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    text.chars().take(70).collect()
}

//! An enforcer that kills itself before one of its steps at the kernel, in the middle of a change, under load.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use egret_integration::{Family, World};

use crate::daemons::{Daemons, EnforcedBy, WHOLE_WITHIN};
use crate::report::say;
use crate::{POLICY, TestResult, start_loads, world_with_names};

/// The first steps belong to its start, which finds another policy; later ones to the changes after it.
const STEPS: [usize; 6] = [1, 2, 4, 7, 12, 40];

/// Known to binaries that were built with the tests alone (see `egret_kernel::faults`).
const DIES_BEFORE: &str = "EGRET_KILL_BEFORE_STEP";

/// The next process receives the observations that it missed; no allowed connection ends, and none opens that no policy allows.
#[test]
fn an_enforcer_that_dies_in_the_middle_of_a_change_loses_nothing_and_leaks_nothing() -> TestResult {
    let Some(world) = world_with_names(EnforcedBy::Netfilter, STEPS.len()) else {
        return Ok(());
    };
    if !can_die(&world.enforcer("netfilter").binary)? {
        assert!(
            std::env::var("CI").is_err(),
            "the enforcer was not built together with the tests: cargo test --workspace"
        );
        say("NOT TESTED: the enforcer was not built together with the tests: cargo test --workspace");
        return Ok(());
    }
    let mut daemons = Daemons::start(&world)?;
    let [life, client_knocks, other_knocks] = start_loads(&world);
    assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.connections > 10));
    for step in STEPS {
        let other = POLICY.replace(
            "domainNames: [",
            &format!("domainNames: [step{step}.example.test, "),
        );
        daemons.enforcer.kill()?;
        world.manifests().write("policy.yaml", &other)?;
        daemons
            .enforcer
            .restart_with_variable(DIES_BEFORE, &step.to_string())?;
        hold_dies(&mut daemons, step);
        daemons.bring_back(&world)?;
    }
    let life = life.stop();
    let leaked = client_knocks.stop().leaked + other_knocks.stop().leaked + life.leaked;
    assert_eq!((life.lost, leaked), (0, 0), "{life:#?}");
    let (connections, echoes) = (life.connections, life.echoes);
    say(&format!(
        "killed before the steps {STEPS:?}: {connections} connections, {echoes} echoes, lost 0, leaked 0"
    ));
    let after_all = rules(&world)?;
    daemons.enforcer.kill()?;
    let binary = daemons.enforcer.spec().binary.display().to_string();
    world.node().run_well(&[&binary, "cleanup"])?;
    assert!(!rules(&world)?.iter().any(|rule| rule.contains("EGRET")));
    daemons.bring_back(&world)?;
    assert_eq!(after_all, rules(&world)?, "as after a fresh start");
    Ok(())
}

fn can_die(binary: &Path) -> io::Result<bool> {
    let mut grep = Command::new("grep");
    let found = grep.args(["-q", DIES_BEFORE]).arg(binary).status()?;
    Ok(found.success())
}

fn hold_dies(daemons: &mut Daemons, step: usize) {
    let begun = Instant::now();
    loop {
        if let Some(end) = daemons.enforcer.ended() {
            assert_eq!(
                end.signal(),
                Some(nix::libc::SIGKILL),
                "before step {step}: {end}"
            );
            return;
        }
        assert!(begun.elapsed() < WHOLE_WITHIN, "there is no step {step}");
        std::thread::yield_now();
    }
}

/// All rules of both families, without counters (a chain of its own keeps the older ones), and without the generations of pods.
fn rules(world: &World) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for family in [Family::V4, Family::V6] {
        let text = world.node().iptables_save(family)?;
        let lines = text
            .lines()
            .filter(|line| line.starts_with("-A") && !line.starts_with("-A EGRET-TOTALS "));
        all.extend(lines.map(without_generation));
    }
    all.sort();
    Ok(all)
}

fn without_generation(rule: &str) -> String {
    let word = |word: &str| {
        let mark = word.split_once('/').filter(|(value, _)| value.starts_with("0x"));
        mark.map_or_else(|| word.to_owned(), |(_, mask)| format!("GENERATION/{mask}"))
    };
    rule.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

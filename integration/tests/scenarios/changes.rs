//! Policies change while traffic runs.

use egret_integration::{Connection, Records, World};

use super::stage::{QUICK, Setting, Stage, Told, eventually, metrics, only_names};

/// No policy asked for the name when the pod was told its address.
pub(super) fn a_policy_that_comes_later_works_from_history(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["api.example.test"])).play(world)?;
    stage
        .upstream()
        .set("later.example.test", Records::addresses(["203.0.113.8"]));
    stage.ask("client", "later.example.test");
    stage.assert_refused("client", "203.0.113.8");
    let both = only_names(&["api.example.test", "later.example.test"]);
    stage.world.manifests().write("policy.yaml", &both)?;
    eventually("the kernel has it", || {
        stage.kernel_holds("client", "203.0.113.8")
    });
    stage.assert_reaches("client", "203.0.113.8");
    assert_eq!(stage.upstream().asked("later.example.test"), 1);
    Ok(())
}

pub(super) fn a_change_of_policy_ends_what_it_forbids_and_nothing_else(world: &mut World) -> Told {
    let both = only_names(&["keep.example.test", "drop.example.test"]);
    let stage = Setting::of(both).and_pod("other").play(world)?;
    stage.upstream().set(
        "keep.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]),
    );
    stage
        .upstream()
        .set("drop.example.test", Records::addresses(["203.0.113.8"]));
    for pod in ["client", "other"] {
        stage.ask(pod, "keep.example.test");
        stage.ask(pod, "drop.example.test");
    }
    let mut kept = [
        stage.assert_reaches("client", "203.0.113.7"),
        stage.assert_reaches("other", "203.0.113.7"),
    ];
    let mut dropped = stage.assert_reaches("client", "203.0.113.8");
    assert!(dropped.is_alive() && kept.iter_mut().all(Connection::is_alive));
    stage
        .world
        .manifests()
        .write("policy.yaml", &only_names(&["keep.example.test"]))?;
    eventually("the kernel has forgotten it", || {
        !stage.kernel_holds("client", "203.0.113.8")
    });
    stage.assert_refused("client", "203.0.113.8");
    let carried = dropped.echo_within(QUICK);
    assert!(carried.is_err(), "the open connection goes on: {carried:?}");
    assert!(
        kept.iter_mut().all(Connection::is_alive),
        "nothing changed for these"
    );
    stage.assert_reaches("client", "203.0.113.7");
    Ok(())
}

/// A text that is no YAML at all, and an object with a field that says nothing sensible.
pub(super) fn a_bad_policy_file_is_named_and_what_worked_stays_in_force(world: &mut World) -> Told {
    let good = only_names(&["api.example.test"]);
    let stage = Setting::of(good.clone()).play(world)?;
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    stage.ask("client", "api.example.test");
    stage.assert_reaches("client", "203.0.113.7");
    let bad = [
        (
            good.replace("  egress:", "  egress: ]"),
            vec!["policy.yaml:10:11", "accepted"],
        ),
        (
            good.replace("priority: 10", "priority: ten"),
            vec!["policy.yaml", "spec.priority", "line 7", "accepted"],
        ),
    ];
    for (text, said) in bad {
        stage.world.manifests().write("policy.yaml", &text)?;
        await_log(&stage, &said);
        await_bad_files(&stage, 1.0);
        stage.assert_reaches("client", "203.0.113.7");
        stage.assert_refused("client", "203.0.113.8");
        stage.world.manifests().write("policy.yaml", &good)?;
        await_bad_files(&stage, 0.0);
        stage.assert_reaches("client", "203.0.113.7");
    }
    Ok(())
}

#[track_caller]
fn await_log(stage: &Stage<'_>, words: &[&str]) {
    eventually("the log names the file and the place", || {
        let log = stage.enforcer.log();
        log.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    });
}

#[track_caller]
fn await_bad_files(stage: &Stage<'_>, number: f64) {
    eventually("bad files are counted", || {
        metrics(&stage.enforcer).sum("egret_enforcer_source_bad_files", &[]) == number
    });
}

//! An answer waits until the kernel is ready for what it tells, and no longer than it may.
//!
//! A stopped enforcer (SIGSTOP) is the slowest one that there can be: what does not wait for it is seen at once.

use std::time::Duration;

use egret_integration::{
    DaemonSpec, Lookup, LookupFailure, RecordType, Records, ResponseCode, World, node, upstream,
};

use super::stage::{
    PATIENCE, Setting, Told, assert_nothing_comes, eventually, metrics, next_of, only_names,
    patient_question, while_asking, within,
};

pub(super) fn no_answer_arrives_before_the_kernel_is_ready(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["api.example.test"]))
        .patient()
        .play(world)?;
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    stage.enforcer.stop()?;
    while_asking(
        &[(stage.pod("client"), patient_question("api.example.test"))],
        |answers| {
            assert!(stage.upstream().wait_until_asked("api.example.test", 1, PATIENCE));
            assert_nothing_comes(answers);
            assert!(!stage.kernel_holds("client", "203.0.113.7"));
            stage.enforcer.cont().unwrap();
            next_of(answers);
            stage.assert_reaches("client", "203.0.113.7");
            assert!(stage.kernel_holds("client", "203.0.113.7"));
        },
    );
    Ok(())
}

/// The second answer changes nothing in the record, so a resolver that waits for changes would release it at once.
pub(super) fn the_second_of_two_simultaneous_questions_waits_as_long_as_the_first(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["api.example.test"]))
        .patient()
        .play(world)?;
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]).held());
    let (client, question) = (stage.pod("client"), patient_question("api.example.test"));
    while_asking(&[(client, question.clone()), (client, question)], |answers| {
        let both = || stage.dnsd_counted("egret_dnsd_queries_total", &[]) == 2.0;
        eventually("dnsd has both questions", both);
        assert!(stage.upstream().wait_until_asked("api.example.test", 1, PATIENCE));
        stage.enforcer.stop().unwrap();
        stage.upstream().release("api.example.test");
        assert_nothing_comes(answers);
        assert!(!stage.kernel_holds("client", "203.0.113.7"));
        stage.enforcer.cont().unwrap();
        for _ in 0..2 {
            next_of(answers);
            stage.assert_reaches("client", "203.0.113.7");
        }
    });
    Ok(())
}

pub(super) fn an_answer_from_the_cache_is_held_for_a_pod_that_was_not_told(world: &mut World) -> Told {
    let setting = Setting::of(only_names(&["api.example.test"]))
        .and_pod("other")
        .patient();
    let stage = setting.play(world)?;
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    stage.ask("client", "api.example.test");
    stage.enforcer.stop()?;
    // The pod that was told gets it at once: for it the kernel is ready.
    stage.ask("client", "api.example.test");
    while_asking(
        &[(stage.pod("other"), patient_question("api.example.test"))],
        |answers| {
            assert_nothing_comes(answers);
            stage.enforcer.cont().unwrap();
            next_of(answers);
            stage.assert_reaches("other", "203.0.113.7");
        },
    );
    assert_eq!(stage.upstream().asked("api.example.test"), 1);
    Ok(())
}

pub(super) fn a_stalled_answer_is_released_at_its_deadline_and_opens_nothing(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["api.example.test"])).play(world)?;
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    stage.enforcer.stop()?;
    let reply = stage.ask("client", "api.example.test");
    let waited = reply.took.as_millis();
    assert!(
        (195..1000).contains(&waited),
        "{waited} ms, where the deadline is 200 ms"
    );
    assert_eq!(reply.addresses().len(), 1);
    let stalled = [("action", "release"), ("reason", "deadline")];
    assert_eq!(stage.dnsd_counted("egret_dnsd_stalls_total", &stalled), 1.0);
    stage.assert_refused("client", "203.0.113.7");
    stage.enforcer.cont()?;
    eventually("the kernel has it", || {
        stage.kernel_holds("client", "203.0.113.7")
    });
    stage.assert_reaches("client", "203.0.113.7");
    Ok(())
}

pub(super) fn a_stalled_answer_becomes_a_failure_or_silence_where_told_so(world: &mut World) -> Told {
    let setting = Setting::of(only_names(&["*.example.test"])).dnsd(&["--on-stall", "servfail"]);
    let mut stage = setting.play(world)?;
    stage
        .upstream()
        .set("fail.example.test", Records::addresses(["203.0.113.7"]));
    stage
        .upstream()
        .set("drop.example.test", Records::addresses(["203.0.113.8"]));
    stage.enforcer.stop()?;
    let reply = stage.ask("client", "fail.example.test");
    assert_eq!(
        (reply.code(), reply.addresses().len()),
        (ResponseCode::ServFail, 0)
    );
    stage.enforcer.cont()?;
    assert_eq!(
        stage.ask("client", "fail.example.test").code(),
        ResponseCode::NoError
    );
    stage.assert_reaches("client", "203.0.113.7");

    stage.dnsd.terminate()?;
    stage.dnsd = stage
        .world
        .start(stage.world.dnsd().with(["--on-stall", "drop"]))?;
    stage.wait_until_joined();
    stage.enforcer.stop()?;
    let lookup = Lookup::of("drop.example.test", RecordType::A).patience(Duration::from_millis(600));
    let reply = stage.pod("client").look_up(&lookup);
    assert!(matches!(reply, Err(LookupFailure::NoAnswer { .. })), "{reply:?}");
    assert_eq!(
        stage.dnsd_counted("egret_dnsd_stalls_total", &[("action", "drop")]),
        1.0
    );
    stage.enforcer.cont()?;
    Ok(())
}

pub(super) fn what_was_told_while_the_enforcer_was_away_is_realized_soon_after(world: &mut World) -> Told {
    let setting = Setting::of(only_names(&["*.example.test"])).dnsd(&["--stall-deadline", "20ms"]);
    let mut stage = setting.play(world)?;
    for number in 1..=20 {
        let name = format!("n{number}.example.test");
        stage
            .upstream()
            .set(&name, Records::addresses([format!("203.0.113.{number}")]));
    }
    stage.enforcer.kill()?;
    for number in 1..=20 {
        assert_eq!(
            stage
                .ask("client", &format!("n{number}.example.test"))
                .addresses()
                .len(),
            1
        );
        if number == 1 {
            stage.assert_refused("client", "203.0.113.1");
        }
    }
    stage.enforcer.restart()?;
    stage.enforcer.wait_until_ready()?;
    within(
        Duration::from_millis(200),
        "the kernel has all that was told",
        || stage.kernel_records("client").len() == 20,
    );
    stage.assert_reaches("client", "203.0.113.20");
    Ok(())
}

/// While dnsd is rolled there are two. What the enforcer has realized of the one says nothing of the other, although
/// both number what they tell from one on.
pub(super) fn two_dnsds_hold_each_what_it_told_itself(world: &mut World) -> Told {
    let policy =
        only_names(&["*.example.test"]).replace("169.254.20.10/32", "169.254.20.10/32, 10.76.0.2/32");
    let mut stage = Setting::of(policy).play(world)?;
    for number in 1..=5 {
        let name = format!("n{number}.example.test");
        let address = format!("203.0.113.{number}");
        stage.upstream().set(&name, Records::addresses([address]));
        stage.ask("client", &name);
    }
    let second = DaemonSpec::dnsd(9255)
        .with(["--listen".to_owned(), format!("{}:53", node::ADDRESS)])
        .with(["--upstream".to_owned(), format!("{}:53", upstream::ADDRESS)])
        .with(["--link".to_owned(), stage.world.link().display().to_string()])
        .with(["--stall-deadline", "4s"]);
    let second = stage.world.start(second)?;
    eventually("the second is joined", || {
        metrics(&second).sum("egret_dnsd_link_connected", &[]) == 1.0
            && metrics(&second).sum("egret_dnsd_interested_clients", &[]) > 0.0
    });
    stage
        .upstream()
        .set("new.example.test", Records::addresses(["203.0.113.9"]));
    stage.enforcer.stop()?;
    let question = patient_question("new.example.test").at(node::ADDRESS);
    while_asking(&[(stage.pod("client"), question)], |answers| {
        assert!(stage.upstream().wait_until_asked("new.example.test", 1, PATIENCE));
        assert_nothing_comes(answers);
        stage.enforcer.cont().unwrap();
        next_of(answers);
        stage.assert_reaches("client", "203.0.113.9");
    });
    stage.dnsd.kill()?;
    for address in ["203.0.113.1", "203.0.113.5", "203.0.113.9"] {
        stage.assert_reaches("client", address);
    }
    Ok(())
}

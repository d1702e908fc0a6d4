//! An answer waits until the kernel is ready for what it tells, and no longer than it may.
//!
//! A stopped enforcer (SIGSTOP) is the slowest one that there can be: what does not wait for it is seen at once.

use std::time::Duration;

use egret_integration::{
    DaemonSpec, Lookup, LookupFailure, RecordType, Records, ResponseCode, World, node, upstream,
};

use super::deployment::{
    PATIENCE, Setup, TestResult, assert_nothing_comes, eventually, metrics, next_of, only_names,
    patient_question, while_asking, within,
};

pub(super) fn no_answer_arrives_before_the_kernel_is_ready(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"]))
        .patient()
        .deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.enforcer.stop()?;
    while_asking(
        &[(deployment.pod("client"), patient_question("api.example.test"))],
        |answers| {
            assert!(
                deployment
                    .upstream()
                    .wait_until_asked("api.example.test", 1, PATIENCE)
            );
            assert_nothing_comes(answers);
            assert!(!deployment.kernel_holds("client", "203.0.113.7"));
            deployment.enforcer.cont().unwrap();
            next_of(answers);
            deployment.assert_reaches("client", "203.0.113.7");
            assert!(deployment.kernel_holds("client", "203.0.113.7"));
        },
    );
    Ok(())
}

/// The second answer changes nothing in the record, so a resolver that waits for changes would release it at once.
pub(super) fn the_second_of_two_simultaneous_questions_waits_as_long_as_the_first(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"]))
        .patient()
        .deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]).held());
    let (client, question) = (deployment.pod("client"), patient_question("api.example.test"));
    while_asking(&[(client, question.clone()), (client, question)], |answers| {
        let both = || deployment.dnsd_counted("egret_dnsd_queries_total", &[]) == 2.0;
        eventually("dnsd has both questions", both);
        assert!(
            deployment
                .upstream()
                .wait_until_asked("api.example.test", 1, PATIENCE)
        );
        deployment.enforcer.stop().unwrap();
        deployment.upstream().release("api.example.test");
        assert_nothing_comes(answers);
        assert!(!deployment.kernel_holds("client", "203.0.113.7"));
        deployment.enforcer.cont().unwrap();
        for _ in 0..2 {
            next_of(answers);
            deployment.assert_reaches("client", "203.0.113.7");
        }
    });
    Ok(())
}

pub(super) fn an_answer_from_the_cache_is_held_for_a_pod_that_was_not_told(world: &mut World) -> TestResult {
    let setting = Setup::of(only_names(&["api.example.test"]))
        .and_pod("other")
        .patient();
    let deployment = setting.deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("client", "api.example.test");
    deployment.enforcer.stop()?;
    // The pod that was told gets it at once: for it the kernel is ready.
    deployment.ask("client", "api.example.test");
    while_asking(
        &[(deployment.pod("other"), patient_question("api.example.test"))],
        |answers| {
            assert_nothing_comes(answers);
            deployment.enforcer.cont().unwrap();
            next_of(answers);
            deployment.assert_reaches("other", "203.0.113.7");
        },
    );
    assert_eq!(deployment.upstream().asked("api.example.test"), 1);
    Ok(())
}

pub(super) fn a_stalled_answer_is_released_at_its_deadline_and_opens_nothing(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.enforcer.stop()?;
    let reply = deployment.ask("client", "api.example.test");
    let waited = reply.took.as_millis();
    assert!(
        (195..1000).contains(&waited),
        "{waited} ms, where the deadline is 200 ms"
    );
    assert_eq!(reply.addresses().len(), 1);
    let stalled = [("action", "release"), ("reason", "deadline")];
    assert_eq!(deployment.dnsd_counted("egret_dnsd_stalls_total", &stalled), 1.0);
    deployment.assert_refused("client", "203.0.113.7");
    deployment.enforcer.cont()?;
    eventually("the kernel has it", || {
        deployment.kernel_holds("client", "203.0.113.7")
    });
    deployment.assert_reaches("client", "203.0.113.7");
    Ok(())
}

pub(super) fn a_stalled_answer_becomes_a_failure_or_silence_where_told_so(world: &mut World) -> TestResult {
    let setting = Setup::of(only_names(&["*.example.test"])).dnsd(&["--on-stall", "servfail"]);
    let mut deployment = setting.deploy(world)?;
    deployment
        .upstream()
        .set("fail.example.test", Records::addresses(["203.0.113.7"]));
    deployment
        .upstream()
        .set("drop.example.test", Records::addresses(["203.0.113.8"]));
    deployment.enforcer.stop()?;
    let reply = deployment.ask("client", "fail.example.test");
    assert_eq!(
        (reply.code(), reply.addresses().len()),
        (ResponseCode::ServFail, 0)
    );
    deployment.enforcer.cont()?;
    assert_eq!(
        deployment.ask("client", "fail.example.test").code(),
        ResponseCode::NoError
    );
    deployment.assert_reaches("client", "203.0.113.7");

    deployment.dnsd.terminate()?;
    deployment.dnsd = deployment
        .world
        .start(deployment.world.dnsd().with(["--on-stall", "drop"]))?;
    deployment.wait_until_joined();
    deployment.enforcer.stop()?;
    let lookup = Lookup::of("drop.example.test", RecordType::A).patience(Duration::from_millis(600));
    let reply = deployment.pod("client").look_up(&lookup);
    assert!(matches!(reply, Err(LookupFailure::NoAnswer { .. })), "{reply:?}");
    assert_eq!(
        deployment.dnsd_counted("egret_dnsd_stalls_total", &[("action", "drop")]),
        1.0
    );
    deployment.enforcer.cont()?;
    Ok(())
}

pub(super) fn what_was_told_while_the_enforcer_was_away_is_realized_soon_after(
    world: &mut World,
) -> TestResult {
    let setting = Setup::of(only_names(&["*.example.test"])).dnsd(&["--stall-deadline", "20ms"]);
    let mut deployment = setting.deploy(world)?;
    for number in 1..=20 {
        let name = format!("n{number}.example.test");
        deployment
            .upstream()
            .set(&name, Records::addresses([format!("203.0.113.{number}")]));
    }
    deployment.enforcer.kill()?;
    for number in 1..=20 {
        assert_eq!(
            deployment
                .ask("client", &format!("n{number}.example.test"))
                .addresses()
                .len(),
            1
        );
        if number == 1 {
            deployment.assert_refused("client", "203.0.113.1");
        }
    }
    deployment.enforcer.restart()?;
    deployment.enforcer.wait_until_ready()?;
    within(
        Duration::from_millis(200),
        "the kernel has all that was told",
        || deployment.kernel_records("client").len() == 20,
    );
    deployment.assert_reaches("client", "203.0.113.20");
    Ok(())
}

/// While dnsd is rolled there are two. What the enforcer has realized of the one says nothing of the other, although
/// both number what they tell from one on.
pub(super) fn two_dnsds_hold_each_what_it_told_itself(world: &mut World) -> TestResult {
    let policy =
        only_names(&["*.example.test"]).replace("169.254.20.10/32", "169.254.20.10/32, 10.76.0.2/32");
    let mut deployment = Setup::of(policy).deploy(world)?;
    for number in 1..=5 {
        let name = format!("n{number}.example.test");
        let address = format!("203.0.113.{number}");
        deployment.upstream().set(&name, Records::addresses([address]));
        deployment.ask("client", &name);
    }
    let second = DaemonSpec::dnsd(9255)
        .with(["--listen".to_owned(), format!("{}:53", node::ADDRESS)])
        .with(["--upstream".to_owned(), format!("{}:53", upstream::ADDRESS)])
        .with(["--link".to_owned(), deployment.world.link().display().to_string()])
        .with(["--stall-deadline", "4s"]);
    let second = deployment.world.start(second)?;
    eventually("the second is joined", || {
        metrics(&second).sum("egret_dnsd_link_connected", &[]) == 1.0
            && metrics(&second).sum("egret_dnsd_interested_clients", &[]) > 0.0
    });
    deployment
        .upstream()
        .set("new.example.test", Records::addresses(["203.0.113.9"]));
    deployment.enforcer.stop()?;
    let question = patient_question("new.example.test").at(node::ADDRESS);
    while_asking(&[(deployment.pod("client"), question)], |answers| {
        assert!(
            deployment
                .upstream()
                .wait_until_asked("new.example.test", 1, PATIENCE)
        );
        assert_nothing_comes(answers);
        deployment.enforcer.cont().unwrap();
        next_of(answers);
        deployment.assert_reaches("client", "203.0.113.9");
    });
    deployment.dnsd.kill()?;
    for address in ["203.0.113.1", "203.0.113.5", "203.0.113.9"] {
        deployment.assert_reaches("client", address);
    }
    Ok(())
}

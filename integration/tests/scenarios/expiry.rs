//! What happens when a record's time is over.

use std::time::Duration;

use egret_integration::{Records, World};

use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually, metrics, only_names};

pub(super) fn a_name_whose_time_is_over_opens_no_new_connection(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.example.test"]))
        .without_grace()
        .deploy(world)?;
    deployment
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    deployment.upstream().set(
        "lasting.example.test",
        Records::addresses(["203.0.113.8"]).ttl(60),
    );
    deployment
        .upstream()
        .set("twin.example.test", Records::addresses(["203.0.113.8"]).ttl(1));
    for name in ["brief.example.test", "lasting.example.test", "twin.example.test"] {
        deployment.ask("client", name);
    }
    deployment.assert_reaches("client", "203.0.113.7");
    eventually("the record has ended", || {
        !deployment.kernel_holds("client", "203.0.113.7")
    });
    deployment.assert_refused("client", "203.0.113.7");
    // An address of two names lives as long as either.
    deployment.assert_reaches("client", "203.0.113.8");
    deployment.ask("client", "brief.example.test");
    deployment.assert_reaches("client", "203.0.113.7");
    assert_eq!(deployment.upstream().asked("brief.example.test"), 2);
    Ok(())
}

/// A TTL of 0 means "for this once" (RFC 1035 section 3.2.1): never for ever, never too short to connect.
pub(super) fn an_answer_without_time_to_live_is_usable_for_a_moment(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["now.example.test"]))
        .without_grace()
        .deploy(world)?;
    deployment
        .upstream()
        .set("now.example.test", Records::addresses(["203.0.113.7"]).ttl(0));
    for _ in 0..3 {
        assert_eq!(deployment.ask("client", "now.example.test").ttl(), Some(0));
        deployment.assert_reaches("client", "203.0.113.7");
    }
    assert_eq!(
        deployment.upstream().asked("now.example.test"),
        3,
        "it is not cached"
    );
    eventually("the record has ended", || {
        !deployment.kernel_holds("client", "203.0.113.7")
    });
    deployment.assert_refused("client", "203.0.113.7");
    Ok(())
}

pub(super) fn an_open_connection_outlives_its_record(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["brief.example.test"]))
        .without_grace()
        .and_pod("other")
        .deploy(world)?;
    deployment.upstream().set(
        "brief.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]).ttl(1),
    );
    deployment.ask("client", "brief.example.test");
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    assert!(open.is_alive());
    let mut pushed = deployment.reach_port("client", "203.0.113.7", 19).connection();
    eventually("the record has ended", || {
        !deployment.kernel_holds("client", "203.0.113.7")
    });
    deployment.assert_refused("client", "203.0.113.7");
    assert!(open.is_alive(), "it was opened in time");
    assert!(pushed.received_within(Duration::from_millis(200))? > 0);

    // A change that is about others does not ask it again.
    deployment.world.manifests().write("other.yaml", OTHERS)?;
    deployment
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    eventually("the change is in force", || {
        deployment
            .pod("other")
            .resolve("brief.example.test", egret_integration::RecordType::A)
            .is_err()
    });
    assert!(open.is_alive(), "nothing changed for this pod");
    Ok(())
}

/// The change takes something else away from this very pod, so its open connections are judged again; the name is
/// allowed as before.
pub(super) fn an_open_connection_outlives_its_record_and_a_later_change_of_policy(
    world: &mut World,
) -> TestResult {
    let after = only_names(&["brief.example.test"]);
    let network =
        "  - name: more\n    action: Accept\n    to:\n    - networks: [198.51.100.0/24]\n  - name: rest";
    let before = after.replace("  - name: rest", network);
    let deployment = Setup::of(before).without_grace().deploy(world)?;
    deployment
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    deployment.ask("client", "brief.example.test");
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    let mut ended = deployment.assert_reaches("client", "198.51.100.1");
    assert!(open.is_alive() && ended.is_alive());
    eventually("the record has ended", || {
        !deployment.kernel_holds("client", "203.0.113.7")
    });
    deployment.world.manifests().write("policy.yaml", &after)?;
    eventually("what was taken away has ended", || {
        ended.echo_within(QUICK).is_err()
    });
    assert!(
        open.is_alive(),
        "it was allowed when it was opened, and its name still is"
    );
    deployment.assert_refused("client", "203.0.113.7");
    Ok(())
}

/// The list of names is another one, then it is another while the enforcer is away, and at last the name is gone.
pub(super) fn an_open_connection_outlives_its_record_while_some_rule_names_it(
    world: &mut World,
) -> TestResult {
    let mut deployment = Setup::of(only_names(&["brief.example.test"]))
        .without_grace()
        .deploy(world)?;
    deployment
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    deployment.ask("client", "brief.example.test");
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    eventually("the record has ended", || {
        !deployment.kernel_holds("client", "203.0.113.7")
    });
    let change = |deployment: &Deployment<'_>, names: &[&str]| -> TestResult {
        let revision = || metrics(&deployment.enforcer).sum("egret_enforcer_revision", &[]);
        let before = revision();
        deployment
            .world
            .manifests()
            .write("policy.yaml", &only_names(names))?;
        eventually("the change is in force", || revision() > before);
        Ok(())
    };
    change(&deployment, &["brief.example.test", "more.example.test"])?;
    assert!(open.is_alive(), "its name is allowed as before");
    deployment.assert_refused("client", "203.0.113.7");

    // Nobody is left to tell it again.
    deployment.dnsd.kill()?;
    deployment.enforcer.kill()?;
    let wild = only_names(&["*.example.test"]);
    deployment.world.manifests().write("policy.yaml", &wild)?;
    deployment.enforcer.restart()?;
    deployment.enforcer.wait_until_ready()?;
    assert!(open.is_alive(), "its name is allowed by another rule now");
    deployment.assert_refused("client", "203.0.113.7");

    change(&deployment, &["more.example.test"])?;
    eventually("nothing names it, so it ends", || {
        open.echo_within(QUICK).is_err()
    });
    Ok(())
}

const OTHERS: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: others
spec:
  tier: Admin
  priority: 1
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {app: other}}
  egress:
  - name: nothing
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#;

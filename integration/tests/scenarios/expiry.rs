//! What happens when a record's time is over.

use std::time::Duration;

use egret_integration::{Records, World};

use super::stage::{QUICK, Setting, Stage, Told, eventually, metrics, only_names};

pub(super) fn a_name_whose_time_is_over_opens_no_new_connection(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["*.example.test"]))
        .without_grace()
        .play(world)?;
    stage
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    stage.upstream().set(
        "lasting.example.test",
        Records::addresses(["203.0.113.8"]).ttl(60),
    );
    stage
        .upstream()
        .set("twin.example.test", Records::addresses(["203.0.113.8"]).ttl(1));
    for name in ["brief.example.test", "lasting.example.test", "twin.example.test"] {
        stage.ask("client", name);
    }
    stage.assert_reaches("client", "203.0.113.7");
    eventually("the record has ended", || {
        !stage.kernel_holds("client", "203.0.113.7")
    });
    stage.assert_refused("client", "203.0.113.7");
    // An address of two names lives as long as either.
    stage.assert_reaches("client", "203.0.113.8");
    stage.ask("client", "brief.example.test");
    stage.assert_reaches("client", "203.0.113.7");
    assert_eq!(stage.upstream().asked("brief.example.test"), 2);
    Ok(())
}

/// A TTL of 0 means "for this once" (RFC 1035 section 3.2.1): never for ever, never too short to connect.
pub(super) fn an_answer_without_time_to_live_is_usable_for_a_moment(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["now.example.test"]))
        .without_grace()
        .play(world)?;
    stage
        .upstream()
        .set("now.example.test", Records::addresses(["203.0.113.7"]).ttl(0));
    for _ in 0..3 {
        assert_eq!(stage.ask("client", "now.example.test").ttl(), Some(0));
        stage.assert_reaches("client", "203.0.113.7");
    }
    assert_eq!(stage.upstream().asked("now.example.test"), 3, "it is not cached");
    eventually("the record has ended", || {
        !stage.kernel_holds("client", "203.0.113.7")
    });
    stage.assert_refused("client", "203.0.113.7");
    Ok(())
}

pub(super) fn an_open_connection_outlives_its_record(world: &mut World) -> Told {
    let stage = Setting::of(only_names(&["brief.example.test"]))
        .without_grace()
        .and_pod("other")
        .play(world)?;
    stage.upstream().set(
        "brief.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]).ttl(1),
    );
    stage.ask("client", "brief.example.test");
    let mut open = stage.assert_reaches("client", "203.0.113.7");
    assert!(open.is_alive());
    let mut pushed = stage.reach_port("client", "203.0.113.7", 19).connection();
    eventually("the record has ended", || {
        !stage.kernel_holds("client", "203.0.113.7")
    });
    stage.assert_refused("client", "203.0.113.7");
    assert!(open.is_alive(), "it was opened in time");
    assert!(pushed.received_within(Duration::from_millis(200))? > 0);

    // A change that is about others does not ask it again.
    stage.world.manifests().write("other.yaml", OTHERS)?;
    stage
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    eventually("the change is in force", || {
        stage
            .pod("other")
            .resolve("brief.example.test", egret_integration::RecordType::A)
            .is_err()
    });
    assert!(open.is_alive(), "nothing changed for this pod");
    Ok(())
}

/// The change takes something else away from this very pod, so its open connections are judged again; the name is
/// allowed as before.
pub(super) fn an_open_connection_outlives_its_record_and_a_later_change_of_policy(world: &mut World) -> Told {
    let after = only_names(&["brief.example.test"]);
    let network =
        "  - name: more\n    action: Accept\n    to:\n    - networks: [198.51.100.0/24]\n  - name: rest";
    let before = after.replace("  - name: rest", network);
    let stage = Setting::of(before).without_grace().play(world)?;
    stage
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    stage.ask("client", "brief.example.test");
    let mut open = stage.assert_reaches("client", "203.0.113.7");
    let mut ended = stage.assert_reaches("client", "198.51.100.1");
    assert!(open.is_alive() && ended.is_alive());
    eventually("the record has ended", || {
        !stage.kernel_holds("client", "203.0.113.7")
    });
    stage.world.manifests().write("policy.yaml", &after)?;
    eventually("what was taken away has ended", || {
        ended.echo_within(QUICK).is_err()
    });
    assert!(
        open.is_alive(),
        "it was allowed when it was opened, and its name still is"
    );
    stage.assert_refused("client", "203.0.113.7");
    Ok(())
}

/// The list of names is another one, then it is another while the enforcer is away, and at last the name is gone.
pub(super) fn an_open_connection_outlives_its_record_while_some_rule_names_it(world: &mut World) -> Told {
    let mut stage = Setting::of(only_names(&["brief.example.test"]))
        .without_grace()
        .play(world)?;
    stage
        .upstream()
        .set("brief.example.test", Records::addresses(["203.0.113.7"]).ttl(1));
    stage.ask("client", "brief.example.test");
    let mut open = stage.assert_reaches("client", "203.0.113.7");
    eventually("the record has ended", || {
        !stage.kernel_holds("client", "203.0.113.7")
    });
    let change = |stage: &Stage<'_>, names: &[&str]| -> Told {
        let revision = || metrics(&stage.enforcer).sum("egret_enforcer_revision", &[]);
        let before = revision();
        stage.world.manifests().write("policy.yaml", &only_names(names))?;
        eventually("the change is in force", || revision() > before);
        Ok(())
    };
    change(&stage, &["brief.example.test", "more.example.test"])?;
    assert!(open.is_alive(), "its name is allowed as before");
    stage.assert_refused("client", "203.0.113.7");

    // Nobody is left to tell it again.
    stage.dnsd.kill()?;
    stage.enforcer.kill()?;
    let wild = only_names(&["*.example.test"]);
    stage.world.manifests().write("policy.yaml", &wild)?;
    stage.enforcer.restart()?;
    stage.enforcer.wait_until_ready()?;
    assert!(open.is_alive(), "its name is allowed by another rule now");
    stage.assert_refused("client", "203.0.113.7");

    change(&stage, &["more.example.test"])?;
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

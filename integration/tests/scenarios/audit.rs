//! Policies are tried: what they would deny is told and counted, and goes on.

use egret_integration::{Records, World};
use serde_json::Value;

use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually, metrics, only_names};
use super::events::{Events, telling};

/// What makes a policy, or a namespace, one that is tried.
const TRIED: &str = "annotations: {policy.egret.dev/enforcement: audit}";

/// `api.example.test` and nothing else, and this about it.
fn only_api(metadata: &str) -> String {
    let policy = only_names(&["api.example.test"]);
    policy.replace("  name: names\n", &format!("  name: names\n  {metadata}\n"))
}

fn tell_names(deployment: &Deployment<'_>) {
    for (name, address) in [
        ("api.example.test", "203.0.113.7"),
        ("other.example.test", "203.0.113.8"),
    ] {
        deployment.upstream().set(name, Records::addresses([address]));
        deployment.ask("client", name);
    }
}

/// What would have been denied, as lines.
fn told(events: &Events) -> Vec<Value> {
    let is_meant = |line: &Value| line["type"] == "audit";
    events.all().into_iter().filter(is_meant).collect()
}

/// What the policy was counted for.
fn counted(deployment: &Deployment<'_>, action: &str) -> f64 {
    let labels = [("action", action), ("tier", "admin"), ("direction", "egress")];
    metrics(&deployment.enforcer).sum("egret_enforcer_verdicts_total", &labels)
}

/// The pod reaches what the policy would deny; one line and one count say so, and none speaks of what it would allow.
#[track_caller]
fn assert_tried(deployment: &Deployment<'_>, events: &Events) {
    tell_names(deployment);
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_reaches("client", "203.0.113.8");
    eventually("it is told", || !told(events).is_empty());
    let [line] = told(events).try_into().expect("it is told once");
    let said = [
        "verdict",
        "reason",
        "direction",
        "tier",
        "policy",
        "namespace",
        "pod",
        "protocol",
    ];
    assert_eq!(
        said.map(|field| line[field].as_str().unwrap_or_default().to_owned()),
        [
            "would-deny",
            "rule",
            "egress",
            "admin",
            "ClusterNetworkPolicy/names",
            "default",
            "client",
            "TCP"
        ],
        "{line}"
    );
    assert_eq!(
        (&line["rule"], &line["peer"]["address"], &line["peer"]["name"]),
        (&2.into(), &"203.0.113.8".into(), &"other.example.test".into()),
        "{line}"
    );
    assert_eq!(counted(deployment, "would-deny"), 1.0);
}

pub(super) fn a_policy_in_audit_denies_nothing_and_says_once_what_it_would_deny(
    world: &mut World,
) -> TestResult {
    let (deployment, events) = telling(world, Setup::of(only_api(TRIED)))?;
    assert_tried(&deployment, &events);
    Ok(())
}

/// What it forbids ends, and what it allows does not.
pub(super) fn a_policy_that_leaves_audit_ends_what_it_forbids(world: &mut World) -> TestResult {
    let (deployment, events) = telling(world, Setup::of(only_api(TRIED)))?;
    tell_names(&deployment);
    let mut allowed = deployment.assert_reaches("client", "203.0.113.7");
    let mut forbidden = deployment.assert_reaches("client", "203.0.113.8");
    eventually("it is told", || !told(&events).is_empty());
    assert!(allowed.is_alive() && forbidden.is_alive());
    deployment.world.manifests().write("policy.yaml", &only_api(""))?;
    eventually("it is in force", || {
        !deployment.reach("client", "203.0.113.8").is_connected()
    });
    let carried = forbidden.echo_within(QUICK);
    assert!(carried.is_err(), "the open connection goes on: {carried:?}");
    assert!(allowed.is_alive());
    deployment.assert_reaches("client", "203.0.113.7");
    let would = counted(&deployment, "would-deny");
    eventually("what is denied is counted", || counted(&deployment, "deny") > 0.0);
    assert_eq!(
        counted(&deployment, "would-deny"),
        would,
        "nothing is tried any more"
    );
    Ok(())
}

/// The pods of another namespace are judged.
pub(super) fn a_namespace_in_audit_has_no_policy_in_force(world: &mut World) -> TestResult {
    let namespace = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: default, labels: {{kubernetes.io/metadata.name: default}}, {TRIED}}}\n"
    );
    let elsewhere = egret_integration::PodSpec::new("judged").in_namespace("strict");
    let setting = Setup::of(only_api("")).and(elsewhere);
    let (deployment, events) = telling(world, setting)?;
    deployment.assert_refused("client", "203.0.113.8");
    deployment
        .world
        .manifests()
        .write("namespace-default.yaml", &namespace)?;
    eventually("nothing is in force", || {
        deployment.reach("client", "203.0.113.9").is_connected()
    });
    eventually("it is told", || !told(&events).is_empty());
    let before = told(&events).len();
    deployment
        .upstream()
        .set("other.example.test", Records::addresses(["203.0.113.8"]));
    deployment.ask("client", "other.example.test");
    deployment.assert_reaches("client", "203.0.113.8");
    eventually("it is told", || told(&events).len() > before);
    let line = told(&events).pop().expect("there is one");
    assert_eq!(
        [&line["pod"], &line["policy"], &line["peer"]["name"]],
        ["client", "ClusterNetworkPolicy/names", "other.example.test"],
        "{line}"
    );
    deployment.assert_refused("judged", "203.0.113.8");
    Ok(())
}

pub(super) fn a_node_in_audit_denies_nothing_and_says_what_policies_would_deny(
    world: &mut World,
) -> TestResult {
    let setting = Setup::of(only_api("")).enforcer(&["--enforcement", "audit"]);
    let (deployment, events) = telling(world, setting)?;
    assert_tried(&deployment, &events);
    Ok(())
}

/// Who was told an address may go there; who was not would be denied it.
pub(super) fn what_a_policy_in_audit_allows_by_name_is_as_the_pod_was_told(world: &mut World) -> TestResult {
    let (deployment, events) = telling(world, Setup::of(only_api(TRIED)).and_pod("other"))?;
    tell_names(&deployment);
    for _ in 0..3 {
        deployment.assert_reaches("client", "203.0.113.7");
    }
    deployment.assert_reaches("other", "203.0.113.7");
    eventually("it is told", || !told(&events).is_empty());
    let [line] = told(&events).try_into().expect("it is told once");
    assert_eq!(line["pod"], "other", "{line}");
    assert_eq!(counted(&deployment, "would-deny"), 1.0);
    Ok(())
}

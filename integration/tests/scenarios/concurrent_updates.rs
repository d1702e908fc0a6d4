//! Rules take their time to be written: programs do it, and others may hold what they need. What a pod is told does not wait for
//! that, as long as the change is about others.

use egret_integration::{PodSpec, Records, World};

use super::backend_override;
use super::deployment::{Deployment, TestResult, eventually, only_names, patient_question};
use super::programs::Programs;
use super::refusals::BY_PROGRAMS;

/// The pod `other` may reach nobody.
pub(super) const OTHER_ALONE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: other-alone
spec:
  tier: Admin
  priority: 5
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

pub(super) fn a_name_is_usable_before_a_long_change_of_other_rules_ends(world: &mut World) -> TestResult {
    let programs = Programs::beside(world.files())?;
    for pod in ["client", "other"] {
        world.add(PodSpec::new(pod))?;
    }
    world
        .manifests()
        .write("policy.yaml", &only_names(&["api.example.test"]))?;
    let slow = world
        .enforcer(backend_override::packet_filter())
        .with(BY_PROGRAMS)
        .with_variable("PATH", &programs.path());
    let enforcer = world.start(slow)?;
    let dnsd = world.start(world.dnsd().with(["--stall-deadline", "4s"]))?;
    let deployment = Deployment {
        world,
        dnsd,
        enforcer,
    };
    deployment.wait_until_joined();
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("other", "api.example.test");
    let mut of_the_other = deployment.assert_reaches("other", "203.0.113.7");
    programs.hold()?;
    deployment.world.manifests().write("closed.yaml", OTHER_ALONE)?;
    eventually("the rules are being written", || programs.is_running());
    deployment.ask_as("client", &patient_question("api.example.test"));
    deployment.assert_reaches("client", "203.0.113.7");
    assert!(
        programs.is_running() && of_the_other.is_alive(),
        "the change has not ended"
    );
    programs.release()?;
    eventually("the change is in force", || !of_the_other.is_alive());
    deployment.assert_refused("other", "203.0.113.7");
    deployment.assert_reaches("client", "203.0.113.7");
    Ok(())
}

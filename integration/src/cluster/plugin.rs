//! egret-cni: the first packet of a new pod, and what happens to new pods while no enforcer runs.

use super::{
    Failure,
    kubectl::Kubectl,
    network::Network,
    objects::{new_pod, new_pod_prints, unknown_pod},
    story::{Story, WORKLOADS, metrics_of},
};

const NODES: [&str; 2] = ["node-1", "node-2"];
const ENFORCERS: &str = "app.kubernetes.io/name=egret-enforcer";

pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    first_packet(story)?;
    static_pod(story)?;
    enforcer_away(story)
}

fn first_packet(story: &mut Story<'_>) -> Result<(), Failure> {
    let denied = denied(story)?;
    let network = story.cluster.network;
    story.kubectl.apply(&new_pod("new", NODES[0], network))?;
    story.step(
        "A new pod's first SYNs pass to allowed addresses of each family; to others its first are refused",
        |kubectl| says_all(kubectl, "new", network),
    )?;
    let more = self::denied(story)? - denied;
    story.conclude(
        more > 0.0,
        &format!("the enforcer of its node counts {more} packets denied by the policy"),
    );
    Ok(())
}

/// The mirror of a static pod has another UID than the runtime knows.
fn static_pod(story: &mut Story<'_>) -> Result<(), Failure> {
    let network = story.cluster.network;
    story.cluster.nodes[0].write_static_pod("static.yaml", &new_pod("static", NODES[0], network))?;
    story.step("The same of a static pod", |kubectl| {
        says_all(kubectl, "static-node-1", network)
    })?;
    story.cluster.nodes[0].remove_static_pod("static.yaml")
}

/// Without an enforcer on its node a pod waits, or starts closed where the plugin's configuration says so.
fn enforcer_away(story: &mut Story<'_>) -> Result<(), Failure> {
    story.screen.heading("No enforcer runs");
    story.cluster.nodes[1].machine().run(&[
        "/opt/cni/bin/egret-cni",
        "install",
        "--on-unknown-pod=start",
        "--wait-seconds=1",
    ])?;
    story.screen.typed(
        "node-2$",
        "egret-cni install --on-unknown-pod=start --wait-seconds=1",
    );
    select_nodes(story, r#"{"no": "node"}"#)?;
    story.step("Both enforcers have ended", |kubectl| {
        let pods = kubectl.get(&["pods", "-n", "egret-system", "-l", ENFORCERS, "-o", "name"])?;
        Ok(pods.is_empty())
    })?;
    let network = story.cluster.network;
    story.kubectl.apply(&new_pod("waits", NODES[0], network))?;
    story.kubectl.apply(&unknown_pod("starts", NODES[1], network))?;
    story.step("A new pod waits on the first node", |kubectl| {
        let events = kubectl.get(&[
            "events",
            "-n",
            "shop",
            "--field-selector",
            "involvedObject.name=waits,reason=FailedCreatePodSandBox",
            "-o",
            "jsonpath={.items[*].message}",
        ])?;
        if events.contains("egret-cni") {
            Ok(true)
        } else {
            Err(events.into())
        }
    })?;
    story.step("On the second one it starts closed", |kubectl| {
        Ok(kubectl
            .run(&["logs", "-n", "shop", "starts"])?
            .lines()
            .eq(network.alike("closed")))
    })?;
    select_nodes(story, "null")?;
    story.roll_out(&WORKLOADS)?;
    story.step(
        "When enforcers run again, the first one starts, and its first SYNs pass",
        |kubectl| says_all(kubectl, "waits", network),
    )?;
    story.step("The second one is open to what policies allow", |kubectl| {
        let said = kubectl.run(&["logs", "-n", "shop", "starts"])?;
        Ok(said
            .lines()
            .eq([network.alike("closed"), network.alike("hello")].concat()))
    })?;
    let metrics = metrics_of(&story.cluster.nodes[0])?;
    let labels = [("command", "add"), ("outcome", "ready")];
    let answers = metrics.sum("egret_enforcer_cni_requests_total", &labels);
    story.conclude(
        answers > 0.0,
        &format!("the first node's enforcer has counted {answers} pods that the plugin added"),
    );
    Ok(())
}

/// Which nodes an enforcer runs on, as JSON.
fn select_nodes(story: &Story<'_>, labels: &str) -> Result<(), Failure> {
    let patch = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {labels}}}}}}}}}"#);
    let command = [
        "patch",
        "-n",
        "egret-system",
        "daemonset",
        "egret-enforcer",
        "-p",
        &patch,
    ];
    story.screen.typed("$ kubectl", &command.join(" "));
    story.kubectl.run(&command)?;
    Ok(())
}

/// Whether the pod says what [`new_pod`] has to say: the pages by address, nothing sent again, refused, the pages by name.
pub(super) fn says_all(kubectl: &Kubectl, pod: &str, network: Network) -> Result<bool, Failure> {
    let said = kubectl.run(&["logs", "-n", "shop", pod])?;
    if said.lines().eq(new_pod_prints(network)) {
        Ok(true)
    } else {
        Err(said.into())
    }
}

/// Packets of the first node that the firewall has denied.
fn denied(story: &Story<'_>) -> Result<f64, Failure> {
    let labels = [("tier", "cef"), ("action", "deny")];
    Ok(metrics_of(&story.cluster.nodes[0])?.sum("egret_enforcer_verdicts_total", &labels))
}

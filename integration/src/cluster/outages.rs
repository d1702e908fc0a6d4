//! Parts of the cluster are killed while pods query and connect: no verdict changes.

use std::time::Duration;

use super::{
    Failure,
    kubectl::Kubectl,
    machine::Process,
    network::Network,
    node::Node,
    objects::{networks, page},
    story::{Story, WORKLOADS},
    until,
};

/// Answered queries while something is away: some seconds.
const QUERIES: usize = 400;
const BACK_WITHIN: Duration = Duration::from_secs(90);

pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    let traffic = story.traffic(true)?;
    story.more_traffic(&traffic, QUERIES)?;

    story.screen.heading("etcd, then the API server are killed");
    story.cluster.control_plane.machine_mut().kill("etcd")?;
    story.more_traffic(&traffic, QUERIES)?;
    story.cluster.control_plane.machine_mut().kill("kube-apiserver")?;
    let seen = story.more_traffic(&traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());

    // Its rules stay in force; it is ready when an API server can be read.
    story
        .screen
        .heading("Meanwhile an enforcer is killed, and starts without an API server");
    kill_and_wait(story, 0, "enforcer", "http://127.0.0.1:9254/healthz")?;
    let seen = story.more_traffic(&traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());

    story.screen.heading("Both run again");
    story.cluster.control_plane.machine_mut().start_again("etcd")?;
    story
        .cluster
        .control_plane
        .machine_mut()
        .start_again("kube-apiserver")?;
    let kubectl = story.kubectl.clone();
    until(story.stop, "the API server is ready", BACK_WITHIN, || {
        kubectl.get(&["--raw", "/readyz"]).map(|_| true)
    })?;
    story.roll_out(&WORKLOADS)?;
    let seen = story.more_traffic(&traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());

    story.screen.heading("An enforcer is killed");
    kill_and_wait(story, 1, "enforcer", "http://127.0.0.1:9254/readyz")?;
    let seen = story.more_traffic(&traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());

    story.screen.heading("The leader of the controllers is killed");
    let leader = leader(&kubectl)?;
    let pod = leader.rsplit_once('_').map_or(&*leader, |(pod, _)| pod);
    let mut replicas = Vec::new();
    for node in &story.cluster.nodes {
        replicas.extend(node.machine().processes("enforcer")?);
    }
    let process = replicas.iter().find(|process| process.is_of(pod));
    process.ok_or_else(|| format!("no process is of {pod}"))?.kill()?;
    story.step(
        "Another one leads",
        |kubectl| Ok(self::leader(kubectl)? != leader),
    )?;
    let seen = story.more_traffic(&traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());

    story.screen.heading("dnsd is killed");
    let before = traffic.seen();
    kill_and_wait(story, 0, "dnsd", "http://127.0.0.1:9253/readyz")?;
    story.more_traffic(&traffic, QUERIES)?;
    let seen = traffic.stop();
    // Queries that wait in the socket of a process end with it, and so do those of the second until the kernel's rules pass it by.
    let is_back = seen.answered >= before.answered + QUERIES;
    story.conclude(seen.wrong.is_empty() && is_back, &seen.to_string());
    // Of a DaemonSet with maxSurge the controller deletes a pod at once that is not ready yet, and dnsd could hand nothing over.
    story.roll_out(&WORKLOADS)?;
    follows_policies(story)
}

/// A policy that is applied now is in force on all nodes, and is gone when it is deleted.
fn follows_policies(story: &mut Story<'_>) -> Result<(), Failure> {
    let network = story.cluster.network;
    story.kubectl.apply(&deny_direct(network))?;
    let pages = network.direct().into_iter().map(page).collect::<Vec<_>>();
    let script = format!(
        "for page in {}; do busybox timeout 3 wget -q -O - $page 2>/dev/null || echo refused; done",
        pages.join(" ")
    );
    let says = |kubectl: &Kubectl, expected: &str| {
        let pods = kubectl.get(&["pods", "-n", "shop", "-l", "app=client", "-o", "name"])?;
        for pod in pods.lines() {
            let said = kubectl.run(&["exec", "-n", "shop", pod, "--", "sh", "-c", &script])?;
            if !said.lines().eq(network.alike(expected)) {
                return Err(format!("{pod} says {}", said.trim()).into());
            }
        }
        Ok(true)
    };
    story.step("A policy that is applied now is in force", |kubectl| {
        says(kubectl, "refused")
    })?;
    story
        .kubectl
        .run(&["delete", "clusteregressfirewall", "nothing"])?;
    story.step("Once it is deleted it is not", |kubectl| says(kubectl, "hello"))
}

/// No pod reaches the host that is allowed by its addresses.
fn deny_direct(network: Network) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: nothing}}
spec:
  priority: 1
  rules:
  - {{name: internet, action: Deny, to: [{{networks: {}}}]}}
",
        networks(network.direct())
    )
}

/// The node's process of this program is killed. Waits until another one answers there.
fn kill_and_wait(story: &Story<'_>, node: usize, program: &str, url: &str) -> Result<(), Failure> {
    let node = &story.cluster.nodes[node];
    let killed = of_node(node, program)?;
    killed.kill()?;
    until(story.stop, &format!("{program} runs again"), BACK_WITHIN, || {
        Ok(of_node(node, program)?.pid != killed.pid && node.get(url).is_ok())
    })
}

/// The process of a DaemonSet on a node.
pub(super) fn of_node(node: &Node, program: &str) -> Result<Process, Failure> {
    let processes = node.machine().processes(program)?;
    let found = processes.into_iter().find(|process| {
        process
            .arguments
            .get(1)
            .is_none_or(|first| !["controller", "probe"].contains(&&**first))
    });
    found.ok_or_else(|| format!("{program} does not run").into())
}

/// The pod that holds the Lease.
fn leader(kubectl: &Kubectl) -> Result<String, Failure> {
    kubectl.get(&[
        "lease",
        "-n",
        "egret-system",
        "egret-controller",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ])
}

//! The chart is upgraded to another build and rolled back, while pods query and connect.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{
    Failure,
    image::{OTHER_BUILD, other_source},
    machine::Process,
    outages::of_node,
    story::{CHART, OTHER_CHART, Story, WORKLOADS},
    traffic::Traffic,
};

/// Answered queries before and after each change.
const QUERIES: usize = 400;
/// Longer than Kubernetes waits for a new dnsd before it ends the one before (`minReadySeconds`).
const SLOW_START: Duration = Duration::from_secs(15);
const STARTED_WITHIN: Duration = Duration::from_secs(90);
/// A client sends a hundred in a second, in which the kernel's rules pass a killed dnsd by.
const LOST_AT_MOST: usize = 200;
/// The thread of a dnsd that can be taken over: it has taken over itself.
const SERVING_THREAD: &str = "handover";

pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    let traffic = story.traffic(true)?;
    story.more_traffic(&traffic, QUERIES)?;
    delete_dnsd(story, &traffic)?;
    upgrade(story, &traffic)?;
    kill_in_the_middle(story, traffic)
}

/// The controller starts another one at once, and the one that is told to end can still be taken over.
fn delete_dnsd(story: &mut Story<'_>, traffic: &Traffic) -> Result<(), Failure> {
    story.screen.heading("A pod of dnsd is deleted");
    let pods = [
        "-n",
        "kube-system",
        "-l",
        "app.kubernetes.io/name=egret-dnsd",
        "-o",
        "name",
    ];
    let pods = story.kubectl.get(&[&["pods"], &pods[..]].concat())?;
    let pod = pods.lines().next().ok_or("there is no pod of dnsd")?;
    story
        .screen
        .typed("$ kubectl", &format!("delete -n kube-system {pod}"));
    story.kubectl.run(&["delete", "-n", "kube-system", pod])?;
    story.roll_out(&WORKLOADS)?;
    let seen = story.more_traffic(traffic, QUERIES)?;
    story.conclude(seen.is_clean(), &seen.to_string());
    Ok(())
}

fn upgrade(story: &mut Story<'_>, traffic: &Traffic) -> Result<(), Failure> {
    let chart = other_source().map_or(CHART, |_source| OTHER_CHART);
    story
        .screen
        .heading("Another build, while pods query and connect; on one node its dnsd is slow to start");
    let known = dnsds(story)?;
    story.helm(&format!(
        "upgrade egret {chart} --namespace kube-system --reset-then-reuse-values --set image.repository={OTHER_BUILD}"
    ))?;
    let slow = hold_up(story, known)?;
    story.screen.line(&format!(
        "its process is stopped for {} s before it takes over",
        SLOW_START.as_secs()
    ));
    std::thread::sleep(SLOW_START);
    slow.signal(Signal::SIGCONT)?;
    rolled_out(story, traffic)?;

    story.screen.heading("Back again");
    story.helm("rollback egret --namespace kube-system")?;
    rolled_out(story, traffic)
}

fn rolled_out(story: &mut Story<'_>, traffic: &Traffic) -> Result<(), Failure> {
    story.roll_out(&WORKLOADS)?;
    let seen = story.more_traffic(traffic, QUERIES)?;
    story.screen.line(&images(story)?);
    story.conclude(seen.is_clean(), &seen.to_string());
    Ok(())
}

/// What a killed dnsd had read is lost, and no more.
fn kill_in_the_middle(story: &mut Story<'_>, traffic: Traffic) -> Result<(), Failure> {
    story
        .screen
        .heading("All pods are replaced; a new dnsd and the enforcer of its node are killed meanwhile");
    let before = traffic.seen();
    let known = dnsds(story)?;
    for (namespace, workload) in &WORKLOADS[..2] {
        story
            .screen
            .typed("$ kubectl", &format!("rollout restart -n {namespace} {workload}"));
        story
            .kubectl
            .run(&["rollout", "restart", "-n", namespace, workload])?;
    }
    let (node, new) = new_dnsd(story, &known, |process| Ok(process.has_thread(SERVING_THREAD)))?;
    new.kill()?;
    // It may be between two pods.
    if let Ok(enforcer) = of_node(&story.cluster.nodes[node], "enforcer") {
        enforcer.kill()?;
    }
    story.roll_out(&WORKLOADS)?;
    story.more_traffic(&traffic, QUERIES)?;
    let seen = traffic.stop();
    let lost = seen.lost.len() - before.lost.len();
    story.conclude(
        seen.wrong.is_empty() && lost <= LOST_AT_MOST,
        &format!("{lost} queries lost meanwhile; {seen}"),
    );
    Ok(())
}

/// Stops a dnsd that starts before it takes over.
fn hold_up(story: &Story<'_>, mut known: Vec<i32>) -> Result<Process, Failure> {
    loop {
        let (_node, process) = new_dnsd(story, &known, |_process| Ok(true))?;
        process.signal(Signal::SIGSTOP)?;
        if !process.has_thread(SERVING_THREAD) {
            return Ok(process);
        }
        // It was too fast: the next node's.
        process.signal(Signal::SIGCONT)?;
        known.push(process.pid);
    }
}

/// A dnsd that was not there before, with the number of its node.
fn new_dnsd(
    story: &Story<'_>,
    known: &[i32],
    is_it: impl Fn(&Process) -> Result<bool, Failure>,
) -> Result<(usize, Process), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < STARTED_WITHIN && !story.stop.was_asked() {
        for (number, node) in story.cluster.nodes.iter().enumerate() {
            for process in node.machine().processes("dnsd")? {
                if is_daemon(&process) && !known.contains(&process.pid) && is_it(&process)? {
                    return Ok((number, process));
                }
            }
        }
        // It takes over within a second.
        std::thread::sleep(Duration::from_millis(5));
    }
    Err("no new dnsd has started".into())
}

fn dnsds(story: &Story<'_>) -> Result<Vec<i32>, Failure> {
    let mut found = Vec::new();
    for node in &story.cluster.nodes {
        let processes = node.machine().processes("dnsd")?;
        found.extend(processes.into_iter().filter(is_daemon).map(|process| process.pid));
    }
    Ok(found)
}

/// The rest are probes.
fn is_daemon(process: &Process) -> bool {
    process
        .arguments
        .get(1)
        .is_some_and(|first| first == "node-cache")
}

/// Of Egret's pods that run.
fn images(story: &Story<'_>) -> Result<String, Failure> {
    let images = story.kubectl.get(&[
        "pods",
        "-A",
        "-l",
        "app.kubernetes.io/name in (egret-enforcer,egret-dnsd,egret-controller)",
        "-o",
        "jsonpath={range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}",
    ])?;
    let mut images = images.lines().collect::<Vec<_>>();
    images.sort_unstable();
    let pods = images.len();
    images.dedup();
    Ok(format!("{pods} pods run {}", images.join(", ")))
}

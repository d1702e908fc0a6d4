//! Steps about time: held answers, records that end, daemons that die and come back, and what was counted.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use crate::{Daemon, Family, Load, LoadPlan, LoadReport, Metrics, Node, daemon::describe_end};

use super::{
    DemoError, Seen,
    deployment::{BLOG, Deployment, UNKNOWN, address, in_the_node, shorten},
    names::outcome,
    screen::Screen,
};

const GRACE_AND_TTL: Duration = Duration::from_secs(3);
/// The kernel counts timeouts in whole jiffies, and the attempt that finds out takes its time as well.
const TOO_LATE: Duration = Duration::from_millis(4_500);
const PHASE: Duration = Duration::from_secs(4);

pub(super) fn see_an_answer_held(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let before = deployment.dnsd.metrics()?;
    let told = deployment.getent("client", "held.cdn.example.test")?;
    let connected = deployment.curl("client", "held.cdn.example.test")?;
    let after = deployment.dnsd.metrics()?;
    let grown = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
    let held = grown("egret_dnsd_held_seconds_count");
    let stalled = grown("egret_dnsd_stalls_total");
    let milliseconds = grown("egret_dnsd_held_seconds_sum") * 1000.0;
    Ok(Seen::new(
        told.len() == 1 && connected && held >= 1.0 && stalled == 0.0,
        format!("held for {milliseconds:.1} ms, then {}", outcome(connected)),
    ))
}

pub(super) fn let_a_record_run_out(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let told = Instant::now();
    deployment.getent("client", "brief.cdn.example.test")?;
    let brief = address("203.0.113.80");
    let mut open = deployment.connect("client", brief, 443);
    deployment
        .screen()
        .line("A probe keeps one connection open and goes on trying new ones.");
    let ended = deployment
        .screen()
        .wait("until a new connection is refused", TOO_LATE, || {
            let tried = told.elapsed();
            (!deployment.connects("client", brief, 443)).then_some(tried)
        });
    let goes_on = match &mut open {
        crate::Outcome::Connected(connection) => connection.is_alive(),
        _ => false,
    };
    let open = if goes_on {
        "the open one goes on"
    } else {
        "the open one is dead"
    };
    Ok(match ended {
        Some(after) => Seen::new(
            goes_on && after >= GRACE_AND_TTL,
            format!("refused after {:.1} s, {open}", after.as_secs_f64()),
        ),
        None => Seen::new(false, format!("never refused, {open}")),
    })
}

pub(super) fn kill_the_enforcer(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let load = start_load(deployment);
    kill_and_return(deployment, &load, |deployment| &mut deployment.enforcer)?;
    Ok(judge(deployment.screen(), &load.stop()))
}

pub(super) fn kill_dnsd(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let load = start_load(deployment);
    kill_and_return(deployment, &load, |deployment| &mut deployment.dnsd)?;
    Ok(judge(deployment.screen(), &load.stop()))
}

pub(super) fn scrape_both(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let screen = deployment.screen();
    screen.line("A Prometheus in the node's namespace scrapes these:");
    for daemon in [&deployment.dnsd, &deployment.enforcer] {
        let url = format!("curl -s http://{}/metrics", daemon.spec().admin);
        screen.typed("#", &in_the_node(deployment.world.node(), &url));
    }
    let (dnsd, enforcer) = (deployment.dnsd.metrics()?, deployment.enforcer.metrics()?);
    let answers = dnsd.sum("egret_dnsd_responses_total", &[("rcode", "NOERROR")]);
    let [allows, denies] = ["allow", "deny"].map(|action| verdicts(&enforcer, action));
    Ok(Seen::new(
        [answers, allows, denies].iter().all(|count| *count > 0.0),
        format!("{answers} answers since its start; {allows} connections allowed, {denies} denied"),
    ))
}

pub(super) fn clean_up(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let screen = deployment.screen();
    for daemon in [&mut deployment.dnsd, &mut deployment.enforcer] {
        screen.typed("#", &format!("kill {}", daemon.pid()));
        let end = daemon.terminate()?;
        screen.line(&format!("{}: {}", daemon.spec().name, describe_end(end)));
    }
    let node = deployment.world.node();
    let is_native = deployment.is_native();
    let stayed = held_by_the_kernel(node, is_native)?;
    let enforcer = deployment.enforcer.spec().binary.display().to_string();
    let state = deployment.world.state().display().to_string();
    let objects = deployment.world.state_objects().display().to_string();
    let clean = format!(
        "{} cleanup --state {state} --state-objects {objects}",
        shorten(Path::new(&enforcer))
    );
    screen.typed("#", &in_the_node(node, &clean));
    let output = node.run(&[
        &enforcer,
        "cleanup",
        "--state",
        &state,
        "--state-objects",
        &objects,
    ])?;
    let left = held_by_the_kernel(node, is_native)?;
    Ok(Seen::new(
        output.success() && stayed.iter().all(|count| *count > 0) && left == [0, 0],
        format!(
            "{} rules and {} sets stayed; {} and {} after cleanup",
            stayed[0], stayed[1], left[0], left[1]
        ),
    ))
}

/// How many rules and sets are Egret's, by their names.
fn held_by_the_kernel(node: &Node, is_native: bool) -> Result<[usize; 2], DemoError> {
    if is_native {
        let listed = node.nftables_list().unwrap_or_default();
        return Ok(["{\"rule\":", "{\"set\":"].map(|object| listed.matches(object).count()));
    }
    let rules = [Family::V4, Family::V6].map(|family| node.iptables_save(family));
    let mut count = 0;
    for rules in rules {
        count += rules?
            .lines()
            .filter(|line| line.starts_with("-A") && line.contains("EGRET-"))
            .count();
    }
    let sets = node.ipset_list()?;
    let sets = sets
        .lines()
        .filter(|line| line.starts_with("Name: ") && line.contains("egret-"))
        .count();
    Ok([count, sets])
}

fn verdicts(enforcer: &Metrics, action: &str) -> f64 {
    enforcer.sum("egret_enforcer_verdicts_total", &[("action", action)])
}

pub(super) fn start_load(deployment: &Deployment) -> Load {
    let forbidden = [BLOG, UNKNOWN].map(|text| SocketAddr::new(address(text), 443));
    let plan = LoadPlan {
        port: 443,
        ..LoadPlan::of(["api.example.test", "{}.cdn.example.test"]).forbidding(forbidden)
    };
    deployment.world.load("client", plan)
}

/// Kills one daemon under load, lets the load go on without it, starts it again, lets the load go on with it.
fn kill_and_return(
    deployment: &mut Deployment,
    load: &Load,
    daemon: fn(&mut Deployment) -> &mut Daemon,
) -> Result<(), DemoError> {
    let screen = deployment.screen();
    go_on(load, "before it is killed", 2)?;
    let killed = Instant::now();
    let pid = daemon(deployment).pid();
    screen.typed("#", &format!("kill -KILL {pid}"));
    daemon(deployment).kill()?;
    go_on(load, "while it is gone", 0)?;
    daemon(deployment).restart()?;
    daemon(deployment).wait_until_ready()?;
    screen.line(&format!(
        "back after {} ms, pid {}",
        killed.elapsed().as_millis(),
        daemon(deployment).pid()
    ));
    go_on(load, "after it is back", 5)
}

/// Waits until every kind of traffic was seen again, and so many look-ups were answered.
fn go_on(load: &Load, when: &str, answers: usize) -> Result<(), DemoError> {
    let then = load.report();
    let answered = |report: &LoadReport| report.lookups.saturating_sub(report.lookups_unanswered);
    let seen = load.wait_for(PHASE, |now| {
        answered(now) >= answered(&then) + answers
            && now.connections >= then.connections + 15
            && now.echoes >= then.echoes + 15
            && now.refusals >= then.refusals + 2
    });
    let report = load.report();
    let stuck = || DemoError::Unexpected(format!("the traffic stands still {when}: {report:?}"));
    seen.then_some(()).ok_or_else(stuck)
}

fn judge(screen: Screen, report: &LoadReport) -> Seen {
    screen.line(&format!(
        "{} echoes on open connections, {} refusals, {} look-ups of which {} not answered",
        report.echoes, report.refusals, report.lookups, report.lookups_unanswered,
    ));
    report.notes.iter().for_each(|note| screen.line(note));
    Seen::new(
        report.is_clean(),
        format!(
            "lost {}, leaked {}, late {}, in {} connections",
            report.lost, report.leaked, report.late, report.connections
        ),
    )
}

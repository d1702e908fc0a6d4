//! A daemon goes and comes back: what was realized stays.

use std::collections::BTreeSet;
use std::time::Duration;

use egret_integration::{Daemon, Family, Lookup, RecordType, Records, World, node, uninterrupted};
use nix::sys::signal::Signal;

use super::backend_override;
use super::deployment::{
    Deployment, PATIENCE, Setup, TestResult, eventually, ip, is_soon, metrics, only_names,
};

/// However it goes: by SIGTERM, and by SIGKILL.
pub(super) fn rules_and_sets_stay_while_the_enforcer_is_away(world: &mut World) -> TestResult {
    let mut deployment = learn_one(world)?;
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    let before = deployment.standing();
    for end in [Daemon::terminate, Daemon::kill] {
        end(&mut deployment.enforcer)?;
        assert_eq!(deployment.standing(), before);
        assert!(deployment.kernel_holds("client", "203.0.113.7"));
        assert!(open.is_alive());
        deployment.assert_reaches("client", "203.0.113.7");
        deployment.assert_refused("client", "203.0.113.8");
        deployment.enforcer.restart()?;
        deployment.enforcer.wait_until_ready()?;
    }
    Ok(())
}

/// dnsd is gone, so nothing but the kernel knows the record.
pub(super) fn a_restarted_enforcer_changes_nothing_that_is_right(world: &mut World) -> TestResult {
    let mut deployment = learn_one(world)?;
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.8");
    let before = deployment.standing();
    let allowed = verdicts(&deployment.enforcer, "allow");
    let denied = verdicts(&deployment.enforcer, "deny");
    assert!(allowed > 0.0 && denied > 0.0);
    deployment.dnsd.kill()?;
    for end in [Daemon::terminate, Daemon::kill] {
        end(&mut deployment.enforcer)?;
        deployment.enforcer.restart()?;
        deployment.enforcer.wait_until_ready()?;
        assert_eq!(deployment.standing(), before);
        assert!(
            deployment.kernel_holds("client", "203.0.113.7"),
            "nothing but the kernel knew it"
        );
        assert!(open.is_alive());
        deployment.assert_reaches("client", "203.0.113.7");
        deployment.assert_refused("client", "203.0.113.8");
        assert_eq!(
            metrics(&deployment.enforcer).sum("egret_enforcer_kernel_repairs_total", &[]),
            0.0
        );
        assert!(
            verdicts(&deployment.enforcer, "allow") >= allowed,
            "counters go on"
        );
        assert!(verdicts(&deployment.enforcer, "deny") >= denied, "counters go on");
    }
    Ok(())
}

/// As when a container of the enforcer begins on a node whose rules somebody flushed, and the API server is away.
pub(super) fn a_source_that_is_gone_at_start_counts_as_it_was_known_last(world: &mut World) -> TestResult {
    let mut deployment = learn_one(world)?;
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.8");
    eventually("what the source said is kept", || {
        deployment.world.state_objects().exists()
    });
    deployment.enforcer.kill()?;
    let folder = deployment.world.manifests().folder().to_owned();
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away)?;
    let binary = deployment.enforcer.spec().binary.display().to_string();
    let pins = backend_override::pin_path().unwrap_or_else(|| "/nonexistent".to_owned());
    let clean = [
        binary.as_str(),
        "cleanup",
        "--state",
        "",
        "--state-objects",
        "",
        "--bpf-pins",
        &pins,
    ];
    deployment.world.node().run_well(&clean)?;
    deployment.assert_reaches("client", "203.0.113.8");

    deployment.enforcer.restart()?;
    eventually("what was known is in force", || {
        let answer = deployment.enforcer.get("/readyz");
        answer.is_ok_and(|(code, text)| code == 503 && text.contains("running on what was known at"))
    });
    deployment.assert_refused("client", "203.0.113.8");
    deployment.assert_reaches("client", "203.0.113.7");

    std::fs::remove_file(away.join("policy.yaml"))?;
    std::fs::rename(&away, &folder)?;
    deployment.enforcer.wait_until_ready()?;
    deployment.assert_reaches("client", "203.0.113.8");
    Ok(())
}

pub(super) fn records_stay_when_dnsd_restarts(world: &mut World) -> TestResult {
    let mut deployment = learn_one(world)?;
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    deployment.dnsd.kill()?;
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.dnsd.restart()?;
    deployment.dnsd.wait_until_ready()?;
    deployment.wait_until_joined();
    assert!(open.is_alive());
    deployment.assert_reaches("client", "203.0.113.7");
    // The new one knows another address of the name; what the old one told stays beside it.
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.9"]));
    deployment.ask("client", "api.example.test");
    deployment.assert_reaches("client", "203.0.113.9");
    deployment.assert_reaches("client", "203.0.113.7");
    assert_eq!(deployment.kernel_records("client").len(), 2);
    Ok(())
}

/// What nobody waits for is told together, up to 10 ms later: dnsd is asked to end just after some answers, and gives others
/// while it ends.
pub(super) fn what_was_told_last_is_known_although_dnsd_has_ended(world: &mut World) -> TestResult {
    const ENDS: usize = 3;
    const NAMES: usize = 60;
    const SLOWLY: Duration = Duration::from_millis(300);
    // So there are always some of the last 10 ms: what comes at the same moment goes together.
    const APART: Duration = Duration::from_millis(3);
    let mut deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    let mut addresses = BTreeSet::new();
    let name = |number: usize| format!("n{number}.late.test");
    for number in 0..ENDS * NAMES {
        let address = format!("203.0.113.{}", 20 + number);
        addresses.insert(ip(&address));
        let records = Records::addresses([address.as_str()]);
        let records = match u32::try_from((number % NAMES).saturating_sub(NAMES / 2))? {
            0 => records,
            place => records.after(SLOWLY + APART * place),
        };
        deployment.upstream().set(&name(number), records);
    }
    let mut buffer = [0; 1500];
    for end in 0..ENDS {
        let socket = deployment.pod("client").udp_socket_at("0.0.0.0:0".parse()?)?;
        socket.connect((node::DNS, 53))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        for number in 0..NAMES {
            socket.send(&Lookup::of(&name(end * NAMES + number), RecordType::A).to_vec())?;
        }
        let mut answers =
            |count: usize| (0..count).try_for_each(|_| uninterrupted(|| socket.recv(&mut buffer)).map(drop));
        answers(NAMES / 2)?;
        deployment.dnsd.signal(Signal::SIGTERM)?;
        answers(NAMES / 2)?;
        eventually("dnsd ends", || !deployment.dnsd.is_running());
        deployment.dnsd.restart()?;
        deployment.dnsd.wait_until_ready()?;
    }

    deployment
        .world
        .manifests()
        .write("policy.yaml", &only_names(&["*.late.test"]))?;
    let missing = || {
        addresses
            .difference(&deployment.kernel_records("client").into_iter().collect())
            .count()
    };
    let are_known = is_soon(PATIENCE, || missing() == 0);
    assert!(
        are_known,
        "{} of {} were given and not told",
        missing(),
        addresses.len()
    );
    Ok(())
}

pub(super) fn cleanup_removes_every_trace_of_ours_and_nothing_of_others(world: &mut World) -> TestResult {
    let untracked = |program| {
        [
            program,
            "-w",
            "-t",
            "raw",
            "-A",
            "PREROUTING",
            "-p",
            "udp",
            "--dport",
            "53",
            "-j",
            "NOTRACK",
        ]
    };
    let (raw, raw6) = (untracked("iptables"), untracked("ip6tables"));
    let foreign: [&[&str]; 8] = [
        &raw,
        &raw6,
        &["ipset", "create", "foreign", "hash:ip"],
        &["ipset", "add", "foreign", "203.0.113.99"],
        &["iptables", "-w", "-N", "FOREIGN"],
        &[
            "iptables",
            "-w",
            "-A",
            "FOREIGN",
            "-m",
            "set",
            "--match-set",
            "foreign",
            "dst",
            "-j",
            "ACCEPT",
        ],
        &["iptables", "-w", "-A", "FORWARD", "-j", "FOREIGN"],
        &[
            "ip6tables",
            "-w",
            "-A",
            "FORWARD",
            "-d",
            "2001:db8::99/128",
            "-j",
            "ACCEPT",
        ],
    ];
    for command in foreign {
        let done = world.node().run(command)?;
        assert!(done.success(), "{done:?}");
    }
    let before = kernel_texts(world)?;
    let deployment = learn_one(world)?;
    deployment.assert_reaches("client", "203.0.113.7");
    let binary = deployment.enforcer.spec().binary.display().to_string();
    let Deployment {
        world,
        dnsd,
        enforcer,
    } = deployment;
    drop((dnsd, enforcer));
    let state = world.state().display().to_string();
    let objects = world.state_objects().display().to_string();
    let clean = [
        binary.as_str(),
        "cleanup",
        "--state",
        &state,
        "--state-objects",
        &objects,
    ];
    let are_there = || [world.state().exists(), world.state_objects().exists()];
    assert_eq!(are_there(), [true, true]);
    let cleanup = world.node().run(&clean)?;
    assert!(cleanup.success(), "{cleanup:?}");
    assert_eq!(are_there(), [false, false], "{cleanup:?}");
    for (before, after) in before.iter().zip(kernel_texts(world)?) {
        assert_eq!(
            *before, after,
            "what others have is as it was, and there is nothing else"
        );
    }
    let again = world.node().run(&clean)?;
    assert!(again.success(), "nothing to do is no failure: {again:?}");
    Ok(())
}

/// The client was told one name that it may reach, and one that it may not.
fn learn_one(world: &mut World) -> Result<Deployment<'_>, Box<dyn std::error::Error>> {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    deployment
        .upstream()
        .set("other.example.test", Records::addresses(["203.0.113.8"]));
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]).ttl(60));
    deployment.ask("client", "other.example.test");
    deployment.ask("client", "api.example.test");
    eventually("the kernel has it", || {
        deployment.kernel_holds("client", "203.0.113.7")
    });
    Ok(deployment)
}

fn verdicts(enforcer: &Daemon, action: &str) -> f64 {
    let labels = [("direction", "egress"), ("action", action)];
    metrics(enforcer).sum("egret_enforcer_verdicts_total", &labels)
}

/// Sets and rules as their programs print them, without the counters and the hour.
fn kernel_texts(world: &World) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let node = world.node();
    let rules = |family| node.iptables_save(family).map(|text| without_counters(&text));
    Ok(vec![node.ipset_save()?, rules(Family::V4)?, rules(Family::V6)?])
}

fn without_counters(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(" [").next().unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

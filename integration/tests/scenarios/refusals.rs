//! What the kernel refuses is said, counted and tried again, and concerns those alone who need it.

use std::fs::File;

use egret_integration::{Daemon, PodSpec, Records, World};
use nix::fcntl::{Flock, FlockArg};

use super::backend_override;
use super::concurrent_updates::OTHER_ALONE;
use super::deployment::{Deployment, Setup, TestResult, eventually, metrics, only_names};
use super::programs::Programs;

const TOLD: &str = "203.0.113.7";

/// Attempts that failed and are made again.
fn refusals(enforcer: &Daemon, concerned: &str) -> f64 {
    metrics(enforcer).sum(
        "egret_enforcer_kernel_refusals_total",
        &[("concerned", concerned)],
    )
}

/// In the flavour `nft` no program is needed for it.
pub(super) const BY_PROGRAMS: [&str; 2] = ["--iptables", "legacy"];

/// Waits until it is not ready for this reason, and has tried again.
#[track_caller]
fn assert_tries(deployment: &Deployment<'_>, concerned: &str, reason: &str) {
    eventually("it says why", || {
        let answer = deployment.enforcer.get("/readyz");
        answer.is_ok_and(|(code, text)| code == 503 && text.contains(reason))
    });
    eventually("it tries again", || {
        refusals(&deployment.enforcer, concerned) >= 3.0
    });
}

#[track_caller]
fn assert_ready(deployment: &Deployment<'_>) {
    eventually("it is ready", || {
        deployment
            .enforcer
            .get("/readyz")
            .is_ok_and(|(code, _)| code == 200)
    });
}

/// Two pods that may reach what they were told, and do.
fn two_pods<'w>(
    world: &'w mut World,
    arguments: &[&str],
    variables: &[(&str, String)],
) -> Result<Deployment<'w>, Box<dyn std::error::Error>> {
    for pod in ["client", "other"] {
        world.add(PodSpec::new(pod))?;
    }
    world
        .manifests()
        .write("policy.yaml", &only_names(&["api.example.test"]))?;
    let mut enforcer = world
        .enforcer(backend_override::packet_filter())
        .with(arguments.iter().copied());
    for (name, value) in variables {
        enforcer = enforcer.with_variable(name, value);
    }
    let deployment = Deployment {
        enforcer: world.start(enforcer)?,
        dnsd: world.start(world.dnsd())?,
        world,
    };
    deployment.wait_until_joined();
    deployment
        .upstream()
        .set("api.example.test", Records::addresses([TOLD]));
    for pod in ["client", "other"] {
        deployment.ask(pod, "api.example.test");
        deployment.assert_reaches(pod, TOLD);
    }
    Ok(deployment)
}

/// Whoever holds the lock of iptables may hold it for long. What was in force stays so until it is let go.
pub(super) fn who_holds_the_lock_of_iptables_is_named_and_waited_for(world: &mut World) -> TestResult {
    let lock = world.files().join("xtables.lock");
    let held = File::create(&lock)?;
    let variables = [("XTABLES_LOCKFILE", lock.display().to_string())];
    let deployment = two_pods(world, &["--iptables", "legacy"], &variables)?;
    let held = Flock::lock(held, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    deployment.world.manifests().write("closed.yaml", OTHER_ALONE)?;
    assert_tries(&deployment, "node", "another program holds the lock of iptables");
    deployment.assert_reaches("client", TOLD);
    deployment.assert_reaches("other", TOLD);
    drop(held);
    assert_ready(&deployment);
    deployment.assert_refused("other", TOLD);
    deployment.assert_reaches("client", TOLD);
    Ok(())
}

/// The programs take everything but what one pod's policy says.
pub(super) fn a_pod_whose_rules_are_refused_is_named_and_the_others_get_theirs(
    world: &mut World,
) -> TestResult {
    let programs = Programs::beside(world.files())?;
    let deployment = two_pods(world, &BY_PROGRAMS, &[("PATH", programs.path())])?;
    programs.refuse("other-alone")?;
    deployment.world.manifests().write("closed.yaml", OTHER_ALONE)?;
    assert_tries(&deployment, "pod", "pod default/other is pending");
    assert_eq!(refusals(&deployment.enforcer, "node"), 0.0);
    let nobody = only_names(&["nobody.example.test"]);
    deployment.world.manifests().write("policy.yaml", &nobody)?;
    eventually("the neighbour's rules change all the same", || {
        !deployment.reach("client", TOLD).is_connected()
    });
    programs.accept()?;
    assert_ready(&deployment);
    deployment.assert_refused("other", TOLD);
    Ok(())
}

/// Its namespace is taken down while the programs run that write its rules.
pub(super) fn a_pod_that_vanishes_in_the_middle_of_a_change_concerns_nobody_else(
    world: &mut World,
) -> TestResult {
    let programs = Programs::beside(world.files())?;
    let deployment = two_pods(world, &BY_PROGRAMS, &[("PATH", programs.path())])?;
    let mut open = deployment.assert_reaches("client", TOLD);
    programs.hold()?;
    let nobody = only_names(&["nobody.example.test"]);
    deployment.world.manifests().write("policy.yaml", &nobody)?;
    eventually("the rules are being written", || programs.is_running());
    let cable = deployment.pod("other").interface();
    deployment
        .world
        .node()
        .run_well(&["ip", "link", "delete", cable])?;
    programs.release()?;
    eventually("the neighbour's change is in force", || !open.is_alive());
    deployment.assert_refused("client", TOLD);
    eventually("it says whose interface is gone", || {
        let answer = deployment.enforcer.get("/readyz");
        answer.is_ok_and(|(code, text)| code == 503 && text.contains("pod default/other is pending"))
    });
    let (_, text) = deployment.enforcer.get("/readyz")?;
    assert!(!text.contains("default/client"), "{text}");
    assert_eq!(refusals(&deployment.enforcer, "node"), 0.0);
    Ok(())
}

/// Only these networks may be reached.
fn one_network(pod: &str, network: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: network, namespace: default}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: {pod}}}}}\n  policyTypes: [Egress]\n  \
         egress: [{{to: [{{ipBlock: {{cidr: {network}}}}}]}}]\n"
    )
}

/// EBUSY: a set of that name is of another type, and cannot go as long as a rule of somebody else names it.
pub(super) fn a_set_that_others_made_and_hold_closes_its_pod_alone_until_they_let_go(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(one_network("client", "203.0.113.0/24"))
        .and_pod("other")
        .deploy(world)?;
    deployment.assert_reaches("client", TOLD);
    let sets = || -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let named = deployment.world.node().run(&["ipset", "list", "-n"])?.stdout;
        let ours = named.lines().filter(|name| name.ends_with("-egret-4"));
        Ok(ours.map(str::to_owned).collect())
    };
    let node = deployment.world.node();
    let types = node.ipset_save()?;
    let of_networks = |name: &String| types.contains(&format!("create {name} hash:net "));
    let set = sets()?.into_iter().find(of_networks).ok_or("a set of networks")?;
    deployment.world.manifests().remove("policy.yaml")?;
    eventually("the set is gone", || {
        sets().is_ok_and(|sets| !sets.contains(&set))
    });
    node.run_well(&["ipset", "create", &set, "hash:ip"])?;
    let rule = |verb: &str| {
        node.run_well(&[
            "iptables",
            "-w",
            verb,
            "OUTPUT",
            "-m",
            "set",
            "--match-set",
            &set,
            "dst",
            "-j",
            "RETURN",
        ])
    };
    rule("-A")?;
    let policy = one_network("client", "203.0.113.0/24");
    deployment.world.manifests().write("policy.yaml", &policy)?;
    assert_tries(&deployment, "pod", &set);
    deployment.assert_refused("client", TOLD);
    deployment.assert_reaches("other", TOLD);
    rule("-D")?;
    assert_ready(&deployment);
    deployment.assert_reaches("client", TOLD);
    deployment.assert_refused("client", "198.51.100.7");
    Ok(())
}

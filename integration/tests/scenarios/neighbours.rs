//! Others use the packet filter of the node as well.

use std::time::{Duration, Instant};

use egret_integration::{PodSpec, Records, World, WorldError};

use super::backend_override;
use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually, metrics, only_names, within};

/// What others changed is to be right again within this.
const RIGHT_AGAIN: Duration = Duration::from_secs(20);
const ALLOWED: &str = "203.0.113.7";
const FORBIDDEN: &str = "203.0.113.8";

fn play<'w>(world: &'w mut World, arguments: &[&str]) -> Result<Deployment<'w>, Box<dyn std::error::Error>> {
    let setting = Setup::of(only_names(&["api.example.test"])).enforcer(arguments);
    let deployment = setting.deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses([ALLOWED]));
    deployment.ask("client", "api.example.test");
    deployment.assert_reaches("client", ALLOWED);
    deployment.assert_refused("client", FORBIDDEN);
    Ok(deployment)
}

/// A flush of a chain, of the jumps, of everything; of a set. Whoever did it in `nf_tables` is in the log, by name.
pub(super) fn what_others_flush_is_put_right_within_five_seconds_and_it_is_said_whose_doing_it_was(
    world: &mut World,
) -> TestResult {
    let deployment = play(world, &["--iptables", "nft"])?;
    let mut open = deployment.assert_reaches("client", ALLOWED);
    let of_iptables: [(&[&str], &str, &str); 4] = [
        (
            &["iptables-nft", "-F", "EGRET-FORWARD"],
            "EGRET-FORWARD",
            "chain_changed",
        ),
        (&["iptables-nft", "-D", "FORWARD", "1"], "FORWARD", "jump"),
        (&["iptables-nft", "-F"], "EGRET-INPUT", "chain_changed"),
        (&["nft", "flush", "ruleset"], "EGRET-DENY", "chain_missing"),
    ];
    let of_nftables: [(&[&str], &str, &str); 4] = [
        (
            &["nft", "flush", "chain", "inet", "egret", "forward-egress"],
            "forward-egress",
            "chain_changed",
        ),
        (
            &["nft", "add", "rule", "inet", "egret", "input", "accept"],
            "input",
            "chain_changed",
        ),
        (
            &["nft", "delete", "table", "inet", "egret"],
            "EGRET-REVOKED",
            "chain_missing",
        ),
        (&["nft", "flush", "ruleset"], "EGRET-REVOKED", "chain_missing"),
    ];
    let changes = match backend_override::packet_filter() {
        "nftables" => of_nftables,
        _ => of_iptables,
    };
    for (command, chain, kind) in changes {
        assert_put_right(&deployment, command, kind)?;
        let program = format!("{} (pid ", command[0]);
        let is_said = |line: &str| {
            line.contains("others changed what is ours") && line.contains(&program) && line.contains(chain)
        };
        let log = deployment.enforcer.log();
        assert!(log.lines().any(is_said), "{command:?} {chain}");
    }
    assert!(open.is_alive());
    deployment.assert_reaches("client", ALLOWED);
    Ok(())
}

/// Legacy tables tell nobody that they changed, and neither do sets.
pub(super) fn what_others_flush_where_the_kernel_tells_of_nothing_is_put_right_as_soon(
    world: &mut World,
) -> TestResult {
    let deployment = play(world, &["--iptables", "legacy"])?;
    let mut open = deployment.assert_reaches("client", ALLOWED);
    for (command, kind) in [
        (&["iptables-legacy", "-F", "EGRET-FORWARD"][..], "chain_changed"),
        (&["iptables-legacy", "-D", "FORWARD", "1"], "jump"),
        (
            &["sh", "-c", "iptables-legacy -F; iptables-legacy -X"],
            "chain_missing",
        ),
        (&["ipset", "flush"], "member_missing"),
    ] {
        assert_put_right(&deployment, command, kind)?;
    }
    assert!(open.is_alive());
    Ok(())
}

/// News that nobody fetches fill a socket, and those behind them are lost (ENOBUFS): that they are is news enough.
pub(super) fn what_others_flush_while_news_are_lost_is_put_right_all_the_same(
    world: &mut World,
) -> TestResult {
    let deployment = play(world, &["--iptables", "nft"])?;
    let rules =
        "for i in $(seq 4000); do echo -A THEIRS -s 192.0.2.1 -m comment --comment $i -j RETURN; done";
    let once =
        format!("(echo '*filter'; echo ':THEIRS - [0:0]'; {rules}; echo COMMIT) | iptables-nft-restore -n");
    let flood = format!("for round in 1 2 3 4 5 6 7 8; do {once}; done; iptables-nft -F THEIRS");
    let repaired = || {
        let kind = [("kind", "chain_changed")];
        // Who asks waits while everything is compared.
        let metrics = deployment.enforcer.metrics();
        metrics.map_or(0.0, |metrics| {
            metrics.sum("egret_enforcer_kernel_repairs_total", &kind)
        })
    };
    assert_eq!(repaired(), 0.0);
    deployment.enforcer.stop()?;
    deployment.world.node().run_well(&["sh", "-c", &flood])?;
    let flush: &[&str] = match backend_override::is_nftables() {
        true => &["nft", "flush", "chain", "inet", "egret", "forward-egress"],
        false => &["iptables-nft", "-F", "EGRET-FORWARD"],
    };
    deployment.world.node().run_well(flush)?;
    deployment.enforcer.cont()?;
    within(RIGHT_AGAIN, "it is put right", || repaired() > 0.0);
    let log = deployment.enforcer.log();
    assert!(
        log.contains("the notification that names the process was lost"),
        "{log}"
    );
    deployment.assert_refused("client", FORBIDDEN);
    Ok(())
}

fn assert_put_right(deployment: &Deployment<'_>, command: &[&str], kind: &str) -> Result<(), WorldError> {
    let repaired =
        || metrics(&deployment.enforcer).sum("egret_enforcer_kernel_repairs_total", &[("kind", kind)]);
    let before = repaired();
    deployment.world.node().run_well(command)?;
    within(RIGHT_AGAIN, &format!("{command:?} is put right"), || {
        repaired() > before
    });
    deployment.assert_refused("client", FORBIDDEN);
    deployment.assert_reaches("client", ALLOWED);
    Ok(())
}

/// As Docker and flannel leave it behind: what comes from there or goes there is accepted.
pub(super) fn what_others_accept_is_judged_first_and_where_it_is_not_that_is_said(
    world: &mut World,
) -> TestResult {
    world.node().run_well(&[
        "iptables",
        "-w",
        "-A",
        "FORWARD",
        "-d",
        "203.0.113.0/24",
        "-j",
        "ACCEPT",
    ])?;
    let mut deployment = play(world, &[])?;
    if backend_override::is_nftables() {
        // Who accepts ends a chain of its own. What stands in front of ours by its priority does so as well.
        let foreign =
            "table inet theirs { chain forward { type filter hook forward priority -500; accept; }; }";
        deployment.world.node().run_well(&["nft", foreign])?;
        deployment.assert_refused("client", FORBIDDEN);
        return Ok(());
    }
    let in_front =
        |deployment: &Deployment<'_>| metrics(&deployment.enforcer).sum("egret_enforcer_rules_in_front", &[]);
    assert_eq!(in_front(&deployment), 0.0);
    deployment.enforcer.terminate()?;
    let behind = deployment
        .world
        .enforcer(backend_override::packet_filter())
        .with(["--jump", "append"]);
    deployment
        .world
        .node()
        .run_well(&["iptables", "-w", "-D", "FORWARD", "1"])?;
    deployment.enforcer = deployment.world.start(behind)?;
    eventually("it is counted", || in_front(&deployment) == 1.0);
    let log = deployment.enforcer.log();
    assert!(log.contains("-A FORWARD -d 203.0.113.0/24 -j ACCEPT"), "{log}");
    deployment.assert_reaches("client", FORBIDDEN);
    Ok(())
}

/// While both sides try all the time: what is forbidden is never open, what is open goes on.
pub(super) fn the_rules_follow_the_kubelet_to_the_other_flavour_without_a_gap(
    world: &mut World,
) -> TestResult {
    let deployment = play(world, &[])?;
    let mut open = deployment.assert_reaches("client", ALLOWED);
    let node = deployment.world.node();
    let has_ours = |flavour: &str| -> Result<bool, WorldError> {
        let listed = node.run(&[&format!("iptables-{flavour}-save"), "-t", "filter"])?;
        Ok(listed.stdout.contains("EGRET-FORWARD"))
    };
    for (from, to, hint) in [
        ("nft", "legacy", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT"),
        ("legacy", "nft", "iptables-nft -t mangle -N KUBE-IPTABLES-HINT"),
    ] {
        assert!(has_ours(from)? && !has_ours(to)?);
        let begun = Instant::now();
        node.run_well(&hint.split(' ').collect::<Vec<_>>())?;
        while has_ours(from)? || !has_ours(to)? {
            assert!(begun.elapsed() < RIGHT_AGAIN, "the rules are still in {from}");
            let attempt = deployment
                .pod("client")
                .connect_tcp(format!("{FORBIDDEN}:7").parse()?, QUICK / 4);
            assert!(
                !attempt.is_connected(),
                "forbidden is forbidden, from {from} to {to}"
            );
            assert!(open.is_alive(), "allowed is allowed, from {from} to {to}");
        }
        deployment.assert_refused("client", FORBIDDEN);
        deployment.assert_reaches("client", ALLOWED);
        assert!(open.is_alive());
    }
    Ok(())
}

pub(super) fn an_enforcer_refuses_to_start_where_others_write_its_marks(world: &mut World) -> TestResult {
    let theirs = "-A PREROUTING -j CONNMARK --set-xmark 0x10000/0xff0000";
    let rule: Vec<&str> = ["iptables", "-w", "-t", "mangle"]
        .into_iter()
        .chain(theirs.split(' '))
        .collect();
    world.node().run_well(&rule)?;
    let mut refused = world.launch(world.enforcer(backend_override::packet_filter()))?;
    eventually("it ends", || !refused.is_running());
    let log = refused.log();
    assert!(log.contains(theirs), "{log}");
    let word = |option: &str| {
        let mut words = log.split([' ', ';', '"']);
        words.find(|word| *word == option).expect("it is advised");
        words.next().expect("with a mask").to_owned()
    };
    let advised = ["--egress-mark-mask", "--ingress-mark-mask"].map(|option| (option, word(option)));
    let [(one, egress), (other, ingress)] = &advised;
    drop(refused);
    let deployment = play(world, &[one, egress, other, ingress])?;
    deployment.assert_reaches("client", ALLOWED);
    drop(deployment);
    Ok(())
}

/// IPv4 is enforced; nobody is told that all is well.
pub(super) fn where_the_programs_for_ipv6_are_missing_ipv4_is_enforced_and_the_node_is_not_ready(
    world: &mut World,
) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .manifests()
        .write("policy.yaml", &only_names(&["api.example.test"]))?;
    let programs = world.files().join("programs");
    std::fs::create_dir(&programs)?;
    for program in ["iptables-nft-save", "iptables-nft-restore", "iptables-nft"] {
        std::os::unix::fs::symlink(format!("/usr/sbin/{program}"), programs.join(program))?;
    }
    let lame = world
        .enforcer(backend_override::packet_filter())
        .with_variable("PATH", &programs.display().to_string());
    let enforcer = world.launch(lame)?;
    eventually("it says what is missing", || {
        let answer = enforcer.get("/readyz");
        answer
            .is_ok_and(|(code, text)| code == 503 && text.contains("ip6tables-nft-restore is not installed"))
    });
    let refused = world
        .pod("client")
        .connect_tcp(format!("{FORBIDDEN}:7").parse()?, QUICK);
    assert!(!refused.is_connected(), "{refused:?}");
    assert_eq!(
        metrics(&enforcer).sum("egret_enforcer_kernel_repairs_total", &[]),
        0.0
    );
    Ok(())
}

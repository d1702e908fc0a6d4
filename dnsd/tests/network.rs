//! The interface and the rules of node-local-dns, against the kernel itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::net::IpAddr;
use std::process::Command;

use egret_dnsd::node_cache::network::{Life, Rules, ensure_interface, remove_interface};
use egret_dnsd::node_cache::rules::{Fallback, Situation};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

#[test]
fn the_interface_holds_the_addresses_and_gets_back_what_somebody_took() {
    in_fresh_namespace(|| {
        let addresses = local_ips();
        assert!(ensure_interface("nodelocaldns", &addresses).unwrap());
        assert!(
            !ensure_interface("nodelocaldns", &addresses).unwrap(),
            "nothing was missing"
        );
        run("ip addr del 10.96.0.10/32 dev nodelocaldns");
        assert!(ensure_interface("nodelocaldns", &addresses).unwrap());
        let listed = run("ip -o addr show dev nodelocaldns");
        assert!(
            addresses
                .iter()
                .all(|address| listed.contains(&format!(" {address}/"))),
            "{listed}"
        );
        assert!(remove_interface("nodelocaldns").unwrap());
        assert!(!remove_interface("nodelocaldns").unwrap());
    });
}

#[test]
fn the_rules_are_there_once_come_back_and_go_without_a_trace() {
    for flavour in ["nft", "legacy"] {
        for fallback in fallbacks() {
            in_fresh_namespace(move || {
                let v4 = format!("iptables-{flavour}");
                // What the kubelet leaves, so that everybody finds its flavour.
                run(&format!("{v4} -t mangle -N KUBE-KUBELET-CANARY"));
                run(&format!("{v4} -A INPUT -s 192.0.2.7/32 -j DROP"));
                let before = everything(flavour);
                let rules = Rules::new(situation(fallback.clone())).unwrap();
                assert!(rules.ensure().unwrap() > 0);
                let whole = everything(flavour);
                assert_eq!(rules.ensure().unwrap(), 0, "all is there: {whole}");
                assert_eq!(whole.matches("allow DNS traffic").count(), 12, "{whole}");
                run(&format!("{v4} -D INPUT 1"));
                run(&format!("{v4} -t raw -F OUTPUT"));
                assert_eq!(rules.ensure().unwrap(), 2);
                assert_eq!(everything(flavour), whole);
                rules.remove().unwrap();
                rules.remove().unwrap();
                let chains_only = |text: &str| -> Vec<String> {
                    text.lines()
                        .filter(|line| line.starts_with("-A"))
                        .map(str::to_owned)
                        .collect()
                };
                assert_eq!(chains_only(&everything(flavour)), chains_only(&before));
                assert_eq!(run("ipset list -n"), "");
            });
        }
    }
}

#[test]
fn what_node_cache_left_is_taken_over_and_not_doubled() {
    in_fresh_namespace(|| {
        run("iptables-nft -t mangle -N KUBE-KUBELET-CANARY");
        let skip = [
            "-m",
            "comment",
            "--comment",
            "NodeLocal DNS Cache: skip conntrack",
        ];
        let arguments = [
            "-t",
            "raw",
            "-I",
            "PREROUTING",
            "-p",
            "udp",
            "-d",
            "10.96.0.10",
            "--dport",
            "53",
            "-j",
            "NOTRACK",
        ];
        for _ in 0..3 {
            let added = Command::new("iptables-nft")
                .args(arguments)
                .args(skip)
                .status()
                .unwrap();
            assert!(added.success());
        }
        for fallback in fallbacks() {
            Rules::new(situation(fallback.clone())).unwrap().ensure().unwrap();
            let saved = run("iptables-nft-save -t raw");
            let found = saved
                .lines()
                .filter(|line| line.starts_with("-A PREROUTING -d 10.96.0.10/32 -p udp"));
            assert_eq!(found.count(), 1, "{fallback:?}: {saved}");
        }
    });
}

#[test]
fn a_sign_of_life_counts_for_a_second() {
    in_fresh_namespace(|| {
        let situation = situation(Fallback::ClusterDns { servers: Vec::new() });
        Rules::new(situation.clone()).unwrap().ensure().unwrap();
        let mut life = Life::of(&situation).unwrap().unwrap();
        let alive = || {
            ["4", "6"].map(|family| {
                run(&format!("ipset list egret-dnsd-alive-{family}"))
                    .matches(" timeout ")
                    .count()
                    - 1
            })
        };
        assert_eq!(alive(), [0, 0]);
        life.sign().unwrap();
        life.sign().unwrap();
        assert_eq!(alive(), [2, 1]);
        life.end().unwrap();
        assert_eq!(alive(), [0, 0]);
        assert!(Life::of(&self::situation(Fallback::None)).unwrap().is_none());
    });
}

fn local_ips() -> Vec<IpAddr> {
    ["169.254.20.10", "10.96.0.10", "fd00::20:10"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

fn situation(fallback: Fallback) -> Situation {
    Situation {
        local_ips: local_ips(),
        dns_port: 53,
        health_port: 8080,
        fallback,
    }
}

fn fallbacks() -> [Fallback; 2] {
    let servers = ["10.0.0.1:53", "10.0.0.2:53", "[fd00::1]:53"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    [Fallback::None, Fallback::ClusterDns { servers }]
}

/// All tables of both families, without what the programs say about themselves.
fn everything(flavour: &str) -> String {
    let save = |tables: &str| run(&format!("{tables}-{flavour}-save"));
    let text = save("iptables") + &save("ip6tables");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test on a thread of its own in a fresh network namespace; `/run` is its own, for the lock of iptables. Where
/// no namespace can be made it says so, and fails where `CI=true`.
fn in_fresh_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| {
        if let Err(errno) = enter_fresh_namespace() {
            return Some(errno);
        }
        test();
        None
    });
    match outcome.join() {
        Ok(None) => {}
        Ok(Some(errno)) => {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_ci, "a network namespace is needed: {errno}");
            let words = format!("NOT TESTED: no network namespace ({errno}); run as root");
            writeln!(std::io::stderr(), "{words}").expect("standard error is open");
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn enter_fresh_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)?;
    run("ip link set lo up");
    Ok(())
}

//! The interface and the rules of node-local-dns in the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/fresh.rs"]
mod fresh;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use egret_dnsd::config::host_setup::Interception;
use egret_dnsd::config::host_setup::{Fallback, RuleSettings};
use egret_dnsd::enforcement::client::{InterfaceRole, Routes as _};
use egret_dnsd::host::interception::{PodSets, follow_pods};
use egret_dnsd::host::node_cache::fallback::BypassCount;
use egret_dnsd::host::node_cache::kernel::{Heartbeat, Rules, ensure_interface, remove_interface};
use egret_kernel::links::Links;
use egret_kernel::{Family, Mark, Transport};
use egret_shared::link::{ClusterDns, NodePods};
use fresh::{enter_fresh_namespace, in_a_thread, run};
use tokio::sync::watch;

#[test]
fn the_interface_has_the_addresses_and_gets_removed_ones_back() {
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
fn interfaces_of_pods_are_recognized() {
    in_fresh_namespace(|| {
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let pod = format!(
            "/proc/{}/task/{}/ns/net",
            std::process::id(),
            nix::unistd::gettid()
        );
        let elsewhere = std::fs::File::open(&pod).unwrap();
        nix::sched::setns(&here, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let other = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&elsewhere));
        nix::fcntl::fcntl(
            &elsewhere,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
        )
        .unwrap();
        for name in ["pod0", "port0", "port1", "mixed0"] {
            run(&format!(
                "ip link add {name} type veth peer name {name}p netns {other}"
            ));
        }
        for line in [
            "ip link add relay0 type veth peer name relay1",
            "ip link add own0 type ifb",
            "ip link add up0 type veth peer name up1",
            "ip link add pods0 type bridge",
            "ip link add mixedbr type bridge",
            "ip link add empty0 type bridge",
            "ip link set port0 master pods0",
            "ip link set port1 master pods0",
            "ip link set mixed0 master mixedbr",
            "ip link set up0 master mixedbr",
        ] {
            run(line);
        }
        let mut links = Links::open().unwrap();
        for (name, behind) in [
            ("lo", InterfaceRole::Local),
            ("own0", InterfaceRole::Local),
            ("pod0", InterfaceRole::Pod),
            ("relay0", InterfaceRole::Relay),
            ("pods0", InterfaceRole::PodBridge),
            ("mixedbr", InterfaceRole::Other),
            ("empty0", InterfaceRole::Other),
        ] {
            let index = links.interface_by_name(name).unwrap().unwrap().index;
            assert_eq!(links.role(index).unwrap(), behind, "{name}");
        }
        assert_eq!(links.role(9_999).unwrap(), InterfaceRole::Other, "it is gone");
    });
}

#[test]
fn the_rules_exist_once_are_restored_and_removed_without_a_trace() {
    for flavour in ["nft", "legacy"] {
        for fallback in fallbacks() {
            in_fresh_namespace(move || {
                let v4 = format!("iptables-{flavour}");
                // What the kubelet leaves, so that everybody finds its flavour.
                run(&format!("{v4} -t mangle -N KUBE-KUBELET-CANARY"));
                run(&format!("{v4} -A INPUT -s 192.0.2.7/32 -j DROP"));
                let before = everything(flavour);
                let rules = Rules::new(settings(fallback.clone())).unwrap();
                assert!(ensure(&rules) > 0);
                let whole = everything(flavour);
                assert_eq!(ensure(&rules), 0, "all is there: {whole}");
                assert_eq!(whole.matches("allow DNS traffic").count(), 12, "{whole}");
                run(&format!("{v4} -D INPUT 1"));
                run(&format!("{v4} -t raw -F OUTPUT"));
                assert_eq!(ensure(&rules), 2);
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

fn intercepting() -> RuleSettings {
    let bit = std::num::NonZeroU32::new(0x20).unwrap();
    RuleSettings {
        intercept: Some(Interception {
            to: ["169.254.20.10", "fd00::20:10"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            mark: Mark::new(0x20, bit),
            except: vec!["192.0.2.0/24".parse().unwrap()],
        }),
        ..settings(Fallback::None)
    }
}

#[test]
fn interception_rules_exist_once_are_restored_and_removed_without_a_trace() {
    for flavour in ["nft", "legacy"] {
        in_fresh_namespace(move || {
            run(&format!("iptables-{flavour} -t mangle -N KUBE-KUBELET-CANARY"));
            let routing =
                || run("ip -4 rule list") + &run("ip -6 rule list") + &run("ip -4 route list table all");
            let (before, routed) = (everything(flavour), routing());
            let rules = Rules::new(intercepting()).unwrap();
            ensure(&rules);
            let whole = everything(flavour);
            assert_eq!(ensure(&rules), 0, "all is there: {whole}");
            assert_eq!(whole.matches("-j TPROXY").count(), 6, "{whole}");
            assert_eq!(whole.matches("egret dnsd: intercept").count(), 14, "{whole}");
            run(&format!("iptables-{flavour} -t mangle -F PREROUTING"));
            run("ip rule del pref 53");
            assert_eq!(ensure(&rules), 1);
            assert_eq!(everything(flavour), whole);
            assert_eq!(run("ip rule list").matches("20053").count(), 1);
            // One that catches nothing removes what another left.
            ensure(&Rules::new(settings(Fallback::None)).unwrap());
            assert!(!everything(flavour).contains("egret dnsd: intercept"));
            ensure(&rules);
            rules.remove().unwrap();
            rules.remove().unwrap();
            let rules_only = |text: &str| -> Vec<String> {
                let lines = text.lines().filter(|line| line.starts_with("-A"));
                lines.map(str::to_owned).collect()
            };
            assert_eq!(rules_only(&everything(flavour)), rules_only(&before));
            assert_eq!((routing(), run("ipset list -n")), (routed, String::new()));
        });
    }
}

#[test]
fn a_foreign_user_of_the_mark_disables_interception_alone() {
    for (others, named) in [
        ("ip rule add fwmark 0x20/0xff lookup 300", "fwmark 0x20/0xff"),
        (
            "iptables-nft -t mangle -A PREROUTING -i eth0 -j MARK --set-mark 0x30/0x30",
            "--set-xmark 0x30/0x30",
        ),
    ] {
        in_fresh_namespace(move || {
            run("iptables-nft -t mangle -N KUBE-KUBELET-CANARY");
            run(others);
            let rules = Rules::new(intercepting()).unwrap();
            let refused = rules.ensure(&[], |_, _| {}).unwrap_err().to_string();
            assert!(
                refused.contains("intercept.mark") && refused.contains(named),
                "{refused}"
            );
            let there = everything("nft");
            assert_eq!(there.matches("allow DNS traffic").count(), 12, "{there}");
            assert!(!there.contains("TPROXY"), "{there}");
        });
    }
}

#[test]
fn the_intercepted_pods_are_those_of_the_last_update() {
    in_fresh_namespace(|| {
        let settings = intercepting();
        ensure(&Rules::new(settings.clone()).unwrap());
        let mut seats = PodSets::open(settings.intercept.as_ref().unwrap()).unwrap();
        let pods = |caught: &[&str], spared: &[&str]| NodePods {
            caught: caught.iter().map(|text| text.parse().unwrap()).collect(),
            spared: spared.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let services = ["10.96.0.53", "10.0.0.2"].map(|text| text.parse().unwrap());
        for (told, pods_4, spared_4, pods_6) in [
            (
                pods(&["10.0.0.1", "10.0.0.2", "fd00::1"], &["10.0.0.3"]),
                vec!["10.0.0.1", "10.0.0.2"],
                vec!["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.96.0.53", "192.0.2.0/24"],
                vec!["fd00::1"],
            ),
            (
                pods(&["10.0.0.2", "10.0.0.3"], &[]),
                vec!["10.0.0.2", "10.0.0.3"],
                vec!["10.0.0.2", "10.0.0.3", "10.96.0.53", "192.0.2.0/24"],
                vec![],
            ),
        ] {
            seats.hold(&told, &services).unwrap();
            for (set, members) in [
                ("egret-dnsd-pods-4", pods_4),
                ("egret-dnsd-spared-4", spared_4),
                ("egret-dnsd-pods-6", pods_6),
            ] {
                let saved = run(&format!("ipset save {set}"));
                let mut held: Vec<&str> = saved
                    .lines()
                    .filter_map(|line| line.strip_prefix(&format!("add {set} ")))
                    .collect();
                held.sort_unstable();
                assert_eq!(held, members, "{set}");
            }
        }
    });
}

#[test]
fn without_an_update_the_intercepted_pods_stay() {
    in_fresh_namespace(|| {
        let settings = intercepting();
        ensure(&Rules::new(settings.clone()).unwrap());
        let opened = || PodSets::open(settings.intercept.as_ref().unwrap()).unwrap();
        let pods = |caught: &[&str]| NodePods {
            caught: caught.iter().map(|text| text.parse().unwrap()).collect(),
            spared: Vec::new(),
        };
        opened().hold(&pods(&["10.0.0.1"]), &[]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        for (told, held) in [
            (None, 1),
            (Some(pods(&["10.0.0.1", "10.0.0.2"])), 2),
            (None, 2),
            (Some(pods(&[])), 0),
        ] {
            let (_, heard) = watch::channel(told.clone());
            let (_, nowhere) = watch::channel(ClusterDns::default());
            runtime.block_on(follow_pods(opened(), heard, nowhere));
            let saved = run("ipset save egret-dnsd-pods-4");
            assert_eq!(saved.matches("add ").count(), held, "{told:?}: {saved}");
        }
    });
}

#[test]
fn rules_of_node_cache_are_taken_over_and_not_duplicated() {
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
            ensure(&Rules::new(settings(fallback.clone())).unwrap());
            let saved = run("iptables-nft-save -t raw");
            let found = saved
                .lines()
                .filter(|line| line.starts_with("-A PREROUTING -d 10.96.0.10/32 -p udp"))
                .filter(|line| line.contains("skip conntrack"));
            assert_eq!(found.count(), 1, "{fallback:?}: {saved}");
        }
    });
}

#[test]
fn a_heartbeat_lives_for_a_second() {
    in_fresh_namespace(|| {
        let settings = settings(Fallback::ClusterDns { servers: Vec::new() });
        ensure(&Rules::new(settings.clone()).unwrap());
        let mut life = Heartbeat::new(&settings).unwrap().unwrap();
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
        assert!(Heartbeat::new(&self::settings(Fallback::None)).unwrap().is_none());
    });
}

#[test]
fn learned_servers_stay_in_the_rules_and_bypassed_packets_are_counted_once() {
    for flavour in ["nft", "legacy"] {
        in_fresh_namespace(move || {
            run(&format!("iptables-{flavour} -t mangle -N KUBE-KUBELET-CANARY"));
            run("ip addr add fd00::20:10/128 dev lo nodad");
            let fresh = || Rules::new(settings(Fallback::ClusterDns { servers: Vec::new() })).unwrap();
            let servers = |texts: &[&str]| -> Vec<SocketAddr> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            let led_to = |server: &str| {
                let to = format!("--to-destination {server}\n");
                everything(flavour).matches(&to).count()
            };
            let rules = fresh();
            ensure(&rules);
            assert_eq!(led_to("10.0.0.7:53"), 0);
            let tell = |rules: &Rules, told: &[&str]| rules.ensure(&servers(told), |_, _| {}).unwrap();
            assert_eq!(tell(&rules, &["10.0.0.7:53", "10.0.0.8:53"]), 1);
            assert_eq!((led_to("10.0.0.7:53"), led_to("10.0.0.8:53")), (8, 8));
            assert_eq!(tell(&rules, &[]), 0, "nobody is told: nothing changes");
            assert_eq!(ensure(&fresh()), 0, "nor by another life");
            assert_eq!(tell(&rules, &["10.0.0.8:53"]), 1);
            assert_eq!((led_to("10.0.0.7:53"), led_to("10.0.0.8:53")), (0, 8));

            let socket = UdpSocket::bind("[::1]:0").unwrap();
            (0..3).for_each(|_| drop(socket.send_to(&[0], "[fd00::20:10]:53")));
            let count = |rules: &Rules| {
                let mut counts = Vec::new();
                rules
                    .ensure(&[], |family, past| counts.push((family, past)))
                    .unwrap();
                counts
            };
            let transport = Transport::Udp;
            assert_eq!(
                count(&fresh()),
                [(Family::V6, BypassCount { transport, count: 3 })]
            );
            assert_eq!(count(&rules), [], "nobody counts them again");
        });
    }
}

/// With nobody to ask but whom the configuration or the rules name.
fn ensure(rules: &Rules) -> usize {
    rules.ensure(&[], |_, _| {}).unwrap()
}

fn local_ips() -> Vec<IpAddr> {
    ["169.254.20.10", "10.96.0.10", "fd00::20:10"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

fn settings(fallback: Fallback) -> RuleSettings {
    RuleSettings {
        local_ips: local_ips(),
        dns_port: 53,
        health_port: 8080,
        fallback,
        intercept: None,
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

/// Runs a test in a fresh network namespace.
fn in_fresh_namespace(test: impl FnOnce() + Send) {
    let tested = in_a_thread(|| {
        enter_fresh_namespace().unwrap();
        test();
    });
    // Where there can be none, that was said.
    tested.unwrap_or_default();
}

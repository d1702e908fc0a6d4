//! The backend `netfilter` against this kernel, in both flavours and both families.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::BTreeMap;

use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::backend::netfilter::names::PodChains;
use egret_enforcer::backend::{Backend, Pending, SyncStatus};
use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, IpTables};
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PodRules, PortMatch, SetKind, TierRules};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use node_world::{
    ByLastOctet, Change, NOW, Nowhere, address, backend, filter, in_fresh_namespace, network, packets_denied,
    pod, range, rule, run, seconds, set, tier,
};

fn in_both_flavours(test: fn(Flavour)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || test(flavour));
    }
}

fn isolated(name: &str, addresses: &[&str], peers: &str) -> PodRules {
    let allow = rule(
        Action::Allow,
        PeerMatch::In(set(peers)),
        range(Transport::Tcp, 80, 80),
    );
    let names = rule(Action::Allow, PeerMatch::In(set("names")), PortMatch::Any);
    pod(
        name,
        addresses,
        vec![tier(Tier::NetworkPolicy, vec![allow, names], DefaultAction::Deny)],
        Vec::new(),
    )
}

/// Two pods, sets of every kind.
fn first() -> Change {
    Change::new()
        .set(
            "peers",
            SetKind::Addresses,
            &[(address("10.0.0.9"), None), (address("fd00::9"), None)],
        )
        .set(
            "names",
            SetKind::Records,
            &[(address("203.0.113.7"), Some(seconds(300)))],
        )
        .set(
            "nets",
            SetKind::Networks,
            &[(network("0.0.0.0/0"), None), (network("2001:db8::/32"), None)],
        )
        .rules(isolated("a", &["10.0.0.1", "fd00::1"], "peers"))
        .rules(isolated("b", &["10.0.0.2"], "nets"))
}

/// All that the kernel holds of ours, in words that can be compared.
fn kernel(flavour: Flavour) -> String {
    filter(flavour) + &members()
}

/// The members of all sets, without their lifetimes.
fn members() -> String {
    let listed = run("ipset", &["list", "-o", "save"]);
    let mut lines: Vec<&str> = listed.lines().filter(|line| line.starts_with("add ")).collect();
    lines.sort_unstable();
    lines
        .iter()
        .map(|line| line.split(" timeout ").next().unwrap().to_owned() + "\n")
        .collect()
}

fn assert_settled(standing: &SyncStatus) {
    assert_eq!((&standing.pending, &standing.broken), (&BTreeMap::new(), &None));
}

/// A life of the enforcer that begins with this batch.
fn life(flavour: Flavour, change: &Change) -> (egret_enforcer::backend::netfilter::Netfilter, SyncStatus) {
    let mut backend = backend(flavour, ByLastOctet);
    backend.adopt(NOW).unwrap();
    let standing = backend.apply(&change.0, NOW);
    assert_settled(&standing);
    (backend, standing)
}

#[test]
fn the_kernel_holds_what_was_applied_and_a_restart_changes_nothing() {
    in_both_flavours(|flavour| {
        let (_, standing) = life(flavour, &first());
        assert_eq!(standing.repaired, BTreeMap::new());
        let before = kernel(flavour);
        for expected in [
            "-A FORWARD -j EGRET-FORWARD",
            "-A EGRET-FORWARD -j EGRET-FROM",
            "-A EGRET-FROM -i veth-1 -g EGRET-E-",
            "-A EGRET-TO -o veth-2 -g EGRET-I-",
            "10.0.0.9",
            "fd00::9",
            "203.0.113.7",
            "128.0.0.0/1",
        ] {
            assert!(before.contains(expected), "{expected} is not in:\n{before}");
        }
        let (mut next, standing) = life(flavour, &first());
        assert_eq!(standing.repaired, BTreeMap::new());
        assert_eq!(kernel(flavour), before);
        assert_eq!(next.reconcile(NOW), SyncStatus::default());
        assert_eq!(kernel(flavour), before);
    });
}

/// A chain to which somebody else's rule jumps cannot be removed: the kernel refuses the whole change that would.
#[test]
fn a_foreign_rule_to_a_chain_of_a_removed_pod_blocks_no_other_pod() {
    in_both_flavours(|flavour| {
        let iptables = format!("iptables-{}", flavour.name());
        let (mut backend, _) = life(flavour, &first());
        let gone = PodChains::of(&PodKey::new("default", "a")).entry(Direction::Egress);
        let foreign = ["FORWARD", "-s", "192.0.2.9/32", "-j", gone.as_str()];
        run(&iptables, &[&["-A"], &foreign[..]].concat());
        let mut change = Change::new().rules(isolated("c", &["10.0.0.3"], "nets"));
        change.0.pods_removed = vec![PodKey::new("default", "a")];
        let standing = backend.apply(&change.0, NOW);
        assert!(standing.broken.is_some(), "it is told: {standing:?}");
        let held = filter(flavour);
        assert!(held.contains("-A EGRET-FROM -i veth-3 -g EGRET-E-"), "{held}");
        assert!(!held.contains("-i veth-1 "), "{held}");
        run(&iptables, &[&["-D"], &foreign[..]].concat());
        assert_settled(&backend.reconcile(NOW));
        assert!(!filter(flavour).contains(gone.as_str()));
    });
}

#[test]
fn foreign_changes_of_our_rules_are_repaired_and_counted_and_foreign_rules_stay() {
    in_both_flavours(|flavour| {
        let iptables = format!("iptables-{}", flavour.name());
        let (mut backend, _) = life(flavour, &first());
        let before = kernel(flavour);
        run(
            &iptables,
            &["-A", "FORWARD", "-s", "192.0.2.1/32", "-j", "ACCEPT"],
        );
        run(&iptables, &["-N", "THEIRS"]);
        run("ipset", &["create", "theirs", "hash:ip"]);
        let foreign = kernel(flavour);
        run(&iptables, &["-I", "EGRET-FORWARD", "-j", "ACCEPT"]);
        run(
            &iptables,
            &["-I", "FORWARD", "-s", "192.0.2.2/32", "-j", "ACCEPT"],
        );
        run(&format!("ip6tables-{}", flavour.name()), &["-D", "INPUT", "1"]);
        let name = format!("{}-egret-4", set("peers").digest());
        run("ipset", &["add", &name, "192.0.2.3"]);
        run("ipset", &["del", &name, "10.0.0.9"]);
        let standing = backend.reconcile(NOW);
        assert_settled(&standing);
        let repaired: Vec<_> = standing
            .repaired
            .iter()
            .map(|(kind, count)| (*kind, *count))
            .collect();
        assert_eq!(
            repaired,
            [
                ("chain_changed", 1),
                ("jump", 2),
                ("member_extra", 1),
                ("member_missing", 1)
            ]
        );
        run(
            &iptables,
            &["-D", "FORWARD", "-s", "192.0.2.2/32", "-j", "ACCEPT"],
        );
        // The pod whose set held a stranger is asked again under a new generation; all else is as it was.
        let strip = |text: String| -> String {
            text.lines()
                .filter(|line| {
                    !line.contains("onnmark") && !line.contains("CONNMARK") && !line.contains("serial")
                })
                .collect()
        };
        assert_eq!(strip(kernel(flavour)), strip(foreign));
        assert_ne!(before, "");
    });
}

#[test]
fn a_record_is_kept_across_a_restart_and_never_shortened() {
    in_both_flavours(|flavour| {
        drop(life(flavour, &first()));
        let unknown = Change::new()
            .set(
                "peers",
                SetKind::Addresses,
                &[(address("10.0.0.9"), None), (address("fd00::9"), None)],
            )
            .set("names", SetKind::Records, &[])
            .set(
                "nets",
                SetKind::Networks,
                &[(network("0.0.0.0/0"), None), (network("2001:db8::/32"), None)],
            )
            .rules(isolated("a", &["10.0.0.1", "fd00::1"], "peers"))
            .rules(isolated("b", &["10.0.0.2"], "nets"));
        let (mut next, _) = life(flavour, &unknown);
        assert!(lifetime("203.0.113.7").unwrap() > 290);
        let sooner = Change::new().members("names", &[(address("203.0.113.7"), Some(seconds(10)))], &[]);
        assert_settled(&next.apply(&sooner.0, NOW));
        assert!(lifetime("203.0.113.7").unwrap() > 290);
        let later = Change::new().members("names", &[(address("203.0.113.7"), Some(seconds(900)))], &[]);
        assert_settled(&next.apply(&later.0, NOW));
        assert!(lifetime("203.0.113.7").unwrap() > 890);
    });
}

/// Seconds left of an address in the IPv4 set of records.
fn lifetime(address: &str) -> Option<u64> {
    let listed = run("ipset", &["list", &format!("{}-egret-4", set("names").digest())]);
    let line = listed.lines().find(|line| line.starts_with(address))?;
    line.split(" timeout ").nth(1)?.trim().parse().ok()
}

#[test]
fn a_record_that_is_over_or_unspecified_is_never_written() {
    in_fresh_namespace(|| {
        let (mut backend, _) = life(Flavour::Nft, &first());
        let members = [
            (address("203.0.113.8"), Some(NOW)),
            (address("0.0.0.0"), Some(seconds(9))),
            (address("::"), Some(seconds(9))),
        ];
        assert_settled(&backend.apply(&Change::new().members("names", &members, &[]).0, NOW));
        assert_eq!(lifetime("203.0.113.8"), None);
        let shortest = [(
            address("203.0.113.8"),
            Some(egret_shared::time::Timestamp::from_millis(NOW.as_millis() + 1)),
        )];
        assert_settled(&backend.apply(&Change::new().members("names", &shortest, &[]).0, NOW));
        assert!(lifetime("203.0.113.8").is_none_or(|left| left <= 1));
    });
}

/// What one pod's rules allowed would count for the other.
#[test]
fn pods_of_one_batch_have_marks_of_their_own() {
    in_both_flavours(|flavour| {
        let (backend, _) = life(flavour, &first());
        let listed = filter(flavour);
        let marks: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split_once("-j CONNMARK --set-xmark ").map(|(_, mark)| mark))
            .collect();
        let different: std::collections::BTreeSet<&str> = marks.iter().copied().collect();
        // Two pods, two directions, both families.
        assert_eq!((marks.len(), different.len()), (8, 4), "{marks:?}");
        drop(backend);
    });
}

#[test]
fn only_reevaluated_pods_get_a_new_generation() {
    in_both_flavours(|flavour| {
        let (mut backend, _) = life(flavour, &first());
        let generations = |of: &str| -> Vec<String> {
            let mark = |line: &&str| line.contains("-m connmark") && line.contains(of);
            filter(flavour).lines().filter(mark).map(str::to_owned).collect()
        };
        let chains = |name: &str| {
            egret_enforcer::backend::netfilter::names::PodChains::of(&PodKey::new("default", name))
                .entry(Direction::Egress)
                .as_str()
                .to_owned()
        };
        let (a, b) = (generations(&chains("a")), generations(&chains("b")));
        let mut again = Change::new();
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        assert_settled(&backend.apply(&again.0, NOW));
        assert_ne!(generations(&chains("a")), a);
        assert_eq!(generations(&chains("b")), b);
    });
}

#[test]
fn a_pod_that_goes_leaves_nothing_behind() {
    in_both_flavours(|flavour| {
        let (mut backend, _) = life(flavour, &first());
        let mut gone = Change::new();
        gone.0.pods_removed = vec![PodKey::new("default", "a"), PodKey::new("default", "b")];
        gone.0.sets_destroyed = vec![set("peers"), set("names"), set("nets")];
        assert_settled(&backend.apply(&gone.0, NOW));
        assert_eq!(members(), "");
        let left = filter(flavour);
        assert!(!left.contains("veth-"), "{left}");
        assert!(!left.contains("EGRET-E-"), "{left}");
    });
}

#[test]
fn a_pod_without_an_interface_is_pending_and_its_rules_wait_for_it() {
    in_fresh_namespace(|| {
        let mut backend = backend(Flavour::Nft, Nowhere);
        backend.adopt(NOW).unwrap();
        let standing = backend.apply(&first().0, NOW);
        let pending = standing.pending.get(&PodKey::new("default", "a")).cloned();
        assert_eq!(pending, Some(Pending::Unattached("there is no route".to_owned())));
        assert!(members().contains("203.0.113.7"));
        assert!(!filter(Flavour::Nft).contains("veth-"));
    });
}

#[test]
fn a_set_that_cannot_be_made_concerns_its_pods_alone_and_closes_them() {
    in_fresh_namespace(|| {
        let name = format!("{}-egret-4", set("peers").digest());
        run("ipset", &["create", &name, "hash:net"]);
        // A rule of others holds it, so it cannot be made anew.
        let theirs = ["-A", "OUTPUT", "-m", "set", "--match-set", &name, "dst"];
        run("iptables-nft", &theirs);
        let mut backend = backend(Flavour::Nft, ByLastOctet);
        backend.adopt(NOW).unwrap();
        let standing = backend.apply(&first().0, NOW);
        assert_eq!(standing.broken, None);
        let pods: Vec<String> = standing.pending.keys().map(ToString::to_string).collect();
        assert_eq!(pods, ["default/a"]);
        assert!(standing.wants_retry());
        assert!(filter(Flavour::Nft).contains("-i veth-2 -g EGRET-E-"));
    });
}

/// An earlier version made each set in both families, and rules over it.
#[test]
fn networks_of_one_family_are_neither_set_nor_rule_in_the_other() {
    in_both_flavours(|flavour| {
        let [v4, v6] = [4, 6].map(|family| format!("{}-egret-{family}", set("nets").digest()));
        let there = || run("ipset", &["list", "-n"]);
        let listed = || {
            ["iptables", "ip6tables"]
                .map(|name| run(&format!("{name}-{}-save", flavour.name()), &["-t", "filter"]))
        };
        let named = || listed().map(|text| text.lines().filter(|line| line.contains("-egret-")).count());
        run("ipset", &["create", &v6, "hash:net", "family", "inet6"]);
        let pod = pod("a", &["10.0.0.1", "fd00::1"], refusing("nets"), Vec::new());
        let nets = [(network("203.0.113.0/24"), None)];
        let change = Change::new().set("nets", SetKind::Networks, &nets).rules(pod);
        let (mut backend, _) = life(flavour, &change);
        assert_eq!((there().trim(), named()), (v4.as_str(), [1, 0]));
        assert_settled(&backend.reconcile(NOW));
        assert_eq!((there().trim(), named()), (v4.as_str(), [1, 0]));
        // Nothing of this kind ever changes. If it did, it would close until there is a set for it.
        let other = [(network("2001:db8::/32"), None)];
        let standing = backend.apply(&Change::new().members("nets", &other, &[]).0, NOW);
        assert!(standing.wants_retry(), "{standing:?}");
        for text in listed() {
            assert!(
                text.lines()
                    .any(|line| line.starts_with("-A EGRET-E0-") && line.ends_with("-g EGRET-DENY")),
                "{text}"
            );
        }
        assert_eq!(named(), [0, 0]);
        assert_settled(&backend.reconcile(NOW));
        assert_eq!((there().lines().count(), named()), (2, [1, 1]));
    });
}

#[test]
fn cleanup_leaves_what_others_made_and_nothing_else() {
    in_both_flavours(|flavour| {
        let iptables = format!("iptables-{}", flavour.name());
        run(
            &iptables,
            &["-A", "FORWARD", "-s", "192.0.2.1/32", "-j", "ACCEPT"],
        );
        run(&iptables, &["-N", "EGRET-DNSD"]);
        run("ipset", &["create", "egret-dnsd-alive-4", "hash:ip"]);
        let before = filter(flavour) + &run("ipset", &["list", "-n"]);
        drop(life(flavour, &first()));
        let told = cleanup::everywhere(Mode::Tell).unwrap();
        let (nothing_removed, _) = life(flavour, &first());
        drop(nothing_removed);
        assert_eq!(cleanup::everywhere(Mode::Remove).unwrap(), told);
        assert_eq!(filter(flavour) + &run("ipset", &["list", "-n"]), before);
        assert_eq!(cleanup::everywhere(Mode::Tell).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn counts_survive_rewritten_chains_and_a_restart() {
    in_both_flavours(|flavour| {
        let rules = isolated("a", &["127.0.0.1", "::1"], "peers");
        let begin = Change::new()
            .set("peers", SetKind::Addresses, &[])
            .set("names", SetKind::Records, &[])
            .rules(rules.clone());
        let mut backend = backend(flavour, ThisHost);
        backend.adopt(NOW).unwrap();
        assert_settled(&backend.apply(&begin.0, NOW));
        for _ in 0..3 {
            probe("127.0.0.1:9");
            probe("[::1]:9");
        }
        assert_eq!(packets_denied(&backend), 6);
        let mut again = Change::new().rules(rules);
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        assert_settled(&backend.apply(&again.0, NOW));
        assert_eq!(packets_denied(&backend), 6);
        drop(backend);
        let mut next = node_world::backend(flavour, ThisHost);
        next.adopt(NOW).unwrap();
        assert_settled(&next.apply(&begin.0, NOW));
        probe("127.0.0.1:9");
        assert_eq!(packets_denied(&next), 7);
    });
}

#[test]
fn counts_of_removed_rules_need_no_listing_unless_others_changed_them() {
    in_both_flavours(|flavour| {
        let of = |peers| isolated("a", &["127.0.0.1", "::1"], peers);
        let set = |change: Change, name| change.set(name, SetKind::Addresses, &[]);
        let names = Change::new().set("names", SetKind::Records, &[]);
        let begin = set(set(names, "peers"), "others").rules(of("peers"));
        let mut backend = backend(flavour, ThisHost);
        backend.adopt(NOW).unwrap();
        assert_settled(&backend.apply(&begin.0, NOW));
        probe("127.0.0.1:9");
        probe("[::1]:9");
        assert_settled(&backend.apply(&Change::new().rules(of("others")).0, NOW));
        assert_eq!((packets_denied(&backend), backend.written().listings), (2, 0));
        probe("127.0.0.1:9");
        let counting = PodChains::of(&PodKey::new("default", "a"));
        let counting = counting.tier(Direction::Egress, Tier::NetworkPolicy, 0);
        let program = format!("iptables-{}", flavour.name());
        run(&program, &["-A", counting.as_str(), "-j", "RETURN"]);
        assert_settled(&backend.apply(&Change::new().rules(of("peers")).0, NOW));
        assert_eq!((packets_denied(&backend), backend.written().listings), (3, 1));
    });
}

#[test]
fn a_connection_of_an_expired_record_survives_reevaluation_until_its_rule_is_removed() {
    in_both_flavours(|flavour| {
        let begin = Change::new()
            .set("peers", SetKind::Addresses, &[])
            .set(
                "names",
                SetKind::Records,
                &[(address("127.0.0.1"), Some(seconds(1)))],
            )
            .rules(isolated("a", &["127.0.0.1"], "peers"));
        let mut backend = backend(flavour, ThisHost);
        backend.adopt(NOW).unwrap();
        assert_settled(&backend.apply(&begin.0, NOW));
        let open = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let denied_after_a_packet = |backend: &dyn Backend| {
            open.send_to(b"x", "127.0.0.1:9").unwrap();
            packets_denied(backend)
        };
        assert_eq!(denied_after_a_packet(&backend), 0);
        while lifetime("127.0.0.1").is_some() {
            std::thread::yield_now();
        }
        let mut again = Change::new();
        again
            .0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        assert_settled(&backend.apply(&again.0, seconds(2)));
        assert_eq!(denied_after_a_packet(&backend), 0);
        probe("127.0.0.1:9");
        assert_eq!(packets_denied(&backend), 1);
        let without = vec![tier(Tier::NetworkPolicy, Vec::new(), DefaultAction::Deny)];
        let mut gone = Change::new().rules(pod("a", &["127.0.0.1"], without, Vec::new()));
        gone.0
            .reevaluate
            .push((PodKey::new("default", "a"), Direction::Egress));
        gone.0.sets_destroyed.push(set("names"));
        assert_settled(&backend.apply(&gone.0, seconds(2)));
        assert_eq!(denied_after_a_packet(&backend), 2);
    });
}

/// The pod is behind `lo`, so that what this host sends itself is the pod's.
#[derive(Debug)]
struct ThisHost;

impl egret_enforcer::node::Locate for ThisHost {
    fn locate(
        &mut self,
        _addresses: &[std::net::IpAddr],
    ) -> Result<Vec<egret_enforcer::node::Location>, String> {
        let interface = egret_kernel::iptables::InterfaceName::new("lo").unwrap();
        Ok(vec![egret_enforcer::node::Location::own(interface)])
    }
}

/// One datagram.
fn probe(to: &str) {
    let to: std::net::SocketAddr = to.parse().unwrap();
    let socket = std::net::UdpSocket::bind((to.ip(), 0)).unwrap();
    socket.send_to(b"x", to).unwrap();
}

fn refusing(peers: &str) -> Vec<TierRules> {
    let deny = rule(Action::Deny, PeerMatch::In(set(peers)), PortMatch::Any);
    vec![tier(
        Tier::ClusterEgressFirewall,
        vec![deny],
        DefaultAction::NextTier,
    )]
}

/// They are adopted, repaired, replaced and removed as those of pods are; hooks of others stay as they were.
#[test]
fn the_rules_of_the_node_come_and_go_with_what_they_say() {
    in_both_flavours(|flavour| {
        let iptables = format!("iptables-{}", flavour.name());
        life(flavour, &first());
        let without = kernel(flavour);
        let with = || {
            let Change(batch) = first();
            Change(batch).node_rules(refusing("nets"))
        };
        let (mut backend, standing) = life(flavour, &with());
        assert_eq!(
            standing.repaired.keys().copied().collect::<Vec<_>>(),
            ["chain_changed", "chain_missing"]
        );
        let before = kernel(flavour);
        assert!(
            before.contains("--ctstate DNAT -m connmark --mark 0x0/0x7ff0000"),
            "{before}"
        );
        assert!(
            !before.contains("OUTPUT -m comment"),
            "without IPVS nothing is asked there: {before}"
        );
        let (_, standing) = life(flavour, &with());
        assert_eq!(
            (standing.repaired, kernel(flavour)),
            (BTreeMap::new(), before.clone())
        );

        let line = before
            .lines()
            .find(|line| line.contains("cef deny egress"))
            .unwrap();
        let chain = line.split(' ').nth(1).unwrap();
        run(&iptables, &["-F", chain]);
        let standing = backend.reconcile(NOW);
        assert_settled(&standing);
        assert_eq!(standing.repaired, BTreeMap::from([("chain_changed", 1)]));
        assert_eq!(kernel(flavour), before);

        let standing = backend.apply(&Change::new().node_rules(Vec::new()).0, NOW);
        assert_settled(&standing);
        assert_eq!(kernel(flavour), without);
        assert_settled(&backend.apply(&Change::new().node_rules(refusing("nets")).0, NOW));
        assert_eq!(kernel(flavour), before);
        assert!(cleanup::everywhere(Mode::Remove).unwrap().len() > 6);
        let left = kernel(flavour);
        assert!(!left.contains("EGRET") && !left.contains("egret"), "{left}");
    });
}

/// What is put where IPVS is: this kernel takes it, and cleanup knows it.
#[test]
fn the_jump_for_ipvs_is_taken_by_the_kernel_and_known_to_cleanup() {
    in_both_flavours(|flavour| {
        // Without the jumps to a pod whose chains are not part of the text.
        let golden: String = include_str!("golden/exposed-ipvs-4.rules")
            .split_inclusive('\n')
            .filter(|line| !line.contains("veth1"))
            .collect();
        let put = |tables: IpTables| {
            for (name, kind) in [
                ("jnpfp5xlf5blsa43", "hash:net"),
                ("f4c5jnuj2jymv6yc", "hash:net"),
                ("ee3rgudcwhvsabi7", "hash:ip,port"),
            ] {
                run("ipset", &["create", &format!("{name}-egret-4"), kind]);
            }
            tables.restore(&golden).unwrap();
        };
        let tables = IpTables::new(flavour, Family::V4);
        put(tables);
        let listed = filter(flavour);
        for line in golden.lines().filter(|line| line.starts_with("-A ")) {
            assert!(listed.contains(line), "{line} is not in:\n{listed}");
        }
        assert!(listed.contains("-A OUTPUT -j EGRET-OUTPUT"), "{listed}");
        let (_, standing) = life(flavour, &first());
        assert_eq!(standing.repaired.get("jump"), Some(&5), "{:?}", standing.repaired);
        assert!(
            !filter(flavour).contains("OUTPUT -m comment"),
            "{}",
            filter(flavour)
        );
        put(tables);
        cleanup::everywhere(Mode::Remove).unwrap();
        assert!(!filter(flavour).contains("EGRET"), "{}", filter(flavour));
    });
}

//! The backend `netfilter` beside others in the packet filter, in both flavours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::time::Duration;

use egret_enforcer::backend::netfilter::cleanup;
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::JumpPosition;
use egret_enforcer::backend::netfilter::tables::foreign_rules::look_for_marks;
use egret_enforcer::backend::netfilter::{Coexistence, Netfilter};
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_kernel::iptables::Flavour;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use egret_shared::pod::PodKey;
use nix::fcntl::{Flock, FlockArg};

use node_world::{
    ByLastOctet, Change, NOW, address, backend, filter, in_fresh_namespace, pod, rule, run, seconds, set,
    tier,
};

const BOTH_FLAVOURS: [(Flavour, &str, &str); 2] = [
    (Flavour::Nft, "iptables-nft", "ip6tables-nft"),
    (Flavour::Legacy, "iptables-legacy", "ip6tables-legacy"),
];

fn isolated(name: &str, address: &str) -> PodRules {
    let allow = |peers| rule(Action::Allow, PeerMatch::In(set(peers)), PortMatch::Any);
    let rules = vec![allow("peers"), allow("names")];
    pod(
        name,
        &[address],
        vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)],
        Vec::new(),
    )
}

fn first() -> Change {
    Change::new()
        .set("peers", SetKind::Addresses, &[(address("10.0.0.9"), None)])
        .set(
            "names",
            SetKind::Records,
            &[(address("203.0.113.7"), Some(seconds(300)))],
        )
        .rules(isolated("a", "10.0.0.1"))
}

fn alive(flavour: Flavour, jump: JumpPosition, follows_flavour: bool) -> Netfilter {
    let mut backend = backend(flavour, ByLastOctet).with_coexistence(Coexistence {
        jump,
        follows_flavour,
        accepted_marks: Vec::new(),
    });
    backend.adopt(NOW).unwrap();
    assert_eq!(backend.apply(&first().0, NOW).broken, None);
    // What it wrote itself looks like a change where the kernel does not say whose it was.
    settle(&mut backend);
    backend
}

fn settle(backend: &mut Netfilter) {
    assert_eq!(backend.reconcile(NOW), SyncStatus::default());
    assert_eq!(backend.poll_drift(NOW), None);
}

fn name_of(set_name: &str) -> String {
    format!("{}-egret-4", set(set_name).digest())
}

#[test]
fn a_drift_poll_detects_changes_by_others_and_a_resync_names_what_is_missing() {
    for (flavour, _, _) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            let mut backend = alive(flavour, JumpPosition::Insert, false);
            let names = name_of("names");
            let found = |backend: &mut Netfilter, command: &[&str], what: &str, kind: &str| {
                run(command[0], &command[1..]);
                let cause = backend.poll_drift(NOW);
                assert!(
                    cause.as_ref().is_some_and(|cause| cause.contains(what)),
                    "{command:?}: {cause:?}"
                );
                let standing = backend.reconcile(NOW);
                assert!(standing.repaired.contains_key(kind), "{command:?}: {standing:?}");
                assert!(
                    !standing.differences.is_empty() && standing.broken.is_none(),
                    "{standing:?}"
                );
                settle(backend);
                standing.differences
            };
            found(
                &mut backend,
                &["ipset", "flush", &names],
                &names,
                "member_missing",
            );
            found(
                &mut backend,
                &["ipset", "add", &names, "192.0.2.3"],
                &names,
                "member_extra",
            );
            if flavour == Flavour::Legacy {
                let said = found(
                    &mut backend,
                    &["ip6tables-legacy", "-F", "EGRET-FORWARD"],
                    "tables changed",
                    "chain_changed",
                );
                assert_eq!(said, ["chain changed: V6 EGRET-FORWARD"]);
                let of = |program| format!("{program}-legacy -F && {program}-legacy -X");
                let all = format!("{} && {} && ipset destroy", of("iptables"), of("ip6tables"));
                let flush = ["sh", "-c", &all];
                let said = found(&mut backend, &flush, "tables changed", "set_missing");
                assert!(
                    said.contains(&"chain missing: V4 EGRET-FORWARD".to_owned()),
                    "{said:?}"
                );
                let said = found(
                    &mut backend,
                    &["iptables-legacy", "-t", "raw", "-F", "EGRET-SOURCE"],
                    "tables changed",
                    "chain_changed",
                );
                assert_eq!(said, ["chain changed: V4 EGRET-SOURCE"]);
                // As large as it was, with the jumps where they were.
                run("iptables-legacy", &["-R", "EGRET-DENY", "1", "-j", "ACCEPT"]);
                assert!(backend.poll_drift(seconds(4)).is_some(), "{}", filter(flavour));
                assert_eq!(
                    backend.reconcile(seconds(4)).differences,
                    ["chain changed: V4 EGRET-DENY"]
                );
                settle(&mut backend);
                run("iptables-legacy", &["-A", "INPUT", "-j", "ACCEPT"]);
                assert!(backend.poll_drift(NOW).is_some(), "it may concern us");
                settle(&mut backend);
            }
        });
    }
}

#[test]
fn a_chain_head_that_others_keep_taking_is_left_to_them_and_reported() {
    for (flavour, program, _) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            let mut backend = alive(flavour, JumpPosition::Insert, false);
            for _ in 0..3 {
                run(program, &["-I", "FORWARD", "-s", "192.0.2.1", "-j", "ACCEPT"]);
                assert_eq!(backend.reconcile(NOW).repaired.get("jump"), Some(&1));
            }
            run(program, &["-I", "FORWARD", "-s", "192.0.2.1", "-j", "ACCEPT"]);
            let standing = backend.reconcile(NOW);
            assert_eq!(standing.repaired.len(), 0);
            let theirs = "V4 filter -A FORWARD -s 192.0.2.1/32 -j ACCEPT";
            assert_eq!(standing.bypassed_by, [theirs]);
            assert_eq!(standing.broken, None, "who is in front is a warning");
            run(program, &["-D", "FORWARD", "2"]);
            assert_eq!(
                backend.reconcile(NOW).repaired.get("jump"),
                Some(&1),
                "one that is gone is always put back"
            );
            assert_eq!(backend.reconcile(NOW), SyncStatus::default());
            run(program, &["-I", "FORWARD", "-s", "192.0.2.1", "-j", "ACCEPT"]);
            assert_eq!(backend.reconcile(NOW).repaired.len(), 0);
            assert_eq!(
                backend.reconcile(seconds(601)).repaired.get("jump"),
                Some(&1),
                "after ten minutes it is tried once more"
            );
        });
    }
}

#[test]
fn an_appended_jump_stays_behind_foreign_rules_and_those_that_accept_are_reported() {
    for (flavour, program, _) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            run(program, &["-A", "FORWARD", "-i", "br0", "-j", "ACCEPT"]);
            run(program, &["-A", "FORWARD", "-s", "192.0.2.2", "-j", "DROP"]);
            let mut backend = backend(flavour, ByLastOctet).with_coexistence(Coexistence {
                jump: JumpPosition::Append,
                follows_flavour: false,
                accepted_marks: Vec::new(),
            });
            backend.adopt(NOW).unwrap();
            assert_eq!(backend.apply(&first().0, NOW).broken, None);
            let standing = backend.reconcile(NOW);
            assert_eq!(standing.bypassed_by, ["V4 filter -A FORWARD -i br0 -j ACCEPT"]);
            assert_eq!(standing.repaired.len(), 0);
            let rules = |text: String| -> Vec<String> {
                let ours = text.lines().filter(|line| line.starts_with("-A FORWARD"));
                ours.map(str::to_owned).collect()
            };
            let jump = "-A FORWARD -j EGRET-FORWARD";
            let listed = rules(run(&format!("{program}-save"), &["-t", "filter"]));
            assert_eq!(listed.last().map(String::as_str), Some(jump), "{listed:?}");
            run(program, &["-A", "FORWARD", "-j", "DROP"]);
            assert_eq!(
                backend.reconcile(NOW).repaired.len(),
                0,
                "others may stand behind us"
            );
            run(program, &["-A", "FORWARD", "-j", "EGRET-FORWARD"]);
            assert_eq!(backend.reconcile(NOW).repaired.get("jump"), Some(&1));
            let is_last = |when: &str| {
                let listed = rules(run(&format!("{program}-save"), &["-t", "filter"]));
                assert_eq!(listed.iter().filter(|line| *line == jump).count(), 1, "{when}");
                assert_eq!(listed.last().map(String::as_str), Some(jump), "{when}");
            };
            is_last("after a repair");
            drop(backend);
            drop(alive(flavour, JumpPosition::Insert, false));
            let listed = rules(run(&format!("{program}-save"), &["-t", "filter"]));
            assert_eq!(
                listed.first().map(String::as_str),
                Some(jump),
                "another life wants it in front"
            );
            let mut next = backend_of(flavour).with_coexistence(Coexistence {
                jump: JumpPosition::Append,
                follows_flavour: false,
                accepted_marks: Vec::new(),
            });
            next.adopt(NOW).unwrap();
            assert_eq!(next.apply(&first().0, NOW).broken, None);
            is_last("and the next one behind again");
        });
    }
}

#[test]
fn the_rules_follow_the_kubelet_into_the_other_flavour_and_leave_nothing_behind() {
    for (here, there) in [
        (BOTH_FLAVOURS[0], BOTH_FLAVOURS[1]),
        (BOTH_FLAVOURS[1], BOTH_FLAVOURS[0]),
    ] {
        in_fresh_namespace(move || {
            let mut backend = alive(here.0, JumpPosition::Insert, true);
            let serial = |text: &str| {
                text.lines()
                    .find(|line| line.contains("serial"))
                    .map(str::to_owned)
            };
            let before = filter(here.0);
            run(there.1, &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
            let cause = backend.poll_drift(NOW);
            assert!(cause.is_some_and(|cause| cause.contains(there.0.name())));
            assert_eq!(backend.reconcile(NOW).broken, None);
            assert_eq!(filter(there.0), before, "the same rules, marks and serial");
            assert!(
                serial(&before).is_some() && !filter(here.0).contains("EGRET"),
                "{}",
                filter(here.0)
            );
            settle(&mut backend);
            // Killed in between, it finds both, and goes where the kubelet is.
            let mut next = backend_of(there.0);
            drop(backend);
            next.adopt(NOW).unwrap();
            assert_eq!(next.apply(&first().0, NOW).repaired.len(), 0);
            assert_eq!(filter(there.0), before);
        });
    }
}

fn backend_of(flavour: Flavour) -> Netfilter {
    backend(flavour, ByLastOctet)
}

#[test]
fn state_in_the_other_flavour_is_adopted_with_its_generations() {
    for (here, there) in [
        (BOTH_FLAVOURS[0], BOTH_FLAVOURS[1]),
        (BOTH_FLAVOURS[1], BOTH_FLAVOURS[0]),
    ] {
        in_fresh_namespace(move || {
            drop(alive(here.0, JumpPosition::Insert, false));
            let before = filter(here.0);
            let mut next = backend_of(there.0);
            next.adopt(NOW).unwrap();
            assert!(next.is_in_force(), "packets are judged by what is there");
            assert!(filter(here.0).contains("-j EGRET-FORWARD"));
            assert_eq!(next.apply(&first().0, NOW).broken, None);
            assert!(!filter(here.0).contains("EGRET"), "{}", filter(here.0));
            let serial = |text: &str| {
                let line = text.lines().find(|line| line.contains("serial")).unwrap();
                let words: Vec<&str> = line.split(['"', ' ']).collect();
                let at = words.iter().position(|word| *word == "serial").unwrap();
                words[at + 1].parse::<u64>().unwrap()
            };
            assert!(
                serial(&filter(there.0)) > serial(&before),
                "no number that an open flow may bear is given again"
            );
        });
    }
}

#[test]
fn rules_of_others_that_write_our_marks_are_named_with_masks_that_are_free() {
    in_fresh_namespace(|| {
        let marks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap();
        let look = || look_for_marks(marks).map_err(|found| found.to_string());
        assert_eq!(look(), Ok(()));
        drop(alive(Flavour::Nft, JumpPosition::Insert, false));
        assert_eq!(look(), Ok(()), "our own are no foreigners");
        let harmless = [
            "-t mangle -A PREROUTING -j CONNMARK --restore-mark --mask 0xffffffff",
            "-t mangle -A PREROUTING -m connmark --mark 0x10000/0x10000 -j ACCEPT",
            "-t nat -A PREROUTING -j CONNMARK --set-xmark 0x80/0x80",
            "-t mangle -A PREROUTING -j MARK --set-xmark 0x10000/0x10000",
        ];
        for rule in harmless {
            run("iptables-legacy", &rule.split(' ').collect::<Vec<_>>());
        }
        assert_eq!(look(), Ok(()));
        let harmful = "-t mangle -A POSTROUTING -j CONNMARK --set-xmark 0x10000/0xff0000";
        run("ip6tables-legacy", &harmful.split(' ').collect::<Vec<_>>());
        let said = look().unwrap_err();
        let expected = "legacy V6 mangle -A POSTROUTING -j CONNMARK --set-xmark 0x10000/0xff0000";
        assert!(said.contains(expected), "{said}");
        let word = |option: &str| {
            let mut words = said.split([' ', ';']);
            words.find(|word| *word == option).unwrap();
            words.next().unwrap().parse().unwrap()
        };
        let advised = Marks::new(word("--egress-mark-mask"), word("--ingress-mark-mask")).unwrap();
        assert_eq!(look_for_marks(advised), Ok(()), "the advice is good: {said}");
    });
}

#[test]
fn while_the_xtables_lock_is_held_rules_are_pending_and_sets_are_updated() {
    in_fresh_namespace(|| {
        let mut backend = alive(Flavour::Legacy, JumpPosition::Insert, false);
        let before = filter(Flavour::Legacy);
        let file = std::fs::File::options()
            .append(true)
            .create(true)
            .open("/run/xtables.lock");
        let file = file.unwrap();
        let held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
        let change = Change::new()
            .members("names", &[(address("203.0.113.8"), Some(seconds(300)))], &[])
            .rules(isolated("b", "10.0.0.2"));
        let standing = backend.apply(&change.0, NOW);
        assert!(standing.wants_retry());
        let why = standing.broken.unwrap();
        assert!(why.contains("lock of iptables"), "{why}");
        assert!(run("ipset", &["list", &name_of("names")]).contains("203.0.113.8"));
        assert_eq!(filter(Flavour::Legacy), before, "what was in force is");
        let told = Change::new().members("names", &[(address("203.0.113.9"), Some(seconds(300)))], &[]);
        assert!(backend.apply(&told.0, NOW).broken.is_some(), "it stays said");
        assert!(run("ipset", &["list", &name_of("names")]).contains("203.0.113.9"));
        drop(held);
        assert_eq!(backend.reconcile(NOW), SyncStatus::default());
        assert!(filter(Flavour::Legacy).contains("veth-2"));
    });
}

/// As Docker, kube-proxy and Calico have them, in three tables, with what they have counted.
const FOREIGN: &str = "*raw
:PREROUTING ACCEPT [0:0]
[2:120] -A PREROUTING -p udp -m udp --dport 53 -j NOTRACK
COMMIT
*mangle
:PREROUTING ACCEPT [7:700]
:KUBE-PROXY-CANARY - [0:0]
:cali-PREROUTING - [0:0]
[3:180] -A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING
[2:120] -A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[1:60] -A cali-PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-X - [0:0]
[5:300] -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
[4:240] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
[3:180] -A KUBE-SERVICES -p tcp -m tcp --dport 443 -j KUBE-SEP-X
[2:120] -A KUBE-SEP-X -p tcp -m tcp -j REDIRECT --to-ports 6443
COMMIT
*filter
:FORWARD DROP [0:0]
:INPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-FIREWALL - [0:0]
:EGRET-THEIRS - [0:0]
:cali-FORWARD - [0:0]
[9:540] -A FORWARD -j DOCKER-USER
[8:480] -A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
[7:420] -A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
[6:360] -A INPUT -j KUBE-FIREWALL
[5:300] -A DOCKER-USER -j RETURN
[4:240] -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
[3:180] -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
[2:120] -A KUBE-FIREWALL -m set --match-set theirs src -j DROP
[1:60] -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
[1:60] -A EGRET-THEIRS -m comment --comment \"egret\" -j RETURN
COMMIT
";

/// All that is in both families and all tables, with counters, but for what is ours; and the sets.
fn foreign(program: &str) -> String {
    let mut text = run(&format!("{program}-save"), &["-c"]);
    text += &run(&format!("ip6{}-save", program.trim_start_matches("ip")), &["-c"]);
    text += &run("ipset", &["save", "theirs"]);
    let is_theirs =
        |line: &&str| !line.starts_with('#') && (!line.contains("EGRET-") || line.contains("EGRET-THEIRS"));
    text.lines()
        .filter(is_theirs)
        .map(|line| line.to_owned() + "\n")
        .collect()
}

#[test]
fn foreign_rules_keep_octets_order_and_counters_from_start_to_cleanup() {
    for (flavour, program, program6) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            std::fs::write("/run/foreign", FOREIGN).unwrap();
            std::fs::write("/run/foreign6", FOREIGN.replace("theirs src", "theirs6 src")).unwrap();
            run("ipset", &["create", "theirs", "hash:ip", "counters", "comment"]);
            run(
                "ipset",
                &["add", "theirs", "192.0.2.7", "packets", "3", "bytes", "180"],
            );
            run("ipset", &["create", "theirs6", "hash:ip", "family", "inet6"]);
            run(&format!("{program}-restore"), &["--counters", "/run/foreign"]);
            run(&format!("{program6}-restore"), &["--counters", "/run/foreign6"]);
            let before = foreign(program);
            assert!(before.contains("[9:540] -A FORWARD -j DOCKER-USER"), "{before}");
            let unchanged = |when: &str| assert_eq!(foreign(program), before, "{when}");

            let mut backend = alive(flavour, JumpPosition::Insert, false);
            unchanged("after the start");
            let more = Change::new().rules(isolated("b", "10.0.0.2"));
            assert_eq!(backend.apply(&more.0, NOW).broken, None);
            unchanged("after a pod came");
            let mut gone = Change::new();
            gone.0.pods_removed.push(PodKey::new("default", "b"));
            assert_eq!(backend.apply(&gone.0, NOW).broken, None);
            unchanged("after a pod went");
            run(program, &["-F", "EGRET-FORWARD"]);
            run(program, &["-D", "INPUT", "1"]);
            assert!(!backend.reconcile(NOW).repaired.is_empty());
            unchanged("after a repair");
            drop(backend);
            unchanged("after a stop");
            let mut next = backend_of(flavour).with_coexistence(Coexistence {
                jump: JumpPosition::Append,
                follows_flavour: false,
                accepted_marks: Vec::new(),
            });
            next.adopt(NOW).unwrap();
            assert_eq!(next.apply(&first().0, NOW).broken, None);
            let in_front = next.reconcile(NOW).bypassed_by;
            assert!(
                in_front.iter().all(|rule| rule.ends_with("-j KUBE-FORWARD")),
                "{in_front:?}"
            );
            unchanged("with the jump behind");
            drop(next);
            assert!(!cleanup::everywhere(cleanup::Mode::Remove).unwrap().is_empty());
            unchanged("after the cleanup");
        });
    }
}

#[test]
fn a_kernel_without_ipv6_is_no_fault_and_one_with_it_disabled_is_written_all_the_same() {
    for (flavour, _, program6) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
            drop(alive(flavour, JumpPosition::Insert, false));
            let listed = || run(&format!("{program6}-save"), &["-t", "filter"]);
            assert!(
                listed().contains("EGRET-FORWARD"),
                "it may be enabled at any moment"
            );
            cleanup::everywhere(cleanup::Mode::Remove).unwrap();
            // With ipv6.disable=1 there is nothing below.
            let none = None::<&str>;
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("tmpfs"), "/proc/sys/net/ipv6", Some("tmpfs"), flags, none).unwrap();
            let backend = alive(flavour, JumpPosition::Insert, false);
            assert!(!listed().contains("EGRET-FORWARD"));
            drop(backend);
            assert!(filter(flavour).contains("-j EGRET-FORWARD"), "IPv4 is enforced");
            let mut next = backend_of(flavour);
            next.adopt(NOW).unwrap();
            let before = filter(flavour);
            assert_eq!(next.apply(&first().0, NOW).repaired.len(), 0);
            assert_eq!(filter(flavour), before, "and a restart has nothing to do");
        });
    }
}

/// 110 pods with 20 rules and 90 told addresses each. Who looks reads neither members nor rules; who compares reads all.
#[test]
fn many_drift_polls_cost_less_than_a_resync() {
    const LOOKS: u64 = 8;
    for (flavour, _, _) in BOTH_FLAVOURS {
        in_fresh_namespace(move || {
            let mut all = Change::new();
            for number in 1..=110 {
                let names = format!("names-{number}");
                let told: Vec<_> = (1..=90)
                    .map(|last| (address(&format!("203.0.{number}.{last}")), Some(seconds(300))))
                    .collect();
                let rules = (0..20).map(|_| rule(Action::Allow, PeerMatch::In(set(&names)), PortMatch::Any));
                let tiers = vec![tier(Tier::NetworkPolicy, rules.collect(), DefaultAction::Deny)];
                let name = format!("pod-{number}");
                all = all.set(&names, SetKind::Records, &told).rules(pod(
                    &name,
                    &[&format!("10.0.0.{number}")],
                    tiers,
                    Vec::new(),
                ));
            }
            let mut backend = backend_of(flavour);
            backend.adopt(NOW).unwrap();
            assert_eq!(backend.apply(&all.0, NOW).broken, None);
            settle(&mut backend);
            let compared = spent(|| assert_eq!(backend.reconcile(NOW).differences, [""; 0]));
            let looked = spent(|| {
                for look in 1..=LOOKS {
                    // The kernel's clock does not go on with ours: no record is to end meanwhile.
                    assert_eq!(backend.poll_drift(seconds(2 * look)), None);
                }
            });
            println!(
                "{}: {looked:?} for looks, {compared:?} for a comparison",
                flavour.name()
            );
            assert!(
                looked < compared,
                "{looked:?}, where a comparison is {compared:?}"
            );
        });
    }
}

/// Of this thread, which waits for none of the programs that it starts.
fn spent(work: impl FnOnce()) -> Duration {
    let begun = processor_time();
    work();
    processor_time() - begun
}

fn processor_time() -> Duration {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    Duration::from(nix::time::clock_gettime(clock).unwrap())
}

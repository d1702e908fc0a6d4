//! Many ordered rules, looked up instead of walked: what the kernel does with real packets, and which rule it says denied them, is what
//! the rules say one after the other. What this host sends itself over `lo` is the pod's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use egret_enforcer::backend::netfilter::denials::{Cause, DenialRegistry};
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::{DenyAction, NflogSettings};
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_kernel::iptables::Flavour;
use egret_kernel::nflog::Listener;
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, Member, Names, PeerMatch, PodRules, PortMatch, Rule, SetKind};
use egret_policies::simulator::{Connection, Protocol, Simulator, Verdict};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use node_world::{
    Change, NOW, ThisHost, address, filter, in_fresh_namespace, network, nftables, pod, range, rule, run,
    seconds, set, tier, told,
};

const TELLING: NflogSettings = NflogSettings {
    group: 9257,
    per_second: 10_000,
};
/// Denied in any case, by the last rule of all.
const FENCE: &str = "127.9.9.9:9";
const FENCE_POLICY: &str = "fence";
/// Packets before the kernel's words about them are read.
const TOGETHER: usize = 40;

/// Who renders the rules.
#[derive(Clone, Copy, Debug)]
enum Renderer {
    Iptables(Flavour),
    Nftables,
}

impl Renderer {
    fn life(self) -> (Box<dyn Backend>, DenialRegistry) {
        let denials = DenialRegistry::default();
        let mut backend: Box<dyn Backend> = match self {
            Self::Iptables(flavour) => {
                let settings = Settings {
                    flavour,
                    marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
                    deny: DenyAction::Drop,
                    telling: Some(TELLING),
                };
                let backend = Netfilter::open(settings, Box::new(ThisHost)).unwrap();
                Box::new(backend.telling(denials.clone()))
            }
            Self::Nftables => {
                let backend = nftables(Some(TELLING), ThisHost);
                Box::new(backend.telling(denials.clone()))
            }
        };
        backend.adopt(NOW).unwrap();
        (backend, denials)
    }

    /// All rules, without counters.
    fn rules(self) -> String {
        match self {
            Self::Iptables(flavour) => filter(flavour),
            // Without what sets hold.
            Self::Nftables => run("nft", &["-s", "-t", "list", "table", "inet", "egret"]),
        }
    }

    /// How many rules are in chains of which the name begins so.
    fn count_in_chains(self, beginning: &str) -> usize {
        let text = self.rules();
        match self {
            Self::Iptables(_) => {
                let added = format!("-A {beginning}");
                text.lines().filter(|line| line.starts_with(&added)).count()
            }
            Self::Nftables => {
                let begins = format!("chain {beginning}");
                let chains = text.split("\n\t}").map(str::trim_start);
                let chains = chains.filter(|chain| chain.starts_with(&begins));
                let rules = |chain: &str| chain.lines().filter(|line| line.contains("goto")).count();
                chains.map(rules).sum()
            }
        }
    }
}

#[track_caller]
fn assert_settled(standing: &SyncStatus) {
    assert!(
        standing.broken.is_none() && standing.pending.is_empty(),
        "{standing:?}"
    );
}

fn by_each_renderer(test: fn(Renderer)) {
    in_fresh_namespace(move || {
        let flavours = [Flavour::Nft, Flavour::Legacy].map(Renderer::Iptables);
        for renderer in flavours.into_iter().chain([Renderer::Nftables]) {
            test(renderer);
        }
    });
}

fn of_policy(policy: &str, number: usize, action: Action, peer: &str, port: PortMatch) -> Rule {
    let mut rule = rule(action, PeerMatch::In(set(peer)), port);
    rule.origin.policy = policy.into();
    rule.origin.rule = number;
    rule
}

/// The numbers of rules over a name, one that allows and one that denies, and what the pod was told for it.
const NAMED: [(usize, [&str; 3]); 2] = [
    (17, ["127.1.5.2", "127.1.6.9", "127.1.11.40"]),
    (42, ["127.1.6.5", "127.1.8.40", "127.1.11.40"]),
];
const UNTIL: Option<Timestamp> = Some(Timestamp::from_millis(NOW.as_millis() + 600_000));

/// Sixty rules in three networks that overlap: all actions, networks with and without a port, pods, pods with a named port, and names.
fn ordered() -> (Change, Vec<Rule>) {
    let actions = [Action::Deny, Action::Allow, Action::Deny, Action::Pass];
    let mut change = Change::new();
    let mut rules = Vec::new();
    for number in 0..60_usize {
        let (name, low) = (format!("peer {number}"), number % 12);
        let named = NAMED.iter().find(|(of, _)| *of == number);
        change = match (named, number % 5) {
            (Some((_, told)), _) => {
                change.set(&name, SetKind::Records, &told.map(|told| (address(told), UNTIL)))
            }
            (None, 1) if number < 40 => {
                let pods = [
                    format!("127.1.{low}.1"),
                    format!("127.1.{low}.{}", number % 7 + 2),
                ];
                change.set(&name, SetKind::Addresses, &pods.map(|pod| (address(&pod), None)))
            }
            (None, 3) if number > 20 => {
                let port = u16::try_from(5000 + number % 3).unwrap().try_into().unwrap();
                let at = format!("127.1.{low}.3").parse().unwrap();
                change.set(
                    &name,
                    SetKind::AddressPorts,
                    &[(Member::AddressPort(at, Transport::Udp, port), None)],
                )
            }
            (None, _) => {
                let wide = format!("127.1.{low}.0/{}", 24 + number % 7);
                let narrow = format!("127.{}.{low}.0/30", 1 + number % 3);
                change.set(
                    &name,
                    SetKind::Networks,
                    &[(network(&wide), None), (network(&narrow), None)],
                )
            }
        };
        let port = match number % 4 {
            0 => range(Transport::Udp, 5000, 5000),
            1 => range(Transport::Udp, 5000 + u16::try_from(number % 2).unwrap(), 5001),
            _ => PortMatch::Any,
        };
        let port = if number % 5 == 3 { PortMatch::Any } else { port };
        rules.push(of_policy(
            &format!("policy {number}"),
            number,
            actions[number % 4],
            &name,
            port,
        ));
    }
    (change, rules)
}

fn ruled(rules: &[Rule]) -> PodRules {
    let fence = of_policy(FENCE_POLICY, 0, Action::Deny, "fence", PortMatch::Any);
    let (mut first, next) = (rules.to_vec(), DefaultAction::NextTier);
    first.insert(0, fence);
    let baseline = of_policy("baseline", 0, Action::Deny, "baseline", PortMatch::Any);
    let mut pod = pod(
        "a",
        &["127.0.0.1"],
        vec![
            tier(Tier::Admin, first, next),
            tier(Tier::Baseline, vec![baseline], next),
        ],
        Vec::new(),
    );
    pod.egress.names = Some(Names {
        records: set("told"),
        without: None,
    });
    pod
}

fn whole() -> (Change, Vec<Rule>) {
    let (change, rules) = ordered();
    let told: BTreeSet<&str> = NAMED.iter().flat_map(|(_, told)| *told).collect();
    let told: Vec<_> = told.into_iter().map(|told| (address(told), UNTIL)).collect();
    let change = change
        .set("told", SetKind::Records, &told)
        .set("fence", SetKind::Networks, &[(network("127.9.9.9/32"), None)])
        .set("baseline", SetKind::Networks, &[(network("127.1.0.0/22"), None)]);
    (change.rules(ruled(&rules)), rules)
}

fn probes() -> impl Iterator<Item = SocketAddr> {
    let addresses =
        (0..13_u8).flat_map(|low| [1, 2, 3, 5, 9, 40].map(|last| IpAddr::from([127, 1, low, last])));
    let others = (0..13_u8).flat_map(|low| [2, 3].map(|high| IpAddr::from([127, high, low, 1])));
    let all = addresses.chain(others);
    all.flat_map(|address| [5000, 5001, 5002, 6000].map(|port| SocketAddr::new(address, port)))
}

/// The policies that the kernel says denied these packets, one after the other; none where one is allowed.
fn denied_by(all: &[SocketAddr], listener: &mut Listener, denials: &DenialRegistry) -> Vec<Option<String>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fence: SocketAddr = FENCE.parse().unwrap();
    for to in all.iter().flat_map(|to| [*to, fence]) {
        // Without a receiver the answer to the packet before may be an error, which the next call would say.
        let sent = socket.send_to(b"x", to).or_else(|_| socket.send_to(b"x", to));
        sent.unwrap();
    }
    let mut policies: Vec<String> = Vec::new();
    let fences = |policies: &[String]| policies.iter().filter(|policy| *policy == FENCE_POLICY).count();
    while fences(&policies) < all.len() {
        let told = told(listener, denials);
        assert!(
            !told.is_empty(),
            "what is denied in any case is denied by others: {policies:?}"
        );
        for denial in told {
            let Cause::Rule(rule) = denial.cause else {
                panic!("{denial:?}")
            };
            policies.push(rule.policy.to_string());
        }
    }
    let each = policies.split(|policy| policy == FENCE_POLICY).take(all.len());
    each.map(|denied| match denied {
        [] => None,
        [policy] => Some(policy.clone()),
        several => panic!("one packet was denied by {several:?}"),
    })
    .collect()
}

#[track_caller]
fn assert_as_the_rules_say(simulator: &Simulator, listener: &mut Listener, denials: &DenialRegistry) {
    let mut seen = [0, 0];
    let probes: Vec<SocketAddr> = probes().collect();
    let denied = probes
        .chunks(TOGETHER)
        .flat_map(|some| denied_by(some, listener, denials));
    for (to, denied) in probes.iter().zip(denied) {
        let connection = Connection {
            pod: PodKey::new("default", "a"),
            direction: Direction::Egress,
            peer: to.ip(),
            peer_is_own_node: false,
            protocol: Protocol::Port(Transport::Udp, to.port()),
        };
        let decision = simulator.decide(&connection, NOW);
        let expected = (decision.verdict == Verdict::Deny).then(|| decision.policy().unwrap().to_string());
        seen[usize::from(expected.is_some())] += 1;
        assert_eq!(denied, expected, "{to}");
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

#[test]
fn real_packets_meet_the_verdict_of_the_first_rule_and_its_name() {
    by_each_renderer(|renderer| {
        let (change, rules) = whole();
        let (mut backend, denials) = renderer.life();
        let mut simulator = Simulator::new();
        assert_settled(&backend.apply(&change.0, NOW));
        simulator.apply(&change.0, NOW).unwrap();
        let mut listener = Listener::bind(TELLING.group).unwrap();
        assert_as_the_rules_say(&simulator, &mut listener, &denials);

        // Pods come and go: sets change, and no rule.
        let before = renderer.rules();
        let more = Change::new()
            .members("peer 1", &[(address("127.1.3.5"), None)], &[address("127.1.1.1")])
            .members(
                "peer 6",
                &[(address("127.1.9.9"), None), (address("127.1.4.40"), None)],
                &[],
            )
            .members("peer 31", &[], &[address("127.1.7.1")])
            .members("told", &[(address("127.1.2.9"), UNTIL)], &[])
            .members("peer 42", &[(address("127.1.2.9"), UNTIL)], &[]);
        assert_settled(&backend.apply(&more.0, NOW));
        simulator.apply(&more.0, NOW).unwrap();
        assert_eq!(renderer.rules(), before);
        assert_as_the_rules_say(&simulator, &mut listener, &denials);

        // The next life finds all of it, and changes nothing.
        drop(backend);
        let (mut backend, denials) = renderer.life();
        let mut all = whole().0;
        all.0.members_changed.extend(more.0.members_changed);
        let standing = backend.apply(&all.0, NOW);
        assert_settled(&standing);
        assert!(standing.repaired.is_empty(), "{standing:?}");
        assert_eq!(renderer.rules(), before);
        assert_as_the_rules_say(&simulator, &mut listener, &denials);

        // A rule goes from the middle.
        let fewer: Vec<Rule> = rules
            .iter()
            .filter(|rule| rule.origin.rule != 30)
            .cloned()
            .collect();
        let mut change = Change::new().rules(ruled(&fewer));
        change.0.sets_destroyed.push(set("peer 30"));
        assert_settled(&backend.apply(&change.0, seconds(1)));
        simulator.apply(&change.0, seconds(1)).unwrap();
        assert_as_the_rules_say(&simulator, &mut listener, &denials);
        backend.remove_everything().unwrap();
        assert_eq!(run("ipset", &["list", "-n"]), "");
    });
}

#[test]
fn rules_that_are_looked_up_are_no_lines_of_each_pod() {
    by_each_renderer(|renderer| {
        let (change, rules) = whole();
        let (mut backend, _) = renderer.life();
        let mut second = ruled(&rules);
        second.pod = PodKey::new("default", "b");
        second.addresses = vec!["127.0.0.5".parse().unwrap()];
        assert_settled(&backend.apply(&change.rules(second).0, NOW));
        let of_tiers = renderer.count_in_chains("EGRET-E1");
        // Two pods, two families; of IPv6 there are no networks.
        assert!((8..80).contains(&of_tiers), "{of_tiers}: {}", renderer.rules());
        let attributions = renderer.count_in_chains("EGRET-S-");
        assert!(attributions > 30, "{attributions}: {}", renderer.rules());
        backend.remove_everything().unwrap();
    });
}

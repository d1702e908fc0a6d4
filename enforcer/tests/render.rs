//! The text that is given to iptables, as a person approves it. `EGRET_WRITE_GOLDENS=1` writes the files anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::BTreeMap;
use std::path::Path;

use egret_enforcer::backend::netfilter::marks::PodMarks;
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Generation, Marks};
use egret_enforcer::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use egret_enforcer::backend::netfilter::model::available_sets::{Available, AvailableSets};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::JumpPosition;
use egret_enforcer::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use egret_enforcer::backend::netfilter::names::PodChains;
use egret_enforcer::backend::netfilter::render::chains::Chains;
use egret_enforcer::backend::netfilter::render::dispatch::{self, Exposed};
use egret_enforcer::backend::netfilter::render::encapsulation;
use egret_enforcer::backend::netfilter::render::ipvs::{self, IpvsPod};
use egret_enforcer::backend::netfilter::render::source_check;
use egret_enforcer::backend::netfilter::render::{self, RenderContext};
use egret_enforcer::backend::netfilter::tables::jump_position::JumpPlacement;
use egret_enforcer::backend::netfilter::tables::restore::Change as Restore;
use egret_enforcer::node::ENCAPSULATION_PORTS;
use egret_kernel::Family;
use egret_kernel::iptables::{Hook, InterfaceName, InterfacePattern};
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{
    DefaultAction, DirectionRules, NodeRules, PeerMatch, PodRules, PortMatch, Rule, SetKind, TierRules,
};
use egret_shared::net::Transport;

use node_world::{pod, range, rule, set, tier};

fn masks() -> Marks {
    Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap()
}

fn marks(generation: u16) -> PodMarks {
    let mark = |direction| masks().mark(direction, Generation::new(generation).unwrap());
    PodMarks {
        egress: mark(Direction::Egress),
        ingress: mark(Direction::Ingress),
    }
}

/// A pod with something in every tier.
fn everything() -> PodRules {
    use Action::{Allow, Deny, Pass};
    let any = PortMatch::Any;
    let egress = vec![
        tier(
            Tier::ClusterEgressFirewall,
            vec![rule(Deny, PeerMatch::In(set("bad")), any)],
            DefaultAction::NextTier,
        ),
        tier(
            Tier::Admin,
            vec![
                rule(
                    Allow,
                    PeerMatch::In(set("names")),
                    range(Transport::Tcp, 443, 443),
                ),
                rule(Pass, PeerMatch::In(set("web")), any),
                rule(Deny, PeerMatch::Any, range(Transport::Udp, 1, 1023)),
            ],
            DefaultAction::NextTier,
        ),
        tier(
            Tier::NetworkPolicy,
            vec![
                rule(Allow, PeerMatch::In(set("named-port")), any),
                rule(Allow, PeerMatch::In(set("web")), range(Transport::Sctp, 1, 65535)),
                rule(Allow, PeerMatch::OwnNode, any),
            ],
            DefaultAction::Deny,
        ),
    ];
    let ingress = vec![tier(
        Tier::Baseline,
        vec![
            rule(
                Allow,
                PeerMatch::In(set("web")),
                range(Transport::Tcp, 8000, 8010),
            ),
            rule(Pass, PeerMatch::In(set("bad")), any),
            rule(Deny, PeerMatch::Any, any),
        ],
        DefaultAction::NextTier,
    )];
    pod("web", &["10.0.0.1", "fd00::1"], egress, ingress)
}

fn sets() -> AvailableSets {
    [
        ("bad", SetKind::Networks),
        ("names", SetKind::Records),
        ("web", SetKind::Addresses),
        ("named-port", SetKind::AddressPorts),
    ]
    .map(|(name, kind)| (set(name), Available::from(kind)))
    .into()
}

fn around(family: Family, sets: &AvailableSets) -> RenderContext<'_> {
    RenderContext {
        family,
        sets,
        interfaces: &[],
        tells: false,
    }
}

fn text(rules: &PodRules, sets: &AvailableSets, family: Family, attached: &[PodAttachment]) -> String {
    let mut rewrite = dispatch::shared(
        attached,
        &ClosedInterfaces::default(),
        None,
        masks(),
        DenyAction::Drop,
        family,
    );
    rewrite.extend(guards(attached, &ClosedInterfaces::default(), family));
    rewrite.extend(render::pod(rules, marks(5), around(family, sets)));
    let jumps = [
        (Hook::Prerouting, put(0)),
        (Hook::Forward, put(0)),
        (Hook::Input, put(1)),
    ]
    .into();
    Restore {
        rewrite,
        jumps,
        ..Restore::default()
    }
    .render()
}

/// What is checked of each pod whatever its rules say.
fn guards(attached: &[PodAttachment], closed: &ClosedInterfaces, family: Family) -> Chains {
    let mut chains = source_check::chains(attached, closed, None, family);
    let ports = ENCAPSULATION_PORTS.into();
    chains.insert("EGRET-ENCAP".to_owned(), encapsulation::chain(&ports, family));
    chains
}

fn put(copies: usize) -> JumpPlacement {
    let place = JumpPosition::Insert;
    JumpPlacement { copies, place }
}

fn attached(rules: &PodRules, port: fn(InterfaceName) -> PodInterface) -> Vec<PodAttachment> {
    let interfaces = vec![port(InterfaceName::new("veth1").unwrap())];
    vec![PodAttachment {
        chains: PodChains::of(&rules.pod),
        interfaces,
        addresses: rules.addresses.clone(),
    }]
}

fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("EGRET_WRITE_GOLDENS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "differs from {}", path.display());
}

#[test]
fn ports_of_many_rules_are_matched_once() {
    use Action::Allow;
    let web = range(Transport::Tcp, 443, 443);
    let rules = vec![
        rule(Allow, PeerMatch::In(set("web")), web),
        rule(Allow, PeerMatch::In(set("bad")), range(Transport::Udp, 53, 53)),
        rule(Allow, PeerMatch::In(set("bad")), web),
        rule(Allow, PeerMatch::In(set("names")), web),
        rule(Allow, PeerMatch::In(set("web")), range(Transport::Tcp, 400, 500)),
        rule(Allow, PeerMatch::Any, web),
        rule(Allow, PeerMatch::OwnNode, PortMatch::Any),
    ];
    let tiers = vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)];
    let rules = pod("web", &["10.0.0.1"], tiers, vec![]);
    let text = text(&rules, &sets(), Family::V4, &attached(&rules, PodInterface::Own));
    assert_golden("ports-4.rules", &text);
}

/// As of `external`, with a port, in several policies.
#[test]
fn ports_of_consecutive_deny_rules_are_matched_once_for_all_pods() {
    use Action::{Allow, Deny};
    let [tls, ssh, web] = [6000, 22, 443].map(|port| range(Transport::Tcp, port, port));
    let outside = |port| {
        let own_node = Rule {
            except: Some(set("web")),
            ..rule(Deny, PeerMatch::OwnNode, port)
        };
        [rule(Deny, PeerMatch::In(set("bad")), port), own_node]
    };
    let alone = vec![
        rule(Deny, PeerMatch::In(set("web")), ssh),
        rule(Allow, PeerMatch::In(set("names")), web),
        rule(Deny, PeerMatch::In(set("missing")), ssh),
        rule(Deny, PeerMatch::In(set("bad")), ssh),
        rule(Deny, PeerMatch::Any, web),
    ];
    let rules = [outside(tls).to_vec(), alone, outside(web).to_vec()].concat();
    let tiers = vec![tier(Tier::ClusterEgressFirewall, rules, DefaultAction::NextTier)];
    let of = |name: &str, own: &str| {
        let rules = pod(name, &[own], tiers.clone(), vec![]);
        text(&rules, &sets(), Family::V4, &attached(&rules, PodInterface::Own))
    };
    let (one, other) = (of("web", "10.0.0.1"), of("db", "10.0.0.2"));
    assert_golden("alike-4.rules", &one);
    let common = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("-A EGRET-S-"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(common(&one), common(&other));
}

#[test]
fn every_kind_of_rule_in_every_tier_in_both_families() {
    let rules = everything();
    for (family, name) in [
        (Family::V4, "everything-4.rules"),
        (Family::V6, "everything-6.rules"),
    ] {
        assert_golden(
            name,
            &text(&rules, &sets(), family, &attached(&rules, PodInterface::Own)),
        );
    }
}

#[test]
fn a_new_generation_is_all_that_differs_and_no_rule_is_rendered_for_it() {
    let mut audited = everything();
    audited.audit.egress = audited.egress.clone();
    let open = pod("open", &["10.0.0.7", "fd00::7"], Vec::new(), Vec::new());
    for rules in [everything(), audited, open] {
        for family in Family::ALL {
            let sets = sets();
            let [before, after] =
                [1, 2].map(|number| render::pod(&rules, marks(number), around(family, &sets)));
            let differs = |(name, lines): &(&String, &Vec<String>)| before.get(*name) != Some(*lines);
            let differing: BTreeMap<_, _> = after.iter().filter(differs).collect();
            let alone = render::generation(&rules, marks(2), around(family, &sets));
            assert_eq!(alone.iter().collect::<BTreeMap<_, _>>(), differing, "{family:?}");
            assert_eq!(differing.len(), 4);
        }
    }
}

#[test]
fn a_pod_without_policies_is_allowed_and_counted() {
    let rules = pod("plain", &["10.0.0.2"], Vec::new(), Vec::new());
    assert_golden(
        "plain-4.rules",
        &text(&rules, &sets(), Family::V4, &attached(&rules, PodInterface::Own)),
    );
}

/// Everything is in audit: tiers share a chain unless something passes on to the next, and nothing ends a packet.
#[test]
fn audit_rules_come_before_the_connection_is_marked() {
    let audited = everything();
    let mut rules = pod("web", &["10.0.0.1", "fd00::1"], Vec::new(), Vec::new());
    rules.audit.egress = audited.egress;
    rules.audit.ingress = audited.ingress;
    assert_golden(
        "audit-4.rules",
        &text(&rules, &sets(), Family::V4, &attached(&rules, PodInterface::Own)),
    );
}

#[test]
fn on_a_shared_interface_the_address_is_matched_too() {
    let rules = pod("plain", &["10.0.0.2", "fd00::2"], Vec::new(), Vec::new());
    assert_golden(
        "bridge-6.rules",
        &text(
            &rules,
            &sets(),
            Family::V6,
            &attached(&rules, PodInterface::Shared),
        ),
    );
}

/// What goes to the pod is known by its address; and pods of one bridge find each other.
#[test]
fn behind_a_known_bridge_port_the_address_is_not_matched() {
    let rules = pod("plain", &["10.0.0.2", "fd00::2"], Vec::new(), Vec::new());
    let attached = attached(&rules, |bridge| PodInterface::BridgePort {
        bridge,
        port: InterfaceName::new("veth7").unwrap(),
    });
    let of_the_bridge = |family| {
        let closed = ClosedInterfaces::default();
        let chains = dispatch::shared(&attached, &closed, None, masks(), DenyAction::Drop, family);
        let lines = chains
            .values()
            .flatten()
            .filter(|line| line.contains("-i ") || line.contains("-o "));
        lines.cloned().collect::<Vec<_>>()
    };
    let [from, to] = &of_the_bridge(Family::V4)[..] else {
        panic!("a line for each direction");
    };
    assert!(
        from.starts_with("-i ") && from.contains(" -m physdev --physdev-in veth7 -g EGRET-E-"),
        "{from}"
    );
    assert!(
        to.starts_with("-d 10.0.0.2/32 -o ") && to.contains(" -g EGRET-I-"),
        "{to}"
    );
    let v6 = dispatch::shared(
        &attached,
        &ClosedInterfaces::default(),
        None,
        masks(),
        DenyAction::Drop,
        Family::V6,
    );
    assert!(v6["EGRET-FORWARD"][0].starts_with("-p ipv6-icmp"));
}

/// Behind the lines of the pods that are known: one whose chains are refused, an interface by which the node is reached
/// though its name is as a pod's, and where pods are that nobody knows.
#[test]
fn unknown_interfaces_are_closed_after_the_known_ones() {
    let rules = pod("plain", &["10.0.0.2", "fd00::2"], Vec::new(), Vec::new());
    let refused = pod("refused", &["10.0.0.3", "fd00::3"], Vec::new(), Vec::new());
    let closed = ClosedInterfaces {
        pods: attached(&refused, |_| {
            PodInterface::Own(InterfaceName::new("other7").unwrap())
        }),
        excluded: vec![InterfaceName::new("veth-up").unwrap()],
        interfaces: ["veth+", "cni0"]
            .map(|pattern| InterfacePattern::new(pattern).unwrap())
            .to_vec(),
    };
    let shared = |name| PodInterface::Shared(name);
    for (family, name) in [(Family::V4, "unknown-4.rules"), (Family::V6, "unknown-6.rules")] {
        let attached = attached(&rules, shared);
        let mut rewrite = dispatch::shared(&attached, &closed, None, masks(), DenyAction::Drop, family);
        rewrite.extend(guards(&attached, &closed, family));
        let restore = Restore {
            rewrite,
            ..Restore::default()
        };
        assert_golden(name, &restore.render());
    }
}

#[test]
fn rules_over_a_missing_set_deny() {
    let rules = everything();
    assert_golden(
        "closed-4.rules",
        &text(
            &rules,
            &BTreeMap::new(),
            Family::V4,
            &attached(&rules, PodInterface::Own),
        ),
    );
}

#[test]
fn no_chain_name_is_longer_than_the_kernel_takes() {
    for name in render::pod(&everything(), marks(1), around(Family::V6, &sets())).keys() {
        assert!(name.len() <= 28, "{name}");
    }
}

/// Several lists of one tier, exceptions and ICMP, as ClusterEgressFirewalls have them.
#[test]
fn lists_of_one_tier_have_chains_of_their_own_and_exceptions_are_left_out() {
    let excepting = |action, port| Rule {
        except: Some(set("web")),
        ..rule(action, PeerMatch::In(set("bad")), port)
    };
    let list = |rules| tier(Tier::ClusterEgressFirewall, rules, DefaultAction::NextTier);
    let egress = vec![
        list(vec![
            excepting(Action::Deny, PortMatch::Icmp),
            excepting(Action::Pass, PortMatch::Any),
        ]),
        list(vec![excepting(Action::Deny, PortMatch::Any)]),
        list(vec![rule(Action::Deny, PeerMatch::OwnNode, PortMatch::Any)]),
    ];
    let rules = pod("web", &["10.0.0.1", "fd00::1"], egress, Vec::new());
    let known = sets();
    for (family, protocol) in [(Family::V4, "-p icmp "), (Family::V6, "-p ipv6-icmp ")] {
        let chains = render::pod(&rules, marks(5), around(family, &known));
        let of = |part: &str| {
            let (_, lines) = chains
                .iter()
                .find(|(name, _)| name.starts_with(&format!("EGRET-E{part}-")))
                .unwrap();
            lines.join("\n")
        };
        let next = |part: &str| {
            chains
                .keys()
                .find(|name| name.starts_with(&format!("EGRET-E{part}-")))
                .unwrap()
        };
        assert!(of("").ends_with(&format!("-g {}", next("0"))), "{}", of(""));
        let in_a_row = ["0001", "0002", "0003"].map(|part| format!("-j {}", next(part)));
        assert_eq!(of("0"), format!("{}\n-g {}", in_a_row.join("\n"), next("D")));
        assert!(of("0001").contains("! --match-set"), "{}", of("0001"));
        assert!(of("0001").contains("-j RETURN"), "{}", of("0001"));
        assert!(of("0001").contains(protocol), "{}", of("0001"));
        assert!(of("0003").contains("--dst-type LOCAL"), "{}", of("0003"));
        assert!(chains.keys().all(|name| name.len() <= 28));
    }
    let without: BTreeMap<_, _> = known.into_iter().filter(|(id, _)| *id != set("web")).collect();
    let chains = render::pod(&rules, marks(5), around(Family::V4, &without));
    let closed = chains
        .values()
        .flatten()
        .filter(|line| line.contains("-g EGRET-DENY") && !line.contains("spoofed-error"));
    assert_eq!(
        closed.count(),
        4,
        "a rule whose exception is missing denies everything"
    );
}

#[test]
fn hairpin_traffic_is_matched_by_both_addresses_and_the_input_interface() {
    let itself = || rule(Action::Allow, PeerMatch::Itself, PortMatch::Any);
    let isolating = || TierRules {
        tier: Tier::NetworkPolicy,
        rules: [itself()].into(),
        default_action: DefaultAction::Deny,
    };
    let rules = pod(
        "web",
        &["10.0.0.1", "fd00::1"],
        vec![isolating()],
        vec![isolating()],
    );
    let (known, interfaces) = (sets(), [InterfaceName::new("veth7").unwrap()]);
    for (family, own) in [(Family::V4, "10.0.0.1/32"), (Family::V6, "fd00::1/128")] {
        let around = RenderContext {
            interfaces: &interfaces,
            tells: false,
            ..around(family, &known)
        };
        let chains = render::pod(&rules, marks(5), around);
        let allowing = |direction: &str| {
            let first = |name: &&String| name.starts_with(&format!("EGRET-{direction}2-"));
            let name = chains.keys().find(first).unwrap();
            let allows = |line: &&String| line.contains(&format!("-g EGRET-{direction}A-"));
            chains[name].iter().find(allows).unwrap().clone()
        };
        assert!(
            allowing("E").starts_with(&format!("-d {own} ")),
            "{}",
            allowing("E")
        );
        let ingress = allowing("I");
        assert!(ingress.starts_with(&format!("-s {own} -i veth7 ")), "{ingress}");
        let elsewhere = render::pod(
            &rules,
            marks(5),
            RenderContext {
                interfaces: &[],
                tells: false,
                ..around
            },
        );
        assert!(
            !elsewhere.values().flatten().any(|line| line.contains("-s ")),
            "nobody comes in there"
        );
    }
}

/// A list of mixed rules, another one behind it, and an exception.
fn for_clients_outside() -> NodeRules {
    let excepting = |action| Rule {
        except: Some(set("web")),
        ..rule(action, PeerMatch::In(set("bad")), PortMatch::Any)
    };
    let list = |rules| tier(Tier::ClusterEgressFirewall, rules, DefaultAction::NextTier);
    let tiers = vec![
        list(vec![
            rule(
                Action::Pass,
                PeerMatch::In(set("web")),
                range(Transport::Tcp, 80, 80),
            ),
            excepting(Action::Deny),
        ]),
        list(vec![
            rule(Action::Deny, PeerMatch::OwnNode, range(Transport::Tcp, 22, 22)),
            rule(Action::Deny, PeerMatch::In(set("named-port")), PortMatch::Any),
        ]),
    ];
    NodeRules {
        exposed: DirectionRules::of(tiers),
    }
}

fn text_for_clients_outside(family: Family, by_ipvs: bool) -> String {
    let rules = pod("plain", &["10.0.0.2", "fd00::2"], Vec::new(), Vec::new());
    let exposed = Exposed {
        unmarked: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS)
            .unwrap()
            .unmarked(Direction::Egress),
        by_ipvs,
    };
    let known = sets();
    let around = RenderContext {
        family,
        sets: &known,
        interfaces: &[],
        tells: false,
    };
    let attached = attached(&rules, PodInterface::Own);
    let mut rewrite = dispatch::shared(
        &attached,
        &ClosedInterfaces::default(),
        Some(exposed),
        masks(),
        DenyAction::Drop,
        family,
    );
    rewrite.extend(render::exposed(&for_clients_outside(), around));
    Restore {
        rewrite,
        jumps: [(Hook::Forward, put(0)), (Hook::Input, put(0))]
            .into_iter()
            .chain(by_ipvs.then_some((Hook::Output, put(0))))
            .collect(),
        ..Restore::default()
    }
    .render()
}

/// Behind the pods' egress, for what was rewritten and no pod has opened.
#[test]
fn external_clients_are_judged_at_the_node() {
    for (family, name) in [(Family::V4, "exposed-4.rules"), (Family::V6, "exposed-6.rules")] {
        assert_golden(name, &text_for_clients_outside(family, false));
    }
}

/// No kernel here has IPVS: what it does to packets is read from its source, and only the text is tested.
#[test]
fn ipvs_traffic_is_judged_at_output() {
    let text = text_for_clients_outside(Family::V4, true);
    assert_golden("exposed-ipvs-4.rules", &text);
    assert!(text.contains("-I OUTPUT "), "{text}");
}

#[test]
fn an_undesired_jump_is_removed_before_its_chain() {
    let text = Restore::<Vec<String>> {
        remove: ["EGRET-OUTPUT".to_owned()].into(),
        jumps_removed: [(Hook::Output, 2)].into(),
        ..Restore::default()
    }
    .render();
    let jump = "-D OUTPUT -j EGRET-OUTPUT\n";
    assert_eq!(
        text,
        format!("*filter\n:EGRET-OUTPUT - [0:0]\n{jump}{jump}-X EGRET-OUTPUT\nCOMMIT\n")
    );
}

/// A pod with something in every tier, one that only a NetworkPolicy isolates, one about which nothing says anything, and
/// one on a bridge.
#[test]
fn ipvs_traffic_is_judged_by_its_destination_pod() {
    let isolated = || tier(Tier::NetworkPolicy, Vec::new(), DefaultAction::Deny);
    let alone = pod(
        "alone",
        &["10.0.0.2", "10.0.0.3"],
        vec![isolated()],
        vec![isolated()],
    );
    let free = pod("free", &["10.0.0.4", "fd00::4"], Vec::new(), Vec::new());
    let bridged = pod("bridged", &["10.0.0.5", "fd00::5"], vec![isolated()], Vec::new());
    let at = |rules: &PodRules, interface: PodInterface| PodAttachment {
        chains: PodChains::of(&rules.pod),
        interfaces: vec![interface],
        addresses: rules.addresses.clone(),
    };
    let name = |name: &str| InterfaceName::new(name).unwrap();
    let everything = everything();
    let pods = [
        (&everything, at(&everything, PodInterface::Own(name("veth1")))),
        (&alone, at(&alone, PodInterface::Own(name("veth2")))),
        (&free, at(&free, PodInterface::Own(name("veth4")))),
        (&bridged, at(&bridged, PodInterface::Shared(name("cni0")))),
    ];
    let known = sets();
    for (family, name) in [(Family::V4, "ipvs-4.rules"), (Family::V6, "ipvs-6.rules")] {
        let attached: Vec<PodAttachment> = pods.iter().map(|(_, attached)| attached.clone()).collect();
        let led: Vec<IpvsPod> = pods.iter().map(|(rules, at)| IpvsPod::of(at, rules)).collect();
        let exposed = Exposed {
            unmarked: masks().unmarked(Direction::Egress),
            by_ipvs: true,
        };
        let closed = ClosedInterfaces::default();
        let mut rewrite = dispatch::shared(
            &attached,
            &closed,
            Some(exposed),
            masks(),
            DenyAction::Drop,
            family,
        );
        ipvs::add(&mut rewrite, &led, family);
        rewrite.extend(render::exposed(&for_clients_outside(), around(family, &known)));
        for (rules, _) in &pods {
            rewrite.extend(render::pod(rules, marks(5), around(family, &known)));
        }
        let jumps = [Hook::Forward, Hook::Input, Hook::Output].map(|hook| (hook, put(0)));
        let restore = Restore {
            rewrite,
            jumps: jumps.into(),
            ..Restore::default()
        };
        assert_golden(name, &restore.render());
    }
}

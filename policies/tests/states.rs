//! States of a cluster and what they decide; every decision is held to the oracle as well.

mod fixture;

use std::sync::Arc;

use egret_policies::compiler::{Event, NodeScope, PodToOwnNode, Settings};
use egret_policies::model::cluster::{Entity, EntityKey, Pod, PodLife};
use egret_policies::model::{
    Action, Direction, Effect, Kind, NAME_LABEL, NamespaceSelector, Peer, Peers, Policy, Port, Ports,
    Requirement, Selector, Tier, Values,
};
use egret_policies::rules::Breadth;
use egret_policies::simulator::Verdict::{Allow, Deny};
use egret_policies::simulator::{Connection, ConnectionEnd, EndKind, Protocol};
use egret_shared::net::Transport;

use fixture::*;

fn nobody() -> Peers {
    Peers::OneOf([].into())
}

fn client() -> Pod {
    pod("default/client", "app=client", &["10.0.0.1", "fd00::1"])
}

fn web() -> Pod {
    pod("default/web", "app=web", &["10.0.0.2", "fd00::2"])
}

fn db() -> Pod {
    pod("prod/db", "app=db", &["10.0.0.3"])
}

/// Client, web and db on the node, and what is added to them.
fn cluster(policies: Vec<Policy>) -> Fixture {
    let pods = [client(), web(), db()].map(Entity::Pod);
    Fixture::new(pods.into_iter().chain(policies.into_iter().map(Entity::Policy)))
}

fn only_tcp(mut rule: egret_policies::model::Rule, ports: &[u16]) -> egret_policies::model::Rule {
    rule.ports = Ports::OneOf(ports.iter().map(|port| tcp_port(*port)).collect());
    rule
}

#[test]
fn a_pod_without_policies_has_open_rules() {
    let fixture = cluster(vec![]);
    assert_eq!(fixture.memory.pods().count(), 3);
    let decision = fixture.decide("default/client", Direction::Egress, "10.0.0.2", tcp(80));
    assert_eq!((decision.verdict, decision.tier), (Allow, "default"));
}

#[test]
fn isolation_is_per_direction_and_needs_no_rule() {
    let fixture = cluster(vec![network_policy("default/p", "app=client").ingress(vec![])]);
    assert_eq!(fixture.ingress("default/client", "10.0.0.2", tcp(80)), Deny);
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
    assert_eq!(fixture.ingress("default/web", "10.0.0.1", tcp(80)), Allow);
}

#[test]
fn a_network_policy_is_about_its_own_namespace() {
    let fixture = cluster(vec![network_policy("prod/p", "").egress(vec![])]);
    assert_eq!(fixture.egress("prod/db", "10.0.0.2", tcp(80)), Deny);
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
}

#[test]
fn an_empty_peer_list_and_an_empty_selector_are_opposites() {
    for (peers, ports, expected) in [
        (Peers::Any, Ports::Any, Allow),
        (nobody(), Ports::Any, Deny),
        (Peers::Any, Ports::OneOf([].into()), Deny),
        (Peers::OneOf([Peer::Networks(vec![])].into()), Ports::Any, Deny),
        (Peers::OneOf([Peer::Names(vec![])].into()), Ports::Any, Deny),
    ] {
        let fixture = cluster(vec![
            network_policy("default/p", "app=client").egress(vec![rule(Action::Allow, peers.clone(), ports)]),
        ]);
        assert_eq!(
            fixture.egress("default/client", "10.0.0.2", tcp(80)),
            expected,
            "{peers:?}"
        );
    }
}

#[test]
fn what_several_network_policies_allow_is_added_up() {
    let fixture = cluster(vec![
        network_policy("default/p", "").egress(vec![allow(pods("app=web"))]),
        network_policy("default/q", "app=client").egress(vec![allow(pods("app=db"))]),
    ]);
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/client", "10.0.0.3", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/web", "10.0.0.3", tcp(80)), Deny);
}

#[test]
fn tiers_are_asked_in_order() {
    let firewall = policy(
        Kind::ClusterEgressFirewall,
        Tier::ClusterEgressFirewall,
        500,
        "cef",
        "app=client",
    );
    let baseline = |action| {
        policy(
            Kind::BaselineAdminNetworkPolicy,
            Tier::Baseline,
            u32::MAX,
            "default",
            "",
        )
        .egress(vec![rule(action, pods("app=web"), Ports::Any)])
    };
    let admin = |rule| admin_policy("admin", 10, "").egress(vec![rule]);
    let isolated = || network_policy("default/np", "").egress(vec![]);
    let web = || pods("app=web");
    for (name, policies, verdict, tier) in [
        (
            "a firewall's deny is final",
            vec![firewall.clone().egress(vec![deny(web())]), admin(allow(web()))],
            Deny,
            "cef",
        ),
        (
            "a firewall's allow is no grant",
            vec![
                firewall.clone().egress(vec![allow(web()), deny(web())]),
                isolated(),
            ],
            Deny,
            "np",
        ),
        (
            "an admin allow goes ahead of isolation",
            vec![admin(allow(web())), isolated()],
            Allow,
            "admin",
        ),
        (
            "an admin pass leads to isolation",
            vec![admin(pass(web())), isolated(), baseline(Action::Allow)],
            Deny,
            "np",
        ),
        (
            "an admin pass without isolation leads to the baseline",
            vec![admin(pass(web())), baseline(Action::Deny)],
            Deny,
            "baseline",
        ),
        (
            "isolation ends before the baseline",
            vec![
                network_policy("default/np", "").egress(vec![allow(web())]),
                baseline(Action::Deny),
            ],
            Allow,
            "np",
        ),
        (
            "isolation of the other direction does not",
            vec![
                network_policy("default/np", "").ingress(vec![]),
                baseline(Action::Deny),
            ],
            Deny,
            "baseline",
        ),
        (
            "a baseline pass leads to the default",
            vec![baseline(Action::Pass)],
            Allow,
            "default",
        ),
    ] {
        let decision = cluster(policies).decide("default/client", Direction::Egress, "10.0.0.2", tcp(80));
        assert_eq!((decision.verdict, decision.tier), (verdict, tier), "{name}");
    }
}

#[test]
fn a_stronger_priority_goes_first_and_ties_go_by_kind_and_name() {
    let admin = |name, priority, action| {
        admin_policy(name, priority, "").egress(vec![rule(action, pods("app=web"), Ports::Any)])
    };
    let old_kind = |name| {
        policy(Kind::AdminNetworkPolicy, Tier::Admin, 10, name, "").egress(vec![deny(pods("app=web"))])
    };
    for (policies, decides) in [
        (
            vec![admin("b", 20, Action::Deny), admin("z", 10, Action::Allow)],
            "ClusterNetworkPolicy/z",
        ),
        (
            vec![admin("b", 10, Action::Deny), admin("a", 10, Action::Allow)],
            "ClusterNetworkPolicy/a",
        ),
        (
            vec![old_kind("a"), admin("b", 10, Action::Allow)],
            "ClusterNetworkPolicy/b",
        ),
    ] {
        let decision = cluster(policies).decide("default/client", Direction::Egress, "10.0.0.2", tcp(80));
        assert_eq!(decision.policy().map(AsRef::as_ref), Some(decides));
    }
}

#[test]
fn rules_go_in_order_and_say_which_they_were() {
    let fixture = cluster(vec![admin_policy("p", 1, "").egress(vec![
        only_tcp(allow(pods("app=web")), &[80]),
        only_tcp(deny(Peers::Any), &[80]),
        pass(Peers::Any),
    ])]);
    let decide = |peer| {
        let decision = fixture.decide("default/client", Direction::Egress, peer, tcp(80));
        (decision.verdict, decision.rule())
    };
    assert_eq!(decide("10.0.0.2"), (Allow, Some(0)));
    assert_eq!(decide("10.0.0.3"), (Deny, Some(1)));
}

#[test]
fn both_families_are_isolated_and_networks_keep_to_their_own() {
    let fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(networks(&["0.0.0.0/0"]))]),
        network_policy("default/q", "app=web").egress(vec![allow(pods("app=client"))]),
    ]);
    assert_eq!(fixture.egress("default/client", "198.51.100.1", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/client", "2001:db8::1", tcp(80)), Deny);
    assert_eq!(fixture.egress("default/web", "fd00::1", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/web", "10.0.0.1", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/web", "::ffff:10.0.0.1", tcp(80)), Allow);
}

#[test]
fn a_rule_without_ports_matches_icmp_and_one_with_ports_does_not() {
    let fixture = cluster(vec![network_policy("default/p", "app=client").egress(vec![
        allow(pods("app=web")),
        only_tcp(allow(pods("app=db")), &[80]),
    ])]);
    for (peer, protocol, expected) in [
        ("10.0.0.2", Protocol::Icmp, Allow),
        ("10.0.0.2", Protocol::Other, Allow),
        ("10.0.0.3", Protocol::Icmp, Deny),
        ("10.0.0.3", tcp(80), Allow),
        ("10.0.0.3", tcp(81), Deny),
        ("10.0.0.3", Protocol::Port(Transport::Sctp, 80), Deny),
        ("10.0.0.3", Protocol::Port(Transport::Udp, 80), Deny),
    ] {
        assert_eq!(
            fixture.egress("default/client", peer, protocol),
            expected,
            "{peer} {protocol:?}"
        );
    }
}

#[test]
fn a_pod_of_the_host_network_is_neither_subject_nor_peer() {
    let mut agent = pod("default/agent", "app=web", &["192.0.2.1"]);
    agent.host_network = true;
    let mut fixture = cluster(vec![
        network_policy("default/p", "").egress(vec![allow(pods("app=web"))]),
    ]);
    fixture.apply(Entity::Pod(agent));
    assert!(fixture.memory.pod(&key("default/agent")).is_none());
    assert_eq!(fixture.egress("default/client", "192.0.2.1", tcp(80)), Deny);
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
}

#[test]
fn an_address_of_a_node_is_no_pods() {
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("app=web"))]),
    ]);
    fixture.apply(node("here", "", &["10.0.0.2"]));
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Deny);
    assert_eq!(fixture.egress("default/client", "fd00::2", tcp(80)), Allow);
    fixture.delete(EntityKey::Node("here".into()));
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
}

#[test]
fn a_pod_that_ended_leaves_its_address_to_the_next() {
    let mut over = web();
    over.life = PodLife::Terminal;
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("app=web"))]),
    ]);
    fixture.apply(Entity::Pod(over));
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Deny);
    assert!(fixture.memory.pod(&key("default/web")).is_none());
    fixture.apply(Entity::Pod(pod("prod/next", "app=web", &["10.0.0.2"])));
    assert_eq!(fixture.egress("default/client", "10.0.0.2", tcp(80)), Allow);
}

#[test]
fn of_two_live_pods_with_one_address_the_newer_has_it() {
    let started = |mut pod: Pod, at: &str| {
        pod.started = Some(at.into());
        Entity::Pod(pod)
    };
    let older = || started(pod("a/older", "app=web", &["10.0.0.9"]), "2026-01-01T00:00:00Z");
    let newer = || started(pod("a/newer", "app=db", &["10.0.0.9"]), "2026-01-01T00:00:01Z");
    for order in [[older(), newer()], [newer(), older()]] {
        let mut fixture = cluster(vec![
            network_policy("default/p", "app=client").egress(vec![allow(pods("app=web"))]),
        ]);
        for pod in order {
            fixture.tell(Event::Apply(pod));
        }
        fixture.poll();
        assert_eq!(fixture.egress("default/client", "10.0.0.9", tcp(80)), Deny);
        assert!(fixture.memory.pod(&key("a/older")).is_none());
        fixture.delete(EntityKey::Pod(key("a/newer")));
        assert_eq!(fixture.egress("default/client", "10.0.0.9", tcp(80)), Allow);
        assert!(fixture.memory.pod(&key("a/older")).is_some());
    }
}

#[test]
fn a_namespace_without_an_object_has_its_default_label() {
    let by_name = Peers::OneOf(
        [Peer::Pods {
            namespaces: NamespaceSelector::Matching(selector("kubernetes.io/metadata.name=prod")),
            pods: Selector::everything(),
        }]
        .into(),
    );
    let by_label = Peers::OneOf(
        [Peer::Pods {
            namespaces: NamespaceSelector::Matching(selector("team=data")),
            pods: Selector::everything(),
        }]
        .into(),
    );
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(by_name)]),
        network_policy("default/q", "app=web").egress(vec![allow(by_label)]),
    ]);
    assert_eq!(fixture.egress("default/client", "10.0.0.3", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/web", "10.0.0.3", tcp(80)), Deny);
    fixture.apply(namespace("prod", "team=data"));
    assert_eq!(fixture.egress("default/web", "10.0.0.3", tcp(80)), Allow);
    fixture.delete(EntityKey::Namespace("prod".into()));
    assert_eq!(fixture.egress("default/web", "10.0.0.3", tcp(80)), Deny);
}

#[test]
fn an_empty_selector_selects_pods_and_not_the_internet() {
    let fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("")), allow(pods("!nothing"))]),
    ]);
    assert_eq!(fixture.egress("default/client", "10.0.0.3", tcp(80)), Allow);
    assert_eq!(fixture.egress("default/client", "198.51.100.1", tcp(80)), Deny);
}

#[test]
fn a_named_port_is_the_destinations() {
    let named = |transport| {
        Ports::OneOf(
            [Port::Named {
                name: "http".into(),
                transport,
            }]
            .into(),
        )
    };
    let serving = |mut pod: Pod, ports: &[(Transport, u16)]| {
        pod.ports = ports
            .iter()
            .map(|(transport, number)| named_port("http", *transport, *number))
            .collect();
        Entity::Pod(pod)
    };
    let tcp_only = || rule(Action::Allow, Peers::Any, named(Some(Transport::Tcp)));
    let any = |peers| rule(Action::Allow, peers, named(None));
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![tcp_only()]),
        network_policy("prod/p", "app=db").egress(vec![any(pods("app=web")), any(networks(&["10.0.0.0/8"]))]),
        network_policy("default/q", "app=web").ingress(vec![any(networks(&["10.0.0.3/32"]))]),
    ]);
    fixture.apply(serving(client(), &[(Transport::Tcp, 1)]));
    fixture.apply(serving(web(), &[(Transport::Tcp, 8080), (Transport::Udp, 8081)]));
    fixture.apply(serving(db(), &[(Transport::Tcp, 9090)]));
    let udp = |port| Protocol::Port(Transport::Udp, port);
    for (pod, direction, peer, protocol, expected) in [
        ("default/client", Direction::Egress, "10.0.0.2", tcp(8080), Allow),
        ("default/client", Direction::Egress, "10.0.0.3", tcp(9090), Allow),
        ("default/client", Direction::Egress, "10.0.0.3", tcp(8080), Deny),
        ("default/client", Direction::Egress, "10.0.0.2", tcp(1), Deny),
        ("default/client", Direction::Egress, "10.0.0.2", udp(8081), Deny),
        (
            "default/client",
            Direction::Egress,
            "198.51.100.1",
            tcp(8080),
            Deny,
        ),
        ("prod/db", Direction::Egress, "10.0.0.2", udp(8081), Allow),
        ("prod/db", Direction::Egress, "10.0.0.1", tcp(1), Deny),
        ("default/web", Direction::Ingress, "10.0.0.3", tcp(8080), Allow),
        ("default/web", Direction::Ingress, "10.0.0.3", udp(8081), Allow),
        ("default/web", Direction::Ingress, "10.0.0.3", tcp(9090), Deny),
        ("default/web", Direction::Ingress, "10.0.0.1", tcp(8080), Deny),
    ] {
        let decision = fixture.decide(pod, direction, peer, protocol);
        assert_eq!(
            decision.verdict, expected,
            "{pod} {direction:?} {peer} {protocol:?}"
        );
    }
}

#[test]
fn nodes_are_known_by_the_addresses_in_their_status() {
    let nodes = |text| Peers::OneOf([Peer::Nodes(selector(text))].into());
    let mut fixture = cluster(vec![
        admin_policy("p", 1, "app=client").egress(vec![deny(nodes("role=master"))]),
    ]);
    fixture.apply(node("m1", "role=master", &["192.0.2.1", "192.0.2.9"]));
    fixture.apply(node("m2", "role=master", &["192.0.2.2", "192.0.2.9"]));
    fixture.apply(node("w", "", &["192.0.2.3"]));
    let blocked = |fixture: &Fixture| {
        ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.9"]
            .map(|peer| fixture.egress("default/client", peer, tcp(22)) == Deny)
    };
    assert_eq!(blocked(&fixture), [true, true, false, true]);
    fixture.delete(EntityKey::Node("m1".into()));
    assert_eq!(blocked(&fixture), [false, true, false, true]);
}

#[test]
fn an_isolated_pod_reaches_its_own_node_as_far_as_the_setting_says() {
    for (setting, dns, other) in [
        (PodToOwnNode::Allow, Allow, Allow),
        (PodToOwnNode::Dns, Allow, Deny),
        (PodToOwnNode::Enforce, Deny, Deny),
    ] {
        let settings = Settings {
            pod_to_own_node: setting,
            ..settings()
        };
        let isolated = network_policy("default/p", "").egress(vec![]).ingress(vec![]);
        let fixture = Fixture::with(settings, [Entity::Pod(client()), Entity::Policy(isolated)]);
        let decide = |direction, protocol| {
            fixture.decide_connection(&Connection {
                pod: key("default/client"),
                direction,
                peer: ip("192.0.2.1"),
                peer_is_own_node: true,
                protocol,
            })
        };
        let to_node = |protocol| decide(Direction::Egress, protocol);
        assert_eq!(
            to_node(Protocol::Port(Transport::Udp, 53)).verdict,
            dns,
            "{setting:?}"
        );
        assert_eq!(to_node(tcp(53)).verdict, dns, "{setting:?}");
        assert_eq!(to_node(tcp(22)).verdict, other, "{setting:?}");
        if other == Allow {
            assert_eq!(to_node(tcp(22)).policy().map(AsRef::as_ref), Some("own-node"));
        }
        let from_node = decide(Direction::Ingress, tcp(80));
        assert_eq!((from_node.verdict, from_node.tier), (Allow, "exempt"));
    }
}

#[test]
fn an_admin_deny_wins_over_the_way_to_the_own_node() {
    let fixture = cluster(vec![
        network_policy("default/p", "").egress(vec![]),
        admin_policy("p", 1, "").egress(vec![deny(networks(&["192.0.2.0/24"]))]),
    ]);
    let decision = fixture.decide_connection(&Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: ip("192.0.2.1"),
        peer_is_own_node: true,
        protocol: tcp(22),
    });
    assert_eq!((decision.verdict, decision.tier), (Deny, "admin"));
}

#[test]
fn both_ends_must_allow() {
    let fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("app=web")), allow(pods("app=db"))]),
        network_policy("default/q", "app=web").ingress(vec![]),
    ]);
    let end = |pod: &str, address: &str| ConnectionEnd {
        address: ip(address),
        kind: EndKind::Pod(key(pod)),
    };
    let from = end("default/client", "10.0.0.1");
    let decide = |to: &ConnectionEnd| fixture.memory.decide_connection(&from, to, tcp(80), START);
    let to_web = decide(&end("default/web", "10.0.0.2"));
    assert_eq!(
        (to_web.egress.verdict, to_web.ingress.verdict, to_web.verdict()),
        (Allow, Deny, Deny)
    );
    assert_eq!(decide(&end("prod/db", "10.0.0.3")).verdict(), Allow);
    let outside = ConnectionEnd {
        address: ip("198.51.100.1"),
        kind: EndKind::Other,
    };
    let to_outside = decide(&outside);
    assert_eq!((to_outside.verdict(), to_outside.ingress.tier), (Deny, "none"));
    let to_itself = decide(&from);
    assert_eq!((to_itself.verdict(), to_itself.egress.tier), (Allow, "exempt"));
}

/// A pod's own address comes to its rules where a Service led it back.
#[test]
fn no_network_policy_keeps_a_pod_from_itself_and_every_other_tier_does() {
    use Kind::{BaselineAdminNetworkPolicy, ClusterNetworkPolicy, LegacyNetworkPolicy};
    let isolated = || network_policy("default/p", "").egress(vec![]).ingress(vec![]);
    let mut legacy = policy(LegacyNetworkPolicy, Tier::NetworkPolicy, 0, "default/p", "");
    legacy.ingress = Effect::Rules(Arc::default());
    let on = |kind, tier, action| {
        let rules = || vec![rule(action, pods("app=client"), Ports::Any)];
        policy(kind, tier, 1, "t", "").egress(rules()).ingress(rules())
    };
    let admin = |action| on(ClusterNetworkPolicy, Tier::Admin, action);
    let baseline = || on(BaselineAdminNetworkPolicy, Tier::Baseline, Action::Deny);
    for (name, policies, expected) in [
        ("isolated", vec![isolated()], (Allow, "np")),
        ("isolated in the form of 2016", vec![legacy], (Allow, "np")),
        (
            "denied by Admin",
            vec![isolated(), admin(Action::Deny)],
            (Deny, "admin"),
        ),
        (
            "allowed by Admin",
            vec![isolated(), admin(Action::Allow)],
            (Allow, "admin"),
        ),
        (
            "passed by Admin",
            vec![isolated(), admin(Action::Pass)],
            (Allow, "np"),
        ),
        ("denied by Baseline", vec![baseline()], (Deny, "baseline")),
        (
            "isolated, and denied by Baseline",
            vec![isolated(), baseline()],
            (Allow, "np"),
        ),
        ("nothing", vec![], (Allow, "default")),
    ] {
        let fixture = cluster(policies);
        for own in ["10.0.0.1", "fd00::1"] {
            let decision = fixture.decide("default/client", Direction::Ingress, own, tcp(80));
            assert_eq!(
                (decision.verdict, decision.tier),
                expected,
                "{name}, ingress from {own}"
            );
            if name != "isolated in the form of 2016" {
                let decision = fixture.decide("default/client", Direction::Egress, own, tcp(80));
                assert_eq!(
                    (decision.verdict, decision.tier),
                    expected,
                    "{name}, egress to {own}"
                );
            }
        }
    }
    let fixture = cluster(vec![isolated()]);
    assert_eq!(
        fixture.ingress("default/client", "10.0.0.2", tcp(80)),
        Deny,
        "another pod"
    );
}

#[test]
fn only_pods_of_the_node_get_rules_unless_all_are_asked_for() {
    let elsewhere = || {
        let mut pod = web();
        pod.node = Some("there".into());
        Entity::Pod(pod)
    };
    let here = Fixture::new([Entity::Pod(client()), elsewhere()]);
    assert_eq!(here.memory.pods().count(), 1);
    let everywhere = Settings {
        node: NodeScope::All,
        ..settings()
    };
    assert_eq!(
        Fixture::with(everywhere, [Entity::Pod(client()), elsewhere()])
            .memory
            .pods()
            .count(),
        2
    );
}

#[test]
fn equal_contents_share_a_set_and_keep_its_name() {
    let policies = || {
        vec![
            network_policy("default/p", "").egress(vec![allow(pods("app=web"))]),
            network_policy("default/q", "").ingress(vec![only_tcp(allow(pods("app=web")), &[80, 443])]),
        ]
    };
    let fixture = cluster(policies());
    let ids = |fixture: &Fixture| fixture.memory.sets().map(|set| set.id).collect::<Vec<_>>();
    assert_eq!(ids(&fixture).len(), 1);
    let mut other = cluster(policies());
    other.apply(Entity::Pod(pod("default/more", "app=web", &["10.0.0.7"])));
    assert_eq!(ids(&fixture), ids(&other));
}

#[test]
fn a_set_is_narrow_by_what_it_stands_for() {
    let of = |namespaces: NamespaceSelector| {
        let pods = selector("app=web");
        Peers::OneOf([Peer::Pods { namespaces, pods }].into())
    };
    let matching = |text: &str| of(NamespaceSelector::Matching(selector(text)));
    let two = Values::from(["default", "prod"].map(Arc::<str>::from));
    let either = Requirement::In(NAME_LABEL.into(), two);
    for (name, peers, expected) in [
        (
            "the own namespace",
            of(NamespaceSelector::Named("default".into())),
            Breadth::Narrow,
        ),
        (
            "a name",
            matching("kubernetes.io/metadata.name=prod"),
            Breadth::Narrow,
        ),
        (
            "and more",
            matching("kubernetes.io/metadata.name=prod,team=a"),
            Breadth::Narrow,
        ),
        (
            "one of two names",
            of(NamespaceSelector::Matching(Selector::all_of([either]))),
            Breadth::Wide,
        ),
        (
            "all but a name",
            matching("kubernetes.io/metadata.name!=prod"),
            Breadth::Wide,
        ),
        ("any name", matching("kubernetes.io/metadata.name"), Breadth::Wide),
        ("another label", matching("name=prod"), Breadth::Wide),
        ("all namespaces", matching(""), Breadth::Wide),
        (
            "networks",
            networks(&["10.0.0.0/8", "0.0.0.0/0"]),
            Breadth::Narrow,
        ),
        (
            "nodes",
            Peers::OneOf([Peer::Nodes(selector(""))].into()),
            Breadth::Wide,
        ),
        ("names", names(&["example.com"]), Breadth::Wide),
    ] {
        let policy = network_policy("default/p", "app=client").egress(vec![allow(peers)]);
        let fixture = cluster(vec![policy]);
        let seen: Vec<Breadth> = fixture.memory.sets().map(|set| set.breadth).collect();
        assert_eq!(seen, [expected], "{name}");
    }
}

#[test]
fn a_label_of_one_pod_changes_the_sets_that_it_is_in_and_nothing_else() {
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("app=db"))]),
        network_policy("default/q", "app=client").egress(vec![allow(pods("app=web"))]),
    ]);
    let relabelled = pod("prod/db", "app=other", &["10.0.0.3"]);
    let batch = fixture.apply(Entity::Pod(relabelled));
    assert!(batch.rules_replaced.is_empty() && batch.sets_created.is_empty());
    assert_eq!(batch.members_changed.len(), 1);
    assert_eq!(batch.reevaluate, [(key("default/client"), Direction::Egress)]);
}

#[test]
fn open_connections_are_asked_again_when_something_may_have_closed() {
    let allowing = || network_policy("default/p", "app=client").egress(vec![allow(pods("app=web"))]);
    let denying = || admin_policy("p", 1, "app=client").ingress(vec![deny(pods("app=bad"))]);
    let more = |labels: &str| Entity::Pod(pod("prod/more", labels, &["10.0.0.7"]));
    let client = |direction| vec![(key("default/client"), direction)];
    let mut fixture = cluster(vec![allowing(), denying()]);
    for (name, change, expected) in [
        ("a pod comes that is allowed", more("app=web"), vec![]),
        ("a pod comes that is denied", more("app=bad"), {
            let mut both = client(Direction::Egress);
            both.extend(client(Direction::Ingress));
            both
        }),
        ("a denied pod goes", more("app=fine"), vec![]),
        (
            "rules of one direction change",
            Entity::Policy(network_policy("default/p", "app=client").egress(vec![])),
            client(Direction::Egress),
        ),
    ] {
        assert_eq!(fixture.apply(change).reevaluate, expected, "{name}");
    }
}

#[test]
fn a_member_of_a_pass_may_close_when_it_comes_and_when_it_goes() {
    let passing =
        admin_policy("p", 1, "app=client").egress(vec![pass(pods("app=odd")), deny(pods("tier=x"))]);
    let more = |labels: &str| Entity::Pod(pod("prod/more", labels, &["10.0.0.7"]));
    let mut fixture = cluster(vec![passing]);
    for labels in ["app=odd", "app=even"] {
        let asked = fixture.apply(more(labels)).reevaluate;
        assert_eq!(asked, [(key("default/client"), Direction::Egress)], "{labels}");
    }
}

#[test]
fn every_event_has_a_revision_that_comes() {
    let mut fixture = cluster(vec![]);
    let settled = fixture.compiler.revision();
    let web = Entity::Pod(web());
    let same = fixture.compiler.handle(Event::Apply(web.clone()), START);
    assert_eq!(same, settled, "nothing changed, so there is nothing to wait for");
    let mut changed = web;
    if let Entity::Pod(pod) = &mut changed {
        pod.labels.set("app", "other");
    }
    let awaited = fixture.compiler.handle(Event::Apply(changed.clone()), START);
    assert_eq!(
        fixture.compiler.handle(Event::Apply(changed), START),
        awaited,
        "an event that repeats one that is not polled yet waits for the same batch"
    );
    assert!(awaited > settled);
    assert_eq!(fixture.poll().map(|batch| batch.revision), Some(awaited));
    assert_eq!(fixture.poll(), None);
}

#[test]
fn a_pod_that_goes_takes_its_rules_and_sets_with_it() {
    let mut fixture = cluster(vec![
        network_policy("default/p", "app=client").egress(vec![allow(pods("app=web"))]),
    ]);
    let batch = fixture.delete(EntityKey::Pod(key("default/client")));
    assert_eq!(batch.pods_removed, [key("default/client")]);
    assert_eq!(batch.sets_destroyed.len(), 1);
    assert_eq!(fixture.memory.sets().count(), 0);
}

#[test]
fn a_policy_that_says_nothing_of_a_direction_leaves_it_open() {
    let mut silent = network_policy("default/p", "");
    silent.egress = Effect::None;
    let fixture = cluster(vec![silent, admin_policy("p", 1, "").egress(vec![])]);
    assert_eq!(fixture.egress("default/client", "198.51.100.1", tcp(80)), Allow);
}

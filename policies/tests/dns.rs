//! dnsd in the place of the DNS Service: rules about its pods at port 53 are rules about dnsd.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod fixture;

use egret_policies::compiler::{DnsStandIn, PodToOwnNode, Settings};
use egret_policies::model::cluster::{Entity, EntityKey, Pod, PodLife, Service};
use egret_policies::model::{
    Action, Direction, Effect, Kind, NamespaceSelector, Peer, Peers, Policy, Port, Ports, Tier,
};
use egret_policies::rules::SetKind;
use egret_policies::simulator::Verdict::{self, Allow, Deny};
use egret_policies::simulator::{Connection, Protocol};
use egret_shared::net::{PortRange, Transport};

use fixture::*;

const DNSD: &str = "169.254.20.10";
const DNSD_V6: &str = "fd00::20:10";
const UDP: Protocol = Protocol::Port(Transport::Udp, 53);

fn client() -> Pod {
    pod("default/client", "app=client", &["10.0.0.1", "fd00::1"])
}

fn kube_dns(name: &str, address: &str) -> Pod {
    let mut pod = pod(&format!("kube-system/{name}"), "k8s-app=kube-dns", &[address]);
    pod.node = Some("there".into());
    pod.ports = vec![
        named_port("dns", Transport::Udp, 53),
        named_port("dns-tcp", Transport::Tcp, 53),
        named_port("metrics", Transport::Tcp, 9153),
    ];
    pod
}

fn service(selector: Option<&str>) -> Entity {
    Entity::Service(Service {
        key: key("kube-system/kube-dns"),
        selector: selector.map(labels),
        addresses: vec![ip("10.96.0.10")],
        external_addresses: Vec::new(),
        ports: Vec::new(),
    })
}

fn settings_with_dnsd() -> Settings {
    Settings {
        pod_to_own_node: PodToOwnNode::Enforce,
        dns: DnsStandIn {
            addresses: [DNSD, DNSD_V6].map(ip).into(),
            ..DnsStandIn::default()
        },
        ..settings()
    }
}

/// Client, two DNS pods and their Service, with dnsd in its place; the own node is no way around policies.
fn cluster(policies: Vec<Policy>) -> Fixture {
    let entities = [
        namespace("kube-system", ""),
        Entity::Pod(client()),
        Entity::Pod(kube_dns("dns-1", "10.0.1.1")),
        Entity::Pod(kube_dns("dns-2", "10.0.1.2")),
        service(Some("k8s-app=kube-dns")),
    ];
    let policies = policies.into_iter().map(Entity::Policy);
    Fixture::with(settings_with_dnsd(), entities.into_iter().chain(policies))
}

/// What the client may ask of dnsd, over UDP and TCP, in both families, alike.
fn asks(fixture: &Fixture) -> Verdict {
    let verdicts = [DNSD, DNSD_V6]
        .map(|address| [UDP, tcp(53)].map(|protocol| fixture.egress("default/client", address, protocol)));
    assert_eq!(verdicts, [[verdicts[0][0]; 2]; 2], "alike everywhere");
    verdicts[0][0]
}

fn kube_dns_pods() -> Peers {
    Peers::OneOf(
        [Peer::Pods {
            namespaces: NamespaceSelector::Matching(selector("kubernetes.io/metadata.name=kube-system")),
            pods: selector("k8s-app=kube-dns"),
        }]
        .into(),
    )
}

fn at_53(transports: &[Transport]) -> Ports {
    let port = |transport: &Transport| Port::Range(*transport, PortRange::single(53).unwrap());
    Ports::OneOf(transports.iter().map(port).collect())
}

const BOTH: [Transport; 2] = [Transport::Udp, Transport::Tcp];

/// "Allow DNS to kube-dns", as half of the world has it.
fn allow_dns() -> Policy {
    network_policy("default/dns", "").egress(vec![rule(Action::Allow, kube_dns_pods(), at_53(&BOTH))])
}

#[test]
fn an_isolated_pod_asks_dnsd_by_a_rule_that_was_written_for_kube_dns() {
    let fixture = cluster(vec![allow_dns()]);
    assert_eq!(asks(&fixture), Allow);
    let by = fixture.decide("default/client", Direction::Egress, DNSD, UDP);
    assert_eq!(by.policy().map(AsRef::as_ref), Some("NetworkPolicy/default/dns"));
    assert_eq!(fixture.egress("default/client", "10.0.1.1", UDP), Allow);
    for (address, protocol) in [
        (DNSD, tcp(54)),
        (DNSD, Protocol::Port(Transport::Sctp, 53)),
        (DNSD, Protocol::Icmp),
        ("169.254.20.11", UDP),
        ("10.96.0.10", UDP),
    ] {
        let verdict = fixture.egress("default/client", address, protocol);
        assert_eq!(verdict, Deny, "{address} {protocol:?}");
    }
}

#[test]
fn without_a_setting_nobody_stands_in_for_the_service() {
    let silent = Settings {
        dns: DnsStandIn::default(),
        ..settings_with_dnsd()
    };
    let entities = [
        Entity::Pod(client()),
        Entity::Pod(kube_dns("dns-1", "10.0.1.1")),
        service(Some("k8s-app=kube-dns")),
        Entity::Policy(allow_dns()),
    ];
    let fixture = Fixture::with(silent, entities);
    assert_eq!(asks(&fixture), Deny);
    let kinds: Vec<SetKind> = fixture.memory.sets().map(|set| set.kind).collect();
    assert_eq!(kinds, [SetKind::Addresses], "and it costs nothing");
}

#[test]
fn every_kind_and_action_means_dnsd_too() {
    let elsewhere = |kind, tier| policy(kind, tier, 1, "p", "");
    let np =
        |action| network_policy("default/p", "").egress(vec![rule(action, kube_dns_pods(), at_53(&BOTH))]);
    let on = |kind, tier, action| {
        elsewhere(kind, tier).egress(vec![
            rule(action, kube_dns_pods(), at_53(&BOTH)),
            deny(networks(&["169.254.0.0/16", "fd00::20:0/112"])),
        ])
    };
    use Kind::{AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy};
    for (policy, expected) in [
        (np(Action::Allow), Allow),
        (np(Action::Deny), Deny),
        (on(AdminNetworkPolicy, Tier::Admin, Action::Allow), Allow),
        (on(AdminNetworkPolicy, Tier::Admin, Action::Deny), Deny),
        (on(AdminNetworkPolicy, Tier::Admin, Action::Pass), Allow),
        (on(ClusterNetworkPolicy, Tier::Admin, Action::Allow), Allow),
        (on(ClusterNetworkPolicy, Tier::Admin, Action::Deny), Deny),
        (on(ClusterNetworkPolicy, Tier::Baseline, Action::Allow), Allow),
        (on(ClusterNetworkPolicy, Tier::Baseline, Action::Deny), Deny),
        (
            on(BaselineAdminNetworkPolicy, Tier::Baseline, Action::Allow),
            Allow,
        ),
        (on(BaselineAdminNetworkPolicy, Tier::Baseline, Action::Deny), Deny),
    ] {
        let what = format!("{} {:?}", policy.id, policy.egress);
        assert_eq!(asks(&cluster(vec![policy])), expected, "{what}");
    }
}

#[test]
fn a_deny_of_all_pods_denies_dnsd_at_port_53_and_nowhere_else() {
    let fixture = cluster(vec![admin_policy("p", 1, "").egress(vec![deny(pods(""))])]);
    assert_eq!(asks(&fixture), Deny);
    for protocol in [tcp(80), tcp(52), Protocol::Icmp, Protocol::Other] {
        assert_eq!(fixture.egress("default/client", DNSD, protocol), Allow);
    }
}

#[test]
fn a_rule_is_about_dnsd_only_at_its_own_ports() {
    let range = |transport, first, last| Port::Range(transport, PortRange::new(first, last).unwrap());
    let named = |name: &str, transport| Port::Named {
        name: name.into(),
        transport,
    };
    let (udp, tcp_) = (Transport::Udp, Transport::Tcp);
    for (name, ports, expected) in [
        ("no ports at all", Ports::Any, [Allow, Allow]),
        ("an empty list", Ports::OneOf([].into()), [Deny, Deny]),
        ("UDP alone", at_53(&[udp]), [Allow, Deny]),
        (
            "a range around it",
            Ports::OneOf([range(tcp_, 1, 65535)].into()),
            [Deny, Allow],
        ),
        (
            "a range beside it",
            Ports::OneOf([range(udp, 54, 100)].into()),
            [Deny, Deny],
        ),
        ("SCTP", at_53(&[Transport::Sctp]), [Deny, Deny]),
        ("ICMP", Ports::OneOf([Port::Icmp].into()), [Deny, Deny]),
        (
            "a name that is UDP 53",
            Ports::OneOf([named("dns", None)].into()),
            [Allow, Deny],
        ),
        (
            "a name that is TCP 53",
            Ports::OneOf([named("dns-tcp", Some(tcp_))].into()),
            [Deny, Allow],
        ),
        (
            "its name, another protocol",
            Ports::OneOf([named("dns", Some(tcp_))].into()),
            [Deny, Deny],
        ),
        (
            "the name of another port",
            Ports::OneOf([named("metrics", None)].into()),
            [Deny, Deny],
        ),
    ] {
        for peers in [kube_dns_pods(), pods("")] {
            let rules = vec![rule(Action::Allow, peers, ports.clone())];
            let fixture = cluster(vec![network_policy("default/p", "").egress(rules)]);
            let verdicts = [UDP, tcp(53)].map(|protocol| fixture.egress("default/client", DNSD, protocol));
            assert_eq!(verdicts, expected, "{name}");
        }
    }
    let any = vec![rule(
        Action::Allow,
        Peers::Any,
        Ports::OneOf([named("dns", None)].into()),
    )];
    let fixture = cluster(vec![network_policy("default/p", "").egress(any)]);
    assert_eq!(
        fixture.egress("default/client", DNSD, UDP),
        Allow,
        "a named port of any peer"
    );
}

#[test]
fn dnsd_stands_for_the_live_pods_that_the_service_selects_whoever_is_ready() {
    let mut ended = kube_dns("dns-1", "10.0.1.1");
    ended.life = PodLife::Terminal;
    let mut of_node = kube_dns("dns-1", "10.0.1.1");
    of_node.host_network = true;
    let mut elsewhere = kube_dns("dns-1", "10.0.1.1");
    elsewhere.key = key("default/dns-1");
    let mut without = kube_dns("dns-1", "10.0.1.1");
    without.addresses.clear();
    for (name, server, of, expected) in [
        (
            "a live pod",
            kube_dns("dns-1", "10.0.1.1"),
            service(Some("k8s-app=kube-dns")),
            Allow,
        ),
        (
            "a selector that it does not match",
            kube_dns("dns-1", "10.0.1.1"),
            service(Some("k8s-app=other")),
            Deny,
        ),
        (
            "a Service without a selector",
            kube_dns("dns-1", "10.0.1.1"),
            service(None),
            Deny,
        ),
        (
            "an empty selector is none",
            kube_dns("dns-1", "10.0.1.1"),
            service(Some("")),
            Deny,
        ),
        (
            "a pod that has ended",
            ended,
            service(Some("k8s-app=kube-dns")),
            Deny,
        ),
        (
            "a pod of the node's network",
            of_node,
            service(Some("k8s-app=kube-dns")),
            Deny,
        ),
        (
            "a pod without an address",
            without,
            service(Some("k8s-app=kube-dns")),
            Deny,
        ),
        (
            "a pod of another namespace",
            elsewhere,
            service(Some("k8s-app=kube-dns")),
            Deny,
        ),
    ] {
        let to_all = network_policy("default/p", "").egress(vec![allow(pods(""))]);
        let entities = [
            Entity::Pod(client()),
            Entity::Pod(server),
            of,
            Entity::Policy(to_all),
        ];
        let fixture = Fixture::with(settings_with_dnsd(), entities);
        assert_eq!(asks(&fixture), expected, "{name}");
    }
}

#[test]
fn one_pod_of_the_service_that_a_rule_selects_is_enough() {
    let mut odd = kube_dns("dns-2", "10.0.1.2");
    odd.labels = labels("k8s-app=kube-dns,canary=yes");
    let to_canary = network_policy("default/p", "").egress(vec![allow(pods("canary"))]);
    let mut fixture = cluster(vec![to_canary]);
    assert_eq!(asks(&fixture), Deny);
    fixture.apply(Entity::Pod(odd));
    assert_eq!(asks(&fixture), Allow);
}

#[test]
fn whoever_changes_the_way_is_open_while_the_service_has_such_a_pod() {
    let mut fixture = cluster(vec![allow_dns()]);
    let batch = fixture.delete(EntityKey::Pod(key("kube-system/dns-1")));
    assert_eq!(asks(&fixture), Allow, "another one is left");
    assert!(batch.rules_replaced.is_empty());
    let last = fixture.delete(EntityKey::Pod(key("kube-system/dns-2")));
    assert_eq!(asks(&fixture), Deny, "no pod, no rule");
    assert!(last.rules_replaced.is_empty(), "data alone changes");
    assert_eq!(last.reevaluate, [(key("default/client"), Direction::Egress)]);
    fixture.apply(Entity::Pod(kube_dns("dns-3", "10.0.1.3")));
    assert_eq!(asks(&fixture), Allow);
    fixture.apply(service(Some("k8s-app=other")));
    assert_eq!(asks(&fixture), Deny);
    fixture.apply(service(Some("k8s-app=kube-dns")));
    assert_eq!(asks(&fixture), Allow);
    fixture.delete(EntityKey::Service(key("kube-system/kube-dns")));
    assert_eq!(asks(&fixture), Deny);
}

#[test]
fn labels_of_the_services_namespace_count() {
    let by_label = Peers::OneOf(
        [Peer::Pods {
            namespaces: NamespaceSelector::Matching(selector("team=infra")),
            pods: selector(""),
        }]
        .into(),
    );
    let mut fixture = cluster(vec![
        network_policy("default/p", "").egress(vec![allow(by_label)]),
    ]);
    assert_eq!(asks(&fixture), Deny);
    fixture.apply(namespace("kube-system", "team=infra"));
    assert_eq!(asks(&fixture), Allow);
    fixture.apply(namespace("kube-system", "team=other"));
    assert_eq!(asks(&fixture), Deny);
}

/// E-4: an address of the node is the node's, also where dnsd stands in for pods there.
#[test]
fn networks_and_nodes_go_on_matching_the_address_itself() {
    let by_block = network_policy("default/p", "").egress(vec![allow(networks(&["169.254.20.0/24"]))]);
    let fixture = cluster(vec![by_block]);
    assert_eq!(fixture.egress("default/client", DNSD, tcp(80)), Allow);
    let mut firewall = policy(
        Kind::ClusterEgressFirewall,
        Tier::ClusterEgressFirewall,
        1,
        "f",
        "",
    );
    firewall.egress =
        Effect::Rules(vec![deny(Peers::OneOf([Peer::NodeAddresses(selector(""))].into()))].into());
    let mut fixture = cluster(vec![firewall, allow_dns()]);
    fixture.apply(node("here", "", &["192.0.2.1"]));
    let to_own_node = fixture.decide_connection(&Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: ip(DNSD),
        peer_is_own_node: true,
        protocol: UDP,
    });
    assert_eq!((to_own_node.verdict, to_own_node.tier), (Deny, "cef"));
}

#[test]
fn traffic_from_dnsd_is_judged_as_before() {
    let from_dns = network_policy("default/p", "").ingress(vec![allow(kube_dns_pods())]);
    let fixture = cluster(vec![from_dns]);
    assert_eq!(fixture.ingress("default/client", DNSD, UDP), Deny);
    assert_eq!(fixture.ingress("default/client", "10.0.1.1", UDP), Allow);
}

//! Small clusters drawn at random from few names, labels and addresses, so that things collide.
#![allow(dead_code, reason = "each test binary draws some of these")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::{
    ApiServerAddresses, EndpointSlice, Entity, EntityKey, NamedPort, Namespace, Node, NodeAddressReport, Pod,
    PodLife, Service, ServicePort, TargetPort,
};
use egret_policies::model::{
    Action, Direction, Effect, Enforcement, Exposure, Kind, Labels, NamespaceSelector, Peer, Peers, Policy,
    PolicyId, Port, Ports, Rank, Requirement, Rule, Selector, Subject, Tier,
};
use egret_policies::simulator::{Connection, ForwardedConnection, Protocol};
use egret_shared::net::{PortRange, Transport};
use egret_shared::pod::PodKey;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const NAMESPACES: [&str; 2] = ["red", "blue"];
const PODS: [&str; 3] = ["a", "b", "c"];
const NODES: [&str; 2] = ["here", "there"];
const ADDRESSES: [&str; 7] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.1.1",
    "fd00::1",
    "fd00::2",
    "192.0.2.1",
];
const NETWORKS: [&str; 6] = [
    "10.0.0.0/24",
    "10.0.0.2/31",
    "0.0.0.0/0",
    "::/0",
    "fd00::/127",
    "192.0.2.0/25",
];
const PATTERNS: [&str; 4] = ["*.x.test", "a.x.test", "*.a.x.test", "y.test"];
const QUESTIONS: [&str; 5] = ["a.x.test", "b.a.x.test", "x.test", "y.test", "ya.x.test"];
const DNS_SERVICE: &str = "red/dns";
/// One that only nodes have, and two that may be pods'.
const DNS_ADDRESSES: [&str; 3] = ["10.0.1.1", "192.0.2.1", "fd00::2"];
const PORT_NAMES: [&str; 2] = ["web", "dns"];
const PORTS: [u16; 3] = [53, 80, 443];

/// A step in the life of a cluster.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Apply(Entity),
    Delete(EntityKey),
    /// Who was told which of the addresses for which name, with which time to live in seconds.
    Observe(IpAddr, &'static str, Vec<IpAddr>, u64),
    /// Seconds go by.
    Sleep(u64),
    Poll,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => entity().prop_map(Step::Apply),
        2 => entity().prop_map(|entity| Step::Delete(entity.key())),
        3 => (address(), select(QUESTIONS.as_slice()), vec(address(), 1..4), select(vec![0, 1, 30, 300]))
            .prop_map(|(client, name, addresses, ttl)| Step::Observe(client, name, addresses, ttl)),
        1 => select(vec![1, 29, 31, 100]).prop_map(Step::Sleep),
        3 => Just(Step::Poll),
    ]
}

pub(crate) fn entity() -> impl Strategy<Value = Entity> {
    prop_oneof![
        4 => pod().prop_map(Entity::Pod),
        1 => namespace().prop_map(Entity::Namespace),
        2 => node().prop_map(Entity::Node),
        2 => place(),
        5 => policy().prop_map(Entity::Policy),
    ]
}

/// One of four pods that keep their addresses, with labels that change, or a policy that only denies
/// (tier Admin) or only allows (NetworkPolicy) such pods: much happens at once, and its order matters.
pub(crate) fn churn() -> impl Strategy<Value = Entity> {
    let app = || select(vec!["x", "y", "z"]);
    let pod = (0..4usize, app(), app()).prop_map(|(which, app, tier)| {
        Entity::Pod(Pod {
            key: PodKey::new(NAMESPACES[0], ["a", "b", "c", "d"][which]),
            uid: None,
            labels: [("app", app), ("tier", tier)].into_iter().collect(),
            node: Some("here".into()),
            addresses: vec![ADDRESSES[which].parse().unwrap()],
            host_network: false,
            life: PodLife::Live,
            started: None,
            ports: Vec::new(),
        })
    });
    let is = |key: &'static str, value: &str| {
        Selector::all_of([Requirement::In(
            key.into(),
            std::iter::once(Arc::from(value)).collect(),
        )])
    };
    let rules = vec((select(vec!["app", "tier"]), app()), 1..3);
    let policy = (
        any::<bool>(),
        0..2u32,
        option::of((select(vec!["app", "tier"]), app())),
        rules,
    )
        .prop_map(move |(is_deny, number, subject, rules)| {
            let rules = rules.into_iter().enumerate().map(|(index, (key, value))| Rule {
                index,
                name: None,
                action: if is_deny { Action::Deny } else { Action::Allow },
                peers: Peers::OneOf(
                    [Peer::Pods {
                        namespaces: NamespaceSelector::Named(NAMESPACES[0].into()),
                        pods: is(key, value),
                    }]
                    .into(),
                ),
                ports: Ports::Any,
            });
            let (kind, tier) = if is_deny {
                (Kind::AdminNetworkPolicy, Tier::Admin)
            } else {
                (Kind::NetworkPolicy, Tier::NetworkPolicy)
            };
            Entity::Policy(Policy {
                id: PolicyId {
                    kind,
                    namespace: None,
                    name: format!("p{number}").into(),
                },
                rank: Rank { tier, priority: 0 },
                subject: Subject {
                    namespaces: NamespaceSelector::Named(NAMESPACES[0].into()),
                    pods: subject.map_or_else(Selector::everything, |(key, value)| is(key, value)),
                },
                egress: Effect::Rules(rules.collect()),
                ingress: Effect::None,
                exposure: Exposure::Ignore,
                enforcement: Enforcement::Enforced,
            })
        });
    prop_oneof![3 => pod, 2 => policy]
}

/// Every connection worth asking about.
pub(crate) fn connections(pod: &PodKey) -> Vec<Connection> {
    let mut all = Vec::new();
    let protocols = Transport::ALL
        .into_iter()
        .flat_map(|transport| PORTS.map(|port| Protocol::Port(transport, port)))
        .chain([Protocol::Icmp, Protocol::Other]);
    for protocol in protocols {
        for peer in ADDRESSES.iter().chain(&["198.51.100.1", "fd00::ffff"]) {
            for direction in Direction::ALL {
                for peer_is_own_node in [false, true] {
                    all.push(Connection {
                        pod: pod.clone(),
                        direction,
                        peer: peer.parse().unwrap(),
                        peer_is_own_node,
                        protocol,
                    });
                }
            }
        }
    }
    all
}

/// Every connection of a client outside that is worth asking about.
pub(crate) fn entering() -> Vec<ForwardedConnection> {
    let all = connections(&PodKey::new("", "")).into_iter();
    all.filter(|connection| connection.direction == Direction::Egress)
        .map(|connection| ForwardedConnection {
            destination: connection.peer,
            destination_is_own_node: connection.peer_is_own_node,
            protocol: connection.protocol,
        })
        .collect()
}

fn address() -> impl Strategy<Value = IpAddr> {
    select(ADDRESSES.as_slice()).prop_map(|text| text.parse().unwrap())
}

fn labels() -> impl Strategy<Value = Labels> {
    (option::of(select(vec!["x", "y"])), any::<bool>()).prop_map(|(app, old)| {
        let app = app.map(|value| ("app", value));
        app.into_iter().chain(old.then_some(("old", ""))).collect()
    })
}

fn selector() -> impl Strategy<Value = Selector> {
    let value = || select(vec!["x", "y"]).prop_map(|value| std::iter::once(Arc::from(value)).collect());
    let requirement = prop_oneof![
        4 => value().prop_map(|values| Requirement::In("app".into(), values)),
        1 => value().prop_map(|values| Requirement::NotIn("app".into(), values)),
        1 => Just(Requirement::Exists("old".into())),
        1 => Just(Requirement::DoesNotExist("old".into())),
    ];
    vec(requirement, 0..2).prop_map(Selector::all_of)
}

fn namespaces() -> impl Strategy<Value = NamespaceSelector> {
    let by_name = select(NAMESPACES.as_slice()).prop_map(|name| {
        let value = std::iter::once(Arc::from(name)).collect();
        NamespaceSelector::Matching(Selector::all_of([Requirement::In(
            "kubernetes.io/metadata.name".into(),
            value,
        )]))
    });
    prop_oneof![
        select(NAMESPACES.as_slice()).prop_map(|name| NamespaceSelector::Named(name.into())),
        selector().prop_map(NamespaceSelector::Matching),
        by_name,
    ]
}

fn namespace() -> impl Strategy<Value = Namespace> {
    (select(NAMESPACES.as_slice()), labels(), enforcement()).prop_map(|(name, mut labels, enforcement)| {
        labels.set("kubernetes.io/metadata.name", name);
        Namespace {
            name: name.into(),
            labels,
            enforcement,
        }
    })
}

fn enforcement() -> impl Strategy<Value = Enforcement> {
    prop_oneof![6 => Just(Enforcement::Enforced), 1 => Just(Enforcement::Audited)]
}

/// What else tells the cluster from the rest of the world.
fn place() -> impl Strategy<Value = Entity> {
    let addresses = || {
        subsequence(ADDRESSES.as_slice(), 0..3).prop_map(|list| {
            list.iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<IpAddr>>()
        })
    };
    let report = (select(vec!["here", "there", "elsewhere"]), addresses()).prop_map(|(node, addresses)| {
        Entity::NodeAddressReport(NodeAddressReport {
            node: node.into(),
            addresses,
        })
    });
    let key = || select(vec!["default/kubernetes", "red/kubernetes", "default/web"]);
    let service = (key(), addresses(), select(PORTS.as_slice())).prop_map(|(key, addresses, port)| {
        let number = port.try_into().unwrap();
        Entity::Service(Service {
            key: key.parse().unwrap(),
            selector: None,
            addresses,
            external_addresses: Vec::new(),
            ports: vec![ServicePort {
                name: None,
                transport: Transport::Tcp,
                number,
                node_port: None,
                target: TargetPort::Number(number),
            }],
        })
    });
    let slice = (
        select(vec!["default/one", "default/two", "red/one"]),
        select(vec!["kubernetes", "web"]),
        addresses(),
        vec(
            (select(Transport::ALL.as_slice()), select(PORTS.as_slice())),
            0..3,
        ),
    )
        .prop_map(|(key, service, addresses, ports)| {
            let ports = ports.into_iter();
            Entity::EndpointSlice(EndpointSlice {
                key: key.parse().unwrap(),
                service: Some(service.into()),
                addresses,
                ports: ports
                    .map(|(transport, port)| (None, transport, port.try_into().unwrap()))
                    .collect(),
            })
        });
    let declared = (select(vec!["lb", "vip"]), addresses()).prop_map(|(name, addresses)| {
        Entity::ApiServerAddresses(ApiServerAddresses {
            name: name.into(),
            addresses,
        })
    });
    let dns = option::of(labels()).prop_map(|selector| {
        Entity::Service(Service {
            key: DNS_SERVICE.parse().unwrap(),
            selector,
            addresses: Vec::new(),
            external_addresses: Vec::new(),
            ports: Vec::new(),
        })
    });
    prop_oneof![3 => report, 2 => service, 2 => slice, 1 => declared, 2 => dns]
}

/// dnsd at some addresses, in the place of a Service that may be there.
pub(crate) fn dns() -> impl Strategy<Value = DnsStandIn> {
    subsequence(DNS_ADDRESSES.as_slice(), 0..=3).prop_map(|list| DnsStandIn {
        service: DNS_SERVICE.parse().unwrap(),
        addresses: list.iter().map(|text| text.parse().unwrap()).collect(),
    })
}

fn node() -> impl Strategy<Value = Node> {
    let addresses = prop_oneof![
        Just(vec!["192.0.2.1".parse().unwrap()]),
        subsequence(ADDRESSES.as_slice(), 0..3).prop_map(|list| list
            .iter()
            .map(|text| text.parse().unwrap())
            .collect::<Vec<IpAddr>>()),
    ];
    let networks = subsequence(NETWORKS.as_slice(), 0..2);
    (select(NODES.as_slice()), labels(), addresses, networks).prop_map(
        |(name, labels, addresses, networks)| Node {
            name: name.into(),
            labels,
            addresses,
            pod_networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        },
    )
}

fn named_port() -> impl Strategy<Value = NamedPort> {
    (
        select(PORT_NAMES.as_slice()),
        select(Transport::ALL.as_slice()),
        select(PORTS.as_slice()),
    )
        .prop_map(|(name, transport, number)| NamedPort {
            name: name.into(),
            transport,
            number: number.try_into().unwrap(),
        })
}

fn pod() -> impl Strategy<Value = Pod> {
    let who = (
        select(NAMESPACES.as_slice()),
        select(PODS.as_slice()),
        prop::bool::weighted(0.8),
        option::of(select(vec!["u1", "u2"])),
    );
    let state = (
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        option::of(select(vec!["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])),
    );
    let addresses = subsequence(ADDRESSES[..6].to_vec(), 0..3);
    (who, labels(), state, addresses, vec(named_port(), 0..3)).prop_map(
        |((namespace, name, is_here, uid), labels, (host_network, is_over, started), addresses, ports)| Pod {
            key: PodKey::new(namespace, name),
            uid: uid.map(Arc::from),
            labels,
            node: Some(if is_here { "here" } else { "there" }.into()),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            host_network,
            life: if is_over { PodLife::Terminal } else { PodLife::Live },
            started: started.map(Arc::from),
            ports,
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let tiers = prop_oneof![
        3 => Just((Kind::ClusterEgressFirewall, Tier::ClusterEgressFirewall)),
        2 => Just((Kind::ClusterNetworkPolicy, Tier::Admin)),
        1 => Just((Kind::AdminNetworkPolicy, Tier::Admin)),
        4 => Just((Kind::NetworkPolicy, Tier::NetworkPolicy)),
        2 => Just((Kind::LegacyNetworkPolicy, Tier::NetworkPolicy)),
        1 => Just((Kind::ClusterNetworkPolicy, Tier::Baseline)),
        1 => Just((Kind::BaselineAdminNetworkPolicy, Tier::Baseline)),
    ];
    (
        tiers,
        select(vec!["p", "q", "r"]),
        select(NAMESPACES.as_slice()),
        0..3u32,
        (namespaces(), selector()),
        (effect(Direction::Egress), effect(Direction::Ingress)),
        (any::<bool>(), enforcement()),
    )
        .prop_map(
            |(
                (kind, tier),
                name,
                namespace,
                priority,
                (namespaces, pods),
                effects,
                (is_exposed, enforcement),
            )| {
                let exposure = match kind {
                    Kind::ClusterEgressFirewall if !is_exposed => Exposure::Reject,
                    _ => Exposure::Ignore,
                };
                let is_namespaced = matches!(kind, Kind::NetworkPolicy | Kind::LegacyNetworkPolicy);
                // One name may not stand in two tiers.
                let name = if tier == Tier::Baseline {
                    format!("base-{name}")
                } else {
                    name.to_owned()
                };
                let effects = match kind {
                    Kind::LegacyNetworkPolicy => legacy(name.as_str(), effects.1),
                    _ => effects,
                };
                Policy {
                    id: PolicyId {
                        kind,
                        namespace: is_namespaced.then(|| namespace.into()),
                        name: name.into(),
                    },
                    rank: Rank {
                        tier,
                        priority: if is_namespaced { 0 } else { priority },
                    },
                    subject: Subject {
                        namespaces: if is_namespaced {
                            NamespaceSelector::Named(namespace.into())
                        } else {
                            namespaces
                        },
                        pods,
                    },
                    egress: effects.0,
                    ingress: effects.1,
                    exposure,
                    enforcement,
                }
            },
        )
}

/// In the form of 2016: `q` stands for the annotation, `p` for an object.
fn legacy(name: &str, ingress: Effect) -> (Effect, Effect) {
    let ingress = match ingress {
        Effect::Rules(rules) if name == "p" => Effect::Opens(rules),
        Effect::None | Effect::Opens(_) | Effect::Rules(_) => Effect::Rules(Arc::default()),
    };
    (Effect::None, ingress)
}

fn effect(direction: Direction) -> impl Strategy<Value = Effect> {
    // In a long list names are asked apart.
    let rules = prop_oneof![
        5 => vec(rule(direction), 0..4),
        1 => vec(rule(direction), 8..12),
    ];
    prop_oneof![
        1 => Just(Effect::None),
        3 => rules.prop_map(|mut rules| {
            for (index, rule) in rules.iter_mut().enumerate() {
                rule.index = index;
            }
            Effect::Rules(rules.into())
        }),
    ]
}

fn rule(direction: Direction) -> impl Strategy<Value = Rule> {
    let peers = prop_oneof![
        1 => Just(Peers::Any),
        5 => vec(peer(direction), 0..3).prop_map(|peers| Peers::OneOf(peers.into())),
    ];
    let ports = prop_oneof![
        1 => Just(Ports::Any),
        1 => vec(port(), 0..3).prop_map(|ports| Ports::OneOf(ports.into())),
    ];
    let action = prop_oneof![
        3 => Just(Action::Allow),
        2 => Just(Action::Deny),
        1 => Just(Action::Pass),
    ];
    (action, peers, ports).prop_map(|(action, peers, ports)| Rule {
        index: 0,
        name: None,
        action,
        peers,
        ports,
    })
}

fn peer(direction: Direction) -> BoxedStrategy<Peer> {
    let pods = (namespaces(), selector()).prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods });
    let networks = subsequence(NETWORKS.as_slice(), 0..3)
        .prop_map(|list| Peer::Networks(list.iter().map(|network| network.parse().unwrap()).collect()));
    let external = subsequence(NETWORKS.as_slice(), 0..3)
        .prop_map(|list| Peer::External(list.iter().map(|network| network.parse().unwrap()).collect()));
    let names = subsequence(PATTERNS.as_slice(), 0..3)
        .prop_map(|list| Peer::Names(list.iter().map(|pattern| pattern.parse().unwrap()).collect()));
    let services = (
        option::of(select(vec!["default", "red"])),
        option::of(select(vec!["kubernetes", "web"])),
    )
        .prop_map(|(namespace, name)| Peer::Services {
            namespace: namespace.map(Into::into),
            name: name.map(Into::into),
        });
    match direction {
        Direction::Egress => prop_oneof![
            4 => pods,
            1 => services,
            2 => networks,
            1 => selector().prop_map(Peer::Nodes),
            1 => selector().prop_map(Peer::NodeAddresses),
            1 => Just(Peer::ApiServer),
            2 => external,
            3 => names,
        ]
        .boxed(),
        Direction::Ingress => prop_oneof![2 => pods, 1 => networks].boxed(),
    }
}

fn port() -> impl Strategy<Value = Port> {
    let range = (
        select(Transport::ALL.as_slice()),
        select(vec![(1, 65535), (80, 80), (53, 80), (443, 500)]),
    )
        .prop_map(|(transport, (first, last))| Port::Range(transport, PortRange::new(first, last).unwrap()));
    let named = (
        select(PORT_NAMES.as_slice()),
        option::of(select(Transport::ALL.as_slice())),
    )
        .prop_map(|(name, transport)| Port::Named {
            name: name.into(),
            transport,
        });
    prop_oneof![4 => range, 2 => named, 1 => Just(Port::Icmp)]
}

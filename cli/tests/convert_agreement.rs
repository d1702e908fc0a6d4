//! What `egret convert` prints means what was there: in clusters drawn at random, the oracle decides every
//! connection alike.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use egret_policies::compiler::{NodeScope, Settings};
use egret_policies::lower::lower;
use egret_policies::model::Direction;
use egret_policies::oracle::World;
use egret_policies::simulator::{Connection, Protocol};
use egret_shared::net::Transport;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

mod invocation;

use invocation::{Invocation, ProgramOutput, network_policy, pod};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 32,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_converted_means_the_same(policies in policies()) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 4;
        let manifests = cluster_of_pods() + &policies;
        let answered = convert(&format!("convert-agreement-{number}"), &manifests);
        prop_assert_eq!(answered.status, Some(0), "{}\n{}", manifests, answered.stderr);
        prop_assert!(!answered.stdout.contains("v1alpha1"), "{}", answered.stdout);
        let (before, after) = (world(&manifests), world(&answered.stdout));
        for connection in connections() {
            let verdicts = [&before, &after].map(|world| world.decide(&connection, Timestamp::from_millis(0)));
            prop_assert_eq!(verdicts[0], verdicts[1], "{:?}\n{}\n{}", connection, manifests, answered.stdout);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 16,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_converted_from_the_form_of_2016_means_the_same(policies in of_2016()) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 4;
        let manifests = cluster_of_pods() + &policies;
        let answered = convert(&format!("convert-agreement-2016-{number}"), &manifests);
        prop_assert_eq!(answered.status, Some(0), "{}\n{}", manifests, answered.stderr);
        for word in ["extensions/v1beta1", "net.beta.kubernetes.io", "networkPolicy:"] {
            prop_assert!(!answered.stdout.contains(word), "{}", answered.stdout);
        }
        let (before, after) = (world(&manifests), world(&answered.stdout));
        for connection in connections() {
            let verdicts = [&before, &after].map(|world| world.decide(&connection, Timestamp::from_millis(0)));
            prop_assert_eq!(verdicts[0], verdicts[1], "{:?}\n{}\n{}", connection, manifests, answered.stdout);
        }
    }
}

fn convert(test: &str, manifests: &str) -> ProgramOutput {
    let asked = Invocation::of(test).file("all.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["convert", "--all", "--manifests"])
        .arg(asked.folder().join("manifests"));
    invocation::run(command, "")
}

/// Who is asked about: every label that random selectors have, in two namespaces, one of them with labels.
fn cluster_of_pods() -> String {
    let mut text =
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: red, labels: {team: a}}\n".to_owned();
    for (key, labels, addresses) in [
        ("red/x", "app: x", ["10.0.0.1", "fd00::1"]),
        ("red/y", "app: y", ["10.0.0.2", "fd00::2"]),
        ("blue/x", "app: x", ["10.0.1.1", "fd00::3"]),
        ("blue/none", "", ["10.0.1.2", "fd00::4"]),
        ("green/x", "app: x", ["10.0.2.1", "fd00::5"]),
    ] {
        let ports = "containers: [{name: c, ports: [{name: web, containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}]}]";
        text.push_str(&pod(key, labels, &addresses).replace("containers: []", ports));
    }
    text.push_str("---\napiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {team: a}}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n");
    text
}

/// All that there is, read as the enforcer reads it.
fn world(manifests: &str) -> World {
    let manifest = egret_policies::api::manifest::read(manifests, "manifests");
    assert!(manifest.is_whole(), "{:?}", manifest.problems);
    let mut world = World::new(Settings::for_scope(NodeScope::All));
    for document in manifest.documents {
        for entity in lower(&document.object).entities {
            world.apply(entity);
        }
    }
    for pod in world.local_pods().collect::<Vec<_>>() {
        let client = CLIENTS.iter().find(|(key, _)| *key == pod.to_string()).unwrap().1;
        for (name, address) in [("a.x.test", "203.0.113.1"), ("y.test", "203.0.113.2")] {
            let expires = Timestamp::from_millis(60_000);
            let observation = Observation {
                client: client.parse().unwrap(),
                question: name.parse().unwrap(),
                chain: Vec::new(),
                addresses: vec![ObservedAddress {
                    address: address.parse().unwrap(),
                    expires,
                }],
            };
            world.observe(&observation, Timestamp::from_millis(0));
        }
    }
    world
}

const CLIENTS: [(&str, &str); 5] = [
    ("red/x", "10.0.0.1"),
    ("red/y", "10.0.0.2"),
    ("blue/x", "10.0.1.1"),
    ("blue/none", "10.0.1.2"),
    ("green/x", "10.0.2.1"),
];
const OTHERS: [&str; 14] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.1.1",
    "10.0.1.2",
    "10.0.2.1",
    "fd00::1",
    "fd00::3",
    "fd00::4",
    "192.0.2.1",
    "192.0.2.130",
    "203.0.113.1",
    "203.0.113.2",
    "198.51.100.1",
    "2001:db8::1",
];

fn connections() -> Vec<Connection> {
    let ports = [1, 52, 53, 80, 81, 443, 500, 501, 65535];
    let protocols: Vec<Protocol> = Transport::ALL
        .into_iter()
        .flat_map(|transport| ports.map(|port| Protocol::Port(transport, port)))
        .chain([Protocol::Icmp, Protocol::Other])
        .collect();
    let mut all = Vec::new();
    for (key, _) in CLIENTS {
        for (peer, direction) in OTHERS
            .iter()
            .flat_map(|peer| Direction::ALL.map(|way| (*peer, way)))
        {
            for protocol in &protocols {
                all.push(Connection {
                    pod: key.parse().unwrap(),
                    direction,
                    peer: peer.parse().unwrap(),
                    peer_is_own_node: peer == "192.0.2.1",
                    protocol: *protocol,
                });
            }
        }
    }
    all
}

fn selector() -> impl Strategy<Value = String> {
    select(vec![
        "{}",
        "{matchLabels: {app: x}}",
        "{matchLabels: {app: y}}",
        "{matchExpressions: [{key: app, operator: Exists}]}",
        "{matchExpressions: [{key: app, operator: NotIn, values: [x]}]}",
    ])
    .prop_map(str::to_owned)
}

fn namespaces() -> impl Strategy<Value = String> {
    select(vec![
        "{}",
        "{matchLabels: {team: a}}",
        "{matchLabels: {kubernetes.io/metadata.name: blue}}",
        "{matchExpressions: [{key: team, operator: DoesNotExist}]}",
    ])
    .prop_map(str::to_owned)
}

fn pods() -> impl Strategy<Value = String> {
    prop_oneof![
        namespaces().prop_map(|namespaces| format!("{{namespaces: {namespaces}}}")),
        (namespaces(), selector()).prop_map(|(namespaces, pods)| {
            format!("{{pods: {{namespaceSelector: {namespaces}, podSelector: {pods}}}}}")
        }),
        selector().prop_map(|pods| format!("{{pods: {{podSelector: {pods}}}}}")),
    ]
}

fn place() -> impl Strategy<Value = String> {
    select(vec![
        "{networks: [10.0.0.0/24, \"fd00::/127\"]}",
        "{networks: [0.0.0.0/0]}",
        "{networks: [\"::/0\", 192.0.2.128/25]}",
        "{networks: [203.0.113.0/24]}",
        "{nodes: {}}",
        "{nodes: {matchLabels: {team: b}}}",
    ])
    .prop_map(str::to_owned)
}

fn port() -> impl Strategy<Value = String> {
    select(vec![
        "{portNumber: {port: 80}}",
        "{portNumber: {protocol: UDP, port: 53}}",
        "{portNumber: {protocol: HTTP, port: 80}}",
        "{portRange: {start: 53, end: 80}}",
        "{portRange: {protocol: SCTP, start: 443, end: 500}}",
        "{portRange: {start: 80, end: 80}}",
        "{portRange: {start: 80, end: 53}}",
        "{namedPort: web}",
        "{namedPort: dns}",
    ])
    .prop_map(str::to_owned)
}

/// Some items, so many times, behind one another.
fn repeat(items: &[String], times: usize) -> String {
    let items = std::iter::repeat_n(items, times).flatten().cloned();
    items.collect::<Vec<_>>().join(", ")
}

/// A rule; the lists are sometimes longer than v1alpha2 admits.
fn rule(is_egress: bool, kind: Kind) -> BoxedStrategy<String> {
    let peer = if is_egress {
        prop_oneof![pods(), place()].boxed()
    } else {
        pods().boxed()
    };
    let actions: &[&str] = match kind {
        Kind::Admin => &["Allow", "Deny", "Pass"],
        Kind::Baseline => &["Allow", "Deny"],
    };
    let copies = || prop_oneof![19 => Just(1_usize), 1 => Just(9)];
    let parts = (
        select(actions),
        vec(peer, 1..4),
        vec(port(), 0..4),
        copies(),
        copies(),
        any::<bool>(),
    );
    parts
        .prop_map(move |(action, peers, ports, of_peers, of_ports, is_named)| {
            let mut peers = vec![repeat(&peers, of_peers)];
            if is_named && is_egress && action == "Allow" && kind == Kind::Admin {
                peers.push("{domainNames: [\"*.x.test\", y.test]}".to_owned());
            }
            let ports = match repeat(&ports, of_ports) {
                ports if ports.is_empty() => ports,
                ports => format!(", ports: [{ports}]"),
            };
            let word = if is_egress { "to" } else { "from" };
            format!("{{action: {action}, {word}: [{}]{ports}}}", peers.join(", "))
        })
        .boxed()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Admin,
    Baseline,
}

fn spec(kind: Kind) -> impl Strategy<Value = String> {
    let rules = move |is_egress| {
        let copies = prop_oneof![19 => Just(1_usize), 1 => Just(11)];
        (vec(rule(is_egress, kind), 0..4), copies).prop_map(|(rules, copies)| repeat(&rules, copies))
    };
    (pods(), rules(false), rules(true)).prop_map(|(subject, ingress, egress)| {
        format!("subject: {subject}, ingress: [{ingress}], egress: [{egress}]")
    })
}

/// Policies of v1alpha1, each with a ClusterNetworkPolicy or NetworkPolicy around it now and then.
fn policies() -> impl Strategy<Value = String> {
    let admin = |name: &'static str, first: u32| {
        (spec(Kind::Admin), 0..3_u32).prop_map(move |(spec, priority)| {
            format!(
                "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{priority: {}, {spec}}}\n",
                first + 20 * priority
            )
        })
    };
    let baseline = spec(Kind::Baseline).prop_map(|spec| {
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata: {{name: default}}\nspec: {{{spec}}}\n"
        )
    });
    let between = |name: &'static str, tier: &'static str| {
        (select(vec!["Accept", "Deny"]), pods(), pods()).prop_map(move |(action, subject, peer)| {
            format!(
                "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
                 spec: {{tier: {tier}, priority: 20, subject: {}, ingress: [{{action: {action}, from: [{}]}}]}}\n",
                complete(&subject),
                complete(&peer)
            )
        })
    };
    let guard = network_policy(
        "red/guard",
        "{podSelector: {matchLabels: {app: x}}, policyTypes: [Egress]}",
    );
    let admins = (admin("a", 0), admin("default", 0), admin("t", 13));
    let others = (
        option::of(between("m", "Admin")),
        option::of(between("e", "Baseline")),
        option::of(Just(guard)),
    );
    (admins, option::of(baseline), others).prop_map(|((a, b, c), baseline, (admin, base, guard))| {
        [Some(a), Some(b), Some(c), baseline, admin, base, guard]
            .into_iter()
            .flatten()
            .collect()
    })
}

/// v1alpha2 has no `pods` without podSelector.
fn complete(pods: &str) -> String {
    if pods.contains("podSelector") || !pods.contains("pods") {
        pods.to_owned()
    } else {
        pods.replace("}}", "}, podSelector: {}}")
    }
}

/// A list that may be missing, empty (which is nobody in the form of 2016) or have items.
fn list(word: &'static str, item: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
    option::weighted(0.8, vec(item, 0..3)).prop_map(move |items| match items {
        Some(items) => format!("{word}: [{}], ", items.join(", ")),
        None => String::new(),
    })
}

fn rule_of_2016() -> impl Strategy<Value = String> {
    let peer = prop_oneof![
        selector().prop_map(|pods| format!("{{podSelector: {pods}}}")),
        namespaces().prop_map(|namespaces| format!("{{namespaceSelector: {namespaces}}}")),
    ];
    let port = select(vec![
        "{port: 80}",
        "{protocol: UDP, port: 53}",
        "{port: web}",
        "{protocol: UDP, port: dns}",
        "{protocol: UDP}",
        "{}",
    ]);
    (list("from", peer), list("ports", port.prop_map(str::to_owned)))
        .prop_map(|(from, ports)| format!("{{{from}{ports}}}"))
}

/// Namespaces with and without the annotation, objects of 2016 in both, and policies of v1 beside them.
fn of_2016() -> impl Strategy<Value = String> {
    let annotation = || {
        select(vec![
            r#"annotations: {net.beta.kubernetes.io/network-policy: '{"ingress": {"isolation": "DefaultDeny"}}', note: x}"#,
            r#"annotations: {net.beta.kubernetes.io/network-policy: "{"}"#,
            "annotations: {net.beta.kubernetes.io/network-policy: '{}'}",
            "labels: {team: c}",
        ])
    };
    let namespace = |name: &'static str| {
        (annotation(), any::<bool>()).prop_map(move |(annotation, has_spec)| {
            let spec = match has_spec && !annotation.contains("net.beta") {
                true => "spec: {networkPolicy: {ingress: {isolation: DefaultDeny}}}\n",
                false => "",
            };
            format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, {annotation}}}\n{spec}")
        })
    };
    let object = |key: &'static str| {
        let subject = option::of(selector()).prop_map(|pods| match pods {
            Some(pods) => format!("podSelector: {pods}, "),
            None => String::new(),
        });
        (subject, list("ingress", rule_of_2016())).prop_map(move |(subject, ingress)| {
            network_policy(key, &format!("{{{subject}{ingress}}}"))
                .replace("networking.k8s.io/v1", "extensions/v1beta1")
        })
    };
    let newer = |key: &'static str| {
        option::of((selector(), selector()).prop_map(move |(subject, peer)| {
            network_policy(
                key,
                &format!("{{podSelector: {subject}, ingress: [{{from: [{{podSelector: {peer}}}]}}]}}"),
            )
        }))
    };
    let objects = (object("blue/a"), object("blue/b"), object("green/a"));
    let newer = (newer("blue/default-deny"), newer("green/n"));
    (namespace("blue"), namespace("green"), objects, newer).prop_map(|(blue, green, (a, b, c), (d, e))| {
        let others = [d, e].into_iter().flatten();
        [blue, green, a, b, c].into_iter().chain(others).collect()
    })
}

//! `egret list` and `egret verdict` say the same of any connection, in clusters drawn at random from few
//! names, labels and addresses, so that things collide.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use egret_shared::net::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

mod invocation;

use invocation::Invocation;

const PODS: [(&str, &str, [&str; 2]); 5] = [
    ("red/a-1", "n1", ["10.0.0.1", "fd00::1"]),
    ("red/a-2", "n2", ["10.0.0.2", "fd00::2"]),
    ("red/b", "n1", ["10.0.1.1", "fd00::11"]),
    ("blue/c", "n2", ["10.0.1.2", ""]),
    ("blue/d", "n1", ["", "fd00::12"]),
];
const NODES: [(&str, &str); 2] = [("n1", "192.0.2.1"), ("n2", "192.0.2.2")];
const OUTSIDE: [&str; 6] = [
    "198.51.100.1",
    "198.51.100.200",
    "10.0.0.77",
    "255.255.255.255",
    "fd00::77",
    "2001:db8::1",
];
const PORTS: [u16; 8] = [1, 52, 53, 80, 81, 443, 501, 65535];

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 10,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_listed_is_what_is_allowed(labels in vec(select(vec!["x", "y"]), 5), policies in vec(policy(), 0..5)) {
        let mut manifests = cluster(&labels);
        for (number, policy) in policies.iter().enumerate() {
            manifests.push_str(&policy.replace("NUMBER", &number.to_string()));
        }
        for options in [vec![], vec!["--pods"]] {
            compare(&manifests, &options)?;
        }
    }
}

fn compare(manifests: &str, options: &[&str]) -> Result<(), TestCaseError> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 4;
    let mut asked = Invocation::of(&format!("agreement-{number}")).manifest(manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["list", "-o", "json", "--manifests"])
        .arg(asked.folder())
        .args(options);
    let listed = invocation::run(command, "");
    prop_assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    let rows = listed.rows();
    let questions = questions();
    for question in &questions {
        asked = asked.probe(&question.probe());
    }
    let answered = asked.answer();
    let answers: BTreeMap<String, Value> = answered
        .rows()
        .into_iter()
        .map(|row| (row["id"].as_str().unwrap().to_owned(), row))
        .collect();
    for question in &questions {
        let answer = &answers[&question.id()];
        if answer["verdict"] == "error" {
            continue;
        }
        let is_listed = rows.iter().any(|row| question.is_in(row));
        prop_assert_eq!(
            is_listed,
            answer["verdict"] == "allow",
            "{:?}\n{}\n{}",
            question,
            answer,
            listed.stdout
        );
    }
    Ok(())
}

/// Somebody, by name or by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Pod(&'static str, &'static str),
    Node(&'static str, &'static str),
    Outside(&'static str),
}

#[derive(Clone, Debug)]
struct Question {
    from: Who,
    to: Who,
    family: &'static str,
    protocol: &'static str,
    port: u16,
}

/// All pairs of which one is a pod, and not one with itself, each at every port and for a protocol without.
fn questions() -> Vec<Question> {
    let pods = PODS.map(|(key, node, _)| Who::Pod(key, node));
    let others = NODES
        .map(|(name, address)| Who::Node(name, address))
        .into_iter()
        .chain(OUTSIDE.map(Who::Outside));
    let mut pairs: Vec<(Who, Who)> = Vec::new();
    for pod in pods {
        pairs.extend(
            pods.into_iter()
                .filter(|other| *other != pod)
                .map(|other| (pod, other)),
        );
        pairs.extend(others.clone().flat_map(|other| [(pod, other), (other, pod)]));
    }
    let mut questions = Vec::new();
    for (number, (from, to)) in pairs.into_iter().enumerate() {
        for family in ["IPv4", "IPv6"] {
            let protocol = ["TCP", "UDP", "SCTP"][number % 3];
            let question = |protocol, port| Question {
                from,
                to,
                family,
                protocol,
                port,
            };
            questions.extend(PORTS.map(|port| question("TCP", port)));
            questions.extend([53, 80].map(|port| question(protocol, port)));
            questions.push(question("ICMP", 0));
        }
    }
    questions
}

impl Question {
    fn id(&self) -> String {
        format!(
            "{:?} {:?} {} {} {}",
            self.from, self.to, self.family, self.protocol, self.port
        )
    }

    fn probe(&self) -> String {
        let end = |who| match who {
            Who::Pod(key, _) => format!("\"{key}\""),
            Who::Node(_, address) | Who::Outside(address) => format!("{{\"ip\": \"{address}\"}}"),
        };
        let port = match self.protocol {
            "ICMP" => String::new(),
            _ => format!(", \"port\": {}", self.port),
        };
        let id = serde_json::to_string(&self.id()).unwrap();
        format!(
            r#"{{"id": {id}, "from": {}, "to": {}, "family": "{}", "protocol": "{}"{port}}}"#,
            end(self.from),
            end(self.to),
            self.family,
            self.protocol
        )
    }

    fn is_in(&self, row: &Value) -> bool {
        let is_family = row["family"].is_null() || row["family"] == self.family;
        is_family
            && is_at(&row["from"], self.from, self.to)
            && is_at(&row["to"], self.to, self.from)
            && self.has_port(&row["ports"])
    }

    fn has_port(&self, ports: &Value) -> bool {
        if self.protocol == "ICMP" {
            return ports["ICMP"].as_bool().unwrap();
        }
        ports[self.protocol].as_array().unwrap().iter().any(|range| {
            let range = range.as_str().unwrap();
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap()..=last.parse().unwrap()).contains(&self.port)
        })
    }
}

fn is_at(end: &Value, who: Who, other: Who) -> bool {
    let in_networks = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let contains = |network: &Value| {
            network
                .as_str()
                .unwrap()
                .parse::<IpNet>()
                .unwrap()
                .contains(&address)
        };
        end["networks"]
            .as_array()
            .is_none_or(|networks| networks.iter().any(contains))
    };
    let is_own = |node: &str| matches!(other, Who::Pod(_, own) if own == node);
    match who {
        Who::Pod(key, _) => end["pods"]
            .as_array()
            .is_some_and(|pods| pods.iter().any(|pod| pod == key)),
        Who::Node(name, address) if is_own(name) => end["ownNode"] == true && in_networks(address),
        Who::Node(name, address) => end["node"] == name && in_networks(address),
        Who::Outside(address) => {
            let kinds = ["pods", "ownNode", "node", "name"];
            kinds.iter().all(|kind| end[kind].is_null()) && in_networks(address)
        }
    }
}

fn cluster(labels: &[&str]) -> String {
    let mut text = String::new();
    for ((key, node, addresses), app) in PODS.iter().zip(labels) {
        let (namespace, name) = key.split_once('/').unwrap();
        let addresses: Vec<String> = addresses
            .iter()
            .filter(|address| !address.is_empty())
            .map(|address| format!("{{ip: \"{address}\"}}"))
            .collect();
        let port = if *app == "x" { 80 } else { 443 };
        write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: {node}, containers: [{{name: c, ports: [{{name: web, containerPort: {port}}}]}}]}}\n\
             status: {{phase: Running, podIPs: [{}]}}\n",
            addresses.join(", ")
        )
        .unwrap();
    }
    for (name, address) in NODES {
        write!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{app: x}}}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        )
        .unwrap();
    }
    text
}

fn policy() -> BoxedStrategy<String> {
    prop_oneof![network_policy(), cluster_policy()].boxed()
}

fn network_policy() -> impl Strategy<Value = String> {
    let subject = select(vec!["{}", "{matchLabels: {app: x}}", "{matchLabels: {app: y}}"]);
    let peer = select(vec![
        "{podSelector: {}}",
        "{podSelector: {matchLabels: {app: x}}}",
        "{namespaceSelector: {}}",
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: red}}, podSelector: {matchLabels: {app: y}}}",
        "{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.128/25, 10.0.0.2/32]}}",
        "{ipBlock: {cidr: \"fd00::/120\"}}",
        "{ipBlock: {cidr: 192.0.2.0/31}}",
    ]);
    let port = select(vec![
        "{port: 80}",
        "{port: web}",
        "{protocol: UDP, port: 53}",
        "{protocol: SCTP}",
        "{port: 53, endPort: 80}",
        "{port: 443, endPort: 500}",
    ]);
    let rule =
        (vec(peer, 0..3), vec(port, 0..3)).prop_map(|(peers, ports)| (peers.join(", "), ports.join(", ")));
    let rules = || vec(rule.clone(), 0..3);
    let types = select(vec!["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
    (select(vec!["red", "blue"]), subject, types, rules(), rules()).prop_map(
        |(namespace, subject, types, ingress, egress)| {
            let list = |rules: &[(String, String)], peers: &str| {
                let rules: Vec<String> = rules
                    .iter()
                    .map(|(of, ports)| format!("{{{peers}: [{of}], ports: [{ports}]}}"))
                    .collect();
                rules.join(", ")
            };
            format!(
                "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: pNUMBER, namespace: {namespace}}}\n\
                 spec: {{podSelector: {subject}, policyTypes: {types}, ingress: [{}], egress: [{}]}}\n",
                list(&ingress, "from"),
                list(&egress, "to")
            )
        },
    )
}

fn cluster_policy() -> impl Strategy<Value = String> {
    let pods = vec![
        "{namespaces: {}}",
        "{namespaces: {matchLabels: {kubernetes.io/metadata.name: blue}}}",
        "{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: x}}}}",
    ];
    let mut to = pods.clone();
    to.extend([
        "{networks: [10.0.0.0/24, \"fd00::10/124\"]}",
        "{networks: [0.0.0.0/0, \"::/0\"]}",
        "{nodes: {matchLabels: {app: x}}}",
        "{networks: [198.51.100.0/24]}",
    ]);
    let protocols = select(vec![
        "",
        ", protocols: [{tcp: {destinationPort: {number: 80}}}]",
        ", protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {range: {start: 53, end: 443}}}}]",
        ", protocols: [{destinationNamedPort: web}]",
    ]);
    let action = select(vec!["Accept", "Deny", "Pass"]);
    let egress = vec((action.clone(), select(to), protocols.clone()), 0..4);
    let ingress = vec((action, select(pods.clone()), protocols), 0..4);
    let head = (select(vec!["Admin", "Baseline"]), 0..3u32, select(pods));
    (head, ingress, egress).prop_map(|((tier, priority, subject), ingress, egress)| {
        let list = |rules: &[(&str, &str, &str)], peers: &str| {
            let rules: Vec<String> = rules
                .iter()
                .map(|(action, of, protocols)| format!("{{action: {action}, {peers}: [{of}]{protocols}}}"))
                .collect();
            rules.join(", ")
        };
        let directions: String = [("ingress", list(&ingress, "from")), ("egress", list(&egress, "to"))]
            .into_iter()
            .filter(|(_, rules)| !rules.is_empty())
            .map(|(direction, rules)| format!(", {direction}: [{rules}]"))
            .collect();
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: pNUMBER}}\n\
             spec: {{tier: {tier}, priority: {priority}, subject: {subject}{directions}}}\n"
        )
    })
}

//! What a ClusterEgressFirewall comes to in a cluster: its status, as people read it.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;

use common::{codes, indent};
use egret_policies::api::manifest::read;
use egret_policies::controller::{
    Cluster, Condition, ProgrammedNodes, ResolvedRule, Status, resolve, unknown_addresses,
};
use egret_policies::diagnostic::Code;
use egret_policies::lower::lower;
use egret_policies::model::Policy;
use egret_policies::model::cluster::{
    ApiServerAddresses, EndpointSlice, Entity, Node, NodeAddressReport, Pod, Service,
};

const NODES: &str = "
apiVersion: v1
kind: Node
metadata: {name: one}
spec: {podCIDRs: [10.0.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: two, labels: {role: master}}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: one}
addresses: [{ip: 192.0.2.1}, {ip: 10.0.0.1}]
---
apiVersion: v1
kind: Pod
metadata: {name: web}
status: {podIPs: [{ip: 100.64.0.1}]}
---
";

const API_SERVER: &str = "
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: two}
addresses: [{ip: 192.0.2.2}, {ip: 192.0.2.3}]
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes}
spec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.2]}]
ports: [{port: 6443}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {name: cloud}
spec: {addresses: [203.0.113.60]}
---
";

/// What the manifests hold, by kind.
#[derive(Default)]
struct World {
    nodes: Vec<Node>,
    reports: Vec<NodeAddressReport>,
    pods: Vec<Pod>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    declared: Vec<ApiServerAddresses>,
    policies: Vec<Policy>,
    status: Option<Status>,
}

impl World {
    fn new(manifests: &str) -> Self {
        let mut world = Self::default();
        let read = read(manifests, "test.yaml");
        assert!(read.is_whole(), "{:?}", read.problems);
        let mut diagnostics = Vec::new();
        for document in &read.documents {
            let lowered = lower(&document.object);
            diagnostics.extend(lowered.diagnostics);
            for entity in lowered.entities {
                world.keep(entity);
            }
        }
        let programmed = ProgrammedNodes {
            nodes: 1,
            of: 2,
            behind: Some(("two", "a set is full")),
        };
        let status = world
            .policies
            .first()
            .map(|policy| resolve(policy, &diagnostics, &world.cluster(), 7, programmed));
        Self { status, ..world }
    }

    fn keep(&mut self, entity: Entity) {
        match entity {
            Entity::Node(node) => self.nodes.push(node),
            Entity::NodeAddressReport(report) => self.reports.push(report),
            Entity::Pod(pod) => self.pods.push(pod),
            Entity::Service(service) => self.services.push(service),
            Entity::EndpointSlice(slice) => self.slices.push(slice),
            Entity::ApiServerAddresses(declared) => self.declared.push(declared),
            Entity::Policy(policy) => self.policies.push(policy),
            Entity::Namespace(_) => {}
        }
    }

    fn cluster(&self) -> Cluster<'_> {
        Cluster {
            nodes: &self.nodes,
            reports: &self.reports,
            pods: &self.pods,
            services: &self.services,
            slices: &self.slices,
            declared: &self.declared,
        }
    }
}

fn firewall(rules: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: p}}\nspec:\n  services: {{exposure: Ignore}}\n  rules:\n  {}\n---\n",
        indent(rules.trim(), 2)
    )
}

fn status(rules: &str, cluster: &str) -> Status {
    World::new(&format!("{}{NODES}{cluster}", firewall(rules)))
        .status
        .unwrap()
}

/// `index action cidrs ports source`
fn line(rule: &ResolvedRule) -> String {
    let list = |items: Vec<String>| items.join(",");
    let cidrs = list(rule.cidrs.iter().map(ToString::to_string).collect());
    let ports = rule.ports.as_ref().map_or_else(
        || "any".to_owned(),
        |ports| {
            let ports = ports.iter();
            list(
                ports
                    .map(|port| format!("{}/{}-{}", port.protocol, port.from, port.to))
                    .collect(),
            )
        },
    );
    let icmp = if rule.icmp { "+icmp" } else { "" };
    let source = list(rule.source.iter().cloned().collect());
    format!("{} {} [{cidrs}] {ports}{icmp} {source}", rule.index, rule.action)
}

fn condition<'a>(status: &'a Status, name: &str) -> &'a Condition {
    status
        .conditions
        .iter()
        .find(|condition| condition.r#type == name)
        .unwrap()
}

#[test]
fn each_destination_is_resolved() {
    for (rules, expected) in [
        (
            "- {action: Deny, to: [{networks: [198.51.100.128/25, 198.51.100.0/25, 203.0.113.1/32]}]}",
            vec!["0 Deny [198.51.100.0/24,203.0.113.1/32] any+icmp Networks"],
        ),
        (
            "- {action: Deny, to: [{networks: [10.0.0.0/30]}]}",
            vec!["0 Deny [10.0.0.1/32] any+icmp Networks"],
        ),
        (
            "- {action: Deny, to: [{networks: [100.64.0.0/31]}]}",
            vec!["0 Deny [100.64.0.0/32] any+icmp Networks"],
        ),
        (
            "- {action: Deny, to: [{nodes: {selector: {matchLabels: {role: master}}}}, {nodes: {selector: {matchLabels: {role: none}}}}]}",
            vec!["0 Deny [192.0.2.2/31] any+icmp Node/two"],
        ),
        (
            "- {action: Deny, to: [{nodes: {addresses: Reported}}]}",
            vec!["0 Deny [192.0.2.1/32,192.0.2.2/32] any+icmp Node/one,Node/two"],
        ),
        (
            "- {action: Allow, to: [{domainNames: [a.example.com]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}",
            vec!["0 Allow [] TCP/443-443 Domain/a.example.com"],
        ),
        (
            "- {action: Deny, to: [{networks: [203.0.113.1/32]}], protocols: [{tcp: {destinationPort: {range: {start: 5, end: 9}}}}, {udp: {}}, {tcp: {destinationPort: {number: 4}}}, {icmp: {}}]}",
            vec!["0 Deny [203.0.113.1/32] TCP/4-9,UDP/1-65535+icmp Networks"],
        ),
        (
            "- {action: Deny, to: [{apiServer: {}}]}",
            vec![
                "0 Deny [203.0.113.60/32] any+icmp APIServer/cloud",
                "0 Deny [10.96.0.1/32] TCP/443-443 APIServer/Service",
                "0 Deny [192.0.2.2/31] TCP/6443-6443 APIServer/Endpoints,APIServer/Node",
            ],
        ),
        (
            "- {action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}",
            vec![
                "0 Deny [203.0.113.60/32] TCP/443-443 APIServer/cloud",
                "0 Deny [10.96.0.1/32] TCP/443-443 APIServer/Service",
                "0 Deny [192.0.2.2/31] TCP/6443-6443 APIServer/Endpoints,APIServer/Node",
            ],
        ),
        (
            "- {action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 444}}}]}",
            vec!["0 Deny [203.0.113.60/32] TCP/444-444 APIServer/cloud"],
        ),
    ] {
        let status = status(rules, API_SERVER);
        let lines: Vec<String> = status.resolved_rules.iter().map(line).collect();
        assert_eq!(lines, expected, "{rules}");
        assert_eq!(condition(&status, "Resolved").status, "True", "{rules}");
    }
}

#[test]
fn what_is_not_known_is_a_condition_and_a_diagnostic() {
    for (rules, reason, code) in [
        (
            "- {action: Deny, to: [{nodes: {}}]}",
            "NodeAddressesUnknown",
            Code::NodeAddressesUnknown,
        ),
        (
            "- {action: Deny, to: [{apiServer: {}}]}",
            "APIServerUnknown",
            Code::ApiServerUnknown,
        ),
    ] {
        let world = World::new(&format!("{}{NODES}", firewall(rules)));
        let status = world.status.as_ref().unwrap();
        let resolved = condition(status, "Resolved");
        assert_eq!((resolved.status, resolved.reason), ("False", reason));
        assert_eq!(
            codes(&unknown_addresses(&world.policies, &world.cluster())),
            [code]
        );
    }
    for rules in [
        "- {action: Deny, to: [{external: {}}]}",
        "- {action: Deny, to: [{nodes: {addresses: Reported}}]}",
    ] {
        let world = World::new(&format!("{}{NODES}", firewall(rules)));
        assert_eq!(
            unknown_addresses(&world.policies, &world.cluster()),
            [],
            "{rules}"
        );
        assert_eq!(
            condition(world.status.as_ref().unwrap(), "Resolved").status,
            "True"
        );
    }
}

#[test]
fn conditions_say_what_is_accepted_and_where_it_is_in_force() {
    let fine = status("- {action: Deny, to: [{external: {}}]}", "");
    assert_eq!(condition(&fine, "Accepted").status, "True");
    let programmed = condition(&fine, "Programmed");
    assert_eq!(
        (programmed.status, programmed.message.as_str()),
        ("False", "1/2 nodes; two: a set is full")
    );
    assert_eq!(fine.observed_generation, 7);
    let wrong = status(
        "- {action: Deny, to: [{domainNames: [a.b]}]}\n- {action: Deny, to: []}",
        "",
    );
    let accepted = condition(&wrong, "Accepted");
    assert_eq!((accepted.status, accepted.reason), ("False", "Invalid"));
    assert!(
        accepted.message.contains("EG0402") && accepted.message.ends_with("(and 1 more)"),
        "{accepted:?}"
    );
    assert!(
        wrong.resolved_rules[0].cidrs.len() > 10,
        "what is closed denies everything external"
    );
}

/// E-11.
#[test]
fn a_long_list_is_cut_and_says_how_long_it_is() {
    let reports: String = (0..3_000)
        .map(|number: u32| {
            let (high, low) = (number / 100, number % 100 * 2);
            format!("apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {{name: n{number}}}\naddresses: [{{ip: 198.18.{high}.{low}}}]\n---\n")
        })
        .collect();
    let rules = "- {action: Allow, to: [{networks: [203.0.113.1/32]}]}\n- {action: Deny, to: [{nodes: {}}]}\n- {action: Deny, to: [{networks: [203.0.113.0/24]}]}";
    let status = status(rules, &reports);
    let lengths: Vec<_> = status
        .resolved_rules
        .iter()
        .map(|rule| (rule.cidrs.len(), rule.total, rule.truncated))
        .collect();
    assert_eq!(lengths, [(1, 1, false), (999, 3_003, true), (0, 1, true)]);
    assert!(status.resolved_rules[1].cidrs.is_sorted());
}

/// Services that lead to what is denied are named.
#[test]
fn services_that_lead_to_what_is_denied_are_listed() {
    let services = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: meta-1, namespace: shop, labels: {kubernetes.io/service-name: meta}}
addressType: IPv4
endpoints: [{addresses: [169.254.169.254]}, {addresses: [203.0.113.7]}]
ports: [{port: 80}, {port: 443}]
---
";
    let rules = "- {action: Allow, to: [{networks: [169.254.169.254/32]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}\n- {action: Deny, to: [{networks: [169.254.0.0/16]}]}";
    let status = status(rules, services);
    let rejected: Vec<_> = status
        .rejected_services
        .iter()
        .map(|one| {
            format!(
                "{}/{} {}:{} by {}",
                one.namespace, one.name, one.endpoint, one.port, one.rule
            )
        })
        .collect();
    assert_eq!(rejected, ["shop/meta 169.254.169.254:80 by 1"]);
    let tried = firewall(rules).replace(
        "{name: p}",
        "{name: p, annotations: {policy.egret.dev/enforcement: audit}}",
    );
    let status = World::new(&format!("{tried}{NODES}{services}")).status.unwrap();
    let programmed = status
        .conditions
        .last()
        .map(|condition| (condition.status, condition.reason));
    assert_eq!(programmed, Some(("False", "Audit")));
    assert!(status.rejected_services.is_empty());
    let many: String = (0..3)
        .map(|slice| {
            let endpoints: Vec<_> = (0..60).map(|host| format!("{{addresses: [169.254.{slice}.{host}]}}")).collect();
            format!("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: s{slice}, labels: {{kubernetes.io/service-name: s}}}}\naddressType: IPv4\nendpoints: [{}]\nports: [{{port: 80}}]\n---\n", endpoints.join(", "))
        })
        .collect();
    assert_eq!(crate::status(rules, &many).rejected_services.len(), 100);
}

#[test]
fn a_status_is_written_as_kubernetes_writes_it() {
    let status = status(
        "- {name: a, action: Deny, to: [{networks: [203.0.113.1/32]}], protocols: [{icmp: {}}]}",
        "",
    );
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["observedGeneration"], 7);
    assert_eq!(
        json["resolvedRules"][0],
        serde_json::json!({
            "index": 0, "name": "a", "action": "Deny", "cidrs": ["203.0.113.1/32"], "ports": [], "icmp": true,
            "source": ["Networks"], "truncated": false, "total": 1,
        })
    );
    assert_eq!(json["conditions"][0]["type"], "Accepted");
}

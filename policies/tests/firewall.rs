//! ClusterEgressFirewall by the numbers of its text (E-n, R-n): objects as users write them, in a cluster of two
//! nodes with an API server in front of one of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;
mod fixture;

use common::{codes, entities, indent, lowered};
use egret_policies::diagnostic::Code;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::model::{Direction, Kind, Policy, Tier};
use egret_policies::simulator::Verdict::{self, Allow, Deny};
use egret_policies::simulator::{Connection, Protocol};
use egret_shared::net::Transport;
use fixture::{Fixture, admin_policy, allow, key, network_policy, networks, pod, tcp};

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: here, labels: {kubernetes.io/os: linux}}
spec: {podCIDRs: [10.0.0.0/24, fd00::/120]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: master, labels: {node-role.kubernetes.io/control-plane: ''}}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: ExternalIP, address: 198.51.100.2}]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: here}
addresses: [{ip: 192.0.2.1, interface: eth0}, {ip: 172.17.0.1, interface: docker0}, {ip: 10.0.0.254, interface: cni0}]
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: master}
addresses: [{ip: 192.0.2.2}, {ip: 192.0.2.77, interface: eth1}, {ip: 10.0.1.254, interface: cni0}]
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes}
spec: {clusterIP: 10.96.0.1, ports: [{port: 443, targetPort: 6443}]}
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
";

fn object(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: {name}}}\nspec:\n  services: {{exposure: Ignore}}\n  {}\n",
        indent(spec.trim(), 2)
    )
}

fn firewall(name: &str, spec: &str) -> Entity {
    lowered(&object(name, spec)).entities.pop().unwrap()
}

fn cluster(more: impl IntoIterator<Item = Entity>) -> Fixture {
    let mut host = pod("kube-system/host", "", &["192.0.2.1"]);
    host.host_network = true;
    let base = [
        Entity::Pod(pod("default/client", "", &["10.0.0.1", "fd00::1"])),
        Entity::Pod(pod("default/web", "", &["10.0.0.2"])),
        Entity::Pod(pod("kube-system/dns", "", &["10.0.0.3"])),
        Entity::Pod(pod("default/cloud", "", &["100.64.0.9"])),
        Entity::Pod(host),
    ];
    Fixture::new(entities(CLUSTER).into_iter().chain(base).chain(more))
}

fn of(specs: &[(&str, &str)]) -> Fixture {
    cluster(specs.iter().map(|(name, spec)| firewall(name, spec)))
}

fn one(rules: &str) -> Fixture {
    of(&[("one", &format!("rules: [{rules}]"))])
}

fn egress(fixture: &Fixture, peer: &str, protocol: Protocol) -> Verdict {
    fixture.egress("default/client", peer, protocol)
}

fn to_own_node(fixture: &Fixture, peer: &str, protocol: Protocol) -> Verdict {
    let connection = Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: peer.parse().unwrap(),
        peer_is_own_node: true,
        protocol,
    };
    fixture.decide_connection(&connection).verdict
}

const WORLD: &str = "203.0.113.1";

/// One object with these rules, and the connection of an ordinary pod.
#[test]
fn a_rule_means_what_its_text_says() {
    let udp = |port| Protocol::Port(Transport::Udp, port);
    let sctp = |port| Protocol::Port(Transport::Sctp, port);
    let all = "{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}";
    let external = "{action: Deny, to: [{external: {}}]}";
    let nodes = "{action: Deny, to: [{nodes: {}}]}";
    let in_status = "{action: Deny, to: [{nodes: {addresses: Reported}}]}";
    let masters = "{action: Deny, to: [{nodes: {selector: {matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]}}}], protocols: [{tcp: {destinationPort: {range: {start: 22623, end: 22624}}}}]}";
    let but_dns = "{action: Allow, to: [{nodes: {}}], protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]}, {action: Deny, to: [{nodes: {}}]}";
    let api = "{action: Deny, to: [{apiServer: {}}]}";
    let api_443 =
        "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}";
    let api_444 = "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {range: {start: 444, end: 6442}}}}]}";
    let api_udp =
        "{action: Deny, to: [{apiServer: {}}], protocols: [{udp: {destinationPort: {number: 443}}}]}";
    let api_more = "{action: Deny, to: [{apiServer: {additionalAddresses: [203.0.113.50]}}]}";
    let icmp = "{action: Deny, to: [{external: {}}], protocols: [{icmp: {}}]}";
    let tcp_all = "{action: Deny, to: [{external: {}}], protocols: [{tcp: {}}]}";
    let single = "{action: Deny, to: [{external: {}}], protocols: [{sctp: {destinationPort: {range: {start: 9, end: 9}}}}]}";
    let metadata = "{action: Deny, to: [{networks: [169.254.169.254/32, 'fd00:ec2::254/128']}]}";
    for (id, rules, peer, protocol, verdict) in [
        ("example 1", metadata, "169.254.169.254", tcp(80), Deny),
        ("example 1", metadata, "169.254.169.253", tcp(80), Allow),
        ("example 1", metadata, "fd00:ec2::254", tcp(80), Deny),
        ("E-3", metadata, "::ffff:169.254.169.254", tcp(80), Deny),
        ("E-4", all, "10.0.0.2", tcp(80), Allow),
        ("E-4", all, "100.64.0.9", tcp(80), Allow),
        ("E-4", all, "10.0.0.200", tcp(80), Allow),
        ("E-4", all, "10.0.1.200", tcp(80), Allow),
        ("E-4", all, "fd00::77", tcp(80), Allow),
        ("E-4", all, "10.96.0.1", tcp(443), Allow),
        ("E-4", all, "10.0.0.254", tcp(80), Deny),
        ("E-4", all, "192.0.2.2", tcp(80), Deny),
        ("E-4", external, "10.0.0.2", tcp(80), Allow),
        ("E-4", external, "10.0.1.254", tcp(80), Deny),
        ("E-4", external, "192.0.2.1", tcp(80), Deny),
        ("E-4", external, "172.17.0.1", tcp(80), Deny),
        ("E-4", external, WORLD, tcp(80), Deny),
        ("E-4", external, "2001:db8::1", tcp(80), Deny),
        ("E-4", external, "10.96.0.1", tcp(443), Allow),
        ("R-5", nodes, "172.17.0.1", tcp(22), Deny),
        ("R-5", nodes, "192.0.2.77", tcp(22), Deny),
        ("R-5", nodes, "198.51.100.2", tcp(22), Deny),
        ("R-5", nodes, WORLD, tcp(22), Allow),
        ("R-5", nodes, "10.0.0.2", tcp(22), Allow),
        ("Reported", in_status, "192.0.2.2", tcp(22), Deny),
        ("Reported", in_status, "192.0.2.77", tcp(22), Allow),
        ("example 2", but_dns, "192.0.2.1", udp(53), Allow),
        ("example 2", but_dns, "192.0.2.1", udp(54), Deny),
        ("example 2", but_dns, "192.0.2.77", Protocol::Icmp, Deny),
        ("example 5", masters, "192.0.2.77", tcp(22624), Deny),
        ("example 5", masters, "192.0.2.2", tcp(22622), Allow),
        ("example 5", masters, "192.0.2.1", tcp(22624), Allow),
        ("R-8", api, "10.96.0.1", tcp(443), Deny),
        ("R-8", api, "192.0.2.2", tcp(6443), Deny),
        ("R-8", api, "192.0.2.77", tcp(6443), Deny),
        ("R-8", api, "10.0.1.254", tcp(6443), Deny),
        ("R-8", api, "192.0.2.77", tcp(22), Allow),
        ("R-8", api, "192.0.2.1", tcp(6443), Allow),
        ("R-8", api, "203.0.113.60", tcp(8443), Deny),
        ("R-8", api, "203.0.113.50", tcp(443), Allow),
        // The Service's port is where its endpoints are behind it, and no other of theirs.
        ("E-4", api_443, "10.96.0.1", tcp(443), Deny),
        ("E-4", api_443, "192.0.2.2", tcp(6443), Deny),
        ("E-4", api_443, "192.0.2.77", tcp(6443), Deny),
        ("E-4", api_443, "192.0.2.2", tcp(443), Allow),
        ("E-4", api_443, "192.0.2.1", tcp(6443), Allow),
        ("E-4", api_444, "192.0.2.2", tcp(6443), Allow),
        ("E-4", api_udp, "192.0.2.2", tcp(6443), Allow),
        ("R-8", api_more, "203.0.113.50", tcp(443), Deny),
        ("E-7", external, WORLD, Protocol::Icmp, Deny),
        ("E-7", external, WORLD, Protocol::Other, Deny),
        ("E-7", icmp, WORLD, Protocol::Icmp, Deny),
        ("E-7", icmp, WORLD, tcp(80), Allow),
        ("E-7", tcp_all, WORLD, tcp(1), Deny),
        ("E-7", tcp_all, WORLD, udp(1), Allow),
        ("E-7", tcp_all, WORLD, Protocol::Icmp, Allow),
        ("E-12", single, WORLD, sctp(9), Deny),
        ("E-12", single, WORLD, sctp(8), Allow),
    ] {
        assert_eq!(
            egress(&one(rules), peer, protocol),
            verdict,
            "{id}: {rules} {peer} {protocol:?}"
        );
    }
}

/// E-5: the own node is known by local delivery, whatever address it is.
#[test]
fn the_own_node_is_its_selector_and_not_its_list_of_addresses() {
    let nodes = "{action: Deny, to: [{nodes: {}}]}";
    let masters = "{action: Deny, to: [{nodes: {selector: {matchLabels: {node-role.kubernetes.io/control-plane: ''}}}}]}";
    let external = "{action: Deny, to: [{external: {}}]}";
    let reported = "{action: Deny, to: [{nodes: {addresses: Reported}}]}";
    for (rules, peer, verdict) in [
        (nodes, "198.18.0.1", Deny),
        (external, "198.18.0.1", Deny),
        (masters, "198.18.0.1", Allow),
        (reported, "198.18.0.1", Allow),
        (nodes, "10.96.0.1", Allow),
    ] {
        assert_eq!(
            to_own_node(&one(rules), peer, tcp(443)),
            verdict,
            "{rules} {peer}"
        );
    }
}

/// E-1: several objects, and what becomes of a connection to 203.0.113.1.
#[test]
fn of_one_priority_a_deny_wins_whatever_the_names() {
    let denies = "rules: [{action: Deny, to: [{external: {}}]}]";
    let allows = "rules: [{action: Allow, to: [{networks: [203.0.113.0/24]}]}]";
    let both =
        "rules: [{action: Allow, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{external: {}}]}]";
    let neither = "rules: [{action: Deny, to: [{networks: [198.51.100.0/24]}]}]";
    let ports = "rules: [{action: Allow, to: [{external: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Deny, to: [{external: {}}]}]";
    let at = |priority: u32, spec: &str| format!("priority: {priority}\n{spec}");
    for (story, specs, verdict) in [
        ("first match within an object", vec![both.to_owned()], Allow),
        (
            "an allow beside a deny",
            vec![allows.to_owned(), denies.to_owned()],
            Deny,
        ),
        (
            "two lists that both allow",
            vec![both.to_owned(), ports.to_owned()],
            Allow,
        ),
        (
            "a list and a deny",
            vec![both.to_owned(), denies.to_owned()],
            Deny,
        ),
        (
            "an allow of a stronger priority",
            vec![at(1, allows), at(2, denies)],
            Allow,
        ),
        (
            "an allow of a weaker priority",
            vec![at(2, allows), at(1, denies)],
            Deny,
        ),
        (
            "no match asks the next priority",
            vec![at(1, neither), at(2, denies)],
            Deny,
        ),
        (
            "an allow among several ends the tier",
            vec![at(1, both), at(1, ports), at(2, denies)],
            Allow,
        ),
        (
            "an only allow beside two lists ends it",
            vec![at(1, neither), at(1, allows), at(1, ports), at(2, denies)],
            Allow,
        ),
        (
            "the default priority is 500",
            vec![at(499, allows), denies.to_owned()],
            Allow,
        ),
        (
            "the default priority is 500",
            vec![at(501, allows), denies.to_owned()],
            Deny,
        ),
        (
            "a stronger allow holds in every list behind",
            vec![at(1, allows), at(2, ports), at(2, denies), at(2, both)],
            Allow,
        ),
    ] {
        for is_reversed in [false, true] {
            let names = ["a", "b", "c", "d"];
            let names: Vec<_> = if is_reversed {
                names.iter().rev().collect()
            } else {
                names.iter().collect()
            };
            let objects = names.iter().zip(&specs).map(|(name, spec)| firewall(name, spec));
            let fixture = cluster(objects);
            assert_eq!(egress(&fixture, WORLD, tcp(80)), verdict, "{story}");
        }
    }
}

/// E-2 and the tier's place: it restricts and never grants, and nothing can override its Deny.
#[test]
fn a_deny_is_final_and_an_allow_no_grant() {
    let world = || networks(&["203.0.113.0/24"]);
    let denied = cluster([
        firewall("one", "rules: [{action: Deny, to: [{external: {}}]}]"),
        Entity::Policy(admin_policy("grant", 0, "").egress_of(vec![allow(world())])),
    ]);
    let decision = denied.decide("default/client", Direction::Egress, WORLD, tcp(80));
    assert_eq!((decision.verdict, decision.tier), (Deny, "cef"));
    let isolated = cluster([
        firewall("one", "rules: [{action: Allow, to: [{external: {}}]}]"),
        Entity::Policy(network_policy("default/np", "").egress_of(Vec::new())),
    ]);
    let decision = isolated.decide("default/client", Direction::Egress, WORLD, tcp(80));
    assert_eq!((decision.verdict, decision.tier), (Deny, "np"));
}

trait EgressOf {
    fn egress_of(self, rules: Vec<egret_policies::model::Rule>) -> Policy;
}

impl EgressOf for Policy {
    fn egress_of(mut self, rules: Vec<egret_policies::model::Rule>) -> Policy {
        self.egress = egret_policies::model::Effect::Rules(rules.into());
        self
    }
}

/// E-3, R-20.
#[test]
fn every_pod_is_judged_but_those_of_the_host_network_and_only_what_it_sends() {
    let fixture = one("{action: Deny, to: [{external: {}}]}");
    for (pod, verdict) in [
        ("default/client", Deny),
        ("kube-system/dns", Deny),
        ("kube-system/host", Allow),
    ] {
        assert_eq!(fixture.egress(pod, WORLD, tcp(80)), verdict, "{pod}");
    }
    assert_eq!(fixture.ingress("default/client", WORLD, tcp(80)), Allow);
    assert_eq!(fixture.egress("default/client", "2001:db8::1", tcp(80)), Deny);
}

/// names allow on top of a larger deny.
#[test]
fn names_allow_on_top_of_a_deny() {
    let mut fixture =
        one("{action: Allow, to: [{domainNames: ['*.example.com']}]}, {action: Deny, to: [{external: {}}]}");
    assert_eq!(egress(&fixture, WORLD, tcp(443)), Deny);
    fixture.observe("10.0.0.1", "api.example.com", &[WORLD.parse().unwrap()], 60);
    assert_eq!(egress(&fixture, WORLD, tcp(443)), Allow);
    assert_eq!(
        fixture.egress("default/web", WORLD, tcp(443)),
        Deny,
        "it was told to another"
    );
}

/// what an object means follows the cluster, and E-8: what closes is asked again.
#[test]
fn rules_follow_nodes_services_and_pods() {
    let mut fixture = of(&[(
        "n",
        "rules: [{action: Deny, to: [{nodes: {}}, {apiServer: {}}, {networks: [100.64.0.0/10]}]}]",
    )]);
    assert_eq!(egress(&fixture, "192.0.2.78", tcp(1)), Allow);
    let report = "apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {name: new}\naddresses: [{ip: 192.0.2.78}]\n";
    let batch = fixture.apply(entities(report).pop().unwrap());
    assert!(
        batch
            .reevaluate
            .contains(&(key("default/client"), Direction::Egress)),
        "E-8"
    );
    assert_eq!(egress(&fixture, "192.0.2.78", tcp(1)), Deny);
    fixture.delete(EntityKey::NodeAddressReport("new".into()));
    assert_eq!(egress(&fixture, "192.0.2.78", tcp(1)), Allow);

    assert_eq!(egress(&fixture, "203.0.113.60", tcp(1)), Deny);
    fixture.delete(EntityKey::ApiServerAddresses("cloud".into()));
    assert_eq!(egress(&fixture, "203.0.113.60", tcp(1)), Allow);

    assert_eq!(egress(&fixture, "100.64.0.9", tcp(1)), Allow, "a pod");
    fixture.delete(EntityKey::Pod(key("default/cloud")));
    assert_eq!(egress(&fixture, "100.64.0.9", tcp(1)), Deny, "no pod any more");
    fixture.delete(EntityKey::Service(key("default/kubernetes")));
    assert_eq!(egress(&fixture, "10.96.0.1", tcp(443)), Allow);
}

/// E-9, E-12: a Deny that is not understood denies everything external, an Allow allows nothing.
#[test]
fn what_is_not_understood_is_closed() {
    for (rest, code) in [
        ("to: [{fqdns: [x]}]", Code::UnknownField),
        ("to: [{}]", Code::UnknownAlternative),
        ("to: [{nodes: {}, external: {}}]", Code::SeveralAlternatives),
        ("to: []", Code::EmptyList),
        ("name: x", Code::FieldMissing),
        ("to: [{networks: []}]", Code::EmptyList),
        ("to: [{networks: [10.0.0.0/33]}]", Code::InvalidCidr),
        ("to: [{nodes: {selector: {matchLabels: 1}}}]", Code::WrongType),
        ("to: [{nodes: {addresses: Some}}]", Code::UnknownAlternative),
        ("to: [{external: {but: x}}]", Code::UnknownField),
        ("to: [{external: {}}], protocols: []", Code::EmptyList),
        ("to: [{external: {}}], protocols: [{gre: {}}]", Code::UnknownField),
        ("to: [{external: {}}], protocols: [{}]", Code::UnknownAlternative),
        (
            "to: [{external: {}}], protocols: [{tcp: {destinationPort: {range: {start: 2, end: 1}}}}]",
            Code::InvalidPort,
        ),
        (
            "to: [{external: {}}], protocols: [{tcp: {destinationPort: {number: 0}}}]",
            Code::InvalidPort,
        ),
        (
            "to: [{apiServer: {additionalAddresses: [x]}}]",
            Code::InvalidAddress,
        ),
        (
            "to: [{networks: [198.51.100.0/24]}], ports: []",
            Code::UnknownField,
        ),
    ] {
        let deny = format!("rules: [{{action: Deny, {rest}}}]");
        assert_eq!(
            codes(&lowered(&object("one", &deny)).diagnostics)[..1],
            [code],
            "{rest}"
        );
        let fixture = of(&[("one", &deny)]);
        assert_eq!(egress(&fixture, WORLD, Protocol::Other), Deny, "{rest}");
        assert_eq!(
            egress(&fixture, "10.0.0.2", tcp(80)),
            Allow,
            "{rest}: a pod is not external"
        );
        let allow = format!("rules: [{{action: Allow, {rest}}}, {{action: Deny, to: [{{external: {{}}}}]}}]");
        assert_eq!(egress(&of(&[("one", &allow)]), WORLD, tcp(80)), Deny, "{rest}");
    }
}

#[test]
fn what_only_a_deny_may_not_have_closes_it() {
    for rest in [
        "to: [{domainNames: [a.example.com]}]",
        "to: [{apiServer: {additionalNames: [api.example.com]}}]",
    ] {
        let deny = format!("rules: [{{action: Deny, {rest}}}]");
        assert_eq!(
            codes(&lowered(&object("one", &deny)).diagnostics),
            [Code::DomainNamesNeedAllow],
            "{rest}"
        );
        assert_eq!(egress(&of(&[("one", &deny)]), WORLD, tcp(80)), Deny, "{rest}");
    }
}

#[test]
fn an_object_that_is_not_understood_denies_everything_external() {
    for (spec, code) in [
        ("rules: []", Code::EmptyList),
        ("priority: 5", Code::FieldMissing),
        ("rules: 1", Code::WrongType),
        (
            "rules: [{action: Allow, to: [{external: {}}]}]\nsubject: {}",
            Code::UnknownField,
        ),
        ("rules: [{action: Pass, to: [{nodes: {}}]}]", Code::InvalidAction),
        ("rules: [{to: [{nodes: {}}]}]", Code::FieldMissing),
        (
            "priority: 1001\nrules: [{action: Allow, to: [{external: {}}]}, {action: Deny, to: [{external: {}}]}]",
            Code::InvalidPriority,
        ),
    ] {
        let lowered = lowered(&object("one", spec));
        assert_eq!(codes(&lowered.diagnostics), [code], "{spec}");
        let fixture = cluster(lowered.entities);
        assert_eq!(egress(&fixture, WORLD, tcp(80)), Deny, "{spec}");
        assert_eq!(egress(&fixture, "10.0.0.2", tcp(80)), Allow, "{spec}");
    }
    let newer = object("one", "rules: [{action: Allow, to: [{external: {}}]}]").replace("v1alpha1", "v2");
    let lowered = lowered(&newer);
    assert_eq!(codes(&lowered.diagnostics), [Code::UnknownVersion]);
    assert_eq!(egress(&cluster(lowered.entities), WORLD, tcp(80)), Deny);
}

/// The author of an object that is closed as a whole learns of all its mistakes at once.
#[test]
fn an_unknown_field_of_the_spec_hides_nothing_else_that_is_wrong() {
    let spec = "subject: {namespaces: {}}\npriority: 1001\nrules: [{action: Pass, to: [{external: {}}]}, {action: Deny, to: [{networks: [10.0.0.0/33]}]}]";
    let lowered = lowered(&object("one", spec));
    assert_eq!(
        codes(&lowered.diagnostics),
        [
            Code::UnknownField,
            Code::InvalidPriority,
            Code::InvalidAction,
            Code::InvalidCidr
        ]
    );
    for diagnostic in &lowered.diagnostics {
        assert_eq!(
            diagnostic.enforced, "everything external is denied to all pods",
            "{diagnostic}"
        );
    }
    assert_eq!(egress(&cluster(lowered.entities), WORLD, tcp(80)), Deny);
}

/// E-12.
#[test]
fn unusual_fields_that_are_understood_give_a_warning() {
    let rule = "{action: Deny, to: [{external: {}}]}";
    for (spec, code) in [
        (format!("rules: [{rule}]\nservices: {{exposure: Hide}}"), Code::InvalidExposure),
        (format!("rules: [{rule}]\nservices: {{expose: Ignore}}"), Code::UnknownField),
        ("services: {exposure: Ignore}\nrules: [{action: Deny, to: [{networks: ['fe80::/64']}]}]".to_owned(), Code::LinkLocalNetwork),
        ("services: {exposure: Ignore}\nrules: [{name: a, action: Deny, to: [{external: {}}]}, {name: a, action: Deny, to: [{external: {}}]}]".to_owned(), Code::DuplicateRuleName),
    ] {
        let text = object("one", &spec).replacen("  services: {exposure: Ignore}\n", "", 1);
        let lowered = lowered(&text);
        assert_eq!(codes(&lowered.diagnostics), [code], "{spec}");
        let [Entity::Policy(policy)] = &lowered.entities[..] else {
            panic!("{:?}", lowered.entities);
        };
        assert_eq!((policy.id.kind, policy.rank.tier), (Kind::ClusterEgressFirewall, Tier::ClusterEgressFirewall));
        assert_eq!(policy.rank.priority, 500);
    }
}

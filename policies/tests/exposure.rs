//! `services.exposure` of a ClusterEgressFirewall (R-9, R-13, E-4 to E-6): what becomes of clients outside the cluster
//! that a Service leads to what is denied. What pods send is the subject of `firewall.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;
mod fixture;

use common::{codes, entities, indent, lowered};
use egret_policies::compiler::{NodeScope, Settings};
use egret_policies::diagnostic::Code;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::model::{Exposure, Policy};
use egret_policies::rules::Batch;
use egret_policies::simulator::Verdict::{self, Allow, Deny};
use egret_policies::simulator::{ForwardedConnection, Protocol};
use egret_shared::net::Transport;
use fixture::{Fixture, admin_policy, deny, networks, pod, settings, tcp};

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
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: master}
addresses: [{ip: 192.0.2.77, interface: eth1}]
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
";

const METADATA: &str = "169.254.169.254";
const WORLD: &str = "203.0.113.1";
const POD: &str = "10.0.0.2";

fn firewall(name: &str, spec: &str) -> Entity {
    let text = format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: {name}}}\nspec:\n  {}\n",
        indent(spec.trim(), 2)
    );
    lowered(&text).entities.pop().unwrap()
}

fn cluster_in(settings: Settings, more: impl IntoIterator<Item = Entity>) -> Fixture {
    let base = [
        Entity::Pod(pod("default/client", "", &["10.0.0.1"])),
        Entity::Pod(pod("default/web", "", &[POD])),
    ];
    Fixture::with(settings, entities(CLUSTER).into_iter().chain(base).chain(more))
}

fn of(specs: &[&str]) -> Fixture {
    let objects = specs.iter().enumerate();
    cluster_in(
        settings(),
        objects.map(|(place, spec)| firewall(&format!("o{place}"), spec)),
    )
}

fn outside(fixture: &Fixture, destination: &str, protocol: Protocol) -> Verdict {
    entering(fixture, destination, protocol, false)
}

fn entering(fixture: &Fixture, destination: &str, protocol: Protocol, is_own_node: bool) -> Verdict {
    let entering = ForwardedConnection {
        destination: destination.parse().unwrap(),
        destination_is_own_node: is_own_node,
        protocol,
    };
    fixture.decide_entering(entering).verdict
}

#[test]
fn a_client_outside_is_refused_what_a_pod_is_refused() {
    let udp = Protocol::Port(Transport::Udp, 53);
    for (rules, destination, protocol, verdict) in [
        // networks, by the address behind the Service (E-4)
        (
            "{action: Deny, to: [{networks: [169.254.169.254/32]}]}",
            METADATA,
            tcp(80),
            Deny,
        ),
        (
            "{action: Deny, to: [{networks: [169.254.169.254/32]}]}",
            WORLD,
            tcp(80),
            Allow,
        ),
        (
            "{action: Deny, to: [{networks: [169.254.169.254/32, 'fd00:ec2::254/128']}]}",
            "fd00:ec2::254",
            tcp(80),
            Deny,
        ),
        (
            "{action: Deny, to: [{networks: [0.0.0.0/0]}]}",
            POD,
            tcp(80),
            Allow,
        ),
        (
            "{action: Deny, to: [{networks: [0.0.0.0/0]}]}",
            "10.0.0.77",
            tcp(80),
            Allow,
        ),
        (
            "{action: Deny, to: [{networks: [0.0.0.0/0]}]}",
            "192.0.2.77",
            tcp(80),
            Deny,
        ),
        // external
        ("{action: Deny, to: [{external: {}}]}", WORLD, tcp(80), Deny),
        (
            "{action: Deny, to: [{external: {}}]}",
            "2001:db8::1",
            tcp(80),
            Deny,
        ),
        ("{action: Deny, to: [{external: {}}]}", POD, tcp(80), Allow),
        (
            "{action: Deny, to: [{external: {}}]}",
            "192.0.2.77",
            tcp(22),
            Deny,
        ),
        // nodes, by all that they report
        ("{action: Deny, to: [{nodes: {}}]}", "192.0.2.77", tcp(22), Deny),
        (
            "{action: Deny, to: [{nodes: {addresses: Reported}}]}",
            "192.0.2.77",
            tcp(22),
            Allow,
        ),
        (
            "{action: Deny, to: [{nodes: {addresses: Reported}}]}",
            "192.0.2.2",
            tcp(22),
            Deny,
        ),
        (
            "{action: Deny, to: [{nodes: {selector: {matchLabels: {kubernetes.io/os: linux}}}}]}",
            "192.0.2.77",
            tcp(22),
            Allow,
        ),
        // the API server, at its port
        (
            "{action: Deny, to: [{apiServer: {}}]}",
            "192.0.2.77",
            tcp(6443),
            Deny,
        ),
        (
            "{action: Deny, to: [{apiServer: {}}]}",
            "192.0.2.77",
            tcp(443),
            Allow,
        ),
        (
            "{action: Deny, to: [{apiServer: {additionalAddresses: [203.0.113.9]}}]}",
            "203.0.113.9",
            tcp(1),
            Deny,
        ),
        (
            "{action: Deny, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}",
            "192.0.2.77",
            tcp(6443),
            Deny,
        ),
        // protocols (E-7)
        (
            "{action: Deny, to: [{external: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}",
            WORLD,
            tcp(80),
            Deny,
        ),
        (
            "{action: Deny, to: [{external: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}",
            WORLD,
            udp,
            Allow,
        ),
        (
            "{action: Deny, to: [{external: {}}], protocols: [{icmp: {}}]}",
            WORLD,
            Protocol::Icmp,
            Deny,
        ),
        (
            "{action: Deny, to: [{external: {}}], protocols: [{icmp: {}}]}",
            WORLD,
            tcp(80),
            Allow,
        ),
        // the first match of an object
        (
            "{action: Allow, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{external: {}}]}",
            WORLD,
            tcp(80),
            Allow,
        ),
        (
            "{action: Allow, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{external: {}}]}",
            METADATA,
            tcp(80),
            Deny,
        ),
        // nobody outside was told a name
        (
            "{action: Allow, to: [{domainNames: ['*.example.com']}]}, {action: Deny, to: [{external: {}}]}",
            WORLD,
            tcp(80),
            Deny,
        ),
        (
            "{action: Allow, to: [{domainNames: [a.example.com]}, {networks: [203.0.113.0/24]}]}, {action: Deny, to: [{external: {}}]}",
            WORLD,
            tcp(80),
            Allow,
        ),
    ] {
        for exposure in ["", "services: {exposure: Reject}\n", "services: {}\n"] {
            let fixture = of(&[&format!("{exposure}rules: [{rules}]")]);
            assert_eq!(
                outside(&fixture, destination, protocol),
                verdict,
                "{exposure}{rules} {destination} {protocol:?}"
            );
        }
        let ignoring = of(&[&format!("services: {{exposure: Ignore}}\nrules: [{rules}]")]);
        assert_eq!(
            outside(&ignoring, destination, protocol),
            Allow,
            "Ignore: {rules} {destination}"
        );
    }
}

/// E-1 among the objects that ask for it; the others count neither with what they deny nor with what they allow.
#[test]
fn of_several_objects_only_those_that_reject_are_asked() {
    let allow = "rules: [{action: Allow, to: [{networks: [169.254.169.254/32]}]}]";
    let deny = "rules: [{action: Deny, to: [{external: {}}]}]";
    let at = |priority: u32, rules: &str| format!("priority: {priority}\n{rules}");
    let ignored = |spec: String| format!("services: {{exposure: Ignore}}\n{spec}");
    for (specs, verdict) in [
        (vec![at(1, allow), at(2, deny)], Allow),
        (vec![at(2, allow), at(1, deny)], Deny),
        (vec![at(1, allow), at(1, deny)], Deny),
        (vec![ignored(at(1, allow)), at(2, deny)], Deny),
        (vec![ignored(at(1, deny)), at(2, allow)], Allow),
        (vec![at(1, allow), ignored(at(1, deny))], Allow),
        (vec![ignored(at(1, allow)), ignored(at(2, deny))], Allow),
        (vec![ignored(at(1, deny))], Allow),
        (vec![], Allow),
    ] {
        let texts: Vec<&str> = specs.iter().map(String::as_str).collect();
        assert_eq!(outside(&of(&texts), METADATA, tcp(80)), verdict, "{specs:?}");
    }
}

/// E-5: whatever this node takes for its own, reported or not; with IPVS it takes addresses of Services for its own.
#[test]
fn what_is_local_to_the_node_is_a_node() {
    let to_nodes = "rules: [{action: Deny, to: [{nodes: {}}]}]";
    let to_masters = "rules: [{action: Deny, to: [{nodes: {selector: {matchLabels: {node-role.kubernetes.io/control-plane: ''}}}}]}]";
    for (spec, destination, verdict) in [
        (to_nodes, "172.17.0.1", Deny),
        (to_masters, "172.17.0.1", Allow),
        (to_nodes, "10.96.0.1", Allow),
    ] {
        assert_eq!(
            entering(&of(&[spec]), destination, tcp(22), true),
            verdict,
            "{spec} {destination}"
        );
    }
    assert_eq!(outside(&of(&[to_nodes]), "172.17.0.1", tcp(22)), Allow);
    let everywhere = Settings {
        node: NodeScope::All,
        ..settings()
    };
    let nowhere = cluster_in(everywhere, [firewall("one", to_nodes)]);
    assert_eq!(entering(&nowhere, "172.17.0.1", tcp(22), true), Allow);
    assert_eq!(outside(&nowhere, "192.0.2.77", tcp(22)), Deny);
}

/// The first match is named, as counters and logs name it.
#[test]
fn the_rule_that_refuses_is_named() {
    let fixture = of(&[
        "rules: [{action: Allow, to: [{nodes: {}}]}, {name: metadata, action: Deny, to: [{external: {}}]}]",
    ]);
    let entering = ForwardedConnection {
        destination: METADATA.parse().unwrap(),
        destination_is_own_node: false,
        protocol: tcp(80),
    };
    let decision = fixture.decide_entering(entering);
    assert_eq!(decision.tier, "cef");
    assert_eq!(
        decision.policy().map(AsRef::as_ref),
        Some("ClusterEgressFirewall/o0")
    );
    assert_eq!(
        (decision.rule(), decision.name().map(AsRef::as_ref)),
        (Some(1), Some("metadata"))
    );
    let nobody = of(&[]).decide_entering(entering);
    assert_eq!((nobody.verdict, nobody.tier), (Allow, "none"));
}

#[test]
fn policies_of_other_kinds_are_no_concern_of_clients_outside() {
    use fixture::Say;
    let policy: Policy = admin_policy("all", 0, "").egress(vec![deny(networks(&["0.0.0.0/0"]))]);
    assert_eq!(policy.exposure, Exposure::Ignore);
    let fixture = cluster_in(settings(), [Entity::Policy(policy)]);
    assert_eq!(outside(&fixture, METADATA, tcp(80)), Allow);
}

/// An error in it is never weaker than what could be meant.
#[test]
fn what_is_not_understood_rejects() {
    let rule = "rules: [{action: Deny, to: [{external: {}}]}]";
    let ignored = "services: {exposure: Ignore}\nrules";
    for (spec, code, verdict) in [
        (
            format!("services: {{exposure: Hide}}\n{rule}"),
            Code::InvalidExposure,
            Deny,
        ),
        (
            format!("services: {{exposure: 1}}\n{rule}"),
            Code::InvalidExposure,
            Deny,
        ),
        (
            format!("services: {{expose: Ignore}}\n{rule}"),
            Code::UnknownField,
            Deny,
        ),
        (
            format!("services: {{exposure: Ignore, more: 1}}\n{rule}"),
            Code::UnknownField,
            Deny,
        ),
        (format!("{ignored}: []"), Code::EmptyList, Deny),
        // What it says of clients outside is understood here.
        (
            format!("{ignored}: [{{action: Block, to: [{{external: {{}}}}]}}]"),
            Code::InvalidAction,
            Allow,
        ),
    ] {
        let text = format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: one}}\nspec:\n  {}\n",
            indent(&spec, 2)
        );
        let lowered = lowered(&text);
        assert!(codes(&lowered.diagnostics).contains(&code), "{spec}");
        let fixture = cluster_in(settings(), lowered.entities);
        assert_eq!(outside(&fixture, WORLD, tcp(80)), verdict, "{spec}");
    }
}

/// The node's rules follow objects, labels and addresses; what does not concern them leaves them alone.
#[test]
fn the_rules_of_the_node_follow_what_they_are_about() {
    let spec = "rules: [{action: Deny, to: [{nodes: {selector: {matchLabels: {kubernetes.io/os: linux}}}}]}]";
    let mut fixture = of(&[]);
    let has_rules = |batch: &Batch| batch.node_rules.as_ref().map(|rules| rules.exposed.tiers.len());
    assert_eq!(has_rules(&fixture.apply(firewall("one", spec))), Some(1));
    assert_eq!(entering(&fixture, "172.17.0.1", tcp(22), true), Deny);
    assert_eq!(outside(&fixture, "192.0.2.2", tcp(22)), Allow);

    // Another node: its addresses are a set's.
    let master = entities(&CLUSTER.replace(
        "{node-role.kubernetes.io/control-plane: ''}",
        "{kubernetes.io/os: linux}",
    ));
    let batch = fixture.apply(master[1].clone());
    assert_eq!((has_rules(&batch), batch.members_changed.len()), (None, 1));
    assert_eq!(outside(&fixture, "192.0.2.2", tcp(22)), Deny);

    // This node: whether it is one of them is in the rules.
    let here = entities(&CLUSTER.replace("{kubernetes.io/os: linux}", "{}"));
    assert!(has_rules(&fixture.apply(here[0].clone())).is_some());
    assert_eq!(entering(&fixture, "172.17.0.1", tcp(22), true), Allow);

    let batch = fixture.apply(firewall(
        "two",
        "services: {exposure: Ignore}\nrules: [{action: Deny, to: [{external: {}}]}]",
    ));
    assert_eq!(has_rules(&batch), None);
    let batch = fixture.apply(firewall("two", "rules: [{action: Deny, to: [{external: {}}]}]"));
    assert_eq!(has_rules(&batch), Some(1));
    assert_eq!(outside(&fixture, WORLD, tcp(80)), Deny);
    let EntityKey::Policy(two) = firewall("two", "rules: []").key() else {
        panic!("a policy");
    };
    fixture.delete(EntityKey::Policy(two));
    let EntityKey::Policy(one) = firewall("one", "rules: []").key() else {
        panic!("a policy");
    };
    let batch = fixture.delete(EntityKey::Policy(one));
    assert_eq!(has_rules(&batch), Some(0));
    assert_eq!(fixture.memory.node(), None);
    assert!(!batch.sets_destroyed.is_empty());
}

/// A backend that closes pods which nobody knows yet asks no more than this.
#[test]
fn that_there_is_any_policy_is_said_with_the_first_and_taken_back_with_the_last() {
    let mut fixture = of(&[]);
    let rules = "services: {exposure: Ignore}\nrules: [{action: Deny, to: [{external: {}}]}]";
    assert_eq!(fixture.apply(firewall("one", rules)).has_policies, Some(true));
    assert_eq!(fixture.apply(firewall("two", rules)).has_policies, None);
    assert_eq!(fixture.delete(firewall("one", rules).key()).has_policies, None);
    let last = fixture.delete(firewall("two", rules).key());
    assert_eq!(last.has_policies, Some(false));
}

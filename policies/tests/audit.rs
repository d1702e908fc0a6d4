//! Audit: what a policy, all policies about a namespace, or all policies of a node would deny is told, and nothing is
//! denied because of them.

mod fixture;

use egret_policies::compiler::Settings;
use egret_policies::model::cluster::Entity;
use egret_policies::model::{Direction, Enforcement, Peers, Policy};
use egret_policies::simulator::Verdict::{Allow, Deny};
use egret_policies::simulator::{Connection, Verdict};

use fixture::*;

fn nobody() -> Peers {
    Peers::OneOf([].into())
}

fn audited(policy: Policy) -> Policy {
    Policy {
        enforcement: Enforcement::Audited,
        ..policy
    }
}

/// No egress of the client but to this network.
fn only(name: &str, network: &str) -> Policy {
    network_policy(name, "app=client").egress(vec![allow(networks(&[network]))])
}

fn cluster(policies: impl IntoIterator<Item = Policy>) -> Fixture {
    cluster_with(settings(), namespace("default", ""), policies)
}

fn cluster_with(
    settings: Settings,
    namespace: Entity,
    policies: impl IntoIterator<Item = Policy>,
) -> Fixture {
    let client = Entity::Pod(pod("default/client", "app=client", &["10.0.0.1"]));
    let policies = policies.into_iter().map(Entity::Policy);
    Fixture::with(settings, [namespace, client].into_iter().chain(policies))
}

/// What becomes of a connection of the client, and which policy would deny it.
fn asked(fixture: &Fixture, peer: &str) -> (Verdict, Option<String>) {
    let connection = Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: ip(peer),
        peer_is_own_node: false,
        protocol: tcp(443),
    };
    let verdict = fixture.decide_connection(&connection).verdict;
    let would = fixture.memory.would_deny(&connection, fixture.now);
    let who = |decision: egret_policies::simulator::Decision| {
        decision
            .origin
            .map_or_else(|| decision.tier.to_owned(), |origin| origin.policy.to_string())
    };
    (verdict, would.map(who))
}

fn would(policy: &str) -> (Verdict, Option<String>) {
    (Allow, Some(policy.to_owned()))
}

const ALLOWED: (Verdict, Option<String>) = (Allow, None);
const DENIED: (Verdict, Option<String>) = (Deny, None);

#[test]
fn a_policy_in_audit_denies_nothing_and_what_it_would_deny_is_told() {
    let fixture = cluster([audited(only("default/p", "192.0.2.0/24"))]);
    assert_eq!(asked(&fixture, "192.0.2.1"), ALLOWED);
    assert_eq!(asked(&fixture, "198.51.100.1"), would("np"));
    let strict = admin_policy("strict", 1, "").egress(vec![deny(networks(&["198.51.100.0/24"]))]);
    let fixture = cluster([audited(strict)]);
    assert_eq!(
        asked(&fixture, "198.51.100.1"),
        would("ClusterNetworkPolicy/strict")
    );
}

#[test]
fn audit_allows_nothing_that_other_policies_deny() {
    let fixture = cluster([
        only("default/in-force", "192.0.2.0/24"),
        audited(only("default/tried", "198.51.100.0/24")),
    ]);
    assert_eq!(asked(&fixture, "192.0.2.1"), ALLOWED, "both together allow it");
    assert_eq!(asked(&fixture, "198.51.100.1"), DENIED);
    let admin = admin_policy("tried", 1, "").egress(vec![allow(networks(&["198.51.100.0/24"]))]);
    let fixture = cluster([only("default/in-force", "192.0.2.0/24"), audited(admin)]);
    assert_eq!(asked(&fixture, "198.51.100.1"), DENIED);
}

#[test]
fn what_the_audited_policy_allows_is_not_logged() {
    let tried = admin_policy("tried", 1, "").egress(vec![
        allow(networks(&["192.0.2.0/24"])),
        deny(networks(&["0.0.0.0/0"])),
    ]);
    let fixture = cluster([audited(tried)]);
    assert_eq!(asked(&fixture, "192.0.2.1"), ALLOWED);
    assert_eq!(
        asked(&fixture, "203.0.113.1"),
        would("ClusterNetworkPolicy/tried")
    );
}

#[test]
fn what_a_stronger_enforced_policy_allows_is_not_logged() {
    let strong = admin_policy("strong", 1, "").egress(vec![allow(networks(&["192.0.2.0/24"]))]);
    let tried = admin_policy("tried", 2, "").egress(vec![deny(networks(&["0.0.0.0/0"]))]);
    let fixture = cluster([strong, audited(tried)]);
    assert_eq!(asked(&fixture, "192.0.2.1"), ALLOWED);
}

/// It hands a decision over to a tier that is in force and says otherwise.
#[test]
fn a_pass_in_audit_is_followed_to_who_would_deny() {
    let tried = admin_policy("tried", 1, "").egress(vec![pass(networks(&["192.0.2.0/24"]))]);
    let strong = admin_policy("strong", 2, "").egress(vec![allow(networks(&["192.0.2.0/24"]))]);
    let closed = network_policy("default/closed", "").egress(vec![allow(nobody())]);
    let fixture = cluster([audited(tried), strong, closed]);
    assert_eq!(asked(&fixture, "192.0.2.1"), would("np"));
}

#[test]
fn all_policies_about_a_namespace_or_of_a_node_may_be_in_audit() {
    let in_audit = || match namespace("default", "") {
        Entity::Namespace(mut namespace) => {
            namespace.enforcement = Enforcement::Audited;
            Entity::Namespace(namespace)
        }
        other => other,
    };
    let here = Settings {
        enforcement: Enforcement::Audited,
        ..settings()
    };
    let closed = || {
        [
            only("default/p", "192.0.2.0/24"),
            admin_policy("strict", 1, "").egress(vec![deny(networks(&["203.0.113.0/24"]))]),
        ]
    };
    let cases = [
        (settings(), in_audit()),
        (here, namespace("default", "")),
        (settings(), in_audit()),
    ];
    for (settings, namespace) in cases {
        let fixture = cluster_with(settings, namespace, closed());
        assert_eq!(asked(&fixture, "192.0.2.1"), ALLOWED);
        assert_eq!(asked(&fixture, "198.51.100.1"), would("np"));
        assert_eq!(
            asked(&fixture, "203.0.113.1"),
            would("ClusterNetworkPolicy/strict")
        );
    }
}

/// Going into audit and out of it is a change of policy: the pod is asked again when it gets stricter.
#[test]
fn a_policy_that_leaves_audit_is_enforced_and_reevaluates_connections() {
    let policy = only("default/p", "192.0.2.0/24");
    let mut fixture = cluster([audited(policy.clone())]);
    let batch = fixture.apply(Entity::Policy(policy.clone()));
    assert_eq!(batch.reevaluate, [(key("default/client"), Direction::Egress)]);
    assert_eq!(asked(&fixture, "198.51.100.1"), DENIED);
    assert_eq!(batch.has_policies, Some(true));
    let batch = fixture.apply(Entity::Policy(audited(policy)));
    assert_eq!(batch.has_policies, Some(false));
    assert_eq!(asked(&fixture, "198.51.100.1"), would("np"));
}

#[test]
fn a_change_of_what_is_only_asked_leaves_connections_alone() {
    let mut fixture = cluster([
        audited(only("default/p", "192.0.2.0/24")),
        only("default/q", "0.0.0.0/0"),
    ]);
    let batch = fixture.apply(Entity::Policy(audited(only("default/p", "198.51.100.0/24"))));
    assert_eq!(batch.reevaluate, []);
    assert_eq!(batch.rules_replaced.len(), 1);
}

/// Names of a policy in audit are learned and waited for, or everything it allows would be told.
#[test]
fn names_in_audit_are_learned() {
    let tried = admin_policy("tried", 1, "").egress(vec![
        allow(names(&["api.example.test"])),
        deny(networks(&["0.0.0.0/0"])),
    ]);
    let mut fixture = cluster([audited(tried)]);
    assert_eq!(fixture.compiler.interests().len(), 1);
    assert_eq!(
        asked(&fixture, "203.0.113.7"),
        would("ClusterNetworkPolicy/tried")
    );
    fixture.observe("10.0.0.1", "api.example.test", &[ip("203.0.113.7")], 60);
    assert_eq!(asked(&fixture, "203.0.113.7"), ALLOWED);
}

mod written {
    //! As it is written.

    use egret_policies::api::manifest;
    use egret_policies::diagnostic::Code;
    use egret_policies::lower::lower;
    use egret_policies::model::Enforcement::{self, Audited, Enforced};
    use egret_policies::model::cluster::Entity;

    /// What the only object of a text says, and the codes of what is wrong with it.
    fn read(text: &str) -> (Vec<Enforcement>, Vec<Code>) {
        let manifest = manifest::read(text, "test.yaml");
        let lowered: Vec<_> = manifest.documents.iter().map(|one| lower(&one.object)).collect();
        let entities = lowered.iter().flat_map(|lowered| &lowered.entities);
        let enforcement = entities.filter_map(|entity| match entity {
            Entity::Policy(policy) => Some(policy.enforcement),
            Entity::Namespace(namespace) => Some(namespace.enforcement),
            _ => None,
        });
        let of_objects = lowered.iter().flat_map(|lowered| &lowered.diagnostics);
        let codes = of_objects.map(|diagnostic| diagnostic.code);
        let codes = manifest.problems.iter().map(|problem| problem.code).chain(codes);
        (enforcement.collect(), codes.collect())
    }

    #[test]
    fn the_annotation_counts_on_policies_and_namespaces_and_whatever_it_does_not_say_is_enforced() {
        let objects = [
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: d, annotations: {ANNOTATIONS}}\nspec: {podSelector: {}}\n",
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: p, annotations: {ANNOTATIONS}}\n",
            "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {name: p, annotations: {ANNOTATIONS}}\nspec: {rules: [{action: Deny, to: [{external: {}}]}]}\n",
        ];
        let key = "policy.egret.dev/enforcement";
        let cases = [
            (String::new(), Enforced, None),
            (format!("{key}: audit"), Audited, None),
            (format!("{key}: enforce"), Enforced, None),
            (format!("{key}: Audit"), Enforced, Some(Code::InvalidEnforcement)),
            (format!("{key}: true"), Enforced, Some(Code::UnquotedText)),
            (format!("{key}: [audit]"), Enforced, Some(Code::WrongType)),
            (
                format!("{key}: audit, {key}: enforce"),
                Enforced,
                Some(Code::DuplicateField),
            ),
        ];
        for object in objects {
            for (annotations, enforcement, code) in &cases {
                let (read, codes) = read(&object.replace("ANNOTATIONS", annotations));
                assert_eq!(read, [*enforcement], "{annotations}");
                let is_told = code.is_none_or(|code| codes.contains(&code));
                assert!(is_told, "{annotations}: {codes:?}");
            }
        }
    }
}

//! The form of 2016 by the numbers of its text (P-n): the annotation, `extensions/v1beta1` objects, and both
//! beside objects of `networking.k8s.io/v1`.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;
mod fixture;

use std::sync::Arc;

use common::{codes, indent, lowered};
use egret_policies::diagnostic::Code;
use egret_policies::model::cluster::Entity;
use egret_policies::model::{Direction, Effect};
use egret_policies::simulator::Protocol;
use egret_policies::simulator::Verdict::{self, Allow, Deny};
use egret_shared::net::Transport;
use fixture::{Fixture, key, named_port, namespace, pod, tcp};

const DEFAULT_DENY: &str = r#"{"ingress": {"isolation": "DefaultDeny"}}"#;

fn annotated(name: &str, annotation: &str) -> Vec<Entity> {
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{user: bob}}, annotations: {{net.beta.kubernetes.io/network-policy: {annotation:?}}}}}\n"
    );
    lowered(&text).entities
}

fn object(version: &str, spec: &str) -> String {
    format!(
        "apiVersion: {version}\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  {}\n",
        indent(spec.trim(), 2)
    )
}

fn legacy(spec: &str) -> Vec<Entity> {
    lowered(&object("extensions/v1beta1", spec)).entities
}

fn v1(spec: &str) -> Vec<Entity> {
    lowered(&object("networking.k8s.io/v1", spec)).entities
}

/// `redis` in `shop`, a client beside it, and one in another namespace.
fn cluster(more: impl IntoIterator<Item = Vec<Entity>>) -> Fixture {
    let mut redis = pod("shop/redis", "role=db", &["10.0.0.1", "fd00::1"]);
    redis.ports = vec![named_port("redis", Transport::Tcp, 6379)];
    let base = [
        namespace("shop", "user=bob"),
        namespace("other", "user=bob"),
        Entity::Pod(redis),
        Entity::Pod(pod("shop/web", "role=frontend", &["10.0.0.2"])),
        Entity::Pod(pod("other/client", "role=frontend", &["10.0.0.3"])),
    ];
    Fixture::new(base.into_iter().chain(more.into_iter().flatten()))
}

const WEB: &str = "10.0.0.2";
const OTHER: &str = "10.0.0.3";
const OUTSIDE: &str = "203.0.113.1";

fn to_redis(fixture: &Fixture, from: &str, protocol: Protocol) -> Verdict {
    fixture.ingress("shop/redis", from, protocol)
}

const EXAMPLE_1: &str = "podSelector: {matchLabels: {role: db}}\ningress: [{from: [{podSelector: {matchLabels: {role: frontend}}}], ports: [{protocol: TCP, port: 6379}]}]";
const EXAMPLE_2: &str = "podSelector: {}\ningress: [{from: [{namespaceSelector: {matchLabels: {user: bob}}}], ports: [{protocol: TCP, port: 443}]}]";
const EXAMPLE_3: &str = "podSelector:\ningress:\n- {}";

/// One rule of a policy for all pods, one connection to redis in an annotated namespace.
#[test]
fn rules_are_read_as_in_2016() {
    let udp = Protocol::Port(Transport::Udp, 6379);
    let sctp = Protocol::Port(Transport::Sctp, 1);
    for (id, rule, from, protocol, verdict) in [
        ("P-11", "{}", OUTSIDE, Protocol::Icmp, Allow),
        ("P-12", "{from: [{podSelector: {}}]}", WEB, Protocol::Icmp, Allow),
        ("P-12", "{ports: []}", WEB, tcp(80), Deny),
        (
            "P-12",
            "{ports: [], from: [{podSelector: {}}]}",
            WEB,
            tcp(80),
            Deny,
        ),
        ("P-12", "{ports: null}", WEB, tcp(80), Allow),
        ("P-13", "{ports: [{port: 80}]}", OUTSIDE, tcp(80), Allow),
        ("P-13", "{from: []}", WEB, tcp(80), Deny),
        ("P-13", "{from: [], ports: [{port: 80}]}", WEB, tcp(80), Deny),
        ("P-14", "{ports: [{port: 6379}]}", WEB, tcp(6379), Allow),
        ("P-14", "{ports: [{port: 6379}]}", WEB, udp, Deny),
        ("P-14", "{ports: [{port: 6379, protocol: UDP}]}", WEB, udp, Allow),
        ("P-14", "{ports: [{port: redis}]}", WEB, tcp(6379), Allow),
        ("P-14", "{ports: [{port: redis}]}", WEB, tcp(80), Deny),
        ("P-14", "{ports: [{}]}", WEB, tcp(1), Allow),
        ("P-14", "{ports: [{}]}", WEB, Protocol::Icmp, Deny),
        ("P-14", "{ports: [{protocol: SCTP}]}", WEB, sctp, Deny),
        ("P-15", "{from: [{podSelector: {}}]}", OTHER, tcp(80), Deny),
        ("P-15", "{from: [{namespaceSelector: {}}]}", OTHER, tcp(80), Allow),
        (
            "P-15",
            "{from: [{namespaceSelector: {}}]}",
            OUTSIDE,
            tcp(80),
            Deny,
        ),
        (
            "P-15",
            "{from: [{namespaceSelector: {}, podSelector: {}}]}",
            WEB,
            tcp(80),
            Deny,
        ),
        ("P-15", "{from: [{}]}", WEB, tcp(80), Deny),
        (
            "P-8",
            "{ports: [{port: 1}]}, {ports: [{port: 2}, {port: 80}]}",
            WEB,
            tcp(80),
            Allow,
        ),
        ("a misspelt field", "{form: []}", WEB, tcp(80), Deny),
        (
            "of v1 only",
            "{ports: [{port: 80, endPort: 90}]}",
            WEB,
            tcp(80),
            Deny,
        ),
        (
            "of v1 only",
            "{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}",
            WEB,
            tcp(80),
            Deny,
        ),
    ] {
        let spec = format!("podSelector: {{}}\ningress: [{rule}]");
        let fixture = cluster([annotated("shop", DEFAULT_DENY), legacy(&spec)]);
        assert_eq!(to_redis(&fixture, from, protocol), verdict, "{id}: {rule}");
    }
}

#[test]
fn policies_are_read_as_in_2016() {
    let others = "podSelector: {matchLabels: {role: other}}\ningress: [{}]";
    for (id, spec, from, protocol, verdict) in [
        ("P-10", "podSelector: {}", WEB, tcp(80), Deny),
        ("P-10", "podSelector: {}\ningress: []", WEB, tcp(80), Deny),
        ("P-9", "podSelector:\ningress: [{}]", WEB, tcp(80), Allow),
        ("P-9", others, WEB, tcp(80), Deny),
        ("P-17.1", EXAMPLE_1, WEB, tcp(6379), Allow),
        ("P-17.1", EXAMPLE_1, WEB, tcp(80), Deny),
        ("P-17.1", EXAMPLE_1, OTHER, tcp(6379), Deny),
        ("P-17.2", EXAMPLE_2, OTHER, tcp(443), Allow),
        ("P-17.2", EXAMPLE_2, OTHER, tcp(80), Deny),
        ("P-17.3", EXAMPLE_3, OUTSIDE, tcp(80), Allow),
        (
            "of v1 only",
            "podSelector: {}\ningress: [{}]\npolicyTypes: [Ingress]",
            WEB,
            tcp(80),
            Deny,
        ),
    ] {
        let fixture = cluster([annotated("shop", DEFAULT_DENY), legacy(spec)]);
        assert_eq!(to_redis(&fixture, from, protocol), verdict, "{id}: {spec}");
    }
}

/// P-2: without isolation by the annotation the objects say nothing, neither alone nor beside v1.
#[test]
fn without_the_annotation_objects_have_no_effect() {
    let opens = "podSelector: {}\ningress: [{}]";
    for annotation in [
        "{}",
        r#"{"ingress": {}}"#,
        r#"{"ingress": null}"#,
        r#"{"ingress": {"isolation": null}}"#,
    ] {
        let alone = cluster([
            annotated("shop", annotation),
            legacy("podSelector: {}\ningress: []"),
        ]);
        assert_eq!(to_redis(&alone, WEB, tcp(80)), Allow, "{annotation}");
    }
    for example in [EXAMPLE_2, EXAMPLE_3] {
        assert_eq!(
            to_redis(&cluster([legacy(example)]), OUTSIDE, tcp(80)),
            Allow,
            "P-17"
        );
    }
    let beside = cluster([v1("podSelector: {}"), legacy(opens)]);
    assert_eq!(
        to_redis(&beside, WEB, tcp(80)),
        Deny,
        "a v1 object isolates, and P-2 holds"
    );
    let elsewhere = cluster([
        annotated("other", DEFAULT_DENY),
        legacy(opens),
        v1("podSelector: {}"),
    ]);
    assert_eq!(
        to_redis(&elsewhere, WEB, tcp(80)),
        Deny,
        "the annotation is another namespace's"
    );
}

/// P-1, P-3: whatever is there and is not understood closes, with a warning.
#[test]
fn the_annotation_isolates_every_pod_of_its_namespace_from_everyone() {
    for annotation in [
        DEFAULT_DENY,
        "{\n \"ingress\":\n {\"isolation\":\t\"DefaultDeny\"}}",
        "",
        "{",
        "[]",
        r#"{"ingress": {"isolation": "DefaultAllow"}}"#,
        r#"{"ingress": {"isolation": 1}}"#,
        r#"{"ingress": []}"#,
    ] {
        let fixture = cluster([annotated("shop", annotation)]);
        for from in [WEB, OTHER, OUTSIDE] {
            assert_eq!(to_redis(&fixture, from, tcp(80)), Deny, "{annotation:?} {from}");
        }
        assert_eq!(fixture.ingress("shop/web", OTHER, tcp(80)), Deny);
        assert_eq!(
            fixture.ingress("other/client", WEB, tcp(80)),
            Allow,
            "P-3: its own namespace only"
        );
        assert_eq!(
            fixture.egress("shop/redis", OTHER, tcp(80)),
            Allow,
            "P-4: never egress"
        );
    }
}

/// P-18: the form in the spec, in files only.
#[test]
fn a_namespace_may_say_it_in_its_spec() {
    for (spec, verdict) in [
        ("{networkPolicy: {ingress: {isolation: DefaultDeny}}}", Deny),
        ("{networkPolicy: {ingress: {isolation: Other}}}", Deny),
        ("{networkPolicy: {ingress: DefaultDeny}}", Deny),
        ("{networkPolicy: DefaultDeny}", Deny),
        ("{networkPolicy: {ingress: {}}}", Allow),
        ("{networkPolicy: {}}", Allow),
        ("{finalizers: [kubernetes]}", Allow),
    ] {
        let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\nspec: {spec}\n");
        let fixture = cluster([lowered(&text).entities]);
        assert_eq!(to_redis(&fixture, WEB, tcp(80)), verdict, "{spec}");
    }
}

/// P-7.
#[test]
fn the_own_node_always_reaches_its_pods() {
    let fixture = cluster([annotated("shop", DEFAULT_DENY)]);
    let decision = fixture.decide_connection(&egret_policies::simulator::Connection {
        pod: key("shop/redis"),
        direction: Direction::Ingress,
        peer: "192.0.2.1".parse().unwrap(),
        peer_is_own_node: true,
        protocol: tcp(6379),
    });
    assert_eq!(decision.verdict, Allow);
}

/// P-8 with both forms at once: what either allows is allowed.
#[test]
fn both_forms_add_up_in_an_annotated_namespace() {
    let fixture = cluster([
        annotated("shop", DEFAULT_DENY),
        legacy("podSelector: {}\ningress: [{ports: [{port: 1}]}]"),
        v1("podSelector: {}\ningress: [{ports: [{port: 2}]}]"),
    ]);
    let allowed = [1, 2, 3].map(|port| to_redis(&fixture, WEB, tcp(port)));
    assert_eq!(allowed, [Allow, Allow, Deny]);
}

/// P-6: what is open when the namespace is closed is asked again, and so is what an object had opened.
#[test]
fn open_connections_are_asked_again_when_a_namespace_closes() {
    let mut fixture = cluster([legacy("podSelector: {}\ningress: [{}]")]);
    let asked = |batch: egret_policies::rules::Batch| {
        batch
            .reevaluate
            .contains(&(key("shop/redis"), Direction::Ingress))
    };
    let annotation = annotated("shop", DEFAULT_DENY).pop().unwrap();
    assert!(asked(fixture.apply(annotation.clone())));
    let object = legacy("podSelector: {}").pop().unwrap();
    assert!(asked(fixture.apply(object)));
    assert_eq!(to_redis(&fixture, WEB, tcp(80)), Deny);
    fixture.delete(annotation.key());
    assert_eq!(to_redis(&fixture, WEB, tcp(80)), Allow, "P-2 again");
}

/// P-16, and P-5: rules are asked of who opens a connection, so there is no egress to write.
#[test]
fn an_object_of_2016_is_told_to_be_one() {
    let lowered = lowered(&object("extensions/v1beta1", "podSelector: {}\ningress: [{}]"));
    assert_eq!(codes(&lowered.diagnostics), [Code::LegacyForm]);
    let [Entity::Policy(policy)] = &lowered.entities[..] else {
        panic!("{:?}", lowered.entities);
    };
    assert_eq!(policy.egress, Effect::None);
    assert!(matches!(&policy.ingress, Effect::Opens(rules) if rules.len() == 1));
}

#[test]
fn an_object_of_2016_that_cannot_be_read_allows_nothing() {
    for spec in [
        "podSelector: 1\ningress: [{}]",
        "podSelector: {matchLabels: 3}\ningress: [{}]",
        "ingress: {}",
        "podSelector: {}\negress: []\ningress: [{}]",
    ] {
        let lowered = lowered(&object("extensions/v1beta1", spec));
        let [Entity::Policy(policy)] = &lowered.entities[..] else {
            panic!("{:?}", lowered.entities);
        };
        assert_eq!(policy.ingress, Effect::Opens(Arc::default()), "{spec}");
        assert!(lowered.diagnostics.len() > 1, "{spec}");
    }
}
